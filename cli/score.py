"""``lovec score``: the metrics of results that were made elsewhere."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.core.files import check_output, check_writable
from lovec.core.progress import note
from lovec.core.settings import check_count
from lovec.datasets.rows import check_rows
from lovec.types import LovecError

from .console import say_next
from .errors import check_folder_name
from .pages import foot, has_own_page
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.calibration import ScoreCalibration
    from lovec.datasets.columns import Columns

_DRAWS = 1000  # of the bootstrap behind the intervals
_MANY = 100_000  # rows of which a reader is told that they take a while


def run(words: list[str]) -> None:
    """Read confidences and labels, print all metrics, and write tables, plots and a page.

    Args:
        words: the command line after ``score``.

    Raises:
        LovecError: a file cannot be read or holds no labels, or the output cannot be written.
    """
    options = _parser().read(words)
    check_count("--draws", options.draws, at_least=0)
    columns = replace(columns_of(options), judge=options.judge)
    paths = list(dict.fromkeys(options.files))
    folder = Path(options.out) if options.out else beside(paths[0], "score")
    check_output(folder, [*paths, options.calibration])
    check_folder(folder, "score", options.redo)
    for path in paths:
        check_rows(path)
    calibration = None
    if options.calibration:
        from lovec.calibration import load_calibration

        calibration = load_calibration(options.calibration)
        if not options.layout and not (columns.methods and calibration.layout):
            columns, options.layout = named_columns(calibration, columns), calibration.layout
    from lovec.datasets.scored import read_scored
    from lovec.reports.calibrated import with_calibrated
    from lovec.reports.scores import measured_files, print_scores, write_scores

    files, notes = [], []
    for path in paths:
        known, dropped = known_kinds(columns, path) if calibration is not None else (columns, [])
        notes += [f"{line}." for line in dropped]
        file = read_scored(path, known, options.layout)
        if file.said:
            note(f"{path}: {file.said}")
        if calibration is not None:
            file, said = with_calibrated(file, calibration)
            notes += said
        files.append(file)
    if options.draws and (most := max(len(method.factuality) for file in files for method in file.methods)) > _MANY:
        note(f"drawing from {most} rows takes minutes; --draws 0 leaves the intervals out")
    scores = measured_files(files, options.draws)
    scores = replace(scores, notes=(*notes, *scores.notes))
    title = options.title or f"lovec score: {', '.join(Path(path).name for path in paths)}"
    written = write_scores(scores, folder, title, foot())
    print_scores(scores)
    print(f"\n{written}")
    say_next((f"python -m webbrowser {shlex.quote(str(folder / 'index.html'))}", "look at the page"))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        "score", "All metrics of confidences and labels that were made elsewhere, with tables, plots and a page."
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON Lines, JSON, CSV, TSV or Parquet, also compressed by gzip"
    )
    add_column_options(parser)
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="also measure the confidences that this calibration of `lovec calibrate FILE` gives",
    )
    parser.add_argument(
        "--judge",
        metavar="COL",
        help="column of a judge's labels of all rows, of which --label has people's for some: mean factuality, Brier "
        "score and ECE-M from both, corrected for the judge's errors",
    )
    parser.add_argument("--draws", type=int, default=_DRAWS, help="bootstrap draws behind the intervals; 0 for none")
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: NAME.score beside the first file)")
    parser.add_argument("--redo", action="store_true", help="replace what an earlier `lovec score` has written there")
    parser.add_argument("--title", help="heading of the page (default: the names of the files)")
    return parser


def add_column_options(parser: OneLineParser, together: bool = False) -> None:
    """Add the options that say what the columns of a file hold.

    Args:
        parser: the parser of the command.
        together: whether several columns give one confidence; if not, each is measured as a method.
    """
    from lovec.datasets.layouts import layout_names

    parser.add_argument(
        "--confidence",
        action="append",
        metavar="COL",
        help="column of the confidences, guessed by default; given several times, "
        + ("all are combined into one confidence" if together else "each is a method"),
    )
    parser.add_argument(
        "--uncertainty",
        action="append",
        metavar="COL",
        help="column of numbers that are higher where the method is less sure"
        + ("" if together else "; only their order is measured"),
    )
    parser.add_argument("--label", metavar="COL", help="column of the labels, guessed by default")
    parser.add_argument(
        "--group",
        metavar="COL",
        help="column that says which rows belong together, guessed by default; of a layout `question`, or a key of a "
        'record\'s meta (default: the record); "" for none',
    )
    parser.add_argument(
        "--confidence_scale", type=float, metavar="TOP", help="highest confidence, such as 10 or 100 (default: 1)"
    )
    parser.add_argument("--label_scale", type=float, metavar="TOP", help="highest label, such as 10 (default: 1)")
    parser.add_argument(
        "--layout", choices=layout_names(), help="whose results these are; recognised by default if no column is named"
    )


def columns_of(options: Namespace) -> Columns:
    """Return which columns to read, and how, by the options of `add_column_options`."""
    from lovec.datasets.columns import Columns

    return Columns(
        tuple(options.confidence or ()),
        tuple(options.uncertainty or ()),
        options.label,
        options.group,
        options.confidence_scale,
        options.label_scale,
    )


def named_columns(calibration: ScoreCalibration, columns: Columns) -> Columns:
    """Return columns with the names and the scale of those that a calibration was fitted to.

    Its promises are about its label and its groups, so these are taken from it, too, unless the columns name others.

    Raises:
        LovecError: its columns have different scales, as no command fits them.
    """

    def keys(kind: str) -> tuple[str, ...]:
        return tuple(column.key for column in calibration.columns if column.kind == kind)

    group: str | None = columns.group if columns.group is not None else calibration.group
    if calibration.layout:  # which says itself what its methods give
        every = tuple(column.key for column in calibration.columns)  # "" is the only method of some layouts
        group = group or columns.group  # without a name, what the layout says
        return replace(columns, confidence=every, group=group, by=calibration.by or None)
    if not group and columns.group is None and calibration.fitted.passages < calibration.fitted.sentences:
        group = None  # it was made in Python, of groups in a column that it does not know
    # The scale of labels belongs to their column.
    same_label = columns.label in (None, calibration.label)
    columns = replace(
        columns,
        group=group,
        label=columns.label or calibration.label or None,
        label_scale=columns.label_scale or (calibration.label_scale if same_label else None),
    )
    scales = list({column.scale for column in calibration.columns if column.kind == "confidence"})
    if len(scales) > 1:
        raise LovecError(
            f"the columns {', '.join(keys('confidence'))} of the calibration have different scales, expected the same, "
            "as of a table; apply it in Python"
        )
    if scales and columns.confidence_scale is not None and columns.confidence_scale != (scales[0] or 1):
        fitted = "numbers as they are" if scales[0] is None else f"confidences up to {scales[0]:g}"
        raise LovecError(
            f"--confidence_scale is {columns.confidence_scale:g}, and the calibration was fitted to {fitted}; leave it "
            "out"
        )
    scale = scales[0] if scales else columns.confidence_scale
    if columns.methods:  # named, to be measured beside what the calibration makes of its own
        own = set(columns.confidence) <= set(keys("confidence"))
        return replace(columns, confidence_scale=scale if own else columns.confidence_scale)
    return replace(
        columns,
        confidence=keys("confidence"),
        uncertainty=keys("uncertainty"),
        confidence_scale=scale,
        by=calibration.by or None,
    )


def known_kinds(columns: Columns, path: str) -> tuple[Columns, list[str]]:
    """Return the columns of a calibration, and what there is to say, without kinds of rows that verdicts do not tell.

    Raises:
        LovecError: the file cannot be read.
    """
    from lovec.datasets.scored import lacks_kinds

    by = columns.by
    if by is None or not lacks_kinds(path, by):
        return columns, []
    said = f"{path}: a server's verdicts do not say the {by!r} of a row, so the promises for each {by} are left out"
    return replace(columns, by=None), [f"{said}; to have them, add it to the lines"]


def beside(path: str, command: str, suffix: str | None = None) -> Path:
    """Return what a command writes beside a file: ``results.score`` beside ``results.csv.gz``."""
    from lovec.datasets.hub_rows import HubRows

    name = f".{command}{suffix or ''}"
    if HubRows.parse(path) is not None:  # beside no file: into the working directory
        return Path(re.sub(r"[^A-Za-z0-9._-]+", "-", path.partition("/")[2]) + name)
    plain = Path(path.removesuffix(".gz"))
    return plain.with_name(plain.stem + name)


def check_folder(folder: Path, command: str, redo: bool) -> None:
    """Refuse a folder that holds something, unless an earlier call has written it and it is to be replaced.

    Raises:
        LovecError: it holds something, or cannot be written.
    """
    check_folder_name("--out", folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if not (has_own_page(folder) and (folder / "tables" / "scores.csv").is_file()):
            raise LovecError(f"{folder} exists and `lovec {command}` has not written it; give another --out")
        if not redo:
            raise LovecError(f"{folder} exists; give --redo to replace it, or another --out")
    check_writable(folder.parent)
