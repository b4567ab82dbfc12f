"""``lovec demo``: the whole method on real things or the embedded world, by the recipes and commands of users."""

from __future__ import annotations

import gc
import io
import json
import os
import shlex
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.core.progress import note
from lovec.core.provenance import changes
from lovec.core.settings import check_count, check_seed
from lovec.types import ITERATIVE, LovecError

from .children import children, end_children, lines_of
from .console import locked, quiet, say, say_next
from .demo_atlas import check_real, show_answers
from .demo_methods import ATLAS, FIRST, METHODS, ORDER, TRAINED, Method, announced, announced_test, chosen, overlay
from .errors import check_folder_name
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.types import ResultRow

MOST_JOBS = 4
"""Processes that run at a time unless the user says otherwise: after SFT there are about as many trainings."""

_STATE = "demo.json"
_STEPS = 4  # that are announced: data and model, first training, the other trainings and all tests, report


@dataclass
class State:
    """What a demo has done so far, kept in a file of its folder, so that a second call goes on from there.

    Attributes:
        folder: folder of the demo.
        settings: what all its stages depend on; a demo with other settings cannot go on.
        done: stages that are finished, such as "fit sft"; a test in domain only is "test sft in domain".
        begun: trainings that were started.
    """

    folder: Path
    settings: dict[str, Any]
    done: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, settings: dict[str, Any], redo: bool) -> State:
        """Return the state of the demo in a folder.

        Args:
            folder: folder of the demo.
            settings: what all its stages depend on.
            redo: whether to remove what an earlier demo has left there, and begin anew.

        Raises:
            LovecError: the folder holds a demo with other settings, or runs that no demo has recorded.
        """
        ours = [folder / method.name for method in METHODS] + [folder / _STATE, folder / "results.json"]
        path = folder / _STATE
        state = cls(folder, settings)
        if redo:
            for one in ours:
                shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        elif path.exists():
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                found, state.done, state.begun = dict(saved["settings"]), list(saved["done"]), list(saved["begun"])
            except (ValueError, KeyError, TypeError):
                raise LovecError(f"{path} cannot be read; give --redo to begin anew, or another --out") from None
            if unlike := changes({name: found.get(name) for name in settings}, settings):
                raise LovecError(
                    f"{folder} holds a demo with other settings: {'; '.join(unlike.values())}; give another --out, or "
                    "--redo to replace it"
                )
        elif taken := [one for one in ours if one.exists()]:
            raise LovecError(
                f"{taken[0]} is there, and no demo has recorded how it was made; give another --out, or --redo to "
                "replace it"
            )
        return state

    def holds(self, stage: Stage) -> bool:
        """Return whether a stage is finished, and the file that it makes is there; a full test holds the other."""
        whole = replace(stage, full=True)
        return (stage.name in self.done or whole.name in self.done) and stage.result(self).exists()

    def forget(self, name: str) -> None:
        """Forget the tests of a method that is trained anew; after the first one, all others, which start from it."""
        if name == FIRST:
            self.done, self.begun = [], [stage for stage in self.begun if stage == Stage("fit", FIRST, False).name]
        else:
            tests = [Stage("test", name, full).name for full in (False, True)]
            self.done = [stage for stage in self.done if stage not in tests]

    def add(self, done: str | None = None, begun: str | None = None) -> None:
        """Record a stage."""
        from lovec.core.files import write_text

        self.done += [done] if done and done not in self.done else []
        self.begun += [begun] if begun and begun not in self.begun else []
        saved = {"settings": self.settings, "done": self.done, "begun": self.begun}
        write_text(self.folder / _STATE, json.dumps(saved, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of a demo.

    Attributes:
        command: "fit" or "test".
        method: name of the method.
        full: whether a test measures all test sets of the data set, and not the one of its first domain only.
    """

    command: str
    method: str
    full: bool

    @property
    def name(self) -> str:
        """Name of the stage in the state of a demo."""
        return f"{self.command} {self.method}" + (" in domain" if self.command == "test" and not self.full else "")

    def result(self, state: State) -> Path:
        """Return the file that the stage makes last."""
        folder = state.folder / self.method
        if self.command == "fit":
            return folder / "adapter" / "adapter_model.safetensors"
        return folder / "test" / str(state.settings["data"]) / "results.json"


def run(words: list[str]) -> None:
    """Train SFT, then every other method on top of it, test them, and say what they show.

    Args:
        words: the command line after ``demo``.

    Raises:
        LovecError: the folder holds something else, or a stage failed.
    """
    parser = OneLineParser("demo", "Train and compare on real cities with SmolLM2, or on the embedded world, offline.")
    parser.add_argument(
        "--world",
        nargs="?",
        const="world",
        metavar="NAME",
        help="use the embedded world instead of real cities; nothing is downloaded: world (the default), world-1, "
        "world-2",
    )
    parser.add_argument(
        "--quick",
        action="store_const",
        const="world-small",
        dest="world",
        help="a smaller world: half as long, and worse results",
    )
    parser.add_argument(
        "--full", action="store_true", help="all methods and all test sets; without it, those that show most"
    )
    names = ", ".join(method.name for method in METHODS)
    parser.add_argument("--methods", help=f"comma list of {names}; {FIRST} always runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of training; the world itself stays the same")
    at_a_time = (
        "trainings and tests at a time, each in a process of its own; on a world as many as there are cores, at most "
        f"{MOST_JOBS}, and otherwise one that uses all of them"
    )
    parser.add_argument("--jobs", type=int, help=at_a_time)
    parser.add_argument(
        "--out", type=Path, help="folder for what the runs write; runs/demo, or runs/demo-world of a world"
    )
    parser.add_argument("--redo", action="store_true", help="begin anew, in place of what an earlier demo has left")
    options = parser.read(words)
    check_seed("--seed", options.seed)
    check_count("--jobs", 1 if options.jobs is None else options.jobs)
    data = options.world or ATLAS
    options.out = options.out or Path("runs/demo" if data == ATLAS else "runs/demo-world")
    check_folder_name("--out", options.out)
    methods = chosen(options.methods, options.full, data)
    jobs = options.jobs or (1 if data == ATLAS else min(MOST_JOBS, cores()))
    begin = time.monotonic()
    # Before torch: on matrices as small as those of a world more threads mostly wait.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs) if data == ATLAS else 1))
    from lovec.core.files import check_writable
    from lovec.metrics.results import read_results, write_results
    from lovec.reports import print_results
    from lovec.reports.texts import MAIN_READOUT

    rows: list[ResultRow] = []
    _check_data(data)
    with locked(options.out, folder=True):
        check_writable(options.out)
        state = State.of(options.out, {"data": data, "seed": options.seed}, options.redo)
        _prepare_data(data)
        _run_stages(methods, state, options.full, jobs)
        say(f"{_STEPS}/{_STEPS}  the report")
        for method in methods:
            measured = read_results(Stage("test", method.name, options.full).result(state)).rows
            rows += [row for row in measured if row.method in method.rows]
        rows.sort(key=lambda row: ORDER.index(row.method))
        write_results(options.out / "results.json", rows)
        report = _report(options.out)

    shown = [row for row in rows if row.domain == rows[0].domain]  # the kinds of things that training is about
    shown = [row for row in shown if row.level == "sentence" and row.readout == MAIN_READOUT]
    print()
    print_results(shown, title=f"lovec demo: {data}, seed {options.seed}, {time.monotonic() - begin:.0f} s")
    print("\n" + textwrap.fill(story(shown), 80) + "\n")
    print(f"the report, with every table, plot and tagged answer: {report}")
    print(f"adapters, logs and tagged answers: {options.out}")
    best = options.out / TRAINED.get(best_method(shown) or "SFT", FIRST)
    if data == ATLAS:
        show_answers(best)
    say_next(*next_steps(best))


def next_steps(adapter: Path) -> tuple[tuple[str, str], ...]:
    """Return the commands that can be run on an adapter, as they are typed in a shell, and what each is for."""
    folder = shlex.quote(str(adapter))
    return (
        (f"lovec serve --adapter {folder}", "a page to try it, and an endpoint"),
        (f"lovec tag page.txt --adapter {folder}", "a confidence for each sentence of a text"),
        (f"lovec calibrate {folder}", "fit confidences to how often sentences are true"),
    )


def _check_data(data: str) -> None:
    """Refuse, before anything is written, a world that is none, and real things where a package is missing."""
    if data == ATLAS:
        check_real()
    else:
        from lovec.datasets.world.variants import spec_of

        spec_of(data)


def _prepare_data(data: str) -> None:
    """Make the model of a data set."""
    from lovec.models import resolve_model

    if data != ATLAS:
        say(f"1/{_STEPS}  the world and its model ({data})")
        resolve_model(data)
        return
    say(f"1/{_STEPS}  the model SmolLM2-135M-Instruct, and what it says of real cities")
    resolve_model("smollm2")


def cores() -> int:
    """Return the number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _run_stages(methods: Sequence[Method], state: State, full: bool, jobs: int) -> None:
    """Run what an earlier call has not finished, several stages at a time; the first failure ends the others.

    The first training is a step of its own. All that comes after it has no fixed order, and is one step.
    """
    of_name = {method.name: method for method in methods}
    waiting: list[Stage] = []
    earlier: dict[str, str] = {}
    for name in of_name:
        fit, test = Stage("fit", name, full), Stage("test", name, full)
        if not state.holds(fit):
            state.forget(name)
        missing = [stage for stage in (fit, test) if not state.holds(stage)]
        if fit not in missing:
            earlier[name] = f"{name}: {'trained' if missing else 'done'} by an earlier call"
        waiting += missing
    waiting.sort(key=lambda stage: (stage.command == "test", stage.method != FIRST, -of_name[stage.method].seconds))
    first = Stage("fit", FIRST, full)
    data = str(state.settings["data"])
    say(f"2/{_STEPS}  {announced(of_name[FIRST], data, cores())}")
    if first not in waiting:
        _note(earlier.pop(FIRST))
        _announce_rest(of_name, earlier, jobs)
    if not waiting:
        return
    running: dict[Future[None], Stage] = {}
    with _executor(min(jobs, len(waiting)), waiting[0], state) as executor:
        while waiting or running:
            open_fits = {stage.method for stage in (*waiting, *running.values()) if stage.command == "fit"}
            ready = [stage for stage in waiting if not _needs(stage) & open_fits]
            for stage in ready[: jobs - len(running)]:
                waiting.remove(stage)
                begun = stage.name in state.begun
                if stage.command == "test":
                    _note(announced_test(of_name[stage.method], data, cores()))
                else:
                    state.add(begun=stage.name)
                    if stage != first:
                        _note(announced(of_name[stage.method], data, cores()))
                running[executor.submit(_work, stage, state.folder, state.settings, begun, jobs > 1)] = stage
            ended = wait(running, return_when=FIRST_COMPLETED).done
            for future in sorted(ended, key=lambda future: future.exception() is not None):  # done is recorded first
                future.result()
                stage = running.pop(future)
                state.add(done=stage.name)
                if stage == first:
                    _announce_rest(of_name, earlier, jobs)


def _announce_rest(names: Iterable[str], earlier: Mapping[str, str], jobs: int) -> None:
    """Announce what comes after the first training, and what of it an earlier call has done."""
    others = ", ".join(name for name in names if name != FIRST)
    step = f"train {others} from {FIRST}, and test all" if others else f"test {FIRST}"
    say(f"3/{_STEPS}  {step}" + f", {jobs} at a time" * (jobs > 1))
    for line in earlier.values():
        _note(line)


def _needs(stage: Stage) -> set[str]:
    """Return the methods that must be trained before a stage can begin."""
    return {stage.method} if stage.command == "test" else {FIRST} - {stage.method}


class _Here(Executor):
    """Runs everything in this process, at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do the work and return its result; its error is raised here."""
        future: Future[Any] = Future()
        future.set_result(work(*args, **kwargs))
        return future


@contextmanager
def _executor(jobs: int, first: Stage, state: State) -> Iterator[Executor]:
    """Yield what runs stages: this process, or children, all but one of which begin with what the first stage needs."""
    if jobs == 1:
        yield _Here()
        return
    with children(jobs) as pool:
        for _ in range(jobs - 1):
            pool.submit(_prepare, first, state.folder, state.settings)
        try:
            yield pool
        except Exception:
            end_children()
            raise


def _prepare(stage: Stage, folder: Path, settings: dict[str, Any]) -> None:
    """Import what stages need, and help the process of a stage to make the answers of the world's model."""
    from .training import prepare

    with lines_of("world"), quiet():
        prepare("test", _words(replace(stage, command="test"), folder, settings)).datamodule.prepare_data()


def _work(stage: Stage, folder: Path, settings: dict[str, Any], begun: bool, named: bool) -> None:
    """Run one stage.

    Args:
        stage: the stage.
        folder: folder of the demo.
        settings: those of the demo.
        begun: whether an earlier call has begun it.
        named: whether its lines begin with its method, since others write at the same time.
    """
    from .training import execute

    with lines_of(stage.method) if named else nullcontext(), quiet():
        resumed = _resumed(folder / stage.method) if begun and stage.command == "fit" else []
        execute(stage.command, _words(stage, folder, settings) + resumed)
        gc.collect()  # trainer and module refer to each other, and would stay in memory


def _words(stage: Stage, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the options of a stage's command."""
    name, (method,) = stage.method, (method for method in METHODS if method.name == stage.method)
    words = ["--config", f"{name}.yaml", *overlay(str(settings["data"]), method, stage.command == "fit")]
    words += ["--trainer.default_root_dir", str(folder / name), "--seed_everything", str(settings["seed"])]
    if stage.command == "test":
        words += ["--model.evaluation.vanilla", str(name == FIRST).lower()]
        return words + ([] if stage.full else ["--data.test_sets", "[test]"])
    words += ["--trainer.limit_val_batches", "0"]
    return words + ([] if name == FIRST else ["--model.policy.adapter", str(folder / FIRST / "adapter")])


def _resumed(folder: Path) -> list[str]:
    """Return the options with which a training that was stopped goes on from its last checkpoint; none without one."""
    from .resume import checkpoints_in

    if not (found := checkpoints_in(folder)):
        _note("begins again: an earlier call was stopped before its first checkpoint")
        return []
    path, checkpoint = found[-1]
    _note(f"goes on from step {checkpoint['global_step']}, where an earlier call was stopped")
    return ["--ckpt_path", str(path)]


def _note(line: str) -> None:
    note(f"     {line}")


def _report(folder: Path) -> Path:
    """Write the report of all runs and return its page; its table is not printed, for the demo prints its own."""
    from . import report

    with redirect_stdout(io.StringIO()):
        report.run([str(folder)], last=False)
    return folder / "report" / "index.html"


def best_method(rows: Sequence[ResultRow]) -> str | None:
    """Return the trained method with the lowest Brier score on given texts; None if there is none."""
    found = [row for row in rows if row.mode == ITERATIVE and row.method in TRAINED]
    found = [row for row in found if row.metrics.get("brier") is not None]
    return min(found, key=lambda row: row.metrics["brier"] or 0.0).method if found else None


def story(rows: Sequence[ResultRow]) -> str:
    """Return in two sentences what results show of the untrained model and the best method: on given texts, stated.

    Args:
        rows: one per method and mode, of the same records, level and readout.
    """
    given = {row.method: row.metrics for row in rows if row.mode == ITERATIVE}
    name = best_method(rows)
    if name is None or "Vanilla" not in given:
        return "Nothing to tell: no trained method and untrained model were measured on the same texts."
    before, after, constant = (_shown(given.get(method)) for method in ("Vanilla", name, "Best constant"))
    first = (
        f"On given texts, the untrained model states a confidence of {before['mean_confidence']} % on average where "
        f"{before['mean_factuality']} % is true: a mean squared error (Brier score, BS) of {before['brier']} %"
    )
    if constant:
        first += f", while one fixed number for every sentence would have {constant['brier']} %"
    second = f"Trained with {name}, it states {after['mean_confidence']} %, has {after['brier']} %"
    if (order := given[name].get("spearman")) is not None:
        ranks = (
            "puts true sentences above wrong ones" if order >= 0.3 else "hardly tells true sentences from wrong ones"
        )
        second += f", and {ranks} (rank correlation with the truth, SC: {after['spearman']} of 100)"
    if constant and (given["Best constant"]["brier"] or 0.0) <= (given[name]["brier"] or 0.0):
        second += ", yet that is no better than the fixed number"
    return f"{first}. {second}."


def _shown(metrics: Mapping[str, float | None] | None) -> dict[str, str]:
    """Return metrics as the tables show them, by name; none of None."""
    from lovec.metrics.table import METRICS

    return {name: METRICS[name].text(value) for name, value in (metrics or {}).items() if name in METRICS}
