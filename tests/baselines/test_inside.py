"""Baselines that look inside the model, and semantic entropy, against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tinynli import tiny_nli
from tinyrun import Lengths, Rows, module, tiny, trainer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from lovec.baselines import (
    LUQ,
    Baseline,
    BaselineResources,
    Claim,
    ClaimConditioned,
    FactsJudge,
    LinearProbe,
    NLIJudge,
    Samples,
    SemanticEntropy,
    SentenceLikelihood,
    Wording,
)
from lovec.baselines.base import Relation, relations
from lovec.baselines.plain import plain_texts
from lovec.baselines.ridge import Ridge, cross_validated
from lovec.datasets.jsonl import read_records
from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.evaluation import Comparison
from lovec.evaluation.measurement import CALIBRATORS
from lovec.metrics.records import sentence_pairs
from lovec.modules import EvaluationConfig
from lovec.types import LovecError, Record, Sentence

CONTEXT = 300
PERSON = {"entity": "Hila Dorrast", "kind": "person"}


def answer(name: str, *texts: str, question: str = "Who is Ada?", **meta: Any) -> Record:
    return Record(name, question, sentences=tuple(Sentence(text, factuality=0.5) for text in texts), meta=meta)


RECORDS = [
    answer("a", "Ada was born in 1815.", "She lived in Paris."),
    answer("empty"),
    answer("b", "It was noon.", question="When was it?"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A tiny random model with a short context; its tokenizer has a token for every byte."""
    path = tiny(tmp_path_factory.mktemp("inside"), max_position_embeddings=CONTEXT)
    base: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(path)
    engine = TransformersEngine(max_rows=3)
    engine.sync(SimpleNamespace(model=base.eval()))
    return SimpleNamespace(
        path=path, base=base, engine=engine, encoder=Encoder(AutoTokenizer.from_pretrained(path), scoring="exact")
    )


def attached(baseline: Any, model: Any, **parts: Any) -> Any:
    defaults: dict[str, Any] = {"wording": Wording(), "samples": Samples(max_new_tokens=8), "judge": None}
    baseline.attach(BaselineResources(parts.pop("engine", model.engine), model.encoder, **{**defaults, **parts}))
    return baseline


@torch.no_grad()
def plain_logps(model: Any, record: Record, upto: int) -> tuple[torch.Tensor, list[int]]:
    """Log-probabilities [T, V] before every token of sentence ``upto``, after all before it, and its tokens."""
    prompt = model.encoder.prompt(record.question, instruct=False)
    texts = [s.text for s in record.sentences]
    past = [i for at in range(upto) for i in model.encoder.pieces(f"{' ' * (at > 0)}{texts[at]}")]
    ids = model.encoder.pieces(f"{' ' * (upto > 0)}{texts[upto]}")
    logits = model.base(input_ids=torch.tensor([[*prompt, *past, *ids]]), use_cache=False).logits[0].float()
    return logits[-len(ids) - 1 : -1].log_softmax(-1), ids


# What the model reads


def test_a_long_answer_is_read_in_windows_of_whole_sentences(model: Any) -> None:
    encoder = model.encoder
    record = answer("long", *(f"Ada wrote note number {n}." for n in range(12)), "y" * CONTEXT, "It ended.")
    texts = plain_texts([RECORDS[0], record, RECORDS[1]], model.engine, encoder)
    assert [text.record for text in texts] == [0, *[1] * (len(texts) - 1)] and len(texts) >= 3
    prompt = encoder.prompt(record.question, instruct=False)
    seen = []
    for text in texts[1:]:
        assert len(text.ids) < CONTEXT and list(text.ids[: len(prompt)]) == prompt
        kept = len(prompt) if text is texts[1] else text.start
        assert kept == text.start and text.start - len(prompt) <= (CONTEXT - len(prompt)) // 2
        for at, begin, end in text.spans:
            assert encoder.decode(text.ids[begin:end]).strip() == record.sentences[at].text
            seen.append(at)
        before = encoder.decode(text.ids[len(prompt) : text.start])
        first = text.spans[0][0]
        assert before == " ".join(
            s.text for s in record.sentences[first - before.count(".") : first] if "y" not in s.text
        )
        assert (text.start > len(prompt)) == (text is not texts[1])
    assert seen == [*range(12), 13]  # all but the one that does not fit by itself, each once
    free = SimpleNamespace(context_length=None)
    (whole,) = plain_texts([record], free, encoder)  # type: ignore[arg-type]
    assert [at for at, _, _ in whole.spans] == list(range(14))


