"""benchmarks/distil.py: its page, its picture of labels, and the world with few labels."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lovec.datamodules import World
from lovec.types import MODES, LovecError, Record, ResultRow, Sentence

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import distil
from few_labels import FewLabels


def results(seeds: int = 2, labels: bool = True) -> dict[str, Any]:
    """Results as ``collect`` returns them; the figures say which entry they are."""
    rows, answers = [], []
    for seed in range(seeds):
        for at, method in enumerate(distil.METHODS.values()):
            for mode in MODES:
                answers.append(
                    {
                        "method": method,
                        "mode": mode,
                        "seed": seed,
                        "scores": 5 + seed,
                        "malformed": 0.001,
                        "factuality": 0.7,
                    }
                )
                for readout in ("stated", "mean"):
                    metrics = {"brier": 0.05 + 0.01 * at, "ece_m": 0.03, "spearman": 0.7}
                    base = {"kind": "method", "domain": "in-domain", "mode": mode, "level": "sentence", "n": 9}
                    rows.append(ResultRow(method=method, readout=readout, seed=seed, metrics=metrics, **base))
    teachers = [
        {"teacher": name, "kind": kind, "seed": seed, "brier": 0.15, "ece_m": 0.3, "spearman": 0.8}
        for seed in range(seeds)
        for name, kind in (("LUQ, 10 samples", "raw"), ("LUQ, 10 samples", "calibrated"))
    ]
    curve = [
        {"things": n, "seed": 0, "mode": mode, "brier": 0.1 / n**0.1, "ece_m": 0.05, "spearman": 0.6}
        for n in (25, 640)
        for mode in MODES
    ]
    head = {"date": "2026-01-01", "commit": "abc", "versions": {"torch": "2"}, "machine": "a CPU"}
    head["seeds"] = {"all": list(range(seeds)), "unlabelled": [0]}
    unlabelled = [
        {"seed": 0, "method": name, "mode": "iterative", "domain": "out-of-domain"}
        | {"brier": 0.2, "ece_m": 0.1, "spearman": None if name == "Best constant" else 0.3}
        for name in ("Best constant", "Distil")
    ]
    found = {"rows": rows, "answers": answers, "teachers": teachers, "unlabelled": unlabelled}
    return {**head, **found, "labels": curve if labels else []}


def test_the_page_has_every_method_teacher_and_number_of_labels() -> None:
    page = distil.page(results())
    assert "| Distil | iterative | stated | 9.0 | 3.0 | 70.0 | 5 | 0.1 | 70.0 |" in page
    assert "| Distil | free-form | mean | 9.0 | 3.0 | 70.0 |  |  |  |" in page
    assert "| LUQ, 10 samples | calibrated | 15.0 | 30.0 | 80.0 |" in page
    assert "| 640 | free-form | 1 | 5.2 | 5.0 | 60.0 |" in page
    assert "| Best constant | companies | iterative | 20.0 | 10.0 | - |" in page
    assert "Label curve" not in distil.page(results(labels=False))


def test_the_label_curve_is_drawn(tmp_path: Path) -> None:
    distil.draw_labels(results()["labels"], tmp_path / "a.svg")
    distil.draw_labels(results()["labels"], tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "things with labels" in (tmp_path / "a.svg").read_text()


def test_few_labels_are_nested_and_the_others_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Record(f"r{i}", f"question {i // 3}", sentences=(Sentence("A.", i % 2), Sentence("B.", 1.0)), rejected=(1, 2))
        for i in range(30)
    ]
    monkeypatch.setattr(World, "load", lambda self, split: rows)
    few, more = (FewLabels(labelled=n, seed=3).load("train") for n in (2, 5))
    labelled = [{r.question for r in found if r.labelled} for found in (few, more)]
    assert len(labelled[0]) == 2 and len(labelled[1]) == 5 and labelled[0] < labelled[1]
    assert len(few) == 30 and sorted(r.id for r in few) == sorted(r.id for r in rows)
    assert all(s.factuality is None for r in few if r.question not in labelled[0] for s in r.sentences)
    alone = FewLabels(labelled=2, others=False, seed=3).load("train")
    assert {r.question for r in alone} == labelled[0] and len(alone) == 6
    assert FewLabels(seed=3).load("train") == rows == FewLabels(labelled=2).load("test")
    assert labelled[0] != {r.question for r in FewLabels(labelled=2, seed=4).load("train") if r.labelled}
    with pytest.raises(LovecError, match="labelled is 1, expected at least 2"):
        FewLabels(labelled=1)
    empty = [*rows, replace(rows[0], id="empty", question="empty", sentences=())]
    monkeypatch.setattr(World, "load", lambda self, split: empty)
    assert len(FewLabels(labelled=2, seed=3).load("train")) == 30
