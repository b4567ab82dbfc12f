"""Revised texts: what is doubted is not there any more, or not firmly, and all else is as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lovec.tagging import PHRASES, Revise, Revised, Selection, revise
from lovec.text.clauses import in_clauses, shortened, split_clauses
from lovec.text.untag import split_record
from lovec.types import LovecError, Record, Sentence

PAGE = (
    "# Ada Lovelace\n\nAda wrote notes. She was born in London.\n\n## Work\n\nShe used an engine.\n\n"
    "```python\nx = 1. Y = 2\n\nprint(x)\n```\n\nIt rained.  It was late.\n\n---\n\nEarly life:\n"
    "- She read. She sang.\n- She drew.\n  - A cat sat.\n\nShe left.\n\n> A quote went on. It ended.\n"
)


def keeps(sentence: Sentence) -> bool:
    return not sentence.is_statement or (sentence.confidence is not None and sentence.confidence >= 0.5)


def tagged(text: str, is_doubted: Callable[[str], bool], low: float | None = 0.2, unit: str = "sentence") -> Record:
    """A text whose sentences are doubted or not."""
    record = split_record(Record("x", "Who?", answer=text), unit="clause" if unit == "clause" else "sentence")
    sentences = (
        replace(s, confidence=low if is_doubted(s.text) else 0.9) if s.is_statement else s for s in record.sentences
    )
    return replace(record, sentences=tuple(sentences))


def revised(text: str, *doubted: str, how: Revise = "drop", **options: object) -> str:
    """A text whose sentences with one of some words are doubted, revised."""
    record = tagged(text, lambda s: any(word in s for word in doubted), **options)  # type: ignore[arg-type]
    return revise(record, keeps, how).text


# What is left out


@pytest.mark.parametrize(
    ("doubted", "gone"),
    [
        (("London",), " She was born in London."),
        (("notes", "London"), "Ada wrote notes. She was born in London.\n\n"),
        (("engine",), "She used an engine.\n\n"),
        (("rained",), "It rained.  "),
        (("late",), "  It was late."),
        (("sang",), " She sang."),
        (("read",), "She read. "),  # the marker of the item stays
        (("read", "sang"), "- She read. She sang.\n"),
        (("drew", "cat"), "- She drew.\n  - A cat sat.\n"[:-1] + "\n"),
        (("cat",), "\n  - A cat sat."),
        (("read", "sang", "drew", "cat"), "Early life:\n- She read. She sang.\n- She drew.\n  - A cat sat.\n\n"),
        (("left",), "She left.\n\n"),
        (("quote",), "A quote went on. "),
        (("quote", "ended"), "\n\n> A quote went on. It ended."),
    ],
)
def test_what_is_doubted_goes_with_its_space_and_nothing_else(doubted: Sequence[str], gone: str) -> None:
    assert PAGE.count(gone) == 1
    assert revised(PAGE, *doubted) == PAGE.replace(gone, "")


def test_a_heading_goes_with_its_whole_section_only() -> None:
    text = "# Ada\n\nAda wrote.\n\n## Life\n\nShe was born.\n\n### Death\n\nShe died.\n\n## Work\n\nShe worked.\n"
    assert revised(text, "born") == text.replace("She was born.\n\n", "")  # something is left under "Death"
    assert revised(text, "died") == text.replace("### Death\n\nShe died.\n\n", "")
    assert revised(text, "born", "died") == "# Ada\n\nAda wrote.\n\n## Work\n\nShe worked.\n"
    assert revised(text, "She") == "# Ada\n\nAda wrote.\n"
    assert revised(text, "a", "e", "i", "o") == ""
    assert revised("# Ada\n\n## Empty\n\n## Life\n\nShe was born.\n", "born") == "# Ada\n\n## Empty\n"[:-1] + "\n"
    assert revised("Ada\n===\n\nHer life\n---\n\nShe was born.\n\nWork\n----\n\nShe drew.\n", "born") == (
        "Ada\n===\n\nWork\n----\n\nShe drew.\n"
    )
    code = "## Work\n\nShe used an engine.\n\n```\nx\n```\n"
    assert revised(code, "engine") == "## Work\n\n```\nx\n```\n"
    bold = "**Early life**\n\nShe was born.\n\n**Work**\n\nShe drew.\n"
    assert revised(bold, "born") == "**Work**\n\nShe drew.\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("- One won.\n  - She sang.\n- Two won.\n  - He sang.\n", "- One won.\n  - She sang.\n- […]\n  - He sang.\n"),
        ("1. One won.\n\n2. Two won.\n\n   He sang.\n", "1. One won.\n\n2. […]\n\n   He sang.\n"),
        ("1. One won.\n2. Two won. Two lost.\n   ```\n   x\n   ```\n", "1. One won.\n2. ```\n   x\n   ```\n"),
        ("1. One won.\n\n2. Two won.\n\n   ```\n   x\n   ```\n", "1. One won.\n\n2. […]\n\n   ```\n   x\n   ```\n"),
        ("- Two won.\n  - Two lost.\n    - He sang.\n", "- […]\n  - […]\n    - He sang.\n"),
        ("- Two won.\n  - Two lost. He sang.\n", "- […]\n  - He sang.\n"),
        ("- One won.\n- Two won.\n  > He sang.\n", "- One won.\n- […]\n  > He sang.\n"),
        ("- One won.\n- Two won.\n\n> He sang.\n", "- One won.\n\n> He sang.\n"),  # no part of the item
        ("> - One won.\n> - Two won.\n>   - He sang.\n", "> - One won.\n> - […]\n>   - He sang.\n"),
        ("> - One won.\n> - Two won.\n\n  He sang.\n", "> - One won.\n\n  He sang.\n"),
        ("*\tOne won.\n  *\tTwo won.\n\t* He sang.\n", "*\tOne won.\n  *\t[…]\n\t* He sang.\n"),
        ("- One won.\n  - Two won.\n- He sang.\n", "- One won.\n- He sang.\n"),
        ("- Two won. He sang.\n", "- He sang.\n"),
        ("- Two won.\n  He sang.\n  - She sang.\n", "- He sang.\n  - She sang.\n"),
    ],
)
def test_what_is_below_a_list_item_does_not_move_below_another(text: str, left: str) -> None:
    assert revised(text, "Two") == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("> One. Two.\n>\n> Two.\n>\n> Three.\n", "> One.\n>\n> Three.\n"),
        ("> Two.\n>\n> One.\n", "> One.\n"),
        ("> One.\n>\n> Two.\n\nThree.\n", "> One.\n\nThree.\n"),
        ("One.\n\n> Two.\n>\n> Two.\n\nThree.\n", "One.\n\nThree.\n"),
        ("> One.\n>\n\nTwo. Three.\n>\n", "> One.\n>\n\nThree.\n>\n"),  # not beside what went
    ],
)
def test_no_empty_line_of_a_quotation_stays_where_a_paragraph_went(text: str, left: str) -> None:
    assert revised(text, "Two") == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("# Ada\n\nTwo.\n\n1. **Work**\n   - One.\n", "# Ada\n\n1. **Work**\n   - One.\n"),
        ("Ada\n\nTwo.\n\n- **Work**\n  - One.\n", "Ada\n\n- **Work**\n  - One.\n"),
        ("**Ada**\n\nTwo.\n\n1. **Work**\n   - One.\n", "**Ada**\n\n1. **Work**\n   - One.\n"),
        ("## Life\n\nTwo.\n\n> # Note\n>\n> One.\n", "## Life\n\n> # Note\n>\n> One.\n"),
        ("> ## Life\n>\n> Two.\n>\n> ## Work\n>\n> One.\n", "> ## Work\n>\n> One.\n"),
        ("> Life\n> ---\n>\n> Two.\n>\n> Work\n> ---\n>\n> One.\n", "> Work\n> ---\n>\n> One.\n"),
        ("> ### Note\n>\n> Two.\n\nOne.\n", "One.\n"),
        ("# Ada\n\n1. **School**\n   - Two.\n\n## Death\n\nOne.\n", "# Ada\n\n## Death\n\nOne.\n"),
        ("1. **School**\n   - Two.\n2. **Work**\n   - One.\n", "2. **Work**\n   - One.\n"),
        ("1. **School**\n- Two.\n- Two.\n2. **Work**\n- One.\n", "2. **Work**\n- One.\n"),
        ("1. **School**\n\nTwo.\n\n2. **Work**\n\nOne.\n", "2. **Work**\n\nOne.\n"),
        ("1. **School**\n\nTwo.\n\nOne.\n", "1. **School**\n\nOne.\n"),
        ("1. **School**\n   - Two.\n\nOne.\n", "One.\n"),
        ("- **Work**\n  - Two.\n  - **Early**\n    - One.\n", "- **Work**\n  - **Early**\n    - One.\n"),
        ("- **Work**\n  - **Early**\n    - Two.\n- One.\n", "- One.\n"),
    ],
)
def test_a_heading_in_a_list_or_quotation_ends_no_section_around_it(text: str, left: str) -> None:
    assert revised(text, "Two") == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("- Early life:\n  - Two.\n- One.\n", "- One.\n"),
        ("- Early life:\n  - Two.\n  - One.\n", "- Early life:\n  - One.\n"),
        ("- Early life:\n\n  Two.\n\n  One.\n", "- Early life:\n\n  One.\n"),
        ("- Life:\n  - Early life:\n    - Two.\n  - One.\n", "- Life:\n  - One.\n"),
        ("- Life:\n  - Early life:\n    - Two.\n- One.\n", "- One.\n"),
        ("1. Early life:\n- Two.\n- Two.\n2. Work:\n- One.\n", "2. Work:\n- One.\n"),
        ("- One.\n\n  Early life:\n\n  - Two.\n- One.\n", "- One.\n\n- One.\n"),
        ("Early life:\n\n1. **School**\n   - Two.\n\nOne.\n", "One.\n"),
    ],
)
def test_a_label_in_a_list_goes_with_what_is_below_it(text: str, left: str) -> None:
    assert revised(text, "Two") == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<ul>\n<li>One.</li>\n<li>Two.</li>\n</ul>\n", "<ul>\n<li>One.</li>\n</ul>\n"),
        ("<div>\nOne. Two.\n</div>\n", "<div>\nOne.\n</div>\n"),
        ("<blockquote>Two.\nOne.</blockquote>\n", "<blockquote>\nOne.</blockquote>\n"),
        ("<div><p>Two. One.</p>\n<p>Two.</p></div>\n", "<div><p> One.</p>\n</div>\n"),
        ("<div><p>One.</p>\n<p>Two. Two.</p></div>\n", "<div><p>One.</p>\n</div>\n"),
        ("<div>\n<p>Two.</p>\nTwo.\n</div>\n", ""),
        ("<div>\n<p>Two. One.\n</div>\n", "<div>\nOne.\n</div>\n"),  # nothing ends the paragraph
    ],
)
def test_elements_of_html_in_markdown_keep_both_tags_or_go(text: str, left: str) -> None:
    assert revised(f"Zero.\n\n{text}\nThree.\n", "Two") == "\n".join(["Zero.\n", *filter(None, [left]), "Three.\n"])


def test_a_thousand_elements_in_each_other_are_no_work() -> None:
    deep = "<div>" * 3000 + "Two." + "</div>" * 3000
    assert revised(f"One.\n\n{deep}\n\nThree.\n", "Two") == "One.\n\nThree.\n"
    kept = "<div>" * 3000 + "One. Two." + "</div>" * 3000
    assert revised(f"{kept}\n\nThree.\n", "Two") == f"{kept.replace('Two.', '')}\n\nThree.\n"


def test_html_is_revised_as_its_visible_text() -> None:
    page = "<html><body><h1>Ada</h1><p>Ada wrote. She sang.</p><ul><li>One came. Two went.</li></ul></body></html>"
    assert revised(page) == "# Ada\n\nAda wrote. She sang.\n\n- One came. Two went."
    assert revised(page, "sang", "One") == "# Ada\n\nAda wrote.\n\n- Two went."


def test_a_thought_is_not_passed_on() -> None:
    assert revised("<think>\nShe was born in Rome.\n</think>\nAda wrote. She sang.\n", "sang") == "Ada wrote.\n"


def test_sentences_that_are_not_all_of_the_answer_are_the_text() -> None:
    sentences = (Sentence("Ada wrote.", confidence=0.9), Sentence("She sang.", confidence=0.1))
    for answer in ("", "Ada wrote. Nobody judged this. She sang.", "Ada wrote. She sang. More.", "Ada  wrote."):
        assert revise(Record("x", "Who?", answer=answer, sentences=sentences), keeps, "drop").text == "Ada wrote."
        whole = revise(Record("x", "Who?", answer=answer, sentences=sentences), lambda _: True, "drop")
        assert whole.text == "Ada wrote. She sang."
    spaced = Record("x", "Who?", answer="Ada\nwrote.\n\nShe sang.", sentences=sentences)
    assert revise(spaced, keeps, "drop").text == "Ada\nwrote."


def test_a_sentence_of_an_answer_may_bring_its_heading() -> None:
    answer = "## Life\n\nShe was born. She died."
    sentences = (Sentence("## Life\n\nShe was born.", confidence=0.1), Sentence("She died.", confidence=0.9))
    record = Record("x", "Who?", answer=answer, sentences=sentences)
    assert revise(record, keeps, "drop").text == "## Life\n\nShe died."
    assert revise(record, keeps, "hedge").text == "## Life\n\nThis is doubtful: She was born. She died."
    assert revise(record, keeps, "drop").actions == ("dropped", "kept")


# What is worded as uncertain


@pytest.mark.parametrize(("confidence", "band"), [(0.2, "low"), (0.4, "middle"), (0.8, "high"), (None, "none")])
def test_the_phrase_follows_the_confidence(confidence: float | None, band: str) -> None:
    record = tagged("- Ada wrote. She sang.\n", lambda text: "Ada" in text, confidence)
    found = revise(record, lambda s: s.confidence == 0.9, "hedge")
    assert found.text == f"- {PHRASES[band].format(sentence='Ada wrote.')} She sang.\n"
    assert found.actions == ("hedged", "kept") and found.shown[0].confidence == confidence


@pytest.mark.parametrize(
    "marker",
    ["- ", "12. ", "(3) ", "a) ", "(b) ", "c. ", "B) ", "iv. ", "IV. ", "- [ ] ", "* [x] ", "1. [X] ", "> a) ", "> ",
     ">", ">\n> "],
)  # fmt: skip
def test_every_marker_stays_before_what_is_hedged_or_left_of_its_item(marker: str) -> None:
    text = f"She left.\n\n{marker}Two won. One won.\n"
    assert revised(text, "Two") == text.replace("Two won. ", "")
    assert revised(text, "Two", how="hedge") == text.replace("Two", "This is doubtful: Two")


@pytest.mark.parametrize("name", ["A. Two", "V. Two", "- [x](y) Two", "[ ] Two"])
def test_initials_and_links_are_no_markers(name: str) -> None:
    dash = "- " if name.startswith("-") else ""
    hedged = f"{dash}This is doubtful: {name.removeprefix(dash)} won."
    assert revised(f"One won.\n\n{name} won.\n", "Two", how="hedge") == f"One won.\n\n{hedged}\n"


def test_a_phrase_of_ones_own_stands_around_the_sentence() -> None:
    record = tagged("1. {Ada} wrote.\n", lambda text: True)
    assert revise(record, keeps, "hedge", "It says: “{sentence}”").text == "1. It says: “{Ada} wrote.”\n"


# Clauses


@pytest.mark.parametrize(
    ("sentence", "doubted", "left"),
    [
        ("She was born in Rome and went to Bonn, where she died.", "where", "She was born in Rome and went to Bonn."),
        ("She was born in Rome and went to Bonn, where she died.", "and", "She was born in Rome."),
        ("She was born in Rome and went to Bonn, where she died.", "She", None),
        ("Born in Ulm, Einstein moved to Munich.[3]", "Born", "Einstein moved to Munich.[3]"),
        ("Born in Ulm, he moved to Munich, where he grew up.[3]", "where", "Born in Ulm, he moved to Munich."),
        ("Born in Ulm, the physicist moved to Munich.", "Born", "The physicist moved to Munich."),
        ("Although Ada wrote notes, she won nothing.", "Although", None),  # who is she?
        ("If she was ill, the doctor stayed in London.", "If", None),
        ("It was closed unless she was in London.", "unless", None),
        ("She was either born in London or moved there.", "or", None),
        ("She not only wrote notes but also built an engine.", "but", None),
        ("Ada, who wrote notes, won the medal.", "won", None),
        ("She wrote notes, won a prize, and died in 1852.", "and", None),
        ("She wrote notes; they were long.", "they", "She wrote notes."),
        ("**She wrote notes and died in 1852.**", "and", "**She wrote notes.**"),
        ("When she was five, she moved to the U.S. and died.", "and", "When she was five, she moved to the U.S."),
        ("He was the first person who walked on the Moon.", "who", None),
        ("He was an astronaut who walked on the Moon.", "who", "He was an astronaut."),
        ('She wrote the novel "Notes," which was long.', "which", 'She wrote the novel "Notes,".'),
        ("He never returned until he was old.", "until", None),
        ("It was before he was born that she left.", "before", None),
    ],
)  # fmt: skip
def test_what_is_left_of_a_sentence_is_one(sentence: str, doubted: str, left: str | None) -> None:
    clauses = split_clauses(sentence)
    found = shortened(clauses, [clause.startswith(doubted) for clause in clauses])
    assert len(clauses) > 1 and (None if found is None else found.text) == left


def test_clauses_that_the_rule_does_not_find_are_not_cut() -> None:
    assert shortened(["She was born", "in London."], [False, True]) is None


def test_clauses_are_left_out_of_a_text() -> None:
    life = "Ada wrote notes. She was born in London and moved to Paris, where she died. It rained.\n"
    found = revise(tagged(life, lambda s: "Paris" in s, unit="clause"), keeps, "drop")
    assert found.text == "Ada wrote notes. She was born in London. It rained.\n"
    assert found.actions == ("kept", "kept", "dropped", "dropped", "kept")
    assert [s.text for s in found.shown if s.revision == "kept"] == [
        "Ada wrote notes.", "She was born in London.", "It rained.",
    ]  # fmt: skip
    assert revised(life, "Paris", how="hedge", unit="clause") == life.replace("She", "This is doubtful: She")
    assert revised(life, "She", unit="clause") == "Ada wrote notes. It rained.\n"


# What holds for every text

WORDS = st.sampled_from(
    ["Ada wrote notes.", "It rained and she left.", "Who came?", "He won!", "One, two.", "Dr. No sang."]
)
MARKS = st.sampled_from(
    ["", "", "", "- ", "  - ", "> ", "1. ", "## ", "**", "Early life:\n", "```\nx\n```\n", "---\n", "\t"]
)
GAPS = st.sampled_from([" ", " ", "  ", "\n", "\n\n", "\n\n\n", "\n \n", "\n\n## Work\n\n", ""])
TEXTS = st.lists(st.tuples(MARKS, WORDS | st.text(max_size=8), GAPS)).map(
    lambda parts: "".join("".join(p) for p in parts)
)


def with_doubts(text: str, doubts: Sequence[bool], unit: str) -> tuple[Record, Sequence[bool]]:
    record = tagged(text, lambda _: False, unit=unit)
    flags = [doubts[at % len(doubts)] and s.is_statement for at, s in enumerate(record.sentences)]
    pairs = zip(record.sentences, flags, strict=True)
    return replace(record, sentences=tuple(replace(s, confidence=0.1) if d else s for s, d in pairs)), flags


@given(TEXTS, st.sampled_from(["sentence", "clause"]))
def test_a_text_without_doubts_comes_back_byte_for_byte(text: str, unit: str) -> None:
    record = tagged(text, lambda _: False, unit=unit)
    for how in ("drop", "hedge"):
        found = revise(record, keeps, how)
        assert found.text == (record.answer if record.sentences else "")
        assert set(found.actions) <= {"kept"}


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(TEXTS, st.lists(st.booleans(), min_size=1, max_size=7))
@example("Ada wrote notes. ## She ran. ```\nx\n```\nAda wrote notes.", [True])  # no heading: it begins no line
def test_what_is_dropped_is_gone_and_what_is_kept_is_whole(text: str, doubts: Sequence[bool]) -> None:
    record, flags = with_doubts(text, doubts, "sentence")
    found = revise(record, keeps, "drop")
    assert [a == "dropped" for a, s in zip(found.actions, record.sentences, strict=True) if s.is_statement] == [
        flag for flag, s in zip(flags, record.sentences, strict=True) if s.is_statement
    ]
    kept = [s.text for s, action in zip(record.sentences, found.actions, strict=True) if action == "kept"]
    marker = r"(?:[-*+•–—>]|\(?(?:\d{1,3}|[a-zA-Z]{1,5})[.)])"  # noqa: RUF001 - one may come from an item whose first sentence went
    before = rf"(?:{marker}(?:\[…\])?)*"  # and "[…]" for the words of one
    assert re.fullmatch("".join(f"{before}{re.escape(squeezed(s))}" for s in kept), squeezed(found.text))
    place = 0
    for sentence in kept:  # byte for byte, in their order
        place = found.text.index(record.answer[slice(*_span(record.answer, sentence))], place)
    assert not found.text.startswith(" ") or re.search(r"(?:\A|\n) ", record.answer)


def _span(text: str, sentence: str) -> tuple[int, int]:
    begin = text.index(sentence)
    return begin, begin + len(sentence)


@given(TEXTS, st.lists(st.booleans(), min_size=1, max_size=7))
def test_what_is_hedged_is_there_behind_its_phrase_and_all_else_as_it_was(text: str, doubts: Sequence[bool]) -> None:
    record, flags = with_doubts(text, doubts, "sentence")
    found = revise(record, keeps, "hedge", "@@{sentence}@@")
    assert found.text.replace("@@", "") == (record.answer if record.sentences else "")
    assert found.text.count("@@") == 2 * sum(flags)
    assert [action == "hedged" for action in found.actions] == list(flags)


@given(TEXTS, st.lists(st.booleans(), min_size=1, max_size=7))
def test_no_doubted_clause_stays(text: str, doubts: Sequence[bool]) -> None:
    record, flags = with_doubts(text, doubts, "clause")
    found = revise(record, keeps, "drop")
    assert all(action == "dropped" for action, flag in zip(found.actions, flags, strict=True) if flag)
    whole = {s.part_of for s, flag in zip(record.sentences, flags, strict=True) if flag}
    for sentence, action in zip(record.sentences, found.actions, strict=True):
        if sentence.is_statement and sentence.part_of not in whole:
            assert action == "kept"


@given(st.lists(st.sampled_from("Ada she wrote , and or who was born ; in (London) “Rome” because the .".split())))
def test_what_is_left_is_a_beginning_or_follows_an_opening(words: Sequence[str]) -> None:
    clauses = split_clauses(" ".join(words)) if words else ["Ada."]
    for at in range(len(clauses)):
        found = shortened(clauses, [place == at for place in range(len(clauses))])
        if found is not None:
            assert not found.begin <= at < found.end
            assert found.text.casefold().startswith(
                " ".join(clauses[found.begin : found.end]).rstrip(" ,;:").casefold()
            )


# What does not go together


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("drop", None, None, None), "revise drop needs min_confidence or keep_factual"),
        (("drop", "So: {sentence}", 0.5, None), "hedge_phrase needs revise hedge"),
        ((None, "So: {sentence}", 0.5, None), "hedge_phrase needs revise hedge"),
        (("hedge", "So:", 0.5, None), "hedge_phrase is 'So:', expected {sentence} once in it"),
        (("hedge", "{sentence} {sentence}", None, 0.9), "expected {sentence} once in it"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: tuple[Revise, str, float, float], message: str) -> None:
    with pytest.raises(LovecError, match=re.escape(message)):
        Selection(**dict(zip(("revise", "hedge_phrase", "min_confidence", "keep_factual"), settings, strict=True)))


def test_a_text_in_clauses_reads_like_one_in_sentences_without_doubts() -> None:
    record = in_clauses(tagged(PAGE, lambda _: False))
    found: Revised = revise(record, lambda _: True, "drop")
    assert found.text == PAGE
