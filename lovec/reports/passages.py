"""Tagged answers for people: as HTML and on a terminal, with what the model doubts marked.

Every sentence carries its number, and a doubted one an underline beside its colour, so nothing is said by colour
alone. Text is the model's or a stranger's: it is escaped, and what could steer a terminal or turn a line around is
replaced. Pages link to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from rich.text import Text

from lovec.types import Record, Sentence, to_rating

BANDS: Mapping[str, str] = {"low": "0 to 3", "middle": "4 to 6", "high": "7 to 10", "none": "no score"}
"""Names of the bands of confidence, which are classes of the HTML as well, and the scores they hold."""

TERMINAL: Mapping[str, str] = {"low": "underline bright_red", "middle": "yellow", "high": "none", "none": "dim"}
"""Styles of the bands on a terminal, as rich knows them."""

NUMBER = "bold"
"""Style of a sentence's number on a terminal."""

CSS = """\
.lv-passage, .lv-legend {
  --lv-ink: #1b1b1b; --lv-faint: #595959;
  --lv-low: #fbe0d0; --lv-low-line: #b34700; --lv-middle: #fdf3c4; --lv-middle-line: #8a6d00;
  color: var(--lv-ink); line-height: 1.75; overflow-wrap: anywhere;
}
@media (prefers-color-scheme: dark) {
  .lv-passage, .lv-legend {
    --lv-ink: #ececec; --lv-faint: #b0b0b0;
    --lv-low: #54270c; --lv-low-line: #ff9d5c; --lv-middle: #443a0a; --lv-middle-line: #e8c84a;
  }
}
.lv-passage p { margin: 0 0 .8em; unicode-bidi: plaintext; }
.lv-s { border-radius: .2em; padding: .08em .12em; unicode-bidi: isolate;
  -webkit-box-decoration-break: clone; box-decoration-break: clone;
  text-underline-offset: .22em; text-decoration-skip-ink: none; }
.lv-low { background: var(--lv-low); text-decoration: underline 2.5px solid var(--lv-low-line); }
.lv-middle { background: var(--lv-middle); text-decoration: underline 1.5px dashed var(--lv-middle-line); }
.lv-none { color: var(--lv-faint); font-style: italic; }
.lv-n { color: var(--lv-faint); font: 600 .72em/1 system-ui, sans-serif; font-variant-numeric: tabular-nums;
  margin-left: .2em; vertical-align: .35em; }
.lv-low + .lv-n { color: var(--lv-low-line); }
.lv-cut { color: var(--lv-faint); font-size: .85em; }
.lv-legend { display: flex; flex-wrap: wrap; gap: .3em 1.2em; margin: 0 0 1em; padding: 0; list-style: none;
  font-size: .9em; }
@media print { .lv-s { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
"""
"""Style of `passage_html` and `legend_html`, for light and dark pages; contrasts reach WCAG AA on both."""

_PAGE_CSS = """\
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 Georgia, serif;
  background: #fff; color: #1b1b1b; }
h1, h2, .lv-meta { font-family: system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
h2 { font-size: 1.05rem; margin: 0 0 .2rem; }
article { border-top: 1px solid #c8c8c8; padding: 1rem 0 .2rem; margin-top: 1rem; }
.lv-meta { color: #595959; font-size: .9rem; margin: 0 0 .8rem; }
.lv-problem { font-family: system-ui, sans-serif; font-size: .9rem; border-left: 4px solid #b34700;
  padding: .1rem .7rem; margin: .5rem 0; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #ececec; }
  article { border-color: #4a4a4a; }
  .lv-meta { color: #b0b0b0; }
  .lv-problem { border-color: #ff9d5c; }
}
"""

# Control characters but tab and line break; what changes the direction of text; halves of surrogate pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BLANK = re.compile(r"\n[^\S\n]*\n")
_MOST_PROBLEMS = 5


def band(confidence: float | None) -> str:
    """The name in ``BANDS`` of a confidence in [0, 1], by its nearest score."""
    if confidence is None:
        return "none"
    score = to_rating(confidence)
    return "low" if score <= 3 else "middle" if score <= 6 else "high"


def number(sentence: Sentence) -> str:
    """What is shown as the score of a sentence: "7"; "6.4" where its confidence is finer than a score; or "-"."""
    if sentence.confidence is None:
        return "-"
    tenths = 10 * sentence.confidence
    return f"{tenths:.0f}" if abs(tenths - round(tenths)) < 1e-9 else f"{tenths:.1f}"


