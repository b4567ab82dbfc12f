"""WikiBio: passages that GPT-3 wrote, with a human label for every sentence (Manakul et al. 2023, SelfCheckGPT)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.datasets.rows import Reading, layout
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record, Sentence

HUB = HubDataset("potsawee/wiki_bio_gpt3_hallucination", "evaluation", ("wiki_bio_text", "annotation"))
DOMAIN = "WikiBio"
FACTUALITY = {"accurate": 1.0, "minor_inaccurate": 0.5, "major_inaccurate": 0.0}

# Names of the same column in the original data set and in its replication.
_PASSAGE = ("gpt3_text", "main_passage")
_SENTENCES = ("gpt3_sentences", "main_sentences")
_SAMPLES = ("gpt3_text_samples", "sample_passages")

# "Pattern is Movement is an American ...": the subject ends at the verb before an article.
_SUBJECT = re.compile(r"\W*(.+?),?\s+(?:\(|(?:is|are|was|were) (?:an?|the|one)\b|also known as\b)")


def read_wikibio(path: str | os.PathLike[str] | None = None) -> list[Record]:
    """Return the passages with their labels: accurate is 1, minor_inaccurate 0.5, major_inaccurate 0.

    The data set does not say what a passage is about, so the question names the subject of its first sentence.

    Args:
        path: a copy of the data set or of its replication with fewer passages (.json, .jsonl, .parquet), see
            ``HubDataset.table``; None reads it from the hub.

    Returns:
        Records with the passage of Wikipedia as evidence; ``meta`` has entity, domain and samples (other answers to the
        same question).

    Raises:
        LovecError: the data set is not available or has another form.
    """
    return [_record(row, f"{path or HUB.name}, row {number}") for number, row in enumerate(HUB.table(path), 1)]


@layout("WikiBio", "wiki_bio_text annotation gpt3_sentences|main_sentences")
def passage(row: dict[str, Any], reading: Reading) -> Iterator[Record]:
    """Read a passage with the labels of its sentences, as `read_wikibio` does."""
    yield _record(row, reading.place)


def _record(row: dict[str, Any], place: str) -> Record:
    texts, labels = _column(row, _SENTENCES, place), row["annotation"]
    if len(texts) != len(labels) or not set(labels) <= FACTUALITY.keys():
        raise LovecError(
            f"{place}: the labels of {len(texts)} sentences are {labels}, expected one of {', '.join(FACTUALITY)} per "
            "sentence"
        )
    entity = _subject(texts[0])
    sentences = tuple(Sentence(text.strip(), FACTUALITY[label]) for text, label in zip(texts, labels, strict=True))
    return Record(
        id=f"wikibio-{row['wiki_bio_test_idx']}" if "wiki_bio_test_idx" in row else place,
        question=QUESTION.format(entity=entity),
        evidence=(row["wiki_bio_text"],),
        answer=_column(row, _PASSAGE, place),
        sentences=sentences,
        meta={"entity": entity, "domain": DOMAIN, "samples": list(_column(row, _SAMPLES, place))},
    )


def _column(row: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise LovecError(f"{place}: no column {' or '.join(names)}; expected the columns of {HUB.name}")


def _subject(sentence: str) -> str:
    """Return the subject of a first sentence: the words before "is a" or a bracket."""
    match = _SUBJECT.match(sentence)
    return match[1] if match else sentence.strip()
