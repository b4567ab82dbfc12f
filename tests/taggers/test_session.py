"""Sessions: the instruction, the tag words and the scale that a model is prompted with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from lovec.encoding import INSTRUCTION, Encoder, default_instruction
from lovec.taggers import IterativeTagger, open_session
from lovec.taggers.session import SETTINGS, adapter_folder, base_model, prompt_format, settings_file
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, LovecError, Record, Scale, Sentence

WORDS = Scale(("no", "perhaps", "yes"))
RECORD = Record("a", "Who is Ada?", sentences=(Sentence("Ada wrote notes."), Sentence("It rained.")))


def save(folder: Path, model: str, instruction: str, tags: TagFormat) -> str:
    """Write the prompt format of a model into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    files = settings_file(Encoder(AutoTokenizer.from_pretrained(model), instruction, tags))
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return str(folder)


def test_the_paper_is_the_default(tmp_path: Path) -> None:
    assert prompt_format("some/model") == (INSTRUCTION, DEFAULT_TAGS)
    assert prompt_format("some/model", str(tmp_path), "Mine.") == ("Mine.", DEFAULT_TAGS)


def test_the_scale_is_saved_only_where_it_is_not_the_default(model: str, tmp_path: Path) -> None:
    default = save(tmp_path / "default", model, "Rate.", TagFormat("<c>", "</c>"))
    assert json.loads((Path(default) / SETTINGS).read_text()) == {"instruction": "Rate.", "tag_words": ["<c>", "</c>"]}
    words = save(tmp_path / "words", model, "Rate.", TagFormat("<c>", "</c>", WORDS))
    assert json.loads((Path(words) / SETTINGS).read_text())["scale"] == ["no", "perhaps", "yes"]
    assert prompt_format("m", words) == ("Rate.", TagFormat("<c>", "</c>", WORDS))
    # A file without a scale means the default one, whatever is saved beside the base model.
    assert prompt_format(words, default) == ("Rate.", TagFormat("<c>", "</c>", DEFAULT_SCALE))


def test_a_saved_instruction_goes_with_its_scale_only(model: str, tmp_path: Path) -> None:
    saved = save(tmp_path / "saved", model, "Say no, perhaps or yes.", TagFormat("<c>", "</c>", WORDS))
    assert prompt_format(saved, scale=["no", "perhaps", "yes"])[0] == "Say no, perhaps or yes."
    numbers = TagFormat("<c>", "</c>", DEFAULT_SCALE)
    assert prompt_format(saved, scale=DEFAULT_SCALE.words) == (default_instruction(numbers), numbers)
    assert prompt_format(saved, instruction="Mine.", scale=DEFAULT_SCALE.words) == ("Mine.", numbers)
    assert prompt_format(saved, tag_words=("<a>", "</a>")) == (
        "Say no, perhaps or yes.",
        TagFormat("<a>", "</a>", WORDS),
    )


@pytest.mark.parametrize(
    "settings",
    [
        '{"instruction": "Half."}',
        '{"instruction": "x", "tag_words": ["<c>"]}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "scale": 7}',
        "[]",
        "no json",
        '{"instruction": 7, "tag_words": ["<c>", "</c>"]}',
        '{"instruction": "x", "tag_words": [1, 2]}',
        '{"instruction": "x", "tag_words": "<>"',
        '{"instruction": "x\\u001b[2J", "tag_words": ["<c>", "</c>"]}',
        '{"instruction": "x", "tag_words": ["<c\\n>", "</c>"]}',
        json.dumps({"instruction": "x", "tag_words": ["<" + 64 * "c" + ">", "</c>"]}),
        json.dumps({"instruction": "x", "tag_words": ["<c>", "</c>"], "scale": [str(i) for i in range(1002)]}),
        json.dumps({"instruction": "x " * 40_000, "tag_words": ["<c>", "</c>"]}),
        "[" * 60_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, settings: str) -> None:
    (tmp_path / SETTINGS).write_text(settings)
    with pytest.raises(LovecError, match=r"lovec\.json is broken, expected .* write it anew, or delete it") as caught:
        prompt_format("m", str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_session_tags_on_the_scale_that_is_given_or_saved(model: str, adapter: str, tmp_path: Path) -> None:
    words = ["no", "perhaps", "yes"]
    opened = open_session(model, tag_words=("<c>", "</c>"), scale=words)
    assert opened.encoder.scale == WORDS and "one of no, perhaps, yes" in opened.encoder.instruction
    [given] = IterativeTagger(opened.engine, opened.encoder).tag([RECORD])
    assert all(s.levels == 3 and s.score in range(3) and len(s.distribution or ()) == 3 for s in given.sentences)
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    save(own, model, "Rate.", opened.encoder.tags)
    assert open_session(model, str(own)).encoder.scale == WORDS
    with pytest.raises(LovecError, match="the words of the scale are"):
        open_session(model, scale=["yes", "yes"])


def test_an_adapter_is_found_in_its_run_and_names_its_base_model(model: str, adapter: str) -> None:
    assert adapter_folder(str(Path(adapter).parent)) == adapter_folder(adapter) == adapter
    assert base_model(adapter) == model
    with pytest.raises(LovecError, match="there is no adapter in nowhere"):
        base_model("nowhere")
