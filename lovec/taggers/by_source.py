"""Two confidences per sentence: by the evidence of a record, and by what the model knows without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.scoring import Requests, ScoredSentence, ScoreRequest, Tagged, next_item, with_source
from lovec.types import Record, Sentence

if TYPE_CHECKING:
    from lovec.calibration import Calibration


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
                yield by_both(ended[-2], item, tagger.by_source)
            elif not twice[number]:
                yield item
        else:
            number, sourced = rows[item.record]
            place = sentences.setdefault((number, item.at), {})
            place[sourced] = item.sentence
            if len(place) == 1 + twice[number]:
                sentence = item.sentence
                if twice[number]:
                    sentence = with_source(place[False], place[True], tagger.by_source)
                yield ScoredSentence(number, item.at, sentence)
                del sentences[number, item.at]
        item = next_item(requests, scores)


def by_both(record: Record, sourced: Record, calibration: Calibration | None) -> Record:
    """Return a tagged text with both confidences of its sentences, its evidence, and the problems of both.

    Args:
        record: tagged without the evidence.
        sourced: the same, tagged with it.
        calibration: has made the confidences of the latter; None where nothing has.
    """
    pairs = zip(record.sentences, sourced.sentences, strict=True)
    problems = record.meta.get("problems", [])
    more = [f"with the evidence: {one}" for one in sourced.meta.get("problems", []) if one not in problems]
    meta = {**record.meta, "problems": [*problems, *more]} if problems or more else record.meta
    sentences = tuple(with_source(*pair, calibration) for pair in pairs)
    return replace(record, sentences=sentences, evidence=sourced.evidence, meta=meta)
