"""Compare the cost of training steps with that of lovec without shared prefixes, and with TRL's: ``make bench``.

    python benchmarks/speed.py                     # all cases -> benchmarks/results/speed.json, docs/speed.md and .svg
    python benchmarks/speed.py --only DPO GRPO     # some objectives; the rows of the others are kept
    python benchmarks/speed.py --pairs 3 --print   # fewer timings, printed
    python benchmarks/speed.py --bounds            # the bounds anew, from the operations in that file, and the page
    python benchmarks/speed.py --page              # only the page and the plot, from that file

Every case runs in a process of its own, on one thread. A row is written only if both sides have the same weights and
agree on log-probabilities, loss and gradients. Rows whose peer is TRL need the extra ``parity``, without which the
results are printed only. Operations are those of a whole step: of TRL with micro-batches of one example or of all,
whichever needs fewer; of lovec with a single one, as by default. CPU time is compared with lovec's own padded path
only: on a CPU, TRL runs slow stand-ins of its kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import provenance, results_file, write_json
from cost import LLAMA_3_8B, least_flops, trl_flops
from flops import Cost, cost
from mix import MIX, SHORT, Mix, WorldRows, llama_tokens, tokens
from sides import OBJECTIVES, SMALLEST, WHOLE, Case, Lovec, Side
from speed_page import write_page
from usage import free_memory, peak_memory, resident_memory

from lovec.datasets.world import ensure_world
from lovec.encoding import INSTRUCTION
from lovec.types import LovecError

RESULTS = results_file("speed")
WORLD = WorldRows()
OURS, PADDED, TRL, PRECOMPUTED = "lovec", "lovec padded", "TRL", "TRL, reference precomputed"
SCORED = ("ExpectedReward", "SFTRegression")
"""Objectives that compute the probability of every score; Distil computes the same positions."""
CASES = [
    *(Case(objective, MIX, timed=objective in ("SFT", "DPO")) for objective in OBJECTIVES if objective != "GRPO"),
    *(Case(objective, MIX, scoring="prefix") for objective in SCORED),
    *(Case("GRPO", MIX, 2, group, beta, group + beta == 8.04) for group in (8, 4, 2) for beta in (0.04, 0.0)),
    *(Case(objective, SHORT) for objective in ("SFT", "DPO")),
    *(Case("GRPO", SHORT, 2, group) for group in (8, 2)),
    *(Case(objective, WORLD, timed=True) for objective in ("SFT", "DPO")),
    Case("GRPO", WORLD, 8, 8, timed=True),
]
LENGTHS = (256, 512, 1024, 2048)
"""Tokens of prompt and completion for which expected reward is compared with SFT; a tag every 29 completion tokens."""
LARGEST = {"weights": 0.0, "logps": 1e-4, "loss": 1e-5, "gradient": 1e-5}
"""Largest differences of two sides: of any weight, of any log-probability, and relative ones of loss and gradient."""


def sides_of(case: Case, folder: Path) -> dict[str, Side]:
    """Build the sides of a case."""
    model = case.source.model(folder / "model")
    ours = Lovec(case, model, folder)
    sides: dict[str, Side] = {OURS: ours, PADDED: Lovec(case, model, folder, share_prefixes=False)}
    if isinstance(case.source, Mix) and importlib.util.find_spec("trl"):
        from peers import TRAINERS

        for name in (TRL, PRECOMPUTED) if case.objective == "DPO" else (TRL,) if case.objective in TRAINERS else ():
            sides[name] = trl_side(case, ours, folder)
            if name == PRECOMPUTED:
                sides[name].policy = ours.module.policy
                sides[name].take(ours.examples)
    return sides


def trl_side(case: Case, ours: Lovec, folder: Path) -> Any:
    """Build TRL's side of a case, with the weights and the examples of lovec's."""
    from peers import TRAINERS

    trl = TRAINERS[case.objective](ours.module, ours.examples, folder)
    trl.copy_weights(ours.weights())
    return trl


def differences(case: Case, sides: Mapping[str, Side]) -> dict[str, dict[str, float]]:
    """Return how far each peer is from lovec, on a smaller step of the same kind.

    Raises:
        LovecError: one is too far, so that a comparison would mean nothing.
    """
    ours, everything = sides[OURS], sides[OURS].examples
    some = case.compared.examples(ours.module)
    sequences = [sequence for example in some for sequence in example.sequences]
    losses, logps, gradients = {}, {}, {}
    for name, side in sides.items():
        side.take(some)
        losses[name] = side.step(WHOLE if side is ours else SMALLEST)
        logps[name], gradients[name] = torch.cat(side.logps(sequences)), side.gradients()
        side.take(everything)
    found = {}
    for name, side in sides.items():
        theirs = side.weights()
        if theirs.keys() != ours.weights().keys() or gradients[name].keys() != gradients[OURS].keys():
            raise LovecError(f"{name} has other weights or gradients than {OURS}, expected the same names")
        flat, mine = (torch.cat([gradients[n][key].flatten() for key in gradients[OURS]]) for n in (name, OURS))
        found[name] = {
            "weights": max(float((p - theirs[key]).detach().abs().max()) for key, p in ours.weights().items()),
            "logps": float((logps[name] - logps[OURS]).abs().max()),
            "loss": abs(losses[name] / losses[OURS] - 1),
            "gradient": float((flat - mine).norm() / flat.norm()),
        }
        if far := {key: value for key, value in found[name].items() if not value <= LARGEST[key]}:
            raise LovecError(
                f"{name} differs from {OURS} by {far}, expected at most {LARGEST}; they compute other things"
            )
    return found


def at_8b(case: Case, side: Lovec, peer: str) -> dict[str, Any]:
    """Return what the model of costs says of a step in Llama-3-8B's shape, with checkpointing: lovec's over TRL's."""
    ours = least_flops(LLAMA_3_8B, side.sequences, reference=side.reference, checkpointing=True)
    reference = side.reference and peer != PRECOMPUTED
    theirs = trl_flops(LLAMA_3_8B, case.objective, side.examples, reference=reference, checkpointing=True)
    return {"objective": case.objective, "setting": case.setting, "peer": peer, "flops_ratio": ours / theirs}


