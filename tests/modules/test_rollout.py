"""Objectives that sample answers: the sampled tokens, their advantages, and what is exact about a step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tinyrollouts import Distance, Fixed, advantages_of, grpo, scripted
from tinyrun import Drifted, Rows, check_same_steps, fit, loaded, records, trainer
from torch import Tensor

from lovec.losses import group_advantages
from lovec.modules import GRPO, Batch, Example, PolicyConfig, RolloutModule
from lovec.modules.batching import micro_batches
from lovec.policy import TokenSequence, is_adapter
from lovec.types import Completion, LovecError, Record

# Rollouts


class Spy:
    """Keeps every call of an engine and its result."""

    def __init__(self, objective: Any) -> None:
        self.calls: list[tuple[list[Any], list[list[Completion]]]] = []
        generate = objective.engine.generate

        def recorded(prompts: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append((prompts, generate(prompts, *args, **kwargs)))
            return self.calls[-1][1]

        objective.engine.generate = recorded


def test_training_ids_are_rollout_ids(model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, grpo(model))
    spy = Spy(objective)
    examples = objective.rollouts(records(4))
    ((prompts, groups),) = spy.calls
    sampled = [(tuple(prompt), c.ids) for prompt, group in zip(prompts, groups, strict=True) for c in group]
    assert [(example.sequences[0].prompt, example.sequences[0].completion) for example in examples] == sampled
    encoder = objective.encoder
    assert any(tuple(encoder.pieces(encoder.decode(ids))) != ids for _, ids in sampled)  # text would change them
    batch = Batch.of(examples, torch.device("cpu"))
    for i, (prompt, ids) in enumerate(sampled):
        assert batch.tokens.targets[i][batch.tokens.mask[i].bool()].tolist() == list(ids)
        assert batch.tokens.sequences[i] == TokenSequence(tuple(prompt), tuple(ids))
    assert all(prompt.count(encoder.tokenizer.bos_token_id) == 1 for prompt, _ in sampled)


def test_the_rows_of_a_prompt_stay_together(model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, grpo(model))
    rows = records(4)
    examples = objective.rollouts(rows)
    assert [example.record.id for example in examples] == [row.id for row in rows for _ in range(3)]
    rewards = torch.tensor([example.metrics["reward"] for example in examples], dtype=torch.float64)
    advantages = group_advantages(rewards.view(4, 3)).tolist()
    for start, row, expected in zip(range(0, 12, 3), rows, advantages, strict=True):
        group = examples[start : start + 3]
        assert {example.sequences[0].prompt for example in group} == {tuple(objective.encoder.prompt(row.question))}
        assert [set(example.advantages) for example in group] == [{a} for a in expected]
    alone = objective.rollouts(rows[2:3])  # nor does an answer depend on the other questions
    assert [example.sequences for example in alone] == [example.sequences for example in examples[6:9]]


def test_an_answer_without_room_is_cut_and_the_others_stay_as_they_are(model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, grpo(model, max_new_tokens=20))
    rows = records(4)
    rows[1] = replace(rows[1], question="q" * 60)
    whole = objective.rollouts(rows)
    shortest, limit, longest = sorted(len(example.sequences[0]) for example in whole[3:6])
    assert shortest < limit < longest and all(len(example.sequences[0]) < limit for example in whole[:3] + whole[6:])
    objective.policy.max_length = limit
    for before, after in zip(whole, objective.rollouts(rows), strict=True):
        (old,), (new,) = before.sequences, after.sequences
        assert new == TokenSequence(old.prompt, old.completion[: limit - len(old.prompt)])
        assert after.record.finished == (before.record.finished and len(old) <= limit)
        assert after.metrics["cut_off"] == float(not after.record.finished)


def test_another_adapter_changes_the_rollouts_and_steps_do_not_touch_the_base(model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, grpo(model, lr=5e-2))
    before = [example.sequences[0].completion for example in objective.rollouts(records(4))]
    assert before == [example.sequences[0].completion for example in objective.rollouts(records(4))]
    kept = [p.detach().clone() for p in objective.policy.trainable()]
    with torch.no_grad():
        for p in objective.policy.trainable():
            p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    assert before != [example.sequences[0].completion for example in objective.rollouts(records(4))]
    with torch.no_grad():
        for p, old in zip(objective.policy.trainable(), kept, strict=True):
            p.copy_(old)
    assert before == [example.sequences[0].completion for example in objective.rollouts(records(4))]

    fit(tmp_path, objective, max_epochs=2)
    assert any((p != old).any() for p, old in zip(objective.policy.trainable(), kept, strict=True))
    stored = load_file(Path(model) / "model.safetensors")
    names = {name.replace(".base_layer", ""): p for name, p in objective.policy.model.named_parameters()}
    assert all(torch.equal(names[name], value) for name, value in stored.items())
    assert {name for name in names if not is_adapter(name)} <= stored.keys() | {"lm_head.weight"}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rollouts_come_from_the_newest_adapter_and_ratios_begin_at_one(
    temperature: float, model: str, adapter: str, tmp_path: Path
) -> None:
    """At every step the sampler's log-probs are those of training, and not those of the step before."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watch(GRPO):
        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor, mask: Tensor) -> Tensor:
            seen.append((token_logps.detach(), old))
            return super().token_loss(token_logps, old, ref, advantages, mask)

    objective = grpo(model, adapter, Watch, temperature=temperature, lr=5e-2, micro_batch_tokens=10**6)
    spy = Spy(objective)
    run = fit(tmp_path, objective)
    assert len(seen) == len(spy.calls) == 3
    for (token_logps, old), (_, groups) in zip(seen, spy.calls, strict=True):
        assert torch.equal(token_logps, old)
        # Items share a forward pass longest first.
        drawn = sorted((c.logps for group in groups for c in group), key=len)
        trained = sorted((row[row != 0].tolist() for row in token_logps), key=len)
        assert sorted(map(sum, drawn)) == pytest.approx(sorted(map(sum, trained)), abs=1e-3)
    assert all(logged["train/clipped"] == 0 for logged in run.logged)
    (first, _), (_, groups) = seen[0], spy.calls[-1]
    stale = objective.policy  # the check above tells adapters apart: the log-probs of the first one are far off
    with stale.reference():
        examples = [
            TokenSequence(tuple(prompt), c.ids)
            for prompt, group in zip(spy.calls[-1][0], groups, strict=True)
            for c in group
        ]
        old_sums = stale.token_logps(
            Batch.of([Example((s,), records(1)[0]) for s in examples], stale.device).tokens
        ).sum(-1)
    new_sums = [sum(c.logps) for group in groups for c in group]
    assert float((old_sums - torch.tensor(new_sums)).abs().max()) > 0.1
    assert first.shape[0] == 12


