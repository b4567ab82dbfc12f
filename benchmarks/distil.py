"""Measure Distil on the embedded world: its teachers, answers without labels, and how many labels it takes.

    python benchmarks/distil.py --runs FOLDER      # -> benchmarks/results/distil.json and a page
    python benchmarks/distil.py --runs FOLDER --labels 25 50 100 200   # the label curve as well, on --label-seeds
    python benchmarks/distil.py --runs FOLDER --from-runs    # only collect what finished runs have written
    python benchmarks/distil.py --page             # only write the page and its pictures from the file

FOLDER has ``seed-N/METHOD``, trained and tested, for sft, sft2, dpo, expected and distil, as benchmarks/world.py writes
them. For every seed the teachers are asked about the test things: raw, and with the map or blend that was fitted on the
validation things. On --unlabelled-seeds Distil is trained with companies that have no labels, too. A point of the label
curve trains SFT and Distil, for as many steps as with all labels, from the labels of so many things; the answers to all
other questions have none. Commands run one after the other, with one thread; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    QUIET,
    ROOT,
    commits_of,
    lovec,
    most_tokens,
    provenance,
    read_json,
    results_and_page,
    seeds_of,
    select,
    test_folder,
    training_samples,
    write_json,
)
from page_parts import collect_options, mean_percent, mean_text, page_of_lines, versions_text

from lovec.datasets.jsonl import read_records
from lovec.evaluation.evaluator import tagged_file
from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.metrics.results import read_results
from lovec.types import MODES, Record, ResultRow

RESULTS, PAGE = results_and_page("distil")
SCORES_PICTURE, LABELS_PICTURE = ROOT / "docs" / "distil-scores.svg", ROOT / "docs" / "distil-labels.svg"
METHODS = {"sft": "SFT", "sft2": "SFT-2", "dpo": "DPO", "expected": "ExpectedReward", "distil": "Distil"}
DRAWN = ("sft", "dpo", "expected", "distil")
UNLABELLED = "distil-unlabelled"
DOMAINS = {"in-domain": "things of the trained kinds", "out-of-domain": "companies"}
NAMES = ("brier", "ece_m", "spearman")
NOTE = "distil.note.json"
NOTE_OF_DEMO = "benchmark.json"
"""File in the folder of a seed in which benchmarks/world.py says how it was run."""
HERE = Path(__file__).resolve().parent
"""Where commands run, so that they find ``few_labels``."""


def fit_and_test(run: Path, recipe: str, seed: int, start: Path | None, *words: str, test: bool = True) -> None:
    """Train and test in a folder, unless that is done."""
    if (run / NOTE).exists():
        return
    print(f"{run}", flush=True)
    begin, note = time.monotonic(), provenance()
    settings = ["--trainer.default_root_dir", str(run), "--seed_everything", str(seed), *QUIET]
    from_ = [] if start is None else ["--model.policy.adapter", str(start / "adapter")]
    lovec("fit", "--config", recipe, *settings, *from_, "--trainer.limit_val_batches", "0", *words, folder=HERE)
    seconds = time.monotonic() - begin
    if test:
        lovec("test", "--config", recipe, *settings, "--model.evaluation.vanilla", "false", folder=HERE)
    write_json(run / NOTE, note | {"seconds": round(seconds, 1)})


def measure(runs: Path, seed: int) -> None:
    """Ask the teachers, unless that is done."""
    folder = runs / f"seed-{seed}"
    if not (path := folder / "distil" / "teachers.json").exists():
        write_json(path, {"teachers": ask_teachers(folder / "sft" / "adapter", seed)})


def ask_teachers(adapter: Path, seed: int) -> list[dict[str, Any]]:
    """Return the metrics of every teacher of the recipe, and of blends, on the given answers about the test things."""
    from lovec.baselines import LUQ, BaselineResources, Samples, SentenceLikelihood
    from lovec.datamodules import World
    from lovec.encoding import Encoder
    from lovec.engines import TransformersEngine
    from lovec.models import resolve_model
    from lovec.policy import Policy, PolicyConfig
    from lovec.teachers import BaselineTeacher, Blend, PolicyMean, TeacherResources

    data = World(samples=training_samples(), seed=seed)
    data.prepare_data()
    known = list(data.load("validation"))
    things = [r for r in data.load("test") if r.domain == "in-domain" and r.labelled]
    asked = [*known, *data.keep_unlabelled(things)]
    policy = Policy(PolicyConfig(model=resolve_model("world"), adapter=str(adapter), dtype="float32"), reference=False)
    samples = Samples(max_new_tokens=most_tokens(), seed=seed)
    encoder = Encoder(policy.tokenizer, data.instruction)
    shared = BaselineResources(TransformersEngine(), encoder, data.wording, samples, data.judge)
    resources = TeacherResources(policy, shared, start=str(adapter))
    teachers = {
        "SFT's mean": PolicyMean(),
        "likelihood": BaselineTeacher(SentenceLikelihood()),
        "LUQ, 10 samples": BaselineTeacher(LUQ()),
    }
    raw = {name: teacher.estimates(asked, resources) for name, teacher in teachers.items()}
    blends = [[name] for name in raw] + [["SFT's mean", "likelihood"], list(raw)]
    fitted = {" + ".join(names): Blend([PolicyMean()]).blended(asked, [raw[n] for n in names]) for names in blends}
    truth = [s.factuality for r in things for s in r.sentences]
    found = []
    for kind, estimates in (("raw", raw), ("calibrated", fitted)):
        for name, rows in estimates.items():
            values = [value for row in rows[len(known) :] for value in row]
            found.append(
                {"teacher": name, "kind": kind, "seed": seed, **dict(zip(NAMES, _three(values, truth), strict=True))}
            )
    return found


def train_unlabelled(runs: Path, seed: int) -> None:
    """Train Distil with questions about companies that have no labels, and test it."""
    folder = runs / f"seed-{seed}"
    fit_and_test(folder / UNLABELLED, f"{UNLABELLED}.yaml", seed, folder / "sft", "--data.unlabelled", "unlabelled")


def curve(runs: Path, seed: int, things: int, of: int) -> None:
    """Train with the labels of some things only, out of ``of``."""
    folder = runs / f"seed-{seed}" / f"labels-{things}"
    few = ["--data", "few_labels.FewLabels", "--data.labelled", str(things)]
    epochs = ["--trainer.max_epochs", str(max(1, round(of / things)))]
    fit_and_test(folder / "sft", "sft.yaml", seed, None, *few, "--data.others", "false", *epochs, test=False)
    fit_and_test(folder / "distil", "distil.yaml", seed, folder / "sft", *few)


def training_things() -> int:
    """Return the number of things that have labels in training."""
    from lovec.datamodules import World

    return len(World().questions("train"))


def collect(runs: Path, seeds: Sequence[int], unlabelled: Sequence[int], points: Mapping[int, Sequence[int]]) -> Any:
    """Return the rows of all tests, what else is counted, the teachers, and the label curve.

    Args:
        runs: folder of the runs.
        seeds: training seeds of all methods.
        unlabelled: training seeds of Distil with unlabelled companies.
        points: training seeds by number of things with labels.
    """
    folders = {seed: runs / f"seed-{seed}" for seed in seeds}
    curve_runs = {(n, s): runs / f"seed-{s}" / f"labels-{n}" / "distil" for n, some in points.items() for s in some}
    curve_runs |= {(training_things(), s): runs / f"seed-{s}" / "distil" for s in {s for _, s in curve_runs}}
    rows = [row for f in folders.values() for m, name in METHODS.items() for row in _rows(f / m, name)]
    notes = [runs / f"seed-{seed}" / NOTE_OF_DEMO for seed in seeds]
    notes += [runs / f"seed-{s}" / UNLABELLED / NOTE for s in unlabelled]
    return provenance() | {
        "commit": commits_of(json.loads(note.read_text(encoding="utf-8")) for note in notes),
        "seeds": {"all": list(seeds), "unlabelled": list(unlabelled)},
        "answers": [
            _answers(f / m, METHODS[m], mode, s) for s, f in folders.items() for m in METHODS for mode in MODES
        ],
        "teachers": [
            row
            for folder in folders.values()
            for row in json.loads((folder / "distil" / "teachers.json").read_text(encoding="utf-8"))["teachers"]
        ],
        "labels": [
            {"things": n, "seed": s, "mode": row.mode, **{name: row.metrics[name] for name in NAMES}}
            for (n, s), run in sorted(curve_runs.items())
            for row in _rows(run, "Distil")
            if row.domain == "in-domain" and row.readout == "stated"
        ],
        "unlabelled": [
            {"seed": s, "method": name, "mode": row.mode, "domain": row.domain}
            | {metric: row.metrics[metric] for metric in NAMES}
            for s in unlabelled
            for name, method, run in (
                ("SFT", "SFT", "sft"),
                ("Best constant", "Best constant", "sft"),
                ("Distil", "Distil", "distil"),
                ("Distil, with unlabelled companies", "Distil", UNLABELLED),
            )
            for row in _rows(runs / f"seed-{s}" / run, method)
            if row.readout == "stated" and row.domain in DOMAINS
        ],
        "rows": [row for row in rows if row.domain in DOMAINS],
    }


def _three(values: Sequence[float | None], truth: Sequence[float | None]) -> list[float]:
    import torch

    pairs = [(v, t) for v, t in zip(values, truth, strict=True) if v is not None and t is not None]
    c, f = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    return [float(metric(c, f)) for metric in (brier_score, ece_m, spearman)]


def _rows(run: Path, name: str) -> Iterator[ResultRow]:
    """Yield the sentence-level rows of a test that are those of the method itself."""
    from dataclasses import replace

    for row in read_results(test_folder(run) / "results.json").rows:
        if row.method == name and row.level == "sentence" and row.readout in ("stated", "mean"):
            yield replace(row, file=None, metrics={metric: row.metrics.get(metric) for metric in NAMES})


def _tagged(run: Path, name: str, mode: str) -> list[Record]:
    """Return the test answers about things of the trained kinds."""
    return [r for r in read_records(test_folder(run) / tagged_file(name, mode)) if r.domain == "in-domain"]


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


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results in Markdown, line by line."""
    rows, seeds = results["rows"], seeds_of(results["rows"])
    yield from ("# Distil: stating what sampling knows", "")
    yield (
        f"Written by `benchmarks/distil.py` from `benchmarks/results/distil.json`: {len(seeds)} training seeds, test "
        f"things of the embedded world, means over seeds, in percent. {versions_text(results)}."
    )
    yield ""
    yield (
        "`Distil` starts from SFT and learns to state a calibrated blend of SFT's mean, the likelihood of the sentence "
        "and agreement with the other training answers to the question; see `lovec.modules.Distil`. Scores is the "
        "number of different scores that are stated (the fewest of any seed), malformed the share of sentences without "
        "a valid tag, f the mean factuality of the answers. Things of the trained kinds."
    )
    yield ""
    yield "| Method | Mode | Readout | BS | ECE-M | SC | Scores | Malformed | f |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for method in METHODS.values():
        for mode in MODES:
            counts = [row for row in results["answers"] if (row["method"], row["mode"]) == (method, mode)]
            for readout in ("stated", "mean"):
                own = select(rows, method=method, mode=mode, readout=readout, domain="in-domain")
                cells = [mean_text(own, name) for name in NAMES]
                if readout == "stated":
                    cells.append(str(min(row["scores"] for row in counts)))
                    cells += [
                        f"{100 * statistics.mean(row[n] for row in counts):.1f}" for n in ("malformed", "factuality")
                    ]
                else:
                    cells += ["", "", ""]
                yield f"| {method} | {mode} | {readout} | {' | '.join(cells)} |"
    yield from ("", "![Stated score against truth](../distil-scores.svg)", "", "## The teachers", "")
    yield (
        "The given answers about the test things. Calibrated ones are mapped, and blended, by what was fitted on the "
        "validation things: what a student could reach that knew everything its teacher knows."
    )
    yield from ("", "| Teacher | | BS | ECE-M | SC |", "|---|---|--:|--:|--:|")
    for kind, name in dict.fromkeys((row["kind"], row["teacher"]) for row in results["teachers"]):
        own = [row for row in results["teachers"] if (row["kind"], row["teacher"]) == (kind, name)]
        yield f"| {name} | {kind} | {_means(own)} |"
    if results["unlabelled"]:
        yield from ("", "## Questions without labels", "")
        yield (
            "`distil-unlabelled.yaml` adds answers about other companies, which have no labels: the map that was "
            "fitted on the labelled things turns their agreement into targets. Training sees no labelled company. "
            f"Stated score; seeds {', '.join(map(str, results['seeds']['unlabelled']))}."
        )
        yield from ("", "| Method | Tested on | Mode | BS | ECE-M | SC |", "|---|---|---|--:|--:|--:|")
        for domain, words in DOMAINS.items():
            own_rows = [row for row in results["unlabelled"] if row["domain"] == domain]
            for method, mode in dict.fromkeys((row["method"], row["mode"]) for row in own_rows):
                own = [row for row in own_rows if (row["method"], row["mode"]) == (method, mode)]
                yield f"| {method} | {words} | {mode} | {_means(own)} |"
    if results["labels"]:
        yield from ("", "## How many labels it takes", "")
        yield (
            "SFT, teacher and Distil from the labels of so many of the training things, in as many steps; the other "
            "things are in Distil's training without labels."
        )
        yield from ("", "![Label curve](../distil-labels.svg)", "")
        yield from ("| Things with labels | Mode | Seeds | BS | ECE-M | SC |", "|--:|---|--:|--:|--:|--:|")
        for things, mode in dict.fromkeys((row["things"], row["mode"]) for row in results["labels"]):
            own = [row for row in results["labels"] if (row["things"], row["mode"]) == (things, mode)]
            yield f"| {things} | {mode} | {len(own)} | {_means(own)} |"


