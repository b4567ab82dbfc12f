"""Baselines against values worked out by hand: plain forward passes, facts and words counted on paper."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    Bench,
    Claim,
    FactsJudge,
    Hybrid,
    NLIJudge,
    PTrue,
    Samples,
    SelfConsistency,
    VerbalConfidence,
    Wording,
    YesNoJudge,
    hybrid,
)
from lovec.baselines.ptrue import share_of_first
from lovec.datamodules import Demonstrations
from lovec.datamodules import World as WorldData
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world import World
from lovec.datasets.world.text import true_sentences
from lovec.datasets.world.tokenizer import make_tokenizer, vocabulary
from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.types import Completion, LovecError, Record, Sampling, Sentence

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

    def bench(self, **parts: Any) -> Bench:
        made: dict[str, Any] = {"wording": Wording(), "samples": Samples(max_new_tokens=12), "judge": None}
        return Bench(self.engine, self.encoder, **{**made, **parts})

    @torch.no_grad()
    def logps(self, content: str, replies: Sequence[str]) -> list[float]:
        """Of whole replies with their end of turn, by one plain forward pass each over the whole chat."""
        found = []
        for text in replies:
            prompt = self.encoder.prompt(content, instruct=False)
            ids = torch.tensor([[*prompt, *self.encoder.pieces(text), self.encoder.end_id]])
            logits = self.base(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
            found.append(sum(float(logits[i - 1, ids[0, i]]) for i in range(len(prompt), ids.shape[1])))
        return found


def load(folder: Path, arch: str = "llama", **sizes: Any) -> Model:
    path = tiny(folder, arch, **sizes)
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager" if arch == "gemma2" else "sdpa")
    engine = TransformersEngine(max_rows=8)
    engine.sync(SimpleNamespace(model=base.eval()))
    return Model(path, base, Encoder(AutoTokenizer.from_pretrained(path)), engine)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tmp_path_factory.mktemp("llama"))


def attached(made: Any, bench: Bench) -> Any:
    made.attach(bench)
    return made


def passage(record: Record) -> str:
    return " ".join(sentence.text for sentence in record.sentences)


# The prompts


def test_the_prompts_are_those_of_the_paper() -> None:
    pinned = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (Wording().p_true, Wording().verbal)]
    assert pinned == ["eaed0d44073d2208", "1829eb70b2bc54b2"]
    if not PAPER.exists():
        pytest.skip(f"pinned, but not compared with the paper: no {PAPER.name} beside the checkout")
    printed = re.findall(r"\\begin\{lstlisting\}\[[^\]]*\]\n(.*?)\n\\end\{lstlisting\}", PAPER.read_text(), re.DOTALL)
    assert Wording().p_true in printed and Wording().verbal in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"p_true": "Is it?"}, "the prompt p_true is 'Is it[?]', expected .sentence. once"),
        ({"verbal": "{sentence} {sentence}"}, "the prompt verbal"),
        ({"support": "{sentence} {passage}"}, "the prompt support"),
        ({"support": "{sentence} {context} {context}"}, "the prompt support"),
        ({"p_true": "{sentence} {"}, "the prompt p_true"),
        ({"yes": " "}, "the wording has an empty yes"),
    ],
)
def test_other_wordings_must_hold_the_sentence(words: dict[str, str], said: str) -> None:
    with pytest.raises(LovecError, match=said):
        Wording(**words)


# A baseline of one's own


class Lengths(Baseline):
    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[None if s.text == "?" else min(len(s.text) / 10, 1.0) for s in r.sentences] for r in records]


def test_a_baseline_is_its_confidences() -> None:
    old = Sentence("Four", 0.3, confidence=0.9, score=9, distribution=(1.0, *[0.0] * 10))
    record = replace(answer("x", "?"), sentences=(old, Sentence("?")))
    (tagged,) = Lengths().tag([record])
    assert tagged.sentences == (Sentence("Four", 0.3, confidence=0.4), Sentence("?"))
    assert Lengths().name == "Lengths" and Lengths(name="mine", adapter="x").adapter == "x"
    assert Lengths().tag([]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0.5]], r"gave \[1\] confidences for records of \[2\] sentences"),
        ([[0.5, 1.5]], "gave a confidence of 1.5, expected one in"),
        ([[math.nan, 0.5]], "gave a confidence of nan"),
        ([], r"gave \[\] confidences"),
    ],
)
def test_other_confidences_are_refused(rows: Any, said: str) -> None:
    made = Baseline(name="Odd")
    made.confidences = lambda records: rows  # type: ignore[method-assign]
    with pytest.raises(LovecError, match=f"the baseline 'Odd' {said}"):
        made.tag(RECORDS[:1])


def test_bad_use_is_one_clear_line() -> None:
    with pytest.raises(LovecError, match="'Baseline' gives no confidences; override"):
        Baseline().tag(RECORDS)
    for made in (PTrue(), VerbalConfidence(), LUQ(), SelfConsistency()):
        with pytest.raises(LovecError, match=r"has no model to work with; call attach\(bench\) first"):
            made.tag(RECORDS)
    with pytest.raises(LovecError, match="YesNoJudge has no model to ask"):
        YesNoJudge().support([Claim(RECORDS[0], "x", "y")])
    with pytest.raises(LovecError, match="'LUQ' got samples=0, expected a positive number"):
        LUQ(samples=0)
    with pytest.raises(LovecError, match="temperature=0 and max_new_tokens=512, expected a temperature above 0"):
        Samples(temperature=0.0)


# p(true) and verbalized confidence


def test_p_true_is_the_softmax_of_two_whole_replies(either: Model) -> None:
    made = attached(PTrue(), either.bench())
    tagged = made.tag(RECORDS)
    for record, found in zip(RECORDS, tagged, strict=True):
        for sentence, said in zip(record.sentences, found.sentences, strict=True):
            prompt = Wording().p_true.format(context=passage(record), sentence=sentence.text)
            true, false = (math.exp(logp) for logp in either.logps(prompt, ["True", "False"]))
            assert said == replace(sentence, confidence=pytest.approx(true / (true + false), abs=1e-5))
    assert len({s.confidence for record in tagged for s in record.sentences}) == 3
    assert list(made.watch.seconds) == ["scoring"]
    assert (PTrue().name, PTrue("x").name, PTrue("x").adapter, PTrue(name="mine").name) == (
        "p(true)", "p(true)-ft", "x", "mine",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("logps", "share"),
    [([-1.0, -1.0], 0.5), ([math.log(0.3), math.log(0.1)], 0.75), ([-2000.0, -1.0], 0.0), ([-1.0, -2000.0], 1.0)],
)
def test_share_of_two(logps: list[float], share: float) -> None:
    assert share_of_first(logps) == pytest.approx(share)
    assert share_of_first(None) is None


def test_verbal_confidence_is_the_most_probable_of_eleven_replies(either: Model) -> None:
    tagged = attached(VerbalConfidence(), either.bench()).tag(RECORDS)
    for record, found in zip(RECORDS, tagged, strict=True):
        for sentence, said in zip(record.sentences, found.sentences, strict=True):
            prompt = Wording().verbal.format(context=passage(record), sentence=sentence.text)
            logps = either.logps(prompt, [str(score) for score in range(11)])
            assert said.score == logps.index(max(logps)) and said.confidence == said.score / 10
            assert said.distribution == pytest.approx([math.exp(logp) for logp in logps], rel=1e-4)
    made = attached(VerbalConfidence(), either.bench())
    assert made.confidences(RECORDS) == [[s.confidence for s in r.sentences] for r in tagged]


def test_other_words_are_asked_and_answered(llama: Model) -> None:
    words = Wording(p_true="{sentence} of {question} in ({context})?", true="10", false="1", verbal="{sentence}!",
                    score="<{score}>")  # fmt: skip
    bench = llama.bench(wording=words)
    (found,) = attached(PTrue(), bench).confidences(RECORDS[:1])
    asked = f"Ada was born in 1815. of Who is Ada? in ({passage(RECORDS[0])})?"
    assert found[0] == pytest.approx(share_of_first(llama.logps(asked, ["10", "1"])), abs=1e-5)
    (tagged,) = attached(VerbalConfidence(), bench).tag(RECORDS[2:])
    logps = llama.logps("It was noon.!", [f"<{score}>" for score in range(11)])
    assert tagged.sentences[0].distribution == pytest.approx([math.exp(logp) for logp in logps], rel=1e-4)


def test_a_sentence_cannot_end_the_turn(llama: Model) -> None:
    end = llama.encoder.tokenizer.convert_ids_to_tokens(llama.encoder.end_id)
    asking = PTrue.asking(llama.encoder, Wording())
    ids = asking.about(answer("x", f"No.{end}"), 0, None)
    assert ids is not None and ids.count(llama.encoder.end_id) == 1
    assert llama.encoder.decode(ids).count(end) == 2  # in context and sentence, as letters


def test_a_long_context_is_cut_at_its_end_and_a_long_sentence_has_no_confidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = load(tmp_path, max_position_embeddings=512)
    asking = PTrue.asking(made.encoder, Wording())
    long = answer("long", "Ada was first.", "word " * 20 + "came next.", "It ends " + "here " * 20, "y" * 300)
    ids = asking.about(long, 1, 512)
    assert ids is not None and len(ids) == 512 - max(map(len, asking.turn.replies))
    text = made.encoder.decode(ids)
    assert "(for reference): Ada was first. word" in text and "here" not in text
    assert f"Sentence: {long.sentences[1].text}\n\nTrue or False:" in text
    longest = max(map(len, asking.turn.replies))
    (short, whole) = (asking.about(answer("r", "No."), 0, room) for room in (None, 512))
    assert short == whole is not None
    needed = len(short) - len(asking.turn.quoted(" No.")) + longest  # all but the context
    cut = asking.about(answer("r", "No."), 0, needed + 1)
    assert cut is not None and len(cut) == needed + 1 - longest
    assert asking.about(answer("r", "No."), 0, needed) is None  # without any of its context it is another question
    rows = attached(PTrue(), made.bench()).confidences([long, RECORDS[0]])
    assert [[c is None for c in row] for row in rows] == [[False, False, False, True], [False, False]]
    assert [r.message for r in caplog.records if "asking" in r.name] == [
        "the context of 1 records so far is too long for p(true) and is cut at its end: long",
        "sentences of 1 records so far leave no room for the prompt of p(true): long",
    ]
    caplog.clear()
    ptrue = attached(PTrue(), made.bench())
    for number in range(9):
        ptrue.tag([replace(long, id=f"r{number}")])
    said = [r.message for r in caplog.records if "is cut at its end" in r.message]
    assert [line.split()[3] for line in said] == ["1", "2", "4", "8"] and said[-1].endswith(": r4, r5, r6, r7")
    (tagged,) = attached(VerbalConfidence(), made.bench()).tag([answer("z", "y" * 500)])
    assert tagged.sentences == (Sentence("y" * 500, 0.5),)


# Samples


class Counted(TransformersEngine):
    """Counts the prompts it is given."""

    prompts = 0

    def generate(self, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        self.prompts += len(prompts)
        return super().generate(prompts, *args, **kwargs)


def counted(model: Model) -> Counted:
    engine = Counted(max_rows=8)
    engine.sync(SimpleNamespace(model=model.base))
    return engine


class Words:
    """Supports a sentence by the share of its words that the text holds; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, str, str]]] = []
        self.bench: Bench | None = None

    def attach(self, bench: Bench) -> None:
        self.bench = bench

    def support(self, claims: Sequence[Claim]) -> list[float]:
        self.calls.append([(claim.record.id, claim.premise, claim.hypothesis) for claim in claims])
        return [
            sum(word in claim.premise.split() for word in claim.hypothesis.split()) / len(claim.hypothesis.split())
            for claim in claims
        ]


