"""Human labels through the whole path: SFT, then DPO, then iterative tagging of people the training never saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from lovec.cli import main
from lovec.datasets.jsonl import read_records
from lovec.metrics.results import read_results

LABELS = Path(__file__).parents[3] / "shared" / "data" / "factscore_labeled" / "ChatGPT.jsonl"


@pytest.mark.skipif(not LABELS.exists(), reason="FActScore's labelled ChatGPT.jsonl is not beside the checkout")
def test_sft_and_dpo_on_factscore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overlay = ["--config", "factscore.yaml", "--data.path", str(LABELS)]
    brief = ["--data.batch_size", "2", "--data.eval_batch_size", "4", "--trainer.limit_val_batches", "0"]
    steps = [
        *brief,
        "--trainer.max_epochs",
        "1",
        "--trainer.limit_train_batches",
        "2",
        "--trainer.log_every_n_steps",
        "1",
    ]
    assert main(["fit", "--config", "sft.yaml", *overlay, *steps]) == 0
    assert main(["fit", "--config", "dpo.yaml", *overlay, *steps]) == 0
    assert main(["test", "--config", "dpo.yaml", *overlay, *brief, "--trainer.limit_test_batches", "2"]) == 0

    log = (tmp_path / "runs/dpo/logs/version_0/metrics.csv").read_text().splitlines()
    logged = [dict(zip(log[0].split(","), line.split(","), strict=True)) for line in log[1:]]
    first = next(row for row in logged if row["train/preference"])  # a probe may have a row of its own
    assert float(first["train/preference"]) == pytest.approx(0.6931471805599453, rel=1e-7)  # kept as float32

    rows = read_results(tmp_path / "runs/dpo/test/factscore/results.json").rows
    assert {row.method for row in rows} == {"DPO", "Vanilla", "Best constant"}
    assert {row.mode for row in rows} == {"iterative"}
    tagged = list(read_records(tmp_path / "runs/dpo/test/factscore/dpo.iterative.jsonl"))
    assert len(tagged) == 8
    labelled = [s for record in tagged for s in record.sentences if s.factuality is not None]
    assert labelled and all(s.score in range(11) for s in labelled)
    # Human labels are fractions of supported facts, not ratings.
    assert any(round(10 * s.factuality) != 10 * s.factuality for s in labelled if s.factuality is not None)
    row = next(r for r in rows if (r.method, r.level, r.readout) == ("DPO", "sentence", "stated"))
    assert row.n == len(labelled)
