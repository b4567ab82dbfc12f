"""Verbalized confidence: the model is asked for a number (Tian et al. 2023; Xiong et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lovec.baselines.asking import Asking
from lovec.baselines.base import Baseline, Bench
from lovec.types import N_SCORES, Record


class VerbalConfidence(Baseline):
    """Asks of every sentence for a confidence from 0 to 10, with the whole answer as context.

    The eleven replies are scored as whole strings, end of turn included: the confidence is the most probable of them,
    and none has to be parsed.

    Args:
        name: what tables call it.
    """

    def __init__(self, name: str = "Verb-Conf") -> None:
        super().__init__(name)
        self._asking: Asking | None = None

    def attach(self, bench: Bench) -> None:
        """Ask the model of this bench from now on."""
        super().attach(bench)
        replies = [bench.wording.score.format(score=score) for score in range(N_SCORES)]
        self._asking = Asking(bench.encoder, bench.wording.verbal, replies, self.name)

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with score, confidence and distribution; all None where sentence and prompt fill the context."""
        return [
            replace(
                record,
                sentences=tuple(
                    replace(sentence, score=None, confidence=None, distribution=None)
                    if logps is None
                    else replace(
                        sentence,
                        score=(score := logps.index(max(logps))),
                        confidence=score / 10,
                        distribution=tuple(map(math.exp, logps)),
                    )
                    for sentence, logps in zip(record.sentences, row, strict=True)
                ),
            )
            for record, row in zip(records, self._replies(records), strict=True)
        ]

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """The most probable number / 10, the lowest of equals; None where the sentence does not fit."""
        return [[sentence.confidence for sentence in record.sentences] for record in self.tag(records)]

    def _replies(self, records: Sequence[Record]) -> list[list[list[float] | None]]:
        """Log-probabilities of the replies 0..10 for every sentence."""
        engine = self.bench.engine
        assert self._asking is not None
        with self.watch.phase("scoring"):
            return self._asking.of_answers(engine, records)
