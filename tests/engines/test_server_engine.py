"""The engine in front of a server: its calls, how it reads replies and handles faults, which adapter runs.

The server is a fake that answers as vLLM does; test_vllm_server.py runs a real one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from completionserver import CompletionServer, error
from peft import LoraConfig, get_peft_model
from plainscores import TinyPolicy, naive_nucleus
from transformers import AutoModelForCausalLM

from lovec.core import calls
from lovec.encoding.choices import ChoiceTree
from lovec.engines import RemoteVllm, TransformersEngine
from lovec.engines.choice_scoring import TokenQuery, score_by_continuations
from lovec.models.tiny import build_tiny
from lovec.types import Engine, LovecError, Sampling, TokenScores

CONTEXT = 96
STOPS = tuple(range(0, 256, 16))
CHOICES = [[49, 60, 9], [49, 48, 60, 9], [50, 60, 9], [49, 48], [33]]
PROMPTS = [[5, 6, 7], [9, 3, 4, 8, 200], [5, 6, 7, 8]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny("llama", tmp_path_factory.mktemp("served") / "llama", max_position_embeddings=CONTEXT))


@pytest.fixture
def server(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompletionServer]:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with CompletionServer(path) as running:
        yield running


@pytest.fixture
def policy(path: str) -> TinyPolicy:
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa")
    made = TinyPolicy(get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])))
    made.plant(0)
    return made


@pytest.fixture
def engine(server: CompletionServer, policy: TinyPolicy) -> Iterator[RemoteVllm]:
    made = RemoteVllm(server.url, max_rows=4)
    made.sync(policy)
    yield made
    made.close()


def own(policy: TinyPolicy) -> TransformersEngine:
    engine = TransformersEngine()
    engine.sync(policy)
    return engine


def test_it_follows_the_engine_protocol(engine: RemoteVllm) -> None:
    checked: Engine = engine
    assert checked.context_length == CONTEXT and checked.max_rows == 4 and not checked.shares_model


# Sampling


def test_greedy_text_and_log_probs_equal_those_of_the_policy(engine: RemoteVllm, policy: TinyPolicy) -> None:
    found = engine.generate(PROMPTS, Sampling(12, n=2), STOPS)
    expected = own(policy).generate(PROMPTS, Sampling(12, n=2), STOPS)
    assert [[c.ids for c in row] for row in found] == [[c.ids for c in row] for row in expected]
    for row, right in zip(found, expected, strict=True):
        for completion, other in zip(row, right, strict=True):
            assert completion.logps == pytest.approx(other.logps, abs=1e-5)
            assert completion.finished == other.finished
    assert {c.finished for row in found for c in row} == {True, False}


def test_watched_tokens_have_the_log_probs_of_the_policy(
    engine: RemoteVllm, policy: TinyPolicy, server: CompletionServer
) -> None:
    sampling = Sampling(12, watched=(49, 60))
    heard: list[int] = []
    for on_token in (None, lambda *place: heard.append(place[2]) or len(heard) < 5):  # whole, and as a stream
        [found], [right] = (e.generate(PROMPTS[:1], sampling, STOPS, None, on_token) for e in (engine, own(policy)))
        assert len(found[0].watched) == len(found[0].ids)
        for row, other in zip(found[0].watched, right[0].watched, strict=False):
            assert [row[49], row[60]] == pytest.approx([other[49], other[60]], abs=1e-5)
    assert engine.generate(PROMPTS[:1], replace(sampling, temperature=0.7), STOPS)[0][0].watched == ()
    server.given_ids = False  # a server that does not know them
    assert [set(row) & {49, 60} for row in engine.generate(PROMPTS[:1], sampling, STOPS)[0][0].watched] == [set()] * 12
    server.given_ids = True


def test_what_the_model_wrote_is_not_asked_again(policy: TinyPolicy, server: CompletionServer) -> None:
    """Continuations that are known are the first ones; the rest is asked, and the numbers are the same."""
    tree = ChoiceTree(CHOICES)
    right = own(policy).score([[5, 6, 7], [5, 6], [5, 6, 7]], CHOICES)
    asked: list[TokenQuery] = []

    def logps(prompt: tuple[int, ...], ids: tuple[int, ...]) -> dict[int, float]:
        [scores] = own(policy).token_logps([list(prompt)], [len(prompt)], [[token] for token in ids])
        return dict(zip(ids, scores.choices, strict=True))

    async def ask(queries: Any) -> Any:
        asked.extend(queries)
        found = []
        for query in queries:
            known = logps(query.prompt, query.tokens)
            found.append([(0, [known[token] for token in query.tokens])])  # the model goes on with something else
        return found

    written = []
    for context, text in (((5, 6, 7), (49, 48, 60, 9)), ((5, 6), (50, 3)), ((5, 6, 7), ())):
        places = [(*context, *text[:at]) for at in range(len(text))]
        written.append(
            [(token, logps(place, (9, 33, 48, 49, 50, 60))) for token, place in zip(text, places, strict=True)]
        )
    scores = asyncio.run(score_by_continuations([(5, 6, 7), (5, 6), (5, 6, 7)], tree, ask, written))
    for row, other in zip(scores, right, strict=True):
        assert row == pytest.approx(other, abs=1e-5)
    nodes = {(query.context, query.node) for query in asked}
    inner = {node for node, tokens in tree.nodes if tokens}
    passed = {((5, 6, 7), (49, 48, 60)[:at]) for at in range(4)} | {((5, 6), ()), ((5, 6), (50,))}
    assert nodes == {(context, node) for context in ((5, 6, 7), (5, 6)) for node in inner} - passed


def test_every_completion_has_a_seed_of_its_own(engine: RemoteVllm, server: CompletionServer) -> None:
    def seeds(prompts: list[list[int]], n: int, seed: int, keys: list[str] | None = None) -> list[int]:
        server.calls.clear()
        engine.generate(prompts, Sampling(3, 1.0, n, seed), STOPS, keys)
        bodies = sorted(server.paths("/v1/completions"), key=lambda body: (prompts.index(body["prompt"]), body["seed"]))
        assert all(body["n"] == 1 for body in bodies if "n" in body)
        return [body["seed"] for body in bodies]

    first = seeds(PROMPTS[:2], 3, 7, ["a", "b"])
    assert len(set(first)) == 6 and all(0 <= seed < 2**63 for seed in first)
    assert seeds([PROMPTS[1]], 3, 7, ["b"]) == first[3:]
    assert not set(first) & set(seeds(PROMPTS[:2], 3, 8, ["a", "b"]))
    assert sorted(set(seeds(PROMPTS[:1], 2, 7, ["a"])) - set(first[:3])) == []


def test_a_call_sets_every_sampling_parameter(engine: RemoteVllm, server: CompletionServer) -> None:
    """Otherwise the model's generation_config.json could set penalties, and vLLM would stop at its end tokens."""
    server.calls.clear()
    engine.generate([[1] * 90], Sampling(12, 1.0), (7, 3))
    [body] = server.paths("/v1/completions")
    plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
    assert plain.items() <= body.items() and body["presence_penalty"] == 0.0 and body["ignore_eos"] is True
    assert body["max_tokens"] == CONTEXT - 90 and body["stop_token_ids"] == [3, 7]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.5, 1.0), (1.7, 1.0), (1.0, 0.6), (0.7, 0.3)])
