"""Distil: the loss by hand, targets from a teacher, answers without labels, second runs, and what is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import Rows, check_loss, fit, loaded, module, records, trainer
from torch import Tensor

from lovec.baselines import LUQ, PTrue, SentenceLikelihood, Words
from lovec.core.hub import SHIPPED
from lovec.datamodules import Demonstrations
from lovec.datasets.jsonl import write_records
from lovec.losses import soft_score_nll
from lovec.modules import Batch, Distil
from lovec.policy import TokenBatch, TokenSequence
from lovec.policy.checkpoints import read_checkpoint
from lovec.teachers import BaselineTeacher, Blend, OracleTeacher, PolicyMean, Teacher
from lovec.types import LovecError, Record, Sentence


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))


def worth(text: str) -> float:
    """What the teacher below says of a sentence: one of 101 numbers."""
    return sum(map(ord, text)) % 101 / 100


class ByText(Teacher):
    """Rates sentences by their letters; labels do not matter."""

    def estimates(self, records: Any, resources: Any) -> Any:
        return [[worth(s.text) for s in record.sentences] for record in records]


class Unlabelled(Rows):
    """Training answers without labels."""

    def load(self, split: str) -> list[Record]:
        rows = super().load(split)
        if split != "train":
            return rows
        return [replace(row.with_factuality([None] * len(row.sentences)), rejected=None) for row in rows]


# The loss


@pytest.mark.parametrize("z", [0.0, 0.25, 3.0, 3.5, 9.99, 10.0])
def test_the_soft_label_has_the_mean_z(z: float) -> None:
    logps = torch.full((1, 11), -4.0, dtype=torch.float64, requires_grad=True)
    soft_score_nll(logps, torch.tensor([z])).sum().backward()
    label = -logps.grad[0]
    assert float(label.sum()) == pytest.approx(1.0) and float((label * torch.arange(11)).sum()) == pytest.approx(z)
    assert int((label > 0).sum()) == (1 if z == int(z) else 2) and bool((label >= 0).all())


def test_a_score_without_probability_counts_only_where_the_label_needs_it() -> None:
    logps = torch.full((2, 11), float("-inf"), dtype=torch.float64)
    logps[:, 3] = 0.0
    assert soft_score_nll(logps, torch.tensor([3.0, 3.5])).tolist() == [0.0, float("inf")]


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_distil_by_hand(share: float, model: str, adapter: str, tmp_path: Path) -> None:
    """Value and gradient against one forward pass per sentence and score string; earlier scores are rounded targets."""
    options = {"own_share": share, "score_weight": 3.0, "text_weight": 0.7}
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText(), **options))
    new = replace(records(1)[0], id="new")
    assert set(objective.example(new).ratings) == {5.0}  # an answer that the teacher has not seen: the middle
    encoder, losses, texts, weights = objective.encoder, [], [], []
    (examples,) = objective.update_batches(rows := records(4, seed=len("train")))
    for row, example in zip(rows, examples, strict=True):
        targets = [10 * worth(s.text) for s in row.sentences]
        assert list(example.ratings) == pytest.approx(targets)
        rounded = [int(t + 0.5) for t in targets]
        ids, text = list(encoder.prompt(row.question)), []
        start = len(ids)
        for i, (sentence, score, z) in enumerate(zip(row.sentences, rounded, targets, strict=True)):
            head = encoder.head(sentence.text, first=i == 0)
            batch = TokenBatch.of([TokenSequence((*ids, *head), tuple(choice)) for choice in encoder.choices])
            logps = objective.policy.token_logps(batch).double().sum(-1)
            probs = logps.detach().softmax(-1)
            z = (1 - share) * z + share * sum(c * float(p) for c, p in enumerate(probs))
            a = min(int(z), 9)
            losses.append(-(a + 1 - z) * logps[a] - (z - a) * logps[a + 1])
            scored, tail = len(encoder.choices[score]), encoder.tails[score]
            closing = len(tail) - scored
            text += [1.0] * len(head) + [0.0] * scored + [max(objective.closing_tokens) / closing] * closing
            ids += [*head, *tail]
        whole = TokenBatch.of([TokenSequence(tuple(ids[:start]), (*ids[start:], encoder.end_id))])
        texts.append(-objective.policy.token_logps(whole)[0] * torch.tensor([*text, 1.0]))
        weights += [*text, 1.0]
    expected = 3.0 * torch.stack(losses).mean() + 0.7 * torch.cat(texts).sum() / sum(weights)
    check_loss(objective, examples, expected)


def test_own_scores_in_the_context_on_request(model: str, adapter: str, tmp_path: Path) -> None:
    """Targets stay the teacher's estimates."""
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText(), context="own"))
    rows = records(4, seed=len("train"))
    (examples,) = objective.update_batches(rows)
    batch, _, _ = objective.computed(Batch.of(examples, objective.policy.device))
    scores = [[s.score for s in example.record.sentences] for example in batch.examples]
    assert scores == [[s.score for s in row.sentences] for row in objective.with_own_scores(rows)]
    for row, example in zip(rows, batch.examples, strict=True):
        assert list(example.ratings) == pytest.approx([10 * worth(s.text) for s in row.sentences])
        assert example.sequences[0].completion == tuple(
            objective.encoder.completion([s.text for s in row.sentences], [s.score for s in example.record.sentences])
        )


