"""Confidences by a source and by knowledge: train with sources, and compare both with the truth by each.

    python benchmarks/grounded.py                     # both parts -> benchmarks/results/grounded.json, docs
    python benchmarks/grounded.py --parts atlas       # real cities only; the other part stays as it is
    python benchmarks/grounded.py --validate          # train, measure on validation answers, and print
    python benchmarks/grounded.py --from-runs         # measure what finished runs have written
    python benchmarks/grounded.py --parts atlas --written ADAPTER    # measure answers that it writes with articles
    python benchmarks/grounded.py --baselines         # measure only the baselines; adapters stay as they are
    python benchmarks/grounded.py --page              # only write the table from the file

grounded.yaml has the settings. Every test answer is tagged twice, with an article about its subject and without, and
labelled twice: by what the article supports and by what is true. The articles leave facts out and have wrong ones, so
these labels differ.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from common import CALIBRATION, ROOT, interval_values, provenance, results_and_page, run_lovec
from grounded_baselines import cross_fitted, read_by_baselines, tag_in_parts
from grounded_rows import measured_answers, oracle_of, plain_answers, sourced_answers, with_stated
from page_parts import HEADINGS, page_options, run_for_page, versions_text

from lovec.core.hub import SHIPPED
from lovec.datasets.jsonl import write_records
from lovec.metrics.bootstrap import QuestionPairs, by_question, resample
from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.metrics.records import confidence_of
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, open_session
from lovec.types import Oracle, Record, Sampling, Sentence

if TYPE_CHECKING:
    from lovec.calibration.maps import FeatureMap

RESULTS, PAGE = results_and_page("grounded", "docs/grounded.md")
MARKS = ("<!-- grounded table: written by benchmarks/grounded.py -->", "<!-- end of the grounded table -->")
SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
MODEL, TRAINED, WITHOUT = "smollm2", "grounded", "ungrounded"
PARTS = ("atlas", "world")
MOST_TOKENS = 224
"""The most tokens of an answer that an adapter writes."""
TRUE_FROM = 0.75
"""Label from which a sentence counts as true, in the table of both truths."""


def train(part: str, seed: int, folder: Path, shared: Path) -> dict[str, float]:
    """Train the adapter of a part with sources, and before it the one without where none comes with the package.

    Both begin with the adapter of Atlas. The one with sources learns from answers without an article what is true and,
    to the same part, what the other states.

    Args:
        part: "atlas" or "world".
        seed: of the training.
        folder: of the run.
        shared: folder for what all runs of the part share.

    Returns:
        The seconds that each training took, by the name of the adapter.
    """
    seconds = {}
    plain = plain_answers(part, shared)
    if part != "atlas":
        seconds[WITHOUT] = _fit(part, plain, WITHOUT, seed, folder)
    with open_session(MODEL, without_sources(part, folder)) as session:
        tagger = IterativeTagger(session.engine, session.encoder)
        tagged = tag_in_parts(tagger, plain, f"{part}, answers without sources")
    labelled = [with_stated(row, stated) for row, stated in zip(plain, tagged, strict=True)]
    seconds[TRAINED] = _fit(part, [*labelled, *sourced_answers(part)], TRAINED, seed, folder)
    return seconds


def _fit(part: str, rows: Sequence[Record], name: str, seed: int, folder: Path) -> float:
    """Train the adapter of Atlas further on answers, with sources if it is to read them; return the seconds."""
    data = folder / f"{name}.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    write_records(data, rows)
    words = ["fit", *(word for config in SETTINGS["config"] for word in ("--config", config))]
    words += ["--model.policy.adapter", str(SHIPPED["atlas"])]
    words += ["--model.policy.grounded", json.dumps(name == TRAINED)]
    words += ["--data", "lovec.datamodules.Demonstrations", "--data.path", str(data), "--data.val_fraction", "0"]
    for option, value in SETTINGS["options"].items():
        words += [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
    words += ["--seed_everything", str(seed), "--model.evaluation.modes", '["iterative"]']
    words += ["--trainer.callbacks+=lovec.callbacks.Probe", "--trainer.callbacks.every", "0"]  # no probes
    words += ["--trainer.limit_val_batches", "0", "--trainer.default_root_dir", str(folder / name)]
    return run_lovec(words, folder / f"{name}.log", f"{part}, {name}")["seconds"]


def without_sources(part: str, folder: Path) -> str:
    """Return the adapter that states only what it knows: that of the package, or that of a run."""
    return str(SHIPPED[part] if part == "atlas" else folder / WITHOUT / "adapter")


def measure(part: str, split: str, adapters: Mapping[str, str]) -> dict[str, Any]:
    """Measure adapters on the answers of a split, each with and without articles.

    Args:
        part: "atlas" or "world".
        split: "validation" or "test".
        adapters: their folders by name. The first one is that of the table of both truths.

    Returns:
        The metrics of every adapter; under "known" its confidences by knowledge, one after the other, and under
        "labels" those of the sentences that they are of, by question.
    """
    from lovec.calibration import fit_map

    pairs = measured_answers(part, split)
    held_out = measured_answers(part, "validation") if split == "test" else []
    rows, cells, known = [], [], {}
    for name, adapter in adapters.items():
        with open_session(MODEL, adapter) as session:
            tagged = _tagged(session, pairs, f"{part}, {name}, {split}")
            fitted_on = _tagged(session, held_out, f"{part}, {name}, validation")
        for truth, records in tagged.items():
            readouts = {readout: by_question(records, readout) for readout in ("stated", "mean")}
            if held_out:
                readouts["calibrated"] = by_question(_mapped(records, fit_map(fitted_on[truth]).map), "stated")
            for readout, found in readouts.items():
                rows.append({"method": name, "truth": truth, "readout": readout, **_figures(found)})
                if truth == "knowledge":
                    known[f"{name}, {readout}"] = [round(c, 3) for ours, _ in found.values() for c in ours]
        if "source" in tagged:
            cells = cells or _cells(tagged["knowledge"], tagged["source"])
    answers = [pair[0] for pair in pairs]
    constant = {
        truth: statistics.pvariance([s.factuality or 0.0 for row in group for s in row.sentences])
        for truth, group in (("knowledge", answers), ("source", [pair[1] for pair in pairs]))
    }
    labels = {row.id: [s.factuality for s in row.sentences if s.factuality is not None] for row in answers}
    return {
        "split": split,
        "answers": len(pairs),
        "constant_brier": constant,
        "rows": rows,
        "cells": cells,
        "labels": labels,
        "known": known,
    }


def measure_written(part: str, split: str, adapter: str) -> dict[str, Any]:
    """Measure what an adapter says of answers that it writes itself, each with an article.

    By source it is what the answer says at its tags; by knowledge the same text is scored without the article. What an
    oracle cannot judge is left out.

    Args:
        part: "atlas" or "world".
        split: "validation" or "test".
        adapter: its folder.
    """
    from lovec.calibration import fit_map

    parts = ["validation", "test"] if split == "test" else ["validation"]
    with open_session(MODEL, adapter) as session:
        told, known = {}, {}
        for one in parts:
            questions = [replace(row, answer=None, sentences=()) for _, row in measured_answers(part, one)]
            told[one], known[one] = _written(session, part, questions, f"{part}, answers with an article, {one}")
    rows = []
    for truth, records in (("source", told), ("knowledge", known)):
        readouts = {readout: by_question(records[split], readout) for readout in ("stated", "mean")}
        if split == "test":
            mapped = _mapped(records["test"], fit_map(records["validation"]).map)
            readouts["calibrated"] = by_question(mapped, "stated")
        rows += [{"truth": truth, "readout": name, **_figures(found)} for name, found in readouts.items()]
    sentences = [sentence for record in told[split] for sentence in record.sentences]
    counts = {"answers": len(told[split]), "sentences": len(sentences)}
    return {**counts, "untagged": sum(s.score is None for s in sentences), "rows": rows}


def _written(session: Session, part: str, questions: Sequence[Record], name: str) -> tuple[list[Record], list[Record]]:
    """Return answers that are written with articles, labelled by these, and the same without, labelled by the truth."""
    writer = FreeFormTagger(session.engine, session.encoder, Sampling(MOST_TOKENS), distributions=True)
    answers = tag_in_parts(writer, questions, name)
    plain = [replace(row, evidence=(), sentences=tuple(Sentence(s.text) for s in row.sentences)) for row in answers]
    known = tag_in_parts(IterativeTagger(session.engine, session.encoder), plain, f"{name}, by knowledge")
    oracle = oracle_of(part)
    return _rated(oracle, answers), _rated(oracle, known)


def _rated(oracle: Oracle, records: Sequence[Record]) -> list[Record]:
    """Return records with the labels of an oracle."""
    return [record.with_factuality(labels) for record, labels in zip(records, oracle.rate(records), strict=True)]


def _tagged(session: Session, pairs: Sequence[tuple[Record, Record]], name: str) -> dict[str, list[Record]]:
    """Return answers tagged without articles, and with them if the adapter takes any, by the truth of their labels."""
    tagger = IterativeTagger(session.engine, session.encoder)
    found = {"knowledge": tag_in_parts(tagger, [plain for plain, _ in pairs], f"{name}, by knowledge")}
    if session.encoder.grounding is not None:
        found["source"] = tag_in_parts(tagger, [sourced for _, sourced in pairs], f"{name}, by source")
    return found


def _mapped(records: Sequence[Record], fitted: FeatureMap) -> list[Record]:
    """Return records whose confidences are their mean readout by a map, and without scores."""
    from lovec.calibration.calibration import confidence_by

    def one(sentence: Sentence) -> Sentence:
        mean = confidence_of(sentence, "mean")
        confidence = None if mean is None else confidence_by(fitted, [mean])
        return replace(sentence, score=None, distribution=None, confidence=confidence)

    return [replace(record, sentences=tuple(map(one, record.sentences))) for record in records]


def measure_baselines(part: str, split: str) -> dict[str, Any]:
    """Measure baselines that read the articles without being trained, as they are and after an isotonic map.

    The map of an answer is fitted to the labels of other answers of the split.
    """
    rows = []
    for name, records in read_by_baselines(MODEL, [row for _, row in measured_answers(part, split)]).items():
        plain = by_question(records, "stated")
        for method, found in ((name, plain), (f"{name} + isotonic", cross_fitted(plain))):
            rows.append({"method": method, "truth": "source", "readout": "-", **_figures(found)})
    about = provenance()
    return {"date": about["date"], "commit": about["commit"], "rows": rows}


def _figures(found: QuestionPairs) -> dict[str, Any]:
    """Return the metrics of pairs of confidence and factuality, and their number."""
    sides = ([value for pair in found.values() for value in pair[side]] for side in (0, 1))
    confidence, factuality = (torch.tensor(side, dtype=torch.float64) for side in sides)
    measures = {"brier": brier_score, "ece_m": ece_m, "spearman": spearman}
    return {"n": len(confidence), **{name: float(f(confidence, factuality)) for name, f in measures.items()}}


def _cells(known: Sequence[Record], told: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the mean confidences of sentences that are true or not by the source, and by what is known."""
    cells: dict[tuple[bool, bool], list[tuple[float, float]]] = {}
    for plain, sourced in zip(known, told, strict=True):
        for one, two in zip(plain.sentences, sourced.sentences, strict=True):
            confidences = confidence_of(one, "mean"), confidence_of(two, "mean")
            if None not in (one.factuality, two.factuality, *confidences):
                key = two.factuality >= TRUE_FROM, one.factuality >= TRUE_FROM  # type: ignore[operator]
                cells.setdefault(key, []).append(confidences)  # type: ignore[arg-type]
    return [
        {
            "by_source": by_source,
            "by_knowledge": by_knowledge,
            "n": len(group),
            "confidence_by_source": statistics.mean(source for _, source in group),
            "confidence_by_knowledge": statistics.mean(knowledge for knowledge, _ in group),
        }
        for (by_source, by_knowledge), group in sorted(cells.items(), reverse=True)
    ]


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Train and measure the parts that are asked for; other parts and seeds stay as the file has them."""
    flags.only_print |= flags.validate
    parts = json.loads(RESULTS.read_text(encoding="utf-8"))["parts"] if RESULTS.exists() else {}
    split = "validation" if flags.validate else "test"
    for part in flags.parts:
        found = parts.setdefault(part, {"runs": [], "baselines": None})
        if flags.baselines or found["baselines"] is None:
            found["baselines"] = measure_baselines(part, split)
        if flags.written is not None:
            about = provenance()
            measured = measure_written(part, split, str(flags.written))
            found["written"] = {name: about[name] for name in ("date", "commit", "versions", "machine")} | measured
        if flags.baselines or flags.written is not None:
            continue
        folder = flags.out / part / f"seed-{flags.seed}"
        note = folder / "benchmark.json"
        if not flags.from_runs:
            made = provenance() | {"seed": flags.seed, "seconds": train(part, flags.seed, folder, flags.out / part)}
            note.write_text(json.dumps(made), encoding="utf-8")
        adapters = {TRAINED: str(folder / TRAINED / "adapter"), WITHOUT: without_sources(part, folder)}
        measured = json.loads(note.read_text(encoding="utf-8")) | measure(part, split, adapters)
        found["labels"] = measured.pop("labels")
        others = [one for one in found["runs"] if one["seed"] != flags.seed]
        found["runs"] = sorted([*others, measured], key=itemgetter("seed"))
    return {"parts": parts}


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of the page from the file of results; what several seeds gave is averaged."""
    titles = {"atlas": "SmolLM2 on real cities (Atlas)", "world": "SmolLM2 on the embedded world"}
    lines = []
    for part, found in sorted(results["parts"].items()):
        runs, baselines = found["runs"], found["baselines"]
        constant = runs[0]["constant_brier"]
        seeds = f"{'seeds' if len(runs) > 1 else 'seed'} {', '.join(str(one['seed']) for one in runs)}"
        lines += [
            f"**{titles[part]}**, {runs[0]['answers']} test answers, given texts, {seeds}. The best constant has a BS "
            f"of {100 * constant['source']:.1f} by source and {100 * constant['knowledge']:.1f} by knowledge.",
            "",
            "| Adapter | Truth | Readout | BS | ECE-M | SC |",
            "|---|---|---|---|---|---|",
        ]
        for same in [*zip(*(one["rows"] for one in runs), strict=True), *((row,) for row in baselines["rows"])]:
            row = same[0]
            values = " | ".join(_percent(same, name) for name in ("brier", "ece_m", "spearman"))
            lines.append(f"| {row['method']} | by {row['truth']} | {row['readout']} | {values} |")
        lines += ["", *_difference_lines(runs, found["labels"]), *_written_lines(found.get("written"))]
        lines += [
            "| By source | By knowledge | Sentences | Mean confidence by source | Mean confidence by knowledge |",
            "|---|---|---|---|---|",
        ]
        for cells in zip(*(one["cells"] for one in runs), strict=True):
            words = " | ".join("true" if cells[0][name] else "false" for name in ("by_source", "by_knowledge"))
            names = "confidence_by_source", "confidence_by_knowledge"
            means = " | ".join(f"{statistics.mean(cell[name] for cell in cells):.2f}" for name in names)
            lines.append(f"| {words} | {cells[0]['n']} | {means} |")
        about = [f"Seed {one['seed']}: {versions_text(one)}." for one in runs]
        about.append(f"Baselines: {baselines['date']}, commit {baselines['commit']}.")
        lines += ["", *about, ""]
    return "\n".join(lines).rstrip()


