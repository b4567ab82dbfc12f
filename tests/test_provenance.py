"""What decides a score, compared in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lovec.calibration import read_calibrations
from lovec.core.provenance import Origin, Provenance, changes, provenance_of, text_digest, weights_digest, weights_of
from lovec.encoding import prompt_settings
from lovec.labelling.splitting import Splitting, split_file
from lovec.oracles.cache import reply_key
from lovec.policy.fingerprint import differences
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import LovecError

RESUMED = Path(__file__).parent / "data" / "resumed"
"""Files that an earlier version has written."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float32"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    options = {"r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"], "use_dora": False, "peft_version": "1"}
    (folder / "adapter_config.json").write_text(json.dumps(options))
    (folder / "adapter_model.safetensors").write_bytes(b"lora")
    return folder


def found(base: Path | None, adapter: Path | None, name: str = "org/model", **changes: Any) -> Provenance:
    prompt = prompt_settings(changes.pop("instruction", "Rate."), changes.pop("tags", DEFAULT_TAGS))
    return provenance_of(name, base, adapter, prompt, **{"scoring": "exact", **changes})


def test_what_changes_no_score_makes_no_difference(base: Path, adapter: Path, tmp_path: Path) -> None:
    before = found(base, adapter)
    (base / "config.json").write_text(json.dumps({"dtype": "bfloat16", "model_type": "llama", "_name": "x"}))
    (base / "tokenizer_config.json").write_text('{"local_files_only": true}')  # what offline use leaves there
    (base / "chat_template.jinja").write_text("{{ messages }}")  # where newer versions of transformers keep it
    (base / "README.md").write_text("A model.")
    options = {"lora_alpha": 16, "r": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": False, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps({**options, "peft_version": "2", "lora_dropout": 0.5}))
    after = found(base.rename(tmp_path / "moved"), adapter, name="/somewhere/moved")
    assert before.differences(after) == [] == before.unchecked(after)
    assert "somewhere" not in json.dumps(after.to_dict())
    assert Provenance.from_dict(json.loads(json.dumps(before.to_dict()))) == before


@pytest.mark.parametrize("option", ["alpha_pattern", "rank_pattern", "use_dora", "use_rslora", "layers_to_transform"])
def test_every_option_of_an_adapter_counts(base: Path, adapter: Path, option: str) -> None:
    before, path = found(base, adapter), adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), option: {"q_proj": 4}}))
    assert before.differences(found(base, adapter)) == [f"{option}.q_proj was none, is 4"]


def test_differences_are_said_in_words(base: Path, adapter: Path, tmp_path: Path) -> None:
    before = found(base, adapter)
    (tmp_path / "own.jinja").write_text("other")
    other = found(
        base,
        None,
        instruction="Rate" + " every sentence of the answer with a confidence" * 3 + " please.",
        tags=TagFormat("<b>", "</b>"),
        chat_template=str(tmp_path / "own.jinja"),
        quantization="nf4",
        scoring="prefix",
    )
    said = "\n".join(before.differences(other))
    for words in (
        f"adapter was {weights_digest(adapter)[:12]}, is none",
        'instruction was Rate., is "Rate every',
        'tag_words was ["<confidence>", "</confidence>"], is ["<b>", "</b>"]',
        "chat_template was ",
        "quantization was none, is nf4",
        "scoring was exact, is prefix",
    ):
        assert words in said
    (base / "model.safetensors").write_bytes(b"others")
    digests = [weights_digest(base)[:12], before.parts["base"]["weights"][:12]]
    assert before.differences(found(base, adapter)) == [
        f"the digest of the model's weights was {digests[1]}, is {digests[0]}"
    ]
    assert before.differences(found(base, adapter, "org/other")) == ["model was org/model, is org/other"]


def test_what_is_not_known_is_not_compared_and_said(base: Path, adapter: Path) -> None:
    here, there = found(base, adapter), found(None, adapter)
    assert here.differences(there) == []
    assert here.unchecked(there) == [
        "the model's configuration",
        "the tokenizer",
        "the digest of the model's weights",
        "chat_template",
    ]
    assert here.differences(found(None, adapter, "org/other")) == ["model was org/model, is org/other"]
    plain = here.without_tags()
    assert plain.differences(found(base, adapter, instruction="Other.", scoring="prefix")) == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (5, "a provenance is 5, expected an object"),
        ({}, "a provenance lacks"),
        ({"base": [], "adapter": {}, "prompt": {}, "computing": {}}, "base of a provenance is a list"),
        ({"base": {"a\nb": 1}, "adapter": {}, "prompt": {}, "computing": {}}, "a name in base of a provenance is"),
        ({"base": {}, "adapter": {"r": "9" * 99_999}, "prompt": {}, "computing": {}}, "r of a provenance is"),
    ],
)
def test_what_is_no_provenance_is_refused(data: Any, line: str) -> None:
    with pytest.raises(LovecError, match=line):
        Provenance.from_dict(data)


def test_hostile_text_is_printable(base: Path, adapter: Path) -> None:
    (said,) = found(base, adapter).differences(found(base, adapter, instruction="\x1b[31mred\x9b\n"))
    assert said.isprintable() and "\n" not in said


