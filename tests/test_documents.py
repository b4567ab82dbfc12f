"""Documents: what is a statement in plain text, Markdown and HTML, and what is kept; nothing of a text is lost."""

# ruff: noqa: RUF001 - quotation marks and stops of other scripts

from __future__ import annotations

import json
import os
import time
from html import escape
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lovec.core.imports import gc_paused
from lovec.datasets.factscore import read_factscore
from lovec.datasets.world import VARIANTS
from lovec.datasets.world.text import make_corpus
from lovec.datasets.world.things import make_entities
from lovec.tagging import text_record
from lovec.text.documents import _flat, _html, is_html, kept_blocks, kind_of, paragraphs, parts, readable, title_of
from lovec.text.sentences import split_sentences
from lovec.text.untag import split_record

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("LOVEC_SHARED_DATA") or ROOT.parent / "shared" / "data")
FOLDER = Path(__file__).parent / "data" / "documents"
DOCUMENTS = sorted(path for path in FOLDER.iterdir() if path.suffix != ".yaml")
EXPECTED = yaml.safe_load((FOLDER / "expected.yaml").read_text(encoding="utf-8"))


def of_kind(text: str) -> list[list[str]]:
    return [[part.kind, part.text] for part in parts(text)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_statements_and_what_is_kept(path: Path) -> None:
    text = path.read_bytes().decode()
    found = [[kind, " ".join(part.split())] for kind, part in of_kind(readable(text))]
    assert found == EXPECTED[path.name]
    assert is_html(text) == (path.suffix == ".html")


def test_all_documents_have_expectations() -> None:
    assert [path.name for path in DOCUMENTS] == sorted(EXPECTED) and len(DOCUMENTS) >= 30


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("# Life", "heading"), ("###### Life #", "heading"), ("## ", "heading"), ("- # x", "heading"),
        ("Title\n=====", "heading"), ("Title\n---", "heading"), ("#1 hit", "statement"),
        ("####### seven", "statement"), ("It rained.\n---", "statement"), ("**Early life**", "heading"),
        ("**It rained.**", "statement"), ("**It rained.[1]**", "statement"), ("It rained.[1]\n---", "statement"),
        ("- **Early life**", "heading"), ("**Born:** 1815", "statement"),
        ("- [ ] **Early life**", "heading"), ("* [x] https://a.b", "reference"), ("- [X] She read.", "statement"),
        ("```\na\n```", "code"), ("~~~ x", "code"), ("`x` is code.", "statement"), ("<!-- x -->", "code"),
        ("Early Life:", "label"), ("**Early life:**", "label"), ("早年生活：", "label"),
        ("He moved to London in 1815 and wrote:", "statement"),
        ("https://example.org/a?b=c", "reference"), ("Source: www.example.org.", "reference"),
        ("[a](https://example.org)", "reference"), ("<ada@example.org>", "reference"),
        ("See https://example.org for it.", "statement"), ("[^1]: A note.", "reference"),
        ("[x]: https://example.org", "reference"), ("[1] says so.", "statement"),
        ("See also: www.a.org, https://b.org", "reference"), ("[x]: a.md 'A'", "reference"),
        ("Paris is in Germany: [1](https://a.org), [2](https://b.org).", "statement"),
        ("- Ada was born in Bonn: https://a.org/b", "statement"), ("Read it here: https://a.org", "reference"),
        ("[Ada was born in Bonn.](https://a.org)", "statement"), ("[Who was she?](https://a.org)", "reference"),
        ("[a](https://a.org) [She left.](https://b.org)", "statement"), ("![She left.](a.png)", "reference"),
        ("[Note]: Ada was born in 1815, and died.", "statement"), ("[Ada]: Bonn.", "statement"),
        ("Who was she?", "question"), ("*Who was she?*", "question"), ("“Who?”", "question"), ("¿Quién?", "question"),
        ("是吗？", "question"), ("من علمها؟", "question"), ('She asked "Why?"', "statement"),
        ("**Who was *she*?**", "question"), ("(Who was she?)", "question"), ("- _(Who?)_", "question"),
        ("*“Who was she?”*", "question"), ("‘Who’s she?’", "question"), ("Who was *Ada*?", "question"),
        ("She won an Oscar for *Who's Afraid of Virginia Woolf?*", "statement"),
        ("Her best-known film is **What Ever Happened to Baby Jane?**", "statement"),
        ("She starred in _Who's Afraid of Virginia Woolf?_", "statement"),
        ("- Born: 1815 (or 1816?)", "statement"), ("He was born in London (1815?)", "statement"),
        ("*Ada* starred in *Who’s Afraid?*", "statement"), ("**Ada** starred in *Who’s Afraid?*", "statement"),
        ("(Ada) was born in London (1815?)", "statement"), ("[Ada] was born in [1815?]", "statement"),
        ('"Ada" wrote "What Is Life?"', "statement"), ("‘Ada’ wrote ‘Who’s she?’", "statement"),
        ("| 1 | 2 |", "table"), ("| a |\n|---|\n| b |", "table"), ("1.", "mark"), ("***", "mark"), ("…", "mark"),
        ("</ul>", "code"), ("---\na: 1\n---", "data"), ("1815", "statement"), ("A.", "statement"),
    ],
)  # fmt: skip
def test_kinds(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Ada #\n\nx", ("Ada", "its heading")),
        ("# C#\n\nx", ("C#", "its heading")),
        ("# The __snake_case__ *style*\n\nx", ("The snake_case style", "its heading")),
        ("---\na: 1\n---\n\n# Ada\n\nx", ("Ada", "its heading")),
        ("---\na: 1\n---\n\nAda Lovelace\n\nShe wrote.", ("Ada Lovelace", "its first line")),
        ("She wrote.\n\n# Ada\n\nx", None),
        ("वह लेखिका थी। वह\n\nx", None),
        ("她出生于1815年。\n\nx", None),
        ("1. Ada\n\n2. Bob", None),
        ("She wrote <confidence> 5 </confidence>\n\nx", None),
        ("# Ada <confidence> 5 </confidence>\n\nx", None),
        ("She wrote <confidence> 5 </confidence>\n---\n\nx", None),
        ("```\n# x\n```\n", None),
        ("<p>x</p>", None),
        ("<html><title> Ada\n&amp; Bob </title>", ("Ada & Bob", "its title")),
    ],
)
def test_titles(text: str, title: tuple[str, str] | None) -> None:
    assert title_of(text) == title


