"""``lovec sweep``: train variations of a recipe, and compare them in one table."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from glob import escape, glob
from itertools import count, product
from pathlib import Path
from typing import Any

import yaml

from lovec.core.files import check_writable, write_text
from lovec.core.hub import adapter_folder
from lovec.core.notices import counted
from lovec.core.own_code import own_modules
from lovec.core.provenance import file_digest, text_digest, weights_of
from lovec.core.settings import check_count, check_seed
from lovec.metrics.results import Results, read_results, write_results
from lovec.metrics.table import MetricInfo
from lovec.types import LovecError, ResultRow

from .arguments import value_of
from .console import is_first_process, locked, quiet, say, say_next, texts_in
from .errors import UsageError, check_folder_name
from .parser import OneLineParser

BASE = "base"
"""Label of the recipe without changes."""

_RESULT = "result.json"
_RESERVED = {
    "trainer.default_root_dir": "each run has a folder of its own; use --out",
    "seed_everything": "use --seeds",
    "ckpt_path": "every run starts anew; use --model.policy.adapter",
    "model.evaluation.adapter": "each run measures the adapter that it has trained",
}


@dataclass(frozen=True, slots=True)
class VariedOption:
    """An option and the values that it takes in turn.

    Attributes:
        name: name of the option, such as ``model.group_size``.
        values: values as on a command line, such as ``("4", "8")``.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One training run of a sweep, with its validation.

    Attributes:
        label: name in tables.
        flags: command-line options that it changes.
        seed: seed of everything random.
        words: recipes and flags of ``lovec fit``, ``flags`` included.
        folder: folder of the run, named after everything that its result depends on, except the code of packages.
    """

    label: str
    flags: tuple[str, ...]
    seed: int
    words: tuple[str, ...]
    folder: Path

    @property
    def result(self) -> Path:
        """The file with its result rows, which is written last."""
        return self.folder / _RESULT


def run(words: list[str]) -> None:
    """Train and validate a recipe and its variations, and print and write one table.

    Args:
        words: the command line after ``sweep``.

    Raises:
        UsageError: an option is unknown or does not take its value; nothing was run.
        LovecError: a run failed.
    """
    parser = OneLineParser(
        "sweep",
        "Vary options of a recipe: the recipe as it is and every variation are trained, each in a folder of its own, "
        "measured on the dev split, and compared in one table. All options but these, --config among them, are those "
        "of `lovec fit` and go to every run. Finished runs are not repeated: the same command continues an interrupted "
        "sweep. Training runs without validation unless --trainer.limit_val_batches is given.",
    )
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        type=read_varied,
        metavar="OPTION=VALUE,...",
        help="an option of `lovec fit` and its values, such as model.group_size=4,8 (commas inside brackets or quotes "
        "belong to a value); once per option to vary",
    )
    parser.add_argument("--grid", action="store_true", help="every combination of values, not one option at a time")
    seeds = "comma list, such as 0,1: the table gives means; None is the recipe's own"
    parser.add_argument("--seeds", type=read_seeds, help=seeds)
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time, of one device each; with more, each in a process of its own",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"), help="folder of the runs and of the table")
    options, passed = parser.parse_known_args(parser.spelt(words))
    begin = time.monotonic()
    check_count("--jobs", options.jobs)
    check_folder_name("--out", options.out)
    runs = plan(passed, options.vary, options.out, options.seeds, options.grid, options.jobs)
    from lovec.reports.diagnostic_tables import sweep_table
    from lovec.reports.table import markdown, print_table

    with locked(options.out, folder=True):
        check_writable(options.out)
        results = sweep(runs, options.jobs)
        if not is_first_process():  # with several devices, one process writes and prints
            return
        table = sweep_table(results.rows, "Variations of a recipe, measured on the dev split", results.metrics)
        path = write_results(options.out / "sweep.json", results.rows, results.metrics.values())
        page = path.with_suffix(".md")
        write_text(page, f"`{shlex.join(['lovec', 'sweep', *words])}`\n\n{markdown(table, intervals=True)}")
    print()
    print_table(table, intervals=True)
    print(f"\n{time.monotonic() - begin:.0f} s; rows: {path}; this table: {page}; folder of the runs: {options.out}")
    if (best := best_label(results.rows)) is not None:
        flags = next(planned.flags for planned in runs if planned.label == best)
        say_next(
            (shlex.join(["lovec", "fit", *passed, *flags]), f"the lowest Brier score, {best}, in the recipe's folder"),
            (f"lovec report {shlex.quote(str(options.out))}", "this table on a page"),
        )


def best_label(rows: Sequence[ResultRow]) -> str | None:
    """Return the label of the variation with the lowest mean Brier score, of stated scores in the first mode.

    Args:
        rows: of all runs.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        brier = row.metrics.get("brier")
        if (row.level, row.readout, row.mode) == ("sentence", "stated", rows[0].mode) and brier is not None:
            found.setdefault(row.method.partition(" (= ")[0], []).append(brier)
    return min(found, key=lambda label: sum(found[label]) / len(found[label])) if found else None


