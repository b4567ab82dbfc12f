"""The file layouts of the paper's authors, read as records.

A prompt is the bare question without the instruction. Scores are those of the paper's scale, 0 to 10. The layouts are
those that the scripts of the paper's repository write: demonstrations and outputs with the ratings of the fact-checker,
preference pairs, and prompts for GRPO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lovec.datasets.rows import Reading, Row, layout
from lovec.datasets.values import flag_of
from lovec.encoding import QUESTION
from lovec.tags import DEFAULT_TAGS, UNTAGGED, TaggedSentence, parse, strip
from lovec.text.sentences import split_sentences
from lovec.types import DEFAULT_SCALE, LovecError, Record, Sentence, to_rating

_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"  # which the authors' sampling leaves before answers
_UNRATED = f"{DEFAULT_TAGS.open} None {DEFAULT_TAGS.close}"  # of a sentence that the fact-checker did not rate


@layout("the paper's authors: demonstrations", "prompt model_output")
def demonstration(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the ratings of its sentences.

    An abstention has no sentences, and ``meta["abstained"]`` is True. A rating None is an unknown factuality. Where
    there are no ratings, or others than sentences, the answer has no sentences: they could not be told apart.
    """
    abstained = flag_of(row.get("is_abstained"), "is_abstained")
    answer = (row["model_output"] or "").removeprefix(_HEADER)
    record = reading.record(row["prompt"], answer, name=_subject(row["prompt"]), abstained=abstained)
    ratings, rated = row.get("ratings_openai"), row.get("rated_output_openai")
    if abstained or not (ratings or rated):
        reading.left_out["abstentions" if abstained else "answers without ratings"] += 1
        yield record
        return
    known = None if ratings is None else [_rating(rating) for rating in ratings]
    spans = _rated(rated or "", known)
    if known is not None:
        if len(spans) > len(known) or any(k != span.score for k, span in zip(known, spans, strict=False)):
            raise LovecError(f"ratings_openai is {ratings}, but the tags of rated_output_openai have other scores")
        text = "".join("".join(span.text for span in spans).split())
        if len(known) != len(spans) or text != "".join(answer.split()):
            reading.left_out["answers with more or fewer ratings than sentences"] += 1
            yield record
            return
    yield replace(record, sentences=tuple(Sentence(span.text, _confidence(span.score)) for span in spans))


