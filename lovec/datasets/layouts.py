"""Files of records in any known layout: lovec's own, the authors', those of data sets and of other tools.

A layout is recognised by its keys. Another one is a function from a row to records, and an entry in `LAYOUTS`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from lovec.datasets import authors, checkers, conversations, factscore, triviaqa, uncertainty, wikibio
from lovec.datasets.jsonl import RECORD_KEYS, records_of
from lovec.datasets.rows import Reading, Row, RowReader, read_records_of, read_rows
from lovec.notices import listed
from lovec.types import LovecError, Record

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of rows.

    Attributes:
        name: what messages and the documentation call it.
        keys: the keys that every row has; ``a|b`` is either one, ``*-end`` any key with that end.
        read: yields the records of a row; None for lovec's own rows.
        gives: what is read from it, for the documentation.
        fits: what a row must fulfil beside its keys.
        short: what `lovec score --layout` calls it; "" if it holds no labels.
        units: yields the records of a row at its finest unit, with the scores of all methods in ``meta["scores"]``, for
            `lovec score`; None for ``read``.
        series: names the rows that the same methods have rated, such as those of one model; "" where the rows of a file
            are all alike.
    """

    name: str
    keys: tuple[str, ...]
    read: RowReader | None
    gives: str
    fits: Callable[[Row], bool] = lambda row: True
    short: str = ""
    units: RowReader | None = None
    series: Callable[[Record], str] = lambda record: ""

    def missing(self, row: Row) -> list[str]:
        """Return the keys of the layout that a row does not have."""
        return [key for key in self.keys if not any(_has(row, name) for name in key.split("|"))]


OWN = Layout("lovec", ("question",), None, "everything", conversations.is_own, short="lovec")

