"""p(true): how probable the model finds the reply True (Kadavath et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lovec.baselines.asking import Asking
from lovec.baselines.base import Baseline, Bench, Wording
from lovec.encoding import Encoder
from lovec.types import Record


class PTrue(Baseline):
    """Asks of every sentence whether it is true, with the whole answer as context.

    c = p(True) / (p(True) + p(False)), with the exact probabilities of the two replies, end of turn included.

    Args:
        adapter: PEFT adapter that was trained for it; null asks the bare base model.
        name: what tables call it; null is "p(true)", or "p(true)-ft" with an adapter.
    """

    def __init__(self, adapter: str | None = None, name: str | None = None) -> None:
        super().__init__(name or ("p(true)" if adapter is None else "p(true)-ft"), adapter)
        self._asking: Asking | None = None

    @staticmethod
    def asking(encoder: Encoder, wording: Wording, name: str = "p(true)") -> Asking:
        """The prompt, for training too: ``about`` gives a sentence's ids, ``turn.replies`` those of True and False."""
        return Asking(encoder, wording.p_true, (wording.true, wording.false), name)

    def attach(self, bench: Bench) -> None:
        """Ask the model of this bench from now on."""
        super().attach(bench)
        self._asking = self.asking(bench.encoder, bench.wording, self.name)

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Probability of True among the two replies; None where sentence and prompt fill the model's context."""
        engine = self.bench.engine
        assert self._asking is not None
        with self.watch.phase("scoring"):
            replies = self._asking.of_answers(engine, records)
        return [[share_of_first(logps) for logps in row] for row in replies]


def share_of_first(logps: Sequence[float] | None) -> float | None:
    """Probability of the first of two replies, given that it is one of them: softmax of two log-probabilities."""
    if logps is None:
        return None
    first, second = logps
    low = math.exp(-abs(first - second))
    return (1.0 if first >= second else low) / (1.0 + low)
