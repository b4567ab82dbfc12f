"""``lovec completion``: a script by which a shell completes commands, options, their values and file names."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from lovec.core.imports import gc_paused

from . import COMMANDS, TRAINING
from .arguments import BASE, RECIPES
from .console import say_next
from .parser import ITSELF, Asked, OneLineParser
from .sourcecode import exported, packages_of, parameters
from .training_help import OPTIONS

_PLACES = {
    "bash": "${XDG_DATA_HOME:-$HOME/.local/share}/bash-completion/completions/lovec",
    "zsh": "${fpath[1]}/_lovec",
    "fish": "${XDG_CONFIG_HOME:-$HOME/.config}/fish/completions/lovec.fish",
}
"""Where a shell looks for the script, as its own command line writes it."""

_TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
_CLASSES = {"model": "EvaluationModule", "data": "RecordsDataModule", "oracle": "Oracle", "baselines": "Baseline"}
"""The classes that an option takes, by the last part of its name."""


def run(words: list[str]) -> None:
    """Print the script for a shell.

    Args:
        words: the command line after ``completion``.
    """
    parser = OneLineParser("completion", "Print a script by which a shell completes commands, options and file names.")
    parser.add_argument("shell", choices=tuple(_PLACES), help="the shell")
    shell = parser.read(words).shell
    import shtab

    with gc_paused():
        tree = command_tree(shtab.FILE)
    print(shtab.complete(tree, shell, preamble=_recipe_functions().get(shell, "")))
    say_next(
        (f'lovec completion {shell} > "{_PLACES[shell]}"', "once, for new shells; make the folder if it is missing")
    )


def command_tree(files: Any) -> ArgumentParser:
    """Return a parser that has every command, with its options, as plain argparse knows them.

    Args:
        files: what completes names of files.
    """
    tree = ArgumentParser(prog="lovec")
    tree.add_argument("--version", action="store_true", help="print the version")
    commands = tree.add_subparsers()
    for command, purpose in COMMANDS.items():
        branch = commands.add_parser(command, help=purpose, description=purpose)
        branch.add_argument("--quiet", action="store_true", help="print no progress and no notes")
        training = command in TRAINING
        if training or command == "sweep":
            _add_training(branch, "fit" if command == "sweep" else command, files)
        for action in () if training else _actions(command):
            _copy(branch, action, files)
    return tree


def _actions(command: str) -> Iterator[Action]:
    """Yield the options of a command other than those of the trainer."""
    try:
        import_module(f".{command}", __package__).run([ITSELF])
    except Asked as answer:
        yield from answer.parser._actions


def _copy(branch: ArgumentParser, action: Action, files: Any) -> None:
    """Add an option that another parser has, as far as a shell needs to know it."""
    if action.help == SUPPRESS or "--help" in action.option_strings:
        return
    names = [name for name in action.option_strings if name.startswith("--")]
    kind: Any = getattr(action, "_typehint", action.type)
    if (isinstance(kind, type) and issubclass(kind, bool)) or getattr(kind, "__name__", "") == "read_switch":
        branch.add_argument(*names, action="store_true", help=_plain(action.help))
        return
    values = list(action.choices or _literals(kind)) or _classes(names[0].removeprefix("--") if names else "")
    _add(branch, names or [action.dest], values, action.help, files, action.nargs if not names else None)


def _add_training(branch: ArgumentParser, command: str, files: Any) -> None:
    """Add the options of a command of the trainer: those that its help shows, and all of the trainer itself."""
    known = {"help"}
    for name, value, text, shown in OPTIONS:
        if command not in shown or name in known:
            continue
        known.add(name)
        if not value:
            branch.add_argument(f"--{name}", action="store_true", help=_plain(text))
            continue
        _add(branch, [f"--{name}"], _classes(name), text, _recipes() if name == "config" else files)
    for name in parameters(_TRAINER) or ():
        if f"trainer.{name}" not in known:
            _add(branch, [f"--trainer.{name}"], (), "of Lightning's trainer", files)


def _add(
    branch: ArgumentParser, names: Sequence[str], values: Iterable[str], text: Any, files: Any, nargs: Any = None
) -> None:
    """Add an option or, of one name without hyphens, a positional argument; without known values, a file completes."""
    known = {"nargs": nargs} if nargs is not None else {}
    values = list(map(str, values))
    if values:
        branch.add_argument(*names, choices=values, help=_plain(text), **known)
    else:
        branch.add_argument(*names, help=_plain(text), **known).complete = files  # type: ignore[attr-defined]


def _literals(kind: Any) -> list[str]:
    """Return the values of a ``Literal``, also of one that may be None."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [value for part in get_args(kind) for value in _literals(part)]


def _classes(option: str) -> list[str]:
    """Return the names of the classes that an option takes; none for options that take something else."""
    takes = option in ("model", "data", "model.baselines") or "oracle" in option
    packages = packages_of(_CLASSES.get(option.rpartition(".")[2], "")) if takes else ()
    return sorted({name for package in packages for name in exported(package)})


def _plain(text: Any) -> str:
    """Return the help of an option in a line, without what argparse would replace in it."""
    return " ".join(str(text or "").split()).partition(";")[0].replace("%", "%%")


def _recipes() -> dict[str, str]:
    """Return what completes the name of a recipe, by shell."""
    files = "__fish_complete_path (commandline -ct)"
    return {"bash": "_lovec_recipes", "zsh": "_lovec_recipes", "fish": f"(printf '%s\\n' {_packaged()}; {files})"}


def _recipe_functions() -> dict[str, str]:
    """Return the functions that `_recipes` names, by shell."""
    bash = f'compgen -W \'{_packaged()}\' -- "$1"; compgen -f -X \'!*.yaml\' -- "$1"; compgen -d -- "$1"'
    zsh = f"_alternative 'recipes:recipe:({_packaged()})' 'files:file:_files'"
    return {shell: f"_lovec_recipes() {{ {body}; }}" for shell, body in (("bash", bash), ("zsh", zsh))}


def _packaged() -> str:
    return " ".join(sorted(path.name for path in RECIPES.glob("*.yaml") if path != BASE))
