"""Measure Distil on the embedded world: its teachers, the stated score, and how many labels it takes.

    python benchmarks/distil.py --runs FOLDER      # five seeds -> benchmarks/results/distil.json and a page
    python benchmarks/distil.py --runs FOLDER --labels 25 50 100 200 480   # the label curve as well, on --label-seeds
    python benchmarks/distil.py --runs FOLDER --from-runs    # only collect what finished runs have written
    python benchmarks/distil.py --page             # only write the page and its pictures from the file

FOLDER has ``seed-N/METHOD/adapter`` for sft, sft2, dpo and expected, as ``lovec demo`` and benchmarks/world.py write
them. For every seed Distil is trained with ``distil.yaml`` from sft2, tested as the others are, and its teachers are
asked about the test people: raw, and with the map or blend that was fitted on the labelled training answers. A line of
the label curve trains SFT, SFT-2 and Distil, for as many steps as with all labels, from the labels of so many people;
the answers to all other questions have none. Commands run one after the other, with one thread; what is finished is
not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, mean_text, provenance, read_json, seeds_of, select, versions_text, write_json

from lovec.datasets.jsonl import read_records
from lovec.evaluation.evaluator import tagged_file
from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.results import read_results
from lovec.types import MODES, Record, ResultRow

RESULTS = ROOT / "benchmarks" / "results" / "distil.json"
PAGE = ROOT / "docs" / "results" / "distil.md"
SCORES_PICTURE, LABELS_PICTURE = ROOT / "docs" / "distil-scores.svg", ROOT / "docs" / "distil-labels.svg"
METHODS = {"sft": "SFT", "sft2": "SFT-2", "dpo": "DPO", "expected": "ExpectedReward", "distil": "Distil"}
DRAWN = ("sft", "dpo", "expected", "distil")
PEOPLE = 480
"""Training people of the world, all of whom have labels."""
NAMES = ("brier", "ece_m", "spearman")
NOTE = "distil.note.json"
_QUIET = ("--trainer.enable_model_summary", "false", "--trainer.enable_progress_bar", "false")
_LOVEC = (sys.executable, "-m", "lovec.cli")


def lovec(*words: str) -> None:
    """Run a command with one thread, from the folder of this file, where its datamodule is found."""
    folder = Path(__file__).resolve().parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    done = subprocess.run([*_LOVEC, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"lovec {' '.join(words)} failed:\n{done.stderr}")


def fit_and_test(run: Path, recipe: str, seed: int, start: Path | None, *words: str, test: bool = True) -> None:
    """Train and test in a folder, unless that is done."""
    if (run / NOTE).exists():
        return
    print(f"{run}", flush=True)
    begin, note = time.monotonic(), provenance()
    settings = ["--trainer.default_root_dir", str(run), "--seed_everything", str(seed), *_QUIET]
    from_ = [] if start is None else ["--model.policy.adapter", str(start / "adapter")]
    lovec("fit", "--config", recipe, *settings, *from_, "--trainer.limit_val_batches", "0", *words)
    seconds = time.monotonic() - begin
    if test:
        lovec("test", "--config", recipe, *settings, "--model.evaluation.vanilla", "false")
    write_json(run / NOTE, note | {"seconds": round(seconds, 1)})


def measure(runs: Path, seed: int) -> None:
    """Train and test Distil, test the others where they are not, and ask the teachers."""
    folder = runs / f"seed-{seed}"
    fit_and_test(folder / "distil", "distil.yaml", seed, folder / "sft2")
    for method in METHODS:
        if not (folder / method / "test" / "results.json").exists():
            settings = ["--trainer.default_root_dir", str(folder / method), "--seed_everything", str(seed), *_QUIET]
            lovec("test", "--config", f"{method}.yaml", *settings, "--model.evaluation.vanilla", "false")
    if not (path := folder / "distil" / "teachers.json").exists():
        write_json(path, {"teachers": ask_teachers(folder / "sft2" / "adapter", seed)})


def ask_teachers(adapter: Path, seed: int) -> list[dict[str, Any]]:
    """Return the metrics of every teacher of the recipe, and of blends, on the given answers about the test people."""
    import yaml

    from lovec.baselines import LUQ, BaselineResources, Samples, SentenceLikelihood
    from lovec.cli.arguments import BASE
    from lovec.datamodules import World
    from lovec.encoding import Encoder
    from lovec.engines import TransformersEngine
    from lovec.policy import Policy, PolicyConfig
    from lovec.taggers.models import resolve_model
    from lovec.teachers import BaselineTeacher, Blend, PolicyMean, TeacherResources

    base = yaml.safe_load(BASE.read_text(encoding="utf-8"))
    data = World(samples=base["data"]["init_args"]["samples"], seed=seed)
    data.prepare_data()
    known = list(data.load("train"))
    people = [r for r in data.load("test") if r.domain == "in-domain" and r.labelled]
    asked = [*known, *data.keep_unlabelled(people)]
    policy = Policy(PolicyConfig(model=resolve_model("world"), adapter=str(adapter), dtype="float32"), reference=False)
    samples = Samples(max_new_tokens=base["model"]["init_args"]["evaluation"]["max_new_tokens"], seed=seed)
    encoder = Encoder(policy.tokenizer, data.instruction)
    shared = BaselineResources(TransformersEngine(), encoder, data.wording, samples, data.judge)
    resources = TeacherResources(policy, shared, start=str(adapter))
    teachers = {
        "policy's mean": PolicyMean(),
        "likelihood": BaselineTeacher(SentenceLikelihood()),
        "LUQ, 10 samples": BaselineTeacher(LUQ()),
    }
    raw = {name: teacher.estimates(asked, resources) for name, teacher in teachers.items()}
    blends = [[name] for name in raw] + [["policy's mean", "LUQ, 10 samples"], list(raw)]
    fitted = {" + ".join(names): Blend([PolicyMean()]).blended(asked, [raw[n] for n in names]) for names in blends}
    truth = [s.factuality for r in people for s in r.sentences]
    found = []
    for kind, estimates in (("raw", raw), ("calibrated", fitted)):
        for name, rows in estimates.items():
            values = [value for row in rows[len(known) :] for value in row]
            found.append(
                {"teacher": name, "kind": kind, "seed": seed, **dict(zip(NAMES, _three(values, truth), strict=True))}
            )
    return found


def curve(runs: Path, seed: int, people: int) -> None:
    """Train with the labels of some people only."""
    folder = runs / f"seed-{seed}" / f"labels-{people}"
    few = ["--data", "few_labels.FewLabels", "--data.labelled", str(people)]
    epochs = ["--trainer.max_epochs", str(max(1, round(PEOPLE / people)))]
    fit_and_test(folder / "sft", "sft.yaml", seed, None, *few, "--data.others", "false", *epochs, test=False)
    fit_and_test(
        folder / "sft2", "sft2.yaml", seed, folder / "sft", *few, "--data.others", "false", *epochs, test=False
    )
    fit_and_test(folder / "distil", "distil.yaml", seed, folder / "sft2", *few)


def collect(runs: Path, seeds: Sequence[int], labels: Sequence[int], label_seeds: Sequence[int]) -> dict[str, Any]:
    """Return the rows of all tests, what else is counted, the teachers, and the label curve."""
    folders = {seed: runs / f"seed-{seed}" for seed in seeds}
    notes = [json.loads((folder / "distil" / NOTE).read_text(encoding="utf-8")) for folder in folders.values()]
    curve_runs = {(n, s): runs / f"seed-{s}" / f"labels-{n}" / "distil" for n in labels for s in label_seeds}
    return notes[0] | {
        "commit": ", ".join(sorted({note["commit"] for note in notes})),
        "seconds": {str(seed): note["seconds"] for seed, note in zip(seeds, notes, strict=True)},
        "answers": [
            _answers(f / m, METHODS[m], mode, s) for s, f in folders.items() for m in METHODS for mode in MODES
        ],
        "teachers": [
            row
            for folder in folders.values()
            for row in json.loads((folder / "distil" / "teachers.json").read_text(encoding="utf-8"))["teachers"]
        ],
        "labels": [
            {"people": n, "seed": s, "mode": row.mode, **{name: row.metrics[name] for name in NAMES}}
            for (n, s), run in curve_runs.items()
            for row in _rows(run, "Distil")
            if row.domain == "in-domain" and row.readout == "stated"
        ],
        "rows": [row for f in folders.values() for m, name in METHODS.items() for row in _rows(f / m, name)],
    }


def _three(values: Sequence[float | None], truth: Sequence[float | None]) -> list[float]:
    import torch

    pairs = [(v, t) for v, t in zip(values, truth, strict=True) if v is not None and t is not None]
    c, f = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    return [float(metric(c, f)) for metric in (brier_score, ece_m, spearman)]


def _rows(run: Path, name: str) -> Iterator[ResultRow]:
    """Yield the sentence-level rows of a test that are those of the method itself."""
    from dataclasses import replace

    for row in read_results(run / "test" / "results.json").rows:
        if row.kind == "method" and row.method == name and row.level == "sentence" and row.readout != "deployed":
            yield replace(row, file=None)


def _tagged(run: Path, name: str, mode: str) -> list[Record]:
    """Return the test answers about people."""
    return [r for r in read_records(run / "test" / tagged_file(name, mode)) if r.domain == "in-domain"]


def _answers(run: Path, name: str, mode: str, seed: int) -> dict[str, Any]:
    """Return what is counted of the answers of a test: distinct scores, malformed tags, and how true they are."""
    sentences = [s for record in _tagged(run, name, mode) for s in record.sentences]
    known = [s.factuality for s in sentences if s.factuality is not None]
    return {
        "method": name,
        "mode": mode,
        "seed": seed,
        "scores": len({s.score for s in sentences if s.score is not None}),
        "malformed": sum(s.score is None for s in sentences) / len(sentences),
        "factuality": statistics.mean(known),
    }


def page(results: Mapping[str, Any]) -> str:
    """Return the page of the results in Markdown."""
    rows, seeds = results["rows"], seeds_of(results["rows"])
    lines = [
        "# Distil: stating what sampling knows",
        "",
        f"Written by `benchmarks/distil.py` from `benchmarks/results/distil.json`: {len(seeds)} training seeds, test "
        f"people of the embedded world, means over seeds, in percent. {versions_text(results)}.",
        "",
        "`Distil` starts from SFT-2 and learns to state a calibrated blend of the policy's mean, the likelihood of the "
        "sentence and agreement with ten samples; see `lovec.modules.Distil`. Scores is the number of different scores "
        "that are stated (the fewest of any seed), malformed the share of sentences without a valid tag, f the mean "
        "factuality of the answers.",
        "",
        "| Method | Mode | Readout | BS | ECE-M | SC | Scores | Malformed | f |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for method in METHODS.values():
        for mode in MODES:
            counts = [row for row in results["answers"] if (row["method"], row["mode"]) == (method, mode)]
            for readout in ("stated", "mean"):
                own = select(rows, method=method, mode=mode, readout=readout)
                cells = [mean_text(own, name) for name in NAMES]
                if readout == "stated":
                    cells.append(str(min(row["scores"] for row in counts)))
                    cells += [
                        f"{100 * statistics.mean(row[n] for row in counts):.1f}" for n in ("malformed", "factuality")
                    ]
                else:
                    cells += ["", "", ""]
                lines.append(f"| {method} | {mode} | {readout} | {' | '.join(cells)} |")
    lines += [
        "",
        "![Stated score against truth](../distil-scores.svg)",
        "",
        "## The teachers",
        "",
        "The given answers about the test people; calibrated ones are mapped, and blended, by what was fitted on the "
        "labelled training answers. They are what a student could reach at best.",
        "",
        "| Teacher | | BS | ECE-M | SC |",
        "|---|---|--:|--:|--:|",
    ]
    for kind, name in dict.fromkeys((row["kind"], row["teacher"]) for row in results["teachers"]):
        own = [row for row in results["teachers"] if (row["kind"], row["teacher"]) == (kind, name)]
        cells = [f"{100 * statistics.mean(row[metric] for row in own):.1f}" for metric in NAMES]
        lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    if results["labels"]:
        lines += [
            "",
            "## How many labels it takes",
            "",
            f"SFT, SFT-2, teacher and Distil from the labels of so many of the {PEOPLE} training people, in as many "
            "steps; the other people are in Distil's training without labels.",
            "",
            "![Label curve](../distil-labels.svg)",
            "",
            "| People with labels | Mode | Seeds | BS | ECE-M | SC |",
            "|--:|---|--:|--:|--:|--:|",
        ]
        for people, mode in dict.fromkeys((row["people"], row["mode"]) for row in results["labels"]):
            own = [row for row in results["labels"] if (row["people"], row["mode"]) == (people, mode)]
            cells = [f"{100 * statistics.mean(row[name] for row in own):.1f}" for name in NAMES]
            lines.append(f"| {people} | {mode} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_scores(folder: Path, path: Path) -> None:
    """Draw the true factuality of the sentences of one seed by the score that each method states."""
    from lovec.reports import reliability_diagram

    groups = {METHODS[m]: _tagged(folder / m, METHODS[m], "iterative") for m in DRAWN}
    reliability_diagram(groups, path, title="Stated score and truth: test people, iterative tagging")


def draw_labels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw Brier score and SC by the number of people with labels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    from lovec.reports.style import BLUE, ORANGE

    people = sorted({row["people"] for row in rows})
    with pyplot.style.context(str(ROOT / "lovec" / "reports" / "plots.mplstyle")):
        figure, axes = pyplot.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
        for axis, name, label in zip(axes, ("brier", "spearman"), ("BS, %", "SC, %"), strict=True):
            for mode, colour in zip(MODES, (BLUE, ORANGE), strict=True):
                own = [[100 * r[name] for r in rows if (r["people"], r["mode"]) == (n, mode)] for n in people]
                axis.plot(people, [statistics.mean(values) for values in own], "o-", color=colour, label=mode)
                for n, values in zip(people, own, strict=True):
                    axis.plot([n] * len(values), values, ".", color=colour, alpha=0.4)
            axis.set(xscale="log", xticks=people, xlabel="people with labels", ylabel=label)
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(visible=True)
        axes[0].legend()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--labels", type=int, nargs="*", default=[], help="people with labels, for the label curve")
    parser.add_argument("--label-seeds", type=int, nargs="+", default=[0], help="seeds of the label curve")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    parser.add_argument("--from-runs", action="store_true", help="only collect what finished runs have written")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    flags = parser.parse_args()
    runs = flags.runs.resolve()
    if not flags.page:
        if not flags.from_runs:
            for seed in flags.seeds:
                measure(runs, seed)
            for people in flags.labels:
                for seed in flags.label_seeds:
                    curve(runs, seed, people)
        write_json(flags.results, collect(runs, flags.seeds, flags.labels, flags.label_seeds))
        if flags.results == RESULTS:
            draw_scores(runs / f"seed-{flags.seeds[0]}", SCORES_PICTURE)
    if flags.results == RESULTS:
        results = read_json(RESULTS)
        if results["labels"]:
            draw_labels(results["labels"], LABELS_PICTURE)
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
