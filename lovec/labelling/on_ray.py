"""A stage on a Ray cluster, through Ray Data: read, ``map_batches`` with a pool of actors, write.

A row of Ray's data set is a chunk of the stage, so every chunk is computed by one actor exactly as one process would
compute it. The id of a row is the number of records before the chunk. Ray Data's checkpoints, by that id, say which
chunks are done, so that a run which is started again does the others only. What the actors have written is then put in
the order of the input by ``run_stage``, as if it had been computed there.

All nodes of the cluster need the folder of the output, as they need the model and the working directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lovec.core.files import write_text
from lovec.labelling.ray_files import CHUNKS, ID, RESULTS, TRIES, RaySettings, read_results, write_chunk
from lovec.labelling.stage import Chunk, Json, Stage, Written
from lovec.types import LovecError


class OnRay:
    """Computes the chunks of a stage on a Ray cluster; see ``lovec.labelling.stage.Compute``.

    Args:
        settings: how many actors, with what.
        stage: the stage that is run.
        folder: folder of its output.
        open_stage: returns the stage in an actor; it is pickled, so it must be importable there.
        redo: whether what earlier runs computed is discarded.
    """

    def __init__(
        self, settings: RaySettings, stage: Stage, folder: Path, open_stage: Callable[[], Stage], redo: bool
    ) -> None:
        self.settings = settings
        self.stage = stage
        self.folder = (folder / f"{stage.name}.ray").resolve()
        self.open_stage = open_stage
        self.redo = redo

    def __call__(self, chunks: Iterator[Chunk], identity: Json) -> Iterator[Sequence[Written]]:
        """Yield what is written for the records of every chunk, in the order of the chunks.

        Raises:
            LovecError: Ray is not installed or cannot be reached, or the work failed. What is done stays done.
        """
        self._prepare(identity)
        places = self._spool(chunks)
        if places:
            self._compute(places)
            yield from self._results(list(places))
        shutil.rmtree(self.folder)  # all of it has been written by now

    def _prepare(self, identity: Json) -> None:
        """Discard what an earlier run has left if this one must not go on from there."""
        named = self.folder / "identity.json"
        text = json.dumps({**identity, "chunk": self.stage.chunk}, indent=1, sort_keys=True) + "\n"
        kept = not self.redo and named.is_file() and named.read_text(encoding="utf-8") == text
        if not kept:
            shutil.rmtree(self.folder, ignore_errors=True)
            write_text(named, text)

    def _spool(self, chunks: Iterator[Chunk]) -> dict[int, int]:
        """Write the chunks into a file, one a line, and return their places in it by their ids, in bytes."""
        places: dict[int, int] = {}
        with open(self.folder / CHUNKS, "wb") as file:
            for chunk in chunks:
                places[chunk.begin] = file.tell()
                file.write(write_chunk(chunk))
        return places

    def _compute(self, places: Mapping[int, int]) -> None:
        """Have the cluster write the results of all chunks that no earlier run has written."""
        try:
            from lovec.labelling.ray_pipeline import connected, run_pipeline
        except ImportError as error:
            raise LovecError(f"--on ray needs Ray Data: pip install 'lovec[ray]' ({error})") from error
        shutil.rmtree(self.folder / TRIES, ignore_errors=True)  # those of an earlier run do not count
        (self.folder / TRIES).mkdir()
        with connected():
            run_pipeline(self.folder, places, self.open_stage, self.settings)

    def _results(self, ids: Sequence[int]) -> Iterator[list[Written]]:
        """Yield the results of the chunks in the order of their ids; a file is open at a time.

        Raises:
            LovecError: one is not there.
        """
        from pyarrow.parquet import read_table

        files = sorted((self.folder / RESULTS).glob("*.parquet"))
        held = {id_: file for file in files for id_ in read_table(file, columns=[ID])[ID].to_pylist()}
        current, rows = None, dict[int, str]()
        for id_ in ids:
            if id_ not in held:
                raise LovecError(f"Ray has ended without the result of record {id_ + 1}; run the same command again")
            if held[id_] != current:
                current = held[id_]
                table = read_table(current)
                rows = dict(zip(table[ID].to_pylist(), table[RESULTS].to_pylist(), strict=True))
            yield read_results(rows[id_])
