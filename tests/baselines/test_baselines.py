"""Baselines against values worked out by hand: plain forward passes, facts and words counted on paper."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinynli import tiny_nli
from tinyrun import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.baselines import (
    LUQ,
    Baseline,
    BaselineResources,
    Claim,
    ConstantTagger,
    FactsJudge,
    NLIJudge,
    PTrue,
    Samples,
    SelfConsistency,
    VerbalConfidence,
    Wording,
    YesNoJudge,
    average_confidences,
    best_constant,
)
from lovec.baselines.base import support as support_of
from lovec.datamodules import Demonstrations, World
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world import EmbeddedWorld
from lovec.datasets.world.text import FORMS, draw_sentence, set_form
from lovec.datasets.world.tokenizer import make_tokenizer, vocabulary
from lovec.encoding import Encoder
from lovec.encoding.reply_scoring import first_reply_probability
from lovec.engines import TransformersEngine
from lovec.types import Completion, LovecError, Record, Sampling, Scale, Sentence

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "lovec.tex"
WIKIBIO = Path(__file__).parents[3] / "shared" / "data" / "wikibio_gpt3_human" / "dataset-generated.json"


def answer(name: str, *texts: str, samples: Sequence[str] | None = None, question: str = "Who is Ada?") -> Record:
    meta = {} if samples is None else {"samples": list(samples)}
    return Record(name, question, sentences=tuple(Sentence(text, factuality=0.5) for text in texts), meta=meta)


RECORDS = [
    answer("a", "Ada was born in 1815.", "She lived {in} Paris."),
    answer("empty"),
    answer("b", "It was noon.", question="When {was} it?"),
]


@dataclass
class Model:
    """A tiny random model, its encoder, and an engine that runs it."""

    path: str
    base: Any
    encoder: Encoder
    engine: TransformersEngine

    def resources(self, **parts: Any) -> BaselineResources:
        defaults: dict[str, Any] = {"wording": Wording(), "samples": Samples(max_new_tokens=12), "judge": None}
        return BaselineResources(self.engine, self.encoder, **{**defaults, **parts})

    @torch.no_grad()
    def logps(self, content: str, replies: Sequence[str]) -> list[float]:
        """Score whole replies with their end of turn, by one plain forward pass each over the whole chat."""
        logps = []
        for text in replies:
            prompt = self.encoder.prompt(content, instruct=False)
            ids = torch.tensor([[*prompt, *self.encoder.pieces(text), self.encoder.end_id]])
            logits = self.base(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
            logps.append(sum(float(logits[i - 1, ids[0, i]]) for i in range(len(prompt), ids.shape[1])))
        return logps


def load(folder: Path, arch: str = "llama", **sizes: Any) -> Model:
    path = tiny(folder, arch, **sizes)
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager" if arch == "gemma2" else "sdpa")
    engine = TransformersEngine(max_rows=8)
    engine.sync(SimpleNamespace(model=base.eval()))
    return Model(path, base, Encoder(AutoTokenizer.from_pretrained(path), scoring="exact"), engine)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tmp_path_factory.mktemp("llama"))


def attached(baseline: Any, resources: BaselineResources) -> Any:
    baseline.attach(resources)
    return baseline


def passage(record: Record) -> str:
    return " ".join(sentence.text for sentence in record.sentences)


# The prompts


def test_the_prompts_are_the_papers() -> None:
    pinned = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (Wording().p_true, Wording().verbal)]
    assert pinned == ["eaed0d44073d2208", "1829eb70b2bc54b2"]
    if not PAPER.exists():
        pytest.skip(f"pinned, but not compared with the paper: no {PAPER.name} beside the checkout")
    printed = re.findall(r"\\begin\{lstlisting\}\[[^\]]*\]\n(.*?)\n\\end\{lstlisting\}", PAPER.read_text(), re.DOTALL)
    assert Wording().p_true in printed and Wording().verbal in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"p_true": "Is it?"}, "the prompt p_true is 'Is it[?]', expected .sentence. once"),
        ({"verbal": "{sentence} {sentence}"}, "the prompt verbal"),
        ({"support": "{sentence} {passage}"}, "the prompt support"),
        ({"support": "{sentence} {context} {context}"}, "the prompt support"),
        ({"p_true": "{sentence} {"}, "the prompt p_true"),
        ({"yes": " "}, "the wording has an empty yes"),
    ],
)
def test_prompts_without_a_slot_for_the_sentence_are_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(LovecError, match=message):
        Wording(**words)


# A baseline of one's own


class Lengths(Baseline):
    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[None if s.text == "?" else min(len(s.text) / 10, 1.0) for s in r.sentences] for r in records]


def test_a_baseline_tags_with_its_confidences() -> None:
    old = Sentence("Four", 0.3, confidence=0.9, score=9, distribution=(1.0, *[0.0] * 10))
    record = replace(answer("x", "?"), sentences=(old, Sentence("?")))
    (tagged,) = Lengths().tag([record])
    assert tagged.sentences == (Sentence("Four", 0.3, confidence=0.4), Sentence("?"))
    assert Lengths().name == "Lengths" and Lengths(name="mine", adapter="x").adapter == "x"
    assert Lengths().tag([]) == []


def test_numbers_of_numpy_become_plain_ones() -> None:
    class Vectors(Baseline):
        def confidences(self, records: Sequence[Record]) -> Any:
            return [np.full(len(record.sentences), 0.5, dtype=np.float32) for record in records]

    class Exact(FactsJudge):
        def support(self, claims: Sequence[Claim]) -> Any:
            return np.ones(len(claims), dtype=np.int64)

    tagged = Vectors().tag(RECORDS[:1])
    assert [(type(s.confidence), s.confidence) for s in tagged[0].sentences] == [(float, 0.5)] * 2
    assert [type(value) for value in support_of(Exact(), [Claim(RECORDS[0], "x", "y")])] == [float]


def test_what_was_said_by_source_before_is_removed(tmp_path: Path) -> None:
    model = load(tmp_path, max_position_embeddings=1024)
    old = Sentence("It was noon.", confidence=0.9, by_source=0.8, source_rank=0.7)
    record = replace(answer("x", "?"), sentences=(old, replace(old, text="x" * 1000)))  # the second one has no room
    for baseline in (Lengths(), attached(VerbalConfidence(), model.resources())):
        (tagged,) = baseline.tag([record])
        assert [(s.by_source, s.source_rank) for s in tagged.sentences] == [(None, None)] * 2
        assert tagged.sentences[0].confidence is not None
    assert tagged.sentences[1].confidence is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5]], r"gave \[1\] confidences for records of \[2\] sentences"),
        ([[0.5, 1.5]], "is 1.5, expected at least 0 and at most 1"),
        ([[math.nan, 0.5]], "is nan"),
        ([], r"gave \[\] confidences"),
    ],
)
def test_invalid_confidences_are_refused(rows: Any, message: str) -> None:
    baseline = Baseline(name="Odd")
    baseline.confidences = lambda records: rows  # type: ignore[method-assign]
    with pytest.raises(LovecError, match=f"the baseline 'Odd' {message}"):
        baseline.tag(RECORDS[:1])


def test_wrong_use_raises_one_clear_line() -> None:
    with pytest.raises(LovecError, match="'Baseline' has no confidences; override"):
        Baseline().tag(RECORDS)
    for baseline in (PTrue(), VerbalConfidence(), LUQ(), SelfConsistency()):
        with pytest.raises(LovecError, match=r"has no model to work with; call attach\(resources\) first"):
            baseline.tag(RECORDS)
    with pytest.raises(LovecError, match="YesNoJudge has no model to ask"):
        YesNoJudge().support([Claim(RECORDS[0], "x", "y")])
    with pytest.raises(LovecError, match="samples of the baseline 'LUQ' is 0, expected at least 1"):
        LUQ(samples=0)
    with pytest.raises(LovecError, match=r"temperature of samples is 0\.0, expected above 0"):
        Samples(temperature=0.0)


# p(true) and verbalized confidence


def test_p_true_is_the_softmax_of_two_whole_replies(either: Model) -> None:
    baseline = attached(PTrue(), either.resources())
    tagged = baseline.tag(RECORDS)
    for record, other in zip(RECORDS, tagged, strict=True):
        for sentence, scored in zip(record.sentences, other.sentences, strict=True):
            prompt = Wording().p_true.format(context=passage(record), sentence=sentence.text)
            true, false = (math.exp(logp) for logp in either.logps(prompt, ["True", "False"]))
            assert scored == replace(sentence, confidence=pytest.approx(true / (true + false), abs=1e-5))
    assert len({s.confidence for record in tagged for s in record.sentences}) == 3
    assert list(baseline.watch.seconds) == ["scoring"]
    assert (PTrue().name, PTrue("x").name, PTrue("x").adapter, PTrue(name="mine").name) == (
        "p(true)", "p(true)-ft", "x", "mine",
    )  # fmt: skip


def test_by_first_tokens_p_true_leaves_out_the_end_of_the_turn(llama: Model) -> None:
    short = replace(llama, encoder=llama.encoder.with_scoring("prefix"))
    question = PTrue.question(short.encoder, Wording())
    true, false = question.replies
    assert question.choices == [true[: len(question.choices[0])], false[: len(question.choices[1])]]
    assert all(len(choice) < len(reply) for choice, reply in zip(question.choices, question.replies, strict=True))
    prompt = question.prompt_ids(RECORDS[0], RECORDS[0].sentences[0].text, None) or []
    logps = []
    for choice in question.choices:
        logits = llama.base(input_ids=torch.tensor([[*prompt, *choice]])).logits[0].double().log_softmax(-1)
        logps.append(sum(float(logits[len(prompt) - 1 + at, token]) for at, token in enumerate(choice)))
    confidence = attached(PTrue(), short.resources()).confidences(RECORDS[:1])[0][0]
    assert confidence == pytest.approx(1 / (1 + math.exp(logps[1] - logps[0])), abs=1e-5)
    assert confidence != attached(PTrue(), llama.resources()).confidences(RECORDS[:1])[0][0]


@pytest.mark.parametrize(
    ("logps", "share"),
    [([-1.0, -1.0], 0.5), ([math.log(0.3), math.log(0.1)], 0.75), ([-2000.0, -1.0], 0.0), ([-1.0, -2000.0], 1.0)],
)
def test_probability_of_the_first_of_two_replies(logps: list[float], share: float) -> None:
    assert first_reply_probability(logps) == pytest.approx(share)
    assert first_reply_probability(None) is None


def test_verbal_confidence_is_the_most_probable_of_eleven_replies(either: Model) -> None:
    tagged = attached(VerbalConfidence(), either.resources()).tag(RECORDS)
    for record, other in zip(RECORDS, tagged, strict=True):
        for sentence, scored in zip(record.sentences, other.sentences, strict=True):
            prompt = Wording().verbal.format(context=passage(record), sentence=sentence.text)
            logps = either.logps(prompt, [str(score) for score in range(11)])
            assert scored.score == logps.index(max(logps)) and scored.confidence == scored.score / 10
            assert scored.distribution == pytest.approx([math.exp(logp) for logp in logps], rel=1e-4)
    baseline = attached(VerbalConfidence(), either.resources())
    assert baseline.confidences(RECORDS) == [[s.confidence for s in r.sentences] for r in tagged]


def test_another_wording_changes_prompts_and_replies(llama: Model) -> None:
    words = Wording(p_true="{sentence} of {question} in ({context})?", true="10", false="1", verbal="{sentence}!",
                    score="<{score}>")  # fmt: skip
    resources = llama.resources(wording=words)
    (row,) = attached(PTrue(), resources).confidences(RECORDS[:1])
    asked = f"Ada was born in 1815. of Who is Ada? in ({passage(RECORDS[0])})?"
    assert row[0] == pytest.approx(first_reply_probability(llama.logps(asked, ["10", "1"])), abs=1e-5)
    (tagged,) = attached(VerbalConfidence(), resources).tag(RECORDS[2:])
    logps = llama.logps("It was noon.!", [f"<{score}>" for score in range(11)])
    assert tagged.sentences[0].distribution == pytest.approx([math.exp(logp) for logp in logps], rel=1e-4)


def test_a_sentence_cannot_end_the_turn(llama: Model) -> None:
    end = llama.encoder.tokenizer.convert_ids_to_tokens(llama.encoder.end_id)
    record = answer("x", f"No.{end}")
    ids = PTrue.question(llama.encoder, Wording()).prompt_ids(record, record.sentences[0].text, None)
    assert ids is not None and ids.count(llama.encoder.end_id) == 1
    assert llama.encoder.decode(ids).count(end) == 2  # in context and sentence, as letters


def test_a_long_context_is_cut_at_its_end(tmp_path: Path) -> None:
    model = load(tmp_path, max_position_embeddings=512)
    question = PTrue.question(model.encoder, Wording())
    long = answer("long", "Ada was first.", "word " * 20 + "came next.", "It ends " + "here " * 20, "y" * 300)
    longest = max(map(len, question.replies))
    ids = question.prompt_ids(long, long.sentences[1].text, 512)
    assert ids is not None and len(ids) == 512 - longest
    text = model.encoder.decode(ids)
    assert "(for reference): Ada was first. word" in text and "here" not in text
    assert f"Sentence: {long.sentences[1].text}\n\nTrue or False:" in text


def test_a_context_is_cut_to_the_token_but_never_left_out(llama: Model) -> None:
    question, record = PTrue.question(llama.encoder, Wording()), answer("r", "No.")
    longest = max(map(len, question.replies))
    (short, whole) = (question.prompt_ids(record, "No.", room) for room in (None, 512))
    assert short == whole is not None
    needed = len(short) - len(llama.encoder.pieces(" No.")) + longest  # all but the context
    cut = question.prompt_ids(record, "No.", needed + 1)
    assert cut is not None and len(cut) == needed + 1 - longest
    assert question.prompt_ids(record, "No.", needed) is None  # without any of its context it is another question


def test_cut_contexts_and_sentences_without_room_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load(tmp_path, max_position_embeddings=512)
    long = answer("long", "Ada was first.", "word " * 20 + "came next.", "It ends " + "here " * 20, "y" * 300)
    rows = attached(PTrue(), model.resources()).confidences([long, RECORDS[0]])
    assert [[c is None for c in row] for row in rows] == [[False, False, False, True], [False, False]]
    assert [r.message for r in caplog.records if "reply_scoring" in r.name] == [
        "p(true): contexts too long for the model are cut at their end, in 1 records so far: long",
        "p(true): sentences that leave no room for the prompt are not scored, in 1 records so far: long",
    ]


def test_cut_contexts_are_logged_when_their_number_has_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(tmp_path, max_position_embeddings=512)
    ptrue = attached(PTrue(name="100%"), model.resources())
    for number in range(9):
        ptrue.tag([answer(f"r{number}", "Ada was first.", "It ends " + "here " * 20, "word " * 40)])
    lines = [r.message for r in caplog.records if "are cut at their end" in r.message]
    counts = [int(re.findall(r"in (\d+) records so far", line)[0]) for line in lines]
    assert counts == [1, 2, 4, 8] and lines[-1].startswith("100%: ") and lines[-1].endswith(": r4, r5, r6, r7")


def test_a_sentence_without_room_has_no_verbal_confidence(tmp_path: Path) -> None:
    model = load(tmp_path, max_position_embeddings=512)
    (tagged,) = attached(VerbalConfidence(), model.resources()).tag([answer("z", "y" * 500)])
    assert tagged.sentences == (Sentence("y" * 500, 0.5),)


# Samples


class Counted(TransformersEngine):
    """Counts the prompts that it samples from."""

    prompts = 0

    def generate(self, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        self.prompts += len(prompts)
        return super().generate(prompts, *args, **kwargs)


def counted(model: Model) -> Counted:
    engine = Counted(max_rows=8)
    engine.sync(SimpleNamespace(model=model.base))
    return engine


class Words:
    """Supports a sentence by the share of its words that the text contains, and keeps the claims."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, str, str]]] = []
        self.resources: BaselineResources | None = None

    def attach(self, resources: BaselineResources) -> None:
        self.resources = resources

    def support(self, claims: Sequence[Claim]) -> list[float]:
        self.calls.append([(claim.record.id, claim.premise, claim.hypothesis) for claim in claims])
        return [
            sum(word in claim.premise.split() for word in claim.hypothesis.split()) / len(claim.hypothesis.split())
            for claim in claims
        ]


