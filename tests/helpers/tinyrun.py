"""A tiny run for the tests of training: a few records, a random model, a trainer that writes to a folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lovec.datamodules import RecordsDataModule
from lovec.datasets.pairs import with_rejected
from lovec.engines import TransformersEngine
from lovec.tiny import build_tiny
from lovec.types import Record, Sampling, Sentence

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
    from lovec.modules import EvaluationConfig, PolicyConfig

    policy = kwargs.pop("policy", None) or PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_alpha=8)
    return cls(
        policy=policy,
        optimizer=lambda parameters: (torch.optim.SGD if sgd else torch.optim.AdamW)(parameters, lr=lr),
        evaluation=kwargs.pop("evaluation", None) or EvaluationConfig(max_new_tokens=8, rows=8, probe_every=0),
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


def sft_adapter(folder: Path, model: str) -> str:
    """An adapter that SFT has written, in a run in ``folder``."""
    from lovec.modules import SFT

    torch.manual_seed(0)  # the same adapter, whatever ran before
    trainer(folder).fit(module(SFT, model), Rows())
    return str(folder / "adapter")


class Ragged(TransformersEngine):
    """Ends answers at many tokens: random models hardly ever write the end token, and all would be equally long."""

    def generate(self, prompts: Any, sampling: Sampling, stop_ids: Sequence[int], keys: Any = None, **more: Any) -> Any:
        return super().generate(prompts, sampling, [*stop_ids, *range(0, 256, 8)], keys, **more)


class Drifted(Ragged):
    """Says of every token a log-probability that is off, as an engine of other arithmetic would: by 0.5 at most.

    It is off by more for records of higher numbers, so that one record, and one process, has the largest difference.
    """

    shares_model = False

    def generate(self, prompts: Any, *args: Any, keys: Sequence[str], **more: Any) -> Any:
        groups = super().generate(prompts, *args, keys=keys, **more)
        return [
            [
                replace(c, logps=tuple(x + self.drift(key, i) for i, x in zip(c.ids, c.logps, strict=True)))
                for c in group
            ]
            for key, group in zip(keys, groups, strict=True)
        ]

    def drift(self, key: str, token: int) -> float:
        return ((7919 * token) % 256 - 127.5) / 255 * (0.75 + int(key.removeprefix("r")) / 44)


class Lengths:
    """An oracle without a model: a sentence is as true as its length says."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[len(s.text) * 7 % 11 / 10 for s in record.sentences] for record in records]


class Truth:
    """A reward that a model without any format can earn: the rating, and more for a score that is near it."""

    def __call__(self, score: int | None, rating: int) -> float:
        return float(rating if score is None else rating + 10 - abs(score - rating))


class Recorder:
    """Keeps what is logged for every ``update``, and the gradient before its step."""

    def __init__(self, module: Any) -> None:
        self.logged: list[dict[str, float]] = []
        self.gradients: list[Tensor] = []
        now: dict[str, float] = {}
        module.log = lambda name, value, **_: now.__setitem__(name, value)
        module.log_dict = lambda values, **_: now.update(values)
        step, update = module._step, module.update

        def keep() -> float:
            self.gradients.append(torch.cat([p.grad.flatten() for p in module.policy.trainable()]))
            return float(step())

        def log(items: Any) -> None:
            update(items)
            self.logged.append(dict(now))
            now.clear()

        module._step, module.update = keep, log


def fit(folder: Path, made: Any, rows: Any = None, **kwargs: Any) -> Recorder:
    """Train ``made``, on the records above unless told otherwise; what it logged and its gradients."""
    recorder = Recorder(made)
    trainer(folder, **kwargs).fit(made, rows or Rows())
    return recorder
