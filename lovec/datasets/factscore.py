"""FActScore (Min et al. 2023): biographies with human labels, and the decisions of its scorer.

Annotators split every sentence into atomic facts and labelled each S (supported), NS (not supported) or IR
(irrelevant). The factuality of a sentence is the supported share S / (S + NS), and None if it has no such fact.

``FactScorer.get_score`` returns, and the script writes as ``NAME_factscore_output.json``, an object with ``decisions``:
for every answer the list of its atomic facts as ``{"atom", "is_supported"}``, or null for an abstention. Questions and
answers are not in it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lovec.clauses import spans
from lovec.datasets.rows import Reading, Row, layout, read_records_of, read_rows
from lovec.datasets.values import confidence_of, label_of
from lovec.types import Record, Sentence, Unit

_WORD = re.compile(r"[^\W_]+")
_STEM = 6  # letters by which two forms of a word are taken for the same
_SMALL_WORDS = """
    a an the and or but of in on at to for from by with as into over under about between among during after before is
    are was were be been being has have had do does did can could will would may might must he she it they his her its
    their him them who whom whose which that this these those there also other some one not
"""
_SMALL = frozenset(word[:_STEM] for word in _SMALL_WORDS.split())


def read_factscore(path: str | os.PathLike[str], unit: Unit = "sentence") -> list[Record]:
    """Read a labelled file of FActScore, such as its ``ChatGPT.jsonl``.

    Args:
        path: rows with the keys input, output, topic, cat [rarity, region] and annotations.
        unit: what has a label: the sentences, see `labelled`, or their clauses, see `labelled_clauses`.

    Returns:
        One record per row.

    Raises:
        LovecError: the file is missing, or a line has another form; the message names file and line.
    """
    records: list[Record] = []
    reading = Reading(path)
    for number, row in read_rows(path):
        reading.number = number
        records += read_records_of(
            row,
            f"FActScore's labelled data, which has {', '.join(labelled.keys)}",
            labelled if unit == "sentence" else labelled_clauses,
            reading,
        )
    return records


def fact_places(sentence: str, facts: Sequence[str], topic: str) -> list[tuple[int, int] | None]:
    """Return where a sentence states its atomic facts: start and end, in characters.

    A fact stands in the shortest part of the sentence that holds all of the fact's new words. Its words are those that
    the sentence has, too, without small words such as "the" and the words of the topic; its new words are those that no
    fact before it has, or all of them where there are none. Of equally short parts it is the first. Words are the same
    where their first six letters are.

    Args:
        sentence: the sentence.
        facts: its atomic facts, in the order of the annotators.
        topic: what the sentence is about.

    Returns:
        None for a fact that has no word in common with the sentence.
    """
    words = [(match.start(), match.end(), _stem(match[0])) for match in _WORD.finditer(sentence)]
    there = {stem for *_, stem in words} - _SMALL - _stems(topic)
    known: set[str] = set()
    places: list[tuple[int, int] | None] = []
    for fact in facts:
        found = _stems(fact) & there
        places.append(_shortest(words, found - known or found))
        known |= found
    return places


def clause_at(clauses: Sequence[tuple[int, int]], place: tuple[int, int]) -> int:
    """Return which clause completes the fact that stands at a place: the one that the place ends in."""
    return next(at for at, (_, end) in enumerate(clauses) if place[1] <= end)


def labelled_clauses(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a biography with the labels of its clauses, each with the place of its sentence.

    A fact belongs to the clause that completes it, see `fact_places`. The factuality of a clause is the supported share
    of its facts, and None if it has none with the label S or NS.
    """
    for record in labelled(row, reading):
        clauses = (
            clause
            for number, annotation in enumerate(row["annotations"] or ())
            for clause in _clauses(annotation, number, row["topic"])
        )
        yield replace(record, sentences=tuple(clauses))


def _clauses(annotation: dict[str, Any], number: int, topic: str) -> Iterator[Sentence]:
    text = annotation["text"].strip()
    found, facts = spans(text), annotation["human-atomic-facts"] or ()
    labels: list[list[dict[str, Any]]] = [[] for _ in found]
    for fact, place in zip(facts, fact_places(text, [fact["text"] for fact in facts], topic), strict=True):
        if place is not None:
            labels[clause_at(found, place)].append(fact)
    for (start, end), own in zip(found, labels, strict=True):
        yield Sentence(text[start:end], factuality=_supported(own), part_of=number)


