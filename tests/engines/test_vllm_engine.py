"""The vLLM engine's own workings, on the real vLLM where it is installed; test_engine.py tests the protocol."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from plainscores import CHOICES, assert_scores, close, naive_score, texts
from tinyrun import Recorder, Rows, Truth, module, trainer
from transformers import AutoModelForCausalLM, LlamaConfig
from vllmtiny import BLOCK, VLLM, on_vllm, small

from lovec.datasets.world.tokenizer import make_tokenizer
from lovec.encoding import Encoder
from lovec.encoding.choices import ChoiceTree
from lovec.engines import TransformersEngine, VllmEngine
from lovec.engines.adapters import AdapterFolders
from lovec.engines.choice_scoring import TokenQuery, score_by_paths
from lovec.engines.common import TokenReply, reply_scores
from lovec.engines.vllm_local import VllmRequest, _prompt_candidates
from lovec.models.tiny import build_tiny
from lovec.modules import GRPO
from lovec.oracles import SelfJudge
from lovec.policy import Policy, PolicyConfig
from lovec.taggers import IterativeTagger
from lovec.types import LovecError, Record, Sampling, Sentence, TokenScores

WORDS = "ada wrote the first note on engines in london and paris before noon".split()


def plant(policy: Policy, seed: int, scale: float = 0.1) -> None:
    """Overwrite the adapter's weights, so that they change the output visibly."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.trainable():
        parameter.data.copy_(scale * torch.randn(parameter.shape, generator=generator))


def policy_of(model: str | Path, adapter: str | None = None, **options: Any) -> Policy:
    policy = Policy(PolicyConfig(model=str(model), adapter=adapter, lora_r=4, lora_alpha=8, **options))
    plant(policy, 0)
    return policy


def passages(count: int, sentences: int, seed: int = 0) -> list[Record]:
    """Return records of random sentences."""
    rng = random.Random(seed)
    return [
        Record(
            f"r{i}",
            f"Who is {rng.choice(WORDS)}?",
            sentences=tuple(
                Sentence(" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + ".") for _ in range(sentences)
            ),
        )
        for i in range(count)
    ]


# Without vLLM


@pytest.mark.parametrize("known", [0.0, 0.7, 1.0], ids=["no path", "parts of the paths", "all paths"])
def test_scores_by_paths_are_the_sums_along_the_choices(known: float) -> None:
    """What the engine cannot say at first is queried node by node."""

    def logp(prompt: tuple[int, ...], token: int) -> float:
        return -random.Random(f"{prompt} {token}").random()

    counts: list[int] = []

    def ask(queries: Any) -> list[tuple[list[float | None], list[float]]]:
        counts.append(len(queries))
        chance = random.Random(0)
        paths: list[list[float | None]] = [
            [
                logp(q.prompt[: len(q.context) + depth], token) if chance.random() < known else None
                for depth, token in enumerate(q.node if q.with_path and known else ())
            ]
            for q in queries
        ]
        return [(path, [logp(q.prompt, token) for token in q.tokens]) for path, q in zip(paths, queries, strict=True)]

    contexts = [(1, 2), (3,), (1, 2), (4, 5, 6)]
    expected = [
        [sum(logp((*context, *choice[:i]), token) for i, token in enumerate(choice)) for choice in CHOICES]
        for context in contexts
    ]
    tree = ChoiceTree(CHOICES)
    assert score_by_paths(contexts, tree, ask) == [pytest.approx(row, abs=1e-12) for row in expected]
    leaves = 4 + 1  # four choices of three or more tokens; one query for the choice of a single one
    assert counts[0] == 3 * leaves and len(counts) == (1 if known == 1.0 else 2)
    if known == 0.0:
        assert sum(counts) == 3 * len(tree.nodes)  # every node of every distinct context once
    assert score_by_paths([], tree, ask) == [] and score_by_paths([(1,)], ChoiceTree([]), ask) == [[]]
    assert TokenQuery((1,), (2, 3), (4,)).prompt == (1, 2, 3)


def test_log_probs_of_cached_prompt_tokens_are_not_used() -> None:
    """vLLM returns meaningless entries for them, or none at all."""
    request = VllmRequest((5, 6, 7, 8), {}, scored=3)
    entries = [None, *({token: Logprob(-token / 10)} for token in (6, 7, 8))]
    known = [{6: -0.6}, {7: -0.7}, {8: -0.8}]
    assert _prompt_candidates(request, entries, cached=0) == known
    assert _prompt_candidates(request, entries, cached=2) == [{}, {}, known[2]]
    assert _prompt_candidates(request, entries[2:], cached=0) == [{}, *known[1:]]
    entries = [None, None, {3: Logprob(-1.0)}, {8: Logprob(-0.8), 9: Logprob(-0.1)}]
    assert _prompt_candidates(request, entries, cached=0) == [{}, {}, {8: -0.8, 9: -0.1}]
    assert reply_scores(TokenReply(prompt_logps=[None, -0.8]), 0) is None  # to be asked for once more
    reply = TokenReply(prompt_logps=[-0.8], prompt_candidates=[{8: -0.8, 9: -0.1, 5: -3.0}])
    assert reply_scores(reply, 2) == TokenScores((-0.8,), ({9: -0.1, 8: -0.8},))
    assert reply_scores(reply, 0) == TokenScores((-0.8,))


@dataclass
class Logprob:
    """An entry as vLLM returns it."""

    logprob: float


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny("llama", tmp_path_factory.mktemp("models") / "llama", max_position_embeddings=4096))


