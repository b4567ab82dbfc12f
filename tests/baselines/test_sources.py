"""Baselines that read the source of a record, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tinyrun import Lengths, Rows, module, tiny, trainer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from lovec.baselines import BaselineResources, Samples, SentenceLikelihood, SourceOverlap, Wording
from lovec.datasets.jsonl import read_records
from lovec.encoding import Encoder, Grounding
from lovec.encoding.grounding import encoder_of
from lovec.encoding.prompts import prompt
from lovec.engines import TransformersEngine
from lovec.evaluation import Comparison
from lovec.modules import EvaluationConfig
from lovec.types import LovecError, Record, Sentence


def answer(name: str, *texts: str, evidence: tuple[str, ...] = ()) -> Record:
    return Record(name, "Who is Ada?", evidence, sentences=tuple(Sentence(text) for text in texts))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    path = tiny(tmp_path_factory.mktemp("sources"), max_position_embeddings=700)
    base: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(path)
    engine = TransformersEngine(max_rows=3)
    engine.sync(SimpleNamespace(model=base.eval()))
    return SimpleNamespace(path=path, base=base, engine=engine, encoder=Encoder(AutoTokenizer.from_pretrained(path)))


def attached(baseline: Any, model: Any) -> Any:
    baseline.attach(BaselineResources(model.engine, model.encoder, Wording(), Samples()))
    return baseline


@torch.no_grad()
def log_probability(model: Any, given: list[int], text: str) -> float:
    """The mean log-probability of the tokens of a text behind ids."""
    ids = model.encoder.pieces(text)
    logits = model.base(input_ids=torch.tensor([[*given, *ids]]), use_cache=False).logits[0].float()
    logps = logits[-len(ids) - 1 : -1].log_softmax(-1)
    return math.fsum(float(row[token]) for row, token in zip(logps, ids, strict=True)) / len(ids)


def test_overlap_is_the_share_of_content_words_numbers_and_names() -> None:
    source = ("Ada Lovelace wrote in 1843 for 1,815 readers.", "She lived in LONDON.")
    record = answer(
        "a",
        "Ada wrote in London.",  # ada, wrote, london
        "She wrote for 1815 men in Paris.",  # wrote, 1815; not men, paris
        "Lovelace's 1844: 1844, 1844.",  # lovelace; not 1844, which counts once
        "He was there.",  # nothing to compare
        evidence=source,
    )
    bare = replace(record, evidence=(" ", ""))
    tagged, without = SourceOverlap().tag([record, bare])
    assert [s.confidence for s in tagged.sentences] == [1.0, 0.5, 0.5, None]
    assert [s.confidence for s in without.sentences] == [None] * 4
    assert SourceOverlap().name == "Overlap"


def test_the_likelihood_with_a_source_and_the_gain_are_those_of_plain_forward_passes(model: Any) -> None:
    record = answer("a", "Ada was born.", "She wrote.", evidence=("Ada was <|eot_id|> born.", "  "))
    bare = replace(record, id="bare", evidence=())
    around = Grounding(prompt("answer_by_source"), 512)
    encoder = encoder_of(model.encoder.tokenizer, grounding=around)
    sourced = encoder.record_prompt(record, instruct=False)
    text = encoder.decode(sourced)
    assert "instructions" in text and "confidence" not in text and text.index("Who is Ada?") < text.index("Text:")
    plain = model.encoder.prompt("Who is Ada?", instruct=False)
    first = [*model.encoder.pieces("Ada was born.")]
    expected = [
        [log_probability(model, given, "Ada was born."), log_probability(model, [*given, *first], " She wrote.")]
        for given in (sourced, plain)
    ]
    given, without = attached(SentenceLikelihood(evidence="given"), model).confidences([bare, record])[::-1]
    assert given == pytest.approx([math.exp(logp) for logp in expected[0]], rel=1e-4) and without == [None, None]
    gains, without = attached(SentenceLikelihood(evidence="gain"), model).confidences([record, bare])
    ratios = [math.exp(a) / (math.exp(a) + math.exp(b)) for a, b in zip(*expected, strict=True)]
    assert gains == pytest.approx(ratios, rel=1e-4) and without == [None, None]
    assert max(abs(gain - 0.5) for gain in gains) > 1e-4
    # The likelihood without evidence is what it was, for an engine's encoder that puts sources into prompts, too.
    grounded = SimpleNamespace(base=model.base, engine=model.engine, encoder=encoder)
    for chosen in (model, grounded):
        (alone,) = attached(SentenceLikelihood(), chosen).confidences([record])
        assert alone == pytest.approx([math.exp(logp) for logp in expected[1]], rel=1e-4)


def test_a_long_source_is_cut_and_both_readings_are_counted(model: Any) -> None:
    record = answer("a", "Ben wrote.", evidence=tuple(" ".join([f"{word} wrote."] * 50) for word in ("Ada", "Ben")))
    tokens = {}
    for use, budget in (("none", 512), ("given", 300), ("given", 100), ("gain", 100)):
        baseline = attached(SentenceLikelihood(evidence=use, evidence_tokens=budget), model)
        tokens[use, budget] = baseline.work([record]).tokens
        assert baseline.confidences([record])[0][0] is not None
    assert tokens["given", 100] - tokens["none", 512] < tokens["given", 300] - tokens["none", 512] < 500
    assert tokens["gain", 100] == tokens["given", 100] + tokens["none", 512]


def test_names_and_settings_of_likelihoods_with_sources() -> None:
    named = [SentenceLikelihood(how, evidence=use).name for how, use in (("mean", "given"), ("min", "gain"))]  # type: ignore[arg-type]
    assert named == ["Likelihood-source", "Likelihood-min-gain"]
    with pytest.raises(LovecError, match="evidence is 'some', expected one of none, given, gain"):
        SentenceLikelihood(evidence="some")  # type: ignore[arg-type]
    with pytest.raises(LovecError, match="evidence_tokens"):
        SentenceLikelihood(evidence_tokens=0)


class Sourced(Rows):
    """Answers of which every second one has evidence."""

    def load(self, split: str) -> list[Record]:
        rows = super().load(split)
        return [replace(row, evidence=("Ada wrote notes on engines.",) * (at % 2)) for at, row in enumerate(rows)]


def test_a_test_has_their_rows_and_leaves_out_answers_without_evidence(model: Any, tmp_path: Path) -> None:
    config = EvaluationConfig(modes=["iterative"], max_new_tokens=8, rows=8, vanilla=False, recalibrated_baselines=True)
    baselines = [SourceOverlap(), SentenceLikelihood(evidence="gain")]
    made = module(Comparison, model.path, oracle=Lengths(), evaluation=config, baselines=baselines)
    trainer(tmp_path).test(made, Sourced(), verbose=False)
    rows = {row.method: row for row in made.results if row.level == "sentence"}
    sourced = [row for row in Sourced().load("test") if row.evidence]
    for name, file in (("Overlap", "overlap"), ("Likelihood-gain", "likelihood-gain")):
        assert rows[name].n == sum(len(row.sentences) for row in sourced) and f"{name} + isotonic" in rows
        tagged = {record.id: record for record in read_records(tmp_path / f"test/rows/{file}.iterative.jsonl")}
        with_one = {row_id for row_id, row in tagged.items() if row.sentences[0].confidence is not None}
        assert with_one == {row.id for row in sourced}
