"""`lovec demo`: which recipes it runs, with which flags, and the table that it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from commandline import CPU, build

from lovec.cli import main
from lovec.cli.arguments import RECIPES, value_of
from lovec.cli.demo import METHODS, ORDER
from lovec.types import ResultRow

ROWS = {"sft.yaml": "SFT", "sft2.yaml": "SFT-2", "orpo.yaml": "ORPO", "dpo.yaml": "DPO", "grpo.yaml": "GRPO",
        "expected.yaml": "ExpectedReward"}  # fmt: skip


def row(method, readout="stated"):
    metrics = dict(brier=0.1, ece_m=0.2, spearman=None, malformed=0.0, mean_confidence=0.5, mean_factuality=0.5)
    return ResultRow(method, "method", "in-domain", "iterative", "sentence", readout, 3, 7, metrics)


@pytest.fixture
def demo_calls(here, monkeypatch):
    """What the demo would run: the command and words of every call; a test also gives rows that are not shown."""
    import lovec.datasets.world
    from lovec.cli import training

    calls = []

    def execute(command, words):
        calls.append((command, *words))
        methods = [ROWS[words[1]], "Best constant"]
        methods += ["Vanilla"] if value_of(words, "--model.evaluation.vanilla") == "true" else []
        methods += ["SFT + isotonic"] if words[1] == "sft.yaml" else []
        results = [row(method, readout) for method in methods for readout in ("stated", "mean")]
        return SimpleNamespace(model=SimpleNamespace(results=results if command == "test" else []))

    monkeypatch.setattr(training, "execute", execute)
    monkeypatch.setattr(lovec.datasets.world, "ensure_world", lambda variant: calls.append(("world", variant)))
    return calls


def test_the_demo_runs_the_recipes_in_order(demo_calls, capsys):
    assert main(["demo", "--quick", "--seed", "3", "--out", "d", "--methods", "dpo,sft2"]) == 0
    assert demo_calls[0] == ("world", "world-small")
    runs = [(call[0], value_of(call, "--config"), value_of(call[:3], "--config")) for call in demo_calls[1:]]
    recipes = ["sft.yaml", "sft2.yaml", "dpo.yaml"]
    assert runs == [(command, "world-small.yaml", name) for name in recipes for command in ("fit", "test")]
    for call in demo_calls[1:]:
        build(call[0], *call[1:], *CPU)  # the flags are ones the parser takes
        assert value_of(call, "--seed_everything") == "3"
        start = os.path.join("d", "sft", "adapter") if call[0] == "fit" and call[2] != "sft.yaml" else None
        assert value_of(call, "--model.policy.adapter") == start
        assert value_of(call, "--trainer.default_root_dir") == os.path.join("d", call[2].removesuffix(".yaml"))
    vanilla = [value_of(call, "--model.evaluation.vanilla") for call in demo_calls if call[0] == "test"]
    assert vanilla == ["true", "false", "false"]  # the untrained model is the same for all
    rows = [row["method"] for row in json.loads(Path("d/results.json").read_text())["rows"] if row["readout"] == "mean"]
    assert rows == ["Vanilla", "Best constant", "SFT", "SFT + isotonic", "SFT-2", "DPO"]
    printed = capsys.readouterr()
    assert "lovec demo: world-small, seed 3" in printed.out
    assert printed.out.index("stated readout") < printed.out.index("mean readout")
    assert [line[:3] for line in printed.err.splitlines() if line] == ["1/4", "2/4", "3/4", "4/4"]


@pytest.mark.parametrize(("flags", "runs"), [
    ([], ["sft", "sft2", "orpo", "dpo", "expected"]),
    (["--full"], ["sft", "sft2", "orpo", "dpo", "grpo", "expected"]),
    (["--methods", "grpo"], ["sft", "grpo"]),
])  # fmt: skip
def test_the_demo_runs_all_but_the_slow_ones_or_what_is_named(demo_calls, flags, runs):
    assert main(["demo", *flags]) == 0
    assert [call[2] for call in demo_calls[1::2]] == [f"{name}.yaml" for name in runs]


def test_every_row_of_the_demo_comes_from_a_recipe():
    assert {f"{method.name}.yaml" for method in METHODS} == set(ROWS)
    assert all((RECIPES / recipe).is_file() for recipe in ROWS)
    assert len(set(ORDER)) == len(ORDER)
