"""Train and test with human labels: SFT and DPO on FActScore's biographies, tested on people held out.

    python benchmarks/factscore.py ChatGPT.jsonl    # three seeds -> benchmarks/results/factscore.json

The model is a tiny Llama with random weights that reads bytes. The results show that real sentences with real labels
work in every stage, not what the method can do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, provenance, results_file, test_folder, write_json

from lovec.cli import main as lovec
from lovec.metrics.results import read_results
from lovec.types import ResultRow

RESULTS = results_file("factscore")


def run(labels: Path, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Train and test with every seed, which is also that of the split, and collect the rows."""
    results = provenance() | {"model": "tiny-llama, random weights"}
    rows: dict[tuple[Any, ...], ResultRow] = {}
    for seed in seeds:
        for name in ("sft", "dpo"):
            folder = out / f"seed-{seed}" / name
            words = ["--config", f"{name}.yaml", "--config", "factscore.yaml", "--data.path", str(labels)]
            words += ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
            start = ["--model.policy.adapter", str(folder.parent / "sft" / "adapter")] if name == "dpo" else []
            for command in (["fit", *words, *start, "--trainer.limit_val_batches", "0"], ["test", *words]):
                if lovec(command):
                    raise SystemExit(f"lovec {command[0]} failed")
            for row in read_results(test_folder(folder) / "results.json").rows:  # both tests measure the constant
                rows[row.method, row.domain, row.mode, row.level, row.readout, row.seed] = replace(row, file=None)
    return results | {"rows": list(rows.values())}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path, help="a labelled file of FActScore, such as its ChatGPT.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "factscore", help="folder of the runs")
    flags = parser.parse_args()
    write_json(RESULTS, run(flags.labels, flags.seeds, flags.out))


if __name__ == "__main__":
    main()
