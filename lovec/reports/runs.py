"""What runs have left behind: rows, tagged records, times and logs, read for reports.

``lovec test`` writes ``RUN/test``; a folder above several such ones (a demo's, a benchmark's, one for every seed) is
read as one. Older runs, whose rows do not say their kind and file, are understood, too.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lovec.datasets.jsonl import read_records
from lovec.reports.results_table import Row, read_results
from lovec.types import LovecError, Record

BASELINES = ("Vanilla", "p(true)", "p(true)-ft", "Verb-Conf", "Self-Cons", "LUQ")
"""Methods that compete with training, in the order of the paper's tables."""

CONSTANT = "Best constant"
RECALIBRATED = (" + isotonic", " + Platt")
UNSEEN = ", no previous scores"

_TIMES = ("method", "mode", "seconds", "records")
_TOKENS = ("method", "case", "sentence", "tokens")
_PLACE = ("method", "domain", "mode", "level", "readout")
_Key = tuple[str, str, str]  # method, mode, readout
_DEPTH = 3  # levels of folders above RUN/test that may lie between it and the folder given
_SAME = 1e-6  # figures of two runs that differ by less are one run's, rounded


@dataclass(frozen=True)
class Part:
    """One folder with test results.

    Attributes:
        folder: it holds results.json and the files that its rows name.
        rows: as written, each with its ``kind``.
    """

    folder: Path
    rows: tuple[dict[str, Any], ...]

    @property
    def run(self) -> Path:
        """The folder of the run it belongs to."""
        return self.folder.parent if self.folder.name == "test" else self.folder


