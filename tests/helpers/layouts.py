"""Runs of any objective in one process and in two, which the tests compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import ranks, run_forks
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tinyrun import Drifted, Lengths, Rows, Truth, module, trainer
from torch import Tensor
from torch.distributed.tensor import DTensor

from lovec import modules
from lovec.baselines import PTrue, SentenceLikelihood
from lovec.datasets.jsonl import read_records
from lovec.engines import RemoteVllm
from lovec.evaluation import ShardedStrategy
from lovec.metrics.results import read_results
from lovec.modules import PolicyConfig
from lovec.policy import is_adapter
from lovec.teachers import BaselineTeacher, Blend, PolicyMean
from lovec.types import Record

STRATEGIES: Mapping[str, Callable[[], Any]] = {"ddp": lambda: "ddp", "fsdp2": ShardedStrategy}
"""How two processes train together, by name of the layout; "one" is the layout of one process."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # every token that is scored is a call of the server
    "GRPO-server": {"test": False, "limit_val_batches": 0, "limit_train_batches": 2},
    "ORPO": {"checkpointing": True},
}
"""Options of runs, by name."""

Objective = tuple[str, dict[str, Any], bool]
"""Name of a class, its options, and whether it continues an adapter."""


def objectives(url: str) -> dict[str, Callable[[], Objective]]:
    """Return every objective, by the name of its runs.

    Args:
        url: address of a server for the GRPO that samples from one.
    """
    rollouts = {"reward": Truth(), "oracle": Lengths(), "group_size": 3, "max_new_tokens": 10}
    return {
        "SFT": lambda: ("SFT", {}, False),
        "SFTRegression": lambda: ("SFTRegression", {}, False),
        "DPO": lambda: ("DPO", {"baselines": [PTrue()]}, True),
        "ORPO": lambda: ("ORPO", {}, True),
        "GRPO": lambda: ("GRPO", {**rollouts, "engine": Drifted(8), "inner_epochs": 2}, True),
        "GRPO-server": lambda: ("GRPO", {**rollouts, "engine": RemoteVllm(url, max_rows=8)}, True),
        "ExpectedReward": lambda: ("ExpectedReward", {}, True),
        "Distil": lambda: (
            "Distil",
            {"teacher": Blend([PolicyMean(), BaselineTeacher(SentenceLikelihood())])},
            True,
        ),
        "PTrueTuned": lambda: ("PTrueTuned", {}, False),
    }


class Odd(Rows):
    """Three test records in batches of two: on two processes, the last batch of the second one is empty."""

    def load(self, split: str) -> list[Record]:
        self.eval_batch_size = 1 if torch.distributed.is_initialized() else 2
        return super().load(split)[: 3 if split == "test" else None]


class Watch(Callback):
    """Checks after training which weights are split over the processes: the base's layers, and no adapter."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Check them."""
        named = dict(pl_module.policy.model.named_parameters())
        split = {name for name, weight in named.items() if isinstance(weight, DTensor)}
        layers = {name for name in named if ".layers." in f".{name}" and not is_adapter(name)}
        assert split == (layers if isinstance(trainer.strategy, ShardedStrategy) else set())
        shard = (named[name].to_local().numel() for name in split)
        assert 2 * sum(shard) == sum(named[name].numel() for name in split)