def test_every_step_samples_other_answers(model: str, tmp_path: Path) -> None:
    objective = grpo(model, lr=0.0)
    spy = Spy(objective)
    fit(tmp_path, objective, Rows(4, batch_size=4), max_epochs=2)
    first, second = ({c.ids for group in groups for c in group} for _, groups in spy.calls)
    assert len(first & second) < 4  # the same questions and the same policy


# A step

OBJECTIVES = [
    {"normalisation": "sequence"},
    {"normalisation": "token", "inner_epochs": 2},
    {"normalisation": "constant", "beta": 0.0},
    {"credit": "sentence"},
]


@pytest.mark.parametrize("options", OBJECTIVES, ids=lambda options: "-".join(map(str, options.values())))
def test_ragged_micro_batches_equal_one_batch(
    options: dict[str, Any], model: str, adapter: str, tmp_path: Path
) -> None:
    whole, parts = (
        fit(tmp_path, grpo(model, adapter, sgd=True, micro_batch_tokens=n, **options), max_steps=2)
        for n in (10**6, 100)
    )
    objective = loaded(tmp_path, grpo(model, adapter, **options))
    examples = objective.rollouts(records(4))
    assert len(micro_batches(examples, 100, True)) > 2
    assert len({len(example.sequences[0].completion) for example in examples}) > 3
    assert len(whole.logged) == len(parts.logged) == 2
    names = ("train/loss", "train/policy", "train/reward", "train/clipped", "train/zero_variance")
    check_same_steps(whole, parts, *names, nan_ok=True)


