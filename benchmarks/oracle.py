"""Compare training labels: from the exact oracle, from the model judging itself, or from its own other answers.

    python benchmarks/oracle.py            # -> benchmarks/results/oracle.json, docs/results/oracle.md
    python benchmarks/oracle.py --page     # only write the page from that file
    python benchmarks/oracle.py --quick    # the small world and two steps: only shows that it runs

SFT and then DPO learn from the labels of one oracle; nothing else differs. Every result is measured with exact labels,
on the things of the test split. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import (
    CALIBRATION,
    ROOT,
    most_tokens,
    provenance,
    results_and_page,
    seeds_of,
    select,
    test_folder,
    training_samples,
)
from page_parts import HEADINGS, interval_text, mean_percent, mean_text, run_or_try, seeds_text, side, world_text

from lovec.datamodules import World
from lovec.metrics.results import read_results
from lovec.metrics.table import METRICS
from lovec.types import Record

RESULTS, PAGE = results_and_page("oracle")
ORACLES = {
    "exact": "the oracle of the world",
    "self": "`SelfJudge`: the frozen base model rates its own sentences 0 to 10, mean of the distribution; "
    "the world's model does not know the words of its prompt",
    "agreement": "the share of each sentence's facts that other answers of the base model to the same question state "
    "as well (LUQ with 10 samples)",
}
METHODS = {"SFT": "sft", "DPO": "dpo"}
MODES = ("iterative", "free-form")
CLAIMS = {"self": "Labels of the model itself", "agreement": "Labels by agreement with its own samples"}


class Labelled(World):
    """The embedded world with other labels on its training answers; validation and test keep the exact ones.

    Args:
        labels: JSONL file with the training answers and their labels.
        **kwargs: arguments of ``World``.
    """

    def __init__(self, labels: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.labels = labels

    def load(self, split: str) -> list[Record]:
        """Return the answers of a split; for training, those of the file, with a wrong score per sentence."""
        from lovec.datasets.jsonl import read_records

        if split != "train":
            return super().load(split)
        return self.training_pairs(list(read_records(self.labels)))


def labelled(variant: str, seed: int, records: int | None, samples: int) -> dict[str, list[Record]]:
    """Return the training answers with the labels of every oracle.

    Args:
        variant: variant of the world.
        seed: seed of the answers and of the samples.
        records: number of training answers; None takes all.
        samples: number of other answers per question that "agreement" compares with.
    """
    from lovec.baselines import LUQ, BaselineResources, Samples
    from lovec.core.stopwatch import Stopwatch
    from lovec.encoding import Encoder
    from lovec.engines import TransformersEngine
    from lovec.oracles import SelfJudge
    from lovec.policy import Policy, PolicyConfig

    data = World(variant, samples=training_samples(), seed=seed)
    rows = [replace(row, rejected=None) for row in data.load("train")][:records]
    policy = Policy(PolicyConfig(model=str(data.world.model_path)))  # a fresh adapter changes nothing
    encoder = Encoder(policy.tokenizer, data.instruction)
    judge = SelfJudge(readout="mean")
    judge.attach(policy, encoder)
    engine = TransformersEngine()
    engine.sync(policy)
    drawn = Samples(max_new_tokens=most_tokens(), seed=seed)
    by_question = {row.question: row for row in rows}  # answers to a question are compared with the same samples
    texts = drawn.answers(list(by_question.values()), samples, engine, encoder, Stopwatch())
    others = dict(zip(by_question, texts, strict=True))
    luq = LUQ(samples)
    luq.attach(BaselineResources(engine, encoder, data.wording, drawn, data.judge))
    with_samples = [replace(row, meta={**row.meta, "samples": others[row.question]}) for row in rows]
    agreed = luq.confidences(with_samples)
    return {"exact": rows, "self": relabelled(rows, judge.rate(rows)), "agreement": relabelled(rows, agreed)}


def relabelled(rows: Sequence[Record], labels: Sequence[Sequence[float | None]]) -> list[Record]:
    """Return the records with other labels."""
    return [row.with_factuality(ratings) for row, ratings in zip(rows, labels, strict=True)]


def quality(rows: Sequence[Record], truth: Sequence[Record]) -> dict[str, Any]:
    """Return how good labels are: rank correlation with and mean squared distance to the exact ones, and both means."""
    from lovec.metrics.agreement import agreement

    pairs = {
        row.id: [
            (s.factuality, t.factuality)
            for s, t in zip(row.sentences, exact.sentences, strict=True)
            if s.factuality is not None and t.factuality is not None
        ]
        for row, exact in zip(rows, truth, strict=True)
    }
    result = agreement(pairs)
    distances = [(a - b) ** 2 for group in pairs.values() for a, b in group]
    return {
        "spearman": result.spearman,
        "brier": sum(distances) / len(distances) if distances else None,
        "mean": result.mean_first,
        "truth": result.mean_second,
        "n": result.n,
    }


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Label, train and test what is not finished; return the rows of all seeds and the intervals of the differences."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.cli.training import execute
    from lovec.datasets.jsonl import read_records, write_records

    origin = provenance()
    world = ["--config", "world-small.yaml"] if flags.quick else []
    variant = "world-small" if flags.quick else "world"
    rows, labels = [], []
    for seed in flags.seeds:
        home = flags.out / f"seed-{seed}"
        files = {name: home / "labels" / f"{name}.jsonl" for name in ORACLES}
        if not all(file.exists() for file in files.values()):
            limits = (8, 2) if flags.quick else (None, 10)
            for name, records in labelled(variant, seed, *limits).items():
                write_records(files[name], records)
        truth = list(read_records(files["exact"]))
        for name, file in files.items():
            labels.append({"oracle": name, "seed": seed, **quality(list(read_records(file)), truth)})
            for stage in METHODS.values():
                folder = home / name / stage
                data = ["--data", "oracle.Labelled", "--data.labels", str(file)]
                data += ["--data.samples", str(training_samples())]
                words = ["--config", f"{stage}.yaml", *world, *data, "--seed_everything", str(seed)]
                words += ["--trainer.default_root_dir", str(folder)]
                words += ["--model.evaluation.recalibrated", "false", "--model.evaluation.vanilla", "false"]
                if stage == "dpo":
                    words += ["--model.policy.adapter", str(home / name / "sft" / "adapter")]
                if not (folder / "adapter").exists():
                    cut = ["--trainer.max_steps", "2"] if flags.quick else []
                    execute("fit", [*words, *cut, "--trainer.limit_val_batches", "0"])
                if not (test_folder(folder) / "results.json").exists():
                    execute("test", words)
                measured = select(read_results(test_folder(folder) / "results.json").rows)
                rows += [replace(row, variant=name, file=None) for row in measured]
    differences = [{"oracle": name, "mode": mode, **difference(flags, name, mode)} for name in CLAIMS for mode in MODES]
    return origin | {"variant": variant, "labels": labels, "rows": rows, "differences": differences}


def difference(flags: argparse.Namespace, oracle: str, mode: str) -> dict[str, Any]:
    """Return how far DPO's metrics with one oracle lie above those with the exact one: [value, low, high] each."""
    from lovec.datasets.jsonl import read_records
    from lovec.evaluation.evaluator import tagged_file
    from lovec.metrics.bootstrap import by_question, intervals, resample

    drawn = []
    for name in (oracle, "exact"):
        runs = [flags.out / f"seed-{seed}" / name / "dpo" for seed in flags.seeds]
        files = [test_folder(run) / tagged_file("DPO", mode) for run in runs]
        things = [[record for record in read_records(file) if record.domain == "in-domain"] for file in files]
        drawn.append(resample([by_question(records, "stated") for records in things]))
    ends = intervals(*drawn)
    return {name: None if (i := ends[name]) is None else [i.value, i.low, i.high] for name in CALIBRATION}


