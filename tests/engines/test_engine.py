"""Engines: they sample and score exactly as a plain forward pass does, whatever the batch, cache or padding.

Every test of the protocol runs on all of ``ENGINES``, on vLLM where it is installed (``make test-vllm``). Tests of the
transformers engine's own workings follow at the end.
"""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from plainscores import CHOICES, TinyPolicy, assert_scores, close, naive_logits, naive_nucleus, naive_score, texts
from transformers import AutoModelForCausalLM, MistralConfig
from vllmtiny import VLLM, Vllms

from lovec.core.progress import status
from lovec.encoding.choices import AttentionKind, ChoiceTree
from lovec.engines import TransformersEngine
from lovec.engines.kv import CachedRows
from lovec.engines.transformers import _draw
from lovec.models.tiny import build_tiny
from lovec.policy import checkpoint_activations
from lovec.tries import use_trie_attention
from lovec.types import Completion, Engine, LovecError, Sampling, TokenScores, token_scorer

ENGINES: dict[str, Callable[[], Engine]] = {"transformers": lambda: TransformersEngine(max_rows=5), "vllm": Vllms}
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1},
    "gemma2": {"sliding_window": 16, "attn_logit_softcapping": 5.0},
    "qwen2": {},
    "qwen3": {},
}
CONTEXT = 160
STOPS = (7, 8, 9, 10, 11)


def policy_of(path: Path) -> TinyPolicy:
    implementation = "eager" if "gemma" in path.name else "sdpa"
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation=implementation)
    if implementation == "sdpa":
        use_trie_attention(base)  # as a policy does
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    policy = TinyPolicy(get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets)))
    policy.plant(0)
    return policy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {a: build_tiny(a, root / a, max_position_embeddings=CONTEXT, **sizes) for a, sizes in SIZES.items()}


@pytest.fixture(params=list(SIZES))
def policy(request: pytest.FixtureRequest, folders: dict[str, Path]) -> TinyPolicy:
    return policy_of(folders[request.param])


@pytest.fixture
def llama(folders: dict[str, Path]) -> TinyPolicy:
    return policy_of(folders["llama"])