def sweep(runs: Sequence[SweepRun], jobs: int = 1) -> Results:
    """Train and validate the runs of a sweep, except those that an earlier call has finished.

    Args:
        runs: see ``plan``.
        jobs: number of runs at a time; with more than one, each has a process of its own.

    Returns:
        Rows of the kind "variation", by variation and seed; the ``method`` is the label of the variation.

    Raises:
        LovecError: a run failed; the error names it.
    """
    with quiet():
        first = {planned.folder: planned for planned in reversed(runs)}
        waiting = [planned for planned in runs if planned is first[planned.folder] and not planned.result.exists()]
        say(f"{counted(len(runs), 'run')}, of which {len(runs) - len(waiting)} done already or the same as another")
        if jobs == 1:
            for number, planned in enumerate(waiting, start=1):
                say(f"{number}/{len(waiting)}  {planned.label}, seed {planned.seed}")
                execute_run(planned)
        else:
            _execute_in_processes(waiting, jobs)
    rows: list[ResultRow] = []
    metrics: dict[str, MetricInfo] = {}
    for planned in runs:
        executed = first[planned.folder].label
        label = planned.label if planned.label == executed else f"{planned.label} (= {executed})"
        results = read_results(planned.result)
        rows += [replace(row, method=label, seed=planned.seed, options=planned.flags) for row in results.rows]
        metrics |= results.metrics
    return Results(tuple(rows), metrics)


def plan(
    words: Sequence[str],
    varied: Sequence[VariedOption],
    out: Path,
    seeds: Sequence[int] | None = None,
    grid: bool = False,
    jobs: int = 1,
) -> list[SweepRun]:
    """Return every run of a sweep, the recipe without changes first; their options are checked, and nothing is run.

    Runs with the same settings share a folder, also with runs of earlier sweeps that had another label.

    Args:
        words: recipes and flags of ``lovec fit`` for every run.
        varied: options to vary.
        out: folder of the runs.
        seeds: seeds of the runs; None is the recipe's own.
        grid: whether to combine all values.
        jobs: number of runs at a time; more than one takes runs of one device only.

    Raises:
        UsageError: an option is unknown, given twice, or set by the sweep itself, or it does not take its value; or
            there are several jobs, and a run takes several devices.
    """
    names = [option.name for option in varied]
    for name in _RESERVED:
        if name in names or value_of(words, f"--{name}"):
            raise _reserved(name)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice; put all its values into one list, with commas")
    choices = [[(option, value) for value in option.values] for option in varied]
    changes = product(*choices) if grid else ((choice,) for option in choices for choice in option)
    folders: dict[str, Path] = {}
    runs = []
    for change in ((), *changes):
        parts = [f"{_short(option.name, names)}={_short(value, option.values)}" for option, value in change]
        label = ", ".join(parts) or BASE
        flags = tuple(f"--{option.name}={value}" for option, value in change)
        settings = _settings([*words, *flags], jobs)
        own_seed = settings.pop("seed_everything")
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")[:60]
        for seed in [own_seed] if seeds is None else seeds:
            key = _digest(settings, seed)
            if key not in folders:
                finished = next(out.glob(f"*-{key}/{_RESULT}"), None)
                folders[key] = finished.parent if finished else out / f"{slug}-seed-{seed}-{key}"
            runs.append(SweepRun(label, flags, seed, (*words, *flags), folders[key]))
    return runs


def execute_run(planned: SweepRun) -> None:
    """Train and validate one run, and write the result rows of the validation.

    Raises:
        LovecError: the run failed; the error begins with its label and seed.
    """
    from .training import execute

    begin = time.monotonic()
    flags = [*planned.words, "--seed_everything", str(planned.seed)]
    flags += ["--trainer.default_root_dir", str(planned.folder), "--trainer.enable_model_summary", "false"]
    try:
        execute("fit", ["--trainer.limit_val_batches", "0", *flags])  # a later flag wins over an earlier one
        gc.collect()  # trainer and module refer to each other, and would keep a large model in memory
        cli = execute("validate", flags, verbose=False)
    except LovecError as error:
        raise LovecError(f"{planned.label}, seed {planned.seed}: {error}") from error
    seconds = {"seconds": round(time.monotonic() - begin, 1)}
    changes = {"method": planned.label, "kind": "variation", "seed": planned.seed, "options": planned.flags}
    rows = [replace(row, **changes, metrics={**row.metrics, **seconds}) for row in cli.model.validation_results]
    if cli.trainer.is_global_zero:
        write_results(planned.result, rows, cli.model.evaluator.metric_infos.values())
    cli.trainer.strategy.barrier()  # with several devices, each process reads that file
    del cli
    gc.collect()


