"""Confidences by a source on real texts, with people's labels: Factcheck-GPT's answers and WikiBio's passages.

    python benchmarks/grounded_text.py DATA                               # overlap and likelihoods -> results, docs
    python benchmarks/grounded_text.py DATA --measure adapter --adapter runs/grounded/atlas/seed-0/grounded/adapter
    python benchmarks/grounded_text.py DATA --measure trained --folds 0   # trains on WikiBio, tests the other persons
    python benchmarks/grounded_text.py DATA --measure trained --from-runs # tests what is trained
    python benchmarks/grounded_text.py --page                             # only write the table from the file

DATA is the folder of people's labels that benchmarks/real.py reads. The results hold the confidence of every sentence,
by method, so that methods may be measured one after the other; grounded_text.yaml has the settings. Maps are fitted to
the labels of other persons or questions, and passages are drawn again for the intervals.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from common import CALIBRATION, ROOT, interval_values, provenance, results_and_page, run_lovec
from grounded_baselines import CONSTANT, cross_fitted, read_by_baselines, tag_in_parts, without_evidence
from page_parts import HEADINGS, interval_text, page_options, run_for_page, versions_text
from real_data import FOLDS, fold_of, read_set, write_split

from lovec.datasets.jsonl import read_records
from lovec.metrics.bootstrap import QuestionPairs, Resampled, resample
from lovec.metrics.records import READOUTS, confidence_of
from lovec.types import Record

RESULTS, PAGE = results_and_page("grounded_text", "docs/grounded.md")
MARKS = (
    "<!-- table on people's labels: written by benchmarks/grounded_text.py -->",
    "<!-- end of the table on people's labels -->",
)
SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
MODEL = "smollm2"
DATA = ("factcheck-gpt", "wikibio")
TRUTHS = {"factcheck-gpt": ("true", "supported"), "wikibio": ("true",)}
"""What is labelled: whether a sentence is true, and how well the passages of its record support it."""
TRAINED = "trained on WikiBio"
MEASURED = ("baselines", "adapter", "trained")


def truths_of(record: Record) -> dict[str, list[float | None]]:
    """Return the labels of the sentences of an answer, by what is labelled; a sentence without one of them has none."""
    true = [sentence.factuality for sentence in record.sentences]
    supported = record.meta.get("supported", [None] * len(true))
    return {"true": true, "supported": [s if t is not None else None for s, t in zip(supported, true, strict=True)]}


def tagged(adapter: Path, records: Sequence[Record], name: str) -> dict[str, dict[str, list[float | None]]]:
    """Return the confidences of an adapter by the evidence of answers, and without, by method and answer."""
    from lovec.taggers import IterativeTagger, open_session

    found: dict[str, dict[str, list[float | None]]] = {}
    with open_session(MODEL, str(adapter)) as session:
        tagger = IterativeTagger(session.engine, session.encoder)
        for truth, rows in (("by source", records), ("by knowledge", without_evidence(records))):
            for row in tag_in_parts(tagger, rows, f"{name}, {truth}"):
                for readout in READOUTS:
                    values = found.setdefault(f"{name}, {truth}, {readout}", {})
                    values[row.id] = [confidence_of(sentence, readout) for sentence in row.sentences]
    return found


def train(fold: int, folder: Path, labels: Path) -> None:
    """Train an adapter on the passages of the persons that a fold does not test, each with its article."""
    settings = SETTINGS["wikibio"]
    write_split(folder / "data", "wikibio", None, fold, labels)
    words = ["fit", "--config", settings["config"], "--model.policy.adapter", str(ROOT / settings["adapter"])]
    words += ["--data", "lovec.datamodules.Demonstrations", "--data.path", str(folder / "data" / "train.jsonl")]
    words += ["--data.val_fraction", "0", "--seed_everything", str(fold)]
    for option, value in settings["options"].items():
        words += [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
    words += ["--model.evaluation.modes", '["iterative"]', "--trainer.limit_val_batches", "0"]
    words += ["--trainer.callbacks+=lovec.callbacks.Probe", "--trainer.callbacks.every", "0"]  # no probes
    words += ["--trainer.default_root_dir", str(folder / "trained")]
    run_lovec(words, folder / "fit.log", f"WikiBio, fold {fold}")


def chosen(records: Sequence[Record], folds: Sequence[int] | None) -> list[Record]:
    """Return the answers about the persons, or to the questions, of some folds; None is all of them."""
    of_person = fold_of(records)
    return [record for record in records if folds is None or of_person[record.meta["person"]] in folds]


def measured(flags: argparse.Namespace, part: str) -> Iterator[tuple[str, str, dict[str, list[float | None]]]]:
    """Yield data set, method and confidences by answer, of the methods of a part."""
    if part == "trained":
        found: dict[str, dict[str, list[float | None]]] = {}
        for fold in flags.folds or [0]:
            folder = flags.out / f"fold-{fold}"
            if not flags.from_runs:
                train(fold, folder, flags.data)
            records = list(read_records(folder / "data" / "test.jsonl"))
            for method, values in tagged(folder / "trained" / "adapter", records, TRAINED).items():
                found.setdefault(method, {}).update(values)
        yield from (("wikibio", method, values) for method, values in found.items())
        return
    for data in flags.sets:
        records = chosen(read_set(data, flags.data), flags.folds)
        if part == "adapter":
            methods = tagged(flags.adapter, records, "trained on Atlas")
        else:
            methods = {
                name: {row.id: [sentence.confidence for sentence in row.sentences] for row in rows}
                for name, rows in read_by_baselines(MODEL, records).items()
            }
        yield from ((data, method, values) for method, values in methods.items())


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Measure what is asked for; other confidences stay as the file has them.

    Raises:
        SystemExit: the adapter that is to be measured is not given.
    """
    if "adapter" in flags.measure and flags.adapter is None:
        raise SystemExit("--measure adapter needs --adapter FOLDER")
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    found = {(entry["data"], entry["method"]): entry for entry in old.get("confidences", [])}
    for part in flags.measure:
        begin, about = time.monotonic(), provenance()
        for data, method, values in measured(flags, part):
            known = found.get((data, method), {"values": {}})["values"] if flags.folds else {}
            known |= {name: [c if c is None else round(c, 4) for c in row] for name, row in values.items()}
            made = {name: about[name] for name in ("date", "commit")}
            found[data, method] = {"data": data, "method": method, **made, "values": dict(sorted(known.items()))}
        print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)
    answers = [
        {"data": data, "id": record.id, **truths_of(record)} for data in DATA for record in read_set(data, flags.data)
    ]
    confidences = [found[key] for key in sorted(found)]
    return {"answers": answers, "confidences": confidences, "rows": list(rows_of(answers, confidences))}


