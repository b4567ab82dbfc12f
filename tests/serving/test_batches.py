"""Which requests the worker runs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lovec.serving import EngineWorker
from lovec.serving.jobs import CompletionJob
from lovec.types import Completion, Sampling


class Recording:
    """An engine that keeps how many prompts it got, and with which settings."""

    max_rows = 4

    def __init__(self) -> None:
        self.batches: list[tuple[int, float, int]] = []

    def generate(self, prompts: Sequence[Any], sampling: Sampling, stop_ids: Any, **more: Any) -> Any:
        self.batches.append((len(prompts), sampling.temperature, sampling.seed))
        return [[Completion((1,), (0.0,), True)] for _ in prompts]


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ([(1.0, 3), (1.0, 3)], [(2, 1.0, 3)]),
        ([(1.0, 3), (1.0, 4), (1.0, 3)], [(2, 1.0, 3), (1, 1.0, 4)]),
        ([(1.0, 3), (0.5, 3)], [(1, 1.0, 3), (1, 0.5, 3)]),
    ],
)
def test_jobs_of_one_batch_have_one_temperature_and_one_seed(
    settings: list[tuple[float, int]], batches: list[tuple[int, float, int]]
) -> None:
    engine: Any = Recording()
    worker = EngineWorker(engine, (), max_waiting=8)
    ended: list[Any] = []
    for temperature, seed in settings:
        sampling = Sampling(1, temperature, seed=seed)
        worker.submit(CompletionJob(ended.append, [1], sampling, "", lambda token: True))
    worker.thread.start()
    assert worker.stop(60)  # waits for all accepted jobs
    assert engine.batches == batches and len(ended) == len(settings)
