"""``lovec sweep``: one recipe with options changed, a run for every change, one table of what came of it."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from lovec.types import LovecError

from .arguments import value_of
from .console import quiet, say
from .errors import UsageError
from .parser import OneLineParser

BASE = "base"
"""What tables call the recipe as it is."""

_RESULT = "result.json"
_OURS = {
    "trainer.default_root_dir": "each run has a folder of its own; use --out",
    "seed_everything": "use --seeds",
    "ckpt_path": "every run starts anew; use --model.policy.adapter",
}
_PARTNERS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}
_PREFIXES = {("sentence", "stated"): "", ("passage", "stated"): "passage_", ("sentence", "mean"): "mean_"}
_FIGURES = ("brier", "ece_m", "spearman", "malformed", "mean_confidence", "mean_factuality")
_OF_MODES = ("entropy", "distinct", "words")  # logged once a mode, without a prefix


@dataclass(frozen=True, slots=True)
class Varied:
    """An option and the values that it takes in turn.

    Attributes:
        name: of the option, such as ``model.group_size``.
        values: as they would stand on a command line, such as ``("4", "8")``.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One training and its validation.

    Attributes:
        label: what tables call it.
        flags: what it changes of the recipe.
        seed: of everything random.
        words: recipes and flags of ``lovec fit``, those above included.
        folder: where it writes; it is named after all that the result depends on, except code.
    """

    label: str
    flags: tuple[str, ...]
    seed: int
    words: tuple[str, ...]
    folder: Path

    @property
    def result(self) -> Path:
        """The file of its rows, written when all is done."""
        return self.folder / _RESULT


def run(words: list[str]) -> None:
    """Trains the recipe and every variation of it, validates them, and prints and writes one table.

    Args:
        words: the command line after ``sweep``.

    Raises:
        LovecError: something the user can mend; wrong options are found before the first run.
    """
    parser = OneLineParser(
        "sweep",
        "Vary options of a recipe: the recipe as it is and every variation are trained, each in a folder of its own, "
        "measured on the dev split, and compared in one table. All options but these, --config among them, are those "
        "of `lovec fit` and go to every run. Runs that are done are not repeated: the same command goes on where it "
        "was stopped. Training runs without validation unless --trainer.limit_val_batches is given.",
    )
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="OPTION=VALUE,...",
        help="an option of `lovec fit` and its values, such as model.group_size=4,8 (commas inside brackets or quotes "
        "belong to a value); once for every option to vary",
    )
    parser.add_argument("--grid", action="store_true", help="every combination of values, not one option at a time")
    parser.add_argument("--seeds", help="comma list, such as 0,1: the table gives means; None is the recipe's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; with more, each in a process of its own")
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"), help="folder of the runs and of the table")
    options, passed = parser.parse_known_args(words)
    varied = [read_varied(text) for text in options.vary]
    seeds = None if options.seeds is None else read_seeds(options.seeds)
    begin = time.monotonic()
    rows = sweep(passed, varied, options.out, seeds, options.grid, options.jobs)
    from lightning.pytorch.utilities import rank_zero_only

    from lovec.reports import write_results
    from lovec.reports.variations import legend, markdown_variations, print_variations

    if getattr(rank_zero_only, "rank", 0):  # with several devices, one process tells
        return
    path = write_results(rows, options.out / "sweep.json")
    page = path.with_suffix(".md")
    command = shlex.join(["lovec", "sweep", *words])
    page.write_text(f"`{command}`\n\n{markdown_variations(rows)}\nDev split. {legend(rows)}.\n", encoding="utf-8")
    print_variations(rows, title=f"\nlovec sweep: dev split, {time.monotonic() - begin:.0f} s")
    print(f"all rows are in {path}, this table in {page}; the runs are in {options.out}")


def sweep(
    words: Sequence[str],
    varied: Sequence[Varied],
    out: Path,
    seeds: Sequence[int] | None = None,
    grid: bool = False,
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Trains and validates a recipe and its variations, except those that an earlier call has done.

    Args:
        words: recipes and flags of ``lovec fit`` for every run.
        varied: options to vary.
        out: folder of the runs.
        seeds: of the runs; None is the recipe's one.
        grid: every combination of values instead of one option at a time.
        jobs: runs at a time; with more than one each has a process of its own.

    Returns:
        Rows as ``lovec.reports.variations`` takes them, by variation and seed, with the ``flags`` of the variation.

    Raises:
        UsageError: an option is unknown, or does not take its value; nothing was run.
        LovecError: a run failed; it is named.
    """
    if jobs < 1:
        raise UsageError(f"--jobs is {jobs}, expected at least 1")
    from lovec.reports import read_results

    with quiet():
        runs = plan(words, varied, out, seeds, grid)
        first: dict[Path, Run] = {}
        for one in runs:
            first.setdefault(one.folder, one)
        waiting = [one for one in first.values() if not one.result.exists()]
        say(f"{len(runs)} runs; {len(runs) - len(waiting)} of them are done already, or the same as another")
        if jobs == 1:
            for number, one in enumerate(waiting, start=1):
                say(f"{number}/{len(waiting)}  {one.label}, seed {one.seed}")
                with _named(one):
                    execute_run(one)
        else:
            _execute_in_processes(waiting, jobs)
    rows = []
    for one in runs:
        twin = first[one.folder].label
        label = one.label if twin == one.label else f"{one.label} (= {twin})"
        own = {"method": label, "flags": shlex.join(one.flags), "seed": one.seed}
        rows += [{**row, **own} for row in read_results(one.result)]
    return rows


