"""Self-Consistency and LUQ: how well other answers of the model to the same question support a sentence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from lovec.baselines.base import Baseline, BaselineResources, Claim, Judge, Work
from lovec.baselines.judges import YesNoJudge
from lovec.baselines.samples import brought_samples
from lovec.core.settings import Count, PlainWord, check_range
from lovec.text.sentences import split_sentences
from lovec.types import LovecError, Record, check_ready


class SampleBaseline(Baseline, ABC):
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
        super().__init__(name)
        self.samples = samples
        self.judge = judge
        self._attached_judge: Judge | None = None

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return how well the text of each claim supports its sentence, as the judge says.

        Raises:
            LovecError: the judge did not return one number in [0, 1] for each.
        """
        assert self._attached_judge is not None
        name = type(self._attached_judge).__name__
        values = list(self._attached_judge.support(claims))
        if len(values) != len(claims):
            raise LovecError(f"{name} returned {len(values)} values for {len(claims)} claims, expected one for each")
        for value in values:
            check_range(f"the support that {name} gave a claim", value, at_least=0, at_most=1)
        return values

    def check_ready(self) -> None:
        """Refuse a judge that lacks what it needs."""
        check_ready(self.judge)

    def attach(self, resources: BaselineResources) -> None:
        """Use these resources, and the judge they have where none was passed, from now on."""
        super().attach(resources)
        judge = self.judge or resources.judge or YesNoJudge()
        judge.attach(resources)
        self.judge_by(judge)

    def judge_by(self, judge: Judge) -> None:
        """Use a judge, which is attached already, from now on; it is all that :meth:`compare` needs."""
        self._attached_judge = judge

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
        """Return a confidence for every sentence of answers, given samples as ``[records][samples]``."""


class _SampleComparison(SampleBaseline, ABC):
    """The mean, over the samples, of the largest support that a piece of the sample gives a sentence.

    A sample without text gives 0. Without any sample there is no confidence. See ``SampleBaseline`` for the arguments.
    """

    def compare(self, records: Sequence[Record], samples: Sequence[Sequence[str]]) -> list[list[float | None]]:
        """Return the mean support of every sentence by the samples."""
        return self._mean_support(records, [[self.pieces(text) for text in texts] for texts in samples])

    @abstractmethod
    def pieces(self, sample: str) -> list[str]:
        """Return the pieces of a sample that sentences are compared with, none of them blank."""

    def _mean_support(
        self, records: Sequence[Record], samples: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[float | None]]:
        """Return confidences from ``[records][samples][pieces]``; the judge gets all different claims in one call."""
        claims: dict[tuple[int, str, str], Claim] = {}
        for number, (record, texts) in enumerate(zip(records, samples, strict=True)):
            for sentence in record.sentences:
                for piece in (piece for pieces in texts for piece in pieces):
                    claims.setdefault((number, piece, sentence.text), Claim(record, piece, sentence.text))
        support = dict(zip(claims, self.support(list(claims.values())), strict=True))
        confidences: list[list[float | None]] = []
        for number, (record, texts) in enumerate(zip(records, samples, strict=True)):
            rows = (
                [max((support[number, piece, sentence.text] for piece in pieces), default=0.0) for pieces in texts]
                for sentence in record.sentences
            )
            confidences.append([math.fsum(row) / len(row) if row else None for row in rows])
        return confidences


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