def test_a_sentence_is_encoded_a_few_times_however_long_the_answer_is() -> None:
    class Counting:
        """Encodes a text as its characters, and counts how often it is asked to."""

        calls = 0

        def record_prompt(self, record: Record, instruct: bool) -> list[int]:
            return [0] * 10

        def pieces(self, text: str) -> list[int]:
            self.calls += 1
            return [ord(character) for character in text]

    calls = {}
    for sentences in (200, 400):
        encoder = Counting()
        record = answer("long", *(f"{'x' * (n % 5)}." for n in range(sentences)))
        engine = SimpleNamespace(context_length=400)  # of about a hundred sentences
        plain_texts([record], engine, encoder)  # type: ignore[arg-type]
        calls[sentences] = encoder.calls
    assert calls[400] < 10 * 400 and calls[400] < 2.5 * calls[200]


# Likelihood


@pytest.mark.parametrize("how", ["mean", "sum", "min"])
def test_the_likelihood_is_that_of_a_plain_forward_pass(model: Any, how: Any) -> None:
    baseline = attached(SentenceLikelihood(how), model)
    old = replace(RECORDS[0], sentences=tuple(replace(s, score=3, token_logps=(-1.0,)) for s in RECORDS[0].sentences))
    tagged = baseline.tag([old, *RECORDS[1:]])
    for record in tagged:
        for at, sentence in enumerate(record.sentences):
            logps, ids = plain_logps(model, record, at)
            own = [float(row[token]) for row, token in zip(logps, ids, strict=True)]
            value = {"mean": sum(own) / len(own), "sum": sum(own), "min": min(own)}[how]
            assert sentence == Sentence(sentence.text, 0.5, confidence=pytest.approx(math.exp(value), rel=1e-4))
    assert list(baseline.watch.seconds) == ["scoring"] and baseline.tag([]) == []
    assert baseline.name == ("Likelihood" if how == "mean" else f"Likelihood-{how}")
    assert model.engine._kept is None  # the cache is freed


def test_a_sentence_that_does_not_fit_has_no_likelihood(model: Any) -> None:
    (row,) = attached(SentenceLikelihood(), model).confidences([answer("x", "Ada.", "y" * CONTEXT, "It ended.")])
    assert [c is None for c in row] == [False, True, False]


def test_wrong_options_and_engines_are_one_clear_line(model: Any) -> None:
    with pytest.raises(LovecError, match="how is 'median', expected one of mean, sum, min"):
        SentenceLikelihood("median")  # type: ignore[arg-type]
    bare = SimpleNamespace(context_length=None)
    for baseline in (SentenceLikelihood(), ClaimConditioned()):
        with pytest.raises(LovecError, match="SimpleNamespace has no token_logps"):
            attached(baseline, model, engine=bare).tag(RECORDS)
    with pytest.raises(LovecError, match="'Probe' reads hidden states, which SimpleNamespace does not give; use"):
        attached(LinearProbe(), model, engine=bare).fit(RECORDS)
    with pytest.raises(LovecError, match="'Probe' is not fitted; call fit"):
        attached(LinearProbe(), model).tag(RECORDS)
    with pytest.raises(LovecError, match="the probe is to read layer 9, expected 1 to 2"):
        attached(LinearProbe([9]), model).fit(RECORDS)
    with pytest.raises(LovecError, match="got labelled sentences of 1 questions, expected at least two"):
        attached(LinearProbe(), model).fit(RECORDS[:2])
    with pytest.raises(LovecError, match="got labelled sentences of 0 questions"):
        attached(LinearProbe(), model).fit([Record("x", "?", sentences=(Sentence("A."),))])
    for baseline in (SentenceLikelihood(), ClaimConditioned(), SemanticEntropy()):
        with pytest.raises(LovecError, match=r"has no model to work with; call attach\(resources\) first"):
            baseline.tag(RECORDS)
    with pytest.raises(LovecError, match=r"'Probe' has no model to work with; call attach"):
        LinearProbe().fit(RECORDS)