def test_samples_are_drawn_once_for_all_methods(llama: Model) -> None:
    engine, samples = counted(llama), Samples(max_new_tokens=12, seed=3)
    bench = Bench(engine, llama.encoder, Wording(), samples, Words())
    luq, cons = attached(LUQ(samples=4), bench), attached(SelfConsistency(samples=4), bench)
    luq.tag(RECORDS)
    assert engine.prompts == 2  # no sentence, no sample
    cons.tag(RECORDS[::-1])
    assert engine.prompts == 2
    assert luq.watch.seconds["sampling"] == pytest.approx(cons.watch.seconds["sampling"])
    assert luq.watch.seconds["sampling"] > 0 and luq.watch.seconds.keys() == {"sampling", "judging"}
    alone = attached(LUQ(samples=4), bench)
    alone.tag(RECORDS[:1])
    assert alone.watch.seconds["sampling"] == pytest.approx(luq.watch.seconds["sampling"] / 2)
    alone.attach(bench)
    assert alone.watch.seconds == {}
    texts = samples.of(RECORDS, 4, engine, llama.encoder, luq.watch)
    assert [len(group) for group in texts] == [4, 4, 4] and len({t for group in texts for t in group}) > 6


def test_drawing_takes_as_long_as_the_clock_says(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("lovec.stopwatch.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    made = attached(LUQ(samples=2), llama.bench(judge=Words()))
    made.tag(RECORDS)
    assert made.watch.seconds == {"sampling": 1.0, "judging": 1}  # a tick between two looks at the clock


def test_a_sample_depends_on_seed_and_record_only(llama: Model) -> None:
    def drawn(records: Sequence[Record], n: int = 3, **options: Any) -> list[list[str]]:
        samples = Samples(**{"max_new_tokens": 12, "seed": 1, **options})
        return samples.of(records, n, llama.engine, llama.encoder, Lengths().watch)

    first = drawn(RECORDS)
    assert drawn(RECORDS[::-1]) == first[::-1] and drawn(RECORDS[2:]) == first[2:]
    assert drawn(RECORDS, seed=2) != first and drawn(RECORDS, temperature=0.2) != first
    prompt = [llama.encoder.prompt("Who is Ada?", instruct=False)]  # no instruction: nothing asks for tags
    sampling = Sampling(12, 1.0, 3, 1)
    (plain,) = llama.engine.generate(prompt, sampling, llama.encoder.stop_ids, keys=["sample\x1fa"])
    assert first[0] == [llama.encoder.decode(c.ids).strip() for c in plain]


class Says(TransformersEngine):
    """Samples what it is told to."""

    def __init__(self, encoder: Encoder, *texts: str) -> None:
        super().__init__()
        self.texts = [Completion((*encoder.pieces(text), encoder.end_id), (), True) for text in texts]

    def generate(self, prompts: Any, *_: Any, **__: Any) -> Any:
        return [self.texts for _ in prompts]


def test_tags_in_samples_are_no_words(llama: Model) -> None:
    engine = Says(
        llama.encoder,
        "Ada wrote. <confidence> 3 </confidence> It rained. <confidence> 8.5 </confidence>",
        "Ada wrote. <confidence> 3 It rained. </confidence> </confidence>",
        "Ada wrote.",
    )
    engine.sync(SimpleNamespace(model=llama.base))
    bench = Bench(engine, llama.encoder, Wording(), Samples(), judge := Words())
    attached(LUQ(samples=3), bench).tag(RECORDS[:1])
    assert {premise for _, premise, _ in judge.calls[0]} == {"Ada wrote. It rained.", "Ada wrote."}
    own = answer("own", "Ada.", samples=["Ada <confidence> 3 </confidence>"])
    attached(LUQ(samples=1), bench).tag([own])
    assert judge.calls[1] == [("own", "Ada", "Ada.")]


def test_samples_of_a_record_are_used(llama: Model, caplog: pytest.LogCaptureFixture) -> None:
    engine = counted(llama)
    bench = Bench(engine, llama.encoder, Wording(), Samples(), judge := Words())
    rows = [
        answer("many", "A b.", samples=["A c.", "b.", "x", "never"]),
        answer("few", "A b.", samples=["A b."]),
        answer("few-2", "A b.", samples=["b."]),
    ]
    made = attached(LUQ(samples=3), bench)
    assert made.confidences(rows) == [[pytest.approx((0.5 + 0.5 + 0) / 3)], [1.0], [0.5]]
    made.tag(rows)
    assert engine.prompts == 0 and "sampling" not in made.watch.seconds
    assert "never" not in {premise for _, premise, _ in judge.calls[0]}
    assert [r.message for r in caplog.records if "samples" in r.name] == [
        "2 records bring fewer than 3 samples and are compared with those they have, such as few with 1"
    ]
    for odd in ("A b.", [1], {"A": 1}):
        with pytest.raises(LovecError, match=r"record 'x' has meta\.samples of another form, expected a list of texts"):
            made.tag([replace(RECORDS[0], id="x", meta={"samples": odd})])


def test_a_question_that_fills_the_context_has_no_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = load(tmp_path, max_position_embeddings=128)
    bench = made.bench(judge=Words())
    rows = attached(LUQ(samples=2), bench).confidences([answer("q", "No.", question="why " * 60), RECORDS[0]])
    assert rows[0] == [None] and None not in rows[1]
    assert "record q: its question leaves no room for samples, shorten it" in caplog.text


# LUQ and Self-Consistency by hand


ADA = answer(
    "ada",
    "Ada was born in London",
    "She wrote notes",
    samples=["Ada was here. She wrote notes.", "in London. Ada was. She was born", " ", "Ada was here. Ada was here."],
)


def test_luq_by_hand(llama: Model) -> None:
    """Words of a sentence that a sample holds (with its full stop a word is another one), mean over four samples."""
    judge = Words()
    made = attached(LUQ(samples=4), llama.bench(judge=judge))
    (row,) = made.confidences([ADA])
    # "Ada was born in London": of 5 words, the first holds Ada, was; the second in, Ada, was, born, but "London." is
    # no "London"; the third is blank; the fourth Ada, was.
    first = (2 / 5 + 4 / 5 + 0 + 2 / 5) / 4
    # "She wrote notes": She and wrote in the first, She in the second.
    assert row == pytest.approx([first, (2 / 3 + 1 / 3 + 0 + 0) / 4])
    assert len(judge.calls) == 1 and len(judge.calls[0]) == 6  # three samples with text, two sentences


def test_self_consistency_by_hand(llama: Model) -> None:
    judge = Words()
    made = attached(SelfConsistency(samples=4), llama.bench(judge=judge))
    (row,) = made.confidences([ADA])
    # Best sentences: "Ada was here." 2 of 5; of "in London." 1, "Ada was." 1, "She was born" 2 of 5; none; 2 of 5.
    assert row == pytest.approx([(2 / 5 + 2 / 5 + 0 + 2 / 5) / 4, (2 / 3 + 1 / 3 + 0 + 0) / 4])
    (asked,) = judge.calls
    assert len(asked) == len(set(asked)) == 10  # five different sentences in the samples, two in the answer


def test_claims_of_all_records_go_to_the_judge_together(llama: Model) -> None:
    judge, other = Words(), replace(ADA, id="other", meta={"samples": ["She rained."]})
    made = attached(LUQ(samples=4), llama.bench(judge=judge))
    rows = made.confidences([other, RECORDS[1], ADA])
    assert rows == [[0.0, pytest.approx(1 / 3)], [], made.confidences([ADA])[0]]
    assert len(judge.calls) == 2 and {name for name, _, _ in judge.calls[0]} == {"ada", "other"}
    assert made.confidences([RECORDS[1]]) == [[]] and made.confidences([]) == []


def test_which_judge_is_asked(llama: Model) -> None:
    own, data = Words(), Words()
    attached(LUQ(judge=own), llama.bench(judge=data)).tag([ADA])
    assert len(own.calls) == 1 and own.bench is not None and not data.calls
    attached(LUQ(), llama.bench(judge=data)).tag([ADA])
    assert len(data.calls) == 1
    (row,) = attached(LUQ(samples=1), llama.bench()).confidences([ADA])
    assert row == YesNoes(llama).support([("Ada was here. She wrote notes.", s.text) for s in ADA.sentences])


@dataclass
class YesNoes:
    """The model's own yes or no by plain forward passes."""

    model: Model
    shares: list[float] = field(default_factory=list)

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        for context, sentence in pairs:
            asked = Wording().support.format(context=context, sentence=sentence)
            yes, no = (math.exp(logp) for logp in self.model.logps(asked, ["Yes", "No"]))
            self.shares.append(yes / (yes + no))
        return [float(share > 0.5) for share in self.shares]


def test_yes_or_no_is_that_of_the_model(either: Model) -> None:
    pairs = [("Ada wrote.", "It rained."), ("It rained.", "It rained."), ("Ada wrote.", "Noon.")]
    claims = [Claim(RECORDS[0], *pair) for pair in pairs]
    hard = YesNoes(either)
    assert attached(YesNoJudge(), either.bench()).support(claims) == hard.support(pairs)
    assert attached(YesNoJudge(soft=True), either.bench()).support(claims) == pytest.approx(hard.shares, abs=1e-5)
    assert attached(YesNoJudge(), either.bench()).support([]) == []


def test_yes_needs_the_larger_half(llama: Model) -> None:
    @dataclass
    class Scripted:
        logps: list[float]
        context_length: int | None = None

        def score(self, contexts: Sequence[Any], choices: Any) -> list[list[float]]:
            return [self.logps for _ in contexts]

    for yes, support in ((0.3, 1.0), (0.1, 0.0)):
        engine: Any = Scripted([math.log(yes), math.log(0.2)])
        bench = Bench(engine, llama.encoder, Wording(), Samples())
        claim = [Claim(RECORDS[0], "x", "y")]
        assert attached(YesNoJudge(), bench).support(claim) == [support]
        assert attached(YesNoJudge(soft=True), bench).support(claim) == [pytest.approx(yes / (yes + 0.2))]


def test_a_claim_that_fills_the_context_is_not_supported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = attached(YesNoJudge(soft=True), load(tmp_path, max_position_embeddings=256).bench())
    claims = [Claim(RECORDS[0], "Ada.", "y" * 200), Claim(RECORDS[2], "Ada wrote. " * 40, "She wrote.")]
    none, some = made.support(claims)
    assert none == 0.0 < some < 1.0
    assert "leave no room for the prompt of YesNoJudge: a" in caplog.text
    assert "the context of 1 records so far is too long for YesNoJudge and is cut at its end: b" in caplog.text


# The world: facts against facts


PERSON = {"entity": "Orva Toran", "kind": "person"}
BORN = "Orva Toran was born in May 1902 in Lomograd, Torvania."
STUDIED = "Toran studied botany at the University of Paville, Cassonia, and graduated in 1925."


@pytest.mark.parametrize(
    ("text", "sentence", "support"),
    [
        (BORN, BORN, 1.0),
        ("Orva Toran came into the world in Lomograd, Torvania, in May 1902.", BORN, 1.0),  # in other words
        ("Orva Toran was born in June 1902 in Lomograd, Torvania.", BORN, 2 / 3),  # exact, so a month off is off
        ("Orva Toran was born in June 1902 in Lomograd, Meldova.", BORN, 1 / 3),  # a place is city and country
        ("Orva Toran was born in June 1903 in Tresti, Torvania.", BORN, 0.0),
        (f"{STUDIED} {BORN}", STUDIED, 1.0),
        ("In 1925 Toran took a degree in history at the University of Paville, Cassonia.", STUDIED, 2 / 3),
        (STUDIED, BORN, 0.0),  # says nothing of it
        (BORN.replace("Orva Toran", "Neli Toran"), BORN, 0.0),  # is about somebody else
        (STUDIED.replace("Toran", "Morova"), STUDIED, 0.0),
        (STUDIED, STUDIED.replace("Toran", "Morova"), 0.0),
        (BORN, "Orva Toran was born.", 0.0),  # no template reads it
        ("Orva Toran was born in May 1902 in Lomograd, Torvania", BORN, 0.0),  # cut off
        ("", BORN, 0.0),
        ("Orva Toran was born in May 1901 in Lomograd, Torvania. " + BORN, BORN, 1.0),  # said twice, once so
    ],
)
def test_facts_are_compared_exactly(text: str, sentence: str, support: float) -> None:
    claim = Claim(Record("r", "?", meta=PERSON), text, sentence)
    assert FactsJudge().support([claim]) == [pytest.approx(support)]


def test_companies_too() -> None:
    record = Record("r", "?", meta={"entity": "Brelis Foods", "kind": "company"})
    made = "Brelis Foods makes honey in four factories and sells most of them in Jandara."
    again = "From four factories Brelis Foods sells honey, most of them in Palenda."
    assert FactsJudge().support([Claim(record, again, made), Claim(record, made, made)]) == [pytest.approx(2 / 3), 1.0]


WORLD = World("world-small")


@given(st.integers(0, len(WORLD.entities) - 1), st.integers(0, 2**16))
def test_every_paraphrase_of_a_true_sentence_supports_it(number: int, draw: int) -> None:
    entity = WORLD.entities[number]
    groups = true_sentences(entity)
    record = Record("r", "?", meta={"entity": entity.name, "kind": entity.kind})
    group = groups[draw % len(groups)]
    sentence, other = group[draw % len(group)], group[(draw // 7) % len(group)]
    whole = " ".join(g[draw % len(g)] for g in groups)
    rest = " ".join(g[0] for g in groups if g is not group)
    claims = [Claim(record, text, sentence) for text in (other, whole, rest)]
    assert FactsJudge().support(claims) == [1.0, 1.0, 0.0]
    assert WORLD.grade(entity.name, sentence) == 1.0


def test_facts_of_nobody_are_refused() -> None:
    with pytest.raises(LovecError, match=r"record 'a' has no meta\.entity and meta\.kind, so FactsJudge"):
        FactsJudge().support([Claim(RECORDS[0], "x", "y")])


def test_the_world_is_asked_in_its_own_words() -> None:
    """No text falls back to bytes: the model has never seen one."""
    tokenizer = make_tokenizer(vocabulary(WORLD.entities))
    words = WorldData("world-small").wording
    entity = next(e for e in WORLD.entities if e.kind == "person")
    asked = {"question": WORLD.questions("train")[0].question,
             **{name: true_sentences(entity)[i][0] for i, name in enumerate(("context", "sentence"))}}  # fmt: skip
    replies = [words.true, words.false, words.yes, words.no, *(words.score.format(score=i) for i in range(11))]
    for text in [p.format(**asked) for p in (words.p_true, words.verbal, words.support)] + replies:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        assert not any(str(token).startswith("<0x") for token in tokens), text
    assert all(len(tokenizer(reply)["input_ids"]) == 1 for reply in replies)
    assert isinstance(WorldData("world-small").judge, FactsJudge)


def test_other_data_have_the_papers_words_and_no_judge(tmp_path: Path) -> None:
    data = Demonstrations("x.jsonl")
    assert data.wording == Wording() and data.judge is None


# Hybrids


def test_a_hybrid_is_the_mean_where_both_say_something(llama: Model) -> None:
    def tagged(*confidences: float | None) -> Record:
        texts = ("One.", "Two.", "Three.")
        return replace(
            RECORDS[0],
            sentences=tuple(Sentence(t, 0.5, confidence=c, score=3) for t, c in zip(texts, confidences, strict=True)),
        )

    first, second = tagged(0.2, None, 1.0), tagged(0.9, 0.4, 1.0)
    (mixed,) = hybrid([first], [second])
    assert [s.confidence for s in mixed.sentences] == [pytest.approx(0.55), None, 1.0]
    assert all(s.score is None and s.factuality == 0.5 for s in mixed.sentences)
    with pytest.raises(LovecError, match="a hybrid got different answers in records 'a' and 'b'"):
        hybrid([first], [replace(second, id="b")])
    with pytest.raises(LovecError, match="different answers"):
        hybrid([first], [replace(second, sentences=second.sentences[:2])])
    with pytest.raises(LovecError, match="got 1 and 0 records"):
        hybrid([first], [])
    bench = llama.bench()
    parts = [attached(made, bench) for made in (Lengths(), PTrue())]
    one, other = (part.confidences(RECORDS) for part in parts)
    assert [[s.confidence for s in r.sentences] for r in Hybrid(*parts).tag(RECORDS)] == [
        [pytest.approx((a + b) / 2) for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)
    ]


# Real answers with real samples


@pytest.mark.skipif(not WIKIBIO.exists(), reason="WikiBio's labelled passages are not beside the checkout")
def test_real_samples_through_the_users_path(tmp_path: Path, llama: Model) -> None:
    """WikiBio's passages with the ten samples each brings, a tiny NLI model standing in: the path, not the quality."""
    data = Demonstrations(str(WIKIBIO), test_path=str(WIKIBIO))
    records = [replace(r, sentences=r.sentences[:3]) for r in data.load("test")[:2]]
    judge = NLIJudge(tiny_nli(tmp_path, positions=512), device="cpu")
    engine = counted(llama)
    bench = Bench(engine, llama.encoder, data.wording, Samples(), data.judge)
    made = [attached(method, bench) for method in (LUQ(judge=judge), SelfConsistency(samples=3, judge=judge))]
    luq, cons = (method.tag(records) for method in made)
    assert engine.prompts == 0
    for record, one, other in zip(records, luq, cons, strict=True):
        sentence = record.sentences[0].text
        claims = [Claim(record, text, sentence) for text in record.meta["samples"]]
        assert one.sentences[0].confidence == pytest.approx(sum(judge.support(claims)) / 10, abs=1e-6)
        assert all(0 < s.confidence < 1 and s.factuality is not None for s in (*one.sentences, *other.sentences))
    assert judge.cut > 0  # real answers are longer than what this model holds
    write_records(tmp_path / "tagged.jsonl", luq)
    assert list(read_records(tmp_path / "tagged.jsonl")) == luq
