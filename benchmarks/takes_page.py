"""The page of takes.py: how well the models hold, what training takes, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hours import (
    BANDWIDTH,
    CAPACITY,
    EXAMPLES,
    FREE,
    GROUP,
    JUDGED,
    LAUNCH,
    LINK,
    LONGEST,
    READ,
    ROWS,
    SHARES,
    TOKENS,
    USED,
)
from page_parts import page_of_lines, versions_text

_MODEL = ("objective", "base", "gpus", "width", "layers")


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results in Markdown, line by line."""
    yield from ("# What training takes", "")
    yield (
        "Written by `benchmarks/takes.py` from `benchmarks/results/takes.json`. Memory and hours of SFT, DPO and GRPO "
        "on Llama-3-8B and Llama-3-70B, computed by a model of memory (`benchmarks/memory.py`), one of operations "
        "(`benchmarks/cost.py`) and the assumptions below. **No GPU has confirmed these figures**: what could be "
        "measured is in the last two tables, on a CPU. "
        f"{versions_text(results)}."
    )
    for name, rows in groupby(results["estimates"], lambda row: row["model"]):
        yield from ("", f"## {name}", "")
        yield from _estimates(list(rows))
    yield from ("", "## With another share of the arithmetic", "")
    yield from _shares(results["estimates"])
    yield from ("", "## Assumptions", "")
    yield from _assumptions()
    yield from ("", "## Checks", "")
    yield from _checks(results["checks"])
    yield ""
    yield from _shapes(results["shapes"])


