"""``lovec score``: the metrics of results that were made elsewhere."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.files import check_output, check_unused, check_writable
from lovec.types import LovecError, check_count, check_range

from .parser import OneLineParser

if TYPE_CHECKING:
    from argparse import Namespace

    from lovec.datasets.columns import Columns

_DRAWS = 1000  # of the bootstrap behind the intervals
_FACTS = 64  # K of F1@K, as the authors of LongFact use it
_MARK = "Written by lovec"
_LAYOUTS = "lovec, uqlm, lm-polygraph, factscore, safe, veriscore, rlcr or conformal"


def run(words: list[str]) -> None:
    """Read files of confidences and labels, print all metrics, and write tables, plots and a page.

    Args:
        words: the command line after ``score``.

    Raises:
        LovecError: a file cannot be read or holds no labels, or the output cannot be written.
    """
    options = _parser().read(words)
    check_count("--draws", options.draws, at_least=0)
    check_count("--k", options.k)
    for name in ("confidence_scale", "label_scale"):
        check_range(f"--{name}", getattr(options, name), above=0)
    folder = Path(options.out) if options.out else _default_folder(options.files[0])
    check_output(folder, options.files)
    _check_folder(folder, options.redo)
    from lovec.datasets.scored import read_scored
    from lovec.reports.scores import Settings, measured, print_scores, write_scores
    from lovec.reports.table import print_table  # noqa: F401

    check_writable(folder.parent)
    columns = _columns(options)
    files = []
    for path in dict.fromkeys(options.files):
        files.append(read_scored(path, columns, options.layout))
        if files[-1].said:
            print(f"{path}: {files[-1].said}", file=sys.stderr)
    scores = measured(files, Settings(draws=options.draws, facts=options.k))
    print_scores(scores)
    foot = f"{_MARK} {import_module('lovec').__version__}."
    write_scores(scores, folder, options.title or f"lovec score: {', '.join(Path(f.path).name for f in files)}", foot)
    print(f"\nwritten to {folder}: index.html, results.json, tables (csv, json, md, tex) and plots (svg, png)")