@pytest.fixture(params=[pytest.param(name, marks=VLLM if name == "vllm" else ()) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


def assert_same(engine: Engine, one: list[list[Completion]], other: list[list[Completion]]) -> None:
    """Assert equal completions, up to rounding where cached states and batches affect an engine's rounding."""
    assert [[(c.ids, c.finished) for c in row] for row in one] == [[(c.ids, c.finished) for c in row] for row in other]
    for a, b in zip((c for row in one for c in row), (c for row in other for c in row), strict=True):
        assert a.logps == (b.logps if engine.shares_model else pytest.approx(b.logps, abs=close(engine)))


def test_scores_equal_one_forward_pass_per_choice(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    contexts = texts(5, 40)
    for seed in range(3):  # grown contexts: the cache is used, with holes where rows grew unequally
        assert_scores(engine, policy.model, contexts, CHOICES)
        contexts = [c + more for c, more in zip(contexts, texts(5, 9, seed), strict=True)]
    contexts = [[*contexts[3][:-4], 5, 6], contexts[0], contexts[0], contexts[1][:2], [*contexts[1], 3]]
    assert_scores(engine, policy.model, contexts, CHOICES)  # cut, equal, repeated, reordered, shrunk
    assert_scores(engine, policy.model, texts(13, 30, 9), CHOICES)  # more rows than run together


def test_scores_of_contexts_with_a_common_beginning(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    a, b = texts(2, 70, seed=1, shortest=60)
    contexts = [a[:-1], a, *(a + more for more in texts(2, 8)), *(a + b[:36] + more for more in texts(4, 8, 1)), b]
    assert_scores(engine, policy.model, contexts, CHOICES)


def test_scores_come_in_the_order_of_the_contexts(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    contexts = texts(12, 20)
    forward = engine.score(contexts, CHOICES)
    assert engine.score(contexts[::-1], CHOICES)[::-1] == [pytest.approx(row, abs=close(engine)) for row in forward]
    assert engine.score([], CHOICES) == []


def assert_token_logps(
    engine: Engine, model: Any, contexts: list[list[int]], starts: list[int], choices: Any = CHOICES, top: int = 0
) -> None:
    found = token_scorer(engine).token_logps(contexts, starts, choices, top)
    for context, start, scores in zip(contexts, starts, found, strict=True):
        logps = naive_logits(model, context).float().log_softmax(-1)
        own = [float(logps[at - 1, context[at]]) for at in range(start, len(context))]
        assert scores.logps == pytest.approx(own, abs=close(engine))
        expected = [naive_score(model, context, choice) for choice in choices]
        assert scores.choices == pytest.approx(expected, abs=close(engine))
        assert len(scores.top) == (len(own) if top else 0)
        for at, most in enumerate(scores.top, start):
            assert list(most.values()) == pytest.approx(logps[at - 1].topk(top).values.tolist(), abs=close(engine))
            assert [float(logps[at - 1, token]) for token in most] == pytest.approx([*most.values()], abs=close(engine))


def test_token_log_probs_equal_one_plain_forward_pass(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    contexts = texts(6, 40, shortest=2)
    for seed in range(3):  # grown contexts: only what is new is asked for, and the cache is used
        lengths = [len(context) for context in contexts]
        contexts = [c + more for c, more in zip(contexts, texts(6, 9, seed), strict=True)]
        assert_token_logps(engine, policy.model, contexts, lengths, top=3 if seed == 1 else 0)
        assert_token_logps(engine, policy.model, contexts, [1] * 6, choices=())  # all of it, though it is cached
        assert_scores(engine, policy.model, contexts, CHOICES)
    shared = texts(1, 70, seed=1, shortest=60)[0]
    contexts = [shared + more for more in texts(4, 8)] + [shared[:50], shared, shared]
    assert_token_logps(engine, policy.model, contexts, [61, 30, 1, 61, 50, 7, 44], top=2)
    found = token_scorer(engine).token_logps([[5, 6, 7], [5, 6]], [3, 2])
    assert found == [TokenScores(())] * 2
    assert token_scorer(engine).token_logps([], []) == []


def test_wrong_places_of_token_log_probs_are_refused(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    scorer = token_scorer(engine)
    for starts, message in (([0], "start 0 is 0, expected 1 to 3"), ([4], "start 0 is 4"), ([], "got 0 starts for 1")):
        with pytest.raises(LovecError, match=message):
            scorer.token_logps([[1, 2, 3]], starts)
    for top in (-1, 21, 1.5):
        with pytest.raises(LovecError, match=r"top is .* expected"):
            scorer.token_logps([[1, 2, 3]], [1], top=top)  # type: ignore[arg-type]


def test_greedy_sampling_equals_a_plain_loop(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    prompts = texts(12, 40, seed=2)
    for prompt, [completion] in zip(prompts, engine.generate(prompts, Sampling(24), STOPS), strict=True):
        ids, logps = list(prompt), []
        while len(ids) < len(prompt) + 24 and (len(ids) == len(prompt) or ids[-1] not in STOPS):
            step = naive_logits(policy.model, ids)[-1].log_softmax(-1)
            ids.append(int(step.argmax()))
            logps.append(float(step.max()))
        assert list(completion.ids) == ids[len(prompt) :]
        assert completion.logps == pytest.approx(logps, abs=close(engine))
        assert completion.finished == (ids[-1] in STOPS)


def test_samples_do_not_depend_on_the_batch(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    prompts, sampling = texts(7, 50, seed=3), Sampling(20, temperature=0.9, n=3, seed=5)
    keys = [f"q{i}" for i in range(7)]
    together = engine.generate(prompts, sampling, STOPS, keys)
    assert {c.finished for row in together for c in row} == {True, False}
    for prompt, key, completions in zip(prompts, keys, together, strict=True):
        assert [c.ids for c in engine.generate([prompt], sampling, STOPS, [key])[0]] == [c.ids for c in completions]
    backwards = engine.generate(prompts[::-1], sampling, STOPS, keys[::-1])[::-1]
    assert [[c.ids for c in row] for row in backwards] == [[c.ids for c in row] for row in together]


def test_random_streams_depend_on_seed_key_and_index(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    prompt = texts(1, 20)[0]

    def sample(key: str, n: int = 1, seed: int = 0) -> list[tuple[int, ...]]:
        return [c.ids for c in engine.generate([prompt], Sampling(12, 1.5, n, seed), (), [key])[0]]

    first = sample("a", n=4)
    assert sample("a", n=2) == first[:2]
    assert len({*first, *sample("b"), *sample("a", seed=1)}) == 6
    default = engine.generate([prompt, prompt], Sampling(12, 1.5), ())
    assert [row[0].ids for row in default] == [sample("0")[0], sample("1")[0]]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.5, 1.0), (1.7, 1.0), (1.0, 0.6), (0.7, 0.3)])
def test_logps_are_of_the_distribution_drawn_from(
    policy: TinyPolicy, engine: Engine, temperature: float, top_p: float
) -> None:
    engine.sync(policy)
    prompts, sampling = texts(4, 30, seed=4), Sampling(15, temperature, top_p=top_p)
    for prompt, [completion] in zip(prompts, engine.generate(prompts, sampling, ()), strict=True):
        logits = naive_logits(policy.model, [*prompt, *completion.ids])[len(prompt) - 1 : -1]
        rows = [naive_nucleus(row, temperature, top_p) for row in logits]
        expected = [row[token] for row, token in zip(rows, completion.ids, strict=True)]
        assert completion.logps == pytest.approx(expected, abs=close(engine))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 0.5), (1.0, 1.0), (0.7, 1.0), (1.0, 0.5)])
def test_watched_tokens_have_the_log_probs_of_the_model(
    policy: TinyPolicy, engine: Engine, temperature: float, top_p: float
) -> None:
    """At every token that is sampled, whatever it is drawn from; or none, which is said."""
    engine.sync(policy)
    prompts, ids = texts(3, 4, 30), (200, 3, 61)
    sampling = Sampling(9, temperature, n=2, seed=1, top_p=top_p, watched=ids)
    groups = engine.generate(prompts, sampling, STOPS)
    plain = engine.generate(prompts, replace(sampling, watched=()), STOPS)
    assert_same(engine, groups, plain)
    assert {c.watched for group in plain for c in group} == {()}
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            if not completion.watched:  # vLLM's would be of the distribution drawn from
                assert not engine.shares_model and not sampling.keeps_logps
                continue
            right = naive_logits(policy.model, [*prompt, *completion.ids])[len(prompt) - 1 : -1].log_softmax(-1)
            found = [[row[token] for token in ids] for row in completion.watched]
            assert torch.tensor(found).allclose(right[:, list(ids)].float(), atol=close(engine))


def test_the_nucleus_is_sampled_in_its_proportions(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    draws = 2000
    completions = engine.generate([[5, 6, 7]], Sampling(1, 0.6, n=draws, top_p=0.4), ())[0]
    logps = naive_nucleus(naive_logits(llama.model, [5, 6, 7])[-1], 0.6, 0.4)
    kept = {token: math.exp(logp) for token, logp in enumerate(logps) if logp > -math.inf}
    counts = Counter(c.ids[0] for c in completions)
    assert 1 < len(kept) < len(logps) / 2 and set(counts) <= set(kept)
    for token, p in sorted(kept.items(), key=lambda item: -item[1])[:5]:
        assert abs(counts[token] / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5


def test_top_p_leaves_greedy_choices_alone_and_one_token_at_least(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    prompts = texts(3, 20, seed=5)
    greedy = engine.generate(prompts, Sampling(8), ())
    assert_same(engine, engine.generate(prompts, Sampling(8, top_p=0.1), ()), greedy)
    narrow = engine.generate(prompts, Sampling(8, 1.3, top_p=1e-9), ())
    assert [row[0].ids for row in narrow] == [row[0].ids for row in greedy]
    assert all(row[0].logps == pytest.approx([0.0] * 8) for row in narrow)


def test_frequencies_are_the_models_probabilities(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    draws, temperature = 3000, 0.6
    completions = engine.generate([[5, 6, 7]], Sampling(1, temperature, n=draws), ())[0]
    probabilities = (naive_logits(llama.model, [5, 6, 7])[-1].double() / temperature).softmax(-1)
    counts = Counter(c.ids[0] for c in completions)
    top = probabilities.topk(5).indices.tolist()
    assert probabilities[top[0]] > 0.05
    for token in top:
        p = float(probabilities[token])
        assert abs(counts[token] / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5


def test_a_row_ends_at_its_first_stop_id_and_keeps_it(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    prompts = texts(6, 30, seed=6)
    free = engine.generate(prompts, Sampling(12, 1.0), ())
    assert all(len(row[0].ids) == 12 and not row[0].finished for row in free)
    stop = free[2][0].ids[4]  # also in some prompts' future, or nowhere
    for [whole], [cut] in zip(free, engine.generate(prompts, Sampling(12, 1.0), [stop]), strict=True):
        end = whole.ids.index(stop) + 1 if stop in whole.ids else 12
        assert cut.ids == whole.ids[:end]
        assert len(cut.logps) == end
        assert cut.finished == (stop in whole.ids)


def test_on_token_receives_every_token_and_can_end_a_completion(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    prompts, sampling = texts(6, 30, seed=6), Sampling(12, 1.0, n=2, seed=3)  # 12 rows, more than run together
    plain = engine.generate(prompts, sampling, STOPS)
    streamed: dict[tuple[int, int], list[int]] = {}

    def on_token(prompt: int, sample: int, token: int, longest: int = 99) -> bool:
        streamed.setdefault((prompt, sample), []).append(token)
        return (prompt, sample) != (2, 1) or len(streamed[2, 1]) < longest

    assert_same(engine, engine.generate(prompts, sampling, STOPS, on_token=on_token), plain)
    assert streamed == {(p, i): list(c.ids) for p, row in enumerate(plain) for i, c in enumerate(row)}
    whole = plain[2][1].ids
    assert len(whole) > 4
    streamed.clear()
    cut = engine.generate(prompts, sampling, STOPS, on_token=lambda *event: on_token(*event, longest=3))
    assert (cut[2][1].ids, cut[2][1].finished) == (whole[:3], False)
    assert len(cut[2][1].logps) == 3 and streamed[2, 1] == list(whole[:3])
    plain[2][1] = cut[2][1]
    assert [[c.ids for c in row] for row in cut] == [[c.ids for c in row] for row in plain]
    stopped = engine.generate(prompts, sampling, STOPS, on_token=lambda *event: False)
    assert all(len(c.ids) == 1 and c.finished == (c.ids[0] in STOPS) for row in stopped for c in row)


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt])
def test_an_exception_of_on_token_stops_at_once_and_leaves_the_engine_usable(
    llama: TinyPolicy, engine: Engine, kind: type[BaseException]
) -> None:
    engine.sync(llama)
    llama.peft.train()
    prompts, seen = texts(6, 30, seed=6), []
    plain, scores = engine.generate(prompts, Sampling(12), ()), engine.score(prompts, CHOICES)

    def broken(prompt: int, sample: int, token: int) -> bool:
        seen.append(token)
        if len(seen) == 8:
            raise kind
        return True

    with pytest.raises(kind):
        engine.generate(prompts, Sampling(12), (), on_token=broken)
    assert len(seen) == 8 and llama.peft.training
    assert_same(engine, engine.generate(prompts, Sampling(12), ()), plain)
    assert engine.score(prompts, CHOICES) == [pytest.approx(row, abs=close(engine)) for row in scores]


def test_a_stop_id_or_pad_id_in_the_prompt_is_an_ordinary_token(llama: TinyPolicy, engine: Engine) -> None:
    """Where pad equals eos, masks made from ids would hide an end of turn inside the prompt."""
    engine.sync(llama)
    llama.model.config.pad_token_id = llama.model.config.eos_token_id = 7
    prompts = [[0, 5, 6, 7], [7, 5, 7, 7, 3, 0, 0], [0], texts(1, 30, shortest=30)[0]]
    for prompt, [completion] in zip(prompts, engine.generate(prompts, Sampling(1), [7]), strict=True):
        assert completion.ids[0] == int(naive_logits(llama.model, prompt)[-1].argmax())
    assert_scores(engine, llama.model, prompts, CHOICES)


def test_a_changed_neighbour_changes_nothing(policy: TinyPolicy, engine: Engine) -> None:
    prompts = texts(5, 30, seed=7)
    other = [*prompts[:3], [id + 1 for id in prompts[3]], prompts[4]]
    runs = []
    for batch in (prompts, other):
        engine.sync(policy)
        scores, sampled = engine.score(batch, CHOICES), engine.generate(batch, Sampling(8, 1.0), ())
        runs.append([(scores[i], sampled[i]) for i in (0, 1, 2, 4)])
    for (scores, sampled), (others, resampled) in zip(*runs, strict=True):
        assert scores == (others if engine.shares_model else pytest.approx(others, abs=close(engine)))
        assert_same(engine, [sampled], [resampled])


def test_after_sync_nothing_of_the_old_weights_is_used(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    contexts = texts(3, 30, seed=8)
    before = engine.generate(contexts, Sampling(16), ())
    old = engine.score(contexts, CHOICES)
    policy.plant(1, quietly=True)
    engine.sync(policy)
    assert_scores(engine, policy.model, contexts, CHOICES)
    assert all(abs(a[0] - b[0]) > 1e-3 for a, b in zip(old, engine.score(contexts, CHOICES), strict=True))
    assert [row[0].ids for row in engine.generate(contexts, Sampling(16), ())] != [row[0].ids for row in before]
    policy.plant(0, quietly=True)
    engine.sync(policy)
    assert engine.score(contexts, CHOICES) == [pytest.approx(row, abs=close(engine)) for row in old]
    assert [row[0].ids for row in engine.generate(contexts, Sampling(16), ())] == [row[0].ids for row in before]


def test_cached_contexts_are_not_computed_again(policy: TinyPolicy, engine: Engine) -> None:
    engine.sync(policy)
    contexts = texts(5, 140, seed=9, shortest=130)  # a little more than four blocks of 32 tokens, which vLLM caches
    start = engine.prefill_tokens
    engine.score(contexts, CHOICES)
    first = engine.prefill_tokens - start
    assert first == sum(map(len, contexts)) if engine.shares_model else first > sum(map(len, contexts))
    engine.score([[*c, 5, 6, 7] for c in contexts], CHOICES)
    assert engine.prefill_tokens - start - first < first / 2


def test_lengths_at_the_edge_of_the_context(llama: TinyPolicy, engine: Engine) -> None:
    engine.sync(llama)
    long = texts(1, CONTEXT, shortest=CONTEXT)[0]
    [completion], [other] = engine.generate([long[: CONTEXT - 3], [5]], Sampling(6), ())
    assert (len(completion.ids), completion.finished, len(other.ids)) == (3, False, 6)
    assert_scores(engine, llama.model, [long[: CONTEXT - 4]], CHOICES)
    with pytest.raises(LovecError, match=f"prompt 1 has {CONTEXT} tokens .* holds {CONTEXT}"):
        engine.generate([[5], long], Sampling(6), ())
    with pytest.raises(LovecError, match=f"context 1 has {CONTEXT - 3} tokens and needs 4 more"):
        engine.score([[5], long[:-3]], CHOICES)
    for broken in (lambda: engine.score([[]], CHOICES), lambda: engine.generate([[]], Sampling(), ())):
        with pytest.raises(LovecError, match="0 has no tokens"):
            broken()
    with pytest.raises(LovecError, match="choice to score has no tokens"):
        engine.score([[5]], [[3], []])
    with pytest.raises(LovecError, match="temperature is -1, expected at least 0"):
        engine.generate([[5]], Sampling(temperature=-1), ())
    with pytest.raises(LovecError, match="2 keys for 1 prompts"):
        engine.generate([[5]], Sampling(), (), ["a", "b"])


# The transformers engine's own workings


def transformers_engine(policy: TinyPolicy, max_rows: int = 64) -> TransformersEngine:
    engine = TransformersEngine(max_rows)
    engine.sync(policy)
    return engine


def test_engine_without_a_model_says_so() -> None:
    with pytest.raises(LovecError, match="call sync"):
        TransformersEngine().score([[1]], [[2]])
    with pytest.raises(LovecError, match="max_rows is 0"):
        TransformersEngine(max_rows=0)


def test_training_flags_are_restored_and_checkpointing_keeps_the_cache(policy: TinyPolicy) -> None:
    contexts = texts(4, 30)
    engine = transformers_engine(policy)
    expected = engine.score(contexts, CHOICES), engine.generate(contexts, Sampling(10), STOPS)
    policy.peft.train()
    with warnings.catch_warnings(action="error"):  # transformers warns of names that it gives up
        checkpoint_activations(policy.model)
    policy.model.enable_input_require_grads()
    frozen = policy.model.get_input_embeddings().eval()
    flags = {name: module.training for name, module in policy.peft.named_modules()}
    engine = transformers_engine(policy)
    assert (engine.score(contexts, CHOICES), engine.generate(contexts, Sampling(10), STOPS)) == expected
    assert {name: module.training for name, module in policy.peft.named_modules()} == flags
    assert not frozen.training
    before = engine.prefill_tokens
    engine.score(contexts, CHOICES)
    engine.score([[*c, 1] for c in contexts], CHOICES)
    assert engine.prefill_tokens - before == sum(map(len, contexts)) + 4
    with pytest.raises(IndexError):
        engine.score([[10_000]], CHOICES)
    assert {name: module.training for name, module in policy.peft.named_modules()} == flags


def test_a_cache_never_outlives_its_weights(llama: TinyPolicy) -> None:
    """Even without ``sync``: after weights are written to in place, or an adapter is switched off and on."""
    engine = transformers_engine(llama)
    contexts = texts(3, 30)
    for change in (lambda: None, lambda: llama.plant(2)):
        change()
        assert_scores(engine, llama.model, contexts, CHOICES)
        with llama.peft.disable_adapter():
            assert_scores(engine, llama.model, contexts, CHOICES)
    assert_scores(engine, llama.model, contexts, CHOICES)


def test_only_new_tokens_are_computed(llama: TinyPolicy) -> None:
    engine = transformers_engine(llama)
    contexts = texts(5, 30, shortest=10)
    counts = []
    for change in (lambda c: c, lambda c: [*c, 5, 6, 7], lambda c: c, lambda c: [*c[:8], 255, 3]):
        before = engine.prefill_tokens
        engine.score([change(c) for c in contexts], CHOICES)
        counts.append(engine.prefill_tokens - before)
    # Grown by three; cut back (the last token is always computed, for its logits); two tokens after a fork.
    assert counts == [sum(map(len, contexts)), 15, 5, 10]


def test_prompts_and_shared_beginnings_are_computed_once(llama: TinyPolicy) -> None:
    engine = transformers_engine(llama)
    prompts = texts(3, 30)
    engine.generate(prompts, Sampling(4, 1.0, n=6), ())
    assert engine.prefill_tokens == sum(map(len, prompts))
    evidence = texts(1, 80, seed=5, shortest=80)[0]
    engine = transformers_engine(llama, max_rows=8)
    engine.score([[*evidence, token, 3] for token in range(20)], CHOICES)
    assert engine.prefill_tokens == 80 + 40
    engine = transformers_engine(llama)
    engine.generate([[*evidence, token] for token in range(20)], Sampling(2), ())
    assert engine.prefill_tokens == 80 + 20


def test_an_empty_call_frees_the_cache(llama: TinyPolicy) -> None:
    engine = transformers_engine(llama)
    engine.score([[1, 2, 3]], CHOICES)
    engine.score([], CHOICES)
    engine.score([[1, 2, 3]], CHOICES)
    assert engine.prefill_tokens == 6


def test_token_log_probs_cost_no_further_tokens(llama: TinyPolicy) -> None:
    """They come from the forward pass that scores the choices, whatever else is in the batch."""
    first, second = transformers_engine(llama), transformers_engine(llama)
    contexts, alone = texts(4, 30, shortest=5), []
    for _ in range(3):
        lengths = [len(context) + 1 for context in contexts]  # the token before the first is new, as after a score
        contexts = [c + more for c, more in zip(contexts, texts(4, 9, 3, shortest=3), strict=True)]
        first.score(contexts, CHOICES)
        found = second.token_logps(contexts, lengths, CHOICES)
        assert second.prefill_tokens == first.prefill_tokens
        alone = [
            transformers_engine(llama).token_logps([c], [n])[0].logps for c, n in zip(contexts, lengths, strict=True)
        ]
        assert [scores.logps for scores in found] == [pytest.approx(logps, abs=1e-5) for logps in alone]


def test_hidden_states_are_those_of_a_plain_forward_pass(policy: TinyPolicy) -> None:
    engine = transformers_engine(policy, max_rows=3)
    assert engine.layers == policy.model.config.num_hidden_layers
    contexts = texts(5, 30, shortest=4)
    places = [[0, len(c) - 1] if at % 2 else [2] for at, c in enumerate(contexts)]
    places[3] = []
    found = engine.hidden_states(contexts, places, [2, 1])
    for context, wanted, states in zip(contexts, places, found, strict=True):
        with torch.no_grad():
            policy.model.eval()
            outputs: list[Any] = []
            keep = partial(lambda kept, _, __, output: kept.append(output), outputs)
            hooks = [layer.register_forward_hook(keep) for layer in policy.model.get_decoder().layers]
            policy.model(input_ids=torch.tensor([context]), use_cache=False)
            for hook in hooks:
                hook.remove()
        plain = [output[0] if isinstance(output, tuple) else output for output in outputs]
        expected = torch.stack([plain[1][0, wanted], plain[0][0, wanted]], dim=1)
        assert states.shape == (len(wanted), 2, policy.model.config.hidden_size)
        assert states.allclose(expected, atol=1e-5)
    for layers, wanted, message in (
        ([3], [[0]], "layer is 3, expected"),
        ([0], [[0]], "layer is 0"),
        ([1], [[9]], "place"),
    ):
        with pytest.raises(LovecError, match=message):
            engine.hidden_states([[5, 6]], wanted, layers)


def test_an_engine_without_token_log_probs_is_named() -> None:
    class Own:
        """An engine as users wrote them before there was the method."""

    with pytest.raises(
        LovecError, match=r"Own has no token_logps\(contexts, starts, choices, top\), expected an engine"
    ):
        token_scorer(Own())  # type: ignore[arg-type]


def test_padding_runs_through_no_linear_layer(policy: TinyPolicy) -> None:
    """Rows of different lengths are computed as one, unless attention is eager; rows of one length as they are."""
    engine, shapes = transformers_engine(policy), []
    layer = policy.model.get_decoder().layers[-1].mlp
    handle = layer.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape[:2])))
    eager = policy.model.config._attn_implementation == "eager"
    contexts = [[12 + (size + at) % 30 for at in range(size)] for size in (10, 21, 37)]
    nodes = len(ChoiceTree(CHOICES).ids)
    lengths = [len(context) + nodes for context in contexts]
    found = engine.token_logps(contexts, [2, 1, len(contexts[2])], CHOICES)
    assert shapes == [(3, max(lengths)) if eager else (1, sum(lengths))]
    engine.score([context[:9] for context in contexts], CHOICES)
    assert shapes[1:] == [(3, 1 + nodes)]  # the last token of each once more
    handle.remove()
    for context, start, scores in zip(contexts, [2, 1, len(contexts[2])], found, strict=True):
        (alone,) = transformers_engine(policy).token_logps([context], [start], CHOICES)
        assert scores.logps == pytest.approx(alone.logps, abs=1e-5)
        assert scores.choices == pytest.approx(alone.choices, abs=1e-5)


def test_a_tree_of_choices_knows_the_ancestors_of_every_node() -> None:
    rng = random.Random(0)
    for _ in range(50):
        choices = [[rng.randint(0, 2) for _ in range(rng.randint(1, 6))] for _ in range(rng.randint(1, 12))]
        prefixes = list(dict.fromkeys(tuple(c[:end]) for c in choices for end in range(1, len(c))))
        tree = ChoiceTree(choices)
        assert tree.ids == [prefix[-1] for prefix in prefixes]
        assert tree.ancestors.tolist() == [[p[: len(q)] == q for q in prefixes] for p in prefixes]


def test_the_tree_of_the_same_choices_is_built_once(llama: TinyPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    built, init = [], ChoiceTree.__init__
    monkeypatch.setattr(ChoiceTree, "__init__", lambda self, choices: (built.append(choices), init(self, choices))[1])
    engine = TransformersEngine()
    engine.sync(llama)
    choices = [[5, 6, 41], [5, 7], [42]]  # no other test has these
    scores = [engine.score([[5, 6, 7]], [list(choice) for choice in choices]) for _ in range(3)]
    assert len(built) == 1  # the first call reads the context, the others find it in the cache: other roundings
    assert scores[1] == scores[2] and scores[0][0] == pytest.approx(scores[1][0], rel=1e-6)


def test_every_query_sees_something(llama: TinyPolicy) -> None:
    """Some attention kernels return NaN for a row of a mask that allows nothing, and the NaN then spreads."""
    masks = []
    handle = llama.model.register_forward_pre_hook(lambda _, __, kwargs: masks.append(kwargs), with_kwargs=True)
    transformers_engine(llama).score([[1], [1, 2, 3]], CHOICES)
    handle.remove()
    assert [kwargs["attention_mask"].any(-1).all().item() for kwargs in masks] == [True]


def test_unused_slots_do_not_accumulate(llama: TinyPolicy) -> None:
    """Rows that grow unequally leave unused slots; if half of them were unused, rows would cost twice as much."""
    rows = CachedRows(llama.model, AttentionKind.of(llama.model.config))
    rows.select([0, 0], [0, 0])
    with torch.no_grad():
        for turn in range(12):
            rows.select([0, 1], [len(ids) for ids in rows.ids])
            rows.extend([[5] * 8, [6]] if turn % 2 else [[6], [5] * 8])
    longest = max(map(len, rows.ids))
    assert rows._cache.get_seq_length() <= 1.25 * longest + 8
    assert longest == 54


def allocated(rows: CachedRows) -> list[int]:
    """Slots that keys and values of every layer have memory for, used or not, over all rows."""
    used = [part.used for part in rows._cache.parts]
    return [x.untyped_storage().nbytes() // (x.element_size() * x.shape[1] * x.shape[3]) for x in used]


def test_memory_stays_below_twice_what_is_in_use_and_grows_seldom(llama: TinyPolicy) -> None:
    rows = CachedRows(llama.model, AttentionKind.of(llama.model.config))
    rows.select([0] * 12, [0] * 12)
    places, length = set(), 20
    with torch.no_grad():
        rows.extend([[5] * length] * 12)
        for _ in range(100):
            rows.step(torch.full((12,), 6))
            length += 1
            assert max(allocated(rows)) <= 12 * (1.25 * length + 16)
            places.add(rows._cache.parts[0].used.data_ptr())
        assert len(places) <= 6  # copied this often, not at every token
        for count in range(11, 0, -1):
            assert rows.drop([0]) == [count, *range(1, count)]  # the last row takes the place of the dropped one
            assert max(allocated(rows)) <= 4 / 3 * count * (1.25 * length + 16)
            assert len(rows.step(torch.full((count,), 6))) == count
            length += 1


def test_a_step_writes_in_place(llama: TinyPolicy) -> None:
    """What the cache holds already is neither copied nor changed, and tokens are appended to what the model sees."""
    rows = CachedRows(llama.model, AttentionKind.of(llama.model.config))
    rows.select([0, 0], [0, 0])
    with torch.no_grad():
        rows.extend([[5, 6, 7], [8]])
        before = [(part.used.data_ptr(), part.used.clone()) for part in (rows._slots, *rows._cache.parts)]
        rows.step(torch.tensor([1, 2]))
    assert rows._slots.used.tolist() == [[0, 1, 2, 3], [-1, -1, 0, 1]]
    for part, (place, old) in zip((rows._slots, *rows._cache.parts), before, strict=True):
        dim = 1 if part is rows._slots else 2
        assert part.used.data_ptr() == place and part.used.shape[dim] == 4
        assert part.used.narrow(dim, 0, 3).equal(old)


def test_dropped_rows_leave_the_others_as_they_were(policy: TinyPolicy) -> None:
    prompts, more = texts(5, 30, seed=4, shortest=20), texts(5, 30, seed=5, shortest=30)
    rows = CachedRows(policy.model, AttentionKind.of(policy.model.config))
    rows.select([0] * 5, [0] * 5)
    live, done = list(range(5)), [0] * 5
    with torch.no_grad():
        rows.extend(prompts)
        for gone in ([1], [0, 2], [], [1]):  # rows of the batch as it is by then
            live = [live[row] for row in rows.drop(gone)]
            for _ in range(3):
                logits = rows.step(torch.tensor([more[row][done[row]] for row in live]))
                for row, values in zip(live, logits, strict=True):
                    done[row] += 1
                    expected = naive_logits(policy.model, [*prompts[row], *more[row][: done[row]]])[-1]
                    assert values == pytest.approx(expected, abs=1e-4)
    assert live == [3]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (1.0, 0.5), (0.0, 0.5)])
def test_tokens_are_drawn_alike_in_pieces_and_at_once(
    temperature: float, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    logits, uniform = 3 * torch.randn(7, 50), torch.rand(7, dtype=torch.float64)
    logps = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    if temperature and top_p < 1:
        logps = torch.tensor([naive_nucleus(row, temperature, top_p) for row in logits], dtype=torch.float64)
    drawn = []
    for rows in (1, 3, 7):
        monkeypatch.setattr("lovec.engines.transformers.rows_at_once", lambda _, rows=rows: rows)
        tokens, values = _draw(logits, Sampling(temperature=temperature, top_p=top_p), uniform)
        assert torch.allclose(values, logps.gather(-1, tokens[:, None])[:, 0], rtol=0, atol=1e-12)
        drawn.append(tokens.tolist())
    below = [float(logps[i, :token].exp().sum()) for i, token in enumerate(drawn[0])]
    assert drawn[0] == drawn[1] == drawn[2]
    if temperature == 0:
        assert drawn[0] == logits.argmax(-1).tolist()
    else:
        assert all(b <= u < b + logp.exp() for b, u, logp in zip(below, uniform.tolist(), values, strict=True))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_set_of_contexts_is_scored_exactly(tiny_llama: TinyPolicy, data: st.DataObject) -> None:
    """Contexts over two letters branch everywhere, and the calls share one cache."""
    engine = transformers_engine(tiny_llama, max_rows=data.draw(st.integers(1, 6)))
    letters = st.lists(st.integers(1, 2), min_size=1, max_size=14)
    for _ in range(3):
        contexts = data.draw(st.lists(letters, max_size=7))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lovec.engines.transformers.MIN_SHARED", 2)
            before = engine.prefill_tokens
            assert_scores(engine, tiny_llama.model, contexts, [[3], [1, 3], [1, 4]])
        assert engine.prefill_tokens - before <= sum(map(len, contexts))


@pytest.fixture(scope="module")
def tiny_llama(folders: dict[str, Path]) -> Iterator[TinyPolicy]:
    yield policy_of(folders["llama"])


def test_eager_attention_and_sliding_windows_in_all_layers_are_exact(llama: TinyPolicy) -> None:
    contexts = texts(4, 40)
    llama.model.set_attn_implementation("eager")
    assert_scores(transformers_engine(llama), llama.model, contexts, CHOICES)
    config = MistralConfig(
        vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=8, max_position_embeddings=CONTEXT, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    mistral = TinyPolicy(
        get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(target_modules=["q_proj"]))
    )
    assert AttentionKind.of(config) == AttentionKind(eager=False, window=8, mixed=False)
    assert_scores(transformers_engine(mistral), mistral.model, contexts, CHOICES)


def test_bfloat16_weights_are_scored_within_their_precision(policy: TinyPolicy) -> None:
    policy.peft.to(torch.bfloat16)
    contexts = texts(4, 40)
    scores = transformers_engine(policy).score(contexts, CHOICES)
    for context, row in zip(contexts, scores, strict=True):
        assert row == pytest.approx([naive_score(policy.model, context, c) for c in CHOICES], rel=0.03)


def test_attention_that_cannot_be_exact_is_refused(folders: dict[str, Path]) -> None:
    gemma = AutoModelForCausalLM.from_pretrained(folders["gemma2"], attn_implementation="eager")
    gemma.config._attn_implementation = "sdpa"  # transformers itself refuses it since 5.23
    with pytest.raises(LovecError, match=r"soft capping.*attn_implementation='eager'"):
        AttentionKind.of(gemma.config)
    gemma.config._attn_implementation = "flash_attention_2"
    with pytest.raises(LovecError, match="'flash_attention_2', expected sdpa or eager"):
        AttentionKind.of(gemma.config)
    llama = AutoModelForCausalLM.from_pretrained(folders["llama"], attn_implementation="sdpa")
    llama.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(LovecError, match="chunked_attention"):
        AttentionKind.of(llama.config)


def test_a_model_that_computes_nan_is_refused(llama: TinyPolicy) -> None:
    engine = TransformersEngine()
    engine.sync(llama)
    with torch.no_grad():
        next(p for name, p in llama.model.named_parameters() if "lora_B" in name)[0] = math.nan
    for call in (
        lambda: engine.score([[1, 2, 3]], CHOICES),
        lambda: engine.token_logps([[1, 2, 3]], [1]),
        lambda: engine.generate([[1, 2, 3]], Sampling(4, 0.0), STOPS),
        lambda: engine.generate([[1, 2, 3]], Sampling(4, 1.0), STOPS),
    ):
        with pytest.raises(LovecError, match=r"the model .*llama computes NaN in float32: .*, or give another dtype"):
            call()


def test_scoring_many_texts_says_how_far_it_is(llama: TinyPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine(max_rows=2)
    engine.sync(llama)
    seen: list[str] = []
    prefill = engine._prefill

    def noting(*args: Any) -> Any:
        seen.append(status().split(" texts")[0])
        return prefill(*args)

    monkeypatch.setattr(engine, "_prefill", noting)
    engine.score([[7, at] for at in range(5)], [[1], [2]])
    assert seen == ["scoring 0/5", "scoring 2/5", "scoring 4/5"]
    seen.clear()
    engine.score([[7, 1], [7, 2]], [[1], [2]])
    assert seen == [""]
