"""The rows of a file, whatever it is written in: JSON Lines, one JSON document, CSV, TSV or Parquet, also compressed.

A row is a JSON object. What its keys mean is the matter of ``lovec.datasets.layouts``.
"""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import math
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from lovec.datasets.hub_rows import HubRows
from lovec.datasets.jsonl import LARGEST, bounded_lines, is_blank, open_input, parse_json, parse_line, short_json
from lovec.datasets.names import Ids
from lovec.types import LovecError, Record, Sentence

Row: TypeAlias = dict[str, Any]
"""A row of a file, as JSON, a table or Parquet holds it: values by column."""


class WrittenRow(dict[str, Any]):
    """A row of a table of text with its cells as they stand in the file, for who writes them again."""

    def read(self) -> Row:
        """Return the row with the values of its cells."""
        return {column: cell_value(cell, column) for column, cell in self.items()}


SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""How the names of files with rows end, before ``.gz`` if they are compressed."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_OTHER_SEPARATORS = (";", "\t", ",", "|")
_QUOTED_CELL = re.compile(r'(?<![^;\t,|\r\n])"(?:[^"]|"")*(?:"|$)')
_BINARY = (b"PK\x03\x04", b"\x80")  # ZIP archives, as PyTorch writes them, and pickles
_LONGEST_CELL = 2**27  # characters of a CSV cell

_WRAPPERS = ("per_prompt_data", "data", "Data")
"""Keys under which a document holds its rows: a list of objects, or an object with a list per column."""

_ASKING = frozenset("question prompt messages problem input chosen".split())
"""Keys that only a row has, and not a document with rows."""

_TEXTS = frozenset(
    "id question question_id answer prompt response completion text input output topic entity title model model_output "
    "base_prediction chosen problem input_text generation_text model_path estimator".split()
)
"""Columns of CSV that are text even where a cell looks like a list."""

_MESSAGES = frozenset("prompt chosen completion response".split())
"""Those of them that may also be the messages of a chat."""


class Reading:
    """What the reading of one file hands from row to row.

    Attributes:
        path: the file, as it is named in messages.
        number: the number of the row, from 1: a line, or an item of a list.
        ids: makes the ids of records that have none.
        left_out: how many things of the file did not become what they could be, by what they are.
        kept: names of the keys that are kept in the ``meta`` of records as they are.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.number = 0
        self.ids = Ids()
        self.left_out: Counter[str] = Counter()
        self.kept: dict[str, None] = {}

    @property
    def place(self) -> str:
        """File and number of the row."""
        return f"{self.path}:{self.number}"

    def record(
        self,
        question: str,
        answer: str | None = "",
        sentences: Iterable[Sentence] = (),
        name: str | None = None,
        **meta: Any,
    ) -> Record:
        """Return a record of the row.

        Args:
            question: its question.
            answer: its answer; None is an empty one.
            sentences: sentences or claims of the answer.
            name: what its id is made from; None is the beginning of the question.
            meta: what else is known of it.
        """
        record_id = self.ids.of(question[:60] if name is None else name)
        return Record(record_id, question, answer=answer or "", sentences=tuple(sentences), meta=meta)


Report: TypeAlias = Callable[[LovecError], None]

RowReader: TypeAlias = Callable[[Row, Reading], Iterator[Record]]
"""Yields the records that a row holds."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of rows; called, it reads a row.

    Attributes:
        name: what messages and the documentation call it.
        keys: the keys that every row has; ``a|b`` is either one, ``*-end`` any key with that end.
        read: yields the records of a row; None for lovec's own rows.
        fits: what a row must fulfil beside its keys.
        short: what `lovec score --layout` calls it; "" if it holds no labels.
        units: yields the records of a row at its finest unit, with the scores of all methods in ``meta["scores"]``, for
            `lovec score`; None for ``read``.
        series: names the rows that the same methods have rated, such as those of one model; "" where the rows of a file
            are all alike.
    """

    name: str
    keys: tuple[str, ...]
    read: RowReader | None
    fits: Callable[[Row], bool] = lambda row: True
    short: str = ""
    units: RowReader | None = None
    series: Callable[[Record], str] = lambda record: ""

    def __call__(self, row: Row, reading: Reading) -> Iterator[Record]:
        """Yield the records of a row; lovec's own layout is read by ``lovec.datasets.jsonl`` instead."""
        assert self.read is not None
        return self.read(row, reading)

    def missing(self, row: Row) -> list[str]:
        """Return the keys of the layout that a row does not have."""
        return [key for key in self.keys if not any(_has(row, name) for name in key.split("|"))]