def choose(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one estimate per objective, base and number of GPUs.

    It is the one with the largest micro-batches that fit, or with the smallest ones where none fit.

    Args:
        rows: estimates of one model, with larger micro-batches first.
    """
    chosen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["objective"], row["base"], row["gpus"])
        if key not in chosen or not chosen[key]["fits"]:
            chosen[key] = row
    return list(chosen.values())


def _estimates(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| Objective | Base | GPUs | tokens per micro-batch | GB per GPU | of which weights | GB per sampling GPU "
        "| fits 80 GB | time, H100 | time, A100 |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    order = sorted(choose(rows), key=lambda row: (("SFT", "DPO", "GRPO").index(row["objective"]), row["base"]))
    for row in order:
        sampling = f"{row['server_bytes'] / 1e9:.0f}" if row["server_bytes"] else ""
        gpus = f"{row['gpus']}" if not sampling else f"{row['gpus'] // 2} + {row['gpus'] // 2}"
        times = [_time(_hours(row, gpu, USED)) if row["fits"] else "-" for gpu in ("H100", "A100")]
        cells = [row["objective"], row["base"], gpus, f"{row['budget']:,}", f"{row['bytes']['total'] / 1e9:.0f}"]
        cells += [f"{(row['bytes']['base'] + row['bytes']['adapter']) / 1e9:.0f}", sampling]
        yield f"| {' | '.join([*cells, 'yes' if row['fits'] else '**no**', *times])} |"


def _hours(row: Mapping[str, Any], gpu: str, used: float) -> float:
    return sum(row["hours"][f"{gpu} {used:g}"].values())


def _time(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 6 else f"{60 * hours:.1f} min"


def _shares(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"| Time on H100, base in bfloat16, with a share of | {' | '.join(f'{share:g}' for share in SHARES)} |"
    yield f"|---|{'---|' * len(SHARES)}"
    for name, of_model in groupby(rows, lambda row: row["model"]):
        for row in choose(of_model):
            if row["base"] == "bfloat16" and row["gpus"] == 8 and row["fits"]:
                times = [_time(_hours(row, "H100", share)) for share in SHARES]
                yield f"| {name}, {row['objective']}, 8 GPUs | {' | '.join(times)} |"


def _assumptions() -> Iterator[str]:
    speeds = " and ".join(f"{1e-12 * speed:.2f} TB/s ({gpu})" for gpu, speed in BANDWIDTH.items())
    yield (
        f"- One epoch of the paper's {EXAMPLES:,} questions (rows of SFT, pairs of DPO), {ROWS} of them per step on "
        f"all GPUs; GRPO has one question with {GROUP} answers per training GPU and step. Lengths are those of the "
        "mix in `benchmarks/mix.py`, prefixes are shared, layers are checkpointed, adapters have rank 64. A "
        f"micro-batch has at most {', '.join(f'{budget:,}' for budget in TOKENS)} tokens, the largest of these that "
        "fits."
    )
    yield (
        "- *bfloat16* is llama3-8b.yaml, *nf4* adds qlora.yaml; several GPUs share the layers (fsdp2.yaml). GB are "
        f"10^9 bytes; {100 * FREE:.0f} % of {CAPACITY / 1e9:.0f} are left free for CUDA, NCCL and fragmentation."
    )
    yield (
        f"- Training uses {100 * USED:.0f} % of the arithmetic that the maker states (dense, bfloat16), recomputation "
        f"included. Layers arrive from other GPUs at {LINK / 1e9:.0f} GB/s while others are computed; the slower of "
        "both counts."
    )
    yield (
        "- GRPO samples on as many further GPUs with vLLM (*a + b* in the column), or on the training GPU itself; "
        f"answers have at most {LONGEST} tokens. Sampling reads weights and cache at {100 * READ:.0f} % of {speeds}; "
        f"without vLLM a token takes {1000 * LAUNCH:g} ms per layer at least. The judge is the model itself, on the "
        f"training GPU, and reads {JUDGED:,} tokens per question. Sampling, judging and training take turns."
    )
    yield (
        "- Not confirmed by the checks: attention on a GPU (the checks take that of a CPU), the decoded layer of a "
        "base in 4 bits, and how the layers of FSDP2 arrive while others are computed."
    )


def _checks(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "Real steps of models of Llama's architecture with random weights, with and without checkpointing, each with "
        "two sizes of the output layer's chunks. *Between steps*: weights, adapter and optimiser; *peak*: what "
        "PyTorch's allocator had given out beyond that. Errors are those of the model against the measurement, the "
        "worst of all steps of a row. Several GPUs are one process whose partners are made up. Operations of "
        "products with weights in 4 bits are not counted by PyTorch."
    )
    yield ""
    yield (
        "| Objective | Base | GPUs | width x layers | weights, M | steps | between steps, MB | error | peak, MB | "
        "error | operations, error |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for _, group in groupby(rows, lambda row: [row[name] for name in _MODEL]):
        steps = list(group)
        first = steps[0]
        peaks = [step["peak"] / 1e6 for step in steps]
        cells = [first["objective"], first["base"], first["gpus"], f"{first['width']} x {first['layers']}"]
        cells += [f"{first['parameters'] / 1e6:,.0f}", len(steps), f"{first['stored'] / 1e6:,.0f}"]
        cells += [_worst(steps, "stored"), f"{min(peaks):,.0f} to {max(peaks):,.0f}", _worst(steps, "peak")]
        yield f"| {' | '.join(map(str, cells))} | {_worst(steps, 'flops')} |"
    same = [step for step in rows if step["peak_with_products"] is not None]
    if all(step["peak_with_products"] == step["peak"] for step in same):
        yield ""
        yield f"Leaving out the products changes the peak of none of the {len(same)} steps that were made with them."


def _worst(steps: Sequence[Mapping[str, Any]], name: str) -> str:
    errors = [step[f"{name}_said"] / step[name] - 1 for step in steps if step[name] is not None]
    return f"{100 * max(errors, key=abs):+.1f} %".replace("-0.0 ", "0.0 ") if errors else ""


def _shapes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| Full shape (transformers and PEFT, without memory) | weights | by the model | adapter | by the model |"
    yield "|---|---|---|---|---|"
    for row in rows:
        numbers = [f"{row[name]:,}" for name in ("base", "base_said", "adapter", "adapter_said")]
        yield f"| {row['model']}, rank {row['lora_r']} | {' | '.join(numbers)} |"
