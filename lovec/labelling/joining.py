"""Joins the files of shards to those that one run over the whole input would have written.

The manifest of a shard says which part of which input it read, with which settings, and the digest of what it wrote.
Shards are joined if all of that fits together. Records are matched by their ids: a record of the input may have become
several (samples) or none (pairs without labels), and all that became of it stays together, in the order of the input.
Every file is read once, from its beginning to its end; of the records, only ids are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import TypeAlias

from lovec.core.files import atomic_file, check_output, check_unused
from lovec.core.notices import counted, listed
from lovec.core.provenance import Origin
from lovec.labelling.sources import Shard
from lovec.labelling.stage import FAILURES, STAGES, Counts, Manifest, manifest_of, save_manifest
from lovec.types import LovecError

Lines: TypeAlias = list[tuple[str, bytes]]
"""Lines of a file with the ids of their records."""

_BLOCK = 64 * 1024  # bytes that are read at once: shards may outnumber the files that a process may keep open
_MAKE_AGAIN = "make the shard again with --redo"


@dataclass(frozen=True, slots=True)
class _Part:
    """A finished file of a shard, and what its manifest says."""

    path: Path
    shard: Shard
    manifest: Manifest

    @property
    def origin(self) -> Origin:
        """What it depends on, without the shard."""
        origin = self.manifest.origin
        return replace(origin, source={name: value for name, value in origin.source.items() if name != "shard"})

    @property
    def failures(self) -> Path | None:
        """The file that lists the records that failed, where there is one."""
        return self.path.with_name(FAILURES) if len(self.manifest.sizes) > 1 else None


def shard_file(output: Path, shard: Shard) -> Path:
    """Return the file that a shard of ``lovec tag`` writes: ``tags.shard-3-of-8.jsonl`` for ``tags.jsonl``."""
    return output.with_name(f"{output.stem}.{shard.name}.jsonl")


def join_file(output: Path, redo: bool = False) -> Counts:
    """Join the shards of a JSONL file that ``lovec tag`` has written beside it.

    Args:
        output: the file to write, as it was named by ``--out``.
        redo: whether a file that is there may be replaced.

    Returns:
        Number of "shards", and "records", "written" and other counts of all shards together.

    Raises:
        LovecError: a shard is missing, unfinished, changed, or of another input or other settings; or the file is
            there. Nothing is written then.
    """
    shards = _find(output, output.parent, rf"{re.escape(output.stem)}\.", r"\.(jsonl|manifest\.json)")
    return _join([output], [[_read_part(shard_file(output, shard), shard)] for shard in shards], redo)


def join_folder(folder: Path, redo: bool = False) -> Counts:
    """Join the files of the shards that ``lovec label`` has written into a folder, stage by stage.

    Args:
        folder: the folder of the shards' folders, as it was named by ``--out``; the files are written into it.
        redo: whether files that are there may be replaced.

    Returns:
        Number of "shards", and "records", "written" and other counts of the last stage of all shards together.

    Raises:
        LovecError: a shard is missing, unfinished, changed, or of another input or other settings, or has not run the
            stages of the others; or a file is there. Nothing is written then.
    """
    shards = _find(folder, folder, "", "")
    order = dict.fromkeys(name for pair in STAGES.values() for name in pair)
    rows = []
    for shard in shards:
        paths = [folder / shard.name / f"{name}.jsonl" for name in order]
        rows.append([path for path in paths if path.exists() or manifest_of(path).exists()])
    stages = {path.name: shard for paths, shard in zip(rows, shards, strict=True) for path in paths}
    for paths, shard in zip(rows, shards, strict=True):
        if lacking := stages.keys() - {path.name for path in paths}:
            name = min(lacking, key=lambda name: list(order).index(Path(name).stem))
            raise LovecError(
                f"{folder / shard.name} has no {name}, but {stages[name].name} has; run that stage for --shard {shard}"
            )
    if not stages:
        raise LovecError(f"the shards in {folder} hold no files; run lovec label --shard for each of them")
    parts = [[_read_part(path, shard) for path in paths] for paths, shard in zip(rows, shards, strict=True)]
    return _join([folder / path.name for path in rows[0]], parts, redo)


def _find(output: Path, folder: Path, before: str, after: str) -> list[Shard]:
    """Return all shards of an output, in their order.

    Raises:
        LovecError: there are none, some are missing, or there are shards of several splits.
    """
    pattern = re.compile(rf"{before}shard-([1-9][0-9]{{0,8}})-of-([1-9][0-9]{{0,8}}){after}")
    matches = filter(None, (pattern.fullmatch(entry.name) for entry in folder.iterdir())) if folder.is_dir() else ()
    pairs = {(int(match[2]), int(match[1])) for match in matches}
    found = [Shard(number, count) for count, number in sorted(pairs) if number <= count]
    if not found:
        raise LovecError(f"there are no shards of {output}; make them with --shard 1/n to n/n and --out {output}")
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        splits = " and ".join(f"of {count}" for count in counts)
        raise LovecError(f"{output} has shards {splits}; remove those of the split that you do not want")
    there = {shard.number for shard in found}
    if lacking := counts[0] - len(there):
        absent = (number for number in range(1, counts[0] + 1) if number not in there)
        names = listed([f"{number}/{counts[0]}" for number in islice(absent, 11)])  # which says that there are more
        raise LovecError(f"{lacking} of {counts[0]} shards of {output} are missing; run --shard {names}")
    return found


def _read_part(path: Path, shard: Shard) -> _Part:
    """Return a file of a shard.

    Raises:
        LovecError: it has no manifest, or is not finished.
    """
    manifest = manifest_of(path)
    if not manifest.exists():
        raise LovecError(f"{path} has no {manifest.name} that says how it was made; {_MAKE_AGAIN}")
    part = _Part(path, shard, Manifest.read(manifest, _MAKE_AGAIN))
    if not part.manifest.digest:
        raise LovecError(
            f"{path} is not finished ({counted(part.manifest.records, 'record')} so far); run the same command again "
            f"with --shard {shard}"
        )
    return part


def _check(parts: Sequence[Sequence[_Part]]) -> None:
    """Check that the files of all shards were made of one input, in one way.

    Raises:
        LovecError: they were not.
    """
    for row in parts:
        root, shard = row[0], row[0].shard
        if (said := root.manifest.origin.source.get("shard")) != str(shard):
            what = "holds the whole input" if said is None else f"holds the shard {said}"
            raise LovecError(f"{root.path} {what}, expected the shard {shard}; {_MAKE_AGAIN}")
        for before, part in pairwise(row):
            if part.manifest.origin.source != {"file": before.manifest.digest}:
                raise LovecError(
                    f"{part.path} was not made of the {before.path.name} beside it; run the stage again with --redo, "
                    "or remove the file that is not a part of the run"
                )
        for part, first in zip(row, parts[0], strict=True):
            # All but the first file of a shard are made of the one before, and differ with it.
            one, other = (made if part is root else replace(made, source={}) for made in (first.origin, part.origin))
            said = f"{{name}} is {{one}} in shard {first.shard}, {{other}} in shard {shard}"
            if unlike := one.unlike(other, said):
                raise LovecError(f"{part.path} was made with {unlike}; make one of the two again with --redo")
    most = previous = parts[0][0].manifest.records
    for root, *_ in parts:
        records = root.manifest.records
        if records not in (previous, most - 1):  # every shard has as many as the first one, or one less
            raise LovecError(
                f"{root.path} holds {records} records, expected {previous} or {most - 1} beside the {most} of "
                f"shard {parts[0][0].shard}; {_MAKE_AGAIN}"
            )
        previous = records


def _join(outputs: Sequence[Path], parts: Sequence[Sequence[_Part]], redo: bool) -> Counts:
    """Write the joined files and their manifests.

    Args:
        outputs: the files to write, one per stage.
        parts: for every shard, its files, one per stage.
        redo: whether files that are there may be replaced.
    """
    _check(parts)
    files: list[Path] = []
    for output, part in zip(outputs, parts[0], strict=True):
        files += [output] if part.failures is None else [output, output.with_name(FAILURES)]
    for file in files:
        if file.is_dir():
            raise LovecError(f"{file} is a folder, expected a file that can be written")
        check_output(file, [path for row in parts for part in row for path in (part.path, part.failures)])
        if not redo:
            check_unused(file, "replace it with --redo")
    digests = {file: hashlib.sha256() for file in files}
    sizes = dict.fromkeys(files, 0)
    ids: set[str] = set()
    with ExitStack() as stack:
        opened = {}
        for file in files:
            temporary = stack.enter_context(atomic_file(file))
            opened[file] = stack.enter_context(open(temporary, "wb"))
        for groups in zip_longest(*map(_groups, parts)):
            for group in filter(None, groups):
                (name, _), *_ = group[0]
                if name in ids:
                    raise LovecError(f"the record {name!r} is in {outputs[0]} twice; make the shards again with --redo")
                ids.add(name)
                for file, lines in zip(files, group, strict=True):
                    for _, line in lines:
                        opened[file].write(line)
                        digests[file].update(line)
                        sizes[file] += len(line)
    return _save_manifests(outputs, parts, sizes, {file: digest.hexdigest() for file, digest in digests.items()})


def _save_manifests(
    outputs: Sequence[Path], parts: Sequence[Sequence[_Part]], sizes: Mapping[Path, int], digests: Mapping[Path, str]
) -> Counts:
    """Write the manifests that one run would have written, and return the counts of the last stage."""
    source = parts[0][0].origin.source
    counts: Counter[str] = Counter()
    for at, (output, part) in enumerate(zip(outputs, parts[0], strict=True)):
        counts = Counter()
        for row in parts:
            counts.update(row[at].manifest.counts)
        written = [output] if part.failures is None else [output, output.with_name(FAILURES)]
        state = {
            "identity": replace(part.origin, source=source).to_dict(),
            "counts": counts,
            "sizes": [sizes[file] for file in written],
            "digest": digests[output],
        }
        save_manifest(manifest_of(output), state)
        source = {"file": digests[output]}
    return counts | Counter(shards=len(parts))


def _groups(row: Sequence[_Part]) -> Iterator[list[Lines]]:
    """Yield, for every record that a shard began with, the lines that it became in every file, in their order.

    Raises:
        LovecError: a file was changed since it was written, or has records that no record became.
    """
    readers = [_Reader(part.path, part.manifest.sizes[0], part.manifest.digest) for part in row]
    failed = [None if part.failures is None else _Reader(part.failures, part.manifest.sizes[1]) for part in row]
    begun = 0
    while (name := readers[0].id) is not None:
        begun += 1
        names, group = [name], []
        for reader, failures in zip(readers, failed, strict=True):
            lines = [line for name in names for line in reader.take(name)]
            group.append(lines)
            if failures is not None:
                group.append([line for name in names for line in failures.take(name)])
            names = [name for name, _ in lines]
        yield group
    for reader in [*readers, *filter(None, failed)]:
        if reader.id is not None:
            raise LovecError(
                f"{reader.path} holds the record {reader.id!r} twice, out of order, or without one in "
                f"{row[0].path.name}; {_MAKE_AGAIN}"
            )
    if begun != row[0].manifest.records:
        raise _changed(row[0].path)


class _Reader:
    """Reads the lines of a file in their order, by the record that they belong to.

    Args:
        path: the file.
        size: its size, in bytes.
        digest: SHA-256 of its content; None is not checked.

    Attributes:
        id: id of the next line's record; None at the end of the file.

    Raises:
        LovecError: the file was changed since it was written; also at later lines.
    """

    def __init__(self, path: Path, size: int, digest: str | None = None) -> None:
        self.path = path
        self.id: str | None = None
        self._size = size
        self._digest = digest
        self._lines = self._read()
        self._line = b""
        self._advance()

    def take(self, record_id: str) -> Lines:
        """Return the next lines if they belong to a record: one with its id, or its samples."""
        lines: Lines = []
        while self.id is not None:
            if self.id != (f"{record_id}/sample-{len(lines) + 1}" if lines or self.id != record_id else record_id):
                break
            lines.append((self.id, self._line))
            self._advance()
            if lines[-1][0] == record_id:
                break
        return lines

    def _advance(self) -> None:
        line = next(self._lines, None)
        if line is None:
            self.id = None
            return
        try:
            self.id, self._line = str(json.loads(line)["id"]), line
        except (ValueError, KeyError, TypeError):
            raise _changed(self.path) from None

    def _read(self) -> Iterator[bytes]:
        digest, at = hashlib.sha256(), 0
        while True:
            try:
                with open(self.path, "rb") as file:
                    file.seek(at)
                    lines = file.readlines(_BLOCK)
                    at = file.tell()
            except FileNotFoundError:
                raise LovecError(f"there is no {self.path}, but its manifest; {_MAKE_AGAIN}") from None
            for line in lines:
                digest.update(line)
            if not lines or at > self._size:
                break
            yield from lines
        if at != self._size or self._digest not in (None, digest.hexdigest()):
            raise _changed(self.path)


def _changed(path: Path) -> LovecError:
    return LovecError(f"{path} was changed since it was written; {_MAKE_AGAIN}")
