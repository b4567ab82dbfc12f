"""Texts of any length: a window of whole sentences, linear work, and steps that can be stopped and interleaved."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from plainscores import naive_score

from lovec.taggers import IterativeTagger, Session
from lovec.taggers.scoring import History, Passage, ScoredSentence, Step, items_of, score_passages
from lovec.tagging import TextTagger, text_record
from lovec.types import Record, Sampling, Sentence

CONTEXT = 400
WORDS = "ada wrote notes on engines in london paris rome before noon they say it rained".split()


def sentences(n: int, seed: int = 0, most: int = 6) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, most))).capitalize() + "." for _ in range(n)]


def records(*lengths: int) -> list[Record]:
    return [
        Record(f"r{seed}", f"Who is number {seed}?", sentences=tuple(map(Sentence, sentences(n, seed, most=2))))
        for seed, n in enumerate(lengths)
    ]


def assert_same(tagged: Sequence[Record], expected: Sequence[Record]) -> None:
    for one, other in zip(tagged, expected, strict=True):
        assert (one.id, one.meta) == (other.id, other.meta)
        for a, b in zip(one.sentences, other.sentences, strict=True):
            assert (a.text, a.score) == (b.text, b.score)
            assert a.distribution == pytest.approx(b.distribution, abs=1e-5)


def test_sentences_are_known_after_their_call_of_the_engine(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    score = session.engine.score
    monkeypatch.setattr(session.engine, "score", lambda ids, tails: calls.append(len(ids)) or score(ids, tails))
    tagger = IterativeTagger(session.engine, session.encoder)
    batch = records(3, 0, 5, 2, 4)  # in groups of three rows: 2, 3 and 4 sentences, then 5
    known, tagged = [], []
    for item in tagger.stream(batch):
        tagged += [item] if isinstance(item, Record) else []
        known.append(len(calls))
    assert calls == [3, 3, 2, 1, 1, 1, 1, 1, 1, 0]
    assert known[:14] == [call for call, rows in enumerate(calls, 1) for _ in range(rows)]  # each behind its call
    assert tagged == tagger.tag(batch)
    assert set(tagger.watch.seconds) == {"scoring"}


def test_others_may_use_the_engine_between_two_steps(session: Session) -> None:
    engine, encoder = session.engine, session.encoder
    expected = [IterativeTagger(engine, encoder).tag(records(4, 6)), IterativeTagger(engine, encoder).tag(records(7))]
    prompts = [encoder.prompt("Why?"), encoder.prompt("Who is number 1?")]
    alone = engine.generate(prompts, Sampling(5), encoder.stop_ids), engine.score(prompts, encoder.tails)
    running = {0: IterativeTagger(engine, encoder).stream(records(4, 6)),
               1: IterativeTagger(engine, encoder).stream(records(7))}  # fmt: skip
    tagged: dict[int, list[Record]] = {0: [], 1: []}
    for step in range(99):
        for number, stream in running.items():
            if isinstance(item := next(stream, None), Record):
                tagged[number].append(item)
            if step % 3 == 1:
                assert engine.generate(prompts, Sampling(5), encoder.stop_ids) == alone[0]
            if step % 3 == 2:
                for scores, plain in zip(engine.score(prompts, encoder.tails), alone[1], strict=True):
                    assert scores == pytest.approx(plain, abs=1e-5)
    assert_same(tagged[0], expected[0])
    assert_same(tagged[1], expected[1])


def test_a_closed_generator_stops_the_work_and_frees_the_cache(session: Session) -> None:
    engine: Any = session.engine
    tagger = TextTagger(session)
    text = [text_record(" ".join(sentences(9, most=1)))]
    expected = tagger.tag_texts(text)
    stream: Any = tagger.stream(text, "iterative")
    assert [next(stream).at, next(stream).at] == [0, 1] and engine._kept is not None
    stream.close()
    assert engine._kept is None
    assert_same(tagger.tag_texts(text), expected)


def test_an_exception_of_who_takes_sentences_stops_the_work_and_frees_the_cache(session: Session) -> None:
    engine: Any = session.engine
    tagger = TextTagger(session)
    text = [text_record(" ".join(sentences(9, most=1)))]
    expected = tagger.tag_texts(text)

    def take() -> None:
        for item in tagger.stream(text, "iterative"):
            if isinstance(item, ScoredSentence) and item.at == 3:
                raise KeyboardInterrupt

    before = engine.prefill_tokens
    with pytest.raises(KeyboardInterrupt):
        take()
    assert engine._kept is None
    cut = engine.prefill_tokens - before
    assert_same(tagger.tag_texts(text), expected)
    assert engine.prefill_tokens - before - cut > cut


# The window


def window(session: Session, texts: Sequence[str], scores: Sequence[int | None], history: History) -> list[list[int]]:
    """The contexts of all sentences by the stated policy, each put together from nothing; [] where none fits."""
    encoder, room = session.encoder, CONTEXT - max(map(len, session.encoder.tails))
    prompt = encoder.prompt("Who?")

    def past(begin: int, at: int) -> list[int]:
        begin = max(begin, at - 1) if history == "previous" else begin
        pieces = []
        for step in range(begin, at):
            space = "" if step == begin else " "
            pieces.append(encoder.pieces(f"{space}{texts[step]}" + (" <c>" if history == "scores" else "")))
            if history == "scores" and scores[step] is not None:
                pieces.append(encoder.tails[scores[step]])
        return list(chain(*pieces))

    def context(begin: int, at: int) -> list[int]:
        space = "" if at == begin else " "
        return [*prompt, *past(begin, at), *encoder.pieces(f"{space}{texts[at]} <c>")]

    begin, contexts = 0, []
    for at in range(len(texts)):
        if len(context(begin, at)) > room:
            half = (CONTEXT - len(prompt)) // 2
            while begin < at and (len(past(begin, at)) > half or len(context(begin, at)) > room):
                begin += 1
        contexts.append(ids if len(ids := context(begin, at)) <= room else [])
    return contexts


RARE = [pytest.param(history, marks=pytest.mark.slow) for history in ("hidden", "previous")]


@pytest.mark.parametrize("history", ["scores", *RARE])
def test_a_long_text_is_scored_in_a_window_of_whole_sentences(session: Session, history: History) -> None:
    """Against plain forward passes over contexts that are put together anew for every sentence."""
    texts = sentences(24, seed=1)
    if history == "previous":  # two sentences that do not fit together
        texts[5:7] = (" ".join(sentences(7, seed)) for seed in (2, 3))
    texts[20] = " ".join(sentences(20))  # does not fit by itself
    record = Record("a", "Who?", sentences=tuple(map(Sentence, texts)))
    [tagged] = IterativeTagger(session.engine, session.encoder, history=history).tag([record])
    contexts = window(session, texts, [s.score for s in tagged.sentences], history)
    assert session.policy is not None and sum(map(bool, contexts)) == 23
    for sentence, context in zip(tagged.sentences, contexts, strict=True):
        if not context:
            assert sentence.distribution is None
            continue
        logps = [naive_score(session.policy.model, context, tail) for tail in session.encoder.choices]
        assert sentence.distribution == pytest.approx([math.exp(logp) for logp in logps], abs=1e-5, rel=1e-4)
        assert sentence.score == logps.index(max(logps))
    cut, failed = tagged.meta["problems"]
    assert f"({CONTEXT} tokens): from sentence" in cut and failed.startswith("sentence 21: ")


def test_the_window_changes_nothing_for_a_text_that_fits(session: Session) -> None:
    short = Record("a", "Who?", sentences=tuple(map(Sentence, sentences(5, seed=4))))
    engine: Any = session.engine
    for history in ("scores", "hidden", "previous"):
        passage = Passage("a", session.encoder.prompt("Who?"), [Step(s.text) for s in short.sentences])
        free = Passage("a", passage.prompt, passage.steps)
        score_passages(engine, session.encoder, [passage], history)
        while (context := free.next_context(session.encoder, history, None)) is not None:
            free.advance(session.encoder, history, engine.score([context], session.encoder.choices)[0])
        # Up to rounding: what the engine has cached of a passage decides what it computes together.
        pairs = zip(passage.logps, free.logps, strict=True)
        assert all(logps == pytest.approx(alone, abs=1e-5) for logps, alone in pairs) and not passage.problems


def test_the_work_on_a_text_grows_with_its_length_and_no_faster(session: Session) -> None:
    texts, counts = sentences(160, seed=6), []
    for n in (80, 160):
        before = session.engine.prefill_tokens
        record = text_record(" ".join(texts[:n]))
        *streamed, tagged = TextTagger(session).stream([record], "iterative")
        assert isinstance(tagged, Record)
        counts.append(session.engine.prefill_tokens - before)
        assert [s.text for s in tagged.sentences] == texts[:n] and None not in {s.score for s in tagged.sentences}
        assert [*streamed, tagged] == list(items_of(tagged))
        assert len(tagged.meta["problems"]) == 1
        answer = session.encoder.completion(texts[:n], [s.score or 0 for s in tagged.sentences])
        assert counts[-1] <= 2.2 * len(answer)
    assert counts[1] <= 2.2 * counts[0]


def test_texts_of_different_lengths_are_scored_together_as_each_alone(session: Session) -> None:
    batch = [text_record(" ".join(sentences(n, seed=n)), f"Who is {n}?", str(n)) for n in (12, 30, 3, 21)]
    tagger = TextTagger(session)
    assert_same(tagger.tag_texts(batch), [tagger.tag_texts([record])[0] for record in batch])
