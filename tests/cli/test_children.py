"""Child processes: they work at the same time, and end with the command, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import childwork
import pytest

from lovec.cli import demo
from lovec.cli.children import children, lines_of
from lovec.cli.demo_methods import METHODS
from lovec.core import stopwatch
from lovec.types import LovecError

SETTINGS = {"data": "world", "seed": 0}
CHOSEN = [method for method in METHODS if method.name in ("sft", "dpo", "grpo")]


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends(pids: list[int]) -> bool:
    deadline = time.monotonic() + 60
    while any(map(is_there, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_there, pids))


def until(files: list[Path]) -> list[int]:
    """Wait for files that children write, and return their process ids."""
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return [int(file.read_text()) for file in files]


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Run the stages of a demo with work that does nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo, "_work", childwork.stage)
    monkeypatch.setattr(demo, "_prepare", childwork.prepare)
    return lambda jobs=2: demo._run_stages(CHOSEN, demo.State.of(tmp_path, SETTINGS, False), False, jobs)


def test_two_stages_of_a_demo_run_at_a_time_each_after_what_it_needs(stages, tmp_path, capfd):
    stages()
    lines = [line.split(",") for line in (tmp_path / "log").read_text().splitlines()]
    at = {name: (float(begin), float(end)) for name, begin, end, _ in lines}
    assert set(at) == {text.format(name) for name in ("sft", "dpo", "grpo") for text in ("fit {}", "test {} in domain")}
    assert all(at["fit sft"][1] <= begin for name, (begin, _) in at.items() if name != "fit sft")
    assert all(at[f"fit {name}"][1] <= at[f"test {name} in domain"][0] for name in ("sft", "dpo", "grpo"))
    assert at["fit grpo"][0] < at["fit dpo"][1] and at["fit dpo"][0] < at["fit grpo"][1]  # at the same time
    assert len({pid for *_, pid in lines}) == 2  # a process each, which are used again
    most = max(sum(begin < other < end for begin, end in at.values()) for other, _ in at.values())
    assert most <= 1  # beside the one that begins
    said = capfd.readouterr().err
    assert "sft: warning: it works" in said and "grpo: warning: it works" in said
    (tmp_path / "log").unlink()
    stages()
    assert not (tmp_path / "log").exists() and capfd.readouterr().err.count("done by an earlier call") == 3


def test_an_error_of_one_stage_ends_the_others_and_the_demo(stages, tmp_path, capfd):
    (tmp_path / "fail dpo").touch()
    (tmp_path / "train grpo").touch()
    begin = time.monotonic()
    with pytest.raises(LovecError, match=r"^dpo has no room$"):
        stages()
    assert time.monotonic() - begin < 300
    assert ends(until([tmp_path / "trains grpo"]))
    for name in ("fail dpo", "train grpo", "log"):
        (tmp_path / name).unlink()
    capfd.readouterr()
    stages()  # goes on
    done = {line.partition(",")[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert "fit sft" not in done and {"fit dpo", "fit grpo", "test sft in domain"} <= done
    said = capfd.readouterr().err
    assert "grpo: warning: it works again" in said and "trained by an earlier call" in said


@pytest.mark.parametrize("names", [("sleep", "sleep"), ("idle", "work")], ids=lambda names: names[1])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_children_end_with_the_command(tmp_path, number, code, names):
    command = [sys.executable, "-W", "ignore", childwork.__file__, str(tmp_path), *names]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        pids = until([tmp_path / "child-0", tmp_path / "child-1"])
        if number == signal.SIGINT:  # of a terminal, which all its processes get
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        assert parent.wait(60) == code
        assert ends(pids)
        assert parent.stderr.read().count("Traceback") <= 1  # the children say nothing
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_child_knows_how_many_share_the_machine():
    assert stopwatch.processes_at_a_time == 1
    with children(2) as pool:
        assert pool.submit(childwork.shared).result() == 2


def test_a_child_that_dies_is_an_error():
    with pytest.raises(LovecError, match=r"a child process died, perhaps for lack of memory; continue .* fewer --jobs"):
        with children(1) as pool:
            pool.submit(childwork.die).result()


def test_lines_of_children_have_a_name(capfd):
    with lines_of("dpo"):
        print("lovec: train 3/4", end="", flush=True)
        print(", loss 1\n\n     goes on\nunended", file=sys.stderr, end="")
    assert capfd.readouterr() == ("", "dpo: train 3/4, loss 1\ndpo: goes on\ndpo: unended\n")
