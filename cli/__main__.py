"""``python -m lovec.cli``, or ``python -m cli`` in a checkout that is not installed."""

from . import main

if __name__ == "__main__":
    raise SystemExit(main())
