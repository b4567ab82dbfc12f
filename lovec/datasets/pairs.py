"""Preference pairs: the true score of every sentence against a random wrong one, as in the paper's Algorithm 1."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from random import Random
from typing import Literal, TypeAlias

from lovec.core.settings import check_choice
from lovec.types import DEFAULT_SCALE, LovecError, Record, Scale, Sentence

WrongScores: TypeAlias = Literal["uniform", "near"]
"""How wrong scores are drawn: "uniform" from all scores except the true one (the paper's Algorithm 1), or "near": from
those that are at most a fifth of the scale away from it, two points on the scale 0 to 10, and at least one level."""
_NEAR = 0.2  # of the scale


def with_rejected(
    record: Record, seed: int, scale: Scale = DEFAULT_SCALE, wrong_scores: WrongScores = "uniform"
) -> Record:
    """Draw a wrong score for every sentence, each with the same probability.

    The chosen side of a pair is the answer with its true scores, the rejected side the same text with these scores.
    The draw is a function of (seed, record.id) only, so it is the same in every process, file order and Python version.

    Args:
        record: a record whose sentences all have a factuality. If it has wrong scores already, it keeps them: they are
            on the scale that ``levels`` of its sentences names.
        seed: seed of the draw.
        scale: scale of the scores.
        wrong_scores: which scores are drawn from.

    Returns:
        The record with ``rejected``, one score 0..``scale.top`` per sentence.

    Raises:
        LovecError: a sentence has no factuality, the record has wrong scores of another scale, or ``wrong_scores`` is
            unknown.
    """
    check_choice("wrong_scores", wrong_scores, WrongScores)
    scores = [scale.nearest(s.factuality) for s in record.sentences if s.factuality is not None]
    if not record.labelled:
        raise LovecError(
            f"record {record.id!r} has {len(scores)} labels for {len(record.sentences)} sentences, expected one each; "
            "leave such records out (lovec.datasets.pairs.usable)"
        )
    if record.rejected is not None:
        levels = max(sentence.levels for sentence in record.sentences)
        if levels != scale.size or max(record.rejected) > scale.top:
            raise LovecError(
                f"record {record.id!r} has the wrong scores {list(record.rejected)} on a scale of {levels} levels, "
                f"expected 0..{scale.top} and {scale.size} levels; leave 'rejected' out so that they are drawn"
            )
        return record
    digest = hashlib.sha256(f"{seed}/{record.id}".encode()).digest()
    # random() is the only method of Random that promises the same numbers in every Python version.
    random = Random(int.from_bytes(digest, "big")).random
    reach = scale.top if wrong_scores == "uniform" else max(1, round(_NEAR * scale.top))
    rejected = tuple(_wrong_score(score, reach, scale.top, random()) for score in scores)
    return replace(record, rejected=rejected, sentences=tuple(_on_scale(s, scale) for s in record.sentences))


def _on_scale(sentence: Sentence, scale: Scale) -> Sentence:
    """Return a sentence that names the scale of its wrong score, unless it has scores of its own on another one."""
    return sentence if sentence.score is not None or sentence.distribution else replace(sentence, levels=scale.size)


def _wrong_score(score: int, reach: int, top: int, share: float) -> int:
    """Return one of the wrong scores at most ``reach`` away, picked by a number in [0, 1)."""
    low, high = max(0, score - reach), min(top, score + reach)
    drawn = low + int((high - low) * share)
    return drawn + (drawn >= score)
