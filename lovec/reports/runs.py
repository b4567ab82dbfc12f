"""Read what runs left behind: result rows, tagged records, running times and logs.

``lovec test`` writes a folder ``RUN/test/DATA`` for every data set; earlier versions wrote ``RUN/test``, which is read
as well. A folder above several runs (those of a demo or a benchmark, or one per seed) is read as one run.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from lovec.core.files import check_run_folder
from lovec.core.hub import trained_recipe
from lovec.datasets.jsonl import read_records
from lovec.metrics.records import count_missing
from lovec.metrics.results import COUNTED_MISSING, Results, read_results
from lovec.metrics.table import METRICS, MetricInfo
from lovec.types import ITERATIVE, Kind, LovecError, Record, ResultRow

_TIMES = ("method", "mode", "kind", "seconds", "records", "prefill_tokens")
_TOKENS = ("method", "case", "sentence", "tokens")
_KINDS: tuple[Kind, ...] = (
    "constant", "baseline", "method", "hybrid", "ablation", "recalibrated", "variation"
)  # fmt: skip
_FIRST = ("LUQ", "Best constant", "Vanilla", "p(true)", "p(true)-ft", "Verb-Conf", "Self-Cons")  # as in the paper
_DEPTH = 3  # levels of folders that may lie between the folder that is read and RUN/test
_TOLERANCE = 1e-6  # metrics of two runs that differ by less are those of one run, rounded
_FOLDS = 1.5  # test sets of seeds that divide the same data differ in size by less than this factor

_Key: TypeAlias = tuple[str, str, str]  # method, mode, readout
_Place: TypeAlias = tuple[str, str, str, str]  # domain, mode, level, readout


@dataclass(frozen=True)
class RunResults:
    """Everything that one run left behind, or several runs read as one.

    Attributes:
        name: name of the folder.
        folder: the folder as it was given.
        rows: one per method and place (domain, mode, level, readout), in the order of methods that all tables and
            plots have, see ``read_run``. Metrics are means over the training seeds, None
            if one of them is undefined; ``n`` is the mean, rounded; ``seed`` is None if there are several.
        seed_counts: number of training seeds of every method.
        domain_seeds: the same of every (method, domain).
        metrics: how to show every metric, by name: the built-in ones and users' own.
        times: entries of all times.json: method, as in the rows, mode, kind, seconds by phase, records, prefill_tokens,
            and data, the name of the folder of the data set, "" where it has none.
        tokens: entries of all tokens.json: method, as in the rows, case, sentence, tokens, ordinality.
        logs: folders of runs that logged their training.
        sweeps: content of every sweep.json, by the folder of the sweep.
        about: what wrote the results, see ``lovec.metrics.results.Results``: every different value of each entry.
        recipes: those that the runs were trained or tested with, by the folder of the run, where they were saved.
        files: files with tagged records of a (method, mode, readout), per seed in ascending order; several files per
            seed where its data were tested one by one. A key is present only if all of its files exist.
        counted: folders of tests that measured sentences without a confidence as ones that state 0.
        divided: methods whose seeds were tested on different given sentences, as those that divide the data anew are.
    """

    name: str
    folder: Path
    rows: tuple[ResultRow, ...] = ()
    seed_counts: Mapping[str, int] = field(default_factory=dict)
    domain_seeds: Mapping[tuple[str, str], int] = field(default_factory=dict)
    metrics: Mapping[str, MetricInfo] = field(default_factory=lambda: METRICS)
    times: tuple[dict[str, Any], ...] = ()
    tokens: tuple[dict[str, Any], ...] = ()
    logs: tuple[Path, ...] = ()
    sweeps: Mapping[Path, Results] = field(default_factory=dict)
    about: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recipes: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[_Key, tuple[tuple[Path, ...], ...]] = field(default_factory=dict)
    counted: frozenset[Path] = frozenset()
    divided: frozenset[str] = frozenset()
    _cache: dict[tuple[Path, bool], list[Record]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def most_seeds(self) -> int:
        """The largest number of training seeds that a method was trained with; 0 without rows."""
        return max(self.seed_counts.values(), default=0)

    def records_by_seed(self, method: str, mode: str, readout: str = "stated") -> list[list[Record]]:
        """Return the tagged records of a method, as they were measured, one list per seed.

        There is no list if those of any seed are missing.

        Raises:
            LovecError: a file cannot be read.
        """
        by_seed = self.files.get((method, mode, readout), ())
        return [[record for path in paths for record in self._measured(path, readout)] for paths in by_seed]

    def _measured(self, path: Path, readout: str) -> list[Record]:
        """Return the records of a file as they were measured, with missing confidences as 0 if the test did so."""
        counts = readout == "stated" and path.parent in self.counted
        if (path, counts) not in self._cache:
            records = list(read_records(path))
            self._cache[path, counts] = count_missing(records) if counts else records
        return self._cache[path, counts]

    def tagged_records(self, method: str, mode: str, readout: str = "stated") -> list[Record]:
        """Return the tagged records of a method's first seed.

        Raises:
            LovecError: there are none, or a file cannot be read.
        """
        if by_seed := self.records_by_seed(method, mode, readout):
            return by_seed[0]
        raise LovecError(
            f"{self.folder} holds no tagged records of {method!r}, {mode}, {readout} readout; `lovec test` writes them "
            "beside results.json"
        )


def stored_readout(row: ResultRow) -> str:
    """Return how the confidences of a row are read from the records in its file: "stated" or "mean".

    A recalibrated or deployed confidence is the only one that its record holds, whichever it was computed from.
    """
    return "stated" if row.kind == "recalibrated" or row.readout == "deployed" else row.readout


def read_run(*paths: str | os.PathLike[str]) -> RunResults:
    """Read everything below some folders as one run.

    A method that several runs measured has one row where their seeds or data differ. Where two runs have different
    metrics for the same seed and data, or different seeds were tested on many more or fewer given sentences, the later
    one's method gets the name of its folder in brackets.

    Methods have one order everywhere: LUQ, the best constant, the paper's baselines in its order, other baselines,
    trained methods, hybrids, ablations, recalibrated methods; and where this leaves a choice, the order of the rows.

    Args:
        paths: folders of runs, their test folders, or folders above several runs; at least one.

    Raises:
        LovecError: a folder does not exist or holds nothing to report, or a file in it cannot be read.
    """
    folders = [Path(path) for path in paths]
    if not folders:
        raise LovecError("there is no run to read; give the folder of one")
    tests: dict[Path, Results] = {}
    logs: dict[Path, None] = {}
    sweeps: dict[Path, Results] = {}
    order: list[str] = []
    for folder in folders:
        tested = _tests_below(folder)
        with_logs = [path for path in (folder, *map(_run_folder, tested)) if any(path.glob("*/version_*/metrics.csv"))]
        has_sweep = (folder / "sweep.json").is_file()
        if not (tested or with_logs or has_sweep):
            raise LovecError(
                f"{folder} has no test/results.json; give the folder of a run (trainer.default_root_dir) that "
                "`lovec test` has measured, or one above several"
            )
        tests |= {path.resolve(): read_results(path / "results.json") for path in tested}
        logs |= dict.fromkeys(with_logs)
        sweeps |= {folder: read_results(folder / "sweep.json")} if has_sweep else {}
        order += _method_order(folder, tested)
    rows, names, divided = _merged(tests)
    return RunResults(
        name=" + ".join(_run_folder(folder.resolve()).name for folder in folders),
        folder=folders[0],
        rows=tuple(sorted(_means(rows), key=lambda row: _rank(row, order))),
        seed_counts=Counter(method for method, _ in dict.fromkeys((row.method, row.seed) for row in rows)),
        domain_seeds=Counter(place for place, _ in dict.fromkeys(((r.method, r.domain), r.seed) for r in rows)),
        metrics=METRICS
        | {name: info for results in (*tests.values(), *sweeps.values()) for name, info in results.metrics.items()},
        times=tuple(
            {**entry, "data": folder.name if folder.parent.name == "test" else ""}
            for folder in tests
            for entry in _entries(folder / "times.json", _TIMES, names[folder])
        ),
        tokens=tuple(entry for folder in tests for entry in _entries(folder / "tokens.json", _TOKENS, names[folder])),
        logs=tuple(logs),
        sweeps=sweeps,
        about=_about(tests.values()),
        recipes=dict(_recipes(dict.fromkeys((*logs, *map(_run_folder, tests))))),
        files=_record_files(rows),
        counted=frozenset(path for path, results in tests.items() if _counts_missing(results)),
        divided=divided,
    )


def _rank(row: ResultRow, order: Sequence[str]) -> tuple[int, int, int]:
    """Return what sorts rows by method, see ``read_run``; ``order`` are the methods of a file above several runs."""
    place = _FIRST.index(row.method) if row.method in _FIRST else len(_FIRST)
    kind = 0 if row.method in _FIRST else 1 + _KINDS.index(row.kind)
    return kind, place, [*order, row.method].index(row.method)


def _about(results: Iterable[Results]) -> dict[str, tuple[str, ...]]:
    """Return every different value of each entry of what wrote some results."""
    values: dict[str, dict[str, None]] = {}
    for file in results:
        for name, value in file.about.items():
            values.setdefault(name, {})[value] = None
    return {name: tuple(different) for name, different in values.items()}


def _recipes(folders: Iterable[Path]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the recipe of each run that has saved one, see ``trained_recipe``, where it can be read."""
    for folder in folders:
        if (path := trained_recipe(folder)) is None:
            continue
        try:
            recipe = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
        except yaml.YAMLError:
            continue
        if isinstance(recipe, dict):
            yield folder, recipe


