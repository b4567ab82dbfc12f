"""Other loggers than that of CSV files get what a training logs; each is skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pages import DOCS, blocks
from tinyrun import records, tiny

from lovec.cli import main
from lovec.datasets.jsonl import write_records


def test_mlflow_has_the_losses_that_the_csv_file_has(here, tmp_path_factory):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    write_records("rows.jsonl", records(12))
    (printed,) = [block for block in blocks(DOCS / "machines.md", "yaml") if "MLFlowLogger" in block]
    (logger,) = yaml.safe_load(printed)
    Path("own.yaml").write_text(yaml.safe_dump({
        "trainer": {"accelerator": "cpu", "default_root_dir": "runs/own", "limit_train_batches": 3,
                    "limit_val_batches": 0, "log_every_n_steps": 1,
                    "logger": [{"class_path": "CSVLogger", "init_args": {"save_dir": ".", "name": "logs"}}, logger]},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp())}}},
        "data": {"class_path": "Demonstrations", "init_args": {"path": "rows.jsonl", "batch_size": 4}},
    }))  # fmt: skip
    assert main(["fit", "--config", "sft.yaml", "--config", "own.yaml"]) == 0
    names, *rows = [line.split(",") for line in Path("logs/version_0/metrics.csv").read_text().splitlines()]
    losses = [float(row[names.index("train/loss")]) for row in rows if row[names.index("train/loss")]]
    uri = logger["init_args"]["tracking_uri"]
    mlflow.set_tracking_uri(uri)
    (run,) = mlflow.search_runs(experiment_names=[logger["init_args"]["experiment_name"]], output_format="list")
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train/loss")
    assert [metric.value for metric in history] == pytest.approx(losses) and len(losses) == 3
    assert run.info.status == "FINISHED"
