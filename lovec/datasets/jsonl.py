"""Records on disk: one JSON object a line, the format that every stage reads and writes.

A line holds ``{"id", "question", "evidence", "answer", "sentences": [{"text", "factuality", "confidence", "score",
"distribution"}], "meta"}``; pairs add ``"rejected"``. Only ``question`` must be there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lovec.types import N_SCORES, LovecError, Record, Sentence

_RECORD_KEYS = tuple(f.name for f in fields(Record))
_SENTENCE_KEYS = tuple(f.name for f in fields(Sentence))


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read records one by one, so that a file may be larger than the memory.

    Blank lines are skipped. A line without an id is named after its number ("line-7").

    Args:
        path: a JSONL file in UTF-8.

    Yields:
        One record a line, in file order.

    Raises:
        LovecError: the file is missing, or a line is broken; the message names file and line and what is wrong.
            The lines before it have been yielded by then.
    """
    seen: dict[str, int] = {}
    for number, data in read_objects(path):
        if data.get("id") is None:
            data["id"] = f"line-{number}"
        try:
            record = record_from_dict(data)
        except LovecError as error:
            raise LovecError(f"{path}:{number}: {error}") from None
        if record.id in seen:
            raise LovecError(
                f"{path}:{number}: id {record.id!r} is already that of line {seen[record.id]}; give every line its own"
            )
        seen[record.id] = number
        yield record


def read_objects(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a JSONL file of any schema: (line number from 1, object) for every line that is not blank.

    Raises:
        LovecError: the file is missing, or a line is not a JSON object in UTF-8.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); give the path of a JSONL file") from None
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, parse_line(line, f"{path}:{number}", first=number == 1)


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write records, one a line; a reader sees the old file or the whole new one, never a part.

    Args:
        path: target; missing folders are made.
        records: taken one by one; if taking one fails, the old file stays.

    Raises:
        LovecError: a record holds what JSON cannot (NaN, infinity, an unknown type, half of a surrogate pair).
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for record in records:
                try:
                    line = json.dumps(record_to_dict(record), ensure_ascii=False, allow_nan=False)
                    file.write(line.encode() + b"\n")
                except (TypeError, ValueError) as error:
                    raise LovecError(
                        f"record {record.id!r} cannot be written as JSON ({error}); an unknown value is None, never NaN"
                    ) from None
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def record_to_dict(record: Record) -> dict[str, Any]:
    """The JSON object of a record; `record_from_dict` undoes it."""
    data: dict[str, Any] = {
        "id": record.id,
        "question": record.question,
        "evidence": list(record.evidence),
        "answer": record.answer,
        "sentences": [
            {
                "text": s.text,
                "factuality": s.factuality,
                "confidence": s.confidence,
                "score": s.score,
                "distribution": None if s.distribution is None else list(s.distribution),
            }
            for s in record.sentences
        ],
        "meta": dict(record.meta),
    }
    if record.rejected is not None:
        data["rejected"] = list(record.rejected)
    return data


def record_from_dict(data: Mapping[str, Any]) -> Record:
    """The record of a JSON object.

    ``evidence`` may be a string, a list of strings or null; keys outside the schema are kept in ``meta``.

    Raises:
        LovecError: a value is missing, of the wrong type or outside its range; the message names it.
    """
    name = data.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise LovecError(f"'id' is {_show(name)}, expected a string")
    question = data.get("question")
    if not isinstance(question, str) or not question.strip():
        raise LovecError(f"'question' is {_show(question)}, expected a text")
    sentences = tuple(_sentence(s, i) for i, s in enumerate(_list(data, "sentences")))
    answer = data.get("answer")
    if not isinstance(answer, str | None):
        raise LovecError(f"'answer' is {_show(answer)}, expected a text")
    evidence = data.get("evidence")
    texts = [evidence] if isinstance(evidence, str) else _list(data, "evidence")
    if not all(isinstance(text, str) for text in texts):
        raise LovecError(f"'evidence' is {_show(evidence)}, expected a text or a list of texts")
    meta = data.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise LovecError(f"'meta' is {_show(meta)}, expected an object")
    extra = {key: value for key, value in data.items() if key not in _RECORD_KEYS}
    if twice := sorted(extra.keys() & meta.keys()):
        raise LovecError(f"{twice[0]!r} stands both beside 'meta' and in it; keep one")
    return Record(
        id=str(name),
        question=question,
        evidence=tuple(texts),
        answer=answer or "",
        sentences=sentences,
        meta={**meta, **extra},
        rejected=_rejected(data, len(sentences)),
    )


def parse_line(line: bytes, place: str, first: bool) -> dict[str, Any]:
    """The object of one line; a byte-order mark before the first is let pass.

    Args:
        line: in UTF-8.
        place: file and number, for errors.
        first: whether it is the first of its file.

    Raises:
        LovecError: the line is not a JSON object in UTF-8.
    """
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
        data = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():  # an escape may be half of a pair, which no tokenizer and no file takes
            json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise LovecError(f"{place}: not valid UTF-8 text ({error.reason}); mend or remove the line") from None
    except (ValueError, RecursionError) as error:
        raise LovecError(f"{place}: not valid JSON ({error}); expected one object a line") from None
    if not isinstance(data, dict):
        raise LovecError(f"{place}: holds {_show(data)}, expected a JSON object such as {{'question': ...}}")
    return data


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON; an unknown value is null")


def _sentence(data: Any, index: int) -> Sentence:
    place = f"'sentences[{index}]'"
    if not isinstance(data, Mapping):
        raise LovecError(f"{place} is {_show(data)}, expected an object such as {{'text': ...}}")
    text = data.get("text")
    if not isinstance(text, str) or not text.strip():
        raise LovecError(f"{place} has text {_show(text)}, expected a sentence")
    if unknown := [key for key in data if key not in _SENTENCE_KEYS]:
        # A misspelt 'factuality' must not pass for a sentence without a label.
        raise LovecError(f"{place} has a key {unknown[0]!r}, expected only {', '.join(_SENTENCE_KEYS)}")
    score = data.get("score")
    if score is not None and not _is_score(score):
        raise LovecError(f"{place} has score {_show(score)}, expected an integer 0..10 or null")
    distribution = data.get("distribution")
    if distribution is not None and not (
        isinstance(distribution, list) and len(distribution) == N_SCORES and all(map(_is_share, distribution))
    ):
        raise LovecError(f"{place} has distribution {_show(distribution)}, expected 11 probabilities or null")
    return Sentence(
        text=text.strip(),
        factuality=_fraction(data, "factuality", place),
        confidence=_fraction(data, "confidence", place),
        score=score,
        distribution=None if distribution is None else tuple(float(p) for p in distribution),
    )


def _fraction(data: Mapping[str, Any], key: str, place: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if not _is_share(value):
        raise LovecError(
            f"{place} has {key} {_show(value)}, expected a number in [0, 1] or null (a rating of 7 is 0.7)"
        )
    return float(value)


def _rejected(data: Mapping[str, Any], count: int) -> tuple[int, ...] | None:
    scores = data.get("rejected")
    if scores is None:
        return None
    if not isinstance(scores, list) or len(scores) != count or not all(map(_is_score, scores)):
        raise LovecError(f"'rejected' is {_show(scores)}, expected {count} integers 0..10, one a sentence")
    return tuple(scores)


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list | None):
        raise LovecError(f"'{key}' is {_show(value)}, expected a list")
    return value or []


def _is_score(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < N_SCORES


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0


def _show(value: Any) -> str:
    """A value for a one-line message: as JSON shows it, cut where it is long."""
    text = "missing" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
