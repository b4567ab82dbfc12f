"""Drawing the scores of given texts from the policy, sentence by sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from lovec.encoding import Encoder
from lovec.policy.growing import GrowingSequences
from lovec.taggers.scoring import distribution
from lovec.types import Record

Choose = Callable[[Sequence[float]], int]
"""Picks a score, given the log-probabilities of all."""


def sampler(stream: str) -> Choose:
    """Return what draws scores from their log-probabilities; its random numbers are a function of the name alone."""
    numbers = random.Random(stream)
    return lambda logps: numbers.choices(range(len(logps)), distribution(logps))[0]


def draw_scores(
    growing: GrowingSequences, encoder: Encoder, rows: Sequence[Record], streams: Sequence[str | None]
) -> list[list[int]]:
    """Compute tagged answers from their first to their last sentence, and draw the scores on the way.

    Args:
        growing: the prompts of the answers, of which nothing is computed yet.
        encoder: that of the policy.
        rows: the answers.
        streams: names of the random numbers of each answer; None keeps the scores that it has.

    Returns:
        The scores of every answer.
    """
    choose = [_given(row) if stream is None else sampler(stream) for row, stream in zip(rows, streams, strict=True)]
    scores: list[list[int]] = [[] for _ in rows]
    for at in range(max(len(row.sentences) for row in rows) + 1):
        asked = [at < len(row.sentences) for row in rows]
        new = [_next(encoder, row, at, drawn) for row, drawn in zip(rows, scores, strict=True)]
        found = iter(growing.extend(new, asked))
        for pick, drawn, wanted in zip(choose, scores, asked, strict=True):
            if wanted:
                drawn.append(pick(next(found)))
    return scores


def _next(encoder: Encoder, row: Record, at: int, scores: Sequence[int]) -> list[int]:
    """Return the tokens from a score up to the next one; behind the last one, those that the model has to read."""
    if at > len(row.sentences):
        return []
    ids = list(encoder.tails[scores[-1]]) if at else []
    if at < len(row.sentences):
        return ids + encoder.head(row.sentences[at].text, first=at == 0)
    return ids if row.finished else ids[:-1]  # nothing is predicted from the last token


def _given(row: Record) -> Choose:
    """Return what picks the scores that a row has."""
    scores = iter([sentence.score or 0 for sentence in row.sentences])
    return lambda logps: next(scores)
