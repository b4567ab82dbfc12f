"""``lovec agreement``: how far two label files agree."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.metrics.agreement import Agreement, Matched


def run(words: list[str]) -> None:
    """Match two files by record id and sentence, and print how far their labels agree.

    Args:
        words: the command line after ``agreement``.

    Raises:
        LovecError: a file is missing or broken, or they share no labelled sentence.
    """
    parser = OneLineParser("agreement", "How far two label files agree: oracles, people, or one of each.")
    parser.add_argument("first", metavar="A", help="labelled records: ours, or in another known layout")
    parser.add_argument("second", metavar="B", help="the same records, labelled by somebody else")
    parser.add_argument("--json", action="store_true", help="print JSON, every value in its own unit")
    options = parser.read(words)
    from lovec.datasets.layouts import read_any
    from lovec.datasets.rows import check_rows

    for path in (options.first, options.second):
        check_rows(path)
    from lovec.metrics.agreement import agreement, check_overlap, match

    matched = check_overlap(match(read_any(options.first), read_any(options.second)), options.first, options.second)
    result = agreement(matched.pairs)
    if options.json:
        unmatched = {name: value for name, value in asdict(matched).items() if name != "pairs"}
        files = {"first": options.first, "second": options.second}
        print(json.dumps({**files, **asdict(result), "unmatched": unmatched}))
        return
    print(f"A: {options.first}\nB: {options.second}\n")
    _print(result, matched)


def _print(result: Agreement, matched: Matched) -> None:
    from lovec.metrics.agreement import BANDS
    from lovec.metrics.table import METRICS
    from lovec.notices import counted, listed
    from lovec.reports.table import Cell, Column, Line, Table, print_table

    percent = METRICS["mean_factuality"].text
    print(f"Spearman {_three(result.spearman)} over {counted(result.n, 'sentence')}")
    print(f"Spearman {_three(result.passage_spearman)} over {counted(result.passages, 'passage')} (means)")
    print(f"same rating {percent(result.exact)} %, within 1 {percent(result.within_1)} %")
    print(f"mean factuality A {percent(result.mean_first)} %, B {percent(result.mean_second)} %\n")
    lines = tuple(Line(BANDS[at], tuple(Cell(str(n), n) for n in row)) for at, row in enumerate(result.confusion))
    print_table(Table("confusion", "A's rating down, B's across", tuple(map(Column, BANDS)), lines, corner=""))
    if matched.unlabelled:
        print(f"{counted(matched.unlabelled, 'sentence has', 'sentences have')} no label in one of the files")
    for ids, what in (
        (matched.only_first, "only in A"),
        (matched.only_second, "only in B"),
        (matched.differing, f"with other sentences in A than in B ({counted(matched.sentences, 'sentence')})"),
    ):
        if ids:
            print(f"{counted(len(ids), 'record')} {what}: {listed(ids)}")


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
