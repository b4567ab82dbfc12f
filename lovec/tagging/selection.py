"""Which sentences of a tagged text are kept, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass

from lovec.core.settings import Probability, check_choice, checked
from lovec.tagging.revising import PLACE, Revise
from lovec.types import LovecError, ThresholdBy, check_confidence


@checked()
@dataclass(frozen=True)
class Selection:
    """Which sentences of a tagged text are kept, and what becomes of the others.

    Attributes:
        min_confidence: sentences with a lower confidence, or without one, are left out, such as those below 0.7;
            ``meta["left_out"]`` counts them, and the answer stays whole. None keeps all.
        keep_factual: probability that all sentences that are kept are true, such as 0.9; sentences with a confidence
            at or below the threshold of that guarantee are left out as well. ``lovec calibrate --keep_factual`` makes
            the threshold. None asks for no guarantee.
        revise: whether the sentences that are not kept are left out of a text to pass on ("drop") or worded in it as
            uncertain ("hedge"), see ``lovec.tagging.revise``; ``meta["revised"]`` is that text, all sentences stay in
            the record, and ``revision`` says what became of each. None makes no such text.
        hedge_phrase: how all of them are worded by "hedge", with ``{sentence}`` where the sentence stands, such as
            "Unconfirmed: {sentence}"; None goes by the confidence.
        threshold_by: which confidence decides what is kept: "knowledge", or "source", the one by the evidence; without
            evidence nothing is kept then.

    Raises:
        LovecError: a value is out of range, or nothing says what is to be revised, or how.
    """

    min_confidence: float | None = None
    keep_factual: Probability | None = None
    revise: Revise | None = None
    hedge_phrase: str | None = None
    threshold_by: ThresholdBy = "knowledge"

    def __post_init__(self) -> None:
        check_choice("threshold_by", self.threshold_by, ThresholdBy)
        check_confidence("min_confidence", self.min_confidence)
        phrase = self.hedge_phrase
        if self.revise is not None and self.keeps_all:
            raise LovecError(
                f"revise {self.revise} needs min_confidence or keep_factual, which say what is doubted; give one of "
                "them"
            )
        if phrase is not None and self.revise != "hedge":
            raise LovecError("hedge_phrase needs revise hedge")
        if phrase is not None and phrase.count(PLACE) != 1:
            raise LovecError(f'hedge_phrase is {phrase!r}, expected {PLACE} once in it, as in "Unconfirmed: {PLACE}"')

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is compared with a threshold."""
        return self.min_confidence is None and self.keep_factual is None

    def check_compared(self, *others: float | None) -> None:
        """Refuse to say which confidence thresholds are on where there are none.

        Args:
            others: further thresholds; None where one is not given.

        Raises:
            LovecError: so it is.
        """
        if self.threshold_by == "source" and self.keeps_all and all(one is None for one in others):
            raise LovecError(
                "threshold_by is 'source', and nothing is compared with a threshold; give min_confidence or "
                "keep_factual"
            )


KEEP_ALL = Selection()
"""Every sentence is kept."""
