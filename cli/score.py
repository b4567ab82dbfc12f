"""``lovec score``: the metrics of results that were made elsewhere."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.datasets.rows import check_rows
from lovec.files import check_output, check_writable
from lovec.progress import note
from lovec.settings import check_count
from lovec.types import LovecError

from .console import check_folder_name, say_next
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.datasets.columns import Columns

_DRAWS = 1000  # of the bootstrap behind the intervals
_MANY = 100_000  # rows of which a reader is told that they take a while
_LAYOUTS = (
    "lovec",
    "uqlm",
    "lm-polygraph",
    "factscore",
    "safe",
    "veriscore",
    "factcheck-gpt",
    "halueval",
    "rlcr",
    "conformal",
    "lm-eval",
)
_MARK = "Written by lovec"


def run(words: list[str]) -> None:
    """Read confidences and labels, print all metrics, and write tables, plots and a page.

    Args:
        words: the command line after ``score``.

    Raises:
        LovecError: a file cannot be read or holds no labels, or the output cannot be written.
    """
    options = _parser().read(words)
    check_count("--draws", options.draws, at_least=0)
    columns = _columns(options)
    paths = list(dict.fromkeys(options.files))
    folder = Path(options.out) if options.out else _default_folder(paths[0])
    check_output(folder, paths)
    check_folder_name(folder)
    for path in paths:
        check_rows(path)
    _check_folder(folder, options.redo)
    check_writable(folder.parent)
    from lovec.datasets.scored import read_scored
    from lovec.reports.scores import measured_files, print_scores, write_scores

    files = []
    for path in paths:
        files.append(read_scored(path, columns, options.layout))
        if files[-1].said:
            note(f"{path}: {files[-1].said}")
    if options.draws and (most := max(len(method.factuality) for file in files for method in file.methods)) > _MANY:
        note(f"drawing from {most} rows takes minutes; --draws 0 leaves the intervals out")
    scores = measured_files(files, options.draws)
    print_scores(scores)
    title = options.title or f"lovec score: {', '.join(Path(path).name for path in paths)}"
    written = write_scores(scores, folder, title, f"{_MARK} {import_module('lovec').__version__}.")
    print(f"\n{written}")
    say_next((f"python -m webbrowser {shlex.quote(str(folder / 'index.html'))}", "look at the page"))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        "score", "All metrics of confidences and labels that were made elsewhere, with tables, plots and a page."
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON Lines, JSON, CSV, TSV or Parquet, also compressed by gzip"
    )
    parser.add_argument(
        "--confidence",
        action="append",
        metavar="COL",
        help="column of the confidences, guessed by default; given several times, each is a method",
    )
    parser.add_argument(
        "--uncertainty",
        action="append",
        metavar="COL",
        help="column of numbers that are higher where the method is less sure; only their order is measured",
    )
    parser.add_argument("--label", metavar="COL", help="column of the labels, guessed by default")
    parser.add_argument(
        "--group", metavar="COL", help='column that says which rows belong together, guessed by default; "" for none'
    )
    parser.add_argument(
        "--confidence_scale", type=float, metavar="TOP", help="highest confidence, such as 10 or 100 (default: 1)"
    )
    parser.add_argument("--label_scale", type=float, metavar="TOP", help="highest label, such as 10 (default: 1)")
    parser.add_argument(
        "--layout", choices=_LAYOUTS, help="whose results these are; recognised by default where no column is named"
    )
    parser.add_argument("--draws", type=int, default=_DRAWS, help="bootstrap draws behind the intervals; 0 for none")
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: NAME.score beside the first file)")
    parser.add_argument("--redo", action="store_true", help="replace what an earlier `lovec score` has written there")
    parser.add_argument("--title", help="heading of the page (default: the names of the files)")
    return parser


def _columns(options: Namespace) -> Columns:
    from lovec.datasets.columns import Columns

    return Columns(
        tuple(options.confidence or ()),
        tuple(options.uncertainty or ()),
        options.label,
        options.group,
        options.confidence_scale,
        options.label_scale,
    )


def _default_folder(path: str) -> Path:
    """Return the folder beside a file: ``results.csv.gz`` is written to ``results.score``."""
    from lovec.datasets.hub_rows import HubRows

    if HubRows.parse(path) is not None:  # beside no file: into the working directory
        return Path(f"{re.sub(r'[^A-Za-z0-9._-]+', '-', path.partition('/')[2])}.score")
    plain = Path(path.removesuffix(".gz"))
    return plain.with_name(f"{plain.stem}.score")


def _check_folder(folder: Path, redo: bool) -> None:
    """Refuse a folder that holds something, unless an earlier call has written it and it is to be replaced.

    Raises:
        LovecError: it holds something.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        ours = _MARK in (folder / "index.html").read_text(encoding="utf-8", errors="replace")
        ours = ours and (folder / "tables" / "scores.csv").is_file()
    except OSError:
        ours = False
    if not ours:
        raise LovecError(f"{folder} exists and `lovec score` has not written it; give another --out")
    if not redo:
        raise LovecError(f"{folder} exists; give --redo to replace it, or another --out")