# Claim-conditioned probability


class Related:
    """A judge for which a claim is supported where its premise entails it."""

    def attach(self, resources: Any) -> None:
        """Needs none."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        return [float(relation == "entailment") for relation in self.relations(claims)]

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        raise NotImplementedError


class Vowels(Related):
    """Sentences with the same number of vowels mean the same, one more or fewer is a contradiction, else neutral."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        self.claims += claims
        return [self.relation(claim.premise, claim.hypothesis) for claim in claims]

    @staticmethod
    def relation(one: str, other: str) -> Relation:
        counts = [sum(letter in "aeiou" for letter in text) for text in (one, other)]
        return (
            "entailment"
            if counts[0] == counts[1]
            else "contradiction"
            if abs(counts[0] - counts[1]) == 1
            else "neutral"
        )


def test_claim_conditioned_probability_by_hand(model: Any) -> None:
    judge = Vowels()
    tagged = attached(ClaimConditioned(top=6, judge=judge), model).tag(RECORDS)
    seen = set()
    for record in tagged:
        for at, sentence in enumerate(record.sentences):
            logps, ids = plain_logps(model, record, at)
            expected = 1.0
            for place, (row, token) in enumerate(zip(logps.exp(), ids, strict=True)):
                if not model.encoder.decode([token]).isalnum():
                    continue
                same, against = float(row[token]), 0.0
                for other in row.topk(6).indices.tolist():
                    changed = model.encoder.decode([*ids[:place], other, *ids[place + 1 :]]).strip()
                    if other == token or not model.encoder.decode([other]).strip():
                        continue
                    seen.add(relation := Vowels.relation(changed, sentence.text))
                    same += float(row[other]) * (relation == "entailment")
                    against += float(row[other]) * (relation == "contradiction")
                expected *= same / (same + against)
            assert sentence.confidence == pytest.approx(expected, rel=1e-4)
    assert seen == {"entailment", "contradiction"}
    keys = [(claim.record.id, claim.premise, claim.hypothesis) for claim in judge.claims]
    assert len(keys) == len(set(keys)) > 50  # equal ones once
    baseline = attached(ClaimConditioned(), model, judge=judge)
    (row,) = baseline.confidences([answer("x", "Ada.", "y" * CONTEXT, "It.")])
    assert [c is None for c in row] == [False, True, False] and baseline.watch.seconds.keys() == {"scoring", "judging"}


def test_tokens_of_the_same_text_are_one(model: Any) -> None:
    """As "Ada" and " Ada" are at the beginning of an answer."""
    record = answer("x", "Ada.")
    logps, ids = plain_logps(model, record, 0)
    twin = next(token for token in logps[0].topk(3).indices.tolist() if token != ids[0])

    class Twin(Encoder):
        def decode(self, ids_: Sequence[int]) -> str:
            return super().decode([ids[0] if i == twin else i for i in ids_])

    class Words:
        """Other words contradict."""

        def attach(self, resources: Any) -> None:
            """Needs none."""

        def relations(self, claims: Sequence[Claim]) -> list[Relation]:
            return ["entailment" if claim.premise == claim.hypothesis else "contradiction" for claim in claims]

    encoder = Twin(model.encoder.tokenizer)
    baseline = attached(ClaimConditioned(top=3, judge=Words()), SimpleNamespace(engine=model.engine, encoder=encoder))  # type: ignore[arg-type]
    expected = 1.0
    for place, (row, token) in enumerate(zip(logps.exp(), ids, strict=True)):
        if model.encoder.decode([token]).isalnum():
            others = [o for o in row.topk(3).indices.tolist() if o != token and encoder.decode([o]).strip()]
            same = [o for o in others if encoder.decode([*ids[:place], o, *ids[place + 1 :]]) == "Ada."]
            p = float(row[token]) + sum(float(row[o]) for o in same)
            expected *= p / (p + sum(float(row[o]) for o in others if o not in same))
    assert baseline.confidences([record]) == [[pytest.approx(expected, rel=1e-4)]]


