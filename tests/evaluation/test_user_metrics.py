"""A metric of the user's own, by class path, is a column everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tinyrun import Rows, module, trainer
from torchmetrics.regression import MeanAbsoluteError

from lovec.cli import main
from lovec.metrics.results import read_results
from lovec.metrics.table import METRICS, MetricInfo
from lovec.modules import SFT, EvaluationConfig
from lovec.types import Record, Sentence

METRIC = '''
import torch
from torchmetrics import Metric


class Overconfidence(Metric):
    """Mean of c - f where c is above f."""

    higher_is_better = False
    heading = "over"
    unit = "percent"

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, confidence, factuality):
        self.total += (confidence - factuality).clamp(min=0).sum()
        self.count += len(confidence)

    def compute(self):
        return self.total / self.count


class Words(Overconfidence):
    """Has the name of a built-in metric."""
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of metrics."""
    monkeypatch.chdir(tmp_path)
    helpers = str(Path(__file__).parents[1] / "helpers")
    monkeypatch.setattr(sys, "path", [*sys.path, helpers])
    Path("my_metrics.py").write_text(METRIC)
    yield tmp_path
    sys.modules.pop("my_metrics", None)


def words(model: str, adapter: str, metric: str) -> list[str]:
    return ["test", "--config", "sft.yaml", "--model.policy.model", model, "--data", "tinyrun.Rows",
            "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", "run",
            "--model.evaluation.modes", "[iterative]", "--model.evaluation.adapter", adapter,
            f"--model.evaluation.metrics+={metric}"]  # fmt: skip


def test_a_metric_from_a_file_is_in_the_results_and_in_the_printed_table(
    here: Path, model: str, adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(model, adapter, "my_metrics.Overconfidence")) == 0
    results = read_results("run/test/rows/results.json")
    info = MetricInfo("overconfidence", "over", "lower", "percent", 3, "always", False, True)
    assert results.metrics == METRICS | {"overconfidence": info}
    for row in results.rows:
        values = row.metrics
        assert 0 <= values["overconfidence"] <= 1
        assert values["overconfidence"] >= values["mean_confidence"] - values["mean_factuality"] - 1e-6
    heading, *lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert any("over" in line for line in [heading, *lines])
    shown = f"{100 * results.rows[0].metrics['overconfidence']:.3f}"
    assert any(shown in line for line in lines)


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        ("my_metrics.Words", "the name 'words' of the metric Words is taken; give its class another name"),
        ("my_metrics.Wrds", "there is no Wrds in my_metrics; did you mean Words?"),
        ("lovec.modules.SFT", "--model.evaluation.metrics is lovec.modules.SFT, expected a Metric"),
    ],
)
def test_a_metric_that_cannot_be_used_is_one_line(
    here: Path, model: str, adapter: str, capsys: pytest.CaptureFixture[str], metric: str, error: str
) -> None:
    assert main(words(model, adapter, metric)) > 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: ")]
    assert len(lines) == 1 and error in lines[0]


def test_validation_logs_it_at_every_level(model: str, tmp_path: Path) -> None:
    """A metric of torchmetrics itself takes a pair, too."""
    config = EvaluationConfig(modes=["iterative"], rows=8, metrics=[MeanAbsoluteError()])
    run = trainer(tmp_path, limit_val_batches=1.0)
    run.fit(module(SFT, model, evaluation=config), Rows())
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    assert {
        "val/mean_absolute_error",
        "val/passage_mean_absolute_error",
        "val/mean_mean_absolute_error",
    } <= logged.keys()
    assert logged["val/mean_absolute_error"] ** 2 <= logged["val/brier"] <= logged["val/mean_absolute_error"]


def test_another_rule_may_tell_abstentions(here: Path) -> None:
    from lovec.evaluation.evaluator import Evaluator

    sys.path.append(str(here))
    Path("my_metrics.py").write_text("def always(answer):\n    return True\n")
    config = EvaluationConfig(["iterative"], abstentions="my_metrics.always")
    evaluator = Evaluator({"iterative": object()}, None, config, ["in-domain"])
    evaluator.update("iterative", [Record("a", "Q?", answer="Fine.", sentences=(Sentence("Fine.", 1.0, 1.0, 10),))])
    assert evaluator.suites[0]["abstained"].compute().item() == 1.0
