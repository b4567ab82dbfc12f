"""Outputs that are inputs are refused, what killed processes left is removed, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lovec.core.files import (
    atomic_file,
    atomic_folder,
    check_output,
    check_unused,
    check_writable,
    remove_leftovers,
    write_text,
)
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder in it, a file in that, and links to both."""
    monkeypatch.chdir(tmp_path)
    Path("data/inner").mkdir(parents=True)
    Path("data/in.jsonl").write_text("x")
    Path("link.jsonl").symlink_to("data/in.jsonl")
    Path("folder").symlink_to("data")
    os.link("data/in.jsonl", "hard.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("output", "source", "why"),
    [
        ("data/in.jsonl", "data/in.jsonl", "is also"),
        ("./data/inner/../in.jsonl", "data/in.jsonl", "is also"),
        ("link.jsonl", "data/in.jsonl", "is also"),
        ("data/in.jsonl", "link.jsonl", "is also"),
        ("hard.jsonl", "data/in.jsonl", "is also"),
        ("folder/in.jsonl", "data/in.jsonl", "is also"),
        ("folder", "data", "is also"),
        ("data", "data/in.jsonl", "holds"),
        ("folder", "data/in.jsonl", "holds"),
        (".", "data", "holds"),
        ("data/new/out.jsonl", "data", "lies in"),
        ("folder/new", "data", "lies in"),
        ("data/new", "folder", "lies in"),
    ],
)
def test_an_output_that_is_holds_or_lies_in_an_input_is_refused(here: Path, output: str, source: str, why: str) -> None:
    for path in (output, os.path.abspath(output)):
        with pytest.raises(LovecError, match=f"the output .* {why}.*choose another --out"):
            check_output(path, ["missing", None, source])


def test_other_outputs_are_free(here: Path) -> None:
    for output in ("out.jsonl", "data2", "data/other.jsonl", "data/in.jsonl.html", "new/folder"):
        check_output(output, ["data/in.jsonl", "meta-llama/Meta-Llama-3-8B-Instruct", None])


