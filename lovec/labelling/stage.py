"""One stage: reads records, works on them in chunks, writes records, and keeps a manifest of its progress.

After every chunk the output is flushed to the disk, then the manifest beside it is replaced. Anything that a killed run
wrote after its last manifest is cut off at the next start. So no record is lost and none is written twice, and the
files end up byte for byte as those of an uninterrupted run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from lovec.core.files import read_json, write_text
from lovec.core.own_code import own_code
from lovec.core.plain import checked_integer, checked_list, checked_number, checked_object, checked_text, wrong
from lovec.core.provenance import CODE, Origin
from lovec.core.settings import Count, checked
from lovec.datasets.jsonl import json_line, record_to_dict
from lovec.datasets.layouts import read_any
from lovec.labelling.sources import Source, input_digest, stage_file
from lovec.types import LovecError, Record, error_in

STAGES = {
    "answers": ("questions", "answers"),
    "sentences": ("answers", "sentences"),
    "label": ("sentences", "labelled"),
    "pairs": ("labelled", "pairs"),
}
"""Stages of ``lovec label`` in their order, and the files that each reads and writes."""

FAILURES = "failed.jsonl"
"""File in which a stage lists the records that failed."""

_MOST_BYTES = 16_000_000  # of a manifest that is read: it lists the topics of all documents
_MOST_FILES = 2  # that a stage writes
_LARGEST = 2**62  # bytes of a file, or number of anything
_START_AGAIN = "give --redo to start again, or another --out"

Counts: TypeAlias = Mapping[str, float]
Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage makes of one record.

    Attributes:
        records: records to write; none if the record is left out.
        counts: numbers to add to the counts of the stage.
        failed: why the record failed; None if it did not.
    """

    records: Sequence[Record]
    counts: Counts = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are worked on together.

    Attributes:
        begin: number of records of the input before them.
        records: the records.
    """

    begin: int
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Written:
    """What a stage writes for one record of its input.

    Attributes:
        lines: lines of its output.
        failure: line of its list of failures; empty where there is none.
        counts: numbers to add to the counts of the stage.
    """

    lines: bytes
    failure: bytes
    counts: Counts


class Compute(Protocol):
    """Does the work of a stage, in this process or elsewhere."""

    def __call__(self, chunks: Iterator[Chunk], identity: Json) -> Iterator[Sequence[Written]]:
        """Yield what is written for the records of every chunk, in the order of the chunks.

        Args:
            chunks: what is left to do.
            identity: what the output depends on; equal identities mean equal outputs.
        """


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage has come.

    Attributes:
        stage: name of the stage.
        taken: records read from the input so far, including those of earlier runs.
        before: records that earlier runs read.
        counts: counts of the stage so far.
    """

    stage: str
    taken: int
    before: int
    counts: Counts


