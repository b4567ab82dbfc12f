"""Confidences of clauses: a model trained on clauses, and one trained on sentences, on the same test answers.

    python benchmarks/clause_units.py --work /tmp/clause-units       # -> benchmarks/results/clause_units.json

On the embedded world the clauses of a sentence are the parts of its form, whose truth is known exactly. For every seed
an adapter is trained on sentences, and from there one on sentences again and one on clauses, each time with the recipe
sft-regression.yaml and one sampled answer per question, so that both have had the same answers twice. It begins with
sentences because a fresh adapter learns little from clauses alone: on the validation answers of seed 0 its Spearman
correlation with the truths of clauses was 21 %, and that of the one trained on sentences, after as many steps, 50 %.
Every adapter tags the test answers in its own units, and the one of sentences also tags clauses, which it was never
trained on. At the level of clauses, a sentence lends its confidence to all of its clauses; at that of sentences, the
confidences of clauses are joined (``lovec.text.clauses.joint_confidence``). The dependence in that rule is chosen on
the validation answers: it has the lowest Brier score there for whether all clauses of a sentence are entirely true.

Confidences are means of the distribution over scores, without calibration. Intervals are of a paired bootstrap over
the questions, with the mean over the seeds in every draw. Runs that are in the folder of work already are not made
again. Writes benchmarks/results/clause_units.json and two tables in docs/spans.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from common import CALIBRATION, interval_values, results_and_page, run_lovec
from page_parts import HEADINGS, interval_text, page_options, run_for_page, seeds_text
from page_parts import world_text as about

from lovec.datamodules import World
from lovec.metrics.bootstrap import QuestionPairs, Resampled, mean_interval, resample
from lovec.metrics.functional import brier_score
from lovec.metrics.table import METRICS
from lovec.taggers import IterativeTagger, open_session
from lovec.text.clauses import joint_confidence
from lovec.types import Record, Unit

RESULTS, PAGE = results_and_page("clause_units", "docs/spans.md")
BEGIN, END = "<!-- clause units: written by benchmarks/clause_units.py -->", "<!-- /clause units -->"
UNITS: Sequence[Unit] = ("sentence", "clause")
DEPENDENCES = (0.0, 0.25, 0.5, 0.75, 1.0)
_DRAWS = 2000

BY_CLAUSE = {
    "clauses": "trained on clauses",
    "sentences": "trained on sentences, asked at clauses",
    "lent": "trained on sentences, whose confidences its clauses share",
}
BY_SENTENCE = {"joined": "trained on clauses, joined", "own": "trained on sentences"}
"""Methods in words, by the level at which they are measured."""

Values = Sequence[float | None]


def trained(unit: Unit, seed: int, work: Path) -> Path:
    """Return the folder of a run, which is made if it is not there, as is the one that it starts from.

    Args:
        unit: what it is trained on.
        seed: its seed.
        work: folder of the runs.
    """
    first = _fitted(work / f"first-{seed}", "sentence", seed)
    return _fitted(work / f"{unit}-{seed}", unit, seed, "--model.policy.adapter", str(first))


def _fitted(run: Path, unit: Unit, seed: int, *start: str) -> Path:
    if not (run / "adapter" / "adapter_model.safetensors").exists():
        data = ("--data.samples", "1", "--data.unit", unit, "--seed_everything", str(seed))
        places = ("--model.evaluation.modes", "[iterative]", "--trainer.default_root_dir", str(run))
        words = ["fit", "--config", "sft-regression.yaml", *data, *places, *start]
        run_lovec(words, run.with_suffix(".log"), say=run.name)
    return run


def tagged(run: Path, records: Sequence[Record]) -> list[Record]:
    """Return records tagged by the adapter of a run, in the units that they have."""
    with open_session(adapter=str(run), raw=True) as session:
        return IterativeTagger(session.engine, session.encoder, "mean").tag(records)


def confidences(records: Sequence[Record]) -> dict[str, Values]:
    """Return the confidences of the units of every record."""
    return {record.id: [sentence.confidence for sentence in record.sentences] for record in records}


def lent(whole: Mapping[str, Values], clauses: Sequence[Record]) -> dict[str, Values]:
    """Return for every clause the confidence of its sentence."""
    return {r.id: [whole[r.id][s.part_of] for s in r.sentences if s.part_of is not None] for r in clauses}


def joined(parts: Mapping[str, Values], clauses: Sequence[Record], dependence: float) -> dict[str, Values]:
    """Return for every sentence the confidence that all of its clauses are true."""
    found: dict[str, Values] = {}
    for record in clauses:
        values = by_sentence(record, parts[record.id])
        found[record.id] = [None if None in own else joint_confidence(own, dependence) for own in values]
    return found


def by_sentence(record: Record, values: Sequence[Any]) -> list[list[Any]]:
    """Return what belongs to the clauses of each sentence of a record."""
    sentences: dict[int | None, list[Any]] = {}
    for sentence, value in zip(record.sentences, values, strict=True):
        sentences.setdefault(sentence.part_of, []).append(value)
    return list(sentences.values())


def truths(records: Sequence[Record]) -> dict[str, Values]:
    """Return the factualities of the units of every record."""
    return {record.id: [sentence.factuality for sentence in record.sentences] for record in records}


def all_true(clauses: Sequence[Record]) -> dict[str, Values]:
    """Return for every sentence whether all of its clauses are entirely true."""
    return {
        record.id: [float(min(own) == 1) for own in by_sentence(record, [s.factuality for s in record.sentences])]
        for record in clauses
    }


def pairs(confidence: Mapping[str, Values], truth: Mapping[str, Values]) -> QuestionPairs:
    """Return confidences and factualities that are both known, by question."""
    found = {}
    for name, values in confidence.items():
        known = [(c, f) for c, f in zip(values, truth[name], strict=True) if c is not None and f is not None]
        found[name] = [c for c, _ in known], [f for _, f in known]
    return found


def brier(runs: Sequence[QuestionPairs]) -> float:
    """Return the Brier score of all pairs, the mean over runs."""
    scores = []
    for run in runs:
        confidence, truth = ([value for pair in run.values() for value in pair[side]] for side in (0, 1))
        scores.append(float(brier_score(confidence, truth)))
    return statistics.mean(scores)


def order_in_sentences(runs: Sequence[Mapping[str, Values]], clauses: Sequence[Record]) -> list[float] | None:
    """Return how often the truer of two clauses of a sentence has more confidence, with its interval; ties count half.

    Args:
        runs: confidences of the clauses by question, of every run.
        clauses: the same questions with the truths.
    """
    right = torch.zeros(len(clauses), dtype=torch.float64)
    total = torch.zeros_like(right)
    for run in runs:
        for at, record in enumerate(clauses):
            known = zip(run[record.id], (s.factuality for s in record.sentences), strict=True)
            for own in by_sentence(record, list(known)):
                for (c, f), (other_c, other_f) in combinations([pair for pair in own if None not in pair], 2):
                    if f != other_f:
                        total[at] += 1
                        right[at] += 0.5 if c == other_c else float((c > other_c) == (f > other_f))
    ends = mean_interval(right / total.clamp(min=1), _DRAWS, 0, total)
    return None if ends is None else [ends.value, ends.low, ends.high]


def compared(runs: Mapping[str, Sequence[QuestionPairs]], reference: str) -> list[dict[str, Any]]:
    """Return every method's metrics with intervals, and how they differ from those of one method."""
    drawn: dict[str, Resampled] = {name: resample(of_seeds, _DRAWS, 0, CALIBRATION) for name, of_seeds in runs.items()}
    rows = []
    for name, values in drawn.items():
        minus = None if name == reference else interval_values(values, drawn[reference])
        n = sum(len(confidence) for confidence, _ in runs[name][0].values())
        rows.append({"method": name, "n": n, "metrics": interval_values(values), "minus": minus})
    return rows


