"""Run the embedded world's methods on several seeds and keep the figures.

    python benchmarks/world.py                     # three seeds -> benchmarks/results/world.json
    python benchmarks/world.py --readme            # write README's table again from that file

A seed changes the order of the data, the wrong scores of the pairs and the start of the adapters; the base model of
the world is the same for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "world.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- world table: written by benchmarks/world.py -->", "<!-- end of the world table -->"
METHODS = ("Best constant", "Vanilla", "SFT", "DPO")
MODES = ("iterative", "free-form")
KEYS = ("method", "domain", "mode", "level", "readout", "seed", "brier", "ece_m", "spearman", "malformed", "n")
MORE = ("mean_confidence", "mean_factuality")
PACKAGES = ("lovec", "torch", "lightning", "transformers", "peft", "torchmetrics")


def run(seeds: Sequence[int], variant: str, out: Path) -> dict[str, Any]:
    """Run ``lovec demo`` for every seed and collect its rows, with what is needed to judge them."""
    rows: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for seed in seeds:
        folder = out / f"seed-{seed}"
        begin = time.monotonic()
        command = [sys.executable, "-m", "lovec.cli", "demo", "--seed", str(seed), "--out", str(folder)]
        subprocess.run([*command, *(["--quick"] if variant == "world-small" else [])], check=True, cwd=ROOT)
        seconds[str(seed)] = round(time.monotonic() - begin, 1)
        for row in json.loads((folder / "results.json").read_text(encoding="utf-8")):
            rows.append({key: row[key] for key in KEYS + MORE})
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else ""),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": f"{_processor()}, {os.cpu_count()} cores, no GPU",
        "variant": variant,
        "seconds": seconds,
        "rows": rows,
    }


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
        f"Percent; mean over {len(seeds)} seeds, range of the Brier score in brackets; {sentences} sentences about 120 "
        "people that no training step saw. Best constant: one score for all, chosen on the validation people. "
        f"{results['date']}, commit {results['commit']}, {versions}; {results['machine']}.",
    ]
    return "\n".join(lines)


def select(rows: Iterable[Mapping[str, Any]], **where: Any) -> list[Mapping[str, Any]]:
    """Rows of one method and mode: in domain, by sentence, stated score, unless said otherwise."""
    where = {"domain": "in-domain", "level": "sentence", "readout": "argmax", **where}
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def mean(name: str, digits: int = 1) -> str:
        values = [row[name] for row in rows if row[name] is not None]
        return f"{100 * statistics.mean(values):.{digits}f}" if values else "-"

    scores = [100 * row["brier"] for row in rows if row["brier"] is not None]
    spread = f" ({min(scores):.1f}-{max(scores):.1f})" if scores and max(scores) - min(scores) >= 0.05 else ""
    return [mean("brier") + spread, mean("ece_m"), mean("spearman"), mean("malformed")]


def write_readme(results: Mapping[str, Any]) -> None:
    """Put the table between its marks in the README."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


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
        flags.results.parent.mkdir(parents=True, exist_ok=True)
        flags.results.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if flags.results == RESULTS:
        write_readme(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
