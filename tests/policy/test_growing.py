"""Sequences that grow part by part give what one forward pass over all of them gives, in as many tokens."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tinypolicies import CHOICES, counted, gradient, ids, policies
from torch import Tensor

from lovec.encoding.choices import ChoiceTree
from lovec.policy import Policy, TokenBatch, TokenSequence
from lovec.policy.growing import GrowingSequences
from lovec.tries import attention, growing
from lovec.types import LovecError

INSTRUCTION = ids(20, 0)
PROMPTS = [INSTRUCTION + ids(6, 2), INSTRUCTION + ids(9, 3), INSTRUCTION + ids(6, 2), ids(4, 7)]
PARTS = [
    [ids(5, 10), ids(3, 11), ids(5, 10), ids(8, 12)],  # the first and the third sequence begin alike
    [ids(7, 13), ids(1, 14), ids(4, 15), ids(6, 16)],
    [ids(2, 17), (), ids(9, 18), ids(3, 19)],
    [(), (), ids(5, 20), ids(3, 21)],
]
ASKED = [[True] * 4, [True, False, True, True], [False, False, True, True], [False] * 4]


def batch() -> tuple[TokenBatch, list[list[int]]]:
    """The whole sequences, whose last token is only predicted, and the places of choices in their completions."""
    sequences, starts = [], []
    for row, prompt in enumerate(PROMPTS):
        completion: tuple[int, ...] = ()
        places = []
        for parts, asked in zip(PARTS, ASKED, strict=True):
            completion += parts[row]
            places += [len(completion)] * asked[row]
        sequences.append(TokenSequence(prompt, (*completion, 99)))
        starts.append(places)
    return TokenBatch.of(sequences), starts


def grown(policy: Policy) -> tuple[GrowingSequences, list[list[list[float]]]]:
    slots = max(map(len, batch()[0].sequences)) + 4 * len(ChoiceTree(CHOICES).ids)
    made = GrowingSequences(policy, PROMPTS, CHOICES, slots)
    return made, [made.extend(parts, asked) for parts, asked in zip(PARTS, ASKED, strict=True)]


def compare(policy: Policy, reference: Policy, bound: float = 1e-5) -> None:
    sequences, starts = batch()
    made, asked = grown(policy)
    results: list[list[Tensor]] = []
    for one, values in ((policy, made.choice_logps(sequences, starts)), (reference, None)):
        logps, choices = values or one.choice_logps(sequences, starts, CHOICES)
        results.append([logps.detach(), choices.detach(), gradient(one, logps, choices)])
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).norm() <= bound * theirs.norm()
    where = iter(results[0][1].tolist())
    by_row = [[next(where) for _ in places] for places in starts]
    for row, places in enumerate(by_row):
        told = [part[sum(flags[:row])] for part, flags in zip(asked, ASKED, strict=True) if flags[row]]
        assert torch.allclose(torch.tensor(told), torch.tensor(places), atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "phi3"])
def test_parts_equal_the_whole(arch: str, checkpointing: bool, tmp_path: Path) -> None:
    one, padded = policies(tmp_path, arch, gradient_checkpointing=checkpointing)
    compare(one, padded)


def test_sequences_computed_together_equal_those_computed_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """As on a GPU, where new tokens are padded, and there is no kernel that takes a mask."""
    monkeypatch.setattr(growing, "pads", lambda device: True)
    monkeypatch.setattr(attention, "_has_kernel", lambda x: False)
    compare(*policies(tmp_path, "llama"))


def test_a_second_backward_pass_gives_the_same(tmp_path: Path) -> None:
    policy = policies(tmp_path, "llama")[0]
    made, _ = grown(policy)
    loss = sum(x.sum() for x in made.choice_logps(*batch()))
    first, second = (
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, policy.trainable(), retain_graph=True)])
        for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_keys_and_values_are_freed_with_the_loss(checkpointing: bool, backward: bool, tmp_path: Path) -> None:
    """By counting references alone: a cycle through the graph of autograd would never be collected."""
    policy = policies(tmp_path, "llama", gradient_checkpointing=checkpointing)[0]
    made, _ = grown(policy)
    kept = [weakref.ref(x) for layer in made._keys._layers.values() for x in layer.stored]
    loss = sum(x.sum() for x in made.choice_logps(*batch()))
    if backward:
        loss.backward()
    assert kept and all(ref() is not None for ref in kept)
    gc.collect()
    gc.disable()
    try:
        del made, loss
        assert all(ref() is None for ref in kept)
    finally:
        gc.enable()


def test_tokens_are_computed_once(tmp_path: Path) -> None:
    policy = policies(tmp_path, "llama")[0]
    seen = counted(policy)
    made, _ = grown(policy)
    made.choice_logps(*batch())
    sequences, starts = batch()
    first = {tuple(p + new)[:n] for p, new in zip(PROMPTS, PARTS[0], strict=True) for n in range(1, len(p + new) + 1)}
    nodes = len(ChoiceTree(CHOICES).ids)
    later = [sum(map(len, parts)) + nodes * sum(asked) for parts, asked in zip(PARTS[1:], ASKED[1:], strict=True)]
    assert seen == [len(first) + 3 * nodes, *later]  # the first and the third sequence share theirs in the first part
    assert sum(map(len, starts)) == sum(map(sum, ASKED)) and len(sequences.sequences) == 4


def test_without_gradients_and_in_bfloat16(tmp_path: Path) -> None:
    exact = policies(tmp_path, "llama")[1].choice_logps(*batch(), CHOICES)
    policy, padded = policies(tmp_path, "llama", dtype="bfloat16")
    with torch.no_grad():
        parts, whole = grown(policy)[0].choice_logps(*batch()), padded.choice_logps(*batch(), CHOICES)
    for true, mine, theirs in zip(exact, parts, whole, strict=True):
        assert not mine.requires_grad
        assert float((mine - true).norm()) <= 1.2 * float((theirs - true).norm())


def test_autocast_to_the_precision_of_the_whole(tmp_path: Path) -> None:
    policy, padded = policies(tmp_path, "llama")
    exact = gradient(padded, *padded.choice_logps(*batch(), CHOICES))
    errors = []
    for one in (policy, padded):
        with torch.autocast("cpu", torch.bfloat16):
            values = grown(one)[0].choice_logps(*batch()) if one is policy else one.choice_logps(*batch(), CHOICES)
        errors.append(float((gradient(one, *values) - exact).norm()))
    assert errors[0] <= 1.2 * errors[1]


def test_other_sequences_than_those_computed_are_refused(tmp_path: Path) -> None:
    made, _ = grown(policies(tmp_path, "llama")[0])
    sequences, starts = batch()
    first = sequences.sequences[0]
    other = TokenSequence(first.prompt, (*first.completion[:2], 98, *first.completion[3:]))
    with pytest.raises(LovecError, match="computed"):
        made.choice_logps(TokenBatch.of([other, *sequences.sequences[1:]]), starts)
