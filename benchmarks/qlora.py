"""Compare training on a base model in 4 bits (qlora.yaml) with training on it as it is, on the embedded world.

    python benchmarks/qlora.py                    # trains what is missing -> benchmarks/results/qlora.json and a page
    python benchmarks/qlora.py --variant world    # the model of the main results, which takes longer
    python benchmarks/qlora.py --from-runs        # only collect what finished runs have written
    python benchmarks/qlora.py --page             # only write the page from the file

Needs the extra `quant`. Both sides learn from the same answers, which the model wrote before it was rounded. Intervals
are over questions and training seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from common import CALIBRATION, QUIET, ROOT, commits_of, lovec, provenance, read_json, results_and_page, write_json
from page_parts import HEADINGS, collect_options, interval_cell, page_of_lines, seeds_text, versions_text
from world_intervals import records_in, tagged_path

from lovec.evaluation.evaluator import MODES
from lovec.metrics.bootstrap import Resampled, by_question, intervals, resample

RESULTS, PAGE = results_and_page("qlora")
NOTE = "qlora.note.json"
METHODS = {"SFT": "sft", "DPO": "dpo"}
BASES = {"float32": (), "4 bits": ("--config", "qlora.yaml", "--model.optimizer.min_8bit_size", "256")}
"""How the base is held, and what that adds to the command line.

bitsandbytes keeps states of tensors with fewer than 4,096 numbers in 32 bits by default; those of the world's adapters
are that small, those of large models are not.
"""
VARIANTS = {"world-small": ("--config", "world-small.yaml"), "world": ()}
"""Models of the embedded world, and what they add to the command line."""


def folder_of(runs: Path, base: str, seed: int) -> Path:
    """Return the folder of the runs on one base with one seed."""
    return runs / base.replace(" ", "-") / f"seed-{seed}"


def fit_and_test(runs: Path, variant: str, base: str, seed: int, method: str) -> None:
    """Train and test a method, unless that is done."""
    run = folder_of(runs, base, seed) / METHODS[method]
    if (run / NOTE).exists():
        return
    print(run, flush=True)
    note = provenance()
    settings = ["--config", f"{METHODS[method]}.yaml", *VARIANTS[variant], *BASES[base]]
    settings += ["--trainer.default_root_dir", str(run), "--seed_everything", str(seed), *QUIET]
    start = [] if method == "SFT" else ["--model.policy.adapter", str(run.parent / METHODS["SFT"] / "adapter")]
    lovec("fit", *settings, *start, "--trainer.limit_val_batches", "0")
    lovec("test", *settings, "--model.evaluation.vanilla", "false")
    write_json(run / NOTE, note)


def collect(runs: Path, variant: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the metrics of every method on both bases, and intervals of their differences."""
    paths = [folder_of(runs, b, s) / m / NOTE for b, s, m in product(BASES, seeds, METHODS.values())]
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    entries = []
    for method, mode in product(METHODS, MODES):
        drawn = {base: _drawn(runs, base, method, mode, seeds) for base in BASES}
        for base, against in [*((base, None) for base in BASES), ("4 bits", "float32")]:
            ends = intervals(drawn[base], None if against is None else drawn[against])
            entries.append({"method": method, "mode": mode, "base": base, "against": against} | {
                name: None if i is None else [i.value, i.low, i.high] for name, i in ends.items()
            })  # fmt: skip
            if against is None:
                entries[-1]["mean_factuality"] = _truth(runs, base, method, mode, seeds)
    kept = {name: notes[0][name] for name in ("date", "versions", "machine", "world")}
    kept["versions"] = {**kept["versions"], "bitsandbytes": version("bitsandbytes")}
    return kept | {"commit": commits_of(notes), "variant": variant, "seeds": list(seeds), "entries": entries}


def _records(runs: Path, base: str, method: str, mode: str, seed: int) -> list[Any]:
    path = tagged_path(folder_of(runs, base, seed), method, mode)
    return [record for record in records_in(path) if record.domain == "in-domain"]


def _drawn(runs: Path, base: str, method: str, mode: str, seeds: Sequence[int]) -> Resampled:
    return resample([by_question(_records(runs, base, method, mode, seed), "stated") for seed in seeds])


def _truth(runs: Path, base: str, method: str, mode: str, seeds: Sequence[int]) -> float:
    """Return the mean factuality of the sentences."""
    values = [
        s.factuality
        for seed in seeds
        for record in _records(runs, base, method, mode, seed)
        for s in record.sentences
        if s.factuality is not None
    ]
    return sum(values) / len(values)


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results in Markdown, line by line."""
    yield from ("# Training on a base model in 4 bits", "")
    yield (
        "Written by `benchmarks/qlora.py` from `benchmarks/results/qlora.json`. The embedded world "
        f"`{results['variant']}`, things of the trained kinds, stated score, percent; {seeds_text(results['seeds'])}. "
        "*float32* is the recipe as it is; *4 bits* adds `qlora.yaml`: NF4 with double quantisation, products in "
        "bfloat16, an optimiser with states of 8 bits. f is the mean factuality of the sentences; those of free-form "
        "answers are the model's own. In brackets 95 % intervals over questions and seeds; a difference is bold where "
        "its interval leaves out 0. "
        f"{versions_text(results)}."
    )
    yield from ("", f"| Method | Mode | Base | {HEADINGS} | f |", "|---|---|---|---|---|---|---|")
    for entry in results["entries"]:
        difference = entry["against"] is not None
        cells = [interval_cell(entry[name], difference) for name in CALIBRATION]
        base = f"{entry['base']} minus {entry['against']}" if difference else entry["base"]
        truth = "" if difference else f"{100 * entry['mean_factuality']:.1f}"
        yield f"| {entry['method']} | {entry['mode']} | {base} | {' | '.join(cells)} | {truth} |"


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variant", choices=VARIANTS, default="world-small")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "qlora", help="folder of the runs")
    collect_options(parser)
    flags = parser.parse_args()
    runs = flags.runs.resolve() / flags.variant
    if not flags.page:
        for seed, base, method in product(flags.seeds, BASES, METHODS) if not flags.from_runs else ():
            fit_and_test(runs, flags.variant, base, seed, method)
        write_json(RESULTS, collect(runs, flags.variant, flags.seeds))
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
