"""Sentences of untagged answers: the rules, no lost text, linear time on hostile text, and metrics on real data."""

# ruff: noqa: RUF001 - quotation marks and stops of other scripts

from __future__ import annotations

import gc
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import ABSTENTIONS, ANSWERS, HELD_OUT_ABSTENTIONS, HELD_OUT_ANSWERS
from scripts import load_script

from lovec.datasets.factscore import read_factscore
from lovec.datasets.wikibio import read_wikibio
from lovec.text.abstentions import is_abstention
from lovec.text.sentences import spans, split_sentences

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("LOVEC_SHARED_DATA") or ROOT.parent / "shared" / "data")
FACTSCORE = DATA / "factscore_labeled" / "ChatGPT.jsonl"
WIKIBIO = DATA / "wikibio_gpt3_human" / "dataset-generated.json"
RESULTS = json.loads((ROOT / "benchmarks/results/sentences.json").read_text(encoding="utf-8"))

# A broken bar marks where a text is split.
GOLDEN = [
    # plain
    "Ada wrote the first program. ¦ She was born in 1815. ¦ Who taught her? ¦ Her mother did!",
    "One sentence without a stop",
    "Is it true?! ¦ Yes. ¦ Really...",
    # titles, initials, suffixes
    "Dr. Smith met Mrs. Jones and Prof. Lee at St. Mary's. ¦ They talked.",
    "J. R. R. Tolkien and J.K. Rowling write. ¦ George W. Bush reads.",
    "Sammy Davis Jr. sang. ¦ Robert Downey Jr. ¦ He is an actor.",
    "He is known as Sammy Davis Jr. ¦ He sang.",
    "Martin Luther King Jr. Day is a holiday. ¦ So is Labor Day.",
    "Ramesses IV was followed by Ramesses V. ¦ He was buried in the valley.",
    "Oranges are rich in vitamin C. ¦ They keep well.",
    "Lt. Col. John Brown and Gen. Robert E. Lee fought at Ft. Sumter. ¦ It fell.",
    "Gov. Brown met Sen. Kay and Rep. Lu. ¦ Nothing came of it.",
    "Mlle. Curie and M. Dupont met the Rev. King. ¦ They left.",
    # acronyms
    "He moved to the U.S. in 1990. ¦ She stayed in the U.K. ¦ They wrote.",
    "The U.S. Navy hired him. ¦ He left the U.S. ¦ In 2001 he came back.",
    "She lives in Washington, D.C. ¦ She holds a Ph.D. in physics and a B.Sc. from Leeds. ¦ Her M.D. came later.",
    "It starts at 5 p.m. on Friday. ¦ It ends at 3 a.m. ¦ The bar closes then.",
    # numbers
    "It grew by 3.5 percent to $1.2 million. ¦ 2019 was better.",
    "See No. 5 and nos. 6 to 8. ¦ The answer was no. ¦ Nobody asked.",
    "Op. 27 No. 2, vol. 3, pp. 12-15 and Fig. 4 are cited. ¦ Ch. 5 is not.",
    "He was born c. 1850 and died ca. 1900. ¦ She (b. 1920, d. 1999) was his niece.",
    "He was No. 1. ¦ She was second.",
    "He was born on Jan. 5, 1900. ¦ She died in Dec. 1999. ¦ It snowed.",
    # companies
    "Apple Inc. was founded by Jobs. ¦ Treasure Co. Ltd. ¦ The company makes games.",
    "He worked for Warner Bros. Studios and Acme Corp. ¦ Then he retired.",
    "Yahoo! is a site. ¦ Jeopardy! is a show.",
    # latin
    "Fruits, e.g. apples, i.e. food, etc. are sold. ¦ Brown et al. (2005) agree.",
    "Roe v. Wade and Ali vs. Frazier are cases.",
    "He sold cars, boats, etc. ¦ Business was good.",
    # ellipsis
    "He waited... and waited. ¦ Then... nothing. ¦ Well… ¦ She left.",
    "He said . . . nothing. ¦ She knew.",
    # quotes and brackets
    'He said, "I am here." ¦ She left.',
    'He starred in "Hello, Dolly! The Movie" and "Who? What? Why?" in 1990. ¦ She did not.',
    'She wrote "Dr. Jekyll and Mr. Hyde." ¦ It sold well.',
    "“It is late. Go home,” he said. ¦ She went.",
    '"I came. I saw. I won," he said. ¦ Nobody spoke.',
    "He left (see p. 5). ¦ (She stayed. Nobody knows why.) ¦ They met again.",
    "He won the prize (in 1999!) and left. ¦ [He came back.] ¦ Good.",
    'The song "Why?" is hers. ¦ The film "Go!" is his.',
    "He wrote 'Oh! Calcutta!'. ¦ It ran for years.",
    "He asked why? and left. ¦ She said no.",
    'Their album was "Help!" ¦ It sold well.',
    "«Je suis là. Adieu.» ¦ He left.",
    "The players' union met. ¦ The coaches' union did not. ¦ 'Twas late.",
    "She read ‘Who’s Afraid? A Life’ twice. ¦ It’s good.",
    # references and addresses
    "She was born in 1815.[1] ¦ She died in 1852.[2][3] ¦ She wrote.",
    "See https://example.org/a.b?c=d. ¦ Then www.test.com/x.html and a.b@c.com work.",
    "He uses Node.js and ASP.NET. ¦ Version 2.0.1 is out.",
    "He lived on Main St. in Boston. ¦ She lived on Elm St. ¦ They met.",
    "He lived in London.¦She lived in Paris.",
    "She was born in 1815.¦She died in 1852.[2]¦In 1843.5 she wrote.",
    "1.The first. ¦ 2.0.1 is out.",
    "He won. [1] ¦ She left.[2, 3] ¦ They met.[4-6] [7] ¦ [8] says so.",
    "He won.¹ ¦ She left.[^2] ¦ They met.[citation needed] ¦ Good.",
    # code and formulas
    "Call it:\n¦```\nx = 1. Y\n\nz\n```\n¦It works. ¦ Use `a. B` there.",
    "Then \\begin{align}\na = b. C\n\nd\n\\end{align} holds. ¦ So it is.",
    "Here:\n¦$$\na. B\n$$\n¦Good.",
    "We know $E = mc^2.$ ¦ It holds. ¦ So $a.b$ holds. ¦ He paid 5 $. ¦ It was much.",
    "Then \\[ a = b. \\] ¦ This holds. ¦ And \\[ a = b \\] ¦ It does. ¦ So \\[ a \\] and $$ x. Y $$ are one.",
    # HTML
    "<p>One.</p>¦<p>Two. ¦ Three.</p>\n¦<ul><li>a</li>¦<li>b</li></ul>",
    "One<br>¦Two<br/>\n¦Three, <b>four.</b> ¦ Five. ¦ Use `<br>` here.",
    "<p>She wrote notes.</p>\n¦`x` is code. ¦ A line break is <br> ¦ `x` in code.",
    # names with small letters
    "He bought a phone. ¦ iPhone sales rose.",
    "The firm is eBay. ¦ eBay is old.",
    # lines
    "First paragraph\n\n¦Second paragraph\n\n¦third paragraph",
    "He wrote:\n¦- a book\n¦- a play.\n¦* a song",
    "Works:\n¦1. Dr. No (1958)\n¦2. Goldfinger. ¦ It sold.\n¦10) Thunderball",
    "# Life\n¦She was born. ¦ She died.\n\n¦## Work\n¦She wrote.",
    "**Born:** 1815\n¦**Died:** 1852",
    "**She was born in London.** ¦ _She died there._ ¦ Fine.",
    "This line is wrapped\nin the middle. ¦ This one\nis too.",
    "He met Dr.\nSmith there. ¦ They spoke.",
    "• One thing. ¦ • Another thing.",
    "She sang\n\n---\n\n¦She danced",
    "| Year | Work |\n|---|---|\n¦| 1999 | Film |",
    "He ran.\n¦She slept.\r\n\r\n¦They ate.",
    # other scripts
    "他出生于1815年。¦她写了书！¦真的吗？",
    "Élodie est née à Paris. ¦ Àngel aussi. ¦ Ça va.",
    "Он родился в Москве. ¦ Она умерла.",
    "In the '90s he sang. ¦ The players' union met.",
    "Fans loved her in the ’80s. ¦ Critics’ praise came late.",
]


