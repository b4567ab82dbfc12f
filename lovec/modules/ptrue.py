"""p(true), fine-tuned: the baseline that learns to judge sentences instead of tagging them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import smooth_l1_loss

from lovec.baselines import PTrue
from lovec.core.settings import Positive
from lovec.encoding.choices import choice_tree
from lovec.encoding.reply_scoring import SentenceQuestion
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.policy import TokenSequence
from lovec.types import LossOutput, LovecError, Record, Tagger, Term


@dataclass(frozen=True, slots=True)
class QuestionExample(Example):
    """The question about one sentence; its completion is the reply True.

    Attributes:
        factuality: how true the sentence is, in [0, 1].
    """

    factuality: float


class PTrueTuned(PolicyModule):
    """Fits the probability of the reply True to the factuality of each sentence, with the prompt of ``PTrue``.

    The loss is smooth L1 between p(True) / (p(True) + p(False)) and f: (p - f)^2 / (2 beta) where they differ by less
    than beta, |p - f| - beta / 2 elsewhere (Self-Calibration, Huang et al. 2025, arXiv 2503.00031). Every labelled
    sentence is a question and an example of its own; sentences without a label are left out, and answers without any
    label are refused. The policy answers this
    question only, so it is measured as an iterative tagger, and ``PTrue(adapter)`` takes its adapter.

    Args:
        beta: the difference at which the loss changes from quadratic to linear, above 0.
        kwargs: arguments of ``PolicyModule``.
    """

    uses_dropout = True
    takes_partly_labelled = True
    probes = False

    def __init__(self, beta: Positive = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.beta = beta

    @cached_property
    def question(self) -> SentenceQuestion:
        """The question and its two replies, in the data's own words where it has some."""
        return PTrue.question(self.encoder, self.baseline_resources.wording)

    def taggers(self) -> dict[str, Tagger]:
        """Return the baseline as the iterative tagger; it cannot write answers, so there is no other."""
        tagger = PTrue()
        tagger.attach(self.baseline_resources)
        return {"iterative": tagger}

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield a question for every labelled sentence.

        Raises:
            LovecError: no sentence has a label and fits the model's context.
        """
        examples = [example for row in rows for example in self.questions(row)]
        self.question.warn()
        if not examples:
            raise LovecError(
                f"no sentence of {len(rows)} rows from {rows[0].id} on has a label and fits the context of "
                f"{self.policy.max_length} tokens; leave such rows out, or raise policy.max_length"
            )
        yield examples

    def questions(self, row: Record) -> list[QuestionExample]:
        """Return the questions about one row, without those that do not fit the model's context."""
        replies, branches = self.question.replies, len(choice_tree(self.question.choices).ids)
        examples = []
        for sentence in row.sentences:
            if sentence.factuality is None:
                continue
            prompt = self.question.prompt_ids(row, sentence.text, self.policy.max_length)
            if prompt is not None:
                sequence = TokenSequence(tuple(prompt), tuple(replies[0]))
                examples.append(QuestionExample((sequence,), row, sentence.factuality, extra_tokens=branches))
        return examples

    def check_row(self, row: Record) -> None:
        """Collect the warnings about sentences that do not fit; such sentences are left out.

        Raises:
            LovecError: no sentence has a label, or none of those with one is left.
        """
        if not row.has_labels:
            raise LovecError(
                f"{row.id}: no sentence has a factuality, so there is nothing to ask about; leave the answer out, or "
                "label it with `lovec label --answers FILE --oracle NAME`"
            )
        if not self.questions(row):
            raise LovecError(
                f"{row.id}: no sentence with a label fits the context of {self.policy.max_length} tokens; leave the "
                "answer out, or raise policy.max_length"
            )

    def check_rows(self, rows: Sequence[Record]) -> None:
        """Warn, before the first step, of all sentences that do not fit the model's context."""
        super().check_rows(rows)
        self.question.warn()

    def counts(self, examples: Sequence[QuestionExample]) -> dict[str, float]:
        """Count sentences as well, of which every example is one."""
        return {**super().counts(examples), "sentence": len(examples)}

    def loss(self, batch: Batch[QuestionExample]) -> LossOutput:
        """Return one term, counted per sentence."""
        starts = [[0] for _ in batch.examples]  # the replies begin where the completion does
        _, logps = self.policy.choice_logps(batch.tokens, starts, self.question.choices)
        p = logps.softmax(-1)[:, 0]
        truth = torch.tensor([example.factuality for example in batch.examples], dtype=p.dtype, device=p.device)
        ones = torch.ones_like(p)
        metrics = {
            "confidence": p.detach(),
            "factuality": truth,
            "brier": (p.detach() - truth).square(),
            "mass": logps.detach().exp().sum(-1),  # of both replies; the rest to 1 is that of all others
        }
        values = smooth_l1_loss(p, truth, reduction="none", beta=self.beta)
        return LossOutput(
            {"p_true": Term(values, ones, per="sentence")},
            {name: Term(metric, ones, per="sentence") for name, metric in metrics.items()},
        )
