"""Attention over a trie: rectangles cover every visible pair once, and the result is that of one dense mask."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lovec.tries import Trie, TriePlan, missing_kernels
from lovec.tries.attention import _compiled_flex_attention, attend, rectangles
from lovec.tries.trie import TrieTokens

HEADS, GROUPS, WIDTH, SCALE = 4, 2, 16, 0.3


def trie(seed: int, longest: int) -> TrieTokens:
    """A random trie of up to 8 sequences, some of which part from an earlier one anywhere."""
    rng = random.Random(seed)
    made, lengths = Trie(), []
    for _ in range(rng.randint(1, 8)):
        ids = [rng.randint(0, 1) for _ in range(rng.randint(1, 4))] + rng.choices(range(50), k=rng.randint(0, longest))
        after = None
        if lengths and rng.random() < 0.6:
            number = rng.randrange(len(lengths))
            after = (number, rng.randint(0, lengths[number]))
        made.add(ids, after)
        lengths.append(len(ids) + (after[1] if after else 0))
    return made.tokens()


def branching(places: int, choices: int) -> TrieTokens:
    """A sequence of 10 tokens a place, with choices of two tokens at every place."""
    made = Trie()
    made.add(range(10 * places))
    for place in range(1, places):
        for choice in range(choices):
            made.add([1000 + choice, 2000], (0, 10 * place))
    return made.tokens()


TRIES = [*(trie(seed, longest) for longest in (5, 40, 150) for seed in range(12)), branching(30, 5), branching(3, 40)]


def visible(tokens: TrieTokens) -> torch.Tensor:
    index, ends = torch.arange(len(tokens)), torch.from_numpy(tokens.ends)
    return (index <= index[:, None]) & (index[:, None] < ends)


@pytest.mark.parametrize("tokens", TRIES, ids=len)
def test_rectangles_cover_every_visible_pair_once(tokens):
    plan = TriePlan(tokens, torch.device("cpu"))
    covered = torch.zeros(len(tokens), len(tokens), dtype=torch.long)
    for part, mask in plan.parts:
        (first_query, last_query), (first_key, last_key) = part.queries, part.keys
        pairs = (
            torch.ones(last_query - first_query, last_key - first_key, dtype=torch.bool) if mask is None else mask == 0
        )
        covered[first_query:last_query, first_key:last_key] += pairs.tril() if part.kind == "causal" else pairs
    assert torch.equal(covered, visible(tokens).long())


def test_rectangles_are_few_and_waste_little():
    """30 places of 5 choices take a call for each bush, not for each choice; a sequence alone takes one."""
    tokens = branching(30, 5)
    parts = rectangles(tokens)
    assert len(tokens.runs) == 1 + 29 * 5 and len(parts) <= 12
    area = sum((p.queries[1] - p.queries[0]) * (p.keys[1] - p.keys[0]) for p in parts if p.kind != "causal")
    assert area < 2 * int(visible(tokens)[300:].sum())
    alone = Trie()
    alone.add(range(500))
    assert [part.kind for part in rectangles(alone.tokens())] == ["causal"]


@pytest.mark.parametrize("tokens", TRIES, ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradients_equal_those_of_a_dense_mask(tokens, dtype):
    torch.manual_seed(len(tokens))
    length = len(tokens)
    inputs = [torch.randn(1, length, heads, WIDTH).transpose(1, 2).to(dtype) for heads in (HEADS, GROUPS, GROUPS)]
    weights = torch.randn(1, length, HEADS, WIDTH, dtype=torch.float64)
    exact = [x.double().requires_grad_() for x in inputs]
    keys, values = (x.repeat_interleave(HEADS // GROUPS, 1) for x in exact[1:])
    truth = scaled_dot_product_attention(exact[0], keys, values, attn_mask=visible(tokens), scale=SCALE).transpose(1, 2)
    (truth * weights).sum().backward()

    ours = [x.clone().requires_grad_() for x in inputs]
    out = attend(*ours, SCALE, TriePlan(tokens, torch.device("cpu")))
    assert out.dtype == dtype
    (out.double() * weights).sum().backward()
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    for mine, true in [(out, truth), *((x.grad, y.grad) for x, y in zip(ours, exact, strict=True))]:
        assert (mine.double() - true).norm() <= bound * true.norm()


def test_autocast_does_not_round_what_is_computed_in_float32():
    tokens = branching(3, 40)
    plan = TriePlan(tokens, torch.device("cpu"))
    assert any(mask is not None for _, mask in plan.parts)
    inputs = [torch.randn(1, heads, len(tokens), WIDTH).bfloat16() for heads in (HEADS, GROUPS, GROUPS)]
    found = []
    for enabled in (False, True):
        ours = [x.clone().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = attend(*ours, SCALE, plan)
            out.backward(torch.ones_like(out))
        found.append([out, *(x.grad for x in ours)])
    for without, within in zip(*found, strict=True):
        torch.testing.assert_close(within, without, atol=1e-6, rtol=1e-6)


def test_flex_attention_sees_the_same_pairs():
    """What CUDA devices compute; here without a compiler, and so without a gradient."""
    from torch.nn.attention.flex_attention import flex_attention

    tokens = branching(8, 3)
    plan = TriePlan(tokens, torch.device("cpu"))
    query, key, value = torch.randn(3, 1, HEADS, len(tokens), WIDTH)
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        out = flex_attention(query, key, value, block_mask=plan.block_mask, scale=SCALE)
    torch.testing.assert_close(out.transpose(1, 2), attend(query, key, value, SCALE, plan), atol=1e-5, rtol=1e-5)


def test_flex_attention_is_compiled_for_many_variants_or_fails(monkeypatch):
    """Uncompiled it would keep the scores of all pairs; torch compiles eight variants, and then warns and does that."""
    options = {}
    monkeypatch.setattr(torch, "compile", lambda function, **given: options.update(given) or function)
    with torch._dynamo.config.patch(recompile_limit=8), torch._functorch.config.patch(donated_buffer=True):
        _compiled_flex_attention.__wrapped__()
        assert options == {"dynamic": True, "fullgraph": True} and torch._dynamo.config.recompile_limit == 64


def test_flex_attention_uses_no_kernel_for_short_rows(monkeypatch):
    """torch has one for less than 128 queries of each head, and it takes 128 of all the heads that share keys."""
    from torch._subclasses import FakeTensorMode
    from torch.nn.attention.flex_attention import FlexKernelOptions

    given = {}

    def compiled(query, key, value, **options):
        given.update(options)
        return torch.empty(query.shape)

    monkeypatch.setattr("lovec.tries.attention._compiled_flex_attention", lambda: compiled)
    tokens = branching(8, 3)
    assert 128 // (HEADS // GROUPS) < len(tokens) < 128
    with FakeTensorMode():
        query, key = (torch.empty(1, heads, len(tokens), WIDTH, device="cuda") for heads in (HEADS, GROUPS))
    attend(query, key, key, SCALE, TriePlan(tokens, torch.device("cpu")))
    assert given["enable_gqa"] and given["kernel_options"] == {"FORCE_USE_FLEX_ATTENTION": True}
    assert given["kernel_options"].keys() <= FlexKernelOptions.__annotations__.keys()


def test_compiled_flex_attention_computes_gradients_again():
    """As the error for a loss that is NaN does, term by term; here compiled without kernels, for the CPU has none.

    In a process of its own: where torch has compiled much, as for other tests, it may run a function as it is.
    """
    code = """
