"""The equations of the objectives: by hand, by their papers' gradients, at the edges, and against TRL."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.losses import (
    dpo_loss,
    group_advantages,
    grpo_token_loss,
    importance_weights,
    k3_kl,
    orpo_odds_loss,
    reduce_tokens,
    row_means,
    score_entropy,
    score_variance,
    sequence_logps,
    sft_nll,
)
from lovec.types import LovecError


def test_sequence_logps_by_hand():
    logps = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, math.nan, math.inf], [-3.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    for kind in (mask, mask.bool(), mask.float()):
        assert sequence_logps(logps, kind).tolist() == [-7.0, -0.5, 0.0]
        assert sequence_logps(logps, kind, average=True).tolist() == [-7.0 / 3, -0.5, 0.0]


def test_sequence_logps_is_summed_in_float64():
    logps = torch.full((1, 10_000), -0.1)
    assert sequence_logps(logps, torch.ones(1, 10_000)).dtype == torch.float64
    expected = -10_000 * torch.tensor(0.1).double().item()
    assert sequence_logps(logps, torch.ones(1, 10_000)).item() == pytest.approx(expected, abs=1e-9)


def test_masked_tokens_get_no_gradient():
    logps = torch.tensor([[-1.0, -2.0, math.nan]], requires_grad=True)
    sequence_logps(logps, torch.tensor([[1, 1, 0]]), average=True).sum().backward()
    assert logps.grad.tolist() == [[0.5, 0.5, 0.0]]


def test_sft_nll_by_hand():
    assert sft_nll(torch.tensor([[-1.0, -0.25]])).tolist() == [[1.0, 0.25]]


def test_dpo_by_hand():
    # margin = (-10 + 12) - (-11 + 10) = 3
    (loss,) = dpo_loss(*(torch.tensor([x]) for x in (-10.0, -11.0, -12.0, -10.0)), beta=0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1.5)), rel=1e-6)


@given(st.lists(st.floats(-1e4, 0), min_size=2, max_size=2), st.floats(0.01, 10))
def test_dpo_of_the_reference_itself_is_ln_2(logps, beta):
    chosen, rejected = torch.tensor(logps, dtype=torch.float64)[:, None]
    assert dpo_loss(chosen, rejected, chosen, rejected, beta).item() == math.log(2)


def test_dpo_gradient_is_that_of_the_paper():
    """Section 4: the gradient by log pi(y_w) is -beta sigmoid(beta (rejected margin - chosen margin))."""
    chosen = torch.tensor([-5.0, -9.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-6.0, -5.0], dtype=torch.float64, requires_grad=True)
    dpo_loss(chosen, rejected, torch.tensor([-6.0, -6.0]), torch.tensor([-6.0, -6.0]), beta=0.3).sum().backward()
    margin = torch.tensor([1.0, -4.0], dtype=torch.float64)
    expected = -0.3 * torch.sigmoid(-0.3 * margin)
    torch.testing.assert_close(chosen.grad, expected)
    torch.testing.assert_close(rejected.grad, -expected)


def test_dpo_stays_finite_far_out():
    loss = dpo_loss(torch.tensor([-1e6, 0.0]), torch.tensor([0.0, -1e6]), torch.zeros(2), torch.zeros(2), beta=0.1)
    assert loss.tolist() == [1e5, 0.0]


def logs(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_orpo_by_hand():
    # odds 3 against odds 1/4: sigmoid(ln 12) = 12/13; odds 1 against odds 1; odds 1/9 against odds 9: 1/82
    loss = orpo_odds_loss(logs(0.75, 0.5, 0.1), logs(0.2, 0.5, 0.9))
    assert loss.tolist() == pytest.approx([math.log(13 / 12), math.log(2), math.log(82)], rel=1e-12)


def test_orpo_gradient_is_that_of_the_paper():
    """Hong et al., eq. 8 to 10: by log P(y_w) it is -delta / (1 - P(y_w)), delta = 1 / (1 + odds_w / odds_l)."""
    chosen, rejected = logs(0.75, 0.1).requires_grad_(), logs(0.2, 0.9).requires_grad_()
    orpo_odds_loss(chosen, rejected).sum().backward()
    assert chosen.grad.tolist() == pytest.approx([-(1 / 13) / 0.25, -(81 / 82) / 0.9], rel=1e-9)
    assert rejected.grad.tolist() == pytest.approx([(1 / 13) / 0.8, (81 / 82) / 0.1], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_orpo_stays_finite_from_certain_to_impossible(dtype):
    edge = torch.tensor([0.0, -1e-12, -1e-9, -1e-3, -1.0, -80.0, -1e4], dtype=dtype)
    pairs = torch.cartesian_prod(edge, edge)
    chosen, rejected = (pairs[:, i].clone().requires_grad_() for i in (0, 1))
    loss = orpo_odds_loss(chosen, rejected)
    loss.sum().backward()
    for values in (loss, chosen.grad, rejected.grad):
        assert torch.isfinite(values).all()
    by_chosen = loss.detach().view(7, 7)
    assert (by_chosen[1:] >= by_chosen[:-1]).all()  # a less likely answer never costs less
    assert not chosen.grad[pairs[:, 0] == 0].any()  # exactly certain: nothing left to raise
    near = (pairs == torch.tensor([-1e-9, -1.0], dtype=dtype)).all(1)
    assert loss[near].item() == pytest.approx(1e-9 / (math.e - 1), rel=1e-5)


def test_advantages_by_hand():
    # means 2 and 5; Bessel's deviations sqrt(((-2)^2 + 0 + 2^2) / 2) = 2 and sqrt((1 + 1 + 4) / 2) = sqrt(3)
    advantages = group_advantages(torch.tensor([[0.0, 2.0, 4.0], [4.0, 4.0, 7.0]], dtype=torch.float64))
    scale = math.sqrt(3) + 1e-4
    expected = [[-2 / 2.0001, 0.0, 2 / 2.0001], [-1 / scale, -1 / scale, 2 / scale]]
    assert advantages.tolist() == [pytest.approx(row, abs=1e-12) for row in expected]


def test_advantages_by_one_standard_deviation_for_all_groups():
    rewards = torch.tensor([[0.0, 2.0, 4.0], [4.0, 4.0, 7.0], [3.0, 3.0, 3.0]], dtype=torch.float64)
    expected = [[-2 / 2.5001, 0.0, 2 / 2.5001], [-1 / 2.5001, -1 / 2.5001, 2 / 2.5001], [0.0] * 3]
    assert group_advantages(rewards, 2.5).tolist() == [pytest.approx(row, abs=1e-12) for row in expected]
    assert not group_advantages(rewards[2:], 0.0).any()
    whole = group_advantages(rewards[:1], float(rewards[0].std()))
    torch.testing.assert_close(whole, group_advantages(rewards[:1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_score_variance_by_hand(dtype):
    probs = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.2, 0.2, 0.2], [0.1, 0.0, 0.3]], dtype=dtype)
    # means 1, 1, 1, 1.5; the last two leave .4 and .6 to malformed tags
    expected = [1.0, 0.0, 0.4, 0.1 * 1.5**2 + 0.3 * 0.5**2]
    assert score_variance(probs.clamp(min=1e-300).log()).tolist() == pytest.approx(expected, abs=1e-6)


def test_score_entropy_by_hand():
    probs = torch.tensor([[0.25, 0.25, 0.5], [0.1, 0.1, 0.2], [1.0, 1e-300, 1e-300]], dtype=torch.float64)
    assert score_entropy(probs.log()).tolist() == pytest.approx([1.5 * math.log(2), 1.5 * math.log(2), 0.0])
    even = torch.full((7,), -9.0, requires_grad=True)
    score_entropy(even).backward()
    assert float(score_entropy(even)) == pytest.approx(math.log(7)) and even.grad.abs().max() < 1e-7


def test_score_variance_is_the_rest_of_the_mean_squared_error():
    """E (c - f)^2 = (E c - f)^2 + Var c, and numpy's variance of draws with these frequencies."""
    numpy = pytest.importorskip("numpy")
    counts = torch.tensor([3.0, 0.0, 5.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    probs, scores = counts / counts.sum(), torch.arange(6, dtype=torch.float64)
    drawn = numpy.repeat(numpy.arange(6), counts.int().numpy())
    variance = score_variance(probs.log())
    assert float(variance) == pytest.approx(drawn.var(), rel=1e-12)
    error = (probs * (scores - 4.0) ** 2).sum()
    assert float(error) == pytest.approx(float(((probs * scores).sum() - 4.0) ** 2 + variance), rel=1e-12)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 9))
