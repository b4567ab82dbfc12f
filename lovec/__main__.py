"""``python -m lovec``: the command line."""

from lovec.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
