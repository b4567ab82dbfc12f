"""A parser whose options are the parameters of functions and classes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from logging import Logger
from typing import Any, TypeVar, get_type_hints

from jsonargparse import ArgumentParser, Namespace, _postponed_annotations, _typehints
from jsonargparse._util import NestedArg

from lovec.core.settings import Option, declared

from .errors import error_of_own_file, protocol_help, root_cause
from .parser import OneLineErrors
from .sourcecode import brought, packages_of

T = TypeVar("T")

_resolve = _typehints.resolve_class_path_by_name
_adapt: Any = _typehints.adapt_class_type


def class_path(cls: type[Any] | tuple[type[Any]], name: str) -> str:
    """Return the path of the class that a short name stands for; any other name is returned as it is.

    A name that no class has that is imported by now may be that of one which another package brings.

    Of several classes with this name, the one in the package of the option's type is meant, such as PyTorch's
    optimisers: bitsandbytes and transformers have some of the same name, and which packages are imported by now depends
    on what is installed.

    Args:
        cls: the type of the option: a class, a union of some or a tuple of some. The package is that of the first.
        name: what was given.

    Raises:
        ValueError: several classes have this name, and not just one of them is in that package.
        PluginError: it is one that another package brings, and cannot be imported.
    """
    try:
        path: str = _resolve(cls, name)
        if "." in path:
            return path
        kinds = (kind.__name__ for given in _typehints.get_class_types(cls) for kind in given.__mro__)
        packages = tuple(package for kind in kinds for package in packages_of(kind))
        if (plugin := brought(name, packages)) is not None:
            plugin.load(type)  # here, where it is known which package is to blame
            path = plugin.path
        return path
    except ValueError:
        if isinstance(cls, tuple):  # each of them has been here by itself
            raise
        package = _typehints.get_class_types(cls)[0].__module__.partition(".")[0]
        same = [path for path in _typehints.get_all_subclass_paths(cls) if path.rpartition(".")[2] == name]
        meant = [path for path in same if path.partition(".")[0] == package]
        if len(meant) != 1:
            raise
        return meant[0]


def adapt_class_type(value: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what jsonargparse makes of a class, where the command line sets one of its parameters.

    The value of ``--model.policy.instruction null`` is parsed at ``--model``, and given to the parser of the class as
    text: as Python writes it, ``None``, which is another text there. Here it is written as JSON, which is read back as
    the same value.

    Args:
        value: class and parameters; of a nested option its name and its parsed value.
        args: as jsonargparse gives them.
        kwargs: as jsonargparse gives them.
    """
    given = value.get("init_args") if isinstance(value, Namespace) else None
    if isinstance(given, NestedArg) and not isinstance(given.val, str):
        value["init_args"] = given._replace(val=json.dumps(given.val, default=str))
    return _adapt(value, *args, **kwargs)


# jsonargparse refuses such names, and writes such values in Python's way; it has no setting for either.
_typehints.resolve_class_path_by_name = class_path
_typehints.adapt_class_type = adapt_class_type

_with_imports = _postponed_annotations.get_global_vars


def names_for(obj: Any, logger: Logger | None) -> dict[Any, Any]:
    """Return the names that the annotations of a function or a class may use, with what they stand for.

    What a module imports for type checkers only is imported where these annotations need it, and not in any case, as
    jsonargparse does: it would import torch to say that an option is mistyped.

    Args:
        obj: the function or the class.
        logger: gets what cannot be imported.
    """
    try:
        get_type_hints(obj)
    except Exception:  # whatever evaluating annotations of a user's class may raise
        return _with_imports(obj, logger)
    parts = reversed(obj.__mro__) if isinstance(obj, type) else [obj]
    return {name: value for part in parts for name, value in vars(sys.modules[part.__module__]).items()}


_postponed_annotations.get_global_vars = names_for


class SignatureParser(OneLineErrors, ArgumentParser):
    """Reads options from signatures and docstrings: names, types, defaults and help are written there only."""

    switch_type = bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.targets: dict[Callable[..., Any], list[str]] = {}
        """The functions and classes that were added, with their parameters that are options."""

    def add(self, target: Callable[..., Any], *skip: str) -> None:
        """Add the parameters of a function or a class as options.

        Args:
            target: function or class, with a docstring that describes its parameters.
            skip: parameters that are no options.
        """
        add = self.add_class_arguments if isinstance(target, type) else self.add_function_arguments
        self.targets[target] = add(target, skip=set(skip))

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an option, except ``--print_shtab``, which jsonargparse adds to every parser and does not support."""
        return None if args[:1] == ("--print_shtab",) else super().add_argument(*args, **kwargs)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse the words of a command line."""
        given = list(sys.argv[1:] if args is None else args)
        for word, after in zip_longest(given, given[1:], fillvalue="--"):
            if (
                word.endswith(".help")
                and after.startswith("--")
                and (text := protocol_help(word.removesuffix(".help")))
            ):
                print(text)  # jsonargparse says nothing of a protocol
                raise SystemExit(0)
        options = super().parse_args(given, namespace, *rest, **kwargs)
        for name, option in self._options():
            option.check(options[name], "--{}")
        return options

    def _options(self, *targets: Callable[..., Any]) -> Iterator[tuple[str, Option]]:
        """Yield the options that were added, or those of some functions and classes, with what is declared of them."""
        for target, names in self.targets.items():
            if not targets or target in targets:
                yield from ((name, declared(target)[name]) for name in names)

    def decisive(self, options: Namespace, *targets: Callable[..., Any]) -> dict[str, Any]:
        """Return the options that results depend on, as plain values.

        Args:
            options: what ``parse_args`` returned.
            targets: functions and classes whose options are meant; none means all.
        """
        plain = options.as_dict()
        return {name: plain[name] for name, option in self._options(*targets) if option.decides}

    def call(self, target: Callable[..., T], options: Namespace, **others: Any) -> T:
        """Call a function or a class that was added.

        Args:
            target: as it was added.
            options: what ``instantiate`` returned.
            others: the parameters that are no options.

        Raises:
            LovecError: the function or class refuses its arguments.
        """
        return target(**{name: options[name] for name in self.targets[target]}, **others)

    def instantiate(self, namespace: Namespace, instantiate_groups: bool = True, **kwargs: Any) -> Namespace:
        """Return the options with an object in place of every class that they name.

        Raises:
            LovecError: a class refuses its options, or one in a file of the user's own raises an error.
        """
        try:
            objects: Namespace = super().instantiate(namespace, instantiate_groups, **kwargs)
        except Exception as error:
            if (own := error_of_own_file(error)) is not None:
                raise own from error
            if isinstance(error, ValueError):  # jsonargparse wraps what the class raises
                raise root_cause(error) from None
            raise
        return objects
