"""Prompts and answers as token ids: one BOS, no tokens across boundaries, the same pieces everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepieces import sentencepiece
from tinyrun import tiny
from tokenizers import normalizers
from transformers import AutoTokenizer

from lovec.encoding import INSTRUCTION, QUESTION, Encoder, default_instruction, distinct_prefixes
from lovec.tags import DEFAULT_TAGS, TagFormat, parse
from lovec.types import LovecError, Scale

ARCHS = ["llama", "gemma2", "qwen2", "qwen3"]
PAPER = Path(__file__).parents[2] / "shared" / "paper" / "lovec.tex"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def tokenizer(models: Path, arch: str = "llama") -> Any:
    return AutoTokenizer.from_pretrained(tiny(models, arch))


@pytest.mark.parametrize("arch", ARCHS)
def test_prompts_are_what_the_template_writes(models: Path, arch: str) -> None:
    encoder = Encoder(tokenizer(models, arch), "Rate it.")
    text = encoder.tokenizer.decode(encoder.prompt("Who?"))
    expected = {
        "llama": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nRate it.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "gemma2": "<bos><start_of_turn>user\nRate it.\n\nWho?<end_of_turn>\n<start_of_turn>model\n",
    }
    qwen = "<|im_start|>system\nRate it.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected.get(arch, qwen) + ("<think>\n\n</think>\n\n" if arch == "qwen3" else "")
    assert "Rate it." not in encoder.tokenizer.decode(encoder.prompt("Who?", instruct=False))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_turn_ends_with_its_own_token(models: Path, arch: str) -> None:
    encoder = Encoder(tokenizer(models, arch))
    end = {"llama": "<|eot_id|>", "gemma2": "<end_of_turn>"}.get(arch, "<|im_end|>")
    assert encoder.tokenizer.convert_ids_to_tokens(encoder.end_id) == end
    assert {encoder.end_id, encoder.tokenizer.eos_token_id} == set(encoder.stop_ids)
    assert encoder.completion(["A."], [3])[-1] == encoder.end_id


def test_a_turn_ends_with_a_token_that_is_special_but_has_no_name(models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny(models, "gemma2"), tmp_path / "gemma2"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["extra_special_tokens"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    nameless = AutoTokenizer.from_pretrained(folder)
    end = nameless.convert_tokens_to_ids("<end_of_turn>")
    assert nameless.added_tokens_decoder[end].special and end not in nameless.all_special_ids
    encoder = Encoder(nameless)
    assert encoder.end_id == end and set(encoder.stop_ids) == {end, nameless.eos_token_id}
    assert encoder.completion(["A."], [3])[-1] == end


def test_one_bos_even_where_template_and_tokenizer_both_write_one(models: Path) -> None:
    plain = tokenizer(models)
    doubled = tokenizer(models)
    doubled.chat_template = "{{ bos_token }}" + doubled.chat_template
    ids = Encoder(doubled, "Rate it.").prompt("Who?")
    assert ids == Encoder(plain, "Rate it.").prompt("Who?")
    assert ids.count(plain.bos_token_id) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text("abc Ad.é9", min_size=1, max_size=12), st.integers(0, 10)), min_size=1, max_size=4))
def test_completions_give_their_sentences_and_scores_back(tagged: list[tuple[str, int]]) -> None:
    encoder = test_completions_give_their_sentences_and_scores_back.encoder  # type: ignore[attr-defined]
    tagged = [(text.strip() or "x", score) for text, score in tagged]
    ids = encoder.completion(*zip(*tagged, strict=True))
    assert ids[:-1] == [
        i for n, (text, score) in enumerate(tagged) for i in (*encoder.head(text, n == 0), *encoder.tails[score])
    ]
    parsed = parse(encoder.decode(ids))
    assert [(s.text, s.score) for s in parsed.sentences] == tagged and not parsed.tail


@pytest.fixture(scope="module", autouse=True)
def _encoder(models: Path) -> None:
    test_completions_give_their_sentences_and_scores_back.encoder = Encoder(tokenizer(models))  # type: ignore[attr-defined]


def test_ten_is_a_whole_string_however_many_tokens_it_has(models: Path) -> None:
    encoder = Encoder(tokenizer(models))
    assert len(encoder.tails[10]) == len(encoder.tails[1]) + 1  # bytes: "1", "0"
    assert encoder.tails[10][:2] == encoder.tails[1][:2]  # a first-token reading could not tell them apart
    assert [encoder.decode(tail) for tail in encoder.tails] == [f" {score} </confidence>" for score in range(11)]


def test_first_tokens_tell_the_scores_apart(models: Path) -> None:
    encoder = Encoder(tokenizer(models), scoring="prefix")
    whole = encoder.with_scoring("exact")
    assert encoder.tails == whole.tails == whole.choices and whole.with_scoring("prefix").choices == encoder.choices
    [space], [one], [ten] = (encoder.pieces(text) for text in (" ", "1", "0"))
    assert encoder.choices[2] == encoder.tails[2][:2]
    assert encoder.choices[10] == [space, one, ten]
    assert encoder.choices[1] == [space, one, encoder.tails[1][2]]  # "1" begins "10", what follows it does not
    assert distinct_prefixes([[1, 2, 3], [1, 2], [4, 4], [4, 4], [5, 6]]) == [[1, 2, 3], [1, 2], [4, 4], [4, 4], [5]]
    with pytest.raises(LovecError, match="scoring is 'first', expected one of exact, prefix"):
        Encoder(tokenizer(models), scoring="first")  # type: ignore[arg-type]


def test_tag_words_can_be_chosen(models: Path) -> None:
    encoder = Encoder(tokenizer(models), "Rate it.", TagFormat("[sure", "]"))
    assert encoder.decode(encoder.completion(["A.", "B."], [10, 0])) == "A. [sure 10 ] B. [sure 0 ]"


def test_a_template_that_drops_the_system_turn_gets_it_in_the_user_turn(models: Path) -> None:
    silent = tokenizer(models)
    silent.chat_template = silent.chat_template.replace(
        "{%- for m in messages -%}", "{%- for m in messages if m['role'] != 'system' -%}"
    )
    text = silent.decode(Encoder(silent, "Rate it.").prompt("Who?"))
    assert "user<|end_header_id|>\n\nRate it.\n\nWho?<|eot_id|>" in text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "has no chat template; use an instruction-tuned model, or give a template with"),
        ("{{ messages | length }}{{ messages[-1]['content'] }}", "renders a prompt differently"),
    ],
)
def test_tokenizers_that_cannot_be_used_are_one_clear_line(models: Path, template: str | None, words: str) -> None:
    broken = tokenizer(models)
    broken.chat_template = template
    with pytest.raises(LovecError) as error:
        Encoder(broken)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_that_loses_tags_is_refused(models: Path) -> None:
    broken = tokenizer(models)
    broken.add_special_tokens({"additional_special_tokens": ["</confidence>"]})  # left out when text is decoded
    with pytest.raises(LovecError, match="does not give the tag '<confidence> 0 </confidence>' back"):
        Encoder(broken)


def test_a_tokenizer_that_puts_a_space_before_every_text_is_refused_with_another_model_as_the_fix() -> None:
    spaced = sentencepiece()  # as files of Llama 2 are where no class of their own reads them
    spaced.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    with pytest.raises(LovecError, match="puts a space before every text: use another model"):
        Encoder(spaced, "Rate it.")


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not beside the checkout")
def test_instruction_and_question_are_the_papers_word_for_word() -> None:
    text = PAPER.read_text(encoding="utf-8")
    assert INSTRUCTION in text
    assert QUESTION.format(entity="Stiff Person Syndrome") in text


PERCENT = Scale(tuple(map(str, range(101))))
WORDS = Scale(("no", "unlikely", "perhaps", "likely", "yes"))


def test_every_level_of_a_scale_has_a_tail(models: Path) -> None:
    for scale in (PERCENT, WORDS):
        encoder = Encoder(tokenizer(models), "Rate it.", TagFormat("<c>", "</c>", scale))
        assert encoder.scale == scale
        assert [encoder.decode(tail) for tail in encoder.tails] == [f" {word} </c>" for word in scale.words]
        scores = list(range(scale.size))
        ids, marks = encoder.completion_with_marks(["A."] * scale.size, scores)
        for mark, score in zip(marks, scores, strict=True):
            assert ids[mark : mark + len(encoder.tails[score])] == encoder.tails[score]
        assert [s.score for s in parse(encoder.decode(ids), encoder.tags).sentences] == scores


def test_an_instruction_is_generated_for_other_tags(models: Path) -> None:
    assert Encoder(tokenizer(models)).instruction == default_instruction(DEFAULT_TAGS) == INSTRUCTION
    assert "- Include a confidence score from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.\n" in INSTRUCTION
    assert INSTRUCTION.endswith("<confidence> X </confidence>, \nwhere X is a number from 0 to 10.")
    words = Encoder(tokenizer(models), tags=TagFormat("<c>", "</c>", WORDS)).instruction
    assert "a confidence score from no, unlikely, perhaps, likely, yes." in words
    assert "- no = very low confidence" in words and "- yes = very high confidence" in words
    assert "the format: <c> X </c>" in words and "where X is one of no, unlikely, perhaps, likely, yes." in words
    percent = default_instruction(TagFormat(scale=PERCENT))
    assert "a confidence score from 0 to 100." in percent and "- 100 = very high confidence" in percent
    assert percent.endswith("the format: <confidence> X </confidence>, \nwhere X is a number from 0 to 100.")
    assert Encoder(tokenizer(models), "Mine.", TagFormat(scale=PERCENT)).instruction == "Mine."


def test_a_conversation_is_encoded_with_its_roles_in_turn(models: Path) -> None:
    encoder = Encoder(tokenizer(models), "Rate it.")
    assert encoder.dialogue([("user", "Who?")]) == encoder.prompt("Who?")
    turns = [("system", "Be brief."), ("user", "Who?"), ("assistant", "Ada."), ("user", "When?")]
    text = encoder.tokenizer.decode(encoder.dialogue(turns))
    parts = ["Rate it.\n\nBe brief.<|eot_id|>", "Who?<|eot_id|>", "Ada.<|eot_id|>", "When?<|eot_id|>"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    for wrong in ([], [("system", "x")], [("user", "a"), ("user", "b")], [("user", "a"), ("assistant", "b")]):
        with pytest.raises(LovecError, match="expected user and assistant in turn, user first and last"):
            encoder.dialogue(wrong)