def measured(seeds: Sequence[int], work: Path, tag: Callable[[Path, Sequence[Record]], list[Record]]) -> dict[str, Any]:
    """Train, tag and compare.

    Args:
        seeds: seeds of the training runs.
        work: folder of the runs.
        tag: tags records with the adapter of a run.
    """
    data = {unit: World(test_sets=["test"], unit=unit) for unit in UNITS}
    splits = {name: {unit: data[unit].load(name) for unit in UNITS} for name in ("validation", "test")}
    runs = [{unit: trained(unit, seed, work) for unit in UNITS} for seed in seeds]
    chosen: dict[str, float] = {}
    dev = splits["validation"]["clause"]
    parts = [confidences(tag(run["clause"], dev)) for run in runs]
    for dependence in DEPENDENCES:
        of_seeds = [pairs(joined(values, dev, dependence), all_true(dev)) for values in parts]
        chosen[str(dependence)] = brier(of_seeds)
    dependence = min(DEPENDENCES, key=lambda value: chosen[str(value)])
    clauses, whole = splits["test"]["clause"], splits["test"]["sentence"]
    of_clauses = [confidences(tag(run["clause"], clauses)) for run in runs]
    of_sentences = [confidences(tag(run["sentence"], whole)) for run in runs]
    untrained = [confidences(tag(run["sentence"], clauses)) for run in runs]
    truth = truths(clauses)
    of_units = {"clauses": of_clauses, "sentences": untrained, "lent": [lent(v, clauses) for v in of_sentences]}
    by_clause = {name: [pairs(values, truth) for values in of_seeds] for name, of_seeds in of_units.items()}
    of_whole = {"joined": [joined(values, clauses, dependence) for values in of_clauses], "own": of_sentences}
    labels = {"share": truths(whole), "all": all_true(clauses)}
    return {
        "seeds": list(seeds),
        "answers": len(clauses),
        "dependence": dependence,
        "validation_brier": chosen,
        "clause": compared(by_clause, "lent"),
        "order": {name: order_in_sentences(of_seeds, clauses) for name, of_seeds in of_units.items()},
        **{
            label: compared({name: [pairs(v, truth) for v in runs_of] for name, runs_of in of_whole.items()}, "own")
            for label, truth in labels.items()
        },
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    lines = []
    for title, key, names in (
        ("Clauses, each with its own truth", "clause", BY_CLAUSE),
        ("Sentences: whether all clauses are entirely true", "all", BY_SENTENCE),
        ("Sentences: the share of their facts that is true", "share", BY_SENTENCE),
    ):
        n = results[key][0]["n"]
        differences = " | ".join(f"{METRICS[name].heading} minus the last" for name in CALIBRATION)
        lines += [f"| {title} ({n}) | {HEADINGS} | {differences} |"]
        lines += [f"|---|{'---|' * (2 * len(CALIBRATION))}"]
        for row in results[key]:
            cells = [interval_text(row["metrics"][name], signed=False) for name in CALIBRATION]
            minus = row["minus"] or dict.fromkeys(CALIBRATION)
            cells += [interval_text(minus[name], signed=True) or "-" for name in CALIBRATION]
            lines.append(f"| {' | '.join([names[row['method']], *cells])} |")
        lines.append("")
    order = (f"{BY_CLAUSE[name]} {interval_text(ends, signed=False)}" for name, ends in results["order"].items())
    lines += [
        "How often the truer of two clauses of the same sentence has more confidence, where 50 is chance: "
        f"{'; '.join(order)}.",
        "",
    ]
    brier_by = ", ".join(f"{float(d):g}: {100 * value:.2f}" for d, value in results["validation_brier"].items())
    lines += [
        f"Percent, with 95 % intervals over questions; {results['answers']} test answers, "
        f"{seeds_text(results['seeds'])}. The dependence that joins clauses is {results['dependence']:g}, the "
        f"best on validation answers (Brier score of all true, by dependence: {brier_by}). Written by "
        f"`benchmarks/clause_units.py`; {about(results)}.",
    ]
    return "\n".join(lines)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    return measured(flags.seeds, flags.work, tagged)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--work", type=Path, default=Path("runs/clause-units"), help="folder of the runs")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
