"""Records as JSONL: one JSON object per line, the format that every command reads and writes.

A line holds ``{"id", "question", "evidence", "answer", "sentences": [{"text", "factuality", "confidence", "score",
"distribution"}], "meta"}``; pairs add ``"rejected"``, and sentences scored on another scale than 0..10 their number of
``"levels"``, sentences with known log-probabilities of their tokens ``"token_logps"``, parts of the answer that are no
statements their ``"kind"``, sentences whose claim is known its name, ``"claim"``, those with a confidence by the
evidence of the record that as well, ``"by_source"``, and the parts of a revised text what became of them,
``"revision"``. Only ``question`` is required.
"""

from __future__ import annotations

import codecs
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache, partial
from io import BufferedReader
from numbers import Integral, Real
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, AnyStr, get_args

from lovec.core.files import atomic_file
from lovec.core.plain import json_text
from lovec.types import DEFAULT_SCALE, Action, LovecError, PartKind, Record, Sentence, error_in, without_rounding

RECORD_KEYS = tuple(f.name for f in fields(Record))
_SENTENCE_KEYS = tuple(f.name for f in fields(Sentence))
_SENTENCE_KEY_SET = frozenset(_SENTENCE_KEYS)
_KINDS: tuple[PartKind, ...] = get_args(PartKind)
_ACTIONS: tuple[Action, ...] = get_args(Action)
LARGEST = 2**29
"""Most bytes of what has to be read whole: a line, one JSON document, or a compressed Parquet file."""

_QUOTED = 20  # characters of a number that an error message quotes at most


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read records one by one, so that a file may be larger than the memory.

    Blank lines are skipped. A line without an id gets its line number as id ("line-7").

    Args:
        path: a JSONL file in UTF-8.

    Yields:
        One record per line, in file order.

    Raises:
        LovecError: the file is missing, or a line is not a record; the message names the file, the line and what is
            wrong with it. The records before it have been yielded by then.
    """
    yield from records_of(read_objects(path), path)


def records_of(rows: Iterable[tuple[int, dict[str, Any]]], path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the records that rows hold, see `read_records`.

    Args:
        rows: number and object of every row.
        path: the file that they are from, for error messages.

    Raises:
        LovecError: a row is not a record, or has the id of an earlier one.
    """
    line_of: dict[str, int] = {}
    for number, data in rows:
        record = record_of(number, data, path)
        if record.id in line_of:
            raise LovecError(
                f"{path}:{number}: id {record.id!r} is already that of line {line_of[record.id]}; give every line its "
                "own id"
            )
        line_of[record.id] = number
        yield record


def record_of(number: int, data: dict[str, Any], path: str | os.PathLike[str]) -> Record:
    """Return the record of a row.

    Args:
        number: number of the row, which is its id where it has none.
        data: its object.
        path: the file that it is from, for error messages.

    Raises:
        LovecError: the row is not a record.
    """
    if data.get("id") is None:
        data["id"] = f"line-{number}"
    with error_in(f"{path}:{number}: "):
        return record_from_dict(data)


def read_objects(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number (from 1) and object of every line of a JSONL file that is not blank, whatever its schema.

    Raises:
        LovecError: the file is missing, or a line is not a JSON object in UTF-8.
    """
    with open_input(path) as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            if not is_blank(line, number):
                yield number, parse_line(line, f"{path}:{number}", first=number == 1)


def is_blank(line: bytes, number: int) -> bool:
    """Return whether a line holds nothing, whose number counts from 1; the first may begin with a byte-order mark."""
    return not (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()


def bounded_lines(file: IO[AnyStr], name: str | os.PathLike[str]) -> Iterator[AnyStr]:
    """Yield the lines of a file, none of which may be too long for the memory.

    Args:
        file: the file, of bytes or of text.
        name: what messages call it.

    Raises:
        LovecError: a line is longer than ``LARGEST``.
    """
    number = 0
    while line := file.readline(LARGEST + 1):
        number += 1
        if len(line) > LARGEST:
            raise LovecError(f"{name}:{number}: a line of more than {LARGEST >> 20} MiB, expected one record per line")
        yield line


def open_input(path: str | os.PathLike[str], expected: str = "the path of a JSONL file") -> BufferedReader:
    """Open a file for reading bytes. A pipe is refused: it can be read once only, and may never begin or end.

    Args:
        path: the file.
        expected: what the error message asks for.

    Raises:
        LovecError: the file is missing, cannot be read, or is a pipe or a device.
    """
    try:
        mode = os.stat(path).st_mode
        if S_ISREG(mode) or S_ISDIR(mode):  # opening a folder says what is wrong
            return open(path, "rb")
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); give {expected}") from None
    raise LovecError(f"cannot read {path} (a pipe or a device, which cannot be read twice); write it to a file first")


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write records as JSONL; a reader sees the old file or the whole new one, never a part.

    Args:
        path: file to write; missing folders are created.
        records: written one by one; if the iterable raises an error, the old file stays.

    Raises:
        LovecError: a record holds a value that JSON cannot (NaN, infinity, an unknown type, half a surrogate pair).
    """
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        for record in records:
            file.write(json_line(record_to_dict(record), record.id))


def json_line(data: Mapping[str, Any], record_id: str) -> bytes:
    """Return an object as one line of JSONL.

    Args:
        data: the object.
        record_id: id of the record that it belongs to, for the error message.

    Raises:
        LovecError: it holds a value that JSON cannot.
    """
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, default=_number).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise LovecError(
            f"record {record_id!r} cannot be written as JSON ({error}); an unknown value is None, never NaN"
        ) from None


