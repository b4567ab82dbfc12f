"""Tagged answers as HTML: for a page that ``lovec tag`` writes, for the page of a report, and for notebooks.

All text is escaped. There are no scripts, nothing is loaded, and every rule of the style is bound to one class.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from lovec.core.notices import counted
from lovec.core.shown import visible
from lovec.core.templates import load_template
from lovec.display.marks import BANDS, DISAGREEMENT, Breaks, band, describe, disagrees, number, source_number
from lovec.tags import thought_length
from lovec.text.clauses import sentence_confidences
from lovec.types import Keeps, Record, Sentence

PALETTES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "ground": "#ffffff",
        "ink": "#1b1b1b",
        "faint": "#595959",
        "rule": "#c8c8c8",
        "low": "#fbe0d0",
        "low-line": "#b34700",
        "middle": "#fdf3c4",
        "middle-line": "#8a6d00",
    },
    "dark": {
        "ground": "#161616",
        "ink": "#ececec",
        "faint": "#b0b0b0",
        "rule": "#4a4a4a",
        "low": "#54270c",
        "low-line": "#ff9d5c",
        "middle": "#443a0a",
        "middle-line": "#e8c84a",
    },
}
"""Colours of light and dark pages, as ``#rrggbb``; the contrasts of text reach WCAG AA (4.5 to 1) on every tint."""

_HERE = Path(__file__).parent
_MOST_PROBLEMS = 5
_BREAKS = ("", " ", "\n", "\n\n")  # the wider, the later
_MOST_RECORDS, _LONGEST = 20, 20_000  # texts of an output of a notebook, and characters of each


@cache
def style(scope: str = ".lovec") -> str:
    """Return the style of what the functions of this file return.

    Colours follow the theme of the notebook where there is one (JupyterLab, VS Code, Colab), and the browser's
    preference elsewhere.

    Args:
        scope: the selector that every rule is bound to; passages and legends must be inside such an element.
    """
    themes = {name: _declarations(colours) for name, colours in PALETTES.items()}
    return load_template(_HERE / "passages.css.j2", filters={}).render(scope=scope, **themes)


def passage_html(record: Record, longest: int | None = None, keeps: Keeps | None = None) -> str:
    """Return a tagged answer as an HTML fragment: a ``div`` of paragraphs, a ``span`` per sentence.

    The ``span`` of a sentence has the class of its band (``lv-low``, ``lv-middle``, ``lv-high``, ``lv-none``), and
    ``data-confidence`` and ``data-factuality`` where they are known. Its confidence follows in a ``sup``, and what
    `describe` says of it appears below where the sentence is hovered over, focused or tapped; screen readers read it
    after the sentence. Sentences that are left out have a mark in the text, and stand in a list below that opens.

    Args:
        record: sentences with confidence; of its answer only the line breaks and indentation are used.
        longest: number of characters after which the text is cut, with a note of how many follow; None cuts nothing.
        keeps: whether a sentence is kept; None keeps all.
    """
    pieces: list[_Piece] = []
    left_out: list[Sentence] = []
    room = sys.maxsize if longest is None else longest
    breaks, gap = Breaks(record.answer[thought_length(record.answer, not record.given) :]), ""
    wholes = _whole_sentences(record)
    is_kept = keeps or (lambda sentence: True)
    for kept, group in groupby(enumerate(record.sentences), lambda numbered: is_kept(numbered[1])):
        run = [(breaks.before(one.text), breaks.indentation, one, wholes.get(at)) for at, one in group]
        if not kept:
            left_out += [sentence for _, _, sentence, _ in run]
            (first, indentation), *others = [part[:2] for part in run]
            if room > 0:
                pieces.append(_Piece(first, indentation, left_out=len(run)))
                gap = max((before for before, _ in others), key=_BREAKS.index, default="")
            continue
        for before, indentation, sentence, whole in run:
            if room > 0:
                before = max(gap, before, key=_BREAKS.index)
                pieces.append(_Piece(before, indentation, sentence, sentence.text[:room], whole))
                gap = ""
            room -= len(sentence.text)
    return str(_macros().passage(pieces, -room, left_out))


