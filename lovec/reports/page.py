"""The page of a report: one HTML file with its tables, plots and tagged answers, which needs no other file.

Text from a model and names from files are escaped where they stand: Jinja2 does so by itself, and only plots and
passages come as finished markup from functions that escape their input. The content security policy lets no script run
except the page's own, and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lovec.metrics.records import confidence_of
from lovec.metrics.risk import thresholds
from lovec.passages import legend_html, passage_html, style, visible
from lovec.reports.cells import levels_of
from lovec.reports.inline import inline_svg
from lovec.reports.style import short
from lovec.reports.table import Table
from lovec.reports.texts import HERE
from lovec.templates import load_template
from lovec.types import N_SCORES, Record

LONGEST_ANSWER, LONGEST_QUESTION, LONGEST_NAME = 4000, 300, 60
"""Most characters that a page shows of an answer, of a question and of the name of a method."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot on the page.

    Attributes:
        name: name of its file, without the ending.
        title: what the plot shows.
        caption: how to read it.
        svg: what ``lovec.reports.style.write_plot`` wrote.
        themed: whether it takes the page's colours, see ``inline_svg``.
        front: whether it is visible at once, and not only when it is opened.
    """

    name: str
    title: str
    caption: str
    svg: str
    themed: bool = True
    front: bool = True


@dataclass(frozen=True, slots=True)
class MethodAnswers:
    """The tagged answers of a method in one mode.

    Attributes:
        method: name of the method.
        mode: "iterative" or "free-form".
        records: the tagged answers that are shown.
        total: number of all answers.
        sentences: number of the sentences of all answers.
        kept: per score of the scale as a threshold, the share of all sentences that it keeps, and the mean factuality
            of those that are labelled (None if none is). The threshold 0 keeps every sentence, the others those with
            such a confidence.
    """

    method: str
    mode: str
    records: tuple[Record, ...]
    total: int
    sentences: int
    kept: tuple[tuple[float, float | None], ...]


def method_answers(method: str, mode: str, records: Sequence[Record], limit: int) -> MethodAnswers:
    """Select the answers that a page shows of a method, and compute what thresholds keep of all of them.

    Args:
        method: name of the method.
        mode: "iterative" or "free-form".
        records: all tagged answers.
        limit: most answers to show; they are spread evenly over the file.
    """
    step = max(1.0, len(records) / max(limit, 1))
    selected = [records[int(step * place)] for place in range(min(limit, len(records)))]
    sentences = sum(len(record.sentences) for record in records)
    return MethodAnswers(method, mode, tuple(selected), len(records), sentences, tuple(_kept(records)))


def page(
    title: str,
    sources: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    answers: Sequence[MethodAnswers],
    notes: Sequence[str] = (),
    foot: str = "",
) -> str:
    """Return the HTML of a report; the same input gives the same text.

    Args:
        title: heading of the page.
        sources: names of the runs that the numbers come from.
        tables: tables, the main one first.
        pictures: plots.
        answers: tagged answers, one set per method and mode.
        notes: sentences below the heading.
        foot: a sentence at the end.
    """
    filters = {
        "json": json.dumps,
        "short": lambda name: short(name, LONGEST_NAME),
        "visible": visible,
        "passage": lambda record: passage_html(record, LONGEST_ANSWER),
    }
    script = (HERE / "page.js").read_text(encoding="utf-8")
    levels = len(answers[0].kept) if answers else N_SCORES
    return load_template(HERE / "page.html.j2", autoescape=True, filters=filters).render(
        title=title,
        sources=sources,
        notes=notes,
        tables=tables,
        plots=[(item, inline_svg(item.svg, f"p{at}", item.title, item.themed)) for at, item in enumerate(pictures)],
        answers=answers,
        top=levels - 1,
        legend=legend_html(),
        passage_style=style(),
        script=script,
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        foot=foot,
        longest_question=LONGEST_QUESTION,
    )


def _kept(records: Sequence[Record]) -> Iterator[tuple[float, float | None]]:
    """Yield what each threshold keeps, see ``MethodAnswers``."""
    sentences = [sentence for record in records for sentence in record.sentences]
    labels = [s.factuality for s in sentences if s.factuality is not None]
    yield 1.0, round(sum(labels) / len(labels), 4) if labels else None
    scored = [(c, s.factuality) for s in sentences if (c := confidence_of(s, "stated")) is not None]
    labelled = [(c, f) for c, f in scored if f is not None]
    levels = levels_of(records)
    confidences = torch.tensor([c for c, _ in scored], dtype=torch.float64)
    shares, _ = thresholds(confidences, torch.zeros_like(confidences), levels)
    confidences, factualities = torch.tensor(labelled, dtype=torch.float64).reshape(-1, 2).unbind(1)
    _, means = thresholds(confidences, factualities, levels)
    for share, mean in zip(shares.tolist()[1:], means.tolist()[1:], strict=True):
        kept = share * len(scored) / len(sentences) if scored else 0.0
        yield round(kept, 4), None if math.isnan(mean) else round(mean, 4)
