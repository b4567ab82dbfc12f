"""Checkpoints of strangers: nothing in them runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lovec.cli.saved_recipe import read_saved_recipe
from lovec.policy.checkpoints import KEY, read_checkpoint
from lovec.types import LovecError


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("read", [read_checkpoint, read_saved_recipe])
def test_nothing_in_a_checkpoint_runs(tmp_path, read):
    owned, path = tmp_path / "owned", tmp_path / "a.ckpt"
    torch.save({KEY: {}, "state_dict": {}, "lovec_recipe": "trainer: {}", "x": Hostile(owned)}, path)
    with pytest.raises(LovecError):
        read(path)
    assert not owned.exists()
    torch.load(path, weights_only=False)  # the file is as hostile as it claims to be
    assert owned.exists()