def page(results: Mapping[str, Any]) -> str:
    """Return docs/results/oracle.md: what holds, the tables, and what they were made of.

    The ``variant`` of a row is the oracle whose labels the method learned from.
    """
    rows, labels = results["rows"], results["labels"]
    lines = [
        "# Who labels the training answers",
        "",
        "Written by `benchmarks/oracle.py`; all rows are in `benchmarks/results/oracle.json`. SFT and then DPO learn "
        "from the labels of one oracle, on the same answers with the same recipes; all are measured with exact labels, "
        "on things that training never saw.",
        "",
        *[f"- **{name}**: {text}." for name, text in ORACLES.items()],
        "",
        "## What holds",
        "",
        *[f"- {CLAIMS[entry['oracle']]}, {entry['mode']}: {sentence(entry)}" for entry in results["differences"]],
        "",
        "## DPO and SFT",
        "",
        f"| labels | method | {' | '.join(f'{mode}: {HEADINGS}' for mode in MODES)} |",
        f"| --- | --- | {' | '.join(['---:'] * 6)} |",
    ]
    for oracle in ORACLES:
        for method in METHODS:
            groups = [select(rows, variant=oracle, method=method, mode=mode) for mode in MODES]
            cells = [mean_text(group, name) for group in groups for name in CALIBRATION]
            lines.append(f"| {' | '.join([oracle, method, *cells])} |")
    lines += [
        "",
        f"The best constant has a BS of {mean_text(select(rows, method='Best constant', variant='exact'), 'brier')}.",
        "",
        "## The labels themselves",
        "",
        "Against the exact labels of the same training sentences.",
        "",
        "| labels | SC | mean squared distance | mean | true mean | sentences |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for oracle in ORACLES:
        entries = [entry for entry in labels if entry["oracle"] == oracle]
        cells = [mean_percent(entry[key] for entry in entries) for key in ("spearman", "brier", "mean", "truth")]
        sentences = sum(entry["n"] for entry in entries) // len(entries)
        lines.append(f"| {' | '.join([oracle, *cells, str(sentences)])} |")
    seeds = seeds_of(rows)
    means = "means over " if len(seeds) > 1 else ""
    lines += [
        "",
        "In %; BS, ECE-M and distance: lower is better, SC: higher; -: undefined. Sentences, stated scores, "
        f"{means}{seeds_text(seeds)}; intervals are over things (95 %, 2000 draws). "
        f"{world_text(results)}.",
        "",
    ]
    return "\n".join(lines)


def sentence(entry: Mapping[str, Any]) -> str:
    """Return a sentence on how DPO with other labels compares with DPO on exact ones."""
    parts = []
    for name in CALIBRATION:
        info, ends = METRICS[name], entry[name]
        if ends is None:
            parts.append(f"{info.heading} undefined")
            continue
        verdict = "worse" if (ends[0] > 0) == (info.better == "lower") else "better"
        parts.append(
            f"{info.heading} {interval_text(ends, signed=True)}, {verdict}{'' if side(ends) else ', not shown'}"
        )
    return f"DPO less DPO on exact labels: {'; '.join(parts)}."


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of answers, samples and runs")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "oracle", help="folder of the runs")
    run_or_try(parser, run, page, RESULTS, PAGE)


if __name__ == "__main__":
    main()
