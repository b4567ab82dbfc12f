"""Settings, each declared once: its range, what depends on it, and who may set it, beside its type.

A parameter of a class says what it may be in its annotation:

    def __init__(self, beta: Annotated[float, Setting(above=0)] = 0.1, **kwargs: Any) -> None: ...

or shorter, ``beta: Positive = 0.1``. From the declaration follow the check of the value and its error (`checked`), what
is taken from the recipe in somebody else's checkpoint (``lovec.cli.saved_recipe``), and what an output or a checkpoint
remembers of the settings it was made with (`decisive`). Nothing has to be declared: a plain ``beta: float = 0.1``
counts among what results depend on, and has no range.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from itertools import chain
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import FunctionType, SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from lovec.core.errors import LovecError

T = TypeVar("T", bound=type[Any])

LARGEST = 1e15
"""The largest number that a setting may be."""

LARGEST_COUNT = 2**31 - 1
"""The largest number of tokens, rows, steps or files that a setting may ask for."""

LARGEST_SEED = 2**32 - 1
"""The largest seed that all random generators take."""

Taken: TypeAlias = Literal["never", "unread", "model", "word", "text"]
"""How a value in somebody else's checkpoint is taken: "never", since it lets others run code; not at all, because it is
"unread" where the checkpoint holds the adapter; as the name of a "model" that runs no code; as a plain "word"; or as
any "text" that a model reads."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of a setting, as metadata of its type. Several in one annotation add up.

    Attributes:
        at_least: the lowest number that is allowed.
        above: what the number must be greater than.
        at_most: the highest number that is allowed.
        below: what the number must be less than.
        decides: whether results depend on it, so that nothing made with one value is continued with another. None
            counts as yes.
        taken: how a value in a checkpoint that a stranger may have written is taken; None takes numbers, switches and
            words that the type lists, and nothing that may be a path or an address.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    decides: bool | None = None
    taken: Taken | None = None

    def __or__(self, other: Setting) -> Setting:
        """Return both together; where both say something, the other one counts."""
        own, more = ({field.name: getattr(part, field.name) for field in fields(Setting)} for part in (self, other))
        return Setting(**{name: own[name] if value is None else value for name, value in more.items()})


NO_EFFECT = Setting(decides=False)
"""Of a setting that changes time, memory, costs, or what is measured or shown, but nothing that is made."""

ELSEWHERE = Setting(decides=False)
"""Of a setting whose effect is remembered in another form, such as the records that are read or a digest of weights."""

Finite: TypeAlias = Annotated[float, Setting()]
Positive: TypeAlias = Annotated[float, Setting(above=0)]
NonNegative: TypeAlias = Annotated[float, Setting(at_least=0)]
Probability: TypeAlias = Annotated[float, Setting(above=0, below=1)]
Share: TypeAlias = Annotated[float, Setting(at_least=0, at_most=1)]
PositiveShare: TypeAlias = Annotated[float, Setting(above=0, at_most=1)]
ProperShare: TypeAlias = Annotated[float, Setting(at_least=0, below=1)]
Count: TypeAlias = Annotated[int, Setting(at_least=1)]
CountFromZero: TypeAlias = Annotated[int, Setting(at_least=0)]
CountFromTwo: TypeAlias = Annotated[int, Setting(at_least=2)]
Seed: TypeAlias = Annotated[int, Setting(at_least=0, at_most=LARGEST_SEED)]

PlainWord: TypeAlias = Annotated[str, Setting(taken="word")]
"""A text that is a name in tables, or one of a few known words. Nothing opens it as a file, a folder or an address, so
settings of this type are also taken from a recipe that a stranger may have written."""

PromptText: TypeAlias = Annotated[str, Setting(taken="text")]
"""A text that a model reads, and nothing opens; settings of this type are taken likewise, whatever they say."""

TrustRemoteCode: TypeAlias = Annotated[bool, Setting(decides=False, taken="never")]
"""A switch that lets others run code here."""


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter of a class or a function.

    Attributes:
        name: its name.
        types: what its value, or an item of it, may be: classes and ``Literal`` types; none where that is not known.
        setting: what is declared of it; None where nothing is.
        many: whether its value may be a list.
    """

    name: str
    types: tuple[Any, ...] = ()
    setting: Setting | None = None
    many: bool = False

    @property
    def number(self) -> type | None:
        """Float or int, if its value may be such a number."""
        return float if float in self.types else int if int in self.types else None

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that its type lists."""
        return tuple(chain.from_iterable(get_args(kind) for kind in self.types if get_origin(kind) is Literal))

    @property
    def decides(self) -> bool:
        """Whether results depend on it, as far as anybody has said."""
        return self.setting is None or self.setting.decides is not False

    @property
    def taken(self) -> Taken | None:
        """How a value of a stranger is taken; None is by its type."""
        return None if self.setting is None else self.setting.taken

    @property
    def group(self) -> type | None:
        """The dataclass whose fields are settings of their own; None where it is no such group."""
        return next((kind for kind in self.types if isinstance(kind, type) and is_dataclass(kind)), None)

    def plain(self, value: Any) -> Any:
        """Return a path as text, where that is what the parameter takes, and any other value as it is."""
        return os.fspath(value) if isinstance(value, os.PathLike) and str in self.types else value

    def check(self, value: Any, names: str = "{}") -> None:
        """Refuse a number outside of the declared range, or a word that the type does not list.

        Args:
            value: the value; None, where the setting has none, is always allowed.
            names: form of the name in errors, such as ``policy.{}``.

        Raises:
            LovecError: so it is.
        """
        is_listed = bool(self.choices) and {get_origin(kind) or kind for kind in self.types} <= {Literal, type(None)}
        if not is_listed and (self.setting is None or self.number is None):
            return
        for item in value if self.many and isinstance(value, list | tuple) else [value]:
            if item is None:
                continue
            if is_listed:
                _refuse_unlisted(names.format(self.name), item, self.choices, nullable=type(None) in self.types)
            elif self.setting is not None:
                limits = {name: getattr(self.setting, name) for name in ("at_least", "above", "at_most", "below")}
                check_range(names.format(self.name), item, **limits, integer=self.number is int)