@dataclass(frozen=True)
class Run:
    """One run, or several read as one.

    Attributes:
        name: of the folder.
        folder: as it was given.
        rows: means over the seeds of a method, with the keys of a result row and ``kind``; a figure that is undefined
            for one seed is None. ``seeds`` lists the seeds, and ``seed`` is the only one or None.
        times: entries of all times.json: method, mode, kind, seconds by phase, records, sentences, prefill_tokens.
        tokens: entries of all tokens.json: method, case, sentence, tokens, ordinality.
        logs: folders of runs that logged figures while training.
        sweeps: rows of every sweep.json, by its folder.
        files: tagged records of a (method, mode, readout): files for every seed, in the order of the seeds (several
            where its data were tested one by one); only where all are there.
    """

    name: str
    folder: Path
    rows: tuple[dict[str, Any], ...] = ()
    times: tuple[dict[str, Any], ...] = ()
    tokens: tuple[dict[str, Any], ...] = ()
    logs: tuple[Path, ...] = ()
    sweeps: Mapping[Path, list[dict[str, Any]]] = field(default_factory=dict)
    files: Mapping[_Key, tuple[tuple[Path, ...], ...]] = field(default_factory=dict)
    _read: dict[Path, list[Record]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of the rows."""
        return tuple(sorted({seed for row in self.rows for seed in row["seeds"]}))

    def answers(self, method: str, mode: str, readout: str = "stated") -> list[list[Record]]:
        """Tagged records of a method, one list for every seed; none where a seed's are missing.

        Raises:
            LovecError: a file cannot be read.
        """
        found = []
        for paths in self.files.get((method, mode, readout), ()):
            for path in paths:
                if path not in self._read:
                    self._read[path] = list(read_records(path))
            found.append([record for path in paths for record in self._read[path]])
        return found

    def tagged(self, method: str, mode: str, readout: str = "stated") -> list[Record]:
        """Tagged records of a method, of its first seed.

        Raises:
            LovecError: there are none.
        """
        if found := self.answers(method, mode, readout):
            return found[0]
        raise LovecError(
            f"{self.folder} holds no tagged records of {method!r}, {mode}, {readout} readout; `lovec test` writes them "
            "beside results.json"
        )


def reading(row: Row) -> str:
    """How the confidences of a row are read off the records of its file: "stated" or "mean".

    A recalibrated confidence is the only one that its record holds, whatever it was made from.
    """
    return "stated" if row["kind"] == "recalibrated" else str(row["readout"])


def kind_of(row: Row) -> str:
    """What a row is: its ``kind``, or, where an older run did not write it, what its name says."""
    method = row["method"]
    if "kind" in row:
        return str(row["kind"])
    if method == CONSTANT:
        return "constant"
    if method in BASELINES:
        return "baseline"
    if method.endswith(RECALIBRATED):
        return "recalibrated"
    if method.endswith(UNSEEN):
        return "ablation"
    return "hybrid" if " + " in method else "method"


def read_run(*paths: str | os.PathLike[str]) -> Run:
    """Everything below some folders, as one run.

    A method that several runs measured is one line where the runs have different seeds or data; where the same seed
    gave other figures on the same data, the later run's method carries the name of its folder in brackets.

    Args:
        paths: folders of runs, their test folders, or folders above several runs; at least one.

    Raises:
        LovecError: a folder does not exist or holds nothing to report, or a file in it cannot be read.
    """
    folders = [Path(path) for path in paths]
    if not folders:
        raise LovecError("there is no run to read; give the folder of one")
    parts: list[Part] = []
    logs: list[Path] = []
    sweeps: dict[Path, list[dict[str, Any]]] = {}
    order: list[str] = []
    for folder in folders:
        found = [_part(path) for path in _test_folders(folder)]
        order += _overview(folder, found)
        own = [path for path in dict.fromkeys([folder, *(part.run for part in found)]) if _has_logs(path)]
        tables = {folder: _checked(folder / "sweep.json")} if (folder / "sweep.json").is_file() else {}
        if not (found or own or tables):
            raise LovecError(
                f"{folder} has no test/results.json; give the folder of a run (trainer.default_root_dir) that "
                "`lovec test` has measured, or one above several"
            )
        parts += found
        logs += own
        sweeps |= tables
    parts = _apart(list({part.folder.resolve(): part for part in parts}.values()))
    rows = list(_averaged(parts))
    if order:
        places = {name: place for place, name in reversed(list(enumerate(order)))}
        rows.sort(key=lambda row: places.get(row["method"], len(order)))
    return Run(
        name=" + ".join(_name(folder) for folder in folders),
        folder=folders[0],
        rows=tuple(rows),
        times=tuple(entry for part in parts for entry in _entries(part, "times.json", _TIMES)),
        tokens=tuple(entry for part in parts for entry in _entries(part, "tokens.json", _TOKENS)),
        logs=tuple(dict.fromkeys(logs)),
        sweeps=sweeps,
        files=dict(_files(parts)),
    )


def _test_folders(folder: Path) -> list[Path]:
    """Folders with test results: the one given, its ``test``, or else all ``test`` some levels below.

    Raises:
        LovecError: there is no such folder.
    """
    if not folder.is_dir():
        raise LovecError(f"there is no folder {folder}; give the folder of a run (trainer.default_root_dir)")
    if (folder / "test" / "results.json").is_file():
        return [folder / "test"]
    for depth in range(1, _DEPTH + 1):
        if found := sorted(folder.glob("*/" * depth + "test/results.json")):
            return [path.parent for path in found]
    return [folder] if (folder / "results.json").is_file() else []


def _overview(folder: Path, parts: Sequence[Part]) -> list[str]:
    """Methods in the order of the results.json that lie above several runs, such as a demo's."""
    above = {up for part in parts for up in part.run.parents if up == folder or folder in up.parents}
    files = sorted(path for up in above if (path := up / "results.json").is_file())
    return [row["method"] for path in files for row in _checked(path)]


def _part(folder: Path) -> Part:
    rows = _checked(folder / "results.json")
    return Part(folder, tuple({**row, "kind": kind_of(row)} for row in rows))


def _checked(path: Path) -> list[dict[str, Any]]:
    """Rows of a file.

    Raises:
        LovecError: it holds no rows, or one of them does not say what it is of.
    """
    rows = read_results(path)
    for row in rows:
        if missing := [name for name in (*_PLACE, "seed") if name not in row]:
            raise LovecError(f"{path}: a row of {row['method']!r} has no {missing[0]!r}; run `lovec test` again")
    return rows


def _apart(parts: Sequence[Part]) -> list[Part]:
    """Parts in which a method has one row for a seed and a place: repeated rows go, a method with others is renamed.

    What was measured on other data has other places, and stays one method.
    """
    seen: dict[tuple[str, int], dict[tuple[str, ...], dict[str, Any]]] = {}
    found = []
    for part in parts:
        kept: list[dict[str, Any]] = []
        for method, seed in dict.fromkeys((row["method"], row["seed"]) for row in part.rows):
            rows = [row for row in part.rows if (row["method"], row["seed"]) == (method, seed)]
            places = {tuple(row[name] for name in _PLACE[1:]): row for row in rows}
            for name in _names(method, part.run):
                earlier = seen.setdefault((name, seed), {})
                if all(_equal(earlier[place], row) for place, row in places.items() if place in earlier):
                    break
            new = {place: row for place, row in places.items() if place not in earlier}
            earlier |= new
            kept += [{**row, "method": name, "_measured": method} for row in new.values()]
        found.append(Part(part.folder, tuple(kept)))
    return found


def _names(method: str, run: Path) -> Iterator[str]:
    """A method's name, then with ever more of its run's folder in brackets."""
    yield method
    words = run.resolve().parts
    for depth in range(1, len(words) + 1):
        yield f"{method} ({'/'.join(words[-depth:])})"


def _equal(first: Row, second: Row) -> bool:
    """Whether two rows of one place have the same figures."""
    return all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME))
        for a, b in ((first.get(name), second.get(name)) for name in {*_figures(first), *_figures(second)})
    )


