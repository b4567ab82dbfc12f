"""The tests of a GPU on a device that computes on the CPU and refuses its tensors; see ``otherdevice``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import otherdevice
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
only_there = pytest.mark.skipif(
    os.environ.get("LOVEC_TEST_DEVICE") != otherdevice.NAME, reason="make test-device runs it, and a slow test"
)


@pytest.mark.gpu
@only_there
@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: here @ there.T,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.stack([here.sum(), there.sum()]),
        lambda here, there: torch.where(here > 0, here, there),
        lambda here, there: here.index_select(0, torch.tensor([0])),
        lambda here, there: there[torch.tensor([0], device=here.device)],
        lambda here, there: here.numpy(),
    ],
)
def test_the_device_refuses_tensors_of_the_cpu(mix):
    there = torch.randn(2, 3)
    with pytest.raises((RuntimeError, TypeError), match="device"):
        mix(there.to(otherdevice.NAME), there)


@pytest.mark.gpu
@only_there
def test_the_device_takes_what_cuda_takes():
    there = torch.randn(2, 3)
    here = there.to(otherdevice.NAME)
    assert torch.equal((here + there.sum()).cpu(), there + there.sum())  # a scalar
    assert torch.equal(here[torch.tensor([1])].cpu(), there[1:])  # an index
    inside = here.view(6)[2:4]  # a view shares its memory
    inside.zero_()
    assert here.tolist()[0][2] == here.tolist()[1][0] == 0.0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(otherdevice.compiler()) is None, reason="there is no C++ compiler; CXX names one")
def test_training_and_testing_keep_to_the_device_of_the_model():
    """Training with attention over shared tokens, sampling, scoring, resuming and testing."""
    tests = ["moves_the_whole", "metrics_are", "samples_are", "engine_scores", "resumes", "the_device"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "otherdevice", "-p", "no:cacheprovider", "-m", "gpu"]
    result = subprocess.run(
        [*command, "-k", " or ".join(tests), "tests/test_gpu.py", "tests/test_other_device.py"],
        cwd=ROOT,
        env={**os.environ, "LOVEC_TEST_DEVICE": otherdevice.NAME, "PYTHONPATH": str(ROOT / "tests" / "helpers")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None and int(passed[1]) >= 30 and "skipped" not in result.stdout, result.stdout[-500:]
