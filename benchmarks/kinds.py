"""Does one promise hold for rare and for famous things alike? Thresholds of all answers, and of each kind by itself.

    python benchmarks/kinds.py shared/data/conformal_bios/factscore_processed.json

There are three sets of answers. The file holds 421 biographies by ChatGPT with automatically labelled claims, how often
each person is mentioned and where the person lives (Cherian, Gibbs and Candès 2024, arXiv 2406.09714; repository
jjcherian/conformal-safety). The scores of the claims are those of the baseline `Words`, fitted to the other four fifths
of the people: they know which claims are mostly true, and nothing of who is famous. The answers about the embedded
world's test things are divided by popularity, and those about Atlas' test cities by inhabitants; their scores are the
mean readout of Distil, text given: the world's of the adapter that comes with the package, Atlas' of the run whose
scored sentences are in benchmarks/results/real. On 500 random splits one half of the answers gives the thresholds and
the other tries them, kind by kind.

Writes benchmarks/results/kinds.json and the table in docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import results_and_page, results_file
from levels import adaptive, levels_lines
from page_parts import page_options, percent, run_for_page, versions_text
from real_scores import Place, read_scored

from lovec.baselines import Words
from lovec.calibration.conformal import TRUE_FROM, Passage, Promise, guarantee, holds, passages_of, retention
from lovec.datamodules.world import World
from lovec.datasets.layouts import read_any
from lovec.datasets.world import EmbeddedWorld
from lovec.taggers import IterativeTagger, open_session
from lovec.types import Record

RESULTS, PAGE = results_and_page("kinds", "docs/calibrate.md")
BEGIN, END = "<!-- kinds: written by benchmarks/kinds.py -->", "<!-- /kinds -->"
PROMISES: Sequence[tuple[Promise, float, float]] = (("share", 0.2, 0.8), ("errors", 0.2, 1.0))
"""Kind of promise, alpha, share."""
WORDS = {"share": "80 % of the kept are true", "errors": "errors of all claims"}
COLUMNS = ("rarity", "region")
THIRDS = ("most known third", "middle third", "least known third")
ORDER = ("very freq", "freq", "medium", "rare", "very rare", *THIRDS)
ATLAS = results_file("real/atlas-larger/seed-1-distil")


class Answers(NamedTuple):
    """Labelled answers, and how they are divided into kinds.

    Attributes:
        passages: scores and truths of each.
        kinds: the kind of each, by the name of the division.
    """

    passages: Sequence[Passage]
    kinds: Mapping[str, Sequence[str]]


def thirds(values: Sequence[float]) -> list[str]:
    """Return the third that each value lies in, in the order from the highest; equal ones in the order given."""
    order = sorted(range(len(values)), key=lambda at: -values[at])
    found = dict(zip(order, range(len(values)), strict=True))
    return [THIRDS[len(THIRDS) * found[at] // len(values)] for at in range(len(values))]


def popularity(records: Sequence[Record]) -> list[str]:
    """Return for each answer about the embedded world in which third of its kind the thing is, by popularity."""
    things = Counter(thing.kind for thing in EmbeddedWorld("world").entities)
    return thirds([-int(record.meta["rank"]) / things[str(record.meta["kind"])] for record in records])


def biographies(path: Path) -> Answers:
    """Return the biographies of the file."""
    records = [record for record in read_any(path) if any(s.factuality is not None for s in record.sentences)]
    scores = Words(least=40).held_out(records)
    pairs = (zip(values, record.sentences, strict=True) for values, record in zip(scores, records, strict=True))
    rated = [[(value, s.factuality) for value, s in own if s.factuality is not None] for own in pairs]
    passages = [Passage([value for value, _ in own], [f >= TRUE_FROM for _, f in own]) for own in rated]
    return Answers(passages, {name: [str(record.meta[name]) for record in records] for name in COLUMNS})


def world() -> Answers:
    """Return the answers about the test things of the embedded world, which are as well known as their rank says."""
    with open_session(adapter="world", raw=True) as session:
        tagged = IterativeTagger(session.engine, session.encoder, "mean").tag(World(test_sets=["test"]).load("test"))
    records = [record for record in tagged if record.sentences]
    passages, _ = passages_of(records, lambda sentence: sentence.confidence)
    return Answers(passages, {"popularity": popularity(records)})


def atlas() -> Answers:
    """Return the answers about the test cities of Atlas, which are as well known as they are large."""
    scored = read_scored(ATLAS)[Place("Distil", "in-domain", "iterative", "mean")]
    passages = []
    for answer, confidences in zip(scored.answers, scored.confidences, strict=True):
        rated = [(c, f) for c, f in zip(confidences, answer.truth, strict=True) if f is not None]
        passages.append(Passage([c for c, _ in rated], [f >= TRUE_FROM for _, f in rated]))
    return Answers(passages, {"inhabitants": thirds([answer.inhabitants or 0.0 for answer in scored.answers])})


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
    """Return what was measured of each set of answers, by the division into kinds, and of levels that adapt."""
    told = biographies(path)
    sets = {"biographies": told, "world": world(), "Atlas": atlas()}
    rows = {
        f"{name}, by {division}": tried(answers.passages, kinds, splits, seed)
        for name, answers in sets.items()
        for division, kinds in answers.kinds.items()
    }
    known = {"scores": None, "scores and rarity": told.kinds["rarity"]}
    return {
        "data": rows,
        "adaptive": {name: adaptive(told.passages, kinds, splits, seed) for name, kinds in known.items()},
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page: what was reached by one threshold for all answers and by one for each kind."""
    lines = [
        "| Answers | Promise | Kind | answers | true | promised | one threshold: reached | kept | of its own: reached "
        "| kept |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for data, rows in results["data"].items():
        for row in rows:
            errors = row["promise"] == "errors"
            goal = row["alpha"] if errors else 1 - row["alpha"]
            broken = [
                (row[f"{rule} reached"] - goal) * (1 if errors else -1) > _band(goal, results["splits"])
                for rule in ("all", "kind")
            ]
            reached = [
                f"**{percent(row[f'{rule} reached'])}**" if is_broken else percent(row[f"{rule} reached"])
                for rule, is_broken in zip(("all", "kind"), broken, strict=True)
            ]
            promised = f"at {'most' if errors else 'least'} {percent(goal)}"
            kept = [percent(row[f"{rule} kept"]) for rule in ("all", "kind")]
            cells = [data, WORDS[row["promise"]], row["kind"], str(row["answers"]), percent(row["true"]), promised]
            lines.append(f"| {' | '.join([*cells, reached[0], kept[0], reached[1], kept[1]])} |")
    lines += [
        "",
        f"Percent; means over {results['splits']} random splits into halves. **Bold**: the promise is broken by more "
        f"than the 95 % binomial band of {results['splits']} draws. Biographies: 421 by ChatGPT with 15,589 "
        "automatically labelled claims (arXiv 2406.09714); scores by the words of a claim alone, fitted to other "
        "people. World and Atlas: test answers, text given, scores of Distil (mean readout); the best known are the "
        f"most popular things of their kind, and the largest cities. Written by `benchmarks/kinds.py`; "
        f"{versions_text(results)}.",
        "",
        *levels_lines(results["adaptive"]),
    ]
    return "\n".join(lines)


def _band(share: float, splits: int) -> float:
    return 1.96 * (share * (1 - share) / splits) ** 0.5


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else 0, name)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    return {"splits": flags.splits, **measured(flags.data, flags.splits, flags.seed)}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "factscore_processed.json of conformal-safety")
    parser.add_argument("--splits", type=int, default=500)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
