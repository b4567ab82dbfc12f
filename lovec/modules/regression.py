"""SFT with a regression loss on the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lovec.core.settings import NonNegative
from lovec.metrics.functional import expected_confidence
from lovec.modules.base import ratings
from lovec.modules.scores import ScoreModule
from lovec.types import Record


class SFTRegression(ScoreModule):
    """Cross-entropy on text and tag words, squared error of the expected score (paper, appendix on regression loss).

    The loss of a sentence is weight (E[score] / top - f)^2 - log of the probability that some score and the closing
    tag word follow. The latter is the cross-entropy of a tag whose score is summed out.

    Args:
        regression_weight: weight of the squared error.
        kwargs: arguments of ``ScoreModule``.
    """

    uses_dropout = True

    def __init__(self, regression_weight: NonNegative = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.regression_weight = regression_weight

    def targets(self, row: Record) -> Sequence[float]:
        """Return the factuality of the sentences as places on the scale, which may lie between two scores.

        Raises:
            LovecError: a sentence has no factuality.
        """
        ratings(row, self.scale)
        return [self.scale.top * sentence.factuality for sentence in row.sentences if sentence.factuality is not None]

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute the squared error and the cross-entropy of the tag, [M]."""
        error = expected_confidence(logps.softmax(-1)) - ratings.to(logps.dtype) / self.scale.top
        return self.regression_weight * error**2 - logps.logsumexp(-1)
