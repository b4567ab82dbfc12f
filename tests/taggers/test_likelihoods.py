"""Log-probabilities of the tokens of tagged sentences: those of one forward pass of the policy over the same ids."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lovec.datasets.jsonl import read_records, write_records
from lovec.encoding import Encoder
from lovec.policy import TokenBatch, TokenSequence
from lovec.taggers import FreeFormTagger, IterativeTagger, Session
from lovec.taggers.freeform import read_answer, sentence_spans
from lovec.taggers.scoring import items_of
from lovec.types import Completion, LovecError, Record, Sampling, Sentence

CONTEXT = 400
WORDS = "ada wrote notes on engines in london paris rome before noon".split()


def record(name: str, count: int, seed: int = 0) -> Record:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 3))).capitalize() + "." for _ in range(count)]
    return Record(name, "Who is Ada?", sentences=tuple(map(Sentence, texts)))


def of_policy(session: Session, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The policy's own log-probabilities of a completion."""
    assert session.policy is not None
    batch = TokenBatch.of([TokenSequence(tuple(prompt), tuple(ids))])
    logps: list[float] = session.policy.eval().token_logps(batch)[0].tolist()
    return logps


@pytest.mark.parametrize("history", ["scores", "hidden"])
def test_iterative_likelihoods_are_those_of_the_policy(session: Session, history: Any) -> None:
    encoder, records = session.encoder, [record("a", 3), Record("none", "Who?"), record("b", 1, 1), record("c", 4, 2)]
    tagged = IterativeTagger(session.engine, encoder, history=history, likelihoods=True).tag(records)
    plain = IterativeTagger(session.engine, encoder, history=history).tag(records)
    for one, other in zip(tagged, plain, strict=True):
        past: list[int] = []
        prompt = encoder.prompt(one.question)
        for at, (sentence, bare) in enumerate(zip(one.sentences, other.sentences, strict=True)):
            assert bare.token_logps is None and bare.score == sentence.score
            assert bare.distribution == pytest.approx(sentence.distribution, abs=1e-5)
            words = encoder.pieces(f"{'' if at == 0 else ' '}{sentence.text}")
            assert sentence.token_logps == pytest.approx(of_policy(session, [*prompt, *past], words), abs=1e-5)
            assert sentence.score is not None
            past += (
                words if history == "hidden" else encoder.head(sentence.text, at == 0) + encoder.tails[sentence.score]
            )


def test_likelihoods_do_not_depend_on_the_batch_nor_on_what_was_scored_before(session: Session) -> None:
    records = [record(f"r{n}", n % 5 + 1, n) for n in range(7)]
    tagger = IterativeTagger(session.engine, session.encoder, likelihoods=True)
    together = tagger.tag(records)
    again = tagger.tag(together)
    for one, other, alone in zip(together, again, records, strict=True):
        (single,) = tagger.tag([alone])
        for a, b, c in zip(one.sentences, other.sentences, single.sentences, strict=True):
            for other_logps in (b.token_logps, c.token_logps):
                assert a.token_logps == pytest.approx(other_logps, abs=1e-5)
    (cleared,) = IterativeTagger(session.engine, session.encoder).tag(together[:1])
    assert all(s.token_logps is None for s in cleared.sentences)  # they were another tagger's


def test_likelihoods_in_a_window_are_given_its_sentences(session: Session) -> None:
    long = record("long", 24, 3)
    texts = [s.text for s in long.sentences]
    texts[20] = "y" * CONTEXT  # does not fit by itself
    long = replace(long, sentences=tuple(map(Sentence, texts)))
    contexts: list[tuple[list[int], int]] = []
    engine: Any = session.engine
    original = engine.token_logps

    def spy(given: Any, starts: Any, *rest: Any) -> Any:
        contexts.extend(zip(given, starts, strict=True))
        return original(given, starts, *rest)

    engine.token_logps = spy
    try:
        tagger = IterativeTagger(engine, session.encoder, likelihoods=True)
        *streamed, tagged = tagger.stream([long])
        assert isinstance(tagged, Record)
    finally:
        del engine.token_logps
    assert [*streamed, tagged] == list(items_of(tagged))
    assert len(tagged.meta["problems"]) == 2 and tagged.sentences[20].token_logps is None
    asked = [pair for pair in contexts if pair[0]]
    scored = [s for at, s in enumerate(tagged.sentences) if at != 20]
    for (context, start), sentence in zip(asked, scored, strict=True):
        assert session.encoder.decode(context[start:]).strip() == f"{sentence.text} <c>"
        logps = of_policy(session, context[:start], context[start:])
        assert sentence.token_logps == pytest.approx(logps[: len(sentence.token_logps or ())], abs=1e-5)
        assert session.encoder.decode(context[start:][: len(sentence.token_logps or ())]).strip() == sentence.text


class Scripted:
    """The session's engine, but what it writes is given; the log-probabilities are the model's own."""

    def __init__(self, session: Session, answers: Sequence[str], temperature: float = 0.0) -> None:
        self._session, self._answers, self._temperature = session, answers, temperature
        self.context_length, self.max_rows = CONTEXT, 3

    def generate(self, prompts: Any, *_: Any, **__: Any) -> list[list[Completion]]:
        encoder = self._session.encoder
        groups = []
        for prompt, text in zip(prompts, self._answers, strict=True):
            ids = [*encoder.pieces(text), encoder.end_id]
            logps = of_policy(self._session, prompt, ids)
            groups.append(
                [Completion(tuple(ids), tuple(x - 9 * (self._temperature not in (0, 1)) for x in logps), True)]
            )
        return groups

    def token_logps(self, *args: Any) -> Any:
        return self._session.engine.token_logps(*args)  # type: ignore[attr-defined]


