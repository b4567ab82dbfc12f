"""The embedded world: invented people and companies, a tiny Llama pre-trained on texts about them, and exact labels.

It is the offline default of the whole method. ``ensure_world()`` pre-trains the model on first use (minutes on a CPU)
and keeps it in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

from lovec.datasets.world.cache import cache_root, ensure_built
from lovec.datasets.world.facts import WorldSpec
from lovec.datasets.world.variants import VARIANTS, spec_of
from lovec.datasets.world.world import EmbeddedWorld

__all__ = ["VARIANTS", "EmbeddedWorld", "WorldSpec", "ensure_world"]


def ensure_world(variant: str = "world", cache_dir: Path | None = None, progress: bool = True) -> EmbeddedWorld:
    """Open a world with its model; the model is pre-trained first if the cache does not have it.

    Args:
        variant: a name in ``VARIANTS``.
        cache_dir: folder of the cache; default: ``$LOVEC_CACHE``, else the user's cache folder.
        progress: whether to show the progress of building on standard error.

    Raises:
        LovecError: there is no world of that name, or the cache cannot be written.
    """
    spec = spec_of(variant)
    return EmbeddedWorld(variant, spec, ensure_built(variant, spec, cache_root(cache_dir), progress))
