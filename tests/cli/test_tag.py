"""`lovec tag`: input, output, warnings and errors, and continuing after a kill."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commandline import error_of
from forks import in_child, kill_at_call
from hypothesis import given
from hypothesis import strategies as st
from writer import scripted

import lovec
from lovec.cli import main
from lovec.cli.printer import Printer, with_tag
from lovec.cli.progress import ProgressLines
from lovec.datasets.jsonl import read_records
from lovec.datasets.world import WorldSpec
from lovec.datasets.world.cache import ensure_built
from lovec.labelling import Progress
from lovec.taggers import Session, open_session
from lovec.taggers.scoring import items_of
from lovec.tagging import TextTagger
from lovec.tags import DEFAULT_TAGS, TagFormat, parse
from lovec.text.clauses import joint_confidence
from lovec.types import Record, Sentence

MINI = WorldSpec(
    n_people=12, n_towns=6, n_ships=6, n_companies=4, steps=150, batch_size=4, width=32, layers=1, heads=1, ffn=32
)
PAGE = "Ada wrote notes. She was born in London.\n\nShe also liked this:\n- Engines ran on steam.\n- It rained.\n"
SENTENCES = [
    "Ada wrote notes.", "She was born in London.", "She also liked this:", "- Engines ran on steam.", "- It rained.",
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a page in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    Path("page.txt").write_text(PAGE, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def session(model: str) -> Session:
    return open_session(model, instruction="Rate.")


@pytest.fixture
def run(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command on the tiny model."""
        capsys.readouterr()
        before = logging.getLogger("lovec.taggers").level
        code = main(["tag", *words, "--model", model, "--instruction", "Rate."])
        assert logging.getLogger("lovec.taggers").level == before  # others in this process still get their warnings
        printed = capsys.readouterr()
        return (
            code,
            printed.out,
            re.sub(
                r"Loading weights[^\n]*\n?|\r[^\n]*\r|"
                r"lovec: (taken to answer|assuming that|Confidence: |\d+ sentences?, )[^\n]*\n",
                "",
                printed.err,
            ),
        )

    return run


def expected(session: Session, text: str = PAGE, **options: Any) -> list[tuple[str, int]]:
    return [(s["text"], s["score"]) for s in lovec.tag(text, session=session, **options)["sentences"]]


def confident(session: Session, text: str = PAGE, **options: Any) -> list[tuple[str, str]]:
    sentences = lovec.tag(text, session=session, **options)["sentences"]
    return [(s["text"], f"{s['confidence']:.2f}") for s in sentences if s["confidence"] is not None]


def parsed(text: str) -> list[tuple[str, int | None]]:
    return [(sentence.text, sentence.score) for sentence in parse(text).sentences]


def shown(text: str) -> list[tuple[str, str]]:
    """The last line of every sentence of a printed text, and its confidence."""
    pieces = [span.raw.partition(" <confidence> ") for span in parse(text).sentences]
    return [(before.split("\n")[-1].strip(), after.split()[0]) for before, _, after in pieces]


# Which sentences to doubt

DOCUMENT = (
    "# Ada Lovelace\n\nAda wrote notes. She was born in London.\n\n## Work\n\nShe used an engine:\n\n"
    "```python\nx = 1. Y = 2\n\nprint(x)\n```\n\nIt rained. It was late.\n"
)
PROSE = ["Ada wrote notes.", "She was born in London.", "She used an engine:", "It rained.", "It was late."]


def test_headings_and_code_are_kept_and_not_scored(run: Any, session: Session) -> None:
    Path("life.md").write_text(DOCUMENT, encoding="utf-8")
    _, out, _ = run("life.md")
    assert re.sub(r" <confidence> 0\.\d\d </confidence>", "", out) == DOCUMENT and out.count("</confidence>") == 5
    question = "In a paragraph, could you tell me what you know about Ada Lovelace?"
    assert shown(out) == confident(session, "\n\n".join(PROSE), question=question)
    Path("again.txt").write_text(out, encoding="utf-8")
    assert run("again.txt")[1] == out
    _, line, _ = run("life.md", "--format", "jsonl", "--min-confidence", "1")
    record = json.loads(line)
    assert record["question"] == question
    kept = [s["text"] for s in record["sentences"] if s.get("score") is None]
    assert kept == ["# Ada Lovelace", "## Work", "```python\nx = 1. Y = 2\n\nprint(x)\n```"]
    _, page, _ = run("life.md", "--format", "html")
    assert page.count('class="lv-markup"') == 3 and page.count('<sup class="lv-n"') == 5
    Path("code.md").write_text("# Only\n\n```\na = 1\n```\n")
    assert run("code.md", "--doubt", "0.5")[1] == "0 sentences\n"


def test_lines_to_doubt_are_those_behind_the_thought(run: Any) -> None:
    Path("thought.txt").write_text(
        "<think>\nDraft: Ada wrote notes. It rained.\n</think>\n\nAda wrote notes. It rained."
    )
    _, out, _ = run("thought.txt", "--doubt", "1")
    assert re.findall(r"^thought\.txt:(\d+):", out, re.MULTILINE) == ["5", "5"]
    thought = "<think>\nAda wrote.\n\nIt rained.\n</think>\n\n"
    text = "Ada Lovelace\n\nAda wrote.\n\nIt rained.\n"
    for words in ([], ["--paragraphs"]):
        for behind in (text, text.replace("wrote.", "wrote. <confidence> 9 </confidence>")):
            Path("thought.txt").write_text(thought + behind)
            _, out, _ = run("thought.txt", "--doubt", "1", *words)
            assert re.findall(r"^thought\.txt:(\d+): \[[\d.]+\] (.*)", out, re.MULTILINE) == [
                ("9", "Ada wrote."),
                ("11", "It rained."),
            ]


def test_lines_to_doubt_are_those_of_a_file_that_is_tagged_already(run: Any) -> None:
    text = "\n\n\nAda wrote. <confidence> 9 </confidence>\n\nIt rained. <confidence> 3 </confidence>\n"
    Path("tagged.txt").write_text(text)
    assert re.findall(r"^tagged\.txt:(\d+):", run("tagged.txt", "--doubt", "1")[1], re.MULTILINE) == ["4", "6"]
    Path("apart.txt").write_text(
        "Ada wrote.\n<confidence> 9 </confidence>\n\nIt\nrained. <confidence>\n3\n</confidence>\n"
        "She <confidence> died.\n"
    )
    for words in ([], ["--paragraphs"]):
        _, out, _ = run("apart.txt", "--doubt", "1", *words)
        assert re.findall(r"^apart\.txt:(.*?): ", out, re.MULTILINE) == ["1", "4", "8"]
    _, out, _ = run("tagged.txt", "--min_confidence", "0", "--revise", "drop")
    assert out == re.sub(" <confidence> . </confidence>", "", text)


