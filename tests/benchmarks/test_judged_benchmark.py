"""The benchmark of thresholds with a judge: what it measures on made-up answers, and that the page has its numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from scripts import load_script

from lovec.metrics.powered import Judged


@pytest.fixture(scope="module")
def judged() -> Any:
    return load_script("judged")


def test_a_lenient_judge_alone_breaks_what_is_kept_with_people(judged: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, chance = torch.rand(2, 1200, generator=generator, dtype=torch.float64)
    truth = (chance < 0.3 + 0.6 * scores).double()
    every = Judged(truth, torch.ones(1200, dtype=torch.float64), torch.arange(1200) // 4, scores)
    row = judged.tried(every, every.judge, 200, 60, 0)[0]
    assert row["answers"] == 50 and row["alone"]["right"] == 0
    assert row["judged"]["right"] >= 0.8 and row["judged"] == pytest.approx(row["people"])
    assert row["average"]["kept"] > row["judged"]["kept"] > 0


def test_the_page_has_what_was_measured(judged: Any) -> None:
    content = judged.table(json.loads(judged.RESULTS.read_text(encoding="utf-8")))
    assert f"{judged.BEGIN}\n{content}\n{judged.END}" in judged.PAGE.read_text(encoding="utf-8")