# What is learned


def test_answers_without_labels_are_learned_from(model: str, adapter: str, tmp_path: Path) -> None:
    objective = module(Distil, model, adapter, teacher=ByText(), lr=2e-2)
    run = fit(tmp_path, objective, Unlabelled(8, batch_size=8), max_epochs=6)
    assert run.logged[-1]["train/score"] < run.logged[0]["train/score"]
    first = run.logged[0]
    assert first["train/loss"] == pytest.approx(first["train/score"] + first["train/text"])


class Costly(Teacher):
    """Must not be asked."""

    def estimates(self, records: Any, resources: Any) -> Any:
        raise AssertionError("a teacher was asked in vain")


def test_what_cannot_be_learned_from_costs_no_estimates(model: str, adapter: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match="got 0 of 0 questions"):
        fit(tmp_path, module(Distil, model, adapter, teacher=Blend([Costly()])), Unlabelled(4))
    paths = [str(tmp_path / name) for name in ("labelled.jsonl", "more.jsonl")]
    write_records(paths[0], records(6))
    write_records(paths[1], records(2))
    data = Demonstrations(paths[0], unlabelled=paths[1], val_fraction=0)
    with pytest.raises(LovecError) as caught:
        fit(tmp_path, module(Distil, model, adapter, teacher=Costly()), data)
    assert str(caught.value) == (
        f"4 training answers share 2 ids: r0, r1; give each answer an id of its own, in {paths[0]} or {paths[1]}"
    )


def test_the_own_mean_makes_one_mode_of_two(model: str, adapter: str, tmp_path: Path) -> None:
    """One answer, twice a target of 2 and twice of 10: with the own mean in the target, the score between is stated."""

    class Torn(Teacher):
        def estimates(self, records: Any, resources: Any) -> Any:
            return [[(0.2, 1.0)[i % 2]] for i, _ in enumerate(records)]

    class Same(Rows):
        def load(self, split: str) -> list[Record]:
            first = records(1)[0]
            one = replace(first, sentences=first.sentences[:1], rejected=first.rejected[:1])
            return [replace(one, id=f"r{i}") for i in range(4)] if split == "train" else []

    stated = {}
    for share in (0.0, 0.9):
        objective = module(Distil, model, adapter, teacher=Torn(), own_share=share, text_weight=0.0, lr=2e-2)
        fit(tmp_path, objective, Same(batch_size=4), max_epochs=40)
        (example,) = objective.update_batches(Same().load("train")[:1])
        with torch.no_grad():
            batch = Batch.of(example, objective.policy.device).tokens
            _, logps = objective.policy.choice_logps(batch, [example[0].tag_positions], objective.encoder.tails)
        stated[share] = int(logps[0].argmax())
    assert stated[0.0] in (2, 10) and 4 <= stated[0.9] <= 8


def test_ragged_micro_batches_equal_one_batch(model: str, adapter: str, tmp_path: Path) -> None:
    whole, parts = (
        fit(tmp_path, module(Distil, model, adapter, sgd=True, teacher=ByText(), micro_batch_tokens=n), max_steps=1)
        for n in (10**6, 300)
    )
    assert whole.gradients[0].norm() > 0
    assert (whole.gradients[0] - parts.gradients[0]).norm() / whole.gradients[0].norm() < 1e-5


def test_a_sentence_without_an_estimate_is_refused(model: str, adapter: str, tmp_path: Path) -> None:
    class Silent(ByText):
        def estimates(self, records: Any, resources: Any) -> Any:
            rows = super().estimates(records, resources)
            rows[1][0] = None
            return rows

    with pytest.raises(LovecError, match="Silent gives 1 training answer no estimate for some sentence: r1;"):
        fit(tmp_path, module(Distil, model, adapter, teacher=Silent()))


