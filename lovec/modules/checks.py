"""What is checked before the first step, and what is said where a step fails: both name records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from lovec.core.notices import counted, listed
from lovec.core.settings import check_range
from lovec.datasets.stored import extents_of
from lovec.encoding import Encoder
from lovec.modules.batching import Batch, Example
from lovec.tags import TagFormat
from lovec.types import LovecError, Record, is_text

_ENCODING = ("check_row", "example", "encode", "tagged")
_EVERY = 10.0  # seconds between lines of progress


def unfit_records(rows: Sequence[Record], module: Any) -> dict[str, str]:
    """Return why training records cannot be learned from, by id; those that can are not in it.

    Args:
        rows: the records; those that the module tells from their extents are not read.
        module: the training module. Its ``check_row`` raises a ``LovecError`` for a record that cannot be learned from.
    """
    knows = _knows_its_rows(type(module))
    wrong: dict[str, str] = {}
    reported = time.monotonic()
    for number, extent in enumerate(extents_of(rows, module.encoder.tags)):
        if knows and module.surely_fits(extent):
            continue
        row = rows[number]
        try:
            module.check_row(row)
        except LovecError as error:
            wrong[row.id] = str(error)
        if time.monotonic() - reported >= _EVERY:
            reported = time.monotonic()
            rank_zero_info(f"checked {number + 1} of {len(rows)} training records")
    return wrong


def _knows_its_rows(module: type) -> bool:
    """Return whether ``surely_fits`` of a class is about how the class encodes rows.

    It is not where a subclass overrides one of the methods that encode a row, but not ``surely_fits``.
    """
    defining = {name: next(c for c in module.__mro__ if name in vars(c)) for name in ("surely_fits", *_ENCODING)}
    return all(issubclass(defining["surely_fits"], defining[name]) for name in _ENCODING)


def doubtful(rows: Sequence[Record], tags: TagFormat) -> Iterator[Record]:
    """Yield the records with a tag word in a text; no others are read."""
    return (rows[number] for number, extent in enumerate(extents_of(rows, tags)) if extent.doubtful)


def long_prompts(rows: Sequence[Record], encoder: Encoder, context: float) -> list[str]:
    """Return the ids of records whose prompt has at least ``context`` tokens; only those that may have are read."""
    extents = enumerate(extents_of(rows, encoder.tags))
    may = (rows[i] for i, extent in extents if extent.doubtful or encoder.most_tokens(extent.question) >= context)
    return [row.id for row in may if len(encoder.record_prompt(row)) >= context]


def long_answers(rows: Sequence[Record], encoder: Encoder, limit: int) -> list[str]:
    """Return the ids of records whose tagged answer has more than ``limit`` tokens; only those that may are read."""
    extents = enumerate(extents_of(rows, encoder.tags))
    may = (rows[i] for i, extent in extents if extent.doubtful or encoder.most_tokens(0, *extent[1:3]) > limit)
    tagged = ((row.id, [s.text for s in row.sentences if is_text(s.text)]) for row in may)
    return [name for name, texts in tagged if len(encoder.completion(texts, [0] * len(texts))) > limit]


def unfit_summary(wrong: Mapping[str, str], rows: Sequence[Record]) -> str:
    """Return in one line which training records cannot be learned from, and why the first of them cannot."""
    return (
        f"{len(wrong)} of {len(rows)} training records cannot be learned from ({listed(list(wrong))}); the first is "
        f"{next(iter(wrong.values()))}"
    )


def check_ids(rows: Sequence[Record]) -> None:
    """Raise a ``LovecError`` where training records share ids by which what is known of each is kept."""
    ids = {row.id for row in rows}
    if len(ids) < len(rows):
        raise LovecError(
            f"{counted(len(rows), 'training answer')} share {counted(len(ids), 'id')}; give each answer an id of its "
            "own"
        )


def check_rates(optimizer: Optimizer) -> None:
    """Refuse an optimiser with a setting that is not finite, or with a negative learning rate.

    Raises:
        LovecError: there is such a setting.
    """
    for group in optimizer.param_groups:
        check_range("lr of the optimizer", _plain(group.get("lr")), at_least=0)
        for name, setting in group.items():
            for value in setting if isinstance(setting, tuple) else (setting,):
                if isinstance(value, float):
                    check_range(f"{name} of the optimizer", value)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value


def not_finite(
    what: str,
    value: float,
    step: int,
    groups: Sequence[Sequence[Example]],
    shares: Callable[[Batch[Any]], Mapping[str, Tensor]],
    parameters: Sequence[Tensor],
) -> LovecError:
    """Return the error for a loss or gradient that is NaN or infinite, which names terms and records.

    The micro-batches are computed once more, term by term, since a step keeps neither their gradients nor its terms'.

    Args:
        what: "loss" or "gradient".
        value: what it is.
        step: the step.
        groups: the micro-batches of this process.
        shares: returns the share of each term in the loss of a micro-batch.
        parameters: what is trained.
    """
    faulty: dict[str, dict[str, None]] = {}
    for group in groups:
        for name, share in shares(Batch.of(group, parameters[0].device)).items():
            grads = torch.autograd.grad(share, parameters, retain_graph=True, allow_unused=True)
            if not all(bool(torch.isfinite(x).all()) for x in (share.detach(), *grads) if x is not None):
                faulty.setdefault(name, {}).update((example.record.id, None) for example in group)
    where = " and ".join(f"the term {name!r} over the records {listed(list(ids))}" for name, ids in faulty.items())
    return LovecError(
        f"the {what} is {value} at step {step}, because of {where or 'records of another process'}; lower the learning "
        "rate, or look at these records"
    )
