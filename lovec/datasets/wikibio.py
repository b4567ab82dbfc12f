"""WikiBio passages that GPT-3 wrote, with a human label for every sentence (Manakul et al. 2023, SelfCheckGPT)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record, Sentence

HUB = HubDataset("potsawee/wiki_bio_gpt3_hallucination", "evaluation", ("wiki_bio_text", "annotation"))
DOMAIN = "WikiBio"
FACTUALITY = {"accurate": 1.0, "minor_inaccurate": 0.5, "major_inaccurate": 0.0}

# The same columns under the names of the original and of its replication.
_PASSAGE = ("gpt3_text", "main_passage")
_SENTENCES = ("gpt3_sentences", "main_sentences")
_SAMPLES = ("gpt3_text_samples", "sample_passages")

# "Pattern is Movement is an American ...": the verb that counts is the one before an article.
_SUBJECT = re.compile(r"\W*(.+?),?\s+(?:\(|(?:is|are|was|were) (?:an?|the|one)\b|also known as\b)")


def read_wikibio(path: str | os.PathLike[str] | None = None) -> list[Record]:
    """The passages with their labels: accurate is 1, minor_inaccurate 0.5, major_inaccurate 0.

    Neither file says what a passage is about, so the question names what its first sentence is about.

    Args:
        path: a copy of the data set or of its replication with fewer passages (.json, .jsonl, .parquet), see
            ``HubDataset.table``; None asks the hub.

    Returns:
        Records with the passage of Wikipedia as evidence; ``meta`` holds entity, domain and samples (other answers to
        the same question).

    Raises:
        LovecError: the data set is not there or of another form.
    """
    return [_record(row, f"{path or HUB.name}, row {number}") for number, row in enumerate(HUB.table(path), 1)]


def is_wikibio(row: Mapping[str, Any]) -> bool:
    """Whether an object has the columns of a passage."""
    return row.keys() >= {*HUB.columns} and any(name in row for name in _SENTENCES)


def _record(row: dict[str, Any], place: str) -> Record:
    texts, labels = _either(row, _SENTENCES, place), row["annotation"]
    if len(texts) != len(labels) or (unknown := set(labels) - FACTUALITY.keys()):
        given = f"{len(labels)} labels for {len(texts)} sentences" if len(texts) != len(labels) else f"{unknown}"
        raise LovecError(f"{place}: {given}, expected one of {', '.join(FACTUALITY)} a sentence")
    entity = _subject(texts[0])
    sentences = tuple(Sentence(text.strip(), FACTUALITY[label]) for text, label in zip(texts, labels, strict=True))
    return Record(
        id=f"wikibio-{row['wiki_bio_test_idx']}" if "wiki_bio_test_idx" in row else place,
        question=QUESTION.format(entity=entity),
        evidence=(row["wiki_bio_text"],),
        answer=_either(row, _PASSAGE, place),
        sentences=sentences,
        meta={"entity": entity, "domain": DOMAIN, "samples": list(_either(row, _SAMPLES, place))},
    )


def _either(row: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise LovecError(f"{place}: no column {' or '.join(names)}; expected the columns of {HUB.name}")


def _subject(sentence: str) -> str:
    """What a first sentence is about: the words before "is a" or a bracket."""
    found = _SUBJECT.match(sentence)
    return found[1] if found else sentence.strip()
