"""Families of models, by tiny ones with random weights: prompts, exact log-probabilities, training, tagging."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
import torch
from families import FAMILIES, PAGE, Family, described, page
from tinyrun import fit, module
from transformers import AutoTokenizer
from vllmtiny import on_vllm, small

from lovec.encoding import Encoder, UserTurn
from lovec.encoding.chats import render
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.modules import DPO
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.taggers import FreeFormTagger, IterativeTagger
from lovec.types import LovecError, Record, Sampling, Sentence

NAMES = {family.arch: family for family in FAMILIES}
REFUSED_ON_VLLM = {
    "olmo2": "transformers' own Olmo2Model, which it changes in this process.* start a vLLM server",
    "gptoss": "vLLM failed: .*triton|vLLM cannot load .*: expert parallel group is not initialized",
}
"""Families that vLLM 0.32 does not run beside the policy on a CPU, with what is said of them. The second of gpt-oss is
vLLM's where the process has loaded another model before."""


@pytest.fixture(scope="module", params=FAMILIES, ids=[family.arch for family in FAMILIES])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny(family.arch, tmp_path_factory.mktemp("families") / family.arch))


@pytest.fixture(scope="module")
def policy(folder: str) -> Policy:
    policy = Policy(PolicyConfig(folder, lora_r=4, lora_alpha=8))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.fixture(scope="module")
def encoder(policy: Policy) -> Encoder:
    return Encoder(policy.tokenizer, "Rate it.")


def test_a_prompt_ends_where_the_template_puts_the_answer(family: Family, encoder: Encoder) -> None:
    prompt = encoder.tokenizer.decode(encoder.prompt("Who?"))
    assert prompt.endswith(f"Who?{family.before}") and "Rate it." in prompt
    answer = encoder.tokenizer.decode(encoder.completion(["A.", "B."], [7, 10]))
    assert answer == f"A. <confidence> 7 </confidence> B. <confidence> 10 </confidence>{family.end}"
    bos = encoder.tokenizer.bos_token_id
    assert bos is None or encoder.prompt("Who?").count(bos) == 1
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A."}]
    whole = render(encoder.tokenizer, turns).replace("] A.", "]A.")  # Mistral's blank is part of the first token
    if family.arch not in ("r1", "nemotron"):  # which drop the thought of an answer that is there, and its end
        assert f"Who?{family.before}A.{family.end}" in whole


def test_a_prompt_is_the_same_on_every_day_and_never_asks_for_a_thought(encoder: Encoder) -> None:
    text = encoder.tokenizer.decode(encoder.prompt("Who?"))
    assert "20" not in text or "26 Jul 2024" in text or "2024-07-26" in text
    assert text.count("<think>") == text.count("</think>")


def test_every_directive_of_a_date_is_fixed(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny("llama3", tmp_path / "model"))
    directives = "%Y %m %d %-d %y %B %b %A %a %j %H %I %M %S %p"
    tokenizer.chat_template = f"  {{% if true %}}\n{{{{ strftime_now('{directives}') }}}}\n{{% endif %}}"
    plain = tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], tokenize=False)
    written = render(tokenizer, [{"role": "user", "content": "Who?"}])
    assert written == datetime(2024, 7, 26, 12).strftime(directives) + "\n"
    assert len(plain.splitlines()) == len(written.splitlines()) and plain != written  # the same white space


def test_a_conversation_keeps_its_earlier_turns(family: Family, encoder: Encoder) -> None:
    ids = encoder.dialogue([("user", "Who?"), ("assistant", "Ada."), ("user", "When?")])
    text = encoder.tokenizer.decode(ids)
    assert text.endswith(f"When?{family.before}") and "Ada." in text and "Who?" in text