def run(layout: str, folder: Path, model: str, adapter: str, make: Callable[[], Objective], **options: Any) -> None:
    """Train for a while in a folder, and measure; leave weights, what was logged and tables there.

    Args:
        layout: "one", "ddp" or "fsdp2".
        folder: folder of the run.
        model: folder of the model.
        adapter: folder of the adapter to continue.
        make: makes the options, the engine among them.
        options: "ckpt" to go on from, "test" whether to measure (default), "checkpointing" for the model; all others
            are the trainer's.
    """
    os.environ["LOVEC_CACHE"] = str(folder / "cache")
    torch.manual_seed(0)
    cls, settings, continued = make()
    ckpt, test, checkpointing = (options.pop(name, default) for name, default in DEFAULTS.items())
    start = adapter if continued else None
    policy = PolicyConfig(model, start, lora_r=4, lora_alpha=8, gradient_checkpointing=checkpointing)
    sgd = options.pop("sgd", True)
    objective = module(getattr(modules, cls), model, policy=policy, sgd=sgd, micro_batch_tokens=90, seed=5, **settings)
    if layout != "one":
        options |= {"strategy": STRATEGIES[layout](), "devices": 2, "use_distributed_sampler": False}
    saver = ModelCheckpoint(dirpath=folder, filename="last", every_n_train_steps=2, enable_version_counter=False)
    made = trainer(
        folder, **{"callbacks": [Watch(), saver], "enable_checkpointing": True, "limit_val_batches": 1.0, **options}
    )
    made.fit(objective, Rows(11), ckpt_path=ckpt)
    metrics = {name: float(value) for name, value in made.callback_metrics.items()}
    if test:
        objective.evaluation.recalibrated = True
        made.test(objective, Odd(11), verbose=False)
    if made.is_global_zero:
        (folder / "metrics.json").write_text(json.dumps(metrics))
        torch.save(torch.cat([p.detach().flatten() for p in objective.policy.trainable()]), folder / "weights.pt")


DEFAULTS: Mapping[str, Any] = {"ckpt": None, "test": True, "checkpointing": False}


def run_all(layouts: Mapping[str, Mapping[str, Callable[[], None]]]) -> None:
    """Do the runs of each layout one after the other: those of one process in one, all others in the same two.

    Raises:
        AssertionError: a process failed.
    """
    alone = list(layouts.get("one", {}).values())
    together = [work for name, works in layouts.items() if name != "one" for work in works.values()]
    results = run_forks(partial(_do, alone)) if alone else []
    if together:
        rank = partial(_do, together)
        results += run_forks(rank, rank, environments=ranks(2))
    for code, printed in results:
        assert code == 0, printed[-4000:]


def _do(works: list[Callable[[], None]]) -> None:
    for work in works:
        work()


def weights(folder: Path) -> Tensor:
    """Return the weights that a run has left, [P]."""
    values: Tensor = torch.load(folder / "weights.pt")
    return values


def check_equal(one: Path, other: Path, measured: bool = True) -> None:
    """Check that two runs have left equal weights, metrics, tables and tagged records, but for rounding.

    Args:
        one: folder of a run.
        other: folder of the other.
        measured: whether they have also validated and tested.
    """
    assert (weights(one) - weights(other)).norm() / weights(one).norm() < 1e-5
    alone, together = (json.loads((folder / "metrics.json").read_text()) for folder in (one, other))
    assert "train/loss" in alone and ("val/brier" in alone) == measured
    assert together == pytest.approx(alone, rel=1e-3, abs=1e-5, nan_ok=True)
    if not measured:
        return
    assert check_equal_tables(one, other) > 2
    files = sorted(path.name for path in (one / "test" / "rows").glob("*.jsonl"))
    assert files and files == sorted(path.name for path in (other / "test" / "rows").glob("*.jsonl"))
    for name in files:
        ids = [[record.id for record in read_records(folder / "test" / "rows" / name)] for folder in (one, other)]
        assert ids[0] == ids[1] == ["r0", "r1", "r2"]


def check_equal_tables(one: Path, other: Path) -> int:
    """Check that the tests of two runs have left equal tables, but for rounding; return the number of their rows."""
    tables = [read_results(folder / "test" / "rows" / "results.json").rows for folder in (one, other)]
    for row, same in zip(*tables, strict=True):
        assert replace(row, metrics={}) == replace(same, metrics={})
        assert row.metrics.keys() == same.metrics.keys()
        for name, value in row.metrics.items():  # the weights differ by rounding, and so do two softmaxes
            expected = pytest.approx(value, rel=1e-3, abs=1e-5) if isinstance(value, float) else value
            assert same.metrics[name] == expected, name
    return len(tables[0])
