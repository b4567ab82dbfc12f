"""``lovec apply``: confidences of new rows by the calibration of a file of scores."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lovec.core.files import atomic_file, check_output, check_unused, check_writable
from lovec.core.notices import counted, listed
from lovec.core.progress import note
from lovec.core.settings import check_range
from lovec.datasets.rows import TableForm, check_rows, table_form
from lovec.types import LovecError, error_in

from .console import locked, warn
from .errors import UsageError
from .parser import OneLineParser
from .score import beside, named_columns

if TYPE_CHECKING:
    from lovec.calibration import Guarantee, ScoreCalibration
    from lovec.calibration.logistic import Array
    from lovec.datasets.scored import ScoredRow

CONFIDENCE, KEPT = "calibrated", "kept"
"""Columns that are added."""

_AT_ONCE = 4096
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_COMMA = re.compile(r"^[^.,\[{]*\d,\d[^.,]*$")


def run(words: list[str]) -> None:
    """Write the rows of a file with calibrated confidences, and whether a guarantee keeps them.

    Args:
        words: the command line after ``apply``.

    Raises:
        LovecError: the calibration or the file cannot be read, lacks a column, or the output cannot be written.
    """
    parser = OneLineParser(
        "apply", "Give the rows of a file calibrated confidences, as `lovec calibrate FILE` fitted them."
    )
    parser.add_argument("calibration", metavar="CALIBRATION", help="what `lovec calibrate FILE` wrote: file or folder")
    parser.add_argument("file", metavar="FILE", help="new scores, in columns of the same names; labels are not needed")
    parser.add_argument(
        "--keep_factual", type=float, metavar="P", help=f"say in a column {KEPT!r} which rows this guarantee keeps"
    )
    parser.add_argument(
        "--min_confidence",
        type=float,
        metavar="C",
        help=f"say in a column {KEPT!r} which rows have this confidence or more",
    )
    parser.add_argument("--drop", action="store_true", help="leave out the rows that are not kept")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="CSV (.csv), TSV or JSON Lines to write (default: NAME.calibrated beside the file)",
    )
    parser.add_argument("--redo", action="store_true", help="replace the output if it is there")
    options = parser.read(words)
    if options.keep_factual is not None and options.min_confidence is not None:
        raise UsageError("--keep_factual and --min_confidence both say what is kept; give one of them")
    if options.drop and options.keep_factual is None and options.min_confidence is None:
        raise UsageError("--drop leaves out what is not kept; give --keep_factual or --min_confidence")
    if options.min_confidence is not None:
        check_range("--min_confidence", options.min_confidence, at_least=0, at_most=1)
    out = Path(options.out) if options.out else beside(options.file, "calibrated", _ending(options.file))
    if out.suffix.lower() not in (*_SEPARATORS, *_LINES):
        raise UsageError(f"--out is {options.out}, expected a name that ends in {', '.join([*_SEPARATORS, *_LINES])}")
    check_rows(options.file)
    check_output(out, [options.file, options.calibration])
    if not options.redo:
        check_unused(out, "give --redo to replace it, or another --out")
    check_writable(out.parent)
    from lovec.calibration import load_calibration
    from lovec.datasets.columns import GUESSED
    from lovec.datasets.scored import read_scores

    calibration = load_calibration(options.calibration)
    promised = None if options.keep_factual is None else calibration.threshold(options.keep_factual)
    columns = named_columns(calibration, GUESSED)
    if promised is None:
        columns = replace(columns, by=None)
    rows = read_scores(options.file, columns, calibration.layout, as_written=out.suffix.lower() in _SEPARATORS)
    applied = _Applied(calibration, columns.methods, promised, options.min_confidence, options.drop)
    form = _form(options.file, out)
    encoding = "utf-8-sig" if form is not None and form.has_mark else "utf-8"
    with locked(out), atomic_file(out) as staging, open(staging, "w", encoding=encoding, newline="") as file:
        write, commas = _writer(file, form), False
        while batch := list(islice(rows, _AT_ONCE)):
            commas = commas or (form is not None and _has_commas(batch, columns.methods))
            for row in applied.rows(batch):
                if commas and isinstance(row[CONFIDENCE], float):
                    row[CONFIDENCE] = str(row[CONFIDENCE]).replace(".", ",")
                write(row, options.drop and not row[KEPT])
    for line in applied.summary():
        note(f"{out}: {line}")
    for line in applied.warnings():
        warn(line)


class _Applied:
    """A calibration that is applied to rows, and what was counted on the way.

    Args:
        calibration: the calibration.
        methods: what the scores of a row are of, in their order.
        promised: the guarantee that says what is kept; None for none.
        least: the confidence from which a row is kept; None for none.
        drop: whether rows that are not kept are left out.
    """

    def __init__(
        self,
        calibration: ScoreCalibration,
        methods: Sequence[str],
        promised: Guarantee | None,
        least: float | None,
        drop: bool,
    ) -> None:
        # The columns of a calibration may stand in any order; those that are read are confidences first.
        self._order = [methods.index(column.key) for column in calibration.columns]
        self.calibration, self.promised, self.least, self.drop = calibration, promised, least, drop
        self.seen = self.kept = self.unscored = 0
        self.unknown: set[str] = set()
        self._directed: list[Any] = []
        self._groups: list[str] = []

    def rows(self, batch: Sequence[ScoredRow]) -> Iterator[dict[str, Any]]:
        """Yield rows with the columns that are added.

        Raises:
            LovecError: a row has such a column already, or a score is out of its range.
        """
        import numpy as np

        directed = np.concatenate([self._of_row(row) for row in batch])
        try:
            confidences = self.calibration.confidences(directed)
        except LovecError:
            for row in batch:
                with error_in(f"{row.place}: "):
                    self.calibration.confidences(self._of_row(row))
            raise
        keeps = confidences >= self.least if self.least is not None else None
        if self.promised is not None:
            kinds = [row.by or "" for row in batch for _ in row.scores[0]] if self.calibration.by else None
            keeps = self.calibration.keeps_directed(directed, self.promised.keep_factual, kinds)
            self.unknown.update(
                set(kinds or ()) - self.calibration.thresholds_by_kind(self.promised.keep_factual).keys()
            )
        at = 0
        for number, row in enumerate(batch, len(self._groups)):
            if taken := [name for name in (CONFIDENCE, *([] if keeps is None else [KEPT])) if name in row.row]:
                raise LovecError(f"the rows have a column {taken[0]!r} already; rename it, since it would be replaced")
            own = slice(at, at := at + len(row.scores[0]))
            found = [None if value != value else round(value, 6) for value in confidences[own].tolist()]
            added: dict[str, Any] = {CONFIDENCE: found if row.listed else found[0]}
            self.seen, self.unscored = self.seen + len(found), self.unscored + found.count(None)
            self._groups += [row.group or f"row {number}"] * len(found)
            if keeps is not None:
                kept = keeps[own].tolist()
                self.kept += sum(kept)
                added[KEPT] = kept if row.listed else kept[0]
                if self.drop and row.listed:
                    raise LovecError("a row holds several scores, of which --drop cannot leave out some; omit --drop")
            yield {**row.row, **added}
        self._directed.append(directed)

    def _of_row(self, row: ScoredRow) -> Array:
        """Return the scores of a row, [what it holds, columns], in the order of the calibration."""
        import numpy as np

        return np.array(row.scores, dtype=np.float64).T[:, self._order]

    def summary(self) -> Iterator[str]:
        """Yield what was done, a sentence each."""
        yield self.calibration.describe()
        said = counted(self.seen, "row")
        if self.promised is not None or self.least is not None:
            said += f", {self.kept} kept"
        yield said + (f"; {self.unscored} without a score get no confidence" if self.unscored else "")
        if self.promised is not None:
            each = f" for each {self.calibration.by} by itself" if self.calibration.by else ""
            yield f"promised{each}: {self.promised.promise('row', 'group')}"

    def warnings(self) -> Iterator[str]:
        """Yield what speaks against trusting it, a sentence each."""
        if self.unknown:
            kinds = listed([value or "(none)" for value in sorted(self.unknown)])
            yield f"nothing is kept of what the calibration has not seen: {kinds}"
        if (drift := self._drift()) is not None:
            yield drift

    def _drift(self) -> str | None:
        """Return how the rows differ from those that the calibration was fitted to."""
        import numpy as np

        return self.calibration.drift(np.concatenate(self._directed), self._groups) if self._directed else None


def _ending(path: str) -> str:
    """Return the ending of the output: that of a table of text, else .jsonl."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in _SEPARATORS else _LINES[0]