LAYOUTS = (
    Layout(
        "VeriScore: claims and verdicts",
        ("question", "response", "abstained", "prompt_source"),
        checkers.veriscore,
        "answers with their claims as sentences: supported 1, any other verdict 0",
        short="veriscore",
    ),
    Layout(
        "TriviaQA",
        ("question", "question_id", "answer"),
        triviaqa.short_answer,
        "short questions with the answers that count as right",
        lambda row: not isinstance(row["answer"], str | None),
    ),
    OWN,
    Layout(
        "the paper's authors: demonstrations",
        ("prompt", "model_output"),
        authors.demonstration,
        "answers with ratings; abstentions and answers without ratings have no sentences, a rating None is no label",
    ),
    Layout(
        "pairs: the paper's authors, TRL",
        ("chosen", "rejected"),
        conversations.preference,
        "labelled answers with wrong scores, where both are one tagged answer; otherwise the chosen answer",
    ),
    Layout(
        "the paper's authors: prompts for GRPO",
        ("entity", "evidence", "base_prediction"),
        authors.online,
        "questions with evidence and an answer",
    ),
    Layout(
        "the paper's authors: outputs",
        ("entity", "prompt", "model_outputs"),
        authors.outputs,
        "one record per answer, with the scores that it states; the first one with the fact-checker's ratings",
    ),
    Layout(
        "FActScore: labelled data",
        factscore.KEYS,
        factscore.labelled,
        "labelled answers",
        short="factscore",
        units=factscore.labelled_facts,
    ),
    Layout(
        "FActScore: decisions",
        ("decisions",),
        factscore.decided,
        "one record per answer, with its atomic facts as sentences: supported 1, otherwise 0",
        short="factscore",
        units=factscore.decided_facts,
    ),
    Layout(
        "SAFE: results",
        ("prompt", "side1_response"),
        checkers.safe,
        "one record per side; the factuality of a sentence is the supported share of its relevant facts",
        short="safe",
        units=checkers.safe_facts,
        series=lambda record: f"side {record.meta.get('side', 1)}",
    ),
    Layout("LongFact: prompts", ("prompt", "canary"), checkers.longfact, "questions"),
    Layout("WikiBio", wikibio.KEYS, wikibio.passage, "labelled answers with evidence"),
    Layout(
        "Factcheck-GPT: claims",
        ("prompt", "response", "claims", "claim_labels"),
        checkers.factbench,
        "answers with their claims as sentences, labelled",
        short="factcheck-gpt",
    ),
    Layout(
        "Factcheck-GPT: sentences",
        ("prompt", "response", "sentences"),
        checkers.factcheck_gpt,
        "answers with labelled sentences",
        checkers.is_factcheck_gpt,
        short="factcheck-gpt",
    ),
    Layout(
        "HaluEval 2.0: claims",
        ("user_query", "chatgpt_response", "chatgpt_fact", "human_judge|chatgpt_judge"),
        checkers.halueval,
        "answers with their claims as sentences, labelled by people or by a model",
        short="halueval",
    ),
    Layout(
        "conformal factuality: claims",
        ("prompt", "claims"),
        uncertainty.subclaims,
        "claims as sentences, with label and stated confidence; all scores in `meta`",
        uncertainty.is_subclaims,
        short="conformal",
    ),
    Layout(
        "uqlm: results",
        ("prompt|prompts", "response|responses"),
        uncertainty.uqlm,
        "answers, or their claims, with a confidence; `response_correct` or `claim_grades` as labels",
        uncertainty.is_uqlm,
        short="uqlm",
    ),
    Layout(
        "LM-Polygraph: uncertainty",
        ("input_text", "generation_text", "uncertainty"),
        uncertainty.polygraph,
        "answers; the uncertainty stays in `meta`, because it is no confidence in [0, 1]",
        short="lm-polygraph",
        units=uncertainty.polygraph_scores,
    ),
    Layout(
        "LM-Polygraph: manager",
        uncertainty.MANAGER_KEYS,
        uncertainty.polygraph_manager,
        "labels without texts, answer by answer; the scores of all estimators in `meta`",
        short="lm-polygraph",
        series=lambda record: str(record.meta.get("unit", "")),
    ),
    Layout(
        "RLCR: outputs",
        ("problem", "answer", "*-confidence_levels"),
        uncertainty.rlcr,
        "one record per model, with confidence and whether it is right",
        short="rlcr",
        series=lambda record: str(record.meta.get("model", "")),
    ),
    Layout(
        "RLCR: numbers",
        ("id",),
        uncertainty.rlcr_numbers,
        "the same without texts",
        uncertainty.is_rlcr_numbers,
        short="rlcr",
        series=lambda record: str(record.meta.get("model", "")),
    ),
    Layout(
        "conformal factuality: numbers",
        ("scores", "true"),
        uncertainty.subclaim_numbers,
        "labels without texts; the scores, which lie outside [0, 1], in `meta`",
        short="conformal",
    ),
    Layout(
        "questions with answers",
        conversations.ANSWERED,
        conversations.answered,
        "answers without labels; texts, or messages of a chat",
    ),
    Layout("prompts", ("prompt",), conversations.asked, "questions; texts, or messages of a chat"),
    Layout("chats", ("messages",), conversations.chat, "the last question with its answer, if it has one"),
)
"""All layouts; a row has the first one that it fits."""


def read_any(
    path: str | os.PathLike[str],
    rows: Iterator[tuple[int, Row]] | None = None,
    units: bool = False,
    layouts: Sequence[Layout] = LAYOUTS,
) -> Iterator[Record]:
    """Read the records of a file one by one, whatever its layout, be it JSON Lines, JSON, CSV or Parquet.

    The first row says whether the file is lovec's own; in other files every row may have another layout. What was read
    from a file that is not lovec's own, and what was left out, is logged at its end, in one line.

    Args:
        path: a file that ``lovec.datasets.rows`` can read, in one of the layouts `LAYOUTS`.
        rows: number and object of every row of the file; default: ``read_rows(path)``.
        units: whether rows are read at their finest unit with all scores, see ``Layout.units``.
        layouts: the layouts that a row may have; it has the first one that it fits.

    Yields:
        Records in file order.

    Raises:
        LovecError: the file is missing, empty or broken, or a row has no known layout; the message names the nearest
            one and what it lacks.
    """
    rows = read_rows(path) if rows is None else rows
    first = next(rows, None)
    if first is None:
        return
    layout = layout_of(first[1], f"{path}:{first[0]}", layouts)
    reading, counts, rows_of = Reading(path), Counter[str](), Counter[str]()
    rows = chain([first], rows)
    for record in records_of(rows, path) if layout is OWN else _foreign(rows, reading, rows_of, units, layouts):
        counts["records"] += 1
        counts["sentences"] += len(record.sentences)
        counts["labels"] += sum(sentence.factuality is not None for sentence in record.sentences)
        counts["confidences"] += sum(value is not None for value in _confidences(record, units))
        yield record
    if layout is OWN:
        rows_of[OWN.name] = counts["records"]
        reading.kept.update(dict.fromkeys(key for key in first[1] if key not in RECORD_KEYS))
    if layout is not OWN or reading.kept:
        kept = f"; kept in meta: {listed(list(reading.kept))}" if reading.kept else ""
        _say(f"{path}: {_summary(rows_of, counts, reading.left_out)}{kept}")


