"""Words about how many things there are."""

from __future__ import annotations

import pytest

from lovec.core.notices import counted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((1, "sentence"), "1 sentence"),
        ((0, "sentence"), "0 sentences"),
        ((2, "labelled row"), "2 labelled rows"),
        ((1, "entity", "entities"), "1 entity"),
        ((3, "reply", "replies"), "3 replies"),
        ((1, "record has", "records have"), "1 record has"),
        ((2, "record has", "records have"), "2 records have"),
    ],
)
def test_a_number_agrees_with_its_noun(words: tuple[int, str], expected: str) -> None:
    assert counted(*words) == expected
