"""One stage: records in, records out, chunk by chunk, with a manifest that says how far it has come.

After every chunk the output is flushed to the disk, then the manifest beside it is replaced. Whatever a killed run
wrote behind the manifest's mark is cut off at the next start, so no record is lost and none is written twice, and the
files end up byte for byte as those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from lovec.datasets.jsonl import record_to_dict
from lovec.labelling.sources import Source, file_digest
from lovec.types import LovecError, Record

Counts: TypeAlias = Mapping[str, float]
Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage makes of one record.

    Attributes:
        records: what is written; none where it is left out.
        counts: what is added to the stage's figures.
        failed: why it failed, where it did.
    """

    records: Sequence[Record]
    counts: Counts = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage has come.

    Attributes:
        stage: its name.
        taken: records taken from its input so far, those of earlier runs included.
        before: records that earlier runs took.
        counts: its figures so far.
    """

    stage: str
    taken: int
    before: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of labelling.

    Attributes:
        name: of the stage, and of its output without the ending.
        work: makes an outcome of every record of a chunk, in order; the same for the same records.
        settings: what the output depends on beside the input, as JSON. Nothing secret: they are written down.
        chunk: records that are worked on together, and lost to a kill at most.
        failures: whether failed records are named in ``failed.jsonl``.
    """

    name: str
    work: Callable[[Sequence[Record]], Sequence[Outcome]]
    settings: Json
    chunk: int = 64
    failures: bool = False

    def output(self, folder: Path) -> Path:
        """The file that it writes."""
        return folder / f"{self.name}.jsonl"


