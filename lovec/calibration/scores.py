"""The calibration of any scores, whoever made them: one JSON file that needs no model."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lovec.calibration.calibration import FittedMap, Promised, check_promises, file_words, fitted_fields, random_half
from lovec.calibration.conformal import TRUE_FROM, Guarantee, Passage, guarantee
from lovec.calibration.files import MOST_BYTES
from lovec.calibration.fitting import Fitted, Labelled, Words, fit_labelled
from lovec.calibration.judged import LEAST_GROUPS, corrected_labels, judged_guarantee
from lovec.calibration.logistic import Array
from lovec.calibration.maps import Stack, mapped
from lovec.calibration.numbers import as_numbers, resolved
from lovec.core.files import read_json
from lovec.core.notices import counted
from lovec.core.plain import PlainObject, Within, checked_numbers, checked_object, checked_text, read_object, wrong
from lovec.core.settings import check_range
from lovec.metrics.grouped import ranks
from lovec.metrics.powered import Judged
from lovec.types import ROUNDING, LovecError, ScoreKind, error_in

ROWS = Words("row", "group", "rows with a label and a score")

_KIND = "scores"
_VERSION = 1
_MOST_POINTS = 2_000  # of ranks: quantiles to a twentieth of a percent
_MOST_COLUMNS = 100
_MOST_OF_KINDS = 10_000  # guarantees for kinds
_FIX = "calibrate again"

_Kept: TypeAlias = NDArray[np.bool_]
_Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranks(PlainObject):
    """Where a score stands among those that a calibration was fitted to, linear between points, constant outside.

    Attributes:
        scores: some of the different scores, ascending.
        shares: share of all scores that lie below each, with half of those that equal it, ascending.

    Raises:
        LovecError: the two are not equally long, not ascending, or there are none.
    """

    what: ClassVar[str] = "ranks"

    scores: Annotated[tuple[float, ...], Within(most=_MOST_POINTS)]
    shares: Annotated[tuple[float, ...], Within(0.0, 1.0, _MOST_POINTS)]

    def __post_init__(self) -> None:
        checked_numbers(self.scores, "scores of ranks")
        ascend = all((np.diff(side) > 0).all() for side in (self.scores, self.shares))
        if len(self.scores) != len(self.shares) or not self.scores or not ascend:
            raise LovecError(
                f"ranks have {len(self.scores)} scores and {len(self.shares)} shares, expected equally many that "
                f"ascend, at least one; {_FIX}"
            )

    @classmethod
    def of(cls, scores: Array) -> Ranks:
        """Return the ranks among scores [N], at least one: at each of them, or at evenly spread ones of very many."""
        shares = ranks(torch.from_numpy(scores)).numpy()
        points, first = np.unique(scores, return_index=True)
        chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).round().astype(np.int64))
        return cls(tuple(points[chosen].tolist()), tuple(shares[first][chosen].tolist()))

    def __call__(self, scores: ArrayLike) -> Array:
        """Return the ranks of scores [N]: [N] in [0, 1]."""
        return np.interp(np.asarray(scores, dtype=np.float64), self.scores, self.shares)


@dataclass(frozen=True, slots=True)
class Column(PlainObject):
    """A column of scores, and how they become numbers in [0, 1] that a map can take.

    Attributes:
        key: name of the column, scorer or method.
        kind: what the numbers are.
        scale: the highest number of a confidence's scale, which becomes 1; None leaves numbers as they are.
        ranks: where scores that are no numbers in [0, 1] stand among those that the calibration was fitted to; None
            for those that are.
    """

    what: ClassVar[str] = "a column of a calibration"

    key: str
    kind: ScoreKind = "confidence"
    scale: Annotated[float, Within(1e-6, 1e6)] | None = None
    ranks: Ranks | None = None

    def directed(self, scores: ArrayLike) -> Array:
        """Return scores [N] so that a higher one is surer, on the scale from 0 to 1 where they have one: [N].

        Numbers that float32 stores alike are one score, see ``resolved``.
        """
        given = resolved(scores)
        if self.kind == "uncertainty":
            return -given
        if self.kind == "surprisal":
            return np.exp(-given)
        if self.kind == "complement":
            return 1.0 - given
        return given if self.scale is None else given / self.scale

    def undirected(self, directed: ArrayLike) -> Array:
        """Return the numbers of the column [N] that ``directed`` makes its own of."""
        given = as_numbers(directed)
        if self.kind == "uncertainty":
            return -given
        if self.kind == "surprisal":
            with np.errstate(divide="ignore", invalid="ignore"):  # of the probability 0 it is infinite
                return np.asarray(-np.log(given))
        if self.kind == "complement":
            return 1.0 - given
        return given if self.scale is None else given * self.scale

    def above(self, directed: float) -> str:
        """Return in words, and in the numbers of the column, which scores are surer than one of ``directed``."""
        return f"{'above' if self.kind == 'confidence' else 'below'} {self.undirected(directed):.6g}"

    def features(self, directed: ArrayLike) -> Array:
        """Return the numbers in [0, 1] that a map takes, [N]; NaN where a score is NaN.

        Args:
            directed: scores [N], higher for surer, see ``directed``.

        Raises:
            LovecError: a score is infinite, or lies outside [0, 1] and the calibration was fitted to confidences.
        """
        given = self.directed(self.undirected(directed))
        if np.isinf(given).any():
            raise LovecError(f"a score of {self.key} is infinite, expected finite numbers; leave such rows out")
        if self.ranks is not None:
            return np.where(np.isnan(given), np.nan, self.ranks(given))
        inside = given.clip(0.0, 1.0)
        if (outside := given[np.abs(given - inside) > ROUNDING]).size:
            raise LovecError(
                f"{self.key} is {outside[0]:.7g}, and the calibration was fitted to numbers from 0 to 1; scores of "
                "another scale need a calibration of their own"
            )
        return inside


@dataclass(frozen=True, slots=True)
class KindGuarantee(PlainObject):
    """A guarantee for the rows of one kind (a Mondrian category: Vovk, Gammerman and Shafer 2005, chapter 4).

    Attributes:
        value: what such rows have in the column ``ScoreCalibration.by``.
        guarantee: the threshold for them, from labelled rows of this kind alone.
    """

    what: ClassVar[str] = "a guarantee for a kind"

    value: str
    guarantee: Guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCalibration(FittedMap):
    """A map from scores, whoever made them, to confidences, and thresholds with a guarantee.

    Called with the scores as they are in the file, it gives confidences.

    Attributes:
        columns: what is mapped; several go into a stack.
        layout: whose results the fitted file held, see ``lovec score --layout``; None for a table.
        group: column that says which rows belong together; "" where each row stands for itself, or with a layout where
            none was named.
        sources: SHA-256 of the files that it was fitted to.
        by: column that names the kind of a row, for each of which promises hold by themselves; "" for none.
        kinds: guarantees for each kind.
        judge: column of a judge's labels that were used beside people's; "" for none.
        label: column of the labels; "" where it is not known, or with a layout.
        label_scale: the highest label, by which labels are divided; None where they are from 0 to 1.
    """

    columns: Annotated[tuple[Column, ...], Within(most=_MOST_COLUMNS)]
    layout: str | None = None
    group: str = ""
    sources: tuple[str, ...] = ()
    by: str = ""
    kinds: Annotated[tuple[KindGuarantee, ...], Within(most=_MOST_OF_KINDS)] = ()
    judge: str = ""
    label: str = ""
    label_scale: Annotated[float, Within(1e-6, 1e6)] | None = None

    def __post_init__(self) -> None:
        names = tuple(column.key for column in self.columns)
        if isinstance(self.map, Stack) != (len(names) != 1) or (
            isinstance(self.map, Stack) and self.map.features != names
        ):
            raise LovecError(f"the map {self.map.name!r} does not belong to the columns {', '.join(names)}; {_FIX}")
        FittedMap.__post_init__(self)
        by_kind: dict[str, list[Guarantee]] = {}
        for found in self.kinds:
            by_kind.setdefault(found.value, []).append(found.guarantee)
        for guarantees in by_kind.values():
            check_promises(guarantees)

    def __call__(self, *scores: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Return the calibrated confidences of scores.

        Args:
            *scores: the scores of each column [N], in the order of ``columns``; or one mapping from their names. They
                are given as they are in the file: uncertainties as such, and on their scale.

        Returns:
            [N], in [0, 1]; NaN where a score is NaN.

        Raises:
            LovecError: there are not as many columns, they are not equally long, or a score is out of its range.
        """
        return self.confidences(self._directed(scores))

    def keeps(
        self,
        *scores: ArrayLike | Mapping[str, ArrayLike],
        keep_factual: float,
        by: Sequence[object] | None = None,
    ) -> _Kept:
        """Return whether each row is kept under a guarantee: [N].

        Args:
            *scores: see ``__call__``.
            keep_factual: see ``threshold``.
            by: the kind of each row, [N], for the guarantees of each kind; of a kind that the calibration has not seen
                nothing is kept. None is the guarantee for rows of all kinds together.

        Raises:
            LovecError: there is no such guarantee; or see ``__call__``.
        """
        return self.keeps_directed(self._directed(scores), keep_factual, by)

    def keeps_directed(self, directed: ArrayLike, keep_factual: float, by: Sequence[object] | None = None) -> _Kept:
        """Return the same for scores that are higher for surer, see ``confidences``."""
        ranks = self.ranks(directed)
        if by is None:
            return np.asarray(ranks > self.threshold(keep_factual).threshold)  # NaN is not
        if not self.by:
            raise LovecError("the calibration has no guarantees for kinds of rows; calibrate with --promise_by COLUMN")
        of_kind = self.thresholds_by_kind(keep_factual)
        limits = [of_kind[str(value)].threshold if str(value) in of_kind else np.inf for value in by]
        return np.asarray(ranks > np.array(limits))

    def _again(self, levels: Sequence[str]) -> str:
        by = f" --promise_by {shlex.quote(self.by)}" if self.by else ""
        return f"{file_words(levels)} --redo{by}"

    def thresholds_by_kind(self, keep_factual: float) -> dict[str, Guarantee]:
        """Return the guarantee for each kind of rows, by the kind: what ``threshold`` promises, for each of them.

        Raises:
            LovecError: there is none for this probability.
        """
        promised = Promised.of(self.threshold(keep_factual))
        return {kind.value: kind.guarantee for kind in self.kinds if Promised.of(kind.guarantee) == promised}

    def confidences(self, directed: ArrayLike) -> Array:
        """Return the calibrated confidences of scores that are higher for surer.

        Args:
            directed: [N, number of columns], see ``Column.directed``.

        Returns:
            [N], in [0, 1]; NaN where a score is NaN.

        Raises:
            LovecError: a score is out of its range.
        """
        return self._mapped(self._features(directed))

    def ranks(self, directed: ArrayLike) -> Array:
        """Return the numbers in [0, 1] that thresholds are on, [N]; arguments and errors as of ``confidences``.

        They are the confidences or ranks before the map, which no label has touched; of a stack its confidences.
        """
        features = self._features(directed)
        return self._mapped(features) if isinstance(self.map, Stack) else features[:, 0]

    def least_kept(self, promised: Guarantee) -> str | None:
        """Return what a guarantee keeps in words, by the scores of the only column; None of a stack, or of an end."""
        if isinstance(self.map, Stack) or np.isinf(promised.threshold):
            return None
        [column] = self.columns
        return f"{column.key or 'the confidence'} {column.above(float(self._scores_at(promised.threshold)))}"

    def drift(self, directed: ArrayLike, groups: Sequence[Hashable] | None = None) -> str | None:
        """Return in one sentence how the scores of new rows differ from the fitted ones; None where that is not shown.

        Args:
            directed: see ``confidences``.
            groups: what each row belongs to, [N]; None is itself. See ``Histogram.unlike``.
        """
        found = self.ranks(directed)
        by_group: dict[Hashable, list[float]] = {}
        for group, rank in zip(range(len(found)) if groups is None else groups, found.tolist(), strict=True):
            if rank == rank:
                by_group.setdefault(group, []).append(rank)
        return self.histogram.unlike(list(by_group.values()), ROWS.item)

    def describe(self) -> str:
        """Return in one sentence what a confidence is."""
        source = ", ".join(column.key or "the confidence" for column in self.columns)
        said = self.describe_from(f"from {source}" if len(self.columns) > 1 else source, ROWS.item, ROWS.group)
        return f"{said}, with the labels of the judge in {self.judge}" if self.judge else said

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a plain JSON object."""
        return {"kind": _KIND, "version": _VERSION, **FittedMap.to_dict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> ScoreCalibration:
        """Return the calibration that a JSON object holds.

        Raises:
            LovecError: it holds something else, or a version of the format that is unknown.
        """
        if isinstance(data, Mapping) and "calibrations" in data:
            raise LovecError(
                "it is the calibration of an adapter, which `lovec tag` applies; expected one that "
                "`lovec calibrate FILE` wrote"
            )
        if not isinstance(data, Mapping) or data.get("kind") != _KIND:
            raise wrong("a calibration of scores", data, f"an object whose kind is {_KIND!r}")
        if data.get("version") != _VERSION:
            raise wrong("version of a calibration", data.get("version"), str(_VERSION))
        # Files of earlier versions lack the judge, the label and its scale, which they did not know.
        known = {"judge": "", "label": "", "label_scale": None} | {
            name: value for name, value in data.items() if name not in ("kind", "version")
        }
        made: ScoreCalibration = read_object(cls, known)
        found = [*made.guarantees, *(kind.guarantee for kind in made.kinds)]
        limits = made._limits(np.array([one.threshold for one in found]))
        found = [replace(one, threshold=limit) for one, limit in zip(found, limits.tolist(), strict=True)]
        own = found[len(made.guarantees) :]
        kinds = tuple(replace(kind, guarantee=one) for kind, one in zip(made.kinds, own, strict=True))
        return replace(made, guarantees=tuple(found[: len(made.guarantees)]), kinds=kinds)

    def _limits(self, thresholds: Array) -> Array:
        """Return the thresholds [T] of a file, which may be finer than float32, as rows are compared with them: [T]."""
        if isinstance(self.map, Stack):
            return thresholds
        found, is_score = thresholds.copy(), np.isfinite(thresholds)
        [column] = self.columns
        found[is_score] = np.fmax(found[is_score], column.features(self._scores_at(thresholds[is_score])))
        return found

    def _scores_at(self, thresholds: ArrayLike) -> Array:
        """Return the scores of the only column, higher for surer, that thresholds [T] are at: [T]."""
        [column] = self.columns
        at = np.asarray(thresholds, dtype=np.float64)
        return at if column.ranks is None else np.asarray(np.interp(at, column.ranks.shares, column.ranks.scores))

    def _directed(self, scores: Sequence[ArrayLike | Mapping[str, ArrayLike]]) -> Array:
        names = [column.key for column in self.columns]
        given: list[Any] = list(scores)
        if len(given) == 1 and isinstance(given[0], Mapping):
            found = checked_object(given[0], "the scores", names)
            given = [found[name] for name in names]
        columns = [np.atleast_1d(as_numbers(values)) for values in given]
        if len(columns) != len(names) or len({values.shape for values in columns}) != 1 or columns[0].ndim != 1:
            shapes = ", ".join(str(list(values.shape)) for values in columns)
            raise LovecError(f"the scores have shapes {shapes}, expected [N] for each of {', '.join(names)}")
        return np.stack([column.directed(values) for column, values in zip(self.columns, columns, strict=True)], 1)

    def _features(self, directed: ArrayLike) -> Array:
        given = as_numbers(directed)
        return np.stack([column.features(given[:, at]) for at, column in enumerate(self.columns)], 1)

    def _mapped(self, features: Array) -> Array:
        there = ~np.isnan(features).any(1)
        confidence = np.full(len(features), np.nan)
        confidence[there] = mapped(self.map, features[there]).clip(0.0, 1.0)
        return confidence


def calibrate_scores(
    scores: Mapping[str, ArrayLike],
    factuality: ArrayLike,
    groups: Sequence[Hashable] | None = None,
    uncertainty: Collection[str] = (),
    scale: float | None = None,
    **options: Any,
) -> tuple[ScoreCalibration, Fitted]:
    """Fit a calibration to the scores of any method and to labels.

    Args:
        scores: the scores of each method or column, [N] by name; NaN where there is none. Several go into a stack.
        factuality: how true each row is, [N], in [0, 1].
        groups: the answer, question or passage that each row belongs to, [N]; None is itself.
        uncertainty: names of the columns whose higher scores are less sure, or the name of one.
        scale: highest confidence of the others' scale, such as 10 or 100; None leaves numbers as they are.
        **options: see ``calibrate_columns``.

    Returns:
        The calibration, and the fit with its candidates and warnings.

    Raises:
        LovecError: an uncertainty is no column; or see ``calibrate_columns``.
    """
    less_sure = [uncertainty] if isinstance(uncertainty, str) else list(uncertainty)
    if unknown := [name for name in less_sure if name not in scores]:
        raise LovecError(f"the uncertainty {unknown[0]!r} is no column of scores, expected one of {', '.join(scores)}")
    columns = [
        Column(name, "uncertainty") if name in less_sure else Column(name, "confidence", scale) for name in scores
    ]
    directed = [column.directed(values) for column, values in zip(columns, scores.values(), strict=True)]
    return calibrate_columns(columns, directed, factuality, groups, **options)


def calibrate_columns(
    columns: Sequence[Column],
    directed: Sequence[ArrayLike],
    factuality: ArrayLike,
    groups: Sequence[Hashable] | None = None,
    *,
    maps: Sequence[str] = ("isotonic", "platt", "beta"),
    promised: Sequence[Promised] = (),
    true_from: float = TRUE_FROM,
    layout: str | None = None,
    group: str = "",
    label: str = "",
    label_scale: float | None = None,
    by: tuple[str, Sequence[str]] | None = None,
    judge: tuple[str, ArrayLike] | None = None,
    data: Iterable[str] = (),
    sources: Sequence[str] = (),
    folds: int = 5,
    draws: int = 2000,
    seed: int = 0,
    earlier: ScoreCalibration | None = None,
) -> tuple[ScoreCalibration, Fitted]:
    """Fit a calibration to scores that are higher for surer.

    Numbers in [0, 1] are mapped as they are; of others only the order counts, so they are replaced by their ranks. No
    label takes part in that, so the same rows serve the map of one column and the thresholds. Of several columns, one
    half of the groups is for the stack and the other for the thresholds, where guarantees are asked for.

    Args:
        columns: what the scores are, without ranks.
        directed: scores of each column, [N], see ``Column.directed``; NaN where there is none.
        factuality: [N], in [0, 1]; with a judge, NaN for rows that people have not labelled.
        groups: what each row belongs to, [N]; None is itself.
        maps: see ``fit_map``.
        promised: guarantees to compute thresholds for.
        true_from: factuality from which a row is true, for the guarantees.
        layout: see ``ScoreCalibration``.
        group: see ``ScoreCalibration``.
        label: see ``ScoreCalibration``.
        label_scale: see ``ScoreCalibration``.
        by: name of the column that says the kind of each row, and the kinds, [N]: each kind gets guarantees of its own.
        judge: name of the column of a judge's labels, and these, [N], NaN where it cannot tell. Of a single column of
            scores, maps and thresholds are then fitted to both, see ``lovec.calibration.judged``, unless people have
            labelled fewer than ``LEAST_GROUPS`` groups.
        data: paths of the files with the rows, of which only the names are kept.
        sources: see ``ScoreCalibration``.
        folds: see ``fit_map``.
        draws: number of draws of the bootstrap for the intervals.
        seed: seed of all that is random.
        earlier: a calibration of the same columns that is replaced: its confidences are those "before". None: the
            scores themselves.

    Returns:
        The calibration, and the fit with its candidates and warnings.

    Raises:
        LovecError: there is no column, the lengths differ, a number is infinite or outside its range; or see
            ``fit_map`` and ``guarantee``.
    """
    check_range("true_from", true_from, above=0, at_most=1)
    truth = as_numbers(factuality)
    numbers = [as_numbers(values) for values in directed]
    owners = list(map(str, range(len(truth)) if groups is None else groups))
    lengths = {len(owners), *(len(values) for values in numbers), len(truth), *([] if by is None else [len(by[1])])}
    if not numbers or len(lengths) > 1 or len(numbers) != len(columns):
        raise LovecError(
            f"a calibration got {len(numbers)} columns of {[len(values) for values in numbers]} scores, {len(truth)} "
            f"labels{'' if by is None else f', {len(by[1])} kinds'} and {len(owners)} groups, expected at least one "
            "column and equally many of each"
        )
    for name in (*(column.key for column in columns), group, label, *([] if by is None else by[:1])):
        checked_text(name, "the name of a column")
    known = [
        _ranked(column, column.directed(column.undirected(values)))
        for column, values in zip(columns, numbers, strict=True)
    ]
    features = np.stack([column.features(values) for column, values in zip(known, numbers, strict=True)], 1)
    stacked = len(known) > 1
    fit_on = promise_on = ~np.isnan(truth) if judge is not None else np.ones(len(truth), dtype=np.bool_)
    rows, notes = (None, []) if judge is None else _judged(truth, judge[1], owners, stacked)
    if promised and stacked:
        names = random_half(owners, seed)
        half = np.array([owner in names for owner in owners], dtype=np.bool_)
        fit_on, promise_on = fit_on & half, promise_on & ~half
    of_kind = _rows_by_kind(by, promise_on, len(promised))
    there = ~np.isnan(features).any(1)
    used = there & fit_on
    labelled = Labelled.of_rows(
        [column.key for column in known],
        features[used],
        truth[used].tolist(),
        [owner for owner, is_used in zip(owners, used, strict=True) if is_used],
        int((fit_on & ~there).sum()),
        [column.ranks is None for column in known],
        stacked,
        ROWS,
    )

    def corrected(passages: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return all scores, with labels that are corrected by people's of some groups."""
        assert rows is not None
        chosen = np.isin(owners, [labelled.names[at] for at in np.unique(passages)])
        told = replace(rows, people=rows.people.where(torch.from_numpy(chosen), torch.nan)).told()
        return features[there], corrected_labels(features[there, 0], told.among(torch.from_numpy(there)))

    fitted = fit_labelled(labelled, maps, folds, seed, None if rows is None else corrected)
    fitted = replace(fitted, warnings=(*fitted.warnings, *notes))
    if earlier is not None:
        before = labelled.pairs(earlier.confidences(np.stack(numbers, 1)[used]))
        fitted = replace(fitted, before=before, order_only=False)
    made = ScoreCalibration(
        columns=tuple(known),
        layout=layout,
        group=group,
        label=label,
        label_scale=label_scale,
        sources=tuple(sources),
        by="" if by is None else by[0],
        judge="" if judge is None or rows is None else judge[0],
        **fitted_fields(fitted, data, draws, seed),
    )
    if not promised:
        return made, fitted
    rated = made._mapped(features) if stacked else features[:, 0]
    told = None if rows is None else rows.told().judge.numpy()
    found_among = partial(_guarantees, promised, true_from, rated, truth, owners, told)
    kinds = [
        KindGuarantee(value, one)
        for value, own in sorted(of_kind.items())
        for one in found_among(own[promise_on[own]], own)
    ]
    everything = found_among(np.flatnonzero(promise_on), np.arange(len(truth)))
    return replace(made, guarantees=tuple(everything), kinds=tuple(kinds)), fitted


