"""95 % intervals of the results of the embedded world: of every method, and of the differences that are claimed.

Questions and training seeds are drawn again, see ``lovec.metrics.bootstrap``. Everything is at sentence level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from common import CALIBRATION, interval_values, test_folder
from world_tables import DOMAINS, METHODS

from lovec.cli.demo_methods import METHODS as RUNS
from lovec.datasets.jsonl import read_records
from lovec.evaluation.evaluator import MODES, tagged_file
from lovec.metrics.bootstrap import Resampled, by_question, resample
from lovec.metrics.records import READOUTS
from lovec.types import Record

FOLDERS = {method: run.name for run in RUNS for method in run.rows}
"""Name of the run whose test measured each method."""


def interval_entries(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return an entry per method and per comparison, in every domain, mode and readout.

    Args:
        folders: one per seed, as ``lovec demo`` wrote it; methods that not all of them have are left out.

    Returns:
        Mappings with ``method``, ``against`` (None for a method by itself), ``domain``, ``mode``, ``readout``, and
        [value, low, high] of each metric, None where it is undefined.
    """
    entries = []
    for domain, mode, readout in product(DOMAINS, MODES, READOUTS):
        drawn = dict(_resampled(folders, domain, mode, readout))
        for method, against in [*((method, None) for method in drawn), *comparisons(drawn)]:
            values = interval_values(drawn[method], None if against is None else drawn[against])
            place = {"domain": domain, "mode": mode, "readout": readout}
            entries.append({"method": method, "against": against, **place, **values})
    return entries


def comparisons(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs to compare: all with SFT, stage 2 with a second epoch of SFT, our own objectives with all."""
    methods = list(methods)
    pairs = [(method, "SFT") for method in methods]
    pairs += [("DPO", "SFT-2"), ("GRPO", "SFT-2")]
    pairs += [("ExpectedReward", method) for method in methods if method not in ("SFT", "Distil")]
    pairs += [("Distil", method) for method in methods if method != "SFT"]
    return [(first, second) for first, second in pairs if {first, second} <= set(methods) and first != second]


def tagged_path(folder: Path, method: str, mode: str, readout: str = "stated") -> Path:
    """Return the file that a test wrote of a method; only recalibrated confidences have a file per readout."""
    readout = readout if "isotonic" in method else "stated"
    return test_folder(folder / FOLDERS[method]) / tagged_file(method, mode, readout)


@cache
def records_in(path: Path) -> tuple[Record, ...]:
    """Return the records of a file, which is read once."""
    return tuple(read_records(path))


def _resampled(folders: Sequence[Path], domain: str, mode: str, readout: str) -> Iterator[tuple[str, Resampled]]:
    """Yield the bootstrap draws of the methods that have this mode and readout."""
    for method in METHODS:
        paths = [tagged_path(folder, method, mode, readout) for folder in folders]
        if all(path.exists() for path in paths):
            stored = "stated" if "isotonic" in method else readout
            runs = [[record for record in records_in(path) if record.domain == domain] for path in paths]
            if not all(runs):
                continue
            drawn = resample([by_question(records, stored) for records in runs], bases=["world"] * len(runs))
            if not drawn.metrics[CALIBRATION[0]][0].isnan():  # a constant has no distribution to take the mean of
                yield method, drawn
