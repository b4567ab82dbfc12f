"""p(true), fine-tuned: the baseline that learns to judge sentences instead of tagging them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import smooth_l1_loss

from lovec.baselines import PTrue
from lovec.baselines.asking import Asking
from lovec.choices import ChoiceTree
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.policy import TokenSequence
from lovec.types import LossOutput, LovecError, Record, Tagger, Term


class PTrueTuned(PolicyModule):
    """Fits the probability of the reply True to the factuality of each sentence, in the prompt of ``PTrue``.

    Smooth L1 between p(True) / (p(True) + p(False)) and f: (p - f)^2 / (2 beta) where they differ by less than beta,
    |p - f| - beta / 2 elsewhere (Self-Calibration, Huang et al. 2025, arXiv 2503.00031). Every labelled sentence is a
    question, and an example, of its own; sentences without a label are left out. It answers that question only, so it is
    measured as an iterative tagger, and its adapter is what ``PTrue(adapter)`` takes.

    Args:
        beta: where the square turns into a line, above 0.
        kwargs: arguments of ``PolicyModule``.
    """

    uses_dropout = True
    probes = False

    def __init__(self, beta: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not beta > 0:
            raise LovecError(f"beta is {beta:g}, expected a number above 0, such as 0.25")
        self.beta = beta

    @cached_property
    def asking(self) -> Asking:
        """The prompt, in the data's own words where they have some."""
        return PTrue.asking(self.encoder, self.bench().wording)

    def taggers(self) -> dict[str, Tagger]:
        """The baseline itself; answers in free form it has none."""
        tagger = PTrue()
        tagger.attach(self.bench())
        return {"iterative": tagger}

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """A question for every labelled sentence.

        Raises:
            LovecError: there is none that fits the model's context.
        """
        if not (examples := [example for row in rows for example in self.questions(row)]):
            raise LovecError(
                f"no sentence of {len(rows)} rows from {rows[0].id} on has a label and fits the context of "
                f"{self.policy.max_length} tokens; leave such rows out, or raise policy.max_length"
            )
        yield examples

    def questions(self, row: Record) -> list[Example]:
        """The questions about one row; those that do not fit are left out, which is said."""
        replies = self.asking.turn.replies
        branches = len(ChoiceTree(replies).ids)
        examples = []
        for at, sentence in enumerate(row.sentences):
            if sentence.factuality is None:
                continue
            if (context := self.asking.about(row, at, self.policy.max_length)) is not None:
                sequence = TokenSequence(tuple(context), tuple(replies[0]))
                examples.append(Example((sequence,), row, {"factuality": sentence.factuality}, extra_tokens=branches))
        for names in (self.asking.cut, self.asking.failed):
            names.tell(self.asking.name)
        return examples

    def counts(self, examples: Sequence[Example]) -> dict[str, float]:
        """Also sentences: one an example."""
        return {**super().counts(examples), "sentence": len(examples)}

    def loss(self, batch: Batch) -> LossOutput:
        """One term, counted per sentence."""
        marks = [[0] for _ in batch.examples]  # the replies begin where the completion does
        _, logps = self.policy.choice_logps(batch.tokens, marks, self.asking.turn.replies)
        p = logps.softmax(-1)[:, 0]
        truth = torch.tensor([example.data["factuality"] for example in batch.examples], dtype=p.dtype, device=p.device)
        ones = torch.ones_like(p)
        found = p.detach()
        metrics = {
            "confidence": found,
            "factuality": truth,
            "brier": (found - truth).square(),
            "mass": logps.detach().exp().sum(-1),  # of both replies; what is missing to 1 is that of any other
        }
        values = smooth_l1_loss(p, truth, reduction="none", beta=self.beta)
        return LossOutput(
            {"p_true": Term(values, ones, per="sentence")},
            {name: Term(figure, ones, per="sentence") for name, figure in metrics.items()},
        )
