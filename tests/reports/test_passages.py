"""Tagged answers as HTML and on a terminal: nothing is said by colour alone, and hostile text is only text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lovec.reports.passages import (
    BANDS,
    CSS,
    TERMINAL,
    Breaks,
    band,
    band_scores,
    legend_html,
    number,
    page,
    passage_html,
    sentence_text,
    visible,
)
from lovec.types import Record, Sentence

HOSTILE = [
    "</p></div></body><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "<img src=x onerror=alert(1)>&amp;<!--",
    "]]></style><style>*{display:none}",
    "\x1b[2J\x1b]0;owned\x07 and \u202egnihtemos\u2066",
]


class Reader(HTMLParser):
    """Elements with their classes, and the text of every span that is a sentence."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sentences: list[str] = []
        self._open: list[str] = []
        self._named = False
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._named = named = "lv-s" in (dict(attrs).get("class") or "").split()
        if tag not in ("meta", "br"):
            self._open.append(tag)
        if named:
            self.sentences.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._named = False

    def handle_data(self, data: str) -> None:
        if self._named:
            self.sentences[-1] += data


def scored(text: str, score: int | None, factuality: float | None = None) -> Sentence:
    return Sentence(text, factuality, None if score is None else score / 10, score)


def record(*sentences: Sentence, answer: str | None = None) -> Record:
    return Record("a", "Who?", answer=" ".join(s.text for s in sentences) if answer is None else answer,
                  sentences=sentences)  # fmt: skip


def test_bands_follow_the_nearest_score() -> None:
    names = ["low"] * 4 + ["middle"] * 3 + ["high"] * 4
    assert [band(score / 10) for score in range(11)] == names
    assert (band(None), band(0.349), band(0.351), band(0.649), band(0.651)) == (
        "none",
        "low",
        "middle",
        "middle",
        "high",
    )


def test_the_legend_gives_the_scores_of_every_band() -> None:
    assert [band_scores(name) for name in BANDS] == ["0 to 3", "4 to 6", "7 to 10", "no score"]
    assert [band_scores(name, levels=5) for name in BANDS] == ["0 to 1", "2", "3 to 4", "no score"]
    assert [band_scores(name, levels=2) for name in BANDS] == ["0", "", "1", "no score"]
    assert "middle" not in legend_html(levels=2) and "0 to 4" in legend_html(levels=5)


def test_numbers_are_scores_or_lie_between_them() -> None:
    assert [number(scored("A.", score)) for score in (0, 3, 7, 10)] == ["0", "3", "7", "10"]
    assert number(Sentence("A.", confidence=0.64, score=7)) == "6.4"
    assert number(Sentence("A.")) == "-"
    assert number(Sentence("A.", confidence=0.75, score=3, levels=5)) == "3"


def test_a_title_names_the_highest_score_of_the_scale() -> None:
    html = passage_html(record(Sentence("One.", confidence=0.75, score=3, levels=5)))
    assert 'title="score 3 of 4, confidence 0.75"' in html and ">3</sup>" in html


def test_a_passage_shows_everything_known_about_its_sentences() -> None:
    html = passage_html(record(scored("One.", 9, 1.0), scored("Two.", 2, 0.25), scored("Three.", None)))
    spans = [attributes for tag, attributes in Reader(html).tags if tag == "span"]
    assert [span["class"] for span in spans] == ["lv-s lv-high", "lv-s lv-low", "lv-s lv-none"]
    assert [span["title"] for span in spans] == [
        "score 9 of 10, confidence 0.90, factuality 1.00",
        "score 2 of 10, confidence 0.20, factuality 0.25",
        "no score",
    ]
    assert [span.get("data-confidence") for span in spans] == ["0.9", "0.2", None]
    assert [span.get("data-factuality") for span in spans] == ["1", "0.25", None]
    assert re.findall(r"<sup[^>]*>([^<]*)</sup>", html) == ["9", "2", "-"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str) -> None:
    sentences = (scored(text, 1), scored("Fine.", 8))
    html = passage_html(record(*sentences))
    read = Reader(html)
    assert read.sentences == [visible(text), "Fine."]
    assert [tag for tag, _ in read.tags] == ["div", "p", "span", "sup", "span", "sup"]
    whole = "".join(page(text, text, [Record(text, text, answer=text, sentences=sentences,
                                             meta={"problems": [text]})]))  # fmt: skip
    allowed = set("html head meta title style body h1 p ul li article h2 div span sup".split())
    tags = Reader(whole).tags
    assert {tag for tag, _ in tags} == allowed
    assert not any(name.startswith("on") or name in ("src", "href") for _, attributes in tags for name in attributes)
    assert "\x1b" not in whole and "\u202e" not in whole


@given(st.lists(st.tuples(st.text(min_size=1), st.sampled_from([None, 0, 5, 10])), max_size=5))
def test_every_text_comes_back(pairs: list[tuple[str, int | None]]) -> None:
    sentences = [scored(text, score) for text, score in pairs]
    shown = [visible(text) for text, _ in pairs]
    assert Reader(passage_html(record(*sentences))).sentences == shown
    assert all(text in sentence_text(s).plain for text, s in zip(shown, sentences, strict=True))


