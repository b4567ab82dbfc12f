"""The SLURM script of docs/machines.md under a stand-in for SLURM: real processes, signals and requeueing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forks import Fork, free_port, ranks
from slurm import install

from lovec.cli import main

ROOT = Path(__file__).parents[2]


def script() -> str:
    """The script of the page."""
    (found,) = re.findall(
        r"```sh\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs" / "machines.md").read_text(), re.DOTALL
    )
    return found


def words(model: str, run: str) -> list[str]:
    """Options of a run of six steps."""
    return [
        "--model", "SFT", "--model.policy.model", model, "--model.policy.lora_r", "4",
        "--data", "tinyrun.Rows", "--data.n", "11", "--data.batch_size", "4", "--trainer.limit_val_batches", "0",
        "--trainer.default_root_dir", run, "--trainer.enable_progress_bar", "false", "--trainer.max_epochs", "2",
    ]  # fmt: skip


STEPS = ["--trainer.callbacks+", "signalled.Steps", "--trainer.callbacks.seconds", "0.4"]


def adapter(run: str) -> bytes:
    return Path(run, "adapter", "adapter_model.safetensors").read_bytes()


@pytest.mark.slow
def test_an_interrupted_job_is_requeued_and_ends_with_the_weights_of_an_undisturbed_one(here: Path, model: str) -> None:
    """SIGUSR1, as before a time limit, in the first run; SIGTERM, as at a preemption, in the second."""
    install(here / "bin")
    lovec = here / "bin" / "lovec"
    lovec.write_text(f'#!/bin/sh\nexec {sys.executable} -m lovec.cli "$@"\n')
    lovec.chmod(0o755)
    (here / "lovec.sh").write_text(script())
    (here / "state").mkdir()
    environment = os.environ | {
        "PATH": f"{here / 'bin'}:{os.environ['PATH']}",
        "SLURM_STANDIN": str(here / "state"),
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": f"{ROOT / 'tests' / 'helpers'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    sharded = ["--config", "fsdp2.yaml", "--trainer.accelerator", "cpu"]
    command = ["sbatch", "lovec.sh", *sharded, *words(model, "run"), *STEPS]
    interrupted = []
    with (here / "errors.txt").open("w") as errors:
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        for line in job.stdout or ():
            step = int(line.split()[1]) if line.startswith("step ") else 0
            number = {2: signal.SIGUSR1, 4: signal.SIGTERM}.get(step)
            if number is not None:
                for task in (here / "state" / "tasks").read_text().split():
                    os.kill(int(task), number)
                interrupted.append(step)
    said = (here / "errors.txt").read_text()
    assert job.wait(60) == 0 and interrupted == [2, 4], said[-4000:]
    assert (here / "state" / "runs").read_text().split() == ["0", "1", "2"]
    assert "Traceback" not in said
    assert [name for name in re.findall(r"lovec: ended by (\w+)", said)] == ["SIGUSR1", "SIGTERM"]

    whole = ["fit", *sharded, *words(model, "whole"), "--trainer.devices", "2"]
    two = [Fork(lambda: main(whole), environment, sys.stderr) for environment in ranks(2)]
    assert [process.wait(120) for process in two] == [0, 0]
    for process in two:
        process.__exit__()
    assert adapter("run") == adapter("whole")
