"""Scored sentences of the tests of benchmarks/real.py, in files that are small enough to be kept with the results.

Intervals are computed from them, so that seeds may be run on different machines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common import write_json

from lovec.datasets.jsonl import read_records
from lovec.metrics.records import confidence_of
from lovec.metrics.results import read_results
from lovec.types import Record

VARIANT = "isotonic"
"""The map whose rows are kept."""
_DIGITS = 4  # of stored confidences: a Brier score changes by less than 1e-4


class Place(NamedTuple):
    """What a table has a row for."""

    method: str
    domain: str
    mode: str
    readout: str


class Answer(NamedTuple):
    """What is known of an answer, whichever method scores it.

    Attributes:
        drawn: what is drawn again with all its sentences: a person with all answers about it, or an answer.
        question: the question.
        inhabitants: of the city that it is about; None for other things.
        claims: what each sentence claims; None where that is not known.
        truth: factuality of each sentence, in [0, 1]; None where it has no label.
    """

    drawn: str
    question: str
    inhabitants: float | None
    claims: tuple[str | None, ...]
    truth: tuple[float | None, ...]

    @classmethod
    def of(cls, record: Record) -> Answer:
        """Return what is known of a labelled answer."""
        return cls(
            str(record.meta.get("person", record.id)),
            record.question,
            None if (found := record.meta.get("inhabitants")) is None else float(found),
            tuple(s.claim for s in record.sentences),
            tuple(s.factuality for s in record.sentences),
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """Answers with the confidences of one method and readout.

    Attributes:
        answers: the answers.
        confidences: those of the sentences of each answer, in [0, 1]; None where a sentence has none.
    """

    answers: tuple[Answer, ...]
    confidences: tuple[tuple[float | None, ...], ...]

    @classmethod
    def of(cls, records: list[Record], readout: str) -> Scored:
        """Return the confidences of tagged and labelled answers, see ``lovec.metrics.records.confidence_of``."""
        found = (tuple(confidence_of(s, readout) for s in record.sentences) for record in records)
        return cls(tuple(map(Answer.of, records)), tuple(found))

    @property
    def pairs(self) -> dict[str, tuple[list[float], list[float]]]:
        """Confidences and factualities of the sentences that have both, by what is drawn again."""
        pairs: dict[str, tuple[list[float], list[float]]] = {}
        for answer, row in zip(self.answers, self.confidences, strict=True):
            confidences, factualities = pairs.setdefault(answer.drawn, ([], []))
            for confidence, factuality in zip(row, answer.truth, strict=True):
                if confidence is not None and factuality is not None:
                    confidences.append(confidence)
                    factualities.append(factuality)
        return pairs


def scored_test(folder: Path) -> dict[Place, Scored]:
    """Return what a test has scored, from the files that it wrote."""
    found = {}
    for row in read_results(folder / "results.json").rows:
        if row.level == "sentence" and row.variant in (None, VARIANT) and row.file and row.kind != "hybrid":
            # A confidence that was mapped has no distribution: it is stored as if it were stated.
            stored = row.readout if row.variant is None and row.readout != "deployed" else "stated"
            records = [record for record in read_records(folder / row.file) if record.domain == row.domain]
            found[Place(row.method, row.domain, row.mode, row.readout)] = Scored.of(records, stored)
    return found


def write_scored(path: Path, scored: Mapping[Place, Scored]) -> None:
    """Write what a test has scored; answers and claims that several methods share are written once."""
    claims: dict[str | None, int] = {}
    texts: dict[tuple[Answer, ...], int] = {}
    rows = []
    for place, found in scored.items():
        for answer in found.answers:
            for claim in answer.claims:
                claims.setdefault(claim, len(claims))
        text = texts.setdefault(found.answers, len(texts))
        rounded = [[c if c is None else round(c, _DIGITS) for c in row] for row in found.confidences]
        rows.append([*place, text, rounded])
    stored = [
        [[*answer[:3], [claims[claim] for claim in answer.claims], answer.truth] for answer in answers]
        for answers in texts
    ]
    write_json(path, {"claims": [*claims], "answers": stored, "confidences": rows})


def read_scored(path: Path) -> dict[Place, Scored]:
    """Return what ``write_scored`` has written."""
    content = json.loads(path.read_text(encoding="utf-8"))
    texts = [
        tuple(
            Answer(*known, tuple(content["claims"][at] for at in claims), tuple(truth))
            for *known, claims, truth in rows
        )
        for rows in content["answers"]
    ]
    return {
        Place(*place): Scored(texts[text], tuple(tuple(row) for row in confidences))
        for *place, text, confidences in content["confidences"]
    }
