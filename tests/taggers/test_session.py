"""Sessions: the instruction, the tag words and the scale that a model is prompted with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from completionserver import CompletionServer
from tinyrun import Rows, module, trainer
from transformers import AutoTokenizer

import lovec
from lovec.core.hub import TEMPLATE
from lovec.encoding import INSTRUCTION, Encoder, default_instruction
from lovec.labelling.steps import EngineWriter
from lovec.models.tiny import build_tiny
from lovec.modules import SFT, PolicyConfig
from lovec.serving.served import SessionModel
from lovec.taggers import FreeFormTagger, IterativeTagger, open_session
from lovec.taggers.freeform import AnswerReader, read_answer
from lovec.taggers.session import (
    SETTINGS,
    adapter_folder,
    base_model,
    prompt_format,
    settings_file,
    trained_unit,
)
from lovec.tagging import TextTagger
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, Completion, LovecError, Record, Sampling, Scale, Sentence

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
    assert prompt_format("some/model") == (INSTRUCTION, DEFAULT_TAGS, "prefix", None)
    assert prompt_format("some/model", str(tmp_path), "Mine.") == ("Mine.", DEFAULT_TAGS, "prefix", None)


def test_the_scale_is_saved_only_where_it_is_not_the_default(model: str, tmp_path: Path) -> None:
    default = save(tmp_path / "default", model, "Rate.", TagFormat("<c>", "</c>"))
    saved = json.loads((Path(default) / SETTINGS).read_text())
    assert saved == {"instruction": "Rate.", "tag_words": ["<c>", "</c>"], "scoring": "prefix"}
    words = save(tmp_path / "words", model, "Rate.", TagFormat("<c>", "</c>", WORDS))
    assert json.loads((Path(words) / SETTINGS).read_text())["scale"] == ["no", "perhaps", "yes"]
    assert prompt_format("m", words) == ("Rate.", TagFormat("<c>", "</c>", WORDS), "prefix", None)
    # A file without a scale means the default one, whatever is saved beside the base model.
    assert prompt_format(words, default)[:2] == ("Rate.", TagFormat("<c>", "</c>", DEFAULT_SCALE))


def test_what_is_scored_is_saved_with_an_adapter(model: str, tmp_path: Path) -> None:
    saved = save(tmp_path / "saved", model, "Rate.", DEFAULT_TAGS)
    assert prompt_format("m", saved).scoring == "prefix" and prompt_format("m", saved, scoring="exact")[2] == "exact"
    path = Path(saved) / SETTINGS
    settings = json.loads(path.read_text())
    del settings["scoring"]  # as files were written when every score was scored up to the closing tag word
    path.write_text(json.dumps(settings))
    assert prompt_format("m", saved).scoring == "exact" and prompt_format("m", saved, scoring="prefix")[2] == "prefix"
    whole = Encoder(AutoTokenizer.from_pretrained(model), scoring="exact")
    assert "scoring" not in json.loads(settings_file(whole)[SETTINGS])


def test_the_unit_of_training_is_saved_where_it_is_not_sentences(model: str, tmp_path: Path) -> None:
    saved = Path(save(tmp_path / "saved", model, "Rate.", DEFAULT_TAGS))
    assert trained_unit(str(saved)) == "sentence" and "unit" not in json.loads((saved / SETTINGS).read_text())
    encoder = Encoder(AutoTokenizer.from_pretrained(model))
    (saved / SETTINGS).write_text(settings_file(encoder, unit="clause")[SETTINGS])
    assert trained_unit(str(saved)) == "clause"
    assert trained_unit(str(tmp_path)) is None  # nothing says that anything was trained


class Clauses(Rows):
    """Rows whose sentences are clauses."""

    def load(self, split: str) -> list[Record]:
        return [
            replace(record, sentences=tuple(replace(s, part_of=0) for s in record.sentences))
            for record in super().load(split)
        ]


def test_a_training_on_clauses_says_so_beside_its_adapter(model: str, tmp_path: Path) -> None:
    for name, data in (("sentence", Rows()), ("clause", Clauses())):
        trainer(tmp_path / name).fit(module(SFT, model), data)
        assert trained_unit(str(tmp_path / name / "adapter")) == name


@pytest.mark.parametrize(
    ("trained", "asked", "said"),
    [
        ("sentence", "clause", "the adapter in {} was trained on sentences, and is now asked to score clauses"),
        ("clause", "sentence", "the adapter in {} was trained on clauses, and is now asked to score whole sentences"),
        ("clause", "clause", ""),
        ("sentence", "sentence", ""),
    ],
)
def test_who_asks_an_adapter_at_other_units_is_warned(
    model: str,
    adapter: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    trained: Any,
    asked: Any,
    said: str | None,
) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    encoder = Encoder(AutoTokenizer.from_pretrained(model))
    (copy / SETTINGS).write_text(settings_file(encoder, unit=trained)[SETTINGS])
    with open_session(model, str(copy)) as session:
        TextTagger(session, unit=asked)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(said)
    assert "".join(lines).startswith(said.format(copy)) and "\n" not in "".join(lines)


def test_a_model_that_nothing_was_trained_on_is_asked_at_any_unit(model: str) -> None:
    with open_session(model) as session:
        assert session.unit is None and session.unit_problem("clause") is None


def test_paths_of_model_and_adapter_are_taken_as_their_texts(model: str, adapter: str) -> None:
    text = lovec.tag("Ada wrote notes.", "Who is Ada?", model=Path(model), adapter=Path(adapter).parent)
    assert text == lovec.tag("Ada wrote notes.", "Who is Ada?", model=model, adapter=adapter)
    with open_session(Path(model), Path(adapter)) as session:  # type: ignore[arg-type]
        assert (session.model, session.adapter) == (model, adapter)


def test_the_chat_template_of_training_is_used_in_a_session(model: str, tmp_path: Path) -> None:
    own, other = tmp_path / "own.jinja", tmp_path / "other.jinja"
    text = (Path(model) / "chat_template.jinja").read_text()
    own.write_text(f"{text}{{# own #}}")
    other.write_text(f"{text}{{# other #}}")
    trainer(tmp_path / "plain").fit(module(SFT, model), Rows())
    assert not (tmp_path / "plain" / "adapter" / TEMPLATE).exists()
    assert "chat_template" not in json.loads((tmp_path / "plain" / "adapter" / SETTINGS).read_text())
    policy = PolicyConfig(model=model, lora_r=4, chat_template=str(own))
    trainer(tmp_path / "run").fit(module(SFT, model, policy=policy), Rows())
    adapter = tmp_path / "run" / "adapter"
    with open_session(adapter=str(adapter)) as session:
        assert session.encoder.tokenizer.chat_template == own.read_text()
        with open_session(adapter=str(adapter), chat_template=str(own)) as same:
            assert same.provenance == session.provenance
    with open_session(adapter=str(adapter), chat_template=str(other)) as session:
        assert session.encoder.tokenizer.chat_template == other.read_text()
    (adapter / TEMPLATE).write_text(other.read_text())
    with pytest.raises(LovecError, match=r"lovec\.json tells of a chat template that is not in .*; copy that file"):
        open_session(adapter=str(adapter))
    (adapter / TEMPLATE).write_text(" " * (1 << 18) + "x")
    with pytest.raises(LovecError, match=r"has more than 262144 bytes"):
        open_session(adapter=str(adapter))
    (adapter / TEMPLATE).unlink()
    with pytest.raises(LovecError, match=r"tells of a chat template that is not in"):
        open_session(adapter=str(adapter))


def test_a_saved_instruction_goes_with_its_scale_only(model: str, tmp_path: Path) -> None:
    saved = save(tmp_path / "saved", model, "Say no, perhaps or yes.", TagFormat("<c>", "</c>", WORDS))
    assert prompt_format(saved, scale=["no", "perhaps", "yes"])[0] == "Say no, perhaps or yes."
    numbers = TagFormat("<c>", "</c>", DEFAULT_SCALE)
    assert prompt_format(saved, scale=DEFAULT_SCALE.words)[:2] == (default_instruction(numbers), numbers)
    assert prompt_format(saved, instruction="Mine.", scale=DEFAULT_SCALE.words)[:2] == ("Mine.", numbers)
    assert prompt_format(saved, tag_words=("<a>", "</a>"))[:2] == (
        "Say no, perhaps or yes.",
        TagFormat("<a>", "</a>", WORDS),
    )


@pytest.mark.parametrize(
    "settings",
    [
        '{"instruction": "Half."}',
        '{"instruction": "x", "tag_words": ["<c>"]}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "scale": 7}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "scoring": "first"}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "unit": "word"}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "grounding": {"text": "no place", "tokens": 9}}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "grounding": {"text": "{evidence}", "tokens": 0}}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "grounding": {"text": "\\u001b{evidence}", "tokens": 9}}',
        '{"instruction": "x", "tag_words": ["<c>", "</c>"], "grounding": true}',
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
    with pytest.raises(LovecError, match="there is no adapter nowhere, expected"):
        base_model("nowhere")


# Where answers end


def with_stops(folder: Path, stops: object, file: str = "generation_config.json") -> str:
    """Let a model list the ids at which its answers end."""
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**settings, "eos_token_id": stops}))
    return str(folder)


@pytest.fixture
def ending(tmp_path: Path) -> tuple[Path, list[int], int]:
    """A tiny model, the ids that it writes, and one of them, with which it may end instead."""
    folder = build_tiny("llama", tmp_path / "ending", seed=3)
    session = open_session(str(folder))
    prompt = session.encoder.prompt(RECORD.question)
    [[completion]] = session.engine.generate([prompt], Sampling(40), session.encoder.stop_ids)
    assert not completion.finished
    return folder, list(completion.ids), completion.ids[20]


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_every_token_that_a_model_lists_ends_an_answer(ending: tuple[Path, list[int], int], file: str) -> None:
    folder, written, stop = ending
    end = written.index(stop)
    with_stops(folder, [json.loads((folder / "config.json").read_text())["eos_token_id"], stop], file)
    with CompletionServer(str(folder)) as server:
        for engine in ("transformers", server.url):
            with open_session(str(folder), engine=engine) as session:
                encoder = session.encoder
                assert stop in encoder.stop_ids and encoder.end_id != stop
                assert encoder.completion(["It rained."], [3])[-1] == encoder.end_id  # as it is trained
                text = encoder.decode(written[:end]).rstrip("\ufffd")
                [tagged] = FreeFormTagger(session.engine, encoder, Sampling(40)).tag([RECORD])
                assert tagged.meta["finished"] is True and tagged.answer == text
                plain = session.encoder.prompt(RECORD.question, instruct=False)
                [[sampled]] = session.engine.generate([plain], Sampling(40), encoder.stop_ids)
                [[answer]] = EngineWriter(session.engine, encoder).write([RECORD], Sampling(40))
                assert answer.text == encoder.written(sampled.ids).strip() and answer.finished == sampled.finished


def test_training_and_serving_stop_there_too(ending: tuple[Path, list[int], int], tmp_path: Path) -> None:
    folder, _, stop = ending
    model = with_stops(folder, stop)
    trained = module(SFT, model)
    trainer(tmp_path / "run").fit(trained, Rows())
    assert stop in trained.encoder.stop_ids and trained.encoder.end_id != stop
    nothing: Any = None
    with open_session(model) as session:
        served = SessionModel(session, nothing)
        assert served.encoder.stop_ids == session.encoder.stop_ids and stop in served.encoder.stop_ids


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("stops", ["</s>", [1, "2"], -1, [True], {"a": 1}])
def test_stops_that_are_no_ids_are_refused(tmp_path: Path, stops: object, file: str) -> None:
    folder = build_tiny("llama", tmp_path / "odd")
    with pytest.raises(LovecError, match=r"eos_token_id|does not hold a whole model"):
        open_session(with_stops(folder, stops, file))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_half_a_character_at_a_limit_is_left_out(model: str, cut: int) -> None:
    encoder = Encoder(AutoTokenizer.from_pretrained(model))
    ids = encoder.pieces("It rained. Nobody knew \U0001f600")
    completion = Completion(tuple(ids[:-cut]), (0.0,) * (len(ids) - cut), False)
    record, _ = read_answer(RECORD, completion, encoder)
    assert record.answer == "It rained. Nobody knew " and record.sentences[-1].text == "It rained. Nobody knew"
    reader = AnswerReader(encoder)
    for token in completion.ids:
        reader.on_token(token)
    assert reader.rest().tail == "It rained. Nobody knew "
    whole = Completion((*ids, encoder.end_id), (0.0,) * (len(ids) + 1), True)
    assert read_answer(RECORD, whole, encoder)[0].answer.endswith("\U0001f600")


def test_loading_shows_no_bars_and_keeps_the_users_setting(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    for show in (logging.disable_progress_bar, logging.enable_progress_bar):
        show()
        enabled = logging.is_progress_bar_enabled()
        open_session(model).close()
        assert logging.is_progress_bar_enabled() is enabled and "Loading" not in capsys.readouterr().err
    list(logging.tqdm(range(2), desc="mine"))
    assert "mine" in capsys.readouterr().err
