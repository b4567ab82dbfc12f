"""Does one promise hold for rare and for famous things alike? Thresholds of all answers, and of each kind by itself.

    python benchmarks/kinds.py shared/data/conformal_bios/factscore_processed.json

The file holds 421 biographies by ChatGPT with automatically labelled claims, how often each person is mentioned and
where the person lives (Cherian, Gibbs and Candès 2024, arXiv 2406.09714; repository jjcherian/conformal-safety). The
scores of the claims are those of the baseline `Words`, fitted to the other four fifths of the people: they know which
claims are mostly true, and nothing of who is famous. On 500 random splits one half of the answers gives the thresholds
and the other tries them, kind by kind.

Writes benchmarks/results/kinds.json and the table in docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, page_options, run_for_page, versions_text

from lovec.baselines import Words
from lovec.calibration.conformal import TRUE_FROM, Passage, Promise, guarantee, holds, retention
from lovec.datasets.layouts import read_any

RESULTS = ROOT / "benchmarks" / "results" / "kinds.json"
PAGE = ROOT / "docs" / "calibrate.md"
BEGIN, END = "<!-- kinds: written by benchmarks/kinds.py -->", "<!-- /kinds -->"
PROMISES: Sequence[tuple[Promise, float, float]] = (("share", 0.2, 0.8), ("errors", 0.2, 1.0))
"""Kind of promise, alpha, share."""
WORDS = {"share": "80 % of the kept are true", "errors": "errors of all claims"}
COLUMNS = ("rarity", "region")
ORDER = ("very freq", "freq", "medium", "rare", "very rare")


def tried(passages: Sequence[Passage], kinds: Sequence[str], splits: int, seed: int) -> list[dict[str, Any]]:
    """Return a row per promise and kind: how it was kept by one threshold for all answers, and by one for the kind.

    Args:
        passages: labelled answers.
        kinds: the kind of each.
        splits: number of random divisions into two halves, of which the first gives the thresholds.
        seed: seed of the divisions.
    """
    rng, names, half = np.random.default_rng(seed), sorted(set(kinds), key=_place), len(passages) // 2
    divisions = [rng.permutation(len(passages)) for _ in range(splits)]
    rows = []
    for promise, alpha, share in PROMISES:
        found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
        for division in divisions:
            first, second = division[:half], division[half:]
            of_all = guarantee([passages[at] for at in first], alpha, promise, share)
            for name in names:
                old, new = ([passages[at] for at in part if kinds[at] == name] for part in (first, second))
                for rule, chosen in (("all", of_all), ("kind", guarantee(old, alpha, promise, share))):
                    kept = retention(new, chosen.threshold)
                    held = statistics.mean(holds(passage, chosen.threshold, share) for passage in new)
                    found[name].setdefault(f"{rule} reached", []).append(kept.errors if promise == "errors" else held)
                    found[name].setdefault(f"{rule} kept", []).append(kept.share)
        for name, values in found.items():
            own = [passage for passage, kind in zip(passages, kinds, strict=True) if kind == name]
            true = [is_true for passage in own for is_true in passage.true]
            means = {key: statistics.mean(numbers) for key, numbers in values.items()}
            counts = {"answers": len(own), "claims": len(true), "true": statistics.mean(true)}
            rows.append({"promise": promise, "alpha": alpha, "share": share, "kind": name, **counts, **means})
    return rows


def measured(path: Path, splits: int, seed: int) -> dict[str, Any]:
    """Return what was measured of the file, by the column that names the kinds."""
    records = [record for record in read_any(path) if any(s.factuality is not None for s in record.sentences)]
    scores = Words(least=40).held_out(records)
    passages = []
    for record, values in zip(records, scores, strict=True):
        rated = [(v, s.factuality) for v, s in zip(values, record.sentences, strict=True) if s.factuality is not None]
        passages.append(Passage([v for v, _ in rated], [factuality >= TRUE_FROM for _, factuality in rated]))
    kinds = {name: [str(record.meta[name]) for record in records] for name in COLUMNS}
    return {name: tried(passages, values, splits, seed) for name, values in kinds.items()}


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page: what was reached by one threshold for all answers and by one for each kind."""
    lines = [
        "| Promise | Kind | answers | true | promised | one threshold: reached | kept | of its own: reached | kept |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for rows in results["data"].values():
        for row in rows:
            errors = row["promise"] == "errors"
            goal = row["alpha"] if errors else 1 - row["alpha"]
            broken = [
                (row[f"{rule} reached"] - goal) * (1 if errors else -1) > _band(goal, results["splits"])
                for rule in ("all", "kind")
            ]
            reached = [
                f"**{_percent(row[f'{rule} reached'])}**" if is_broken else _percent(row[f"{rule} reached"])
                for rule, is_broken in zip(("all", "kind"), broken, strict=True)
            ]
            promised = f"at {'most' if errors else 'least'} {_percent(goal)}"
            kept = [_percent(row[f"{rule} kept"]) for rule in ("all", "kind")]
            cells = [WORDS[row["promise"]], row["kind"], str(row["answers"]), _percent(row["true"]), promised]
            lines.append(f"| {' | '.join([*cells, reached[0], kept[0], reached[1], kept[1]])} |")
    lines += [
        "",
        f"Percent; means over {results['splits']} random splits into halves. **Bold**: the promise is broken by more "
        f"than the 95 % binomial band of {results['splits']} draws. 421 biographies by ChatGPT with 15,589 "
        "automatically labelled claims (arXiv 2406.09714); scores by the words of a claim alone, fitted to other "
        "people. Written by "
        f"`benchmarks/kinds.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def _band(share: float, splits: int) -> float:
    return 1.96 * (share * (1 - share) / splits) ** 0.5


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else 0, name)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    return {"splits": flags.splits, "data": measured(flags.data, flags.splits, flags.seed)}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "factscore_processed.json of conformal-safety")
    parser.add_argument("--splits", type=int, default=500)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
