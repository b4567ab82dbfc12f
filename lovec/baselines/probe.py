"""A linear probe: how true a sentence is, read from the model's hidden state at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from lovec.baselines.base import Baseline
from lovec.baselines.plain import plain_texts
from lovec.settings import CountFromTwo, PlainWord, check_count
from lovec.types import Engine, LovecError, Record

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # per sentence, of standardised states


class _StateReader(Protocol):
    """What the probe needs of an engine."""

    layers: int

    def hidden_states(
        self, contexts: Sequence[Sequence[int]], places: Sequence[Sequence[int]], layers: Sequence[int]
    ) -> list[Tensor]:
        """Return hidden states after tokens of every context: [places, layers, D]."""


@dataclass(frozen=True, slots=True)
class Ridge:
    """A linear map with the lowest squared error plus a penalty on its squared weights (Hoerl and Kennard 1970).

    Attributes:
        weights: [D].
        intercept: added to the product.
    """

    weights: Tensor
    intercept: Tensor

    @classmethod
    def path(cls, x: Tensor, y: Tensor, penalties: Sequence[float], scaled: bool = True) -> list[Ridge]:
        """Fit a map for every penalty, from one eigenvalue decomposition.

        Args:
            x: [N, D]; every column is centred, and constant ones are left out.
            y: [N].
            penalties: of the squared weights, per row.
            scaled: whether the penalty is that of columns scaled to a standard deviation of 1.
        """
        x, y = x.double(), y.double()
        mean, centre = x.mean(0), y.mean()
        scale = x.std(0, correction=0)
        inverse = torch.where(scale > 1e-8, 1.0 / scale.clamp(min=1e-8) if scaled else torch.ones_like(scale), 0.0)
        z = (x - mean) * inverse
        values, vectors = torch.linalg.eigh(z.T @ z / len(z))
        projected = vectors.T @ (z.T @ (y - centre) / len(z))
        fitted = []
        for penalty in penalties:
            weights = inverse * (vectors @ (projected / (values.clamp(min=0.0) + penalty)))
            fitted.append(cls(weights, centre - mean @ weights))
        return fitted

    def __call__(self, x: Tensor) -> Tensor:
        """Return the values of states [N, D], clipped to [0, 1]: [N], float64."""
        return (x.double() @ self.weights + self.intercept).clamp(0.0, 1.0)


class LinearProbe(Baseline):
    """Ridge regression from the hidden state at the last token of a sentence to its factuality.

    The model reads the question and the answer up to the sentence, without tags. The probe is fitted on labelled
    training records; its squared error is the Brier score, and labels need not be 0 or 1. Layer and penalty are those
    with the lowest Brier score in cross-validation over questions: all answers to a question are in the same part.

    It needs the engine that runs the policy's own model; vLLM gives no hidden states.

    Args:
        layers: numbers of the layers to choose from, 1 is the first; None takes all. For large models name a few: the
            states of all training sentences are kept in memory, and every layer takes several decompositions of a
            matrix as wide as the model.
        folds: number of parts in cross-validation.
        name: its name in tables.

    Attributes:
        layer: the layer that was chosen; None before ``fit``.
        penalty: the penalty that was chosen.
        errors: Brier score in cross-validation by layer, with the best penalty of each.

    Raises:
        LovecError: a layer or the number of folds is out of range; when fitting or tagging, the engine has no hidden
            states, or there is no such layer.
    """

    needs_labels: ClassVar[bool] = True

    def __init__(self, layers: list[int] | None = None, folds: CountFromTwo = 5, name: PlainWord = "Probe") -> None:
        super().__init__(name)
        for layer in layers or ():
            check_count("a layer of the probe", layer)
        self._layers = None if layers is None else sorted(set(layers))
        self.folds = folds
        self.layer: int | None = None
        self.penalty: float | None = None
        self.errors: dict[int, float] = {}
        self._map: Ridge | None = None

    def fit(self, records: Sequence[Record]) -> None:
        """Fit the probe to the labelled sentences of records.

        Raises:
            LovecError: the labelled sentences belong to fewer than two questions; or as for the class.
        """
        self._fit([record for record in records if _has_labels(record)])

    def held_out(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Fit the probe, and return values of the same records that their own labels have no part in.

        The value of a sentence is that of a map of the chosen layer and penalty, fitted to the answers to questions of
        other parts; of an answer without any label it is that of the probe. Only the choice of layer and penalty has
        seen all labels.

        Raises:
            LovecError: as for ``fit``.
        """
        answers = [record for record in records if _has_labels(record)]
        found, states, labels, parts = self._fit(answers)
        known = ~labels.isnan()
        values = torch.zeros_like(labels)
        for part in sorted(set(parts[known].tolist())):
            other = known & (parts != part)
            [fitted] = Ridge.path(states[other], labels[other], [self.penalty or 0.0])
            values[parts == part] = fitted(states[parts == part])
        held: list[list[float | None]] = [[None] * len(answer.sentences) for answer in answers]
        for (at, i), value in zip(found, values.tolist(), strict=True):
            held[at][i] = value
        rows = iter(held)
        rest = iter(self.confidences([record for record in records if not _has_labels(record)]))
        return [next(rows if _has_labels(record) else rest) for record in records]

    def _fit(self, answers: Sequence[Record]) -> tuple[list[tuple[int, int]], Tensor, Tensor, Tensor]:
        """Fit the probe to answers of which each has labels.

        Returns:
            Index of the answer and number of the sentence, [N]; states of the chosen layer, [N, D]; labels, NaN where
            there is none, [N]; and the part of cross-validation that each belongs to, [N].
        """
        reader = _reader(self.resources.engine, self.name)
        layers = list(range(1, reader.layers + 1)) if self._layers is None else self._layers
        if wrong := [layer for layer in layers if layer > reader.layers]:
            raise LovecError(
                f"the probe is to read layer {wrong[0]}, expected 1 to {reader.layers}, the model's layers"
            )
        found = self._states(answers, layers)
        y = torch.tensor([_label(answers, at, i) for at, i, _ in found], dtype=torch.float64)
        known = ~y.isnan()
        questions = list(
            dict.fromkeys(answers[at].question for (at, _, _), has in zip(found, known, strict=True) if has)
        )
        if len(questions) < 2:
            raise LovecError(
                f"the baseline {self.name!r} got labelled sentences of {len(questions)} questions, expected at least "
                "two; give training records with labels, or leave it out of --model.baselines"
            )
        part = {question: number % self.folds for number, question in enumerate(questions)}
        # A question none of whose labelled sentences fits the context has no part of its own, and may be in any.
        parts = torch.tensor([part.get(answers[at].question, 0) for at, _, _ in found])
        x = torch.stack([state for _, _, state in found])
        best: list[tuple[float, int, float]] = []
        for column, layer in enumerate(layers):
            errors = cross_validated(x[known, column], y[known], parts[known], _PENALTIES)
            best.append((min(errors), layer, _PENALTIES[errors.index(min(errors))]))
        _, self.layer, self.penalty = min(best)
        self.errors = {layer: error for error, layer, _ in best}
        chosen = x[:, layers.index(self.layer)]
        [self._map] = Ridge.path(chosen[known], y[known], [self.penalty])
        return [(at, i) for at, i, _ in found], chosen, y, parts

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the probe's value at the end of every sentence; None where it does not fit the context.

        Raises:
            LovecError: the probe is not fitted.
        """
        if self._map is None or self.layer is None:
            raise LovecError(f"the baseline {self.name!r} is not fitted; call fit(records) with labelled records first")
        rows: list[list[float | None]] = [[None] * len(record.sentences) for record in records]
        with self.watch.phase("scoring"):
            for at, i, state in self._states(records, [self.layer]):
                rows[at][i] = float(self._map(state)[0])
        return rows

    def _states(self, records: Sequence[Record], layers: list[int]) -> list[tuple[int, int, Tensor]]:
        """Return index of the record, number of the sentence and hidden states [layers, D] of every sentence."""
        engine = self.resources.engine
        texts = plain_texts(records, engine, self.resources.encoder)
        ends = [[end - 1 for _, _, end in text.spans] for text in texts]
        states = _reader(engine, self.name).hidden_states([text.ids for text in texts], ends, layers)
        return [
            (text.record, at, state)
            for text, found in zip(texts, states, strict=True)
            for (at, _, _), state in zip(text.spans, found, strict=True)
        ]


def cross_validated(
    x: Tensor, y: Tensor, parts: Tensor, penalties: Sequence[float], scaled: bool = True
) -> list[float]:
    """Return the mean squared error of ridge regression for every penalty, each part predicted from the others.

    Args:
        x: [N, D].
        y: [N], in [0, 1].
        parts: [N], number of the part that each row belongs to; there are at least two.
        penalties: see ``Ridge.path``.
        scaled: see ``Ridge.path``.
    """
    errors = torch.zeros(len(penalties), dtype=torch.float64)
    for part in sorted(set(parts.tolist())):
        held = parts == part
        for number, fitted in enumerate(Ridge.path(x[~held], y[~held], penalties, scaled)):
            errors[number] += ((fitted(x[held]) - y[held]) ** 2).sum()
    mean: list[float] = (errors / len(y)).tolist()
    return mean


def _reader(engine: Engine, name: str) -> _StateReader:
    """Return an engine as one that gives hidden states.

    Raises:
        LovecError: it cannot.
    """
    if not callable(getattr(engine, "hidden_states", None)):
        raise LovecError(
            f"the baseline {name!r} reads hidden states, which {type(engine).__name__} does not give; use "
            "lovec.engines.TransformersEngine, or leave it out of --model.baselines"
        )
    reader: Any = engine
    return reader  # type: ignore[no-any-return]


def _has_labels(record: Record) -> bool:
    return any(sentence.factuality is not None for sentence in record.sentences)


def _label(records: Sequence[Record], at: int, sentence: int) -> float:
    """Return the label of a sentence, NaN where there is none."""
    label = records[at].sentences[sentence].factuality
    return math.nan if label is None else label
