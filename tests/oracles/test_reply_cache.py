"""The reply cache: two processes, kills in the middle of writes, damaged files, other programs' files, a full disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lovec.oracles.cache import ChatReply, ReplyCache, default_cache, reply_key
from lovec.types import LovecError

ASKED = [{"role": "user", "content": "Is it so?"}]

WRITER = """
import sys
from lovec.oracles.cache import ChatReply, ReplyCache
path, name = sys.argv[1:]
with ReplyCache(path) as cache:
    print("open", flush=True)
    for i in range(100_000):
        cache.put(f"{name}-{i}", ChatReply(f"{name} says {i} " * 200, "stop", i, None))
        print(i, flush=True)
"""


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)


def confirmed(process: subprocess.Popen[str], at_least: int) -> int:
    """Wait for some confirmed writes, kill the process, and count those that it confirmed."""
    lines = [process.stdout.readline() for _ in range(at_least + 1)]
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    return max(int(line) for line in lines if line.endswith("\n") and line != "open\n") + 1


def test_replies_come_back_and_the_first_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "replies.sqlite"
    replies = {"a": ChatReply("Zoë 7\0é", "stop", 3, 4), "b": ChatReply("")}
    with ReplyCache(path) as cache:
        for key, reply in replies.items():
            assert cache.get(key) is None
            cache.put(key, reply)
        cache.put("a", ChatReply("later"))
        assert len(cache) == 2
    with ReplyCache(path) as cache:
        assert {key: cache.get(key) for key in replies} == replies


def test_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path))
    with ReplyCache() as cache:
        assert cache.path == default_cache() == tmp_path / "replies.sqlite" and cache.path.exists()


def test_every_part_of_a_call_is_in_its_key() -> None:
    call = {"model": "m", "base_url": "http://a/v1", "messages": ASKED, "parameters": {"t": 0, "u": 1}, "attempt": 0}
    others = [
        {"model": "n"},
        {"base_url": "http://b/v1"},
        {"messages": [*ASKED, ASKED[0]]},
        {"messages": [{"role": "user", "content": "Is it so? "}]},
        {"parameters": {"t": 0}},
        {"parameters": {"t": 0, "u": "1"}},
        {"attempt": 1},
    ]
    keys = [reply_key(**call), *(reply_key(**{**call, **other}) for other in others)]
    assert len(set(keys)) == len(keys)
    same = [{"base_url": "http://a/v1/"}, {"parameters": {"u": 1, "t": 0}}]
    assert all(reply_key(**{**call, **other}) == keys[0] for other in same)


def test_writes_of_two_processes_survive_kills_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    known: dict[str, int] = {}
    for turn in range(3):
        pair = [writer(path, f"p{turn}"), writer(path, f"q{turn}")]
        for process, name in zip(pair, "pq", strict=True):
            known[f"{name}{turn}"] = confirmed(process, 3 + 15 * turn)
    with ReplyCache(path) as cache:
        for name, count in known.items():
            for i in range(count):
                assert cache.get(f"{name}-{i}") == ChatReply(f"{name} says {i} " * 200, "stop", i, None)
        assert len(cache) <= sum(known.values()) + len(known)  # at most one write that was not confirmed
        assert cache._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_processes_that_find_the_file_new_at_once(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    crowd = [writer(path, f"w{i}") for i in range(4)]
    counts = [confirmed(process, 5) for process in crowd]
    with ReplyCache(path) as cache:
        assert all(cache.get(f"w{i}-{n}") is not None for i, count in enumerate(counts) for n in range(count))


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    with ReplyCache(path) as cache:
        hold = f"import sqlite3; db = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        hold += "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); input(); db.execute('COMMIT')"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", hold], **pipes, text=True)
        assert process.stdout.readline() == "held\n"
        released = threading.Event()

        def release() -> None:
            released.set()
            process.communicate("\n")

        timer = threading.Timer(0.5, release)
        timer.start()
        cache.put("a", ChatReply("late"))
        assert released.is_set() and cache.get("a") == ChatReply("late")
        timer.join()
        assert process.wait() == 0


def database(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE replies (mine TEXT)")
    other.close()


def marked(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA application_id = 7")
    other.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b"not a database at all " * 100), "not a database"),
        (database, "another program's"),
        (marked, "another program's"),
        (Path.mkdir, "unable to open"),
    ],
)
def test_a_file_that_is_not_a_cache_is_left_unchanged(tmp_path: Path, make, words: str) -> None:
    path = tmp_path / "file"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LovecError, match=words) as raised:
        ReplyCache(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert before is None or path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        LovecError, match=r"cannot use the reply cache .*Not a directory|cannot use the reply cache .*File exists"
    ):
        ReplyCache(tmp_path / "file" / "replies.sqlite")


def test_a_damaged_page_is_an_error_and_the_rest_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    with ReplyCache(path) as cache:
        for i in range(300):
            cache.put(f"{i:03}", ChatReply("words " * 200))
    data = bytearray(path.read_bytes())
    data[100 * 4096 : 101 * 4096] = b"\xff" * 4096
    path.write_bytes(data)
    readable = broken = 0
    with ReplyCache(path) as cache:
        for i in range(300):
            try:
                readable += cache.get(f"{i:03}") == ChatReply("words " * 200)
            except LovecError as error:
                broken += 1
                assert "left unchanged" in str(error)
    assert broken > 0 and readable > 200 and readable + broken == 300
    assert path.read_bytes() == data


def test_a_full_disk_is_an_error_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n" + WRITER
    run = subprocess.run([sys.executable, "-c", limited, str(path), "w"], capture_output=True, text=True)
    assert run.returncode == 1 and "LovecError: cannot use the reply cache" in run.stderr
    count = int(run.stdout.split()[-1]) + 1
    with ReplyCache(path) as cache:
        assert count > 10 and all(cache.get(f"w-{i}") is not None for i in range(count))


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Each sees a new file or a whole cache, never half of one, and all of them can open it."""
    at_once = 4
    for turn in range(40):
        start = threading.Barrier(at_once)

        def opened(path: Path = tmp_path / f"{turn}.sqlite", start: threading.Barrier = start) -> int:
            start.wait()
            with ReplyCache(path) as cache:
                return len(cache)

        with ThreadPoolExecutor(at_once) as pool:
            assert [future.result() for future in [pool.submit(opened) for _ in range(at_once)]] == [0] * at_once