@checked()
@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of labelling.

    Attributes:
        name: name of the stage, and of its output without the suffix.
        work: returns an outcome for every record of a chunk, in order; the same outcomes for the same records.
        settings: what the output depends on besides the input, as JSON. The manifest shows it, so nothing secret.
        chunk: records that are worked on together; a kill loses at most the work on one chunk.
        failures: whether failed records are listed in ``failed.jsonl``.
    """

    name: str
    work: Callable[[Sequence[Record]], Sequence[Outcome]]
    settings: Json
    chunk: Count = 64
    failures: bool = False

    def written(self, records: Sequence[Record]) -> list[Written]:
        """Work on a chunk, and return what is written for every record of it."""
        return [self._written(*pair) for pair in zip(records, self.work(records), strict=True)]

    def _written(self, record: Record, outcome: Outcome) -> Written:
        lines = b"".join(json_line(record_to_dict(result), record.id) for result in outcome.records)
        failure = b""
        if outcome.failed is not None and self.failures:
            failure = json_line({"id": record.id, "stage": self.name, "why": outcome.failed}, record.id)
        counts = Counter({"records": 1, "written": len(outcome.records), "failed": int(outcome.failed is not None)})
        counts.update(outcome.counts)
        return Written(lines, failure, counts)

    def output(self, folder: Path) -> Path:
        """Return the file that the stage writes in a folder."""
        return folder / f"{self.name}.jsonl"

    def files(self, folder: Path) -> list[Path]:
        """Return every file that the stage writes in a folder: its output, its failures, its manifest."""
        failures = [folder / FAILURES] if self.failures else []
        return [self.output(folder), *failures, manifest_of(self.output(folder))]


def run_stage(
    stage: Stage,
    source: Source,
    folder: Path,
    redo: bool = False,
    notify: Callable[[Progress], None] = lambda progress: None,
    compute: Compute | None = None,
) -> Counts:
    """Run a stage: from the beginning, from where an earlier run stopped, or not at all if it is finished.

    Args:
        stage: the stage.
        source: its input.
        folder: folder of its files; only one run at a time may use it.
        redo: whether to discard what earlier runs wrote.
        notify: called after every chunk.
        compute: does the work; None does it in this process.

    Returns:
        Counts of the stage over all runs: "records" read, "written" and "failed", and the counts of its outcomes.

    Raises:
        LovecError: an earlier run had another input or other settings, or its files were changed since, or the work
            failed. The chunks finished so far are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    *files, manifest = stage.files(folder)
    code = own_code([source.identity, stage.settings])
    origin = Origin.of(source.identity, {**stage.settings, **({CODE: code} if code else {})})
    identity = origin.to_dict()
    state: dict[str, Any] = {"identity": identity, "counts": {}, "sizes": [0 for _ in files], "digest": ""}
    if not redo:
        state |= _earlier_state(manifest, origin, files)
    counts = Counter(state["counts"])
    if state["digest"]:  # finished
        return counts

    def save() -> None:
        save_manifest(manifest, state | {"counts": counts})

    save()
    before = int(counts["records"])
    with ExitStack() as stack:
        opened = [stack.enter_context(_open_cut(path, size)) for path, size in zip(files, state["sizes"], strict=True)]
        chunks = _chunks(source.records(before), stage.chunk, before)
        computed = (stage.written(c.records) for c in chunks) if compute is None else compute(chunks, identity)
        for results in computed:
            for written in results:
                opened[0].write(written.lines)
                if stage.failures:
                    opened[1].write(written.failure)
                counts.update(written.counts)
            for file in opened:
                file.flush()
                os.fsync(file.fileno())
            state["sizes"] = [file.tell() for file in opened]
            save()
            notify(Progress(stage.name, int(counts["records"]), before, counts))
    state["digest"] = input_digest(files[0])
    save()
    return counts


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the manifest beside an output says.

    Attributes:
        origin: what the output depends on.
        counts: counts of the stage so far.
        sizes: sizes of its files, in bytes.
        digest: SHA-256 of its output; "" while it is not finished.
    """

    origin: Origin
    counts: Counts
    sizes: tuple[int, ...]
    digest: str

    @classmethod
    def read(cls, path: Path, fix: str) -> Manifest:
        """Read a manifest that anybody may have changed.

        Args:
            path: the manifest.
            fix: what to do about one that cannot be used, for the error.

        Raises:
            LovecError: it cannot be read, or is not a manifest.
        """
        data = read_json(path, _MOST_BYTES, fix)
        with error_in(f"{path} is not a manifest of a stage: ", f"; {fix}"):
            found = checked_object(data, "the manifest", ("identity", "counts", "sizes", "digest"))
            if not isinstance(found["counts"], dict):
                raise wrong("its counts", found["counts"], "an object")
            sizes = checked_list(found["sizes"], "its sizes", _MOST_FILES)
            if not sizes:
                raise wrong("its sizes", sizes, "the size of a file")
            return cls(
                Origin.from_dict(found["identity"]),
                {checked_text(name, "a count"): _checked_count(value, name) for name, value in found["counts"].items()},
                tuple(checked_integer(size, "a size", 0, _LARGEST) for size in sizes),
                checked_text(found["digest"], "its digest"),
            )

    @property
    def records(self) -> int:
        """Number of records that were read so far."""
        return int(self.counts.get("records", 0))


def _checked_count(value: Any, name: str) -> float:
    """Return a count, which is a whole number where it was one, as that of records is."""
    if isinstance(value, bool):  # earlier versions wrote a count of one record as false or true
        return int(value)
    if name == "records" or isinstance(value, int):
        return checked_integer(value, f"the count {name!r}", 0, _LARGEST)
    return checked_number(value, f"the count {name!r}", 0.0, float(_LARGEST))


def read_counts(name: str, folder: Path) -> Counts | None:
    """Return the counts of a stage that was run in a folder, or None if it was not.

    Raises:
        LovecError: its manifest cannot be used.
    """
    manifest = manifest_of(folder / f"{name}.jsonl")
    return Manifest.read(manifest, _START_AGAIN).counts if manifest.exists() else None


def is_finished(name: str, folder: Path) -> bool:
    """Return whether a stage was run to its end in a folder; it may be of other records than are there now.

    Raises:
        LovecError: its manifest cannot be used.
    """
    manifest = manifest_of(folder / f"{name}.jsonl")
    return manifest.exists() and Manifest.read(manifest, _START_AGAIN).digest != ""


def check_stage_file(path: Path) -> None:
    """Check that a file which may be the user's can be read as one that a stage wrote, see ``stage_file``.

    Raises:
        LovecError: it cannot: it has another layout, or records without an id or with the same one.
    """
    if manifest_of(path).exists():
        return
    for _ in read_any(path):  # refuses what is no record, and ids that several have
        pass
    with error_in(end="; give the file another name, or another --out, so that it is copied"):
        for _ in stage_file(path).records(0):
            pass


def manifest_of(output: Path) -> Path:
    """Return the manifest beside the output of a stage."""
    return output.with_name(f"{output.stem}.manifest.json")


def save_manifest(path: Path, state: Json) -> None:
    """Write a manifest, whole or not at all.

    Args:
        path: the manifest.
        state: "identity" (source and settings), "counts", "sizes" of the files in bytes, and the "digest" of the
            output, which is empty while the stage is not finished.
    """
    write_text(path, json.dumps(state, indent=1, sort_keys=True) + "\n")


def _earlier_state(manifest: Path, origin: Origin, files: Sequence[Path]) -> Json:
    """Return the state of an earlier run, or {} if there is none; refuse a run with other input, settings or files."""
    output = files[0]
    if not manifest.exists():
        if output.exists() and output.stat().st_size:
            raise LovecError(
                f"{output} exists, but there is no {manifest.name} that says how it was made; give --redo to overwrite "
                "it, or another --out"
            )
        return {}
    earlier = Manifest.read(manifest, _START_AGAIN)
    if not earlier.digest and not earlier.counts.get("records"):
        return {}  # the earlier run stopped before its first chunk, so there is nothing to keep
    if unlike := earlier.origin.unlike(origin):
        raise LovecError(f"{output} was made with {unlike}; give --redo to make it again, or another --out")
    current = [path.stat().st_size if path.exists() else 0 for path in files]
    if len(earlier.sizes) != len(files):
        raise LovecError(
            f"{manifest} is not a manifest of this stage: it has sizes of {len(earlier.sizes)} files, expected "
            f"{len(files)}; {_START_AGAIN}"
        )
    shorter = any(now < size for now, size in zip(current, earlier.sizes, strict=True))
    if shorter or (earlier.digest and earlier.digest != input_digest(output)):
        raise LovecError(
            f"{output} was changed since it was written; leave {output.stem} out of --stages to use it as it is, or "
            "give --redo to make it again"
        )
    return {"counts": dict(earlier.counts), "sizes": list(earlier.sizes), "digest": earlier.digest}


def _open_cut(path: Path, size: int) -> BinaryIO:
    """Open a file for writing after its first ``size`` bytes; the rest is cut off."""
    file = open(path, "r+b" if path.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file


def _chunks(records: Iterable[Record], size: int, begin: int) -> Iterator[Chunk]:
    rest = iter(records)
    while chunk := list(islice(rest, size)):
        yield Chunk(begin, chunk)
        begin += len(chunk)
