"""The adapters that come with the package: their weights, their bases, and what they are calibrated for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lovec
from lovec.calibration import read_calibrations, weights_digest
from lovec.core.hub import SHIPPED, adapter_folder

MEASURED = {
    "atlas": (
        "52b2ce90e8bbd2c354bbffcd2715bc7615ced780adc074f85523db9db840ab51",
        "smollm2",
        4_000_000,
        {"iterative": 0.31, "free-form": 0.33},
    ),
    "atlas-grounded": (
        "3e9b409f4906a4f2586f290e692987479ef2086c68fe1a388c834077b95fa210",
        "smollm2",
        4_000_000,
        {"iterative": 0.34, "free-form": 0.33, "by source": 0.48, "free-form by source": 0.47},
    ),
    "world": (
        "a693f2d4ef93cf2dc0d26b2deb1ea207c2896d4d4c144fdedb6bd571ae59d0cb",
        "world",
        200_000,
        {"iterative": 0.44, "free-form": 0.38},
    ),
}
"""Digest of the weights, base, bound on the bytes of the folder, and by what is calibrated, the share of sentences that
are kept where nine of ten answers are to be free of false ones."""


@pytest.mark.parametrize("name", SHIPPED)
def test_an_adapter_is_the_one_that_was_measured(name):
    """Written by benchmarks/adapters.py; calibrated for these weights, and made for the base by its name."""
    digest, base, size, kept = MEASURED[name]
    folder = SHIPPED[name]
    assert weights_digest(folder) == digest
    assert sum(path.stat().st_size for path in folder.iterdir()) < size
    texts = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert texts.keys() == {"adapter_config.json", "calibration.json", "lovec.json"}
    assert json.loads(texts["adapter_config.json"])["base_model_name_or_path"] == base
    assert not any("/tmp" in text or "/work" in text or "/home" in text for text in texts.values())
    found = read_calibrations(folder)
    assert {mode: round(fitted.threshold(0.9).kept, 2) for mode, fitted in found.items()} == kept
    assert ("grounding" in json.loads(texts["lovec.json"])) == ("by source" in kept)
    assert Path(adapter_folder(name)) == folder


def test_the_world_s_adapter_answers_without_anything_else():
    """Its base comes with the package, too, so that this needs no training, no extra and no network."""
    record = lovec.tag(question="In a paragraph, could you tell me what you know about Port Dekella?", adapter="world")
    confidences = [sentence["confidence"] for sentence in record["sentences"]]
    assert len(confidences) >= 2 and all(0 <= confidence <= 1 for confidence in confidences)
    assert record["sentences"][0]["text"].startswith("Port Dekella")
    assert max(confidences) - min(confidences) > 0.05  # it tells sentences apart