@pytest.mark.parametrize(
    "line",
    [
        "She was born in 1815.[1]",
        "She was born in 1815. [1]",
        "She was born in 1815.¹",
        'She wrote: "I was born in 1815."',
        "She left (in 1815.)",
    ],
)
def test_a_first_line_that_ends_in_a_stop_and_what_closes_behind_it_is_no_title(line: str) -> None:
    text = f"{line}\n\nShe died in 1852.[2]"
    assert of_kind(text) == [["statement", line], ["statement", "She died in 1852.[2]"]] and title_of(text) is None
    text = "Ada Lovelace [1]\n\nShe died in 1852."
    assert of_kind(text)[0] == ["heading", "Ada Lovelace [1]"]


def test_a_rule_at_the_beginning_begins_front_matter_only_where_keys_follow() -> None:
    assert of_kind("---\n\n### Ada\n\nShe wrote.\n\n---\n\nShe ran.") == [
        ["mark", "---"], ["heading", "### Ada"], ["statement", "She wrote."], ["mark", "---"],
        ["statement", "She ran."],
    ]  # fmt: skip
    assert [kind for kind, _ in of_kind("---\n\nBorn: 1815.\n\n---\n")] == ["mark", "statement", "mark"]
    for keys in ("a: 1", "# of it\ntitle: Ada", '"a": 1', "tags:\n- x"):
        assert of_kind(f"---\n{keys}\n---\nShe ran.") == [["data", f"---\n{keys}\n---"], ["statement", "She ran."]]


def test_markdown_with_html_is_markdown() -> None:
    for text in (
        "<p align=center>x</p>\n\n# Ada\n\nShe wrote.",
        "<div>\n\nShe wrote.\n\n</div>",
        "<Ada> wrote.",
        "a <p>b",
    ):
        assert not is_html(text) and readable(text) == text
    for text in ("<p>a</p>\n\n<p>b</p>", '<?xml version="1.0"?>\n<!-- x --><!DOCTYPE html>', "<HTML>\n\nx"):
        assert is_html(text)


def test_a_table_of_html_in_markdown_is_a_table_and_prose_beside_it_is_none() -> None:
    table = (
        "<table>\n  <tr><th>Year</th><th>Event</th></tr>\n  <tr><td>1815</td><td>born. Then left.</td></tr>\n</table>"
    )
    assert of_kind(f"She wrote.\n\n{table}\nShe ran.\n\n<DIV>\n{table}\n\nIt rained.") == [
        ["statement", "She wrote."], ["table", table], ["statement", "She ran."], ["mark", "<DIV>"], ["table", table],
        ["statement", "It rained."],
    ]  # fmt: skip
    rows = ["<table>\n<tr><td>1815. A</td></tr>", "<tr><td>1816. B</td></tr>\n</table>"]  # a blank line divides it
    assert of_kind("She wrote.\n\n" + "\n\n".join(rows)) == [
        ["statement", "She wrote."],
        *(["table", row] for row in rows),
    ]
    assert kind_of("<div>She wrote.</div>") == "statement"


