"""Who labels the training answers: the exact oracle, the model judging itself, or its own other answers.

    python benchmarks/oracle.py                    # -> benchmarks/results/oracle.json, docs/oracle.md
    python benchmarks/oracle.py --table            # write the page again from that file
    python benchmarks/oracle.py --quick            # the small world, two steps: shows that it runs, and nothing else

SFT and then DPO learn from the labels of one oracle; nothing else differs. Every result is measured with exact labels,
on the people of the test split. What is done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, provenance, write_json

from lovec.datamodules import World
from lovec.types import Record

RESULTS = ROOT / "benchmarks" / "results" / "oracle.json"
PAGE = ROOT / "docs" / "oracle.md"
ORACLES = {
    "exact": "the world's own oracle",
    "self": "`SelfJudge`: the frozen base model rates its own sentences 0 to 10, mean of the distribution; "
    "the world's model does not know the words of its prompt",
    "agreement": "the share of each sentence's facts that other answers of the base model to the same question state "
    "as well (LUQ with 10 samples)",
}
METHODS = {"SFT": "sft", "DPO": "dpo"}
FIGURES = {"brier": "BS", "ece_m": "ECE-M", "spearman": "SC"}
MODES = ("iterative", "free-form")
TOLD = {"self": "Labels of the model itself", "agreement": "Labels by agreement with its own samples"}


class Labelled(World):
    """The embedded world with other labels on its training answers; validation and test keep the exact ones.

    Args:
        labels: JSONL with the training answers and their labels.
        kwargs: arguments of ``World``.
    """

    def __init__(self, labels: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.labels = labels

    def load(self, split: str) -> list[Record]:
        """Read the answers of a split; for training, the file's, with a wrong score a sentence."""
        from lovec.datasets.jsonl import read_records
        from lovec.datasets.pairs import with_rejected

        if split != "train":
            return super().load(split)
        return [with_rejected(r, self.seed) for r in self.keep_labelled(list(read_records(self.labels)), split)]


def labelled(variant: str, seed: int, records: int | None, samples: int) -> dict[str, list[Record]]:
    """The training answers with the labels of every oracle."""
    from lovec.baselines import LUQ, Bench, Samples
    from lovec.encoding import Encoder
    from lovec.engines import TransformersEngine
    from lovec.oracles import SelfJudge
    from lovec.policy import Policy, PolicyConfig
    from lovec.stopwatch import Stopwatch

    data = World(variant, samples=2, seed=seed)
    rows = [replace(row, rejected=None) for row in data.load("train")][:records]
    policy = Policy(PolicyConfig(model=str(data.world.model_path)))  # a fresh adapter changes nothing
    encoder = Encoder(policy.tokenizer, data.instruction)
    judge = SelfJudge(readout="mean")
    judge.attach(policy, encoder)
    engine = TransformersEngine()
    engine.sync(policy)
    drawn = Samples(max_new_tokens=160, seed=seed)
    asked = {row.question: row for row in rows}  # answers to one question are compared with the same samples
    texts = drawn.of(list(asked.values()), samples, engine, encoder, Stopwatch())
    others = dict(zip(asked, texts, strict=True))
    luq = LUQ(samples)
    luq.attach(Bench(engine, encoder, data.wording, drawn, data.judge))
    agreed = luq.confidences([replace(row, meta={**row.meta, "samples": others[row.question]}) for row in rows])
    return {"exact": rows, "self": relabelled(rows, judge.rate(rows)), "agreement": relabelled(rows, agreed)}


def relabelled(rows: Sequence[Record], labels: Sequence[Sequence[float | None]]) -> list[Record]:
    """The records with other factualities."""
    return [
        replace(row, sentences=tuple(replace(s, factuality=f) for s, f in zip(row.sentences, own, strict=True)))
        for row, own in zip(rows, labels, strict=True)
    ]


