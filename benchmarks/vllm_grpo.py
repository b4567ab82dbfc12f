"""GRPO with vLLM as the engine, in process and as a server, against the transformers engine, on the embedded world.

    python benchmarks/vllm_grpo.py --sft 'runs/seed-{seed}/sft/adapter' --seeds 0 1    # results/vllm_grpo.json
    python benchmarks/vllm_grpo.py --sft ... --seeds 0 --quick                         # shows that it runs

It wants the Python of an environment with vLLM. All runs of a seed start from one SFT adapter and see the same
questions in the same order; their random numbers differ, since engines draw in their own ways. How far two runs lie
apart by chance is shown by a second run of the transformers engine from the same adapter with another seed, which
changes numbers and order. Every run is measured on the people of the dev split by its own engine. What is done is not
repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import ROOT, provenance, write_json

RESULTS = ROOT / "benchmarks" / "results" / "vllm_grpo.json"
PAGE = ROOT / "docs" / "vllm.md"
BEGIN, END = "<!-- grpo table: written by benchmarks/vllm_grpo.py -->", "<!-- end of the grpo table -->"
START_S = 600
OTHER = "transformers, another seed"
ELSEWHERE = 1000  # added to the seed of that one
ENGINES: dict[str, tuple[str, ...]] = {
    "transformers": (),
    OTHER: (),
    "vLLM": (
        "--model.engine=lovec.engines.VllmEngine",
        "--model.engine.kv_cache_gib=0.5",
        "--model.engine.block_size=32",
        "--model.engine.enforce_eager=true",
    ),
    "vLLM server": ("--model.engine=lovec.engines.VllmServer",),
}
SERVER = "--enable-lora --max-lora-rank 16 --max-loras 1 --max-cpu-loras 2 --block-size 32 --dtype float32"
SERVER += " --enforce-eager --logprobs-mode processed_logprobs --enable-prompt-tokens-details"
SETTINGS = {
    "OMP_NUM_THREADS": "1",  # before torch: on matrices this small more threads mostly wait
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
}
FIGURES = ("brier", "ece_m", "spearman", "malformed")
QUICK_STEPS = 2
LAST = 10  # steps whose mean reward is compared


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """All runs that are not done yet, one after the other, each in a process of its own."""
    origin = provenance()
    origin["versions"]["vllm"] = vllm_version()
    rows, trainings = [], []
    with ExitStack() as stack:
        url = ""
        for seed in flags.seeds:
            for name in flags.engines:
                folder = flags.out / f"{name.replace(', ', '-').replace(' ', '-').lower()}-{seed}-{flags.steps}"
                if not (folder / "result.json").exists():
                    if name == "vLLM server" and not url:
                        url = stack.enter_context(served(flags))
                    words = [str(word) for word in ("--one", name, "--url", url, "--folder", folder)]
                    words += ["--sft", flags.sft, "--seeds", str(seed), "--steps", str(flags.steps)]
                    print(f"{name}, seed {seed}", flush=True)
                    subprocess.run([sys.executable, __file__, *words], check=True)
                found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
                rows += [{**row, "seed": seed} for row in found]
                trainings.append({"method": name, "seed": seed, **training(folder)})
    return origin | {"steps": flags.steps, "summary": summary(rows, trainings), "training": trainings, "rows": rows}


def one(flags: argparse.Namespace) -> None:
    """A run: training and validation."""
    from lovec.cli.sweep import Run, execute_run

    [seed] = flags.seeds
    words = ["--config", "grpo.yaml", "--model.policy.adapter", flags.sft.format(seed=seed)]
    words += ["--trainer.max_steps", str(flags.steps)]
    words += ["--trainer.log_every_n_steps", "1", *ENGINES[flags.one]]
    words += [f"--model.engine.url={flags.url}"] if flags.url and flags.one == "vLLM server" else []
    drawn = seed + ELSEWHERE if flags.one == OTHER else seed
    execute_run(Run(flags.one, (), drawn, tuple(words), flags.folder))


def training(folder: Path) -> dict[str, float | None]:
    """Figures of a training by what it logged: the mean reward of the last steps, and the mismatch of all, in 1e-6."""
    logs = [csv.DictReader(path.open(encoding="utf-8")) for path in sorted(folder.glob("logs/version_*/metrics.csv"))]
    steps = [row for log in logs for row in log if row.get("train/reward")]

    def numbers(name: str) -> list[float]:
        return [float(row[name]) for row in steps if row.get(name)]

    mismatch, most, weight = (numbers(f"train/{name}") for name in ("mismatch", "mismatch_max", "weight"))
    return {
        "reward": statistics.fmean(numbers("train/reward")[-LAST:]),
        "mismatch_1e-6": 1e6 * statistics.fmean(mismatch) if mismatch else None,
        "mismatch_max_1e-6": 1e6 * max(most) if most else None,
        "weight": statistics.fmean(weight) if weight else None,
    }


def summary(rows: Sequence[dict[str, Any]], trainings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every figure the mean over seeds of each engine, and its distances seed by seed to the transformers engine.

    ``apart`` is the mean of these distances, ``most`` the largest without its sign.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["level"] == "sentence" and row["readout"] == "stated":
            for figure in FIGURES:
                if row[figure] is not None:
                    values.setdefault((f"{row['mode']} {figure}", row["method"]), {})[row["seed"]] = row[figure]
    for row in trainings:
        values.setdefault(("training reward", row["method"]), {})[row["seed"]] = row["reward"]
    found = []
    for (figure, method), by_seed in sorted(values.items()):
        base = values.get((figure, "transformers"), {})
        apart = [value - base[seed] for seed, value in by_seed.items() if seed in base]
        line: dict[str, Any] = {"figure": figure, "method": method, "mean": statistics.fmean(by_seed.values())}
        if method != "transformers" and apart:
            line |= {"apart": statistics.fmean(apart), "most": max(map(abs, apart))}
        found.append(line)
    return found


@contextmanager
def served(flags: argparse.Namespace) -> Iterator[str]:
    """Address of a vLLM server with the world's model."""
    from lovec.datasets.world import ensure_world

    model = ensure_world("world").model_path
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *SERVER.split()]
    log = flags.out / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not well(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start; its words are in {log}")
            time.sleep(1.0)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def well(health: str) -> bool:
    """Whether a server says that it is well."""
    try:
        with urllib.request.urlopen(health, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def vllm_version() -> str | None:
    """Version of vLLM, whatever its package is called."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def table(results: dict[str, Any]) -> str:
    """What docs/vllm.md shows: stated scores of every run on the dev people, and how far the arithmetics lie apart."""
    methods = list(dict.fromkeys(row["method"] for row in results["rows"]))
    lines = ["| Engine | seed | iterative: BS | ECE-M | SC | free-form: BS | ECE-M | SC | reward in training |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    stated = {
        (row["method"], row["seed"], row["mode"]): row
        for row in results["rows"]
        if row["level"] == "sentence" and row["readout"] == "stated"
    }
    training = {(row["method"], row["seed"]): row for row in results["training"]}
    for method in methods:
        for seed in sorted({row["seed"] for row in results["rows"] if row["method"] == method}):
            cells = [
                f"{100 * stated[method, seed, mode][name]:.1f}"
                for mode in ("iterative", "free-form")
                for name in ("brier", "ece_m", "spearman")
            ]
            lines.append(f"| {' | '.join([method, str(seed), *cells])} | {training[method, seed]['reward']:.1f} |")
    known = [row for row in results["training"] if row["mismatch_1e-6"] is not None]
    apart = max(row["mismatch_1e-6"] for row in known), max(row["mismatch_max_1e-6"] for row in known)
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Dev people, stated scores, in %; {results['steps']} steps. Log-probabilities of sampled tokens differ "
            f"between vLLM and training by {apart[0]:.1f}e-6 on average and {apart[1]:.0f}e-6 at most. "
            f"{results['date']}, commit {results['commit']}, {versions}; {results['machine']}.",
        ]
    )


def write_page(results: dict[str, Any]) -> None:
    """Put the table between its marks in docs/vllm.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--page", action="store_true", help="only write the table of docs/vllm.md again from the results"
    )
    parser.add_argument(
        "--sft", default="runs/seed-{seed}/sft/adapter", help="adapter to start from; {seed} stands for the seed"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps of a run (an epoch is 60)")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "vllm_grpo", help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="two steps; the results go to --out")
    parser.add_argument("--one", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if flags.one:
        one(flags)
        return
    if flags.quick:
        flags.steps = QUICK_STEPS
    results = flags.out / RESULTS.name if flags.quick else RESULTS
    if not flags.page:
        write_json(results, run(flags))
        print(f"written to {results}")
    if not flags.quick:
        write_page(json.loads(results.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