import functools, torch, torch.nn.attention.flex_attention as flex
torch.compile = functools.partial(torch.compile, backend="aot_eager")
flex._validate_device = lambda *tensors: None
from lovec.tries import Trie, TriePlan
from lovec.tries.attention import _compiled_flex_attention
trie = Trie()
trie.add(range(20))
trie.add([1000, 2000], (0, 10))
plan = TriePlan(trie.tokens(), torch.device("cpu"))
inputs = torch.randn(3, 1, 2, len(trie.tokens()), 16).requires_grad_()
out = _compiled_flex_attention()(*inputs, block_mask=plan.block_mask, scale=0.3)
first, again = (torch.autograd.grad(out.sum(), inputs, retain_graph=True)[0] for _ in range(2))
torch.testing.assert_close(again, first)
assert first.abs().sum() > 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("device", "triton", "compiler", "headers", "reason"),
    [
        ("cpu", False, False, False, None),
        ("mps", True, True, True, "no attention over shared tokens for mps"),
        ("cuda", False, True, True, "triton is not installed"),
        ("cuda", True, False, True, "a C compiler"),
        ("cuda", True, True, False, r"the headers of Python \(python3-dev\), and finds no .*Python.h"),
        ("cuda", True, True, True, None),
    ],
)
def test_what_a_device_needs_for_it(device, triton, compiler, headers, reason, monkeypatch, tmp_path):
    monkeypatch.setattr("lovec.tries.models.find_spec", lambda name: "there" if triton else None)
    monkeypatch.setattr("lovec.tries.models.which", lambda name: f"/bin/{name}" if compiler else None)
    monkeypatch.setattr("sysconfig.get_default_scheme", lambda: "posix_local")  # as of Debian's own Python
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(tmp_path / scheme / name))
    if headers:
        (tmp_path / "posix_prefix" / "include").mkdir(parents=True)
        (tmp_path / "posix_prefix" / "include" / "Python.h").touch()
    found = missing_kernels(torch.device(device))
    assert found is None if reason is None else re.search(reason, found)
