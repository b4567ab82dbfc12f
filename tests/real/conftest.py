"""A real model, SmolLM2, and one short training of it that all tests of this folder share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from realrun import LABELLED, brief

from lovec.models import resolve_model
from lovec.models.gguf import SMOLLM2
from lovec.types import LovecError


@dataclass(frozen=True)
class Run:
    """A run of SFT.

    Attributes:
        folder: its folder.
        memory: the most memory that its process had, in bytes.
        said: what it printed.
    """

    folder: Path
    memory: int
    said: str

    @property
    def adapter(self) -> str:
        return str(self.folder / "adapter")


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The real model's folder; tests are skipped where its package is not installed."""
    pytest.importorskip("gguf", reason="the extra real is not installed")
    try:
        return resolve_model(SMOLLM2)
    except LovecError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def run(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps of SFT in a process of its own, with eight answers each and all other settings by default."""
    home = tmp_path_factory.mktemp("real")
    words = ["fit", "--config", "sft.yaml", *LABELLED, *brief(home / "sft", answers=8)]
    command = [sys.executable, "-m", "lovec.cli", *words]
    with open(home / "log", "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        said = log.read()
    assert process.returncode == 0, said
    return Run(home / "sft", usage.ru_maxrss * 1024, said)
