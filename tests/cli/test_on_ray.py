"""`--on ray` of `lovec tag` and `lovec label`, on a real cluster of two nodes: the bytes of one process."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from forks import Fork
from tinyrun import tiny

from lovec.cli import main
from lovec.labelling.ray_files import MOST_TRIES, TRIES, RaySettings, begin_try, read_chunk, write_chunk
from lovec.labelling.stage import Chunk
from lovec.types import LovecError, Record, Sentence

if TYPE_CHECKING:
    from raycluster import RayCluster

LIMIT = 240.0
"""Seconds after which a command is killed, or something is waited for no longer."""

ORACLE = """
import os, signal, time
from collections.abc import Sequence
from lovec.types import LovecError, Record
class Slow:
    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        for record in records:
            if record.id == os.environ.get("REFUSED"):
                raise LovecError(f"{record.id} is refused")
            if os.path.exists("deadly-" + record.id):
                with open("killed.txt", "a") as file:
                    file.write(".")
                os.kill(os.getpid(), signal.SIGKILL)
            with open("asked.txt", "a") as file:
                file.write(record.id + "\\n")
            time.sleep(0.1)
        return [[0.5 if len(s.text) % 2 else 1.0 for s in r.sentences] for r in records]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from raycluster import ray_cluster

    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


class Start(Protocol):
    """Starts a command in a process of its own, with a cluster for ``--on ray``."""

    def __call__(self, *words: str, **environment: str) -> Fork: ...


@pytest.fixture
def start(cluster: RayCluster, here: Path) -> Iterator[Start]:
    """What starts commands; those that still run at the end of a test are killed."""
    forks = []

    def begin(*words: str, **environment: str) -> Fork:
        def work() -> int:
            faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
            return main(list(words))

        forks.append(Fork(work, {"RAY_ADDRESS": cluster.address, "PYTHONPATH": "", **environment}))
        return forks[-1]

    yield begin
    for fork in forks:
        fork.end()


def ended(fork: Fork) -> tuple[int, str]:
    """The exit code and the standard error of a command."""
    assert fork.stderr is not None
    text = fork.stderr.read()
    code = fork.wait()
    fork.end()
    return code, text


def wait_for(found: Callable[[], object], fork: Fork) -> None:
    """Wait until something is there, while a command runs."""
    end = time.monotonic() + LIMIT
    while not found():
        if fork.poll() is not None:
            pytest.fail(ended(fork)[1])
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_chunk_is_handed_over_exactly() -> None:
    sentence = Sentence(" x\n", 0.1, 1, 3, (0.25, 0.75), 2, (-0.5,))
    full = Record("a", "é?", ("b ",), "c ", (sentence, Sentence("y")), {"k": [1, {"z": None}]}, (1, 2))
    records = [full, Record("b", "?")]
    assert read_chunk(write_chunk(Chunk(7, records))) == records


