"""Results of one data set, one adapter and one run are not mixed with those of another, and none is lost in silence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tinyrun import Rows, module, records, sft_adapter, tiny, trainer

from lovec.baselines.base import with_confidences
from lovec.core.provenance import Provenance, weights_of
from lovec.datamodules import Demonstrations
from lovec.datasets.jsonl import read_records, write_records
from lovec.evaluation.run_folders import TestFolder, folder_name, set_aside
from lovec.metrics.results import read_results, write_results
from lovec.modules import SFT, EvaluationConfig
from lovec.reports.runs import read_run
from lovec.taggers.served_confidence import ServedConfidence
from lovec.types import LovecError, Record, ResultRow


class Named(Rows):
    """The same records under another name."""

    title = "Bios (2024)"


def write(place: TestFolder, value: float, records: int = 3) -> list[Path]:
    place.begin()
    row = ResultRow("SFT", "method", "d", "iterative", "sentence", "stated", 0, 3, {"brier": value})
    write_results(place.working / "results.json", [row])
    (place.working / "sft.jsonl").write_text("{}")
    return place.finish(records)


def values(run: Path) -> dict[str, float | None]:
    return {
        str(path.relative_to(run).parent): read_results(path).rows[0].metrics["brier"]
        for path in sorted(run.rglob("results.json"))
    }


def test_equal_results_are_replaced_and_others_kept_aside(tmp_path: Path) -> None:
    weights = {"SFT": "a" * 64}
    for value, kept in ((0.25, []), (0.25, []), (0.5, ["test-1/rows"]), (0.75, ["test-2/rows"])):
        place = TestFolder(tmp_path, Rows(), weights)
        assert write(place, value) == [tmp_path / name for name in kept]
    assert write(TestFolder(tmp_path, Named(), weights), 0.1) == []  # another data set, the same weights
    assert values(tmp_path) == {
        "test-1/rows": 0.25, "test-2/rows": 0.5, "test/rows": 0.75, "test/bios-2024": 0.1,
    }  # fmt: skip
    assert write(TestFolder(tmp_path, Named(), {"SFT": "a" * 64, "DPO": "c" * 64}), 0.1) == []  # one method more
    assert write(TestFolder(tmp_path, Named(), {"SFT": "b" * 64}), 0.1) == [tmp_path / "test-3/rows"]
    assert json.loads((tmp_path / "test/bios-2024/tested.json").read_text()) == {
        "data": "Bios (2024)", "records": 3, "weights": {"SFT": "b" * 64},
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "test").iterdir()] == ["bios-2024"]


def test_results_of_other_options_of_the_same_weights_are_kept_aside(tmp_path: Path) -> None:
    def made(**options: Any) -> dict[str, Provenance]:
        parts = {"base": {"name": "b"}, "adapter": options, "prompt": {}, "computing": {}}
        return {"SFT": Provenance(parts)}

    weights = {"SFT": "a" * 64}
    assert write(TestFolder(tmp_path, Rows(), weights), 0.25) == []  # as an earlier version has written it
    assert write(TestFolder(tmp_path, Named(), weights, made(r=8)), 0.1) == []
    assert write(TestFolder(tmp_path, Rows(), weights, made(r=8)), 0.25) == []
    assert write(TestFolder(tmp_path, Rows(), weights, made(r=8, use_rslora=True)), 0.25) == [
        tmp_path / "test-1/bios-2024"
    ]
    (tmp_path / "test/rows/tested.json").write_text('{"weights": {}, "provenance": {"SFT": 5}}')
    assert write(TestFolder(tmp_path, Named(), weights, made(r=8)), 0.1) == []  # nothing is known


def test_a_test_that_is_stopped_leaves_the_results_before_it(tmp_path: Path) -> None:
    write(TestFolder(tmp_path, Rows(), {}), 0.25)
    stopped = TestFolder(tmp_path, Rows(), {})
    stopped.begin()
    (stopped.working / "stale.jsonl").touch()
    write_results(stopped.working / "results.json", [])
    assert [row.metrics["brier"] for row in read_run(tmp_path).rows] == [0.25]  # the unfinished one is not read
    write(TestFolder(tmp_path, Rows(), {}), 0.5)
    assert not stopped.working.exists() and not (tmp_path / "test/rows/stale.jsonl").exists()


def test_reports_read_old_folders_and_new_ones(tmp_path: Path) -> None:
    row = ResultRow("SFT", "method", "old", "iterative", "sentence", "stated", 0, 3, {"brier": 0.5})
    write_results(tmp_path / "old/test/results.json", [row])
    write(TestFolder(tmp_path / "new", Rows(), {}), 0.25)
    write(TestFolder(tmp_path / "new", Named(), {}), 0.25)
    for folder, domains in (
        ("old", {"old"}),
        ("old/test", {"old"}),
        ("new", {"d"}),
        ("new/test", {"d"}),
        (".", {"old", "d"}),
    ):
        assert {row.domain for row in read_run(tmp_path / folder).rows} == domains
    assert read_run(tmp_path / "new/test/rows").name == "new" == read_run(tmp_path / "new").name


def test_reports_read_runs_at_all_levels_and_none_inside_a_test(tmp_path: Path) -> None:
    row = ResultRow("SFT", "method", "d", "iterative", "sentence", "stated", 0, 3, {"brier": 0.5})
    found = ["test/rows", "sft/test/rows", "sft/test/test", "ablations/dpo/test", "a/b/c/test/rows"]
    others = ["test/test/rows", "test/rows/test", "sft/test/rows/dpo/test/rows", "sft/test/rows.unfinished"]
    others += ["sft/test-1/rows", "a/b/c/d/test/rows"]
    for number, folder in enumerate(found + others):
        write_results(tmp_path / folder / "results.json", [replace(row, domain=folder, n=number)])
    assert [row.domain for row in read_run(tmp_path).rows] == found  # the upper ones first
    assert [row.domain for row in read_run(tmp_path / "a").rows] == ["a/b/c/test/rows", "a/b/c/d/test/rows"]


@pytest.mark.parametrize(
    ("data", "name"), [(None, "data"), (Rows(), "rows"), (Named(), "bios-2024"), (object(), "object"),
                       (Demonstrations("x/Ma vie.jsonl.gz"), "ma-vie"), (Demonstrations("...", name="é"), "e")],
)  # fmt: skip
def test_names_of_data_sets_are_names_of_folders(data: Any, name: str) -> None:
    assert folder_name(data) == name


def test_places_are_the_first_that_are_free(tmp_path: Path) -> None:
    for name in ("test/a/x", "test-1/b/x", "test-1/a/x", "predictions/a.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set_aside(tmp_path, tmp_path / "test/a") == tmp_path / "test-2/a"
    assert set_aside(tmp_path, tmp_path / "predictions/a.jsonl") == tmp_path / "predictions-1/a.jsonl"
    assert weights_of(None) is None and weights_of(str(tmp_path)) is None
    assert weights_of(str(tmp_path / "test-1/b/x")) is not None


def test_a_second_training_takes_what_was_measured_with_the_first_out_of_the_way(tmp_path: Path) -> None:
    model, run = tiny(tmp_path / "models"), tmp_path / "run"
    write_records(tmp_path / "own.jsonl", records(3))
    own = {"path": str(tmp_path / "own.jsonl"), "test_path": str(tmp_path / "own.jsonl")}

    def fit(lr: float) -> None:
        torch.manual_seed(0)
        trainer(run).fit(module(SFT, model, lr=lr), Rows())

    def measure() -> None:
        for data in (Rows(), Demonstrations(**own)):
            trainer(run).test(module(SFT, model), data, verbose=False)
            trainer(run).predict(module(SFT, model), data)

    fit(1e-2)
    measure()
    assert {row.domain for row in read_run(run).rows} == {"rows", "own"}
    predicted = list(read_records(run / "predictions/own.jsonl"))
    assert [record.domain for record in predicted] == ["own"] * 3
    fit(1e-2)  # the same weights: nothing is moved
    assert not list(run.glob("*-1"))
    fit(5e-2)
    assert sorted(path.name for path in run.iterdir()) == ["adapter", "adapter-1", "predictions-1", "test-1"]
    measure()
    digests = {
        path.parent.parent.name: json.loads(path.read_text())["weights"]["SFT"]
        for path in run.glob("test*/own/tested.json")
    }
    assert digests == {"test": weights_of(str(run / "adapter")), "test-1": weights_of(str(run / "adapter-1"))}
    assert list(read_records(run / "predictions-1/own.jsonl")) == predicted
    assert list(read_records(run / "predictions/own.jsonl")) != predicted


def test_a_module_that_is_used_again_measures_the_weights_that_it_attests(tmp_path: Path) -> None:
    """In whatever order an adapter, a checkpoint, another run and a training come."""
    model, run, other = tiny(tmp_path / "models"), tmp_path / "run", tmp_path / "other"
    saver = ModelCheckpoint(dirpath=run / "ck", every_n_train_steps=1, save_top_k=-1)
    evaluation = EvaluationConfig(rows=8, modes=["iterative"], vanilla=False)

    def made() -> Any:
        return module(SFT, model, lr=5e-2, evaluation=evaluation)

    def measured(one: Any, by: Any, **given: Any) -> tuple[list[ResultRow], str]:
        by.test(one, Rows(), verbose=False, **given)
        tested = json.loads((Path(by.default_root_dir) / "test/rows/tested.json").read_text())
        return one.results, tested["weights"]["SFT"]

    sft_adapter(other, model)
    used, training = made(), trainer(run, enable_checkpointing=True, callbacks=[saver])
    training.fit(used, Rows())
    first = str(run / "ck/epoch=0-step=1.ckpt")
    own, theirs = measured(made(), trainer(run)), measured(made(), trainer(other))
    early = measured(made(), trainer(run), ckpt_path=first)
    assert [digest for _, digest in (own, theirs, early)] == [
        weights_of(place) for place in (run / "adapter", other / "adapter", first)
    ]
    assert own[0] != early[0] != theirs[0] != own[0]

    base = used.policy.model
    assert measured(used, training) == own and used.policy.model is base  # what was trained is not loaded again
    assert measured(used, training, ckpt_path=first) == early
    assert measured(used, training) == own
    assert measured(made(), training) == own
    assert measured(used, trainer(other)) == theirs
    base = used.policy.model
    assert measured(used, trainer(other)) == theirs and used.policy.model is base
    used.evaluation = replace(evaluation, adapter=str(run / "adapter"))
    assert measured(used, trainer(other)) == (own[0], own[1])
    trainer(run).fit(used, Rows(), ckpt_path=first)
    assert measured(used, trainer(run)) == measured(made(), trainer(run))


def test_a_checkpoint_of_a_run_without_an_adapter_is_measured_by_the_module_that_wrote_it(tmp_path: Path) -> None:
    model = tiny(tmp_path / "models")
    saver = ModelCheckpoint(dirpath=tmp_path / "ck", every_n_train_steps=1, save_top_k=-1)
    used, training = module(SFT, model), trainer(tmp_path, enable_checkpointing=True, callbacks=[saver])
    training.fit(used, Rows())
    shutil.rmtree(tmp_path / "adapter")
    first = str(tmp_path / "ck/epoch=0-step=1.ckpt")
    training.test(used, Rows(), ckpt_path=first, verbose=False)
    tested = tmp_path / "test/rows/tested.json"
    assert json.loads(tested.read_text())["weights"]["SFT"] == weights_of(first)
    with pytest.raises(LovecError, match="adapter"):
        training.test(used, Rows(), verbose=False)


def test_a_module_that_has_measured_is_trained_as_a_new_one(tmp_path: Path) -> None:
    model = tiny(tmp_path / "models")
    evaluation = EvaluationConfig(rows=8, modes=["iterative"], vanilla=False, adapter=sft_adapter(tmp_path, model))
    for name, measures in (("new", False), ("used", True)):
        made = module(SFT, model, evaluation=evaluation)
        if measures:
            trainer(tmp_path / name).test(made, Rows(), verbose=False)
        torch.manual_seed(0)
        trainer(tmp_path / name).fit(made, Rows())
    assert weights_of(tmp_path / "used/adapter") == weights_of(tmp_path / "new/adapter")


def test_confidences_that_users_get_are_those_of_the_stage(model: str, adapter: str, tmp_path: Path) -> None:
    """A validation does not apply the calibration beside an adapter; what comes after it does."""

    class Half(ServedConfidence):
        def record(self, record: Record, mode: str) -> Record:
            return with_confidences(record, [0.5] * len(record.sentences))

    class Calibrated(SFT):
        def served_confidence_of(self, adapter: str) -> ServedConfidence:
            return Half()

    evaluation = EvaluationConfig(rows=8, max_new_tokens=8, modes=["iterative"], vanilla=False, adapter=adapter)
    made, run = module(Calibrated, model, evaluation=evaluation), trainer(tmp_path, limit_val_batches=1)
    run.validate(made, Rows(), verbose=False)
    run.predict(made, Rows())
    tagged = read_records(tmp_path / "predictions/rows.jsonl")
    assert {s.confidence for record in tagged for s in record.sentences} == {0.5}
