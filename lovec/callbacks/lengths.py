"""Validation records that are too long to be measured, or longer than the policy's own answers may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn

from lovec.core.notices import counted, listed
from lovec.datasets.stored import sizes_of
from lovec.encoding import Encoder
from lovec.encoding.choices import context_length
from lovec.types import Record, is_text


class LengthWarnings(Callback):
    """Warns before the first step of validation prompts and answers that have too many tokens."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Warn of prompts that fill the model's context, and of answers longer than the policy's own may be."""
        loaded = getattr(getattr(trainer, "datamodule", None), "loaded", None)
        if loaded is None:
            return
        records, encoder = loaded("validation"), pl_module.encoder
        context = context_length(pl_module.policy.model.config) or math.inf
        if long := long_prompts(records, encoder, context):
            rank_zero_warn(
                f"{counted(len(long), 'validation record has', 'validation records have')} a prompt that fills the "
                f"model's context of {context} tokens, so they cannot be measured: {listed(long)}"
            )
        limit = pl_module.longest_answer
        if cut := long_answers(records, encoder, limit):
            rank_zero_warn(
                f"{len(cut)} of {len(records)} validation answers have more than {limit} tokens with their tags, and "
                "answers as long will be cut: raise --model.evaluation.max_new_tokens (and --model.max_new_tokens of "
                f"rollouts, if it is set): {listed(cut)}"
            )


def long_prompts(rows: Sequence[Record], encoder: Encoder, context: float) -> list[str]:
    """Return the ids of records whose prompt has at least ``context`` tokens; only those that may have are read."""
    sizes = enumerate(sizes_of(rows, encoder.tags))
    may = (rows[i] for i, size in sizes if size.must_be_read or encoder.most_tokens(size.question) >= context)
    return [row.id for row in may if len(encoder.record_prompt(row)) >= context]


def long_answers(rows: Sequence[Record], encoder: Encoder, limit: int) -> list[str]:
    """Return the ids of records whose tagged answer has more than ``limit`` tokens; only those that may are read.

    A validation answer comes without scores, so tags with the lowest score are counted.
    """
    sizes = enumerate(sizes_of(rows, encoder.tags))
    may = (rows[i] for i, size in sizes if size.must_be_read or encoder.most_completion_tokens(*size[1:3]) > limit)
    tagged = ((row.id, [s.text for s in row.sentences if is_text(s.text)]) for row in may)
    return [name for name, texts in tagged if encoder.is_longer(texts, limit)]
