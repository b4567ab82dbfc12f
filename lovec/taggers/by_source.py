"""Two confidences per sentence: by the evidence of a record, and by what the model knows without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.scoring import Requests, ScoredSentence, ScoreRequest, Tagged, next_item
from lovec.types import Record, Sentence


def requests_by_both(tagger: IterativeTagger, records: Sequence[Record]) -> Requests[Tagged]:
    """Do the work of ``IterativeTagger.stream``, with both confidences where a prompt has evidence in it.

    Both prompts of a text are scored together, so that their common beginning may be computed once. The engine is left
    to the caller.

    Args:
        tagger: scores the texts.
        records: as for ``IterativeTagger.tag``.
    """
    twice = [tagger.encoder.has_source(record) for record in records]
    rows = [(number, way) for number, both in enumerate(twice) for way in ((False, True) if both else (False,))]
    asked = [
        replace(records[number], evidence=()) if twice[number] and not sourced else records[number]
        for number, sourced in rows
    ]
    sentences: dict[tuple[int, int], dict[bool, Sentence]] = {}  # of a place, by whether the evidence was there
    ended: list[Record] = []
    requests = tagger.requests(asked)
    item: ScoreRequest | Tagged | None = next_item(requests)
    while item is not None:
        scores = None
        if isinstance(item, ScoreRequest):
            scores = yield item
        elif isinstance(item, Record):
            number, sourced = rows[len(ended)]
            ended.append(item)
            if sourced:
                yield by_both(ended[-2], item)
            elif not twice[number]:
                yield item
        else:
            number, sourced = rows[item.record]
            place = sentences.setdefault((number, item.at), {})
            place[sourced] = item.sentence
            if len(place) == 1 + twice[number]:
                sentence = _with_source(place[False], place[True]) if twice[number] else item.sentence
                yield ScoredSentence(number, item.at, sentence)
                del sentences[number, item.at]
        item = next_item(requests, scores)


def _with_source(sentence: Sentence, sourced: Sentence) -> Sentence:
    """Return a sentence with its confidence by source: that of the same sentence, tagged with the evidence."""
    return replace(sentence, by_source=sourced.confidence)


def by_both(record: Record, sourced: Record) -> Record:
    """Return a tagged text with both confidences of its sentences, its evidence, and the problems of both.

    Args:
        record: tagged without the evidence.
        sourced: the same, tagged with it.
    """
    pairs = zip(record.sentences, sourced.sentences, strict=True)
    problems = record.meta.get("problems", [])
    more = [f"with the evidence: {one}" for one in sourced.meta.get("problems", []) if one not in problems]
    meta = {**record.meta, "problems": [*problems, *more]} if problems or more else record.meta
    return replace(record, sentences=tuple(_with_source(*pair) for pair in pairs), evidence=sourced.evidence, meta=meta)
