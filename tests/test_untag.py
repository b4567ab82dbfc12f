"""Tags in given answers are read, end their sentences, and are gone from the text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.core.imports import gc_paused
from lovec.labelling import SplitStep
from lovec.tagging import text_record
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.text.documents import parts
from lovec.text.sentences import split_sentences
from lovec.text.untag import split_record, untag
from lovec.types import Record, Scale, Sentence


def texts_and_scores(answer: str, tags: TagFormat = DEFAULT_TAGS) -> list[tuple[str, int | None]]:
    record, _ = untag(Record("a", "Q?", answer=answer), tags)
    return [(sentence.text, sentence.score) for sentence in record.sentences]


def tag(score: int | str) -> str:
    return f"<confidence> {score} </confidence>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"One. {tag(9)} Two. {tag(3)}", [("One.", 9), ("Two.", 3)]),
        (f"# Life {tag(1)}\n\nOne. {tag(2)}\n- two {tag(3)}\n- three {tag(4)}", None),
        (f"One. Still one. {tag('0.42')} Two. {tag('1.00')}", [("One. Still one.", None), ("Two.", None)]),
        (f"One. Two. {tag('1.42')} Three. {tag('0.420')}", [("One.", None), ("Two.", None), ("Three.", None)]),
        (f"One. Still one. {tag(9)} Two. Three.", [("One. Still one.", 9), ("Two.", None), ("Three.", None)]),
        (f"Title\n\nOne. Two. {tag(9)}", [("Title", None), ("One. Two.", 9)]),
        (f"One. {tag('x')} Two. {tag(3)}", [("One. x", None), ("Two.", 3)]),
        ("a <confidence>12 monkeys ate. Then slept.", [("a 12 monkeys ate.", None), ("Then slept.", None)]),
        (f"{tag(3)} One.", [("One.", None)]),
        (f"Is it? He won it in 1815. {tag(1)}", [("Is it?", None), ("He won it in 1815.", 1)]),
        (f"https://a.b/c\n1. First. {tag(2)}", [("https://a.b/c", None), ("1. First.", 2)]),
        (f"Early life:\n1. First. {tag(3)}", [("Early life:", None), ("1. First.", 3)]),
        (f"```\na. B\n\nc\n``` {tag(5)}", [("```\na. B\n\nc\n```", 5)]),
    ],
)
def test_boundaries_and_scores_are_those_of_the_tags(answer: str, expected: list[tuple[str, int | None]] | None):
    expected = expected or [("# Life", 1), ("One.", 2), ("- two", 3), ("- three", 4)]
    assert texts_and_scores(answer) == expected


CODE = f"```text\nA is b. {tag(9)}\nA is <confidence> c.\n```"
DOCUMENT = (
    f"# Tags\n\nIt writes tags.\n\n{CODE}\n\nIt was made in 2024. It has two parts.\n\n## More\n\nIt is old. It ends."
)


def test_tags_in_a_block_of_code_are_code():
    record = split_record(Record("a", "Q?", answer=DOCUMENT))
    statements = [s.text for s in record.sentences if s.is_statement]
    assert statements == ["It writes tags.", "It was made in 2024.", "It has two parts.", "It is old.", "It ends."]
    assert [s.text for s in record.sentences if s.kind == "code"] == [CODE] and record.answer == DOCUMENT
    assert split_record(record) == record
    tagged = DOCUMENT
    for score, text in enumerate(statements):
        tagged = tagged.replace(text, f"{text} {tag(score)}")
    again, read = untag(Record("a", "Q?", answer=tagged))
    assert [s.text for s in again.sentences] == [s.text for s in record.sentences] and again.answer == DOCUMENT
    assert [s.score for s in again.sentences if s.is_statement] == [0, 1, 2, 3, 4] and read == 5


def test_tags_around_blocks_of_code_are_tags():
    answer = f"One. {tag(1)}\n```\na {tag(2)}\n``` {tag(3)} Two. {tag(4)}"
    expected = [("One.", 1), (f"```\na {tag(2)}\n```", 3), ("Two.", 4)]
    assert texts_and_scores(answer) == expected
    assert texts_and_scores(f"```\na {tag(2)} Two. {tag(4)}") == [("```\na", 2), ("Two.", 4)]  # nothing closes it


def test_the_examples_of_our_own_readme_hide_no_statement():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    plain = text.replace("<confidence>", "(about").replace("</confidence>", "or so)")
    assert "<confidence>" in text
    found, expected = (split_record(Record("a", "Q?", answer=each)).sentences for each in (text, plain))
    assert [s.kind for s in found] == [s.kind for s in expected]


@pytest.mark.parametrize("unit", [f"```\na {tag(1)}\n```\n", f"``` {tag(1)}\n", "```<confidence>", f"~~~\n{tag(1)}"])
def test_long_texts_of_code_take_linear_time(unit: str):
    def cost(size: int) -> float:
        with gc_paused():  # which looks at all objects of the tests before this one
            begin = time.process_time()
            untag(Record("a", "Q?", answer=unit * (size // len(unit))))
            return time.process_time() - begin

    # Eight times the text: about 8 if linear, 64 if quadratic; below the floor the clock is all noise.
    assert any(cost(60_000) < 24 * max(cost(7_500), 0.02) for _ in range(3))


def test_the_text_stays_and_the_record_says_how_many_tags_were_read():
    record, read = untag(Record("a", "Q?", answer=f"# Life {tag(1)}\n\nOne.{tag(10)}\n- two {tag('?')}"))
    assert (record.answer, read) == ("# Life\n\nOne.\n- two ?", 2)
    assert record.sentences[1] == Sentence("One.", confidence=1.0, score=10)


def test_a_tagged_text_keeps_the_white_space_at_its_ends():
    text = f"\n \n\nOne. {tag(9)}\n\nTwo. {tag(3)} \n"
    assert split_record(Record("a", "Q?", answer=text)).answer == "\n \n\nOne.\n\nTwo. \n"
    assert untag(Record("a", "Q?", answer=text))[0].answer == "One.\n\nTwo."


@pytest.mark.parametrize(
    "thought", ["<think>Hm.\n</think>\n\n", "\n<think>\nOne. <confidence> 9 </confidence></think>\n"]
)
def test_a_tagged_text_keeps_its_thought_as_a_plain_one_does(thought: str):
    plain, tagged = (split_record(Record("a", "Q?", answer=thought + text)) for text in ("One.\n", f"One. {tag(9)}\n"))
    assert tagged.answer == plain.answer == f"{thought}One.\n" and split_record(tagged) == tagged
    assert [sentence.text for sentence in tagged.sentences] == ["One."]


def test_tags_in_given_sentences_become_their_scores():
    sentences = (Sentence(f"One. {tag(9)}", 0.5), Sentence(f"Two. {tag(9)}", score=4), Sentence("Three."))
    record, read = untag(Record("a", "Q?", answer="One.", sentences=(*sentences, Sentence(tag(3)))))
    assert record.sentences == (Sentence("One.", 0.5, 0.9, 9), Sentence("Two.", score=4), Sentence("Three."))
    assert read == 1


def test_what_has_no_tag_is_the_same_record():
    record = Record("a", "Q?", answer="One. Two.")
    assert untag(record) == (record, 0) and untag(record)[0] is record


def test_other_scales():
    tags = TagFormat("<c>", "</c>", Scale(("no", "perhaps", "yes")))
    record, _ = untag(Record("a", "Q?", answer="One. <c> perhaps </c>"), tags)
    assert record.sentences == (Sentence("One.", confidence=0.5, score=1, levels=3),)


PIECES = [
    "One. ",
    "Dr. No",
    "\n\n",
    "\n",
    "- item",
    "# Head",
    "a. B",
    "12 monkeys",
    "```\nx\n```\n",
    "[1] ",
    "He left.",
    " ",
    "Is it? ",
    "Early life:\n",
    "https://a.b/c\n",
    "> A.\n>\n> B.",
]
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def test_a_number_sign_within_a_line_begins_no_heading():
    record, _ = untag(Record("a", "Q?", answer=f"One. {tag(0)} # Head```\nx\n``` {tag(0)}\n"))
    assert [s.text for s in record.sentences] == ["One.", "# Head```\nx\n```"]
    record, _ = untag(Record("a", "Q?", answer=f"One. {tag(0)}\n# Head\nTwo. {tag(0)}\n"))
    assert [(s.text, s.score) for s in record.sentences] == [("One.", 0), ("# Head", None), ("Two.", 0)]
    for rest in ("# HeadIs it?", "# Head\nIs it?", "# He left.\n\n# Head\nTwo."):
        alone, behind = (
            [(s.text, s.kind) for s in split_record(Record("a", "Q?", answer=f"One. {text}{rest}")).sentences]
            for text in ("", f"{tag(5)} ")
        )
        assert behind == alone
    assert texts_and_scores(f"One. {tag(5)} # Head\nIs it? Two. {tag(3)}")[2:] == [("Is it?", None), ("Two.", 3)]
    record, _ = untag(Record("a", "Q?", answer=f"One. {tag(5)} # Head {tag('x')}"))
    assert [(s.text, s.kind) for s in record.sentences] == [("One.", "statement"), ("# Head x", "statement")]


def test_a_title_is_no_part_of_the_paragraph_behind_it():
    record, _ = untag(Record("a", "Q?", answer=f"Dr. No\n\n[1] \n\nOne. {tag(0)}"))
    assert [(s.text, s.kind) for s in record.sentences] == [("Dr. No", "heading"), ("[1] \n\nOne.", "statement")]


@given(ANSWERS, st.data())
def test_reading_tags_undoes_writing_them(answer: str, data: st.DataObject):
    """Whatever is split and tagged, where it stood, comes back: sentences, scores and text, byte for byte."""
    sentences = parts(answer)
    scores = [data.draw(st.integers(0, 10)) if sentence.is_statement else None for sentence in sentences]
    tagged, plain, here = "", "", 0
    for sentence, score in zip(sentences, scores, strict=True):
        start = answer.index(sentence.text, here)
        gap = answer[here:start] or (" " if here else "")  # sentences that touch are parted by a space
        tagged += gap + sentence.text + ("" if score is None else f" {tag(score)}")
        plain += gap + sentence.text
        here = start + len(sentence.text)
    record, read = untag(Record("a", "Q?", answer=tagged + answer[here:]))
    if not any(score is not None for score in scores):
        return
    expected = [(sentence.text, sentence.kind, score) for sentence, score in zip(sentences, scores, strict=True)]
    assert [(s.text, s.kind, s.score) for s in record.sentences] == expected
    assert record.answer == plain.strip()
    assert read == sum(score is not None for score in scores)
    step = SplitStep(split_sentences, lambda text: False)
    labelled, again = (step([Record("a", "Q?", answer=text)])[0].records[0] for text in (plain, tagged))
    assert [sentence.text for sentence in again.sentences] == [sentence.text for sentence in labelled.sentences]
    assert again.answer == plain.strip()


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("वह 1815 में पैदा हुई। उसने नोट्स लिखे।", 2),
        ("She was born. She asked «Why.»", 2),
        ("She was born. She left (in 1815)", 1),
        ("She was born. She left in", 1),
    ],
)
def test_the_last_sentence_of_an_answer_that_was_cut_off_stays_if_it_ends(answer: str, count: int):
    record = Record("a", "Who?", answer=answer, meta={"finished": False})
    [outcome] = SplitStep(split_sentences, lambda text: False)([record])
    assert len(outcome.records[0].sentences) == count


HTML = f"<p>A. {tag(8)}</p><pre>x {tag(9)}</pre><p>B. {tag(3)} <by_source> 0.50 </by_source></p>"


@pytest.mark.parametrize("record", [Record("a", "Q?", answer=HTML), text_record(HTML)])
@pytest.mark.parametrize("thought", ["", "<think>Hm.</think> "])
def test_tags_in_html_are_tags_and_its_markup_is_no_text(record: Record, thought: str):
    record = replace(record, answer=thought + record.answer)
    code = f"```\nx {tag(9)}\n```"
    read = split_record(record)
    assert [(s.text, s.kind, s.score) for s in read.sentences] == [
        ("A.", "statement", 8),
        (code, "code", None),
        ("B.", "statement", 3),
    ]
    assert read.answer == f"{thought}A.\n\n{code}\n\nB." and split_record(read) == read
    [outcome] = SplitStep(split_sentences, lambda text: False)([record])
    assert [(s.text, s.score) for s in outcome.records[0].sentences] == [("A.", 8), ("B.", 3)]


def test_other_tag_words_in_html():
    tags = TagFormat("<c>", "</c>")
    record = text_record("<p>A. <c> 4 </c></p>", tags=tags)
    assert [(s.text, s.score) for s in split_record(record, tags).sentences] == [("A.", 4)]


def test_only_statements_are_labelled_and_the_answer_stays_whole():
    answer = "# Ada\n\n**Early life**\n\nAda was born.\n\n## Work\n\n```\nx = 1. Y\n```\nShe wrote. Who else?"
    [outcome] = SplitStep(split_sentences, lambda text: False)([Record("a", "Who?", answer=answer)])
    [record] = outcome.records
    assert [sentence.text for sentence in record.sentences] == ["Ada was born.", "She wrote."]
    assert record.answer == answer and outcome.counts == {"sentences": 2}
    tagged = Record("a", "Who?", sentences=(Sentence("# Ada", kind="heading"), Sentence("She ran.", 1.0)))
    assert not tagged.labelled and tagged.statements().labelled
    [outcome] = SplitStep(split_sentences, lambda text: False)([Record("a", "Who?", answer="# Ada\n\n## Work")])
    assert outcome.records[0].sentences == ()
