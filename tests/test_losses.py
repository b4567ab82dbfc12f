import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.losses import dpo_loss, sequence_logps, sft_nll


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


def tiny_model(seed, dtype):
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
        initializer_range=0.5,  # far enough from uniform for the two models to differ
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


def assert_same(ours, theirs, our_grads, their_grads):
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert our_grads.keys() == their_grads.keys() and our_grads
    for name, grad in our_grads.items():
        difference = (grad - their_grads[name]).norm() / their_grads[name].norm()
        assert difference < 1e-6, f"{name}: {difference}"


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
    assert (
        abs(ours.item() - math.log(2)) > 0.01
    )  # the two models are far enough apart for the comparison to say something
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
