"""Validations within training measure a sample where all records would cost much of an epoch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tinyrun import Rows, module, records, trainer

from lovec.evaluation.sampling import drawn, validation_size
from lovec.modules import SFT, EvaluationConfig
from lovec.policy import Policy
from lovec.types import Record


@pytest.mark.parametrize(
    ("count", "training", "modes", "wanted", "cheap", "expected"),
    [
        (200, 300, ["iterative"], None, True, 200),  # a small model
        (200, 300, ["iterative"], None, False, 32),
        (20, 300, ["iterative"], None, False, 20),
        (200, 1000, ["iterative"], None, False, 100),
        (200, 1000, ["free-form"], None, False, 50),
        (200, 1200, ["iterative", "free-form"], None, False, 40),
        (200, 30000, ["iterative"], None, False, 200),
        (200, 1000, ["iterative"], 0, False, 200),
        (200, 1000, ["iterative"], 7, True, 7),
        (5, 1000, ["iterative"], 7, True, 5),
    ],
)
def test_a_validation_costs_a_tenth_of_an_epoch(
    count: int, training: int, modes: list[str], wanted: int | None, cheap: bool, expected: int
) -> None:
    assert validation_size(count, training, modes, wanted, cheap) == expected


def test_a_sample_is_drawn_by_the_seed_and_grows() -> None:
    small, large = drawn(100, 10, 3), drawn(100, 30, 3)
    assert small == drawn(100, 10, 3) and set(small) < set(large) and small == sorted(small)
    assert small != drawn(100, 10, 4) and drawn(5, 5, 0) == [0, 1, 2, 3, 4]


class Many(Rows):
    """40 validation records."""

    def load(self, split: str) -> list[Record]:
        return super().load(split) if split == "train" else records(40, seed=7)


class Measured(SFT):
    """Notes which records validations measure."""

    seen: list[str]

    def validation_step(self, rows: Any, batch_idx: int) -> None:
        self.seen += [record.id for record in rows]
        super().validation_step(rows, batch_idx)


@pytest.mark.parametrize(
    ("large", "wanted", "count"), [(False, None, 40), (True, None, 32), (True, 0, 40), (False, 9, 9)]
)
def test_what_a_training_validates(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    large: bool, wanted: int | None, count: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(Policy, "is_tiny", not large)
    config = EvaluationConfig(modes=["iterative"], max_new_tokens=8, rows=8, validation_records=wanted)
    seen = []
    for _ in range(2):
        made = module(Measured, model, evaluation=config)
        made.seen = []
        data = Many(8)
        run = trainer(tmp_path, max_epochs=2, limit_val_batches=1.0, num_sanity_val_steps=0)
        run.fit(made, data)
        seen.append(made.seen)
    assert seen[0] == seen[1] and len(set(seen[0])) == count and seen[0] == 2 * seen[0][:count]
    line = f"validations during training measure {count} of 40 records, drawn with the seed"
    assert (line in caplog.text) == (count < 40)
    made.seen = []
    trainer(tmp_path, limit_val_batches=1.0).validate(made, data)
    assert len(made.seen) == 40  # what is asked for by itself measures all


class TwoDomains(Many):
    """40 validation records, of which two belong to the first domain."""

    def load(self, split: str) -> list[Record]:
        rows = super().load(split)
        if split == "train":
            return rows
        return [row.in_domain("law" if at in (0, 30) else "bios") for at, row in enumerate(rows)]


@pytest.mark.parametrize(("wanted", "count"), [(1, 1), (5, 2), (0, 40)])
def test_a_sample_is_drawn_from_the_domain_that_is_logged(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, wanted: int, count: int
) -> None:
    config = EvaluationConfig(modes=["iterative"], max_new_tokens=8, rows=8, validation_records=wanted)
    for seed in range(3):
        made = module(Measured, model, evaluation=config, seed=seed)
        made.seen, data = [], TwoDomains(8)
        run = trainer(tmp_path, max_epochs=1, limit_val_batches=1.0, num_sanity_val_steps=0)
        run.fit(made, data)
        assert len(made.seen) == count and {data.loaded("validation")[i].id for i in (0, 30)} & {*made.seen}
        assert math.isfinite(run.callback_metrics["val/brier"])
    line = f"measure {count} of 40 records, drawn with the seed, all of the domain law, which val/... is about"
    assert (line in caplog.text) == (wanted > 0)