def test_the_folder_that_commands_run_in_is_no_output(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_output("data/inner", [])
    monkeypatch.chdir("data/inner")
    for output in (".", "..", "../inner", here / "folder", "/"):
        with pytest.raises(LovecError, match=r"the output .* is the working folder or holds it.*choose another --out"):
            check_output(output, ["missing", None, here / "link.jsonl"] if output == "." else [])


def test_a_spelling_that_the_file_system_takes_for_the_same_is_refused(here: Path) -> None:
    """As on a file system that ignores case, where two spellings are one file."""
    os.link("data/in.jsonl", "data/IN.jsonl")
    with pytest.raises(LovecError, match="is also"):
        check_output("data/IN.jsonl", ["data/in.jsonl"])


def test_a_device_is_no_output(here: Path) -> None:
    os.mkfifo("pipe")
    for output in ("pipe", os.devnull):
        with pytest.raises(LovecError, match="neither a file nor a folder"):
            check_output(output, [])
    assert Path(os.devnull).is_char_device()


def test_what_is_there_is_named_and_an_empty_file_or_folder_is_free(here: Path) -> None:
    Path("empty").touch()
    for output in ("empty", "data/inner", "missing"):
        check_unused(output, "do this")
    for output in ("data", "data/in.jsonl"):
        with pytest.raises(LovecError, match=f"{output} exists and is not empty; do this"):
            check_unused(output, "do this")


DYING = """
import os, signal, sys
from lovec.core.files import atomic_file, atomic_folder
with {kind}({path!r}) as temporary:
    (temporary / "new" if {kind} is atomic_folder else temporary).write_text("half")
    if {late}:
        real = os.replace
        os.replace = lambda *names: (real(*names), os.kill(os.getpid(), signal.SIGKILL))
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(kind: str, path: str, late: bool = False) -> None:
    code = DYING.format(kind=kind, path=path, late=late)
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == -signal.SIGKILL


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    mine = [".out.1.part", ".out.jsonl.part", ".notes.12-abcdefgh.part", ".out.99999999-00000000.part", "out.part"]
    for name in mine:  # of users, and of a process of another host
        (tmp_path / name).write_text("mine")
    killed("atomic_file", str(tmp_path / "out"))
    killed("atomic_folder", str(tmp_path / "run"))
    killed("atomic_file", str(tmp_path / "other"))
    left = set(names(tmp_path)) - set(mine)
    assert len(left) == 3
    with atomic_file(tmp_path / "busy") as temporary:  # a process that lives
        temporary.write_text("half")
        write_text(tmp_path / "out", "whole")
        with atomic_folder(tmp_path / "run") as folder:
            (folder / "new").touch()
        assert len(set(names(tmp_path)) - {"out", "run", *mine}) == 2  # the live one, and "other" of the dead one
        remove_leftovers(tmp_path)
        assert set(names(tmp_path)) - {"out", "run", *mine} == {temporary.name}
    assert names(tmp_path) == sorted([*mine, "out", "run", "busy"])
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a_folder_that_was_moved_away_at_a_kill_comes_back(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "old").touch()
    killed("atomic_folder", str(tmp_path / "run"), late=True)
    assert not (tmp_path / "run").exists()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["run"] and names(tmp_path / "run") == ["old"]


def test_a_leftover_of_an_earlier_process_with_the_same_number_is_in_nobodys_way(tmp_path: Path) -> None:
    """As in containers, whose first process is always number 1."""
    with atomic_folder(tmp_path / "run") as folder:
        leftover = folder.name
    (tmp_path / leftover).mkdir()
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "new").touch()
    assert names(tmp_path) == ["run"] and names(tmp_path / "run") == ["new"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    for name in ("links", "real"):
        (tmp_path / name).mkdir()
    file, folder = tmp_path / "real" / "file", tmp_path / "real" / "folder"
    if there:
        file.touch()
        folder.mkdir()
    for path in (file, folder):
        (tmp_path / "links" / path.name).symlink_to(f"../real/{path.name}")
    for text in ("first", "second"):
        write_text(tmp_path / "links" / "file", text)
        with atomic_folder(tmp_path / "links" / "folder") as fresh:
            (fresh / text).touch()
        assert file.read_text() == text and names(folder) == [text]
        assert names(tmp_path / "links") == names(tmp_path / "real") == ["file", "folder"]
        assert all(path.is_symlink() for path in (tmp_path / "links").iterdir())


def test_leftovers_beside_what_a_link_leads_to_are_removed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real/run")
    killed("atomic_folder", str(tmp_path / "link"))
    assert len(names(tmp_path / "real")) == 1
    with atomic_folder(tmp_path / "link") as fresh:
        (fresh / "new").touch()
    assert names(tmp_path / "real") == ["run"] and names(tmp_path / "link") == ["new"]


def test_a_leftover_that_another_process_moves_back_meanwhile_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atomic_folder(tmp_path / "run") as fresh:
        old = fresh.with_suffix(".old")
    (tmp_path / "run").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda folder: iter([old]))  # a listing from before that
        remove_leftovers(tmp_path, "run")
    assert names(tmp_path) == []
    (tmp_path / "run").mkdir()
    real = os.replace

    def moved(source: Path, target: Path) -> None:
        """Move a folder away, and be stopped, with another process that moves it back after one has looked."""
        real(source, target)
        if target == old:
            monkeypatch.setattr(Path, "exists", lambda path: path == old)
            real(old, tmp_path / "run")
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", moved)
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "run") as fresh:
        monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.undo()
    assert names(tmp_path) == ["run"]


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from lovec.core.files import check_writable\n"
        "from lovec.types import LovecError\n"
        "check_writable(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    check_writable(Path(sys.argv[1]))\n"
        "except LovecError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (
        run.stdout == f"cannot write into {tmp_path}/run (File too large); make room there, or choose another folder\n"
    )
    assert names(tmp_path / "run") == []


def test_a_file_where_a_folder_should_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(LovecError, match=r"cannot write into .*run"):
        check_writable(tmp_path / "run")