def test_log_probs_are_of_the_distribution_drawn_from(
    engine: RemoteVllm, policy: TinyPolicy, server: CompletionServer, temperature: float, top_p: float
) -> None:
    sampling = Sampling(8, temperature, top_p=top_p)
    for prompt, [completion] in zip(PROMPTS, engine.generate(PROMPTS, sampling, STOPS), strict=True):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt + list(completion.ids)])).logits[0, len(prompt) - 1 : -1]
        rows = [naive_nucleus(row, temperature, top_p) for row in logits]
        expected = [row[token] for row, token in zip(rows, completion.ids, strict=True)]
        assert completion.logps == pytest.approx(expected, abs=1e-5)
    server.raw = True
    engine.generate(PROMPTS, Sampling(2, temperature, top_p=top_p), STOPS)  # checked once a connection
    fresh = RemoteVllm(server.url)
    fresh.sync(policy)
    with pytest.raises(LovecError, match=r"before the temperature; start it with --logprobs-mode processed_logprobs"):
        fresh.generate(PROMPTS, Sampling(2, temperature, top_p=top_p), STOPS)
    assert fresh.generate(PROMPTS, Sampling(2, 1.0), STOPS)


def test_there_are_no_more_simultaneous_calls_than_max_rows(engine: RemoteVllm, server: CompletionServer) -> None:
    engine.generate(PROMPTS * 5, Sampling(2, 1.0), STOPS)
    assert 1 < server.most <= 4


