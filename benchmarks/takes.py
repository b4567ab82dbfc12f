"""What training takes: memory and hours for SFT, DPO and GRPO at 8B and 70B, by a model that is checked where possible.

    python benchmarks/takes.py           # checks and estimates -> benchmarks/results/takes.json and a page; minutes
    python benchmarks/takes.py --page    # only write the page from the file

The checks make steps of real models of Llama's architecture with random weights and compare what PyTorch's allocator
gave out with the model of memory (memory.py), and counted operations with the model of operations (cost.py). Operations
are called with the shapes of a real step, but matrix products are left out (flops.py), so that layers as wide as those
of Llama-3-70B can be checked on a CPU; on the smallest models steps are made with and without products. Rows in 4 bits
need the extra `quant`, and are left out without it. The estimates are computed by hours.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from allocated import allocated, there
from common import provenance, read_json, results_and_page, write_json
from cost import LLAMA_3_8B, LLAMA_3_70B, Sizes, step_flops, unique
from flops import WithoutProducts, cost
from hours import GPUS, GROUP, ROWS, TOKENS, Step, estimates
from memory import Setup, adapter_weights, base_weights, stored, working
from mix import CONFIG, MIX, write_model
from sides import WHOLE, Case, Lovec
from takes_page import page

from lovec.modules.batching import micro_batches
from lovec.policy import checkpoint_activations, head
from lovec.policy.sharding import shard_base

RESULTS, PAGE = results_and_page("takes")
SHAPES = {"Llama-3-8B": LLAMA_3_8B, "Llama-3-70B": LLAMA_3_70B}
LORA_R = 16
"""Rank of the adapters in the checks."""
FEW_LOGITS = 1 << 21
"""So few logits at a time that layers, and not the output layer, decide on the peak, as they do in large models."""


@dataclass(frozen=True)
class Check:
    """A model, and the steps that are measured on it.

    Attributes:
        objective: SFT, DPO or GRPO.
        base: how its layers are stored, see ``Setup``.
        config: values of the transformers config.
        products: whether matrix products are computed as well, besides a step without them.
        gpus: processes that share the layers, of which one is measured and the others are made up.
        rows: numbers of rows, pairs or questions of the steps.
    """

    objective: str
    base: str
    config: dict[str, Any]
    products: bool = False
    gpus: int = 1
    rows: tuple[int, ...] = (2, 6)


def shape(width: int, layers: int, like: dict[str, Any] = CONFIG) -> dict[str, Any]:
    """Return the config of a model in the proportions of another one."""
    heads = width // like["head_dim"]
    keys = max(1, heads * like["num_key_value_heads"] // like["num_attention_heads"])
    inner = width * like["intermediate_size"] // like["hidden_size"]
    sizes = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "head_dim": like["head_dim"],
    }
    return {**CONFIG, **sizes, "num_attention_heads": heads, "num_key_value_heads": keys}


CHECKS = [
    Check("SFT", "float32", shape(128, 2), products=True),
    Check("DPO", "bfloat16", shape(256, 4), products=True, rows=(2,)),
    Check("DPO", "float32", shape(512, 6)),
    Check("SFT", "bfloat16", shape(512, 6)),
    Check("GRPO", "bfloat16", shape(512, 6), rows=(1, 2)),
    Check("SFT", "nf4", shape(512, 6)),
    Check("DPO", "bfloat16", shape(1024, 16), rows=(2,)),
    Check("DPO", "nf4", shape(1024, 16), rows=(2,)),
    *(Check("SFT", "bfloat16", shape(1024, 16), gpus=gpus, rows=(2,)) for gpus in (2, 8)),
    Check("SFT", "bfloat16", shape(4096, 2, LLAMA_3_8B)),
    Check("SFT", "bfloat16", shape(8192, 2, LLAMA_3_70B), rows=(2,)),
]


def measure(check: Check, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every step that is measured on a model."""
    from transformers.initialization import no_init_weights

    options = {} if check.base == "float32" else {"dtype": "bfloat16"}
    options |= {"quantization": "nf4"} if check.base == "nf4" else {}
    case = Case(check.objective, MIX, max(check.rows), 4 if check.objective == "GRPO" else 1)
    drawn = check.products or check.base == "nf4"
    with nullcontext() if drawn else no_init_weights():
        side = Lovec(
            case, write_model(folder / "model", check.config), folder, partial(torch.optim.AdamW, lr=0.0), **options
        )
    if not drawn:  # pages that nothing has written are zeros and take no memory; small tensors may hold anything
        for parameter in side.parameters:
            if parameter.numel() < 1 << 20:
                torch.nn.init.zeros_(parameter)
    if check.gpus > 1:
        shard(side.module.policy, check.gpus)
    everything = side.examples
    for rows in check.rows:
        side.take(everything[: rows * case.group])
        for checkpointing in (False, True):
            for at_once in (head.LOGITS_AT_ONCE, FEW_LOGITS):
                yield row(check, side, rows, checkpointing, at_once)