def measure(case: Case, pairs: int, folder: Path) -> dict[str, Any]:
    """Return the rows of a case, one per peer, with ratios of lovec to the peer; and the ratio for Llama-3-8B.

    Args:
        case: what is measured.
        pairs: steps of each side that are timed, in turns; 0 times none.
        folder: what the sides may write to.
    """
    sides = sides_of(case, folder)
    apart = differences(case, sides)
    costs: dict[str, dict[int, Cost]] = {}
    peaks = {}
    for name, side in sides.items():
        free_memory()
        before = resident_memory()
        with peak_memory() as peak:
            whole = cost(partial(side.step, WHOLE), side.parameters)
        peaks[name] = peak[0] - before
        costs[name] = {WHOLE: whole, SMALLEST: cost(partial(side.step, SMALLEST), side.parameters)}
    seconds: dict[str, list[float]] = {OURS: [], PADDED: []}
    for _ in range(pairs if case.timed else 0):
        for name, times in seconds.items():
            start = time.process_time()
            sides[name].step(WHOLE)
            times.append(time.process_time() - start)
    lovec, ours = sides[OURS], costs[OURS]
    least = bound(lovec)
    rows = []
    for peer in list(sides)[1:]:
        theirs = costs[peer]
        best = theirs[WHOLE] if peer == PADDED else min(theirs.values(), key=lambda cost: cost.flops)
        ratios = sorted(a / b for a, b in zip(seconds[OURS], seconds[peer], strict=True)) if peer in seconds else []
        rows.append(
            {
                "objective": case.objective,
                "setting": case.setting,
                "peer": peer,
                "flops_ratio": ours[WHOLE].flops / best.flops,
                "saved_bytes_ratio": ours[WHOLE].saved_bytes / theirs[WHOLE].saved_bytes,
                "saved_bytes_smallest_ratio": ours[SMALLEST].saved_bytes / theirs[SMALLEST].saved_bytes,
                "peak_rss_ratio": peaks[OURS] / peaks[peer],
                "cpu_seconds_ratio": statistics.median(ratios) if ratios else None,
                "interval": [ratios[0], ratios[-1]] if ratios else None,
                "pairs": len(ratios),
                "bound_ratio": ours[WHOLE].flops / least,
                "gradient_difference": apart[peer]["gradient"],
                "logps_difference": apart[peer]["logps"],
                "teraflops": ours[WHOLE].flops / 1e12,
                "saved_mb": ours[WHOLE].saved_bytes / 1e6,
                "cpu_seconds": statistics.median(seconds[OURS]) if ratios else None,
            }
        )
    return {"rows": rows, "at_8b": [at_8b(case, lovec, peer) for peer in (TRL, PRECOMPUTED) if peer in sides]}


def bound(side: Lovec) -> int:
    """Return the operations of the cheapest step that gives the same loss: scores are told apart by first tokens."""
    return least_flops(side.config, [*side.sequences, *side.choices], side.reference)


