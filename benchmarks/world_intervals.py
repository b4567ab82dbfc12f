"""95 % intervals of the world's results: of every method, and of the differences that its claims are about.

Questions are drawn again, not seeds: see ``lovec.metrics.bootstrap``. Sentence level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from world_tables import DOMAINS, METHODS

from lovec.cli.demo import METHODS as DEMO
from lovec.datasets.jsonl import read_records
from lovec.evaluation.evaluator import MODES, tagged_file
from lovec.metrics.bootstrap import FIGURES, Resampled, Run, by_question, intervals, resample
from lovec.metrics.records import READOUTS
from lovec.types import Record

FOLDERS = {row: method.name for method in DEMO for row in method.rows}
"""The run whose test measured a method."""


def found(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """An entry for every method, and for every comparison, in every domain, mode and readout.

    Args:
        folders: one for each seed, as ``lovec demo`` wrote it; methods that not all of them hold are left out.

    Returns:
        ``method``, ``against`` (None: the method's own figures), ``domain``, ``mode``, ``readout``, and for each figure
        [value, low, high], or None where it is undefined.
    """
    entries = []
    for domain, mode, readout in product(DOMAINS, MODES, READOUTS):
        drawn = dict(_drawn(folders, domain, mode, readout))
        for method, against in [*((method, None) for method in drawn), *comparisons(drawn)]:
            ends = intervals(drawn[method], None if against is None else drawn[against])
            figures = {name: None if i is None else [i.value, i.low, i.high] for name, i in ends.items()}
            place = {"domain": domain, "mode": mode, "readout": readout}
            entries.append({"method": method, "against": against, **place, **figures})
    return entries


def comparisons(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs to compare: all with SFT, stage 2 with a second epoch of SFT, expected reward with all."""
    there = list(methods)
    pairs = [(method, "SFT") for method in there]
    pairs += [("DPO", "SFT-2"), ("GRPO", "SFT-2")]
    pairs += [("ExpectedReward", method) for method in there if method != "SFT"]
    return [(one, other) for one, other in pairs if one in there and other in there and one != other]


def tagged(folder: Path, method: str, mode: str, readout: str = "stated") -> Path:
    """The file that a test wrote of a method; only recalibrated confidences have one for the mean of their own."""
    readout = readout if "isotonic" in method else "stated"
    return folder / FOLDERS[method] / "test" / tagged_file(method, mode, readout)


@cache
def records_of(path: Path) -> tuple[Record, ...]:
    """The records of a file, read once."""
    return tuple(read_records(path))


def _drawn(folders: Sequence[Path], domain: str, mode: str, readout: str) -> Iterator[tuple[str, Resampled]]:
    """Methods that have this mode and readout."""
    for method in METHODS:
        paths = [tagged(folder, method, mode, readout) for folder in folders]
        if all(path.exists() for path in paths):
            drawn = resample([_run(path, domain, "stated" if "isotonic" in method else readout) for path in paths])
            if not drawn.figures[FIGURES[0]][0].isnan():  # a constant has no distribution to take the mean of
                yield method, drawn


def _run(path: Path, domain: str, readout: str) -> Run:
    return by_question((r for r in records_of(path) if r.meta["domain"] == domain), readout)
