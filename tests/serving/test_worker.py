"""The thread that runs the engine: batches, jobs in steps, cancellation."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from served import until

from lovec.serving import EngineWorker
from lovec.serving.jobs import CompletionJob, StepsJob
from lovec.serving.wire import RequestRefused
from lovec.taggers.scoring import ScoreRequest
from lovec.types import Completion, Sampling


class Slow:
    """An engine that waits for a signal before each token, to test the worker."""

    max_rows = 4

    def score(self, contexts: Any, choices: Any) -> list[list[float]]:
        """Do a step of some work, which is what is asked for here in place of contexts."""
        for steps in contexts:
            assert steps.go.acquire(timeout=60)
            steps.done.append(steps.name)
        return []

    def __init__(self) -> None:
        self.batches: list[tuple[int, float]] = []
        self.go = threading.Semaphore(0)

    def generate(self, prompts: Any, sampling: Sampling, stop_ids: Any, keys: Any = None, on_token: Any = None) -> Any:
        self.batches.append((len(prompts), sampling.temperature))
        ids: list[list[int]] = [[] for _ in prompts]
        live = set(range(len(prompts)))
        for step in range(sampling.max_new_tokens):
            assert self.go.acquire(timeout=60)
            if prompts[0] == [13]:
                raise RuntimeError("the engine broke")
            for row in sorted(live):
                ids[row].append(step)
                if not on_token(row, 0, step):
                    live.discard(row)
            if not live:
                break
        return [[Completion(tuple(i), tuple(0.0 for _ in i), False)] for i in ids]


class Steps:
    """A job in steps that waits for a signal before each of them.

    Attributes:
        done: the steps of all such jobs, in the order in which they were done.
        closed: whether it was closed before its end.
    """

    def __init__(self, name: str, number: int, done: list[str]) -> None:
        self.name, self.number, self.done = name, number, done
        self.go = threading.Semaphore(0)
        self.closed = False
        self.results: list[Any] = []
        self.job = StepsJob(self.results.append, self.steps())

    def steps(self) -> Generator[Any, Any, None]:
        try:
            for _ in range(self.number):
                yield ScoreRequest([self], None)  # type: ignore[list-item]
            yield self.name
        except GeneratorExit:
            self.closed = True
            raise


def job(limit: int, prompt: int = 1, temperature: float = 0.0) -> tuple[CompletionJob, list[Any]]:
    ended: list[Any] = []
    return CompletionJob(ended.append, [prompt], Sampling(limit, temperature), "", lambda token: True), ended


def test_the_worker_batches_limits_and_cancels_jobs() -> None:
    engine: Any = Slow()
    worker = EngineWorker(engine, (), max_waiting=6)
    worker.thread.start()
    first, first_ended = job(2)
    worker.submit(first)
    until(lambda: worker.running == 1)
    waiting = [job(limit) for limit in (1, 3, 5)] + [job(1, temperature=1.0), job(2), job(2)]
    for one, _ in waiting:
        worker.submit(one)
    with pytest.raises(RequestRefused, match="at most 6 answers wait"):
        worker.submit(job(1)[0])
    waiting[4][0].cancelled.set()
    steps = Steps("steps", 1, [])
    steps.go.release()
    engine.go.release(2)
    until(lambda: first_ended)
    until(lambda: worker.running == 4)
    waiting[2][0].cancelled.set()  # leaves while it runs
    worker.submit(steps.job)
    engine.go.release(20)
    until(lambda: steps.results)
    assert engine.batches == [(1, 0.0), (4, 0.0), (1, 1.0)]  # one that nobody waited for is not among them
    assert [len(ended[0].ids) if ended else None for _, ended in waiting] == [1, 3, None, 1, None, 2]
    broken, errors = job(1, prompt=13)
    worker.submit(broken)
    engine.go.release(5)
    until(lambda: errors)
    assert isinstance(errors[0], RuntimeError) and worker.thread.is_alive()
    assert worker.stop(60)
    assert not worker.thread.is_alive()
    with pytest.raises(RequestRefused, match="shutting down"):
        worker.submit(job(1)[0])


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    engine: Any = Slow()
    worker = EngineWorker(engine, (), max_waiting=6)
    worker.thread.start()
    yield worker
    worker.cancel()
    engine.go.release(100)
    assert worker.stop(60)


def test_long_work_gives_way_after_every_step(worker: EngineWorker) -> None:
    done: list[str] = []
    long = Steps("long", 4, done)
    worker.submit(long.job)
    until(lambda: worker.running == 1)
    first, second = job(1), job(1, temperature=1.0)
    for one, ended in (first, second):
        one.on_item = lambda result, ended=ended: (done.append("chat"), ended.append(result))  # type: ignore[misc]
        worker.submit(one)
    worker.engine.go.release(2)  # type: ignore[attr-defined]
    long.go.release(2)
    until(lambda: len(done) == 4)
    assert done == ["long", "chat", "long", "chat"]
    assert worker.running == 1 and not long.results
    long.go.release(2)
    until(lambda: long.results)
    assert long.results == ["long"] and not long.closed


def test_several_long_jobs_take_turns(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lovec.serving.worker.TURN", 0.0)
    done: list[str] = []
    jobs = [Steps(name, 3, done) for name in "abc"]
    for one in jobs:
        worker.submit(one.job)
    for one in jobs:
        one.go.release(3)
    until(lambda: all(one.results for one in jobs))
    assert done == list("abcabcabc")


def test_cancelled_work_ends_at_its_next_step(worker: EngineWorker) -> None:
    long = Steps("long", 100, [])
    worker.submit(long.job)
    until(lambda: worker.running == 1)
    long.job.cancelled.set()
    long.go.release(100)
    until(lambda: worker.running == 0)
    assert long.closed and len(long.done) == 1 and not long.results


def test_all_jobs_are_cancelled_together(worker: EngineWorker) -> None:
    long = Steps("long", 100, [])
    running, running_ended = job(100)
    waiting, waiting_ended = job(1, temperature=1.0)
    worker.submit(long.job)
    until(lambda: worker.running == 1)
    worker.submit(running)
    long.go.release()
    until(lambda: worker.engine.batches)  # type: ignore[attr-defined]
    worker.submit(waiting)
    worker.cancel()
    for results in (long.results, running_ended, waiting_ended):
        assert [error.status for error in results] == [503]
    worker.engine.go.release()  # type: ignore[attr-defined]
    assert worker.stop(60) and long.closed
    with pytest.raises(RequestRefused, match="shutting down"):
        worker.submit(job(1)[0])


def test_an_error_ends_only_its_own_work(worker: EngineWorker) -> None:
    def broken() -> Generator[Any, Any, None]:
        yield ScoreRequest([], None)
        raise RuntimeError("the engine broke")

    errors: list[Any] = []
    worker.submit(StepsJob(errors.append, broken()))
    until(lambda: errors)
    steps = Steps("next", 1, [])
    worker.submit(steps.job)
    steps.go.release()
    until(lambda: steps.results)
    assert isinstance(errors[0], RuntimeError)


class Counting:
    """An engine that writes the numbers after the last one of each prompt, and keeps what it was asked for."""

    max_rows = 4
    context_length = None

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], list[str], int]] = []

    def generate(self, prompts: Any, sampling: Sampling, stop_ids: Any, keys: Any = None, on_token: Any = None) -> Any:
        self.calls.append(([list(p) for p in prompts], list(keys), sampling.max_new_tokens))
        completions = []
        for row, prompt in enumerate(prompts):
            ids, going = [], True
            while not ids or (going and ids[-1] not in stop_ids and len(ids) < sampling.max_new_tokens):
                ids.append((ids or prompt)[-1] + 1)
                going = on_token(row, 0, ids[-1])
            completions.append([Completion(tuple(ids), (), ids[-1] in stop_ids)])
        return completions


def paused_at(tens: bool, limit: int, start: int, ended: list[Any]) -> CompletionJob:
    """A completion that pauses at every ten (or never)."""
    return CompletionJob(ended.append, [start], Sampling(limit), "k", lambda token: not (tens and token % 10 == 0))


def test_a_paused_completion_is_scored_and_goes_on() -> None:
    engine: Any = Counting()
    scored: list[list[int]] = []
    worker = EngineWorker(engine, (35, 25), 8, lambda jobs: scored.append([job.ids[-1] for job in jobs]))
    ends: list[list[Any]] = [[], [], []]
    worker.submit(paused_at(True, 100, 17, ends[0]))
    worker.submit(paused_at(True, 100, 28, ends[1]))
    worker.submit(paused_at(False, 2, 3, ends[2]))
    worker.thread.start()
    assert worker.stop(60)
    assert scored == [[20, 30]]
    assert [[*end[0].ids] for end in ends] == [[*range(18, 26)], [*range(29, 36)], [4, 5]]
    assert [end[0].finished for end in ends] == [True, True, False]
    prompts, keys, limit = engine.calls[1]
    assert (prompts, limit) == ([[17, 18, 19, 20], [28, 29, 30]], 98)
    assert len(set(keys)) == 2 and "k" not in keys  # other numbers than those of the beginning


@pytest.mark.parametrize(("limit", "room", "last"), [(3, None, 20), (4, None, 21), (99, 4, 20), (99, 5, 21)])
def test_a_completion_that_pauses_at_its_last_token_ends(limit: int, room: int | None, last: int) -> None:
    engine: Any = Counting()
    engine.context_length = room
    if room is not None:  # the engine ends a completion where the context is full
        engine.generate = lambda prompts, sampling, *a, **k: Counting.generate(
            engine, prompts, Sampling(min(sampling.max_new_tokens, room - len(prompts[0]))), *a, **k
        )
    scored: list[int] = []
    ended: list[Any] = []
    worker = EngineWorker(engine, (), 8, lambda jobs: scored.extend(job.ids[-1] for job in jobs))
    worker.submit(paused_at(True, limit, 17, ended))
    worker.thread.start()
    assert worker.stop(60)
    assert ended[0].ids[-1] == last and not ended[0].finished and scored == [20]


def test_completions_that_cannot_run_together_take_turns_at_their_pauses() -> None:
    order: list[float] = []

    class Turns(Counting):
        def generate(self, prompts: Any, sampling: Sampling, *more: Any, **others: Any) -> Any:
            order.append(sampling.temperature)
            return super().generate(prompts, sampling, *more, **others)

    engine: Any = Turns()
    worker = EngineWorker(engine, (), 8)
    ended: list[Any] = []
    for temperature in (0.5, 0.6, 0.7):
        sampling = Sampling(30, temperature)
        worker.submit(CompletionJob(ended.append, [0], sampling, "", lambda token: token % 10 != 0))
    worker.thread.start()
    assert worker.stop(60)
    assert order == [0.5, 0.6, 0.7] * 3 and len(ended) == 3


def test_an_error_while_scoring_ends_the_batch() -> None:
    def broken(jobs: Any) -> None:
        raise RuntimeError("scoring broke")

    engine: Any = Counting()
    worker = EngineWorker(engine, (), 8, broken)
    ended: list[Any] = []
    worker.submit(paused_at(True, 30, 17, ended))
    worker.thread.start()
    assert worker.stop(60)
    assert isinstance(ended[0], RuntimeError)