def _shortest(words: Sequence[tuple[int, int, str]], wanted: set[str]) -> tuple[int, int] | None:
    """Return start and end of the shortest part of a sentence that has all of some words; None for no words."""
    best: tuple[int, int, int] | None = None
    last: dict[str, int] = {}  # the latest place of each word so far
    for at, (_, _, stem) in enumerate(words):
        if stem not in wanted:
            continue
        last[stem] = at
        first = min(last.values())
        if len(last) == len(wanted) and (best is None or at - first < best[0]):
            best = at - first, first, at
    return None if best is None else (words[best[1]][0], words[best[2]][1])


def _stem(word: str) -> str:
    return word.casefold()[:_STEM]


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _WORD.findall(text)}


def labelled_facts(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a biography fact by fact, with the confidences that users have added under the key ``confidence``.

    Where its sentences have confidences, they are read as by `labelled`; otherwise every atomic fact becomes a
    sentence: S is true, NS false, and IR has no label.
    """
    annotations = row["annotations"] or ()
    by_sentence = any("confidence" in annotation for annotation in annotations)
    for record in labelled(row, reading):
        if by_sentence:
            confidences = [confidence_of(annotation.get("confidence")) for annotation in annotations]
            yield _with_scores(record, record.sentences, confidences)
        else:
            facts = [fact for annotation in annotations for fact in annotation["human-atomic-facts"] or ()]
            sentences = tuple(Sentence(fact["text"].strip(), label_of(fact["label"])) for fact in facts)
            record = replace(record, meta={**record.meta, "unit": "claim"})
            yield _with_scores(record, sentences, [confidence_of(fact.get("confidence")) for fact in facts])


@layout("FActScore: labelled data", "input output topic cat annotations", short="factscore", units=labelled_facts)
def labelled(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a biography with the labels of its sentences.

    ``meta`` has topic, rarity, region and abstained; a row whose annotations are null is an abstention, which keeps its
    answer and has no sentences.
    """
    rarity, region = row["cat"]
    annotations = row["annotations"]
    sentences = [Sentence(a["text"].strip(), _supported(a["human-atomic-facts"])) for a in annotations or ()]
    reading.left_out["abstentions"] += annotations is None
    meta = {"topic": row["topic"], "rarity": rarity, "region": region, "abstained": annotations is None}
    question = row["input"].removeprefix("Question:").strip()
    yield reading.record(question, row["output"], sentences, row["topic"], **meta)


def _with_scores(record: Record, sentences: tuple[Sentence, ...], confidences: list[float | None]) -> Record:
    """Return a record with these sentences, and their confidences, which may have any scale, in ``meta["scores"]``."""
    given = any(confidence is not None for confidence in confidences)
    scores = {"scores": {"confidence": confidences}} if given else {}
    return replace(record, sentences=sentences, meta={**record.meta, **scores})


def decided_facts(row: Row, reading: Reading) -> Iterator[Record]:
    """Read decisions as `decided` does, with the confidences that users have added to the facts."""
    for facts, record in zip(_answers(row), decided(row, reading), strict=True):
        yield _with_scores(record, record.sentences, [confidence_of(fact.get("confidence")) for fact in facts or ()])


@layout("FActScore: decisions", "decisions", short="factscore", units=decided_facts)
def decided(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the decisions about one answer or about all answers: every atomic fact becomes a sentence, true or false.

    Where the row has them, ``topic`` and ``output`` are topic and answer; an output of the script has neither.
    """
    for number, facts in enumerate(_answers(row), reading.number):
        topic = str(row.get("topic") or f"answer {number}")
        sentences = [Sentence(fact["atom"].strip(), label_of(fact["is_supported"])) for fact in facts or ()]
        meta = {"topic": topic, "abstained": facts is None, "unit": "claim"}
        yield reading.record(row.get("input") or f"({topic})", row.get("output"), sentences, topic, **meta)
        reading.left_out["abstentions"] += facts is None


def _answers(row: Row) -> list[Any]:
    """Return the facts of each answer; None for an abstention."""
    decisions = row["decisions"]
    return decisions if all(isinstance(facts, list | None) for facts in decisions) else [decisions]


def _supported(facts: Sequence[dict[str, Any]] | None) -> float | None:
    labels = Counter(fact["label"] for fact in facts or ())
    if unknown := labels.keys() - {"S", "NS", "IR"}:
        raise ValueError(f"label {sorted(unknown)[0]!r}, expected S, NS or IR")
    judged = labels["S"] + labels["NS"]
    return labels["S"] / judged if judged else None