ANSWERS = [
    "Ada wrote. <c> 7 </c> She lived in Z\u00fcrich \U0001f600. <c> 8.5 </c>  <c> 3 </c> And so on",
    "Ada <c> 10 </c>",
    "",
]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_free_form_likelihoods_are_those_of_the_policy(session: Session, temperature: float) -> None:
    encoder = session.encoder
    engine: Any = Scripted(session, ANSWERS, temperature)
    tagger = FreeFormTagger(engine, encoder, Sampling(64, temperature), likelihoods=True)
    tagged = tagger.tag([Record(name, "Who?") for name in "abc"])
    texts = [["Ada wrote.", " She lived in Z\u00fcrich \U0001f600.", None, " And so on"], ["Ada"], []]
    for answer, found, expected in zip(ANSWERS, tagged, texts, strict=True):
        ids = [*encoder.pieces(answer), encoder.end_id]
        logps = of_policy(session, encoder.prompt("Who?"), ids)
        assert len(found.sentences) == len(expected)
        for sentence, text in zip(found.sentences, expected, strict=True):
            if text is None:  # a tag without a sentence
                assert sentence.token_logps is None
                continue
            begin = len(encoder.pieces(answer[: answer.index(text)]))
            own = logps[begin : begin + len(encoder.pieces(text))]
            assert sentence.token_logps == pytest.approx(own, abs=1e-5)
    assert tagger.watch.seconds.keys() == ({"writing", "scoring"} if temperature == 0.7 else {"writing"})


def test_free_form_likelihoods_come_with_distributions_too(session: Session) -> None:
    tagger = FreeFormTagger(session.engine, session.encoder, Sampling(40), distributions=True, likelihoods=True)
    plain = FreeFormTagger(session.engine, session.encoder, Sampling(40), distributions=True)
    records = [Record(name, f"Who is {name}?") for name in "abcd"]
    found = tagger.tag(records)
    assert any(s.token_logps for answer in found for s in answer.sentences)
    bare = [replace(a, sentences=tuple(replace(s, token_logps=None) for s in a.sentences)) for a in found]
    assert bare == plain.tag(records)


def test_tokens_shared_by_a_sentence_and_its_tag_belong_to_the_sentence() -> None:
    class Merged(Encoder):
        """A tokenizer of a few tokens, some of which go across the boundaries."""

        pieces_of = ("Ada", " is", " 4.<", "c>", " 7 <", "/c> B", "ob")

        def __init__(self) -> None:
            from lovec.tags import TagFormat

            self.tags = TagFormat("<c>", "</c>")
            self.stop_ids = ()
            self._is_open = lambda token: False  # type: ignore[assignment, misc]  # no token is a byte

        def decode(self, ids: Sequence[int]) -> str:
            return "".join(self.pieces_of[i] for i in ids)

    encoder = Merged()
    assert encoder.sentence_tokens([0, 1, 2, 3]) == 3
    completion = Completion(tuple(range(7)), (), True)
    answer, parsed = read_answer(Record("a", "?"), completion, encoder)
    assert [s.text for s in answer.sentences] == ["Ada is 4.", "Bob"]
    assert sentence_spans(parsed, completion.ids, encoder) == [slice(0, 3), slice(6, 7)]  # " B" is the tag's


def test_engines_of_users_without_token_log_probs_are_refused_when_they_are_needed(session: Session) -> None:
    class Own:
        """Scores as before, and no more."""

        context_length, max_rows, prefill_tokens = CONTEXT, 8, 0

        def score(self, contexts: Any, choices: Any) -> list[list[float]]:
            return [[-1.0 - at for at in range(len(choices))] for _ in contexts]

    engine: Any = Own()
    (tagged,) = IterativeTagger(engine, session.encoder).tag([record("a", 1)])
    assert tagged.sentences[0].score == 0
    with pytest.raises(LovecError, match="Own has no token_logps"):
        IterativeTagger(engine, session.encoder, likelihoods=True).tag([record("a", 1)])


def test_likelihoods_are_written_and_read_exactly(session: Session, tmp_path: Path) -> None:
    tagged = IterativeTagger(session.engine, session.encoder, likelihoods=True).tag([record("a", 2)])
    path = tmp_path / "x.jsonl"
    write_records(path, [*tagged, record("b", 1)])
    assert list(read_records(path)) == [*tagged, record("b", 1)]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert "token_logps" in rows[0]["sentences"][0] and "token_logps" not in rows[1]["sentences"][0]
    for wrong in ([0.5], ["x"], [True], -1.0, [None], {}, "x"):
        rows[0]["sentences"][0]["token_logps"] = wrong
        path.write_text(json.dumps(rows[0]))
        with pytest.raises(
            LovecError, match=r"'sentences\[0\]' has token_logps .*expected a list of numbers of at most 0"
        ):
            list(read_records(path))
    rows[0]["sentences"][0]["token_logps"] = [0, -1]
    path.write_text(json.dumps(rows[0]))
    assert next(iter(read_records(path))).sentences[0].token_logps == (0.0, -1.0)
