"""The parser of every command: a mistake is one line that names the nearest option.

``OneLineErrors`` does this for argparse and for jsonargparse, which is built on it. This file imports neither torch nor
jsonargparse, so that commands with few options answer ``--help`` at once; ``signatures.py`` has the parser that reads
options from signatures, and ``training.py`` that of the trainer.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NoReturn

from lovec.core.plugins import PluginError

from .errors import UsageError, error_of_own_file, explain, root_cause
from .examples import examples_of

_USER_KEYS = (".adapters.",)
"""Behind these stands a name that the user has chosen, which is left as it is."""

QUIET_HELP = "With --quiet, no progress and no notes are printed on standard error, only warnings and errors."
"""What the help of every command says of the option that ``lovec.cli.main`` reads."""

ITSELF = "--parser"
"""The only word of a command line that asks for the parser, which `Asked` carries, and not for the command."""

_RENAMED = {"--force": "--redo", "--min_score": "--min_confidence"}
"""Options by the names that they once had."""


class Asked(Exception):
    """Raised in place of parsing the word `ITSELF`.

    Args:
        parser: the parser of the command.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def read_switch(text: str) -> bool:
    """Return what true or false stands for.

    Raises:
        ArgumentTypeError: the text is neither.
    """
    if text.lower() not in _SWITCH:
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return _SWITCH[text.lower()]


_SWITCH = {"true": True, "false": False}


class OneLineErrors(argparse.ArgumentParser):
    """A parser that raises one-line errors, takes ``-`` for ``_`` in option names, and writes None as null.

    An option that is true or false may stand without a value, which is true then: ``--redo``, ``--redo true`` and
    ``--redo false``.
    """

    switch_type: ClassVar[Any] = staticmethod(read_switch)
    """Type of the options that are true or false."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse the words of a command line, by default those of this process."""
        words = list(sys.argv[1:] if args is None else args)
        if self.exit_on_error:  # jsonargparse's parsers inside a parser get words that were changed already
            words = self.spelt(words)
        return super().parse_args(words, namespace, *rest, **kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an option; those that others make by "store_true" may also be given true or false."""
        if kwargs.get("action") == "store_true":
            kwargs = {"type": self.switch_type, "default": False, "metavar": "{true,false}"} | kwargs
            del kwargs["action"]
        return super().add_argument(*args, **kwargs)

    def spelt(self, words: Sequence[str]) -> list[str]:
        """Return the words with every option in its one spelling, and with ``true`` where one is given without a value.

        Raises:
            UsageError: an option has another name now.
            Asked: the words ask for the parser.
        """
        if list(words) == [ITSELF]:
            raise Asked(self)
        spelt = []
        for word, after in pairwise([*with_underscores(words), ""]):
            name, equals, value = word.partition("=")
            if name not in self._option_string_actions and _RENAMED.get(name) in self._option_string_actions:
                raise _renamed(name, value if equals else after)
            spelt.append(word)
            if self._is_switch(word) and after.lower() not in _SWITCH:
                spelt.append("true")
        return spelt

    def _is_switch(self, word: str) -> bool:
        action: Any = self._option_string_actions.get(word)
        return self.switch_type in (getattr(action, "type", None), getattr(action, "_typehint", None))

    def format_help(self, *args: Any) -> str:
        """Return the help, with examples at its end.

        Docstrings say None, True and False; on a command line and in a recipe they are written null, true and false.
        """
        text = re.sub(r"\bOptional\[(\w+)\]", r"\1 | null", super().format_help(*args)).replace("None", "null")
        text = re.sub(r"default:\s+(True|False)\b", lambda match: match[0].lower(), text)
        return f"{text}\n{QUIET_HELP}\n{examples_of(self.prog.removeprefix('lovec '))}"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a one-line ``UsageError``; jsonargparse's parsers inside a parser raise what it expects of them."""
        if not self.exit_on_error:
            super().error(*((message,) if ex is None else (message, ex)))
        if ex is not None and isinstance(cause := root_cause(ex), PluginError):
            raise cause
        raise error_of_own_file(ex) or explain(message, self) from ex


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Adds to the help of an option its default, where it has one and the help does not say it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, "", []) or "(default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class OneLineParser(OneLineErrors):
    """The parser of a command that imports nothing heavy to print its help.

    Args:
        command: the word after ``lovec``.
        description: what the command does.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"lovec {command}", description=description, formatter_class=_WithDefaults)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the options that are given, and the defaults of the others.

        Raises:
            UsageError: an option is unknown, or does not take its value.
        """
        options: argparse.Namespace = self.parse_args(words)
        return options


def _renamed(name: str, value: str) -> UsageError:
    """Return the error for an option that has another name now; a score becomes the confidence that it stands for."""
    if name != "--min_score":
        return UsageError(f"{name} is now {_RENAMED[name]}")
    from lovec.taggers.served_confidence import renamed_threshold
    from lovec.types import DEFAULT_SCALE

    score = int(value) if value.isdecimal() else None
    return UsageError(str(renamed_threshold(score, DEFAULT_SCALE, "--min_confidence {}")))


def with_underscores(words: Sequence[str]) -> list[str]:
    """Return the words with every option name in its one spelling: ``--max-new-tokens`` is ``--max_new_tokens``."""
    spelt = []
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--") and not any(key in name for key in _USER_KEYS):
            name = "--" + name[2:].replace("-", "_")
        spelt.append(name + equals + value)
    return spelt