@pytest.mark.parametrize("continued", [False, True])
def test_kl_begins_at_zero_and_is_measured_to_the_start_of_the_run(
    continued: bool, model: str, adapter: str, tmp_path: Path
) -> None:
    objective = grpo(model, adapter if continued else None, lr=5e-2)
    run = fit(tmp_path, objective, max_epochs=2)
    kls = [logged["train/kl"] for logged in run.logged]
    assert kls[0] == 0.0
    assert all(kl > 0 for kl in kls[1:]) and kls[-1] > 1e-3
    batch = Batch.of(objective.rollouts(records(2)), torch.device("cpu"))
    start = loaded(tmp_path, grpo(model, adapter if continued else None))
    with torch.no_grad():
        expected = start.token_logps(batch, 1.2)
    torch.testing.assert_close(objective.reference_token_logps(batch, 1.2), expected, atol=1e-5, rtol=1e-5)
    if continued:  # which is not the base
        with torch.no_grad(), objective.policy.without_adapter():
            assert not torch.allclose(objective.token_logps(batch, 1.2), expected, atol=1e-2)


def test_equal_rewards_give_no_gradient(model: str, tmp_path: Path) -> None:
    class Even:
        def __call__(self, score: int | None, rating: int) -> float:
            return 0.1  # three of them have a mean that is not 0.1

    run = fit(tmp_path, grpo(model, reward=Even(), beta=0.0), max_steps=2)
    assert not any(gradient.any() for gradient in run.gradients)
    assert [logged["train/zero_variance"] for logged in run.logged] == [1.0, 1.0]
    moved = fit(tmp_path, grpo(model, beta=0.0), max_steps=2)
    assert moved.gradients[0].any()
    assert moved.logged[0]["train/zero_variance"] < 1


@pytest.mark.parametrize("credit", ["answer", "sentence"])
def test_a_reward_that_is_not_finite_is_refused_by_name(credit: str, model: str, tmp_path: Path) -> None:
    class Broken:
        def __call__(self, score: int | None, rating: int) -> float:
            return float("nan") if rating > 5 else 1.0

    with pytest.raises(LovecError, match=r"Broken.*nan"):
        fit(tmp_path, grpo(model, reward=Broken(), credit=credit))


def test_inner_epochs_begin_at_ratio_one_and_count_as_steps(model: str, adapter: str, tmp_path: Path) -> None:
    ratios: list[Tensor] = []

    class Watch(GRPO):
        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor, mask: Tensor) -> Tensor:
            assert not old.requires_grad
            ratios.append((token_logps - old).detach().exp())
            return super().token_loss(token_logps, old, ref, advantages, mask)

    objective = grpo(model, adapter, Watch, inner_epochs=2, lr=5e-2, micro_batch_tokens=10**6)
    spy = Spy(objective)
    trained = trainer(tmp_path, max_steps=4, max_epochs=5)
    trained.fit(objective, Rows())
    assert trained.global_step == len(ratios) == 4
    assert len(spy.calls) == 2
    assert all((ratio == 1).all() for ratio in ratios[0::2])
    assert all(((ratio - 1).abs() > 0.01).any() for ratio in ratios[1::2])
    for flags in ({"max_steps": 3}, {"max_steps": -1, "every": 3}):
        from lightning.pytorch.callbacks import ModelCheckpoint

        every = flags.pop("every", None)
        callbacks = [ModelCheckpoint(every_n_train_steps=every)] if every else []
        with pytest.raises(LovecError, match="is 3, expected a multiple of 2, the optimiser steps per batch"):
            trainer(tmp_path, enable_checkpointing=True, callbacks=callbacks, **flags).fit(
                grpo(model, inner_epochs=2), Rows()
            )


def test_the_schedule_of_inner_epochs_ends_with_the_run(model: str, tmp_path: Path) -> None:
    from lovec.modules import WarmupCosine

    run = trainer(tmp_path, max_epochs=2)
    run.fit(grpo(model, inner_epochs=2, lr_scheduler=WarmupCosine), Rows())
    assert run.global_step == 12
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_answers_that_earn_more_become_more_frequent(model: str, tmp_path: Path) -> None:
    """An oracle that rates the share of ASCII makes answers more ASCII: the sign of the gradient is right."""

    class Ascii:
        def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
            return [[sum(map(str.isascii, s.text)) / len(s.text) for s in record.sentences] for record in records]

    objective = grpo(model, oracle=Ascii(), group_size=8, max_new_tokens=4, lr=3e-2, temperature=1.0, beta=0.0)
    run = fit(tmp_path, objective, max_epochs=5)
    rewards = [logged["train/reward"] for logged in run.logged]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 1.0, rewards


