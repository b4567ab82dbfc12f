"""``lovec curves``: how runs went, by step."""

from __future__ import annotations

import os
from pathlib import Path

from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Prints the tables of every run; writes curves.json and curves.svg into its folder, or the one that holds all.

    Args:
        words: the command line after ``curves``.

    Raises:
        LovecError: a run has logged nothing.
    """
    parser = OneLineParser("curves", "Print how runs went, by step; write curves.json and a figure, curves.svg.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, such as runs/dpo")
    folders = parser.read(words).runs
    from lovec.reports import write_results
    from lovec.reports.curves import curve_rows, curves_figure, print_curves, read_run

    runs = [read_run(folder) for folder in folders]
    for one in runs:
        print_curves(one)
    home = Path(folders[0] if len(folders) == 1 else os.path.commonpath([Path(f).resolve() for f in folders]))
    figure = curves_figure(runs, home / "curves.svg")
    written = write_results([row for one in runs for row in curve_rows(one)], home / "curves.json")
    print(f"written to {written} and {figure}")
