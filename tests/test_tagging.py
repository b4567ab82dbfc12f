"""Sessions, sentences that are reported as they finish, and tagging from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from answers import answers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

import lovec
from lovec.calibration import Promised, calibrate
from lovec.core.hub import ADAPTER_FILES
from lovec.datasets.world import WorldSpec
from lovec.datasets.world.cache import ensure_built
from lovec.encoding import INSTRUCTION, Encoder
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.policy import Policy, PolicyConfig
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, TaggedText, TaggedTexts, open_session, scoring
from lovec.taggers.freeform import AnswerReader
from lovec.taggers.scoring import items_of
from lovec.taggers.served_confidence import ServedConfidence
from lovec.taggers.session import SETTINGS, settings_file
from lovec.tagging import DEFAULT_QUESTION, Documents, Selection, TextTagger, guessed_question, text_record, topic_of
from lovec.tags import TagFormat, parse
from lovec.text.untag import split_record
from lovec.types import Completion, LovecError, Record, Sampling, Sentence

MINI = WorldSpec(
    n_people=12, n_towns=6, n_ships=6, n_companies=4, steps=150, batch_size=4, width=32, layers=1, heads=1, ffn=32
)
SHORT = TagFormat("<c>", "</c>")
TEXT = "Ada wrote notes. She was born in London. It rained."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of a very small world."""
    return ensure_built("mini", MINI, tmp_path_factory.mktemp("world"), progress=False) / "model"


@pytest.fixture(scope="module")
def session(model: str) -> Session:
    return open_session(model, instruction="Rate.", rows=4)


def prepared(*lengths: int) -> list[Record]:
    words = "ada wrote notes on engines in london and paris before noon".split()
    return [
        Record(f"r{n}", "Who is Ada?", sentences=tuple(Sentence(f"{words[(n + i) % 11]} {i}.") for i in range(length)))
        for n, length in enumerate(lengths)
    ]


# Sessions

TRAINED = "Rate each sentence."
"""The instruction of the runs in tinyrun.py."""


def test_a_session_scores_like_its_policy(model: str, adapter: str) -> None:
    records = prepared(3, 1)
    policy = Policy(PolicyConfig(model, adapter=adapter), reference=False).eval()
    engine = TransformersEngine()
    engine.sync(policy)
    expected = IterativeTagger(engine, Encoder(policy.tokenizer, TRAINED)).tag(records)
    with policy.without_adapter():
        without = IterativeTagger(engine, Encoder(policy.tokenizer)).tag(records)
    assert without != expected
    for wanted, instruction, opened in (  # training has written beside the adapter how it is asked
        (expected, TRAINED, open_session(model, adapter)),
        (expected, TRAINED, open_session(adapter=adapter)),  # the adapter names its base
        (expected, TRAINED, open_session(model, str(Path(adapter).parent))),  # the folder of its run
        (without, INSTRUCTION, open_session(model)),
    ):
        assert IterativeTagger(opened.engine, opened.encoder).tag(records) == wanted
        assert opened.model == model and opened.encoder.instruction == instruction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no model is given; offline, `--adapter atlas`"),
        (
            {"adapter": "runs/dpo/adapter"},
            "there is no adapter in runs/dpo/adapter; make it with: lovec fit --config dpo",
        ),
        ({"model": "nowhere/to-be-found"}, "the model nowhere/to-be-found is neither a file or folder here"),
        ({"model": "tiny-lama"}, "did you mean tiny-llama?"),
        ({"model": "{model}", "engine": "llama.cpp"}, "the engine is 'llama.cpp', expected one of transformers, vllm"),
        ({"model": "{model}", "dtype": "int4"}, "expected float32 or bfloat16"),
        ({"model": "{model}", "tag_words": ("<c>", "<c>")}, "contain each other"),
    ],
)
def test_what_cannot_be_opened_is_one_line(model: str, options: dict[str, Any], message: str) -> None:
    arguments = {name: value.format(model=model) if name == "model" else value for name, value in options.items()}
    with pytest.raises(LovecError) as caught:
        open_session(**arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_the_world_has_its_own_instruction_and_knows_only_its_words(world: Path, session: Session) -> None:
    opened = open_session(str(world))
    assert opened.encoder.instruction == "Give every sentence a confidence from 0 to 10."
    assert open_session(str(world), instruction="Rate.").encoder.instruction == "Rate."
    known = "In a paragraph, could you tell me what you know about?"
    assert opened.unknown_words([known]) == 0
    assert opened.unknown_words(["paragraph zebra", "zebra know"]) == 0.5
    assert opened.unknown_words([]) == opened.unknown_words(["... !"]) == 0
    assert session.unknown_words(["Any word, naïve or 日本語."]) == 0  # bytes are letters to a byte-level tokenizer


def test_an_engine_that_opens_models_itself_gets_no_second_copy(
    model: str, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(TransformersEngine):
        closed = False

        def open(self, model: str, adapter: str | None) -> None:
            self.opened = model, adapter
            self.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(model)))

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("lovec.policy.Policy", None)
    engine = Own()
    with open_session(model, adapter, engine) as opened:
        assert engine.opened == (model, adapter) and opened.engine is engine
        assert opened.engine.score([opened.encoder.prompt("Who?")], opened.encoder.tails)
        assert not engine.closed
    assert engine.closed
    untouched = Own()
    with pytest.raises(LovecError, match="contain each other"):
        open_session(model, engine=untouched, tag_words=("<c>", "<c>"))
    assert not hasattr(untouched, "opened")  # nothing is loaded for what cannot be asked