def quality(rows: Sequence[Record], truth: Sequence[Record]) -> dict[str, Any]:
    """How good the labels are: rank correlation and mean squared distance to the exact ones, and both means."""
    from lovec.metrics.agreement import agreement

    pairs = {
        row.id: [
            (s.factuality, t.factuality)
            for s, t in zip(row.sentences, true.sentences, strict=True)
            if s.factuality is not None and t.factuality is not None
        ]
        for row, true in zip(rows, truth, strict=True)
    }
    found = agreement(pairs)
    gaps = [(a - b) ** 2 for group in pairs.values() for a, b in group]
    return {
        "spearman": found.spearman,
        "brier": sum(gaps) / len(gaps) if gaps else None,
        "mean": found.mean_first,
        "truth": found.mean_second,
        "n": found.n,
    }


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Label, train and test what is not there yet; the rows of all seeds, and the intervals of the differences."""
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
                data = ["--data", "oracle.Labelled", "--data.labels", str(file), "--data.samples", "2"]
                words = ["--config", f"{stage}.yaml", *world, *data, "--seed_everything", str(seed)]
                words += ["--trainer.default_root_dir", str(folder)]
                words += ["--model.evaluation.recalibrated", "false", "--model.evaluation.vanilla", "false"]
                if stage == "dpo":
                    words += ["--model.policy.adapter", str(home / name / "sft" / "adapter")]
                if not (folder / "adapter").exists():
                    cut = ["--trainer.max_steps", "2"] if flags.quick else []
                    execute("fit", [*words, *cut, "--trainer.limit_val_batches", "0"])
                if not (folder / "test" / "results.json").exists():
                    execute("test", words)
                measured = json.loads((folder / "test" / "results.json").read_text(encoding="utf-8"))
                rows += [
                    {"oracle": name} | {key: row[key] for key in ("method", "mode", "seed", *FIGURES, "malformed", "n")}
                    for row in measured
                    if (row["domain"], row["level"], row["readout"]) == ("in-domain", "sentence", "stated")
                ]
    differences = [{"oracle": name, "mode": mode, **against(flags, name, mode)} for name in TOLD for mode in MODES]
    return origin | {"variant": variant, "labels": labels, "rows": rows, "differences": differences}


def against(flags: argparse.Namespace, oracle: str, mode: str) -> dict[str, Any]:
    """How far DPO's figures with one oracle lie above those with the exact one: [value, low, high] each."""
    from lovec.datasets.jsonl import read_records
    from lovec.evaluation.evaluator import tagged_file
    from lovec.metrics.bootstrap import by_question, intervals, resample

    drawn = []
    for name in (oracle, "exact"):
        files = [flags.out / f"seed-{seed}" / name / "dpo" / "test" / tagged_file("DPO", mode) for seed in flags.seeds]
        people = [[r for r in read_records(file) if r.meta["domain"] == "in-domain"] for file in files]
        drawn.append(resample([by_question(records, "stated") for records in people]))
    found = intervals(*drawn)
    return {name: None if (i := found[name]) is None else [i.value, i.low, i.high] for name in FIGURES}


def page(results: Mapping[str, Any]) -> str:
    """docs/oracle.md: what holds, the tables, and what they were made of."""
    rows, labels = results["rows"], results["labels"]
    seeds = sorted({row["seed"] for row in rows})
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "lovec")
    lines = [
        "# Who labels the training answers",
        "",
        "Written by `benchmarks/oracle.py`; all rows are in `benchmarks/results/oracle.json`. SFT and then DPO learn "
        "from the labels of one oracle, on the same answers with the same recipes; all are measured with exact labels, "
        "on people that training never saw.",
        "",
        *[f"- **{name}**: {text}." for name, text in ORACLES.items()],
        "",
        "## What holds",
        "",
        *[f"- {TOLD[d['oracle']]}, {d['mode']}: {told(d)}" for d in results["differences"]],
        "",
        "## DPO and SFT",
        "",
        f"| labels | method | {' | '.join(f'{m}: BS | ECE-M | SC' for m in MODES)} |",
        f"| --- | --- | {' | '.join(['---:'] * 6)} |",
    ]
    for oracle in ORACLES:
        for method in METHODS:
            cells = [
                percent([r[name] for r in rows if (r["oracle"], r["method"], r["mode"]) == (oracle, method, mode)])
                for mode in MODES
                for name in FIGURES
            ]
            lines.append(f"| {oracle} | {method} | {' | '.join(cells)} |")
    constant = [r["brier"] for r in rows if r["method"] == "Best constant" and r["oracle"] == "exact"]
    lines += [
        "",
        f"The best constant has a BS of {percent(constant)}.",
        "",
        "## The labels themselves",
        "",
        "Against the exact labels of the same training sentences.",
        "",
        "| labels | SC | mean squared distance | mean | true mean | sentences |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for oracle in ORACLES:
        own = [row for row in labels if row["oracle"] == oracle]
        cells = [percent([row[key] for row in own]) for key in ("spearman", "brier", "mean", "truth")]
        lines.append(f"| {oracle} | {' | '.join(cells)} | {sum(row['n'] for row in own) // len(own)} |")
    lines += [
        "",
        f"In %; BS, ECE-M and distance: lower is better, SC: higher; -: undefined. Sentences, stated scores, means "
        f"over seeds {', '.join(map(str, seeds))}; intervals are over people (95 %, 2000 draws). {results['date']}, "
        f"commit {results['commit']}, {versions}; {results['machine']}.",
        "",
    ]
    return "\n".join(lines)


def told(difference: Mapping[str, Any]) -> str:
    """A sentence on how DPO with these labels compares with DPO on exact ones."""
    parts = []
    for name, label in FIGURES.items():
        if difference[name] is None:
            parts.append(f"{label} undefined")
            continue
        value, low, high = (100 * x for x in difference[name])
        worse = (value > 0) == (name != "spearman")
        shown = "" if low > 0 or high < 0 else ", not shown"
        verdict = f"{'worse' if worse else 'better'}{shown}"
        parts.append(f"{label} {value:+.1f} [{low:+.1f} to {high:+.1f}], {verdict}")
    return f"DPO less DPO on exact labels: {'; '.join(parts)}."


def percent(values: Sequence[float | None]) -> str:
    """The mean of the values in %, "-" where one is undefined."""
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.1f}" if known and len(known) == len(values) else "-"


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the answers, the samples and the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "oracle", help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only write the page again from the results")
    parser.add_argument("--quick", action="store_true", help="try it out; results and page go to --out")
    flags = parser.parse_args()
    results, written = (flags.out / RESULTS.name, flags.out / PAGE.name) if flags.quick else (RESULTS, PAGE)
    if not flags.table:
        write_json(results, run(flags))
    written.write_text(page(json.loads(results.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