def tests_of(run: Path) -> list[Path]:
    """Return the folders with test results in the ``test`` of a run, by name."""
    paths = [path.parent for pattern in ("results.json", "*/results.json") for path in (run / "test").glob(pattern)]
    return sorted(path for path in paths if path.suffix != ".unfinished")  # a test that was stopped


def _tests_below(folder: Path) -> list[Path]:
    """Return the folders with test results: in every ``test`` of the given one and below, or else the given one itself.

    Raises:
        LovecError: there is no such folder.
    """
    check_run_folder(folder)
    found: list[Path] = []
    tests: set[Path] = set()  # of runs that were found: what lies in them is no run
    for depth in range(_DEPTH + 1):
        for run in sorted(folder.glob("*/" * depth)) if depth else [folder]:
            if tests.isdisjoint((run, *run.parents)) and (finished := tests_of(run)):
                found += finished
                tests.add(run / "test")
    if found:
        return found
    if (folder / "results.json").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/results.json")) if folder.name == "test" else []


def _run_folder(test_folder: Path) -> Path:
    """Return the folder of the run that a folder with test results is in."""
    if test_folder.name == "test":
        return test_folder.parent
    return test_folder.parent.parent if test_folder.parent.name == "test" else test_folder


def _method_order(folder: Path, tested: Iterable[Path]) -> list[str]:
    """Return the methods in the order of the results.json above several runs, such as the one of a demo."""
    above = {parent for test in tested for parent in _run_folder(test).parents}
    files = [path / "results.json" for path in sorted(above) if path == folder or folder in path.parents]
    return [row.method for file in files if file.is_file() for row in read_results(file).rows]


