"""The packaged recipes, by what they are: read from the files, so that a new one is tested with the others."""

from __future__ import annotations

import yaml

from lovec.cli.arguments import BASE, RECIPES

WHOLE = {path.name: yaml.safe_load(path.read_text()) for path in sorted(RECIPES.glob("*.yaml")) if path != BASE}
"""Their settings, without those of base.yaml."""

OBJECTIVES = [name for name, settings in WHOLE.items() if "class_path" in settings.get("model", {})]
"""Those that name what is trained or measured."""

OVERLAYS = [name for name in WHOLE if name not in OBJECTIVES]
"""Those that go behind one of these."""

QUANTIZED = [name for name in OVERLAYS if "bitsandbytes" in (RECIPES / name).read_text()]
"""Overlays that need the extra ``quant``."""


def class_of(recipe: str) -> str:
    """The import path of the class that a recipe names."""
    return str(WHOLE[recipe]["model"]["class_path"])


def command_of(recipe: str) -> str:
    """The command that a recipe is for: test for what only measures."""
    return "test" if class_of(recipe).startswith("lovec.evaluation.") else "fit"
