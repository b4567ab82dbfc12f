"""Run the embedded world's methods on several seeds and keep the figures.

    python benchmarks/world.py                     # three seeds -> benchmarks/results/world.json, docs/reliability.svg
    python benchmarks/world.py --readme            # write README's table and example again from that file

A seed changes the answers sampled for training and their order, the wrong scores of the pairs and the start of the
adapters; the base model of the world is the same for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import KEYS, ROOT, provenance, write_json

from lovec.datasets.jsonl import read_records
from lovec.types import Record, to_rating

RESULTS = ROOT / "benchmarks" / "results" / "world.json"
README = ROOT / "README.md"
TABLES = ROOT / "docs" / "world.md"
DIAGRAM = ROOT / "docs" / "reliability.svg"
BEGIN, END = "<!-- world table: written by benchmarks/world.py -->", "<!-- end of the world table -->"
EXAMPLE_BEGIN, EXAMPLE_END = (
    "<!-- tagged answer: written by benchmarks/world.py -->",
    "<!-- end of the tagged answer -->",
)
MIXED = 0.6
"""Least range of factuality in the answer that README shows."""
METHODS = ("Best constant", "Vanilla", "SFT", "DPO")
MODES = ("iterative", "free-form")


def run(seeds: Sequence[int], variant: str, out: Path) -> dict[str, Any]:
    """Run ``lovec demo`` for every seed and collect its rows, with what is needed to judge them."""
    origin = provenance()
    rows: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for seed in seeds:
        folder = out / f"seed-{seed}"
        begin = time.monotonic()
        command = [sys.executable, "-m", "lovec.cli", "demo", "--seed", str(seed), "--out", str(folder)]
        subprocess.run([*command, *(["--quick"] if variant == "world-small" else [])], check=True, cwd=ROOT)
        seconds[str(seed)] = round(time.monotonic() - begin, 1)
        for row in json.loads((folder / "results.json").read_text(encoding="utf-8")):
            rows.append({key: row[key] for key in KEYS})
    return origin | {
        "variant": variant,
        "seconds": seconds,
        "example": example(_tagged(out / f"seed-{seeds[0]}" / "dpo", "dpo.free-form")),
        "rows": rows,
    }


def draw(folder: Path, path: Path) -> None:
    """Reliability diagram of one seed: people, iterative tagging, stated score."""
    from lovec.reports import reliability_diagram

    groups = {
        "Vanilla": _tagged(folder / "sft", "vanilla.iterative"),
        "SFT": _tagged(folder / "sft", "sft.iterative"),
        "DPO": _tagged(folder / "dpo", "dpo.iterative"),
    }
    reliability_diagram(groups, path, title="The embedded world: sentences about people, iterative tagging")


def example(records: Iterable[Record]) -> dict[str, Any]:
    """The answer that README shows: a typical one among those that mix true and false.

    Of the answers whose sentences' factualities range over at least ``MIXED``, the one with the median Brier score.
    """
    mixed = sorted((r for r in records if r.labelled and _range(r) >= MIXED), key=lambda r: (_brier(r), r.id))
    chosen = mixed[len(mixed) // 2]
    sentences = [{"text": s.text, "score": s.score, "factuality": s.factuality} for s in chosen.sentences]
    return {"id": chosen.id, "question": chosen.question, "sentences": sentences}


def example_table(results: Mapping[str, Any]) -> str:
    """README's tagged answer, each sentence beside how true it is."""
    shown = results["example"]
    lines = [f"> {shown['question']}", "", "| The model's answer | True, 0 to 10 |", "|---|:-:|"]
    for s in shown["sentences"]:
        tag = "(no valid tag)" if s["score"] is None else f"`<confidence> {s['score']} </confidence>`"
        lines.append(f"| {s['text']} {tag} | {to_rating(s['factuality'])} |")
    return "\n".join(lines)


def _tagged(run: Path, name: str) -> list[Record]:
    """What a test wrote about people."""
    return [r for r in read_records(run / "test" / f"{name}.jsonl") if r.meta["domain"] == "in-domain"]


def _brier(record: Record) -> float:
    """Brier score of an answer; a sentence without a score counts as a whole miss."""
    gaps = [1.0 if s.score is None else (s.score / 10 - (s.factuality or 0.0)) ** 2 for s in record.sentences]
    return statistics.mean(gaps)


