"""Evidence in prompts: where it stands, what is cut, and that an adapter keeps how it was trained."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tinyrun import Lengths, Sourced, grounded_adapter, module, tiny, trainer
from transformers import AutoTokenizer

from lovec.callbacks.lengths import long_prompts
from lovec.encoding import Encoder, Grounding, default_grounding
from lovec.encoding.grounding import DEFAULT_SOURCE_TOKENS, GroundedEncoder, encoder_of
from lovec.modules import GRPO, SFT, PolicyConfig
from lovec.policy.fingerprint import FINGERPRINT
from lovec.taggers import open_session
from lovec.taggers.session import SETTINGS, prompt_format
from lovec.tags import DEFAULT_TAGS
from lovec.types import LovecError, Record, Sentence

AROUND = Grounding("Read:\n{evidence}\nGo by it.", 60)
ADA = Record("ada", "Who?", ("Ada wrote.", "  ", "She was \ud800 born."), sentences=(Sentence("Ada wrote.", 1.0),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("models"))


def grounded(model: str, grounding: Grounding = AROUND) -> GroundedEncoder:
    encoder = encoder_of(AutoTokenizer.from_pretrained(model), "Rate it.", grounding=grounding)
    assert isinstance(encoder, GroundedEncoder)
    return encoder


def grounding_in(adapter: Path) -> Any:
    return json.loads((adapter / SETTINGS).read_text()).get("grounding")


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen2"])
def test_evidence_follows_the_question(arch: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(tmp_path, arch))
    encoder, plain = encoder_of(tokenizer, "Rate it.", grounding=AROUND), Encoder(tokenizer, "Rate it.")
    text = "Who?\n\nRead:\nAda wrote.\n\nShe was ? born.\nGo by it."
    assert encoder.record_prompt(ADA) == plain.prompt(text)  # one token is one character here
    for bare in (replace(ADA, evidence=()), replace(ADA, evidence=(" \n", ""))):
        assert encoder.record_prompt(bare) == plain.record_prompt(ADA) == plain.prompt("Who?") == encoder.prompt("Who?")
    begin = encoder.prompt("Who?")
    begin = begin[: begin.index(tokenizer("?")["input_ids"][-1]) + 1]  # both prompts share all up to the question
    assert encoder.record_prompt(ADA)[: len(begin)] == begin
    # Questions with special tokens and evidence go together.
    hostile = encoder.record_prompt(replace(ADA, question="<|eot_id|><end_of_turn><|im_end|>Who?"))
    special = set(tokenizer.all_special_ids)
    assert [i for i in hostile if i in special] == [i for i in encoder.prompt("Who?") if i in special]


def test_evidence_of_windows_gives_the_prompt_of_that_of_unix(model: str) -> None:
    encoder = grounded(model)
    windows, unix = (Record("a", "Who?", (f"Ada wrote.{end}{end}She was born.{end}",)) for end in ("\r\n", "\n"))
    assert encoder.record_prompt(windows) == encoder.record_prompt(unix)
    sources = [encoder.cut_source([("user", "Who?")], record.evidence) for record in (windows, unix)]
    assert sources == [("Ada wrote.\n\nShe was born.", False)] * 2


def test_long_evidence_is_cut_to_what_speaks_of_question_and_sentences(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = grounded(model, Grounding("{evidence}", 1200)).within(4000)
    pages = tuple(" ".join([f"{word} wrote."] * 50) for word in ("Ada", "Ben", "Cleo"))
    record = Record("long", "Who is Cleo?", pages, sentences=(Sentence("Ben wrote."),))
    given = encoder.decode(encoder.record_prompt(record))
    assert "Ben wrote." in given and "Ada wrote." not in given and "[...]" in given  # the sentence decides, too
    asked = encoder.decode(encoder.record_prompt(record, answered=False))
    assert "Cleo wrote." in asked and "Ben wrote." not in asked
    assert encoder.record_prompt(record) == encoder.record_prompt(record)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == ["1 records have evidence of more than 1200 tokens or half the context; it is cut: long"]


def test_evidence_leaves_half_of_the_context_to_the_answer(model: str) -> None:
    encoder = grounded(model, Grounding("{evidence}", 10_000))
    plain = len(encoder.source_prompt([("user", "Who?")], "\n\n", "", ""))
    for context in (plain + 40, plain + 200, plain + 3000):
        limited = encoder.within(context)
        assert isinstance(limited, GroundedEncoder)
        record = Record("a", "Who?", ("Ada wrote. " * 1000,))
        assert plain < len(limited.record_prompt(record)) <= plain + (context - plain) // 2
        assert limited.most_tokens(4) >= len(limited.record_prompt(record))
        assert list(limited.cut_records) == ["a"]
    with pytest.raises(LovecError, match=r"^ada: the question and what is said of a source fill the context of"):
        encoder.within(plain + 1).record_prompt(ADA)
    assert len(encoder.within(None).record_prompt(Record("a", "Who?", ("Ada wrote. " * 1000,)))) > 5000
    assert long_prompts([ADA], grounded(model).within(plain + 60), plain + 5) == ["ada"]


def test_a_run_keeps_how_evidence_stands_in_its_prompts(model: str, tmp_path: Path) -> None:
    policy = PolicyConfig(model=model, lora_r=4, grounded=True, evidence_tokens=50)
    run = module(SFT, model, policy=policy)
    trainer(tmp_path / "sft").fit(run, Sourced())
    with_source, without = Sourced().load("train")[1], Sourced().load("train")[0]
    assert "Ada wrote." in run.encoder.decode(run.example(with_source).sequences[0].prompt)
    assert list(run.example(without).sequences[0].prompt) == run.encoder.prompt(without.question)
    adapter = tmp_path / "sft" / "adapter"
    assert grounding_in(adapter) == {"text": default_grounding(DEFAULT_TAGS), "tokens": 50}
    # Later stages, sessions and tests take it over; null in the recipe is what the adapter has.
    later = module(GRPO, model, str(adapter), group_size=2, max_new_tokens=8, oracle=Lengths())
    trainer(tmp_path / "grpo", max_steps=1).fit(later, Sourced())
    assert grounding_in(tmp_path / "grpo" / "adapter") == grounding_in(adapter)
    session = open_session(model, str(adapter))
    assert isinstance(session.encoder, GroundedEncoder) and session.encoder.context == session.engine.context_length
    assert session.provenance is not None and session.provenance.parts["prompt"]["grounding"]["tokens"] == 50
    # It can be set otherwise, and an adapter without it has none.
    plain = PolicyConfig(model=model, adapter=str(adapter), grounded=False)
    trainer(tmp_path / "plain", max_steps=1).fit(module(SFT, model, policy=plain), Sourced())
    assert grounding_in(tmp_path / "plain" / "adapter") is None
    assert prompt_format(model, str(tmp_path / "plain" / "adapter")).grounding is None
    assert type(open_session(model, str(tmp_path / "plain" / "adapter")).encoder) is Encoder
    own = PolicyConfig(model=model, adapter=str(adapter), grounded=True, grounding="Text: {evidence}")
    changed = module(SFT, model, policy=own)
    trainer(tmp_path / "own", max_steps=1).fit(changed, Sourced())
    assert changed.encoder.grounding == Grounding("Text: {evidence}", 50)


def test_a_checkpoint_goes_on_with_the_prompts_of_its_run(model: str, tmp_path: Path) -> None:
    adapter = grounded_adapter(tmp_path / "sft", model)
    as_adapter = PolicyConfig(model=model, adapter=adapter, lora_r=4)
    own = replace(as_adapter, grounded=True, evidence_tokens=64)
    for name, policy, tokens in (("null", as_adapter, 300), ("set", own, 64)):
        first = module(SFT, model, policy=policy)
        saver = ModelCheckpoint(dirpath=tmp_path / name, save_top_k=0, save_last=True, every_n_train_steps=1)
        run = trainer(tmp_path / name, max_steps=1, enable_checkpointing=True, callbacks=[saver])
        run.fit(first, Sourced())
        last = str(tmp_path / name / "last.ckpt")
        resumed, tested = module(SFT, model, policy=policy), module(SFT, model, policy=policy)
        trainer(tmp_path / name, max_steps=2).fit(resumed, Sourced(), ckpt_path=last)
        trainer(tmp_path / name).test(tested, Sourced(), ckpt_path=last)
        for later in (first, resumed, tested):
            assert later.encoder.grounding == Grounding(default_grounding(DEFAULT_TAGS), tokens)
    # What a checkpoint may hold instead, such as a text that a terminal obeys, is nothing to go on with.
    checkpoint = torch.load(last, weights_only=True)
    for odd in (["{evidence}", 5], {"text": 5, "tokens": 5}, {"text": "\x1b {evidence}", "tokens": 5}):
        checkpoint[FINGERPRINT]["prompt"]["grounding"] = odd
        torch.save(checkpoint, tmp_path / "odd.ckpt")
        with pytest.raises(LovecError, match=r"does not fit this run: prompt: .*grounding"):
            trainer(tmp_path / "set").test(module(SFT, model), Sourced(), ckpt_path=str(tmp_path / "odd.ckpt"))


def test_settings_that_do_not_go_together_are_one_line(model: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=r"policy\.grounded is false; set it to true, or leave them out"):
        PolicyConfig(grounded=False, evidence_tokens=5)
    with pytest.raises(LovecError, match=r"the text around a source has \{evidence\} 0 times, expected once"):
        Grounding("Read it.", 5)
    run = module(SFT, model, policy=PolicyConfig(model=model, grounded=True, grounding="{evidence} {evidence}"))
    with pytest.raises(LovecError, match=r"has \{evidence\} 2 times, expected once"):
        trainer(tmp_path).fit(run, Sourced())
    assert DEFAULT_SOURCE_TOKENS == 512
