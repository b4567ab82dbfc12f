"""``lovec curves``: how training runs went, by step."""

from __future__ import annotations

import json
import os
from pathlib import Path

from lovec.core.files import check_run_folder, write_text

from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Print the tables of every run; write curves.json and curves.svg into its folder, or into one above all runs.

    Args:
        words: the command line after ``curves``.

    Raises:
        LovecError: a run has logged nothing, or there are too many to draw.
    """
    parser = OneLineParser("curves", "Print how training runs went, by step; write curves.json and a plot, curves.svg.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, such as runs/dpo")
    folders = parser.read(words).runs
    for folder in folders:
        check_run_folder(folder)
    from lovec.reports.curves import write_curves
    from lovec.reports.training_log import curve_rows, print_training_log, read_training_log

    logs = [read_training_log(folder) for folder in folders]
    home = Path(folders[0] if len(folders) == 1 else os.path.commonpath([Path(f).resolve() for f in folders]))
    plot = write_curves(logs, home / "curves.svg")
    rows = [row for log in logs for row in curve_rows(log)]
    write_text(home / "curves.json", json.dumps(rows, indent=1, allow_nan=False) + "\n")
    for log in logs:
        print_training_log(log)
    print(f"written to {home / 'curves.json'} and {plot}")
