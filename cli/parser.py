"""Option parsing for the commands that are not a trainer's."""

from __future__ import annotations

import argparse
from typing import NoReturn

from .errors import UsageError, one_line, unknown


class OneLineParser(argparse.ArgumentParser):
    """argparse with errors in one line that name the nearest option."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"lovec {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

    def read(self, words: list[str]) -> argparse.Namespace:
        """The options given.

        Raises:
            UsageError: an option is unknown, or its value is not one it takes.
        """
        options, rest = self.parse_known_args(words)
        if rest and rest[0].startswith("-"):
            raise unknown("option", rest[0].partition("=")[0], self._option_string_actions)
        if rest:
            raise UsageError(f"unexpected word {rest[0]}; options start with --")
        return options

    def error(self, message: str) -> NoReturn:
        """Raises a UsageError instead of printing the usage."""
        raise UsageError(one_line(message))
