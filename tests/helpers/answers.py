"""Tagged and labelled answers that are drawn at random, for tests of calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lovec.types import Record, Sentence


def answers(passages=40, sentences=6, seed=0, excess=1.0, **fields):
    """Return records whose confidences are too high by ``excess`` units of log-odds; a passage shares half of them.

    The distribution is over the two neighbouring levels of the confidence, so that its mean is the confidence.
    """
    rng = np.random.default_rng(seed)
    made = []
    for index in range(passages):
        odds = rng.normal() + rng.normal(size=sentences)
        truth = np.clip(np.round((sigmoid(odds) + rng.normal(0, 0.25, sentences)) * 2) / 2, 0, 1)
        rows = zip(sigmoid(odds + excess), truth, -rng.exponential(2.0, (sentences, 12)), strict=True)
        made.append(Record(f"p{index}", "Q?", sentences=tuple(tagged(c, f, logps, **fields) for c, f, logps in rows)))
    return made


def sampled(records):
    """Return every answer one to three times, as several answers to one question."""
    return [replace(r, id=f"{r.id}/sample-{n + 1}") for at, r in enumerate(records) for n in range(1 + at % 3)]


def tagged(confidence, factuality=None, logps=None, levels=11):
    """Return a sentence whose score distribution has this mean."""
    low = min(int(confidence * (levels - 1)), levels - 2)
    part = confidence * (levels - 1) - low
    distribution = [0.0] * levels
    distribution[low], distribution[low + 1] = (1 - part) * 0.9, part * 0.9  # some mass is on no score
    score = low + round(part)
    return Sentence(
        "A sentence.",
        factuality=None if factuality is None else float(factuality),
        confidence=score / (levels - 1),
        score=score,
        distribution=tuple(float(p) for p in distribution),
        levels=levels,
        token_logps=None if logps is None else tuple(map(float, logps)),
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
