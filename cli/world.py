"""``lovec world``: finds the embedded world, or pre-trains its model anew."""

from __future__ import annotations

from pathlib import Path

from .errors import check_folder_name
from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Print the folder of a world's model; build the model first where neither the package nor the cache has it.

    Args:
        words: the command line after ``world``.

    Raises:
        UsageError: the model is to be built into "-".
    """
    parser = OneLineParser("world", "Print the folder of the embedded world's model; build it where it is missing.")
    parser.add_argument("--variant", default="world", help="world, world-small for a quick look, world-1 or world-2")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="pre-train the model anew, into this folder")
    options = parser.read(words)
    check_folder_name("--build", options.build)
    from lovec.datasets.world import build_world, ensure_world

    print(build_world(options.variant, options.build) if options.build else ensure_world(options.variant).path)