def test_equal_rewards_have_exactly_no_advantage(reward, n):
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([[reward] * n, [*range(n)]], dtype=dtype)
        equal, rising = group_advantages(rewards)
        assert not equal.any()
        assert rising.tolist() == sorted(rising.tolist()) and rising.any()


@pytest.mark.parametrize("shape", [(3, 1), (3,), (1, 2, 2)])
def test_a_group_of_one_is_refused(shape):
    with pytest.raises(LovecError, match=r"rewards have the shape .*, expected \[prompts, rollouts\] with 2 or more"):
        group_advantages(torch.zeros(shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(bad):
    rewards = torch.zeros(3, 4)
    rewards[1, 2] = bad
    with pytest.raises(LovecError, match=f"reward of rollout 2 of prompt 1 is {bad}"):
        group_advantages(rewards)


@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-60, 0)), min_size=1, max_size=8))
def test_k3_is_never_negative_and_zero_only_for_equals(pairs):
    for dtype in (torch.float32, torch.float64):
        policy, reference = torch.tensor(pairs, dtype=dtype).unbind(1)
        kl = k3_kl(policy, reference)
        assert (kl >= 0).all()
        assert not k3_kl(policy, policy).any()
        assert (kl > 0)[(policy - reference).abs() > 1e-3].all()


