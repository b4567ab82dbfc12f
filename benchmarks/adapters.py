"""Makes an adapter that comes with the package of a run, and calibrates it.

    python benchmarks/adapters.py atlas runs/real/atlas-larger/seed-0/distil            # some ten minutes on one core
    python benchmarks/adapters.py atlas-grounded runs/grounded/atlas/seed-1/grounded    # some twenty minutes
    python benchmarks/adapters.py world runs/demo-world/distil                          # seconds

The runs are of `benchmarks/real.py --data atlas-larger`, `benchmarks/grounded.py` and `lovec demo --world --seed 0`.
Weights are rounded to bfloat16, which halves the file. Rounded weights give slightly other scores, so that they are
calibrated anew, on the validation answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml
from grounded_rows import measured_answers
from safetensors.torch import load_file, save_file

from lovec.cli import main as lovec
from lovec.core.files import write_text
from lovec.core.hub import SHIPPED, trained_recipe
from lovec.datasets.jsonl import write_records
from lovec.types import LovecError

WEIGHTS, OPTIONS = "adapter_model.safetensors", "adapter_config.json"
BASES = {"atlas": "smollm2", "atlas-grounded": "smollm2", "world": "world"}
"""Bases of the adapters, by their names on any machine."""


def main(name: str, run: Path) -> None:
    """Write an adapter of the package.

    Args:
        name: its name.
        run: folder of a run.

    Raises:
        LovecError: the run has no adapter, or it cannot be calibrated.
    """
    source, target = run / "adapter", SHIPPED[name]
    if not (source / WEIGHTS).is_file():
        raise LovecError(f"{run} has no adapter; make it with the commands at the top of {Path(__file__).name}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    tensors = load_file(source / WEIGHTS)
    rounded = {key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()}
    save_file(rounded, target / WEIGHTS, {"format": "pt"})
    options = json.loads((source / OPTIONS).read_text(encoding="utf-8")) | {"base_model_name_or_path": BASES[name]}
    options["target_modules"].sort()  # PEFT writes a set
    write_text(target / OPTIONS, json.dumps(options, indent=1) + "\n")
    shutil.copy(source / "lovec.json", target)
    with TemporaryDirectory() as folder:
        recipe = with_articles(Path(folder)) if name == "atlas-grounded" else trained_recipe(run)
        words = ["calibrate", str(target), "--config", str(recipe), "--max_new_tokens", "224"]
        code = lovec([*words, "--keep_factual", "[0.8, 0.9]"])
    if code:
        raise LovecError(f"the adapter was not calibrated (exit code {code})")
    for leftover in target.glob(".*"):
        leftover.unlink()


def with_articles(folder: Path) -> Path:
    """Write the validation answers of Atlas, without articles and with them, and return a recipe that reads them."""
    answers, recipe = folder / "atlas.jsonl", folder / "recipe.yaml"
    pairs = measured_answers("atlas", "validation")
    write_records(answers, [*(row for row, _ in pairs), *(replace(row, id=f"{row.id}/article") for _, row in pairs)])
    oracle = {"class_path": "grounded_atlas.ArticleOracle"}
    data = {"path": str(answers), "val_path": str(answers), "name": "Atlas, with articles and without"}
    content = {
        "model": {"class_path": "lovec.modules.SFT", "init_args": {"oracle": oracle}},
        "data": {"class_path": "lovec.datamodules.Demonstrations", "init_args": data},
    }
    write_text(recipe, yaml.safe_dump(content))
    return recipe


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SHIPPED), help="the adapter")
    parser.add_argument("run", type=Path, help="folder of a run that trained it")
    options = parser.parse_args()
    main(options.name, options.run)
