"""What the pages of all benchmarks share: figures, verdicts and provenance in words, and ways to write a page."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from common import CALIBRATION, publish, read_json, world_digest, write_json

from lovec.metrics.table import METRICS
from lovec.types import ResultRow

HEADINGS = " | ".join(METRICS[name].heading for name in CALIBRATION)
"""Headings of the columns of ``CALIBRATION`` in a Markdown table."""
VERDICTS = (
    "*BS only*, *ECE-M only*: this interval lies below 0, and the other contains 0. *Not shown*: both contain 0. "
    "*Worse*: none lies below 0, and at least one above. Where one lies below and the other above, both are named."
)
"""What pages say about the words of ``verdict`` but "holds"."""

Arguments = ParamSpec("Arguments")
Measure = Callable[[argparse.Namespace], Mapping[str, Any]]
Show = Callable[[Mapping[str, Any]], str]
"""What measures as the options say, and what shows its results in Markdown."""


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in words, such as "seed 0" and "seeds 0, 1"."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def mean_text(rows: Iterable[ResultRow], name: str) -> str:
    """Return the mean of a metric over rows as pages show it; "-" where it is undefined for all of them."""
    values = [value for row in rows if (value := row.metrics.get(name)) is not None]
    return METRICS[name].text(statistics.mean(values) if values else None)


def percent(value: float | None) -> str:
    """Return a fraction in percent, such as "5.2"; "-" for None."""
    return "-" if value is None else f"{100 * value:.1f}"


def mean_percent(values: Iterable[float | None]) -> str:
    """Return the mean of fractions in percent; "-" where one of them is undefined, or where there are none."""
    known = list(values)
    defined = [value for value in known if value is not None]
    return percent(statistics.mean(defined) if defined and len(defined) == len(known) else None)


def interval_text(ends: Sequence[float] | None, signed: bool) -> str:
    """Return [value, low, high] in percent, such as "5.2 (4.1 to 6.3)"; "" for None.

    Args:
        ends: value and interval as fractions.
        signed: whether a plus sign stands before positive numbers, as for differences.
    """
    if ends is None:
        return ""
    value, low, high = (f"{end:{'+' if signed else ''}.1f}" for end in _as_shown(ends))
    return f"{value} ({low} to {high})"


def interval_cell(ends: Sequence[float] | None, difference: bool) -> str:
    """Return [value, low, high] as a cell of a table, "-" for None; a difference is bold where it leaves out 0."""
    text = interval_text(ends, signed=difference) or "-"
    return f"**{text}**" if difference and side(ends) else text


def side(ends: Sequence[float] | None) -> int:
    """Return the side of 0 on which an interval lies, as it is shown: -1, 1, or 0 where it holds 0 or is None."""
    if ends is None:
        return 0
    _, low, high = _as_shown(ends)
    return 0 if low <= 0 <= high else 1 if low > 0 else -1


def verdict(entry: Mapping[str, Any]) -> str:
    """Return whether a method is better than another by BS and ECE-M, of the entry with their difference.

    "holds" needs both intervals below 0; ``VERDICTS`` defines the other words.
    """
    names = CALIBRATION[:2]
    better, worse = ([METRICS[name].heading for name in names if side(entry[name]) == sign] for sign in (-1, 1))
    if worse:
        return f"{better[0]} better, {worse[0]} worse" if better else "worse"
    if len(better) == len(names):
        return "holds"
    return f"{better[0]} only" if better else "not shown"


def versions_text(results: Mapping[str, Any]) -> str:
    """Return date, commit, versions and machine of results in one line, without lovec's own version."""
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "lovec")
    return f"{results['date']}, commit {results['commit']}, {versions}; {results['machine']}"


def world_text(results: Mapping[str, Any]) -> str:
    """Return the same of results on the embedded world, and say so where that was an earlier one."""
    if results.get("world") == world_digest():
        return versions_text(results)
    return (
        f"{versions_text(results)}. **Measured on an earlier embedded world**, of people and companies only, each fact "
        "in two or three wordings; numbers on the present one differ"
    )


def page_of_lines(lines: Callable[Arguments, Iterator[str]]) -> Callable[Arguments, str]:
    """Make a function that yields the lines of a page return their text."""

    @functools.wraps(lines)
    def page(*args: Arguments.args, **kwargs: Arguments.kwargs) -> str:
        return "\n".join(lines(*args, **kwargs)) + "\n"

    return page


def replace_between(text: str, begin: str, end: str, content: str) -> str:
    """Return a text with other content between two marks, each of which it has once."""
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def page_options(about: str, data: str = "") -> argparse.ArgumentParser:
    """Return a parser with the options of a benchmark whose table is on a page, see ``run_for_page``.

    Args:
        about: docstring of the script.
        data: what the positional argument ``data`` is; "" where there is none.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        parser.add_argument("data", type=Path, nargs="?", help=data)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-print", action="store_true", help="change no file")
    parser.add_argument("--page", action="store_true", help="only write the table from the file")
    return parser


def collect_options(parser: argparse.ArgumentParser, results: Path | None = None, finished: str = "runs") -> None:
    """Add the options of a benchmark that can stop after a part of its work: collecting, or only writing its page.

    Args:
        parser: has the other options.
        results: file of results, which an option may change; None leaves that option out.
        finished: what is collected.
    """
    if results is not None:
        parser.add_argument("--results", type=Path, default=results, help="file to write")
    parser.add_argument("--from-runs", action="store_true", help=f"only collect what finished {finished} have written")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")


def run_for_page(
    parser: argparse.ArgumentParser, measure: Measure, table: Show, results: Path, page: Path, marks: tuple[str, str]
) -> None:
    """Measure, write the results, and write their table into a page, as far as the command line asks for it.

    Args:
        parser: that of ``page_options``.
        measure: returns the results.
        table: returns the content of the page from the file of results.
        results: file of results.
        page: the page.
        marks: where the content begins and ends.
    """
    flags = parser.parse_args()
    if not flags.page:
        if getattr(flags, "data", ...) is None:
            parser.error("give the data; --help says which")
        publish(results, measure(flags), flags.only_print)
    if not flags.only_print:
        content = table(json.loads(results.read_text(encoding="utf-8")))
        page.write_text(replace_between(page.read_text(encoding="utf-8"), *marks, content), encoding="utf-8")


def run_or_try(parser: argparse.ArgumentParser, measure: Measure, show: Show, results: Path, page: Path) -> None:
    """Measure, write the results and then their page, or both for a trial, as far as the command line asks for it.

    Args:
        parser: has the other options of the benchmark, among them ``--out``, the folder to which a trial writes.
        measure: returns the results.
        show: returns the whole page from what ``read_json`` reads.
        results: file of results.
        page: the page.
    """
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    parser.add_argument("--quick", action="store_true", help="try it out; results and page go to --out")
    flags = parser.parse_args()
    if flags.quick:
        results, page = flags.out / results.name, flags.out / page.name
    if not flags.page:
        write_json(results, measure(flags))
    page.write_text(show(read_json(results)), encoding="utf-8")


def _as_shown(ends: Sequence[float]) -> list[float]:
    return [round(100 * end, 1) + 0.0 for end in ends]  # adding 0.0 turns -0.0 into 0.0
