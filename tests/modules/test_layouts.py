"""Layouts: one process, two with a whole base each (DDP), two that share its layers (FSDP2); all learn the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from completionserver import CompletionServer
from forks import ranks, run_forks
from layouts import OPTIONS, STRATEGIES, check_equal, objectives, run, run_all, weights
from tinyrun import Rows, module, trainer

from lovec.evaluation import ShardedStrategy
from lovec.modules import SFT, Batch
from lovec.types import LossOutput, LovecError

NAMES = sorted(objectives(""))


def test_two_processes_with_a_sharded_base_equal_one(model: str, adapter: str, tmp_path: Path) -> None:
    """GRPO: each process samples, for as long as its own answers take, and validates and tests on its own records.

    The last batch has two questions for one process and one for the other, hence unequal numbers of micro-batches.
    """
    make = objectives("")["GRPO"]
    layouts = ("one", "fsdp2")
    run_all({name: {"GRPO": partial(run, name, tmp_path / name, model, adapter, make)} for name in layouts})
    check_equal(tmp_path / "one", tmp_path / "fsdp2")


@pytest.fixture(scope="module")
def runs(model: str, adapter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every objective in every layout, in a folder by layout and objective; two processes do all runs of two."""
    folder = tmp_path_factory.mktemp("runs")
    with CompletionServer(model) as server:
        makers = objectives(server.url)
        run_all(
            {
                layout: {
                    name: partial(run, layout, folder / layout / name, model, adapter, make, **OPTIONS.get(name, {}))
                    for name, make in makers.items()
                }
                for layout in ("one", *STRATEGIES)
            }
        )
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(STRATEGIES))
@pytest.mark.parametrize("name", NAMES)
def test_every_objective_learns_and_measures_the_same_in_every_layout(name: str, layout: str, runs: Path) -> None:
    check_equal(runs / "one" / name, runs / layout / name, measured=OPTIONS.get(name, {}).get("test", True))


@pytest.mark.slow
def test_the_equality_above_could_fail(runs: Path) -> None:
    """The runs have moved the weights by far more than the bound."""
    for one, other in (("DPO", "ORPO"), ("GRPO", "ExpectedReward")):
        first, second = weights(runs / "one" / one), weights(runs / "one" / other)
        assert (first - second).norm() / first.norm() > 1e-3


@pytest.mark.slow
def test_a_checkpoint_of_any_layout_goes_on_in_any_other(model: str, adapter: str, tmp_path: Path) -> None:
    """With a continued adapter, whose frozen copy is in the checkpoint, and the state of AdamW."""
    make = objectives("")["DPO"]
    options = {"sgd": False, "test": False, "limit_val_batches": 0}
    layouts = ("one", *STRATEGIES)
    begun, whole = tmp_path / "begun", tmp_path / "whole"
    parts = {name: {"begin": partial(run, name, begun / name, model, adapter, make, **options)} for name in layouts}
    parts["one"]["whole"] = partial(run, "one", whole, model, adapter, make, max_epochs=2, **options)
    run_all(parts)
    pairs = [(a, b) for a in layouts for b in layouts if a != b]
    run_all(
        {
            b: {
                a: partial(
                    run, b, tmp_path / f"{a}-{b}", model, adapter, make, max_epochs=2,
                    ckpt=str(begun / a / "last.ckpt"), **options,
                )
                for a, other in pairs if other == b
            }
            for b in layouts
        }
    )  # fmt: skip
    expected = weights(whole)
    assert (weights(begun / "one") - expected).norm() / expected.norm() > 1e-2
    for a, b in pairs:
        found = weights(tmp_path / f"{a}-{b}")
        assert (found - expected).norm() / expected.norm() < 1e-3, (a, b)
        entries = [torch.load(begun / name / "last.ckpt", weights_only=True)["state_dict"].keys() for name in (a, b)]
        assert entries[0] == entries[1]


class Infinite(SFT):
    """Has an infinite loss on one record, which one of the processes holds."""

    def loss(self, batch: Batch) -> LossOutput:
        term = super().loss(batch).terms["nll"]
        rows = [float("inf") if example.record.id == "r3" else 1.0 for example in batch.examples]
        return LossOutput({"nll": replace(term, values=term.values * torch.tensor(rows)[:, None])})


def refused(folder: Path, objective: Any, **options: Any) -> str:
    """What a sharded run of two processes is refused with; nothing on a process that leaves that to the first one."""
    strategy = ShardedStrategy(**options)
    try:
        trainer(folder, strategy=strategy, devices=2, use_distributed_sampler=False).fit(objective, Rows(4))
    except LovecError as error:
        return str(error)
    except SystemExit as end:
        assert end.code == 0
    return ""


def faults(folder: Path, model: str) -> None:
    """Print what four runs are refused with, and train one with a whole copy of the base per process."""
    print(f"many: {refused(folder, module(SFT, model), copies=3)}")
    (folder / "empty").mkdir(exist_ok=True)  # a name that is nowhere is refused by each process before any loads
    print(f"missing: {refused(folder, module(SFT, str(folder / 'empty')))}")
    print(f"infinite: {refused(folder, module(Infinite, model, micro_batch_tokens=1))}")
    assert refused(folder, module(SFT, model), copies=2) == ""
    print("done")


@pytest.mark.slow
def test_what_goes_wrong_with_a_sharded_base_is_said_once_and_stops_all_processes(model: str, tmp_path: Path) -> None:
    rank = partial(faults, tmp_path, model)
    (code, first), (other, second) = run_forks(rank, rank, environments=ranks(2))
    assert code == other == 0, first + second
    many = "many: trainer.strategy.copies is 3, which does not divide the 2 processes"
    assert many in first and many in second
    assert "missing: cannot load the model" in first and "missing: \n" in second
    named = "the loss is inf at step 0, because of the term 'nll' over the records r3; lower"
    assert sum(named in printed for printed in (first, second)) == 1, first
    assert sum("because of records of another process" in printed for printed in (first, second)) == 1
    assert "done" in first and "done" in second


def loads_its_own(folder: Path) -> None:
    """Print what a run is refused with in which each process has a copy of the model."""
    print(f"copy: {refused(folder, module(SFT, str(folder / os.environ['LOCAL_RANK'])))}")


def test_a_model_that_one_process_cannot_load_stops_the_others_as_well(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in "01":
        shutil.copytree(model, tmp_path / rank)
    with open(tmp_path / "1" / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    monkeypatch.setattr(forks, "LIMIT", 120.0)
    rank = partial(loads_its_own, tmp_path)
    (code, first), (other, second) = run_forks(rank, rank, environments=ranks(2))
    assert code == other == 0, first + second
    assert f"copy: cannot load the model '{tmp_path / '1'}': the folder does not hold" in first and "copy: \n" in second