def read_varied(text: str) -> VariedOption:
    """Read an option to vary from ``OPTION=VALUE,VALUE``; the values are the items of a YAML list.

    Raises:
        UsageError: there is no option or no value, a value is empty, or a bracket or quote is not closed.
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--")
    try:
        node = yaml.compose(f"[{values}]")
    except yaml.YAMLError:
        node = None
    items = node.value if node else []
    if not name or not items:
        raise UsageError(f"--vary {text}: expected OPTION=VALUE,VALUE, such as model.group_size=4,8")
    texts = [values[item.start_mark.index - 1 : item.end_mark.index - 1] for item in items]
    return VariedOption(name, tuple(dict.fromkeys(texts)))


def read_seeds(text: str) -> list[int]:
    """Read seeds from a comma list.

    Raises:
        UsageError: one is not a whole number from 0 up.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--seeds is {text}, expected whole numbers with commas between them, such as 0,1,2")
    seeds = list(dict.fromkeys(map(int, words)))
    for seed in seeds:
        check_seed("--seeds", seed)
    return seeds


def _short(text: str, others: Sequence[str]) -> str:
    """Return the last part of a dotted name; all of it if one of the others, itself among them, ends the same way."""
    last_parts = [re.sub(r"^([A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*$)", "", other) for other in others]
    last = last_parts[others.index(text)]
    return last if last_parts.count(last) == 1 else text


def _settings(words: Sequence[str], jobs: int) -> dict[str, Any]:
    """Return every setting of a run; its parts are built, too, so that they can refuse their settings."""
    from .training import TrainingCLI, resolved

    with quiet():
        cli = TrainingCLI("fit", words)
    settings = resolved(cli.parser, cli.config)
    evaluation = settings["model"].get("init_args", {}).get("evaluation") or {}
    found = {"ckpt_path": cli.config.ckpt_path, "model.evaluation.adapter": evaluation.get("adapter")}
    for name, value in found.items():  # a recipe may set them, too
        if value is not None:
            raise _reserved(name)
    # Each process of a run repeats the whole command, with jobs of its own.
    if jobs > 1 and (devices := cli.trainer.num_devices * cli.trainer.num_nodes) > 1:
        raise UsageError(
            f"--jobs is {jobs}, which is for runs of one device, and a run takes {devices}; give --jobs 1, or "
            "--trainer.devices 1 and no --trainer.num_nodes"
        )
    return settings


def _reserved(name: str) -> UsageError:
    return UsageError(f"--{name} is not for a sweep: {_RESERVED[name]}")


def _digest(settings: dict[str, Any], seed: int) -> str:
    """Return a digest of settings, seed and what they name on this disk.

    That is the weights of models and adapters, which training starts from, learns from or judges with, the content of
    other files that the settings of data and model name, or that lie in a folder that they name, and the code of
    classes of the user's own.
    """
    trainer = {name: value for name, value in settings["trainer"].items() if name != "default_root_dir"}
    decisive = json.dumps([{**settings, "trainer": trainer}, seed], sort_keys=True)
    adapter = settings["model"].get("init_args", {}).get("policy", {}).get("adapter")
    weights = weights_of(adapter and adapter_folder(adapter))
    named = [text for text in texts_in(settings["model"]) if text and text != adapter]
    folders = {text: weights_of(adapter_folder(text)) for text in named if os.path.isdir(text)}
    others = [text for text in (*texts_in(settings.get("data", {})), *named) if text and not folders.get(text)]
    inputs = (path for text in others for path in (text, *sorted(glob(f"{escape(text)}/*"))) if os.path.isfile(path))
    code = own_modules(path.rpartition(".")[0] for path in _classes_in(settings))
    paths = (*inputs, *sorted(map(str, code.values())))
    found = ((path, os.stat(path)) for path in paths)
    contents = (_content(path, state.st_size, state.st_mtime_ns) for path, state in found)
    return text_digest([decisive, str(weights), *filter(None, folders.values()), *contents])[:12]


def _classes_in(settings: Any) -> Iterator[str]:
    """Yield the import paths of the classes that settings name."""
    if isinstance(settings, dict):
        if isinstance(path := settings.get("class_path"), str):
            yield path
        settings = list(settings.values())
    for inner in settings if isinstance(settings, list) else ():
        yield from _classes_in(inner)


@cache
def _content(path: str, size: int, changed: int) -> str:
    """Return the digest of a file, which is read once for all runs while its size and time of change stay."""
    return file_digest(path)


def _execute_in_processes(runs: Sequence[SweepRun], jobs: int) -> None:
    """Execute several runs at a time, without progress bars; after the first failure no further run is started."""
    from concurrent.futures import FIRST_COMPLETED, Future, wait

    from .children import children

    waiting, done = list(runs), count(1)
    running: dict[Future[None], SweepRun] = {}
    with children(jobs, tasks_per_child=1) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:  # no more: children begin whatever was submitted
                planned = waiting.pop(0)
                running[pool.submit(_execute_quietly, planned)] = planned
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                planned = running.pop(future)
                future.result()
                say(f"{next(done)}/{len(runs)}  {planned.label}, seed {planned.seed}: done")


def _execute_quietly(planned: SweepRun) -> None:
    with quiet():
        execute_run(replace(planned, words=(*planned.words, "--trainer.enable_progress_bar", "false")))
