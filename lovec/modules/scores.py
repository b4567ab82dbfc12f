"""The family of objectives that learn from the whole distribution over the confidence scale at every tag."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lovec.core.settings import NonNegative, Positive
from lovec.datasets.stored import RecordSize
from lovec.encoding.choices import choice_tree
from lovec.evaluation.processes import gather
from lovec.losses import sft_nll
from lovec.metrics.functional import expected_confidence
from lovec.modules.base import PolicyModule, ratings
from lovec.modules.batching import Batch, Example
from lovec.modules.checks import check_ids
from lovec.modules.distributed import in_step
from lovec.modules.drawing import draw_scores, sampler
from lovec.policy import TokenSequence
from lovec.policy.growing import GrowingSequences
from lovec.taggers.scoring import Passage, Step, score_passages
from lovec.types import LossOutput, Record, Term

Context = Literal["own", "last", "true"]

_LAST = "last_scores"


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
    levels of the scale (11 by default) at every tag or, with ``policy.scoring: exact``, of their whole strings.

    The context of a sentence contains scores of the earlier sentences. With ``context: true`` they are what is learned,
    rounded, and tell how good the answer is so far. With ``own`` they are drawn from the policy, anew for every batch,
    as when it tags: the forward pass whose gradient is taken goes through the sentences in their order and draws each
    score before it reads the next sentence (see ``lovec.policy.growing``). Where the policy cannot share prefixes,
    drops activations or is sharded, a pass of its own over the text draws them before. With ``last`` they are drawn
    from the distributions that the policy had when the answer was last learned from, so that all sentences are read at
    once. These lag behind by an epoch, and were given the scores that stood in the context then. An answer that is seen
    for the first time is scored as for ``own``.

    Args:
        text_weight: weight of the negative log-likelihood per text token, which keeps free-form text intact. What is
            scored of a tag is left to ``score_loss``; a closing word that is not scored is text.
        score_weight: weight of ``score_loss``, above 0. Only its ratio to ``text_weight`` matters to an optimiser such
            as Adam, whose steps do not depend on the size of the loss.
        context: earlier scores in the context: what is learned ("true"), the policy's "own", or those of when the
            answer was "last" learned from.
        kwargs: arguments of ``PolicyModule``.
    """

    def __init__(
        self,
        text_weight: NonNegative = 1.0,
        score_weight: Positive = 1.0,
        context: Context = "true",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.text_weight = text_weight
        self.score_weight = score_weight
        self.context = context
        self._last: dict[str, Tensor] = {}  # log-probabilities [S, K] when an answer was last learned from, by its id
        self._seen: dict[str, Tensor] = {}  # those of this process's part of the present step

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

    def targets(self, row: Record) -> Sequence[float]:
        """Return what the score of every sentence is learned from: here its true score, an integer.

        Raises:
            LovecError: a sentence has no label.
        """
        return ratings(row, self.scale)

    @property
    def closing_tokens(self) -> list[int]:
        """For every score, the number of tokens of its string that are not scored."""
        encoder = self.encoder
        return [len(tail) - len(choice) for tail, choice in zip(encoder.tails, encoder.choices, strict=True)]

    # The scores in the context

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield the rows once, with the scores that ``context`` names in their contexts, whatever scores they have."""
        if self.context == "true":
            yield [self.example(_without_scores(row)) for row in rows]
            return
        known = [self._with_last_scores(row) for row in rows]
        if self._draws_in_passing() and self._shared(examples := list(map(self._to_draw, rows, known))):
            yield examples
            return
        own = iter(self.with_own_scores([row for row, scored in zip(rows, known, strict=True) if scored is None]))
        yield [self.example(next(own) if scored is None else scored) for scored in known]

    def with_own_scores(self, rows: Sequence[Record]) -> list[Record]:
        """Return the rows with scores drawn from the policy, each given those of the sentences before it."""
        passages = []
        for row in rows:
            steps = [Step(sentence.text) for sentence in row.sentences]
            passages.append(Passage(row.id, self.encoder.record_prompt(row), steps, sampler(self._stream(row))))
        self.engine.sync(self.policy)
        score_passages(self.engine, self.encoder, passages)
        return [self._with_scores(row, passage.chosen) for row, passage in zip(rows, passages, strict=True)]

    # What is learned

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
        """Compute what the policy says of a micro-batch, and draw the scores in its contexts that are to be drawn.

        Returns:
            The micro-batch with the scores that stand in its contexts, the log-probability of every completion token
            [N, T], 0 where masked, and that of each score at each tag, [M, K] float64.
        """
        if all(example.drawn_by is None for example in batch.examples):
            positions = [example.tag_positions for example in batch.examples]
            return batch, *self.policy.choice_logps(batch.tokens, positions, self.encoder.choices)
        prompts = [example.sequences[0].prompt for example in batch.examples]
        slots = max(example.length for example in batch.examples)
        growing = GrowingSequences(self.policy, prompts, self.encoder.choices, slots)
        records = [example.record for example in batch.examples]
        scores = draw_scores(growing, self.encoder, records, [example.drawn_by for example in batch.examples])
        rows = [self._with_scores(row, drawn) for row, drawn in zip(records, scores, strict=True)]
        batch = Batch.of([self.encode(row) for row in rows], batch.tokens.mask.device)
        return batch, *growing.choice_logps(batch.tokens, [example.tag_positions for example in batch.examples])

    # The scores of the last epoch

    def see(self, examples: Sequence[ScoredExample], logps: Tensor) -> None:
        """Take note of what the policy states now: the distributions are kept where they are the context next time.

        Args:
            examples: those of a micro-batch.
            logps: log-probability of each score at each of their tags, [M, K] float64, without gradient.
        """
        if self.context == "last":
            parts = torch.split(logps, [len(example.tag_positions) for example in examples])
            self._seen.update((e.record.id, part.cpu().clone()) for e, part in zip(examples, parts, strict=True))

    def update(self, examples: Sequence[Example]) -> None:
        """Make one optimiser step; then every process knows the distributions of all, as it may get any row next."""
        super().update(examples)
        if self.context == "last":
            for part in gather(self.trainer, self._seen):
                self._last.update(part)
            self._seen = {}

    def on_fit_start(self) -> None:
        """Check that distributions of the last epoch can be told apart by the ids of their answers."""
        super().on_fit_start()
        if self.context == "last":
            check_ids(self.trainer.datamodule)  # type: ignore[attr-defined]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the distributions of the last epoch."""
        super().on_save_checkpoint(checkpoint)
        if self.context == "last":
            checkpoint[_LAST] = dict(self._last)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the distributions of the run that goes on."""
        super().on_load_checkpoint(checkpoint)
        self._last = dict(checkpoint.get(_LAST, {}))

    def _with_last_scores(self, row: Record) -> Record | None:
        """Return a row with scores drawn from the distributions of when it was last learned from.

        None where these are not asked for, where it has not been learned from, and where a sentence was cut then.
        """
        if self.context != "last" or len(self._last.get(row.id, ())) < len(row.sentences):
            return None
        return self._with_scores(row, list(map(sampler(self._stream(row)), self._last[row.id].tolist())))

    def _draws_in_passing(self) -> bool:
        """Return whether scores can be drawn in the forward pass of the loss itself.

        Not where that pass drops activations, where a subclass has a loss of its own, which would not know the scores,
        or encodes rows in a way of its own, where some strings of scores are scored to their end and others are not, so
        that the number of text tokens depends on what is drawn, and where processes must run their forward passes
        together.
        """
        closed = [count == 0 for count in self.closing_tokens]
        alike = all(closed) or not any(closed)
        plain = self.encodes_as(ScoreModule) and type(self).loss is ScoreModule.loss
        return alike and plain and not self.uses_dropout and not in_step(self.trainer)

    def _to_draw(self, row: Record, scored: Record | None) -> Example:
        """Encode a row with known scores in its context, or with the longest ones in place of those to be drawn."""
        if scored is not None:
            return self.example(scored)
        tails = self.encoder.tails
        longest = max(range(len(tails)), key=lambda score: len(tails[score]))
        example: Any = self.example(self._with_scores(row, [longest] * len(row.sentences)))
        undrawn: Example = replace(example, drawn_by=self._stream(row))
        return undrawn

    def _shared(self, examples: Sequence[Example]) -> bool:
        """Return whether what examples begin with is computed once, however they come together."""
        return self.policy.shares(max((example.length for example in examples), default=0))

    def _stream(self, row: Record) -> str:
        """Return the name of the random numbers by which scores of a row are drawn in this step."""
        return f"{self.seed}/{self.global_step}/{row.id}"

    def _with_scores(self, row: Record, scores: Sequence[int | None]) -> Record:
        drawn = zip(row.sentences, scores, strict=True)
        return replace(row, sentences=tuple(replace(s, score=c, levels=self.scale.size) for s, c in drawn))

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