def test_k3_keeps_small_differences():
    """x^2 / 2 in the limit: exp(x) - x - 1, computed literally, would be 0 or noise in float32."""
    kl = k3_kl(torch.zeros(1), torch.tensor([1e-4]))
    assert kl.item() == pytest.approx(0.5e-8, rel=1e-3)


def test_k3_is_the_kl_in_expectation():
    policy, reference = logs(0.7, 0.2, 0.1), logs(0.3, 0.3, 0.4)
    expected = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * k3_kl(policy, reference)).sum().item() == pytest.approx(expected.item(), rel=1e-12)


def grpo(ratios, advantages, ref=None, beta=0.0, low=0.2, high=0.3):
    """Loss [1, T] of tokens with these ratios, and its gradient by their log-probs."""
    logps = logs(*ratios)[None].requires_grad_()
    loss = grpo_token_loss(logps, torch.zeros_like(logps), ref, advantages, low, high, beta)
    loss.sum().backward()
    return loss.tolist()[0], logps.grad.tolist()[0]


def test_grpo_by_hand():
    ratios = (0.5, 0.9, 1.0, 1.25, 2.0)
    loss, grad = grpo(ratios, torch.tensor([2.0]))
    assert loss == pytest.approx([-1.0, -1.8, -2.0, -2.5, -2.6])  # clipped above 1.3
    assert grad == pytest.approx([-1.0, -1.8, -2.0, -2.5, 0.0])  # a good token that is likely enough has none
    loss, grad = grpo(ratios, torch.tensor([-2.0]))
    assert loss == pytest.approx([1.6, 1.8, 2.0, 2.5, 4.0])  # clipped below 0.8
    assert grad == pytest.approx([0.0, 1.8, 2.0, 2.5, 4.0])


def test_grpo_takes_advantages_per_row_or_per_token():
    loss, _ = grpo((1.0, 1.0), torch.tensor([[2.0, -3.0]]))
    assert loss == pytest.approx([-2.0, 3.0])
    zeros = torch.zeros(2, 3)
    rows = grpo_token_loss(zeros, zeros, None, torch.tensor([1.0, -4.0]), 0.2, 0.2, 0.0)
    assert rows.tolist() == [[-1.0] * 3, [4.0] * 3]