def _range(record: Record) -> float:
    """Widest difference between the factualities of an answer's sentences."""
    truths = [s.factuality for s in record.sentences if s.factuality is not None]
    return round(max(truths) - min(truths), 9)


def table(results: Mapping[str, Any]) -> str:
    """README's table: in domain, sentence level, stated score; mean over seeds and the range of the Brier score."""
    lines = [
        "| Method | BS | ECE-M | SC | malformed | BS | ECE-M | SC | malformed |",
        "|---|---|---|---|---|---|---|---|---|",
        "| | *iterative* | | | | *free-form* | | | |",
    ]
    for method in METHODS:
        cells = []
        for mode in MODES:
            chosen = select(results["rows"], method=method, mode=mode)
            cells += _cells(chosen) if chosen else ["-"] * 4
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    seeds = sorted({row["seed"] for row in results["rows"]})
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "lovec")
    sentences = select(results["rows"], method="SFT", mode="iterative")[0]["n"]
    lines += [
        "",
        f"Percent; mean over {len(seeds)} seeds, range of the Brier score in brackets; {sentences} sentences about "
        "people whose answers no fine-tuning step saw. Best constant: one score for all, chosen on the validation "
        f"people. {results['date']}, commit {results['commit']}, {versions}; {results['machine']}.",
    ]
    return "\n".join(lines)


def full_tables(results: Mapping[str, Any]) -> str:
    """docs/world.md: every domain, mode, level and readout; means over seeds."""
    lines = [
        "# The embedded world, all figures",
        "",
        "Written by `benchmarks/world.py`; the numbers are in `benchmarks/results/world.json`. Percent, means over "
        f"{len({row['seed'] for row in results['rows']})} seeds; {results['date']}, commit {results['commit']}. In "
        "domain: people whose answers no fine-tuning step saw. Out of domain: companies, which fine-tuning never saw.",
    ]
    for level in ("sentence", "passage"):
        for readout in ("argmax", "mean"):
            lines += ["", f"## {level.capitalize()} level, {readout} readout", ""]
            lines += [
                "| Method | Domain | Mode | BS | ECE-M | SC | malformed | c | f |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for method in METHODS:
                for domain in ("in-domain", "out-of-domain"):
                    for mode in MODES:
                        where = {"method": method, "domain": domain, "mode": mode, "level": level, "readout": readout}
                        if chosen := select(results["rows"], **where):
                            means = [_mean(chosen, name) for name in ("mean_confidence", "mean_factuality")]
                            lines.append(
                                f"| {method} | {domain} | {mode} | " + " | ".join([*_cells(chosen), *means]) + " |"
                            )
    return "\n".join(lines) + "\n"


def select(rows: Iterable[Mapping[str, Any]], **where: Any) -> list[Mapping[str, Any]]:
    """Rows of one method and mode: in domain, by sentence, stated score, unless said otherwise."""
    where = {"domain": "in-domain", "level": "sentence", "readout": "argmax", **where}
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{100 * statistics.mean(values):.1f}" if values else "-"


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    scores = [100 * row["brier"] for row in rows if row["brier"] is not None]
    spread = f" ({min(scores):.1f}-{max(scores):.1f})" if scores and max(scores) - min(scores) >= 0.05 else ""
    return [_mean(rows, "brier") + spread, *(_mean(rows, name) for name in ("ece_m", "spearman", "malformed"))]


def write_readme(results: Mapping[str, Any]) -> None:
    """Put the table and the example between their marks in the README, and all figures into docs/world.md."""
    text = README.read_text(encoding="utf-8")
    for begin, end, content in (
        (BEGIN, END, table(results)),
        (EXAMPLE_BEGIN, EXAMPLE_END, example_table(results)),
    ):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    README.write_text(text, encoding="utf-8")
    TABLES.write_text(full_tables(results), encoding="utf-8")


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variant", choices=("world", "world-small"), default="world")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    parser.add_argument("--readme", action="store_true", help="only write README's table again from the file")
    flags = parser.parse_args()
    if not flags.readme:
        results = run(flags.seeds, flags.variant, flags.out)
        write_json(flags.results, results)
        if flags.results == RESULTS:
            draw(flags.out / f"seed-{flags.seeds[0]}", DIAGRAM)
    if flags.results == RESULTS:
        write_readme(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
