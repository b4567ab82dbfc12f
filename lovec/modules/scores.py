"""The family of objectives that learn from the whole distribution over the eleven scores at every tag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lovec.choices import ChoiceTree
from lovec.losses import sft_nll
from lovec.modules.base import PolicyModule, ratings
from lovec.modules.batching import Batch, Example
from lovec.policy import TokenSequence
from lovec.types import N_SCORES, LossOutput, Record, Term


class ScoreModule(PolicyModule):
    """Learns from labelled answers: the text by its likelihood, the scores by ``score_loss``.

    A subclass overrides ``score_loss``. One forward pass gives the exact probabilities of all eleven score strings at
    every tag. The context of a sentence holds the scores of the earlier ones: the sentence's own ``score`` where it
    has one, else its true one.

    Args:
        text_weight: weight of the negative log-likelihood of a text token; it keeps free-form text intact. A tag's
            score and closing word are left to ``score_loss``.
        kwargs: arguments of ``PolicyModule``.
    """

    def __init__(self, text_weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text_weight = text_weight

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Loss of every sentence.

        Args:
            logps: log-probability of each whole score string at each tag, [M, 11] float64. What is missing to a
                probability of 1 is the mass of malformed tags.
            ratings: true scores 0..10, [M] int64.

        Returns:
            [M].
        """
        raise TypeError(f"{type(self).__name__} has no loss of its own: override score_loss")

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """The rows once, with true scores in their contexts, whatever scores they carry."""
        cleared = [replace(row, sentences=tuple(replace(s, score=None) for s in row.sentences)) for row in rows]
        yield [self.example(row) for row in cleared]

    def encode(self, row: Record) -> Example:
        """The tagged answer, where its tags are, and which of its tokens are text."""
        truths = ratings(row)
        scores = [truth if s.score is None else s.score for s, truth in zip(row.sentences, truths, strict=True)]
        completion, marks = self.encoder.marked([s.text for s in row.sentences], scores)
        text = [1.0] * len(completion)
        for mark, score in zip(marks, scores, strict=True):
            tail = len(self.encoder.tails[score])
            text[mark : mark + tail] = [0.0] * tail
        sequence = TokenSequence(tuple(self.encoder.prompt(row.question)), tuple(completion))
        branches = len(ChoiceTree(self.encoder.tails).ids) * len(marks)
        return Example((sequence,), row, {"marks": marks, "ratings": truths, "text": text}, extra_tokens=branches)

    def counts(self, examples: Sequence[Example]) -> dict[str, float]:
        """Also sentences and text tokens."""
        return {
            **super().counts(examples),
            "sentence": sum(len(example.data["marks"]) for example in examples),
            "text": sum(sum(example.data["text"]) for example in examples),
        }

    def loss(self, batch: Batch) -> LossOutput:
        """The loss of the scores, a sentence, and that of the text, a text token."""
        marks = [example.data["marks"] for example in batch.examples]
        token_logps, logps = self.policy.choice_logps(batch.tokens, marks, self.encoder.tails)
        truths = torch.tensor([r for example in batch.examples for r in example.data["ratings"]], device=logps.device)
        text = batch.tokens.padded([example.data["text"] for example in batch.examples])
        ones = torch.ones_like(logps[:, 0])
        terms = {"score": Term(self.score_loss(logps, truths), ones, per="sentence")}
        if self.text_weight:
            terms["text"] = Term(sft_nll(token_logps), text, per="text", weight=self.text_weight)
        probs = logps.detach().exp()
        mass = probs.sum(-1)
        metrics = {
            "confidence": expected_score(logps.detach()) / 10.0,
            "factuality": truths / 10.0,
            "malformed": (1.0 - mass).clamp(min=0.0),
            "score_entropy": -(probs * logps.detach()).sum(-1),
        }
        return LossOutput(terms, {name: Term(values, ones, per="sentence") for name, values in metrics.items()})


def expected_score(logps: Tensor) -> Tensor:
    """E[score] in [0, 10] of the renormalised distribution: [M] from log-probabilities [M, 11]."""
    scores = torch.arange(N_SCORES, dtype=logps.dtype, device=logps.device)
    return logps.softmax(-1) @ scores
