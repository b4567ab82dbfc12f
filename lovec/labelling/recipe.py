"""The recipe beside labels: one's own data and model in place of the embedded world's, and the commands that use it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lovec.core.files import write_text
from lovec.core.notices import counted
from lovec.labelling.splitting import SPLITS

RECIPE = "recipe.yaml"
"""Name of the recipe."""

_HEAD = """\
# Data and model of {folder}, in place of the embedded world's. Goes behind a recipe of an objective:
#
#   lovec fit --config sft.yaml{overlay} --config {recipe} --trainer.default_root_dir {folder}/sft
#
# Written by `lovec label`, and again whenever it runs; copy it before you change it.
"""
_RATE = 1.0e-5  # of llama3-8b.yaml and gemma2-9b.yaml
_LONGEST = 1024  # tokens of a tagged answer: twice what `lovec label` lets a plain one have
_SFT_RATE = "5e-5"


def write_recipe(
    folder: Path, model: str | None, trained_offline: bool, instruction: str | None, overlay: str | None = None
) -> Path:
    """Write ``recipe.yaml`` beside the splits.

    Args:
        folder: folder of ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl``.
        model: the model to train; None leaves it to the command line.
        trained_offline: whether the model is one of lovec's own tiny ones, to which the settings of the recipes belong;
            others get the learning rate of large models, room for longer answers, and a GPU where there is one.
        instruction: the instruction that the model knows; None is the paper's.
        overlay: name of the recipe that goes before this one, since it is for the model; None where there is none.

    Returns:
        The recipe.
    """
    policy = {name: value for name, value in (("model", model), ("instruction", instruction)) if value is not None}
    arguments: dict[str, Any] = {"policy": policy} if policy else {}
    recipe: dict[str, Any] = {}
    if not trained_offline:
        recipe["trainer"] = {"accelerator": "auto"}
        arguments["evaluation"] = {"max_new_tokens": _LONGEST}
        arguments["optimizer"] = {"init_args": {"lr": _RATE}}
    if arguments:
        recipe["model"] = {"init_args": arguments}
    paths = dict(
        zip(("path", "val_path", "test_path"), (str(folder / f"{split}.jsonl") for split in SPLITS), strict=True)
    )
    recipe["data"] = {
        "class_path": "lovec.datamodules.Preferences",
        "init_args": {**paths, "name": folder.resolve().name},
    }
    path = folder / RECIPE
    head = _HEAD.format(folder=shlex.quote(str(folder)), recipe=shlex.quote(str(path)), overlay=_config(overlay))
    write_text(path, head + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110))
    return path


def _config(overlay: str | None) -> str:
    return "" if overlay is None else f" --config {overlay}"


def next_commands(folder: Path, model: str | None, trained_offline: bool, overlay: str | None = None) -> list[str]:
    """Return the commands that train, test, calibrate and tag with what is in a folder.

    Args:
        folder: as for ``write_recipe``.
        model: as for ``write_recipe``.
        trained_offline: as for ``write_recipe``.
        overlay: as for ``write_recipe``.
    """
    place = shlex.quote(str(folder))
    recipe, sft, dpo = (shlex.quote(str(folder / name)) for name in (RECIPE, "sft", "dpo"))
    base = "" if model is not None else " --model.policy.model MODEL"
    rate = "" if trained_offline else f" --model.optimizer.lr {_SFT_RATE}"
    configs = f"{_config(overlay)} --config {recipe}"
    adapter = shlex.quote(str(folder / "sft" / "adapter"))
    return [
        f"lovec fit --config sft.yaml{configs} --trainer.default_root_dir {sft}{base}{rate}",
        f"lovec fit --config dpo.yaml{configs} --trainer.default_root_dir {dpo}{base} --model.policy.adapter {adapter}",
        f"lovec test --config dpo.yaml{configs} --trainer.default_root_dir {dpo}{base}",
        f"lovec calibrate {dpo} --data {place}/dev.jsonl",
        f"lovec tag FILE --adapter {dpo}",
    ]


def summary(counts: Mapping[str, float]) -> str:
    """Return one sentence about the splits, from what ``split_file`` counted."""
    numbers = ", ".join(f"{split} {int(counts[split])}" for split in SPLITS)
    left = f"; {int(counts['left out'])} without a label left out" if counts.get("left out") else ""
    entities = counted(int(counts["entities"]), "entity", "entities")
    own = ", as meta.split says" if counts.get("by meta.split") else ""
    return f"{numbers} records about {entities}, each in one of the three only{own}{left}"
