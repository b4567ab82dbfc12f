"""The parser of every command: a mistake is one line that names the nearest option.

``OneLineErrors`` does this for argparse and for jsonargparse, which is built on it. This file imports neither torch nor
jsonargparse, so that commands with few options answer ``--help`` at once; ``signatures.py`` has the parser that reads
options from signatures, and ``training.py`` that of the trainer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .errors import explain

_USER_KEYS = (".adapters.",)
"""Behind these stands a name that the user has chosen, which is left as it is."""


class OneLineErrors(argparse.ArgumentParser):
    """A parser that raises one-line errors, takes ``-`` for ``_`` in option names, and writes None as null."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse the words of a command line, by default those of this process."""
        words = list(sys.argv[1:] if args is None else args)
        if self.exit_on_error:  # jsonargparse's parsers inside a parser get names that were changed already
            words = with_underscores(words)
        return super().parse_args(words, namespace, *rest, **kwargs)

    def format_help(self, *args: Any) -> str:
        """Return the help. Docstrings say None, but on a command line and in a recipe it is written null."""
        return super().format_help(*args).replace("None", "null")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a one-line ``UsageError``; jsonargparse's parsers inside a parser raise what it expects of them."""
        if not self.exit_on_error:
            super().error(*((message,) if ex is None else (message, ex)))
        raise explain(message, self) from ex


class OneLineParser(OneLineErrors):
    """The parser of a command that imports nothing heavy to print its help.

    Args:
        command: the word after ``lovec``.
        description: what the command does.
    """

    def __init__(self, command: str, description: str) -> None:
        formatter = argparse.ArgumentDefaultsHelpFormatter
        super().__init__(prog=f"lovec {command}", description=description, formatter_class=formatter)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the options that are given, and the defaults of the others.

        Raises:
            UsageError: an option is unknown, or does not take its value.
        """
        options: argparse.Namespace = self.parse_args(words)
        return options


def with_underscores(words: Sequence[str]) -> list[str]:
    """Return the words with every option name in its one spelling: ``--max-new-tokens`` is ``--max_new_tokens``."""
    spelt = []
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--") and not any(key in name for key in _USER_KEYS):
            name = "--" + name[2:].replace("-", "_")
        spelt.append(name + equals + value)
    return spelt
