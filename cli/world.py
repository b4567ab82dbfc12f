"""``lovec world``: builds the embedded world before it is needed."""

from __future__ import annotations

from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Build a world, or find it in the cache, and print its folder.

    Args:
        words: the command line after ``world``.
    """
    parser = OneLineParser("world", "Build the embedded world (once; it is kept in the cache) and print its folder.")
    parser.add_argument("--variant", default="world", help="world, or world-small for a quick look")
    options = parser.read(words)
    from lovec.datasets.world import ensure_world

    print(ensure_world(options.variant).path)
