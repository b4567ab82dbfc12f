"""The page of a report: one HTML file with its tables, plots and tagged answers, which needs no other file.

Links lead to the files of the tables and plots beside it; what is copied is part of the page.

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
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lovec.core.notices import counted
from lovec.core.templates import load_template
from lovec.display import legend_html, passage_html, style, visible
from lovec.metrics.records import confidence_of
from lovec.metrics.risk import thresholds
from lovec.reports.cells import levels_of
from lovec.reports.inline import inline_svg
from lovec.reports.lead import Lead
from lovec.reports.shown import MethodAnswers, Picture, Place
from lovec.reports.style import short
from lovec.reports.table import Table, csv_text, latex, real_minus
from lovec.reports.texts import HERE, MODE_TITLES, READOUT_TITLES, explained
from lovec.types import N_SCORES, Record

LONGEST_ANSWER, LONGEST_QUESTION, LONGEST_NAME = 4000, 300, 60
"""Most characters that a page shows of an answer, of a question and of the name of a method."""


_DIMENSIONS = ("Mode", "Domain", "Readout")


def method_answers(
    method: str,
    mode: str,
    records: Sequence[Record],
    limit: int,
    readout: str = "stated",
    wanted: Sequence[str] = (),
) -> MethodAnswers:
    """Select the answers that a page shows of a method, and compute what thresholds keep of all of them.

    The first ones are those to the questions that are wanted. Where there is none, the first one is mixed: of all
    answers, its confidences and its labels both have the widest range (whether they agree or not). The others are
    spread evenly over the file.

    Args:
        method: name of the method.
        mode: "iterative" or "free-form".
        records: all tagged answers.
        limit: most answers to show.
        readout: what the confidences are. Those of a "deployed" file are what the file holds.
        wanted: ids of the questions that are shown of other methods.
    """
    read = "mean" if readout == "mean" else "stated"
    step = max(1.0, len(records) / max(limit, 1))
    spread = [int(step * place) for place in range(min(limit, len(records)))]
    mixed = max(range(len(records)), key=lambda at: _mixture(records[at], read), default=0)
    by_id = {record.id: place for place, record in enumerate(records)}
    first = [by_id[name] for name in wanted if name in by_id]
    if not first and spread and _mixture(records[mixed], read) > 0:
        first = [mixed]
    places = [*dict.fromkeys((*first, *spread))][:limit]
    selected = tuple(_read(records[place], read) for place in places)
    sentences = sum(len(record.sentences) for record in records)
    return MethodAnswers(method, mode, selected, len(records), sentences, readout, tuple(_kept(records, read)))


def page(
    title: str,
    sources: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    answers: Sequence[MethodAnswers],
    notes: Sequence[str] = (),
    foot: str = "",
    *,
    lead: Lead | None = None,
    provenance: Sequence[tuple[str, str]] = (),
    places: Sequence[Place] = (),
    written: Sequence[Table] = (),
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
        lead: what is said first, and which answers and place are opened; None opens the first ones.
        provenance: names and values of where the numbers come from.
        places: results by mode, domain and readout.
        written: tables as their files hold them, where ``tables`` show them in another arrangement.
    """
    as_written = {table.name: table for table in (*tables, *written)} | {p.table.name: p.table for p in places}
    filters = {
        "counted": counted,
        "json": lambda value: json.dumps(_all_visible(value)),
        "short": partial(short, longest=LONGEST_NAME),
        "visible": visible,
        "minus": real_minus,
        "passage": lambda record: passage_html(record, LONGEST_ANSWER),
        "csv": lambda table: visible(csv_text(as_written[table.name])),
        "latex": lambda table: visible(latex(as_written[table.name])),
        "inline": lambda picture: inline_svg(
            picture.svg, picture.name.replace(".", "-"), picture.title, picture.themed
        ),
    }
    script = (HERE / "page.js").read_text(encoding="utf-8")
    levels = len(answers[0].kept) if answers else N_SCORES
    opened = (lead.mode, lead.places[0].domain, lead.readout) if lead else places[0].keys if places else ()
    return load_template(HERE / "page.html.j2", autoescape=True, filters=filters, finalize=_all_visible).render(
        title=title,
        sources=sources,
        notes=notes,
        lead=lead,
        provenance=provenance,
        places=places,
        dimensions=_dimensions(places),
        terms=explained(_terms(places)),
        opened=opened,
        tables=tables,
        plots=pictures,
        answers=answers,
        top=levels - 1,
        legend=legend_html(),
        passage_style=style(),
        script=script,
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        foot=foot,
        longest_question=LONGEST_QUESTION,
        readouts=READOUT_TITLES,
    )


def _all_visible(value: Any) -> Any:
    """Return a value with ``visible`` texts, those in lists included; finished markup and other values as they are.

    Everything that the template writes passes through here, and so does what the script compares it with.
    """
    if isinstance(value, list | tuple):
        return [_all_visible(item) for item in value]
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _terms(places: Sequence[Place]) -> Iterator[str]:
    """Yield the words of places that need an explanation: headings of columns, modes and readouts."""
    for place in places:
        yield from (column.heading for column in place.table.columns)
    for place in places:
        yield from (place.mode, READOUT_TITLES.get(place.readout, ""))


def _dimensions(places: Sequence[Place]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return what tabs choose: the name of each dimension, with its values and their words."""
    words = {**MODE_TITLES, **READOUT_TITLES}
    values = [dict.fromkeys(place.keys[number] for place in places) for number in range(len(_DIMENSIONS))]
    order = list(READOUT_TITLES)
    values[2] = dict.fromkeys(sorted(values[2], key=lambda name: order.index(name) if name in order else len(order)))
    return [
        (name, [(value, words.get(value, value) if number != 1 else value) for value in values[number]])
        for number, name in enumerate(_DIMENSIONS)
    ]


def _mixture(record: Record, readout: str) -> float:
    """Return the smaller one of two ranges: that of the confidences and that of the labels of an answer."""
    pairs = [(confidence_of(s, readout), s.factuality) for s in record.sentences]
    known = [(c, f) for c, f in pairs if c is not None and f is not None]
    return min((max(values) - min(values) for values in zip(*known, strict=True)), default=0.0)


def _read(record: Record, readout: str) -> Record:
    """Return a record whose confidences are those of a readout."""
    if readout == "stated":
        return record
    sentences = (replace(sentence, confidence=confidence_of(sentence, readout)) for sentence in record.sentences)
    return replace(record, sentences=tuple(sentences))


def _kept(records: Sequence[Record], readout: str) -> Iterator[tuple[float, float | None]]:
    """Yield what each threshold keeps, see ``MethodAnswers``."""
    sentences = [sentence for record in records for sentence in record.sentences]
    labels = [s.factuality for s in sentences if s.factuality is not None]
    yield 1.0, round(sum(labels) / len(labels), 4) if labels else None
    scored = [(c, s.factuality) for s in sentences if (c := confidence_of(s, readout)) is not None]
    labelled = [(c, f) for c, f in scored if f is not None]
    levels = levels_of(records)
    confidences = torch.tensor([c for c, _ in scored], dtype=torch.float64)
    shares, _ = thresholds(confidences, torch.zeros_like(confidences), levels)
    confidences, factualities = torch.tensor(labelled, dtype=torch.float64).reshape(-1, 2).unbind(1)
    _, means = thresholds(confidences, factualities, levels)
    for share, mean in zip(shares.tolist()[1:], means.tolist()[1:], strict=True):
        kept = share * len(scored) / len(sentences) if scored else 0.0
        yield round(kept, 4), None if math.isnan(mean) else round(mean, 4)
