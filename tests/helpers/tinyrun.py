"""A tiny training run for tests: a few records, a random model, and a trainer that writes to a folder."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lovec.datamodules import RecordsDataModule
from lovec.datasets.pairs import with_rejected
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.types import DEFAULT_SCALE, Record, Sampling, Scale, Sentence

WORDS = "ada wrote the first note on engines in london and paris before noon".split()


def records(n: int, seed: int = 0, scale: Scale = DEFAULT_SCALE) -> list[Record]:
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
        rows.append(with_rejected(row, seed, scale))
    return rows


class Rows(RecordsDataModule):
    """Serves the records above."""

    title = "rows"

    def __init__(self, n: int = 12, batch_size: int = 4, seed: int = 0) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=8, seed=seed)
        self.n = n

    @property
    def instruction(self) -> str:
        return "Rate each sentence."

    def load(self, split: str) -> list[Record]:
        return records(self.n if split == "train" else 4, seed=len(split), scale=self.scale)


class Sourced(Rows):
    """Records of which every second one has evidence."""

    def load(self, split: str) -> list[Record]:
        return [replace(r, evidence=("Ada wrote.",) * (i % 2)) for i, r in enumerate(super().load(split))]


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
        evaluation=kwargs.pop("evaluation", None) or EvaluationConfig(max_new_tokens=8, rows=8),
        **kwargs,
    )


def trainer(folder: Path, **kwargs: Any) -> Trainer:
    """A silent trainer that writes to ``folder`` and probes nothing, unless a ``Probe`` is among the callbacks."""
    from lovec.callbacks import Probe

    callbacks = kwargs.pop("callbacks", [])
    if not any(isinstance(callback, Probe) for callback in callbacks):
        callbacks = [Probe(every=0), *callbacks]
    settings: dict[str, Any] = {
        "default_root_dir": folder,
        "max_epochs": 1,
        "accelerator": os.environ.get("LOVEC_TEST_DEVICE", "cpu"),
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        "callbacks": callbacks,
    }
    return Trainer(**{**settings, **kwargs})


def sft_adapter(folder: Path, model: str) -> str:
    """An adapter that SFT has written, in a run in ``folder``."""
    from lovec.modules import SFT

    torch.manual_seed(0)  # the same adapter, whatever ran before
    trainer(folder).fit(module(SFT, model), Rows())
    return str(folder / "adapter")


def grounded_adapter(folder: Path, model: str) -> str:
    """An adapter that SFT has written from records with evidence and without, in a run in ``folder``."""
    from lovec.modules import SFT, PolicyConfig

    torch.manual_seed(0)
    policy = PolicyConfig(model=model, lora_r=4, lora_alpha=8, grounded=True, evidence_tokens=300)
    trainer(folder, max_epochs=4).fit(module(SFT, model, policy=policy), Sourced())
    return str(folder / "adapter")


class Ragged(TransformersEngine):
    """Ends answers at many tokens: random models hardly ever write the end token, and all would be equally long."""

    def generate(self, prompts: Any, sampling: Sampling, stop_ids: Sequence[int], keys: Any = None, **more: Any) -> Any:
        return super().generate(prompts, sampling, [*stop_ids, *range(0, 256, 8)], keys, **more)


class Drifted(Ragged):
    """Returns log-probabilities that are off by up to 0.5, as an engine with other arithmetic would.

    They are off by more for records of higher numbers, so that one record, and one process, has the largest difference.
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
    """An oracle without a model: the factuality of a sentence is a function of its length."""

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
        metrics: dict[str, float] = {}
        module.log = lambda name, value, **_: metrics.__setitem__(name, value)
        module.log_dict = lambda values, **_: metrics.update(values)
        step, update = module._step, module.update

        def recorded_step() -> float:
            self.gradients.append(torch.cat([p.grad.flatten() for p in module.policy.trainable()]))
            return float(step())

        def recorded_update(examples: Any) -> None:
            update(examples)
            self.logged.append(dict(metrics))
            metrics.clear()

        module._step, module.update = recorded_step, recorded_update


def fit(folder: Path, module: Any, rows: Any = None, **kwargs: Any) -> Recorder:
    """Train a module, on the records above unless ``rows`` are given; return what it logged and its gradients."""
    recorder = Recorder(module)
    trainer(folder, **kwargs).fit(module, rows or Rows())
    return recorder


def check_same_steps(whole: Recorder, parts: Recorder, *names: str, nan_ok: bool = False) -> None:
    """Check that two runs had the same gradients and logged the same, ``names`` among it, but for rounding."""
    check_same_gradients(whole, parts)
    for expected, logged in zip(whole.logged, parts.logged, strict=True):
        assert set(names) <= expected.keys()
        assert logged == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=nan_ok)


def check_same_gradients(whole: Recorder, parts: Recorder) -> None:
    """Check that two runs had the same gradients at every step, but for rounding, and none without any."""
    for a, b in zip(whole.gradients, parts.gradients, strict=True):
        assert a.norm() > 0
        assert (a - b).norm() / a.norm() < 1e-5


def check_loss(objective: Any, examples: Sequence[Any], expected: Tensor) -> Any:
    """Check the loss of examples and its gradient against a loss by hand; return what the objective gave for them."""
    from lovec.modules import Batch

    expected.backward()
    gradients = [p.grad.clone() for p in objective.policy.trainable()]
    objective.policy.zero_grad()
    out = objective.loss(Batch.of(examples, objective.policy.device))
    ours = objective._total(out, objective.counts(examples))
    ours.backward()
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, gradient in zip(objective.policy.trainable(), gradients, strict=True):
        assert float((p.grad - gradient).norm() / gradient.norm()) < 1e-4
    return out


def loaded(folder: Path, module: Any, rows: Any = None) -> Any:
    """The module with its policy loaded and nothing trained."""
    trainer(folder, max_steps=0).fit(module, rows or Rows())
    return module