@cache
def declared(of: Callable[..., Any]) -> Mapping[str, Option]:
    """Return the parameters of a class or a function with what is declared of them, by name.

    Parameters that are handed on to a base class by ``**kwargs`` count. A type that cannot be read, since its name is
    imported for type checkers only, is not known.
    """
    if not isinstance(of, type):
        return _options(of)
    found: dict[str, Option] = {}
    for kind in of.__mro__:
        if isinstance(init := vars(kind).get("__init__"), FunctionType):
            found = {**_options(init), **found}
            if not any(given.kind is given.VAR_KEYWORD for given in _parameters(init)):
                break
    return found


def _parameters(of: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    return tuple(inspect.signature(of).parameters.values())


def _options(of: Callable[..., Any]) -> Mapping[str, Option]:
    names = getattr(inspect.unwrap(of), "__globals__", {})
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        given.name: _option(given.name, given.annotation, names)
        for given in _parameters(of)
        if given.kind not in variadic and given.name != "self"
    }


def _option(name: str, annotation: Any, names: dict[str, Any]) -> Option:
    try:
        hint = get_type_hints(SimpleNamespace(__annotations__={name: annotation}), names, include_extras=True)[name]
    except Exception:  # whatever evaluating the annotation of a user's class may raise
        return Option(name)
    parts = [] if hint is inspect.Parameter.empty else list(_parts(hint))
    settings = [part for part in parts if isinstance(part, Setting)]
    types = tuple(part for part in parts if not isinstance(part, Setting) and part not in _SEVERAL)
    whole = settings[0] if settings else None
    for setting in settings[1:]:
        whole = setting if whole is None else whole | setting
    return Option(name, types, whole, any(part in _SEVERAL for part in parts))


_SEVERAL = (list, tuple, Sequence)
_ARGUMENTS = "_made_with"  # attribute of objects that remember their arguments: these, by name


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types in a union, a container and the types of its items, and what is declared of any of them."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _parts(inner[0])
        yield from (part for part in inner[1:] if isinstance(part, Setting))
    elif origin in (Union, UnionType, *_SEVERAL):
        if origin in _SEVERAL:
            yield origin
        for part in inner:
            yield from _parts(part)
    else:
        yield hint


def checked(names: str = "{}", remember: bool = False) -> Callable[[T], T]:
    """Have a class check its arguments by their declarations, before it does anything else.

    A ``pathlib.Path`` for a text becomes that text, since settings are compared and written as plain values.

    Args:
        names: form of the names in errors, such as ``policy.{}``; ``{kind}`` in it is the name of the class.
        remember: whether its objects remember the arguments they were made with, see ``decisive_arguments``.
    """

    def mark(kind: T) -> T:
        if (plain := vars(kind).get("__init__")) is None:
            return kind
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        order = [given.name for given in _parameters(plain) if given.kind in by_place][1:]
        defaults = {given.name: given.default for given in _parameters(plain) if given.default is not given.empty}
        options: dict[str, Option] = {}

        @wraps(plain)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if not options:  # read late: an annotation may name what its module defines below the class
                options.update(_options(plain))
            form = names.replace("{kind}", type(self).__name__)
            given = dict(zip(order, args, strict=False)) | kwargs
            for name, value in given.items():
                if (option := options.get(name)) is not None:
                    given[name] = option.plain(value)
                    option.check(given[name], form)
            if remember:  # the arguments of a subclass count, and beside them those that it hands on
                made_with = vars(self).get(_ARGUMENTS, {})
                vars(self)[_ARGUMENTS] = defaults | given | made_with
            taken = tuple(given[name] for name in order[: len(args)])
            plain(self, *taken, *args[len(taken) :], **{name: given[name] for name in kwargs})

        kind.__init__ = init
        return kind

    return mark


