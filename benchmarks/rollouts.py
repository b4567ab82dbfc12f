"""Measure sampling and tagging with the transformers engine against another version of lovec: processor seconds.

    python benchmarks/rollouts.py --against ../before    # -> benchmarks/results/rollouts.json, docs/results/rollouts.md
    python benchmarks/rollouts.py --page                 # only write the page from that file

Each version works in a process of its own with one thread, and both take turns, so that a busy machine slows both. The
ids, scores and log-probabilities of both are compared before anything is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common import ROOT, commit_of, offline, publish, read_json, results_and_page
from page_parts import world_text

RESULTS, PAGE = results_and_page("rollouts")
WORLD = "world-small"
ROWS, NEW_TOKENS = 64, 128
WORK = {
    "sample": "64 answers of 128 tokens, a Llama of width 512 with 6 layers and 32,000 words, random weights",
    "sample, world": "64 answers of 128 tokens, the model of the small world with an adapter",
    "free-form": "64 answers written and their distributions over scores, the same model",
    "iterative": "the sentences of 64 answers scored, the same model",
}
CLOSE = 1e-6
"""Log-probabilities and probabilities of the versions may differ by this much."""


def sampling(model: Any, words: int) -> Callable[[], tuple[Any, list[float]]]:
    """Return a function that samples ``ROWS`` answers after prompts of 40 to 90 random tokens, 30 of them shared."""
    from lovec.engines import TransformersEngine
    from lovec.types import Sampling

    rng = random.Random(0)
    shared = rng.choices(range(10, words), k=30)
    prompts = [shared + rng.choices(range(10, words), k=rng.randint(10, 60)) for _ in range(ROWS)]
    engine = TransformersEngine()
    engine.sync(SimpleNamespace(model=model))

    def run() -> tuple[Any, list[float]]:
        rows = [row for [row] in engine.generate(prompts, Sampling(NEW_TOKENS, temperature=1.0), ())]
        return [row.ids for row in rows], [logp for row in rows for logp in row.logps]

    return run


def tagging(tagger: Any, records: Any) -> Callable[[], tuple[Any, list[float]]]:
    """Return a function that tags records."""

    def run() -> tuple[Any, list[float]]:
        sentences = [sentence for record in tagger.tag(records) for sentence in record.sentences]
        return [(s.text, s.score) for s in sentences], [p for s in sentences for p in s.distribution or ()]

    return run


def work() -> None:
    """Do the work named on every line of standard input; answer with seconds, a hash of the ids, and probabilities."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from lovec.datamodules import World
    from lovec.encoding import Encoder
    from lovec.engines import TransformersEngine
    from lovec.policy import Policy, PolicyConfig
    from lovec.taggers import FreeFormTagger, IterativeTagger

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8
    )
    llama = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    data = World(WORLD)
    records = data.load("test")[:ROWS]
    policy = Policy(PolicyConfig(model=str(data.world.model_path)))
    encoder, engine = Encoder(policy.tokenizer, data.instruction), TransformersEngine()
    engine.sync(policy)
    works = {
        "sample": sampling(llama, config.vocab_size),
        "sample, world": sampling(policy.model, policy.model.config.vocab_size),
        "free-form": tagging(FreeFormTagger(engine, encoder, readout="mean"), records),
        "iterative": tagging(IterativeTagger(engine, encoder), records),
    }
    for line in sys.stdin:
        start = time.process_time()
        ids, numbers = works[line.strip()]()
        seconds = time.process_time() - start
        print(json.dumps([seconds, hashlib.sha256(repr(ids).encode()).hexdigest(), numbers]), flush=True)


def start_worker(checkout: Path) -> Any:
    """Start a process of this script that imports lovec from ``checkout``."""
    env = {**offline(), "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, __file__, "--worker"]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: Any, name: str) -> tuple[float, str, list[float]]:
    """Let a worker do the work of one name."""
    worker.stdin.write(f"{name}\n")
    worker.stdin.flush()
    while line := worker.stdout.readline():
        if line.startswith("["):  # other lines are those of libraries
            return tuple(json.loads(line))
    raise SystemExit("a worker ended before it answered")


def measure(against: Path, pairs: int) -> list[dict[str, Any]]:
    """Return a row for every kind of work: ratios of processor seconds, this version / the other one.

    Raises:
        SystemExit: the versions sample other ids, choose other scores or differ in a probability.
    """
    workers = [start_worker(ROOT), start_worker(against)]
    rows = []
    for name in WORK:
        seconds, difference = [], 0.0
        for turn in range(pairs):
            order = workers if turn % 2 else workers[::-1]
            answers = {worker: ask(worker, name) for worker in order}
            (mine, ids, logps), (others, other_ids, other_logps) = (answers[worker] for worker in workers)
            difference = max(difference, *(abs(a - b) for a, b in zip(logps, other_logps, strict=True)))
            if ids != other_ids or difference > CLOSE:
                raise SystemExit(f"{name}: the versions differ, log-probabilities by {difference}; nothing is written")
            seconds.append((mine, others))
            print(f"{name}: {mine:.2f} s, {others:.2f} s", file=sys.stderr, flush=True)
        ratios = [mine / others for mine, others in seconds]
        rows.append(
            {
                "work": name,
                "pairs": pairs,
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "cpu_seconds": statistics.median(mine for mine, _ in seconds),
                "cpu_seconds_against": statistics.median(others for _, others in seconds),
                "difference": difference,
            }
        )
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    return rows


def page(results: Mapping[str, Any]) -> str:
    """Return docs/results/rollouts.md."""
    difference = max(row["difference"] for row in results["work"])
    probabilities = f"differ by at most {difference:.0e}" if difference else "are identical"
    lines = [
        "# Sampling and tagging with a KV cache that grows in place",
        "",
        "Written by `benchmarks/rollouts.py`; the figures are in `benchmarks/results/rollouts.json`. Processor seconds "
        f"on one thread, this version / commit {results['against']}, which joined old and new states at every token. "
        f"Both gave the same ids and scores; probabilities {probabilities}.",
        "",
        "| work | ratio: median (range) | seconds | seconds before |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in results["work"]:
        ratio = f"{row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
        seconds = f"{row['cpu_seconds']:.1f} | {row['cpu_seconds_against']:.1f}"
        lines.append(f"| {row['work']}: {WORK[row['work']]} | {ratio} | {seconds} |")
    lines += ["", f"{results['work'][0]['pairs']} pairs of runs, in turns. {world_text(results)}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each version and kind of work")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        work()
        return
    if not flags.page:
        if flags.against is None:
            parser.error("--against is missing, expected the folder of a checkout of lovec to compare with")
        rows = measure(flags.against, flags.pairs)
        publish(RESULTS, {"against": commit_of(flags.against), "work": rows}, flags.print)
    if not flags.print:
        PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
