"""FActScore (Min et al. 2023): biographies with human labels, and the decisions of its scorer.

Annotators split every sentence into atomic facts and labelled each S (supported), NS (not supported) or IR
(irrelevant). The factuality of a sentence is the supported share S / (S + NS), and None if it has no such fact.

``FactScorer.get_score`` returns, and the script writes as ``NAME_factscore_output.json``, an object with ``decisions``:
for every answer the list of its atomic facts as ``{"atom", "is_supported"}``, or null for an abstention. Questions and
answers are not in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lovec.datasets.places import of_clauses
from lovec.datasets.rows import Reading, Row, layout, read_as
from lovec.datasets.values import confidence_of, label_of
from lovec.types import Record, Sentence, Unit


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
    name = f"FActScore's labelled data, which has {', '.join(labelled.keys)}"
    return list(read_as(path, name, labelled if unit == "sentence" else labelled_clauses))


def labelled_clauses(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a biography with the labels of its clauses, each with the place of its sentence.

    A fact belongs to the clause that completes it, see ``lovec.datasets.places.fact_places``. The factuality of a
    clause is the supported share of its facts, and None if it has none with the label S or NS.
    """
    for record in labelled(row, reading):
        clauses = (
            clause
            for number, annotation in enumerate(row["annotations"] or ())
            for clause in _clauses(annotation, number, row["topic"])
        )
        yield replace(record, sentences=tuple(clauses))


def _clauses(annotation: dict[str, Any], number: int, topic: str) -> Iterator[Sentence]:
    facts = [(fact["text"], fact) for fact in annotation["human-atomic-facts"] or ()]
    for text, own in of_clauses(annotation["text"].strip(), facts, topic):
        yield Sentence(text, factuality=_supported(own), part_of=number)


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
            sentences = tuple(Sentence(fact["text"].strip(), label_of(fact.get("label"))) for fact in facts)
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
        sentences = [Sentence(fact["atom"].strip(), label_of(fact.get("is_supported"))) for fact in facts or ()]
        meta = {"topic": topic, "abstained": facts is None, "unit": "claim"}
        yield reading.record(row.get("input") or f"({topic})", row.get("output"), sentences, topic, **meta)
        reading.left_out["abstentions"] += facts is None


def _answers(row: Row) -> list[Any]:
    """Return the facts of each answer; None for an abstention."""
    decisions = row["decisions"]
    return decisions if all(isinstance(facts, list | None) for facts in decisions) else [decisions]


def _supported(facts: Sequence[dict[str, Any]] | None) -> float | None:
    labels = Counter(label for fact in facts or () if (label := fact.get("label")) is not None)
    if unknown := labels.keys() - {"S", "NS", "IR"}:
        raise ValueError(f"label {sorted(unknown)[0]!r}, expected S, NS or IR")
    judged = labels["S"] + labels["NS"]
    return labels["S"] / judged if judged else None