def _difference_lines(runs: Sequence[Mapping[str, Any]], labels: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the table of what the adapter with sources says by knowledge, less what the other one does."""
    names = [name.removesuffix(", stated") for name in runs[0]["known"] if name.endswith(", stated")]
    lines = [
        f"By knowledge, less *{names[1]}* (95 % intervals: questions are drawn again, and seeds).",
        "",
        f"| Readout | {HEADINGS} |",
        "|---|---|---|---|",
    ]
    for readout in ("stated", "mean", "calibrated"):
        drawn = []
        for name in names:
            found = []
            for run in runs:
                confidences = iter(run["known"][f"{name}, {readout}"])
                found.append({question: (list(islice(confidences, len(own))), own) for question, own in labels.items()})
            drawn.append(resample(found, bases=[str(run["seed"]) for run in runs]))
        ends = interval_values(*drawn, names=CALIBRATION)
        cells = (
            "-" if e is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in e)) for e in ends.values()
        )
        lines.append(f"| {readout} | {' | '.join(cells)} |")
    return [*lines, ""]


def _written_lines(found: Mapping[str, Any] | None) -> list[str]:
    """Return the table of answers that an adapter wrote with articles; none where that was not measured."""
    if found is None:
        return []
    lines = [
        f"Answers that an adapter writes itself with the article: {found['answers']} answers, {found['sentences']} "
        f"sentences, of which {found['untagged']} have no valid tag. {versions_text(found)}.",
        "",
        "| Truth | Readout | BS | ECE-M | SC |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        values = " | ".join(f"{100 * row[name]:.1f}" for name in CALIBRATION)
        lines.append(f"| by {row['truth']} | {row['readout']} | {values} |")
    return [*lines, ""]


def _percent(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the mean of a metric over seeds in percent, and behind it those of the seeds where there are several."""
    mean, *values = (
        "-" if math.isnan(value) else f"{100 * value:.1f}"
        for value in (statistics.mean(row[name] for row in rows), *(row[name] for row in rows))
    )
    return mean if len({*values}) == 1 else f"{mean} ({', '.join(values)})"


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(__doc__ or "")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "grounded", help="folder of the runs")
    parser.add_argument("--validate", action="store_true", help="measure on validation answers; implies --only-print")
    parser.add_argument("--written", type=Path, metavar="ADAPTER", help="measure only answers that an adapter writes")
    parser.add_argument("--from-runs", action="store_true", help="measure what finished runs have written")
    parser.add_argument("--baselines", action="store_true", help="measure only the baselines, without any run")
    run_for_page(parser, run, table, RESULTS, PAGE, MARKS)


if __name__ == "__main__":
    main()
