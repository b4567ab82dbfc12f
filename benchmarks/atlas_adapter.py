"""Makes the adapter that comes with the package of a run on Atlas, and calibrates it.

    python benchmarks/atlas_adapter.py runs/real/atlas-larger/seed-0/distil    # some ten minutes on one core

The run is one of `benchmarks/real.py --data atlas-larger`. Its weights are rounded to bfloat16, which halves the file.
Rounded weights give slightly other scores, so that they are calibrated anew, on the validation answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lovec.cli import main as lovec
from lovec.files import write_text
from lovec.hub import SHIPPED
from lovec.types import LovecError

WEIGHTS, OPTIONS = "adapter_model.safetensors", "adapter_config.json"
BASE = "smollm2"
ADAPTER = SHIPPED["atlas"]


def main(run: Path) -> None:
    """Write the adapter of the package.

    Args:
        run: folder of a run.

    Raises:
        LovecError: it has no adapter, or cannot be calibrated.
    """
    source = run / "adapter"
    if not (source / WEIGHTS).is_file():
        raise LovecError(f"{run} has no adapter; train it with benchmarks/real.py --data atlas-larger")
    recipe = max(run.glob("logs/version_*/config.yaml"), key=lambda path: int(path.parent.name.rpartition("_")[2]))
    shutil.rmtree(ADAPTER, ignore_errors=True)
    ADAPTER.mkdir()
    tensors = load_file(source / WEIGHTS)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(rounded, ADAPTER / WEIGHTS, {"format": "pt"})
    options = json.loads((source / OPTIONS).read_text(encoding="utf-8")) | {"base_model_name_or_path": BASE}
    write_text(ADAPTER / OPTIONS, json.dumps(options, indent=1) + "\n")
    shutil.copy(source / "lovec.json", ADAPTER)
    words = ["calibrate", str(ADAPTER), "--config", str(recipe), "--max_new_tokens", "224"]
    if code := lovec([*words, "--keep_factual", "[0.8, 0.9]"]):
        raise LovecError(f"the adapter was not calibrated (exit code {code})")
    for leftover in ADAPTER.glob(".*"):
        leftover.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of benchmarks/real.py")
    main(parser.parse_args().run)
