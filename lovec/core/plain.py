"""Values of plain JSON objects that anybody may have written: each is checked as it is taken out.

A dataclass that is a `PlainObject` says what it is read from by the annotations of its fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from lovec.core.errors import LovecError
from lovec.core.settings import LARGEST, check_choice

P = TypeVar("P", bound="PlainObject")

MOST_NUMBERS = 50_000
"""Longest list of numbers that is read."""

MOST_CHARACTERS = 500
"""Longest text that is read."""


def parse_json(content: bytes) -> Any:
    """Return what JSON in UTF-8 holds, however it was written.

    Args:
        content: the bytes of a file.

    Raises:
        LovecError: it is not JSON, names a key twice, has a number that is none, or is nested too deeply.
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise LovecError(f"not JSON ({' '.join(str(error).split())[:100]})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} is there twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


def nested(settings: Any, *keys: str) -> Any:
    """Return what stands below some keys of nested settings, such as those of a recipe; None where nothing does."""
    for key in keys:
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    return settings


def inside(settings: Any, *keys: str) -> Mapping[str, Any]:
    """Return the settings below some keys of nested settings; none where something else stands there."""
    found = nested(settings, *keys)
    return found if isinstance(found, Mapping) else {}


def checked_object(data: Any, name: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Return an object that has exactly these keys.

    Args:
        data: what JSON held.
        name: what it is, for the message.
        keys: names of its values.

    Raises:
        LovecError: it is not an object, or a key is missing or unknown.
    """
    if not isinstance(data, Mapping):
        raise wrong(name, data, "an object")
    if different := sorted(set(map(str, data)) ^ set(keys)):
        found = "lacks" if different[0] in keys else "has the unknown key"
        raise LovecError(f"{name} {found} {different[0][:60]!r}, expected the keys {', '.join(sorted(keys))}")
    return data


def checked_number(value: Any, name: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """Return a finite number in a range as a float.

    Raises:
        LovecError: the value is not a number, not finite, or outside [low, high].
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(name, value, f"a number from {low:.10g} to {high:.10g}")
    return float(value)


def checked_integer(value: Any, name: str, low: int = 0, high: int = 2**31 - 1) -> int:
    """Return an integer in a range.

    Raises:
        LovecError: the value is not an integer, or outside [low, high].
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(name, value, f"an integer from {low} to {high}")
    return value


def checked_list(value: Any, name: str, most: int = MOST_NUMBERS) -> Sequence[Any]:
    """Return a list that is not too long.

    Raises:
        LovecError: the value is not a list, or has more than ``most`` items.
    """
    if not isinstance(value, list | tuple) or len(value) > most:
        raise wrong(name, value, f"a list of at most {most} items")
    return value


def checked_numbers(value: Any, name: str, low: float = -LARGEST, high: float = LARGEST) -> tuple[float, ...]:
    """Return a list of finite numbers in a range.

    Raises:
        LovecError: the value is not a list, is too long, or holds something else.
    """
    return tuple(checked_number(item, name, low, high) for item in checked_list(value, name))


def checked_text(value: Any, name: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text that is short and printable, so that it can be shown on a terminal.

    Raises:
        LovecError: the value is not text, has more than ``most`` characters, or holds control characters.
    """
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise wrong(name, value, f"a printable text of at most {most} characters")
    return value


class Within(NamedTuple):
    """The range of a number, or of each in a list, and the length of that list; for ``Annotated`` fields."""

    low: float = -LARGEST
    high: float = LARGEST
    most: int = MOST_NUMBERS


Share: TypeAlias = Annotated[float, Within(0.0, 1.0)]
"""A number in [0, 1]."""


class PlainObject:
    """Base of dataclasses that are written as JSON objects, a key per field, and read back with all values checked.

    A field is a float, an int, a str, a ``Literal``, another `PlainObject`, or a tuple of such, and may be None beside
    it. ``Annotated`` adds its range (`Within`), or a function that takes the value and its name, and returns what the
    field holds.

    Attributes:
        what: what messages call such an object, such as "a histogram".
        name: what the object says of itself under the key "kind"; "" where it has no such key.
    """

    __slots__ = ()

    what: ClassVar[str]
    name: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as a plain JSON object."""
        return plain_object(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return what a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        return read_object(cls, data)


def plain_object(value: PlainObject) -> dict[str, Any]:
    """Return a dataclass as a plain JSON object; see `PlainObject`."""
    kind = {"kind": value.name} if value.name else {}
    return kind | {field.name: _plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]


def read_object(cls: type[P], data: Any) -> P:
    """Return the dataclass that a JSON object holds; see `PlainObject`.

    Raises:
        LovecError: it holds something else.
    """
    what, names = cls.what, [field.name for field in fields(cls)]  # type: ignore[arg-type]
    found = checked_object(data, what, ["kind", *names] if cls.name else names)
    types = get_type_hints(cls, include_extras=True)
    return cls(**{name: _read(types[name], found[name], f"{name} of {what}") for name in names})


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _read(kind: Any, value: Any, name: str, within: Within | None = None) -> Any:
    """Return a value as a field of this type holds it."""
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        for note in notes:
            if isinstance(note, Within):
                within = note
            elif callable(note):
                return note(value, name)
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else _read(next(part for part in parts if part is not NoneType), value, name)
    if get_origin(kind) is tuple:
        return tuple(
            _read(parts[0], item, name, within) for item in checked_list(value, name, (within or Within()).most)
        )
    if get_origin(kind) is Literal:
        check_choice(name, value if isinstance(value, str) else None, kind)
        return value
    if kind is float:
        return checked_number(value, name, *(within or Within())[:2])
    if kind is int:
        return checked_integer(value, name, *map(int, (within or Within(0, 2**31 - 1))[:2]))
    return checked_text(value, name) if kind is str else kind.from_dict(value)


def json_text(value: Any) -> str:
    """Return a value as JSON, for messages and comparisons."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "a value that is too large or too deep to show"


def wrong(name: str, value: Any, expected: str) -> LovecError:
    """Return the error that a value is not what was expected, with the beginning of the value."""
    if isinstance(value, float) and math.isnan(value):
        shown = "NaN"
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        shown = "a number of too many digits"
    elif isinstance(value, list | tuple | Mapping):
        shown = f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)} items"
    else:
        shown = repr(value)[:60]
    return LovecError(f"{name} is {shown}, expected {expected}")