@pytest.mark.parametrize(
    "words, message",
    [
        (["--on", "ray"], "--on ray writes JSONL files"),
        (["--on", "ray", "--out", "x.jsonl", "--shard", "1/2"], "both split the work"),
        (["--actors", "2", "--out", "x.jsonl"], "need --on ray"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.txt").write_text("Ada wrote. It rained.")
    assert main(["tag", "in.txt", "--model", "tiny-llama", *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_settings_are_checked() -> None:
    for wrong in ({"actors": 0}, {"actor_cpus": 0}, {"actor_gpus": -1}):
        with pytest.raises(LovecError, match=next(iter(wrong))):
            RaySettings("ray", **wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.ray
def test_tagging_with_a_killed_actor_gives_the_bytes_of_one_process(
    cluster: RayCluster, start: Start, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny(here, "llama")
    rows = [{"id": f"d{i}", "text": f"Ada wrote note {i} in {1800 + i}. It rained on day {i}."} for i in range(32)]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["tag", "in.jsonl", "--about", "Ada", "--model", model, "--instruction", "Rate.", "--rows", "2"]
    assert main([*words, "--out", "whole.jsonl"]) == 0
    ray = [*words, "--out", "tags.jsonl", "--on", "ray"]
    fork = start(*ray)
    killed = set[int]()

    def one_is_killed() -> bool:
        running = cluster.actors()
        if len(running) > 1 and len(list(here.glob("tags.ray/results/*.parquet"))) > 1:
            running[0].send_signal(signal.SIGKILL)
            killed.add(running[0].pid)
        return bool(killed)

    wait_for(one_is_killed, fork)
    code, text = ended(fork)
    assert code == 0, text
    assert Path("tags.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert not Path("tags.ray").exists()
    one, other = (json.loads(Path(f"{name}.manifest.json").read_text()) for name in ("whole", "tags"))
    assert one == other
    before = Path("tags.jsonl").stat().st_mtime_ns
    capsys.readouterr()
    assert main(ray) == 0  # everything is done: neither a cluster nor a model is asked for
    assert Path("tags.jsonl").stat().st_mtime_ns == before and "32 records" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.ray
def test_labelling_goes_on_from_the_checkpoints_of_a_killed_run(start: Start, here: Path) -> None:
    Path("my_slow.py").write_text(ORACLE)
    rows = [
        {"id": f"r{i}", "question": "Who?", "answer": f"Ada wrote note {i}. It rained {'x' * (i % 3)}."}
        for i in range(24)
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["label", "--answers", "in.jsonl", "--oracle", "my_slow.Slow", "--chunk", "1"]
    code, text = ended(start(*words, "--out", "whole"))
    assert code == 0, text
    Path("asked.txt").unlink()
    ray = [*words, "--out", "labels", "--on", "ray", "--actors", "1"]
    fork = start(*ray)
    done = here / "labels" / "labelled.ray" / "done"
    wait_for(lambda: len([path for path in done.glob("*.parquet") if ".pending" not in path.name]) > 5, fork)
    fork.send_signal(signal.SIGKILL)
    fork.end()
    kept = len([path for path in done.glob("*.parquet") if ".pending" not in path.name])
    asked = Path("asked.txt").read_text().split()
    assert kept > 5 and not Path("labels/labelled.jsonl").read_bytes()
    code, text = ended(start(*ray, REFUSED=""))
    assert code == 0, text
    again = Path("asked.txt").read_text().split()[len(asked) :]
    assert len(again) <= len(rows) - kept and {*asked, *again} == {row["id"] for row in rows}
    for name in ("labelled.jsonl", "pairs.jsonl", "failed.jsonl", "labelled.manifest.json"):
        assert (here / "labels" / name).read_bytes() == (here / "whole" / name).read_bytes(), name


def test_a_chunk_is_begun_a_few_times(tmp_path: Path) -> None:
    (tmp_path / TRIES).mkdir()
    records = [Record(f"r{i}", "?") for i in range(7)]
    for number in range(MOST_TRIES):
        assert begin_try(tmp_path, 3, records).stat().st_size == number + 1
    begin_try(tmp_path, 10, records).unlink()
    with pytest.raises(LovecError, match=r"3 actors have died on the records r0, r1, r2, r3, r4 and 2 more; "):
        begin_try(tmp_path, 3, records)
    assert begin_try(tmp_path, 10, records).stat().st_size == 1


@pytest.mark.slow
@pytest.mark.ray
def test_a_record_that_kills_every_actor_stops_the_run(start: Start, here: Path) -> None:
    """What is finished stays: where the record kills no longer, the same command goes on."""
    Path("my_slow.py").write_text(ORACLE)
    rows = [{"id": f"r{i}", "question": "Who?", "answer": f"Ada wrote note {i}."} for i in range(12)]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["label", "--answers", "in.jsonl", "--oracle", "my_slow.Slow", "--chunk", "2"]
    code, text = ended(start(*words, "--out", "whole"))
    assert code == 0, text
    Path("asked.txt").unlink()
    deadly = Path("deadly-r9")
    deadly.touch()
    ray = [*words, "--out", "labels", "--on", "ray", "--actors", "1"]
    code, text = ended(start(*ray))
    (line,) = [line for line in text.splitlines() if line.startswith("lovec: error")]
    assert code == 1 and "3 actors have died on the records r8, r9; " in line and "Traceback" not in text, text
    assert len(Path("killed.txt").read_text()) == MOST_TRIES
    done = here / "labels" / "labelled.ray" / "done"
    kept = 2 * len([path for path in done.glob("*.parquet") if ".pending" not in path.name])
    asked = Path("asked.txt").read_text().split()
    deadly.unlink()
    code, text = ended(start(*ray))
    assert code == 0, text
    again = Path("asked.txt").read_text().split()[len(asked) :]
    assert kept and len(again) <= len(rows) - kept
    for name in ("labelled.jsonl", "pairs.jsonl", "failed.jsonl", "labelled.manifest.json"):
        assert (here / "labels" / name).read_bytes() == (here / "whole" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.ray
def test_an_error_of_an_actor_is_one_line(start: Start, here: Path) -> None:
    Path("my_slow.py").write_text(ORACLE.replace('os.environ.get("REFUSED")', '"r1"'))
    Path("in.jsonl").write_text(
        "".join(json.dumps({"id": f"r{i}", "question": "Who?", "answer": "She."}) + "\n" for i in range(3))
    )
    words = ["label", "--answers", "in.jsonl", "--oracle", "my_slow.Slow", "--chunk", "1", "--on", "ray"]
    code, text = ended(start(*words))
    lines = [line for line in text.splitlines() if line.startswith("lovec: error")]
    assert code == 1 and lines == ["lovec: error: r1 is refused"] and "Traceback" not in text, text


@pytest.mark.slow
@pytest.mark.ray
def test_an_actor_that_does_not_fit_is_refused(start: Start, here: Path) -> None:
    Path("in.jsonl").write_text(json.dumps({"id": "a", "text": "Ada wrote. It rained."}) + "\n")
    words = ["tag", "in.jsonl", "--model", tiny(here, "llama"), "--out", "tags.jsonl", "--on", "ray"]
    code, text = ended(start(*words, "--actor_gpus", "1"))
    assert code == 1 and "3 CPUs and 0 GPUs, expected 2 CPUs and 1 GPUs" in text, text
