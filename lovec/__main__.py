"""``python -m lovec``: the command line."""

from importlib import import_module

if __name__ == "__main__":
    raise SystemExit(import_module("lovec.cli").main())  # a checkout has it beside the library
