"""The benchmark of promises for kinds: what it measures on made-up answers, and that the page has its numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scripts import load_script

from lovec.calibration.conformal import Passage


@pytest.fixture(scope="module")
def kinds() -> Any:
    return load_script("kinds")


def test_one_threshold_breaks_the_promise_for_a_kind_and_its_own_keeps_it(kinds: Any) -> None:
    rng = np.random.default_rng(0)
    passages, names = [], []
    for at in range(300):
        rare = at % 3 == 0
        scores = rng.random(10)
        true = rng.random(10) < scores * (0.5 if rare else 1.0)
        passages.append(Passage(scores.tolist(), true.tolist()))
        names.append("rare" if rare else "freq")
    rows = {(row["promise"], row["kind"]): row for row in kinds.tried(passages, names, 40, seed=0)}
    assert [kind for _, kind in rows][:2] == ["freq", "rare"]
    for promise, sign in (("share", -1), ("errors", 1)):
        alpha = 0.2 if promise == "errors" else 0.8
        assert sign * (rows[promise, "rare"]["all reached"] - alpha) > 0.02
        for kind in ("freq", "rare"):
            assert sign * (rows[promise, kind]["kind reached"] - alpha) < 0.02
        assert rows[promise, "freq"]["kind kept"] > rows[promise, "freq"]["all kept"]
    about = {"date": "", "commit": "", "versions": {}, "machine": ""}
    shown = {"splits": 40, "data": {"rarity": list(rows.values())}, **about}
    lines = kinds.table(shown | {"adaptive": {"scores": kinds.adaptive(passages, None, 2, seed=0)}}).splitlines()
    bold = [line for line in lines if "**" in line and line.startswith("|")]
    assert bold and all("rare" in line for line in bold)


def test_thirds_are_by_order(kinds: Any) -> None:
    assert kinds.thirds([5, 1, 9, 3, 7, 2]) == [kinds.THIRDS[at] for at in (1, 2, 0, 1, 0, 2)]


def test_what_levels_claim_holds_and_what_is_wanted_is_kept(kinds: Any) -> None:
    """Of two kinds of answers with equal scores, one is mostly true: only who knows the kind can tell them apart."""
    rng = np.random.default_rng(0)
    names = ["known" if one else "unknown" for one in rng.random(2000) < 0.5]
    passages = []
    for name in names:
        scores = rng.random(12)
        true = rng.random(12) < (0.97 if name == "known" else 0.3 + 0.6 * scores)
        passages.append(Passage(scores.tolist(), true.tolist()))
    blind, told = (kinds.adaptive(passages, known, 20, seed=0) for known in (None, names))
    for found in (blind, told):
        assert found["worst"] < 0.05 and found["held"] >= found["claimed"] - 0.01
        assert found["fixed held"] == pytest.approx(found["fixed claimed"], abs=0.02)
        assert 0.5 < found["kept"] <= found["fixed kept"] and found["enough"] > 0.85
    assert told["held"] > told["fixed held"] + 0.05  # the same claims are kept where they may be
    assert blind["low"] < 0.1 and 0.4 < told["low"] < 0.6


def test_the_page_has_what_was_measured(kinds: Any) -> None:
    content = kinds.table(json.loads(kinds.RESULTS.read_text(encoding="utf-8")))
    assert f"{kinds.BEGIN}\n{content}\n{kinds.END}" in kinds.PAGE.read_text(encoding="utf-8")
