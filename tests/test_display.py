"""Tagged answers as HTML and on a terminal: nothing is said by colour alone, and hostile text is only text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lovec.display import (
    BANDS,
    PALETTES,
    TERMINAL,
    Breaks,
    band,
    describe,
    legend_html,
    notebook_html,
    number,
    one_line,
    page,
    passage_html,
    sentence_text,
    style,
    visible,
)
from lovec.types import Record, Sentence

chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

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


def test_the_legend_gives_the_limits_of_every_band() -> None:
    limits = [float(number) for words in BANDS.values() for number in re.findall(r"0\.\d+", words)]
    assert limits == [0.35, 0.35, 0.65, 0.65] and list(BANDS) == ["low", "middle", "high", "none"]
    for limit, below, above in ((0.35, "low", "middle"), (0.65, "middle", "high")):
        assert (band(limit - 1e-9), band(limit)) == (below, above)
    assert all(f"lv-{name}" in legend_html() and words in legend_html() for name, words in BANDS.items())


def test_the_number_is_the_confidence_and_the_score_stands_in_the_words() -> None:
    assert [number(scored("A.", score)) for score in (0, 7, 10)] == ["0.00", "0.70", "1.00"]
    assert (number(Sentence("A.", confidence=0.638, score=7)), number(Sentence("A."))) == ("0.64", "-")
    assert describe(Sentence("A.", 1.0, 0.638, 3, levels=5)) == "confidence 0.64, stated score 3 of 4, factuality 1.00"
    assert describe(Sentence("A.", confidence=0.5)) == "confidence 0.50"  # a baseline states no score
    assert describe(Sentence("A.", score=2)) == "stated score 2 of 10"
    assert describe(Sentence("A.")) == "no confidence"


def test_a_passage_shows_everything_known_about_its_sentences() -> None:
    html = passage_html(record(scored("One.", 9, 1.0), scored("Two.", 2, 0.25), scored("Three.", None)))
    tags = Reader(html).tags
    spans = [attributes for tag, attributes in tags if "lv-s" in (attributes.get("class") or "").split()]
    assert [span["class"] for span in spans] == ["lv-s lv-high", "lv-s lv-low", "lv-s lv-none"]
    assert [span.get("data-confidence") for span in spans] == ["0.9", "0.2", None]
    assert [span.get("data-factuality") for span in spans] == ["1", "0.25", None]
    assert re.findall(r"<sup[^>]*>([^<]*)</sup>", html) == ["0.90", "0.20", "-"]
    assert re.findall(r'class="lv-tip"> ([^<]*)</span>', html) == [
        "confidence 0.90, stated score 9 of 10, factuality 1.00",
        "confidence 0.20, stated score 2 of 10, factuality 0.25",
        "no confidence",
    ]
    units = [attributes for _, attributes in tags if attributes.get("class") == "lv-u"]
    assert [unit["tabindex"] for unit in units] == ["0"] * 3  # the keyboard reaches each


def test_what_is_left_out_stands_below_and_is_marked_in_the_text() -> None:
    sentences = [scored(text, score) for text, score in
                 (("One.", 2), ("Two.", 9), ("Three.", None), ("Four.", 3), ("Five.", 8), ("Six.", 1))]  # fmt: skip
    answer = "One. Two.\n\nThree. Four. Five. Six."
    html = passage_html(record(*sentences, answer=answer), keeps=lambda s: (s.confidence or 0) > 0.5)
    text, _, below = html.partition("<details")
    assert Reader(html).sentences == ["Two.", "Five.", "One.", "Three.", "Four.", "Six."]
    assert re.findall(r"\[…\]|(?<=>)(?:Two|Five)(?=\.)|<p>", text) == ["<p>", "[…]", "Two", "<p>", "[…]", "Five", "[…]"]
    shown = passage_html(record(*sentences, answer=answer), keeps=lambda s: s.text not in ("Two.", "Three."))
    assert re.findall(r"\[…\]|(?<=>)(?:One|Four)(?=\.)|<p>", shown) == ["<p>", "One", "[…]", "<p>", "Four"]
    assert re.findall(r'aria-label="([^"]*)"', text) == [f"{n} left out" for n in
                                                        ("1 sentence", "2 sentences", "1 sentence")]  # fmt: skip
    assert "<summary>4 sentences left out</summary>" in below
    assert below.count("<li>") == 4 and below.count("lv-tip") == 4  # with their confidence
    assert "lv-left" not in passage_html(record(*sentences), keeps=lambda s: True)
    nothing = passage_html(record(*sentences), keeps=lambda s: False)
    assert "6 sentences left out" in nothing and nothing.count("[…]") == 1
    assert "<details" not in passage_html(record(), keeps=lambda s: False)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str) -> None:
    sentences = (scored(text, 1), scored("Fine.", 8))
    html = passage_html(record(*sentences))
    read = Reader(html)
    assert read.sentences == [visible(text), "Fine."]
    assert [tag for tag, _ in read.tags] == ["div", "p", *["span", "span", "sup", "span"] * 2]
    hostile = Record(text, text, answer=text, sentences=sentences, meta={"problems": [text], "left_out": text})
    inside = set("style p ul li div span sup".split())
    around = set("html head meta title body main h1 article h2 details summary".split())
    for whole, allowed in (
        ("".join(page(text, [text], [hostile], keeps=lambda s: s.score != 1)), inside | around),
        (notebook_html([hostile], [text]), inside),
    ):
        tags = Reader(whole).tags
        assert {tag for tag, _ in tags} == allowed
        attributes = {name for _, named in tags for name in named}
        assert not attributes & {"src", "href", "id"} and not any(name.startswith("on") for name in attributes)
        assert "\x1b" not in whole and "\u202e" not in whole
        assert whole.count("<style>") == 1 and text not in whole.replace(style(), "")


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


@pytest.mark.parametrize(("dropped", "second"), [(None, "u"), ("- four", "gap")])
def test_items_of_inner_lists_are_indented(dropped: str | None, second: str) -> None:
    sentences = [scored(text, 8) for text in ("Two:", "- three", "- four", "- five", "six.")]
    kept = record(*sentences, answer="\n  Two:\n- three\n  - four\n\n\t- five\n six.")
    html = passage_html(kept, keeps=lambda sentence: sentence.text != dropped)
    indented = re.findall(r'(<br>|<p>)\n?<span class="lv-indent">(\s*)</span><span class="lv-(u|gap)"', html)
    assert indented == [("<br>", "  ", second), ("<p>", "\t", "u"), ("<br>", " ", "u")]
    assert "pre-wrap" in re.findall(r"\.lv-indent \{(.*?)\}", style())[0] and html.count("lv-indent") == 3


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
    assert "Sure. \x1b[1m[0.90]" in captured.get()
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


@pytest.mark.parametrize("colours", PALETTES.values(), ids=PALETTES)
def test_contrasts_reach_aa(colours: dict[str, str]) -> None:
    for tint in ("ground", "low", "middle"):
        assert contrast(colours["ink"], colours[tint]) >= 4.5
    assert contrast(colours["faint"], colours["ground"]) >= 4.5
    assert contrast(colours["low-line"], colours["ground"]) >= 4.5  # the number of a sentence of low confidence
    for name in ("low", "middle"):  # an underline is a graphical object
        assert contrast(colours[f"{name}-line"], colours[name]) >= 3


def test_bands_differ_by_more_than_colour() -> None:
    matches = {name: re.search(rf"^\.lovec \.lv-{name} {{([^}}]*)}}", style(), re.MULTILINE) for name in BANDS}
    rules = {name: match[1] for name, match in matches.items() if match}
    assert "solid" in rules["low"] and "dashed" in rules["middle"] and "italic" in rules["none"]
    assert "high" not in rules  # as it is


def test_every_rule_is_bound_to_its_scope_and_every_colour_to_the_theme() -> None:
    css = re.sub(r"@media [^{]*\{", "", style(".x"))
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css)
    assert len(rules) > 25
    for selectors, declarations in rules:
        for selector in re.sub(r"\([^)]*\)", "()", selectors).split(","):
            assert re.match(r"(:is\(\) )?\.x( |$)", selector.strip()), selector
        if "--lv-ground:" in declarations:  # each theme sets every colour
            palette = dict(re.findall(r"--lv-([\w-]+): (#\w{6});", declarations))
            assert palette in [dict(colours) for colours in PALETTES.values()]
        else:
            assert not re.search(r"#\w{3,6}|\brgb", declarations)  # no colour beside the palettes'
            assert set(re.findall(r"var\(--lv-([\w-]+)\)", declarations)) <= PALETTES["light"].keys()
    assert PALETTES["light"].keys() == PALETTES["dark"].keys()


def test_a_page_loads_nothing_and_takes_records_one_by_one() -> None:
    taken = []

    def records() -> Iterator[Record]:
        for at in range(3):
            taken.append(at)
            yield Record(f"doc-{at}", "Who?", answer="A.", sentences=(scored("A.", 4),),
                         meta={"problems": [f"problem {i}" for i in range(7)]})  # fmt: skip

    pieces = page("Title", ["subtitle", "Confidence: <b>"], records())
    head = next(pieces)
    assert not taken and "default-src 'none'" in head and "prefers-color-scheme: dark" in head
    first = next(pieces)
    assert taken == [0] and "problem 4" in first and "problem 5" not in first and "and 2 more" in first
    whole = head + first + "".join(pieces)
    assert "Confidence: &lt;b&gt;" in head
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


# Notebooks


def test_an_output_of_a_notebook_brings_its_own_style() -> None:
    html = notebook_html([record(scored("One.", 2), scored("Two.", 9))], ["Confidence: stated."])
    tags = Reader(html).tags
    assert [tag for tag, _ in tags[:3]] == ["div", "style", "div"] and html.endswith("</div></div>")
    name = tags[0][1]["class"]
    assert name and re.fullmatch(r"lovec-[0-9a-f]{8}", name) and style(f".{name}") in html
    assert "Confidence: stated." in html and "Who?" in html and legend_html() in html
    assert notebook_html([record()]).count(name) == html.count(name)  # the same rules have the same name
    assert ".lovec " not in html and not re.search(r"https?:|@import|url\(|<script|\bid=", html)
    for theme in ('data-jp-theme-light="false"', 'data-vscode-theme-kind$="dark"', "prefers-color-scheme: dark"):
        assert theme in html


def test_an_output_is_bounded_and_says_what_follows() -> None:
    html = notebook_html([record(scored("A" * 30_000, 5))] * 25)
    assert html.count('lv-record"') == 20 and "and 5 more" in html and "(cut: 10000 more characters)" in html
    one = Record("a", "Who?", sentences=(scored("One.", 3),), meta={"left_out": 2})
    assert "2 sentences left out" in notebook_html([one])
    for odd in (True, "2", -1, 0, None):
        meta = {"left_out": odd}
        assert "left out" not in notebook_html([Record("a", "Who?", sentences=(scored("One.", 3),), meta=meta)]), odd


def test_one_line_is_visible_and_short() -> None:
    assert one_line(" a\n b\x1b ", 10) == "a b\ufffd"
    assert (one_line("abcdef", 6), one_line("abcdefg", 6)) == ("abcdef", "abcde…")


# In a browser

HOVERED = """[...document.querySelectorAll('.lv-tip')]
    .filter((e) => getComputedStyle(e).clipPath === 'none').map((e) => e.textContent.trim())"""
PLAIN = "getComputedStyle(document.querySelector('p.plain')).color"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_the_numbers_appear_on_hover_and_on_focus(window: Browser, tmp_path: Path, width: int) -> None:
    sentences = [scored(f"Sentence {at}, which is longer than most.", at % 11) for at in range(30)]
    path = tmp_path / "page.html"
    path.write_text("".join(page("Title", ["A note."], [record(*sentences)], keeps=lambda s: s.score != 4)))
    window.open(path, width=width)
    assert window.value(HOVERED) == [] and not window.problems()
    for at, kept in enumerate([n for n in range(30) if n % 11 != 4]):
        unit = f"document.querySelectorAll('.lv-u')[{at}]"
        window.value(f"{unit}.scrollIntoView()")
        box = f"[...{unit}.getClientRects()].find((box) => box.width > 8)"  # a line may end with its first space
        x, y = window.value(f"(({{x, y, height}}) => [x + 4, y + height / 2])({box})")
        window.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert window.value(HOVERED) == [describe(sentences[kept])]
        left, right, inside = window.value(f"""((tip) => [tip.left, tip.right, innerWidth])
            ({unit}.querySelector('.lv-tip').getBoundingClientRect())""")
        assert 0 <= left < right <= inside
    window.open(path, width=width)  # where a page was scrolled to, the next Tab goes on
    for kept in (0, 1, 2):
        for kind in ("keyDown", "keyUp"):
            window.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        assert window.value(HOVERED) == [describe(sentences[kept])]
    assert window.value("document.documentElement.scrollWidth") <= width


@chromium
def test_outputs_follow_the_theme_of_the_notebook_and_leave_the_rest_alone(window: Browser, tmp_path: Path) -> None:
    html = notebook_html([record(scored("One.", 2), scored("Two.", 9))])
    other = html.replace("lovec-", "lovec-0").replace(PALETTES["light"]["low"], "#ff0000")  # of another version
    path = tmp_path / "book.html"
    grounds = {
        name: "rgb({}, {}, {})".format(*bytes.fromhex(colours["ground"][1:])) for name, colours in PALETTES.items()
    }
    for attribute, scheme, theme in (
        ("", "light", "light"),
        ("", "dark", "dark"),
        ("data-jp-theme-light=true", "dark", "light"),
        ("data-jp-theme-light=false", "light", "dark"),
        ("data-vscode-theme-kind=vscode-dark", "light", "dark"),
        ("data-vscode-theme-kind=vscode-light", "dark", "light"),
    ):
        path.write_text(f"<!doctype html><body {attribute}><p class=plain>Text.</p>{html}{other}<h1>H</h1>")
        window.open(path, scheme=scheme)
        boxes = window.value(
            "[...document.querySelectorAll('.lv-box')].map((e) => getComputedStyle(e).backgroundColor)"
        )
        assert boxes == [grounds[theme]] * 2, attribute
        tints = window.value(
            "[...document.querySelectorAll('.lv-u .lv-low')].map((e) => getComputedStyle(e).backgroundColor)"
        )
        assert (tints[0] == tints[1]) == (theme == "dark") and (theme == "dark" or tints[1] == "rgb(255, 0, 0)")
        assert window.value(PLAIN) == "rgb(0, 0, 0)"