def _form(source: str, out: Path) -> TableForm | None:
    """Return how a table of text is to be written: as the rows were, if both names end alike; None for JSON Lines."""
    separator = _SEPARATORS.get(out.suffix.lower())
    if separator is None:
        return None
    same = table_form(source) if _ending(source) == out.suffix.lower() else None
    return same or TableForm(separator, False, "\n")


def _has_commas(batch: Sequence[ScoredRow], columns: Sequence[str]) -> bool:
    """Return whether the scores of rows are texts that have a comma for the decimal point."""
    from lovec.datasets.columns import value_at

    cells = (value_at(row.row, name) for row in batch for name in columns)
    return any(isinstance(cell, str) and _COMMA.search(cell) for cell in cells)


def _writer(file: IO[str], form: TableForm | None) -> Callable[[Mapping[str, Any], bool], object]:
    """Return what writes a row, as a table of text in a form or as JSON Lines.

    It is called with every row, and whether that is left out: the first one names the columns of a table either way.
    """
    if form is None:
        return lambda row, left_out: left_out or file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    made: list[csv.DictWriter[str]] = []

    def write(row: Mapping[str, Any], left_out: bool) -> None:
        if not made:
            made.append(csv.DictWriter(file, list(row), delimiter=form.separator, lineterminator=form.line_end))
            made[0].writeheader()
        if left_out:
            return
        if unknown := [name for name in row if name not in made[0].fieldnames]:
            raise LovecError(f"a row has the column {unknown[0]!r}, which the first one lacks; write to a .jsonl --out")
        made[0].writerow({name: _cell(value) for name, value in row.items()})

    return write


def _cell(value: Any) -> Any:
    """Return a value as a table of text has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
