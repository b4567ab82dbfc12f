"""The family of objectives that learn from the whole distribution over the confidence scale at every tag."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lovec.core.settings import NonNegative, Positive
from lovec.datasets.stored import RecordSize
from lovec.encoding.choices import choice_tree
from lovec.losses import sft_nll
from lovec.metrics.functional import expected_confidence
from lovec.modules.base import PolicyModule, ratings
from lovec.modules.batching import Batch, Example
from lovec.policy import TokenSequence
from lovec.types import LossOutput, Record, Term


@dataclass(frozen=True, slots=True)
class ScoredExample(Example):
    """A tagged answer, and what is learned at its tags.

    Attributes:
        tag_positions: index into the completion at which the score string of each sentence begins.
        ratings: true score of each sentence, or in subclasses another target on the scale 0..K-1.
        text_mask: 1 on completion tokens that are text, 0 on those of the tags that are scored, [T]. What is not scored
            of a tag weighs as much behind every score, however many of its tokens tell the score from others.
        tag_mask: k + 1 on tokens of the score string of sentence k that are not scored, 0 on all others, [T].
        drawn_by: names the random numbers by which the scores in its context are drawn when it is computed, in place of
            those that it has; None leaves these.
    """

    tag_positions: list[int]
    ratings: Sequence[float]
    text_mask: list[float]
    tag_mask: list[float]
    drawn_by: str | None = field(default=None, kw_only=True)


class ScoreModule(PolicyModule):
    """Learns from labelled answers: the text by its likelihood, the scores by ``score_loss``.

    A subclass overrides ``score_loss``. One forward pass gives the exact probabilities of the first tokens of all K
    levels of the scale (11 by default) at every tag or, with ``policy.scoring: exact``, of their whole strings. The
    context of a sentence contains the scores of the earlier sentences: the sentence's own ``score`` where it has one,
    else its true score.

    Args:
        text_weight: weight of the negative log-likelihood per text token, which keeps free-form text intact. What is
            scored of a tag is left to ``score_loss``; a closing word that is not scored is text.
        score_weight: weight of ``score_loss``, above 0. Only its ratio to ``text_weight`` matters to an optimiser such
            as Adam, whose steps do not depend on the size of the loss.
        kwargs: arguments of ``PolicyModule``.
    """

    def __init__(self, text_weight: NonNegative = 1.0, score_weight: Positive = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text_weight = text_weight
        self.score_weight = score_weight

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute the loss of every sentence.

        Args:
            logps: log-probability of each score at each tag, [M, K] float64: of its whole string or its first tokens.
                The probabilities sum to less than 1; the rest is that of malformed tags.
            ratings: what ``targets`` returned for every sentence: here true scores 0..K-1, [M] int64.

        Returns:
            [M].
        """
        raise TypeError(f"{type(self).__name__} has no loss of its own: override score_loss")

    def see(self, examples: Sequence[ScoredExample], logps: Tensor) -> None:
        """Take note of what the policy states now: here, nothing is done.

        Args:
            examples: those of a micro-batch.
            logps: log-probability of each score at each of their tags, [M, K] float64, without gradient.
        """

    @property
    def closing_tokens(self) -> list[int]:
        """For every score, the number of tokens of its string that are not scored."""
        encoder = self.encoder
        return [len(tail) - len(choice) for tail, choice in zip(encoder.tails, encoder.choices, strict=True)]

    def targets(self, row: Record) -> Sequence[float]:
        """Return what the score of every sentence is learned from: here its true score, an integer.

        Raises:
            LovecError: a sentence has no label.
        """
        return ratings(row, self.scale)

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield the rows once, with true scores in their contexts, whatever scores they have."""
        yield [self.example(_without_scores(row)) for row in rows]

    def check_row(self, row: Record) -> None:
        """Raise a ``LovecError`` for a record that cannot be learned from."""
        self.example(_without_scores(row))

    def most_tokens(self, size: RecordSize) -> int | None:
        """Return the most tokens of an answer, whatever its scores."""
        return self.most_answer_tokens(size) if self.encodes_as(ScoreModule) else None

    def encode(self, row: Record) -> ScoredExample:
        """Encode the tagged answer, where its tags are, and which of its tokens are text."""
        targets = self.targets(row)
        rounded = [math.floor(target + 0.5) for target in targets]
        scores = [score if s.score is None else s.score for s, score in zip(row.sentences, rounded, strict=True)]
        texts = [s.text for s in row.sentences]
        completion, positions = self.encoder.completion_with_marks(texts, scores, row.finished)
        text_mask, tag_mask = [1.0] * len(completion), [0.0] * len(completion)
        closing = max(self.closing_tokens)
        for sentence, (position, score) in enumerate(zip(positions, scores, strict=True), 1):
            scored, end = len(self.encoder.choices[score]), len(self.encoder.tails[score])
            text_mask[position : position + scored] = [0.0] * scored
            if end > scored:
                text_mask[position + scored : position + end] = [closing / (end - scored)] * (end - scored)
            tag_mask[position + scored : position + end] = [float(sentence)] * (end - scored)
        sequence = TokenSequence(tuple(self.encoder.record_prompt(row)), tuple(completion))
        branches = len(choice_tree(self.encoder.choices).ids) * len(positions)
        return ScoredExample((sequence,), row, positions, targets, text_mask, tag_mask, extra_tokens=branches)

    def counts(self, examples: Sequence[ScoredExample]) -> dict[str, float]:
        """Count sentences and text tokens as well."""
        return {
            **super().counts(examples),
            "sentence": sum(len(example.tag_positions) for example in examples),
            "text": sum(sum(example.text_mask) for example in examples),
        }

    def loss(self, batch: Batch[ScoredExample]) -> LossOutput:
        """Compute the loss of the scores, per sentence, and that of the text, per text token."""
        batch, token_logps, logps = self.computed(batch)
        self.see(batch.examples, logps.detach())
        targets = torch.tensor([r for example in batch.examples for r in example.ratings], device=logps.device)
        ones = torch.ones_like(logps[:, 0])
        terms = {"score": Term(self.score_loss(logps, targets), ones, per="sentence", weight=self.score_weight)}
        if self.text_weight:
            text_mask = batch.tokens.padded([example.text_mask for example in batch.examples])
            terms["text"] = Term(sft_nll(token_logps), text_mask, per="text", weight=self.text_weight)
        probs = logps.detach().exp()
        well_formed = probs.sum(-1) * self._closed(batch, token_logps.detach())
        metrics = {
            "confidence": expected_confidence(logps.detach().softmax(-1)),
            "factuality": targets / self.scale.top,
            "malformed": (1.0 - well_formed).clamp(min=0.0),
            "score_entropy": -(probs * logps.detach()).sum(-1),
        }
        return LossOutput(terms, {name: Term(values, ones, per="sentence") for name, values in metrics.items()})

    def computed(self, batch: Batch[ScoredExample]) -> tuple[Batch[ScoredExample], Tensor, Tensor]:
        """Compute what the policy says of a micro-batch.

        Returns:
            The micro-batch with the scores that stand in its contexts, the log-probability of every completion token
            [N, T], 0 where masked, and that of each score at each tag, [M, K] float64.
        """
        positions = [example.tag_positions for example in batch.examples]
        return batch, *self.policy.choice_logps(batch.tokens, positions, self.encoder.choices)

    def _closed(self, batch: Batch[ScoredExample], token_logps: Tensor) -> Tensor:
        """Return the probability that the tag in the text is closed, once what is scored of it is there, [M]."""
        marks = batch.tokens.padded([example.tag_mask for example in batch.examples])
        found = [
            torch.where(row == sentence + 1, logps.double(), 0.0).sum()
            for example, row, logps in zip(batch.examples, marks, token_logps, strict=True)
            for sentence in range(len(example.tag_positions))
        ]
        return torch.stack(found).exp()


def _without_scores(row: Record) -> Record:
    return replace(row, sentences=tuple(replace(s, score=None) for s in row.sentences))
