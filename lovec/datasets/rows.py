"""The rows of a file, whatever it is written in: JSON Lines, one JSON document, CSV, TSV or Parquet, also compressed.

A row is a JSON object. What its keys mean is the matter of ``lovec.datasets.layouts``.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from lovec.datasets.hub_rows import HubRows
from lovec.datasets.jsonl import open_input, parse_json, parse_line, short_json
from lovec.datasets.names import Ids
from lovec.types import LovecError, Record

Row: TypeAlias = dict[str, Any]

LARGEST = 2**29
"""Most bytes of a file that has to be read whole: one JSON document, or a compressed Parquet file."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""How the names of files with rows end, before ``.gz`` if they are compressed."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BINARY = (b"PK\x03\x04", b"\x80")  # ZIP archives, as PyTorch writes them, and pickles
_LONGEST_CELL = 2**27  # characters of a CSV cell
_VALUES = frozenset("0123456789+-.([{tTfF")  # how cells begin that are a number, a truth value, a list or an object

_WRAPPERS = ("per_prompt_data", "data", "Data")
"""Keys under which a document holds its rows: a list of objects, or an object with a list per column."""

_TEXTS = frozenset(
    "id question question_id answer prompt response text input output topic entity title model model_output "
    "base_prediction chosen problem input_text generation_text model_path estimator".split()
)
"""Columns of CSV that are text even where a cell looks like a number or a list."""


class Reading:
    """What the reading of one file hands from row to row.

    Attributes:
        path: the file, as it is named in messages.
        number: the number of the row, from 1: a line, or an item of a list.
        ids: makes the ids of records that have none.
        left_out: how many things of the file did not become what they could be, by what they are.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.number = 0
        self.ids = Ids()
        self.left_out: Counter[str] = Counter()

    @property
    def place(self) -> str:
        """File and number of the row."""
        return f"{self.path}:{self.number}"


Report: TypeAlias = Callable[[LovecError], None]

RowReader: TypeAlias = Callable[[Row, Reading], Iterator[Record]]
"""Yields the records that a row holds."""


def read_records_of(row: Row, name: str, read: RowReader, reading: Reading) -> Iterator[Record]:
    """Yield the records of a row; what its reader stumbles over is an error that names file and row.

    Args:
        row: the row.
        name: what messages call its layout.
        read: the reader of the layout.
        reading: the reading of the file.

    Raises:
        LovecError: a value of the row is missing or of another form than its layout has.
    """
    try:
        yield from read(row, reading)
    except LovecError as error:
        raise LovecError(f"{reading.place}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise LovecError(f"{reading.place}: not a row of {name} ({reason})") from None


def is_rows(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds rows, by its name or, in any other file, by its first object.

    Raises:
        LovecError: the file cannot be read.
    """
    if _suffix(path) in SUFFIXES or HubRows.parse(os.fspath(path)) is not None:
        return True
    try:
        with _opened(path) as file:
            head = _text_of(file)
        return head[:1] in (b"{", b"[", b"P") and next(read_rows(path), None) is not None
    except (LovecError, OSError, EOFError, zlib.error):  # the last three: damaged gzip
        return False


def check_rows(path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be opened; a data set of the hub is not asked for.

    Raises:
        LovecError: there is no such file, or it cannot be read.
    """
    if HubRows.parse(os.fspath(path)) is None:
        with _opened(path):
            pass


def read_rows(
    path: str | os.PathLike[str],
    name: str | None = None,
    on_error: Report | None = None,
) -> Iterator[tuple[int, Row]]:
    """Yield the number (from 1) and the object of every row of a file.

    JSON Lines, CSV and Parquet are read row by row, so that a file may be larger than the memory. A JSON document, such
    as a list of objects, is read whole, up to ``LARGEST`` bytes. The content decides, and the name only for CSV (.csv)
    and TSV (.tsv).

    Args:
        path: the file; ``gzip`` is undone. Or a data set of the hub, see ``lovec.datasets.hub_rows``.
        name: what messages call it; default: its path.
        on_error: called with the error of each broken line, item or row, which is then left out; None raises it.

    Raises:
        LovecError: the file is missing, empty or broken, or is not text in UTF-8.
    """
    name, report = str(path if name is None else name), on_error or _raise
    if (stored := HubRows.parse(os.fspath(path))) is not None:
        yield from ((number, {key: _plain(value) for key, value in row.items()}) for number, row in stored.rows())
        return
    try:
        with _opened(path) as file:
            head = _text_of(file, name)
            suffix = _suffix(name)
            if head.startswith(b"PAR1"):
                yield from _parquet_rows(file, name)
            elif suffix in _SEPARATORS and head[:1] not in (b"[", b"{"):
                yield from _table_rows(file, name, _SEPARATORS[suffix], report)
            elif head.startswith(b"["):
                yield from _items(_document(_whole(file, name), name), name, report)
            else:
                yield from _lines(file, name, report)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise LovecError(f"cannot read {name} ({reason}); it is damaged or cut off") from None


def _raise(error: LovecError) -> None:
    raise error from None


def _suffix(path: str | os.PathLike[str]) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def _opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading its bytes, uncompressed."""
    file = open_input(path, expected="a file of JSON Lines, JSON, CSV or Parquet")
    if file.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=file))
    return file