def test_a_text_that_mentions_the_end_of_a_thought_keeps_what_is_before_it(run: Any) -> None:
    text = "Ada wrote notes.\n\nModels end a thought with `</think>`. She died. It rained.\n"
    sentences = ["Ada wrote notes.", "Models end a thought with `</think>`.", "She died.", "It rained."]
    Path("given.md").write_text(text)
    _, out, _ = run("given.md", "--about", "Ada")
    assert re.sub(r" <confidence> 0\.\d\d </confidence>", "", out) == text and out.count("</confidence>") == 4
    Path("tagged.md").write_text(out)
    assert run("tagged.md", "--about", "Ada")[1] == out
    assert re.findall(r"^given\.md:(\d+):", run("given.md", "--doubt", "1")[1], re.MULTILINE) == ["1", "3", "3", "3"]
    run("given.md", "--out", "given.jsonl")
    Path("text.jsonl").write_text(json.dumps({"text": text}))
    for name in ("given.jsonl", "text.jsonl"):
        rows = run(name, "--format", "jsonl", "--revise", "hedge", "--min_confidence", "1")[1]
        assert [s["text"] for s in json.loads(rows)["sentences"]] == sentences
        assert json.loads(rows)["meta"]["revised"].count("\n\n") == 1
    Path("written.jsonl").write_text(json.dumps({"answer": text}))
    [of_a_model] = [json.loads(row) for row in run("written.jsonl", "--format", "jsonl")[1].splitlines()]
    assert [s["text"] for s in of_a_model["sentences"]] == ["`. She died.", "It rained."]


def test_lines_to_doubt_are_those_of_the_file_also_by_paragraphs(run: Any) -> None:
    Path("life.md").write_text(DOCUMENT, encoding="utf-8")
    Path("more.txt").write_text("\n\nIt snowed.\r\n\r\n\r\nAnd\r\nso on.", encoding="utf-8")

    def places(*words: str) -> list[str]:
        _, out, _ = run(*words, "--doubt", "1")
        return re.findall(r"^(\S+): \[[\d.]+\] ", out, re.MULTILINE)

    for names in (["life.md"], ["life.md", "more.txt"]):
        assert places(*names, "--paragraphs", "--rows", "2") == places(*names)
    assert places("life.md", "--paragraphs") == [f"life.md:{line}" for line in (3, 3, 7, 15, 15)]


def test_sentences_of_html_have_their_numbers_since_its_lines_are_not_those_of_the_text(run: Any) -> None:
    Path("page.html").write_text(
        "<!doctype html>\n<html>\n<body>\n<h1>Ada</h1>\n\n<p>Ada wrote\nnotes.</p>\n<p>It rained.</p></body></html>"
    )
    for options, places in (
        ([], ["page.html:#2", "page.html:#3"]),
        (["--paragraphs"], ["page.html:2:#1", "page.html:3:#1"]),
    ):
        _, out, _ = run("page.html", "--doubt", "1", *options)
        assert re.findall(r"^(\S+): \[[\d.]+\] ", out, re.MULTILINE) == places


def test_html_in_markdown_stays_as_it_is_also_by_paragraphs(run: Any) -> None:
    html = "<div>\n<p>It is embedded.</p>\n</div>\nShe wrote in the same block."
    Path("embedded.md").write_text(f"It begins here.\n\n{html}\n\nIt ends here.")
    whole, alone = (run("embedded.md", "--doubt", "1", *words)[1] for words in ([], ["--paragraphs"]))
    assert [re.findall(r"^\S+:(\d+): \[", out, re.MULTILINE) for out in (whole, alone)] == [["1", "4", "6", "8"]] * 2
    assert json.loads(run("embedded.md", "--paragraphs", "--format", "jsonl")[1].splitlines()[1])["answer"] == html


def test_rows_of_html_have_numbers_of_sentences_and_the_others_lines(run: Any) -> None:
    html = "<div>\n\n<p>\nShe was born.\n</p>\n\n<p>She died.</p></div>"
    rows = [
        {"id": "h", "text": html},
        {"id": "h", "text": html},
        {"id": "t", "text": "One.\n\nTwo."},
        {"id": "a", "answer": f"Hm.\n</think>\n{html}"},
    ]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _, out, _ = run("rows.jsonl", "--doubt", "1")
    assert re.findall(r"^(\S+): \[[\d.]+\] ", out, re.MULTILINE) == [
        "h:#1", "h:#2", "h#2:#1", "h#2:#2", "t:1", "t:3", "a:#1", "a:#2",
    ]  # fmt: skip


def test_given_sentences_are_scored_whatever_they_look_like(run: Any) -> None:
    Path("own.jsonl").write_text(json.dumps({"question": "Q?", "sentences": [{"text": "# Not a heading"}]}) + "\n")
    _, line, _ = run("own.jsonl", "--format", "jsonl")
    assert json.loads(line)["sentences"][0]["score"] is not None


def test_doubt_shows_a_summary_and_just_the_sentences_below(run: Any) -> None:
    Path("life.md").write_text(DOCUMENT, encoding="utf-8")
    _, line, _ = run("life.md", "--format", "jsonl")
    confidences = {s["text"]: s["confidence"] for s in json.loads(line)["sentences"] if s["text"] in PROSE}
    middle = sorted(confidences.values())[2]
    limit = middle
    below = [text for text in PROSE if confidences[text] < limit]
    assert 0 < len(below) < 5
    code, out, err = run("life.md", "--doubt", repr(limit))
    first, *lines = out.splitlines()
    mean = sum(confidences.values()) / 5
    assert (code, err) == (0, "")
    share = 100 * len(below) / 5
    assert first == f"5 sentences, mean confidence {mean:.2f}, {len(below)} below {middle:g} ({share:.0f} %)"
    places = {"Ada wrote notes.": 3, "She was born in London.": 3, "She used an engine:": 7, "It rained.": 15,
              "It was late.": 15}  # fmt: skip
    assert lines == [f"life.md:{places[text]}: [{confidences[text]:.2f}] {text}" for text in below]
    _, rows, _ = run("life.md", "--doubt", repr(limit), "--format", "jsonl")
    record = json.loads(rows)
    assert [s["text"] for s in record["sentences"] if s["text"] in PROSE] == below
    assert len(record["sentences"]) == 3 + len(below)  # headings and code stay, as with --min_confidence
    assert record["meta"]["left_out"] == 5 - len(below)
    _, out, err = run("life.md", "--doubt", repr(limit), "--out", "doubts.jsonl")
    assert "doubts.jsonl: 1 record, 5 sentences, mean confidence" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--doubt", "0"], "--doubt is 0"),
        (["--doubt", "11"], "--doubt is 11.0, expected at least 0 and at most 1"),
        (["--doubt", "5"], "expected at least 0 and at most 1; 5 of 10 is 0.5"),
        (["--doubt", "0.5", "--format", "html"], "a page highlights them anyway"),
        (["--doubt", "0.5", "--min_confidence", "0.3"], "give one of them"),
        (["--doubt", "0.5", "--keep_factual", "0.9"], "give one of them"),
    ],
)
def test_doubts_that_cannot_be_shown_are_one_line(run: Any, words: list[str], message: str) -> None:
    code, out, err = run("page.txt", *words)
    assert code in (1, 2) and out == "" and message in err.splitlines()[-1]


