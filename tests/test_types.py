"""Checks of settings, and of what an objective returns."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from lovec.core.settings import check_range
from lovec.types import LossOutput, LovecError, Term


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        (0, {"above": 0}, "above 0"),
        (0, {"at_least": 1}, "at least 1"),
        (3, {"at_most": 2}, "at most 2"),
        (2, {"at_least": 0, "below": 2}, "at least 0 and below 2"),
        (math.nan, {"at_least": 0}, "at least 0 and at most 1e+15"),
        (math.nan, {"at_most": 2}, "at most 2 and at least -1e+15"),
        (math.inf, {}, "at least -1e+15 and at most 1e+15"),
        (10**400, {"above": 0}, "above 0 and at most 1e+15"),
        (True, {"at_least": 0}, "a number at least 0"),
        ("3", {}, "a number"),
        (1.5, {"at_least": 0, "integer": True}, "an integer at least 0"),
    ],
)
def test_a_value_outside_its_range_is_refused(value: Any, bounds: dict[str, Any], expected: str) -> None:
    with pytest.raises(LovecError) as error:
        check_range("setting", value, **bounds)
    given = str(value)[:60] if isinstance(value, int | float) else repr(value)
    assert str(error.value) == f"setting is {given}, expected {expected}"


@pytest.mark.parametrize("value", [0, 1, 1.5, 2, None])
def test_values_inside_the_range_and_none_pass(value: float | None) -> None:
    check_range("setting", value, at_least=0, at_most=2, above=-1, below=3)


def test_values_of_a_loss_have_the_shape_of_their_mask_and_names_of_their_own() -> None:
    right = Term(torch.ones(4), torch.ones(4), per="pair")
    for wrong in (torch.ones(4, 1), torch.ones(()), torch.ones(2)):
        for terms, metrics in (
            ({"nll": replace(right, values=wrong)}, {}),
            ({}, {"nll": replace(right, values=wrong)}),
        ):
            with pytest.raises(
                LovecError, match=rf"'nll' have the shape {re.escape(str(list(wrong.shape)))}, its mask"
            ):
                LossOutput(terms, metrics)
    for names in (("loss",), ("nll", "grad_norm"), ("nll", "nll")):
        with pytest.raises(LovecError, match=f"{names[-1]}' is the name of several"):
            LossOutput({names[0]: right}, {name: right for name in names[1:]})
    with pytest.raises(LovecError, match="'nll' is the name of several"):
        LossOutput({"nll": right}, peaks={"nll": torch.ones(1)})
    LossOutput({"nll": right}, {"kl": right}, {"largest": torch.ones(1)})