def test_folders_of_adapters_have_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, which may run elsewhere, is given them."""
    monkeypatch.chdir(tmp_path)
    folders = AdapterFolders("adapters")
    assert folders._parent.is_absolute() and folders._parent.parent == tmp_path / "adapters"
    folders.close()
    assert not list((tmp_path / "adapters").iterdir())


def test_an_adapter_is_written_only_if_it_has_changed(model: str, tmp_path: Path) -> None:
    policy, folders = policy_of(model), AdapterFolders(tmp_path)
    first = folders.write(policy)
    assert first is not None and folders.write(policy) == first
    with policy.without_adapter():
        assert folders.write(policy) is None
    assert folders.write(policy) == first
    plant(policy, 1)  # does not advance the parameters' version counters
    second = folders.write(policy)
    assert second not in (None, first) and first.exists()
    folders.clean()
    assert not first.exists()
    continued = policy_of(model, adapter=str(second))
    for mine, theirs in zip(
        policy.trainable(), Policy(PolicyConfig(model=model, adapter=str(second))).trainable(), strict=True
    ):
        assert torch.equal(mine, theirs)
    plant(continued, 2)
    newest, frozen = folders.write(continued), None
    with continued.reference():
        frozen = folders.write(continued)
    assert frozen not in (newest, None)
    assert file_hash(frozen) == file_hash(second)  # the frozen copy of what it started from
    folders.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rslora", [False, True])
def test_ranks_and_scalings_by_name_of_layer_become_one_to_the_same_effect(
    rslora: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], use_rslora=rslora,
        rank_pattern={"q_proj": 2, "layers.1.self_attn.v_proj": 6}, alpha_pattern={"v_proj": 3.0, "up_proj": 32},
    )  # fmt: skip
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.1)
    peft.save_pretrained(str(tmp_path / "given"), save_embedding_layers=False)
    ids = torch.arange(5, 25)[None]
    loaded: list[Path] = []
    vllm = SimpleNamespace(load_adapter=loaded.append, close=lambda: None)
    monkeypatch.setattr("lovec.engines.vllm.LocalVllm", lambda *_: vllm)
    engine, folders = VllmEngine(), AdapterFolders(tmp_path)
    engine.open(model, str(tmp_path / "given"))
    with torch.no_grad():
        expected = peft(ids).logits
        for folder in (*loaded, folders.readable(tmp_path / "given"), folders.write(SimpleNamespace(peft=peft))):
            assert folder is not None
            options = json.loads((folder / "adapter_config.json").read_text())
            assert (options["r"], options["rank_pattern"], options["alpha_pattern"]) == (6, {}, {})
            found = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(folder))(ids).logits
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert folders.readable(folder) == folder
    engine.close()
    assert not loaded[0].exists()


def file_hash(folder: Path | None) -> str:
    assert folder is not None
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_impossible_settings_are_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, match in (({"max_rows": 0}, "max_rows is 0"), ({"max_lora_rank": 513}, "max_lora_rank is 513")):
        with pytest.raises(LovecError, match=match):
            VllmEngine(**option)
    with pytest.raises(LovecError, match=r"call sync\(policy\) or open\(model\)"):
        VllmEngine().score([[1]], [[2]])
    with pytest.raises(LovecError, match="made in memory and are on no disk"):
        VllmEngine().sync(Policy(PolicyConfig(model=f"random:{model}")))
    with pytest.raises(LovecError, match="rank 4, max_lora_rank is 2"):
        VllmEngine(max_lora_rank=2).sync(policy_of(model))
    with pytest.raises(LovecError, match="no adapter nowhere"):
        VllmEngine().open(model, "nowhere")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(LovecError, match=r"needs vLLM.*lovec\[vllm\]"):
        VllmEngine().open(model)


# On vLLM


class TestOnVllm:
    """Tests that share one engine, loaded once."""

    pytestmark: ClassVar = list(VLLM)

    @pytest.fixture(scope="class")
    def policy(self, model: str) -> Policy:
        return policy_of(model)

    @pytest.fixture(scope="class")
    def engine(self, policy: Policy) -> Iterator[VllmEngine]:
        before = torch.get_rng_state(), random.getstate()
        engine = small()
        engine.sync(policy)
        engine.generate([[5, 6]], Sampling(4, 1.0), ())
        assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
        yield engine
        engine.close()

    def test_the_adapter_is_switched_on_and_off_with_the_policys(self, policy: Policy, engine: VllmEngine) -> None:
        contexts = texts(3, 40)
        adapted = engine.score(contexts, CHOICES)
        text = engine.generate(contexts, Sampling(12), ())
        with policy.without_adapter():
            assert_now(engine, policy, contexts)
            assert engine.generate(contexts, Sampling(12), ()) != text
            assert max(abs(a[0] - b[0]) for a, b in zip(adapted, engine.score(contexts, CHOICES), strict=True)) > 1e-2
        assert_now(engine, policy, contexts)

    def test_choices_that_cross_a_cached_block_are_exact(self, policy: Policy, engine: VllmEngine) -> None:
        contexts = [
            text[:length] for text, length in zip(texts(5, 40, 13, 40), range(BLOCK - 3, BLOCK + 2), strict=True)
        ]
        for _ in range(2):  # the second time parts of the choices are found in the cache
            assert_now(engine, policy, contexts)

    def test_sync_without_a_change_loads_nothing_and_keeps_the_cache(self, policy: Policy, engine: VllmEngine) -> None:
        contexts = texts(2, 8 * BLOCK + 1, seed=5, shortest=8 * BLOCK + 1)
        engine.sync(policy)
        folder = engine._folder
        start = engine.prefill_tokens
        engine.score(contexts, [[3]])
        assert engine.prefill_tokens - start == sum(map(len, contexts))
        engine.sync(policy)
        engine.score(contexts, [[3]])
        assert engine._folder == folder
        assert engine.prefill_tokens - start == sum(map(len, contexts)) + 2  # the last token always runs

    def test_two_hundred_syncs_leave_the_base_as_it_was(self, policy: Policy, engine: VllmEngine) -> None:
        def base(model: Any) -> str:
            digest = hashlib.sha256()
            for name, parameter in sorted(model.named_parameters()):
                if "lora_" not in name:
                    digest.update(name.encode() + parameter.detach().numpy().tobytes())
            return digest.hexdigest()

        contexts, streamed = texts(2, 20, seed=3), set()
        with policy.without_adapter():
            engine.sync(policy)
            bare = engine.score(contexts, CHOICES)
        before = engine._running()._llm.apply_model(base)[0]
        sizes = []
        for turn in range(200):
            plant(policy, 100 + turn)
            engine.sync(policy)
            streamed.add(engine.score(contexts[:1], [[7]])[0][0])
            if turn % 50 == 49:
                gc.collect()
                sizes.append(resident())
                assert_now(engine, policy, contexts)
        assert len(streamed) == 200  # every adapter was another one, from its first token on
        assert engine._running()._llm.apply_model(base)[0] == before
        with policy.without_adapter():
            engine.sync(policy)
            assert engine.score(contexts, CHOICES) == bare
        assert engine._folder is not None and len(list(engine._folder.parent.iterdir())) == 1
        assert sizes[-1] - sizes[0] < 20 * 2**20, sizes

    def test_a_callback_that_fails_leaves_the_engine_usable(self, policy: Policy, engine: VllmEngine) -> None:
        engine.sync(policy)
        prompts = texts(4, 20, seed=6)
        plain = engine.generate(prompts, Sampling(8), ())

        def fail(prompt: int, sample: int, token: int) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            engine.generate(prompts, Sampling(8), (), on_token=fail)
        assert [row[0].ids for row in engine.generate(prompts, Sampling(8), ())] == [row[0].ids for row in plain]

    def test_what_vllm_refuses_is_an_error_of_one_line(self, policy: Policy, engine: VllmEngine) -> None:
        engine.sync(policy)
        with pytest.raises(LovecError, match=r"temperature is 2.5, vLLM takes 0 or 0.01 to 2"):
            engine.generate([[5]], Sampling(4, 2.5), ())
        for broken in (
            lambda: engine.generate([[5], [7, 10_000]], Sampling(4), ()),
            lambda: engine.score([[5]], [[-1]]),
        ):
            with pytest.raises(LovecError, match=r"token id (10000|-1) is not one of the model's 261"):
                broken()
        assert_now(engine, policy, [[5, 6]])

    def test_a_model_and_an_adapter_folder_run_without_a_policy(
        self, model: str, policy: Policy, engine: VllmEngine
    ) -> None:
        engine.sync(policy)
        contexts = texts(2, 30, seed=7)
        scores = engine.score(contexts, CHOICES)
        assert engine._folder is not None
        opened = small(dtype="float32", max_model_len=256)
        opened.open(model, str(engine._folder))
        assert opened.context_length == 256
        assert opened.score(contexts, CHOICES) == [pytest.approx(row, abs=1e-4) for row in scores]
        opened.open(model)
        with policy.without_adapter():
            engine.sync(policy)
        assert opened.score(contexts, CHOICES) == [
            pytest.approx(row, abs=1e-4) for row in engine.score(contexts, CHOICES)
        ]
        opened.close()
        assert_now(engine, policy, contexts)  # vLLM's own shutdown would have taken the other engine along
        with pytest.raises(LovecError, match="no model yet"):
            opened.score(contexts, CHOICES)
        opened.open(model)
        assert len(opened.score(contexts, CHOICES)) == 2
        opened.close()

    def test_a_judge_uses_the_engine_and_restores_its_adapter(self, policy: Policy, engine: VllmEngine) -> None:
        encoder, records = Encoder(policy.tokenizer), passages(2, 3)
        ratings = []
        for lent in (None, engine):
            judge = SelfJudge(readout="mean")
            judge.attach(policy, encoder, lent)
            ratings.append(judge.rate(records))
        assert judge.engine is engine
        assert ratings[1] == [pytest.approx(row, abs=1e-4) for row in ratings[0]]
        assert_scores(engine, policy.model, texts(2, 20), CHOICES)  # not those of the bare base
        chosen = TransformersEngine()
        judge = SelfJudge(engine=chosen)
        judge.attach(policy, encoder, engine)
        assert judge.engine is chosen

    def test_grpo_learns_from_its_samples(self, model: str, adapter: str, engine: VllmEngine, tmp_path: Path) -> None:
        """A whole run: rollouts and the judge's ratings by vLLM, every step with the adapter of the one before."""
        learner = module(
            GRPO, model, adapter, engine=engine, oracle=SelfJudge(), reward=Truth(), group_size=2, max_new_tokens=8
        )
        recorder = Recorder(learner)
        trainer(tmp_path).fit(learner, Rows(n=8, batch_size=4))
        assert learner.evaluator.oracle.engine is engine
        assert len(recorder.gradients) == 2 and all(gradient.abs().max() > 0 for gradient in recorder.gradients)
        assert [logged["train/mismatch_max"] < 1e-3 for logged in recorder.logged] == [True, True]

    def test_tagging_computes_the_tokens_of_a_passage_once(self, policy: Policy, engine: VllmEngine) -> None:
        """Counted by the engine; whole blocks of 32 tokens are reused, and each of the 11 scores is a request."""
        encoder = Encoder(policy.tokenizer, instruction="Rate each sentence. " * 6, scoring="exact")

        def counted(one: VllmEngine, records: list[Record]) -> tuple[int, int]:
            """Context tokens computed, and tokens of all contexts."""
            one.sync(policy)
            start, everything = one.prefill_tokens, 0
            for record in IterativeTagger(one, encoder).tag(records):
                context = len(encoder.prompt(record.question))
                for at, sentence in enumerate(record.sentences):
                    assert sentence.score is not None
                    context += len(encoder.head(sentence.text, first=at == 0))
                    everything += context
                    context += len(encoder.tails[sentence.score])
            return one.prefill_tokens - start, everything

        forgetful = small(max_model_len=1024, settings={"enable_prefix_caching": False})
        computed, everything = counted(forgetful, passages(1, 5))
        assert computed == 11 * everything  # what asking anew about every sentence costs vLLM
        forgetful.close()
        assert 5 * counted(engine, passages(1, 5, seed=1))[0] <= computed
        computed, everything = counted(engine, passages(1, 40, seed=2))  # a long page
        assert 5 * computed <= everything  # even if it could ask about all scores at once