def test_importance_weights_by_hand():
    weights = importance_weights(logs(0.5, 0.2, 0.9, 0.1), logs(0.25, 0.8, 0.1, 0.1), 3.0)
    assert weights.tolist() == pytest.approx([2.0, 0.25, 3.0, 1.0])  # 9 is capped at 3
    assert torch.equal(importance_weights(logs(0.3), logs(0.3), 2.0), torch.ones(1, dtype=torch.float64))


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-5, 5)), min_size=2, max_size=6))
def test_weighted_samples_of_another_engine_have_the_gradient_of_own_samples(rows):
    """E_mu[w A grad log pi] = E_pi[A grad log pi], by summing over a whole vocabulary; the cap only shrinks weights."""
    logits, others, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    logps, sampler = logits.requires_grad_().log_softmax(-1), others.log_softmax(-1)
    weights = importance_weights(logps.detach(), sampler, 1e9)
    weighted = grpo_token_loss(logps[None], logps.detach()[None], None, (weights * advantages)[None], 0.2, 0.2, 0.0)
    (gradient,) = torch.autograd.grad((sampler.exp() * weighted).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-(logps.detach().exp() * advantages * logps).sum(), logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    capped = importance_weights(logps.detach(), sampler, 1.5)
    assert bool((capped <= weights).all()) and float(capped.max()) <= 1.5


def test_a_factor_of_the_advantage_weighs_the_whole_policy_term_and_not_the_penalty():
    ratios, advantages, weights = (
        (0.5, 0.9, 1.25, 2.0),
        torch.tensor([[2.0, -3.0, 1.0, -1.0]]),
        torch.tensor([0.5, 2, 1, 0]),
    )
    ref = logs(0.5, 1.0, 2.0, 0.7)[None]
    penalty, _ = grpo(ratios, torch.zeros(1, 4), ref, beta=0.1)
    plain, _ = grpo(ratios, advantages, ref, beta=0.1)
    expected = [p + float(w) * (x - p) for p, w, x in zip(penalty, weights, plain, strict=True)]
    assert grpo(ratios, weights * advantages, ref, beta=0.1)[0] == pytest.approx(expected)


def test_grpo_kl_by_hand():
    ref = logs(0.5, 1.0, 2.0)[None]
    loss, grad = grpo((1.0, 1.0, 1.0), torch.tensor([0.0]), ref, beta=0.1)
    assert loss == pytest.approx([0.1 * (r - 1 - math.log(r)) for r in (0.5, 1.0, 2.0)])
    assert grad == pytest.approx([0.05, 0.0, -0.1])  # towards the reference
    with pytest.raises(LovecError, match=r"beta is 0\.1, so reference log-probabilities are needed"):
        grpo((1.0,), torch.tensor([1.0]), None, beta=0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_ratio_of_identical_policies_is_one_at_any_temperature(temperature):
    """On-policy the loss is minus the advantage and its gradient that of REINFORCE, whatever the temperature."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64)
    ids = torch.randint(11, (2, 5, 1), generator=generator)
    logps = (logits / temperature).log_softmax(-1).gather(-1, ids).squeeze(-1).requires_grad_()
    advantages = torch.tensor([1.5, -0.5], dtype=torch.float64)
    loss = grpo_token_loss(logps, logps.detach(), logps.detach(), advantages, 0.2, 0.2, 0.04)
    assert torch.equal(loss, -advantages[:, None].expand(2, 5))
    loss.sum().backward()
    assert torch.equal(logps.grad, -advantages[:, None].expand(2, 5))


def test_weights_multiply_the_policy_term_and_not_the_kl():
    logps, ref = logs([0.5, 0.2]), logs([0.4, 0.4])
    old = logs([0.25, 0.4])
    advantages, weights = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 3.0]])
    weighted = grpo_token_loss(logps, old, ref, advantages, 0.2, 0.2, 0.1, weights)
    assert torch.allclose(weighted, grpo_token_loss(logps, old, ref, advantages * weights, 0.2, 0.2, 0.1))
    kl = 0.1 * k3_kl(logps, ref)
    plain = grpo_token_loss(logps, old, ref, advantages, 0.2, 0.2, 0.1)
    assert torch.allclose(weighted - kl, weights * (plain - kl))


def test_an_unknown_reduction_is_refused():
    with pytest.raises(LovecError, match="how is 'mean', expected sequence, token or constant"):
        reduce_tokens(torch.ones(1, 2), torch.ones(1, 2), "mean")


def test_reduce_tokens_three_ways():
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, math.nan, 0.0, -math.inf], [math.nan] * 4])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    for kind in (mask, mask.bool(), mask.float()):
        assert row_means(values, kind).tolist() == [2.5, 5.0, 0.0]
        assert row_means(values, kind, 8).tolist() == [1.25, 1.25, 0.0]
        assert reduce_tokens(values, kind, "sequence").item() == 2.5
        assert reduce_tokens(values, kind, "token").item() == pytest.approx(20 / 6)
        assert reduce_tokens(values, kind, "constant").item() == pytest.approx(20 / 12)
        assert reduce_tokens(values, kind, "constant", length=10).item() == pytest.approx(20 / 30)


@pytest.mark.parametrize("how", ["sequence", "token", "constant"])
def test_masked_tokens_of_a_mean_get_no_gradient(how):
    values = torch.tensor([[1.0, math.nan], [2.0, 3.0]], requires_grad=True)
    reduce_tokens(values, torch.tensor([[1, 0], [1, 1]]), how).backward()
    expected = {"sequence": [[1 / 2, 0], [1 / 4, 1 / 4]], "token": [[1 / 3, 0], [1 / 3, 1 / 3]]}
    assert values.grad.tolist() == [pytest.approx(r) for r in expected.get(how, [[1 / 4, 0], [1 / 4, 1 / 4]])]


# ---------------------------------------------------------------- parity with TRL

PROMPTS = [[1, 5, 6, 7], [1, 8]]
CHOSEN = [[9, 10, 11, 2], [12, 13, 2]]
REJECTED = [[14, 10, 2], [12, 15, 16, 17, 18, 2]]
PAD = 0
DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def trl(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return pytest.importorskip("trl", reason="the extra parity is not installed")


def tiny_model(seed, dtype, spread=0.5):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=spread,  # far enough from uniform for the two models to differ
    )
    return LlamaForCausalLM(config).to(dtype)


def tiny_tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": PAD, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 32)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def batch_of(prompts, completions):
    """Right-padded ids, and masks of what is there and of the completions."""
    rows = [p + c for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    completion = attention.clone()
    for i, prompt in enumerate(prompts):
        completion[i, : len(prompt)] = 0
    return ids, attention, completion


def token_logps_of(model, ids, attention):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def gradients(model):
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return grads


GRADIENT_BOUND = {torch.float64: 1e-6, torch.float32: 2e-6}
"""Relative difference of two gradients. TRL's own logarithms are float32 in both; in float32 the order of summation
adds to it, and by how much depends on the processor (DPO: 1.02e-6 on an Intel Xeon, below 1e-6 on an AMD EPYC)."""


def assert_same(ours, theirs, our_grads, their_grads):
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert our_grads.keys() == their_grads.keys() and our_grads
    for name, grad in our_grads.items():
        difference = (grad - their_grads[name]).norm() / their_grads[name].norm()
        assert difference < GRADIENT_BOUND[grad.dtype], f"{name}: {difference}"


def trainer_options(tmp_path):
    return {
        "output_dir": str(tmp_path),
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


@pytest.mark.parity
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dpo_equals_trl(trl, tmp_path, dtype):
    from datasets import Dataset

    policy, reference = tiny_model(0, dtype), tiny_model(1, dtype)
    rows = {"prompt": ["w5"], "chosen": ["w9"], "rejected": ["w10"]}
    trainer = trl.DPOTrainer(
        model=policy,
        ref_model=reference,
        args=trl.DPOConfig(beta=0.1, **trainer_options(tmp_path)),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tiny_tokenizer(),
    )
    ids, attention, completion = batch_of(PROMPTS * 2, CHOSEN + REJECTED)
    inputs = {"input_ids": ids, "attention_mask": attention, "completion_mask": completion}
    policy.train()
    theirs = trainer._compute_loss(policy, inputs, return_outputs=False)
    theirs.backward()
    their_grads = gradients(policy)

    def logps(model):
        return sequence_logps(token_logps_of(model, ids, attention), completion[:, 1:]).chunk(2)

    with torch.no_grad():
        ref_chosen, ref_rejected = logps(reference)
    losses = dpo_loss(*logps(policy), ref_chosen, ref_rejected, beta=0.1)
    ours = losses.mean()
    ours.backward()
    assert abs(ours.item() - math.log(2)) > 0.01  # the two models differ enough for the comparison to mean something
    assert_same(ours, theirs, gradients(policy), their_grads)


@pytest.mark.parity
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sft_equals_trl(trl, tmp_path, dtype):
    from datasets import Dataset

    policy = tiny_model(0, dtype)
    trainer = trl.SFTTrainer(
        model=policy,
        args=trl.SFTConfig(completion_only_loss=True, **trainer_options(tmp_path)),
        train_dataset=Dataset.from_dict({"prompt": ["w5"], "completion": ["w9"]}),
        processing_class=tiny_tokenizer(),
    )
    examples = [{"input_ids": p + c, "labels": [-100] * len(p) + c} for p, c in zip(PROMPTS, CHOSEN, strict=True)]
    policy.train()
    theirs = trainer.compute_loss(policy, trainer.data_collator(examples))
    theirs.backward()
    their_grads = gradients(policy)

    ids, attention, completion = batch_of(PROMPTS, CHOSEN)
    mask = completion[:, 1:].bool()
    ours = sft_nll(token_logps_of(policy, ids, attention))[mask].double().mean()
    ours.backward()
    assert_same(ours, theirs, gradients(policy), their_grads)


@pytest.mark.parity
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_orpo_odds_term_equals_trl(trl, dtype):
    from types import SimpleNamespace

    from trl.experimental.orpo import ORPOTrainer

    generator = torch.Generator().manual_seed(0)
    drawn = [-torch.rand(64, generator=generator, dtype=dtype).mul(6.0).exp().mul(0.01) for _ in range(2)]
    ours_in, theirs_in = ([x.clone().requires_grad_() for x in drawn] for _ in range(2))
    trainer = SimpleNamespace(beta=0.3, accelerator=SimpleNamespace(device="cpu"))
    theirs = -ORPOTrainer.odds_ratio_loss(trainer, *theirs_in)[0]  # TRL adds beta log sigmoid with a minus
    ours = 0.3 * orpo_odds_loss(*ours_in)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, check_dtype=False)
    ours.sum().backward()
    theirs.sum().backward()
    for a, b in zip(ours_in, theirs_in, strict=True):
        assert (a.grad - b.grad).norm() / b.grad.norm() < 1e-6


GROUPS = {  # TRL's name of the loss: ours
    "grpo": "sequence",
    "dapo": "token",
    "dr_grpo": "constant",
}


@pytest.mark.parity
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", GROUPS)
def test_grpo_equals_trl(trl, tmp_path, loss_type, beta):
    """Off-policy, with tokens beyond both clips, at a temperature other than 1; the config's defaults are TRL's own."""
    from datasets import Dataset

    # TRL takes log-probs in float32, whatever the model's precision: a wide spread would bring its rounding above 1e-6.
    policy = tiny_model(0, torch.float32, spread=0.2)
    trainer = trl.GRPOTrainer(
        model=policy,
        reward_funcs=lambda **_: [0.0],
        args=trl.GRPOConfig(
            loss_type=loss_type,
            beta=0.0,  # no second model: the reference comes with the inputs
            epsilon=0.2,
            epsilon_high=0.28,
            use_bias_correction_kl=False,  # by default TRL multiplies its KL by the ratio; the paper does not
            temperature=0.7,
            max_completion_length=9,
            per_device_train_batch_size=4,
            num_generations=2,
            **trainer_options(tmp_path),
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w5"]}),
        processing_class=tiny_tokenizer(),
    )
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = 1
    prompts, completions = PROMPTS * 2, CHOSEN + REJECTED
    inputs = {
        "prompt_ids": torch.tensor([[PAD] * (4 - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (4 - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([c + [PAD] * (6 - len(c)) for c in completions]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (6 - len(c)) for c in completions]),
    }
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = inputs["completion_mask"]

    def logps():
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logits = policy(input_ids=ids, attention_mask=attention).logits[:, 3:-1] / 0.7
        return logits.log_softmax(-1).gather(-1, ids[:, 4:, None]).squeeze(-1)

    with torch.no_grad():
        now, noise = logps(), torch.Generator().manual_seed(0)
        old, ref = (now + 0.5 * torch.randn(now.shape, generator=noise) for _ in range(2))
    advantages = torch.tensor([1.0, 0.7, 1.3, -0.2])  # do not cancel: float32 could not tell a small mean to 1e-6
    inputs |= {"advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref}
    inputs["num_items_in_batch"] = mask.sum()
    ratio, good = (now - old).exp(), advantages[:, None] > 0
    clipped = torch.where(good, ratio > 1.28, ratio < 0.8) & mask.bool()
    assert clipped[:3].any() and clipped[3].any() and not clipped[mask.bool()].all()

    policy.train()
    theirs = trainer._compute_loss(policy, inputs)
    theirs.backward()
    their_grads = gradients(policy)
    token_logps = logps()
    values = grpo_token_loss(token_logps, old, ref if beta else None, advantages, 0.2, 0.28, beta)
    ours = reduce_tokens(values, mask, GROUPS[loss_type], length=9)
    ours.backward()
    assert_same(ours, theirs, gradients(policy), their_grads)
    if beta:
        kl = (k3_kl(token_logps, ref) * mask).sum() / mask.sum()
        assert kl.item() == pytest.approx(trainer._metrics["train"]["kl"][-1], rel=1e-6)