def run_stage(
    stage: Stage,
    source: Source,
    folder: Path,
    redo: bool = False,
    notify: Callable[[Progress], None] = lambda progress: None,
) -> Counts:
    """Run a stage, go on with one that was interrupted, or see that a finished one is up to date.

    Args:
        stage: what to do.
        source: what to do it to.
        folder: where its files lie; one run at a time.
        redo: throw away what an earlier run wrote.
        notify: called after every chunk.

    Returns:
        The stage's figures: "records" taken, "written", "failed", and what its outcomes count.

    Raises:
        LovecError: an earlier run had another input or other settings, or its files were changed since; or the work
            cannot go on. What is done stays done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = json.loads(json.dumps({"source": source.identity(), "settings": stage.settings}))
    journal = _Journal.opened(stage, folder, identity, redo)
    if not journal.done:
        journal.go_on(source, notify)
    return journal.counts


def read_counts(name: str, folder: Path) -> Counts | None:
    """The figures of a stage that was run in a folder; None where it was not."""
    manifest = _manifest(folder, name)
    return json.loads(manifest.read_text(encoding="utf-8"))["counts"] if manifest.exists() else None


class _Journal:
    """The manifest of a stage, and the files whose length it knows."""

    def __init__(self, stage: Stage, folder: Path, identity: Json) -> None:
        self.stage = stage
        self.folder = folder
        self.identity = identity
        self.files = [stage.output(folder), *([folder / "failed.jsonl"] if stage.failures else [])]
        self.sizes = [0 for _ in self.files]
        self.counts: Counter[str] = Counter()
        self.digest = ""  # of the finished output

    @property
    def done(self) -> bool:
        return bool(self.digest)

    @classmethod
    def opened(cls, stage: Stage, folder: Path, identity: Json, redo: bool) -> _Journal:
        """The journal as the last run left it, or a new one."""
        journal, manifest = cls(stage, folder, identity), _manifest(folder, stage.name)
        output = stage.output(folder)
        if redo:
            manifest.unlink(missing_ok=True)
        elif manifest.exists():
            journal._take_up(_parsed(manifest))
        elif output.exists() and output.stat().st_size:
            raise LovecError(
                f"{output} is there, but no {manifest.name} says how it was made; give --redo to write over it, or "
                "another folder with --out"
            )
        return journal

    def go_on(self, source: Source, notify: Callable[[Progress], None]) -> None:
        """Work through the rest of the input."""
        self._save()
        before = int(self.counts["records"])
        files = [_cut(path, size) for path, size in zip(self.files, self.sizes, strict=True)]
        try:
            for chunk in _chunks(source.records(before), self.stage.chunk):
                self._write(files, chunk, self.stage.work(chunk))
                notify(Progress(self.stage.name, int(self.counts["records"]), before, self.counts))
        finally:
            for file in files:
                file.close()
        self.digest = file_digest(self.files[0])
        self._save()

    def _write(self, files: Sequence[BinaryIO], chunk: Sequence[Record], outcomes: Sequence[Outcome]) -> None:
        for record, outcome in zip(chunk, outcomes, strict=True):
            for written in outcome.records:
                files[0].write(_line(record_to_dict(written), record.id))
            if outcome.failed is not None and self.stage.failures:
                files[1].write(_line({"id": record.id, "stage": self.stage.name, "why": outcome.failed}, record.id))
            self.counts["records"] += 1
            self.counts["written"] += len(outcome.records)
            self.counts["failed"] += outcome.failed is not None
            self.counts.update(outcome.counts)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        self.sizes = [file.tell() for file in files]
        self._save()

    def _take_up(self, held: Json) -> None:
        """Go on from a manifest, if it is of this input and these settings."""
        if not held["digest"] and not held["counts"].get("records"):
            return  # stopped before its first chunk: nothing is lost by beginning anew
        output, place = self.files[0], _difference(held["identity"], self.identity)
        if place is not None:
            raise LovecError(
                f"{output} was made with {place}; give --redo to make it anew, or another folder with --out"
            )
        self.sizes, self.digest = list(held["sizes"]), held["digest"]
        self.counts = Counter(held["counts"])
        there = [path.stat().st_size if path.exists() else 0 for path in self.files]
        changed = self.digest != file_digest(output) if self.done and output.exists() else False
        if changed or any(size < known for size, known in zip(there, self.sizes, strict=True)):
            raise LovecError(
                f"{output} was changed since it was written; leave {self.stage.name} out of --stages to go on from it "
                "as it is, or give --redo to make it anew"
            )

    def _save(self) -> None:
        manifest = _manifest(self.folder, self.stage.name)
        held = {"identity": self.identity, "counts": self.counts, "sizes": self.sizes, "digest": self.digest}
        part = manifest.with_name(f".{manifest.name}.part")
        with open(part, "w", encoding="utf-8") as file:
            file.write(json.dumps(held, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, manifest)


def _manifest(folder: Path, name: str) -> Path:
    return folder / f"{name}.manifest.json"


def _parsed(manifest: Path) -> Json:
    try:
        held = json.loads(manifest.read_text(encoding="utf-8"))
        if held.keys() >= {"identity", "counts", "sizes", "digest"}:
            return dict(held)
    except (ValueError, AttributeError):
        pass
    raise LovecError(f"{manifest} is no manifest of a stage; give --redo to begin anew, or another folder with --out")


def _cut(path: Path, size: int) -> BinaryIO:
    """A file opened behind its first ``size`` bytes, the rest cut off."""
    file = open(path, "r+b" if path.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    rest = iter(records)
    while chunk := list(islice(rest, size)):
        yield chunk


def _line(data: Json, name: str) -> bytes:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise LovecError(f"record {name!r} cannot be written as JSON ({error}); mend it") from None


def _difference(before: Any, now: Any, place: str = "") -> str | None:
    """The first difference between two identities in words, or None."""
    if before == now:
        return None
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            if found := _difference(before.get(key), now.get(key), f"{place}.{key}" if place else key):
                return found
    name = place.removeprefix("settings.").removeprefix("source.")
    where = f"{name} of another input" if place.startswith("source") else f"other settings: {name}"
    return f"{where} ({_shown(before)} then, {_shown(now)} now)"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
