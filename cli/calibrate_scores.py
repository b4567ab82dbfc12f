"""``lovec calibrate FILE``: fit a map from scores of any origin to how often the rated rows are true."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.core.files import check_output
from lovec.core.notices import counted
from lovec.core.progress import note
from lovec.core.settings import check_choice, check_count, check_range
from lovec.datasets.rows import check_rows
from lovec.metrics.table import METRICS
from lovec.types import LovecError, Promise

from .console import say_next, warn
from .errors import UsageError
from .pages import foot
from .parser import OneLineParser
from .score import add_column_options, beside, check_folder, columns_of, known_kinds, named_columns

if TYPE_CHECKING:
    from lovec.calibration import Fitted, Promised, ScoreCalibration
    from lovec.calibration.calibration import FittedMap
    from lovec.calibration.conformal import Guarantee
    from lovec.calibration.logistic import Array
    from lovec.datasets.columns import Columns
    from lovec.datasets.scored import ScoredFile

_DRAWS = 2000


def run(words: list[str]) -> None:
    """Fit and write the calibration of the scores in a file.

    Args:
        words: the command line after ``calibrate``.

    Raises:
        LovecError: the file cannot be read or holds too few labels, or the output cannot be written.
    """
    options = _parser().read(words)
    columns = _checked_columns(options)
    source = options.feedback or options.source
    folder = Path(options.out) if options.out else beside(source, "calibration")
    check_output(folder, [options.source, source])
    check_folder(folder, "calibrate", options.redo)
    check_rows(source)
    from lovec.calibration.scores import (
        CALIBRATION_NAME,
        Column,
        calibrate_columns,
        calibration_text,
        load_calibration,
    )
    from lovec.core.provenance import file_digest
    from lovec.reports.calibrated import chosen_methods, cross_fitted
    from lovec.reports.scores import measured_files, write_scores

    earlier = load_calibration(options.source) if options.feedback else None
    layout, dropped = options.layout, list[str]()
    if earlier is not None:
        columns, layout = named_columns(earlier, columns), earlier.layout
        columns = replace(columns, judge=columns.judge if options.judge is not None else earlier.judge or None)
        _check_judge(columns)
        columns, dropped = known_kinds(columns, source)
    file = _read(source, columns, layout)
    methods = chosen_methods(file, earlier)
    rows, judge = methods[0].judged, None
    if rows is None:
        directed = [method.confidence.numpy() for method in methods]
        truth, group = methods[0].factuality, methods[0].group
    else:
        directed = [m.judged.confidence.numpy() for m in methods if m.judged and m.judged.confidence is not None]
        truth, group, judge = rows.people, rows.group, (str(columns.judge), rows.judge.numpy())
        methods = [replace(method, judged=None) for method in methods]  # the page is about people's labels
    groups = group.tolist() if methods[0].grouped else None
    if groups and len({*groups}) < 2:
        same = f"have the same {file.columns.group!r}" if file.columns.group else "are of one answer"
        raise LovecError(
            f"{source}: all labelled rows {same}, expected rows of two groups or more: a map is chosen on groups that "
            'it was not fitted to; where each row stands for itself, say --group ""'
        )
    promised, true_from = options.promises.made(earlier.guarantees if earlier is not None else ())
    made, fitted = calibrate_columns(
        [
            Column(method.name, method.kind, file.columns.confidence_scale if method.kind == "confidence" else None)
            for method in methods
        ],
        directed,
        truth.numpy(),
        groups,
        promised=promised,
        true_from=true_from,
        layout=file.layout,
        group=file.columns.group or "",
        label="" if file.layout else file.columns.label or "",
        label_scale=None if file.layout else file.columns.label_scale,
        by=None if methods[0].by is None else (str(columns.by), methods[0].by),
        judge=judge,
        data=[source],
        sources=[file_digest(source)],
        draws=options.draws,
        earlier=earlier,
    )
    told = _described(made)
    probabilities = [round(1 - one.alpha, 9) for one in promised]
    lines = [] if earlier is None else _thresholds_before(earlier, directed, truth.numpy(), groups)
    lines += [_by_kind(made, probability) for probability in probabilities] if made.by else []
    scores = measured_files([cross_fitted(file, methods, fitted)], options.draws)
    notes = [
        f"{made.describe()}.",
        *(f"--keep_factual {g.keep_factual:g}: {t}." for g, t in zip(made.guarantees, told, strict=True)),
        *(f"{line}." for line in (*lines, *dropped)),
    ]
    scores = replace(scores, notes=(*notes, *fitted.warnings, *scores.notes))
    title = options.title or f"lovec calibrate: {Path(source).name}"
    written = write_scores(scores, folder, title, foot(), {CALIBRATION_NAME: calibration_text(made)})
    report(f"{source}: {made.describe()}", made, fitted, told)
    for line in dropped:
        warn(line)
    for line in lines:
        print(f"  {line}")
    print(f"\n{written}")
    calibration, keep = shlex.quote(str(folder)), f" --keep_factual {probabilities[0]:g}" if probabilities else ""
    say_next(
        (f"lovec apply {calibration} NEW_FILE{keep}", "confidences of new rows"),
        (f"lovec score NEW_FILE --calibration {calibration}", "how good they are, where there are labels"),
        (f"python -m webbrowser {shlex.quote(str(folder / 'index.html'))}", "look at the page"),
    )


def _checked_columns(options: argparse.Namespace) -> Columns:
    """Return the columns that the command line names.

    Raises:
        UsageError: options do not go together.
        LovecError: a value is out of its range.
    """
    check_count("--draws", options.draws)
    options.promises = AskedPromises(
        tuple(options.keep_factual or ()), options.promise, options.share, options.true_from
    ).checked(bool(options.feedback))
    if options.promise_by and not options.keep_factual:
        raise UsageError("--promise_by needs --keep_factual, which says what is promised")
    columns = replace(columns_of(options), by=options.promise_by, judge=options.judge or None)
    _check_judge(columns)
    if options.feedback and (columns.methods or columns.by or options.layout):
        raise UsageError("--feedback takes the columns of the calibration that is fitted again; name no others")
    if not options.feedback and os.path.isdir(options.source):
        raise UsageError(f"{options.source} is a calibration; to fit it again, give labels with --feedback FILE")
    return columns


def _check_judge(columns: Columns) -> None:
    """Refuse a judge beside promises for kinds of rows, whether the command line or a calibration names them.

    Raises:
        UsageError: both are named.
    """
    if columns.judge and columns.by:
        raise UsageError("--judge and --promise_by both need labels of each kind of rows; give one of them")


def _read(source: str, columns: Columns, layout: str | None) -> ScoredFile:
    """Return the scores of a file; of a run, the mean of the distribution only, unless columns are named."""
    from lovec.datasets.scored import MEAN, read_scored

    file = read_scored(source, columns, layout)
    if file.said:
        note(f"{source}: {file.said}")
    means = tuple(method for method in file.methods if method.name == MEAN)
    return replace(file, methods=means) if means and not columns.methods else file


def _described(made: ScoreCalibration) -> list[str]:
    """Return what each guarantee promises, and which rows it keeps where that can be said in scores."""
    told = []
    for found in made.guarantees:
        kept = made.least_kept(found)
        told.append(found.describe("row", "group") + ("" if kept is None else f": those with {kept}"))
    return told


def _thresholds_before(
    earlier: ScoreCalibration, directed: Sequence[Array], truth: Array, groups: Sequence[Hashable] | None
) -> list[str]:
    """Return what came of the promises of the calibration that is replaced, among the new rows.

    Args:
        earlier: that calibration.
        directed: scores of each column, [N], higher for surer.
        truth: factuality of each row, [N]; NaN where it is not known.
        groups: what each row belongs to, [N]; None is itself.
    """
    import numpy as np

    from lovec.calibration.scores import group_passages
    from lovec.reports.calibrated import told_of_promise

    ranks, owners, told = earlier.ranks(np.stack(directed, 1)), groups or range(len(truth)), []
    labelled = np.flatnonzero(~np.isnan(truth))  # with a judge, the other rows have its labels only
    for one in earlier.guarantees:
        passages = group_passages(ranks, truth, owners, one.true_from, labelled)
        told.append(f"the threshold before: {told_of_promise(one, passages.values())}")
    return told


def _by_kind(made: ScoreCalibration, probability: float) -> str:
    """Return in words what the promises for each kind of rows keep."""
    parts = []
    for value, found in made.thresholds_by_kind(probability).items():
        kept = "nothing (too few, or too many errors)" if found.keeps_nothing else f"{100 * found.kept:.0f} %"
        counts = f"{counted(found.sentences, 'row')} of {counted(found.passages, 'group')}"
        parts.append(f"{value or '(none)'} keeps {kept} of {counts}")
    return f"--keep_factual {probability:g} for each {made.by} by itself: {'; '.join(parts)}"


@dataclass(frozen=True)
class AskedPromises:
    """The guarantees that a command line asks for; None is what was not given.

    Attributes:
        keep_factual: probabilities of the guarantees.
        kind: what they promise; by default that all kept units are true.
        share: for the promise of a share; by default 1.
        true_from: factuality from which a unit is true; by default 0.5.
    """

    keep_factual: Sequence[float] = ()
    kind: Promise | None = None
    share: float | None = None
    true_from: float | None = None

    def checked(self, again: bool) -> AskedPromises:
        """Return them, if they are in their ranges and go together.

        Args:
            again: whether a calibration is fitted again, which may have a promise of a share already.

        Raises:
            UsageError: something is said of a promise, and none is asked for.
            LovecError: a value is out of its range, or a share is given to a kind that takes none.
        """
        for probability in self.keep_factual:
            check_range("--keep_factual", probability, above=0, below=1)
        if self.kind is not None:
            check_choice("--promise", self.kind, Promise)
        for name, value in (("--share", self.share), ("--true_from", self.true_from)):
            if value is not None:
                check_range(name, value, above=0, at_most=1)
        if not again:
            self._check_share(self.kind)
        of_it = {"--promise": self.kind, "--share": self.share, "--true_from": self.true_from}
        if not self.keep_factual and (given := [name for name, value in of_it.items() if value is not None]):
            raise UsageError(f"{given[0]} says what --keep_factual promises; give --keep_factual, too")
        return self

    def made(self, earlier: Sequence[Guarantee] = ()) -> tuple[list[Promised], float]:
        """Return the guarantees to compute, and the factuality from which a unit is true for them.

        Args:
            earlier: guarantees of the calibration that is fitted again. Without probabilities they are computed again;
                with some, what else was not given is that of the first of them.

        Raises:
            LovecError: a share is given to a kind that takes none.
        """
        from lovec.calibration import Promised
        from lovec.calibration.conformal import TRUE_FROM

        before = Promised.of(earlier[0]) if earlier else Promised(0.0)
        true_from = self.true_from or (earlier[0].true_from if earlier else TRUE_FROM)
        if not self.keep_factual:
            return [Promised.of(found) for found in earlier], true_from
        kind = self.kind or before.kind
        self._check_share(kind)
        share = self.share or (before.share if kind == before.kind else 1.0)
        alphas = [round(1 - probability, 9) for probability in dict.fromkeys(self.keep_factual)]
        return [Promised(alpha, kind, share) for alpha in alphas], true_from

    def _check_share(self, kind: Promise | None) -> None:
        if self.share not in (None, 1) and kind != "share":
            raise LovecError(f"--share is {self.share:g}, which only --promise share takes")


def report(title: str, made: FittedMap, fitted: Fitted, guarantees: Sequence[str]) -> None:
    """Print what a map does, before and after, and what is promised.

    Args:
        title: what was calibrated.
        made: the calibration.
        fitted: its fit.
        guarantees: a sentence for each guarantee of the calibration.
    """
    print(f"\n{title}")
    print(f"  {'':8} {'before':>22} {'after, cross-fitted':>22}")
    for name, before in made.fitted.metrics["before"].items():
        ends = (before, made.fitted.metrics["after"][name])
        print(f"  {METRICS[name].heading:8} {_interval(ends[0]):>22} {_interval(ends[1]):>22}")
    tried = ", ".join(f"{candidate.name} {100 * candidate.brier:.2f}" for candidate in fitted.candidates)
    print(f"  Brier score of each map, cross-fitted: {tried}")
    for guarantee, told in zip(made.guarantees, guarantees, strict=True):
        print(f"  --keep_factual {guarantee.keep_factual:g}: {told}")
    for warning in fitted.warnings:
        warn(warning)


def _interval(ends: Sequence[float] | None) -> str:
    if ends is None:
        return "-"
    value, low, high = (100 * end for end in ends)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _read_numbers(text: str) -> list[float]:
    """Return the numbers that a word holds: one, or a list in brackets.

    Raises:
        UsageError: one is no number.
    """
    listed = text.startswith("[") and text.endswith("]")
    try:
        return [float(number) for number in (text[1:-1].split(",") if listed else [text])]
    except ValueError:
        raise UsageError(f"--keep_factual is {text}, expected a number, or a list such as [0.9,0.8]") from None


def _parser() -> OneLineParser:
    parser = OneLineParser(
        "calibrate",
        "Fit a map from scores of any origin to how often the rated rows are true, and thresholds with a guarantee. "
        "No model is needed. Several columns are combined into one confidence. With a RUN in place of the file, the "
        "scores of its adapter are calibrated: `lovec calibrate --help`.",
    )
    parser.add_argument("source", metavar="FILE", help="scores and labels, in any form that `lovec score` reads")
    parser.add_argument(
        "--feedback",
        metavar="FILE",
        help="new scores and labels, such as verdicts that `lovec serve --feedback` has written; with the folder of a "
        "calibration of the same columns in place of FILE, that one is fitted again, with its promises where "
        "--keep_factual gives no others",
    )
    add_column_options(parser, together=True)
    parser.add_argument(
        "--keep_factual",
        type=_read_numbers,
        action="extend",
        metavar="P",
        help="probability of a guarantee, such as 0.9, for which a threshold is computed; may be given several times, "
        "or as a list such as [0.9,0.8]",
    )
    parser.add_argument(
        "--promise",
        metavar="{all-true,share,errors}",
        help="what it is about: with that probability all kept rows of a group are true, or at least a --share of them "
        "is; or the kept false rows are on average at most a share of 1 minus that probability of all rows "
        "(default: all-true)",
    )
    parser.add_argument(
        "--promise_by",
        metavar="COL",
        help="column whose values, such as rare and famous, each get a promise of their own",
    )
    parser.add_argument(
        "--judge",
        metavar="COL",
        help="column of a judge's labels of all rows, of which --label has people's for some: map and thresholds from "
        'both, corrected for the judge\'s errors; with --feedback the column of the calibration, or "" for none',
    )
    parser.add_argument("--share", type=float, help="for --promise share, the share that is true (default: 1)")
    parser.add_argument("--true_from", type=float, metavar="F", help="label from which a row is true (default: 0.5)")
    parser.add_argument("--draws", type=int, default=_DRAWS, help="bootstrap draws behind the intervals, at least 1")
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: NAME.calibration beside the file)")
    parser.add_argument("--redo", action="store_true", help="replace what an earlier call has written there")
    parser.add_argument("--title", help="heading of the page (default: the name of the file)")
    return parser