def _means(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the means over seeds as cells of a table."""
    return " | ".join(mean_percent(row[name] for row in rows) for name in NAMES)


def draw_scores(folder: Path, path: Path) -> None:
    """Draw the true factuality of the sentences of one seed by the score that each method states."""
    from lovec.reports import reliability_diagram

    groups = {METHODS[m]: _tagged(folder / m, METHODS[m], "iterative") for m in DRAWN}
    reliability_diagram(groups, path, title="Stated score and truth: test things, iterative tagging")


def draw_labels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw Brier score and SC by the number of things with labels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    from lovec.reports.style import BLUE, ORANGE

    things = sorted({row["things"] for row in rows})
    with pyplot.style.context(str(ROOT / "lovec" / "reports" / "plots.mplstyle")):
        figure, axes = pyplot.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
        for axis, name, label in zip(axes, ("brier", "spearman"), ("BS, %", "SC, %"), strict=True):
            for mode, colour in zip(MODES, (BLUE, ORANGE), strict=True):
                own = [[100 * r[name] for r in rows if (r["things"], r["mode"]) == (n, mode)] for n in things]
                axis.plot(things, [statistics.mean(values) for values in own], "o-", color=colour, label=mode)
                for n, values in zip(things, own, strict=True):
                    axis.plot([n] * len(values), values, ".", color=colour, alpha=0.4)
            axis.set(xscale="log", xticks=things, xlabel="things with labels", ylabel=label)
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
    parser.add_argument("--unlabelled-seeds", type=int, nargs="*", default=[0], help="seeds with unlabelled companies")
    parser.add_argument("--labels", type=int, nargs="*", default=[], help="things with labels, for the label curve")
    parser.add_argument("--label-seeds", type=int, nargs="+", default=[0], help="seeds of the label curve")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    collect_options(parser, RESULTS)
    flags = parser.parse_args()
    runs = flags.runs.resolve()
    if not flags.page:
        if not flags.from_runs:
            for seed in flags.unlabelled_seeds:
                train_unlabelled(runs, seed)
            for things in flags.labels:
                for seed in flags.label_seeds:
                    curve(runs, seed, things, training_things())
            for seed in flags.seeds:
                measure(runs, seed)
        points = {things: flags.label_seeds for things in flags.labels}
        write_json(flags.results, collect(runs, flags.seeds, flags.unlabelled_seeds, points))
        if flags.results == RESULTS:
            draw_scores(runs / f"seed-{flags.seeds[0]}", SCORES_PICTURE)
    if flags.results == RESULTS:
        results = read_json(RESULTS)
        if results["labels"]:
            draw_labels(results["labels"], LABELS_PICTURE)
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
