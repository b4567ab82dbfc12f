"""The worlds by name. This list is a file of its own so that a change to it does not rebuild cached worlds."""

from __future__ import annotations

from collections.abc import Mapping

from lovec.datasets.world.facts import WorldSpec
from lovec.types import LovecError

VARIANTS: Mapping[str, WorldSpec] = {
    "world": WorldSpec(),
    "world-1": WorldSpec(model_seed=1),
    "world-2": WorldSpec(model_seed=2),
    "world-small": WorldSpec(
        n_people=120, n_towns=60, n_ships=60, n_companies=40, steps=900, company_share=0.15, width=96, heads=3, ffn=256
    ),
}
"""Numbers of a world by its name."""


def spec_of(variant: str) -> WorldSpec:
    """Return the numbers of a named world.

    Raises:
        LovecError: there is no world of that name.
    """
    if variant not in VARIANTS:
        raise LovecError(f"the world variant is {variant!r}, expected one of {', '.join(VARIANTS)}")
    return VARIANTS[variant]
