"""Pre-training of a small causal language model from random weights, in minutes on a CPU.

The weight matrices are trained with Muon, all other parameters with AdamW, both with a trapezoidal learning rate; only
answer tokens count in the loss.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lovec.core.progress import is_quiet, note

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

_WINDOW = 16  # batches whose documents are sorted by length together: less padding, nearly the same order
_WARMUP = 50
_FLAT = 0.6
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length, batch size, learning rates and order of a pre-training.

    Attributes:
        steps: optimiser steps.
        batch_size: documents per step.
        matrix_lr: peak learning rate of Muon (all matrices except the embeddings).
        other_lr: peak learning rate of AdamW (embeddings, norms, biases).
        weight_decay: decoupled weight decay of both optimisers.
        clip: largest norm of the gradient; larger gradients are scaled down to it.
        seed: seed of the order of the documents.
        threads: CPU threads; the result is reproducible for a given number of them.
    """

    steps: int
    batch_size: int = 12
    matrix_lr: float = 0.02
    other_lr: float = 6e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    threads: int = 1

    def factor(self, step: int) -> float:
        """Return the share of the peak learning rate at a step.

        It rises linearly over 50 steps, is flat until 60 % of the steps, and falls linearly to 0.
        """
        return min(1.0, (step + 1) / _WARMUP, (self.steps - step) / max(1.0, self.steps * (1 - _FLAT)))


@dataclass(frozen=True, slots=True)
class PretrainingStats:
    """Final loss and cost of a pre-training.

    Attributes:
        loss: mean negative log-likelihood per answer token over the last 50 steps.
        cpu_s: CPU time in seconds.
        wall_s: wall-clock time in seconds.
    """

    loss: float
    cpu_s: float
    wall_s: float


def pretrain(
    model: PreTrainedModel,
    documents: Sequence[tuple[Sequence[int], Sequence[int]]],
    schedule: Schedule,
    progress: bool = True,
    title: str = "pre-training",
) -> PretrainingStats:
    """Train a model in place on documents.

    Args:
        model: a transformers causal language model; every parameter is trained.
        documents: pairs of prompt ids and answer ids; only the answer ids count in the loss. Documents are read in
            random order, several times if there are fewer than ``steps * batch_size``.
        schedule: length, batch size, learning rates and order.
        progress: whether to show a progress bar (or ten lines if standard error is not a terminal).
        title: title of the progress bar.
    """
    import torch

    wall, cpu = time.monotonic(), time.process_time()
    order = _batches(documents, schedule)
    optimizers = _optimizers(model, schedule)
    base_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    losses: list[float] = []
    model.train()
    with _use_threads(schedule.threads), _progress(progress, title, schedule.steps) as report:
        for step in range(schedule.steps):
            loss = _loss(model, [documents[i] for i in next(order)])
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
            for optimizer, lrs in zip(optimizers, base_lrs, strict=True):
                for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                    group["lr"] = lr * schedule.factor(step)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            report(step + 1, losses[-1])
    model.eval()
    last = losses[-50:]
    return PretrainingStats(sum(last) / len(last), time.process_time() - cpu, time.monotonic() - wall)


def _loss(model: PreTrainedModel, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    """Compute the mean negative log-likelihood of the answer tokens of a batch.

    Rows are padded on the right, where a causal model cannot see the padding, so no attention mask is needed; logits
    are computed at answer positions only.
    """
    import torch

    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    targets = torch.full_like(ids, _IGNORED)
    for i, (prompt, answer) in enumerate(rows):
        n, m = len(prompt), len(prompt) + len(answer)
        ids[i, :m] = torch.tensor([*prompt, *answer])
        targets[i, n - 1 : m - 1] = ids[i, n:m]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    is_answer = targets != _IGNORED
    logits = model.get_output_embeddings()(hidden[is_answer])
    return torch.nn.functional.cross_entropy(logits.float(), targets[is_answer])


def _batches(documents: Sequence[tuple[Sequence[int], Sequence[int]]], schedule: Schedule) -> Iterator[list[int]]:
    """Yield the indices of the documents of each step, without end; a batch holds documents of similar length."""
    rng = random.Random(f"{schedule.seed}/order")
    size = schedule.batch_size
    leftover: list[int] = []  # documents that did not fill a batch come first in the next round
    while True:
        order = list(range(len(documents)))
        rng.shuffle(order)
        order = leftover + order
        whole = len(order) // size * size
        order, leftover = order[:whole], order[whole:]
        for start in range(0, whole, _WINDOW * size):
            window = order[start : start + _WINDOW * size]
            window.sort(key=lambda i: len(documents[i][0]) + len(documents[i][1]))
            batches = [window[i : i + size] for i in range(0, len(window), size)]
            rng.shuffle(batches)
            yield from batches


def _optimizers(model: PreTrainedModel, schedule: Schedule) -> list[Optimizer]:
    import torch

    embeddings = {
        id(p) for layer in (model.get_input_embeddings(), model.get_output_embeddings()) for p in layer.parameters()
    }
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    matrix_ids = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in matrix_ids]
    decay = schedule.weight_decay
    return [
        torch.optim.Muon(matrices, lr=schedule.matrix_lr, weight_decay=decay),
        torch.optim.AdamW(others, lr=schedule.other_lr, weight_decay=decay),
    ]


@contextmanager
def _use_threads(n: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Report(Protocol):
    def __call__(self, step: int, loss: float) -> None: ...


@contextmanager
def _progress(enabled: bool, title: str, steps: int) -> Iterator[_Report]:
    """Yield a function that reports a step: as a bar on a terminal, else as ten lines, on standard error."""
    if not enabled or is_quiet():
        yield lambda step, loss: None
        return
    if not sys.stderr.isatty():
        start = time.monotonic()

        def print_step(step: int, loss: float) -> None:
            if step in {1, steps} or step * 10 // steps != (step - 1) * 10 // steps:
                rest = (time.monotonic() - start) / step * (steps - step)
                note(f"{title}: step {step}/{steps}, loss {loss:.2f}, {rest:.0f} s left")

        yield print_step
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.2f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=steps, loss=float("nan"))
        yield lambda step, loss: bar.update(task, completed=step, loss=loss)
