"""A tiny run for the tests of training: a few records, a random model, a trainer that writes to a folder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from lovec.datamodules import RecordsDataModule
from lovec.datasets.pairs import with_rejected
from lovec.tiny import build_tiny
from lovec.types import Record, Sentence

WORDS = "ada wrote the first note on engines in london and paris before noon".split()


def records(n: int, seed: int = 0) -> list[Record]:
    """Labelled pairs of ragged lengths: 1 to 3 sentences of 2 to 9 words."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        sentences = tuple(
            Sentence(" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + ".", factuality=rng.randint(0, 10) / 10)
            for _ in range(rng.randint(1, 3))
        )
        row = Record(
            f"r{i}", f"Who is {rng.choice(WORDS)}?", answer=" ".join(s.text for s in sentences), sentences=sentences
        )
        rows.append(with_rejected(row, seed))
    return rows


class Rows(RecordsDataModule):
    """Serves the records above."""

    def __init__(self, n: int = 12, batch_size: int = 4, seed: int = 0) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=8, seed=seed)
        self.n = n

    @property
    def instruction(self) -> str:
        return "Rate each sentence."

    def load(self, split: str) -> list[Record]:
        return records(self.n if split == "train" else 4, seed=len(split))


def tiny(folder: Path, arch: str = "llama", **sizes: Any) -> str:
    """A random model in ``folder``, built once."""
    path = folder / arch
    if not path.exists():
        build_tiny(arch, path, **sizes)
    return str(path)


def module(
    cls: type, model: str, adapter: str | None = None, lr: float = 1e-2, sgd: bool = False, **kwargs: Any
) -> Any:
    """A module of class ``cls`` on a tiny model."""
    import torch

    from lovec.modules import EvaluationConfig, PolicyConfig

    policy = kwargs.pop("policy", None) or PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_alpha=8)
    return cls(
        policy=policy,
        optimizer=lambda parameters: (torch.optim.SGD if sgd else torch.optim.AdamW)(parameters, lr=lr),
        evaluation=EvaluationConfig(max_new_tokens=8, rows=8),
        **kwargs,
    )


def trainer(folder: Path, **kwargs: Any) -> Trainer:
    """A silent trainer that writes to ``folder``."""
    settings: dict[str, Any] = {
        "default_root_dir": folder,
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
    }
    return Trainer(**{**settings, **kwargs})