def plan(
    words: Sequence[str], varied: Sequence[Varied], out: Path, seeds: Sequence[int] | None = None, grid: bool = False
) -> list[Run]:
    """Every run of a sweep, the recipe as it is first; all their options are read, and nothing is run.

    Runs with the same settings share a folder. So do such of earlier sweeps, whatever they were called there.

    Raises:
        UsageError: an option is unknown, given twice, or set by the sweep itself, or it does not take its value.
    """
    names = [one.name for one in varied]
    for name, reason in _OURS.items():
        if name in names or value_of(words, f"--{name}"):
            raise UsageError(f"--{name} is not for a sweep: {reason}")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice; put all its values into one list, with commas")
    choices = [[(one, value) for value in one.values] for one in varied]
    changes = product(*choices) if grid else ((choice,) for option in choices for choice in option)
    folders: dict[str, Path] = {}
    runs = []
    for change in ((), *changes):
        label = ", ".join(f"{_short(one.name, names)}={_shown(value, one.values)}" for one, value in change) or BASE
        flags = tuple(f"--{one.name}={value}" for one, value in change)
        settings = _settings([*words, *flags])
        own = settings.pop("seed_everything")
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")[:60]
        for seed in [own] if seeds is None else seeds:
            key = _key(settings, seed)
            if key not in folders:
                done = next(out.glob(f"*-{key}/{_RESULT}"), None)
                folders[key] = done.parent if done else out / f"{slug}-seed-{seed}-{key}"
            runs.append(Run(label, flags, seed, (*words, *flags), folders[key]))
    return runs


def execute_run(one: Run) -> None:
    """Trains and validates, and writes the rows of the validation."""
    from lovec.reports import write_results

    from .training import execute

    begin = time.monotonic()
    flags = [*one.words, "--seed_everything", str(one.seed), "--trainer.default_root_dir", str(one.folder)]
    flags += ["--trainer.enable_model_summary", "false"]
    execute("fit", ["--trainer.limit_val_batches", "0", *flags])  # what is given later wins
    gc.collect()  # trainer and module refer to each other, and would keep a large model in memory
    cli = execute("validate", flags, verbose=False)
    metrics = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    seconds = {"method": one.label, "seed": one.seed, "seconds": round(time.monotonic() - begin, 1)}
    rows = [{**seconds, **row} for row in result_rows(metrics, cli.model.evaluator.modes)]
    if cli.trainer.is_global_zero:
        write_results(rows, one.result)
    cli.trainer.strategy.barrier()  # with several devices, each process reads that file
    del cli
    gc.collect()