def test_sentences_without_letters_are_certain_and_those_that_the_judge_cannot_read_are_not(model: Any) -> None:
    assert attached(ClaimConditioned(judge=Vowels()), model).confidences([answer("x", "?!")]) == [[1.0]]
    unread = [answer("y", "It was noon.", **PERSON), answer("z", "Ada wrote.")]
    assert attached(ClaimConditioned(), model, judge=FactsJudge()).confidences(unread[:1]) == [[0.0]]
    ((own,),) = attached(ClaimConditioned(), model).confidences(unread[1:])  # the model's yes or no is never neutral
    assert 0 < own < 1


class Odd:
    """Returns what it is given."""

    def __init__(self, *values: Any, method: str = "relations") -> None:
        setattr(self, method, lambda claims: list(values))


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (Odd("same"), "a relation that Odd returned is 'same', expected one of entailment, contradiction, neutral"),
        (Odd(), "Odd returned 0 values for 1 claims"),
        (Odd(1.5, method="support"), "the support that Odd gave a claim is 1.5"),
        (Odd(math.nan, method="support"), "the support that Odd gave a claim is nan"),
    ],
)
def test_wrong_relations_are_refused(judge: Any, message: str) -> None:
    with pytest.raises(LovecError, match=message):
        relations(judge, [Claim(RECORDS[0], "x", "y")])


def test_a_judge_of_support_only_knows_two_relations() -> None:
    judge: Any = Odd(0.51, 0.5, 0.0, method="support")
    claims = [Claim(RECORDS[0], "x", "y")] * 3
    assert relations(judge, claims) == ["entailment", "contradiction", "contradiction"]


JOINED = "Dorrast joined the Jubilee Hospital in Lorvik, {}, as a doctor in {}."
BECAME = "In {}, Dorrast entered the Jubilee Hospital as a doctor in Lorvik, {}."


@pytest.mark.parametrize(
    ("text", "sentence", "expected"),
    [
        (f"It was noon. {BECAME.format(1871, 'Jandara')}", JOINED.format("Jandara", 1871), "entailment"),
        (BECAME.format(1871, "Jandara"), JOINED.format("Jandara", 1872), "contradiction"),
        (BECAME.format(1871, "Jandara"), JOINED.format("Palenda", 1871), "contradiction"),
        ("It was noon.", JOINED.format("Jandara", 1871), "neutral"),
        (BECAME.format(1871, "Jandara"), "It was noon.", "neutral"),
        (BECAME.format(1871, "Jandara").replace("Dorrast", "Other"), JOINED.format("Jandara", 1871), "neutral"),
        ("", "", "neutral"),
    ],
)
def test_facts_entail_contradict_or_neither(text: str, sentence: str, expected: str) -> None:
    assert relations(FactsJudge(), [Claim(Record("r", "?", meta=PERSON), text, sentence)]) == [expected]


def test_an_nli_model_tells_three_relations(tmp_path: Path) -> None:
    path = tiny_nli(tmp_path)
    judge = NLIJudge(path, device="cpu", batch_size=3)
    with pytest.raises(LovecError, match="NLIJudge has no model yet"):
        judge.relations([])
    judge.attach(None)  # type: ignore[arg-type]
    texts = ["Ada wrote.", "It rained in London.", "No.", "She was born in 1815.", "Noon.", "They say it rained."]
    claims = [Claim(RECORDS[0], a, b) for a in texts for b in texts]
    found = judge.relations(claims)
    from transformers import AutoModelForSequenceClassification

    classifier: Any = AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    with torch.no_grad():
        logits = [classifier(**tokenizer(c.premise, c.hypothesis, return_tensors="pt")).logits[0] for c in claims]
    assert found == [classifier.config.id2label[int(row.argmax())] for row in logits] and len(set(found)) > 1
    assert relations(judge, [Claim(RECORDS[0], "x", "y" * 200)]) == ["neutral"]  # no room for any text


# The probe


def states_by_hand(model: Any, records: Sequence[Record]) -> torch.Tensor:
    """Hidden states at the end of all sentences, [N, layers, D]."""
    rows = []
    for record in records:
        for at in range(len(record.sentences)):
            texts = [f"{' ' * (i > 0)}{s.text}" for i, s in enumerate(record.sentences[: at + 1])]
            ids = model.encoder.prompt(record.question, instruct=False) + [
                t for x in texts for t in model.encoder.pieces(x)
            ]
            outputs: list[torch.Tensor] = []
            hooks = [
                layer.register_forward_hook(lambda _, __, output, kept=outputs: kept.append(output))
                for layer in model.base.model.layers
            ]
            with torch.no_grad():
                model.base(input_ids=torch.tensor([ids]), use_cache=False)
            for hook in hooks:
                hook.remove()
            rows.append(torch.stack([out[0, -1] if out.dim() == 3 else out[-1] for out in outputs]))
    return torch.stack(rows)


