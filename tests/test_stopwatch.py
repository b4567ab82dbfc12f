"""The stopwatch: wall time and processor time by phase."""

import time

from lovec.core.stopwatch import Stopwatch


def work(seconds):
    """Use the processor for some seconds of processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_waiting_takes_wall_time_and_no_processor_time():
    watch = Stopwatch()
    with watch.phase("waiting"):
        time.sleep(0.2)
    assert watch.seconds["waiting"] >= 0.2 and watch.cpu_seconds["waiting"] < 0.1


def test_time_of_an_inner_phase_counts_for_that_one_only():
    watch = Stopwatch()
    with watch.phase("outer"):
        with watch.phase("inner"):
            work(0.1)
    assert watch.cpu_seconds["inner"] >= 0.1 > 0.05 > watch.cpu_seconds["outer"]
    assert watch.seconds["inner"] >= 0.1
    watch.add("inner", 2.0, 1.0)
    assert watch.seconds["inner"] >= 2.1 and watch.cpu_seconds["inner"] >= 1.1