def _number(value: Any) -> float:
    """Return a number of another kind than JSON's, such as one of NumPy's."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object; `record_from_dict` is the inverse."""
    data: dict[str, Any] = {
        "id": record.id,
        "question": record.question,
        "evidence": list(record.evidence),
        "answer": record.answer,
        "sentences": [_sentence_to_dict(sentence) for sentence in record.sentences],
        "meta": dict(record.meta),
    }
    if record.rejected is not None:
        data["rejected"] = list(record.rejected)
    return data


def record_from_dict(data: Mapping[str, Any]) -> Record:
    """Return the record that a JSON object holds.

    ``evidence`` may be a string, a list of strings or null; keys outside the schema are kept in ``meta``.

    Raises:
        LovecError: a value is missing, of the wrong type or out of range; the message names it.
    """
    record_id = _value(data, "id", lambda value: _is_int(value) or (isinstance(value, str) and value != ""), "a string")
    question = _value(data, "question", _is_text, "a text")
    answer = _value(data, "answer", lambda value: isinstance(value, str | None), "a text")
    meta = _value(data, "meta", lambda value: isinstance(value, Mapping | None), "an object") or {}
    evidence = _value(data, "evidence", _is_evidence, "a text or a list of texts") or ()
    items = _value(data, "sentences", lambda value: isinstance(value, list | None), "a list") or ()
    sentences = tuple(_sentence_from_dict(item, i) for i, item in enumerate(items))
    n, top = len(sentences), max((sentence.levels for sentence in sentences), default=DEFAULT_SCALE.size) - 1
    is_score = partial(_is_int, low=0, high=top)
    rejected = _value(data, "rejected", partial(_is_list, n, is_score), f"{n} integers 0..{top}, one per sentence")
    extra = {key: value for key, value in data.items() if key not in RECORD_KEYS}
    if duplicates := sorted(extra.keys() & meta.keys()):
        raise LovecError(f"{duplicates[0]!r} is both beside 'meta' and in it; keep one of them")
    return Record(
        id=str(record_id),
        question=question,
        evidence=(evidence,) if isinstance(evidence, str) else tuple(evidence),
        answer=answer or "",
        sentences=sentences,
        meta={**meta, **extra},
        rejected=None if rejected is None else tuple(rejected),
    )


def parse_line(line: bytes, place: str, first: bool) -> dict[str, Any]:
    """Return the JSON object of one line; the first line of a file may begin with a byte-order mark.

    Args:
        line: the line, in UTF-8.
        place: file and line number, for error messages.
        first: whether it is the first line of its file.

    Raises:
        LovecError: the line is not a JSON object in UTF-8.
    """
    data = parse_json(line, place, first, expected="one object per line")
    if not isinstance(data, dict):
        raise LovecError(f"{place}: holds {short_json(data)}, expected a JSON object such as {{'question': ...}}")
    return data


def parse_json(data: bytes, place: str, first: bool, expected: str) -> Any:
    """Return the JSON value that some bytes hold; the first ones of a file may begin with a byte-order mark.

    Args:
        data: the bytes, in UTF-8.
        place: where they are, for error messages.
        first: whether they are the first ones of their file.
        expected: what the error message asks for.

    Raises:
        LovecError: they are not JSON in UTF-8.
    """
    try:
        text = data.decode("utf-8-sig" if first else "utf-8")
        value: Any = _DECODER.decode(text)
        if "\\ud" in text.lower():  # an escape may be half a surrogate pair, which neither tokenizers nor files accept
            json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise LovecError(f"{place}: not valid UTF-8 text ({error.reason}); correct or remove the line") from None
    except (ValueError, RecursionError) as error:
        raise LovecError(f"{place}: not valid JSON ({error}); expected {expected}") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; an unknown value is null")


