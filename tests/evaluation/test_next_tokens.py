"""The most probable tokens after the opening tag word: of which sentences, in which context, how probable."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tinyrun import records

from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.evaluation.next_tokens import TOP_TOKENS, next_tokens
from lovec.metrics.functional import ordinality
from lovec.policy import Policy, PolicyConfig
from lovec.taggers import IterativeTagger
from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def parts(model: str, adapter: str) -> tuple[Policy, TransformersEngine, Encoder]:
    """A policy whose tokenizer writes "10" as two tokens, its engine and encoder."""
    policy = Policy(PolicyConfig(model=model, adapter=adapter), reference=False)
    policy.train()
    engine = TransformersEngine(max_rows=4)
    engine.sync(policy)
    encoder = Encoder(policy.tokenizer, "Rate each sentence.")
    assert len(encoder.pieces("10")) == 2
    return policy, engine, encoder


def labelled(*groups: list[float | None]) -> list[Record]:
    """Records with these factualities; every sentence has a text of its own."""
    return [
        Record(f"r{i}", "Who?", sentences=tuple(Sentence(f"Note {i} {j}.", f, score=3) for j, f in enumerate(group)))
        for i, group in enumerate(groups)
    ]


def sentences(parts: Any, rows: list[Record]) -> dict[str, str]:
    return {case["case"]: case["sentence"] for case in next_tokens("M", *parts, rows)}


def test_the_first_of_the_truest_and_the_first_of_the_least_true_sentences_are_taken(parts: Any) -> None:
    rows = labelled([0.6, None, 0.3], [1.0, 0.0], [0.0, 1.0])
    assert sentences(parts, rows) == {"correct": "Note 1 0.", "incorrect": "Note 1 1."}
    assert sentences(parts, labelled([0.6, 0.8])) == {"correct": "Note 0 1."}
    assert sentences(parts, labelled([0.5, 0.2])) == {"incorrect": "Note 0 1."}
    assert sentences(parts, labelled([0.5], [None], [])) == {}
    assert sentences(parts, []) == {}


@pytest.mark.parametrize("history", ["scores", "hidden", "previous"])
def test_tokens_and_ordinality_are_those_of_the_tag(history: Any, parts: Any) -> None:
    """Against the engine's probability of every token of the vocabulary, in a context put together here."""
    policy, engine, encoder = parts
    row = records(6, seed=3)[2]
    row = replace(row, sentences=(*row.sentences[:2], Sentence("Ada wrote it.", 0.0), Sentence("Not asked.", 0.1)))
    at = 2
    found = next_tokens("M", policy, engine, encoder, [row], history)[-1]
    assert found["case"] == "incorrect" and found["sentence"] == "Ada wrote it." and found["method"] == "M"
    tagged = IterativeTagger(engine, encoder, history=history).tag([row])[0].sentences
    before = [s.text for s in tagged[:at]]
    if history == "scores":
        past, _ = encoder.completion_with_marks(before, [s.score for s in tagged[:at]])
        past = past[:-1]  # the end of turn
    else:
        past = encoder.pieces(before[0] + f" {before[1]}" if history == "hidden" else before[1])
    context = [*encoder.prompt(row.question), *past, *encoder.pieces(" Ada wrote it. <confidence>")]
    vocabulary = len(encoder.tokenizer)
    probs = torch.tensor(engine.score([context], [[token] for token in range(vocabulary)])[0]).exp()
    top = probs.topk(TOP_TOKENS)
    assert [t["p"] for t in found["tokens"]] == pytest.approx(top.values.tolist(), rel=1e-4)
    assert [t["text"] for t in found["tokens"]] == [encoder.tokenizer.decode([i]) for i in top.indices.tolist()]
    whole = torch.tensor([tagged[at].distribution], dtype=torch.float64)
    assert found["ordinality"] == pytest.approx(ordinality(whole).item())


def test_tags_in_the_records_change_nothing(parts: Any) -> None:
    policy = parts[0]
    rows = labelled([0.2, 0.9], [0.1, 0.7])
    bare = [replace(r, sentences=tuple(replace(s, score=None) for s in r.sentences)) for r in rows]
    first = next_tokens("M", *parts, rows)
    assert first == next_tokens("M", *parts, bare)
    assert policy.training and json.loads(json.dumps(first, allow_nan=False)) == first


def test_a_sentence_too_long_for_the_model_is_left_out(parts: Any) -> None:
    long = Record("x", "Who?", sentences=(Sentence("w " * 3000, 1.0), Sentence("Short.", 0.0)))
    assert sentences(parts, [long]) == {"incorrect": "Short."}  # its context begins behind the long one
    assert sentences(parts, [replace(long, sentences=long.sentences[:1])]) == {}
    assert sentences(parts, [replace(long, sentences=long.sentences[::-1])]) == {"incorrect": "Short."}