def _rows_by_kind(by: tuple[str, Sequence[str]] | None, promise_on: _Kept, promises: int) -> dict[str, _Rows]:
    """Return the rows of each kind that guarantees are for, by the kind.

    Args:
        by: name of the column that says the kind of each row, and the kinds, [N]; None for no kinds.
        promise_on: whether a row counts for guarantees, [N]; a kind without such rows is left out.
        promises: number of guarantees for each kind.

    Raises:
        LovecError: a kind is no printable text, or there would be more guarantees than a calibration holds.
    """
    rows: dict[str, list[int]] = {}
    for at, value in enumerate(() if by is None or not promises else by[1]):
        rows.setdefault(value, []).append(at)
    chosen = {value: np.array(own) for value, own in rows.items() if promise_on[own].any()}
    for value in chosen:
        checked_text(value, "a kind of rows")
    if by is not None and len(chosen) * promises > _MOST_OF_KINDS:
        raise LovecError(
            f"{counted(promises, 'promise')} for each of {len(chosen)} kinds in the column {by[0]!r} are "
            f"{len(chosen) * promises} thresholds, expected at most {_MOST_OF_KINDS}; name a column with fewer kinds"
        )
    return chosen


def _guarantees(
    promised: Sequence[Promised],
    true_from: float,
    rated: Array,
    truth: Array,
    owners: Sequence[str],
    judge: Array | None,
    by_people: _Rows,
    by_judge: _Rows,
) -> list[Guarantee]:
    """Return a guarantee for every promise.

    Args:
        promised: the promises.
        true_from: factuality from which a row is true.
        rated: what rows are kept by, [N].
        truth: people's labels, [N].
        owners: what each row belongs to, [N].
        judge: a judge's labels, [N]; None without a judge.
        by_people: the rows whose labels by people count.
        by_judge: the rows whose labels by the judge count.
    """
    passages = group_passages(rated, truth, owners, true_from, by_people)
    if judge is None:
        return [guarantee(list(passages.values()), *one, true_from) for one in promised]
    of_judge = group_passages(rated, judge, owners, true_from, by_judge)
    theirs = [passages.get(owner) for owner in of_judge]
    return [judged_guarantee(theirs, list(of_judge.values()), *one, true_from) for one in promised]