def test_a_summary_comes_with_every_format(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary = r"5 sentences, mean confidence 0\.\d\d, \d below 0\.5 \(\d+ %\)"
    jsonl = ["page.txt", "--doubt", "0.5", "--format", "jsonl"]
    for words in (["page.txt"], ["page.txt", "--out", "o.jsonl"], ["page.txt", "--format", "html"], jsonl):
        assert main(["tag", *words, "--model", model, "--instruction", "Rate."]) == 0
        printed = capsys.readouterr()
        said = re.findall(summary, printed.out if "html" in words else printed.err)
        assert len(said) == 1, words
    Path("life.md").write_text(DOCUMENT, encoding="utf-8")
    assert main(["tag", "life.md", "--model", model, "--instruction", "Rate."]) == 0
    said = 'lovec: assuming that life.md is about "Ada Lovelace" (its heading); --about NAME changes that\n'
    assert said in capsys.readouterr().err


# Formats


def test_text_comes_back_with_tags(run: Any, session: Session) -> None:
    code, out, err = run("page.txt")
    assert (code, err) == (0, "")
    assert shown(out) == confident(session) and [text for text, _ in shown(out)] == SENTENCES
    assert re.sub(r" <confidence> [\d.]+ </confidence>", "", out) == PAGE  # line breaks and all


def test_the_stated_score_is_shown_where_it_is_asked_for(run: Any, session: Session) -> None:
    code, out, _ = run("page.txt", "--readout", "stated")
    assert code == 0 and parsed(out) == expected(session)
    code, out, _ = run("page.txt", "--readout", "stated", "--format", "jsonl")
    assert [(s["text"], round(10 * s["confidence"])) for s in json.loads(out)["sentences"]] == expected(session)


def test_every_output_says_the_same_number(run: Any, session: Session) -> None:
    numbers = [number for _, number in confident(session)]
    assert [number for _, number in shown(run("page.txt")[1])] == numbers
    sentences = json.loads(run("page.txt", "--format", "jsonl")[1])["sentences"]
    assert [f"{s['confidence']:.2f}" for s in sentences] == numbers
    assert re.findall(r'<sup class="lv-n"[^>]*>([\d.]+)', run("page.txt", "--format", "html")[1]) == numbers
    assert re.findall(r"\[([\d.]+)\]", run("page.txt", "--doubt", "1")[1]) == numbers
    _, out, _ = run("--ask", "Who was Ada?", "--max_new_tokens", "40")
    answered = lovec.tag(question="Who was Ada?", session=session, max_new_tokens=40)
    assert [n for _, n in shown(out)] == [f"{s['confidence']:.2f}" for s in answered["sentences"] if s["confidence"]]


def test_the_output_that_was_written_is_named(run: Any) -> None:
    for name in ("page.html", "tagged.txt", "tagged.jsonl"):
        _, _, err = run("page.txt", "--out", name)
        unit = "record" if name.endswith("jsonl") else "document"
        assert re.search(rf"^{name}: 1 {unit}, 5 sentences, mean confidence 0\.\d\d, ", err, re.MULTILINE), err
    assert "next: python -m webbrowser page.html " in run("page.txt", "--out", "page.html", "--redo")[2]


@pytest.mark.parametrize(
    ("name", "file"),
    [("Tags.JSONL", "Tags.jsonl"), *((name, name) for name in ("Tags.HTML", "Tags.Htm", "Tags.TXT", "Tags.MD"))],
)
def test_a_name_with_capitals_is_that_of_the_file(run: Any, name: str, file: str) -> None:
    before = {path.name for path in Path().iterdir()}
    code, _, err = run("page.txt", "--out", name)
    written = {path.name for path in Path().iterdir()} - before
    assert code == 0 and re.search(rf"^{file}: 1 ", err, re.MULTILINE), err
    assert {one for one in written if not re.search(r"\.lock$|\.manifest\.json$", one)} == {file}
    assert written - {file} <= {f".{file}.lock", "Tags.manifest.json"}


def test_tagging_a_tagged_text_again_changes_nothing(run: Any) -> None:
    Path("page.txt").write_text(f"# Life\n\n{PAGE}\n```\na = 1. B\n\nc\n```\nHe won. [1] She left.\n", encoding="utf-8")
    _, once, _ = run("page.txt")
    Path("tagged.txt").write_text(once, encoding="utf-8")
    assert run("tagged.txt") == (0, once, "")
    _, line, _ = run("tagged.txt", "--format", "jsonl")
    assert json.loads(line)["answer"] == Path("page.txt").read_text()


def test_a_question_can_be_given(run: Any, session: Session) -> None:
    for words, question in (
        (("--about", "Ada"), "In a paragraph, could you tell me what you know about Ada?"),
        (("--question", "Who was Ada?"), "Who was Ada?"),
        ((), "In a paragraph, could you tell me what you know about this topic?"),
    ):
        _, out, _ = run("page.txt", "--format", "jsonl", *words)
        assert json.loads(out)["question"] == question
        assert [s["score"] for s in json.loads(out)["sentences"]] == [
            score for _, score in expected(session, question=question)
        ]


def test_the_default_question_is_reported(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.jsonl").write_text('{"text": "It rained.", "question": "How was it?"}\n')
    line = 'lovec: taken to answer "In a paragraph, could you tell me what you know about this topic?"; '
    for words, times in (
        (["page.txt"], 1),
        (["own.jsonl", "page.txt"], 1),
        (["own.jsonl"], 0),
        (["page.txt", "--about", "Ada"], 0),
        (["page.txt", "--question", "Why?"], 0),
        (["--ask", "Why?", "--max_new_tokens", "2"], 0),
    ):
        capsys.readouterr()
        assert main(["tag", *words, "--model", model, "--instruction", "Rate."]) == 0
        said = capsys.readouterr().err
        assert said.count(line) == said.count("; scores are better if you say what the text is about: --about") == times


def test_several_documents_have_headings(run: Any, session: Session) -> None:
    Path("b.txt").write_text("It snowed.", encoding="utf-8")
    _, out, _ = run("page.txt", "b.txt", "--rows", "1")
    heads = re.findall(r"^==> (.*) <==$", out, re.MULTILINE)
    assert heads == ["page.txt", "b.txt"] and "\n\n==> b.txt <==\nIt snowed. <confidence>" in out
    _, out, _ = run("page.txt", "--paragraphs")
    assert re.findall(r"^==> (.*) <==$", out, re.MULTILINE) == ["page.txt:1", "page.txt:2"]
    first, _, second = out.partition("==> page.txt:2 <==")
    assert shown(second) == confident(session, PAGE.split("\n\n")[1]) and len(parsed(first)) == 2


def test_jsonl_is_read_by_every_other_stage(run: Any, session: Session) -> None:
    Path("a.jsonl").write_text(
        '{"text": "Ada wrote notes. It rained.", "question": "Who?", "id": "x"}\n{"text": "So."}\n'
    )
    _, out, _ = run("a.jsonl", "page.txt", "--format", "jsonl")
    Path("out.jsonl").write_text(out, encoding="utf-8")
    records = list(read_records("out.jsonl"))
    assert [record.id for record in records] == ["x", "a.jsonl:2", "page.txt"]
    assert [(s.text, s.score) for s in records[2].sentences] == expected(session)
    assert records[2].answer == PAGE and all(len(s.distribution or ()) == 11 for s in records[0].sentences)


def test_html_is_a_page_of_its_own(run: Any) -> None:
    code, out, _ = run("page.txt", "--out", "deep/page.html")
    html = Path("deep/page.html").read_text(encoding="utf-8")
    assert code == 0 and not out and html.startswith("<!doctype html>") and html.endswith("</html>\n")
    assert all(f">{text}<" in html for text in SENTENCES) and html.count("<article>") == 1
    assert [path.name for path in Path("deep").iterdir()] == ["page.html"]
    assert not re.search(r"(models\d+|llama).*/(models\d+|llama)/llama", html)  # no more of a path than its end


def test_a_page_is_there_whole_or_not_at_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("page.html").write_text("old", encoding="utf-8")
    monkeypatch.setattr("lovec.tagging.TextTagger.stream", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("page.txt", "--out", "page.html", "--redo")
    assert Path("page.html").read_text() == "old" and len(list(Path().iterdir())) == 2


@pytest.mark.parametrize("place", [0, 2, 5])
def test_low_confidences_are_left_out_in_every_format(run: Any, session: Session, place: int) -> None:
    whole = lovec.tag(PAGE, session=session)["sentences"]
    least = [*sorted(s["confidence"] for s in whole), 1.0][place]  # one that is just as high passes
    passes = [(s["text"], f"{s['confidence']:.2f}") for s in whole if s["confidence"] >= least]
    assert len(passes) == 5 - place
    line = f"lovec: {place} sentences below {least:g} left out\n"
    _, out, err = run("page.txt", "--min_confidence", repr(least))
    assert shown(out) == passes and err == line
    _, out, err = run("page.txt", "--min_confidence", repr(least), "--format", "jsonl")
    data = json.loads(out)
    assert [(s["text"], f"{s['confidence']:.2f}") for s in data["sentences"]] == passes and err == line
    assert (data["answer"], data["meta"]["left_out"]) == (PAGE, len(SENTENCES) - len(passes))
    _, out, err = run("page.txt", "--min_confidence", repr(least), "--format", "html")
    kept, _, left_out = out.partition("<details")
    assert [f">{text}<" in kept for text in SENTENCES] == [text in dict(passes) for text in SENTENCES]
    assert [f">{text}<" in left_out for text in SENTENCES] == [text not in dict(passes) for text in SENTENCES]
    assert f"Sentences below {least:g} are left out." in out
    assert "Confidence: mean of the score distribution, not calibrated." in out
    assert err == line


def test_standard_input_is_text_or_json_lines(run: Any, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, name in ((PAGE, "stdin"), (json.dumps({"text": PAGE}), "stdin:1")):
        for words in ((), ("-",)):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            _, out, _ = run(*words, "--format", "jsonl")
            data = json.loads(out)
            assert (data["id"], data["answer"]) == (name, PAGE)
            assert [s["score"] for s in data["sentences"]] == [score for _, score in expected(session)]


def test_questions_are_answered(run: Any, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("q.jsonl").write_text('{"question": "And Bob?", "id": "bob"}\n')
    words = ["--ask", "Who was Ada?", "--ask_file", "q.jsonl", "--max_new_tokens", "8"]
    code, out, err = run(*words, "--format", "jsonl")
    answered = [json.loads(line) for line in out.splitlines()]
    assert [record["id"] for record in answered] == ["question-1", "bob"]
    answers = [lovec.tag(question=q, session=session, max_new_tokens=8)["answer"] for q in ("Who was Ada?", "And Bob?")]
    assert [record["answer"] for record in answered] == answers
    assert code == 0 and "lovec: warning: question-1: the answer was cut off" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("q.jsonl").read_bytes())))
    code, out, _ = run("--ask_file", "-", *words[4:], "--format", "jsonl")
    assert code == 0 and json.loads(out) == answered[1]
    _, out, _ = run(*words)
    assert out.startswith("==> Who was Ada? <==\n") and "\n\n==> And Bob? <==\n" in out


def test_another_scale_and_other_tag_words_are_options(run: Any) -> None:
    words = ["page.txt", "--scale", '["no", "perhaps", "yes"]', "--tag_words", "[<c>, </c>]"]
    code, out, err = run(*words, "--readout", "stated")
    assert (code, err) == (0, "")
    tags = re.findall(r"<c> (no|perhaps|yes) </c>", out)
    assert len(tags) == len(SENTENCES) and re.sub(r" <c> \w+ </c>", "", out) == PAGE
    code, out, _ = run(*words, "--format", "jsonl")
    sentences = json.loads(out)["sentences"]
    assert [("no", "perhaps", "yes")[s["score"]] for s in sentences] == tags
    assert all(s["levels"] == len(s["distribution"]) == 3 for s in sentences)
    means = [
        sum(level * p for level, p in enumerate(s["distribution"])) / sum(s["distribution"]) / 2 for s in sentences
    ]
    assert [s["confidence"] for s in sentences] == pytest.approx(means)
    numbers = [f"{s['confidence']:.2f}" for s in sentences]
    assert re.findall(r"<c> (\S+) </c>", run(*words)[1]) == numbers


def test_an_engine_can_be_a_class_with_options(run: Any, session: Session) -> None:
    engine = ["--engine", "lovec.engines.TransformersEngine", "--engine.max_rows", "2"]
    assert shown(run("page.txt", *engine)[1]) == confident(session)
    code, _, err = run("page.txt", *engine[:2], "--engine.max_rows", "0")
    assert code == 1 and "max_rows is 0" in err


@pytest.mark.parametrize("options", [[], ["--engine.max_rows", "2"]])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.Bare", "--engine is mine.Bare, which is not an Engine: expected methods with these names and types: "),
        ("mine.Bear", "there is no Bear in mine; did you mean Bare?"),
        ("nofile.Bare", "cannot import nofile.Bare: No module named 'nofile'"),
        ("broken.Bare", "broken.py, line 1: ModuleNotFoundError: No module named 'nothing'; install the package"),
    ],
)
@pytest.mark.parametrize("command", [["tag", "page.txt"], ["serve"]])
def test_a_class_that_is_no_engine_is_named(
    here: Path, model: str, capsys: Any, command: list[str], name: str, said: str, options: list[str]
) -> None:
    Path("mine.py").write_text("class Bare:\n    def __init__(self, max_rows: int = 1): ...\n")
    Path("broken.py").write_text("import nothing\n")
    try:
        code, line = error_of(capsys, *command, "--model", model, "--engine", name, *options)
    finally:
        sys.modules.pop("mine", None)
    assert code == 2 and line.startswith(said), line


