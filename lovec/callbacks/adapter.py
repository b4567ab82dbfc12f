"""The adapter that a training has learned, as files."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from lovec.core.files import free_name
from lovec.evaluation.run_folders import set_aside_measured
from lovec.export.exporting import trained_files


class AdapterWriter(Callback):
    """Writes the adapter in PEFT format at the end, for ``lovec test``, for later runs and for plain ``peft``."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write it into the folder of the run; one that is there is kept aside, with what was measured with it."""
        if trainer.is_global_zero:
            path = pl_module.run_dir / "adapter"
            aside = free_name(os.path.realpath(path))
            files = trained_files(pl_module, pl_module.base_fingerprint)
            pl_module.policy.save_adapter(path, extra_files=files, keep_other=True)
            pl_module.note_written(str(path))
            rank_zero_info(f"adapter written to {path}{set_aside_measured(pl_module.run_dir, aside)}")
