"""Memory and hours of whole training runs, from sizes of steps: estimates for GPUs that nothing was measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cost import Sizes, step_flops
from gpu_phases import PEAKS
from memory import Setup, adapter_weights, base_weights, layer_bytes, linears, stored, working

EXAMPLES = 5667
"""Rows, pairs or questions of one epoch: the paper's training questions that have an answer with labels."""
ROWS, GROUP = 16, 8
"""Rows or pairs of a step, on all GPUs together (llama3-8b.yaml); answers to a question (grpo.yaml)."""
GPUS = (1, 2, 4, 8)
TOKENS = (8192, 4096, 2048)
"""Budgets of tokens of a micro-batch; the first is that of llama3-8b.yaml."""
LONGEST = 512
"""Most tokens of a sampled answer, for which the cache has room (llama3-8b.yaml)."""
USED = 0.4
"""Assumed share of a GPU's arithmetic that training uses, recomputation included."""
SHARES = (0.2, 0.3, 0.4, 0.5)
BANDWIDTH = {"H100": 3.35e12, "A100": 2.04e12}
"""Bytes that a GPU reads from its memory per second, as its maker states them (80 GB, SXM)."""
READ = 0.6
"""Assumed share of it that sampling uses."""
LINK = 300e9
"""Assumed bytes per second at which a GPU receives the layers of the others: two thirds of an H100's NVLink."""
LAUNCH = 1e-3
"""Assumed seconds per layer and token that transformers takes to sample, however little there is to compute."""
JUDGED = 1500 + 64 * 60
"""Assumed tokens that the judge of GRPO reads per question: evidence, and 64 sentences with what is asked of each."""
CAPACITY, FREE = 80e9, 0.1
"""Bytes of a GPU, and the share of them that is left for CUDA, NCCL and what the allocator cannot use."""
BASES = ("bfloat16", "nf4")


@dataclass(frozen=True)
class Step:
    """What one GPU computes in an optimiser step.

    Attributes:
        objective: SFT, DPO or GRPO.
        gpus: GPUs that train; they share the rows or pairs of a step, and have a question of GRPO each.
        budget: most tokens of a micro-batch.
        sizes: tokens, pairs and outputs of all its micro-batches.
        largest: those of the largest one.
        micro_batches: their number.
        completion: tokens of the longest completion.
        prompt: tokens of a prompt.
    """

    objective: str
    gpus: int
    budget: int
    sizes: Sizes
    largest: Sizes
    micro_batches: int
    completion: int
    prompt: int = 190

    @property
    def per_step(self) -> int:
        """Rows, pairs or questions of a step on all GPUs."""
        return self.gpus if self.objective == "GRPO" else ROWS

    @property
    def reference(self) -> bool:
        """Whether the loss uses the reference."""
        return self.objective != "SFT"


def setup_of(step: Step, base: str) -> Setup:
    """Return how llama3-8b.yaml trains, with qlora.yaml where the base is in 4 bits."""
    states = 2 + 8 / 256 if base == "nf4" else 8.0
    return Setup(base, 64, True, states, step.reference, step.gpus)


