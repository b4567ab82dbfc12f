"""Human labels through the whole path: SFT and DPO on FActScore's biographies, tested on people held out.

    python benchmarks/factscore.py ChatGPT.jsonl    # three seeds -> benchmarks/results/factscore.json

The model is a random tiny Llama that reads bytes: the figures are that model's. They show that real sentences with
real labels go through, not what the method can do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import KEYS, ROOT, provenance, write_json

from lovec.cli import main as lovec

RESULTS = ROOT / "benchmarks" / "results" / "factscore.json"


def run(labels: Path, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Train and test with every seed (of the split, too) and collect the rows."""
    results = provenance() | {"model": "tiny-llama, random weights", "rows": []}
    for seed in seeds:
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for name in ("sft", "dpo"):
            folder = out / f"seed-{seed}" / name
            words = ["--config", f"{name}.yaml", "--config", "factscore.yaml", "--data.path", str(labels)]
            words += ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
            start = ["--model.policy.adapter", str(folder.parent / "sft" / "adapter")] if name == "dpo" else []
            for command in (["fit", *words, *start, "--trainer.limit_val_batches", "0"], ["test", *words]):
                if lovec(command):
                    raise SystemExit(f"lovec {command[0]} failed")
            for row in json.loads((folder / "test" / "results.json").read_text(encoding="utf-8")):
                rows[tuple(row[key] for key in KEYS[:6])] = {key: row[key] for key in KEYS}
        results["rows"] += rows.values()
    return results


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path, help="a labelled file of FActScore, such as its ChatGPT.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "factscore", help="folder of the runs")
    flags = parser.parse_args()
    write_json(RESULTS, run(flags.labels, flags.seeds, flags.out))


if __name__ == "__main__":
    main()
