"""What a server says of sentences: calibrated confidences, the same as by the taggers, and guarantees."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from served import chat, post, running
from writer import Writer

from lovec.calibration import Calibration, Promised, calibrate
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, open_session
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging import TextTagger
from lovec.types import Record, Sampling, Sentence

QUESTIONS = [f"Who was {name}?" for name in ("Ada", "Bob", "Eve", "Mia", "Tom", "Ann", "Max", "Ida", "Joe", "Kim")]
TEXT = "Ada ran. She wrote a note. It was noon in London. The rain fell on the engines."


@pytest.fixture(scope="module")
def session(model: str) -> Iterator[Session]:
    with open_session(model, engine=Writer(), instruction="Rate.", device="cpu") as session:
        yield session


def made(session: Session, mode: Any, **options: Any) -> Calibration:
    """A calibration on answers with random labels."""
    rng = random.Random(0)
    records = [Record(f"q{i}", question) for i, question in enumerate(QUESTIONS)]
    tagger: Any = FreeFormTagger(session.engine, session.encoder, Sampling(60), "mean", True, likelihoods=True)
    if mode == "iterative":
        records = [replace(r, sentences=tuple(map(Sentence, TEXT.split(". ")))) for r in records]
        tagger = IterativeTagger(session.engine, session.encoder, "mean", likelihoods=True)
    tagged = [r.with_factuality([float(rng.random() < 0.6) for _ in r.sentences]) for r in tagger.tag(records)]
    return calibrate(tagged, adapter="-", base="tiny", mode=mode, draws=50, **options)[0]


@pytest.mark.parametrize("readout", ["mean", ("mean", "entropy", "logp_mean", "logp_min")], ids=["mean", "features"])
def test_chats_and_texts_have_the_confidences_of_the_taggers(session: Session, readout: Any) -> None:
    served = ServedConfidence({mode: made(session, mode, readout=readout) for mode in ("iterative", "free-form")})
    deployed = replace(session, served=served)
    tagger = TextTagger(deployed, max_new_tokens=60)
    [answer] = tagger.answer_questions([Record("a", "Who was Zoe?")])
    [text] = tagger.tag_texts([Record("t", "Who was Ada?", answer=TEXT)])
    assert {s.confidence is None for s in answer.sentences} == {True, False}  # a broken tag or a tail, and valid ones
    with running(replace(deployed), key=None) as server:
        whole = post(server, chat("Who was Zoe?", max_tokens=60))[1]["choices"][0]["message"]["confidence"]
        with server.send(chat("Who was Zoe?", max_tokens=60, stream=True)) as stream:
            lines = stream.makefile("rb").read().decode().splitlines()
        body = json.dumps({"text": TEXT, "question": "Who was Ada?"}).encode()
        given = post(server, body, "/v1/tag")[1]["confidence"]
        (listed,) = json.loads(server.get("/v1/models"))["data"]
    assert listed["confidence"] == {mode: served.note(mode) for mode in ("iterative", "free-form")}
    assert all("calibrated" in note for note in listed["confidence"].values())
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = [entry for event in events for entry in event["choices"][0]["delta"].get("confidence", [])]
    for entries, record in ((whole, answer), (streamed, answer), (given, text)):
        assert [entry["text"] for entry in entries] == [s.text for s in record.sentences]
        assert [entry["score"] for entry in entries] == [s.score for s in record.sentences]
        for entry, sentence in zip(entries, record.sentences, strict=True):
            assert entry["confidence"] == (
                None if sentence.confidence is None else pytest.approx(sentence.confidence, abs=1e-5)
            )


def test_likelihoods_are_never_those_of_a_truncated_distribution(session: Session) -> None:
    calibration = made(session, "free-form", readout=("mean", "entropy", "logp_mean", "logp_min"))
    with running(replace(session, served=ServedConfidence({"free-form": calibration}))) as server:

        def known(**more: Any) -> bool:
            entries = post(server, chat("Who was Zoe?", max_tokens=60, **more))[1]["choices"][0]["message"][
                "confidence"
            ]
            return any(entry["confidence"] is not None for entry in entries)

        assert known() and known(top_p=0.5) and known(temperature=1)
        assert not known(temperature=1, top_p=0.5) and not known(temperature=0.7)


def test_a_guarantee_leaves_sentences_out(session: Session) -> None:
    calibration = made(session, "free-form", promised=[Promised.keep_factual(0.5), Promised.keep_factual(0.3)])
    deployed = replace(session, served=ServedConfidence({"free-form": calibration}))
    [answer] = TextTagger(deployed, max_new_tokens=60).answer_questions([Record("a", "Who was Zoe?")])
    with running(replace(deployed)) as server:
        for probability in (0.5, 0.3):
            status, data = post(server, chat("Who was Zoe?", max_tokens=60, keep_factual=probability))
            message = data["choices"][0]["message"]
            kept = [calibration.keeps(s, calibration.threshold(probability)) for s in answer.sentences]
            assert status == 200 and [entry["kept"] for entry in message["confidence"]] == kept
            texts = [s.text for s, keep in zip(answer.sentences, kept, strict=True) if keep]
            assert message["content"].split() == " ".join(texts).split()
        for body, path, words in (
            (chat("Who?", keep_factual=0.9), "/v1/chat/completions", "only for 0.5, 0.3"),
            (chat("Who?", keep_factual=1), "/v1/chat/completions", "less than 1"),
            (json.dumps({"text": "A.", "question": "Who?", "keep_factual": 0.5}).encode(), "/v1/tag", "no threshold"),
        ):
            status, data = post(server, body, path)
            assert (status, data["error"]["param"]) == (400, "keep_factual") and words in data["error"]["message"]


def test_answers_that_run_together_do_not_mix(session: Session) -> None:
    [*alone] = TextTagger(session, max_new_tokens=60).answer_questions(
        [Record(f"q{i}", question) for i, question in enumerate(QUESTIONS)]
    )
    replies: dict[int, Any] = {}

    def ask(number: int) -> None:
        replies[number] = post(server, chat(QUESTIONS[number], max_tokens=60, stream=False))[1]

    with running(replace(session)) as server:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(QUESTIONS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for number, record in enumerate(alone):
        entries = replies[number]["choices"][0]["message"]["confidence"]
        assert [(e["text"], e["score"]) for e in entries] == [(s.text, s.score) for s in record.sentences]
        expected = [s.confidence for s in record.sentences]
        assert [e["confidence"] for e in entries] == [c if c is None else pytest.approx(c, abs=1e-5) for c in expected]
