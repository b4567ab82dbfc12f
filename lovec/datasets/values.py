"""Values of files made elsewhere, read as confidences and labels: numbers on any scale, words for true and false.

A confidence is a number; a label is a number or a word. What says nothing (an empty cell, "unknown") is None.
"""

from __future__ import annotations

import math
import re
from typing import Any

from lovec.datasets.jsonl import short_json
from lovec.types import LovecError

LABELS = (
    "label factuality is_correct correct is_supported supported correctness response_correct claim_grades is_true true "
    "truth is_factual factual labels target gold_label gold y_true y annotation human_label grade verdict "
    "accuracy".split()
)
"""Names of keys and columns that are taken for the label, the first one that a row has."""

_TRUE = frozenset(
    "true t yes y s supported correct right accurate factual valid entailed entailment pass passed".split()
)
_FALSE = frozenset(
    "false f no n ns not_supported unsupported incorrect wrong inaccurate not_factual non_factual nonfactual invalid "
    "refuted contradicted contradiction not_entailed hallucinated hallucination fail failed".split()
)
_NOTHING = frozenset(
    "ir irrelevant none null nan na n_a unknown unsure undecided not_enough_info nei abstained inconclusive".split()
)
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%?)")
_OTHER = re.compile(r"[^0-9a-z]+")


def plain_name(text: str) -> str:
    """Return a word or the name of a column in lower case, with one underscore for whatever is no letter or digit."""
    return _OTHER.sub("_", text.lower()).strip("_")


def confidence_of(value: Any, scale: float | None = None) -> float | None:
    """Return a confidence as a number, higher for surer.

    Args:
        value: a number, or a text such as ``"0.9"`` or ``"90%"``, which is 0.9.
        scale: the highest confidence of the scale, which becomes 1; the lowest is 0. None leaves numbers as they are.

    Returns:
        The number; None where there is none. With a scale it lies in [0, 1].

    Raises:
        LovecError: the value is no finite number, or lies outside the scale.
    """
    if type(value) is not float:  # most values are
        number = _number(value, "confidence")
        if number is None or (isinstance(value, str) and value.rstrip().endswith("%")):
            return number
        value = number
    elif not math.isfinite(value):
        if math.isnan(value):
            return None
        raise LovecError(f"confidence is {value}, expected a finite number")
    if scale is None:
        return float(value)
    if not 0 <= value <= scale:
        raise LovecError(f"confidence is {value:g}, expected a number from 0 to {scale:g}, as --confidence_scale says")
    return float(value / scale)


def label_of(value: Any, scale: float | None = None) -> float | None:
    """Return a label as a factuality in [0, 1]: 1 is true, 0 false, and what lies between is partly true.

    Args:
        value: a number, a truth value, or a word such as "supported", "not supported", "S", "NS", "correct", "no".
        scale: the highest label of the scale, which becomes 1; the lowest is 0. None is 1. Words have no scale.

    Returns:
        The factuality; None where the value says nothing, such as "IR" (irrelevant) or an empty cell.

    Raises:
        LovecError: the value is no label, or lies outside the scale.
    """
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        word = plain_name(value)
        if word in _TRUE:
            return 1.0
        if word in _FALSE:
            return 0.0
    number = _number(value, "label")
    if number is None:
        return None
    top = 1.0 if scale is None or (isinstance(value, str) and value.rstrip().endswith("%")) else scale
    if not 0 <= number <= top:
        fix = "as --label_scale says" if scale else "say --label_scale 10 or 100 where labels go up to 10 or 100"
        raise LovecError(f"label is {number:g}, expected a number from 0 to {top:g}; {fix}")
    return number / top


def _number(value: Any, what: str) -> float | None:
    """Return the number that a value is or writes, in per cent divided by 100; None where it says nothing.

    Raises:
        LovecError: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value):
            return None
        if math.isfinite(value):
            return float(value)
        raise LovecError(f"{what} is {value}, expected a finite number")
    if isinstance(value, str):
        if match := _NUMBER.fullmatch(value.strip()):
            number = float(match[1]) / (100 if match[2] else 1)
            if math.isfinite(number):
                return number
        elif (word := plain_name(value)) in _NOTHING or not word:
            return None
    expected = "a number" if what == "confidence" else "a number, true or false, or a word such as supported"
    raise LovecError(f"{what} is {short_json(value)}, expected {expected}")
