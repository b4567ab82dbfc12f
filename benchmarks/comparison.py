"""Compare every baseline and every trained method on the embedded world, on several seeds.

    python benchmarks/comparison.py --runs runs/benchmark     # the runs of benchmarks/world.py: seed-0, seed-1, ...
    python benchmarks/comparison.py --from-runs               # only collect what finished tests have written
    python benchmarks/comparison.py --page                    # only write docs/results/comparison.md from the file
    python benchmarks/comparison.py --runs DIR --seeds 0 --part 0.1 --out /tmp/try --results /tmp/try/comparison.json

For each seed, `lovec fit --config p-true.yaml` trains the one baseline that is trained, and then one
`lovec test --config comparison.yaml` measures everything, with the adapters that `lovec demo` trained with this seed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from common import (
    CALIBRATION,
    ROOT,
    commits_of,
    interval_values,
    provenance,
    read_json,
    results_and_page,
    run_lovec,
    test_folder,
    write_json,
)
from comparison_page import page
from page_parts import collect_options

from lovec.datasets.jsonl import read_records
from lovec.evaluation.measurement import NO_SCORES
from lovec.metrics.bootstrap import Resampled, by_question, resample
from lovec.metrics.results import read_results
from lovec.metrics.table import METRICS
from lovec.types import ResultRow

RESULTS, PAGE = results_and_page("comparison")
RECIPE = ROOT / "configs" / "comparison.yaml"
NOTE = "benchmark.json"
"""File in the folder of a seed that says when, where and how it was run."""

VARIANTS = (None, "isotonic", NO_SCORES)
"""Maps and ablations of the rows that are kept; None is a method as it is."""

LEFT_OUT = ("other questions", "one fact")
"""Domains of the world whose rows are not kept."""

INSIDE = ("Sem-Entropy", "Likelihood", "CCP", "Probe")
"""Baselines that the paper does not have."""

CLAIMS = (
    *((method, other, "iterative") for method in ("DPO", "ExpectedReward", "Distil") for other in
      ("Vanilla", "Best constant", "p(true)", "p(true)-ft", "Verb-Conf", "Self-Cons", "LUQ", *INSIDE)),
    *((f"{method} + isotonic", f"{other} + isotonic", "iterative") for method in ("DPO", "ExpectedReward", "Distil")
      for other in ("LUQ", *INSIDE)),
    *(("Distil", other, "iterative") for other in
      ("SFT + isotonic", "DPO", "ExpectedReward", "LUQ + DPO", "LUQ + isotonic", "Likelihood + isotonic")),
    *((f"{name} + isotonic", name, "iterative") for name in ("Self-Cons", "LUQ", *INSIDE)),
    *((f"{name} + isotonic", "LUQ + isotonic", "iterative") for name in INSIDE),
    *((f"{method} + isotonic", method, mode) for method in ("SFT", "DPO", "ExpectedReward", "Distil")
      for mode in ("iterative", "free-form")),
    *((method, f"{method}, no previous scores", "iterative") for method in ("SFT", "DPO", "ExpectedReward", "Distil")),
    ("LUQ + DPO", "LUQ", "iterative"), ("LUQ + DPO", "DPO", "iterative"),
)  # fmt: skip
"""Pairs of methods of which the first is claimed to be better, and the mode."""


def run(seed: int, runs: Path, out: Path, part: float) -> None:
    """Train p(true)-ft, then test everything with the adapters of one seed."""
    folder = out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    note, begin = provenance(), time.monotonic()
    common = ["--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"]
    tuned = folder / "p-true"
    if not (tuned / "adapter").exists():
        fit = ["fit", "--config", "p-true.yaml", "--trainer.limit_val_batches", "0"]
        run_lovec([*fit, *common, "--trainer.default_root_dir", str(tuned)], folder / "p-true.log")
    recipe = folder / "comparison.yaml"
    recipe.write_text(yaml.safe_dump(_with_adapters(yaml.safe_load(RECIPE.read_text()), runs / f"seed-{seed}", tuned)))
    test = ["test", "--config", str(recipe), *common, "--trainer.default_root_dir", str(folder)]
    test += ["--trainer.limit_test_batches", str(part), "--data.eval_batch_size", "8"]
    tested = run_lovec(test, folder / "test.log")["seconds"]
    seconds = time.monotonic() - begin
    write_json(folder / NOTE, note | {"part": part, "seconds": round(seconds, 1), "test": round(tested, 1)})


def _with_adapters(value: Any, trained: Path, tuned: Path) -> Any:
    """Return the recipe with the adapters of a seed instead of runs/NAME/adapter; "" leaves out one that is missing."""
    if isinstance(value, dict):
        return {key: _with_adapters(inner, trained, tuned) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_adapters(inner, trained, tuned) for inner in value]
    if isinstance(value, str) and value.startswith("runs/") and value.endswith("/adapter"):
        name = value.split("/")[1]
        adapter = (tuned if name == "p-true" else trained / name).resolve() / "adapter"
        return str(adapter) if adapter.exists() else ""
    return value


def collect(seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Return rows, times and intervals of all seeds."""
    folders = [out / f"seed-{seed}" for seed in seeds]
    if missing := [folder for folder in folders if not (folder / NOTE).exists()]:
        raise SystemExit(f"{missing[0]} holds no finished run of this benchmark ({NOTE} is missing)")
    notes = [json.loads((folder / NOTE).read_text(encoding="utf-8")) for folder in folders]
    tests = [read_results(test_folder(folder) / "results.json").rows for folder in folders]
    times = [
        {"seed": seed, **entry}
        for seed, folder in zip(seeds, folders, strict=True)
        for entry in json.loads((test_folder(folder) / "times.json").read_text(encoding="utf-8"))
    ]
    return notes[0] | {
        "commit": commits_of(notes),
        "seconds": {str(seed): note["test"] for seed, note in zip(seeds, notes, strict=True)},
        "times": times,
        "rows": [_short(row) for rows in tests for row in rows if _kept(row)],
        "intervals": list(_intervals(folders, tests[0])),
    }


