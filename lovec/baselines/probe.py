"""A linear probe: how true a sentence is, read from the model's hidden state at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from lovec.baselines.base import Baseline
from lovec.baselines.plain import plain_texts
from lovec.baselines.ridge import Ridge, cross_validated, held_out_values, parts_by_question
from lovec.core.settings import Count, CountFromTwo, PlainWord, check_count
from lovec.types import Engine, LovecError, Record

if TYPE_CHECKING:
    from torch import Tensor

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # per sentence, of standardised states


class _StateReader(Protocol):
    """What the probe needs of an engine."""

    layers: int

    def hidden_states(
        self, contexts: Sequence[Sequence[int]], places: Sequence[Sequence[int]], layers: Sequence[int]
    ) -> list[Tensor]:
        """Return hidden states after tokens of every context: [places, layers, D]."""


class LinearProbe(Baseline):
    """Ridge regression from the hidden state at the last token of a sentence to its factuality.

    The model reads the question and the answer up to the sentence, without tags. The probe is fitted on labelled
    training records; its squared error is the Brier score, and labels need not be 0 or 1. Layer and penalty are those
    with the lowest Brier score in cross-validation over questions: all answers to a question are in the same part. The
    values of several layers can be averaged, each by a map of its own, which is a little better than the best of them.

    It needs the engine that runs the policy's own model; vLLM gives no hidden states.

    Args:
        layers: numbers of the layers to choose from, 1 is the first; None takes all. For large models name a few: the
            states of all training sentences are kept in memory, and every layer takes several decompositions of a
            matrix as wide as the model.
        folds: number of parts in cross-validation.
        average: number of layers, the best ones, whose values are averaged.
        name: its name in tables.

    Attributes:
        chosen: the layers that were chosen, the best first, and the penalty of each; none before ``fit``.
        errors: Brier score in cross-validation by layer, with the best penalty of each.

    Raises:
        LovecError: a layer or the number of folds is out of range; when fitting or tagging, the engine has no hidden
            states, or there is no such layer.
    """

    needs_labels: ClassVar[bool] = True

    def __init__(
        self,
        layers: list[int] | None = None,
        folds: CountFromTwo = 5,
        average: Count = 1,
        name: PlainWord = "Probe",
    ) -> None:
        super().__init__(name)
        for layer in layers or ():
            check_count("a layer of the probe", layer)
        self._layers = None if layers is None else sorted(set(layers))
        if self._layers is not None and average > len(self._layers):
            raise LovecError(
                f"the probe is to average {average} layers, expected at most the {len(self._layers)} to choose from"
            )
        self.folds = folds
        self.average = average
        self.chosen: dict[int, float] = {}
        self.errors: dict[int, float] = {}
        self._maps: list[Ridge] = []

    def fit(self, records: Sequence[Record]) -> None:
        """Fit the probe to the labelled sentences of records.

        Raises:
            LovecError: the labelled sentences belong to fewer than two questions; or as for the class.
        """
        self._fit([record for record in records if record.has_labels])

    def held_out(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Fit the probe, and return values of the same records that their own labels have no part in.

        The value of a sentence is that of maps of the chosen layers and penalties, fitted to the answers to questions
        of other parts; of an answer without any label it is that of the probe. Only the choice of layers and penalties
        has seen all labels.

        Raises:
            LovecError: as for ``fit``.
        """
        import torch  # here, so that other baselines load none

        answers = [record for record in records if record.has_labels]
        found, states, labels, parts = self._fit(answers)
        each = [
            held_out_values(states[:, at], labels, parts, penalty) for at, penalty in enumerate(self.chosen.values())
        ]
        values = torch.stack(each).mean(0)
        held: list[list[float | None]] = [[None] * len(answer.sentences) for answer in answers]
        for (at, i), value in zip(found, values.tolist(), strict=True):
            held[at][i] = value
        rows = iter(held)
        rest = iter(self.confidences([record for record in records if not record.has_labels]))
        return [next(rows if record.has_labels else rest) for record in records]

    def _fit(self, answers: Sequence[Record]) -> tuple[list[tuple[int, int]], Tensor, Tensor, Tensor]:
        """Fit the probe to answers of which each has labels.

        Returns:
            Index of the answer and number of the sentence, [N]; states of the chosen layers, [N, layers, D]; labels,
            NaN where there is none, [N]; and the part of cross-validation that each belongs to, [N].
        """
        import torch  # here, so that other baselines load none

        reader = _reader(self.resources.engine, self.name)
        layers = list(range(1, reader.layers + 1)) if self._layers is None else self._layers
        if wrong := [layer for layer in layers if layer > reader.layers]:
            raise LovecError(
                f"the probe is to read layer {wrong[0]}, expected 1 to {reader.layers}, the model's layers"
            )
        found = self._states(answers, layers)
        y = torch.tensor([_label(answers, at, i) for at, i, _ in found], dtype=torch.float64)
        known = ~y.isnan()
        questions = [answers[at].question for at, _, _ in found]
        parts = parts_by_question(questions, known, self.folds, self.name)
        x = torch.stack([state for _, _, state in found])
        best: list[tuple[float, int, float]] = []
        for column, layer in enumerate(layers):
            errors = cross_validated(x[known, column], y[known], parts[known], _PENALTIES)
            best.append((min(errors), layer, _PENALTIES[errors.index(min(errors))]))
        self.chosen = {layer: penalty for _, layer, penalty in sorted(best)[: self.average]}
        self.errors = {layer: error for error, layer, _ in best}
        chosen = x[:, [layers.index(layer) for layer in self.chosen]]
        self._maps = []
        for at, penalty in enumerate(self.chosen.values()):
            self._maps += Ridge.path(chosen[known, at], y[known], [penalty])
        return [(at, i) for at, i, _ in found], chosen, y, parts

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the probe's value at the end of every sentence; None where it does not fit the context.

        Raises:
            LovecError: the probe is not fitted.
        """
        import torch  # here, so that other baselines load none

        if not self._maps:
            raise LovecError(f"the baseline {self.name!r} is not fitted; call fit(records) with labelled records first")
        rows: list[list[float | None]] = [[None] * len(record.sentences) for record in records]
        with self.watch.phase("scoring"):
            for at, i, state in self._states(records, list(self.chosen)):
                values = [found(state[[layer]]) for layer, found in enumerate(self._maps)]
                rows[at][i] = float(torch.cat(values).mean())
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


def _label(records: Sequence[Record], at: int, sentence: int) -> float:
    """Return the label of a sentence, NaN where there is none."""
    label = records[at].sentences[sentence].factuality
    return math.nan if label is None else label
