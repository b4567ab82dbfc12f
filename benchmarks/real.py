"""Train and test all methods on a real language model, on things with an exact oracle and on people's labels.

    python benchmarks/real.py --data atlas --seeds 0,1,2                      # every method of benchmarks/real.yaml
    python benchmarks/real.py --data bios --methods words --labels DATA        # five folds by person
    python benchmarks/real.py --data bios:wikibio --methods sft --labels DATA  # trained on one set, tested on another
    python benchmarks/real.py --data bios-chatgpt:bios-perplexityai --labels DATA  # sets about the same people: folds
    python benchmarks/real.py --data atlas --methods sft --validate            # fit, and print validation metrics only
    python benchmarks/real.py --page    # only write docs/results/real.md and README from benchmarks/results/real.json

The model is SmolLM2-135M-Instruct (`smollm2`), or another one that the settings name for the data (first
`python benchmarks/second_model.py`, which fetches it). Runs are made one after the other; what was made is left out,
and what was stopped goes on. As each ends, its figures go into benchmarks/results/real.json, in place of those of the
same data, method and seed, and its scored sentences into a file of benchmarks/results/real; intervals are computed from
the files of all seeds. Of people's labels, a seed is also the number of the fold that is tested.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, provenance, results_file, run_lovec, test_folder, write_json
from real_data import FOLDS, SETS, is_folded, write_split
from real_page import write_pages
from real_results import collect, entry_of, merged, read_results_file
from real_scores import Place, Scored, read_scored, scored_test, write_scored
from second_model import QWEN, qwen_file

from lovec.core.hub import trained_recipe
from lovec.metrics.results import read_results
from lovec.types import ITERATIVE, LovecError

RESULTS = results_file("real")
SETTINGS = Path(__file__).with_suffix(".yaml")
LABELS = "LOVEC_SHARED_DATA"
"""Environment variable with the folder of people's labels."""
NOTE = "real.json"
"""File in the folder of a run that says how it was trained and tested."""
ATLAS = ("atlas", "atlas-larger")
"""The data sets of Atlas: the same questions to test, after training on few and on more answers."""
CONSTANT = "Best constant"
OF_TRAINING = ("settings", "fit", "calibrate")
"""What of a note belongs to the method that was trained, and not to others that its test measures."""
ANSWERS = "Answers"
"""What times call the plain answers of the bare model, which have no rows."""


@dataclass(frozen=True, slots=True)
class Training:
    """A method that is trained.

    Attributes:
        method: what tables call it.
        recipe: its recipe.
        after: the run whose adapter it starts from; None starts afresh.
        tags: whether it states scores, which can be calibrated.
    """

    method: str
    recipe: str
    after: str | None = "sft"
    tags: bool = True


TRAININGS = {
    "sft": Training("SFT", "sft.yaml", None),
    "sft2": Training("SFT-2", "sft2.yaml"),
    "sft-regression": Training("SFT-regression", "sft-regression.yaml", None),
    "dpo": Training("DPO", "dpo.yaml"),
    "dpo-higher": Training("DPO, higher rate", "dpo.yaml"),
    "orpo": Training("ORPO", "orpo.yaml"),
    "grpo": Training("GRPO", "grpo.yaml"),
    "expected": Training("ExpectedReward", "expected.yaml"),
    "expected-own": Training("ExpectedReward, own scores", "expected.yaml"),
    "distil": Training("Distil", "distil.yaml"),
    "p-true": Training("p(true)-ft", "p-true.yaml", None, tags=False),
}
"""Trainings by the name of their run."""

BASELINES: dict[str, dict[str, Any]] = {
    "Words": {"class_path": "lovec.baselines.Words"},
    "Likelihood": {"class_path": "lovec.baselines.SentenceLikelihood"},
    "CCP": {"class_path": "lovec.baselines.ClaimConditioned"},
    "p(true)": {"class_path": "lovec.baselines.PTrue"},
    "Verb-Conf": {"class_path": "lovec.baselines.VerbalConfidence"},
    "Probe": {"class_path": "lovec.baselines.LinearProbe"},
    "Self-Cons": {"class_path": "lovec.baselines.SelfConsistency", "init_args": {"samples": 10}},
    "LUQ": {"class_path": "lovec.baselines.LUQ", "init_args": {"samples": 10}},
}
"""Classes of the baselines by their names in tables; "Vanilla" is an option of the test."""