def _text_of(file: io.BufferedReader, name: str = "the file") -> bytes:
    """Return the beginning of a file without byte-order mark and white space, without moving on in it.

    Raises:
        LovecError: the file is empty or holds something else than text in UTF-8 or Parquet.
    """
    head = file.peek(4096)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LovecError(f"{name} is in UTF-16, expected UTF-8; convert it, as with iconv -f UTF-16 -t UTF-8")
    if not head.startswith(b"PAR1") and (b"\0" in head or head.startswith(_BINARY)):
        raise LovecError(
            f"{name} is a binary file, expected text in UTF-8 or Parquet; save the results as JSON Lines, since a file "
            "of Python objects runs code when it is opened"
        )
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text and len(head) < 4096:
        raise LovecError(f"{name} is empty, expected JSON Lines, JSON, CSV or Parquet")
    return text


def _whole(file: IO[bytes], name: str, begin: bytes = b"") -> bytes:
    data = begin + file.read(LARGEST + 1 - len(begin))
    if len(data) > LARGEST:
        raise LovecError(
            f"{name} is one JSON document of more than {LARGEST >> 20} MiB, which has to be read whole; make it JSON "
            "Lines, as with jq -c '.[]'"
        )
    return data


def _document(data: bytes, name: str) -> Any:
    return parse_json(data, name, first=True, expected="JSON Lines or one JSON list")


def _items(items: list[Any], name: str, report: Report) -> Iterator[tuple[int, Row]]:
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield from _unwrapped(number, item, name)
        else:
            report(LovecError(f"{name}:{number}: holds {short_json(item)}, expected an object"))


def _lines(file: io.BufferedReader, name: str, report: Report) -> Iterator[tuple[int, Row]]:
    lines: Iterator[bytes] = iter(file)
    number = 0
    while line := next(lines, b""):
        number += 1
        if not line.strip():
            continue
        try:
            row = parse_line(line, f"{name}:{number}", first=number == 1)
        except LovecError as error:
            if line.lstrip(b"\xef\xbb\xbf \t")[:1] == b"{" and line.rstrip()[-1:] in b"{[,:":
                # The beginning of an object that goes on below, perhaps of a document with all rows.
                data = _whole(file, name, line)
                try:
                    document = _document(data, name)
                except LovecError:
                    lines = iter(io.BytesIO(data).readlines()[1:])
                else:
                    yield from _unwrapped(1, document, name)
                    return
            report(error)
        else:
            yield from _unwrapped(number, row, name)


def _unwrapped(number: int, row: Row, name: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows that a document holds, or the row itself if it holds none."""
    for key in _WRAPPERS if "question" not in row else ():
        inner = row.get(key)
        if isinstance(inner, list) and inner and all(isinstance(item, dict) for item in inner):
            yield from enumerate(inner, 1)
            return
        if isinstance(inner, dict) and inner and all(isinstance(column, list) for column in inner.values()):
            count = max(map(len, inner.values()))
            if short := [title for title, column in inner.items() if len(column) != count]:
                raise LovecError(
                    f"{name}:{number}: {key!r} has {len(inner[short[0]])} values of {short[0]!r}, expected {count}"
                )
            yield from ((at + 1, {title: column[at] for title, column in inner.items()}) for at in range(count))
            return
    yield number, row


def _table_rows(file: io.BufferedReader, name: str, separator: str, report: Report) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table of text with a line of column names; an empty cell is no value."""
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=separator, strict=True)
    try:
        columns = next((cells for cells in reader if cells), [])
        if doubled := [column for column, count in Counter(columns).items() if count > 1]:
            raise LovecError(f"{name}:1: two columns have the name {doubled[0]!r}; give each column its own")
        for cells in reader:
            if cells and len(cells) != len(columns):
                report(
                    LovecError(
                        f"{name}:{reader.line_num}: has {len(cells)} cells, expected {len(columns)} as in the first "
                        "line; quote cells that contain a separator"
                    )
                )
            elif any(cells):
                pairs = zip(columns, cells, strict=True)
                yield reader.line_num, {column: _cell(column, cell) for column, cell in pairs if cell}
    except (UnicodeDecodeError, csv.Error) as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        raise LovecError(f"{name}:{reader.line_num + 1}: not a table in UTF-8 ({reason})") from None


def _cell(column: str, cell: str) -> Any:
    """Return the value of a cell: a number, a truth value, a list or an object where it is written as one."""
    if column in _TEXTS or "-output" in column or cell.lstrip()[:1] not in _VALUES:
        return cell
    for parse in (json.loads, ast.literal_eval):  # the second one for lists as pandas writes them
        try:
            value = parse(cell)
            if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
                return value
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, bool | int | float | list | dict) else cell
    return cell


def _parquet_rows(file: io.BufferedReader, name: str) -> Iterator[tuple[int, Row]]:
    import pyarrow  # imported here because it takes a second
    from pyarrow.parquet import ParquetFile

    source = file if isinstance(file.raw, io.FileIO) else io.BytesIO(_whole(file, name))
    try:
        batches = (row for batch in ParquetFile(source).iter_batches(256) for row in batch.to_pylist())
        for number, row in enumerate(batches, 1):
            yield number, {key: _plain(value) for key, value in row.items()}
    except pyarrow.ArrowException as error:
        raise LovecError(f"cannot read {name} as Parquet ({' '.join(str(error).split())})") from None


def _plain(value: Any) -> Any:
    """Return a value of Parquet as JSON has it; an object has only the keys that it has a value for."""
    if isinstance(value, dict):
        plain = {key: _plain(inner) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
