"""`lovec tag --method`: baselines on texts of one's own, with any model and no adapter."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from tinynli import tiny_nli

import lovec
from lovec.baselines import WORLD_WORDING, BaselineResources, NLIJudge, Samples, Wording
from lovec.cli import main
from lovec.cli.printer import with_tag
from lovec.datasets.jsonl import read_records
from lovec.encoding import Encoder
from lovec.taggers import Session, open_session
from lovec.taggers.session import SETTINGS, settings_file
from lovec.tagging import SAMPLED, ApiModel, ApiTagger, Method, MethodTagger
from lovec.tagging.methods import baseline_of
from lovec.tags import DEFAULT_TAGS
from lovec.types import LovecError, Record, Scale, Sentence

METHODS = get_args(Method)
LIFE = "# Ada Lovelace\n\nAda wrote notes. She was born in London.\n\n## Work\n\nShe used an engine. It rained.\n"
PROSE = ["Ada wrote notes.", "She was born in London.", "She used an engine.", "It rained."]
QUESTION = "In a paragraph, could you tell me what you know about Ada Lovelace?"
SHORT = ("--samples", "2", "--max_new_tokens", "6")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a text in it."""
    monkeypatch.chdir(tmp_path)
    Path("life.md").write_text(LIFE, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def session(model: str) -> Session:
    return open_session(model)


@pytest.fixture
def run(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command on the tiny model."""
        capsys.readouterr()
        code = main(["tag", *words, "--model", model])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def expected(session: Session, method: Method) -> list[float | None]:
    """The confidences that a test of the baseline gives the prose."""
    baseline = baseline_of(method, 2, None)
    samples = Samples(max_new_tokens=6)
    baseline.attach(BaselineResources(session.engine, session.encoder, Wording(), samples))
    record = Record("life.md", QUESTION, sentences=tuple(map(Sentence, PROSE)))
    return [sentence.confidence for sentence in baseline.tag([record])[0].sentences]


@pytest.mark.parametrize("method", METHODS)
def test_confidences_are_those_of_the_baseline_in_every_output(run: Any, session: Session, method: Method) -> None:
    known = expected(session, method)
    shown = [f"{confidence:.2f}" for confidence in known]
    code, line, _ = run("life.md", "--method", method, *SHORT, "--format", "jsonl")
    record = json.loads(line)
    assert code == 0 and record["question"] == QUESTION
    assert [s["confidence"] for s in record["sentences"] if "kind" not in s] == pytest.approx(known)
    assert [s["text"] for s in record["sentences"] if "kind" in s] == ["# Ada Lovelace", "## Work"]
    _, text, _ = run("life.md", "--method", method, *SHORT)
    assert re.findall(r"<confidence> ([\d.]+) </confidence>", text) == shown
    assert re.sub(r" <confidence> [\d.]+ </confidence>", "", text) == LIFE
    _, page, _ = run("life.md", "--method", method, *SHORT, "--format", "html")
    assert re.findall(r'<sup class="lv-n"[^>]*>\D*([\d.]+)', page) == shown and f"Confidence ({method}): " in page
    tagged = lovec.tag(LIFE, about="Ada Lovelace", session=session, method=method, samples=2, max_new_tokens=6)
    if method not in SAMPLED:  # whose samples depend on the id of the text
        assert [s["confidence"] for s in tagged["sentences"] if "kind" not in s] == pytest.approx(known)
    assert tagged.note.startswith(f"Confidence ({method}): ")


@pytest.mark.parametrize("method", METHODS)
def test_the_cost_is_said_before_and_after(run: Any, session: Session, method: Method) -> None:
    rows = [{"id": str(i), "question": QUESTION, "sentences": [{"text": t} for t in PROSE]} for i in range(3)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for out in ([], ["--out", "tags.jsonl"]):
        _, _, err = run("rows.jsonl", "--method", method, *SHORT, "--format", "jsonl", *out)
        said = [line for line in err.splitlines() if line.startswith(f"lovec: {method}: ")]
        before, rest, after = (line.removeprefix(f"lovec: {method}: ") for line in said)
        assert before.startswith("12 sentences, ") and re.search(r"^about .* for the other 8 sentences", rest)
        took = re.fullmatch(r"took (.*?)( \(.*\))?; ([\d,]+) tokens read(?:, ([\d,]+) written)?", after)
        if method in SAMPLED:
            assert "6 other answers to write of at most 6 tokens, 24 comparisons" in before
            assert 6 <= int(took[4]) <= 36 and "sampling" in took[2] and "judging" in took[2]
        else:
            tokens = int(re.search(r"([\d,]+) tokens to read", before)[1].replace(",", ""))
            assert int(took[3].replace(",", "")) == pytest.approx(tokens, rel=0.4)


def test_the_rest_takes_as_long_a_sentence_as_the_first_text(session: Session) -> None:
    tagger = MethodTagger(session, "likelihood")
    records = [Record(str(i), QUESTION, sentences=tuple(map(Sentence, PROSE))) for i in range(3)]
    tagger.cost(records, "iterative")
    assert tagger.left() is None
    tagger.cost(records, "iterative")
    tagger.sentences, tagger.seconds = 4, 10.0
    assert "about 20 s for the other 8 sentences" in tagger.left() and tagger.left() is None


def test_a_finished_file_is_not_continued_by_another_method(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("life.md", "--out", "tags.jsonl")
    assert run(*words, "--method", "likelihood")[0] == 0
    written = Path("tags.jsonl").read_bytes()
    code, _, err = run(*words, "--method", "p_true")
    assert code == 1 and "method was likelihood, is p_true" in err
    code, _, err = run(*words)
    assert code == 1 and "method was likelihood, is none" in err
    assert run(*words, "--method", "luq", *SHORT, "--redo")[0] == 0
    for other, said in ((("--samples", "3"), "samples was 2, is 3"), (("--max_new_tokens", "7"), "was 6, is 7")):
        code, _, err = run(*words, "--method", "luq", *SHORT, *other)
        assert code == 1 and said in err
    assert run(*words, "--method", "likelihood", "--redo")[0] == 0 and Path("tags.jsonl").read_bytes() == written
    monkeypatch.setattr("lovec.tagging.MethodTagger.stream", lambda *_: 1 / 0)
    assert run(*words, "--method", "likelihood", "--samples", "3")[0] == 0  # it takes none, and nothing is done


@pytest.mark.parametrize("method", SAMPLED)
def test_samples_need_a_question(run: Any, session: Session, method: Method) -> None:
    Path("plain.txt").write_text("It rained. It was late.", encoding="utf-8")
    code, out, err = run("plain.txt", "--method", method, *SHORT)
    assert (code, out) == (1, "") and "plain.txt has no question; give one with --question" in err
    assert run("plain.txt", "--method", "likelihood")[0] == 0
    assert run("plain.txt", "--method", method, "--about", "the weather", *SHORT)[0] == 0
    brought = {"text": "It rained. It was late.", "meta": {"samples": ["It rained.", "It was dry."]}}
    Path("rows.jsonl").write_text(json.dumps(brought), encoding="utf-8")
    code, _, err = run("rows.jsonl", "--method", method, *SHORT)
    assert code == 0 and "0 other answers to write, 4 comparisons" in err and "written" not in err
    with pytest.raises(LovecError, match="text-1 has no question"):
        lovec.tag("It rained.", session=session, method=method)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ask", "Who?", "--method", "luq"], "--method luq scores given texts only; answer the questions first"),
        (["life.md", "--method", "luq", "--keep_factual", "0.9"], "there is none for --method luq"),
        (
            ["life.md", "--method", "p_true", "--readout", "mean"],
            "--readout does not apply to the method p_true",
        ),
        (["life.md", "--method", "p_true", "--judge", "YesNoJudge"], "--method p_true asks no judge"),
        (["life.md", "--judge", "YesNoJudge"], "--judge works only with --method self_consistency or luq"),
        (["life.md", "--method", "ptrue"], "likelihood"),
        (["life.md", "--method", "luq", "--samples", "0"], "--samples is 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(run: Any, words: list[str], message: str) -> None:
    code, out, err = run(*words)
    assert code in (1, 2) and out == "" and message in err.splitlines()[-1]


def test_wrong_calls_are_refused(session: Session) -> None:
    for options, message in (
        ({"method": "guess"}, "method is 'guess'"),
        ({"method": "likelihood", "readout": "mean"}, "states no scores"),
        ({"method": "likelihood", "keep_factual": 0.9}, "no threshold|there is none for likelihood"),
    ):
        with pytest.raises(LovecError, match=message):
            lovec.tag("It rained.", session=session, **options)
    with pytest.raises(LovecError, match="tags given texts"):
        lovec.tag(question="Who?", session=session, method="likelihood")


def test_a_verbal_confidence_has_both_readouts(run: Any) -> None:
    _, line, _ = run("life.md", "--method", "verbal", "--format", "jsonl")
    stated = [s for s in json.loads(line)["sentences"] if "kind" not in s]
    assert all(s["confidence"] == s["score"] / 10 for s in stated)
    _, line, _ = run("life.md", "--method", "verbal", "--readout", "mean", "--format", "jsonl")
    for sentence, same in zip((s for s in json.loads(line)["sentences"] if "kind" not in s), stated, strict=True):
        p = same["distribution"]
        assert sentence["confidence"] == pytest.approx(sum(i * q for i, q in enumerate(p)) / sum(p) / 10, abs=1e-5)
    _, text, _ = run("life.md", "--method", "verbal", "--readout", "stated")
    assert re.findall(r"<confidence> (\d+) </confidence>", text) == [str(s["score"]) for s in stated]


def test_verbal_numbers_have_their_own_scale_whatever_that_of_the_model(
    here: Path, model: str, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = replace(session.encoder.tags, scale=Scale(("no", "perhaps", "yes")))
    own = Path(shutil.copytree(model, here / "own"))
    (own / SETTINGS).write_text(settings_file(Encoder(session.encoder.tokenizer, "Rate.", tags))[SETTINGS])
    with open_session(str(own)) as opened:
        tagger = MethodTagger(opened, "verbal")
        [record] = tagger.tag_texts([Record("life.md", QUESTION, sentences=tuple(map(Sentence, PROSE)))])
    assert tagger.tags == tags and tagger.text_tags == DEFAULT_TAGS
    scores = [sentence.score for sentence in record.sentences]
    assert max(scores) > tags.scale.top
    assert main(["tag", "life.md", "--method", "verbal", "--model", str(own)]) == 0
    shown = re.findall(r"<confidence> ([\d.]+) </confidence>", capsys.readouterr().out)
    assert shown == [f"{score / 10:.2f}" for score in scores]


def test_the_scale_of_texts_behind_an_api_is_that_of_the_method() -> None:
    tags = replace(DEFAULT_TAGS, scale=Scale(("no", "perhaps", "yes")))
    verbal, other = (ApiTagger(ApiModel("gpt"), method, tags=tags) for method in ("verbal", "p_true"))
    assert verbal.tags == other.tags == other.text_tags == tags
    written = with_tag(Sentence("It rained.", confidence=0.8, score=8), verbal.text_tags)
    assert written == "It rained. <confidence> 0.80 </confidence>"


def test_another_judge_is_an_option(run: Any, session: Session, tmp_path: Path) -> None:
    nli = tiny_nli(tmp_path)
    words = ("life.md", "--method", "luq", *SHORT, "--judge", "NLIJudge", "--judge.model", nli)
    assert run(*words, "--out", "tags.jsonl")[0] == 0
    (record,) = read_records("tags.jsonl")
    tagger = MethodTagger(session, "luq", 2, NLIJudge(nli), max_new_tokens=6)
    same = tagger.tag_texts([Record("life.md", QUESTION, answer=LIFE)])
    known = [s.confidence for s in same[0].sentences]
    assert [s.confidence for s in record.sentences] == pytest.approx(known)
    assert run(*words, "--out", "tags.jsonl", "--judge.batch_size", "3")[0] == 0  # on which nothing depends
    code, _, err = run("life.md", "--method", "luq", *SHORT, "--out", "tags.jsonl")
    assert code == 1 and "judge" in err


def test_what_does_not_fit_has_no_confidence_and_a_problem(session: Session) -> None:
    room = session.engine.context_length
    long = Record("long", "Who?", sentences=(Sentence("Ada wrote. "), Sentence("word " * room)))
    (tagged,) = MethodTagger(session, "likelihood").tag_texts([long])
    assert [s.confidence is None for s in tagged.sentences] == [False, True]
    assert "1 sentence has no confidence: it does not fit the model's context" in tagged.meta["problems"]


def test_a_model_of_the_world_is_asked_in_its_words(session: Session) -> None:
    for of_world, wording in ((True, WORLD_WORDING), (False, Wording())):
        tagger = MethodTagger(replace(session, of_world=of_world), "p_true")
        assert tagger._baseline.resources.wording == wording