# Warnings and errors


def test_the_world_warns_that_it_does_not_know_the_words(
    here: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    world = ensure_built("mini", MINI, tmp_path_factory.mktemp("world"), progress=False) / "model"
    capsys.readouterr()
    assert main(["tag", "page.txt", "--model", str(world)]) == 0
    printed = capsys.readouterr()
    warnings = [line for line in printed.err.splitlines() if line.startswith("lovec: warning: ")]
    assert len(warnings) == 1 and re.match(r"lovec: warning: page\.txt: the model does not know \d\d % of", warnings[0])
    assert len(parsed(printed.out)) == len(SENTENCES)
    Path("many.jsonl").write_text('{"text": "Zebras graze."}\n' * 5)
    assert main(["tag", "many.jsonl", "--model", str(world)]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: warning: ")]
    assert len(warnings) == 4 and warnings[3].startswith("lovec: warning: 2 documents more have problems")


def test_a_text_longer_than_the_context_is_named_and_tagged(run: Any) -> None:
    Path("long.txt").write_text(f"Ada wrote {'notes ' * 80}again. " * 10 + "\n\nShort.", encoding="utf-8")
    code, out, err = run("long.txt")
    assert code == 0 and len(err.splitlines()) == 1
    assert re.match(
        r"lovec: warning: long\.txt: the text is longer than .* sentence \d+ on, .* \(--paragraphs tags", err
    )
    assert len(parsed(out)) == 11
    code, out, err = run("long.txt", "--out", "page.html")
    assert code == 0 and Path("page.html").read_text().count("the text is longer than") == 1


@pytest.mark.parametrize("words", ["--out a.jsonl", "--format jsonl", "--out a.html", "--out a.txt"])
def test_progress_counts_the_sentences_of_a_long_text(run: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lovec.cli.progress.EVERY", 0.0)
    Path("page.txt").write_text(f"# Ada\n\n{PAGE}")  # a heading is not counted, as in the summary
    _, _, err = run("page.txt", *words.split())
    line = r"^lovec: tag: 0 records, (\d) sentences?; (?:\d+ sentences?/s|[\d.]+ s/sentence)$"
    counts = [int(n) for n in re.findall(line, err, re.MULTILINE)]
    assert [*dict.fromkeys(counts)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0.25, "4 records/s"), (1.0, "1 record/s"), (6.0, "6 s/record"), (90.0, "1.5 min/record")]
)
def test_progress_has_a_rate_that_is_not_0_and_its_last_line_once(
    seconds: float, rate: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("lovec.cli.progress.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("lovec.cli.progress.EVERY", 0.0)
    lines = ProgressLines("answers", None)
    lines(Progress("answers", 3, 3, {}))
    now = 2 * seconds
    lines(Progress("answers", 5, 3, {}))
    now += 1
    lines.end()
    assert capsys.readouterr().err.splitlines() == [
        "lovec: answers: 3 records",
        f"lovec: answers: 5 records; {rate}",
    ]


def test_a_sentence_longer_than_the_context_is_named(run: Any) -> None:
    Path("long.txt").write_text(f"Ada wrote. She wrote {'notes ' * 800}again. It rained.", encoding="utf-8")
    code, out, err = run("long.txt", "--format", "jsonl")
    record = json.loads(out)
    assert code == 0 and err.startswith("lovec: warning: long.txt: the text is longer than ")
    assert [s["score"] is None for s in record["sentences"]] == [False, True, False]
    assert len(record["meta"]["problems"]) == 2 and record["meta"]["problems"][1].startswith("sentence 2: with the ")


def test_many_rows_without_a_text_are_one_line_with_an_example(run: Any) -> None:
    Path("a.csv").write_text("\n".join(["text,n", "Ada wrote.,0", *(f",{at}" for at in range(1, 200))]), "utf-8")
    code, _, err = run("a.csv")
    warnings = [line for line in err.splitlines() if "left out" in line]
    assert code == 1 and "lovec: error: 199 of the input's lines or files could not be read" in err
    assert warnings == [
        "lovec: warning: a.csv:3: has no 'text', 'answer' or 'sentences' to tag; use --ask_file to have questions "
        "answered; left out, and 198 lines or files more like it"
    ]
    Path("a.csv").write_text("text,n\nAda wrote.,0\n,1\n,2\n", "utf-8")
    assert "left out, and 1 line or file more like it\n" in run("a.csv")[2]
    Path("b.csv").write_text("n\n1\n2\n3\n", "utf-8")
    code, _, err = run("b.csv")
    assert code == 1 and err.count("b.csv:2: has no 'text'") == 1 and "b.csv:3" not in err
    assert "lovec: error: there is nothing to tag in b.csv" in err


def test_rows_of_trainers_are_tagged(run: Any) -> None:
    rows = [
        {"prompt": "Who?", "completion": "Ada wrote."},
        {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It rained."}]},
        {"question": "Who?", "response": "She ran."},
    ]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run("a.jsonl", "--format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [record["question"] for record in found] == ["Who?"] * 3
    assert [record["answer"] for record in found] == ["Ada wrote.", "It rained.", "She ran."]


def test_a_pipe_that_nobody_writes_to_is_refused(run: Any) -> None:
    os.mkfifo("pipe.txt")
    code, _, err = run("pipe.txt")
    assert code == 1 and "cannot read pipe.txt (a pipe or a device, which cannot be read twice)" in err


def test_a_broken_line_costs_itself_only(run: Any) -> None:
    Path("a.jsonl").write_text('{"text": "Ada wrote."}\n{"text": oops}\n{"text": "It rained."}\n')
    for words in ((), ("--out", "b.jsonl")):
        code, out, err = run("a.jsonl", *words)
        assert code == 1 and "lovec: warning: a.jsonl:2: not valid JSON" in err
        assert err.endswith("lovec: error: 1 of the input's lines or files could not be read; all others are tagged\n")
        written = Path("b.jsonl").read_text() if words else out
        assert "Ada wrote." in written and "It rained." in written


@pytest.mark.parametrize("shard", [(), ("--shard", "1/2"), ("--shard", "2/2")])
def test_a_finished_file_still_lacks_the_lines_that_cannot_be_read(run: Any, shard: Sequence[str]) -> None:
    Path("in.jsonl").write_text(lines(3) + '{"id": "empty"}\nnot json\n')
    words = ["in.jsonl", "--out", "tags.jsonl", *shard]
    (first, _, err), (again, _, said) = run(*words), run(*words)
    warnings = [line for line in err.splitlines() if "warning" in line]
    assert first == again == 1 and len(warnings) == 2
    assert [line for line in said.splitlines() if "warning" in line] == warnings
    error = "lovec: error: 2 of the input's lines or files could not be read; all others are tagged"
    assert err.splitlines()[-1] == said.splitlines()[-1] == error


def test_looking_at_the_cost_counts_no_line_twice(run: Any) -> None:
    Path("in.jsonl").write_text(lines(2) + "not json\n")
    _, _, err = run("in.jsonl", "--out", "tags.jsonl", "--method", "likelihood", "--about", "Ada")
    assert "lovec: error: 1 of the input's lines" in err and "more" not in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.txt"], 1, "cannot read nowhere.txt (No such file or directory)"),
        (["."], 1, "cannot read . (Is a directory)"),
        (["empty.txt"], 1, "there is nothing to tag in empty.txt"),
        (["bad.jsonl"], 1, "there is nothing to tag in bad.jsonl"),
        (
            ["page.txt", "--min_score", "7"],
            2,
            "min_score is now min_confidence, a confidence from 0 to 1: --min_confid",
        ),
        (["page.txt", "--min-score=3"], 2, "from 0 to 1: --min_confidence 0.3"),
        (["page.txt", "--min_confidence", "7"], 1, "expected at least 0 and at most 1; 7 of 10 is 0.7"),
        (["page.txt", "--min_confidence", "high"], 2, "--min_confidence is high, expected a number"),
        (["page.txt", "--keep_factual", "0.9"], 1, "there is no threshold for iterative tagging with this model"),
        (["page.txt", "--out", "out.pdf"], 2, "--out is out.pdf, expected a name that ends in .jsonl, .html, "),
        (["page.txt", "--out", "folder.txt"], 2, "--out is folder.txt, which is a folder"),
        (["page.txt", "--out", "empty.txt/x.html"], 1, "cannot write into empty.txt (File exists)"),
        (["page.txt", "--rows", "0"], 1, "--rows is 0, expected at least 1"),
        (["page.txt", "--rows", "0", "--out", "x.jsonl"], 1, "--rows is 0, expected at least 1"),
        (["page.txt", "--fromat", "html"], 2, "unknown option --fromat; did you mean --format?"),
        (["page.txt", "--format", "pdf"], 2, "--format is pdf, expected 'text' or 'jsonl' or 'html'"),
        (["page.txt", "--ask", "Who?"], 2, "they take no FILE"),
        (["page.txt", "--about", "A", "--question", "B"], 2, "give one of them"),
        (["page.txt", "--samples", "3"], 2, "--samples works only with --method self_consistency or luq"),
        (["page.txt", "--actors", "3"], 1, "--actor_cpus and --actor_gpus need --on ray"),
        (["page.txt", "--hedge_phrase", "So: {sentence}"], 2, "--hedge_phrase needs --revise hedge"),
        (["page.txt", "--redo"], 2, "--redo is of a file that --out names"),
        (["page.txt", "--format", "jsonl", "--out", "x.txt"], 2, "expected a name that ends in .jsonl"),
        (["page.txt", "--adapter", "runs/dpo/adapter"], 1, "make it with: lovec fit --config dpo.yaml"),
        (["page.txt", "--engine", "tgi"], 1, "the engine is 'tgi', expected one of transformers, vllm"),
    ],
)
def test_one_line_errors(run: Any, words: list[str], code: int, message: str) -> None:
    Path("empty.txt").write_text(" \n")
    Path("bad.jsonl").write_text("{oops\n")
    Path("folder.txt").mkdir()
    exit_code, out, err = run(*words)
    errors = [line for line in err.splitlines() if line.startswith("lovec: error: ")]
    assert exit_code == code and not out and message in errors[0] and err.splitlines()[-1:] == errors


def test_a_guarantee_of_a_built_in_model_is_refused_before_it_is_loaded(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lovec.cli.tag.open_session", None)
    assert main(["tag", "page.txt", "--model", "tiny-llama", "--keep_factual", "0.9"]) == 1
    assert "there is no threshold for iterative tagging with this model" in capsys.readouterr().err


def test_without_a_text_on_a_terminal_the_error_says_what_to_do(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run()[0] == 2
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert "no text is given; name a FILE, pipe a text in, or --ask a question" in run()[2]


def test_the_error_without_a_model_gives_an_example(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "page.txt"]) == 1
    assert "`--adapter atlas` (extra real)" in capsys.readouterr().err


# Going on after a kill


def lines(n: int) -> str:
    return "".join(json.dumps({"id": f"d{i}", "text": f"Ada wrote note {i}. It rained."}) + "\n" for i in range(n))


def test_a_run_killed_ten_times_gives_the_file_of_an_undisturbed_run(run: Any) -> None:
    Path("in.jsonl").write_text(lines(60) + "{oops\n" + lines(1).replace("d0", "last"))
    words = ["in.jsonl", "--rows", "3", "--out"]
    assert run(*words, "whole.jsonl")[0] == 1

    def dying(call: str, at: int) -> Callable[[], int]:
        """A run that a signal kills at one of its calls that make things last."""

        def work() -> int:
            kill_at_call(os, call, at)
            return int(run(*words, "out/tags.jsonl")[0])

        return work

    for number in range(10):
        assert in_child(dying("fsync" if number % 3 else "replace", at=2 + number // 2)) == -signal.SIGKILL
        if Path("out/tags.jsonl").exists():
            with open("out/tags.jsonl", "a") as file:
                file.write('{"id": "half a li')  # as a kill in the middle of a write leaves it
    assert run(*words, "out/tags.jsonl")[0] == 1
    assert Path("out/tags.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert [record.id for record in read_records("whole.jsonl")] == [*(f"d{i}" for i in range(60)), "last"]


def test_a_finished_file_needs_no_model_and_is_not_mixed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.jsonl").write_text(lines(5))
    code, out, err = run("in.jsonl", "--out", "tags.jsonl")
    assert (code, out) == (0, "") and "tags.jsonl: 5 records, 10 sentences, mean" in err
    whole = Path("tags.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("lovec.taggers.open_session", None)
        assert run("in.jsonl", "--out", "tags.jsonl")[0] == 0
    state = json.loads(Path("tags.manifest.json").read_text())
    del state["identity"]["settings"]["min_confidence"]
    state["identity"]["settings"]["min_score"] = None  # the name that the option once had
    Path("tags.manifest.json").write_text(json.dumps(state))
    assert run("in.jsonl", "--out", "tags.jsonl")[0] == 0
    for words, name in ((["--min_confidence", "0.3"], "min_confidence"), (["--question", "Who?"], "question")):
        code, _, err = run("in.jsonl", "--out", "tags.jsonl", *words)
        assert code == 1 and f"was made with other settings: {name} was " in err
        assert "give --redo to make it again, or another --out\n" in err
    Path("in.jsonl").write_text(lines(6))
    code, _, err = run("in.jsonl", "--out", "tags.jsonl")
    assert code == 1 and "was made with another input (files was " in err and Path("tags.jsonl").read_bytes() == whole
    assert run("in.jsonl", "--out", "tags.jsonl", "--redo")[0] == 0
    assert len(Path("tags.jsonl").read_text().splitlines()) == 6


def test_two_runs_do_not_write_one_file(run: Any) -> None:
    from filelock import FileLock

    with FileLock(".tags.jsonl.lock"):
        code, _, err = run("page.txt", "--out", "tags.jsonl")
    assert code == 1 and "another run writes tags.jsonl" in err and not Path("tags.jsonl").exists()


def test_a_reader_may_close_the_pipe_early(here: Path, model: str) -> None:
    Path("in.jsonl").write_text(lines(2000))
    reader, writer = os.pipe()

    def work() -> int:
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)
        sys.stdout, sys.stderr = open(1, "w"), open("errors.txt", "w")
        code = main(["tag", "in.jsonl", "--rows", "4", "--model", model, "--instruction", "Rate."])
        sys.stderr.flush()
        return code

    def enough() -> None:
        os.close(writer)
        first = os.read(reader, 100)
        os.close(reader)
        assert first.startswith(b"==> d0 <==\n")

    assert in_child(work, meanwhile=enough) == 0
    assert "rror" not in Path("errors.txt").read_text()


# Printing


class File(io.StringIO):
    """A file that may be a terminal, and knows what it held whenever it was flushed."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def records(*scores: Sequence[int | None]) -> list[Record]:
    made = []
    for number, row in enumerate(scores):
        sentences = tuple(
            Sentence(f"Sentence {number}.{i}.", confidence=None if s is None else s / 10, score=s)
            for i, s in enumerate(row)
        )
        made.append(Record(f"doc{number}", "Who?", answer="\n\n".join(s.text for s in sentences), sentences=sentences))
    return made


def from_score(least: int | None) -> Callable[[Sentence], bool]:
    """A rule that keeps sentences with this score or a higher one."""
    return lambda sentence: least is None or (sentence.score is not None and sentence.score >= least)


def printed(tagged: list[Record], order: Sequence[int], **options: Any) -> str:
    file = File()
    printer = Printer(file, DEFAULT_TAGS, headings=True, **options)
    printer.begin(tagged)
    waiting = [list(items_of(record, number))[:-1] for number, record in enumerate(tagged)]
    early = [waiting[number].pop(0) for number in order if waiting[number]]
    for item in chain(early, *waiting, tagged):  # the documents end at the end
        printer.add(item)
    return file.getvalue()


def test_a_heading_is_one_line_that_does_not_steer_the_terminal() -> None:
    for asking in (False, True):
        record = Record("\x1b]0;owned", "Who?\x1b[2J\x1b[31m\nsecond line" + 300 * "x", answer="It is. ")
        text = printed([record], [], asking=asking)
        (heading,) = [line for line in text.splitlines() if line]
        assert heading.startswith("==> Who?\ufffd[2J\ufffd[31m second" if asking else "==> \ufffd]0;owned <==")
        assert "\x1b" not in text and heading.endswith(" <==") and len(heading) <= 208


@given(
    scores=st.lists(st.lists(st.sampled_from([None, 0, 5, 10]), max_size=4), min_size=1, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=20),
    least=st.sampled_from([None, 0, 6]),
)
def test_the_output_does_not_depend_on_which_document_is_done_first(
    scores: list[list[int | None]], order: list[int], least: int | None
) -> None:
    tagged = records(*scores)
    keeps = from_score(least)
    text = printed(tagged, [number for number in order if number < len(tagged)], keeps=keeps)
    assert text == printed(tagged, [], keeps=keeps)
    assert re.findall(r"==> (\w+) <==", text) == [record.id for record in tagged]
    kept = [s.score for record in tagged for s in record.sentences if keeps(s)]
    assert text.count("Sentence") == len(kept)
    assert [number for _, number in shown(text)] == [f"{score / 10:.2f}" for score in kept if score is not None]


def test_sentences_are_printed_when_it_is_their_turn() -> None:
    file = File()
    tagged = records([1, 2], [3])
    printer = Printer(file, DEFAULT_TAGS)
    printer.begin(tagged)
    [first, second, one], [other, two] = (list(items_of(record, number)) for number, record in enumerate(tagged))
    printer.add(other)
    assert file.getvalue() == ""
    for _ in range(2):  # what is known already is not printed once more
        printer.add(first)
        assert file.getvalue() == "Sentence 0.0. <confidence> 0.10 </confidence>"
    for item in (second, one, other, two):
        printer.add(item)
    assert file.getvalue().endswith(
        "\n\nSentence 0.1. <confidence> 0.20 </confidence>\nSentence 1.0. <confidence> 0.30 </confidence>\n"
    )


@pytest.mark.parametrize("readout", [None, "stated"])
def test_an_answer_has_its_line_breaks_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readout: Any
) -> None:
    texts = ["Ada wrote notes.", "\n\nThis:\n\n- It rained.", "\n  - It was late.", " She died."]
    tags = [f" <confidence> {score} </confidence>" for score in (9, 1, 8, 7)]
    answer = "".join(f"{text}{tag}" for text, tag in zip(texts, tags, strict=True)).replace("> She", ">She") + "\nAnd"
    file, seen = File(), [""]
    with scripted(tmp_path, answer) as session:
        generate = session.engine.generate

        def watched(*args: Any, on_token: Any = None, **named: Any) -> Any:
            def on_each(*place: int) -> bool:
                seen.append(re.sub(r" <confidence> [\d.]+ </confidence>", "", file.getvalue()))
                return on_token is None or on_token(*place)

            return generate(*args, on_token=on_each, **named)

        monkeypatch.setattr(session.engine, "generate", watched)
        tagger, asked = TextTagger(session, readout, 400), [Record("r", "Who was Ada?")]
        tagger.live = True
        printer = Printer(file, session.encoder.tags, asking=True, stated=readout == "stated")
        printer.begin(asked)
        for item in tagger.stream(asked, "free-form", printer.add if readout == "stated" else None):
            printer.add(item)
    assert list(dict.fromkeys(seen)) == ["".join(texts[:number]) for number in range(5)]  # each before the next one
    assert re.sub(r" <confidence> [\d.]+ </confidence>", "", file.getvalue()) == "".join(texts) + "\nAnd\n"


def test_items_of_a_list_keep_their_indentation() -> None:
    (one,) = records([8, 1, 9, 7])
    one = replace(one, answer="Sentence 0.0.\n  Sentence 0.1. Sentence 0.2.\n\n\t Sentence 0.3.")
    assert [line.partition("Sent")[0] for line in printed([one], []).splitlines()[1:]] == ["", "  ", "", "\t "]
    kept = printed([one], [], keeps=from_score(5))
    assert [line.partition("Sent")[0] for line in kept.splitlines()[1:]] == ["", "", "", "\t "]


def test_a_blank_line_survives_a_sentence_that_is_left_out() -> None:
    (one,) = records([8, 1, 9])
    one = replace(one, answer="Sentence 0.0.\n\nSentence 0.1. Sentence 0.2.")
    assert "</confidence>\n\nSentence 0.2." in printed([one], [], keeps=from_score(5))
    assert "</confidence>\n\nSentence 0.1. <confidence> 0.10 </confidence> Sentence 0.2." in printed([one], [])


def test_colour_is_for_terminals_that_want_it_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def output(terminal: bool, stated: bool = False, **environment: str) -> str:
        for name in ("NO_COLOR", "TERM", "FORCE_COLOR", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        file = File(terminal)
        printer = Printer(file, DEFAULT_TAGS, stated=stated)
        printer.begin(records([1]))
        for item in items_of(*records([1])):
            printer.add(item)
        return file.getvalue()

    assert output(False) == "Sentence 0.0. <confidence> 0.10 </confidence>\n"
    assert output(True, NO_COLOR="1") == output(True, TERM="dumb") == "Sentence 0.0. [0.10]\n"
    assert re.fullmatch(r"\x1b\[4;\d+mSentence 0\.0\.\x1b\[0m \x1b\[1m\[0\.10\]\x1b\[0m\n", output(True))
    stated = "Sentence 0.0. <confidence> 1 </confidence>\n"
    assert output(False, stated=True) == output(True, stated=True, NO_COLOR="1") == stated
    assert re.sub(r"\x1b\[[\d;]*m", "", output(True, stated=True)) == stated


def test_a_tag_is_written_only_if_it_can_be_parsed_again() -> None:
    sentence = Sentence("A.", confidence=0.64, score=7)
    assert with_tag(sentence, DEFAULT_TAGS) == "A. <confidence> 0.64 </confidence>"
    assert with_tag(sentence, DEFAULT_TAGS, stated=True) == "A. <confidence> 7 </confidence>"
    assert with_tag(Sentence("A."), DEFAULT_TAGS) == "A."
    assert with_tag(Sentence("A <c> b", confidence=0.7, score=7), TagFormat("<c>", "</c>")) == "A <c> b"


def test_the_command_is_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert re.search(r"^  tag +give the sentences of any text", capsys.readouterr().out, re.MULTILINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert main(["tag", "--help"]) == 0
    assert "--min_confidence" in capsys.readouterr().out


# Revised texts


@pytest.fixture
def threshold(session: Session) -> float:
    """A confidence below which two of the sentences of the page lie."""
    return sorted(s["confidence"] for s in lovec.tag(PAGE, session=session)["sentences"])[2]


def doubted_in(session: Session, threshold: float) -> list[str]:
    return [s["text"] for s in lovec.tag(PAGE, session=session)["sentences"] if s["confidence"] < threshold]


@pytest.mark.parametrize("how", ["drop", "hedge"])
def test_a_revised_text_is_the_same_in_every_format(run: Any, session: Session, threshold: float, how: str) -> None:
    words = ["page.txt", "--revise", how, "--min_confidence", repr(threshold)]
    doubted = doubted_in(session, threshold)
    code, out, err = run(*words)
    assert code == 0 and "confidence>" not in out and not re.search(r"\d", out)
    verb, what = (
        ("left out", "the remaining text") if how == "drop" else ("hedged", "the sentences that are not hedged")
    )
    assert err.splitlines() == [
        f"lovec: min_confidence gives no guarantee about {what}; keep_factual does.",
        f"lovec: 2 sentences below {threshold:g} {verb}",
    ]
    assert [text in out for text in SENTENCES] == [
        (how == "hedge" and text[0] != "-") or text not in doubted for text in SENTENCES
    ]
    _, line, _ = run(*words, "--format", "jsonl")
    record = json.loads(line)
    assert record["meta"]["revised"] == out and record["answer"] == PAGE
    action = "dropped" if how == "drop" else "hedged"
    assert [s["revision"] for s in record["sentences"]] == [action if t in doubted else "kept" for t in SENTENCES]
    assert all(s["confidence"] is not None for s in record["sentences"])
    assert record["meta"]["left_out" if how == "drop" else "hedged"] == 2
    _, page, _ = run(*words, "--format", "html")
    kept, _, left_out = page.partition("<details")
    assert f"Sentences below {threshold:g} are {'left out' if how == 'drop' else 'worded as uncertain'}." in page
    assert kept.count("unconfirmed: ") + kept.count("This is ") == (0 if how == "drop" else 2)
    assert [f">{text}<" in left_out for text in SENTENCES] == [how == "drop" and t in doubted for t in SENTENCES]
    python = lovec.tag(PAGE, session=session, revise=how, min_confidence=threshold)
    assert python["meta"]["revised"] == out


def test_texts_of_every_origin_are_revised(
    run: Any, session: Session, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ["--min_confidence", repr(threshold)]
    _, plain, _ = run("page.txt", "--revise", "drop", *limit)
    _, tags, _ = run("page.txt")
    Path("tagged.txt").write_text(tags, encoding="utf-8")
    assert run("tagged.txt", "--revise", "drop", *limit)[1] == plain
    Path("rows.jsonl").write_text(json.dumps({"text": PAGE, "id": "a"}) + '\n{"text": "It rained.", "id": "b"}\n')
    _, out, _ = run("rows.jsonl", "--revise", "hedge", *limit)
    assert out.startswith("==> a <==\n") and "\n\n==> b <==\n" in out and out.endswith("It rained.\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PAGE.encode())))
    assert run("--revise", "drop", *limit)[1] == plain
    assert run("page.txt", "--revise", "drop", "--min_confidence", "0")[1] == PAGE
    Path("open.txt").write_text("It rained. It was late.", encoding="utf-8")  # without a line break at its end
    assert run("open.txt", "--revise", "drop", "--min_confidence", "0")[1] == "It rained. It was late."
    code, out, _ = run("--ask", "Who was Ada?", "--max_new_tokens", "30", "--revise", "drop", "--min_confidence", "0")
    answered = lovec.tag(question="Who was Ada?", session=session, max_new_tokens=30)["sentences"]
    assert code == 0 and out.split() == [w for s in answered if s["confidence"] is not None for w in s["text"].split()]
    _, line, _ = run("page.txt", "--method", "p_true", "--revise", "drop", "--min_confidence", "1", "--format", "jsonl")
    assert json.loads(line)["meta"]["revised"] == "" and len(json.loads(line)["sentences"]) == 5


def test_a_revised_file_knows_how_it_was_revised(run: Any, threshold: float) -> None:
    Path("two.jsonl").write_text(json.dumps({"text": PAGE}) + '\n{"text": "It rained."}\n')
    words = ["two.jsonl", "--min_confidence", repr(threshold), "--out", "out.jsonl"]
    code, _, err = run(*words, "--revise", "drop", "--rows", "1")
    whole = Path("out.jsonl").read_text()
    assert code == 0 and "2 records" in err
    for other in ([], ["--revise", "hedge"], ["--revise", "hedge", "--hedge_phrase", "So: {sentence}"]):
        code, _, err = run(*words, *other)
        assert code == 1 and "revise" in err and Path("out.jsonl").read_text() == whole
    lines = whole.splitlines(keepends=True)
    run("out.jsonl", "--out", "again.jsonl")  # what an earlier run said of a text is not passed on
    again = [json.loads(line) for line in Path("again.jsonl").read_text().splitlines()]
    assert not any("revised" in record["meta"] or "left_out" in record["meta"] for record in again)
    assert not any("revision" in s for record in again for s in record["sentences"])
    for number in (1, 2):
        run(*words[:-1], "shard.jsonl", "--revise", "drop", "--rows", "1", "--shard", f"{number}/2")
    assert [Path(f"shard.shard-{n}-of-2.jsonl").read_text() for n in (1, 2)] == lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--revise", "drop"], "--revise drop needs min_confidence or keep_factual"),
        (["--revise", "cut", "--min_confidence", "0.5"], "revise"),
        (["--revise", "drop", "--doubt", "0.5"], "--revise drop needs min_confidence or keep_factual"),
        (["--hedge_phrase", "So: {sentence}", "--min_confidence", "0.5"], "--hedge_phrase needs --revise hedge"),
        (["--revise", "hedge", "--hedge_phrase", "So:", "--min_confidence", "0.5"], "expected {sentence} once in it"),
        (["--revise", "drop", "--keep_factual", "0.9"], "keep_factual is 0.9, and there is no threshold"),
    ],
)
def test_what_cannot_be_revised_is_one_line(run: Any, words: Sequence[str], said: str) -> None:
    code, out, err = run("page.txt", *words)
    assert code in (1, 2) and not out and said in err


# Clauses

LIFE = "Ada wrote notes. She was born in London and moved to Paris, where she died. It rained."
CLAUSES = ["Ada wrote notes.", "She was born in London", "and moved to Paris,", "where she died.", "It rained."]


def test_clauses_have_confidences_and_so_have_their_sentences(run: Any, session: Session) -> None:
    Path("life.txt").write_text(LIFE, encoding="utf-8")
    _, line, _ = run("life.txt", "--unit", "clause", "--format", "jsonl")
    record = json.loads(line)
    assert [(s["text"], s["part_of"]) for s in record["sentences"]] == list(zip(CLAUSES, [0, 1, 1, 1, 2], strict=True))
    by_clause = [s["confidence"] for s in record["sentences"]]
    sentences = record["meta"]["sentence_confidences"]
    assert sentences.keys() == {"0", "1", "2"} and sentences["0"] == by_clause[0] and sentences["2"] == by_clause[4]
    assert sentences["1"] == joint_confidence(by_clause[1:4]) < min(by_clause[1:4])
    _, out, _ = run("life.txt", "--unit", "clause")
    assert out.count("[sentence ") == 1
    Path("tagged.txt").write_text(out, encoding="utf-8")
    before, after = out.split(f" [sentence {sentences['1']:.2f}]")
    assert run("tagged.txt", "--unit", "clause")[1] == before + after
    assert [text for text, _ in shown(before)] == CLAUSES[:4] and [text for text, _ in shown(after)] == CLAUSES[4:]
    assert re.sub(r" <confidence> 0\.\d\d </confidence>", "", before + after).strip() == LIFE
    _, page, _ = run("life.txt", "--unit", "clause", "--format", "html")
    assert page.count('<span class="lv-s') - page.count("<li><span") == 5
    assert page.count(f'<sup class="lv-n">sentence {sentences["1"]:.2f}</sup>') == page.count(">sentence ") == 1
    python = lovec.tag(LIFE, session=session, unit="clause")
    assert [s["text"] for s in python["sentences"]] == CLAUSES


def test_tagged_clauses_are_tagged_again_as_they_are(run: Any) -> None:
    Path("life.txt").write_text(LIFE, encoding="utf-8")
    run("life.txt", "--unit", "clause", "--out", "first.jsonl")
    run("first.jsonl", "--unit", "clause", "--out", "again.jsonl")
    run("first.jsonl", "--out", "own.jsonl")
    first, again, own = (Path(f"{name}.jsonl").read_text() for name in ("first", "again", "own"))
    assert first == again == own
    code, _, err = run("life.txt", "--out", "first.jsonl")
    assert code == 1 and "unit" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ask", "Who?", "--unit", "clause"], "--unit clause works on given texts only; answer the questions first"),
        (["page.txt", "--unit", "clause", "--keep_factual", "0.9"], "--keep_factual has a threshold for sentences"),
    ],
)
def test_what_clauses_cannot_have_is_refused(run: Any, words: Sequence[str], said: str) -> None:
    code, _, err = run(*words)
    assert code == 2 and said in err