def learnable(n: int, seed: int) -> list[Record]:
    """Records whose labels a probe can read: true sentences are about notes."""
    rng = np.random.default_rng(seed)
    rows = []
    for at in range(n):
        true = rng.integers(0, 2, size=3)
        texts = [f"Ada wrote {'notes' if t else 'poems'} in {rng.integers(1800, 1999)}." for t in true]
        sentences = tuple(Sentence(x, factuality=float(t)) for x, t in zip(texts, true, strict=True))
        rows.append(Record(f"r{at}", f"Who is number {at // 2}?", sentences=sentences))
    return rows


def test_the_probe_is_the_ridge_regression_of_end_states(model: Any) -> None:
    train, test = learnable(24, 0), learnable(6, 1)
    unlabelled = Record("u", "Who?", sentences=(Sentence("It is unknown."), Sentence("So.", factuality=0.3)))
    probe = attached(LinearProbe(), model)
    probe.fit([*train, unlabelled, Record("none", "Who?")])
    [(layer, penalty)] = probe.chosen.items()
    assert layer in (1, 2) and probe.errors[layer] == min(probe.errors.values()) and len(probe.errors) == 2
    x = torch.cat([states_by_hand(model, train), states_by_hand(model, [unlabelled])[1:]])[:, layer - 1].double()
    y = torch.tensor([s.factuality for r in train for s in r.sentences] + [0.3], dtype=torch.float64)
    scale = x.std(0, correction=0)
    z = (x - x.mean(0)) / scale
    weights = torch.linalg.solve(z.T @ z + len(z) * penalty * torch.eye(z.shape[1]), z.T @ (y - y.mean()))
    own = states_by_hand(model, test)[:, layer - 1].double()
    expected = ((own - x.mean(0)) / scale @ weights + y.mean()).clamp(0, 1).tolist()
    found = [c for row in probe.confidences(test) for c in row]
    assert found == pytest.approx(expected, abs=1e-3)
    truth = [s.factuality for r in test for s in r.sentences]
    error = sum((c - f) ** 2 for c, f in zip(found, truth, strict=True)) / len(found)
    assert error < 0.15 < probe.errors[layer] + 0.15  # the mean label would have 0.25
    (row,) = probe.confidences([answer("x", "Ada.", "y" * CONTEXT, "It.")])
    assert [c is None for c in row] == [False, True, False] and list(probe.watch.seconds) == ["scoring"]


def test_held_out_values_do_not_depend_on_the_labels_of_their_question(model: Any) -> None:
    train = [*learnable(20, 0), Record("u", "Who else?", sentences=(Sentence("Ada wrote notes in 1850."),))]
    half = replace(train[0], sentences=(replace(train[0].sentences[0], factuality=None), *train[0].sentences[1:]))
    train[0] = half
    probe = attached(LinearProbe([2]), model)
    found = probe.held_out(train)
    assert [len(row) for row in found] == [3] * 20 + [1] and list(probe.chosen) == [2]
    (unlabelled,) = probe.confidences(train[-1:])
    assert found[-1] == pytest.approx(unlabelled, abs=1e-6)
    asked = {record.id for record in train if record.question == half.question}
    turned = [
        replace(r, sentences=tuple(replace(s, factuality=s.factuality and 1 - s.factuality) for s in r.sentences))
        if r.id in asked
        else r
        for r in train
    ]
    again = attached(LinearProbe([2]), model)
    changed = again.held_out(turned)
    if again.chosen == probe.chosen:  # else the choice has seen the labels
        for record, old, new in zip(train, found, changed, strict=True):
            assert (old == pytest.approx(new, abs=1e-6)) == (record.id in asked)
    truth = [s.factuality for r in train[1:20] for s in r.sentences]
    values = [v for row in found[1:20] for v in row]
    assert sum((v - f) ** 2 for v, f in zip(values, truth, strict=True)) / len(truth) < 0.2
    (own,) = probe.confidences(train[1:2])
    assert own != pytest.approx(found[1], abs=1e-6)  # the whole probe has seen them