def result_rows(metrics: dict[str, float], modes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a result table from what a validation logged, which is in domain.

    Args:
        metrics: ``val/...`` of the first mode and ``val/<mode>/...`` of the others.
        modes: evaluation modes in their order.
    """
    rows = []
    for mode in modes:
        place = "val/" if mode == modes[0] else f"val/{mode}/"
        for (level, readout), prefix in _PREFIXES.items():
            names = {name: f"{place}{prefix}{name}" for name in _FIGURES} | {n: f"{place}{n}" for n in _OF_MODES}
            figures = {name: metrics.get(logged) for name, logged in names.items()}
            rows.append({"domain": "in-domain", "mode": mode, "level": level, "readout": readout, **figures})
    return rows


def read_varied(text: str) -> Varied:
    """An option to vary from ``OPTION=VALUE,VALUE``.

    Raises:
        UsageError: there is no option or no value, a value is empty, or a bracket or quote has no partner.
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--")
    found = [value.strip() for value in _split(values)]
    if not name or not all(found):
        raise UsageError(f"--vary {text}: expected OPTION=VALUE,VALUE, such as model.group_size=4,8")
    return Varied(name, tuple(dict.fromkeys(found)))


def read_seeds(text: str) -> list[int]:
    """Seeds from a comma list.

    Raises:
        UsageError: one is not a whole number from 0 up.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--seeds is {text}, expected whole numbers with commas between them, such as 0,1,2")
    return list(dict.fromkeys(map(int, words)))


def _split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets and quotes.

    Raises:
        UsageError: a bracket or quote has no partner.
    """
    parts, closing = [""], ""  # the second: what must still close, innermost last
    for char in text:
        quoted = closing.endswith(('"', "'"))
        if closing.endswith(char):
            closing = closing[:-1]
        elif not quoted and char in _PARTNERS:
            closing += _PARTNERS[char]
        elif not quoted and char in _PARTNERS.values():
            raise UsageError(f"--vary ...={text}: nothing opens what {char} closes")
        if char == "," and not closing:
            parts.append("")
        else:
            parts[-1] += char
    if closing:
        raise UsageError(f"--vary ...={text}: there is no {closing[-1]} that closes")
    return parts


def _short(name: str, names: Sequence[str]) -> str:
    """The last part of an option's name, or all of it where another option ends so."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in names) == 1 else name


def _shown(value: str, values: Sequence[str]) -> str:
    """A value for a label: a class path without its module, unless that makes it another value's."""

    def bare(text: str) -> str:
        return text.rpartition(".")[2] if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text) else text

    return bare(value) if sum(bare(other) == bare(value) for other in values) == 1 else value


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Every setting of a run; builds its parts, too, so that they refuse what they do not take."""
    from .training import TrainingCLI, resolved

    cli = TrainingCLI("fit", words)
    return resolved(cli.parser, cli.config)


def _key(settings: dict[str, Any], seed: int) -> str:
    """Digest of settings, seed and, where training starts from an adapter on this disk, of its weights."""
    trainer = {name: value for name, value in settings["trainer"].items() if name != "default_root_dir"}
    digest = hashlib.sha256(json.dumps([{**settings, "trainer": trainer}, seed], sort_keys=True).encode())
    adapter = settings["model"].get("init_args", {}).get("policy", {}).get("adapter")
    weights = Path(adapter or "") / "adapter_model.safetensors"
    if weights.is_file():
        digest.update(weights.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _named(one: Run) -> Iterator[None]:
    """Inside: an error says which run it is of."""
    try:
        yield
    except LovecError as error:
        raise LovecError(f"{one.label}, seed {one.seed}: {error}") from error


def _execute_in_processes(runs: Sequence[Run], jobs: int) -> None:
    """Runs side by side, without bars; the first that fails keeps the waiting ones from starting."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Otherwise each process takes all cores, and they wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(_execute_quietly, one): one for one in runs}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                with _named(futures[future]):
                    future.result()
                say(f"{number}/{len(runs)}  {futures[future].label}, seed {futures[future].seed}: done")
        except BrokenProcessPool as error:
            raise LovecError(
                "a process of the sweep died, perhaps for want of memory; the same command with fewer --jobs goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _execute_quietly(one: Run) -> None:
    with quiet():
        execute_run(replace(one, words=(*one.words, "--trainer.enable_progress_bar", "false")))