def rows_of(answers: Sequence[Mapping[str, Any]], confidences: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the figures of every method, as it is and after a map, on every set of answers that a method has measured.

    On each of these sets stand all the methods that have measured the whole of it.

    Args:
        answers: labels of the sentences, by answer.
        confidences: confidences of the sentences, by method and answer.
    """
    for data in DATA:
        entries = {entry["method"]: entry["values"] for entry in confidences if entry["data"] == data}
        everything = {answer["id"]: answer for answer in answers if answer["data"] == data}
        groups = sorted({frozenset(values) for values in entries.values()}, key=len, reverse=True)
        for names, truth in product(map(sorted, groups), TRUTHS[data]):
            labels = {name: everything[name][truth] for name in names}
            constant = resample([cross_fitted({name: _pairs([0.5] * len(row), row) for name, row in labels.items()})])
            of_group = {"data": data, "truth": truth}
            size = {"passages": len(names), "n": sum(len(_pairs([0.5] * len(row), row)[1]) for row in labels.values())}
            ends = interval_values(constant) | {"spearman": None}  # it orders nothing but the parts
            yield {**of_group, "method": CONSTANT, "map": None, **size, **ends, "less_constant": None}
            for method, values in entries.items():
                if values.keys() >= labels.keys():
                    pairs = {name: _pairs(values[name], row) for name, row in labels.items()}
                    yield {**of_group, "method": method, "map": None, **figures(pairs, constant)}
                    yield {**of_group, "method": method, "map": "isotonic", **figures(cross_fitted(pairs), constant)}


def _pairs(confidences: Sequence[float | None], labels: Sequence[float | None]) -> tuple[list[float], list[float]]:
    both = [(c, f) for c, f in zip(confidences, labels, strict=True) if c is not None and f is not None]
    return [c for c, _ in both], [f for _, f in both]


def figures(pairs: QuestionPairs, constant: Resampled) -> dict[str, Any]:
    """Return numbers of answers and sentences, and [value, low, high] of each metric over draws of the answers.

    Args:
        pairs: confidences and factualities by answer.
        constant: the draws of the best constant, whose Brier score is subtracted in ``less_constant``.
    """
    drawn = resample([pairs])
    return {
        "passages": len(pairs),
        "n": sum(len(labels) for _, labels in pairs.values()),
        **interval_values(drawn),
        "less_constant": interval_values(drawn, constant)["brier"],
    }


TITLES = {
    ("factcheck-gpt", "true"): "Factcheck-GPT: is it true?",
    ("factcheck-gpt", "supported"): "Factcheck-GPT: do the retrieved passages support it?",
    ("wikibio", "true"): "WikiBio: is it accurate?",
}
"""Headings of the tables."""


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of the page from the file of results: one for each set of answers and what is labelled."""
    lines = []
    tables: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for row in results["rows"]:
        if not row["method"].endswith(", stated"):
            tables.setdefault((row["data"], row["truth"], row["passages"]), []).append(row)
    for (data, truth, passages), rows in sorted(tables.items(), key=lambda item: (item[0][0], item[0][1], -item[0][2])):
        lines += [
            f"**{TITLES[data, truth]}** {passages} answers, {max(row['n'] for row in rows)} sentences.",
            "",
            f"| Method | {HEADINGS} | BS less the constant's |",
            f"|---|{'---|' * len(CALIBRATION)}---|",
        ]
        for row in rows:
            name = row["method"].removesuffix(", mean") + (" + isotonic" if row["map"] else "")
            values = [interval_text(row[metric], signed=False) or "-" for metric in CALIBRATION]
            lines.append(
                f"| {name} | {' | '.join(values)} | {interval_text(row['less_constant'], signed=True) or '-'} |"
            )
        lines.append("")
    commits = sorted({(entry["date"], entry["commit"]) for entry in results["confidences"]})
    measured_at = ", ".join(f"{date} at commit {commit}" for date, commit in commits)
    lines.append(f"Measured {measured_at}; tables: {versions_text(results)}.")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(__doc__ or "", data="folder of people's labels")
    parser.add_argument("--measure", nargs="+", choices=MEASURED, default=["baselines"], help="what is measured")
    parser.add_argument("--sets", nargs="+", choices=DATA, default=list(DATA), help="sets of baselines and adapter")
    parser.add_argument("--adapter", type=Path, help="adapter of SmolLM2 that was trained on Atlas with articles")
    some = "persons or questions that are measured; default: all, and fold 0 of what is trained"
    parser.add_argument("--folds", nargs="+", type=int, choices=range(FOLDS), help=some)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "grounded_text", help="folder of the runs")
    parser.add_argument("--from-runs", action="store_true", help="test what finished runs have trained")
    run_for_page(parser, run, table, RESULTS, PAGE, MARKS)


if __name__ == "__main__":
    main()