class Benchmark:
    """The runs on one data set.

    Args:
        data: a name in ``ATLAS``, one in ``real_data.SETS`` (folds), or two of the latter with a colon: trained on the
            first, tested on the second.
        settings: content of benchmarks/real.yaml.
        out: folder of all runs.
        labels: folder with the files of people's labels.

    Raises:
        LovecError: there is no such data set, or no settings for it.
    """

    def __init__(self, data: str, settings: Mapping[str, Any], out: Path, labels: Path | None) -> None:
        self.data = data
        self.train, _, self.other = data.partition(":")
        if self.train not in settings or not {self.train, self.other or self.train} <= {*ATLAS, *SETS}:
            known = ", ".join(name for name in (*ATLAS, *SETS) if name in settings)
            raise LovecError(
                f"--data is {data!r}, expected one of {known}, or TRAIN:TEST with TEST of {', '.join(SETS)}"
            )
        if self.other and {*ATLAS} & {self.train, self.other}:
            raise LovecError(f"--data is {data!r}, but atlas is not tested with other sets; give --data atlas")
        if self.train in SETS and labels is None:
            raise LovecError(f"--data {data} reads people's labels: give their folder with --labels, or as {LABELS}")
        self.settings = settings[self.train]
        self.model = self.settings.get("model", settings["model"])
        self.out = out
        self.labels = labels

    @property
    def folded(self) -> bool:
        """Whether a seed is the number of a fold."""
        return is_folded(self.data)

    @property
    def runs(self) -> list[str]:
        """Names of the runs that the settings ask for, in their order."""
        return [*self.settings["tests"], *self.settings["methods"]]

    def folder(self, seed: int, run: str, training: bool = False) -> Path:
        """Return the folder of a run; what is trained for another test set is trained once for all of them."""
        trained = self.train if self.folded else f"{self.train}-all"
        name = trained if self.other and training else self.data.replace(":", "-to-")
        return self.out / name / f"seed-{seed}" / run

    def common(self, seed: int, training: bool) -> list[str]:
        """Return the options of all commands of a seed, and make the files of its answers."""
        words = [word for config in self.settings["configs"] for word in ("--config", config)]
        words += [*_flags(self.settings["options"]), "--seed_everything", str(seed)]
        words += ["--trainer.enable_model_summary", "false"]
        if self.model == QWEN:
            words += ["--model.policy.model", str(qwen_file())]
        if self.train in SETS:
            files = self.folder(seed, "data", training)
            assert self.labels is not None
            other = None if training or not self.other else self.other
            write_split(files, self.train, other, seed if self.folded else None, self.labels)
            words += ["--data", "Demonstrations", "--data.name", SETS[self.other or self.train].title]
            for option, part in (("path", "train"), ("val_path", "validation"), ("test_path", "test")):
                words += [f"--data.{option}", str(files / f"{part}.jsonl")]
        return words

    def fit(self, seed: int, run: str) -> None:
        """Train a method, unless that is done, after the run that it starts from; then calibrate it."""
        training, folder = TRAININGS[run], self.folder(seed, run, training=True)
        note = _note(folder)
        if "fit" not in note:
            if start := self._start(run):
                self.fit(seed, start)
            words = ["fit", *self._recipe(seed, run), *self.common(seed, training=True)]
            words += ["--trainer.default_root_dir", str(folder), "--trainer.limit_val_batches", "0"]
            words += ["--ckpt_path", "auto"]
            resumed = any(folder.rglob("*.ckpt"))  # also one that a signal has left
            about = provenance() | {"settings": self.settings["methods"].get(run, {})}
            spent = run_lovec(words, folder / "fit.log", self._name(seed, run, "fits"))
            note = {**about, "fit": spent | ({"resumed": True} if resumed else {})}
            write_json(folder / NOTE, note)
        if training.tags and "calibrate" not in note:
            # The recipe is our own: files of data named in it may be read.
            words = ["calibrate", str(folder), "--config", str(trained_recipe(folder))]
            words += _flags(self.settings.get("calibrate", {}))
            try:
                note["calibrate"] = run_lovec(words, folder / "calibrate.log", self._name(seed, run, "is calibrated"))
            except SystemExit as failure:  # too few answers: the run has no deployed confidences
                note["calibrate"] = {"failed": str(failure)}
                print(f"{self._name(seed, run, 'is not calibrated')}: {failure}", flush=True)
            write_json(folder / NOTE, note)

    def test(self, seed: int, run: str) -> bool:
        """Test a run, unless that is done; return whether anything was to do."""
        folder = self.folder(seed, run)
        if "test" in (note := _note(folder)):
            return False
        folder.mkdir(parents=True, exist_ok=True)
        if run in TRAININGS:
            self.fit(seed, run)
            trained = self.folder(seed, run, training=True)
            note = _note(trained)
            words = [*self._recipe(seed, run), "--model.evaluation.vanilla", "false"]
            words += ["--model.evaluation.adapter", str(trained / "adapter")]
        else:
            recipe = folder / "recipe.yaml"
            recipe.write_text(yaml.safe_dump(comparison_recipe(self.settings["tests"][run])), encoding="utf-8")
            note, words = provenance(), ["--config", str(recipe)]
        words += ["--trainer.default_root_dir", str(folder)]
        spent = run_lovec(
            ["test", *words, *self.common(seed, training=False)],
            folder / "test.log",
            self._name(seed, run, "is tested"),
        )
        write_json(folder / NOTE, {**note, "test": spent})
        return True

    def validate(self, seed: int, run: str) -> None:
        """Train a method and print its validation metrics; the test answers are not read."""
        self.fit(seed, run)
        folder = self.folder(seed, run, training=True)
        words = ["validate", *self._recipe(seed, run), *self.common(seed, training=True)]
        words += ["--trainer.default_root_dir", str(folder)]
        run_lovec(words, folder / "validate.log", self._name(seed, run, "is validated"))

    def entries(self, seed: int, run: str) -> Iterator[dict[str, Any]]:
        """Yield an entry of real.json for every method that a run has tested."""
        folder = self.folder(seed, run)
        note, tested = _note(folder), test_folder(folder)
        rows = read_results(tested / "results.json").rows
        times = json.loads((tested / "times.json").read_text(encoding="utf-8"))
        methods = [TRAININGS[run].method] if run in TRAININGS else self.settings["tests"][run]
        for method in (CONSTANT, ANSWERS, *methods):
            place = {"data": self.data, "method": method, "seed": seed, "model": self.model}
            own = note if method in methods else {name: note[name] for name in note if name not in OF_TRAINING}
            entry = entry_of(place, own, rows, times)
            if entry["rows"] or entry["times"]:
                yield entry

    def keep(self, seed: int, run: str, results: Path) -> None:
        """Keep the scored sentences of a run, in a folder beside the results that is named like these."""
        path = self._kept(results) / f"seed-{seed}-{run}.json"
        write_scored(path, scored_test(test_folder(self.folder(seed, run))))

    def kept(self, results: Path) -> dict[int, dict[Place, Scored]]:
        """Return the scored sentences of all runs that were kept, by seed."""
        found: dict[int, dict[Place, Scored]] = {}
        for run in self.runs:
            for path in sorted(self._kept(results).glob(f"seed-*-{run}.json")):
                seed = int(path.stem.removeprefix("seed-").removesuffix(f"-{run}"))
                found.setdefault(seed, {}).update(read_scored(path))
        return found

    def _kept(self, results: Path) -> Path:
        return results.with_suffix("") / self.data.replace(":", "-to-")

    def _recipe(self, seed: int, run: str) -> list[str]:
        """Return recipe and options of a training, which its test needs as well."""
        training = TRAININGS[run]
        words = ["--config", training.recipe, "--model.evaluation.name", training.method]
        if start := self._start(run):
            words += ["--model.policy.adapter", str(self.folder(seed, start, training=True) / "adapter")]
        else:
            words += ["--model.policy.adapter", "null"]
        return words + _flags(self.settings["methods"].get(run, {}))

    def _start(self, run: str) -> str | None:
        """Return the run whose adapter a training starts from; None where it starts from the model."""
        return None if run in self.settings.get("afresh", ()) else TRAININGS[run].after

    def _name(self, seed: int, run: str, does: str) -> str:
        part = "fold" if self.folded else "seed"
        return f"{self.data}, {part} {seed}: {run} {does}"