def test_instruction_and_tags_are_read_from_beside_the_model(model: str, adapter: str, tmp_path: Path) -> None:
    copies = {}
    for name, source in (("model", model), ("adapter", adapter)):
        copies[name] = tmp_path / name
        copies[name].mkdir()
        for file in Path(source).iterdir():
            if file.name != SETTINGS:
                (copies[name] / file.name).symlink_to(file)
    tokenizer = AutoTokenizer.from_pretrained(model)
    (copies["model"] / SETTINGS).write_text(
        settings_file(Encoder(tokenizer, "Of the model.", SHORT))[SETTINGS], encoding="utf-8"
    )
    copied = {"model": str(copies["model"]), "adapter": str(copies["adapter"]), "any_base": True}
    opened = open_session(**copied)
    assert (opened.encoder.instruction, opened.encoder.tags) == ("Of the model.", SHORT)
    (copies["adapter"] / SETTINGS).write_text(
        settings_file(Encoder(tokenizer, "Of the adapter.", TagFormat("<a>", "</a>")))[SETTINGS], encoding="utf-8"
    )
    opened = open_session(**copied)
    assert (opened.encoder.instruction, opened.encoder.tags.open) == ("Of the adapter.", "<a>")
    opened = open_session(**copied, instruction="Mine.", tag_words=("<b>", "</b>"))
    assert (opened.encoder.instruction, opened.encoder.tags.close) == ("Mine.", "</b>")
    (copies["adapter"] / SETTINGS).write_text('{"instruction": "Half."}', encoding="utf-8")
    with pytest.raises(LovecError, match=r"lovec\.json is broken, expected"):
        open_session(**copied)


# Sentences as they finish


def test_iterative_sentences_are_reported_as_they_are_scored(session: Session) -> None:
    records = prepared(3, 0, 5, 1)
    reported: list[Any] = []
    calls = []
    engine = session.engine
    score = engine.score

    def counted(contexts: Any, choices: Any) -> Any:
        calls.append(len(reported))
        return score(contexts, choices)

    spied = SimpleNamespace(score=counted, context_length=engine.context_length, max_rows=engine.max_rows)
    tagged = []
    for item in IterativeTagger(spied, session.encoder).stream(records):  # type: ignore[arg-type]
        (tagged if isinstance(item, Record) else reported).append(item)
    assert tagged == IterativeTagger(engine, session.encoder).tag(records)
    assert sorted(reported, key=lambda each: each[:2]) == [
        (n, i, sentence) for n, record in enumerate(tagged) for i, sentence in enumerate(record.sentences)
    ]
    for number in range(4):  # those of one record in their order
        assert [at for n, at, _ in reported if n == number] == list(range(len(records[number].sentences)))
    assert calls[:5] == [0, 3, 5, 7, 8]  # after every step, the sentences it scored