class _Piece(NamedTuple):
    """A part of a passage.

    Attributes:
        before: the break before it.
        indentation: the white space between a line break and it.
        sentence: the sentence or clause; None where some are left out.
        text: as much of its text as is shown.
        whole: where it is the last of several clauses, the confidence of their sentence.
        left_out: how many are left out here.
    """

    before: str
    indentation: str
    sentence: Sentence | None = None
    text: str = ""
    whole: float | None = None
    left_out: int = 0


def _whole_sentences(record: Record) -> dict[int, float]:
    """Return the confidence of every sentence that has several clauses, by the place of its last clause."""
    confidences, found = sentence_confidences(record), {}
    places = [sentence.part_of for sentence in record.sentences]
    for at, (before, place, after) in enumerate(zip([None, *places], places, [*places[1:], None], strict=False)):
        if place is not None and before == place != after and (confidence := confidences[place]) is not None:
            found[at] = confidence
    return found


def legend_html(sourced: bool = False) -> str:
    """Return the meaning of the marks of `passage_html` as an HTML list.

    Args:
        sourced: whether sentences have a confidence by source, too.
    """
    return str(_macros().legend(BANDS, DISAGREEMENT if sourced else None))


def page(
    title: str, notes: Sequence[str], records: Iterable[Record], keeps: Keeps | None = None, sourced: bool = False
) -> Iterator[str]:
    """Yield an HTML page of tagged answers piece by piece; the page opens from a file and loads nothing.

    Args:
        title: heading of the page.
        notes: sentences below the heading, for instance what the confidence is.
        records: tagged answers, which are taken one by one.
        keeps: as for `passage_html`.
        sourced: as for `legend_html`.
    """
    macros = _macros()
    yield str(macros.head(title, notes, style(), legend_html(sourced)))
    for record in records:
        yield str(macros.article(record, _problems(record), passage_html(record, keeps=keeps)))
    yield "</main>\n</body>\n</html>\n"


def notebook_html(records: Sequence[Record], notes: Sequence[str] = ()) -> str:
    """Return tagged answers as HTML for the output of a notebook's cell.

    The output brings its style, bound to a class that is named after its content: two outputs with different styles
    (of two versions of lovec in a stored notebook) do not disturb each other. After 20 answers, or 20,000 characters of
    one, a line says how many follow.

    Args:
        records: tagged answers. Where ``meta["left_out"]`` is a number, it is shown.
        notes: sentences above the answers, for instance what the confidence is.
    """
    name = f"lovec-{hashlib.sha256(style().encode()).hexdigest()[:8]}"
    shown = [(record, _problems(record), passage_html(record, _LONGEST)) for record in records[:_MOST_RECORDS]]
    legend = legend_html(any(map(_is_sourced, records)))
    return str(_macros().notebook(name, style(f".{name}"), notes, legend, shown, len(records) - len(shown)))


def _is_sourced(record: Record) -> bool:
    """Return whether a sentence of a record has a confidence by source."""
    return any(sentence.by_source is not None for sentence in record.sentences)


def _problems(record: Record) -> list[str]:
    """Return the first problems of a record, and how many more there are."""
    problems = [str(problem) for problem in record.meta.get("problems") or ()]
    more = len(problems) - _MOST_PROBLEMS
    return [*problems[:_MOST_PROBLEMS], f"and {more} more"] if more > 0 else problems


def _declarations(colours: Mapping[str, str]) -> str:
    """Return colours as declarations of CSS variables."""
    return " ".join(f"--lv-{name}: {colour};" for name, colour in colours.items())


@cache
def _macros() -> Any:
    """Return the macros of passages.html.j2, which escape all text in elements and attributes alike."""
    functions = (band, number, source_number, disagrees, describe, visible, counted)
    filters = {function.__name__: function for function in functions}
    return load_template(_HERE / "passages.html.j2", autoescape=True, filters=filters).module
