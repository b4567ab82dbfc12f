"""Figures that others published, from the confidences that they published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lovec.metrics.corp import corp_reliability
from lovec.metrics.functional import brier_score, ece_m
from lovec.metrics.ranking import auprc, auroc, c_index

RLCR = Path(__file__).parents[3] / "shared" / "data" / "rlcr_gpqa" / "confidences.jsonl"
PUBLISHED = {  # Brier, ECE, AUROC, accuracy
    "RLCR": (0.266725, 0.155, 0.5496798818025117, 0.41517857142857145),
    "Base": (0.5035332589285714, 0.5094419642857144, 0.4920361915483561, 0.3950892857142857),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_figures_of_rlcr_on_gpqa(model):
    """Their ECE has ten equal bins, as ECE-M has; right-open or not changes it, e.g. to 0.1508 for RLCR."""
    if not RLCR.is_file():
        pytest.skip("no shared/data/rlcr_gpqa beside the checkout")
    answers = [json.loads(line)[model] for line in RLCR.read_text().splitlines()]
    c, f = [a["confidence"] for a in answers], [float(a["correct"]) for a in answers]
    assert len(c) == 448
    found = [brier_score(c, f).item(), ece_m(c, f).item(), auroc(c, f).item(), sum(f) / len(f)]
    assert found == pytest.approx(PUBLISHED[model], abs=1e-9)
    curve = corp_reliability(c, f)
    parts = curve.miscalibration - curve.discrimination + curve.uncertainty
    assert parts == pytest.approx(PUBLISHED[model][0], abs=1e-9)
    assert c_index(c, f).item() == pytest.approx(PUBLISHED[model][2], abs=1e-9)
    assert 0.3 < auprc(c, f).item() < 0.6