def test_a_sentence_that_does_not_fit_is_reported_as_well(tmp_path: Path) -> None:
    opened = open_session(str(build_tiny("llama", tmp_path / "m", max_position_embeddings=128)), instruction="Rate.")
    records = [Record("long", "Who?", sentences=(Sentence("One."), Sentence("x" * 100), Sentence("Three.")))]
    *reported, tagged = IterativeTagger(opened.engine, opened.encoder).stream(records)
    assert isinstance(tagged, Record)
    assert [sentence.score is None for sentence in tagged.sentences] == [False, True, False]
    assert reported == [(0, at, sentence) for at, sentence in enumerate(tagged.sentences)]


HEADED = "# Ada\n\nAda wrote notes. It rained.\n\n## Later\n\nShe slept.\n\n---\n"


@pytest.mark.parametrize("mode", ["iterative", "free-form"])
def test_a_sentence_is_read_and_calibrated_once(session: Session, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is consumed: the record has the very sentences that were streamed."""
    counts = {"read": 0, "calibrated": 0}
    with_score = scoring.with_score

    def read(*arguments: Any) -> Sentence:
        counts["read"] += 1
        return with_score(*arguments)

    class Map:
        needs_token_logps, needs_distribution = False, True

        def confidence(self, sentence: Sentence) -> float | None:
            counts["calibrated"] += 1
            return None if sentence.confidence is None else sentence.confidence / 2

        def rank(self, sentence: Sentence) -> float | None:
            return sentence.confidence

    monkeypatch.setattr(scoring, "with_score", read)
    calibration: Any = Map()
    deployed = replace(session, served=ServedConfidence({mode: calibration}))
    answers = ("Ada. <confidence> 9 </confidence> Bob. <confidence> 8.5 </confidence> And a tail",)
    engine = Scripted(session.encoder, *answers)
    engine.sync(SimpleNamespace(model=session.engine._model))  # type: ignore[attr-defined]
    if mode == "free-form":
        deployed = replace(deployed, engine=engine)
    *streamed, record = TextTagger(deployed).stream([text_record(HEADED)], mode, engine.reported.append)
    assert isinstance(record, Record)
    assert [item.sentence for item in streamed] == list(record.sentences)
    assert all(a.sentence is b for a, b in zip(streamed, record.sentences, strict=True))
    statements = [sentence for sentence in record.sentences if sentence.is_statement]
    scored = [sentence for sentence in statements if sentence.distribution is not None]
    assert (len(record.sentences), len(statements), len(scored)) == ((6, 3, 3) if mode == "iterative" else (3, 3, 1))
    assert counts == {"read": len(scored), "calibrated": len(statements)}
    raw = TextTagger(deployed, "mean").stream([text_record(HEADED)], mode, engine.reported.append)
    means = [item.sentence.confidence for item in raw if not isinstance(item, Record)]
    assert [s.confidence for s in record.sentences] == [None if mean is None else mean / 2 for mean in means]


class Scripted(TransformersEngine):
    """Writes given answers token by token, as an engine with a callback does."""

    def __init__(self, encoder: Encoder, *answers: str) -> None:
        super().__init__()
        self.encoder, self.answers = encoder, answers
        self.streamed: list[tuple[int, int]] = []  # after how many tokens of all, how many sentences were reported
        self.reported: list[Any] = []

    def generate(self, prompts: Any, sampling: Any, stop_ids: Any, keys: Any = None, on_token: Any = None) -> Any:
        tokens = [(*self.encoder.pieces(answer), self.encoder.end_id) for answer in self.answers]
        for step in range(max(map(len, tokens))):
            for prompt, ids in enumerate(tokens):
                if step < len(ids):
                    assert on_token(prompt, 0, ids[step])
                    self.streamed.append((step, len(self.reported)))
        return [[Completion(ids, (0.0,) * len(ids), True)] for ids in tokens]


def test_sentences_of_answers_are_reported_when_their_tag_is_closed(session: Session) -> None:
    first, second = "Ada. <confidence> 9 </confidence>", " Bob wrote. <confidence> 8.5 </confidence>"
    engine = Scripted(session.encoder, first + second + " And a tail", "None at all", "C. <confidence> 1 </confidence>")
    engine.sync(SimpleNamespace(model=session.engine._model))  # type: ignore[attr-defined]
    tagger = FreeFormTagger(engine, session.encoder, Sampling(99))
    records = [replace(record, sentences=()) for record in prepared(0, 0, 0, 0)]
    records[1] = replace(records[1], question="x" * 5000)  # no room for it: the engine is asked the other three
    items = list(tagger.stream(records, engine.reported.append))
    tagged = [item for item in items if isinstance(item, Record)]
    assert items == [item for number, record in enumerate(tagged) for item in items_of(record, number)]
    assert [len(record.sentences) for record in tagged] == [3, 0, 1, 1]
    assert engine.reported == [
        (3, 0, Sentence("C.", confidence=0.1, score=1)),
        (0, 0, Sentence("Ada.", confidence=0.9, score=9)),
        (0, 1, Sentence("Bob wrote.")),
    ]
    assert [sentence for _, _, sentence in engine.reported[1:]] == list(tagged[0].sentences[:2])  # not the tail
    assert next(step for step, count in engine.streamed if count == 1) == len("C. <confidence> 1 </confidence>") - 1
    assert next(step for step, count in engine.streamed if count == 2) == len(first) - 1
    assert next(step for step, count in engine.streamed if count == 3) == len(first + second) - 1


PIECES = ["Ada. ", "<c>", "</c>", " 7 ", " 11 ", "é", "»", "日", "<", "/c>", "\n", " "]


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), max_size=25), words=st.sampled_from([("<c>", "</c>"), ("«", "»")]))
def test_reading_token_by_token_gives_the_sentences_of_the_whole(
    model: str, parts: list[str], words: tuple[str, str]
) -> None:
    encoder = encoders(model)[words]
    ids = encoder.pieces("".join(parts))
    reader = AnswerReader(encoder)
    streamed = [sentence for token in ids for sentence in reader.on_token(token)]
    whole = parse(encoder.decode(ids), encoder.tags)
    rest = reader.rest()
    assert len(streamed) == "".join(parts).count(words[1])
    assert (*streamed, *rest.sentences) == whole.sentences and len(rest.sentences) <= 1
    assert rest.tail == whole.tail


def encoders(model: str, _made: dict[Any, Encoder] = {}) -> dict[Any, Encoder]:  # noqa: B006 - kept on purpose
    if not _made:
        tokenizer = AutoTokenizer.from_pretrained(model)
        _made.update({words: Encoder(tokenizer, "Rate.", TagFormat(*words)) for words in (("<c>", "</c>"), ("«", "»"))})
    return _made


# From Python


def scores(record: dict[str, Any]) -> list[Any]:
    """Return text, score and probability of every sentence (rounded: other batch shapes round differently)."""
    return [(s["text"], s["score"], round(s["distribution"][s["score"]], 4)) for s in record["sentences"]]


def test_one_text_gives_one_record_and_a_list_a_list(session: Session) -> None:
    one = lovec.tag(TEXT, session=session)
    assert one["question"] == DEFAULT_QUESTION and one["answer"] == TEXT and one["id"] == "text-1"
    assert [s["text"] for s in one["sentences"]] == ["Ada wrote notes.", "She was born in London.", "It rained."]
    assert all(s["score"] in range(11) and 0 < s["confidence"] < 1 for s in one["sentences"])
    assert all(len(s["distribution"]) == 11 and s["factuality"] is None for s in one["sentences"])
    json.dumps(one)
    many = lovec.tag([TEXT, "", "Alone."], "Who was Ada?", session=session)
    assert [record["id"] for record in many] == ["text-1", "text-2", "text-3"]
    assert [len(record["sentences"]) for record in many] == [3, 0, 1]
    answer = lovec.tag(TEXT, "Who was Ada?", session=session)
    of_windows = lovec.tag("Ada wrote\r\nnotes.\r\n\r\nShe sang.\r\n", session=session)
    assert of_windows == lovec.tag("Ada wrote\nnotes.\n\nShe sang.\n", session=session)
    assert scores(many[0]) == scores(answer) and scores(answer) != scores(one)
    each = lovec.tag([TEXT, "Alone."], ["Who was Ada?", "Who?"], session=session)
    assert [record["question"] for record in each] == ["Who was Ada?", "Who?"] and scores(each[0]) == scores(answer)
    assert lovec.tag([], session=session) == []


def test_a_question_alone_is_answered(session: Session) -> None:
    one = lovec.tag(question="Who was Ada?", session=session, max_new_tokens=12)
    assert one["answer"] and one["question"] == "Who was Ada?"
    assert any("cut off" in problem for problem in one["meta"]["problems"])
    two = lovec.tag(question=["Who was Ada?", "And Bob?"], session=session, max_new_tokens=12)
    assert two[0]["answer"] == one["answer"] and two[1]["question"] == "And Bob?"


def test_the_mean_is_the_expected_score(session: Session) -> None:
    for readout in ("mean", None):
        for sentence in lovec.tag(TEXT, session=session, readout=readout)["sentences"]:
            shares = sentence["distribution"]
            assert sentence["confidence"] == pytest.approx(sum(c * p for c, p in enumerate(shares)) / sum(shares) / 10)
    for sentence in lovec.tag(TEXT, session=session, readout="stated")["sentences"]:
        assert sentence["confidence"] == sentence["score"] / 10


def test_sentences_below_min_confidence_are_left_out_and_counted(session: Session) -> None:
    whole = lovec.tag(TEXT, session=session)
    confidences = [s["confidence"] for s in whole["sentences"]]
    for least in (0, *confidences, 0.5, 1):
        kept = lovec.tag(TEXT, session=session, min_confidence=least)
        assert kept["sentences"] == [s for s in whole["sentences"] if s["confidence"] >= least]
        assert kept["meta"]["left_out"] == sum(value < least for value in confidences) and kept["answer"] == TEXT
    assert "left_out" not in whole["meta"]
    unscored = TextTagger(session, selection=Selection(min_confidence=0))._filtered(
        Record("a", "?", sentences=(Sentence("A."), Sentence("B.", confidence=0.0, score=0))), "iterative"
    )
    assert [s.text for s in unscored.sentences] == ["B."]  # no score is not a pass


def test_those_who_show_what_is_left_out_get_it_all(session: Session) -> None:
    tagger = TextTagger(session, selection=Selection(min_confidence=0.5))
    [kept] = tagger.tag_texts([text_record(TEXT)])
    tagger.whole = True
    [whole] = tagger.tag_texts([text_record(TEXT)])
    assert tuple(filter(tagger.keeps("iterative"), whole.sentences)) == kept.sentences and len(whole.sentences) == 3
    assert whole.meta == kept.meta and whole.meta["left_out"] == 3 - len(kept.sentences)
    assert all(map(TextTagger(session).keeps("iterative"), (Sentence("A."), Sentence("B.", score=0))))


def test_what_is_returned_shows_itself(session: Session) -> None:
    one = lovec.tag(TEXT, session=session, readout="mean")
    assert type(one) is TaggedText and one == dict(one)
    html = one._repr_html_()
    assert "Confidence: mean of the score distribution, not calibrated." in html and "Ada wrote notes." in html
    stated = lovec.tag(question="Who was Ada?", session=session, max_new_tokens=8, readout="stated")
    assert "Confidence: the stated score, as a share of the highest score." in stated._repr_html_()
    many = lovec.tag([TEXT, "Alone."], session=session, min_confidence=0)
    assert type(many) is TaggedTexts and type(many[1]) is TaggedText
    frame = many.to_frame()
    assert frame["id"].tolist() == ["text-1"] * 3 + ["text-2"]
    assert frame["score"].tolist() == [s["score"] for record in many for s in record["sentences"]]


def test_texts_are_tagged_on_the_scale_of_the_model(model: str) -> None:
    words = ["no", "perhaps", "yes"]
    with open_session(model, scale=words) as session:
        tagged = lovec.tag(TEXT, session=session)
        for sentence in tagged["sentences"]:
            assert sentence["score"] in range(3) and len(sentence["distribution"]) == 3
            assert len(sentence["distribution"]) == sentence["levels"] == 3
        with pytest.raises(LovecError, match=r"min_score is now min_confidence, .*: min_confidence=1$"):
            lovec.tag(TEXT, session=session, min_score=2)


def test_thresholds_for_sentences_are_not_of_clauses_that_a_text_brings(session: Session) -> None:
    options: dict[str, Any] = {"adapter": "-", "base": "tiny", "mode": "iterative", "draws": 1}
    made, _ = calibrate(answers(40), promised=[Promised.keep_factual(0.5)], **options)
    served = ServedConfidence({"iterative": made})
    tagger = TextTagger(replace(session, served=served), selection=Selection(keep_factual=0.5))
    text = text_record("Ada wrote notes, and Bob sang.", "Who is Ada?")
    assert len(tagger.tag_texts([text])) == 1
    clauses = split_record(text, unit="clause")
    assert [sentence.part_of for sentence in clauses.sentences] == [0, 0]
    with pytest.raises(LovecError, match="is divided into clauses, and keep_factual has a threshold for sentences"):
        tagger.tag_texts([clauses])


def test_wrong_calls_are_refused(session: Session) -> None:
    for call, message in (
        (lambda: lovec.tag(session=session), "neither text nor question"),
        (lambda: lovec.tag(["A.", "B."], ["1?"] * 3, session=session), "got 3 questions for 2 texts"),
        (lambda: lovec.tag("A.", ["1?", "2?"], session=session), "got 2 questions for 1 texts"),
        (
            lambda: lovec.tag("A.", session=session, min_score=7),
            "min_score is now min_confidence, .*: min_confidence=0.7",
        ),
        (
            lambda: lovec.tag("A.", session=session, min_confidence=7),
            "expected at least 0 and at most 1; 7 of 10 is 0.7",
        ),
        (lambda: lovec.tag("A.", session=session, min_confidence=1.01), "min_confidence is 1.01"),
        (lambda: lovec.tag("A.", session=session, readout="median"), "readout is 'median'"),
    ):
        with pytest.raises(LovecError, match=message.replace("?", r"\?")):
            call()


def test_the_model_stays_open_while_the_settings_are_the_same(model: str, adapter: str, tmp_path: Path) -> None:
    import shutil

    import lovec.tagging.texts as tagging

    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    first = lovec.tag(TEXT, model=model, adapter=str(copy))
    opened = tagging._last
    assert lovec.tag(TEXT, model=model, adapter=str(copy)) == first and tagging._last is opened
    lovec.tag(TEXT, model=model)
    assert tagging._last is not opened
    lovec.tag(TEXT, model=model, adapter=str(copy))
    kept = tagging._last
    weights = copy / "adapter_model.safetensors"
    weights.touch()  # trained on
    lovec.tag(TEXT, model=model, adapter=str(copy))
    assert tagging._last is not kept


def test_a_model_is_opened_again_where_its_folder_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import lovec.tagging.texts as tagging

    monkeypatch.setattr(tagging, "open_session", lambda **_: SimpleNamespace(close=lambda: None))
    folder = tmp_path / "run" / "adapter"
    folder.mkdir(parents=True)
    for name in ADAPTER_FILES:
        (folder / name).write_text("{}")
    for time, adapter in enumerate((folder.parent, folder)):
        settings = {"model": None, "adapter": str(adapter)}
        opened = [tagging._shared_session(**settings)]
        os.utime(folder / "adapter_model.safetensors", (time, time))
        opened.append(tagging._shared_session(**settings))
        (folder / "calibration.json").write_text("{}")
        opened.append(tagging._shared_session(**settings))
        assert len(set(map(id, opened))) == 3 and tagging._shared_session(**settings) is opened[-1]
        (folder / "calibration.json").unlink()


def test_unknown_words_of_the_world_are_a_problem(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    strange = lovec.tag(TEXT, model=str(world))
    assert "does not know" in strange["meta"]["problems"][0] and "text-1: the model does not know" in caplog.text
    caplog.clear()
    words = [
        name for name in AutoTokenizer.from_pretrained(world).get_vocab() if name.startswith(" ") and name.isascii()
    ]
    text = "".join(word for word in words if word.strip().isalpha())[:200].strip() + "."
    known = lovec.tag(text, model=str(world), about="Ada")
    assert "problems" not in known["meta"] and not caplog.text
    answer = lovec.tag(question="Zebras?", model=str(world), max_new_tokens=4)
    assert any("does not know 100 %" in problem for problem in answer["meta"]["problems"])


def test_importing_lovec_loads_no_torch() -> None:
    code = "import sys, lovec; assert 'tag' in dir(lovec); assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert lovec.tag is lovec.tagging.tag


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((5,), "text is 5, expected a text"),
        ((["A.", None],), "text is None, expected a text"),
        (("A \ud800.",), r"text is 'A \\ud800\.', expected a text that UTF-8 can encode"),
        ((b"A.",), "text is b'A.', expected a text"),
        (({"id": "a"},), "text is {'id': 'a'}, expected a text"),  # what `lovec.tag` has returned, say
        (("A.", {"id": "a"}), "question is {'id': 'a'}, expected a text"),
        (("A.", 7), "question is 7, expected a text"),
    ],
)
def test_what_is_no_text_is_refused(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(LovecError, match=message):
        lovec.tag(*words, model="world-small")


# What is tagged


def test_tags_and_problems_of_an_earlier_run_are_removed() -> None:
    tagged = Record(
        "a", "?", answer="One. <c> 3 </c> Two. <c> x </c>", meta={"problems": ["old"], "left_out": 1, "k": 2}
    )
    fresh = split_record(tagged, SHORT)
    assert [s.text for s in fresh.sentences] == ["One.", "Two. x"] and fresh.meta == {"k": 2}
    labelled = Record(
        "a", "?", answer="No.", sentences=(Sentence("B <c> 3 </c>", 0.5), Sentence("<c>")), rejected=(1, 2)
    )
    split = split_record(labelled, SHORT)
    assert [(s.text, s.factuality) for s in split.sentences] == [("B", 0.5)] and split.rejected is None
    assert split_record(Record("a", "?", answer="Ada  did.\nBo."), SHORT).sentences == (
        Sentence("Ada  did."),
        Sentence("Bo."),
    )
    assert split_record(text_record("  \n"), SHORT).sentences == ()


def written(tmp_path: Path, **contents: str | bytes) -> list[tuple[str, Path]]:
    files = []
    for name, content in contents.items():
        path = tmp_path / name.replace("_", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        files.append((path.name, path))
    return files


def read(documents: Documents, skip: int = 0) -> tuple[list[Record], list[str]]:
    errors: list[str] = []
    documents.on_error = lambda error: errors.append(str(error))
    return list(documents.records(skip)), errors


def test_a_tagged_paragraph_of_html_in_markdown_has_no_lines_of_the_file(tmp_path: Path) -> None:
    html = "<div>\n<p>\nOne.{}\nTwo.{}</p>\n</div>"
    tagged = html.format(" <confidence> 3 </confidence>", " <confidence> 4 </confidence>")
    for text, place in ((tagged, ("page.md:2", None)), (html.format("", ""), ("page.md", 2))):
        documents = Documents([("page.md", tmp_path / "page.md")], paragraphs=True)
        (tmp_path / "page.md").write_text(f"Zero.\n\n{text}\n\nThree.")
        records, _ = read(documents)
        assert [documents.places[record.id] for record in records] == [("page.md", 0), place, ("page.md", 8)]
    assert split_record(records[1]).answer == html.format("", "")


def test_texts_and_json_lines_are_documents(tmp_path: Path) -> None:
    lines = (
        '{"text": "A.", "extra": 1}\n\n{"id": 7, "question": "Q?", "sentences": [{"text": "S.", "factuality": 1}]}\n'
    )
    files = written(tmp_path, page_txt="\ufeffOne.\r\n\r\nTwo.", a_jsonl=lines, piped='{"answer": "B."}')
    records, errors = read(Documents(files, question="Why?"))
    assert not errors
    assert [(r.id, r.question, r.answer) for r in records] == [
        ("page.txt", "Why?", "One.\n\nTwo."),
        ("a.jsonl:1", "Why?", "A."),
        ("7", "Q?", ""),
        ("piped:1", "Why?", "B."),
    ]
    assert records[1].meta == {"extra": 1} and records[2].sentences[0].factuality == 1
    of_windows = [{"text": "A\r\nb."}, {"answer": "A\r\nb.", "sentences": [{"text": "A\r\nb."}]}]
    rows, _ = read(Documents(written(tmp_path, b_jsonl="\n".join(map(json.dumps, of_windows)))))
    assert [(r.answer, *(s.text for s in r.sentences)) for r in rows] == [("A\nb.",), ("A\nb.", "A\nb.")]
    paragraphs, _ = read(Documents(files[:1], paragraphs=True))
    assert [(r.id, r.answer) for r in paragraphs] == [("page.txt:1", "One."), ("page.txt:2", "Two.")]


def test_a_broken_line_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    lines = b'{"text": "A."}\n{"text": oops}\n[1]\n{"text": "\xff"}\n{"question": "Q?"}\n{"text": 3}\n{"text": "Z."}'
    files = written(tmp_path, a_jsonl=lines, b_txt=b"\xff\xfe", c_txt="C.")
    records, errors = read(Documents(files))
    assert [record.answer for record in records] == ["A.", "Z.", "C."]
    assert [line.partition(": ")[0] for line in errors] == [f"a.jsonl:{n}" for n in (2, 3, 4, 5, 6)] + ["b.txt"]
    assert "no 'text', 'answer' or 'sentences'" in errors[3] and all("\n" not in line for line in errors)


def test_questions_need_a_question_only(tmp_path: Path) -> None:
    lines = '{"question": "Who?"}\n{"text": "A."}\n{"question": "Where?", "id": "w"}\n'
    records, errors = read(Documents(written(tmp_path, q_txt=lines), asking=True))
    assert [(r.id, r.question) for r in records] == [("q.txt:1", "Who?"), ("w", "Where?")]
    assert len(errors) == 1 and "q.txt:2: 'question' is missing" in errors[0]


def test_a_text_that_begins_like_json_is_a_text(tmp_path: Path) -> None:
    records, errors = read(Documents(written(tmp_path, a_txt="{braces} in prose.\nMore.", b_txt="{1}", c_txt="")))
    assert [record.answer for record in records] == ["{braces} in prose.\nMore.", "{1}", ""] and not errors


@settings(max_examples=50, deadline=None)
@given(names=st.lists(st.sampled_from(["a", "a#2", "b", None]), min_size=1, max_size=8))
def test_ids_are_unique_and_do_not_depend_on_the_start(
    tmp_path_factory: pytest.TempPathFactory, names: Sequence[str | None]
) -> None:
    lines = "\n".join(json.dumps({"text": "A.", "id": name}) for name in names)
    files = written(tmp_path_factory.mktemp("ids"), a_jsonl=lines)
    whole, _ = read(Documents(files))
    assert len({record.id for record in whole}) == len(names)
    assert all(record.id.startswith(name or "a.jsonl:") for record, name in zip(whole, names, strict=True))
    for skip in range(len(names) + 1):
        assert read(Documents(files), skip)[0] == whole[skip:]


def test_equal_ids_are_numbered_in_linear_time(tmp_path: Path) -> None:
    records, _ = read(Documents(written(tmp_path, a_jsonl='{"text": "A.", "id": "a"}\n' * 30_000)))
    assert [record.id for record in records] == ["a", *(f"a#{number}" for number in range(2, 30_001))]


def test_blank_lines_separate_paragraphs_in_linear_time(tmp_path: Path) -> None:
    text = "A.\n \t\n\n" + "\n" * 200_000 + " " * 200_000 + "B.\nC.\n\n"
    records, _ = read(Documents(written(tmp_path, a_txt=text), paragraphs=True))
    assert [record.answer for record in records] == ["A.", "B.\nC."]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the shared model after each test."""
    yield
    import lovec.tagging.texts as tagging

    tagging._last = None


@pytest.mark.parametrize(
    ("text", "name", "topic"),
    [
        ("# Ada Lovelace #\n\nShe wrote.", "p.md", ("Ada Lovelace", "its heading")),
        ("\n\n## **Ada** `Lovelace`\n", "p.md", ("Ada Lovelace", "its heading")),
        ("Ada Lovelace\n===\n\nx", "p.md", ("Ada Lovelace", "its heading")),
        ("Ada Lovelace\n\nShe wrote.", "p.txt", ("Ada Lovelace", "its first line")),
        ("<think>\n# A plan\n</think>\nAda Lovelace\n\nShe wrote.", "p.txt", ("Ada Lovelace", "its first line")),
        ("Ada wrote notes. She was\n\nx", "page.txt", None),
        ("Ada wrote.\n\nx", "page.txt", None),
        ("Ada Lovelace", "page.txt", None),  # nothing follows: it may be the text
        ("<!doctype html><html><title>Ada &amp; Bob</title>", "x.html", ("Ada & Bob", "its title")),
        ("She wrote.", "in/ada-lovelace.v2.txt", ("ada lovelace", "the name of the file")),
        ("She wrote.", "Ada.txt", ("Ada", "the name of the file")),
        ("She wrote.", "README.md", None),
        ("#tag\n\nx", "a", None),
        (f"# {'x' * 100}\n\nx", "Ada.txt", None),
        ("", "", None),
    ],
)
def test_the_topic_of_a_text_is_its_title(text, name, topic):
    assert topic_of(text, name) == topic


def test_a_line_with_a_tag_is_no_title() -> None:
    text = "Ada Lovelace <c> 5 </c>\n\nShe wrote. <c> 3 </c>"
    assert guessed_question(text, tags=SHORT) == (DEFAULT_QUESTION, None)