def _averaged(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    """One row for every place, with the means over its seeds; places in order of appearance."""
    places: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for part in parts:
        for row in part.rows:
            places.setdefault(tuple(row[name] for name in _PLACE), []).append(row)
    for rows in places.values():
        row = {name: value for name, value in rows[0].items() if name not in ("_measured", "file")}
        for name in dict.fromkeys(name for one in rows for name in _figures(one)):
            values = [one.get(name) for one in rows]
            row[name] = None if None in values else sum(values) / len(values)  # type: ignore[arg-type]
        seeds = sorted({one["seed"] for one in rows})
        yield {**row, "n": round(row["n"]), "seeds": seeds, "seed": seeds[0] if len(seeds) == 1 else None}


def _figures(row: Row) -> list[str]:
    """Names of the figures of a row: its numbers, and what is undefined."""
    words = {*_PLACE, "seed", "kind", "file", "_measured"}
    return [
        name
        for name, value in row.items()
        if name not in words and (value is None or isinstance(value, int | float)) and not isinstance(value, bool)
    ]


def _files(parts: Sequence[Part]) -> Iterator[tuple[_Key, tuple[tuple[Path, ...], ...]]]:
    """Files of tagged records where every seed has its own."""
    found: dict[_Key, dict[int, dict[Path, None]]] = {}
    for part in parts:
        for row in part.rows:
            seeds = found.setdefault((row["method"], row["mode"], row["readout"]), {})
            seeds.setdefault(row["seed"], {})[part.folder / (row.get("file") or _old_file(row))] = None
    for key, seeds in found.items():
        if all(path.is_file() for paths in seeds.values() for path in paths):
            yield key, tuple(tuple(paths) for _, paths in sorted(seeds.items()))


def _old_file(row: Row) -> str:
    """Name of the file that older runs gave a method's records, without saying so in the row."""
    words = re.sub(r"[^a-z0-9]+", "-", row.get("_measured", row["method"]).lower()).strip("-")
    own = row["kind"] == "recalibrated" and row["readout"] != "stated"
    return ".".join([words, row["mode"], *([row["readout"]] if own else []), "jsonl"])


def _entries(part: Part, name: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """What a file beside the results lists; nothing where there is no such file.

    Raises:
        LovecError: it holds something else.
    """
    path = part.folder / name
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LovecError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(one, dict) and {*keys} <= one.keys() for one in entries):
        raise LovecError(f"{path} holds no list of entries with {', '.join(keys)}, expected what `lovec test` wrote")
    return entries


def _has_logs(folder: Path) -> bool:
    return any(folder.glob("*/version_*/metrics.csv"))


def _name(folder: Path) -> str:
    found = folder.resolve()
    return found.parent.name if found.name == "test" else found.name
