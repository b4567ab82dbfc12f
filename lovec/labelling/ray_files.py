"""What the processes of a stage on a Ray cluster share: its settings, and the rows of their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from lovec.core.settings import NO_EFFECT, Count, NonNegative, Positive, checked
from lovec.labelling.stage import Chunk, Written
from lovec.types import LovecError, Record, Sentence

ID = "id"
"""Column of the number of records before a chunk."""

RESULTS = "results"
"""Column of what is written for the records of a chunk, and folder of the files that hold it."""

CHUNKS = "chunks.jsonl"
"""File of the chunks."""

TRIES = "tries"
"""Folder with a file for every chunk that is worked on, in which every actor that began it has written a byte."""

MOST_TRIES = 3
"""How often a chunk may be begun without an end before the run stops."""

_NAMED = 5  # ids of a chunk that an error names


@checked("--{}")
@dataclass(frozen=True, slots=True)
class RaySettings:
    """Whether and how the work is spread over a Ray cluster.

    Attributes:
        on: "ray" computes on the Ray cluster of the environment variable RAY_ADDRESS or of this machine, and starts one
            on this machine if there is none; null computes in this process.
        actors: the most processes that hold a model on the cluster; null is as many as its GPUs allow, or its CPUs
            without --actor_gpus.
        actor_cpus: CPUs of each actor, which are also its threads.
        actor_gpus: GPUs of each actor; 0 is none, and 0.5 lets two share one.

    Raises:
        LovecError: a number is out of range.
    """

    on: Annotated[Literal["ray"] | None, NO_EFFECT] = None
    actors: Annotated[Count | None, NO_EFFECT] = None
    actor_cpus: Annotated[Positive, NO_EFFECT] = 1
    actor_gpus: Annotated[NonNegative, NO_EFFECT] = 0

    def __post_init__(self) -> None:
        if self.on is None and (self.actors is not None or self.actor_gpus or self.actor_cpus != 1):
            raise LovecError("--actors, --actor_cpus and --actor_gpus need --on ray")


def read_chunk(line: bytes) -> list[Record]:
    """Return the records of a line of the file of chunks, exactly as they were."""
    return [_restored(data) for data in json.loads(line)]


def write_chunk(chunk: Chunk) -> bytes:
    """Return a chunk as a line; `read_chunk` is the inverse."""
    return json.dumps([asdict(record) for record in chunk.records]).encode() + b"\n"


def read_results(text: str) -> list[Written]:
    """Return what is written for the records of a chunk."""
    return [Written(lines.encode(), failure.encode(), counts) for lines, failure, counts in json.loads(text)]


def write_results(results: Sequence[Written]) -> str:
    """Return the results of a chunk as text; `read_results` is the inverse."""
    return json.dumps([[one.lines.decode(), one.failure.decode(), dict(one.counts)] for one in results])


def begin_try(folder: Path, id_: int, records: Sequence[Record]) -> Path:
    """Note that an actor begins to work on a chunk, and return the file to remove when it has ended.

    Ray Data begins the work of an actor that has died again without end. Its own limit, ``max_task_retries``, is one of
    blocks, also of those that have only waited for the actor, and its error names no record.

    Args:
        folder: folder of the stage on Ray.
        id_: id of the chunk.
        records: its records.

    Raises:
        LovecError: as many actors as are allowed have died on the chunk.
    """
    file = folder / TRIES / str(id_)
    if file.exists() and file.stat().st_size >= MOST_TRIES:
        ids = ", ".join(record.id for record in records[:_NAMED])
        more = f" and {len(records) - _NAMED} more" if len(records) > _NAMED else ""
        raise LovecError(
            f"{MOST_TRIES} actors have died on the records {ids}{more}; memory may be short: give each more with fewer "
            "--actors or more --actor_cpus, and run the same command again, which goes on from what is finished; or "
            "leave these records out of the input, and the work begins again"
        )
    with open(file, "ab") as tries:
        tries.write(b".")
    return file


def _restored(data: dict[str, Any]) -> Record:
    """Return a record from its fields; `lovec.datasets.jsonl` would also check and strip the texts."""
    sentences = tuple(Sentence(**{name: _tuple(value) for name, value in s.items()}) for s in data.pop("sentences"))
    meta = data.pop("meta")
    return Record(sentences=sentences, meta=meta, **{name: _tuple(value) for name, value in data.items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