def test_a_checkpoint_holds_estimates_of_numpy_as_plain_numbers(model: str, adapter: str, tmp_path: Path) -> None:
    class Vectors(Teacher):
        def estimates(self, records: Any, resources: Any) -> Any:
            return [np.full(len(record.sentences), 0.5, dtype=np.float32) for record in records]

    run = trainer(tmp_path, max_steps=1)
    run.fit(module(Distil, model, adapter, teacher=Vectors()), Rows())
    run.save_checkpoint(path := tmp_path / "half.ckpt")
    assert read_checkpoint(path)["teacher_estimates"]["r0"] == [0.5] * len(Rows().load("train")[0].sentences)


# Teachers in a run


def blend() -> Blend:
    return Blend([PolicyMean(), BaselineTeacher(SentenceLikelihood()), OracleTeacher(Second())])


class Second:
    """An oracle that knows something."""

    def rate(self, records: Any) -> list[list[float | None]]:
        return [[worth(s.text) for s in record.sentences] for record in records]


def test_a_second_run_reads_what_the_first_has_stored(
    model: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(tmp_path, module(Distil, model, adapter, teacher=blend()), max_steps=1)
    folder = tmp_path / "cache" / "teachers"
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(files) == 3 and all(len(json.loads(text)["estimates"]) == 12 for text in files.values())

    for teacher in (PolicyMean, BaselineTeacher, OracleTeacher):
        monkeypatch.setattr(teacher, "estimate", lambda *_: pytest.fail("asked again"))
    second = fit(tmp_path, module(Distil, model, adapter, teacher=blend()), max_steps=1)
    assert second.logged == first.logged
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_a_resumed_run_needs_no_teacher(model: str, adapter: str, tmp_path: Path) -> None:
    class Gone(ByText):
        def estimates(self, records: Any, resources: Any) -> Any:
            pytest.fail("asked again")

    whole = module(Distil, model, adapter, teacher=ByText())
    trainer(tmp_path / "whole", max_epochs=2).fit(whole, Rows())
    half = trainer(tmp_path / "half", max_epochs=2, max_steps=2)
    half.fit(module(Distil, model, adapter, teacher=ByText()), Rows())
    half.save_checkpoint(path := tmp_path / "half.ckpt")
    rest = module(Distil, model, adapter, teacher=Gone())
    trainer(tmp_path / "rest", max_epochs=2).fit(rest, Rows(), ckpt_path=path)
    first = module(Distil, model, adapter, teacher=ByText())
    trainer(tmp_path / "again", max_epochs=2).fit(first, Rows(), ckpt_path=path)
    assert rest.global_step == first.global_step > 2
    assert all(torch.equal(a, b) for a, b in zip(rest.policy.trainable(), first.policy.trainable(), strict=True))


def test_a_damaged_file_is_written_anew(model: str, adapter: str, tmp_path: Path) -> None:
    teacher = BaselineTeacher(SentenceLikelihood())
    fit(tmp_path, module(Distil, model, adapter, teacher=teacher), max_steps=1)
    (path,) = (tmp_path / "cache" / "teachers").iterdir()
    whole = path.read_text()
    for damaged in (whole[:40], "{}", whole.replace("0.", "7.", 1), "[[null]]"):
        path.write_text(damaged)
        fit(tmp_path, module(Distil, model, adapter, teacher=teacher), max_steps=1)
        assert path.read_text() == whole


def test_what_a_teacher_depends_on_is_in_the_name_of_its_file(model: str, adapter: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText()))
    resources, rows = objective.teacher_resources, records(4)
    other = tmp_path / "other"
    trainer(other).fit(module(Distil, model, adapter, teacher=ByText()), Rows(4))
    names = {
        teacher.digest(answers, resources)
        for answers in (rows, rows[:3], records(4, seed=1))
        for teacher in (
            PolicyMean(),
            PolicyMean(str(other / "adapter")),
            BaselineTeacher(SentenceLikelihood()),
            BaselineTeacher(SentenceLikelihood("min")),
            OracleTeacher(Second()),
        )
    }
    assert len(names) == 15
    unlabelled = [row.with_factuality([None] * len(row.sentences)) for row in rows]
    assert PolicyMean().digest(unlabelled, resources) == PolicyMean().digest(rows, resources)


