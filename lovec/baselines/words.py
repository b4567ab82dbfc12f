"""Words: how true a sentence is, guessed from its words and those of the answer's first sentence, without any model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from lovec.baselines.base import Baseline
from lovec.baselines.ridge import Ridge, cross_validated, held_out_values, parts_by_question
from lovec.core.settings import Count, CountFromTwo, PlainWord
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from torch import Tensor

_PENALTIES = tuple(10.0**power for power in (-6, -5.5, -5, -4.5, -4, -3.5, -3, -2.5, -2, -1.5, -1))  # per sentence
_PLACES = 10  # that are told apart: first, second, ... sentence of an answer
_WORD = re.compile(r"\w+")


class Words(Baseline):
    """Ridge regression from the words of a sentence to its factuality.

    What it sees of a sentence: its words, its place in the answer, and the words of the answer's first sentence, which
    names the thing that the answer is about. It shows how far one comes by knowing which claims are mostly true,
    whatever they are about, so that one sees what a model adds. It is fitted on labelled training records; the penalty
    is that with the lowest Brier score in cross-validation over questions.

    Args:
        least: number of training sentences that a word must occur in to count.
        folds: number of parts in cross-validation.
        name: its name in tables.

    Attributes:
        penalty: the penalty that was chosen; None before ``fit``.

    Raises:
        LovecError: a count is out of range; when fitting, the labelled sentences belong to fewer than two questions.
    """

    needs_labels: ClassVar[bool] = True

    def __init__(self, least: Count = 3, folds: CountFromTwo = 5, name: PlainWord = "Words") -> None:
        super().__init__(name)
        self.least = least
        self.folds = folds
        self.penalty: float | None = None
        self._columns: dict[str, int] = {}
        self._map: Ridge | None = None

    def fit(self, records: Sequence[Record]) -> None:
        """Fit the weights of words to the labelled sentences of records.

        Raises:
            LovecError: the labelled sentences belong to fewer than two questions.
        """
        self._fit(records)

    def held_out(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Fit the weights, and return values of the same records that labels of their own questions have no part in.

        Only the choice of the penalty has seen all labels.

        Raises:
            LovecError: as for ``fit``.
        """
        x, y, parts = self._fit(records)
        values = iter(held_out_values(x, y, parts, self.penalty or 0.0, scaled=False).tolist())
        return [[next(values) for _ in record.sentences] for record in records]

    def _fit(self, records: Sequence[Record]) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the weights of words.

        Returns:
            Of every sentence of the records: its words, [N, D]; its label, NaN where there is none, [N]; and the part
            of cross-validation that it belongs to, [N].
        """
        import torch  # here, so that other baselines load none

        names = [found for record in records for found in _features(record)]
        sentences = [sentence for record in records for sentence in record.sentences]
        labels = [math.nan if sentence.factuality is None else sentence.factuality for sentence in sentences]
        y = torch.tensor(labels, dtype=torch.float64)
        known = ~y.isnan()
        questions = [record.question for record in records for _ in record.sentences]
        parts = parts_by_question(questions, known, self.folds, self.name)
        labelled = zip(names, known.tolist(), strict=True)
        count = Counter(name for found, has in labelled if has for name in found)
        kept = sorted(name for name, uses in count.items() if uses >= self.least)
        self._columns = {name: column for column, name in enumerate(kept)}
        x = self._matrix(names)
        errors = cross_validated(x[known], y[known], parts[known], _PENALTIES, scaled=False)
        self.penalty = _PENALTIES[errors.index(min(errors))]
        [self._map] = Ridge.path(x[known], y[known], [self.penalty], scaled=False)
        return x, y, parts

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the fitted value of every sentence.

        Raises:
            LovecError: nothing is fitted.
        """
        if self._map is None:
            raise LovecError(f"the baseline {self.name!r} is not fitted; call fit(records) with labelled records first")
        with self.watch.phase("scoring"):
            return [self._map(self._matrix(list(_features(record)))).tolist() for record in records]

    def _matrix(self, rows: Sequence[set[str]]) -> Tensor:
        """Return which words every sentence has, [N, D], float64."""
        import torch  # here, so that other baselines load none

        x = torch.zeros(len(rows), len(self._columns), dtype=torch.float64)
        for row, names in enumerate(rows):
            x[row, [self._columns[name] for name in names if name in self._columns]] = 1.0
        return x


def _features(record: Record) -> Iterator[set[str]]:
    """Yield what is seen of each sentence: its words and place, and the words of the first sentence."""
    texts = [sentence.text for sentence in record.sentences]
    first = {f"first: {word}" for word in _words(texts[0])} if texts else set()
    for place, text in enumerate(texts):
        yield {f"place: {min(place, _PLACES)}", *_words(text), *first}


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
