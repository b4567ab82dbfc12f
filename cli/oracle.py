"""The oracle that a command line names: a class path and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from lovec.types import Oracle

from .errors import explain, root_cause, unknown

_BY_THE_WAY = ("concurrency", "cache", "timeout", "retries", "max_cost", "price_in", "price_out", "progress")
"""Options that change the way to a rating and not the rating: a run may go on with others."""


class Parser(ArgumentParser):
    """jsonargparse with errors in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises a one-line UsageError (parsers inside the parser keep raising what jsonargparse expects)."""
        if not self.exit_on_error:
            super().error(message, ex)
        raise explain(message, self) from ex


def read_oracle(words: Sequence[str]) -> tuple[Oracle, Mapping[str, Any]]:
    """Builds the oracle.

    Args:
        words: ``--oracle CLASS`` and ``--oracle.NAME VALUE``; a class without a module is one of ``lovec.oracles``.

    Returns:
        The oracle, and those of its settings on which its ratings depend.

    Raises:
        LovecError: there is no such class or option, or the oracle refuses its options.
    """
    parser = Parser(prog="lovec label", exit_on_error=True)
    parser.add_argument("--oracle", type=Oracle, help="says how true sentences are")
    config = parser.parse_args([*_full(words)])
    settings = config.as_dict()["oracle"]
    try:
        oracle = parser.instantiate_classes(config).oracle
    except ValueError as error:  # jsonargparse wraps what the class says
        raise root_cause(error) from None
    if hasattr(oracle, "progress"):
        oracle.progress = False  # the command has a line of its own
    given = {name: value for name, value in settings.get("init_args", {}).items() if name not in _BY_THE_WAY}
    return oracle, {"class": settings["class_path"], **given}


def _full(words: Sequence[str]) -> list[str]:
    """The words, with the module of a class that was named without one."""
    import lovec.oracles

    out: list[str] = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if place and words[place - 1] in ("--oracle", "--oracle.help"):
            out.append(_path(word, lovec.oracles.__all__))
        elif equals and name in ("--oracle", "--oracle.help"):
            out.append(f"{name}={_path(value, lovec.oracles.__all__)}")
        else:
            out.append(word)
    return out


def _path(name: str, known: Sequence[str]) -> str:
    if "." in name:
        return name
    known = [word for word in known if word.endswith(("Oracle", "Judge", "File"))]
    if name not in known:
        raise unknown("oracle", name, known, listed=True)
    return f"lovec.oracles.{name}"
