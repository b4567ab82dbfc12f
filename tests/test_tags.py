"""Tags: the grammar, what is malformed, the canonical form, texts without tags, and scales other than 0 to 10."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lovec.tags import DEFAULT_TAGS, TagFormat, TaggedSentence, parse, render, strip
from lovec.types import LovecError, Scale

OPEN, CLOSE = DEFAULT_TAGS.open, DEFAULT_TAGS.close
PIECES = st.sampled_from(
    [
        OPEN,
        CLOSE,
        "9",
        "10",
        "11",
        "08",
        " ",
        "\n",
        "\u00a0",
        "A cat.",
        "x",
        "٣",
        "²",
        "<",
        "confidence",
        "</",
        ">",
        "8.5",
    ]
)
HOSTILE = st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join)


def only(text):
    (sentence,) = parse(text).sentences
    return sentence


def test_reads_the_example_of_the_readme():
    text = "Founded in 1973. <confidence> 9 </confidence> Its office is in Palo Alto. <confidence> 3 </confidence>"
    parsed = parse(text)
    assert [(s.text, s.score, s.problem) for s in parsed.sentences] == [
        ("Founded in 1973.", 9, None),
        ("Its office is in Palo Alto.", 3, None),
    ]
    assert parsed.tail == ""
    assert parsed.sentences[1].raw == " Its office is in Palo Alto. <confidence> 3 </confidence>"


@pytest.mark.parametrize("score", range(11))
@pytest.mark.parametrize("space", ["", " ", "\n\t ", "\u00a0"])
def test_every_score_is_read_with_any_white_space_around_it(score, space):
    assert only(f"A.{OPEN}{space}{score}{space}{CLOSE}").score == score


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("8.5", "'8.5'"),
        ("11", "'11'"),
        ("-1", "'-1'"),
        ("08", "'08'"),
        ("1 0", "'1 0'"),
        ("ten", "'ten'"),
        ("X", "'X'"),
        ("٣", "'٣'"),
        ("²", "'²'"),
        ("9" * 50, "'99999999999999999999...'"),
        ("", "no score"),
        ("  ", "no score"),
    ],
)
def test_anything_but_an_integer_from_0_to_10_is_malformed(inside, words):
    sentence = only(f"A. {OPEN}{inside}{CLOSE}")
    assert (sentence.text, sentence.score) == ("A.", None)
    assert words in sentence.problem


@pytest.mark.parametrize(
    ("text", "expected", "tail"),
    [
        (f"{OPEN} 9 {CLOSE}", [("", None, "no text")], ""),
        (f" \n{OPEN} 9 {CLOSE}", [("", None, "no text")], ""),
        (f"A. {OPEN} 9 {CLOSE} {OPEN} 8 {CLOSE}", [("A.", 9, None), ("", None, "no text")], ""),
        (f"A. {OPEN} 9", [("A.", None, "no closing")], ""),
        (f"A. {OPEN} 9 {CLOSE} B. {OPEN}", [("A.", 9, None), ("B.", None, "no closing")], ""),
        (f"A. {OPEN} 7 B. {OPEN} 9 {CLOSE} C", [("A.", None, "second opening")], " C"),
        (f"A. {OPEN} {OPEN} 9 {CLOSE} {CLOSE}", [("A.", None, "second opening"), ("", None, "without an open")], ""),
        (f"A. {CLOSE} B. {OPEN} 1 {CLOSE}", [("A.", None, "without an open"), ("B.", 1, None)], ""),
        (f"A. 9 {CLOSE}", [("A. 9", None, "without an open")], ""),
        ("A. <Confidence> 9 </Confidence>", [], "A. <Confidence> 9 </Confidence>"),
        (f"A. {OPEN} 9 {CLOSE} and more. ", [("A.", 9, None)], " and more. "),
        ("", [], ""),
    ],
)
def test_texts_are_cut_after_closing_tag_words(text, expected, tail):
    parsed = parse(text)
    assert [(s.text, s.score) for s in parsed.sentences] == [e[:2] for e in expected]
    for sentence, (_, _, words) in zip(parsed.sentences, expected, strict=True):
        assert sentence.problem is None if words is None else words in sentence.problem
    assert parsed.tail == tail


@given(HOSTILE)
@example(f"{OPEN}{CLOSE}{OPEN}")
def test_parsing_loses_nothing_and_follows_the_grammar(text):
    parsed = parse(text)
    assert "".join(s.raw for s in parsed.sentences) + parsed.tail == text
    assert OPEN not in parsed.tail and CLOSE not in parsed.tail
    grammar = re.compile(rf"(?s)\s*(\S.*?)\s*{OPEN}\s*(10|[0-9])\s*{CLOSE}")
    for sentence in parsed.sentences:
        match = grammar.fullmatch(sentence.raw)
        well_formed = match is not None and match[1].count(OPEN) == 0
        assert (sentence.score is not None) == (sentence.problem is None) == well_formed
        if well_formed:
            assert (sentence.text, sentence.score) == (match[1], int(match[2]))
        assert sentence.text == sentence.text.strip()
        assert OPEN not in sentence.text and CLOSE not in sentence.text


TEXTS = st.text(min_size=1).filter(lambda s: s.strip() and OPEN not in s and CLOSE not in s)


@given(st.lists(st.tuples(TEXTS, st.integers(0, 10)), max_size=6))
def test_render_then_parse_gives_texts_and_scores_back(pairs):
    canonical = render(pairs)
    parsed = parse(canonical)
    assert [(s.text, s.score) for s in parsed.sentences] == [(text.strip(), score) for text, score in pairs]
    assert parsed.tail == ""
    assert render(parsed.sentences) == canonical


def test_the_canonical_form_has_single_spaces():
    assert render([(" a. ", 9), ("b.", 10)]) == "a. <confidence> 9 </confidence> b. <confidence> 10 </confidence>"
    assert render(parse(f"a.{OPEN}9{CLOSE}\n b.  {OPEN} 10{CLOSE}").sentences) == render([("a.", 9), ("b.", 10)])
    assert render([]) == ""


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        (("a", 11), "score 11"),
        (("a", -1), "score -1"),
        (("a", True), "score True"),
        (("a", 9.0), "score 9.0"),
        (("a", None), "score None"),
        (TaggedSentence("a", None, "no closing tag", "a"), "score None"),
        (("", 3), "empty"),
        ((" \n", 3), "empty"),
        ((f"a {OPEN} b", 3), "tag word"),
        ((f"a {CLOSE} b", 3), "tag word"),
    ],
)
def test_render_refuses_what_parse_would_not_give_back(sentence, words):
    with pytest.raises(LovecError, match=words) as caught:
        render([("fine.", 1), sentence])
    assert "sentence 2" in str(caught.value)


def test_tag_words_can_be_chosen():
    tags = TagFormat("[sure", "of ten]")
    text = "A. [sure 7 of ten] B. [sure 12 of ten]"
    assert [s.score for s in parse(text, tags).sentences] == [7, None]
    assert render([("A.", 7)], tags) == "A. [sure 7 of ten]"
    assert parse("A. <confidence> 7 </confidence>", tags).tail == "A. <confidence> 7 </confidence>"


def test_a_text_that_completes_a_tag_word_with_what_follows_is_refused():
    with pytest.raises(LovecError, match="tag word"):
        render([("x a b", 3)], TagFormat("a b a", "!"))


@pytest.mark.parametrize(
    ("open_word", "close_word", "words"),
    [
        ("", "b", "non-empty"),
        ("a", "", "non-empty"),
        (" a", "b", "white space"),
        ("a", "b\n", "white space"),
        ("a", "a", "contain each other"),
        ("<c>", "<c>/", "contain each other"),
        ("/<c>", "<c>", "contain each other"),
        ("c", "9", "cannot be told apart"),
        ("1", "c", "cannot be told apart"),
        ("c", "1 1 1", "cannot be told apart"),
    ],
)
def test_tag_words_that_cannot_work_are_refused(open_word, close_word, words):
    with pytest.raises(LovecError, match=words):
        TagFormat(open_word, close_word)


UNITS = [OPEN, CLOSE, " ", "\n", OPEN + " ", "<", "</", OPEN + CLOSE, CLOSE + OPEN, f"a {OPEN} 1 {CLOSE}", f"{OPEN}9"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_hostile_megabyte_takes_linear_time(unit):
    text = unit * (2**20 // len(unit))
    start = time.process_time()
    parsed = parse(text)
    assert time.process_time() - start < 5.0  # about 0.1 s; quadratic time is minutes
    assert "".join(s.raw for s in parsed.sentences) + parsed.tail == text


# Texts without tags


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"A. {OPEN} 9 {CLOSE} B c.{OPEN}10{CLOSE}", "A. B c."),
        (f"A. {OPEN} 8.5 {CLOSE} B.", "A. B."),  # malformed: the number goes, too
        (f"A. {OPEN} 9 B. {OPEN} 8 C.", "A. B. C."),  # never closed: what follows is not lost
        (f"A. {CLOSE} B.", "A. B."),
        (f"A. {OPEN} 1990s were {CLOSE}", "A. 1990s were"),
        (f" {OPEN} 3 {CLOSE} ", ""),
        ("A.\n\n B. ", "A.\n\n B."),
        ("", ""),
        (
            f"# Life\n\nA. {OPEN} 9 {CLOSE}\n\n- B {OPEN} 8 {CLOSE}\n- C {OPEN}x{CLOSE}\n\nD",
            "# Life\n\nA.\n\n- B\n- C x\n\nD",
        ),
        (f"a {OPEN}12 monkeys", "a 12 monkeys"),  # no score: the text goes on
        (f"a {OPEN} 9 monkeys", "a 9 monkeys"),
        (f"He saw {OPEN}12 Monkeys.", "He saw 12 Monkeys."),
        (f"A.{OPEN}B. {CLOSE}C.", "A. B. C."),
    ],
)
def test_strip_removes_tags_and_the_numbers_in_malformed_ones(text, plain):
    assert strip(text) == plain


@given(HOSTILE)
@example(f"<conf{OPEN}idence>")
def test_strip_leaves_no_tag_word(text):
    plain = strip(text)
    assert OPEN not in plain and CLOSE not in plain
    assert strip(plain) == plain == plain.strip()


@given(st.lists(st.tuples(st.sampled_from(["A cat.", "9 lives.", "B,\nc."]), st.integers(0, 10)), max_size=5))
def test_strip_undoes_render(sentences):
    assert strip(render(sentences)) == " ".join(text for text, _ in sentences)


# Other scales

WORDS = Scale(("no", "unlikely", "perhaps", "likely", "very likely"))
SCALES = {"0 to 100": Scale(tuple(map(str, range(101)))), "words": WORDS, "percent": Scale(("0 %", "50 %", "100 %"))}


def other_tags(name):
    return TagFormat("<c>", "</c>", SCALES[name])


PLAIN_TEXTS = st.text(min_size=1).filter(lambda s: s.strip() and "<c>" not in s and "</c>" not in s)


@pytest.mark.parametrize("name", SCALES)
@given(data=st.data())
def test_other_scales_give_texts_and_scores_back(name, data):
    tags = other_tags(name)
    pairs = data.draw(st.lists(st.tuples(PLAIN_TEXTS, st.integers(0, tags.scale.top)), max_size=6))
    canonical = render(pairs, tags)
    parsed = parse(canonical, tags)
    assert [(s.text, s.score) for s in parsed.sentences] == [(text.strip(), score) for text, score in pairs]
    assert parsed.tail == ""
    assert render(parsed.sentences, tags) == canonical


@pytest.mark.parametrize("name", SCALES)
@given(data=st.data())
def test_other_scales_lose_nothing_and_know_only_their_own_words(name, data):
    tags = other_tags(name)
    pieces = st.sampled_from(["<c>", "</c>", " ", "A.", "\n", "7", "0", *tags.scale.words])
    text = "".join(data.draw(st.lists(pieces | st.text(max_size=3), max_size=30)))
    parsed = parse(text, tags)
    assert "".join(s.raw for s in parsed.sentences) + parsed.tail == text
    for sentence in parsed.sentences:
        if sentence.score is not None:
            inside = sentence.raw.partition("<c>")[2].removesuffix("</c>").strip()
            assert inside == tags.scale.words[sentence.score]
    plain = strip(text, tags)
    assert "<c>" not in plain and "</c>" not in plain


def test_scores_are_compared_as_whole_strings():
    tags = other_tags("0 to 100")
    text = " ".join(f"A. <c>{word}</c>" for word in ("1", "10", "100", "01", "1 0", "101"))
    assert [s.score for s in parse(text, tags).sentences] == [1, 10, 100, None, None, None]
    text = " ".join(f"A. <c> {word} </c>" for word in ("likely", "unlikely", "very likely", "very  likely", "Likely"))
    assert [s.score for s in parse(text, other_tags("words")).sentences] == [3, 1, 4, None, None]


def test_a_wrong_score_is_explained_by_the_scale():
    problem = "score is '101', expected an integer 0..100"
    assert parse("A. <c> 101 </c>", other_tags("0 to 100")).sentences[0].problem == problem
    problem = "score is '7', expected one of no, unlikely, perhaps, likely, very likely"
    assert parse("A. <c> 7 </c>", other_tags("words")).sentences[0].problem == problem
    with pytest.raises(LovecError, match=r"sentence 1 has the score 5, expected an integer 0\.\.4"):
        render([("A.", 5)], other_tags("words"))


@pytest.mark.parametrize(
    ("open_word", "close_word", "scale"),
    [
        ("<likely>", "likely", ("no", "very likely")),  # refused already because one contains the other
        ("<c>", "lik", ("no", "likely")),
        ("no", "</c>", ("no", "yes")),
        ("<c>", "0", ("1", "10")),
        ("<c>", "50 </c>", ("0 %", "50 </c> %")),
    ],
)
def test_tag_words_inside_the_words_of_the_scale_are_refused(open_word, close_word, scale):
    with pytest.raises(LovecError, match=r"cannot be told apart from the score|contain each other"):
        TagFormat(open_word, close_word, Scale(scale))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("A. <c> likely </c> B.<c>very likely</c>", "A. B."),
        ("A. <c> very likely B. <c> 7 C.", "A. B. 7 C."),  # malformed: the word goes as well; 7 is not one of the scale
        ("A. <c> 7 </c> B. <c> 7", "A. B."),
        ("A. <c> unlikelyhood </c>", "A. unlikelyhood"),
    ],
)
def test_strip_removes_the_words_of_the_scale(text, plain):
    assert strip(text, other_tags("words")) == plain


def test_strip_removes_a_word_whole_that_begins_with_another():
    tags = TagFormat("<c>", "</c>", Scale(("sure", "sure enough")))
    assert strip("A. <c> sure enough B. <c> sure C.", tags) == "A. B. C."


@pytest.mark.parametrize("unit", ["<c>", "</c>", "<c> very likely", "<c> 7", "a <c> no </c>", "<c></c>"])
@pytest.mark.parametrize("function", [parse, strip])
def test_other_scales_take_linear_time(unit, function):
    text = unit * (2**20 // len(unit))
    start = time.process_time()
    function(text, other_tags("words"))
    assert time.process_time() - start < 10.0  # about 0.3 s; quadratic time is minutes


def test_a_word_that_begins_with_another_is_stripped_whole():
    tags = TagFormat("<c>", "</c>", Scale(("No", "No Way", "Yes")))
    assert strip("A. <c> No Way Bo came.", tags) == "A. Bo came."
    assert strip("A. <c> No Bo came.", tags) == "A. Bo came."
