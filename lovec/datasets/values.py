"""Values of files made elsewhere, read as confidences and labels: numbers on any scale, words for true and false.

A confidence is a number; a label is a number or a word. What says nothing (an empty cell, "unknown") is None. Numbers
and truth values may be written as text, as tables of text have them.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lovec.datasets.jsonl import short_json
from lovec.types import LovecError, without_rounding

LABELS = (
    "label factuality is_correct correct is_supported supported correctness response_correct claim_grades is_true true "
    "truth is_factual factual labels target gold_label gold y_true y annotation human_label grade verdict "
    "accuracy".split()
)
"""Names of keys and columns that are taken for the label, the first one that a row has."""

_YES = frozenset("true t yes y".split())
_NO = frozenset("false f no n".split())
_RIGHT = frozenset(
    "supported correct right accurate factual valid entailed entailment pass passed faithful consistent grounded "
    "verified reliable".split()
)
_WRONG = frozenset(
    "unsupported incorrect wrong inaccurate nonfactual invalid refuted contradicted contradiction hallucinated "
    "hallucination hallucinations hallucinatory fabricated erroneous error errors fail failed unfaithful inconsistent "
    "ungrounded unverified unreliable untrue".split()
)
_UNSURE = frozenset("uncertainty unsure entropy perplexity ppl nll loss surprisal variance risk doubt".split())
_NOT = frozenset("not non no".split())
_SHORT = {"s": 1.0, "ns": 0.0}  # as FActScore's annotators write it

# Of names of columns alone; a word without a sense, such as "score" or "label", is in none of these.
_SURE = _RIGHT | frozenset("true truth confidence certainty sure factuality correctness accuracy".split())
_OPPOSITE = _WRONG | _UNSURE | {"false"}
_TURNING = _NOT | frozenset("without neg negative minus inverse".split())
_NOTHING = frozenset(
    "ir irrelevant none null nan na n_a unknown unsure undecided not_enough_info nei abstained inconclusive".split()
)
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%?)")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?!\d{3}\b)\d+)\s*%?")  # 1,234 may be a thousand
_AMBIGUOUS = re.compile(r"[-+]?[1-9]\d*,\d{3}")
_OTHER = re.compile(r"[^0-9a-z]+")


def plain_name(text: str) -> str:
    """Return a word or the name of a column in lower case, with an underscore for all but letters and digits."""
    return _OTHER.sub("_", text.lower()).strip("_")


def confidence_of(value: Any, scale: float | None = None) -> float | None:
    """Return a confidence as a number, higher for surer.

    Args:
        value: a number, or a text such as ``"0.9"`` or ``"90%"``, which is 0.9.
        scale: the highest confidence of the scale, which becomes 1; the lowest is 0. None leaves numbers as they are.

    Returns:
        The number; None where there is none. With a scale it lies in [0, 1].

    Raises:
        LovecError: the value is not a finite number, or lies outside the scale.
    """
    if type(value) is not float:  # most values are
        number = _number(value, "confidence")
        if number is None:
            return None
        if isinstance(value, str) and value.rstrip().endswith("%"):
            if scale is None:
                return number
            if not 0 <= (share := without_rounding(number)) <= 1:
                raise LovecError(f"confidence is {short_json(value)}, expected a share from 0% to 100%")
            return share
        value = number
    elif not math.isfinite(value):
        if math.isnan(value):
            return None
        raise LovecError(f"confidence is {value}, expected a finite number")
    if scale is None:
        return float(value)
    if not 0 <= (share := without_rounding(value / scale)) <= 1:
        raise LovecError(
            f"confidence is {value:.7g}, expected a number from 0 to {scale:g}, as --confidence_scale says"
        )
    return float(share)


def label_of(value: Any, scale: float | None = None, opposite: bool = False) -> float | None:
    """Return a label as a factuality in [0, 1]: 1 is true, 0 false, and what lies between is partly true.

    Args:
        value: a number, a truth value, or a word such as "supported", "not supported", "S", "NS", "correct", "no".
        scale: the highest label of the scale, which becomes 1; the lowest is 0. None is 1. Words have no scale.
        opposite: whether the label says how wrong something is, see `says_opposite`: numbers, truth values, "yes" and
            "no" are turned round then. Words such as "supported" and "hallucinated" mean the same under every name.

    Returns:
        The factuality; None where the value says nothing, such as "IR" (irrelevant) or an empty cell.

    Raises:
        LovecError: the value is not a label, or lies outside the scale.
    """
    if isinstance(value, str):
        meaning = _meaning(value)
        if isinstance(meaning, float):
            return meaning
        value = value if meaning is None else meaning
    if isinstance(value, bool):
        return float(value != opposite)
    number = _number(value, "label")
    if number is None:
        return None
    top = 1.0 if scale is None or (isinstance(value, str) and value.rstrip().endswith("%")) else scale
    if not 0 <= (share := without_rounding(number / top)) <= 1:
        fix = "say --label_scale 10 or 100 where labels go up to 10 or 100" if number >= 2 else "correct it"
        fix = "as --label_scale says" if scale else fix
        raise LovecError(f"label is {number:.7g}, expected a number from 0 to {top:g}; {fix}")
    return 1.0 - share if opposite else share


def share_of(value: Any, name: str) -> float | None:
    """Return a confidence in [0, 1]; None where there is none.

    Args:
        value: as for `confidence_of`.
        name: what the error message calls it.

    Raises:
        LovecError: the value is something else.
    """
    number = confidence_of(value)
    if number is None or 0 <= (share := without_rounding(number)) <= 1:
        return None if number is None else share
    raise LovecError(f"{name} is {short_json(value)}, expected a confidence in [0, 1]")


def flag_of(value: Any, name: str) -> bool:
    """Return a truth value, which may be written as a word or as 0 or 1; nothing is False.

    Args:
        value: the value.
        name: what the error message calls it.

    Raises:
        LovecError: the value is something else.
    """
    word = plain_name(value) if isinstance(value, str) else value
    if isinstance(value, str) and (word in _YES | _NO | _NOTHING or _is_blank(value)):
        return word in _YES
    if word is None or word in (0, 1, "0", "1"):
        return word in (1, "1")
    raise LovecError(f"{name} is {short_json(value)}, expected true or false")


def _is_blank(text: str) -> bool:
    """Return whether a cell is empty, or only punctuation; "\u2717" and words of any script say something."""
    return not any(sign.isalnum() if sign.isascii() else unicodedata.category(sign)[0] not in "PZC" for sign in text)


def says_opposite(name: str) -> bool:
    """Return whether the name of a column says that its higher numbers are for what is wrong or less sure.

    ``hallucination_label``, ``is_false``, ``not_supported``, ``entropy`` and ``uncertainty`` do; ``correct``,
    ``negentropy`` and ``no_hallucination`` do not.
    """
    words = ["", *plain_name(name.rpartition(".")[2]).split("_"), ""]
    for before, word, after in zip(words[-3::-1], words[-2::-1], words[::-1], strict=False):  # the last one decides
        if word in _OPPOSITE or word in _SURE:
            return (word in _OPPOSITE) != (before in _TURNING or after == "free")
    return False


def label_column(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return which column of some rows is the label by its name; None if there is none.

    The first of `LABELS` counts, then one that ends in "label", then one that says by its name what is wrong, such as
    ``hallucinated``, and holds nothing but labels.
    """
    names: dict[str, str] = {plain_name(name): name for row in reversed(rows) for name in reversed(row)}
    known = [names[name] for name in LABELS if name in names]
    known += [name for plain, name in reversed(names.items()) if plain.endswith("_label")]
    if known:
        return known[0]
    wrong = [names[plain] for plain in reversed(names) if says_opposite(plain) and not _UNSURE & {*plain.split("_")}]
    return next((name for name in wrong if _are_labels(row.get(name) for row in rows)), None)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, also one that is written as a text."""
    try:
        return confidence_of(value) is not None
    except LovecError:
        return False


def _are_labels(values: Iterable[Any]) -> bool:
    try:
        return any([label_of(value) is not None for value in values])
    except LovecError:
        return False


@lru_cache(1024)
def _meaning(text: str) -> float | bool | None:
    """Return what a text says as a label.

    Returns:
        The factuality of a word that means the same under every name, also with a "not" before it; a truth value for
        "yes", "false" and the like; None for all else.
    """
    word = plain_name(text)
    *before, last = word.split("_")
    if word in _NOTHING:
        return None
    if word in _YES or word in _NO:
        return word in _YES
    if not _NOT.issuperset(before) or last not in _RIGHT | _WRONG:
        return _SHORT.get(word)
    return float((last in _RIGHT) == (len(before) % 2 == 0))


def _number(value: Any, what: str) -> float | None:
    """Return the number that a value is or writes, in per cent divided by 100; None where it says nothing.

    Raises:
        LovecError: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:
            return None
        if abs(value) <= sys.float_info.max:
            return float(value)
        raise LovecError(f"{what} is {short_json(value)}, expected a finite number")
    if isinstance(value, str):
        text = value.strip()
        text = text.replace(",", ".") if "," in text and _DECIMAL_COMMA.fullmatch(text) else text
        if match := _NUMBER.fullmatch(text):
            number = float(match[1]) / (100 if match[2] else 1)
            if math.isfinite(number):
                return number
        elif plain_name(value) in _NOTHING or _is_blank(value):
            return None
    expected = "a number" if what == "confidence" else "a number, true or false, or a word such as supported"
    if isinstance(value, str) and _AMBIGUOUS.fullmatch(text := value.strip()):
        expected += f"; this may be {text.replace(',', '')} or {text.replace(',', '.')}: write it without a comma"
    raise LovecError(f"{what} is {short_json(value)}, expected {expected}")