def _merged(tests: Mapping[Path, Results]) -> tuple[list[ResultRow], dict[Path, dict[str, str]], frozenset[str]]:
    """Return the rows of all test folders, without repetitions and with full paths as ``file``, and their names.

    A method whose metrics differ from those in an earlier folder, for the same seed and data, is renamed, also in the
    ``bases`` of the rows made from it. So is one whose seed was tested on another part of the data, as with
    ``--data.test_every``: a mean over both would be one of neither. A method measured on other data keeps its name.

    Returns:
        The rows; what each folder's methods are called in them; and the methods whose seeds divide the data anew.
    """
    sizes: dict[tuple[str, _Place], set[int]] = {}
    seen: dict[tuple[str, int | None], dict[_Place, ResultRow]] = {}
    merged: list[ResultRow] = []
    called: dict[Path, dict[str, str]] = {}
    for folder, results in tests.items():
        new: list[ResultRow] = []
        counts = _counts_missing(results)
        names: dict[tuple[str, int | None], str] = {}
        for method, seed in dict.fromkeys((row.method, row.seed) for row in results.rows):
            rows = {_place(row): row for row in results.rows if (row.method, row.seed) == (method, seed)}
            given = {place: _given_sentences(row, counts) for place, row in rows.items()}
            for name in _candidate_names(method, _run_folder(folder)):
                earlier = seen.setdefault((name, seed), {})
                if all(
                    _same_metrics(earlier[place], row)
                    if place in earlier
                    else _same_size(given[place], sizes.get((name, place)))
                    for place, row in rows.items()
                ):
                    break
            for place, size in given.items():
                if size is not None:
                    sizes.setdefault((name, place), set()).add(size)
            new += [row for place, row in rows.items() if place not in earlier]
            earlier |= rows
            names[method, seed] = name
        for row in new:
            bases = tuple(names.get((base, row.seed), base) for base in row.bases)
            file = str(folder / row.file) if row.file else None
            merged.append(replace(row, method=names[row.method, row.seed], bases=bases, file=file))
        called[folder] = {method: name for (method, _), name in names.items()}
    return merged, called, frozenset(name for (name, _), found in sizes.items() if len(found) > 1)


