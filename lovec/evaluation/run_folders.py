"""Where a run writes what it has measured and tagged: by data set, and without replacing what differs.

``RUN/test/DATA`` holds the results of the last test on a data set, ``RUN/predictions/DATA.jsonl`` its tagged records.
What other weights or other records have left there is kept in ``RUN/test-1``, ``RUN/predictions-1`` and so on, which
``lovec report`` does not read. So all that it reads of a run belongs to the same weights.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from lovec.core.files import same_content, write_text
from lovec.core.provenance import Provenance
from lovec.datasets.names import slug
from lovec.types import LovecError

RESULTS = "results.json"
"""File with the rows of a test, in its folder."""

TESTED = "tested.json"
"""File beside them that says what was tested: ``{"data": name, "records": n, "weights": {method: digest},
"provenance": {method: base and options of the adapter}}``; earlier versions wrote no provenance."""

UNFINISHED = ".unfinished"
"""Ending of the folder of a test that has not ended."""


def data_name(data: Any) -> str:
    """Return the name of a datamodule's data set; "data" where there is none."""
    return "data" if data is None else str(getattr(data, "title", None) or type(data).__name__)


def folder_name(data: Any) -> str:
    """Return the name of a data set as that of a file or a folder."""
    return slug(data_name(data)) or "data"


def predictions_file(run: Path, data: Any) -> Path:
    """Return where the tagged records of a data set lie in the folder of a run."""
    return run / "predictions" / f"{folder_name(data)}.jsonl"


def set_aside(run: Path, path: Path) -> Path:
    """Move a file or a folder of a run away, and return its new place.

    Args:
        run: folder of the run.
        path: what is moved: ``RUN/test`` becomes ``RUN/test-1``, and ``RUN/test/bios`` becomes ``RUN/test-1/bios``,
            with the first number under which nothing exists.
    """
    first, *rest = path.relative_to(run).parts
    places = (run.joinpath(f"{first}-{number}", *rest) for number in count(1))
    place = next(place for place in places if not place.exists())
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, place)
    return place


def set_aside_measured(run: Path, adapter: Path) -> str:
    """Move away all that was measured and tagged with the adapter that a run had before.

    Args:
        run: folder of the run.
        adapter: where that adapter is now; nothing is moved if there is nothing.

    Returns:
        What was kept where, as the end of a sentence; "" if nothing was.
    """
    if not adapter.exists():
        return ""
    folders = [path for name in ("test", "predictions") if (path := run / name).is_dir() and any(path.iterdir())]
    kept = [set_aside(run, path) for path in folders]
    measured = f", and what was measured with it in {', '.join(map(str, kept))}" if kept else ""
    return f"; the one that was there has other weights and is kept in {adapter}{measured}"


class TestFolder:
    """The folder of a test, which replaces the one of an earlier test when it is complete.

    Args:
        run: folder of the run.
        data: the datamodule; None for none.
        weights: what is measured: digest of its weights by the name of each method.
        made: by the name of a method, what decides its scores whatever is asked for, where that is known.

    Attributes:
        path: the folder.
        working: where its files are written until it is complete.
        judged: folder of what baselines have judged so far, for a test that is stopped to go on from.
    """

    __test__ = False  # no test of pytest's

    def __init__(
        self, run: Path, data: Any, weights: Mapping[str, str | None], made: Mapping[str, Provenance] | None = None
    ) -> None:
        self.run = run
        self.path = run / "test" / folder_name(data)
        self.working = self.path.with_name(self.path.name + UNFINISHED)
        self.judged = self.working / "judged"
        self._data = data_name(data)
        self._weights, self._made = dict(weights), dict(made or {})

    def begin(self) -> None:
        """Make a folder to work in; of what a test that was stopped has left there, only ``judged`` is kept."""
        self.judged.mkdir(parents=True, exist_ok=True)
        for left in self.working.iterdir():
            if left != self.judged:
                remove = shutil.rmtree if left.is_dir() else os.remove
                remove(left)

    def finish(self, records: int) -> list[Path]:
        """Put the folder in its place.

        Results that are there are removed if the new ones are the same, byte for byte, and kept aside otherwise, as are
        those of a method of the same name, of another model, on other data sets.

        Args:
            records: number of records that were tested.

        Returns:
            The folders in which other results are kept.
        """
        tested: dict[str, Any] = {"data": self._data, "records": records, "weights": self._weights}
        if self._made:
            tested["provenance"] = {name: made.to_dict() for name, made in self._made.items()}
        write_text(self.working / TESTED, json.dumps(tested, indent=1) + "\n")
        shutil.rmtree(self.judged, ignore_errors=True)  # somebody may have deleted it to make room
        kept = []
        if self.path.exists():
            if same_content(self.path / RESULTS, self.working / RESULTS):
                shutil.rmtree(self.path)
            else:
                kept.append(set_aside(self.run, self.path))
        for other in sorted(self.path.parent.iterdir()):
            if other.is_dir() and other.suffix != UNFINISHED and self._differs(*tested_in(other)):
                kept.append(set_aside(self.run, other))
        os.replace(self.working, self.path)
        return kept

    def _differs(self, weights: Mapping[str, Any], made: Mapping[str, Provenance]) -> bool:
        """Return whether a method of another test, of the same name as one of this test's, was another model."""
        others = any(self._weights[name] != weights[name] for name in self._weights.keys() & weights.keys())
        return others or any(self._made[name].differences(made[name]) for name in self._made.keys() & made.keys())


def tested_in(folder: Path) -> tuple[dict[str, Any], dict[str, Provenance]]:
    """Return what a test has measured by method: digests of weights, and what else decides scores; {} if not known."""
    try:
        tested = json.loads((folder / TESTED).read_bytes())
        made = {name: Provenance.from_dict(data) for name, data in tested.get("provenance", {}).items()}
        return dict(tested["weights"]), made
    except (OSError, ValueError, LookupError, TypeError, AttributeError, LovecError):
        return {}, {}
