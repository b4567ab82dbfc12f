"""The layouts of the files that the paper's authors worked with, as records.

A line of a file (or an item of a JSON list) is one of

- demonstrations: ``{prompt, model_output, is_abstained, ratings_openai, rated_output_openai}``,
- pairs: ``{prompt, chosen, rejected}``, the same answer tagged with its true and with wrong scores,
- prompts for GRPO: ``{entity, evidence, base_prediction}``,
- outputs: ``{entity, prompt, model_outputs}``, several answers to one question.

A prompt is the bare question, without the instruction. Tags are read by ``lovec.tags``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from lovec.datasets.jsonl import read_objects
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.tags import TaggedSentence, parse
from lovec.types import LovecError, Record, Sentence, to_rating

Row = dict[str, Any]


def read_authors(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read a file of one of the authors' layouts; which one, every line says by its keys.

    True scores become factuality, wrong ones ``rejected``. Tags of outputs become score and confidence. An abstention
    keeps its answer, has no sentences and says so in ``meta["abstained"]``; ``base_prediction`` is an answer without
    sentences.

    Args:
        path: JSONL, or JSON with a list.

    Yields:
        One record a line, except for outputs: one an answer, with the ids ``<entity>/sample-1`` and so on.

    Raises:
        LovecError: the file is missing, or a line is of another form; the message names file and line.
    """
    ids = Ids()
    for place, row in read_items(path):
        try:
            layout = layout_of(row)
            if layout is None:
                known = "; ".join(", ".join(keys) for keys in _LAYOUTS)
                raise LovecError(f"holds {', '.join(row)}; expected one of the layouts: {known}")
            yield from _LAYOUTS[layout](row, ids)
        except (LovecError, KeyError, TypeError, ValueError, AttributeError) as error:
            said = error if isinstance(error, LovecError) else f"{type(error).__name__}: {error}"
            raise LovecError(f"{path}:{place}: {said}") from None


def layout_of(row: Row) -> tuple[str, ...] | None:
    """The keys by which a line belongs to one of the authors' layouts, None where it does not."""
    return next((keys for keys in _LAYOUTS if row.keys() >= set(keys)), None)


def read_items(path: str | os.PathLike[str]) -> Iterator[tuple[int, Row]]:
    """Objects of a JSONL file, or of a file that is one JSON list, with their number from 1.

    Raises:
        LovecError: the file is missing or broken.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); give the path of a JSONL file") from None
    if head != b"[":
        yield from read_objects(path)
        return
    try:
        with open(path, encoding="utf-8-sig") as text:
            items = json.load(text)
    except ValueError as error:
        raise LovecError(f"{path}: not valid JSON ({error})") from None
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise LovecError(f"{path}:{number}: holds {type(item).__name__}, expected an object")
        yield number, item


def _demonstration(row: Row, ids: Ids) -> Iterator[Record]:
    name, meta = ids.of(_about(row["prompt"])), {"abstained": bool(row["is_abstained"])}
    if row["is_abstained"]:
        yield Record(name, row["prompt"], answer=row["model_output"] or "", meta=meta)
        return
    rated = _tagged(row["rated_output_openai"])
    ratings = row["ratings_openai"]
    if [None if rating is None else to_rating(float(rating) / 10) for rating in ratings] != [s.score for s in rated]:
        raise LovecError(f"ratings_openai is {ratings}, but the tags of rated_output_openai say otherwise")
    sentences = tuple(Sentence(s.text, _share(s.score)) for s in rated)
    yield Record(name, row["prompt"], answer=row["model_output"], sentences=sentences, meta=meta)


def _pair(row: Row, ids: Ids) -> Iterator[Record]:
    chosen, rejected = _tagged(row["chosen"]), _tagged(row["rejected"])
    if [s.text for s in chosen] != [s.text for s in rejected]:
        raise LovecError("chosen and rejected are different answers, expected the same one with other scores")
    wrong = [s.score for s in rejected if s.score is not None]
    if len(wrong) != len(chosen) or any(s.score is None for s in chosen):
        raise LovecError("a sentence of chosen or rejected has no valid score; leave such pairs out")
    sentences = tuple(Sentence(s.text, _share(s.score)) for s in chosen)
    answer = " ".join(s.text for s in chosen)
    name = ids.of(_about(row["prompt"]))
    yield Record(name, row["prompt"], answer=answer, sentences=sentences, rejected=tuple(wrong))


def _online(row: Row, ids: Ids) -> Iterator[Record]:
    evidence = row["evidence"] or ()
    texts = (evidence,) if isinstance(evidence, str) else tuple(map(str, evidence))
    entity = str(row["entity"])
    question = QUESTION.format(entity=entity)
    yield Record(ids.of(entity), question, texts, row["base_prediction"] or "", meta={"entity": entity})


def _outputs(row: Row, ids: Ids) -> Iterator[Record]:
    entity = str(row["entity"])
    name, meta = ids.of(entity), {"entity": entity}
    for number, text in enumerate(row["model_outputs"], 1):
        parsed = parse(text)
        spans = [*parsed.sentences, TaggedSentence(parsed.tail.strip(), None, "untagged tail", parsed.tail)]
        sentences = tuple(
            Sentence(s.text, confidence=_share(s.score), score=s.score) for s in spans if s.text and parsed.sentences
        )
        yield Record(f"{name}/sample-{number}", row["prompt"], answer=text, sentences=sentences, meta=meta)


_LAYOUTS: dict[tuple[str, ...], Callable[[Row, Ids], Iterator[Record]]] = {
    ("prompt", "model_output", "is_abstained", "ratings_openai", "rated_output_openai"): _demonstration,
    ("prompt", "chosen", "rejected"): _pair,
    ("entity", "evidence", "base_prediction"): _online,
    ("entity", "prompt", "model_outputs"): _outputs,
}


def _tagged(text: str) -> tuple[TaggedSentence, ...]:
    """The sentences of an answer that is tagged throughout."""
    parsed = parse(text)
    problems = [s.problem for s in parsed.sentences if s.problem] + ["untagged tail"] * bool(parsed.tail.strip())
    if problems or not parsed.sentences:
        raise LovecError(f"an answer is not tagged throughout: {problems[0] if problems else 'no tag at all'}")
    return parsed.sentences


def _share(score: int | None) -> float | None:
    return None if score is None else score / 10


def _about(prompt: str) -> str:
    """What a question is about, to name its record by; the whole question where it is another than the paper's."""
    before, _, after = QUESTION.partition("{entity}")
    return prompt.strip().removeprefix(before).removesuffix(after)
