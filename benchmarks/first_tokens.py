"""Compare results on the embedded world with first tokens of scores to the committed ones, with whole tags.

    python benchmarks/world.py --out RUNS --results FILE      # train and test, which takes an hour and more
    python benchmarks/first_tokens.py --runs RUNS             # compare with benchmarks/results/world.json
    python benchmarks/first_tokens.py --runs RUNS --add       # and keep the seeds that first_tokens.json has already
    python benchmarks/first_tokens.py --page                  # only write the page from first_tokens.json

The runs of world.json scored every score up to the closing tag word. A seed draws the same data and starts the same
adapters in both, so methods whose training scores nothing end with the same weights, and their differences are those
of scoring. Expected reward and Distil learn from the scores, so their runs differ like those of two seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import read_json, results_and_page, results_file, write_json
from page_parts import page_of_lines, versions_text

from lovec.metrics.table import METRICS
from lovec.types import ResultRow

RESULTS, PAGE = results_and_page("first_tokens", "docs/results/first-tokens.md")
WORLD = results_file("world")
NAMES = ("brier", "ece_m", "spearman")
READOUTS = ("stated", "mean")
LEARNED = ("ExpectedReward", "Distil")
"""Methods that learn from the probabilities of scores."""


def differences(new: Sequence[ResultRow], old: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Return what first tokens change, in domain and at sentence level: a row per method, mode and readout.

    Args:
        new: rows of runs with first tokens.
        old: rows of runs of the same seeds with whole tags.
    """
    known = {_key(row): row for row in old}
    found: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(dict)
    for row in new:
        if row.domain != "in-domain" or row.level != "sentence" or row.readout not in READOUTS or row.kind != "method":
            continue
        if (before := known.get(_key(row))) is None:
            continue
        pairs = [(row.metrics[name], before.metrics[name]) for name in NAMES]
        if all(a is not None and b is not None for a, b in pairs):
            changes = [a - b for a, b in pairs if a is not None and b is not None]
            found[row.method, row.mode, row.readout][int(row.seed or 0)] = changes
    return list(map(_row, found.items()))


def merged(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of both, a row of each method, mode and readout with all of its seeds; of equal ones the new."""
    found: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(dict)
    for row in (*old, *new):
        for at, seed in enumerate(row["seeds"]):
            found[row["method"], row["mode"], row["readout"]][seed] = [row[name][at] for name in NAMES]
    return list(map(_row, found.items()))


def _row(found: tuple[tuple[str, str, str], dict[int, list[float]]]) -> dict[str, Any]:
    """Return a row of the file of the differences by seed."""
    (method, mode, readout), seeds = found
    return {"method": method, "mode": mode, "readout": readout, "seeds": sorted(seeds)} | {
        name: [seeds[seed][at] for seed in sorted(seeds)] for at, name in enumerate(NAMES)
    }


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results in Markdown, line by line."""
    yield from ("# First tokens of scores on the embedded world", "")
    yield (
        "Written by `benchmarks/first_tokens.py` from `benchmarks/results/first_tokens.json`. Differences, in points, "
        "of results with first tokens (`policy.scoring: prefix`) from those of the same seeds with whole tags "
        "([The embedded world](world.md)); in domain, sentence level. Below 0 is better for BS and ECE-M, above 0 for "
        f"SC. {versions_text(results)}."
    )
    for title, learned in (
        ("Methods that learn from labels, pairs or rewards", False),
        ("Methods that learn from scores", True),
    ):
        yield from ["", f"## {title}", ""]
        if learned:
            seeds = {len(row["seeds"]) for row in results["differences"] if row["method"] in LEARNED}
            uncertain = (
                "With one seed, these differences may be chance."
                if seeds == {1}
                else "Their differences are as uncertain as their range over seeds says."
            )
            yield (
                "They learn from the probabilities of scores at every tag, so a run with first tokens ends with other "
                f"weights, as a run of another seed does. {uncertain}"
            )
        else:
            yield (
                "Their training is the same, and so are their weights: what differs is how the confidences of the test "
                "are computed."
            )
        headings = " | ".join(METRICS[name].heading for name in NAMES)
        yield from ["", f"| Method | Mode | Readout | seeds | {headings} |", "|---|---|---|---|" + "---|" * len(NAMES)]
        for row in results["differences"]:
            if (row["method"] in LEARNED) == learned:
                cells = " | ".join(_cell(row[name]) for name in NAMES)
                yield f"| {row['method']} | {row['mode']} | {row['readout']} | {len(row['seeds'])} | {cells} |"


def _cell(values: Sequence[float]) -> str:
    """Return a mean with the range of its seeds, in points."""
    ends = (statistics.fmean(values), min(values), max(values))
    mean, low, high = (round(100 * value, 2) + 0.0 for value in ends)  # no -0.00
    text = f"{mean:+.2f}"
    return text if len(values) == 1 else f"{text} ({low:+.2f} to {high:+.2f})"


def _key(row: ResultRow) -> tuple[Any, ...]:
    return row.method, row.domain, row.mode, row.level, row.readout, row.seed


def _runs(folder: Path) -> dict[str, Any]:
    """Return the rows of all seeds in a folder, and the note of one of them.

    Raises:
        SystemExit: there is no finished run.
    """
    rows: list[ResultRow] = []
    notes = []
    for place in sorted(folder.glob("seed-*")):
        seed = int(place.name.partition("-")[2])
        if (place / "benchmark.json").exists():
            notes.append(read_json(place / "benchmark.json"))
            rows += [row for row in read_json(place / "results.json")["rows"] if row.seed in (None, seed)]
    if not notes:
        raise SystemExit(f"{folder} holds no finished run of benchmarks/world.py")
    return notes[0] | {"rows": rows}


def main() -> None:
    """Compare, and write the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", help="folders of benchmarks/world.py, one after the other")
    parser.add_argument("--add", action="store_true", help="keep the seeds that the file has already")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    options = parser.parse_args()
    if not options.page:
        if not options.runs:
            parser.error("give --runs FOLDER, or --page")
        runs = [_runs(folder) for folder in options.runs]
        note = {name: runs[0][name] for name in ("date", "commit", "versions", "machine", "world")}
        found = differences([row for run in runs for row in run["rows"]], read_json(WORLD)["rows"])
        if options.add:
            before = read_json(RESULTS)
            found = merged(before["differences"], found)
            note["commit"] = f"{before['commit']}, {note['commit']}"
        write_json(RESULTS, note | {"differences": found})
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