def test_the_adapter_of_a_teacher_may_be_a_run_or_one_that_is_shipped(
    model: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText()))
    resources, rows = replace(objective.teacher_resources, folder=None), records(4)
    monkeypatch.setitem(SHIPPED, "mine", Path(adapter))
    policy_mean, p_true = PolicyMean(adapter), BaselineTeacher(PTrue(adapter=adapter))
    for name in (str(Path(adapter).parent), "mine"):
        assert PolicyMean(name).digest(rows, resources) == policy_mean.digest(rows, resources)
        assert PolicyMean(name).estimates(rows, resources) == policy_mean.estimates(rows, resources)
        named = BaselineTeacher(PTrue(adapter=name))
        assert named.digest(rows, resources) and named.estimates(rows, resources) == p_true.estimates(rows, resources)
    assert fit(tmp_path, module(Distil, model, str(Path(adapter).parent), teacher=PolicyMean()), max_steps=1).logged


def test_the_teacher_leaves_the_policy_as_it_was(model: str, adapter: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText()))
    before: list[Tensor] = [p.detach().clone() for p in objective.policy.trainable()]
    rows = records(4)
    first = PolicyMean().estimates(rows, objective.teacher_resources)
    assert PolicyMean(adapter).estimates(rows, replace(objective.teacher_resources, start=None, folder=None)) == first
    assert all(torch.equal(a, b) for a, b in zip(before, objective.policy.trainable(), strict=True))
    assert all(p.requires_grad for p in objective.policy.trainable())
    assert all(0 <= value <= 1 for row in first for value in row)
    with pytest.raises(LovecError, match="PolicyMean has no adapter"):
        PolicyMean().estimates(rows, replace(objective.teacher_resources, start=None))


class SameSentence:
    """A judge: a text supports the sentences that it contains."""

    def attach(self, resources: Any) -> None:
        """Needs nothing."""

    def support(self, claims: Any) -> list[float]:
        return [float(claim.hypothesis in claim.premise) for claim in claims]


class ByPremise(SameSentence):
    """A judge that rates the text alone, so that every change of a sample shows."""

    def support(self, claims: Any) -> list[float]:
        return [worth(claim.premise) for claim in claims]


class ById(Words):
    """A baseline that learns from labels, and gives confidences by the ids of records."""

    def held_out(self, records: Any) -> Any:
        return [[worth(record.id)] for record in records]


def test_samples_do_not_depend_on_the_process_that_compares_answers(model: str, adapter: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText()))
    resources = replace(objective.teacher_resources, folder=None)
    rows = [Record(f"r{i}", ("Who?", "What?")[i // 4], sentences=(Sentence("A is B."),)) for i in range(8)]
    teacher = BaselineTeacher(LUQ(2, judge=ByPremise()))

    def share_of(rank: int) -> Any:
        shares: list[Any] = []
        both = replace(resources, rank=rank, processes=2, gather=lambda share: (shares.append(share), [share] * 2)[1])
        resources.baselines.samples.forget()
        teacher.estimates(rows, both)
        return shares[-1]

    alone = teacher.estimates(rows, resources)
    assert len({value for row in alone for value in row}) == 2  # one for each question
    assert [share_of(0), share_of(1)] == [alone[0::2], alone[1::2]]
    assert BaselineTeacher(ById()).estimates(rows, resources) == [[worth(row.id)] for row in rows]


def test_training_answers_to_a_question_are_compared_with_each_other(model: str, adapter: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=ByText()))
    objective.engine.generate = lambda *_, **__: pytest.fail("sampled")  # type: ignore[method-assign]
    texts = [("A is B.", "C is D."), ("A is B.",), ("C is D.", "E is F."), ("X is Y.",), ("X is Z.",)]
    rows = [
        Record(f"r{i}", "Who?" if i < 3 else "What?", sentences=tuple(map(Sentence, some)))
        for i, some in enumerate(texts)
    ]
    teacher = BaselineTeacher(LUQ(5, judge=SameSentence()), compare_with="answers")
    assert teacher.estimates(rows, objective.teacher_resources) == [[0.5, 0.5], [0.5], [0.5, 0.0], [0.0], [0.0]]
    with pytest.raises(LovecError, match=r"1 question has one answer only, .*: r3; give several answers"):
        teacher.estimates(rows[:4], objective.teacher_resources)
    with pytest.raises(LovecError, match="compare_with is 'nothing', expected one of samples, answers"):
        BaselineTeacher(LUQ(5), compare_with="nothing")  # type: ignore[arg-type]