def _finite(number: str) -> float:
    """Return a number, which must not be too large for a float: infinity could not be written again."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:_QUOTED]} is too large for a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _sentence_to_dict(sentence: Sentence) -> dict[str, Any]:
    data = {key: getattr(sentence, key) for key in _SENTENCE_KEYS}
    if sentence.distribution is not None:
        data["distribution"] = list(sentence.distribution)
    if sentence.levels == DEFAULT_SCALE.size:
        del data["levels"]
    if sentence.is_statement:
        del data["kind"]
    for name in ("claim", "part_of", "by_source", "source_rank", "revision"):
        if data[name] is None:
            del data[name]
    if sentence.token_logps is None:
        del data["token_logps"]
    else:
        data["token_logps"] = list(sentence.token_logps)
    return data


def _sentence_from_dict(data: Any, index: int) -> Sentence:
    place = f"'sentences[{index}]'"
    if not isinstance(data, Mapping):
        raise LovecError(f"{place} is {short_json(data)}, expected an object such as {{'text': ...}}")
    text = _value(data, "text", _is_text, "a sentence", place)
    if not data.keys() <= _SENTENCE_KEY_SET:
        # A misspelt 'factuality' must not pass for a sentence without a label.
        unknown = next(key for key in data if key not in _SENTENCE_KEY_SET)
        raise LovecError(f"{place} has a key {unknown!r}, expected only {', '.join(_SENTENCE_KEYS)}")
    levels = DEFAULT_SCALE.size
    if "levels" in data:
        levels = _value(data, "levels", partial(_is_int, low=2), "an integer above 1", place)
    given: dict[str, Any] = {"text": text.strip(), "levels": levels}
    known = _sentence_values(levels)
    for key, value in data.items():
        if key in known and (value is not None or key == "kind"):
            is_valid, expected, convert = known[key]
            if not is_valid(value):
                raise _refused(f"{place} has {key}", value, expected)
            given[key] = convert(value)
    return Sentence(**given)


@lru_cache(maxsize=16)
def _sentence_values(levels: int) -> dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]]:
    """Return what a sentence may have beside its text: how a value is checked, what is expected, and its conversion.

    Args:
        levels: number of levels of the scale that the sentence is scored on.
    """
    share = (_is_share, "a number in [0, 1] or null (a rating of 7 is 0.7)", _share)
    return {
        "factuality": share,
        "confidence": share,
        "by_source": share,
        "source_rank": share,
        "score": (partial(_is_int, low=0, high=levels - 1), f"an integer 0..{levels - 1} or null", int),
        "distribution": (partial(_is_list, levels, _is_share), f"{levels} probabilities or null", _shares),
        "token_logps": (_is_logps, "a list of numbers of at most 0, or null", _floats),
        "part_of": (partial(_is_int, low=0), "an integer from 0 or null", int),
        "claim": (lambda value: isinstance(value, str), "a text or null", str),
        "kind": (lambda value: value in _KINDS, f"one of {', '.join(_KINDS)}", str),
        "revision": (lambda value: value in _ACTIONS, f"one of {', '.join(_ACTIONS)}", str),
    }


def _share(value: float) -> float:
    return without_rounding(float(value))


def _shares(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(_share, values))


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _value(data: Mapping[str, Any], key: str, is_valid: Callable[[Any], bool], expected: str, place: str = "") -> Any:
    """Return the value of a key, None without one; refuse a value that is not valid."""
    value = data.get(key)
    if not is_valid(value):
        raise _refused(f"{place} has {key}" if place else f"'{key}' is", value, expected)
    return value


def _refused(subject: str, value: Any, expected: str) -> LovecError:
    return LovecError(f"{subject} {short_json(value)}, expected {expected}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_evidence(value: Any) -> bool:
    return isinstance(value, str | None) or (isinstance(value, list) and all(isinstance(text, str) for text in value))


def _is_int(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_list(length: int, is_valid: Callable[[Any], bool], value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) == length and all(map(is_valid, value)))


def _is_logps(value: Any) -> bool:
    """Return whether a value is a list of log-probabilities."""
    return isinstance(value, list) and all((isinstance(n, float) or _is_int(n)) and n <= 0.0 for n in value)


def _is_share(value: Any) -> bool:
    return (isinstance(value, float) or _is_int(value)) and 0.0 <= without_rounding(value) <= 1.0


def short_json(value: Any) -> str:
    """Return a value as JSON of at most 60 characters for an error message, and None as "missing"."""
    text = "missing" if value is None else json_text(value)
    text = "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
    return text if len(text) <= 60 else f"{text[:57]}..."