class Breaks:
    """What stands between the sentences of an answer: they are asked for in their order.

    Args:
        answer: the raw text; one that does not hold a sentence has a space before it.
    """

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self._end = 0
        self._before = ""

    def before(self, text: str) -> str:
        """What stands before this sentence: nothing, a space, a line break, or two for a blank line."""
        before, self._before = self._before, " "
        start = self._answer.find(text, self._end)
        if start < 0:
            return before
        between = self._answer[self._end : start]
        self._end = start + len(text)
        return before and ("\n\n" if _BLANK.search(between) else "\n" if "\n" in between else " ")


def visible(text: str) -> str:
    """The text with everything replaced that would steer a terminal, turn a line around, or be no character."""
    return _UNSEEN.sub("\ufffd", text)


def passage_html(record: Record, longest: int | None = None) -> str:
    """A tagged answer as an HTML fragment: a ``div`` of paragraphs, a ``span`` a sentence.

    A span has the class of its band (``lv-low``, ``lv-middle``, ``lv-high``, ``lv-none``), a title with its figures,
    and ``data-confidence`` and ``data-factuality`` where these are known; its number follows in a ``sup``.

    Args:
        record: sentences with confidence; of its answer only the line breaks are used.
        longest: characters after which the text is cut, with a note of how many more there are; None cuts nothing.
    """
    pieces: list[str] = []
    left = longest
    breaks = Breaks(record.answer)
    for sentence in record.sentences:
        if left is not None and left <= 0:
            break
        before = breaks.before(sentence.text)
        pieces.append({"\n\n": "</p>\n<p>", "\n": "<br>\n"}.get(before, before))
        pieces.append(_span(sentence, sentence.text if left is None else sentence.text[:left]))
        left = None if left is None else left - len(sentence.text)
    total = sum(len(sentence.text) for sentence in record.sentences)
    if longest is not None and total > longest:
        pieces.append(f' <span class="lv-cut">(cut: {total - longest} more characters)</span>')
    return f'<div class="lv-passage"><p>{"".join(pieces)}</p></div>'


def legend_html() -> str:
    """What the marks of `passage_html` mean, as an HTML list."""
    items = (
        f'<li><span class="lv-s lv-{name}">{name if name != "none" else "unknown"}</span> {scores}</li>'
        for name, scores in BANDS.items()
    )
    return f'<ul class="lv-legend" aria-label="confidence of a sentence, 0 to 10">{"".join(items)}</ul>'


def page(title: str, subtitle: str, records: Iterable[Record]) -> Iterator[str]:
    """A whole HTML page of tagged answers, piece by piece; it opens from a file and loads nothing.

    Args:
        title: heading of the page.
        subtitle: a line below it.
        records: taken one by one.
    """
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{_PAGE_CSS}{CSS}</style>\n</head>\n<body>\n"
        f'<h1>{_text(title)}</h1>\n<p class="lv-meta">{_text(subtitle)}</p>\n{legend_html()}\n'
    )
    for record in records:
        problems = [str(problem) for problem in record.meta.get("problems") or ()]
        told = "".join(f'<p class="lv-problem">{_text(problem)}</p>\n' for problem in problems[:_MOST_PROBLEMS])
        if more := problems[_MOST_PROBLEMS:]:
            told += f'<p class="lv-problem">and {len(more)} more</p>\n'
        yield (
            f'<article>\n<h2>{_text(record.id)}</h2>\n<p class="lv-meta">{_text(record.question)}</p>\n'
            f"{told}{passage_html(record)}\n</article>\n"
        )
    yield "</body>\n</html>\n"


def sentence_text(sentence: Sentence) -> Text:
    """A sentence for a terminal: styled by its band, its number behind it in brackets."""
    style = TERMINAL[band(sentence.confidence)]
    return Text.assemble((visible(sentence.text), style), " ", (f"[{number(sentence)}]", NUMBER))


def passage_text(record: Record) -> Text:
    """A tagged answer for a terminal, its paragraphs kept."""
    breaks = Breaks(record.answer)
    return Text().join(piece for s in record.sentences for piece in (Text(breaks.before(s.text)), sentence_text(s)))


def _span(sentence: Sentence, text: str) -> str:
    known = {"confidence": sentence.confidence, "factuality": sentence.factuality}
    data = "".join(f' data-{name}="{value:.6g}"' for name, value in known.items() if value is not None)
    said = [f"score {sentence.score} of 10"] if sentence.score is not None else []
    said += [f"{name} {value:.2f}" for name, value in known.items() if value is not None]
    title = ", ".join(said) or "no score"
    return (
        f'<span class="lv-s lv-{band(sentence.confidence)}" title="{title}"{data}>{_text(text)}</span>'
        f'<sup class="lv-n">{number(sentence)}</sup>'
    )


def _text(text: str) -> str:
    """Text for HTML, inside elements and quoted attributes alike."""
    return escape(visible(text), quote=True)