def layout(name: str, keys: str, **options: Any) -> Callable[[RowReader], Layout]:
    """Make the function below, which reads the rows of a layout, this layout.

    Args:
        name: see `Layout`.
        keys: see `Layout`, with spaces between them.
        options: see `Layout`.
    """
    return lambda read: Layout(name, tuple(keys.split()), read, **options)


def _has(row: Row, name: str) -> bool:
    return any(key.endswith(name[1:]) for key in row) if name.startswith("*") else name in row


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
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise LovecError(f"{reading.place}: not a row of {name} ({reason})") from None


def read_as(path: str | os.PathLike[str], name: str, read: RowReader, ids: Ids | None = None) -> Iterator[Record]:
    """Yield the records of a file whose rows have one layout.

    Args:
        path: the file.
        name: what messages call the layout.
        read: its reader.
        ids: makes the ids of records that have none, where several files are read; None begins anew.

    Raises:
        LovecError: the file is missing, or a row has another form; the message names file and row.
    """
    reading = Reading(path)
    reading.ids = reading.ids if ids is None else ids
    for number, row in read_rows(path):
        reading.number = number
        yield from read_records_of(row, name, read, reading)


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
    as_written: bool = False,
) -> Iterator[tuple[int, Row]]:
    """Yield the number (from 1) and the object of every row of a file.

    JSON Lines, CSV and Parquet are read row by row, so that a file may be larger than the memory. A JSON document, such
    as a list of objects, is read whole, up to ``LARGEST`` bytes. The content decides, and the name only for CSV (.csv)
    and TSV (.tsv).

    Args:
        path: the file; ``gzip`` is undone. Or a data set of the hub, see ``lovec.datasets.hub_rows``.
        name: what messages call it; default: its path.
        on_error: called with the error of each broken line, item or row, which is then left out; None raises it.
        as_written: whether the rows of a table of text are each a `WrittenRow`. Those with nothing in any cell, such as
            the last ones of a spreadsheet, are among them; otherwise they are left out.

    Raises:
        LovecError: the file is missing, empty or broken, or is not text in UTF-8.
    """
    name, report = str(path if name is None else name), on_error or _raise
    if (stored := HubRows.parse(os.fspath(path))) is not None:
        yield from ((number, _plain_row(row, f"{name}:{number}")) for number, row in stored.rows())
        return
    try:
        with _opened(path) as file:
            head = _text_of(file, name)
            suffix = _suffix(name)
            if head.startswith(b"PAR1"):
                yield from _parquet_rows(file, name)
            elif _is_table(head, suffix):
                yield from _table_rows(file, name, _separator(head, _SEPARATORS[suffix]), report, as_written)
            elif head.startswith(b"["):
                yield from _items(_document(_whole(file, name), name), name, report)
            else:
                yield from _lines(file, name, report)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise LovecError(f"cannot read {name} ({reason}); it is damaged or cut off") from None
    except MemoryError:
        raise LovecError(f"{name} needs more memory than there is; split it into smaller files") from None


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
    if not head:
        file.read(1)  # raises what is wrong with a compressed file that was cut off before its first byte
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
    lines, is_rest_read = bounded_lines(file, name), False
    number = 0
    while line := next(lines, b""):
        number += 1
        if is_blank(line, number):
            continue
        try:
            row = parse_line(line, f"{name}:{number}", first=number == 1)
        except LovecError as error:
            begins = line.lstrip(b"\xef\xbb\xbf \t")[:1] == b"{" and line.rstrip()[-1:] in b"{[,:"
            if begins and not is_rest_read:
                # The beginning of an object that goes on below, perhaps of a document with all rows.
                data, is_rest_read = _whole(file, name, line), True
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
    """Yield the rows that a document holds, or the row itself if it holds none, or is a row with other data in it."""
    for key in _WRAPPERS if _ASKING.isdisjoint(row) else ():
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


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a table of text is written.

    Attributes:
        separator: what separates its columns.
        has_mark: whether it begins with a byte-order mark.
        line_end: how its lines end.
    """

    separator: str
    has_mark: bool
    line_end: str


def table_form(path: str | os.PathLike[str]) -> TableForm | None:
    """Return how a file is written if it is a table of text; None for others.

    Raises:
        LovecError: the file is missing or empty, or is not text in UTF-8.
    """
    if HubRows.parse(os.fspath(path)) is not None:
        return None
    with _opened(path) as file:
        head, begin = _text_of(file, str(path)), file.peek(4096)
    if not _is_table(head, _suffix(path)):
        return None
    line_end = "\r\n" if begin.partition(b"\n")[0].endswith(b"\r") else "\n"
    return TableForm(_separator(head, _SEPARATORS[_suffix(path)]), begin.startswith(codecs.BOM_UTF8), line_end)


def _is_table(head: bytes, suffix: str) -> bool:
    return suffix in _SEPARATORS and not head.startswith((b"[", b"{", b"PAR1"))


def _separator(head: bytes, usual: str) -> str:
    """Return what separates the columns of a table: what its first line has most of, the usual separator first.

    What stands in quotes is part of a name.
    """
    line = _QUOTED_CELL.sub("", head.decode(errors="replace")).partition("\n")[0]
    return max((usual, *_OTHER_SEPARATORS), key=line.count)


def _table_rows(
    file: io.BufferedReader, name: str, separator: str, report: Report, as_written: bool
) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table of text with a line of column names, see `read_rows`; an empty cell is None."""
    csv.field_size_limit(_LONGEST_CELL)
    lines = bounded_lines(io.TextIOWrapper(file, "utf-8-sig", newline=""), name)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        columns = next((cells for cells in reader if cells), [])
        _check_columns(columns, f"{name}:1")
        for cells in reader:
            if cells and len(cells) != len(columns):
                report(
                    LovecError(
                        f"{name}:{reader.line_num}: has {len(cells)} cells, expected {len(columns)} as in the first "
                        "line; quote cells that contain a separator"
                    )
                )
            elif any(cells) or (as_written and cells):
                row = WrittenRow(zip(columns, cells, strict=True))
                yield reader.line_num, row if as_written else row.read()
    except UnicodeDecodeError as error:  # several lines are decoded at once
        number = reader.line_num + 1 + error.object.count(b"\n", 0, error.start)
        raise LovecError(
            f"{name}:{number}: not a table in UTF-8 ({error.reason}); convert it, as with iconv -f CP1252 -t UTF-8"
        ) from None
    except csv.Error as error:
        raise LovecError(f"{name}:{reader.line_num + 1}: not a table in UTF-8 ({error})") from None