def _confidences(record: Record, units: bool) -> Iterable[float | None]:
    """Return the confidences of a record: those of its sentences, or the scores of the first of several methods."""
    scores = record.meta.get("scores") if units else None
    if isinstance(scores, dict):
        scores = next(iter(scores.values()), ())
    return [sentence.confidence for sentence in record.sentences] if scores is None else scores


def _foreign(
    rows: Iterable[tuple[int, Row]],
    reading: Reading,
    rows_of: Counter[str],
    units: bool,
    layouts: Sequence[Layout],
) -> Iterator[Record]:
    """Yield the records of rows in any layouts but lovec's own, and count the rows of each layout."""
    ids: set[str] = set()
    for number, row in rows:
        reading.number = number
        layout = layout_of(row, reading.place, layouts)
        if layout.read is None:
            raise LovecError(f"{reading.place}: has the layout of lovec's own files, but the rows before have another")
        rows_of[layout.name] += 1
        read = layout.units if units and layout.units is not None else layout.read
        for record in read_records_of(row, layout.name, read, reading):
            if record.id in ids:
                raise LovecError(f"{reading.place}: id {record.id!r} is already that of an earlier row; leave one out")
            ids.add(record.id)
            yield record


def known_layout(row: Row, layouts: Sequence[Layout] = LAYOUTS) -> Layout | None:
    """Return the first of some layouts that a row fits, or None if it fits none."""
    return next((layout for layout in layouts if not layout.missing(row) and layout.fits(row)), None)


def layout_of(row: Row, place: str, layouts: Sequence[Layout] = LAYOUTS) -> Layout:
    """Return the layout of a row.

    Args:
        row: the row.
        place: where it is, for the error message.
        layouts: the layouts that it may have.

    Raises:
        LovecError: it has none; the message names the nearest layout and what the row lacks.
    """
    if (layout := known_layout(row, layouts)) is not None:
        return layout
    nearest = max(layouts, key=lambda layout: _share(layout, row))
    if not _share(nearest, row):
        nearest = OWN if OWN in layouts else layouts[0]
    lacks = ", ".join(map(repr, nearest.missing(row))) or "values of another form"
    keys = ", ".join(map(str, list(row)[:8])) + ", ..." * (len(row) > 8)
    found = f"no known layout has the keys {keys or '(none)'}"
    if layouts is not LAYOUTS:
        found = f"has the keys {keys or '(none)'}, not the layout {layouts[0].short}"
    raise LovecError(f"{place}: {found}; the nearest, {nearest.name}, also needs {lacks}")


def _summary(rows_of: Counter[str], counts: Counter[str], left_out: Counter[str]) -> str:
    """Return in one line what a file held and what was read from it."""
    read = ", ".join(f"{counts[what]} {what}" for what in ("records", "sentences", "labels", "confidences"))
    rest = [f"{count} {what}" for what, count in left_out.items() if count]
    if counts["labels"] and (unlabelled := counts["sentences"] - counts["labels"]):
        rest.append(f"{unlabelled} sentences without a label")
    names = " and ".join(rows_of)
    return f"{rows_of.total()} rows read as {names}: {read}" + (f"; of these {', '.join(rest)}" if rest else "")


def _share(layout: Layout, row: Row) -> float:
    """Return the share of a layout's keys that a row has; 0 where keys alone do not make the layout."""
    return 1 - len(layout.missing(row)) / len(layout.keys) if layout.missing(row) else 0.0


def _has(row: Row, name: str) -> bool:
    return any(key.endswith(name[1:]) for key in row) if name.startswith("*") else name in row


@cache
def _say(line: str) -> None:
    """Log a line once, since a file may be read several times."""
    log.warning("%s", line)