def cache_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes that the cache of keys and values takes per token, in bfloat16."""
    return 2 * 2 * int(config["num_hidden_layers"]) * linears(config)["k"][1]


def memory(config: Mapping[str, Any], step: Step, base: str) -> dict[str, float]:
    """Return what a training GPU holds at the peak of a step, in bytes, by part; ``total`` is all of it.

    Where GRPO has one GPU it samples with the weights that are there, and the cache takes the place of activations.
    """
    setup = setup_of(step, base)
    parts = stored(config, setup) | working(config, setup, step.largest, step.micro_batches > 1)
    between = parts["base"] + parts["adapter"]
    cache = 0.0
    if step.objective == "GRPO" and step.gpus == 1:
        cache = GROUP * (step.prompt + LONGEST) * cache_bytes(config) + parts["decoded"]
    return parts | {"cache": cache, "total": between + max(sum(parts.values()) - between, cache)}


def served(config: Mapping[str, Any], servers: int, questions: int) -> float:
    """Return what each GPU of a vLLM server holds, in bytes: its share of the base in bfloat16 and of the cache."""
    cache = questions * GROUP * (190 + LONGEST) * cache_bytes(config)
    return (2 * base_weights(config) + 2 * adapter_weights(config, 64) + cache) / servers


def flops(config: Mapping[str, Any], step: Step) -> int:
    """Return the operations of a step on one GPU."""
    reference = step.sizes if step.reference else None
    return step_flops(config, step.sizes, reference, lora_r=64, checkpointing=True)


def seconds(
    config: Mapping[str, Any], step: Step, base: str, gpu: str, used: float = USED, servers: int = 0
) -> dict[str, float]:
    """Return the seconds of a step by phase.

    Args:
        config: values of the transformers config.
        step: what one GPU computes.
        base: how the layers of the base are stored.
        gpu: a key of ``PEAKS`` and of ``BANDWIDTH``.
        used: share of the GPU's arithmetic that training uses.
        servers: GPUs that sample for GRPO; 0 where the training GPU does.
    """
    rate = used * PEAKS[gpu]
    passes = step.micro_batches * (3 if step.reference else 2)
    arriving = layer_bytes(config, base)[0] * config["num_hidden_layers"] * (step.gpus - 1) / step.gpus
    training = max(flops(config, step) / rate, passes * arriving / LINK)
    if step.objective != "GRPO":
        return {"training": training}
    weights = base_weights(config)
    rows = GROUP * step.gpus
    context = rows * (step.prompt + step.completion / 2) * cache_bytes(config)
    if servers:
        token = (2 * weights + context) / (READ * BANDWIDTH[gpu] * servers)
    else:  # weights in 4 bits are decoded into bfloat16 for every token, which is written and read again
        read = (0.5 + 2 + 2 if base == "nf4" else 2) * weights
        token = max((read + context) / (READ * BANDWIDTH[gpu]), LAUNCH * config["num_hidden_layers"])
    return {
        "training": training,
        "sampling": step.completion * token,
        "judging": 2 * weights * JUDGED / rate,
    }


def estimates(shapes: Mapping[str, Mapping[str, Any]], steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return memory and hours of all models, objectives, bases and numbers of GPUs."""
    return [row for name, config in shapes.items() for step in steps for row in _rows(name, config, step)]


def _rows(name: str, config: Mapping[str, Any], step: Step) -> Iterator[dict[str, Any]]:
    """Yield the estimates of a step; GRPO on several GPUs samples on as many as train."""
    grpo = step.objective == "GRPO"
    servers = step.gpus if grpo else 0
    if grpo and step.gpus == GPUS[-1]:
        return
    options = (
        [(0, step.gpus), (servers, 2 * step.gpus)] if grpo and step.gpus == 1 else [(servers, step.gpus + servers)]
    )
    for base in BASES:
        for serving, gpus in options:
            parts = memory(config, step, base)
            if serving and step.gpus == 1:  # it does not sample, so it needs no cache
                parts |= {"cache": 0.0, "total": sum(v for k, v in parts.items() if k not in ("cache", "total"))}
            server = served(config, serving, step.per_step) if serving else 0.0
            largest = max(parts["total"], server)
            yield {
                "model": name,
                "objective": step.objective,
                "base": base,
                "gpus": gpus,
                "budget": step.budget,
                "bytes": parts,
                "server_bytes": server,
                "fits": largest <= (1 - FREE) * CAPACITY,
                "steps": -(-EXAMPLES // step.per_step),
                "petaflops": flops(config, step) / 1e15,
                "hours": {
                    f"{gpu} {used:g}": {
                        phase: value * -(-EXAMPLES // step.per_step) / 3600
                        for phase, value in seconds(config, step, base, gpu, used, serving).items()
                    }
                    for gpu in BANDWIDTH
                    for used in SHARES
                },
            }
