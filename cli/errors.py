"""One line for every error that the user can fix: what was given, what was expected, and the nearest right word."""

from __future__ import annotations

import errno
import re
import traceback
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from lovec.core import shown
from lovec.core.notices import nearest
from lovec.core.plugins import PluginError, plugins
from lovec.types import LovecError

_LONGEST = 300
_FILES = {".csv", ".htm", ".html", ".json", ".jsonl", ".md", ".pdf", ".png", ".svg", ".tex", ".txt"}
_VALUE = r"(?:Given value|Got value): (?!NestedArg|Namespace|{)([^\n]+?)\.?(?: Got value.*)?$"
_LITERAL = r"Expected a typing\.Literal\[([^\]]+)\].*?(?:Got|Given) value: ([^\n]+)"
_BASES = {
    "model": "lovec.evaluation.EvaluationModule",
    "data": "lovec.datamodules.RecordsDataModule",
    "oracle": "lovec.types.Oracle",
    "trainer.logger": "lightning.pytorch.loggers.Logger",
    "trainer.callbacks": "lightning.pytorch.callbacks.Callback",
    "model.optimizer": "torch.optim.Optimizer",
    "model.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "model.reward": "lovec.rewards.Reward",
    "model.answer_reward": "lovec.rewards.AnswerReward",
    "model.oracle": "lovec.types.Oracle",
    "model.baselines": "lovec.baselines.Baseline",
    "model.evaluation.metrics": "torchmetrics.Metric",
}
"""Options that take a class by its short name, and the class that it has to be a subclass of."""

_PROTOCOLS = {"Reward": "lovec.rewards", "AnswerReward": "lovec.rewards", "Judge": "lovec.baselines"}
"""Where protocols are defined that are not in ``lovec.types``."""

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list such as [a,b]",
    "Sequence": "a list such as [a,b]",
    "tuple": "a list such as [a,b]",
    "dict": 'a JSON object such as {"a": 1}',
}
"""What types are called in errors; others by their own names."""


class UsageError(LovecError):
    """The command line or a recipe cannot be read; the command ends with exit code 2."""


def unknown(kind: str, word: str, known: Iterable[str], listed: bool = False) -> UsageError:
    """Return the error for a word that is not known.

    Args:
        kind: what the word should be, such as "option".
        word: the word given.
        known: the words that would be right.
        listed: whether the error names all of them where none comes close.
    """
    known = [other for other in dict.fromkeys(known) if other != word]
    hint = nearest(word.partition(" of ")[0], known)
    if listed and known and not hint:
        hint = f"; known are {', '.join(known)}"
    return UsageError(f"unknown {kind} {word}{hint}")


def check_folder_name(option: str, folder: Path | None) -> None:
    """Refuse a name that is not that of a folder to write, before anything takes time.

    Args:
        option: what names it on the command line.
        folder: the folder; None is none.

    Raises:
        UsageError: it is "-", which other programs take for standard output, or ends like the name of a file and is
            not that of a folder.
    """
    if folder == Path("-"):
        raise UsageError(f"{option} is -, expected the name of a folder to write")
    if folder is not None and folder.suffix.lower() in _FILES and not folder.is_dir():
        raise UsageError(f"{option} {folder} is named like a file, expected a folder, such as {folder.with_suffix('')}")


def one_line(error: object) -> str:
    """Return the text of an error as one line that is safe to print, with one space for every run of white space."""
    return shown.one_line(str(error))


def system_error(error: Exception) -> str | None:
    """Return what the operating system refused, as one line with what to do about it; None for other errors."""
    if not isinstance(error, OSError) or error.strerror is None:
        return None
    place = f" ({error.filename})" if error.filename else ""
    fix = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "; make room, or write to another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "; choose another path, or change its permissions"
    return f"{error.strerror}{place}{fix}"


def root_cause(error: BaseException) -> BaseException:
    """Return the exception at the start of a chain of ``raise ... from``, or what says which package has failed."""
    while error.__cause__ is not None and not isinstance(error, PluginError):
        error = error.__cause__
    return error


