"""The file layouts of the paper's authors, read as records.

A line of a file (or an item of a JSON list) is one of

- demonstrations: ``{prompt, model_output, is_abstained, ratings_openai, rated_output_openai}``,
- pairs: ``{prompt, chosen, rejected}``, the same answer tagged with its true and with wrong scores,
- prompts for GRPO: ``{entity, evidence, base_prediction}``,
- outputs: ``{entity, prompt, model_outputs}``, several answers to one question.

A prompt is the bare question without the instruction. Scores are those of the paper's scale, 0 to 10.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lovec.datasets.jsonl import open_input, read_objects
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.tags import TaggedSentence, parse
from lovec.types import DEFAULT_SCALE, LovecError, Record, Sentence, to_rating

Row = dict[str, Any]


def read_authors(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read a file in one of the authors' layouts; the keys of each line say which one.

    True scores become factuality, wrong ones ``rejected``, the tags of outputs score and confidence. An abstention
    keeps its answer, has no sentences, and ``meta["abstained"]`` is True; ``base_prediction`` becomes an answer without
    sentences.

    Args:
        path: JSONL, or JSON with a list.

    Yields:
        One record per line; for outputs one per answer, with the ids ``<entity>/sample-1`` and so on.

    Raises:
        LovecError: the file is missing, or a line has another form; the message names file and line.
    """
    ids = Ids()
    for place, row in read_items(path):
        try:
            layout = layout_of(row)
            if layout is None:
                known = "; ".join(", ".join(keys) for keys in _LAYOUTS)
                raise LovecError(f"the keys are {', '.join(row)}; expected one of the layouts: {known}")
            yield from _LAYOUTS[layout](row, ids)
        except (LovecError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = error if isinstance(error, LovecError) else f"{type(error).__name__}: {error}"
            raise LovecError(f"{path}:{place}: {reason}") from None


def layout_of(row: Row) -> tuple[str, ...] | None:
    """Return the keys of the layout that a line has, or None if it is none of the authors'."""
    return next((keys for keys in _LAYOUTS if row.keys() >= set(keys)), None)


def read_items(path: str | os.PathLike[str]) -> Iterator[tuple[int, Row]]:
    """Yield number (from 1) and object of every line of a JSONL file, or of every item of a file with one JSON list.

    Raises:
        LovecError: the file is missing or broken.
    """
    with open_input(path) as file:
        is_list = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_list:
        yield from read_objects(path)
        return
    try:
        items = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise LovecError(f"{path}: not valid JSON ({error}); expected JSONL or a JSON list") from None
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise LovecError(f"{path}:{number}: holds {type(item).__name__}, expected an object")
        yield number, item


def _demonstration(row: Row, ids: Ids) -> Iterator[Record]:
    record_id, meta = ids.of(_subject(row["prompt"])), {"abstained": bool(row["is_abstained"])}
    if row["is_abstained"]:
        yield Record(record_id, row["prompt"], answer=row["model_output"] or "", meta=meta)
        return
    tagged = _fully_tagged(row["rated_output_openai"])
    ratings = row["ratings_openai"]
    if [None if rating is None else to_rating(float(rating) / 10) for rating in ratings] != [s.score for s in tagged]:
        raise LovecError(f"ratings_openai is {ratings}, but the tags of rated_output_openai have other scores")
    sentences = tuple(Sentence(s.text, _confidence(s.score)) for s in tagged)
    yield Record(record_id, row["prompt"], answer=row["model_output"], sentences=sentences, meta=meta)


def _pair(row: Row, ids: Ids) -> Iterator[Record]:
    chosen, rejected = _fully_tagged(row["chosen"]), _fully_tagged(row["rejected"])
    if [s.text for s in chosen] != [s.text for s in rejected]:
        raise LovecError("chosen and rejected are different answers, expected the same one with other scores")
    wrong = tuple(s.score for s in rejected if s.score is not None)
    if len(wrong) != len(chosen) or any(s.score is None for s in chosen):
        raise LovecError("a sentence of chosen or rejected has no valid score; leave such pairs out")
    sentences = tuple(Sentence(s.text, _confidence(s.score)) for s in chosen)
    answer = " ".join(s.text for s in chosen)
    yield Record(ids.of(_subject(row["prompt"])), row["prompt"], answer=answer, sentences=sentences, rejected=wrong)


def _online(row: Row, ids: Ids) -> Iterator[Record]:
    evidence = row["evidence"] or ()
    texts = (evidence,) if isinstance(evidence, str) else tuple(map(str, evidence))
    entity = str(row["entity"])
    question = QUESTION.format(entity=entity)
    yield Record(ids.of(entity), question, texts, row["base_prediction"] or "", meta={"entity": entity})


def _outputs(row: Row, ids: Ids) -> Iterator[Record]:
    entity = str(row["entity"])
    entity_id, meta = ids.of(entity), {"entity": entity}
    for number, text in enumerate(row["model_outputs"], 1):
        parsed = parse(text)
        spans = [*parsed.sentences, TaggedSentence(parsed.tail.strip(), None, "untagged tail", parsed.tail)]
        sentences = tuple(
            Sentence(s.text, confidence=_confidence(s.score), score=s.score)
            for s in spans
            if s.text and parsed.sentences
        )
        yield Record(f"{entity_id}/sample-{number}", row["prompt"], answer=text, sentences=sentences, meta=meta)


_LAYOUTS: dict[tuple[str, ...], Callable[[Row, Ids], Iterator[Record]]] = {
    ("prompt", "model_output", "is_abstained", "ratings_openai", "rated_output_openai"): _demonstration,
    ("prompt", "chosen", "rejected"): _pair,
    ("entity", "evidence", "base_prediction"): _online,
    ("entity", "prompt", "model_outputs"): _outputs,
}


def _fully_tagged(text: str) -> tuple[TaggedSentence, ...]:
    """Return the sentences of an answer; refuse an answer with text that is not validly tagged."""
    parsed = parse(text)
    problems = [s.problem for s in parsed.sentences if s.problem] + ["untagged tail"] * bool(parsed.tail.strip())
    if problems or not parsed.sentences:
        raise LovecError(f"an answer is not tagged throughout: {problems[0] if problems else 'no tag at all'}")
    return parsed.sentences


def _confidence(score: int | None) -> float | None:
    return None if score is None else DEFAULT_SCALE.confidence(score)


def _subject(prompt: str) -> str:
    """Return the entity that a question in the paper's wording is about, or the whole question in another wording."""
    before, _, after = QUESTION.partition("{entity}")
    return prompt.strip().removeprefix(before).removesuffix(after)
