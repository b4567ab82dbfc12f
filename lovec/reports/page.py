"""The page of a report: one HTML file with its tables, figures and tagged answers, which needs nothing else.

Whatever a model wrote, and every name from a file, is escaped where it stands: Jinja2 does so by itself, only figures
and passages come as finished markup from functions that escape what they are given. The content security policy lets
no script run but the page's own, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from lovec.metrics.records import confidence_of
from lovec.metrics.risk import thresholds
from lovec.reports.inline import inline_svg
from lovec.reports.passages import CSS, legend_html, passage_html, visible
from lovec.reports.style import short
from lovec.reports.table import Column, Line, Table
from lovec.types import Record

LONGEST_ANSWER, LONGEST_QUESTION, LONGEST_NAME = 4000, 300, 60
"""Characters of an answer, of a question, and of the name of a method that a page shows."""

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page.

    Attributes:
        name: of its file, without ending.
        title: what it shows.
        caption: how to read it.
        svg: what ``write_figure`` wrote.
        themed: whether it takes the page's colours, see ``inline_svg``.
        front: whether it is seen at once, not only when it is opened.
    """

    name: str
    title: str
    caption: str
    svg: str
    themed: bool = True
    front: bool = True


@dataclass(frozen=True, slots=True)
class Answers:
    """Tagged answers of a method.

    Attributes:
        method: its name.
        mode: "iterative" or "free-form".
        records: tagged, those that are shown.
        total: how many answers there are.
        sentences: how many sentences they have.
        kept: for each threshold 0..10, the share of all sentences that it keeps, and the mean factuality of those that
            are labelled; None where there are none. Threshold 0 keeps everything, the others what has a confidence.
    """

    method: str
    mode: str
    records: tuple[Record, ...]
    total: int
    sentences: int
    kept: tuple[tuple[float, float | None], ...]


def answers(method: str, mode: str, records: Sequence[Record], shown: int) -> Answers:
    """What a page says of a method's answers.

    Args:
        method: its name.
        mode: "iterative" or "free-form".
        records: tagged, all that there are.
        shown: how many of them are shown at most, spread evenly over the file.
    """
    step = max(1.0, len(records) / max(shown, 1))
    chosen = [records[int(step * place)] for place in range(min(shown, len(records)))]
    sentences = sum(len(record.sentences) for record in records)
    return Answers(method, mode, tuple(chosen), len(records), sentences, tuple(_kept(records)))


def page(
    title: str,
    sources: Sequence[str],
    sheets: Sequence[Table],
    pictures: Sequence[Picture],
    answers: Sequence[Answers],
    notes: Sequence[str] = (),
    foot: str = "",
) -> str:
    """The HTML of a report; the same input gives the same text.

    Args:
        title: its heading.
        sources: where the figures come from, by name.
        sheets: tables, the main one first.
        pictures: figures.
        answers: tagged answers, a set for every method and mode.
        notes: sentences that stand below the heading.
        foot: a sentence that stands at the end.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"groups": _groups, "blocks": _blocks, "json": json.dumps, "short": _short}
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    drawn = [inline_svg(one.svg, f"f{number}", one.title, one.themed) for number, one in enumerate(pictures)]
    return environment.get_template("page.html.j2").render(
        title=title,
        sources=sources,
        notes=notes,
        sheets=sheets,
        figures=[(one, Markup(svg), width) for one, (svg, width) in zip(pictures, drawn, strict=True)],
        answers=[(one, [(r, _question(r), Markup(_passage(r))) for r in one.records]) for one in answers],
        legend=Markup(legend_html()),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8") + CSS),
        script=Markup(script),
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        foot=foot,
    )


def _short(name: str) -> str:
    return short(name, LONGEST_NAME)


def _passage(record: Record) -> str:
    return passage_html(record, LONGEST_ANSWER)


def _question(record: Record) -> str:
    """The question, with a note of what was cut."""
    text = visible(record.question)
    more = len(text) - LONGEST_QUESTION
    return text if more <= 0 else f"{text[:LONGEST_QUESTION]} (cut: {more} more characters)"


def _kept(records: Sequence[Record]) -> Iterator[tuple[float, float | None]]:
    """What each threshold keeps, see ``Answers``."""
    sentences = [sentence for record in records for sentence in record.sentences]
    labels = [s.factuality for s in sentences if s.factuality is not None]
    yield 1.0, round(sum(labels) / len(labels), 4) if labels else None
    pairs = [(c, s.factuality) for s in sentences if (c := confidence_of(s, "stated")) is not None]
    known = [(c, f) for c, f in pairs if f is not None]
    double = torch.float64
    stated, _ = thresholds(torch.tensor([c for c, _ in pairs], dtype=double), torch.zeros(len(pairs), dtype=double))
    _, true = thresholds(*(torch.tensor([pair[side] for pair in known], dtype=double) for side in (0, 1)))
    for share, mean in zip(stated.tolist()[1:], true.tolist()[1:], strict=True):
        kept = share * len(pairs) / len(sentences) if pairs else 0.0
        yield round(kept, 4), None if math.isnan(mean) else round(mean, 4)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Groups of neighbouring columns, and how many columns each has."""
    return [(name, len(list(run))) for name, run in groupby(column.group for column in columns)]


def _blocks(sheet: Table) -> list[tuple[str, list[Line]]]:
    """Sections of a table and their lines."""
    return [(name, list(run)) for name, run in groupby(sheet.lines, key=lambda line: line.section)]
