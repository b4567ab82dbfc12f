"""One line for every error that the user can mend: what was given, what was expected, the nearest right thing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any

from lovec.types import LovecError

_LONGEST = 300
_GIVEN = r"(?:Given value|Got value): (?!NestedArg|Namespace|{)([^\n]+?)\.?(?: Got value.*)?$"
_BASES = {
    "model": "lovec.modules.PolicyModule",
    "data": "lovec.datamodules.RecordsDataModule",
    "trainer.logger": "lightning.pytorch.loggers.Logger",
    "trainer.callbacks": "lightning.pytorch.callbacks.Callback",
    "model.optimizer": "torch.optim.Optimizer",
    "model.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "model.reward": "lovec.rewards.Reward",
    "model.baselines": "lovec.baselines.Baseline",
}
"""Options that take a class by its short name."""


class UsageError(LovecError):
    """The command line or a recipe cannot be read; the command ends with exit code 2."""


def nearest(given: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` for the known word most like ``given``, or nothing if none comes close."""
    found = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def unknown(kind: str, given: str, known: Iterable[str], listed: bool = False) -> UsageError:
    """The error for a word that is none of ``known``; with ``listed`` it names them where none comes close."""
    known = list(dict.fromkeys(known))
    hint = nearest(given, known)
    if listed and known and not hint:
        hint = f"; known are {', '.join(known)}"
    return UsageError(f"unknown {kind} {given}{hint}")


def one_line(error: object) -> str:
    """The text of an error with all white space made single spaces."""
    return " ".join(str(error).split())


def root_cause(error: BaseException) -> BaseException:
    """The exception at the start of a chain of ``raise ... from``."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def explain(message: str, parser: Any) -> UsageError:
    """What jsonargparse says in six lines, in one.

    Args:
        message: its message; it nests "Parser key ..." and "Problem with given class_path ..." from outside in.
        parser: the parser that said so, asked for the options it knows.
    """
    key = ".".join(re.findall(r'Parser key "([\w.+-]+)"', message))
    classes = re.findall(r"class_path[ =]'([\w.]+)'", message)
    prefix = f"{key}." if key else ""
    if found := re.search(r"(?:arguments are|is) required: ([^\n]+)", message):
        return _missing(found[1], prefix, classes)
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        if not found[1].startswith("-"):
            return UsageError(f"unexpected word {found[1]}; options start with --")
        option = found[1].partition("=")[0].removeprefix("--")
        return unknown("option", f"--{prefix}{option}", _options(parser, prefix, classes))
    if found := re.search(r"Option '([\w.+-]+)' is not accepted", message):
        given = f"--{prefix}{found[1]}" + (f" of {classes[-1].rpartition('.')[2]}" if classes else "")
        return unknown("option", given, _options(parser, prefix, classes))
    if found := re.search(r"Group '([\w.]+)' does not accept option '([\w.+-]+)'", message):
        return unknown("option", f"--{prefix}{found[1]}.{found[2]}", _options(parser, prefix, classes))
    if found := re.search(r"class_path '([\w.]+)':\s+((?:module|No module) [^\n]+)", message):
        return _no_class(found[1], found[2])
    if found := re.search(r"does not implement protocol (\w+).*?Given value: (\S+)", message, re.DOTALL):
        return _no_protocol(key, found[2], found[1])
    if key and (found := re.search(r"Expected a typing\.Literal\[([^\]]+)\]\. Got value: ([^\n]+)", message)):
        return UsageError(f"--{key} is {found[2][:_LONGEST]}, expected {found[1].replace(', ', ' or ')}")
    if key and (found := re.search(r"Import path (?:(\S+) )?does not correspond to a subclass of (\w+)", message)):
        given = found[1] or "".join(re.findall(r"Given value: ([\w.]+)", message)[:1])
        return unknown(f"{found[2]} for --{key}:", given, _class_names(key), listed=True)
    types = dict.fromkeys(re.findall(r"Expected a <class '(\w+)'>", message))
    types.pop("NoneType", None)
    if (found := re.search(r"Expected a dot import path string: (\S+)", message)) and (key in _BASES or not types):
        return unknown(f"class for --{key}:", found[1], _class_names(key), listed=True)
    if key and types:
        values = re.findall(_GIVEN, message, re.MULTILINE)
        given = f" is {values[0][:_LONGEST]}," if values else ":"
        return UsageError(f"--{key}{given} expected {' or '.join(types)}")
    return UsageError(one_line(message)[:_LONGEST])


def _missing(names: str, prefix: str, classes: list[str]) -> UsageError:
    needed = [f"--{prefix}{name.strip()}" for name in names.split(",")]
    by = f" for {classes[-1].rpartition('.')[2]}" if classes else ""
    hint = "" if prefix else "; give them, or a recipe such as --config sft.yaml"
    return UsageError(f"{' and '.join(needed)} must be given{by}{hint}")


def _no_class(path: str, reason: str) -> UsageError:
    module, _, name = path.rpartition(".")
    if reason.startswith("module"):
        known = [word for word in vars(import_module(module)) if not word.startswith("_")]
        return UsageError(f"there is no {name} in {module}{nearest(name, known)}")
    return UsageError(f"cannot import {path}: {reason}; a file of your own must be in the working directory")


def _no_protocol(key: str, path: str, protocol: str) -> UsageError:
    """A class that lacks a method of a protocol, or has it with other names or types: these are compared exactly."""
    module = import_module({"Reward": "lovec.rewards", "Judge": "lovec.baselines"}.get(protocol, "lovec.types"))
    wanted = [
        f"{name}{signature(member)}".replace("(self, ", "(").replace("'", "")
        for name, member in vars(getattr(module, protocol)).items()
        if callable(member) and (name == "__call__" or not name.startswith("_"))
    ]
    return UsageError(
        f"--{key} is {path}, which is no {protocol}: expected methods with these names and types: {'; '.join(wanted)}"
    )


def _options(parser: Any, prefix: str, classes: list[str]) -> list[str]:
    """Options the parser knows; those of the innermost class of the complaint if there is one."""
    if not classes:
        return [option for option in parser._option_string_actions if not option.endswith("help")]
    module, _, name = classes[-1].rpartition(".")
    inner = type(parser)(exit_on_error=False)
    inner.add_class_arguments(getattr(import_module(module), name), fail_untyped=False)
    known = [option.removeprefix("--") for option in inner._option_string_actions]
    return [f"--{prefix}{option}" for option in known if not option.endswith("help")]


def _class_names(key: str) -> Iterator[str]:
    """Short names that an option of this name takes."""
    if key in _BASES:
        module, _, name = _BASES[key].rpartition(".")
        yield from (name for name in _subclasses(getattr(import_module(module), name)) if not name.startswith("_"))


def _subclasses(base: type[Any]) -> Iterator[str]:
    for heir in base.__subclasses__():
        yield heir.__name__
        yield from _subclasses(heir)
