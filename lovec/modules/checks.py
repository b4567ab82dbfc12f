"""What is checked before the first step: the trainer's options, and the records; what is said where a step fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lovec.core.notices import counted, listed
from lovec.datasets.stored import check_own_ids, sizes_of
from lovec.modules.batching import Batch, Example
from lovec.tags import TagFormat
from lovec.types import LovecError, Record, is_text

_EVERY = 10.0  # seconds between lines of progress
_PRECISIONS = ("32-true", "bf16-mixed")  # with others, adapters would not stay in float32


def check_trainer(trainer: Any) -> None:
    """Refuse options of the trainer that have another meaning in a training of lovec.

    Raises:
        LovecError: one of them is set; the message says what to use instead.
    """
    if trainer.accumulate_grad_batches != 1:
        raise LovecError(
            "trainer.accumulate_grad_batches is set, but a batch is an optimiser step here: use data.batch_size"
        )
    if trainer.gradient_clip_val:
        raise LovecError("trainer.gradient_clip_val is set; use model.grad_norm instead")
    if trainer.overfit_batches:
        raise LovecError(
            "trainer.overfit_batches is set, but every epoch would go on with other records: give data of these few "
            "records alone, and as many trainer.max_epochs as wanted"
        )
    interval = trainer.val_check_interval
    if type(interval) is int and interval < 1:  # a share of the epoch, or a time, is checked by Lightning
        raise LovecError(
            f"trainer.val_check_interval is {interval}, expected at least 1; trainer.limit_val_batches 0 makes no "
            "validation"
        )
    if str(trainer.precision) not in _PRECISIONS:
        raise LovecError(
            f"trainer.precision is {trainer.precision}; adapters stay in float32: use 32-true or bf16-mixed, "
            "and policy.dtype: bfloat16 for the base"
        )


def check_step_counts(trainer: Any, updates_per_batch: int) -> None:
    """Check that a run does not end, and writes no checkpoint, between the optimiser steps of a batch.

    Args:
        trainer: the trainer of the run.
        updates_per_batch: optimiser steps per batch.

    Raises:
        LovecError: it does.
    """
    intervals = [c._every_n_train_steps for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
    for name, value in (("trainer.max_steps", trainer.max_steps), *(("every_n_train_steps", n) for n in intervals)):
        if value > 0 and value % updates_per_batch:
            raise LovecError(
                f"{name} is {value}, expected a multiple of {updates_per_batch}, the optimiser steps per batch"
            )


def check_validation_interval(trainer: Any, data: Any) -> None:
    """Check that an epoch has as many batches as there are to be from one validation to the next.

    Args:
        trainer: the trainer of the run.
        data: the datamodule, with its records; nothing is known of one without ``train_batches``.

    Raises:
        LovecError: it has fewer.
    """
    interval, limit = trainer.val_check_interval, trainer.limit_train_batches
    over_epochs = trainer.check_val_every_n_epoch is None
    if type(interval) is not int or over_epochs or not trainer.limit_val_batches or not hasattr(data, "train_batches"):
        return
    batches = data.train_batches()
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    if 0 < batches < interval:
        raise LovecError(
            f"trainer.val_check_interval is {interval}, but an epoch has {counted(batches, 'batch', 'batches')}; give "
            "at most as many, or trainer.check_val_every_n_epoch null to count them over epochs"
        )


def check_records(module: Any, data: Any) -> None:
    """Check the training records that are set up; those that are unfit are left out if the data say so.

    Args:
        module: the training module, as for ``unfit_records``; its ``check_rows`` gets the records that remain.
        data: the datamodule; nothing is known of the records of one without ``loaded``.

    Raises:
        LovecError: records cannot be learned from, and are not to be left out or are all there are.
    """
    if not hasattr(data, "loaded"):
        return
    rows = data.loaded("train")
    if unfit := unfit_records(rows, module):
        summary = unfit_summary(unfit, rows)
        if data.unfit == "refuse" or len(unfit) == len(rows):
            raise LovecError(f"{summary}; correct them, or leave them out with --data.unfit leave_out")
        rank_zero_warn(f"{summary}; all of them are left out")
        data.leave_out(unfit)
    module.check_rows(data.loaded("train"))


def unfit_records(rows: Sequence[Record], module: Any) -> dict[str, str]:
    """Return why training records cannot be learned from, by id; those that can are not in it.

    Args:
        rows: the records; those that fit by what ``module.most_tokens`` says of their sizes are not read.
        module: the training module. Its ``check_row`` raises a ``LovecError`` for a record that cannot be learned from.
    """
    wrong: dict[str, str] = {}
    reported = time.monotonic()
    for number, size in enumerate(sizes_of(rows, module.encoder.tags)):
        most = module.most_tokens(size)
        if most is not None and most <= module.policy.max_length:
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


def questions_with_tag_words(rows: Sequence[Record], tags: TagFormat) -> list[str]:
    """Return the ids of records whose question contains a tag word; only those that may have one are read."""
    may = (rows[number] for number, size in enumerate(sizes_of(rows, tags)) if size.must_be_read)
    return [row.id for row in may if tags.occur_in(row.question)]


def check_texts(row: Record, tags: TagFormat) -> None:
    """Check that a record has sentences, and that they can be encoded and tagged.

    Raises:
        LovecError: it has none, a text cannot be encoded, or a sentence contains a tag word.
    """
    if not row.sentences:
        raise LovecError(f"{row.id}: there is no sentence to learn from; leave such rows out of training")
    texts = [sentence.text for sentence in row.sentences]
    if any(not is_text(text) for text in (row.question, *texts)):
        raise LovecError(f"{row.id}: a text holds half a surrogate pair, which no tokenizer takes; correct the text")
    if any(map(tags.occur_in, texts)):
        raise LovecError(
            f"{row.id}: a sentence contains {tags.open} or {tags.close}, so its tag "
            "cannot be told from the text; remove these words (lovec.tags.strip), or choose other policy.tag_words"
        )


def unfit_summary(wrong: Mapping[str, str], rows: Sequence[Record]) -> str:
    """Return in one line which training records cannot be learned from, and why the first of them cannot."""
    return (
        f"{len(wrong)} of {len(rows)} training records cannot be learned from ({listed(list(wrong))}); the first is "
        f"{next(iter(wrong.values()))}"
    )


def check_ids(data: Any) -> None:
    """Raise a ``LovecError`` where training records share ids by which what is known of each is kept.

    Args:
        data: the datamodule; those that name no ``training_files`` have none.
    """
    check_own_ids(data.loaded("train"), "training", " or ".join(getattr(data, "training_files", ())))


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
