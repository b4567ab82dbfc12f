"""What the model says again when it is asked again: Self-Consistency and LUQ."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from lovec.baselines.base import Baseline, Bench, Claim, Judge
from lovec.baselines.judges import YesNoJudge
from lovec.sentences import split_sentences
from lovec.types import LovecError, Record


class _Compared(Baseline, ABC):
    """Compares every sentence with other answers to the same question; a subclass says in what pieces.

    The confidence is the mean over samples of what the best piece of each gives as support; a sample without text
    gives 0. An answer without any sample has no confidence.

    Args:
        samples: other answers a question.
        judge: says whether a text supports a sentence; null takes what the data have, else the model's own yes or no.
        name: what tables call it.

    Raises:
        LovecError: ``samples`` is not positive.
    """

    def __init__(self, samples: int, judge: Judge | None, name: str) -> None:
        super().__init__(name)
        if samples < 1:
            raise LovecError(f"the baseline {name!r} got samples={samples}, expected a positive number")
        self.samples = samples
        self.judge = judge
        self._chosen: Judge | None = None

    def attach(self, bench: Bench) -> None:
        """Compare with the samples of this bench from now on."""
        super().attach(bench)
        self._chosen = self.judge or bench.judge or YesNoJudge()
        self._chosen.attach(bench)

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Mean support of every sentence by the samples; None where there are no samples."""
        bench = self.bench
        answers = [record for record in records if record.sentences]
        drawn = bench.samples.of(answers, self.samples, bench.engine, bench.encoder, self.watch)
        with self.watch.phase("judging"):
            found = iter(self._judged(answers, [[self.pieces(text) for text in texts] for texts in drawn]))
        return [next(found) if record.sentences else [] for record in records]

    @abstractmethod
    def pieces(self, sample: str) -> list[str]:
        """The pieces of a sample that a sentence is compared with; none of them blank. To be overridden."""

    def _judged(
        self, records: Sequence[Record], samples: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[float | None]]:
        """Confidences from [records][samples][pieces]; all claims go to the judge at once, equal ones once."""
        assert self._chosen is not None
        claims: dict[tuple[int, str, str], Claim] = {}
        for number, (record, texts) in enumerate(zip(records, samples, strict=True)):
            for sentence in record.sentences:
                for piece in (piece for pieces in texts for piece in pieces):
                    claims.setdefault((number, piece, sentence.text), Claim(record, piece, sentence.text))
        support = dict(zip(claims, self._chosen.support(list(claims.values())), strict=True))
        found: list[list[float | None]] = []
        for number, (record, texts) in enumerate(zip(records, samples, strict=True)):
            rows = (
                [max((support[number, piece, sentence.text] for piece in pieces), default=0.0) for pieces in texts]
                for sentence in record.sentences
            )
            found.append([math.fsum(row) / len(row) if row else None for row in rows])
        return found


class SelfConsistency(_Compared):
    """Agreement with other answers: how well the best sentence of each supports it, mean over them.

    The paper does not say how agreement is found; this is the form of SelfCheckGPT's BERTScore variant (Manakul et al.
    2023, section 5.1), in which every sentence looks for its match in each sample.

    Args:
        samples: other answers a question.
        judge: says whether a text supports a sentence; null takes what the data have, else the model's own yes or no.
        name: what tables call it.
    """

    def __init__(self, samples: int = 10, judge: Judge | None = None, name: str = "Self-Cons") -> None:
        super().__init__(samples, judge, name)

    def pieces(self, sample: str) -> list[str]:
        """Its sentences."""
        return split_sentences(sample)


class LUQ(_Compared):
    """LUQ (Zhang et al. 2024, arXiv 2403.20279): how well each other answer as a whole supports it, mean over them.

    Args:
        samples: other answers a question.
        judge: says whether a text supports a sentence; null takes what the data have, else the model's own yes or no.
        name: what tables call it.
    """

    def __init__(self, samples: int = 10, judge: Judge | None = None, name: str = "LUQ") -> None:
        super().__init__(samples, judge, name)

    def pieces(self, sample: str) -> list[str]:
        """The sample as it is."""
        return [sample] if sample.strip() else []
