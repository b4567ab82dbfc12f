"""HaluEval 2.0 (Li et al. 2024, repository RUCAIBox/HaluEval-2.0): ChatGPT's answers with claims, and verdicts on them.

The claims are in ``chatgpt_fact``, with a verdict each, of people in ``human_judge`` or of a model in
``chatgpt_judge``: "true", "false" (a model's goes on with a correction) or "unknown". The list of verdicts is empty
where nobody has judged.

A claim is in words of its own. ``lovec.datasets.places`` finds the sentence that states it, and the clause of it that
completes it: so sentences and clauses have labels, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lovec.datasets.names import Ids
from lovec.datasets.places import fact_sentences, of_clauses
from lovec.datasets.rows import Reading, Row, layout, read_as
from lovec.text.documents import parts
from lovec.text.sentences import split_sentences
from lovec.types import LovecError, Record, Sentence, Unit

_BY_PEOPLE = "human-*.json"


def read_halueval(path: str | os.PathLike[str], unit: Unit = "sentence") -> list[Record]:
    """Read answers with the labels of their sentences, or of their clauses.

    Args:
        path: a file such as ``human-Science.json``, or a folder, whose files with verdicts of people are read.
        unit: what has a label: the sentences, each with the true share of the claims that it states, or their clauses,
            each with that of the claims that it completes.

    Returns:
        One record per answer. What states no claim that somebody has judged has no label.

    Raises:
        LovecError: the file is missing, the folder has no such file, or a row has another form.
    """
    folder = Path(path)
    files = sorted(folder.glob(_BY_PEOPLE)) if folder.is_dir() else [folder]
    if not files:
        raise LovecError(f"{path} has no file {_BY_PEOPLE}, expected those of HaluEval 2.0; give another folder")
    ids = Ids()
    read = labelled_sentences if unit == "sentence" else labelled_clauses
    return [record for file in files for record in read_as(file, halueval.name, read, ids)]


@layout("HaluEval 2.0: claims", "user_query chatgpt_response chatgpt_fact human_judge|chatgpt_judge", short="halueval")
def halueval(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its claims: true 1, false 0; an unknown one, and one that nobody has judged, has no label.

    Raises:
        LovecError: there are verdicts, but not one for each claim.
    """
    claims = row["chatgpt_fact"]
    judges = "human_judge" if "human_judge" in row else "chatgpt_judge"
    verdicts = row[judges] or [None] * len(claims)
    if len(verdicts) != len(claims):
        raise LovecError(f"there are {len(claims)} claims and {len(verdicts)} verdicts in {judges}, expected one each")
    sentences = (Sentence(c.strip(), _halueval(v)) for c, v in zip(claims, verdicts, strict=True))
    meta = {"unit": "claim", "judged by": judges.partition("_")[0]}
    yield reading.record(row["user_query"].strip(), row["chatgpt_response"], sentences, **meta)


def labelled_sentences(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the labels of its sentences: the true share of the claims that each states."""
    for record, claims in by_sentence(row, reading):
        sentences = zip(record.sentences, claims, strict=True)
        labelled = (replace(s, factuality=_share([label for _, label in own])) for s, own in sentences)
        yield replace(record, sentences=tuple(labelled))


def labelled_clauses(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the labels of its clauses: the true share of the claims that each completes."""
    for record, claims in by_sentence(row, reading):
        clauses = (
            Sentence(text, _share(labels), part_of=place)
            for place, (sentence, own) in enumerate(zip(record.sentences, claims, strict=True))
            for text, labels in of_clauses(sentence.text, own)
        )
        yield replace(record, sentences=tuple(clauses))


def by_sentence(row: Row, reading: Reading) -> Iterator[tuple[Record, list[list[tuple[str, float | None]]]]]:
    """Read an answer split into sentences, and the claims that each of them states, with their labels."""
    for record in halueval(row, reading):
        meta = {key: value for key, value in record.meta.items() if key != "unit"}
        answer = replace(record, sentences=tuple(parts(record.answer, split_sentences)), meta=meta).statements()
        texts = [sentence.text for sentence in answer.sentences]
        found: list[list[tuple[str, float | None]]] = [[] for _ in texts]
        places = fact_sentences(texts, [claim.text for claim in record.sentences])
        for claim, place in zip(record.sentences, places, strict=True):
            if place is not None:
                found[place].append((claim.text, claim.factuality))
        yield answer, found


def _share(labels: Sequence[float | None]) -> float | None:
    known = [label for label in labels if label is not None]
    return sum(known) / len(known) if known else None


def _halueval(verdict: str | None) -> float | None:
    word = (verdict or "unknown").partition(",")[0].strip().lower()
    if word not in ("true", "false", "unknown"):
        raise LovecError(f"a verdict is {verdict!r}, expected true, false or unknown")
    return None if word == "unknown" else float(word == "true")
