"""``lovec join``: one file of the shards that ``lovec tag --shard`` and ``lovec label --shard`` have written."""

from __future__ import annotations

from pathlib import Path

from lovec.core.notices import counted
from lovec.core.progress import note

from .console import locked
from .errors import UsageError
from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Join shards to what one run without --shard would have written.

    Args:
        words: the command line after ``join``.

    Raises:
        LovecError: the shards are not whole, do not fit together, or the output is there; nothing is written then.
    """
    parser = OneLineParser("join", "Join the shards of `lovec tag --shard` or `lovec label --shard`.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the --out of the shards: tags.jsonl, or a folder")
    parser.add_argument("--redo", action="store_true", help="replace files that are there")
    options = parser.read(words)
    out: Path = options.out
    from lovec.labelling.joining import join_file, join_folder

    if out.suffix == ".jsonl" and not out.is_dir():
        if not out.parent.is_dir():
            raise UsageError(f"there is no folder {out.parent}; give the --out of the shards")
        with locked(out):
            counts = join_file(out, options.redo)
    elif out.is_dir():
        with locked(out, folder=True):
            counts = join_folder(out, options.redo)
    else:
        raise UsageError(f"{out} is neither a name that ends in .jsonl nor a folder; give the --out of the shards")
    written, shards = int(counts["written"]), int(counts["shards"])
    note(f"{out}: {counted(written, 'record')} of {counted(shards, 'shard')}")
