"""Lines of progress: what is being done is said, also where nothing reports anything."""

from __future__ import annotations

import time

import pytest

from lovec.core import progress
from lovec.core.progress import Activity, Heartbeat, doing, rounded_time, status, times


def test_what_is_done_is_told_from_the_outside_inwards() -> None:
    assert status() == ""
    with doing("test", text=lambda: "test 3/9"), doing("LUQ"), doing("stored answers", 40, "records") as answers:
        answers.advance(10)
        assert status() == "test 3/9; LUQ, 0:00; stored answers 10/40 records, 0:00"
    assert status() == ""


def test_a_note_does_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(progress.QUIET, raising=False)
    progress.note("column \x1b[31mred")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress.Lines().write("test \x1b]0;owned\x07")
    assert capsys.readouterr().err == "column \ufffd[31mred\n\rtest \ufffd]0;owned\ufffd\033[K\r"


def test_an_activity_that_fails_is_no_longer_spoken_of() -> None:
    with pytest.raises(KeyError), doing("x"):
        raise KeyError
    assert status() == ""


def test_how_long_the_rest_takes_is_told_once_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert times(10, 40, 20.0) == ", 0:20, 1:00 left"
    assert times(10, 40, 1.0) == ", 0:01" and times(0, 40, 20.0) == ", 0:20"
    assert times(40, 40, 20.0) == ", 0:20" and times(10, None, 20.0) == ", 0:20"
    now = time.monotonic()
    one = Activity("writing", 512, "tokens")
    one.advance(128)
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert one.line() == "writing 128/512 tokens, 0:30, 1:30 left"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0 s"), (0.42, "0.42 s"), (14.6, "15 s"), (89.0, "89 s"), (90.0, "1.5 min"), (2280.0, "38 min"),
     (11520.0, "3.2 h")],
)  # fmt: skip
def test_times_are_rounded_as_they_are_spoken_of(seconds: float, expected: str) -> None:
    assert rounded_time(seconds) == expected


def test_a_heartbeat_breaks_the_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_BEAT", 0.01)
    with Heartbeat(0.05, "fit"):
        time.sleep(0.3)
        with Heartbeat(0.01, "inner"), doing("loading"):
            time.sleep(0.3)
    said = capsys.readouterr().err.splitlines()
    assert set(said) == {"lovec: fit, 0:00", "lovec: loading, 0:00"} and 4 <= len(said) <= 12
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_heartbeat_is_silent_where_lines_are_written_anyway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_BEAT", 0.01)
    with Heartbeat(0.5, "fit"):
        for number in range(5):
            time.sleep(0.05)
            progress.LINES.write(f"line {number}")
    assert capsys.readouterr().err.splitlines() == [f"lovec: line {number}" for number in range(5)]


def test_a_line_of_a_terminal_fits_it_and_the_last_one_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    progress.LINES.write("x" * 200)
    progress.LINES.write("y" * 200, last=True)
    assert capsys.readouterr().err == f"\r{'x' * 89}\033[K\r\r{'y' * 200}\033[K\n"