def row(check: Check, side: Lovec, rows: int, checkpointing: bool, at_once: int) -> dict[str, Any]:
    """Return what a step takes and what the models of memory and operations say."""
    setup = Setup(check.base, LORA_R, checkpointing, gpus=check.gpus)
    model, sizes = side.module.policy.model, unique(side.sequences)
    checkpoint_activations(model, checkpointing)

    def step() -> None:
        mixed: AbstractContextManager[Any] = nullcontext()
        if check.base != "float32":
            mixed = torch.autocast("cpu", torch.bfloat16)
        with mixed:
            side.step(WHOLE)
        side.forget()

    usual, head.LOGITS_AT_ONCE = head.LOGITS_AT_ONCE, at_once
    try:
        with WithoutProducts():
            step()
            peak = allocated(step)
        with_products = allocated(step) if check.products else None
        flops = cost(step, side.parameters).flops
    finally:
        head.LOGITS_AT_ONCE = usual
    between = there(side.module.policy, [side.module.optimizers().optimizer])
    parts = stored(check.config, setup)
    said = working(
        check.config, replace(setup, base="bfloat16") if check.base == "nf4" else setup, sizes, False, at_once
    )
    products = step_flops(check.config, sizes, sizes if side.reference else None, 2, LORA_R, checkpointing)
    return {
        **{name: value for name, value in asdict(check).items() if name not in ("config", "products", "rows")},
        "width": check.config["hidden_size"],
        "layers": check.config["num_hidden_layers"],
        "parameters": base_weights(check.config),
        "rows": rows,
        **asdict(sizes),
        "checkpointing": checkpointing,
        "logits_at_once": at_once,
        "stored": between,
        "stored_said": sum(parts.values()),
        "peak": peak,
        "peak_with_products": with_products,
        "peak_said": sum(said.values()),
        "flops": None if check.base == "nf4" else flops,  # bitsandbytes' products are not counted
        "flops_said": products,
    }


def shard(policy: Any, processes: int) -> None:
    """Split the layers of a policy as FSDP2 does, where the other processes are made up and send nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    shard_base(policy, init_device_mesh("cpu", (processes,)), torch.device("cpu"))


def counted(name: str, config: dict[str, Any], lora_r: int = 64) -> dict[str, Any]:
    """Return the weights of a model in its full shape, counted on the device "meta", and what the model says."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config, tie_word_embeddings=False))
        base = sum(p.numel() for p in model.parameters())
        peft = get_peft_model(model, LoraConfig(r=lora_r, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    adapter = sum(p.numel() for p in peft.parameters() if p.requires_grad)
    said = {"base_said": base_weights(config), "adapter_said": adapter_weights(config, lora_r)}
    return {"model": name, "lora_r": lora_r, "base": base, "adapter": adapter} | said


def steps(folder: Path) -> Iterator[Step]:
    """Yield the micro-batches that one GPU gets in a step, per objective, number of GPUs and budget of tokens."""
    for objective in ("SFT", "DPO", "GRPO"):
        case = Case(objective, MIX, 1 if objective == "GRPO" else ROWS, GROUP if objective == "GRPO" else 1)
        side = Lovec(case, write_model(folder / objective, shape(64, 1)), folder)
        longest = max(len(s.completion) for s in side.sequences)
        for gpus in GPUS:
            for budget in TOKENS:
                mine = side.examples if objective == "GRPO" else side.examples[: ROWS // gpus]
                groups = micro_batches(mine, budget, shared=True)
                sizes = [unique([s for e in group for s in e.sequences]) for group in groups]
                largest = max(sizes, key=lambda size: size.tokens)
                yield Step(objective, gpus, budget, sum(sizes, Sizes(0, 0, 0)), largest, len(groups), longest)


def run() -> dict[str, Any]:
    """Make all checks, and the estimates."""
    quant = importlib.util.find_spec("bitsandbytes") is not None
    rows = []
    for check in CHECKS:
        if check.base == "nf4" and not quant:
            print("left out without the extra quant:", check)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for found in measure(check, Path(folder)):
                said = found["stored_said"] + found["peak_said"]
                print(found, f"{said / (found['stored'] + found['peak']) - 1:+.1%}", flush=True)
                rows.append(found)
    with tempfile.TemporaryDirectory() as folder:
        made = list(steps(Path(folder)))
    return {
        "shapes": [counted(name, config) for name, config in SHAPES.items()],
        "checks": rows,
        "steps": [asdict(step) for step in made],
        "estimates": estimates(SHAPES, made),
    }


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    flags = parser.parse_args()
    if not flags.page:
        torch.set_num_threads(1)
        origin = provenance()
        write_json(RESULTS, origin | run())
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