def test_values_of_layers_are_averaged(model: Any) -> None:
    train, test = learnable(16, 0), learnable(4, 1)
    alone = [attached(LinearProbe([layer]), model) for layer in (1, 2)]
    both = attached(LinearProbe([1, 2], average=2), model)
    held = [probe.held_out(train) for probe in (*alone, both)]
    found = [probe.confidences(test) for probe in (*alone, both)]
    for first, second, mean in (held, found):
        for rows in zip(first, second, mean, strict=True):
            for one, other, value in zip(*rows, strict=True):
                assert value == pytest.approx((one + other) / 2, abs=1e-6)
    assert list(both.chosen) == sorted(both.errors, key=lambda layer: both.errors[layer])
    with pytest.raises(LovecError, match="is to average 3 layers, expected at most the 2 to choose from"):
        LinearProbe([1, 2], average=3)


def test_named_layers_are_the_only_ones_read(model: Any) -> None:
    probe = attached(LinearProbe([2, 2]), model)
    probe.fit(learnable(8, 0))
    assert (list(probe.chosen), list(probe.errors)) == ([2], [2])


def test_cross_validation_keeps_questions_together() -> None:
    """Rows of a question are equal: a split between them would know their labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 30, generator=generator).repeat_interleave(4, 0)
    y = torch.rand(20, generator=generator).repeat_interleave(4)
    apart, together = torch.arange(80) % 5, torch.arange(80) // 4 % 5
    (leaking,), (honest,) = (cross_validated(x, y, parts, [1e-6]) for parts in (apart, together))
    assert leaking < 0.01 < 0.05 < honest
    by_hand = torch.zeros(())
    for part in range(5):
        held = together == part
        [fitted] = Ridge.path(x[~held], y[~held], [1e-6])
        by_hand = by_hand + ((fitted(x[held]) - y[held]) ** 2).sum() / 80
    assert honest == pytest.approx(float(by_hand))


def test_ridge_leaves_out_constant_columns_and_stays_in_range() -> None:
    x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])
    fitted, heavy = Ridge.path(x, torch.tensor([0.0, 0.5, 1.0]), [1e-12, 1e9])
    assert fitted(torch.tensor([[0.5, 5.0], [9.0, -3.0], [-9.0, 0.0]])).tolist() == pytest.approx(
        [0.25, 1.0, 0.0], abs=1e-6
    )
    assert heavy(x).tolist() == pytest.approx([0.5] * 3, abs=1e-6)
    (constant,) = Ridge.path(x[:1], torch.tensor([0.7]), [1.0])
    assert constant(x).tolist() == pytest.approx([0.7] * 3)


# Semantic entropy


def entropy_of(*sizes: int) -> float:
    n = sum(sizes)
    return 1 + sum(size / n * math.log(size / n) for size in sizes) / math.log(n)


class SameNumber(Related):
    """A text entails a sentence if their first numbers are equal; without numbers it is neutral."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        self.calls.append(len(claims))
        digits = [["".join(filter(str.isdigit, text)) for text in (c.premise, c.hypothesis)] for c in claims]
        return ["neutral" if "" in pair else "entailment" if pair[0] == pair[1] else "contradiction" for pair in digits]


def test_semantic_entropy_by_hand(model: Any) -> None:
    samples = [
        "She wrote. Ada was born in 1815.",  # the same
        "In 1815 Ada was born. It rained.",  # the same in other words
        "Ada was born in 1816. She had 3 cats.",  # found by its words, another meaning
        "Ada was born in 1816.",
        "Born 1999.",
        "",  # a meaning of its own
        " ",
    ]
    record = answer("a", "Ada was born in 1815.", "Nobody knows.", samples=samples)
    baseline = attached(SemanticEntropy(samples=7, judge=SameNumber()), model)
    (row,) = baseline.confidences([record])
    assert row[0] == pytest.approx(entropy_of(3, 2, 1, 1, 1))
    # Nothing supports the other sentence or shares a word with it, so its counterparts are the first sentences; they
    # differ but for the two that are equal word for word.
    assert row[1] == pytest.approx(entropy_of(2, *[1] * 6))
    agreed = answer("b", "Ada was born in 1815.", samples=["It was in 1815."] * 3)
    alone = answer("c", "Ada was born in 1815.", samples=[""] * 3)
    none = answer("d", "Ada was born in 1815.", question="y" * CONTEXT)  # no room for a sample
    rows = attached(SemanticEntropy(samples=3, judge=SameNumber()), model).confidences(
        [agreed, answer("e"), alone, none]
    )
    assert rows == [[1.0], [], [pytest.approx(0.0, abs=1e-12)], [None]]
    assert baseline.watch.seconds.keys() == {"judging"} and baseline.name == "Sem-Entropy"


