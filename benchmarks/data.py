"""Measure what many records cost before and during training, and what the bootstrap costs by the number of passages.

python benchmarks/data.py                        # -> benchmarks/results/data.json and the table in docs/data.md
python benchmarks/data.py --against ../older     # measures another checkout of lovec as well
python benchmarks/data.py --page                 # only writes the table anew

Training records are answers of 8 sentences in JSON Lines, a tenth of them held out; the model is tiny, with a context
of 4,096 tokens. Each measurement is a process of its own with one thread. Seconds are those of the processor, after
imports and the building of the model; memory is the peak of the process less what it had when they were done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, publish, results_and_page
from page_parts import replace_between, versions_text

RESULTS, PAGE = results_and_page("data", "docs/data.md")
_LONG = 120.0  # seconds after which no further run is made
BEGIN, END = "<!-- costs of records -->", "<!-- end of costs of records -->"
RECORDS = (1_000, 10_000, 100_000)
PASSAGES = (100, 1_000, 10_000)
WORDS = """the of a born city university professor physics painter Vienna river novel company founded award music later
moved studied history house first daughter wrote opened station""".split()


def write_file(path: Path, count: int) -> None:
    """Write labelled answers of 8 sentences, 2.4 kB a line."""
    stream = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            texts = [f"{' '.join(stream.choices(WORDS, k=17)).capitalize()}." for _ in range(8)]
            sentences = [{"text": text, "factuality": stream.randint(0, 10) / 10} for text in texts]
            question = f"Who is the {' '.join(stream.choices(WORDS, k=3))} number {number}?"
            row = {"id": f"r{number}", "question": question, "answer": " ".join(texts), "sentences": sentences}
            file.write(json.dumps(row) + "\n")


def measure_records(path: str) -> dict[str, float]:
    """Return the costs of the records of a file, up to the first batch and of an epoch of batches."""
    from lightning.pytorch import Trainer

    from lovec.callbacks import Monitor, Probe
    from lovec.datamodules import Preferences
    from lovec.evaluation import EvaluationModule
    from lovec.models.tiny import ensure_tiny
    from lovec.modules import DPO, PolicyConfig

    marks = {}

    class Stopped(Exception):
        """The first batch has come."""

    class Timed(DPO):
        def configure_model(self) -> None:
            begin = time.process_time()
            EvaluationModule.configure_model(self)
            marks["model"] = time.process_time() - begin
            super().configure_model()  # which now only checks the records

        def training_step(self, rows: Any, batch_idx: int) -> None:
            assert len(rows) == 8
            raise Stopped

    data = Preferences(path)
    module = Timed(policy=PolicyConfig(str(ensure_tiny("tiny-llama")), lora_r=4))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[Probe(every=0), Monitor()], **options)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        trainer.fit(module, data)
    except Stopped:
        marks["first"] = time.process_time() - begin - marks["model"]
    begin = time.process_time()
    batches = sum(1 for _ in data.train_dataloader())
    epoch = time.process_time() - begin
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    return {"batches": batches, "first_batch_seconds": marks["first"], "epoch_seconds": epoch, "peak_mib": peak}


def measure_bootstrap(passages: int) -> dict[str, float]:
    """Return the costs of 2,000 draws of a run of passages with 8 sentences each."""
    from lovec.metrics.bootstrap import resample

    stream = random.Random(0)
    run = {f"q{i}": tuple([stream.randint(0, 10) / 10 for _ in range(8)] for _ in range(2)) for i in range(passages)}
    resample([{"q": ([0.1, 0.5], [0.0, 1.0])}], draws=2)  # what the first call sets up
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    resample([run])
    seconds = time.process_time() - begin
    return {"seconds": seconds, "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10}


def measured(checkout: Path, words: Sequence[str], runs: int) -> dict[str, float]:
    """Return the medians of a measurement in processes that import lovec from a checkout; of one that takes minutes."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "LOVEC_COMMIT": ""}
    command = [sys.executable, __file__, "--measure", *words]
    found, begin = [], time.monotonic()
    while not found or (len(found) < runs and time.monotonic() - begin < _LONG):
        run = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    return {name: round(statistics.median(one[name] for one in found), 2) for name in found[0]}


def costs(checkouts: Mapping[str, Path], runs: int) -> dict[str, list[dict[str, Any]]]:
    """Return a row of costs for every number of records and of passages, and every checkout."""
    records, bootstrap = [], []
    with tempfile.TemporaryDirectory() as folder:
        for count in RECORDS:
            path = Path(folder, f"{count}.jsonl")
            write_file(path, count)
            for name, checkout in checkouts.items():
                row = measured(checkout, ("records", str(path)), runs)
                records.append({"records": count, "checkout": name, **row})
                print(records[-1], file=sys.stderr)
    for count in PASSAGES:
        for name, checkout in checkouts.items():
            bootstrap.append(
                {"passages": count, "checkout": name, **measured(checkout, ("bootstrap", str(count)), runs)}
            )
            print(bootstrap[-1], file=sys.stderr)
    return {"records": records, "bootstrap": bootstrap}


def table(results: Mapping[str, Any]) -> str:
    """Return the costs as two Markdown tables, those of another checkout in brackets."""

    def cell(rows: Sequence[Mapping[str, Any]], key: str, digits: int) -> str:
        values = {row["checkout"]: f"{row[key]:,.{digits}f}" for row in rows}
        return values["this"] + (f" ({values['before']})" if "before" in values else "")

    lines = ["| Training records | to the first batch, s | batches of an epoch, s | memory, MiB |", "|--:|--:|--:|--:|"]
    for count in RECORDS:
        rows = [row for row in results["records"] if row["records"] == count]
        cells = (cell(rows, "first_batch_seconds", 1), cell(rows, "epoch_seconds", 1), cell(rows, "peak_mib", 0))
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    lines += ["", "| Passages | bootstrap of 2,000 draws, s | memory, MiB |", "|--:|--:|--:|"]
    for count in PASSAGES:
        rows = [row for row in results["bootstrap"] if row["passages"] == count]
        lines.append(f"| {count:,} | {cell(rows, 'seconds', 1)} | {cell(rows, 'peak_mib', 0)} |")
    before = f" In brackets: commit {results['before']}." if results["before"] else ""
    runs = f"Medians of {results['runs']} runs (one where it takes minutes), processor seconds."
    note = f"{runs}{before} {versions_text(results)}."
    return "\n".join([*lines, "", note])


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of lovec to measure as well")
    parser.add_argument("--runs", type=int, default=3, help="processes per measurement")
    parser.add_argument("--page", action="store_true", help="only write the table anew")
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "OF"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        what, of = flags.measure
        print(json.dumps(measure_records(of) if what == "records" else measure_bootstrap(int(of))))
        return
    if not flags.page:
        checkouts, before = {"this": ROOT}, None
        if flags.against:
            checkouts["before"] = flags.against.resolve()
            words = ["git", "rev-parse", "--short", "HEAD"]
            before = subprocess.run(words, cwd=flags.against, capture_output=True, text=True, check=True).stdout.strip()
        publish(RESULTS, {"runs": flags.runs, "before": before, **costs(checkouts, flags.runs)}, flags.print)
    if not flags.print:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace_between(text, BEGIN, END, table(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
