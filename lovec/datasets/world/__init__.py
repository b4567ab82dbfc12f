"""The embedded world: invented things, a tiny Llama pre-trained on texts about them, and exact labels.

It is the offline default of the whole method. Models of the worlds "world" and "world-small" come with the package;
``ensure_world()`` pre-trains those of others on first use (minutes on a CPU) and keeps them in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

from lovec.datasets.world.cache import build_into, cache_root, content_hash, ensure_built, shipped
from lovec.datasets.world.facts import WorldSpec
from lovec.datasets.world.variants import VARIANTS, spec_of
from lovec.datasets.world.world import EmbeddedWorld

__all__ = ["VARIANTS", "EmbeddedWorld", "WorldSpec", "build_world", "ensure_world"]


def ensure_world(variant: str = "world", cache_dir: Path | None = None, progress: bool = True) -> EmbeddedWorld:
    """Open a world with its model; a model that neither the package nor the cache has is pre-trained first.

    Args:
        variant: a name in ``VARIANTS``.
        cache_dir: folder of the cache; default: ``$LOVEC_CACHE``, else the user's cache folder.
        progress: whether to show the progress of building on standard error.

    Raises:
        LovecError: there is no world of that name, or the cache cannot be written.
    """
    spec, root = spec_of(variant), cache_root(cache_dir)
    path = shipped(variant, spec) or ensure_built(variant, spec, root, progress)
    return EmbeddedWorld(variant, spec, path, root / f"{variant}-{content_hash(spec)}")


def build_world(variant: str, folder: Path, progress: bool = True) -> Path:
    """Pre-train the model of a world, whatever the package and the cache have.

    Args:
        variant: a name in ``VARIANTS``.
        folder: where a folder of the world is written, named by the variant and a digest of the weights.
        progress: whether to show the progress on standard error.

    Returns:
        The folder of the world.

    Raises:
        LovecError: there is no world of that name, or the folder cannot be written.
    """
    return build_into(variant, spec_of(variant), folder, progress)