def error_of_own_file(error: BaseException | None) -> UsageError | None:
    """Return in one line what the code of a file of the user's own has raised; None where none has raised anything.

    Args:
        error: at the end of a chain of ``raise ... from``.
    """
    from lovec.core.own_code import is_own_file

    while error is not None:
        frames = traceback.walk_tb(error.__traceback__)
        places = [(frame.f_code.co_filename, line) for frame, line in frames if is_own_file(frame.f_code.co_filename)]
        if isinstance(error, SyntaxError) and error.filename and is_own_file(error.filename):
            places.append((error.filename, error.lineno or 1))
        if places and not isinstance(error, LovecError):
            path, line = places[-1]
            text = one_line(error.msg if isinstance(error, SyntaxError) else error)[:_LONGEST]
            fix = "correct this file"
            if isinstance(error, ModuleNotFoundError):
                fix = f"install the package that has {error.name}, or put a file of your own into the working directory"
            return UsageError(
                f"{_shortest(path)}, line {line}: {type(error).__name__}: {text}; {fix} (LOVEC_DEBUG=1 shows the whole "
                "traceback)"
            )
        error = error.__cause__
    return None


def _shortest(path: str) -> str:
    """Return a path as it is seen from the working directory, if it lies in it."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def explain(message: str, parser: ArgumentParser) -> UsageError:
    """Return in one line what argparse or jsonargparse reports, which may have six lines.

    Args:
        message: its message; jsonargparse nests "Parser key ..." and "Problem with given class_path ...", outermost
            first.
        parser: the parser that reports it; it is asked for the options it knows.
    """
    key = ".".join(re.findall(r'Parser key "([\w.+-]+)"', message))
    classes = re.findall(r"class_path[ =]'([\w.]+)'", message)
    prefix = f"{key}." if key else ""
    of_class = f" of {classes[-1].rpartition('.')[2]}" if classes else ""
    if match := re.search(r"Multiple subclasses with name (\w+)\..*?ambiguity: ([\w., ]+)\.", message):
        given, paths = (f"--{key} is {match[1]}, which" if key else match[1]), match[2].replace(", ", " or ")
        return UsageError(f"{given} is the name of several classes; give one in full: {paths}")
    if match := re.search(r"argument ([\w-]+): invalid choice: '?([^\n]*?)'? \(choose from ([^\n]*)\)$", message):
        return UsageError(f"{match[1]} is {match[2]}, expected {match[3].replace(chr(39), '').replace(', ', ' or ')}")
    if match := re.search(r"argument (--\w+): invalid (\w+) value: '([^\n]*)'$", message):
        return UsageError(f"{match[1]} is {match[3][:_LONGEST]}, expected {_WORDS.get(match[2], match[2])}")
    if match := re.search(r"(?:arguments are|is) required: ([^\n]+)", message):
        return _missing(match[1], prefix, classes, parser)
    if match := re.search(r"unrecognized arguments: (\S+)", message):
        if not match[1].startswith("-"):
            return UsageError(f"unexpected word {match[1]}; options start with --")
        option = match[1].partition("=")[0]
        if not option.startswith("--"):
            return UsageError(f"unknown option {option}; options start with --")
        return unknown("option", f"--{prefix}{option.removeprefix('--')}", _options(parser, prefix, classes))
    if match := re.search(r"Option '([\w.+-]+)' is not accepted", message):
        return unknown("option", f"--{prefix}{match[1]}{of_class}", _options(parser, prefix, classes))
    if match := re.search(r"Group '([\w.]+)' does not accept option '([\w.+-]+)'", message):
        return unknown("option", f"--{prefix}{match[1]}.{match[2]}", _options(parser, prefix, classes))
    if match := re.search(r"class_path '([\w.]+)':\s+((?:module|No module) [^\n]+)", message):
        return _no_class(match[1], match[2])
    if match := re.search(
        r"Import path (?:(\S+) )?does not implement protocol (\w+)(?:.*?Given value: (\S+))?", message, re.DOTALL
    ):
        return _no_protocol(key, match[1] or match[3], match[2])
    if key and (match := re.search(_LITERAL, message, re.DOTALL)):
        return UsageError(f"--{key} is {match[2][:_LONGEST]}, expected {match[1].replace(', ', ' or ')}")
    if key and (match := re.search(r"Import path (?:(\S+) )?does not correspond to a subclass of (\w+)", message)):
        name = match[1] or "".join(re.findall(r"Given value: ([\w.]+)", message)[:1])
        known = ", ".join(_class_names(key, match[2]))
        return UsageError(f"--{key} is {name}, expected a {match[2]}" + (f"; known are {known}" if known else ""))
    found = re.findall(r"Expected a (?:<class '(?:\w+\.)*(\w+)'>|(tuple) with)", message)
    types = dict.fromkeys(name or other for name, other in found)
    types.pop("NoneType", None)
    if (match := re.search(r"Expected a dot import path string: (\S+)", message)) and (key in _BASES or not types):
        return unknown(f"class for --{key}:", match[1], _class_names(key), listed=True)
    if key and types:
        values = re.findall(_VALUE, message, re.MULTILINE)
        value = f" is {values[0][:_LONGEST]}," if values else ":"
        return UsageError(f"--{key}{value} expected {' or '.join(dict.fromkeys(_WORDS.get(t, t) for t in types))}")
    return UsageError(one_line(message)[:_LONGEST])


def _missing(names: str, prefix: str, classes: list[str], parser: ArgumentParser) -> UsageError:
    known = parser._option_string_actions
    placed = {action.dest: action.metavar or action.dest for action in parser._actions if not action.option_strings}
    needed = []
    for name in names.split(", "):
        is_option = prefix or f"--{name}" in known
        needed.append(f"--{prefix}{name}" if is_option else str(placed.get(name, name)))
    by = f" for {classes[-1].rpartition('.')[2]}" if classes else ""
    of_recipe = "--config" in known and not prefix and all(name.startswith("--") for name in needed)
    hint = "; a recipe does, such as --config sft.yaml" if of_recipe else ""
    return UsageError(f"{' and '.join(needed)} must be given{by}{hint}")


def _no_class(path: str, reason: str) -> UsageError:
    module, _, name = path.rpartition(".")
    if reason.startswith("module"):
        known = [word for word in vars(import_module(module)) if not word.startswith("_")]
        return UsageError(f"there is no {name} in {module}{nearest(name, known)}")
    return UsageError(f"cannot import {path}: {reason}; a file of your own must be in the working directory")


def _no_protocol(key: str, path: str, protocol: str) -> UsageError:
    """A class lacks a method of a protocol, or has it with other names or types, which are compared exactly."""
    article = "an" if protocol[0] in "AEIOU" else "a"
    return UsageError(
        f"--{key} is {path}, which is not {article} {protocol}: expected methods with these names and types: "
        f"{methods_of(protocol)}"
    )


def methods_of(protocol: str) -> str:
    """Return the methods that a class must have to be taken for a protocol, annotated as here, behind ``self``.

    Args:
        protocol: name of the protocol.
    """
    module = import_module(_PROTOCOLS.get(protocol, "lovec.types"))
    return "; ".join(
        f"{name}{signature(member)}".replace("(self, ", "(").replace("'", "")
        for name, member in vars(getattr(module, protocol)).items()
        if callable(member) and (name == "__call__" or not name.startswith("_"))
    )


def protocol_help(option: str) -> str | None:
    """Return what a class of the user's own must be for an option, and the classes that there are; None for others.

    Args:
        option: name of the option, such as ``--oracle``.
    """
    name = option.removeprefix("--")
    protocol = _BASES.get(name, "").rpartition(".")[2]
    if protocol not in ("Oracle", *_PROTOCOLS):
        return None
    return (
        f"{option} CLASS takes {', '.join(_class_names(name))}, or a class of your own in the working directory, as "
        "my_file.MyClass.\nIt needs these methods beside self, annotated exactly so, because the types are compared: "
        f"{methods_of(protocol)}\n"
        f"{option}.help CLASS lists the options of a class."
    )


def _options(parser: Any, prefix: str, classes: list[str]) -> list[str]:
    """Options that the parser knows; those of the innermost class of the message if it names one."""
    if not classes:
        return [option for option in parser._option_string_actions if not option.endswith("help")]
    module, _, name = classes[-1].rpartition(".")
    inner = type(parser)(exit_on_error=False)
    inner.add_class_arguments(getattr(import_module(module), name), fail_untyped=False)
    known = [option.removeprefix("--") for option in inner._option_string_actions]
    return [f"--{prefix}{option}" for option in known if not option.endswith("help")]


def _class_names(key: str, base_name: str = "") -> list[str]:
    """Short names of the classes that an option takes, or of those below the one with the name ``base_name``."""
    from .sourcecode import packages_of

    if key not in _BASES:
        return []
    module, _, name = _BASES[key].rpartition(".")
    classes = list(_subclasses(getattr(import_module(module), name)))
    base = next((cls for cls in classes if cls.__name__ == base_name), object)
    own = [cls.__name__ for cls in classes if issubclass(cls, base) and not cls.__name__.startswith("_")]
    return list(dict.fromkeys([*own, *(brought for package in packages_of(name) for brought in plugins(package))]))


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