def _check_columns(names: Iterable[str], place: str) -> None:
    """Refuse a table in which a name is that of several columns.

    Raises:
        LovecError: it is; the message names it.
    """
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise LovecError(f"{place}: two columns have the name {doubled[0]!r}; give each column its own")


def cell_value(cell: str, column: str = "") -> Any:
    """Return the value of a cell: its text, or the list or object that is written in it; None of an empty one.

    Numbers stay text: "1.10" may be the number of a section, and who needs a number reads it as one.

    Args:
        cell: the cell, as a table of text has it.
        column: name of its column, which may say that it is a text whatever it looks like.
    """
    is_text = column in _TEXTS or "-output" in column
    if (is_text and column not in _MESSAGES) or cell.lstrip()[:1] not in ("[", "{"):
        return cell or None
    for parse in (_json_value, _python_value):  # the second one for what pandas writes
        try:
            value = parse(cell)
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list | dict) and not (is_text and not _is_chat(value)) else cell
    return cell


def _is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages, each with a role, and not a text that looks like a list."""
    messages = isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in value
    )
    return messages and bool(value)


def _json_value(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: None if name == "NaN" else math.inf)


def _python_value(text: str) -> Any:
    """Return the value that Python and NumPy write as this text; NaN is None, and an array a list."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # text that is not a literal is no mistake here
        tree = ast.parse(text.strip(), mode="eval")
    return ast.literal_eval(_Plain().visit(tree))


