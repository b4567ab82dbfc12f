"""The family of objectives that learn from preference pairs: the same sentences with true and with wrong scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lovec.core.notices import DoublingWarning
from lovec.core.settings import NonNegative
from lovec.datasets.stored import RecordSize
from lovec.losses import sequence_logps, sft_nll
from lovec.modules.base import PolicyModule, ratings
from lovec.modules.batching import Batch, Example
from lovec.types import LossOutput, LovecError, Record, Term

log = logging.getLogger(__name__)


class PreferenceModule(PolicyModule):
    """Learns from (q, y_w, y_l): question, chosen and rejected answer. A subclass overrides ``preference_loss``.

    Args:
        sft_weight: weight of an additional SFT term on y_w, which protects free-form text; 0 leaves it out.
        kwargs: arguments of ``PolicyModule``.
    """

    needs_reference = True
    """Whether the loss uses the reference; if False it is not computed, and its log-probs are passed as zeros."""

    average_logps: ClassVar[bool] = False
    """Whether the log-prob of a completion is the mean over its tokens instead of the sum."""

    reward_scale: float = 1.0
    """Factor of the implicit reward log pi - log ref in the logged metrics."""

    def __init__(self, sft_weight: NonNegative = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sft_weight = sft_weight
        self._equal = DoublingWarning(
            log, "%d pairs so far reject the very scores that they choose, so the pair loss learns nothing of them: %s"
        )
        self._notices.append(self._equal)

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        """Compute the loss of every pair, [B], from the log-probs of its completions, each [B] float64."""
        raise TypeError(f"{type(self).__name__} has no loss of its own: override preference_loss")

    def encode(self, row: Record) -> Example:
        """Encode the chosen and the rejected answer."""
        if row.rejected is None:
            raise LovecError(
                f"{row.id}: there are no rejected scores, so this is not a preference pair; use a pairs file"
            )
        chosen, rejected = self.tagged(row, ratings(row, self.scale)), self.tagged(row, row.rejected)
        return Example((chosen, rejected), row)

    def example(self, row: Record) -> Example:
        """Encode a pair as it is trained on, and note one whose sides are equal."""
        made = super().example(row)
        chosen, rejected = made.sequences
        if chosen == rejected:
            self._equal.add(row.id)
        return made

    def most_tokens(self, size: RecordSize) -> int | None:
        """Return the most tokens of either answer; None where the pair may prefer nothing to another."""
        return self.most_answer_tokens(size) if size.pair and self.encodes_as(PreferenceModule) else None

    def check_rows(self, rows: Sequence[Record]) -> None:
        """Check, before the first step, that some pairs prefer one thing to another.

        Raises:
            LovecError: none does.
        """
        super().check_rows(rows)
        if rows and all(row.id in self._equal.ids for row in rows):
            raise LovecError(
                f"all {len(rows)} pairs reject the very scores that they choose, so there is nothing to learn; leave "
                "'rejected' out of the file, so that wrong scores are drawn"
            )

    def loss(self, batch: Batch[Any]) -> LossOutput:
        """Return the pair loss, and the SFT term on y_w where it has a weight."""
        token_logps, mask = self.token_logps(batch), batch.tokens.mask
        chosen, rejected = self._sides(token_logps, mask)
        if self.needs_reference:
            ref_chosen, ref_rejected = self._sides(self.reference_token_logps(batch), mask)
        else:
            ref_chosen, ref_rejected = torch.zeros_like(chosen), torch.zeros_like(rejected)
        ones = batch.ones()
        terms = {"preference": Term(self.preference_loss(chosen, rejected, ref_chosen, ref_rejected), ones, per="pair")}
        if self.sft_weight:
            terms["sft"] = Term(sft_nll(token_logps[0::2]), mask[0::2], per="token", weight=self.sft_weight)
        rewards = [self.reward_scale * (c - r).detach() for c, r in ((chosen, ref_chosen), (rejected, ref_rejected))]
        metrics = {
            "chosen_logps": chosen.detach(),
            "rejected_logps": rejected.detach(),
            "chosen_reward": rewards[0],
            "rejected_reward": rewards[1],
            "margin": rewards[0] - rewards[1],
            "accuracy": (rewards[0] > rewards[1]).double(),
        }
        return LossOutput(terms, {name: Term(values, ones, per="pair") for name, values in metrics.items()})

    def _sides(self, token_logps: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the chosen and of the rejected completions, each [B]."""
        logps = sequence_logps(token_logps, mask, average=self.average_logps)
        return logps[0::2], logps[1::2]
