"""Answers without tags as token ids: what baselines that look at the tokens of an answer have the model read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lovec.encoding import Encoder
from lovec.types import Engine, Record


@dataclass(frozen=True, slots=True)
class PlainText:
    """A question and successive sentences of the answer to it, as the model would have written them.

    Attributes:
        record: index of the record.
        ids: token ids, the prompt first.
        start: index of the first token of the first sentence in ``spans``.
        spans: number of the sentence, and index of its first token and of the token after its last one.
    """

    record: int
    ids: tuple[int, ...]
    start: int
    spans: tuple[tuple[int, int, int], ...]

    def tokens(self, begin: int, end: int) -> slice:
        """Return where values of the tokens from ``start`` on hold those of a span."""
        return slice(begin - self.start, end - self.start)


def plain_texts(
    records: Sequence[Record], engine: Engine, encoder: Encoder, with_source: bool = False
) -> list[PlainText]:
    """Return texts that hold every sentence once, after its question (without the instruction) and those before it.

    A record is one text where it fits the model's context, which also has to hold one more token. Where it does not,
    another text begins with the question and the latest sentences that take at most half of the room behind it. A
    sentence that does not fit directly behind the question is left out.

    Args:
        records: the answers, sentence by sentence.
        engine: says how long a context may be.
        encoder: encodes questions and sentences.
        with_source: whether the evidence of a record follows its question, as the encoder puts it there.
    """
    room = None if engine.context_length is None else engine.context_length - 1
    return [text for at, record in enumerate(records) for text in _texts(at, record, encoder, room, with_source)]


def _texts(number: int, record: Record, encoder: Encoder, room: int | None, with_source: bool) -> list[PlainText]:
    asked = record if with_source else replace(record, evidence=())
    prompt = encoder.record_prompt(asked, instruct=False)
    texts: list[PlainText] = []
    ids, start = list(prompt), len(prompt)
    spans: list[tuple[int, int, int]] = []
    kept: list[int] = []  # sentences in this text

    def piece(at: int, first: bool) -> list[int]:
        return encoder.pieces(f"{'' if first else ' '}{record.sentences[at].text}")

    def finish() -> None:
        if spans:
            texts.append(PlainText(number, tuple(ids), start, tuple(spans)))

    for at in range(len(record.sentences)):
        if room is not None and len(prompt) + len(piece(at, True)) > room:
            continue
        new = piece(at, not kept)
        if room is not None and kept and len(ids) + len(new) > room:
            finish()
            most = min((room - len(prompt)) // 2, room - len(prompt) - len(new))
            begin, later = len(kept), 0  # the first sentence that stays, and tokens of those after it
            while begin and later + len(piece(kept[begin - 1], True)) <= most:
                begin -= 1
                later += len(piece(kept[begin], False))
            del kept[:begin]
            ids = [*prompt, *(token for i in kept for token in piece(i, i == kept[0]))]
            spans, start, new = [], len(ids), piece(at, not kept)
        spans.append((at, len(ids), len(ids) + len(new)))
        ids += new
        kept.append(at)
    finish()
    return texts
