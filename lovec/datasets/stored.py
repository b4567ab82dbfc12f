"""Records that stay in their file: each is read and parsed when it is asked for.

A file is read once, from its beginning to its end, which checks every record. What stays in memory is where each of
them lies, its domain and how long its texts are: some 35 bytes a record.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, overload

from lovec.core.notices import counted, listed
from lovec.datasets.jsonl import bounded_lines, is_blank, open_input, parse_line, record_of
from lovec.datasets.layouts import OWN, known_layout, read_any
from lovec.datasets.rows import Row
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import LovecError, Record

Change: TypeAlias = Callable[[Record], Record | None]
"""Returns what is to become of a record of a file, None where it is left out; the same at every call."""

_ENTRY = Struct("<QIIIIII???")  # Place, number of the domain, and RecordSize


class Place(NamedTuple):
    """Where a record lies in its file.

    Attributes:
        offset: byte at which its line begins.
        length: bytes of its line.
        number: number of its line, from 1.
    """

    offset: int
    length: int
    number: int


class RecordSize(NamedTuple):
    """How long the texts of a record are, and what else tells whether it can be learned from without reading it.

    Attributes:
        question: bytes of its question in UTF-8, in whichever normal form of Unicode is longest.
        answer: bytes of all its sentences.
        sentences: number of its sentences.
        labelled: whether there is a sentence and every sentence has a factuality.
        pair: whether it has wrong scores, and these differ from the true ones.
        must_be_read: whether a text has a tag word in it, or half a surrogate pair, so that its size does not tell.
    """

    question: int
    answer: int
    sentences: int
    labelled: bool
    pair: bool
    must_be_read: bool


def size_of(record: Record, tags: TagFormat = DEFAULT_TAGS) -> RecordSize:
    """Return the size of a record.

    Args:
        record: the record.
        tags: the tag words, and the scale of the wrong scores.
    """
    texts = [sentence.text for sentence in record.sentences]
    must_be_read = any(map(tags.occur_in, (record.question, *texts)))
    true = [tags.scale.nearest(s.factuality) for s in record.sentences if s.factuality is not None]
    labelled = 0 < len(true) == len(texts)
    pair = labelled and record.rejected is not None and list(record.rejected) != true
    try:
        lengths = _length(record.question), sum(map(_length, texts))
    except UnicodeEncodeError:
        lengths, must_be_read = (0, 0), True
    return RecordSize(*lengths, len(texts), labelled, pair, must_be_read)


def sizes_of(records: Sequence[Record], tags: TagFormat) -> Iterator[RecordSize]:
    """Return the sizes of records; nothing is read where they are known."""
    if isinstance(records, StoredRecords) and records.tags == tags:
        return records.sizes()
    return (size_of(record, tags) for record in records)


def domains_of(records: Sequence[Record]) -> Iterator[str]:
    """Return the domain of every record; nothing is read where they are known."""
    return records.domains() if isinstance(records, StoredRecords) else (record.domain for record in records)


def check_own_ids(records: Iterable[Record], split: str, place: str = "") -> None:
    """Check that each of some records has an id of its own, by which what is known of it is kept.

    Args:
        records: the records.
        split: what they are for, such as "training".
        place: where they come from; "" if it is not known.

    Raises:
        LovecError: records share ids.
    """
    counts = Counter(record.id for record in records)
    if shared := [name for name, count in counts.items() if count > 1]:
        raise LovecError(
            f"{counted(sum(counts[name] for name in shared), f'{split} answer')} share {counted(len(shared), 'id')}: "
            f"{listed(shared)}; give each answer an id of its own{place and f', in {place}'}"
        )


class StoredRecords(Sequence[Record]):
    """Records of a JSON Lines file, each of which is read and parsed when it is asked for.

    The file stays open, so that it may be replaced by another one meanwhile; it must not be written to. Processes that
    are forked can read at the same time. A pickled copy opens the file anew.

    Args:
        file: the file.
        change: what becomes of a record when it is read; it must not leave out any of these records.
        tags: the tag words and the scale that the sizes refer to.
        entries: place, domain and size of every record, packed.
        domains: numbers of the domains in the entries.
    """

    def __init__(
        self, file: _File, change: Change, tags: TagFormat, entries: bytes | bytearray, domains: Mapping[str, int]
    ) -> None:
        self._file = file
        self._change = change
        self.tags = tags
        self._entries = entries
        self._domains = domains

    def __len__(self) -> int:
        return len(self._entries) // _ENTRY.size

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        offset, length, number = _ENTRY.unpack_from(self._entries, range(len(self))[index] * _ENTRY.size)[:3]
        line = self._file.read(offset, length)
        record = self._change(record_of(number, _parsed(line, self._file.path, number), self._file.path))
        assert record is not None
        return record

    def sizes(self) -> Iterator[RecordSize]:
        """Return the size of every record; nothing is read."""
        return (RecordSize(*entry[4:]) for entry in _ENTRY.iter_unpack(self._entries))

    def domains(self) -> Iterator[str]:
        """Return the domain of every record; nothing is read."""
        names = list(self._domains)
        return (names[entry[3]] for entry in _ENTRY.iter_unpack(self._entries))

    def selected(self, numbers: Iterable[int]) -> StoredRecords:
        """Return some of the records.

        Args:
            numbers: their indices.
        """
        size = _ENTRY.size
        entries = b"".join(self._entries[number * size : (number + 1) * size] for number in numbers)
        return StoredRecords(self._file, self._change, self.tags, entries, self._domains)


def selected(records: Sequence[Record], numbers: Sequence[int]) -> Sequence[Record]:
    """Return some of the records, given their indices; those that are stored in a file stay in it."""
    return records.selected(numbers) if isinstance(records, StoredRecords) else [records[at] for at in numbers]


def read_stored(
    path: str,
    changes: Mapping[str, Change],
    tags: TagFormat = DEFAULT_TAGS,
    on_record: Callable[[Record], object] = lambda record: None,
) -> dict[str, Sequence[Record]]:
    """Read a file once and return its records, of several splits at a time.

    The records of a JSON Lines file in lovec's own layout stay in it. Those of any other file, such as a compressed
    one, are held in memory.

    Args:
        path: a file as for ``read_any``.
        changes: for every split, what becomes of a record in it.
        tags: the tag words and the scale, for the sizes.
        on_record: called once with every record of the file.

    Raises:
        LovecError: as ``read_any``.
    """
    if not _is_stored(path):
        kept: dict[str, list[Record]] = {split: [] for split in changes}
        for record in read_any(path):
            on_record(record)
            for split, change in changes.items():
                if (changed := change(record)) is not None:
                    kept[split].append(changed)
        return dict(kept)
    file, place = _File(path), Place(0, 0, 0)
    entries = {split: bytearray() for split in changes}
    domains: dict[str, int] = {}

    def rows() -> Iterator[tuple[int, Row]]:
        nonlocal place
        for place, line in file.lines():
            yield place.number, _parsed(line, path, place.number)

    for record in read_any(path, rows()):
        on_record(record)
        for split, change in changes.items():
            if (changed := change(record)) is not None:
                domain = domains.setdefault(changed.domain, len(domains))
                entries[split] += _ENTRY.pack(*place, domain, *size_of(changed, tags))
    return {split: StoredRecords(file, change, tags, entries[split], domains) for split, change in changes.items()}


class _File:
    """A file that stays open and is read at any place; what is written to it in the meantime is noticed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._open()
        self._stamp = self._present_stamp()

    def lines(self) -> Iterator[tuple[Place, bytes]]:
        """Yield every line that is not blank, and its place."""
        offset = 0
        for number, line in enumerate(bounded_lines(self._file, self.path), 1):
            if not is_blank(line, number):
                yield Place(offset, len(line), number), line
            offset += len(line)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file.

        Raises:
            LovecError: the file was written to since it was opened.
        """
        data = os.pread(self._file.fileno(), length, offset)  # unlike seek, this moves nothing that processes share
        if self._present_stamp() != self._stamp:
            raise LovecError(
                f"{self.path} was written to while it is being read; start again, and write a changed file under "
                "another name"
            )
        return data

    def _open(self) -> None:
        self._file = open_input(self.path)

    def _present_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_stamp": self._stamp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _parsed(line: bytes, path: str, number: int) -> Row:
    return parse_line(line, f"{path}:{number}", first=number == 1)


def _is_stored(path: str) -> bool:
    """Return whether a file is JSON Lines in lovec's own layout, neither compressed nor one document."""
    with open_input(path, expected="a file of JSON Lines, JSON, CSV or Parquet") as file:
        line = next((line for line in bounded_lines(file, path) if line.strip()), b"")
    try:
        return known_layout(_parsed(line, path, 1)) is OWN
    except LovecError:
        return False


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFD", text), unicodedata.normalize("NFKD", text))  # the others are shorter
    return max(len(form.encode()) for form in forms)
