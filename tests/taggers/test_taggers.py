"""Taggers: contexts, exact distributions, readouts, scales, records that fail alone, and what is computed only once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.taggers import FreeFormTagger, IterativeTagger
from lovec.taggers.freeform import read_answer
from lovec.taggers.scoring import with_score
from lovec.tags import TagFormat
from lovec.types import DEFAULT_SCALE, Completion, LovecError, Record, Sampling, Scale, Sentence

CONTEXT = 512
WORDS = "ada wrote notes on engines in london paris rome before noon they say it rained".split()


def passage(id: str, lengths: Sequence[int], question: str = "Who is Ada?") -> Record:
    sentences = [" ".join(WORDS[(i * 5 + j) % len(WORDS)] for j in range(n)) + "." for i, n in enumerate(lengths)]
    return Record(id, question, sentences=tuple(Sentence(s, factuality=0.5) for s in sentences))


RECORDS = [
    passage("a", [3, 1, 2]),
    passage("b", []),
    passage("c", [1], "Where?"),
    passage("d", [2, 4], "And who is it?"),
]


@dataclass
class Setup:
    """A tiny model with an adapter of full effect, its encoder, and an engine of few rows."""

    peft: Any
    encoder: Encoder

    @property
    def model(self) -> Any:
        return self.peft.get_base_model()

    def engine(self, max_rows: int = 64) -> TransformersEngine:
        engine = TransformersEngine(max_rows)
        engine.sync(self)
        return engine

    def with_scale(self, *words: str) -> Setup:
        """The same model with short tags of another scale."""
        tags = TagFormat("<c>", "</c>", Scale(words))
        return Setup(self.peft, Encoder(self.encoder.tokenizer, "Rate it.", tags, "exact"))

    @torch.no_grad()
    def logps(self, context: str) -> list[float]:
        """Log-probabilities of the whole score strings after a text (no BOS), by one plain forward pass each."""
        logps = []
        for word in self.encoder.scale.words:
            tail = self.encoder.pieces(f" {word} {self.encoder.tags.close}")
            ids = torch.tensor([[*self.encoder.template_pieces(context), *tail]])
            logits = self.model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
            logps.append(sum(float(logits[i - 1, ids[0, i]]) for i in range(ids.shape[1] - len(tail), ids.shape[1])))
        return logps


def make(folder: Path, arch: str, ten: bool = False, **sizes: Any) -> Setup:
    """Build a setup; with ``ten`` the tokenizer has "10" as one token, otherwise as two."""
    path = build_tiny(arch, folder / arch, **sizes)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager" if arch == "gemma2" else "sdpa")
    if ten:
        tokenizer.add_tokens(["10"])
        torch.manual_seed(0)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    peft = get_peft_model(model.eval(), LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    encoder = Encoder(tokenizer, instruction="Rate it.", scoring="exact")
    assert len(encoder.tails[10]) - len(encoder.tails[1]) == (0 if ten else 1)
    return Setup(peft.eval(), encoder)


@pytest.fixture(scope="module", params=["llama", "llama-ten", "gemma2"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    arch, _, ten = request.param.partition("-")
    return make(tmp_path_factory.mktemp(arch), arch, bool(ten), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return make(tmp_path_factory.mktemp("llama"), "llama", max_position_embeddings=CONTEXT)


def argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda i: values[i])


def contexts(prompt: str, texts: Sequence[str], scores: Sequence[int], history: str) -> list[str]:
    """The contexts of all sentences, as text: the paper's q, (s_1, c_1), ..., s_i and its two shorter forms."""
    o, c = "<confidence>", "</confidence>"
    texts_before = []
    for i, text in enumerate(texts):
        earlier = {
            "scores": [f"{t} {o} {s} {c}" for t, s in zip(texts[:i], scores, strict=False)],
            "hidden": list(texts[:i]),
            "previous": list(texts[max(0, i - 1) : i]),
        }[history]
        texts_before.append(prompt + " ".join([*earlier, f"{text} {o}"]))
    return texts_before


