"""Self-Consistency and LUQ: how well other answers of the model to the same question support a sentence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from lovec.baselines.base import Claim, Judge, Work
from lovec.baselines.judged import JudgedBaseline
from lovec.baselines.samples import brought_samples
from lovec.core.settings import Count, PlainWord
from lovec.text.sentences import split_sentences
from lovec.types import Record


class SampleBaseline(JudgedBaseline, ABC):
    """Compares every sentence with samples, other answers to the same question, by a judge; see :meth:`compare`.

    Args:
        samples: number of other answers per question.
        judge: rates whether a text supports a sentence; None takes the judge that comes with the data, or else the
            model's own yes or no.
        name: its name in tables.

    Raises:
        LovecError: ``samples`` is not positive.
    """

    setting_names: ClassVar[str] = "{} of the baseline '{kind}'"

    def __init__(self, samples: Count = 10, judge: Judge | None = None, name: PlainWord | None = None) -> None:
        super().__init__(judge, name)
        self.samples = samples

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes; samples that a record brings are not written."""
        brought = [len(brought_samples(record)[: self.samples]) for record in records]
        compared = [number or self.samples for number in brought]
        return replace(
            super().work(records),
            samples=sum(self.samples for record, n in zip(records, brought, strict=True) if record.sentences and not n),
            judgements=sum(n * len(record.sentences) for record, n in zip(records, compared, strict=True)),
        )

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the confidence of every sentence; None where there are no samples."""
        resources = self.resources
        answers = [record for record in records if record.sentences]
        samples = resources.samples.answers(answers, self.samples, resources.engine, resources.encoder, self.watch)
        with self.watch.phase("judging"):
            compared = iter(self.compare(answers, samples))
        return [next(compared) if record.sentences else [] for record in records]

    @abstractmethod
    def compare(self, records: Sequence[Record], samples: Sequence[Sequence[str]]) -> list[list[float | None]]:
        """Return a confidence for every sentence of answers, given samples as ``[records][samples]``.

        Of all resources it needs the judge only, see :meth:`judge_by`.
        """

    def support_by_pieces(
        self, records: Sequence[Record], samples: Sequence[Sequence[Sequence[str]]]
    ) -> dict[tuple[int, str, str], float]:
        """Return the support of sentences by pieces of samples; the judge gets all different claims in one call.

        Args:
            records: answers.
            samples: ``[records][samples][pieces]``.

        Returns:
            By the number of the record, the piece, and the sentence.
        """
        claims: dict[tuple[int, str, str], Claim] = {}
        for number, (record, texts) in enumerate(zip(records, samples, strict=True)):
            for sentence in record.sentences:
                for piece in chain.from_iterable(texts):
                    claims.setdefault((number, piece, sentence.text), Claim(record, piece, sentence.text))
        return dict(zip(claims, self.support(list(claims.values())), strict=True))


class _SampleComparison(SampleBaseline, ABC):
    """The mean, over the samples, of the largest support that a piece of the sample gives a sentence.

    A sample without text gives 0. Without any sample there is no confidence. See ``SampleBaseline`` for the arguments.
    """

    def compare(self, records: Sequence[Record], samples: Sequence[Sequence[str]]) -> list[list[float | None]]:
        """Return the mean support of every sentence by the samples."""
        pieces = [[self.pieces(text) for text in texts] for texts in samples]
        support = self.support_by_pieces(records, pieces)
        confidences: list[list[float | None]] = []
        for number, (record, texts) in enumerate(zip(records, pieces, strict=True)):
            rows = (
                [max((support[number, piece, sentence.text] for piece in own), default=0.0) for own in texts]
                for sentence in record.sentences
            )
            confidences.append([math.fsum(row) / len(row) if row else None for row in rows])
        return confidences

    @abstractmethod
    def pieces(self, sample: str) -> list[str]:
        """Return the pieces of a sample that sentences are compared with, none of them blank."""


class SelfConsistency(_SampleComparison):
    """Agreement with other answers: the support by the best sentence of each, averaged over the answers.

    The paper does not say how agreement is measured; this is the form of SelfCheckGPT's BERTScore variant (Manakul et
    al. 2023, section 5.1), in which every sentence looks for its best match in each sample.

    Args:
        samples: number of other answers per question.
        judge: rates whether a text supports a sentence; None takes the judge that comes with the data, or else the
            model's own yes or no.
        name: its name in tables.
    """

    def __init__(self, samples: Count = 10, judge: Judge | None = None, name: PlainWord = "Self-Cons") -> None:
        super().__init__(samples, judge, name)

    def pieces(self, sample: str) -> list[str]:
        """Return the sentences of a sample."""
        return split_sentences(sample)


class LUQ(_SampleComparison):
    """LUQ (Zhang et al. 2024, arXiv 2403.20279): the support by each other answer as a whole, averaged over them.

    Args:
        samples: number of other answers per question.
        judge: rates whether a text supports a sentence; None takes the judge that comes with the data, or else the
            model's own yes or no.
        name: its name in tables; None is "LUQ".
    """

    def pieces(self, sample: str) -> list[str]:
        """Return the sample as its only piece; none for a blank one."""
        return [sample] if sample.strip() else []