def test_on_token_receives_every_token_and_can_end_a_completion(engine: RemoteVllm) -> None:
    sampling = Sampling(12, 1.0, n=2, seed=3)
    plain = engine.generate(PROMPTS, sampling, STOPS)
    streamed: dict[tuple[int, int], list[int]] = {}

    def on_token(prompt: int, sample: int, token: int) -> bool:
        streamed.setdefault((prompt, sample), []).append(token)
        return (prompt, sample) != (0, 1) or len(streamed[0, 1]) < 2

    cut = engine.generate(PROMPTS, sampling, STOPS, on_token=on_token)
    assert len(plain[0][1].ids) > 3
    assert (cut[0][1].ids, cut[0][1].finished, len(cut[0][1].logps)) == (plain[0][1].ids[:2], False, 2)
    plain[0][1] = cut[0][1]
    assert [[c.ids for c in row] for row in cut] == [[c.ids for c in row] for row in plain]
    assert streamed == {(p, i): list(c.ids) for p, row in enumerate(plain) for i, c in enumerate(row)}


@pytest.mark.parametrize("kind", [KeyError, TimeoutError, calls.MalformedReply, KeyboardInterrupt])
def test_an_exception_of_on_token_stops_all_calls_and_leaves_the_engine_usable(
    engine: RemoteVllm, kind: type[BaseException]
) -> None:
    """Whatever its kind: none of the faults of a server, and none that ends the thread of the calls."""
    plain = engine.generate(PROMPTS, Sampling(12), STOPS)
    raised: list[BaseException] = []

    def broken(prompt: int, sample: int, token: int) -> bool:
        raised.append(kind("a fault of the callback"))
        raise raised[-1]

    with pytest.raises(kind) as caught:
        engine.generate(PROMPTS, Sampling(12), STOPS, on_token=broken)
    assert caught.value in raised
    assert [[c.ids for c in row] for row in engine.generate(PROMPTS, Sampling(12), STOPS)] == [
        [c.ids for c in row] for row in plain
    ]


def test_a_stream_is_retried_until_its_first_token(engine: RemoteVllm, server: CompletionServer) -> None:
    server.faults = ["503", "hang up", "500", "garbage", "aborted"]
    [[whole]] = engine.generate(PROMPTS[:1], Sampling(12), (), on_token=lambda *event: True)
    assert len(whole.ids) == 12 and len(server.paths("/v1/completions")) == 6
    server.faults = ["503", "error later"]
    with pytest.raises(LovecError, match=r"broken connection: .*lost"):
        engine.generate(PROMPTS[:1], Sampling(12), (), on_token=lambda *event: True)
    server.faults = ["503", "break off"]
    with pytest.raises(LovecError, match="the stream of a completion broke off"):
        engine.generate(PROMPTS[:1], Sampling(12), (), on_token=lambda *event: True)


# Scores


def matches(body: dict[str, Any], context: list[int]) -> bool:
    nodes = {tuple(choice[:end]) for choice in CHOICES for end in range(len(choice))}
    return any(body["prompt"] == [*context, *node] for node in nodes)


def test_scores_equal_those_of_the_policy(engine: RemoteVllm, policy: TinyPolicy, server: CompletionServer) -> None:
    expected = own(policy).score(PROMPTS, CHOICES)
    for row, right in zip(engine.score(PROMPTS, CHOICES), expected, strict=True):
        assert row == pytest.approx(right, abs=1e-5)
    assert engine.score([], CHOICES) == []
    engine.prefill_tokens = 0
    server.calls.clear()
    engine.score(PROMPTS, CHOICES)
    assert engine.prefill_tokens >= sum(map(len, PROMPTS))
    bodies = server.paths("/v1/completions")
    context_tokens = sum(len(prompt) for body in bodies for prompt in PROMPTS if matches(body, prompt))
    assert engine.prefill_tokens == context_tokens  # nothing is cached here; tokens of the choices are not counted


def test_token_log_probs_equal_those_of_the_policy(
    engine: RemoteVllm, policy: TinyPolicy, server: CompletionServer
) -> None:
    starts = [1, 4, 4]
    expected = own(policy).token_logps(PROMPTS, starts, CHOICES, top=3)
    for wanted, choices, top in ((expected, CHOICES, 3), ([replace(e, choices=(), top=()) for e in expected], (), 0)):
        for scores, other in zip(engine.token_logps(PROMPTS, starts, choices, top), wanted, strict=True):
            assert scores.logps == pytest.approx(other.logps, abs=1e-4)
            assert scores.choices == pytest.approx(other.choices, abs=1e-4)
            assert [list(most) for most in scores.top] == [list(most) for most in other.top]
    server.given_ids = False
    with pytest.raises(LovecError, match=r"leaves out log-probabilities of the prompt \(prompt_logprobs\)"):
        engine.token_logps(PROMPTS, starts)
    with pytest.raises(LovecError, match="start 0 is 0"):
        engine.token_logps(PROMPTS, [0, 1, 1])
    assert engine.token_logps(PROMPTS[:1], [3]) == [TokenScores(())]