def _kept(row: ResultRow) -> bool:
    """Return whether a row is on the page; all of them would be a megabyte."""
    plain = row.variant is None or row.readout == "stated"
    return row.level == "sentence" and row.variant in VARIANTS and plain and row.domain not in LEFT_OUT


def _short(row: ResultRow) -> ResultRow:
    """Return a row with the main metrics only: there are hundreds of rows."""
    return replace(row, file=None, metrics={n: v for n, v in row.metrics.items() if METRICS[n].main})


def _intervals(folders: Sequence[Path], rows: Sequence[ResultRow]) -> Iterator[dict[str, Any]]:
    """Yield 95 % intervals over questions and seeds, of every row's stated score and of the differences in ``CLAIMS``.

    Args:
        folders: one per seed.
        rows: the rows of the first seed.
    """
    stated = [row for row in rows if _kept(row) and row.readout == "stated"]
    drawn: dict[tuple[str, str, str], Resampled] = {}
    for row in stated:
        paths = [test_folder(folder) / str(row.file) for folder in folders]
        if all(path.exists() for path in paths):
            records = [[record for record in read_records(path) if record.domain == row.domain] for path in paths]
            runs = [by_question(answers, "stated") for answers in records]
            if any(confidences for run in runs for confidences, _ in run.values()):
                drawn[row.method, row.mode, row.domain] = resample(runs, bases=["world"] * len(runs))
    pairs: list[tuple[tuple[str, str, str], tuple[str, str, str] | None]] = [(place, None) for place in drawn]
    for method, other, mode in CLAIMS:
        for domain in dict.fromkeys(row.domain for row in stated):
            # Baselines and the constant exist for stored answers only.
            if (method, mode, domain) in drawn and (other, mode, domain) in drawn:
                pairs.append(((method, mode, domain), (other, mode, domain)))
    for place, against in pairs:
        values = interval_values(drawn[place], None if against is None else drawn[against], CALIBRATION)
        method, mode, domain = place
        yield {"method": method, "against": against and against[0], "mode": mode, "domain": domain, **values}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of trained runs: seed-0/dpo/adapter and so on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "comparison-benchmark", help="folder of the tests")
    parser.add_argument("--part", type=float, default=1.0, help="share of the test records, for a trial")
    collect_options(parser, RESULTS, "tests")
    flags = parser.parse_args()
    flags.results = flags.results.resolve()
    if not flags.page:
        if not flags.from_runs:
            if flags.runs is None:
                parser.error("--runs must be given: the folder that benchmarks/world.py wrote to")
            for seed in flags.seeds:  # one after the other: running times are measured
                run(seed, flags.runs, flags.out, flags.part)
        write_json(flags.results, collect(flags.seeds, flags.out))
    results = read_json(flags.results)
    path = PAGE if flags.results == RESULTS else flags.results.with_suffix(".md")
    path.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