@pytest.mark.parametrize("before", ["1. Both cities were compared.", "- Rome:", "> Rome is old.", "> - Rome is old."])
@pytest.mark.parametrize("rule", ["|---|---|", "| :-- | --: |", "|---|---", "---|---", "|---|---|\n| | |"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_the_first_row_of_a_table_right_behind_an_item_or_a_quotation_is_one(
    before: str, rule: str, line_break: str
) -> None:
    lines = [before, "| City | People |", rule, "| Rome | 2,800,000 |", "", "Rome is older."]
    (_, first), *table, last = of_kind("\n".join(lines).replace("\n", line_break))
    assert first == before and last == ["statement", "Rome is older."]
    assert len(table) == 2 and {kind for kind, _ in table} == {"table"}


def test_lines_that_are_no_rows_are_no_table() -> None:
    assert kind_of("| Rome | 2 |\nshe wrote", begins_line=False) == "statement"
    assert kind_of("| Rome | 2 |\n---", begins_line=False) == "statement"


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\r\r\n"])
def test_lines_end_as_on_any_system(line_break: str) -> None:
    text = "Ada Lovelace\n\n- She wrote notes\n- It rained\n\n| a |\n|---|\n| b |\n\nShe died\nin 1852.\n"
    record = split_record(text_record(text.replace("\n", line_break)))
    assert record.answer == text and record == split_record(text_record(text))
    assert [[part.kind, part.text] for part in record.sentences] == [
        ["heading", "Ada Lovelace"], ["statement", "- She wrote notes"], ["statement", "- It rained"],
        ["table", "| a |\n|---|\n| b |"], ["statement", "She died\nin 1852."],
    ]  # fmt: skip


def test_an_empty_line_between_paragraphs_of_a_quotation_is_no_part_of_a_sentence() -> None:
    assert of_kind("> One. Two.\n>\n> Three.\n> > \n> > Four.\n\nFive.\n\n```\n>\n```") == [
        ["statement", "> One."], ["statement", "Two."], ["mark", ">"], ["statement", "> Three."], ["mark", "> >"],
        ["statement", "> > Four."], ["statement", "Five."], ["code", "```\n>\n```"],
    ]  # fmt: skip


def test_the_visible_text_of_html_is_read_the_same_again() -> None:
    for path in DOCUMENTS:
        text = readable(path.read_text(encoding="utf-8"))
        assert readable(text) == text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("~~~", [["mark", "\\~~~"]]),
        ("```", [["mark", "\\```"]]),
        ("```python", [["statement", "\\```python"]]),
        ("```x``` prints.", [["statement", "\\```x``` prints."]]),
        ("##", [["mark", "\\##"]]),
        ("# 1 in the charts is <b>Thriller</b>.", [["statement", "\\# 1 in the charts is Thriller."]]),
        ("#1 is Thriller.", [["statement", "#1 is Thriller."]]),
        ("####### seven", [["statement", "####### seven"]]),
        ("1. # of cities: 5.", [["statement", "1. \\# of cities: 5."]]),
        ("&gt; ~~~ is a wave.", [["statement", "> \\~~~ is a wave."]]),
        ("It rained.<br># 1 is Thriller.", [["statement", "It rained."], ["statement", "\\# 1 is Thriller."]]),
        ("It rained<br>---", [["statement", "It rained"], ["mark", "\\---"]]),
        ("It rained<br>=", [["statement", "It rained"], ["mark", "\\="]]),
        ("&gt; It rained<br>&gt; ===", [["statement", "> It rained\n> \\==="]]),
        ("&lt;!-- begins a comment.", [["statement", "\\<!-- begins a comment."]]),
        ("&lt;script&gt; begins a script.", [["statement", "\\<script> begins a script."]]),
        ("&lt;table&gt; begins a table.", [["statement", "\\<table> begins a table."]]),
        ("---<br>Born: in 1815", [["mark", "---"], ["statement", "Born: in 1815"]]),
        ("&lt; 5 came. 1815. - 1 - a", [["statement", "< 5 came."], ["statement", "1815. - 1 - a"]]),
        ("1. Rome is old.<br>- Oslo is<br>&gt; new", [
            ["statement", "1. Rome is old."], ["statement", "- Oslo is"], ["statement", "> new"],
        ]),
        ("| a | b |<br>|---|---|", [["table", "| a | b |\n|---|---|"]]),
        ("---", [["mark", "---"]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("element", ["p", "div", "dd"])
def test_words_of_html_begin_no_block_of_markdown(words: str, expected: list[list[str]], element: str) -> None:
    text = readable(f"<html><body><p>She wrote.</p><{element}>{words}</{element}><p>She died.</p><hr></body></html>")
    assert of_kind(text) == [["statement", "She wrote."], *expected, ["statement", "She died."], ["mark", "---"]]
    assert readable(text) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>---<br>Born: in 1815</p>", "\\---\nBorn: in 1815"),  # no front matter
        ("<p>&lt;p&gt; begins a paragraph.</p>", "\\<p> begins a paragraph."),  # not read as HTML again
        ("<h2># 1</h2>", "## # 1"),
        ("<h2>Waves<br>~~~<br># 1</h2>", "## Waves\n\\~~~\n\\# 1"),
        ("<ul><li># 1 is Thriller.<li>~~~ is a wave.</ul>", "- \\# 1 is Thriller.\n- \\~~~ is a wave."),
        ("<p><b># 1</b></p>", "**# 1**"),
        ("<pre># 1</pre>", "```\n# 1\n```"),
        ("<table><tr><td># 1</table>", "| # 1 |\n| --- |"),
    ],
)
def test_a_backslash_stands_only_where_markdown_would_read_another_block(html: str, text: str) -> None:
    assert readable(f"<html><body>{html}<p>She died.</p></html>") == f"{text}\n\nShe died."


LINES = st.lists(
    st.sampled_from(
        [*"#|>-*`~<=! ", "~~~", "```", "# ", "---", "===", "- ", "1. ", "> ", "<!--", "<script>", "a: 1", "b"]
    ),
    max_size=6,
).map("".join)


@given(st.lists(st.lists(LINES, max_size=3), max_size=4), st.sampled_from(["p", "li", "blockquote"]))
def test_no_words_of_html_begin_code_or_data_or_a_heading(blocks: list[list[str]], element: str) -> None:
    written = ("<br>".join(map(escape, lines)) for lines in blocks)
    text = readable("<html><body>" + "".join(f"<{element}>{words}</{element}>" for words in written) + "<hr></html>")
    assert not {"code", "data", "heading"} & {kind for _, _, kind in kept_blocks(text, begins=False)}
    assert readable(text) == text


@pytest.mark.parametrize("words", ["~~~", "# 1 in the charts is Thriller.", "It rained<br>---", "&lt;!-- is HTML."])
def test_a_tagged_text_of_html_has_its_sentences_again(words: str) -> None:
    record = split_record(text_record(f"<html><body><p>She wrote.</p><p>{words}</p><p>She died.</p></html>"))
    tagged = record.answer
    for part in record.sentences:
        if part.is_statement:
            tagged = tagged.replace(part.text, f"{part.text} <confidence> 5 </confidence>")
    again = split_record(text_record(tagged))
    assert again.answer == record.answer
    assert [(part.kind, part.text) for part in again.sentences] == [(part.kind, part.text) for part in record.sentences]


def test_paragraphs_do_not_end_inside_code_and_know_the_title() -> None:
    text = "Ada Lovelace\n\nShe wrote. It ran.\n\n```\na\n\nb\n```\n\n \n\n## Work\n\nNotes:\n- a\n"
    assert paragraphs(text) == [
        ("Ada Lovelace", "heading"),
        ("She wrote. It ran.", "statement"),
        ("```\na\n\nb\n```", "code"),
        ("## Work", "heading"),
        ("Notes:\n- a", "statement"),
    ]


PIECES = st.sampled_from(
    [
        *"#|>-*_`~[]<>:.?!\n ",
        *(
            "\n\n",
            "# A",
            "---\n",
            "```\n",
            "| a |\n|--|\n",
            "[^1]: x",
            "[x]: y\n",
            "<p>",
            "</p>",
            "<!--",
            "-->",
            "**A**",
        ),
        *("A. B", "    a", "- ", "1. ", "\r\n", "\r", "\x00", "\u2028", "A\n===\n", "$$", "http://a.b", "是吗？"),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


@given(TEXTS)
@example("")
@example("---\n\nA.\n\n***")
def test_parts_are_pieces_of_the_text_and_nothing_is_lost(text: str) -> None:
    here = 0
    for part in parts(text):
        start = text.index(part.text, here)
        assert part.text and not text[here:start].strip()
        here = start + len(part.text)
    assert not text[here:].strip()
    assert all(part.is_statement or part.kind in ("question", "label") or part.text for part in parts(readable(text)))


@pytest.mark.parametrize("beginning", ["", "---\n"])
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a.",
            "\n",
            "a\n\n",
            "# ",
            "```\n",
            "> ",
            ">\n",
            "- a\n",
            "| a ",
            "a|b\n-|-\n",
            "[x]: a\n",
            "[^a]: b\n",
            "---\n",
            "<!--",
        ),
        *(
            "**",
            "**a",
            "?",
            "?\n",
            '"?',
            "http://a,",
            "http://a, ",
            "a@",
            "[a](b)",
            "www.[",
            "<p>a",
            "<p>a</p>\n\n",
            "x\n<table>a</table>\n",
            "<table><td>a\n",
            "<a<",
            "1. ",
        ),
        *("a: ", "<div>\n", "|\n", "A\n===\n"),
        *("<div>", "<ul><li>", "<dl><dd>", "<x>", "<rt>", "<li><dd>", "<b></p>", "<div></p>", "<span></div>"),
    ],
)
def test_long_text_takes_linear_time(unit: str, beginning: str) -> None:
    def cost(size: int) -> float:
        with gc_paused():  # which looks at all objects of the tests before this one
            begin = time.process_time()
            parts(readable(beginning + unit * (size // len(unit))))
            return time.process_time() - begin

    # Eight times the text: about 8 if linear, 64 if quadratic; below the floor the clock is all noise.
    assert any(cost(60_000) < 24 * max(cost(7_500), 0.02) for _ in range(3))


@pytest.mark.parametrize(
    "unit",
    ["<div>", "<ul><li>", "<dl><dd>", "<x>", "<rt>", "<li><dd>", "<svg><tr>", "<b><p>", "<span></div>", "<div/>"],
)
@pytest.mark.parametrize("beginning", ["<html><body>", "<html><body><svg>", "Hello there.\n\n"])
def test_html_is_never_deep_and_its_words_stay(unit: str, beginning: str) -> None:
    text = f"{beginning}{unit * 3000}<script>a</script>word</div>"
    nodes, deepest = [_html(text).body], 0
    while nodes := [child for node in nodes for child in node.iter()]:
        deepest += 1
    assert deepest < 2000 and "</script>word" in _flat(text)
    if "svg" not in beginning + unit:  # drawings are not read
        assert readable(text).rstrip("*").endswith("word") or not is_html(text)


def test_ordinary_html_is_parsed_as_it_is() -> None:
    drawn = "<svg>" + "<path d='M0'/>" * 300 + "</svg>"
    for text in (
        "<div>" * 200 + "x" + "</div>" * 200,
        "<ul>" + "<li>a<p>b" * 120 + "</ul><!-- <div> --><script>'<div>'</script><pre>a < b <i>c</i></pre>",
        "<p>a <b>b<i>c</b>d</i><br><img src='>'>" * 250,
        "<table>" + "<tr><td>a</td><td>b</td></tr>" * 500 + "</table>",
    ):
        assert _flat(text) == text
    assert readable(f"<html><body><div>{drawn}a</div><div>b</div>") == "a\n\nb"
    loose = "".join(f"<li>{at}<p>x" for at in range(300))
    assert readable(f"<html><body><ul>{loose}</ul><div>a</div><div>b</div>").endswith("- 299\n\nx\n\na\n\nb")


def test_texts_of_the_world_have_the_sentences_that_results_rest_on() -> None:
    spec = VARIANTS["world-small"]
    texts = {document.text for document in make_corpus(spec, make_entities(spec))[::10] if not document.instruct}
    assert len(texts) > 300
    for text in texts:
        assert of_kind(text) == [["statement", sentence] for sentence in split_sentences(text)]


@pytest.mark.skipif(not (DATA / "factscore_labeled").exists(), reason="needs factscore_labeled")
@pytest.mark.parametrize("name", ["ChatGPT", "InstructGPT", "PerplexityAI"])
def test_biographies_are_split_as_their_prose_is(name: str) -> None:
    for record in read_factscore(DATA / "factscore_labeled" / f"{name}.jsonl"):
        found = parts(record.answer)
        assert [part.text for part in found] == split_sentences(record.answer)
        assert {part.kind for part in found} <= {"statement", "question"}


def test_a_case_from_an_answer() -> None:
    answer = (
        "# Ada Lovelace\n\n**Early life**\n\nAda was born in 1815.\n\n## Work\n\n```python\nprint(1)\n```\nShe wrote."
    )
    assert [part.text for part in parts(answer) if part.is_statement] == ["Ada was born in 1815.", "She wrote."]
    assert json.dumps(of_kind(answer))