benchmark = load_script("sentences")
BOUNDARIES = benchmark.boundaries()


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason=f"needs {path.name} in {path.parent}")


@pytest.mark.parametrize("marked", GOLDEN)
def test_splits_where_a_reader_would(marked):
    assert split_sentences(marked.replace("¦", "")) == [piece.strip() for piece in marked.split("¦")]


PIECES = st.sampled_from(
    [
        *".!?…。\"'“”‘’()[]«»*_-#|>•,: \n",
        *("\n\n", "\r\n", "  ", " a", " A", " He ", "Dr", "U.S", "No", "St", "eBay", "5", "1.", "[3]", '."', ' "'),
        *("é", "王", "\x1c", "\u2028", "\xa0", "।", "؟", "。", "「", "」", "»"),
        *("[1] ", "[1, 2]", "[^a]", "¹", " ²", "【3†x】", "`", "```", "\n```\n", "~~~\n", "$$", "\\[", "\\]"),
        *("\\begin{a}", "\\end{a}", "ii. ", "3. Mai", "m. ", "</p>", "<br>"),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join)


@given(TEXTS)
@example("")
@example(" \n\n ")
@example("---\n\nA.\n\n***")
def test_nothing_is_lost_and_a_sentence_stays_one(text):
    here = 0
    for start, end in spans(text):
        assert here <= start < end
        assert not text[here:start].strip()
        assert text[start:end] == text[start:end].strip()
        here = end
    assert not text[here:].strip()
    sentences = split_sentences(text)
    assert sentences == [text[start:end] for start, end in spans(text)]
    for sentence in sentences:
        assert split_sentences(sentence) == [sentence]
    if len(sentences) > 1:
        assert all(any(map(str.isalnum, sentence)) for sentence in sentences)


HOSTILE = {
    "stops": ".",
    "stops and letters": "a.",
    "apostrophes": "'",
    "quotation marks": '"',
    "quoted stops": '." ',
    "open quotes": '"A. ',
    "open brackets": "(a. B ",
    "acronyms": "U.S. ",
    "initials": "A. ",
    "spaced stops": ". ",
    "lines": "x.\n",
    "wrapped lines": "x,\n",
    "numbers": "1. \n",
    "references": "a.[1]",
    "stops and spaces": "a." + " " * 500,
    "spaces": " ",
    "letters": "a",
    "refusals": "I'm sorry, ",
    "headings": "#",
    "formulas": "$$",
    "lines of formulas": "$$\n",
    "open formulas": "\\[ a. B",
    "open environments": "\\begin{a}",
    "environments": "\\begin{a}x. Y\\end{a}\n",
    "fences": "```\n",
    "code blocks": "```x\nA. B\n```\n",
    "backticks": "`",
    "spaced references": "a. [1] ",
    "superscripts": "a.¹ ² ",
    "wide stops": "「。",
    "guillemets": ".  » ",
    "markers": "ii. A\n",
    "blocks of HTML": "<p>a.</p>",
    "ends of blocks of HTML": "</p>",
    "ends of formulas": "a. \\]",
}


@pytest.fixture
def gc_paused():
    """No collection of garbage, which would look at all that other tests have left in memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("size", [125_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.usefixtures("gc_paused")
def test_long_text_takes_linear_time(unit, size):
    def cost(size):
        text = unit * (size // len(unit))
        begin = time.process_time()
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
        assert is_abstention(text) == (unit == HOSTILE["refusals"])
        return time.process_time() - begin

    # Eight times the text: about 8 if linear, 64 if quadratic; below the floor the clock is all noise.
    # What is quadratic fails every time; one time alone may pay for a busy machine.
    assert any(cost(size) < 24 * max(cost(size // 8), 0.02) for _ in range(3))


@pytest.mark.parametrize("answer", ABSTENTIONS)
def test_abstentions_are_recognised(answer):
    assert is_abstention(answer)


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_not_taken_for_abstentions(answer):
    assert not is_abstention(answer)


@pytest.mark.parametrize("kind", BOUNDARIES)
def test_boundaries_of_four_kinds_of_text_and_of_other_languages(kind):
    """Nothing is worse than what is published; a difference is shown with the text around it."""
    figures, alone = benchmark.compare(split_sentences, BOUNDARIES[kind])
    assert figures["not_whole"] == 0
    assert figures == pytest.approx(row("lovec")["kinds"][kind], abs=1e-6), alone
    assert figures["precision"] >= 0.99 and figures["recall"] >= 0.93, alone


@pytest.mark.parametrize("kind", BOUNDARIES)
def test_no_library_is_better(kind):
    """Where one becomes better it should be used; the published figures say so."""
    ours = row("lovec")["kinds"][kind]
    for library in RESULTS["splitters"]:
        theirs = library["kinds"][kind]
        assert ours["extra"] + ours["missed"] <= theirs["extra"] + theirs["missed"], library["name"]


@needs(FACTSCORE)
def test_ends_agree_with_factscore():
    records = [record for record in read_factscore(FACTSCORE) if record.sentences]
    figures, alone = benchmark.compare(split_sentences, records)
    assert (figures["answers"], figures["ends"], figures["not_whole"]) == (157, 1084, 0)
    assert figures["precision"] >= 0.995 and figures["recall"] >= 0.995, alone
    assert figures == pytest.approx(row("lovec")["factscore"], abs=1e-6)


@needs(WIKIBIO)
def test_held_out_metrics_are_the_published_ones():
    figures = benchmark.compare(split_sentences, read_wikibio(WIKIBIO))[0]
    assert figures == pytest.approx(row("lovec")["wikibio"], abs=1e-6)


def test_held_out_abstentions_are_the_published_ones():
    found = sum(map(is_abstention, HELD_OUT_ABSTENTIONS)), sum(map(is_abstention, HELD_OUT_ANSWERS))
    published = RESULTS["abstention"]["held out"]
    assert found == (published["found"], published["mistaken"])
    assert found[0] >= 15 and found[1] <= 1


@needs(FACTSCORE)
def test_every_abstention_of_factscore_and_nothing_else():
    records = read_factscore(FACTSCORE)
    assert sum(record.meta["abstained"] for record in records) == 26
    assert [r.id for r in records if is_abstention(r.answer) != r.meta["abstained"]] == []


def test_extra_and_missed_ends_are_counted():
    from lovec.types import Record, Sentence

    record = Record("a", "Q?", answer="A b. C d. E f.", sentences=(Sentence("A b. C d."), Sentence("E f.")))
    figures, alone = benchmark.compare(lambda text: ["A b.", "C d. E f."], [record])
    assert (figures["extra"], figures["missed"], figures["precision"], figures["recall"]) == (1, 1, 0.0, 0.0)
    assert len(alone) == 2
    assert benchmark.compare(lambda text: ["A b. C d.", "E f"], [record])[0]["not_whole"] == 1


def row(name):
    (result,) = [row for row in RESULTS["splitters"] if row["name"] == name]
    return result


def test_the_page_shows_the_metrics_of_the_file():
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    ours = row("lovec")
    for result in RESULTS["splitters"]:
        cells = [f"{result[part][key]:.2%}" for part in ("factscore", "wikibio") for key in ("precision", "recall")]
        cells = [cell.replace("%", " %") for cell in cells]
        cells.append(f"{result['characters_per_cpu_second'] / ours['characters_per_cpu_second']:.2g}")
        seconds = result["hostile_cpu_seconds"]
        cells.append(f"over {benchmark.PATIENCE} s" if seconds is None else f"{seconds} s")
        name = " ".join(filter(None, (result["name"], result["version"])))
        assert f"| {name} | {' | '.join(cells)} |" in page
        errors = [f"{counts['extra']} + {counts['missed']}" for counts in result["kinds"].values()]
        assert f"| {name} | {' | '.join(errors)} |" in page
    words, results = re.sub(r"\s+", " ", page), dict(RESULTS["abstention"])
    held_out = results.pop("held out")
    for result in results.values():
        assert result["abstentions"] - result["found"] == result["mistaken"] == 0
        assert str(result["answers"]) in words
    counts = results["paraphrases"]
    assert (counts["abstentions"], counts["answers"]) == (len(ABSTENTIONS), len(ANSWERS))
    assert f"finds {held_out['found']} of {held_out['abstentions']} refusals" in words
    assert f"takes {held_out['mistaken']} of {held_out['answers']} answers" in words
