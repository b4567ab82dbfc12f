"""``lovec agreement``: how far two label files say the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.metrics.agreement import Agreement, Matched

_NAMED = 3


def run(words: list[str]) -> None:
    """Matches two files by record id and sentence, and prints how far their labels agree.

    Args:
        words: the command line after ``agreement``.

    Raises:
        LovecError: a file is missing or broken, or they share no labelled sentence.
    """
    parser = OneLineParser("agreement", "How far two label files agree: oracles, people, or one of each.")
    parser.add_argument("first", metavar="A", help="labelled records: ours, FActScore's, WikiBio's or the authors'")
    parser.add_argument("second", metavar="B", help="the same, by somebody else")
    parser.add_argument("--json", action="store_true", help="print JSON, every figure in its own unit")
    options = parser.read(words)
    from lovec.datasets.layouts import read_any
    from lovec.metrics.agreement import agreement, checked, match

    matched = checked(match(read_any(options.first), read_any(options.second)), options.first, options.second)
    found = agreement(matched.pairs)
    if options.json:
        left = {name: value for name, value in asdict(matched).items() if name != "pairs"}
        print(json.dumps({"first": options.first, "second": options.second, **asdict(found), "unmatched": left}))
        return
    _print(found, matched, (options.first, options.second))


def _print(found: Agreement, matched: Matched, names: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from lovec.metrics.agreement import BANDS
    from lovec.reports.results_table import percent

    console = Console(width=max(100, Console().width), highlight=False)
    print(f"A: {names[0]}\nB: {names[1]}\n")
    print(f"Spearman {_three(found.spearman)} over {found.n} sentences")
    print(f"Spearman {_three(found.passage_spearman)} over {found.passages} passages (means)")
    print(f"same rating {percent(found.exact)} %, within 1 {percent(found.within_1)} %")
    print(f"mean factuality A {percent(found.mean_first)} %, B {percent(found.mean_second)} %\n")
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, title="A's rating down, B's across")
    for heading in ("", *BANDS):
        table.add_column(heading, justify="right", min_width=6)
    for band, row in zip(BANDS, found.confusion, strict=True):
        table.add_row(band, *map(str, row))
    console.print(table)
    if matched.unlabelled:
        print(f"{matched.unlabelled} sentences have no label in one of the files")
    for ids, what in (
        (matched.only_first, "records are only in A"),
        (matched.only_second, "records are only in B"),
        (matched.differing, f"records have other sentences in A than in B ({matched.sentences} sentences)"),
    ):
        if ids:
            print(f"{len(ids)} {what}: {', '.join(ids[:_NAMED])}{', ...' if len(ids) > _NAMED else ''}")


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