def assert_now(engine: VllmEngine, policy: Policy, contexts: list[list[int]]) -> None:
    """After a sync, scores are those of the policy as it is."""
    engine.sync(policy)
    assert_scores(engine, policy.model, contexts, CHOICES)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def whole_words(folder: Path) -> Path:
    """A random model with the world's tokenizer: a token a word, "10" among them."""
    words = [*WORDS, *map(str, range(11)), "<confidence>", "</confidence>"]
    tokenizer = make_tokenizer([f" {word}" for word in words])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=2048, initializer_range=0.2,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@on_vllm
@pytest.mark.parametrize("split", [True, False], ids=["10-is-two-tokens", "10-is-one-token"])
def test_tags_equal_those_of_the_transformers_engine(split: bool, model: str, tmp_path: Path) -> None:
    policy = policy_of(model if split else whole_words(tmp_path / "words"))
    encoder = Encoder(policy.tokenizer, instruction="Rate each sentence.")
    assert (len(encoder.tails[10]) > len(encoder.tails[1])) == split
    records = passages(100, 5, seed=int(split))
    engine = small(max_model_len=1024)
    found = []
    for one in (engine, TransformersEngine(32)):
        one.sync(policy)
        found.append([s for record in IterativeTagger(one, encoder).tag(records) for s in record.sentences])
    engine.close()
    assert len(found[0]) == 500
    assert [s.score for s in found[0]] == [s.score for s in found[1]]
    assert len({s.score for s in found[0]}) > 2
    for mine, theirs in zip(*found, strict=True):
        assert mine.distribution == pytest.approx(theirs.distribution, rel=1e-4)


@on_vllm
def test_an_adapter_of_the_output_layer_is_exact(tmp_path: Path) -> None:
    """vLLM mistakes rows where such an adapter meets log-probabilities of prompts; so these are not asked for."""
    model = build_tiny("llama", tmp_path / "untied", max_position_embeddings=256, tie_word_embeddings=False)
    policy = policy_of(model, target_modules=["q_proj", "lm_head"])
    engine = small()
    engine.sync(policy)
    contexts = texts(3, 40)
    for context, scores in zip(contexts, engine.score(contexts, CHOICES), strict=True):
        expected = [naive_score(policy.model, context, choice) for choice in CHOICES]
        assert scores == pytest.approx(expected, abs=close(engine))
    engine.close()
