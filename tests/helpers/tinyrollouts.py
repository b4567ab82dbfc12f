"""Rollouts for tests: GRPO on a tiny model, with sampled answers or with answers that the test writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tinyrun import Lengths, Ragged, Truth, loaded, module, records

from lovec.modules import GRPO, PolicyConfig
from lovec.modules.rollout import RolloutExample
from lovec.types import Completion, Record, Sampling

TAGS = ("<c>", "</c>")


def grpo(model: str, adapter: str | None = None, cls: type = GRPO, **options: Any) -> Any:
    """GRPO on random text: its tags are malformed, but its sentences are rated by their length."""
    torch.manual_seed(0)  # a fresh adapter is the same, whatever ran before
    defaults = {"reward": Truth(), "oracle": Lengths(), "group_size": 3, "max_new_tokens": 10, "temperature": 1.2}
    return module(cls, model, adapter, **{**defaults, "engine": Ragged(8), **options})


class Scripted:
    """An engine that returns given answers, a list per question; an answer that ends in "|" has no end token."""

    prefill_tokens = 0
    max_rows = 8
    shares_model = True
    context_length = None

    def __init__(self, *groups: Sequence[str]) -> None:
        self.groups = groups
        self.encoder: Any = None

    def sync(self, policy: Any) -> None:
        pass

    def generate(
        self, prompts: Sequence[Any], sampling: Sampling, stop_ids: Sequence[int], keys: Any = None
    ) -> list[list[Completion]]:
        return [[self._completion(text) for text in group] for _, group in zip(prompts, self.groups, strict=True)]

    def _completion(self, text: str) -> Completion:
        ids = (*self.encoder.pieces(text.removesuffix("|")), *([] if text.endswith("|") else [self.encoder.end_id]))
        return Completion(ids, (0.0,) * len(ids), not text.endswith("|"))


def scripted(folder: Path, model: str, *groups: Sequence[str], **options: Any) -> tuple[Any, list[RolloutExample]]:
    """A module with short tags, and its rollouts of the answers."""
    engine = Scripted(*groups)
    scale = options.pop("scale", None)
    policy = PolicyConfig(model=model, lora_r=4, lora_alpha=8, instruction="Rate.", tag_words=TAGS, scale=scale)
    objective = loaded(folder, grpo(model, policy=policy, engine=engine, group_size=len(groups[0]), **options))
    engine.encoder = objective.encoder
    return objective, objective.rollouts(records(len(groups)))


def advantages_of(examples: Sequence[RolloutExample]) -> list[list[float]]:
    return [example.advantages for example in examples]


class Fixed:
    """Rates sentences by their first word."""

    def __init__(self, **rates: float | None) -> None:
        self.rates = rates

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[self.rates.get(s.text.split(" ")[0].strip("."), 1.0) for s in r.sentences] for r in records]


class Distance:
    """A reward: minus the distance; -20 without a tag."""

    def __call__(self, score: int | None, rating: int) -> float:
        return -20.0 if score is None else -float(abs(score - rating))