@pytest.mark.parity
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize(
    ("loss_type", "normalisation"), [("grpo", "sequence"), ("dapo", "token"), ("dr_grpo", "constant")]
)
def test_a_step_of_grpo_equals_trl(
    loss_type: str,
    normalisation: str,
    cap: float | None,
    model: str,
    adapter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off-policy rollouts in ragged micro-batches against TRL's loss of the same model over one padded batch.

    With a cap they come from another engine, and are weighted as TRL weights those of vLLM ("token_truncate").
    """
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trl = pytest.importorskip("trl", reason="the extra parity is not installed")
    from datasets import Dataset

    options = {} if cap is None else {"engine": Drifted(8), "importance_cap": cap}
    objective = loaded(tmp_path, grpo(model, adapter, clip_high=0.28, normalisation=normalisation, **options))
    examples = objective.rollouts(records(4))
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in objective.policy.trainable():
            p.add_(0.1 * torch.randn(p.shape, generator=noise))
    for i, example in enumerate(examples):
        steps = len(example.sequences[0].completion)
        logps = objective.policy.token_logps(Batch.of([example], objective.policy.device).tokens, 1.2)[0].detach()
        objective._old_logps[example.number] = (logps + 0.3 * torch.randn(steps, generator=noise)).tolist()
        # Advantages of one sign: float32 could not tell a mean of nearly 0 to 1e-6.
        examples[i] = replace(example, advantages=[1.0 + 0.1 * i] * steps)

    groups = micro_batches(examples, 100, True)
    assert len(groups) > 2
    outs = [objective.loss(Batch.of(group, objective.policy.device)) for group in groups]
    counts = objective.counts(examples)
    ours = torch.stack([objective._total(out, counts) for out in outs]).sum()
    ours.backward()
    grads = [p.grad.clone() for p in objective.policy.trainable()]
    objective.policy.zero_grad()

    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        loss_type=loss_type,
        beta=0.0,
        epsilon_high=0.28,
        use_bias_correction_kl=False,  # by default TRL multiplies its KL by the ratio; the paper does not
        temperature=1.2,
        max_completion_length=10,
        per_device_train_batch_size=12,
        num_generations=3,
    )
    theirs = trl.GRPOTrainer(
        model=objective.policy.peft,
        reward_funcs=lambda **_: [0.0],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w"]}),
        processing_class=objective.encoder.tokenizer,
    )
    theirs.beta = 0.04
    theirs.use_vllm = cap is not None  # its loss alone is run, so that it need not be there
    theirs.current_gradient_accumulation_steps = 1
    prompts, completions = (
        [getattr(example.sequences[0], name) for example in examples] for name in ("prompt", "completion")
    )
    wide, long = max(map(len, prompts)), max(map(len, completions))

    def right(rows: Sequence[Sequence[Any]]) -> Tensor:
        return torch.tensor([[*row, *[0] * (long - len(row))] for row in rows])

    inputs = {
        "prompt_ids": torch.tensor([[*[0] * (wide - len(p)), *p] for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": right(completions),
        "completion_mask": right([[1] * len(c) for c in completions]),
        "advantages": torch.tensor([example.advantages[0] for example in examples]),
        "old_per_token_logps": right([objective._old_logps[example.number] for example in examples]),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }
    if cap is not None:
        mismatch = inputs["old_per_token_logps"] - right([example.sampler_logps for example in examples])
        weights = mismatch.exp().clamp(max=cap)
        assert (weights == cap).any() and (weights < 1).any()
        inputs |= {
            "importance_sampling_ratio": weights,
            "sampling_per_token_logps": right([example.sampler_logps for example in examples]),
        }
    with objective.policy.reference():
        ids, mask = (torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], dim=1) for x in ("ids", "mask"))
        logits = objective.policy.model(input_ids=ids, attention_mask=mask).logits[:, wide - 1 : -1] / 1.2
        logps = logits.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]
        inputs["ref_per_token_logps"] = logps * inputs["completion_mask"]
    expected = theirs._compute_loss(objective.policy.peft, inputs)
    expected.backward()
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    for p, grad in zip(objective.policy.trainable(), grads, strict=True):  # float32, over other paddings
        assert float((p.grad - grad).norm() / p.grad.norm()) < 1e-5
    kl = sum((out.metrics["kl"].values * out.metrics["kl"].mask).sum() for out in outs) / counts["token"]
    assert kl.item() == pytest.approx(theirs._metrics["train"]["kl"][-1], rel=1e-5)


# Credit

ANSWERS = [
    "Ada was born. <c> 9 </c> She wrote é notes. <c> 2 </c>",
    "Ada was born. <c> 4 </c>",
    "No tag at all",
]


def test_the_reward_of_an_answer_is_the_mean_of_its_sentences(model: str, tmp_path: Path) -> None:
    oracle = Fixed(Ada=1.0, She=0.5)
    _, examples = scripted(tmp_path, model, [*ANSWERS, ""], reward=Distance(), oracle=oracle, empty=-60.0)
    rewards = [(-1 - 3) / 2, -6.0, -20.0, -60.0]
    assert [example.metrics["reward"] for example in examples] == rewards
    expected = group_advantages(torch.tensor([rewards], dtype=torch.float64))[0].tolist()
    assert [pytest.approx(row[0]) for row in advantages_of(examples)] == expected
    assert [len(row) for row in advantages_of(examples)] == [
        len(example.sequences[0].completion) for example in examples
    ]
    assert all(len(set(row)) == 1 for row in advantages_of(examples))
    metrics = [example.metrics for example in examples]
    assert [values["malformed"] for values in metrics] == [0.0, 0.0, 1.0, 1.0]
    assert [values["factuality"] for values in metrics] == [0.75, 1.0, 1.0, None]
    assert [values["confidence"] for values in metrics] == [pytest.approx(0.55), 0.4, None, None]
    assert [values["words"] for values in metrics] == [7.0, 3.0, 4.0, 0.0]
    assert [example.record.sentences[0].factuality for example in examples[:3]] == [1.0, 1.0, 1.0]


def test_sentence_credit_reaches_exactly_the_tokens_of_the_sentence(model: str, tmp_path: Path) -> None:
    answers = [*ANSWERS, "", "One. <c> 11 </c>\n Two <c> 3 </c> and a tail|", " Three. <c> 8 </c> \n"]
    objective, examples = scripted(tmp_path, model, answers, reward=Distance(), oracle=Fixed(), credit="sentence")
    pooled = [-1.0, -8.0, -6.0, -20.0, -60.0, -20.0, -7.0, -20.0, -2.0]
    a = group_advantages(torch.tensor([pooled], dtype=torch.float64))[0].tolist()
    pieces: list[list[tuple[str, float]]] = [
        [("Ada was born. <c> 9 </c>", a[0]), (" She wrote é notes. <c> 2 </c>", a[1])],
        [("Ada was born. <c> 4 </c>", a[2])],
        [("No tag at all", a[3])],
        [("", a[4])],
        [("One. <c> 11 </c>", a[5]), ("\n Two <c> 3 </c>", a[6]), (" and a tail", a[7])],
        [(" Three. <c> 8 </c> \n", a[8])],
    ]
    for example, text, parts in zip(examples, answers, pieces, strict=True):
        expected = [credit for piece, credit in parts for _ in objective.encoder.pieces(piece)]
        if not text.endswith("|"):
            expected.append(sum(credit for _, credit in parts) / len(parts))
        assert example.advantages == pytest.approx(expected), text
    assert {example.metrics["zero_variance"] for example in examples} == {0.0}


def test_tag_credit_reaches_exactly_the_tokens_of_the_tags(model: str, tmp_path: Path) -> None:
    answers = [*ANSWERS, "", "One. <c> 11 </c>\n Two <c> 3 </c> and a tail|", "Six. </c> Seven. <c> 5", "<c> 8 </c> \n"]
    objective, examples = scripted(tmp_path, model, answers, reward=Distance(), oracle=Fixed(), credit="tag")
    rewards = [-1.0, -8.0, -6.0, -20.0, -60.0, -20.0, -7.0, -20.0, -20.0, -20.0, -20.0]
    a = group_advantages(torch.tensor([rewards], dtype=torch.float64))[0].tolist()
    pieces: list[list[tuple[str, float]]] = [
        [("Ada was born. ", 0), ("<c> 9 </c>", a[0]), (" She wrote é notes. ", 0), ("<c> 2 </c>", a[1]), ("end", 0)],
        [("Ada was born. ", 0), ("<c> 4 </c>", a[2]), ("end", 0)],
        [("No tag at all", a[3]), ("end", a[3])],
        [("end", a[4])],
        [("One. ", 0), ("<c> 11 </c>", a[5]), ("\n Two ", 0), ("<c> 3 </c>", a[6]), (" and a tail", a[7])],
        [("Six. </c>", a[8]), (" Seven. ", 0), ("<c> 5", a[9]), ("end", 0)],
        [("<c> 8 </c> \n", a[10]), ("end", 0)],
    ]
    for example, text, parts in zip(examples, answers, pieces, strict=True):
        per_character = [credit for piece, credit in parts if piece != "end" for _ in piece]
        ids = example.sequences[0].completion
        expected, read = [], 0
        for n in range(len(ids) - (not text.endswith("|"))):
            length = len(objective.encoder.decode(ids[: n + 1]))
            expected.append(per_character[max(read, length - 1)])  # a token across an edge counts to what it begins
            read = length
        expected += [credit for piece, credit in parts if piece == "end"]
        assert example.advantages == pytest.approx(expected), text


@pytest.mark.parametrize("credit", ["sentence", "tag"])
def test_a_thought_before_an_answer_does_not_move_its_credit(credit: str, model: str, tmp_path: Path) -> None:
    thought, options = "<think>I recall é: <c> 7 </c></think>\n\n", {"reward": Distance(), "oracle": Fixed(She=0.5)}
    rows = []
    for answer in (ANSWERS[0], thought + ANSWERS[0]):
        objective, examples = scripted(tmp_path, model, [answer, ANSWERS[1]], credit=credit, **options)
        rows.append(advantages_of(examples)[0])
    steps = len(objective.encoder.pieces(thought))
    assert rows[1][steps:] == pytest.approx(rows[0]) and len(set(rows[0])) == 3
    assert credit == "sentence" or not any(rows[1][:steps])


@pytest.mark.parametrize("credit", ["answer", "sentence"])
def test_advantages_are_scaled_by_the_batch(
    credit: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard deviation is that of all rewards, of the other processes as well; means stay those of the groups."""
    groups = [
        ["Ada. <c> 9 </c> She. <c> 1 </c>", "Ada. <c> 4 </c>", "Who. <c> 4 </c>"],
        ["Ada. <c> 10 </c>", "Ada. <c> 9 </c>", "None"],
        ["Ada. <c> 3 </c>", "Ada. <c> 3 </c>", "Ada. <c> 3 </c>"],
    ]
    options: dict[str, Any] = {"reward": Distance(), "oracle": Fixed(Ada=1.0, She=0.5, Who=None), "credit": credit}
    rewards = {"answer": [[-2.5, -6.0], [0.0, -1.0, -20.0], [-7.0] * 3]}
    rewards["sentence"] = [[-1.0, -4.0, -6.0], *rewards["answer"][1:]]
    known = [reward for group in rewards[credit] for reward in group]
    for other in ([], [5.0, -40.0]):  # rewards of another process, which is simulated

        def together(trainer: Any, values: Any, reduce: Any, other: list[float] = other) -> dict[str, float]:
            total = [*known, *other]
            more = {"count": len(other), "sum": sum(other)}
            more["squares"] = sum((reward - sum(total) / len(total)) ** 2 for reward in other)
            return {name: value + more[name] for name, value in values.items()}

        monkeypatch.setattr("lovec.modules.rollout.reduce_over_processes", together)
        objective, examples = scripted(tmp_path, model, *groups, scale_rewards="batch", **options)
        std = statistics.stdev([*known, *other])
        assert objective.reward_std == pytest.approx(std)
        firsts = [row[0] for row in advantages_of(examples)]
        for group, values in zip(rewards[credit], (firsts[:3], firsts[3:6], firsts[6:]), strict=True):
            mean = statistics.mean(group)
            expected = [(reward - mean) / (std + 1e-4) for reward in group]
            assert values[0] == pytest.approx(expected[0]) and values[-1] == pytest.approx(
                0.0 if group is rewards[credit][0] else expected[-1]  # nobody could judge the first group's last answer
            )
        assert firsts[6:] == [0.0] * 3
    _, examples = scripted(tmp_path, model, ["Who. <c> 1 </c>"] * 2, scale_rewards="batch", **options)
    assert not any(x for row in advantages_of(examples) for x in row)


def test_sentences_without_a_label_have_no_reward_and_no_advantage(model: str, tmp_path: Path) -> None:
    """A malformed tag has a reward without a label."""
    answers = [
        "Ada was born. <c> 9 </c> Who knows. <c> 2 </c>",
        "Who knows. <c> 7 </c>",
        "Who knows.",
        "Ada was born. <c> 4 </c>",
    ]
    oracle = Fixed(Ada=1.0, Who=None)
    _, examples = scripted(tmp_path, model, answers, reward=Distance(), oracle=oracle)
    assert [example.metrics["reward"] for example in examples] == [-1.0, None, -20.0, -6.0]
    assert [example.metrics["factuality"] for example in examples] == [1.0, None, None, 1.0]
    assert advantages_of(examples)[1] == pytest.approx([0.0] * len(advantages_of(examples)[1]))
    assert advantages_of(examples)[0][0] > advantages_of(examples)[3][0] > 0 > advantages_of(examples)[2][0]
    objective, examples = scripted(tmp_path, model, answers, reward=Distance(), oracle=oracle, credit="sentence")
    middle = len(objective.encoder.pieces("Ada was born. <c> 9 </c>"))
    assert advantages_of(examples)[0][0] > 0 and advantages_of(examples)[0][middle] == pytest.approx(0.0)
    # The logged mean leaves them out, and a batch in which nothing could be judged is no error.
    out = objective.loss(Batch.of(examples, torch.device("cpu")))
    term = out.metrics["reward"]
    assert float((term.values * term.mask).sum() / term.mask.sum()) == pytest.approx((-1 - 20 - 6) / 3)
    _, examples = scripted(tmp_path, model, ["Who. <c> 1 </c>"] * 2, reward=Distance(), oracle=oracle)
    assert not any(x for row in advantages_of(examples) for x in row)
    assert examples[0].metrics["zero_variance"] == 1.0


def test_equal_rewards_and_an_answer_without_labels_have_exactly_no_advantage(model: str, tmp_path: Path) -> None:
    class Tenth:
        def __call__(self, score: int | None, rating: int) -> float:
            return 0.1

    answers = ["Ada. <c> 9 </c>", "Ada. <c> 8 </c>", "Ada. <c> 7 </c>", "Who. <c> 7 </c>"]
    _, examples = scripted(tmp_path, model, answers, reward=Tenth(), oracle=Fixed(Ada=1.0, Who=None))
    assert not any(x for row in advantages_of(examples) for x in row)


# Bad input


def test_groups_of_one_and_unknown_options_are_refused(model: str, tmp_path: Path) -> None:
    for options, words in (
        ({"group_size": 1}, "group_size is 1"),
        ({"inner_epochs": 0}, "inner_epochs is 0"),
        ({"temperature": 0.0}, r"temperature is 0\.0"),
        ({"credit": "token"}, "credit is 'token', expected one of answer, sentence, tag"),
        ({"loss_temperature": 0.0}, r"loss_temperature is 0\.0"),
        ({"scale_rewards": "none"}, "scale_rewards is 'none', expected one of group, batch"),
        ({"normalisation": "mean"}, "normalisation is 'mean', expected one of sequence, token, constant"),
    ):
        with pytest.raises(LovecError, match=words):
            grpo(model, **options)
    with pytest.raises(LovecError, match="GRPO needs an oracle to judge new answers"):
        trainer(tmp_path).fit(grpo(model, oracle=None), Rows())


def test_questions_without_room_for_an_answer_are_left_out_and_named(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objective = loaded(tmp_path, grpo(model, policy=PolicyConfig(model=model, lora_r=4, max_length=190)))
    rows = records(3)
    long = replace(rows[1], question="q" * 200)
    examples = objective.rollouts([rows[0], long, rows[2]])
    assert "1 questions so far are left out, since policy.max_length leaves no room for an answer: r1" in caplog.text
    assert [example.record.id for example in examples] == ["r0"] * 3 + ["r2"] * 3
    assert all(len(example.sequences[0]) <= 190 for example in examples)
    with pytest.raises(LovecError, match="no question of this batch fits the context of 190 tokens"):
        objective.rollouts([long])


def test_a_users_objective_overrides_two_methods(model: str, tmp_path: Path) -> None:
    class Reinforce(RolloutModule):
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.mean(1, keepdim=True)

        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor, mask: Tensor) -> Tensor:
            assert ref is None
            return -advantages * token_logps

    run = fit(tmp_path, grpo(model, cls=Reinforce), max_steps=2)
    assert run.gradients[0].any()
    assert "train/kl" not in run.logged[0] and "train/reward" in run.logged[0]
    with pytest.raises(TypeError, match="RolloutModule has no advantages"):
        trainer(tmp_path).fit(grpo(model, cls=RolloutModule), Rows())
