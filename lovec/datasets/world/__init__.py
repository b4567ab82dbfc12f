"""The embedded world: invented people and companies, a tiny Llama that has read about them, an exact truth.

The offline default of the whole method. ``ensure_world()`` pre-trains the model on first use (minutes on a CPU) and
keeps it in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

from lovec.datasets.world.cache import cache_root, ensure_built
from lovec.datasets.world.facts import WorldSpec
from lovec.datasets.world.variants import VARIANTS, spec_of
from lovec.datasets.world.world import World

__all__ = ["VARIANTS", "World", "WorldSpec", "ensure_world"]


def ensure_world(variant: str = "world", cache_dir: Path | None = None, progress: bool = True) -> World:
    """Open a world; its model is pre-trained first if the cache does not hold it.

    Args:
        variant: a name in ``VARIANTS``.
        cache_dir: folder to cache under; default: ``$LOVEC_CACHE``, else the user's cache folder.
        progress: whether to show the progress of building on standard error.

    Raises:
        LovecError: there is no world of that name.
    """
    spec = spec_of(variant)
    return World(variant, spec, ensure_built(variant, spec, cache_root(cache_dir), progress))