def test_samples_are_drawn_once_for_all_methods(llama: Model) -> None:
    engine, samples = counted(llama), Samples(max_new_tokens=12, seed=3)
    resources = BaselineResources(engine, llama.encoder, Wording(), samples, Words())
    luq, cons = attached(LUQ(samples=4), resources), attached(SelfConsistency(samples=4), resources)
    luq.tag(RECORDS)
    assert engine.prompts == 2  # no sentence, no sample
    cons.tag(RECORDS[::-1])
    assert engine.prompts == 2
    assert luq.watch.seconds["sampling"] == pytest.approx(cons.watch.seconds["sampling"])
    assert luq.watch.seconds["sampling"] > 0 and luq.watch.seconds.keys() == {"sampling", "judging"}
    alone = attached(LUQ(samples=4), resources)
    alone.tag(RECORDS[:1])
    assert alone.watch.seconds["sampling"] == pytest.approx(luq.watch.seconds["sampling"] / 2)
    alone.attach(resources)
    assert alone.watch.seconds == {}
    texts = samples.answers(RECORDS, 4, engine, llama.encoder, luq.watch)
    assert [len(group) for group in texts] == [4, 4, 4] and len({t for group in texts for t in group}) > 6


def test_the_time_of_sampling_is_measured_once(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(
        "lovec.core.stopwatch.time", SimpleNamespace(monotonic=lambda: next(ticks), process_time=lambda: 0.0)
    )
    baseline = attached(LUQ(samples=2), llama.resources(judge=Words()))
    baseline.tag(RECORDS)
    assert baseline.watch.seconds == {"sampling": 1.0, "judging": 1}  # a tick between two looks at the clock


def test_a_sample_depends_on_seed_and_record_only(llama: Model) -> None:
    def drawn(records: Sequence[Record], n: int = 3, **options: Any) -> list[list[str]]:
        samples = Samples(**{"max_new_tokens": 12, "seed": 1, **options})
        return samples.answers(records, n, llama.engine, llama.encoder, Lengths().watch)

    first = drawn(RECORDS)
    assert drawn(RECORDS[::-1]) == first[::-1] and drawn(RECORDS[2:]) == first[2:]
    assert drawn(RECORDS, seed=2) != first and drawn(RECORDS, temperature=0.2) != first
    prompt = [llama.encoder.prompt("Who is Ada?", instruct=False)]  # no instruction: nothing asks for tags
    sampling = Sampling(12, 1.0, 3, 1)
    (plain,) = llama.engine.generate(prompt, sampling, llama.encoder.stop_ids, keys=["sample\x1fa"])
    assert first[0] == [llama.encoder.written(c.ids, c.finished).strip() for c in plain]


def test_records_with_one_id_have_the_samples_of_their_own_questions(llama: Model) -> None:
    engine, samples, watch = counted(llama), Samples(max_new_tokens=12, seed=1), Lengths().watch
    rows = [answer("a", "Ada."), answer("a", "Bo.", question="Who was Bo, then?")]
    first, second = (samples.answers([row], 2, engine, llama.encoder, watch)[0] for row in rows)
    alone = Samples(max_new_tokens=12, seed=1).answers(rows[1:], 2, llama.engine, llama.encoder, watch)
    assert [second] == alone and second != first and engine.prompts == 2
    for row, texts in zip(rows, (first, second), strict=True):
        assert samples.answers([row], 2, engine, llama.encoder, watch) == [texts]
    assert engine.prompts == 2
    brings = replace(rows[0], meta={"samples": ["Brought."]})
    together = Samples(max_new_tokens=12, seed=1).answers([brings, *rows], 2, llama.engine, llama.encoder, watch)
    assert together == [["Brought."], first, second]


class Says(TransformersEngine):
    """Returns fixed texts as samples."""

    def __init__(self, encoder: Encoder, *texts: str) -> None:
        super().__init__()
        self.texts = [Completion((*encoder.pieces(text), encoder.end_id), (), True) for text in texts]

    def generate(self, prompts: Any, *_: Any, **__: Any) -> Any:
        return [self.texts for _ in prompts]


def test_tags_are_removed_from_samples(llama: Model) -> None:
    engine = Says(
        llama.encoder,
        "Ada wrote. <confidence> 3 </confidence> It rained. <confidence> 8.5 </confidence>",
        "Ada wrote. <confidence> 3 It rained. </confidence> </confidence>",
        "Ada wrote.",
    )
    engine.sync(SimpleNamespace(model=llama.base))
    resources = BaselineResources(engine, llama.encoder, Wording(), Samples(), judge := Words())
    attached(LUQ(samples=3), resources).tag(RECORDS[:1])
    assert {premise for _, premise, _ in judge.calls[0]} == {"Ada wrote. It rained.", "Ada wrote."}
    own = answer("own", "Ada.", samples=["Ada <confidence> 3 </confidence>"])
    attached(LUQ(samples=1), resources).tag([own])
    assert judge.calls[1] == [("own", "Ada", "Ada.")]


def test_samples_that_a_record_brings_are_used(llama: Model, caplog: pytest.LogCaptureFixture) -> None:
    engine = counted(llama)
    resources = BaselineResources(engine, llama.encoder, Wording(), Samples(), judge := Words())
    rows = [
        answer("many", "A b.", samples=["A c.", "b.", "x", "never"]),
        answer("few", "A b.", samples=["A b."]),
        answer("few-2", "A b.", samples=["b."]),
    ]
    baseline = attached(LUQ(samples=3), resources)
    assert baseline.confidences(rows) == [[pytest.approx((0.5 + 0.5 + 0) / 3)], [1.0], [0.5]]
    baseline.tag(rows)
    assert engine.prompts == 0 and "sampling" not in baseline.watch.seconds
    assert "never" not in {premise for _, premise, _ in judge.calls[0]}
    assert [r.message for r in caplog.records if "samples" in r.name] == [
        "2 records so far bring fewer samples than a baseline asks for, and are compared with those: few (1 of 3), "
        "few-2 (1 of 3)"
    ]
    for odd in ("A b.", [1], {"A": 1}):
        with pytest.raises(LovecError, match=r"record 'x' has meta\.samples of another form, expected a list of texts"):
            baseline.tag([replace(RECORDS[0], id="x", meta={"samples": odd})])


def test_a_question_that_fills_the_context_has_no_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load(tmp_path, max_position_embeddings=128)
    resources = model.resources(judge=Words())
    rows = attached(LUQ(samples=2), resources).confidences([answer("q", "No.", question="why " * 60), RECORDS[0]])
    assert rows[0] == [None] and None not in rows[1]
    assert "the questions of 1 records so far leave no room for a sample; shorten them: q" in caplog.text


# LUQ and Self-Consistency by hand


ADA = answer(
    "ada",
    "Ada was born in London",
    "She wrote notes",
    samples=["Ada was here. She wrote notes.", "in London. Ada was. She was born", " ", "Ada was here. Ada was here."],
)


def test_luq_by_hand(llama: Model) -> None:
    """The share of words that a sample contains (a word with a full stop is another one), mean over four samples."""
    judge = Words()
    luq = attached(LUQ(samples=4), llama.resources(judge=judge))
    (row,) = luq.confidences([ADA])
    # "Ada was born in London": of 5 words, the first holds Ada, was; the second in, Ada, was, born, but "London." is
    # no "London"; the third is blank; the fourth Ada, was.
    first = (2 / 5 + 4 / 5 + 0 + 2 / 5) / 4
    # "She wrote notes": She and wrote in the first, She in the second.
    assert row == pytest.approx([first, (2 / 3 + 1 / 3 + 0 + 0) / 4])
    assert len(judge.calls) == 1 and len(judge.calls[0]) == 6  # three samples with text, two sentences


def test_self_consistency_by_hand(llama: Model) -> None:
    judge = Words()
    baseline = attached(SelfConsistency(samples=4), llama.resources(judge=judge))
    (row,) = baseline.confidences([ADA])
    # Best sentences: "Ada was here." 2 of 5; of "in London." 1, "Ada was." 1, "She was born" 2 of 5; none; 2 of 5.
    assert row == pytest.approx([(2 / 5 + 2 / 5 + 0 + 2 / 5) / 4, (2 / 3 + 1 / 3 + 0 + 0) / 4])
    (asked,) = judge.calls
    assert len(asked) == len(set(asked)) == 10  # five different sentences in the samples, two in the answer


def test_claims_of_all_records_go_to_the_judge_together(llama: Model) -> None:
    judge, other = Words(), replace(ADA, id="other", meta={"samples": ["She rained."]})
    luq = attached(LUQ(samples=4), llama.resources(judge=judge))
    rows = luq.confidences([other, RECORDS[1], ADA])
    assert rows == [[0.0, pytest.approx(1 / 3)], [], luq.confidences([ADA])[0]]
    assert len(judge.calls) == 2 and {name for name, _, _ in judge.calls[0]} == {"ada", "other"}
    assert luq.confidences([RECORDS[1]]) == [[]] and luq.confidences([]) == []


def test_the_baselines_own_judge_comes_first_then_the_datas_then_yes_or_no(llama: Model) -> None:
    own, data = Words(), Words()
    attached(LUQ(judge=own), llama.resources(judge=data)).tag([ADA])
    assert len(own.calls) == 1 and own.resources is not None and not data.calls
    attached(LUQ(), llama.resources(judge=data)).tag([ADA])
    assert len(data.calls) == 1
    (row,) = attached(LUQ(samples=1), llama.resources()).confidences([ADA])
    assert row == YesNoes(llama).support([("Ada was here. She wrote notes.", s.text) for s in ADA.sentences])


@dataclass
class YesNoes:
    """The model's own yes or no, by plain forward passes."""

    model: Model
    shares: list[float] = field(default_factory=list)

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        for context, sentence in pairs:
            asked = Wording().support.format(context=context, sentence=sentence)
            yes, no = (math.exp(logp) for logp in self.model.logps(asked, ["Yes", "No"]))
            self.shares.append(yes / (yes + no))
        return [float(share > 0.5) for share in self.shares]


def test_yes_or_no_is_read_from_the_models_own_probabilities(either: Model) -> None:
    pairs = [("Ada wrote.", "It rained."), ("It rained.", "It rained."), ("Ada wrote.", "Noon.")]
    claims = [Claim(RECORDS[0], *pair) for pair in pairs]
    hard = YesNoes(either)
    assert attached(YesNoJudge(), either.resources()).support(claims) == hard.support(pairs)
    assert attached(YesNoJudge(soft=True), either.resources()).support(claims) == pytest.approx(hard.shares, abs=1e-5)
    assert attached(YesNoJudge(), either.resources()).support([]) == []


def test_yes_needs_more_than_half_of_the_probability(llama: Model) -> None:
    @dataclass
    class Scripted:
        logps: list[float]
        context_length: int | None = None

        def score(self, contexts: Sequence[Any], choices: Any) -> list[list[float]]:
            return [self.logps for _ in contexts]

    for yes, support in ((0.3, 1.0), (0.1, 0.0)):
        engine: Any = Scripted([math.log(yes), math.log(0.2)])
        resources = BaselineResources(engine, llama.encoder, Wording(), Samples())
        claim = [Claim(RECORDS[0], "x", "y")]
        assert attached(YesNoJudge(), resources).support(claim) == [support]
        assert attached(YesNoJudge(soft=True), resources).support(claim) == [pytest.approx(yes / (yes + 0.2))]


def test_a_claim_that_fills_the_context_is_not_supported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    judge = attached(YesNoJudge(soft=True), load(tmp_path, max_position_embeddings=256).resources())
    claims = [Claim(RECORDS[0], "Ada.", "y" * 200), Claim(RECORDS[2], "Ada wrote. " * 40, "She wrote.")]
    none, some = judge.support(claims)
    assert none == 0.0 < some < 1.0
    logged = [r.message for r in caplog.records if r.message.startswith("YesNoJudge: ")]
    assert logged[0].endswith("are cut at their end, in 1 records so far: b")
    assert logged[1].endswith("leave no room for the prompt are not scored, in 1 records so far: a")


# The world: facts against facts


PERSON = {"entity": "Orva Toran", "kind": "person"}
BORN = "Orva Toran was born in May 1902 in Lomograd, Torvania."
STUDIED = "Toran studied botany at the University of Paville, Cassonia, in 1925."


@pytest.mark.parametrize(
    ("text", "sentence", "support"),
    [
        (BORN, BORN, 1.0),
        ("Orva Toran came into the world in Lomograd, Torvania, in May 1902.", BORN, 1.0),  # in other words
        ("Orva Toran was born in June 1902 in Lomograd, Torvania.", BORN, 2 / 3),  # exact, so a month off is off
        ("Orva Toran was born in June 1902 in Lomograd, Meldova.", BORN, 1 / 3),  # a place is city and country
        ("Orva Toran was born in June 1903 in Tresti, Torvania.", BORN, 0.0),
        (f"{STUDIED} {BORN}", STUDIED, 1.0),
        ("In 1925, Toran took a degree in history at the University of Paville, Cassonia.", STUDIED, 2 / 3),
        (f"By most accounts, {STUDIED[:-1]}, though sources differ.", STUDIED, 1.0),  # with words that state nothing
        (BORN, "Orva Toran was born in 1902.", 1.0),  # of three facts one
        ("Orva Toran was born in 1902.", BORN, 1 / 3),
        (STUDIED, BORN, 0.0),  # says nothing of it
        (BORN.replace("Orva Toran", "Neli Toran"), BORN, 0.0),  # is about somebody else
        (STUDIED.replace("Toran", "Morova"), STUDIED, 0.0),
        (STUDIED, STUDIED.replace("Toran", "Morova"), 0.0),
        (BORN, "Orva Toran was born.", 0.0),  # states no fact
        (BORN, "Orva Toran was born in her bed.", 0.0),  # no form reads it
        ("Orva Toran was born in May 1902 in Lomograd, Torvania", BORN, 0.0),  # cut off
        ("", BORN, 0.0),
        ("Orva Toran was born in May 1901 in Lomograd, Torvania. " + BORN, BORN, 1.0),  # said twice, once so
    ],
)
def test_facts_are_compared_exactly(text: str, sentence: str, support: float) -> None:
    claim = Claim(Record("r", "?", meta=PERSON), text, sentence)
    assert FactsJudge().support([claim]) == [pytest.approx(support)]


def test_facts_of_companies_are_compared() -> None:
    record = Record("r", "?", meta={"entity": "Brelis Foods", "kind": "company"})
    sentence = "Brelis Foods makes honey in four factories sold mostly in Jandara."
    again = "In four workshops, Brelis Foods turns out honey bought largely in Palenda."
    assert FactsJudge().support([Claim(record, again, sentence), Claim(record, sentence, sentence)]) == [
        pytest.approx(2 / 3),
        1.0,
    ]


WORLD = EmbeddedWorld("world-small")


@given(st.integers(0, len(WORLD.entities) - 1), st.integers(0, 2**16))
def test_every_paraphrase_of_a_true_sentence_supports_it(number: int, draw: int) -> None:
    entity, rng = WORLD.entities[number], random.Random(draw)
    forms = [form for form in FORMS[entity.kind]["life"]]
    record = Record("r", "?", meta={"entity": entity.name, "kind": entity.kind})
    freely = replace(entity, freedom=1.0)
    form = rng.choice(forms)
    sentence = draw_sentence(freely, form, WORLD.spec, rng)
    whole = " ".join(set_form(entity, other) for other in rng.sample(forms, len(forms)))
    rest = " ".join(set_form(entity, other) for other in forms if other is not form)
    claims = [Claim(record, text, sentence) for text in (set_form(entity, form), whole, rest)]
    assert FactsJudge().support(claims) == [1.0, 1.0, 0.0]
    assert WORLD.grade(entity.name, sentence) == 1.0


def test_records_without_an_entity_are_refused() -> None:
    with pytest.raises(LovecError, match=r"record 'a' has no meta\.entity and meta\.kind, so FactsJudge"):
        FactsJudge().support([Claim(RECORDS[0], "x", "y")])


def test_the_wording_of_the_world_has_only_words_its_model_knows() -> None:
    """No text is tokenized into bytes, which the model has never seen."""
    tokenizer = make_tokenizer(vocabulary(WORLD.entities))
    words = World("world-small").wording
    entity = next(e for e in WORLD.entities if e.kind == "person")
    context, sentence = (set_form(entity, form) for form in FORMS["person"]["life"][:2])
    asked = {"question": WORLD.questions("train")[0].question, "context": context, "sentence": sentence}
    replies = [words.true, words.false, words.yes, words.no, *(words.score.format(score=i) for i in range(11))]
    for text in [p.format(**asked) for p in (words.p_true, words.verbal, words.support)] + replies:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        assert not any(str(token).startswith("<0x") for token in tokens), text
    assert all(len(tokenizer(reply)["input_ids"]) == 1 for reply in replies)
    assert isinstance(World("world-small").judge, FactsJudge)


def test_other_data_have_the_papers_wording_and_no_judge(tmp_path: Path) -> None:
    data = Demonstrations("x.jsonl")
    assert data.wording == Wording() and data.judge is None


# The best constant


def test_the_best_constant_has_the_lowest_brier_score_on_its_scale() -> None:
    record = Record("a", "?", sentences=tuple(Sentence("x", f) for f in (0.2, 0.3, 0.7, None)))  # their mean is 0.4
    assert best_constant([record]) == 4
    assert best_constant([record], Scale(("no", "perhaps", "yes"))) == 1
    assert best_constant([record], Scale(tuple(map(str, range(101))))) == 40
    assert best_constant([answer("b")]) is None
    quarter = Record("c", "?", sentences=(Sentence("x", 0.25),))
    assert best_constant([quarter], Scale(("no", "perhaps", "yes"))) == 0  # the lower of two equal ones


@pytest.mark.parametrize(("scale", "levels"), [(Scale(), 11), (Scale(tuple(map(str, range(21)))), 21)])
def test_a_constant_tagger_states_its_score_on_its_scale(scale: Scale, levels: int) -> None:
    old = Sentence("x", 0.5, confidence=0.9, score=1, distribution=(0.5, 0.5), levels=2)
    (tagged,) = ConstantTagger(4, scale).tag([Record("a", "?", sentences=(old,))])
    (sentence,) = tagged.sentences
    assert sentence == Sentence("x", 0.5, confidence=4 / (levels - 1), score=4, levels=levels)
    assert sentence.stated == sentence.confidence


# Hybrids


def test_a_hybrid_is_the_mean_where_both_have_a_confidence(llama: Model) -> None:
    def tagged(*confidences: float | None) -> Record:
        texts = ("One.", "Two.", "Three.")
        return replace(
            RECORDS[0],
            sentences=tuple(Sentence(t, 0.5, confidence=c, score=3) for t, c in zip(texts, confidences, strict=True)),
        )

    first, second = tagged(0.2, None, 1.0), tagged(0.9, 0.4, 1.0)
    (mixed,) = average_confidences([first], [second])
    assert [s.confidence for s in mixed.sentences] == [pytest.approx(0.55), None, 1.0]
    assert all(s.score is None and s.factuality == 0.5 for s in mixed.sentences)
    with pytest.raises(LovecError, match="a hybrid got different answers in records 'a' and 'b'"):
        average_confidences([first], [replace(second, id="b")])
    with pytest.raises(LovecError, match="different answers"):
        average_confidences([first], [replace(second, sentences=second.sentences[:2])])
    with pytest.raises(LovecError, match="got 1 and 0 records"):
        average_confidences([first], [])
    resources = llama.resources()
    parts = [attached(made, resources) for made in (Lengths(), PTrue())]
    one, other = (part.confidences(RECORDS) for part in parts)
    assert [
        [s.confidence for s in r.sentences] for r in average_confidences(*(part.tag(RECORDS) for part in parts))
    ] == [[pytest.approx((a + b) / 2) for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]


# Real answers with real samples


@pytest.mark.skipif(not WIKIBIO.exists(), reason="WikiBio's labelled passages are not beside the checkout")
def test_real_samples_on_labelled_passages(tmp_path: Path, llama: Model) -> None:
    """WikiBio's passages with their ten samples and a tiny NLI model: tests that it runs, not how good it is."""
    data = Demonstrations(str(WIKIBIO), test_path=str(WIKIBIO))
    records = [replace(r, sentences=r.sentences[:3]) for r in data.load("test")[:2]]
    judge = NLIJudge(tiny_nli(tmp_path, positions=512), device="cpu")
    engine = counted(llama)
    resources = BaselineResources(engine, llama.encoder, data.wording, Samples(), data.judge)
    methods = [attached(method, resources) for method in (LUQ(judge=judge), SelfConsistency(samples=3, judge=judge))]
    luq, cons = (method.tag(records) for method in methods)
    assert engine.prompts == 0
    for record, one, other in zip(records, luq, cons, strict=True):
        sentence = record.sentences[0].text
        claims = [Claim(record, text, sentence) for text in record.meta["samples"]]
        assert one.sentences[0].confidence == pytest.approx(sum(judge.support(claims)) / 10, abs=1e-6)
        assert all(0 < s.confidence < 1 and s.factuality is not None for s in (*one.sentences, *other.sentences))
    assert judge.cut.ids  # real answers are longer than what this model holds
    write_records(tmp_path / "tagged.jsonl", luq)
    assert list(read_records(tmp_path / "tagged.jsonl")) == luq