def decisive_arguments(made: Any) -> Mapping[str, Any] | None:
    """Return the arguments that an object was made with, without those on which no result depends.

    Args:
        made: any object.

    Returns:
        The arguments by name, with defaults where none were given; None for an object that does not remember them.
    """
    given = getattr(made, "__dict__", {}).get(_ARGUMENTS)
    if given is None:
        return None
    kind: Callable[..., Any] = type(made)
    options = declared(kind)
    return {name: value for name, value in given.items() if name not in options or options[name].decides}


class CheckedSettings:
    """A base of classes whose subclasses, those of users among them, check their arguments by their declarations."""

    setting_names: ClassVar[str] = "{}"
    """Form of the names of settings in errors, see `checked`."""

    remember_settings: ClassVar[bool] = False
    """Whether objects remember the arguments they were made with, see `checked`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checked(cls.setting_names, cls.remember_settings)(cls)


def decisive(settings: Any, of: Callable[..., Any] | None = None) -> Any:
    """Return settings as a recipe writes them, without those on which no result depends.

    Args:
        settings: plain values; a class as ``class_path`` and ``init_args``, nested ones included.
        of: the class or function whose parameters they are; None where that is not known, as of classes that name
            themselves.
    """
    if isinstance(settings, list):
        return [decisive(item) for item in settings]
    if not isinstance(settings, Mapping):
        return settings
    if "class_path" in settings:
        inner = decisive(settings.get("init_args") or {}, class_at(settings["class_path"]))
        return {**settings, **({"init_args": inner} if "init_args" in settings else {})}
    options = {} if of is None else declared(of)
    return {
        name: decisive(value, options[name].group if name in options else None)
        for name, value in settings.items()
        if name not in options or options[name].decides
    }


def class_at(path: Any) -> type | None:
    """Return the class with an import path; None where there is none, as for a short name."""
    module, dot, name = str(path).rpartition(".")
    try:
        found = getattr(import_module(module), name, None) if dot else None
    except Exception:  # whatever a user's file raises
        return None
    return found if isinstance(found, type) else None


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse the value of a setting that is not one of the values of a ``Literal``.

    Args:
        name: name of the setting, for the message.
        value: its value.
        choices: the ``Literal`` type, such as ``Readout``.

    Raises:
        LovecError: ``value`` is none of ``choices``.
    """
    _refuse_unlisted(name, value, get_args(choices))


def _refuse_unlisted(name: str, value: object, choices: Sequence[Any], nullable: bool = False) -> None:
    if value not in choices:
        expected = f"{'one of ' * (len(choices) > 1)}{', '.join(map(str, choices))}{' or null' * nullable}"
        raise LovecError(f"{name} is {value!r}, expected {expected}")


def check_range(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    integer: bool = False,
) -> None:
    """Refuse the value of a setting that is not a number or lies outside its range.

    NaN and numbers of a magnitude above ``LARGEST``, infinity among them, lie outside every range, and so do integers
    above ``LARGEST_COUNT`` where no other limit is given. A bool is not a number.

    Args:
        name: name of the setting, for the message.
        value: its value; None, where the setting has none, is always allowed.
        at_least: the lowest value that is allowed.
        above: what the value must be greater than.
        at_most: the highest value that is allowed.
        below: what the value must be less than.
        integer: whether the value must be an integer.

    Raises:
        LovecError: ``value`` is not a number, or lies outside the range.
    """
    if value is None:
        return
    bounds = (("at least", at_least, ge), ("above", above, gt), ("at most", at_most, le), ("below", below, lt))
    limits = [(words, limit, holds) for words, limit, holds in bounds if limit is not None]
    kind = Integral if integer else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    largest = LARGEST_COUNT if integer else LARGEST
    if is_number and not abs(value) <= largest:
        limits += [("at least", -largest, ge)] if at_least is None and above is None else []
        limits += [("at most", largest, le)] if at_most is None and below is None else []
    if not is_number or not all(holds(value, limit) for _, limit, holds in limits):
        noun = [] if is_number else ["an integer" if integer else "a number"]
        expected = " ".join([*noun, " and ".join(f"{words} {limit:.10g}" for words, limit, _ in limits)])
        raise LovecError(f"{name} is {(str if is_number else repr)(value)[:60]}, expected {expected}".rstrip())


def check_count(name: str, value: Any, at_least: int = 1, at_most: int | None = None) -> None:
    """Refuse the value of a setting that is not an integer in its range.

    Args:
        name: name of the setting, for the message.
        value: its value; None, where the setting has none, is always allowed.
        at_least: the lowest value that is allowed.
        at_most: the highest value that is allowed; None is ``LARGEST_COUNT``.

    Raises:
        LovecError: ``value`` is not an integer, or lies outside the range.
    """
    check_range(name, value, at_least=at_least, at_most=at_most, integer=True)


def check_seed(name: str, value: Any) -> None:
    """Refuse a seed that is not an integer in 0..2**32 - 1, which is what all random generators take.

    Args:
        name: name of the setting, for the message.
        value: its value.

    Raises:
        LovecError: ``value`` is no such integer.
    """
    check_range(name, value, at_least=0, at_most=LARGEST_SEED, integer=True)