def test_paragraphs_and_lists_are_kept() -> None:
    sentences = [scored(text, 8) for text in ("One.", "Two:", "- three", "Four.", "Five.")]
    kept = record(*sentences, answer="One. Two:\n- three\n \t\nFour.   Five.")
    breaks = Breaks(kept.answer)
    assert [breaks.before(s.text) for s in sentences] == ["", " ", "\n", "\n\n", " "]
    assert passage_html(kept).count("<p>") == 2 and passage_html(kept).count("<br>") == 1


def test_sentences_that_the_answer_does_not_hold_follow_a_space() -> None:
    breaks = Breaks("Some other text.\n\nReally.")
    assert [breaks.before(text) for text in ("Nowhere.", "Really.", "Nor here.")] == ["", "\n\n", " "]
    assert Breaks("").before("First.") == ""


def test_a_long_answer_is_cut_and_says_so() -> None:
    html = passage_html(record(scored("A" * 40, 3), scored("B" * 1_000_000, 9), scored("C.", 1)), longest=100)
    assert Reader(html).sentences[:2] == ["A" * 40, "B" * 60]
    assert "C." not in html and "(cut: 999942 more characters)" in html and len(html) < 1000
    whole = passage_html(record(scored("A" * 40, 3)), longest=40)
    assert "cut:" not in whole and "A" * 40 in whole


def test_terminals_show_low_confidence_without_colour() -> None:
    console = Console(force_terminal=True, color_system="standard", width=200)
    with console.capture() as captured:
        console.print(sentence_text(scored("Unsure.", 1)), sentence_text(scored("Sure.", 9)))
    assert re.search(r"\x1b\[4;\d+mUnsure\.", captured.get())  # underlined, whatever the colour
    assert "Sure. \x1b[1m[9]" in captured.get()
    assert sentence_text(scored(HOSTILE[-1], 2)).plain.isprintable()
    assert set(TERMINAL) == set(BANDS)


# Looks


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb" (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> Iterator[tuple[str, dict[str, str]]]:
    light, dark = (dict(re.findall(r"--lv-([\w-]+): (#\w{6})", part)) for part in CSS.split("@media (prefers", 1))
    assert light.keys() == dark.keys() and len(light) == 6
    yield "#ffffff", light
    yield "#161616", dark


@pytest.mark.parametrize(("ground", "colours"), list(themes()), ids=["light", "dark"])
def test_contrasts_reach_aa(ground: str, colours: dict[str, str]) -> None:
    for background in (ground, colours["low"], colours["middle"]):
        assert contrast(colours["ink"], background) >= 4.5
    assert contrast(colours["faint"], ground) >= 4.5
    assert contrast(colours["low-line"], ground) >= 4.5  # the number of a sentence of low confidence
    for name in ("low", "middle"):  # an underline is a graphical object
        assert contrast(colours[f"{name}-line"], colours[name]) >= 3


def test_bands_differ_by_more_than_colour() -> None:
    matches = {name: re.search(rf"^\.lv-{name} {{([^}}]*)}}", CSS, re.MULTILINE) for name in BANDS}
    rules = {name: match[1] for name, match in matches.items() if match}
    assert "solid" in rules["low"] and "dashed" in rules["middle"] and "italic" in rules["none"]
    assert "high" not in rules  # as it is
    assert all(f"lv-{name}" in legend_html() and band_scores(name) in legend_html() for name in BANDS)


def test_a_page_loads_nothing_and_takes_records_one_by_one() -> None:
    taken = []

    def records() -> Iterator[Record]:
        for at in range(3):
            taken.append(at)
            yield Record(f"doc-{at}", "Who?", answer="A.", sentences=(scored("A.", 4),),
                         meta={"problems": [f"problem {i}" for i in range(7)]})  # fmt: skip

    pieces = page("Title", "subtitle", records())
    head = next(pieces)
    assert not taken and "default-src 'none'" in head and "prefers-color-scheme: dark" in head
    first = next(pieces)
    assert taken == [0] and "problem 4" in first and "problem 5" not in first and "and 2 more" in first
    whole = head + first + "".join(pieces)
    assert whole.endswith("</html>\n") and whole.count("<article>") == 3
    assert not re.search(r"https?:|@import|url\(|<script", whole)


def test_breaks_are_found_whatever_the_white_space_inside_sentences() -> None:
    breaks = Breaks("# Life\r\n\r\nShe was\n born.  She\xa0died.\n\nNot asked for. Asked for.\nEnd.")
    sentences = ["# Life", "She was born.", "She died.", "Asked for.", "Unknown.", "End."]
    assert [breaks.before(sentence) for sentence in sentences] == ["", "\n\n", " ", "\n\n", " ", "\n"]


def test_marks_of_right_to_left_texts_stay() -> None:
    marked = "\u200fשלום\u200e."  # noqa: RUF001
    assert visible(marked) == marked
    assert marked in passage_html(record(scored(marked, 5)))