def group_passages(
    scores: Array, factuality: Array, groups: Sequence[Hashable], true_from: float, among: _Rows | None = None
) -> dict[Hashable, Passage]:
    """Return the groups of rows as passages, for promises, by the group.

    Args:
        scores: what rows are kept by, [N]; NaN where a row has none, so that it is never kept.
        factuality: [N].
        groups: what each row belongs to, [N].
        true_from: factuality from which a row is true.
        among: the numbers of the rows that count; None is all. No other row costs anything.
    """
    chosen = np.arange(len(scores)) if among is None else among
    passages: dict[Hashable, tuple[list[float | None], list[bool]]] = {}
    is_true = (factuality[chosen].astype(np.float32) >= np.float32(true_from)).tolist()  # 0.7 of a float32 is 0.7
    for at, score, true in zip(chosen.tolist(), scores[chosen].tolist(), is_true, strict=True):
        own = passages.setdefault(groups[at], ([], []))
        own[0].append(None if math.isnan(score) else score)
        own[1].append(true)
    return {group: Passage(*own) for group, own in passages.items()}


def load_calibration(path: str | os.PathLike[str]) -> ScoreCalibration:
    """Read what ``lovec calibrate FILE`` wrote; called with scores, it gives calibrated confidences.

    Args:
        path: the file, or its folder.

    Raises:
        LovecError: there is no such file, or it holds something else.
    """
    place = Path(path)
    file = place / CALIBRATION_NAME if place.is_dir() else place
    if not file.is_file():
        raise LovecError(f"there is no calibration {file}, expected what `lovec calibrate FILE` wrote")
    with error_in(f"{file} holds no calibration of scores: "):
        return ScoreCalibration.from_dict(read_json(file, MOST_BYTES, _FIX))