def test_an_origin_says_everything_that_differs_once(base: Path, adapter: Path) -> None:
    before = found(base, adapter).to_dict()
    after = found(base, adapter, scoring="prefix", instruction="Other.").to_dict()
    settings = {"scoring": "exact", "seed": 0, "oracle": {"class": "A", "model": "m"}, "provenance": before}
    one = Origin.of({"files": ["a" * 64]}, settings)
    assert (
        one.unlike(Origin.from_dict(one.to_dict()))
        == ""
        == one.unlike(Origin.of(one.source, {**settings, "new": None}))
    )
    other = {**settings, "scoring": "prefix", "oracle": {"class": "B"}, "new": "two\nlines", "provenance": after}
    assert one.unlike(Origin.of(one.source, other)) == (
        "other settings: instruction was Rate., is Other.; scoring was exact, is prefix; oracle.class was A, is B; "
        "oracle.model was m, is none; "
        'new was none, is "two\\nlines"'
    )
    moved = Origin.of({"files": ["b" * 64]}, settings)
    assert one.unlike(moved).startswith('another input (files was ["aaa') and "other settings" not in one.unlike(moved)
    said = "{name} is {one} in shard 1/2, {other} in shard 2/2"
    assert one.unlike(Origin.of(one.source, {**settings, "seed": 1}), said) == (
        "other settings: seed is 0 in shard 1/2, 1 in shard 2/2"
    )
    assert one.unlike(Origin.of(one.source, {**settings, "provenance": None})) == ""  # as an earlier version wrote it


def test_own_code_is_compared_where_both_know_it_and_named() -> None:
    one, two = (Origin.of({}, {"code": {"own.judge": digest, name: "a"}}) for digest, name in (("a", "b"), ("c", "d")))
    assert one.unlike(two) == "other settings: the code of own.judge was a, is c"
    assert one.unlike(Origin.of({}, {})) == "" == Origin.of({}, {}).unlike(one)
    with pytest.raises(LovecError, match="the code among its settings is 'a', expected an object"):
        Origin.from_dict({"source": {}, "settings": {"code": "a"}})


def test_values_are_shown_short_and_from_where_they_differ() -> None:
    same = "x " * 100
    (said,) = changes({"text": f"{same}a {same}"}, {"text": f"{same}b {same}"}).values()
    assert said.startswith("text was ...") and "a x" in said and "is ..." in said and len(said) < 180
    assert changes({"a": 1, "b": {"c": 1}}, {"b": {"c": 2}}, known=True) == {"b.c": "b.c was 1, is 2"}
    (said,) = changes({"a\x1b[31m": "b"}, {}).values()
    assert said.isprintable()


def test_a_map_that_was_written_before_is_applied_and_checked(base: Path, adapter: Path, caplog: Any) -> None:
    shutil.copy(RESUMED / "calibration.json", adapter)
    assert list(read_calibrations(adapter, found(base, adapter))) == ["iterative"] and not caplog.messages
    with pytest.raises(LovecError, match=r"other scores \(instruction was Rate\., is Other\.; scoring was exact"):
        read_calibrations(adapter, found(base, adapter, instruction="Other.", scoring="prefix"))
    (adapter / "adapter_model.safetensors").write_bytes(b"others")
    with pytest.raises(LovecError, match="fitted to other weights"):
        read_calibrations(adapter, found(base, adapter))


def test_splits_that_were_made_before_are_kept_and_checked(tmp_path: Path) -> None:
    shutil.copytree(RESUMED / "splits", tmp_path / "splits")
    labelled, before = tmp_path / "splits/labelled.jsonl", (tmp_path / "splits/train.jsonl").stat().st_mtime_ns
    assert split_file(labelled, Splitting()) == {"entities": 4, "train": 2, "dev": 1, "test": 1}
    assert (tmp_path / "splits/train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(LovecError, match="other settings: seed was 0, is 1; make them anew with --redo"):
        split_file(labelled, Splitting(seed=1))
    with open(labelled, "a") as file:
        file.write(labelled.read_text().splitlines()[0].replace("r0", "r9") + "\n")
    with pytest.raises(LovecError, match=r"were made with another input \(file was c2306ee4c21e, is"):
        split_file(labelled, Splitting())


def test_a_checkpoint_of_before_fits_its_run_and_no_other() -> None:
    saved = json.loads((RESUMED / "fingerprint.json").read_text())
    run = {part: dict(values) for part, values in saved.items() if part not in ("run", "started")}
    assert differences(saved, run) == {}
    run["prompt"]["scale"], run["settings"]["data.path"] = ["no", "yes"], "b.jsonl"
    assert list(differences(saved, run)) == ["prompt"]  # the name of a file alone decides nothing
    run["data"]["content"] = "fedcba9876543210"
    assert differences(saved, run)["data"] == (
        "data.path was a.jsonl, is b.jsonl, content was 0123456789ab, is fedcba987654"
    )


def test_what_is_found_by_a_digest_is_found_again(adapter: Path, monkeypatch: Any) -> None:
    """Names of folders and keys of caches are as earlier versions have made them."""
    from lovec.cli.sweep import _digest

    messages = [{"role": "user", "content": "é"}]
    assert reply_key("m", "http://x/v1/", messages, {"temperature": 0}, 1) == (
        "da6a9691db9b3b6f60f52077b8d66ccaadbd954486c26bfa3afc41f6d3780a30"
    )
    monkeypatch.chdir(adapter.parent)
    for start, trainer, key in (
        (None, {"default_root_dir": "x", "max_steps": 4}, "430e591781f5"),
        ("adapter", {"max_steps": 4}, "9abcb97f0ff1"),
    ):
        assert _digest({"trainer": trainer, "model": {"init_args": {"policy": {"adapter": start}}}}, 1) == key
    assert text_digest(["a", b"b"]) == text_digest(["ab"])
    assert weights_of(adapter) == weights_digest(adapter) and weights_of(None) is None is weights_of("nowhere")