def comparison_recipe(names: Sequence[str]) -> dict[str, Any]:
    """Return a recipe that tests baselines on the bare model, recalibrated ones as well."""
    unknown = [name for name in names if name not in BASELINES and name != "Vanilla"]
    if unknown:
        raise LovecError(f"there is no baseline {unknown[0]!r}, expected some of Vanilla, {', '.join(BASELINES)}")
    evaluation: dict[str, Any] = {"vanilla": "Vanilla" in names, "recalibrated_baselines": True}
    if not evaluation["vanilla"]:  # baselines judge given texts; only where others are written, plain ones are timed
        evaluation["modes"] = [ITERATIVE]
    baselines = [BASELINES[name] for name in names if name != "Vanilla"]
    model = {
        "class_path": "lovec.evaluation.Comparison",
        "init_args": {"baselines": baselines, "evaluation": evaluation},
    }
    return {"trainer": {"logger": False}, "model": model}


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


def _note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", help=f"atlas, atlas-larger, one of {', '.join(SETS)}, or two with a colon: TRAIN:TEST"
    )
    parser.add_argument("--seeds", help="seeds, or folds of people's labels, such as 0,1,2; default: 0, or all folds")
    parser.add_argument("--methods", help="runs of the settings, such as words,sft; default: all of them")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "real", help="folder of the runs")
    parser.add_argument("--labels", type=Path, default=os.environ.get(LABELS), help="folder of people's labels")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="settings of the methods")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file that figures are added to")
    parser.add_argument("--validate", action="store_true", help="only fit, and print validation metrics")
    parser.add_argument("--from-runs", action="store_true", help="only collect what finished runs have written")
    parser.add_argument("--page", action="store_true", help="only write the page and README from the file")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the command that runs, too
    if not flags.page:
        if flags.data is None:
            parser.error("--data must be given, such as --data atlas")
        try:
            _run(flags)
        except LovecError as error:
            parser.error(str(error))
    if flags.results == RESULTS and not flags.validate:
        write_pages(read_results_file(RESULTS))