def test_a_server_without_log_probs_of_given_tokens_is_an_error(engine: RemoteVllm, server: CompletionServer) -> None:
    server.given_ids = False
    with pytest.raises(LovecError, match=r"leaves out .*\(logprob_token_ids\); it has to be vLLM 0\.32 or later"):
        engine.score(PROMPTS, CHOICES)


def test_a_missing_count_of_cached_tokens_is_warned_of_once(
    server: CompletionServer, policy: TinyPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    server.details = False
    engine = RemoteVllm(server.url)
    engine.sync(policy)
    for _ in range(2):
        engine.generate(PROMPTS, Sampling(2), STOPS)
    assert [r.message.count("--enable-prompt-tokens-details") for r in caplog.records] == [1]
    assert engine.prefill_tokens == 2 * sum(map(len, PROMPTS))


# Adapters


def test_the_newest_adapter_runs_and_the_old_one_is_removed(
    server: CompletionServer, policy: TinyPolicy, tmp_path: Path
) -> None:
    engine = RemoteVllm(server.url, adapter_dir=str(tmp_path / "shared"))
    names, scores = [], []
    for seed in (0, 1, 2):
        policy.plant(seed)
        for _ in range(2):  # nothing has changed the second time
            engine.sync(policy)
        scores.append(engine.score(PROMPTS, CHOICES)[0])
        assert scores[-1] == pytest.approx(own(policy).score(PROMPTS, CHOICES)[0], abs=1e-5)
        assert len(server.adapters) == 1
        assert len([p for p in (tmp_path / "shared").rglob("*") if p.suffix == ".safetensors"]) == 1
        names += server.adapters
    assert len(set(names)) == 3 and len(server.paths("/v1/load_lora_adapter")) == 3
    assert abs(scores[0][0] - scores[1][0]) > 1e-3
    with policy.peft.disable_adapter():
        engine.sync(policy)
        bare = engine.score(PROMPTS, CHOICES)[0]
        assert bare == pytest.approx(own(policy).score(PROMPTS, CHOICES)[0], abs=1e-5)
        assert abs(bare[0] - scores[-1][0]) > 1e-3
    engine.sync(policy)
    assert engine.score(PROMPTS, CHOICES)[0] == scores[-1]
    assert len(server.paths("/v1/load_lora_adapter")) == 3  # the adapter was still loaded
    engine.close()
    assert server.adapters == {} and list((tmp_path / "shared").iterdir()) == []
    with pytest.raises(LovecError, match="no model yet"):
        engine.score(PROMPTS, CHOICES)


def test_a_garbage_collected_engine_unloads_its_adapter(server: CompletionServer, policy: TinyPolicy) -> None:
    engine = RemoteVllm(server.url)
    engine.sync(policy)
    assert len(server.adapters) == 1
    del engine
    gc.collect()
    assert server.adapters == {}


def test_a_fork_leaves_the_connection_alone(engine: RemoteVllm, server: CompletionServer, policy: TinyPolicy) -> None:
    """What a fork throws away is a copy; waiting for the thread of the original would hang it."""
    engine.sync(policy)
    folder = engine._running().adapter_folder
    assert folder is not None
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        refused = False
        try:
            engine.generate(PROMPTS, Sampling(1), ())
        except LovecError as error:
            refused = "cannot be used in a fork" in str(error)
        engine._end_link()  # type: ignore[misc]
        os._exit(0 if refused and folder.exists() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert folder.exists() and len(server.adapters) == 1


def test_it_opens_a_model_without_a_policy(server: CompletionServer, policy: TinyPolicy, tmp_path: Path) -> None:
    policy.peft.save_pretrained(str(tmp_path / "adapter"))
    engine = RemoteVllm(server.url)
    engine.open("tiny", str(tmp_path / "adapter"))
    expected = own(policy).score(PROMPTS, CHOICES)
    assert engine.score(PROMPTS, CHOICES) == [pytest.approx(row, abs=1e-5) for row in expected]
    engine.open(server.path)  # the path that the server loaded it from names it as well
    with policy.peft.disable_adapter():
        expected = own(policy).score(PROMPTS, CHOICES)
    assert engine.score(PROMPTS, CHOICES) == [pytest.approx(row, abs=1e-5) for row in expected]
    with pytest.raises(LovecError, match=r"there is no adapter .*nowhere, expected "):
        engine.open("tiny", str(tmp_path / "nowhere"))
    (tmp_path / "adapter/adapter_config.json").write_text('{"r": 8')
    with pytest.raises(LovecError, match=r"adapter_config\.json is not JSON \(.*\); copy it again"):
        engine.open("tiny", str(tmp_path / "adapter"))
    with pytest.raises(LovecError, match=r"model 'other' is not served at .*, expected one of tiny; correct model"):
        engine.open("other")


def test_an_adapter_with_scalings_by_name_of_layer_runs_as_in_peft(
    server: CompletionServer, path: str, tmp_path: Path
) -> None:
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa")
    lora = LoraConfig(r=4, lora_alpha=8, alpha_pattern={"v_proj": 64.0}, target_modules=["q_proj", "v_proj"])
    policy = TinyPolicy(get_peft_model(base, lora))
    policy.plant(0)
    policy.peft.save_pretrained(str(tmp_path / "adapter"))
    expected = own(policy).score(PROMPTS, CHOICES)
    opened, synced = RemoteVllm(server.url), RemoteVllm(server.url)
    opened.open("tiny", str(tmp_path / "adapter"))
    synced.sync(policy)
    for engine in (opened, synced):
        assert engine.score(PROMPTS, CHOICES) == [pytest.approx(row, abs=1e-4) for row in expected]
        engine.close()


# Faults


@pytest.mark.parametrize("fault", ["429", "500", "503", "hang up", "garbage", "aborted"])
def test_transient_faults_are_retried(engine: RemoteVllm, server: CompletionServer, fault: str) -> None:
    expected = engine.generate(PROMPTS, Sampling(6, 1.0), STOPS)
    server.faults = [fault] * 2
    assert engine.generate(PROMPTS, Sampling(6, 1.0), STOPS) == expected


def test_permanent_faults_are_one_line(server: CompletionServer, policy: TinyPolicy) -> None:
    engine = RemoteVllm(server.url, retries=1)
    engine.sync(policy)
    for fault, words in (
        ("500", r"HTTP 500: planned 500 \(2 tries\)"),
        ("400", "HTTP 400: planned 400"),
        ("garbage", "no completion with token ids and log-probabilities .*; is it vLLM"),
    ):
        server.faults = [fault] * 40
        with pytest.raises(LovecError, match=f"the vLLM server at {server.url}: .*{words}") as caught:
            engine.generate(PROMPTS, Sampling(2), STOPS)
        assert "\n" not in str(caught.value)
    server.faults = []
    server.adapters.clear()  # started anew
    with pytest.raises(LovecError, match=r"does not exist.*whether the server was started anew"):
        engine.generate(PROMPTS, Sampling(2), STOPS)


def test_a_server_that_cannot_serve_the_policy_is_explained(
    server: CompletionServer, policy: TinyPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(LovecError, match=f"there is no vLLM server at {nobody} .*start one: python -m vllm"):
        RemoteVllm(nobody).sync(policy)
    with pytest.raises(LovecError, match=r"model 'llama' is not served at .*, expected one of tiny"):
        RemoteVllm(server.url, model="llama").sync(policy)
    server.lora = False
    words = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank 4 or more"
    with pytest.raises(LovecError, match=f"cannot load the adapter in .*HTTP 404.*start it with {words}"):
        RemoteVllm(server.url).sync(policy)
    server.load = lambda body: (500, error("LoRA rank 4 is greater than max_lora_rank 2"))  # as vLLM says it
    server.calls.clear()
    with pytest.raises(LovecError, match=f"LoRA rank 4 is greater.*{words}"):
        RemoteVllm(server.url).sync(policy)
    assert len(server.paths("/v1/load_lora_adapter")) == 1  # trying again would not help
    del server.load
    server.lora, server.key = True, "secret-key"
    with pytest.raises(LovecError, match=r"HTTP 401.*set VLLM_API_KEY to the key"):
        RemoteVllm(server.url).sync(policy)
    monkeypatch.setenv("VLLM_API_KEY", "secret-key")
    engine = RemoteVllm(server.url)
    engine.sync(policy)
    assert engine.generate(PROMPTS[:1], Sampling(2), STOPS)
    server.faults = ["400"]  # and says the key back
    with pytest.raises(LovecError, match=r"HTTP 400: planned 400 \*\*\*$"):
        engine.generate(PROMPTS[:1], Sampling(2), STOPS)


def test_bad_options_and_prompts_are_refused(engine: RemoteVllm) -> None:
    for options, words in (
        ({"max_rows": 0}, "max_rows is 0"),
        ({"timeout": 0.0}, r"timeout is 0\.0"),
        ({"retries": -1}, "retries is -1"),
        ({"url": "localhost:8000"}, "url is 'localhost:8000', expected an address such as"),
        ({"url": "http://me:pw@localhost/v1"}, r"url is more than an address.*keys belong in \$VLLM_API_KEY"),
    ):
        with pytest.raises(LovecError, match=words):
            RemoteVllm(**options)
    with pytest.raises(LovecError, match=r"no model yet; call sync"):
        RemoteVllm().generate(PROMPTS, Sampling(2), STOPS)
    for prompts, sampling, words in (
        ([[]], Sampling(2), "prompt 0 has no tokens"),
        ([[1] * CONTEXT], Sampling(2), "the model's context holds 96"),
        (PROMPTS, Sampling(2, 3.0), r"temperature is 3\.0, vLLM takes 0 or 0\.01 to 2"),
    ):
        with pytest.raises(LovecError, match=words):
            engine.generate(prompts, sampling, STOPS)
    with pytest.raises(LovecError, match="context 0 has 95 tokens and needs 4 more"):
        engine.score([[1] * 95], CHOICES)


# Continuations


LONG = [[8, 60, 9, 9], [7, 60, 9, 9], [8, 7, 60, 9, 9], [5]]


def continuations(habit: list[int], queries: list[TokenQuery]) -> list[list[tuple[int, list[float]]]]:
    """The replies of a model that writes ``habit`` after every score; log-probabilities depend on the whole prompt."""
    replies = []
    for query in queries:
        prompt, steps = list(query.prompt), []
        for _ in range(query.steps):
            node = prompt[len(query.context) :]
            written = len(node) - next((i for i, t in enumerate(node) if t == habit[1]), len(node))
            token = habit[min(written + 1, len(habit) - 1)] if node else habit[0]
            steps.append((token, [-hash((*prompt, t)) % 997 / 100 for t in query.tokens]))
            prompt.append(token)
        replies.append(steps)
    return replies


@pytest.mark.parametrize(
    ("habit", "most"),
    [([8, 60, 9, 9], 2), ([1, 1, 1, 1], 3)],
    ids=["a model that knows the tags", "a model that writes something else"],
)
def test_continuations_pass_every_node_in_few_rounds(habit: list[int], most: int) -> None:
    contexts = [(1, 2, 3), (4,), (1, 2, 3)]
    rounds: list[list[TokenQuery]] = []

    async def generate(queries: Any) -> Any:
        rounds.append(list(queries))
        return continuations(habit, rounds[-1])

    scores = asyncio.run(score_by_continuations(contexts, ChoiceTree(LONG), generate))
    for context, row in zip(contexts, scores, strict=True):
        for choice, value in zip(LONG, row, strict=True):
            text = [*context, *choice]
            expected = sum(-hash(tuple(text[: end + 1])) % 997 / 100 for end in range(len(context), len(text)))
            assert value == pytest.approx(expected)
    assert len(rounds) <= most
    assert all(query.node == () for query in rounds[0]) and len(rounds[0]) == 2
    if habit[0] == 8:  # one query per score, not per node
        assert sum(map(len, rounds)) == 2 * 3
    else:
        assert all(query.steps == 1 for query in rounds[-1])


def test_queries_contain_no_more_tokens_than_a_server_returns() -> None:
    choices = [[1, token] for token in range(100)] + [[2, token] for token in range(100, 200)]
    all_queries: list[TokenQuery] = []

    async def generate(queries: Any) -> Any:
        all_queries.extend(queries)
        return [[(0, [-float(len(q.node))] * len(q.tokens))] for q in queries]

    def scores(contexts: list[tuple[int, ...]], tree: ChoiceTree) -> list[list[float]]:
        return asyncio.run(score_by_continuations(contexts, tree, generate))

    assert scores([(5,)], ChoiceTree(choices)) == [[-1.0] * 200]
    assert sorted(len(query.tokens) for query in all_queries) == [2, 100, 100]
    assert scores([], ChoiceTree(choices)) == []
    assert scores([(5,)], ChoiceTree([])) == [[]]
