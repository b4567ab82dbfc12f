"""Plain forward passes of a tiny model, which engines must agree with."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lovec.types import Engine

CHOICES = [[49, 60, 9], [49, 48, 60, 9], [50, 60, 9], [240, 60, 9], [49, 48], [33]]
"""Choices to score: "1" and "10" begin alike, "10" as two tokens and as one; one choice begins another; one has a
single token."""


@dataclass
class TinyPolicy:
    """A tiny model with an adapter that changes its output visibly."""

    peft: Any

    @property
    def model(self) -> Any:
        return self.peft.get_base_model()

    def plant(self, seed: int, quietly: bool = False) -> None:
        """Overwrite the adapter's weights; ``quietly`` does not advance the parameters' version counters."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.peft.named_parameters():
                if ".lora_" in name:
                    (parameter.data if quietly else parameter).copy_(
                        0.1 * torch.randn(parameter.shape, generator=generator)
                    )


def texts(n: int, longest: int, seed: int = 0, shortest: int = 1) -> list[list[int]]:
    """Random token lists; id 0 (the padding inside engines) and the stop ids occur in them."""
    rng = random.Random(seed)
    return [[rng.randrange(0, 250) for _ in range(rng.randint(shortest, longest))] for _ in range(n)]


@torch.no_grad()
def naive_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T, V] of one unpadded row, without a cache."""
    training, _ = model.training, model.eval()
    logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    model.train(training)
    return logits


def naive_score(model: Any, context: Sequence[int], choice: Sequence[int]) -> float:
    logps = naive_logits(model, [*context, *choice]).float().log_softmax(-1)
    return sum(float(logps[len(context) - 1 + i, token]) for i, token in enumerate(choice))


def close(engine: Engine) -> float:
    """The tolerance of an engine's log-probabilities: one with a copy of the model rounds in another way."""
    return 1e-5 if engine.shares_model else 1e-4


def assert_scores(engine: Engine, model: Any, contexts: list[list[int]], choices: list[list[int]]) -> None:
    for context, scores in zip(contexts, engine.score(contexts, choices), strict=True):
        assert scores == pytest.approx([naive_score(model, context, choice) for choice in choices], abs=close(engine))


def naive_nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> list[float]:
    """Return log-probabilities of one row [V]: the most probable tokens in turn, until they have ``top_p`` together."""
    probabilities = (logits.double() / temperature).softmax(-1).tolist()
    kept: dict[int, float] = {}
    for token in sorted(range(len(probabilities)), key=lambda token: -probabilities[token]):
        if kept and sum(kept.values()) >= top_p:
            break
        kept[token] = probabilities[token]
    total = sum(kept.values())
    return [math.log(kept[token] / total) if token in kept else -math.inf for token in range(len(probabilities))]