def test_log_probabilities_are_those_of_the_model_itself(policy: Policy, encoder: Encoder) -> None:
    prompt = tuple(encoder.prompt("Who?"))
    rows = [TokenSequence(prompt, tuple(encoder.completion(["Ada was it.", "B."], [7, s]))) for s in (1, 10)]
    logps = policy.eval().token_logps(TokenBatch.of(rows))
    for row, found in zip(rows, logps, strict=True):
        ids = torch.tensor([row.prompt + row.completion])
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
        naive = logits[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]
        torch.testing.assert_close(found[: len(naive)].double(), naive, atol=2e-5, rtol=1e-5)


def test_every_target_learns(family: Family, folder: str, tmp_path: Path) -> None:
    recorder = fit(tmp_path, objective := module(DPO, folder), max_steps=1)
    assert recorder.gradients[0].isfinite().all() and recorder.gradients[0].abs().max() > 0
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name, p in objective.policy.named_parameters()
              if ".lora_" in name and p.requires_grad}  # fmt: skip
    assert layers == set(family.layers)


def test_texts_and_answers_are_tagged(policy: Policy, encoder: Encoder) -> None:
    engine = TransformersEngine()
    engine.sync(policy.eval())
    record = Record("a", "Who?", sentences=(Sentence("Ada was."), Sentence("B was not.")))
    (scored,) = IterativeTagger(engine, encoder, "mean").tag([record])
    assert all(s.confidence is not None and len(s.distribution or ()) == 11 for s in scored.sentences)
    (answer,) = FreeFormTagger(engine, encoder, Sampling(max_new_tokens=6)).tag([record])
    assert answer.answer


def test_the_page_says_what_is_true_here(family: Family, policy: Policy, encoder: Encoder) -> None:
    assert described(family, policy, encoder) in PAGE.read_text(encoding="utf-8"), "run: make models"


def test_the_page_has_every_family() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make models"


def test_layers_that_a_fused_one_covers_in_part_are_refused(tmp_path: Path) -> None:
    model = str(build_tiny("phi3", tmp_path / "phi3"))
    with pytest.raises(LovecError, match="this model has no layers q_proj to train a LoRA on"):
        Policy(PolicyConfig(model, target_modules=["q_proj", "o_proj"]))


def test_a_template_without_a_place_for_the_answer_is_refused_with_the_reason(tmp_path: Path) -> None:
    policy = Policy(PolicyConfig(str(build_tiny("qwen2", tmp_path / "qwen2"))))
    template = policy.tokenizer.chat_template
    policy.tokenizer.chat_template = template.replace("assistant\\n' -}}{%- endif", "narrator\\n' -}}{%- endif")
    assert policy.tokenizer.chat_template != template
    with pytest.raises(LovecError, match=r"after the question it writes .*narrator.* before one that is there"):
        Encoder(policy.tokenizer)


@on_vllm
def test_vllm_gives_the_same_tags(family: Family, policy: Policy, encoder: Encoder) -> None:
    record = Record("a", "Who?", sentences=(Sentence("Ada was."), Sentence("B was not.")))
    engine = small(max_model_len=1024)
    if family.arch in REFUSED_ON_VLLM:
        with pytest.raises(LovecError, match=REFUSED_ON_VLLM[family.arch]):
            engine.sync(policy.eval())
            IterativeTagger(engine, encoder, "mean").tag([record])
        engine.close()
        return
    found = []
    for one in (engine, TransformersEngine()):
        one.sync(policy.eval())
        (scored,) = IterativeTagger(one, encoder, "mean").tag([record])
        found.append(scored.sentences)
    engine.close()
    for mine, theirs in zip(*found, strict=True):
        assert mine.distribution == pytest.approx(theirs.distribution, rel=1e-4)


def test_a_judge_is_asked_where_the_template_puts_the_answer(family: Family, encoder: Encoder) -> None:
    turn = UserTurn(encoder, ["Yes", "No"])
    found = turn.context("Is it? ", turn.quoted("<think> maybe"), " Say.", None)
    assert found is not None and encoder.tokenizer.decode(found[0]).endswith(f"<think> maybe Say.{family.before}")
    replies = ["".join(encoder.tokenizer.decode(ids).split()) for ids in turn.replies]
    assert replies == [f"Yes{family.end}", f"No{family.end}"]
