"""``lovec agreement``: how far two label files agree, and what the second one is worth beside the first."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from lovec.core.settings import check_range

from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.metrics.agreement import Agreement, Matched
    from lovec.metrics.bootstrap import Interval
    from lovec.metrics.powered import Worth

_WIDTH = 0.04  # two points on either side


def run(words: list[str]) -> None:
    """Match two files by record id and sentence, and print how far their labels agree.

    Args:
        words: the command line after ``agreement``.

    Raises:
        LovecError: a file is missing or broken, or they share no labelled sentence.
    """
    parser = OneLineParser(
        "agreement",
        "How far two label files agree: oracles, people, or one of each. If the first is by people and the second by a "
        "judge of more rows: what the judge's labels are worth.",
    )
    parser.add_argument("first", metavar="A", help="labelled records: ours, or in another known layout")
    parser.add_argument("second", metavar="B", help="the same records, labelled by somebody else")
    parser.add_argument(
        "--width",
        type=float,
        default=_WIDTH,
        metavar="W",
        help="width of an interval of mean factuality, from end to end, for which the number of labels is computed "
        f"(default: {_WIDTH:g})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, every value in its own unit")
    options = parser.read(words)
    check_range("--width", options.width, above=0, below=1)
    from lovec.datasets.layouts import read_any
    from lovec.datasets.rows import check_rows

    for path in (options.first, options.second):
        check_rows(path)
    from lovec.metrics.agreement import agreement, check_overlap, match
    from lovec.metrics.powered import worth

    matched = check_overlap(match(read_any(options.first), read_any(options.second)), options.first, options.second)
    result = agreement(matched.pairs)
    judge = worth(matched.judged, options.width) if result.passages > 1 else None
    if options.json:
        unmatched = {name: value for name, value in asdict(matched).items() if name not in ("pairs", "judged")}
        files = {"first": options.first, "second": options.second}
        worth_of = None if judge is None else asdict(judge)
        print(json.dumps({**files, **asdict(result), "unmatched": unmatched, "judge": worth_of}))
        return
    print(f"A: {options.first}\nB: {options.second}\n")
    _print(result, matched)
    if judge is not None:
        _print_worth(judge)


def _print(result: Agreement, matched: Matched) -> None:
    from lovec.core.notices import counted, listed
    from lovec.metrics.agreement import BANDS
    from lovec.metrics.table import METRICS
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


def _print_worth(judge: Worth) -> None:
    """Print what B is worth as a judge, if A is by people."""
    from lovec.core.notices import counted

    untold = f", {judge.untold} of which it cannot tell" if judge.untold else ""
    print(
        f"\nA as people, B as a judge of {counted(judge.rows, 'sentence')}{untold}; "
        f"intervals of 95 %, over the {judge.groups} answers that A has labelled"
    )
    print(f"B less A {_percent(judge.bias, signed=True)}")
    print(f"mean factuality by A alone {_percent(judge.people)}, with B's labels {_percent(judge.powered)}")
    print(f"{judge.labels} labels of A with B's are worth {judge.effective:.0f} of A alone (lambda {judge.weight:.2f})")
    if judge.needed is None:
        print(f"how many labels an interval of {100 * judge.width:g} points takes is not known: those of A are alike")
        return
    powered = f"{judge.needed_powered}" if judge.needed_powered is not None else "more labels of B, too,"
    print(f"an interval of {100 * judge.width:g} points takes {judge.needed} labels of A alone, {powered} with B's")


def _percent(ends: Interval, signed: bool = False) -> str:
    value, low, high = (f"{100 * end:{'+' if signed else ''}.1f}" for end in (ends.value, ends.low, ends.high))
    return f"{value} ({low} to {high}) %"


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