def calibration_text(calibration: ScoreCalibration) -> str:
    """Return the content of the file of a calibration."""
    return json.dumps(calibration.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


CALIBRATION_NAME = "calibration.json"
"""Name of the file in the folder that ``lovec calibrate FILE`` writes."""


def _ranked(column: Column, directed: Array) -> Column:
    """Return a column with the ranks of its scores where these are not numbers in [0, 1].

    Raises:
        LovecError: a score is infinite, or there is none.
    """
    there = directed[~np.isnan(directed)]
    if np.isinf(there).any():
        raise LovecError(f"a score of {column.key} is infinite, expected finite numbers; leave such rows out")
    if not there.size:
        raise LovecError(f"no row has a score {column.key}, expected numbers; name another column")
    if column.kind != "uncertainty" and (there >= -ROUNDING).all() and (there <= 1 + ROUNDING).all():
        return column
    return Column(column.key, column.kind, column.scale, Ranks.of(there))


def _judged(truth: Array, judge: ArrayLike, groups: Sequence[str], stacked: bool) -> tuple[Judged | None, list[str]]:
    """Return the labels of people and of a judge, None where the judge's are not used, and what is to be said.

    Raises:
        LovecError: there are several columns of scores, or not as many labels as rows.
    """
    labels = as_numbers(judge)
    if stacked or labels.shape != truth.shape:
        raise LovecError(
            f"a judge's labels have shape {list(labels.shape)}, and people's {list(truth.shape)}, expected the same, "
            "and a single column of scores; name one column"
        )
    names = {name: at for at, name in enumerate(dict.fromkeys(groups))}
    group = torch.tensor([names[name] for name in groups])
    rows = Judged(torch.from_numpy(truth), torch.from_numpy(labels), group)
    counts = torch.bincount(group[rows.labelled], minlength=len(names))
    if (labelled := int((counts > 0).sum())) < LEAST_GROUPS:
        return None, [
            f"people have labelled rows of {counted(labelled, 'group')}, fewer than the {LEAST_GROUPS} that it takes "
            "to know a judge's errors: the judge's labels are not used"
        ]
    in_part = int(((counts > 0) & (counts < torch.bincount(group))).sum())
    partly = (
        f"people have labelled {counted(in_part, 'group')} in part: what they left out counts as what nobody can judge"
    )
    return rows, [partly] if in_part else []
