"""`--shard` of `lovec tag` and `lovec label`, and `lovec join`: the bytes of one run over the whole input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from forks import in_child, kill_at_call
from tinyrun import tiny

from lovec.cli import main
from lovec.datasets.jsonl import read_records, write_records
from lovec.labelling import Shard
from lovec.labelling.sources import select
from lovec.types import LovecError, Record

ORACLE = (
    "from collections.abc import Sequence\nfrom lovec.types import Record\n"
    "class Half:\n    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:\n"
    "        return [[0.5 if len(r.id) % 2 else 1.0 for _ in r.sentences] for r in records]\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture(scope="module")
def tagged(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ten documents, of which some share an id, tagged by one run and by three shards."""
    folder = tmp_path_factory.mktemp("tagged")
    with inside(folder):
        write_documents("in.jsonl", 10)
        assert tag(model, "--out", "whole.jsonl") == 0
        for number in (2, 3, 1):
            assert tag(model, "--out", "tags.jsonl", "--shard", f"{number}/3") == 0
    return folder


@pytest.fixture
def here(tagged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in."""
    return work_in_copy(tagged, tmp_path, monkeypatch)


def work_in_copy(folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy a folder, and let a test work in the copy."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return copy


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield


def write_documents(path: str, count: int) -> None:
    rows = [{"id": f"d{i % 8}", "text": f"Ada wrote note {i}. It rained."} for i in range(count)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def tag(model: str, *words: str) -> int:
    return main(
        ["tag", "in.jsonl", *words, "--about", "Ada", "--model", model, "--instruction", "Rate.", "--rows", "1"]
    )


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(list(words)) in (1, 2)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: "))
    return line


def killed(words: list[str], call: str, at: int) -> int:
    """Exit code of a run in a process of its own that kills itself at one of its calls that make things last."""

    def work() -> int:
        kill_at_call(os, call, at)
        return main(words)

    return in_child(work)


def contents(folder: Path) -> dict[str, bytes]:
    apart = (".lock", "recipe.yaml")  # the recipe names the folder
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name not in apart}


# What a shard is


def test_shards_take_every_record_once_also_after_some_are_done() -> None:
    for total in (0, 1, 2, 7, 9):
        for count in (1, 2, 3, 8):
            shards = [Shard(number, count) for number in range(1, count + 1)]
            parts = [list(select(range(total), shard, 0)) for shard in shards]
            assert sorted(chain(*parts)) == list(range(total)) and parts[0] == list(range(0, total, count))
            assert all(list(select(range(total), s, 2)) == part[2:] for s, part in zip(shards, parts, strict=True))
    assert list(select(range(5), None, 3)) == [3, 4]
    assert str(Shard.parse("03/8")) == "3/8"


@pytest.mark.parametrize("text", ["0/8", "9/8", "1/0", "a/b", "3", "/", "", "-1/8", "1/8/2", "1.0/2", " 1/2"])
def test_other_shards_are_refused_by_both_commands(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LovecError, match=r"expected i/n"):
        Shard.parse(text)
    for command in (
        ["tag", "in.jsonl", "--out", "x.jsonl", "--model", "tiny-llama"],
        ["label", "--answers", "in.jsonl"],
    ):
        assert "expected i/n" in error(capsys, *command, f"--shard={text}")
    assert not Path("x.jsonl").exists()


@pytest.mark.parametrize("words", [[], ["--out", "x.html"], ["--out", "x.txt"], ["--format", "jsonl"]])
def test_only_jsonl_files_have_shards(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = error(capsys, "tag", "in.jsonl", "--model", "tiny-llama", "--shard", "1/2", *words)
    assert "--shard writes JSONL files" in line


# Tags


def test_shards_of_tags_join_to_the_file_of_one_run(
    here: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [r.id for r in read_records("tags.shard-3-of-3.jsonl")] == ["d2", "d5", "d0#2"]
    assert main(["join", "tags.jsonl"]) == 0
    assert capsys.readouterr().err == "tags.jsonl: 10 records of 3 shards\n"
    for suffix in (".jsonl", ".manifest.json"):
        assert Path(f"tags{suffix}").read_bytes() == Path(f"whole{suffix}").read_bytes()
    with monkeypatch.context() as patch:  # the joined file is finished also for `lovec tag`
        patch.setattr("lovec.taggers.open_session", None)
        assert tag(model, "--out", "tags.jsonl") == 0
        assert tag(model, "--out", "tags.jsonl", "--shard", "1/3") == 0
    before = contents(here)
    assert "tags.jsonl exists and is not empty; replace it with --redo" in error(capsys, "join", "tags.jsonl")
    assert main(["join", "tags.jsonl", "--redo"]) == 0
    assert contents(here) == before


def test_a_killed_shard_goes_on(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path in here.glob("tags.shard-1-of-3.*"):
        path.unlink()
    words = ["tag", "in.jsonl", "--out", "tags.jsonl", "--shard", "1/3", "--about", "Ada", "--model", model]
    words += ["--instruction", "Rate.", "--rows", "1"]
    assert killed(words, "fsync", at=7) == -signal.SIGKILL
    with open("tags.shard-1-of-3.jsonl", "a") as file:
        file.write('{"id": "half a li')
    line = error(capsys, "join", "tags.jsonl")
    assert "tags.shard-1-of-3.jsonl is not finished (" in line and "--shard 1/3" in line
    assert json.loads(Path("tags.shard-1-of-3.manifest.json").read_text())["counts"]["records"] in (1, 2, 3)
    assert main(words) == 0
    assert main(["join", "tags.jsonl"]) == 0
    assert Path("tags.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_more_shards_than_records(here: Path, model: str) -> None:
    write_documents("in.jsonl", 2)
    for number in (1, 2, 3):
        assert tag(model, "--out", "few.jsonl", "--shard", f"{number}/3") == 0
    assert tag(model, "--out", "all.jsonl") == 0
    assert main(["join", "few.jsonl"]) == 0
    for suffix in (".jsonl", ".manifest.json"):
        assert Path(f"few{suffix}").read_bytes() == Path(f"all{suffix}").read_bytes()


def test_two_shards_are_written_at_once_but_not_one_twice(
    here: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from filelock import FileLock

    with FileLock(".tags.shard-2-of-3.jsonl.lock"):
        assert tag(model, "--out", "tags.jsonl", "--shard", "1/3") == 0
        assert tag(model, "--out", "tags.jsonl", "--shard", "2/3") == 1
    assert "writes tags.shard-2-of-3.jsonl; wait for it" in capsys.readouterr().err


def test_the_joined_file_must_not_be_the_input(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("in.jsonl").read_bytes()
    assert tag(model, "--out", "in.jsonl", "--shard", "1/3") == 1
    assert "the output in.jsonl is also the input in.jsonl" in capsys.readouterr().err
    Path("tags.jsonl").symlink_to("tags.shard-1-of-3.jsonl")
    assert "also the input" in error(capsys, "join", "tags.jsonl", "--redo")
    assert Path("in.jsonl").read_bytes() == before and not list(here.glob("in.shard*"))


def edited(path: str, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = Path(path)
    state = json.loads(manifest.read_text())
    change(state)
    manifest.write_text(json.dumps(state))


def doubled(last: bool) -> None:
    """Repeat a line, and say so in the manifest."""
    import hashlib

    path = Path("tags.shard-2-of-3.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[0]] if last else [*lines, lines[-1]]))
    digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    edited("tags.shard-2-of-3.manifest.json", lambda state: state.update(digest=digest, sizes=[size]))


def same_size(path: str) -> None:
    """Change a word, not the size."""
    file = Path(path)
    file.write_bytes(file.read_bytes().replace(b"rained", b"snowed"))


FAULTS: list[tuple[str, Callable[[], object]]] = [
    (
        "1 of 3 shards of tags.jsonl are missing; run --shard 2/3",
        lambda: [path.unlink() for path in Path().glob("tags.shard-2-of-3.*")],
    ),
    ("there is no tags.shard-2-of-3.jsonl, but its manifest", Path("tags.shard-2-of-3.jsonl").unlink),
    ("has no tags.shard-2-of-3.manifest.json that says how", Path("tags.shard-2-of-3.manifest.json").unlink),
    (
        "tags.shard-2-of-3.manifest.json is not a manifest of a stage: the manifest is a list of 0 items",
        lambda: Path("tags.shard-2-of-3.manifest.json").write_text("[]"),
    ),
    (
        "shards of 3 and of 4; remove those of the split",
        lambda: shutil.copy("tags.shard-2-of-3.jsonl", "tags.shard-2-of-4.jsonl"),
    ),
    (
        "tags.shard-2-of-3.jsonl holds the shard 1/3, expected the shard 2/3",
        lambda: [shutil.copy(path, path.name.replace("1-of", "2-of")) for path in Path().glob("tags.shard-1-of-3.*")],
    ),
    (
        "tags.shard-2-of-3.jsonl holds the whole input, expected the shard 2/3",
        lambda: [shutil.copy(f"whole{end}", f"tags.shard-2-of-3{end}") for end in (".jsonl", ".manifest.json")],
    ),
    (
        "tags.shard-2-of-3.jsonl was changed since it was written",
        lambda: shutil.copy("tags.shard-1-of-3.jsonl", "tags.shard-2-of-3.jsonl"),
    ),
    (
        "tags.shard-1-of-3.jsonl was changed since it was written",
        lambda: Path("tags.shard-1-of-3.jsonl").write_text("{oops\n"),
    ),
    (
        "tags.shard-2-of-3.jsonl holds 2 records, expected 4 or 3 beside the 4 of shard 1/3",
        lambda: edited("tags.shard-2-of-3.manifest.json", lambda state: state["counts"].update(records=2)),
    ),
    ("the record 'd1' is in tags.jsonl twice", lambda: doubled(last=True)),
    ("the record 'd7' is in tags.jsonl twice", lambda: doubled(last=False)),
    ("tags.shard-2-of-3.jsonl was changed since it was written", lambda: same_size("tags.shard-2-of-3.jsonl")),
]


@pytest.mark.parametrize(("message", "break_it"), FAULTS)
def test_shards_that_are_not_whole_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], message: str, break_it: Callable[[], object]
) -> None:
    break_it()
    assert message in error(capsys, "join", "tags.jsonl")
    assert not Path("tags.jsonl").exists() and not Path("tags.manifest.json").exists()
    assert not list(here.glob(".*.part"))


def test_shards_of_another_input_model_or_option_are_one_line(
    here: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = ["--out", "tags.jsonl", "--shard", "2/3", "--redo"]
    assert tag(model, *shard, "--min_confidence", "0.3") == 0
    line = error(capsys, "join", "tags.jsonl")
    assert "other settings: min_confidence is none in shard 1/3, 0.3 in shard 2/3; make one of the two again" in line
    write_documents("in.jsonl", 11)
    assert tag(model, *shard) == 0
    assert "another input (files is " in error(capsys, "join", "tags.jsonl")
    edited("tags.shard-3-of-3.manifest.json", lambda state: state["identity"]["settings"].update(model="other"))
    write_documents("in.jsonl", 10)
    assert tag(model, *shard) == 0
    assert "other settings: model is " in error(capsys, "join", "tags.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.jsonl"], "there are no shards of nothing.jsonl; make them with --shard 1/n to n/n"),
        (["no/tags.jsonl"], "there is no folder no"),
        (["page.txt"], "page.txt is neither a name that ends in .jsonl nor a folder"),
        (["."], "there are no shards of ."),
        ([], "OUT"),
        (["tags.jsonl", "--rde"], "did you mean --redo?"),
    ],
)
def test_one_line_errors(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in error(capsys, "join", *words)
    assert not Path("no").exists()


def test_help_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch", "jsonargparse", "transformers"):
            patch.setitem(sys.modules, name, None)
        assert main(["join", "--help"]) == 0
    assert "--redo" in capsys.readouterr().out


# Labels


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with ten questions, one too long for the model, labelled by one run and by three shards."""
    folder = tmp_path_factory.mktemp("labelled")
    with inside(folder):
        Path("mine_half.py").write_text(ORACLE)
        questions = [Record(f"q{i}", f"Who is number {i}?") for i in range(9)]
        write_records("q.jsonl", [*questions[:4], Record("long", "x" * 5000), *questions[4:]])
        model = tiny(folder, "llama")
        for out, *shard in (["whole"], *(["out", "--shard", f"{number}/3"] for number in (2, 1, 3))):
            code = label(model, "--out", out, *shard)
            place = f"shard-{shard[1].replace('/', '-of-')}" if shard else ""
            failed = [json.loads(line)["id"] for line in Path(out, place, "failed.jsonl").read_text().splitlines()]
            assert code == bool(failed) and ("long" in failed) == (shard[1:] in ([], ["2/3"]))
    yield folder
    sys.modules.pop("mine_half", None)


def label(model: str, *words: str) -> int:
    samples = ["--samples", "2", "--temperature", "1", "--max-new-tokens", "6", "--rows", "1", "--chunk", "1"]
    return main(["label", "--questions", "q.jsonl", "--model", model, "--oracle", "mine_half.Half", *samples, *words])


@pytest.fixture
def there(labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in."""
    return work_in_copy(labelled, tmp_path, monkeypatch)


def test_shards_of_labels_join_to_the_files_of_one_run(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "out"]) == 0
    assert main(["label", "--out", "out", "--stages", "splits"]) == 0
    assert contents(Path("out")) == contents(Path("whole"))
    ids = [record.id for record in read_records("out/answers.jsonl")]
    assert ids[:4] == ["q0/sample-1", "q0/sample-2", "q1/sample-1", "q1/sample-2"] and ids[8] == "long"
    assert json.loads(Path("out/failed.jsonl").read_text().splitlines()[-1])["id"]
    before = contents(Path("out"))
    assert label(str(there / "none"), "--out", "out", "--stages", "pairs") == 0  # finished, as after one run
    assert "exists and is not empty; replace it with --redo" in error(capsys, "join", "out")
    assert main(["join", "out", "--redo"]) == 0
    assert contents(Path("out")) == before


def test_a_shard_of_labels_says_what_comes_next(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", "--out", "out", "--stages", "pairs", "--shard", "2/3"]) == 0
    assert capsys.readouterr().out.endswith(
        "when all 3 shards are done:\n  lovec join out\n  lovec label --stages splits --out out\n"
    )


def remake(stage: str, *words: str) -> None:
    assert main(["label", "--out", "out", "--stages", stage, "--shard", "2/3", "--redo", *words]) == 0


@pytest.mark.parametrize(
    ("message", "break_it"),
    [
        ("1 of 3 shards of out are missing; run --shard 2/3", lambda: shutil.rmtree("out/shard-2-of-3")),
        (
            "out/shard-2-of-3 has no pairs.jsonl, but shard-3-of-3 has; run that stage for --shard 2/3",
            lambda: [path.unlink() for path in Path("out/shard-2-of-3").glob("pairs.*")],
        ),
        ("pairs.jsonl was made with other settings: seed is 0 in shard 1/3, 1 in shard 2/3", lambda: remake_pairs()),
        (
            "out/shard-2-of-3/sentences.jsonl was not made of the answers.jsonl beside it",
            lambda: edited("out/shard-2-of-3/answers.manifest.json", lambda state: state.update(digest="0" * 64)),
        ),
        (
            "out/shard-2-of-3/failed.jsonl was changed since it was written",
            lambda: Path("out/shard-2-of-3/failed.jsonl").write_text('{"id": "q1/sample-1"}\n' * 40),
        ),
        (
            "out/shard-2-of-3/questions.jsonl holds the shard 3/3, expected the shard 2/3",
            lambda: shutil.copytree("out/shard-3-of-3", "out/shard-2-of-3", dirs_exist_ok=True),
        ),
        (
            "the shards in out hold no files",
            lambda: [path.unlink() for path in Path("out").glob("*/*") if path.is_file()],
        ),
    ],
)
def test_shards_of_labels_that_do_not_fit_are_one_line(
    there: Path, capsys: pytest.CaptureFixture[str], message: str, break_it: Callable[[], object]
) -> None:
    break_it()
    assert message in error(capsys, "join", "out")
    assert not list(Path("out").glob("*.jsonl"))


def remake_pairs() -> None:
    remake("pairs", "--seed", "1")


def test_the_joined_labels_must_not_be_the_input(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--answers", "whole/answers.jsonl", "--oracle", "mine_half.Half", "--out", "whole", "--shard", "1/2"]
    assert "the output whole/answers.jsonl is also the input" in error(capsys, "label", *words)