def test_entailment_has_to_be_mutual(model: Any) -> None:
    class Longer:
        """Longer texts entail shorter ones."""

        def attach(self, resources: Any) -> None:
            """Needs none."""

        def support(self, claims: Sequence[Claim]) -> list[float]:
            return [float(len(c.premise) >= len(c.hypothesis)) for c in claims]

    record = answer("a", "Ada.", samples=["Ada wrote.", "Bob!", "Ada wrote notes."])
    (row,) = attached(SemanticEntropy(samples=3, judge=Longer()), model).confidences([record])
    assert row == [pytest.approx(entropy_of(2, 1, 1))]


def test_semantic_entropy_shares_samples_and_asks_in_few_calls(model: Any) -> None:
    judge = SameNumber()
    resources = {"samples": Samples(max_new_tokens=8), "judge": judge}
    luq, entropy = (attached(made, model, **resources) for made in (LUQ(samples=4), SemanticEntropy(samples=4)))
    luq.tag(RECORDS)
    drawn = luq.watch.seconds["sampling"]
    judge.calls.clear()
    tagged = entropy.tag(RECORDS)
    assert entropy.watch.seconds["sampling"] == drawn and len(judge.calls) == 1 + 4
    assert all(0 <= s.confidence <= 1 for r in tagged for s in r.sentences)
    alone = [entropy.tag([record])[0] for record in RECORDS]
    assert alone == tagged


# In a test


class Guess(Baseline):
    """Confident of short sentences; its labels decide nothing."""

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        with self.watch.phase("scoring"):
            return [[1 - min(1.0, len(s.text) / 60) for s in r.sentences] for r in records]


def test_a_comparison_fits_and_recalibrates_baselines(model: Any, tmp_path: Path) -> None:
    config = EvaluationConfig(modes=["iterative"], max_new_tokens=8, rows=8, vanilla=False, recalibrated_baselines=True)
    made = module(
        Comparison,
        model.path,
        oracle=Lengths(),
        evaluation=config,
        baselines=[Guess(), LinearProbe(), SentenceLikelihood(), SemanticEntropy(2), ClaimConditioned(3)],
    )
    trainer(tmp_path).test(made, Rows(), verbose=False)
    rows = {(row.method, row.kind, row.bases, row.variant) for row in made.results if row.method != "Best constant"}
    for name in ("Guess", "Probe", "Likelihood"):
        assert (name, "baseline", (), None) in rows
        assert (f"{name} + isotonic", "recalibrated", (name,), "isotonic") in rows
        if name != "Likelihood":  # those of a random model are all below Platt's clip
            assert (f"{name} + Platt", "recalibrated", (name,), "platt") in rows
    assert {name for name, *_ in rows} >= {"Sem-Entropy", "CCP"}
    assert {row.readout for row in made.results} == {"stated"}
    guess = Guess()
    fitted = CALIBRATORS["isotonic"].fit(*sentence_pairs(guess.tag(Rows().load("validation")), "stated")[:2])
    expected = [c for row in guess.confidences(Rows().load("test")) for c in row]
    found = [
        s.confidence for r in read_records(tmp_path / "test/rows/guess-isotonic.iterative.jsonl") for s in r.sentences
    ]
    assert found == pytest.approx(fitted(expected).tolist(), abs=1e-9)  # type: ignore[arg-type]
    probe = attached(LinearProbe(), model)
    probe.fit(Rows().load("train"))
    own = [c for row in probe.confidences(Rows().load("test")) for c in row]
    tagged = [s.confidence for r in read_records(tmp_path / "test/rows/probe.iterative.jsonl") for s in r.sentences]
    assert tagged == pytest.approx(own, abs=1e-4)
