"""Questions and answers in other projects' words: prompts, responses, messages of a chat, preferences between answers.

TRL and most other trainers have rows of ``{"prompt", "completion"}``, ``{"prompt"}``, ``{"messages"}`` and ``{"prompt",
"chosen", "rejected"}``, each either as text or as messages ``{"role", "content"}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lovec.datasets import authors
from lovec.datasets.jsonl import short_json
from lovec.datasets.rows import Reading, Row, layout
from lovec.tags import DEFAULT_TAGS
from lovec.types import LovecError, Record

_QUESTIONS = ("question", "prompt")
_ANSWERS = ("response", "completion", "answer")


def is_own(row: Row) -> bool:
    """Return whether a row with a question has its answer, if any, under lovec's own keys."""
    return "answer" in row or "sentences" in row or not any(name in row for name in _ANSWERS)


@layout("questions with answers", f"{'|'.join(_QUESTIONS)} {'|'.join(_ANSWERS)}")
def answered(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a question and its answer; without an answer it is an open question. Other keys are kept in ``meta``."""
    names = [
        max(either, key=lambda name: (row.get(name) is not None, name in row)) for either in (_QUESTIONS, _ANSWERS)
    ]
    yield _record([*_turns(row[names[0]], "user"), *_turns(row[names[1]], "assistant")], row, names, reading)


@layout("prompts", "prompt", fits=lambda row: not row.get("messages"))
def asked(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a prompt as an open question. Other keys are kept in ``meta``."""
    yield _record(_turns(row["prompt"], "user"), row, ["prompt"], reading)


@layout("chats", "messages")
def chat(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the last question of a chat and its answer, if it has one. Other keys are kept in ``meta``."""
    yield _record(_turns(row["messages"], "user"), row, ["messages"], reading)


@layout("pairs: the paper's authors, TRL", "chosen rejected")
def preference(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a pair of answers: one answer with true and wrong scores, or else the preferred answer without labels.

    Raises:
        LovecError: an answer is tagged in part, or the two are different answers with tags.
    """
    before = _turns(row.get("prompt"), "user")
    chosen, rejected = (_turns(row[key], "assistant") for key in ("chosen", "rejected"))
    chosen, rejected = (
        turns if any(role == "user" for role, _ in turns) else before + turns for turns in (chosen, rejected)
    )
    question, answer, other = _last(chosen)[0], _last(chosen)[1], _last(rejected)[1]
    if DEFAULT_TAGS.open in answer or DEFAULT_TAGS.open in other:
        yield from authors.pair({**row, "prompt": question, "chosen": answer, "rejected": other}, reading)
        return
    reading.left_out[
        "rejected answers without scores (kept in meta): lovec's pairs are one answer with true and wrong scores, "
        "which `lovec label --answers` makes of the chosen ones"
    ] += 1
    record = _record(chosen, row, ["prompt", "chosen", "rejected"], reading)
    yield replace(record, meta={**record.meta, "rejected_answer": other})


def _record(turns: list[tuple[str, str]], row: Row, names: list[str], reading: Reading) -> Record:
    question, answer, earlier = _last(turns)
    meta = {key: value for key, value in row.items() if key not in (*names, "id")}
    reading.kept.update(dict.fromkeys(meta))
    if earlier:
        meta["earlier_turns"] = [{"role": role, "content": text} for role, text in earlier]
        reading.left_out["earlier turns (kept in meta)"] += len(earlier)
    reading.left_out["questions without an answer"] += not answer.strip()
    record_id = str(row["id"]) if row.get("id") not in (None, "") else reading.ids.of(question[:60])
    return Record(record_id, question, answer=answer, meta=meta)


def _last(turns: list[tuple[str, str]]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the last question, the answer behind it ("" without one), and the turns before them.

    Raises:
        LovecError: nobody asks anything.
    """
    at = max((at for at, (role, text) in enumerate(turns) if role == "user" and text.strip()), default=None)
    if at is None:
        raise LovecError("no question is asked, expected a prompt, or messages with one of the role user")
    answer = next((text for role, text in reversed(turns[at + 1 :]) if role == "assistant"), "")
    return turns[at][1], answer, turns[:at]


def _turns(value: Any, role: str) -> list[tuple[str, str]]:
    """Return (role, text) of the messages that a value holds; a text is one message of the role.

    Raises:
        LovecError: it is something else.
    """
    if isinstance(value, str | None):
        return [] if value is None else [(role, value)]
    if isinstance(value, list) and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in value):
        return [(message["role"], _text(message.get("content"))) for message in value]
    raise LovecError(
        f'{short_json(value)} is neither text nor a list of messages such as {{"role": "user", "content": "..."}}'
    )


def _text(content: Any) -> str:
    """Return the text of a message, whose parts may be objects such as ``{"type": "text", "text": "..."}``."""
    if isinstance(content, str | None):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    raise LovecError(f"the content of a message is {short_json(content)}, expected a text")