def with_bounds(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with the bounds of objectives whose scores are computed anew; their operations stay."""
    for case in CASES:
        rows = [r for r in results["rows"] if (r["objective"], r["setting"]) == (case.objective, case.setting)]
        if case.objective not in SCORED or not rows:
            continue
        with tempfile.TemporaryDirectory() as folder:
            least = bound(Lovec(case, case.source.model(Path(folder) / "model"), Path(folder)))
        for row in rows:
            row["bound_ratio"] = row["teraflops"] * 1e12 / least
    return results


def curve(length: int, folder: Path) -> dict[str, Any]:
    """Return what a step of expected reward costs over one of SFT, on two rows of a length."""
    mix = Mix(f"{length} tokens", completion=length - MIX.prompt, spread=0, tags=(length - MIX.prompt) // 29)
    model = mix.model(folder / "model")
    flops = {}
    for objective in ("SFT", "ExpectedReward"):
        for name, options in ((OURS, {}), (PADDED, {"share_prefixes": False})):
            side = Lovec(Case(objective, mix, rows=2), model, folder, **options)
            flops[objective, name] = cost(partial(side.step, WHOLE), side.parameters).flops
    ratios = {name: flops["ExpectedReward", name] / flops["SFT", name] for name in (OURS, PADDED)}
    return {"curve": [{"length": length, "tags": mix.tags, **ratios}]}


def run(objectives: Sequence[str], pairs: int, jobs: int) -> dict[str, Any]:
    """Measure the cases of some objectives, each in a process of its own; those that are longest come first."""
    chosen = [case for case in CASES if case.objective in objectives]
    tasks = [["--case", str(CASES.index(case))] for case in sorted(chosen, key=lambda case: not case.timed)]
    if "ExpectedReward" in objectives:
        tasks += [["--length", str(length)] for length in reversed(LENGTHS)]
    ensure_world(WORLD.variant)  # once, before processes that need it run side by side

    def execute(words: Sequence[str]) -> dict[str, Any]:
        command = [sys.executable, __file__, *words, "--pairs", str(pairs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return {"failed": [" ".join(words)]}
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        for row in result.get("rows", []):
            print(line(row), flush=True)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(execute, tasks))

    def collected(name: str) -> list[Any]:
        return [row for result in results for row in result.get(name, [])]

    if failed := collected("failed"):
        raise SystemExit(f"nothing is written, since these failed: {', '.join(failed)}")
    tables = {name: in_order(collected(name)) for name in ("at_8b", "rows")}
    lengths = {
        "prompt": MIX.prompt,
        "instruction": tokens(INSTRUCTION),
        "llama_3": llama_tokens(INSTRUCTION),
    }
    return {"tokens": lengths, "curve": sorted(collected("curve"), key=lambda point: point["length"]), **tables}


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of the cases."""
    order = [(case.objective, case.setting) for case in CASES]
    return sorted(rows, key=lambda row: order.index((row["objective"], row["setting"])))


def updated(known: Mapping[str, Any], new: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return earlier results with the rows of some objectives measured anew; these rows say when.

    Args:
        known: content of speed.json.
        new: what ``run`` returned.
        origin: the present date, commit, versions and machine.
    """
    again = {row["objective"] for row in new["rows"]}
    when = {name: origin[name] for name in ("date", "commit")}
    kept = {name: [row for row in known[name] if row["objective"] not in again] for name in ("at_8b", "rows")}
    return {
        **known,
        "curve": new["curve"] or known["curve"],
        "at_8b": in_order([*kept["at_8b"], *new["at_8b"]]),
        "rows": in_order([*kept["rows"], *({**row, **when} for row in new["rows"])]),
    }


def line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    timed = ""
    if row["interval"]:
        low, high = row["interval"]
        timed = f", CPU time {row['cpu_seconds_ratio']:.2f} ({low:.2f} to {high:.2f})"
    return (
        f"{row['objective']}, {row['setting']}, over {row['peer']}: operations {row['flops_ratio']:.3f} "
        f"({row['bound_ratio']:.3f} of the bound), saved {row['saved_bytes_ratio']:.2f} and "
        f"{row['saved_bytes_smallest_ratio']:.2f}, resident {row['peak_rss_ratio']:.2f}{timed}; gradients "
        f"{row['gradient_difference']:.0e}"
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(case.objective for case in CASES))
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="objectives; others' rows are kept")
    parser.add_argument("--pairs", type=int, default=7, help="timed steps of each side")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    parser.add_argument("--page", action="store_true", help="only write the page and the plot from the results")
    parser.add_argument("--bounds", action="store_true", help="only compute the bounds of the results anew")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.bounds:
        write_json(RESULTS, with_bounds(json.loads(RESULTS.read_text(encoding="utf-8"))))
    if flags.bounds or flags.page:
        write_page(RESULTS)
        return
    if flags.case is None and flags.length is None:
        printed = flags.print
        if not printed and importlib.util.find_spec("trl") is None:
            printed = True  # the file keeps its rows of TRL
            print("TRL is not installed (pip install '.[parity]'): the results are printed, not written")
        results = run(flags.only, flags.pairs, flags.jobs)
        if not printed:
            origin = provenance()
            origin["versions"]["trl"] = version("trl")
            if flags.only != names:
                results = updated(json.loads(RESULTS.read_text(encoding="utf-8")), results, origin)
            write_json(RESULTS, origin | results)
            write_page(RESULTS)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if flags.length is None:
            result = measure(CASES[flags.case], flags.pairs, Path(folder))
        else:
            result = curve(flags.length, Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
