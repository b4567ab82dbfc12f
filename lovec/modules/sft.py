"""Supervised fine-tuning on answers tagged with their true scores."""

from __future__ import annotations

from typing import Any

from lovec.losses import sft_nll
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch
from lovec.types import LossOutput, Term


class SFT(PolicyModule):
    """Mean negative log-likelihood over the completion tokens of the whole optimiser batch.

    This is the paper's first stage: one epoch on (q, y_w), in which the model learns the format.
    """

    uses_dropout = True

    def loss(self, batch: Batch[Any]) -> LossOutput:
        """Return one term, counted per token."""
        return LossOutput({"nll": Term(sft_nll(self.token_logps(batch)), batch.tokens.mask, per="token")})