def _counts_missing(results: Results) -> bool:
    """Return whether sentences without a confidence were measured as ones that state 0."""
    return COUNTED_MISSING.items() <= results.about.items()


def _given_sentences(row: ResultRow, counts_missing: bool) -> int | None:
    """Return on how many labelled sentences of given texts a row was measured, with those whose tags are malformed.

    All seeds that are tested on the same questions have as many. None for other rows, and where it is not known.
    """
    malformed = row.metrics.get("malformed")
    if row.mode != ITERATIVE or row.level != "sentence" or malformed is None or not row.n:
        return None
    if counts_missing and row.readout == "stated":
        return row.n
    return round(row.n / (1 - malformed)) if malformed < 1 else None


def _same_size(size: int | None, others: set[int] | None) -> bool:
    """Return whether a test set may be one more division of the data that those of other seeds divide."""
    return size is None or not others or max(size, *others) < _FOLDS * min(size, *others)


def _candidate_names(method: str, run_folder: Path) -> Iterator[str]:
    """Yield a method's name, then the name with more and more of its run's folder in brackets."""
    yield method
    for depth in range(1, len(run_folder.parts) + 1):
        yield f"{method} ({'/'.join(run_folder.parts[-depth:])})"


def _place(row: ResultRow) -> _Place:
    return row.domain, row.mode, row.level, row.readout


def _same_metrics(first: ResultRow, second: ResultRow) -> bool:
    def same(a: float | None, b: float | None) -> bool:
        return a == b or (
            a is not None and b is not None and math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        )

    both = first.metrics.keys() & second.metrics.keys()  # older results lack metrics that newer ones have
    return first.n == second.n and all(same(first.metrics[name], second.metrics[name]) for name in both)


def _means(rows: Iterable[ResultRow]) -> Iterator[ResultRow]:
    """Yield one row per method and place with the means over its seeds, in order of appearance."""
    groups: dict[tuple[str, _Place], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row.method, _place(row)), []).append(row)
    for group in groups.values():
        metrics: dict[str, float | None] = {}
        for name in dict.fromkeys(name for row in group for name in row.metrics):
            values = [value for row in group if (value := row.metrics.get(name)) is not None]
            metrics[name] = sum(values) / len(values) if len(values) == len(group) else None
        n = round(sum(row.n for row in group) / len(group))
        seed = group[0].seed if len({row.seed for row in group}) == 1 else None
        yield replace(group[0], seed=seed, n=n, metrics=metrics, file=None)


def _record_files(rows: Iterable[ResultRow]) -> dict[_Key, tuple[tuple[Path, ...], ...]]:
    """Return ``RunResults.files`` for rows with full paths."""
    files: dict[_Key, dict[int, dict[str | None, None]]] = {}
    for row in rows:
        by_seed = files.setdefault((row.method, row.mode, row.readout), {})
        by_seed.setdefault(-1 if row.seed is None else row.seed, {})[row.file] = None
    return {
        key: tuple(tuple(Path(path) for path in paths if path) for _, paths in sorted(by_seed.items()))
        for key, by_seed in files.items()
        if all(path and Path(path).is_file() for paths in by_seed.values() for path in paths)
    }


def _entries(path: Path, keys: Sequence[str], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the list in a JSON file beside the results, or an empty one if there is no such file.

    Args:
        path: the file.
        keys: what every entry has.
        names: what its methods are called, where it is something else.

    Raises:
        LovecError: the file holds something else.
    """
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LovecError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(item, dict) and {*keys} <= item.keys() for item in entries):
        raise LovecError(f"{path} holds no list of entries with {', '.join(keys)}, expected what `lovec test` wrote")
    return [{**entry, "method": names.get(entry["method"], entry["method"])} for entry in entries]