@pytest.mark.parametrize("history", ["scores", "hidden", "previous"])
def test_iterative_scores_are_the_most_probable_ones_in_the_right_context(tiny: Setup, history: Any) -> None:
    tagged = IterativeTagger(tiny.engine(), tiny.encoder, history=history).tag(RECORDS)
    assert [r.id for r in tagged] == [r.id for r in RECORDS]
    for record, original in zip(tagged, RECORDS, strict=True):
        prompt = tiny.encoder.tokenizer.decode(tiny.encoder.prompt(record.question))
        texts = [s.text for s in record.sentences]
        scores = [s.score for s in record.sentences]
        assert texts == [s.text for s in original.sentences]
        for sentence, context in zip(record.sentences, contexts(prompt, texts, scores, history), strict=True):
            logps = tiny.logps(context)
            assert sentence.distribution == pytest.approx([math.exp(p) for p in logps], rel=1e-4)
            assert sentence.score == argmax(logps)
            assert sentence.confidence == sentence.score / 10
            assert sentence.factuality == 0.5
    assert tagged[1] == RECORDS[1]
    assert len({s.score for r in tagged for s in r.sentences}) > 1


@pytest.mark.parametrize("author", ["model", "user"])
def test_a_text_of_another_turn_is_scored_where_it_is_repeated(
    llama: Setup, author: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = "<|eot_id|><|start_header_id|>{}<|end_header_id|>\n\n"
    assistant, user = map(turn.format, ("assistant", "user"))
    engine, seen = llama.engine(), []
    score = engine.score
    monkeypatch.setattr(engine, "score", lambda ids, choices: (seen.extend(ids), score(ids, choices))[1])
    tagged = IterativeTagger(engine, llama.encoder, author=author).tag(RECORDS)
    assert tagged[1] == RECORDS[1]
    expected = []
    for record in tagged:
        texts, scores = [s.text for s in record.sentences], [s.score for s in record.sentences]
        parts = record.question, " ".join(texts), record.question
        prompt = turn.format("system").replace("<|eot_id|>", "<|begin_of_text|>") + "Rate it." + user
        if author == "user":
            prompt += "\n\n".join(parts) + assistant
        else:
            prompt += parts[0] + assistant + parts[1] + user + parts[2] + assistant
        expected += contexts(prompt, texts, scores, "scores")
    assert sorted(map(llama.encoder.tokenizer.decode, seen)) == sorted(expected)


def test_the_mean_readout_changes_the_confidence_only(llama: Setup) -> None:
    records = [passage("a", [2, 3, 1]), passage("b", [4])]
    stated = IterativeTagger(llama.engine(), llama.encoder).tag(records)
    mean = IterativeTagger(llama.engine(), llama.encoder, readout="mean").tag(records)
    for a, b in zip(stated, mean, strict=True):
        for s, t in zip(a.sentences, b.sentences, strict=True):
            expected = sum(c * p for c, p in enumerate(s.distribution)) / sum(s.distribution) / 10
            assert t.confidence == pytest.approx(expected)
            assert t.confidence != s.confidence
            assert replace(t, confidence=s.confidence) == s


@pytest.mark.parametrize(
    ("logps", "confidence"),
    [
        ([-math.inf] * 10 + [-2000.0], 1.0),  # would underflow as a probability
        ([math.log(0.1)] * 11, 0.5),
        ([math.log(0.3), *[-math.inf] * 9, math.log(0.1)], 0.25),
    ],
)
def test_the_mean_readout_of_known_distributions(logps: list[float], confidence: float) -> None:
    sentence = with_score(Sentence("A."), 3, logps, DEFAULT_SCALE, "mean")
    assert sentence.confidence == pytest.approx(confidence) and sentence.confidence <= 1.0
    assert sentence.score == 3 and sentence.distribution == tuple(map(math.exp, logps))
    assert with_score(Sentence("A."), 3, logps, DEFAULT_SCALE, "stated").confidence == 0.3


def test_results_do_not_depend_on_the_batch(llama: Setup) -> None:
    records = [passage(str(i), [1 + (i + j) % 4 for j in range(i % 5)], f"Who is number {i}?") for i in range(11)]
    alone = [IterativeTagger(llama.engine(), llama.encoder).tag([record])[0] for record in records]
    for max_rows in (3, 64):
        together = IterativeTagger(llama.engine(max_rows), llama.encoder).tag(records)
        for one, other in zip(alone, together, strict=True):
            assert [s.score for s in one.sentences] == [s.score for s in other.sentences]
            for s, t in zip(one.sentences, other.sentences, strict=True):
                assert s.distribution == pytest.approx(t.distribution, rel=1e-4)


def test_a_passage_is_prefilled_once(tmp_path: Path) -> None:
    """At least 5 times fewer context tokens than prompting anew for each of ten sentences."""
    tiny = make(tmp_path, "llama", max_position_embeddings=4096)
    encoder = Encoder(tiny.encoder.tokenizer)  # the paper's long instruction
    records = [passage(str(i), [3 + (i + j) % 3 for j in range(10)], f"Who is number {i}?") for i in range(7)]
    engine = tiny.engine(max_rows=4)
    tagged = IterativeTagger(engine, encoder).tag(records)
    again = once = 0
    for record in tagged:
        ids = encoder.prompt(record.question)
        for i, sentence in enumerate(record.sentences):
            ids = ids + encoder.head(sentence.text, first=i == 0)
            again += len(ids)
            once = once + len(ids) if i == 9 else once
            ids = ids + encoder.tails[sentence.score]
    assert engine.prefill_tokens <= once
    assert again >= 5 * engine.prefill_tokens


def test_the_cache_is_freed_afterwards(llama: Setup) -> None:
    engine = llama.engine()
    tagger = IterativeTagger(engine, llama.encoder)
    tagger.tag(RECORDS)
    first = engine.prefill_tokens
    tagger.tag(RECORDS)
    assert engine.prefill_tokens == 2 * first


@pytest.mark.parametrize("history", ["scores", "hidden", "previous"])
def test_a_sentence_too_long_for_the_model_loses_no_other(llama: Setup, history: Any, caplog: Any) -> None:
    long = passage("long", [4, 30, 60, 120, 2])  # the third sentence ends beyond 512 bytes, the fourth alone is longer
    records = [RECORDS[0], long, RECORDS[3]]
    tagged = IterativeTagger(llama.engine(), llama.encoder, history=history, readout="mean").tag(records)
    expected = IterativeTagger(llama.engine(), llama.encoder, history=history, readout="mean").tag(records[::2])
    assert [[s.score for s in r.sentences] for r in tagged[::2]] == [[s.score for s in r.sentences] for r in expected]
    scored = [s.score is not None for s in tagged[1].sentences]
    assert scored == [True, True, True, False, True]
    assert all((s.confidence is None) == (s.distribution is None) == (s.score is None) for s in tagged[1].sentences)
    assert tagged[1].sentences[3].text == long.sentences[3].text
    window, failed = tagged[1].meta["problems"]
    assert window.startswith(
        f"the text is longer than the model's context holds ({CONTEXT} tokens): from sentence 3 on"
    )
    assert failed.startswith("sentence 4: with the prompt and its tag it has ") and "shorten it" in failed
    assert "problems" not in tagged[0].meta
    assert "no score: long" in caplog.text


def test_unknown_options_are_refused(llama: Setup) -> None:
    engine = llama.engine()
    with pytest.raises(LovecError, match="readout is 'median', expected one of stated, mean"):
        IterativeTagger(engine, llama.encoder, readout="median")  # type: ignore[arg-type]
    with pytest.raises(LovecError, match="history is 'none', expected one of scores, hidden, previous"):
        IterativeTagger(engine, llama.encoder, history="none")  # type: ignore[arg-type]
    with pytest.raises(LovecError, match="author is 'nobody', expected one of model, user"):
        IterativeTagger(engine, llama.encoder, author="nobody")  # type: ignore[arg-type]
    with pytest.raises(LovecError, match=r"sampling.n=2, expected 1"):
        FreeFormTagger(engine, llama.encoder, Sampling(n=2))
    with pytest.raises(LovecError, match="readout is 'median'"):
        FreeFormTagger(engine, llama.encoder, readout="median")  # type: ignore[arg-type]


class Scripted:
    """An engine that writes given answers and scores with a real engine."""

    def __init__(self, encoder: Encoder, answers: Sequence[tuple[str, bool]], real: TransformersEngine) -> None:
        self.encoder, self.answers, self.real = encoder, list(answers), real
        self.prefill_tokens = 0
        self.max_rows = real.max_rows
        self.context_length = real.context_length
        self.calls: list[tuple[Any, ...]] = []

    def sync(self, policy: Any) -> None:
        self.real.sync(policy)

    def generate(
        self, prompts: Any, sampling: Sampling, stop_ids: Any, keys: Any = None, on_token: Any = None
    ) -> list[list[Completion]]:
        self.calls.append((prompts, sampling, tuple(stop_ids), keys))
        groups = []
        for text, finished in self.answers:
            ids = (*self.encoder.pieces(text), *([self.encoder.end_id] if finished else []))
            groups.append([Completion(ids, (0.0,) * len(ids), finished)])
        return groups

    def score(self, contexts: Any, choices: Any) -> list[list[float]]:
        return self.real.score(contexts, choices)


ANSWERS = [
    ("Ada <confidence> 9 </confidence> Bob <confidence> 8.5 </confidence> Cy <confidence> 10 </confidence>", True),
    ("One. <confidence> 0 </confidence> And then", False),
    ("", True),
    ("No tags at all.", True),
]


def scripted(tiny: Setup, **options: Any) -> list[Record]:
    engine = Scripted(tiny.encoder, ANSWERS, tiny.engine())
    questions = [Record(f"r{i}", f"Q{i}?", ("evidence",), meta={"domain": "x"}, rejected=()) for i in range(4)]
    return FreeFormTagger(engine, tiny.encoder, **options).tag(questions)


def test_free_form_reads_what_the_model_wrote(llama: Setup) -> None:
    full, cut, empty, untagged = scripted(llama)
    assert [(s.text, s.score, s.confidence) for s in full.sentences] == [
        ("Ada", 9, 0.9), ("Bob", None, None), ("Cy", 10, 1.0),
    ]  # fmt: skip
    assert full.answer == ANSWERS[0][0]
    assert full.meta == {
        "domain": "x", "problems": ["sentence 2: score is '8.5', expected an integer 0..10"], "finished": True,
    }  # fmt: skip
    assert (full.evidence, full.rejected) == (("evidence",), None)
    assert [(s.text, s.score, s.confidence) for s in cut.sentences] == [("One.", 0, 0.0), ("And then", None, None)]
    assert (cut.meta["problems"], cut.meta["finished"]) == (["sentence 2: the answer ends without a tag"], False)
    assert (empty.sentences, empty.answer, empty.meta["problems"]) == ((), "", [])
    assert untagged.sentences == (Sentence("No tags at all."),)
    assert all(s.factuality is None and s.distribution is None for r in (full, cut) for s in r.sentences)


@pytest.mark.parametrize("readout", ["stated", "mean"])
def test_free_form_distributions_see_the_models_own_scores(tiny: Setup, readout: Any) -> None:
    full, cut, empty, untagged = scripted(tiny, distributions=True, readout=readout)
    prompt = tiny.encoder.tokenizer.decode(tiny.encoder.prompt("Q0?"))
    before = ["Ada <confidence>", ANSWERS[0][0].removesuffix(" 10 </confidence>")]  # malformed tag and all
    for sentence, context in zip((full.sentences[0], full.sentences[2]), before, strict=True):
        logps = tiny.logps(prompt + context)
        assert sentence.distribution == pytest.approx([math.exp(p) for p in logps], rel=1e-4)
        weights = [math.exp(logp - max(logps)) for logp in logps]
        mean = sum(score * weight for score, weight in enumerate(weights)) / sum(weights) / 10
        assert sentence.confidence == pytest.approx(mean if readout == "mean" else sentence.score / 10, rel=1e-4)
    assert [s.score for s in full.sentences] == [9, None, 10]
    assert full.sentences[1] == Sentence("Bob")
    assert cut.sentences[0].distribution is not None
    assert cut.sentences[1] == Sentence("And then")
    assert (empty.sentences, untagged.sentences) == ((), (Sentence("No tags at all."),))
    assert full.meta["problems"] == ["sentence 2: score is '8.5', expected an integer 0..10"]


def test_free_form_sampling_is_keyed_by_record(llama: Setup) -> None:
    records = [Record(name, f"Who is {name}?") for name in ("x", "y", "z")]
    tagger = FreeFormTagger(llama.engine(), llama.encoder, Sampling(40, temperature=1.0, seed=3))
    together = tagger.tag(records)
    assert [tagger.tag([record])[0] for record in records[::-1]][::-1] == together
    assert len({r.answer for r in together}) == 3
    assert tagger.tag([Record("other", records[0].question)])[0].answer != together[0].answer


def test_free_form_samples_greedily_with_the_instruction_by_default(llama: Setup) -> None:
    engine = Scripted(llama.encoder, ANSWERS[:1], llama.engine())
    FreeFormTagger(engine, llama.encoder).tag([Record("id", "Who?")])
    prompts, sampling, stops, keys = engine.calls[0]
    assert prompts == [llama.encoder.prompt("Who?")]
    assert (sampling, stops, keys) == (Sampling(), llama.encoder.stop_ids, ["id"])
    assert sampling.temperature == 0


def test_a_question_too_long_for_the_model_loses_no_other(llama: Setup) -> None:
    long = Record("long", "why " * CONTEXT, sentences=(Sentence("old"),), answer="old")
    records = [Record("a", "Who?"), long, Record("b", "Where?")]
    tagger = FreeFormTagger(llama.engine(), llama.encoder, Sampling(30), distributions=True)
    first, failed, last = tagger.tag(records)
    assert [first, last] == tagger.tag(records[::2])
    assert (failed.answer, failed.sentences, failed.meta["finished"]) == ("", (), False)
    assert f"holds {CONTEXT}; shorten the question" in failed.meta["problems"][0]


def test_an_answer_is_parsed_once_for_its_record_and_its_text(llama: Setup) -> None:
    text = ANSWERS[0][0] + " And a tail"
    completion = Completion((*llama.encoder.pieces(text), llama.encoder.end_id), (), True)
    record, parsed = read_answer(Record("a", "Who?"), completion, llama.encoder)
    assert "".join(span.raw for span in parsed.sentences) + parsed.tail == text
    assert [s.score for s in record.sentences] == [*(span.score for span in parsed.sentences), None]


# Other scales

PERCENT = tuple(map(str, range(101)))
WORDS_OF_SCALE = ("no", "unlikely", "perhaps", "likely", "yes")


@pytest.mark.parametrize("words", [PERCENT, WORDS_OF_SCALE], ids=["0 to 100", "words"])
def test_iterative_tagging_on_another_scale(llama: Setup, words: tuple[str, ...]) -> None:
    other = llama.with_scale(*words)
    [record] = IterativeTagger(other.engine(), other.encoder).tag([passage("a", [2, 3])])
    [mean] = IterativeTagger(other.engine(), other.encoder, readout="mean").tag([passage("a", [2, 3])])
    first, second = record.sentences
    prompt = other.encoder.tokenizer.decode(other.encoder.prompt(record.question))
    context = f"{prompt}{first.text} <c>"
    for sentence in (first, second):
        logps = other.logps(context)
        assert sentence.distribution == pytest.approx([math.exp(logp) for logp in logps], rel=1e-4)
        assert sentence.score == argmax(logps) and sentence.levels == len(words)
        assert sentence.confidence == sentence.stated == sentence.score / (len(words) - 1)
        context = f"{context} {words[sentence.score]} </c> {second.text} <c>"
    for sentence, expected in zip(mean.sentences, record.sentences, strict=True):
        shares = expected.distribution
        score = sum(level * share for level, share in enumerate(shares)) / sum(shares)
        assert sentence.confidence == pytest.approx(score / (len(words) - 1))
        assert (sentence.score, sentence.stated) == (expected.score, expected.confidence)


def test_free_form_tagging_on_another_scale(llama: Setup) -> None:
    other = llama.with_scale(*WORDS_OF_SCALE)
    answer = "Ada <c> likely </c> Bob <c> 9 </c> Cy <c> yes </c> And then"
    engine = Scripted(other.encoder, [(answer, True)], other.engine())
    tagger = FreeFormTagger(engine, other.encoder, distributions=True)
    [record] = tagger.tag([Record("a", "Who?")])
    assert [(s.text, s.score, s.confidence, s.levels) for s in record.sentences] == [
        ("Ada", 3, 0.75, 5), ("Bob", None, None, 5), ("Cy", 4, 1.0, 5), ("And then", None, None, 5),
    ]  # fmt: skip
    assert record.meta["problems"] == [
        "sentence 2: score is '9', expected one of no, unlikely, perhaps, likely, yes",
        "sentence 4: the answer ends without a tag",
    ]
    prompt = other.encoder.tokenizer.decode(other.encoder.prompt("Who?"))
    expected = [math.exp(logp) for logp in other.logps(f"{prompt}Ada <c> likely </c> Bob <c> 9 </c> Cy <c>")]
    assert record.sentences[2].distribution == pytest.approx(expected, rel=1e-4)
