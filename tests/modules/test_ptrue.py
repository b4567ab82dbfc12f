"""p(true), fine-tuned: its loss and gradient by hand, exact over ragged micro-batches, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tinyrun import Rows, check_loss, check_same_steps, fit, loaded, module, records, trainer

from lovec.baselines import PTrue, Wording
from lovec.datamodules import Demonstrations
from lovec.datasets.jsonl import write_records
from lovec.modules import SFT, EvaluationConfig, PolicyConfig
from lovec.modules.batching import micro_batches
from lovec.modules.ptrue import PTrueTuned
from lovec.policy import TokenBatch, TokenSequence
from lovec.types import LovecError, Record, Sentence

SHORT = Wording(p_true="Q: {question} A: {context} S: {sentence}", true="yes", false="no")


class ShortPrompts(Rows):
    """The records with a short prompt of their own."""

    @property
    def wording(self) -> Wording:
        return SHORT


def examples_of(objective: Any, rows: list[Record]) -> list[Any]:
    (examples,) = objective.update_batches(rows)
    return examples


def test_loss_and_gradient_by_hand(model: str, adapter: str, tmp_path: Path) -> None:
    """Against one forward pass per first token of a reply, with the prompt built by hand, on both sides of beta."""
    objective = loaded(tmp_path, module(PTrueTuned, model, adapter, beta=0.25), ShortPrompts())
    row = records(8, seed=1)[4]
    row = replace(row, sentences=(*row.sentences[:2], Sentence("Not labelled.")))
    encoder, replies = objective.encoder, []
    answer = " ".join(s.text for s in row.sentences)
    for sentence in row.sentences[:2]:
        turn = f"Q: {row.question} A: {answer} S: {sentence.text}"
        text = encoder.tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True, tokenize=False
        )
        prompt = tuple(encoder.template_pieces(text))
        replies += [TokenSequence(prompt, tuple(encoder.pieces(reply)[:1])) for reply in ("yes", "no")]
    logps = objective.policy.token_logps(TokenBatch.of(replies)).double().sum(-1).view(2, 2)
    p = logps.exp()[:, 0] / logps.exp().sum(-1)
    truths = [p[0].item() - 0.1, p[1].item() + 0.4]  # one in the square, one on the line
    labels = [*truths, None]
    row = replace(row, sentences=tuple(replace(s, factuality=f) for s, f in zip(row.sentences, labels, strict=True)))
    square, line = (p[0] - truths[0]) ** 2 / (2 * 0.25), (p[1] - truths[1]).abs() - 0.25 / 2
    expected = (square + line) / 2
    out = check_loss(objective, examples_of(objective, [row]), expected)
    assert out.metrics["confidence"].values.tolist() == pytest.approx(p.tolist(), rel=1e-5)
    assert out.metrics["mass"].values.tolist() == pytest.approx(logps.exp().sum(-1).tolist(), rel=1e-4)


def test_ragged_micro_batches_equal_one_batch(model: str, adapter: str, tmp_path: Path) -> None:
    """Rows have one to three sentences, so a mean of rows or of micro-batches would differ."""
    whole, parts = (
        fit(tmp_path, module(PTrueTuned, model, adapter, sgd=True, micro_batch_tokens=n), ShortPrompts(), max_steps=2)
        for n in (10**6, 250)
    )
    objective = loaded(tmp_path, module(PTrueTuned, model, adapter), ShortPrompts())
    assert len(micro_batches(examples_of(objective, records(4)), 250, True)) > 2
    check_same_steps(whole, parts, "train/loss", "train/p_true", "train/confidence", "train/brier", "train/mass")


def test_every_labelled_sentence_that_fits_is_one_question(model: str, tmp_path: Path) -> None:
    policy = PolicyConfig(model=model, lora_r=4, max_length=200)
    objective = loaded(tmp_path, module(PTrueTuned, model, policy=policy), ShortPrompts())
    known = Record("k", "Who?", sentences=(Sentence("One.", 0.2), Sentence("Two."), Sentence("Three.", 0.9)))
    long = Record("l", "Who?", sentences=(Sentence("w" * 300, 0.5), Sentence("Short.", 0.4)))
    examples = examples_of(objective, [known, long, Record("n", "Who?")])
    assert [(example.record.id, example.factuality) for example in examples] == [
        ("k", 0.2),
        ("k", 0.9),
        ("l", 0.4),
    ]
    assert all(len(example.sequences[0]) <= 200 for example in examples)
    assert list(objective.question.failed.ids) == ["l"] == list(objective.question.cut.ids)
    with pytest.raises(LovecError, match=r"no sentence of 1 rows from l on"):
        examples_of(objective, [replace(long, sentences=long.sentences[:1])])
    with pytest.raises(LovecError, match=r"beta is 0\.0, expected above 0"):
        module(PTrueTuned, model, beta=0.0)


def test_it_learns_and_is_measured_as_the_baseline(model: str, tmp_path: Path) -> None:
    """The Brier score falls; a test tags as ``PTrue`` does with the adapter."""
    torch.manual_seed(0)
    objective = module(
        PTrueTuned, model, lr=2e-2, evaluation=EvaluationConfig(rows=8, vanilla=False, name="p(true)-ft")
    )
    run = fit(tmp_path, objective, ShortPrompts(8, batch_size=8), max_epochs=60)
    assert run.logged[-1]["train/brier"] < 0.25 * run.logged[0]["train/brier"]
    tagger = PTrue()
    tagger.attach(objective.baseline_resources)
    objective.engine.sync(objective.policy)
    tagged = tagger.tag(records(8, seed=len("train")))
    errors = [(s.confidence - s.factuality) ** 2 for record in tagged for s in record.sentences]
    assert sum(errors) / len(errors) < 0.3 * run.logged[0]["train/brier"]

    tester = module(PTrueTuned, model, evaluation=objective.evaluation)
    trainer(tmp_path).test(tester, ShortPrompts(), verbose=False)
    results = [r for r in tester.results if r.method == "p(true)-ft" and r.readout == "stated"]
    assert {(r.mode, r.level) for r in results} == {("iterative", "sentence"), ("iterative", "passage")}
    assert next(r for r in results if r.level == "sentence").metrics["malformed"] == 0.0
    confidences = [s.confidence for record in tagger.tag(records(4, seed=len("test"))) for s in record.sentences]
    row = next(r for r in results if r.level == "sentence")
    assert row.metrics["mean_confidence"] == pytest.approx(sum(confidences) / len(confidences), abs=1e-6)


@pytest.mark.parametrize("cls", [PTrueTuned, SFT])
def test_answers_of_which_some_sentences_have_labels_are_learned_from(
    cls: type, model: str, adapter: str, tmp_path: Path
) -> None:
    """By an objective that asks about sentences; one that learns whole answers leaves them out."""
    rows = records(8)
    partly = [r.with_factuality([0.5, *[None] * (len(r.sentences) - 1)]) for r in rows if len(r.sentences) > 1]
    write_records(tmp_path / "rows.jsonl", [*partly, *(r for r in rows if len(r.sentences) == 1)])
    data = Demonstrations(str(tmp_path / "rows.jsonl"), val_fraction=0.0, batch_size=1)
    evaluation = EvaluationConfig(modes=["iterative"], max_new_tokens=8)
    objective = module(cls, model, adapter, evaluation=evaluation)
    trainer(tmp_path, max_epochs=1).fit(objective, data)
    assert partly and objective.global_step == (8 if cls is PTrueTuned else 8 - len(partly)) > 0
