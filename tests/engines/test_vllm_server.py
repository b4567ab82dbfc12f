"""A real vLLM server with a tiny random model: the engine in front of it, and the oracle, whose ratings are random."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from served import chat, post, running, until
from tinyrun import Lengths, Rows, Truth, fit, module, tiny
from vllmserver import VLLM_SERVER, vllm_server

from lovec.encoding import Encoder
from lovec.encoding.written import choice_logps, steps_behind
from lovec.engines import RemoteVllm, TransformersEngine
from lovec.modules import GRPO
from lovec.oracles import OpenAIOracle, OracleStopped
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.taggers import IterativeTagger, open_session
from lovec.tags import TagFormat
from lovec.types import LovecError, Record, Sampling, Sentence

CHAT = "/v1/chat/completions"
LORA = "--enable-lora --max-lora-rank 8 --max-loras 1 --max-cpu-loras 2 --logprobs-mode processed_logprobs"

pytestmark = VLLM_SERVER


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the model."""
    return tiny(tmp_path_factory.mktemp("served"), "llama", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def url(served: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server."""
    with vllm_server(served, "tiny", tmp_path_factory.mktemp("server"), LORA.split()) as address:
        yield address


def records(count: int) -> list[Record]:
    page = ("Ada Lovelace was born in London in 1815.",)
    sentences = (Sentence("She was born in 1815."), Sentence("She was born in Paris."))
    return [Record(f"r{i}", f"Who is Ada {i}?", page, sentences=sentences[: 1 + i % 2]) for i in range(count)]


def test_an_oracle_reads_the_ratings_of_a_real_server(url: str, tmp_path: Path) -> None:
    """A grammar forces the random model into the format, so that its replies are ratings."""
    pattern = r"\*\*Rating:\*\* \$([0-9]|10)\$"
    parameters = {"temperature": 0, "max_tokens": 40, "structured_outputs": {"regex": pattern}}
    oracle = OpenAIOracle("tiny", url, cache=str(tmp_path / "replies.sqlite"), parameters=parameters)
    rated = oracle.rate(records(1))
    assert len(rated[0]) == 1 and rated[0][0] in [i / 10 for i in range(11)]
    assert oracle.calls == 1 and oracle.tokens_in > 1000 and 0 < oracle.tokens_out <= 40  # as vLLM counts them
    again = OpenAIOracle("tiny", url, cache=str(tmp_path / "replies.sqlite"), parameters=parameters)
    assert again.rate(records(1)) == rated and again.calls == 0


def test_text_of_a_random_model_is_no_rating(url: str, tmp_path: Path) -> None:
    oracle = OpenAIOracle(
        "tiny", url, cache=str(tmp_path / "r.sqlite"), parameters={"temperature": 0, "max_tokens": 32}, concurrency=4
    )
    rated = oracle.rate(records(2))
    assert rated == [[None], [None, None]] and list(oracle.failures) == ["r0", "r1"]
    assert "3 replies could not be used" in oracle.failures["r0"] and oracle.calls == 6


def test_errors_of_vllm_are_passed_on(url: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "r.sqlite")
    with pytest.raises(OracleStopped, match="check model and base_url"):
        OpenAIOracle("nobody", url, cache=cache).rate(records(1))
    long = [Record("long", "Q?", ("word " * 9000,), sentences=(Sentence("It is long."),))]
    oracle = OpenAIOracle("tiny", url, cache=cache)
    assert oracle.rate(long) == [[None]]
    assert oracle.failures["long"].startswith("HTTP 400: ") and "context length" in oracle.failures["long"]


# The engine


@pytest.fixture
def policy(served: str) -> Policy:
    torch.manual_seed(0)
    made = Policy(PolicyConfig(model=served, lora_r=4, lora_alpha=8))
    plant(made, 0)
    return made


@pytest.fixture
def engine(url: str, policy: Policy, tmp_path: Path) -> Iterator[RemoteVllm]:
    made = RemoteVllm(url, adapter_dir=str(tmp_path / "adapters"))
    made.sync(policy)
    yield made
    made.close()


def plant(policy: Policy, seed: int) -> None:
    """Overwrite the adapter's weights, so that they change the output visibly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.trainable():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))


def encoder(policy: Policy) -> Encoder:
    return Encoder(policy.tokenizer, "Rate each sentence.", TagFormat())


def own(policy: Policy) -> TransformersEngine:
    engine = TransformersEngine()
    engine.sync(policy)
    return engine


PROMPTS = [[5, 6, 7], [9, 3, 4, 8, 200], list(range(20, 90))]
STOPS = tuple(range(0, 256, 16))


def test_top_p_leaves_the_most_probable_tokens_renormalised(engine: RemoteVllm, policy: Policy) -> None:
    groups = engine.generate(PROMPTS, Sampling(12, 1.0, n=3, top_p=0.4), STOPS)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            [scores] = own(policy).token_logps([[*prompt, *completion.ids]], [len(prompt)])
            for logp, whole in zip(completion.logps, scores.logps, strict=True):
                assert -1e-4 < logp - whole < -math.log(0.4) + 1e-4  # at least that mass is left


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.6])
def test_log_probs_equal_those_of_the_policy_at_the_temperature(
    engine: RemoteVllm, policy: Policy, temperature: float
) -> None:
    sampling = Sampling(24, temperature, n=3, seed=1)
    groups = engine.generate(PROMPTS, sampling, STOPS)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            batch = TokenBatch.of([TokenSequence(tuple(prompt), completion.ids)], policy.device)
            expected = policy.token_logps(batch, temperature or 1.0)[0].tolist()
            assert completion.logps == pytest.approx(expected, abs=1e-4)
            assert completion.finished == (completion.ids[-1] in STOPS)
            assert not set(completion.ids[:-1]) & set(STOPS)
    if temperature == 0.0:
        right = own(policy).generate(PROMPTS, sampling, STOPS)
        assert [[c.ids for c in group] for group in groups] == [[c.ids for c in group] for group in right]
    else:
        assert len({c.ids for group in groups for c in group}) == 9
        assert [c.ids for c in engine.generate(PROMPTS[1:2], sampling, STOPS, ["1"])[0]] == [c.ids for c in groups[1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_from_a_stream_equal_those_of_prompts(engine: RemoteVllm, policy: Policy, temperature: float) -> None:
    """First tokens of choices at every place of a completion, and a second one where the model wrote the first."""
    firsts = tuple(range(40, 52))
    sampling = Sampling(24, temperature, seed=1, watched=firsts)
    groups = engine.generate(PROMPTS, sampling, (), on_token=lambda *_: True)
    contexts, choices, found = [], [[first] for first in firsts], []
    for prompt, [completion] in zip(PROMPTS, groups, strict=True):
        for at in range(0, len(completion.ids), 5):
            contexts.append([*prompt, *completion.ids[:at]])
            steps = steps_behind(contexts[-1], prompt, completion.ids, completion.watched)
            found.append(choice_logps(choices, steps))
        written = completion.ids[:2]
        [right] = engine.score([prompt], longer := [[written[0], 44], [written[0], 45], [41]])
        first = {**completion.watched[0]}
        assert written[0] in first  # the token that was sampled comes with the others
        assert choice_logps(longer, [(written[0], first), (written[1], completion.watched[1])]) == pytest.approx(
            right, abs=1e-4
        )
    assert len(contexts) >= 3
    for row, right, other in zip(
        found, engine.score(contexts, choices), own(policy).score(contexts, choices), strict=True
    ):
        assert row == pytest.approx(right, abs=1e-4) and row == pytest.approx(other, abs=1e-4)
    with_others = engine.generate([PROMPTS[0]] * 2, replace(sampling, temperature=0.7), STOPS)
    assert {completion.watched for group in with_others for completion in group} == {()}


def test_on_token_can_end_a_completion(engine: RemoteVllm) -> None:
    streamed: list[int] = []

    def on_token(prompt: int, sample: int, token: int) -> bool:
        streamed.append(token)
        return len(streamed) < 3

    [[whole]] = engine.generate(PROMPTS[:1], Sampling(200), ())
    [[cut]] = engine.generate(PROMPTS[:1], Sampling(200), (), on_token=on_token)
    assert cut.ids == whole.ids[:3] == tuple(streamed) and not cut.finished
    assert len(whole.ids) == 200


def test_scores_equal_those_of_the_policy_with_every_adapter(engine: RemoteVllm, policy: Policy, url: str) -> None:
    tails = encoder(policy).tails
    seen = []
    for seed in (1, 2, 3):  # planted adapters change the scores at once, on the same prompts
        plant(policy, seed)
        engine.sync(policy)
        seen.append(engine.score(PROMPTS, tails))
        for row, right in zip(seen[-1], own(policy).score(PROMPTS, tails), strict=True):
            assert row == pytest.approx(right, abs=1e-4)
        assert len(models(url)) == 2
    with policy.without_adapter():
        engine.sync(policy)
        seen.append(engine.score(PROMPTS, tails))
        for row, right in zip(seen[-1], own(policy).score(PROMPTS, tails), strict=True):
            assert row == pytest.approx(right, abs=1e-4)
    assert len({round(scores[0][0], 2) for scores in seen}) == 4
    engine.close()
    assert models(url) == ["tiny"]


def test_a_growing_context_is_prefilled_once(engine: RemoteVllm, policy: Policy) -> None:
    """As the server counts tokens, in blocks of 32, compared with a prompt per sentence."""
    text = [i * 7 % 250 for i in range(1700)]
    contexts = [text[:end] for end in range(1000, 1700, 35)]
    choices = [[49, 60], [50, 60], [49, 48, 60]]
    engine.prefill_tokens = 0
    scores = [engine.score([context], choices)[0] for context in contexts]
    print(f"{engine.prefill_tokens} tokens in place of {sum(map(len, contexts))}")
    assert engine.prefill_tokens * 5 < sum(map(len, contexts))
    for row, [right] in zip(scores[::7], [own(policy).score([c], choices) for c in contexts[::7]], strict=True):
        assert row == pytest.approx(right, abs=1e-4)


def test_iterative_tags_equal_those_of_the_transformers_engine(engine: RemoteVllm, policy: Policy) -> None:
    sentences = tuple(Sentence(f"Sentence {i} says that she was born in 18{i}.") for i in range(10, 14))
    records_ = [Record(f"r{i}", f"Who is Ada {i}?", sentences=sentences[i:]) for i in range(3)]
    right = IterativeTagger(own(policy), encoder(policy)).tag(records_)
    for found, expected in zip(IterativeTagger(engine, encoder(policy)).tag(records_), right, strict=True):
        assert [s.score for s in found.sentences] == [s.score for s in expected.sentences]


def test_an_adapter_that_is_too_large_is_refused(url: str, served: str) -> None:
    policy = Policy(PolicyConfig(model=served, lora_r=16, lora_alpha=8))
    with pytest.raises(LovecError, match=r"cannot load the adapter in .*--max-lora-rank 16 or more"):
        RemoteVllm(url).sync(policy)


def test_grpo_trains_on_rollouts_of_the_server(url: str, served: str, tmp_path: Path) -> None:
    """At every step the log-probs of sampling equal those of training, so the importance weights are 1."""
    torch.manual_seed(0)
    options = {"reward": Truth(), "oracle": Lengths(), "group_size": 3, "max_new_tokens": 12, "temperature": 0.8}
    run = fit(tmp_path, module(GRPO, served, engine=RemoteVllm(url), lr=5e-2, **options), Rows(12, batch_size=4))
    assert len(run.logged) == 3 and all(gradient.any() for gradient in run.gradients)
    for logged in run.logged:
        assert 0 < logged["train/mismatch_max"] < 1e-4
        assert logged["train/weight"] == pytest.approx(1.0, abs=1e-4)
    assert run.logged[-1]["train/kl"] > 0  # and yet the policy has moved


def models(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/models", timeout=5) as reply:
        return [card["id"] for card in json.load(reply)["data"]]


def test_lovec_serves_what_a_real_server_runs(url: str, served: str) -> None:
    """Confidences and answers are those of the transformers engine; who leaves stops vLLM."""
    text = json.dumps({"text": "Ada ran. It was noon.", "question": "Who was Ada?"}).encode()
    bodies = [(text, "/v1/tag"), *((chat(f"Who was {name}?", max_tokens=12), CHAT) for name in ("Ada", "Bob"))]
    found = []
    for engine in (RemoteVllm(url), "transformers"):
        with running(open_session(served, engine=engine, instruction="Rate.", device="cpu")) as server:
            found.append([post(server, *body) for body in bodies])
    for (status, data), (_, expected) in zip(*found, strict=True):
        assert status == 200 and data.get("usage") == expected.get("usage")
        if "choices" in data:
            assert data["choices"] == expected["choices"]
            continue
        values = [[entry["confidence"] for entry in side["confidence"]] for side in (data, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-4) and len(values[0]) == 2
    with running(open_session(served, engine=RemoteVllm(url), instruction="Rate.")) as server:
        open_ones = [server.send(chat("Who?", max_tokens=1024, stream=n % 2 == 0)) for n in range(8)]
        until(lambda: requests_running(url) == 8)
        for connection in open_ones:
            connection.close()
        until(lambda: requests_running(url) == 0)
        assert server.idle()


def requests_running(url: str) -> float:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:num_requests_running(?:{.*})? (\S+)$", text, re.MULTILINE))
