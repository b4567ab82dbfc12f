"""Apply every bug of ``bugs.yaml`` to a copy of the code, one at a time, and see that the tests it names fail.

    python tests/planted/run.py                 # all bugs, two at a time; writes results.json
    python tests/planted/run.py dpo-sign --show # one bug, with what pytest printed

A bug is caught if its tests fail with it and pass without it; the second is checked first, in one run. A bug that is
missed is a missing test. The heavy libraries are imported once, and every run is a fork of this process, so that a bug
costs seconds.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path

import yaml
from mutation import MutationError, file_of, mutated

ROOT = Path(__file__).resolve().parents[2]
BUGS = Path(__file__).with_name("bugs.yaml")
RESULTS = Path(__file__).with_name("results.json")
COPIED = ("lovec", "cli", "configs", "tests", "docs", "benchmarks", "pyproject.toml", "setup.cfg", "README.md")
LIMIT = 300
"""Seconds after which the tests of a bug are stopped."""

HEAVY = (
    "torch",
    "lightning",
    "transformers",
    "peft",
    "torchmetrics",
    "datasets",
    "scipy.stats",
    "hypothesis",
    "pytest",
)
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Bug:
    """A mistake that somebody could make in one line, and the tests that must notice it.

    Attributes:
        name: name of the bug.
        where: the module, or the object in it, that has the bug; see ``mutation.mutated``.
        change: what is changed there; see ``mutation``.
        tests: node ids of the tests.
        note: what would go wrong for a user.
    """

    name: str
    where: str
    change: Mapping[str, str]
    tests: tuple[str, ...]
    note: str = ""

    def apply(self, tree: Path) -> None:
        """Put the bug into a copy of the code.

        Raises:
            MutationError: the change does not fit the code.
        """
        path = file_of(self.where, tree)
        tree_with_bug = mutated(path.read_text(encoding="utf-8"), self.where, self.change)
        path.write_text(ast.unparse(tree_with_bug), encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    """What became of a bug: "caught", "missed", or "broken" where its tests did not run to a result."""

    bug: str
    result: str
    by: str
    seconds: float


def read_bugs() -> list[Bug]:
    """Return the bugs of the list."""
    items = yaml.load(BUGS.read_text(encoding="utf-8"), yaml.BaseLoader)  # all scalars are text
    return [
        Bug(item.pop("name"), item.pop("where"), tests=tuple(item.pop("tests")), note=item.pop("note", ""), change=item)
        for item in items
    ]


def copy_tree(tree: Path) -> None:
    """Copy code and tests; the command line becomes ``lovec.cli`` by a link, as an installation does."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    for name in ("cli", "configs"):
        (tree / "lovec" / name).symlink_to(tree / name)


def run_tests(tree: Path, tests: Sequence[str], output: Path) -> None:
    """Run tests on a copy, in a process of its own, and end that process with pytest's exit code."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)  # for the processes that tests start
    sys.path.insert(0, str(tree))
    code = 70
    try:
        import lovec
        import lovec.cli

        found = [Path(module.__file__ or "") for module in (lovec, lovec.cli)]
        print("tested:", *found)
        assert all(path.is_relative_to(tree) for path in found), found

        import pytest

        code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]))
    except Exception as error:
        print(f"ERROR {error!r}")
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcomes(bugs: Sequence[Bug], jobs: int, work: Path, show: bool) -> Iterator[Outcome]:
    """Yield what became of every bug, as soon as it is known."""
    waiting = list(bugs)
    running: dict[int, tuple[Bug, multiprocessing.context.ForkProcess, float, Path]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            bug = waiting.pop(0)
            tree = work / bug.name
            tree.mkdir()
            copy_tree(tree)
            try:
                bug.apply(tree)
            except MutationError as error:
                shutil.rmtree(tree)
                yield Outcome(bug.name, "broken", str(error), 0.0)
                continue
            process = FORK.Process(target=run_tests, args=(tree, bug.tests, tree / "output"))
            process.start()
            running[process.sentinel] = bug, process, time.monotonic(), tree
        wait(list(running), timeout=1.0)
        for sentinel, (bug, process, begin, tree) in list(running.items()):
            seconds = time.monotonic() - begin
            if process.is_alive() and seconds < LIMIT:
                continue
            if process.is_alive() and process.pid is not None:
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
            del running[sentinel]
            text = (tree / "output").read_text(errors="replace") if (tree / "output").exists() else ""
            if show:
                print(text)
            shutil.rmtree(tree)
            failed = re.search(r"^(?:FAILED|ERROR) (\S+::[^\s\[]+|\S.*)", text, re.MULTILINE)
            named = failed[1] if failed else f"exit code {process.exitcode}, {text[-200:]!r}"
            result = {0: "missed", 1: "caught"}.get(process.exitcode if process.exitcode is not None else -1, "broken")
            yield Outcome(bug.name, result, "" if result == "missed" else named, round(seconds, 1))


def passes_without(tests: Sequence[str], work: Path) -> bool:
    """Return whether tests pass on an unchanged copy; prints what fails."""
    tree = work / "unchanged"
    tree.mkdir()
    copy_tree(tree)
    process = FORK.Process(target=run_tests, args=(tree, tests, tree / "output"))
    process.start()
    process.join()
    print((tree / "output").read_text(errors="replace")[-3000:])
    shutil.rmtree(tree)
    return process.exitcode == 0


def main(words: Sequence[str] | None = None) -> int:
    """Run bugs and return 0 if all are caught."""
    parser = argparse.ArgumentParser(description="see that the tests catch planted bugs")
    parser.add_argument("names", nargs="*", help="bugs to run; without names all run, and results.json is written")
    parser.add_argument("--jobs", type=int, default=2, help="bugs that run at a time")
    parser.add_argument("--show", action="store_true", help="print what pytest printed")
    parser.add_argument("--no-check", action="store_true", help="do not check that the tests pass without the bugs")
    options = parser.parse_args(words)
    bugs = [bug for bug in read_bugs() if not options.names or bug.name in options.names]
    if unknown := set(options.names) - {bug.name for bug in bugs}:
        parser.error(f"there is no bug {sorted(unknown)[0]} in {BUGS.name}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in HEAVY:
        __import__(name)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lovec-planted-") as folder:
        work = Path(folder)
        if not options.no_check and not passes_without(sorted({t for bug in bugs for t in bug.tests}), work):
            print("the tests do not pass without the bugs")
            return 1
        rows = []
        for outcome in outcomes(bugs, options.jobs, work, options.show):
            print(f"{outcome.result:7} {outcome.bug:40} {outcome.seconds:5.1f} s  {outcome.by}", flush=True)
            rows.append(outcome)
    counts = {result: sum(row.result == result for row in rows) for result in ("caught", "missed", "broken")}
    print(", ".join(f"{n} {result}" for result, n in counts.items()), f"in {time.monotonic() - begin:.0f} s")
    if not options.names:
        sys.path.insert(0, str(ROOT))
        from benchmarks.common import provenance, write_json  # imports lovec, which forks must not inherit

        order = {bug.name: at for at, bug in enumerate(bugs)}
        ordered = sorted(rows, key=lambda row: order[row.bug])
        write_json(RESULTS, {**provenance(), **counts, "bugs": [asdict(row) for row in ordered]})
    return int(counts["caught"] != len(bugs))


if __name__ == "__main__":
    sys.exit(main())