class _Plain(ast.NodeTransformer):
    """Replaces what is not a literal by the value it stands for: ``nan``, ``np.float64(0.5)``, ``array([1, 2])``."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace ``nan``."""
        return ast.Constant(None) if node.id == "nan" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace ``np.True_``, ``np.False_`` and ``np.nan``."""
        constants = {"True_": True, "False_": False, "nan": None}
        return ast.Constant(constants[node.attr]) if node.attr in constants else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace ``np.float64(0.5)``, ``np.str_('a')``, ``array([1, 2], dtype=object)`` and so on."""
        called = ast.unparse(node.func).removeprefix("np.").removeprefix("numpy.")
        if len(node.args) == 1 and re.fullmatch(r"array|str_|bool_?|(float|u?int)\d*", called):
            replaced: ast.expr = self.visit(node.args[0])
            return replaced
        return node


def _parquet_rows(file: io.BufferedReader, name: str) -> Iterator[tuple[int, Row]]:
    import pyarrow  # imported here because it takes a second
    from pyarrow.parquet import ParquetFile

    source = file if isinstance(file.raw, io.FileIO) else io.BytesIO(_whole(file, name))
    try:
        table = ParquetFile(source)
        _check_columns(table.schema_arrow.names, name)
        batches = (row for batch in table.iter_batches(256) for row in batch.to_pylist())
        for number, row in enumerate(batches, 1):
            yield number, _plain_row(row, f"{name}:{number}")
    except pyarrow.ArrowException as error:
        raise LovecError(f"cannot read {name} as Parquet ({' '.join(str(error).split())})") from None


def _plain_row(row: Row, place: str) -> Row:
    """Return a row of Parquet as JSON has it.

    Raises:
        LovecError: a column holds bytes that are no text; the message names it.
    """
    plain: Row = {}
    for column, value in row.items():
        try:
            plain[column] = _plain(value)
        except UnicodeDecodeError as error:
            raise LovecError(
                f"{place}: the column {column!r} holds bytes that are not text in UTF-8 ({error.reason}); write it as "
                "text, or leave it out"
            ) from None
    return plain


def _plain(value: Any, inside: bool = False) -> Any:
    """Return a value of Parquet as JSON has it; an object has only the keys that it has a value for.

    Args:
        value: the value.
        inside: whether it is part of another one, in which bytes that are no text, such as an image, are left out.

    Raises:
        UnicodeDecodeError: it is bytes that are no text.
    """
    if isinstance(value, dict):
        plain = {key: _plain(inner, inside=True) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    if isinstance(value, list | tuple):  # maps come as pairs
        return [_plain(inner, inside=True) for inner in value]
    if isinstance(value, bytes):  # texts that their writer did not mark as such
        try:
            return value.decode()
        except UnicodeDecodeError:
            if inside:
                return None
            raise
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)  # JSON has no infinity, and who needs a number refuses a word
    return value if isinstance(value, str | int | float | None) else str(value)