def pair(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the same answer tagged with its true and with wrong scores; these become ``rejected``."""
    chosen, rejected = _fully_tagged(row["chosen"]), _fully_tagged(row["rejected"])
    if [s.text for s in chosen] != [s.text for s in rejected]:
        raise LovecError("chosen and rejected are different answers, expected the same one with other scores")
    wrong = tuple(s.score for s in rejected if s.score is not None)
    if len(wrong) != len(chosen) or any(s.score is None for s in chosen):
        raise LovecError("a sentence of chosen or rejected has no valid score; leave such pairs out")
    sentences = tuple(Sentence(s.text, _confidence(s.score)) for s in chosen)
    answer = " ".join(s.text for s in chosen)
    record_id = reading.ids.of(_subject(row["prompt"]))
    yield Record(record_id, row["prompt"], answer=answer, sentences=sentences, rejected=wrong)


@layout("the paper's authors: prompts for GRPO", "entity evidence base_prediction")
def online(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a question with evidence; ``base_prediction`` becomes an answer without sentences."""
    evidence = row["evidence"] or ()
    texts = (evidence,) if isinstance(evidence, str) else tuple(map(str, evidence))
    entity = str(row["entity"])
    question = QUESTION.format(entity=entity)
    yield Record(reading.ids.of(entity), question, texts, row["base_prediction"] or "", meta={"entity": entity})


@layout("the paper's authors: outputs", "entity prompt model_outputs")
def outputs(row: Row, reading: Reading) -> Iterator[Record]:
    """Read several answers to one question, with the scores that they state, and the ratings of the first one if any.

    The records have the ids ``<entity>/sample-1`` and so on. The ratings are of the sentences of the answer without
    its tags; the tags show where these end if there are as many, and otherwise lovec's splitter does. If it finds
    another number as well, the ratings are left out.
    """
    entity = str(row["entity"])
    entity_id, meta = reading.ids.of(entity), {"entity": entity}
    for number, text in enumerate(row["model_outputs"], 1):
        answer = text.removeprefix(_HEADER)
        parsed = parse(answer)
        spans = [
            *parsed.sentences,
            TaggedSentence(parsed.tail.strip(), None, UNTAGGED, parsed.tail),
        ]
        sentences = [
            Sentence(s.text, confidence=_confidence(s.score), score=s.score)
            for s in spans
            if s.text and parsed.sentences
        ]
        abstained = number == 1 and flag_of(row.get("is_abstained"), "is_abstained")
        reading.left_out["abstentions"] += abstained
        if number == 1 and (ratings := row.get("ratings_openai")):
            sentences = _with_ratings(sentences, row.get("output_without_confidence") or strip(answer), ratings)
            reading.left_out["answers with more or fewer ratings than sentences"] += len(sentences) != len(ratings)
        record = Record(f"{entity_id}/sample-{number}", row["prompt"], answer=answer, meta=meta)
        if abstained:
            yield replace(record, meta={**meta, "abstained": True})
        else:
            yield replace(record, sentences=tuple(sentences))


def _with_ratings(sentences: list[Sentence], answer: str, ratings: Sequence[Any]) -> list[Sentence]:
    """Return the sentences with their ratings 0 to 10; without, if there are as many in neither way of counting."""
    if len(sentences) != len(ratings) and len(texts := split_sentences(answer)) == len(ratings):
        sentences = list(map(Sentence, texts))
    if len(sentences) != len(ratings):
        return sentences
    pairs = zip(sentences, map(_rating, ratings), strict=True)
    return [replace(sentence, factuality=_confidence(rating)) for sentence, rating in pairs]


def _rating(value: Any) -> int | None:
    """Return a rating of the fact-checker; None for one that it could not give, or gave outside 0 to 10."""
    return None if value is None or not 0 <= float(value) <= 10 else to_rating(float(value) / 10)


def _rated(text: str, ratings: Sequence[int | None] | None) -> tuple[TaggedSentence, ...]:
    """Return the sentences of a rated answer; only where a rating is None may a tag be invalid."""
    parsed = parse(text)
    missing = [s.raw.rstrip().endswith(_UNRATED) for s in parsed.sentences]
    if ratings is not None:
        missing = [rating is None for rating in ratings] + [False for _ in parsed.sentences]
    problems = [
        s.problem for s, is_missing in zip(parsed.sentences, missing, strict=False) if s.problem and not is_missing
    ]
    return _checked(parsed.sentences, problems, parsed.tail)


def _fully_tagged(text: str) -> tuple[TaggedSentence, ...]:
    """Return the sentences of an answer; refuse an answer with text that is not validly tagged."""
    parsed = parse(text)
    return _checked(parsed.sentences, [s.problem for s in parsed.sentences if s.problem], parsed.tail)


def _checked(spans: tuple[TaggedSentence, ...], problems: list[str], tail: str) -> tuple[TaggedSentence, ...]:
    problems += [UNTAGGED] * bool(tail.strip())
    if problems or not spans:
        raise LovecError(f"an answer is not tagged throughout: {problems[0] if problems else 'no tag at all'}")
    return spans


def _confidence(score: int | None) -> float | None:
    return None if score is None else DEFAULT_SCALE.confidence(score)


def _subject(prompt: str) -> str:
    """Return the entity that a question in the paper's wording is about, or the whole question in another wording."""
    before, _, after = QUESTION.partition("{entity}")
    return prompt.strip().removeprefix(before).removesuffix(after)