def _run(flags: argparse.Namespace) -> None:
    """Make the runs one after the other, and add the figures of each to the results as it ends."""
    settings = yaml.safe_load(flags.settings.read_text(encoding="utf-8"))
    benchmark = Benchmark(flags.data, settings, flags.out.resolve(), flags.labels and Path(flags.labels).resolve())
    seeds = [*range(FOLDS)] if benchmark.folded else [0]
    if flags.seeds:
        seeds = [int(seed) for seed in flags.seeds.split(",")]
    if benchmark.folded and not set(seeds) <= set(range(FOLDS)):
        raise LovecError(f"--seeds is {flags.seeds}, expected folds of {flags.data}, 0 to {FOLDS - 1}")
    runs = flags.methods.split(",") if flags.methods else benchmark.runs
    if unknown := [run for run in runs if run not in benchmark.runs]:
        raise LovecError(f"--methods has {unknown[0]!r}, expected some of {', '.join(benchmark.runs)}")
    for seed in seeds:
        for run in runs:
            if flags.validate:
                if run in TRAININGS:
                    benchmark.validate(seed, run)
                continue
            made = not flags.from_runs and benchmark.test(seed, run)
            if made or (flags.from_runs and "test" in _note(benchmark.folder(seed, run))):
                results = read_results_file(flags.results)
                write_json(flags.results, merged(results, list(benchmark.entries(seed, run))))
                benchmark.keep(seed, run, flags.results)
                print(f"{flags.data}, {seed}: {run} is in {flags.results}", flush=True)
    if not flags.validate:
        results = collect(
            read_results_file(flags.results), benchmark.data, benchmark.kept(flags.results), benchmark.folded
        )
        write_json(flags.results, results)


if __name__ == "__main__":
    main()
