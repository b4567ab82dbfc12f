"""Time by phases, tokens per second and peak memory of a training step of each objective on a GPU: ``make bench-gpu``.

    python benchmarks/gpu.py                             # Llama-3-8B's shape -> benchmarks/results/gpu.json
    python benchmarks/gpu.py --only DPO --minutes 3      # one objective; what would begin later is left out
    python benchmarks/gpu.py --shape tiny --device cpu   # the same code in seconds, to check that it runs

The model has the shape of Llama-3-8B and random weights, drawn on the device, and a tokenizer that reads bytes, so
nothing is downloaded; prompts, answers and tags have about as many tokens as with the real tokenizer. The model learns
nothing: the numbers are about speed and memory only. Every objective makes one step to warm up, then the one that is
measured. Sampled answers have a fixed length, and their ratings are a function of the text, so that advantages differ.
Every objective runs with shared prefixes, then padded, then, where TRL is installed and has it, by TRL's trainer on the
same examples with as many tokens at once; its rollouts are not measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import ROOT, provenance, results_file, write_json
from cost import LLAMA_3_8B
from gpu_phases import StepTimer, model_flops, synchronize, utilisation
from lightning.pytorch import Trainer

from lovec.callbacks import Probe
from lovec.datamodules import RecordsDataModule
from lovec.datasets.pairs import with_rejected
from lovec.models.tiny import build_tiny
from lovec.modules import DPO, GRPO, SFT, EvaluationConfig, ExpectedReward, PolicyConfig
from lovec.types import Record, Sentence

RESULTS = results_file("gpu")
LIMIT_GB = 80.0
"""Memory of the GPU that the paper used, in GB; no step may need more."""
STEPS = 2
"""One to warm up, one to measure."""
INSTRUCTION = "Rate each sentence from 0 to 10 and say it like this: <c> X </c>"
TAGS = ("<c>", "</c>")
"""Short, because this tokenizer has one token per byte: about as many tokens as the paper's tag has in Llama 3."""
WORDS = "ada wrote notes on the engine in turin before noon and left for paris by boat".split()


@dataclass(frozen=True)
class Shape:
    """A model's configuration, and the size of a training step.

    Attributes:
        config: values of the transformers config.
        rows: demonstrations or pairs per step.
        prompts: questions per step for which answers are sampled.
        group: answers sampled per question.
        new_tokens: length of a sampled answer, in tokens.
        lora_r: rank of the adapter.
        micro_batch_tokens: tokens that run through the model at once.
    """

    config: dict[str, Any]
    rows: int = 16
    prompts: int = 2
    group: int = 8
    new_tokens: int = 128
    lora_r: int = 64
    micro_batch_tokens: int = 8192


SHAPES = {
    "llama-3-8b": Shape(
        {
            **LLAMA_3_8B,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
        }
    ),
    "tiny": Shape({"vocab_size": 1024}, rows=3, prompts=1, group=3, new_tokens=8, lora_r=4, micro_batch_tokens=1024),
}


class Rows(RecordsDataModule):
    """Labelled pairs: a prompt of about 170 tokens and eight tagged sentences of about 28 each."""

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size=batch_size)

    def load(self, split: str) -> list[Record]:
        """Return as many training records as the steps take, and no others."""
        return [record(i) for i in range(STEPS * self.batch_size)] if split == "train" else []


def record(number: int) -> Record:
    """Return a record whose words are a function of its number."""
    rng = random.Random(number)

    def text(n: int) -> str:
        return " ".join(rng.choices(WORDS, k=n))

    sentences = tuple(Sentence(f"{text(rng.randint(3, 4))}.", factuality=rng.randint(0, 10) / 10) for _ in range(8))
    answer = " ".join(s.text for s in sentences)
    row = Record(f"r{number}", f"Could you tell me what you know of {text(9)}?", answer=answer, sentences=sentences)
    return with_rejected(row, seed=0)


class HashOracle:
    """An oracle whose ratings are a function of the sentence's text, and differ."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return a factuality for every sentence."""
        return [[zlib.crc32(s.text.encode()) % 11 / 10 for s in r.sentences] for r in records]


def rating_only(score: int | None, rating: int) -> float:
    """Return the rating: a reward that differs between answers of a random model, which have no valid tag."""
    return float(rating)


def write_shape(shape: Shape, folder: Path) -> str:
    """Write configuration and tokenizer to a folder; return the model's name, whose weights are drawn at random.

    The tokenizer's vocabulary is filled up to the model's size with made-up words, so that every id has a text.
    """
    build_tiny("llama", folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | shape.config
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update({f"\u0120w{i}": i for i in range(len(vocabulary), config["vocab_size"])})  # U+0120: a space
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return f"random:{folder}"


def objectives(shape: Shape, model: str, share_prefixes: bool = True) -> dict[str, Any]:
    """Return a constructor for each module, by name."""
    common = {
        "policy": PolicyConfig(
            model=model,
            lora_r=shape.lora_r,
            lora_alpha=16,
            dtype="bfloat16",
            gradient_checkpointing=True,
            share_prefixes=share_prefixes,
            instruction=INSTRUCTION,
            tag_words=TAGS,
        ),
        "optimizer": partial(torch.optim.AdamW, lr=1e-5),
        "micro_batch_tokens": shape.micro_batch_tokens,
        "evaluation": EvaluationConfig(rows=16),
    }
    sampled = {
        "oracle": HashOracle(),
        "reward": rating_only,
        "group_size": shape.group,
        "max_new_tokens": shape.new_tokens,
    }
    return {
        "SFT": partial(SFT, **common),
        "DPO": partial(DPO, **common),
        "GRPO": partial(GRPO, **common, **sampled),
        "ExpectedReward": partial(ExpectedReward, **common),
    }


def measure(make: Any, batch_size: int, device: str, folder: Path) -> tuple[dict[str, Any], SimpleNamespace]:
    """Train for ``STEPS`` steps; return the measurements of the last one, and what TRL needs to do the same."""
    reset_memory(device)
    torch.manual_seed(0)
    module = make()
    timer = StepTimer(module)
    trainer = Trainer(
        accelerator=device,
        devices=1,
        precision="bf16-mixed",
        max_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[timer, Probe(every=0)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Rows(batch_size))
    phases = timer.rows[-1]
    norm = float(trainer.callback_metrics["train/grad_norm"])
    if len(timer.rows) != STEPS or not norm > 0:
        raise RuntimeError(f"{len(timer.rows)} steps, the gradient of the last is {norm}; expected {STEPS}, above 0")
    policy = module.policy
    setup = SimpleNamespace(
        policy_config=module.policy_config,
        policy=SimpleNamespace(peft=SimpleNamespace(peft_config=policy.peft.peft_config)),
        encoder=module.encoder,
        group_size=getattr(module, "group_size", 1),
        beta=getattr(module, "beta", 0.0),
        reference=getattr(module, "needs_reference", False),
        config=policy.model.config.to_dict(),
        examples=timer.examples,
    )
    sizes = {
        "trainable": sum(p.numel() for p in policy.trainable()),
        "parameters": sum(p.numel() for name, p in policy.named_parameters() if ".lora_" not in name),
    }
    seconds = sum(phases.values()) - phases["rollout"]
    return {**figures(setup, seconds, device), "phases": phases, **sizes}, setup


def measure_trl(objective: str, setup: SimpleNamespace, tokens: int, device: str, folder: Path) -> dict[str, Any]:
    """Make ``STEPS`` steps of TRL on the examples of lovec's last step; return the measurements of the last one."""
    from peers import TRAINERS

    reset_memory(device)
    torch.manual_seed(0)
    trl = TRAINERS[objective](setup, setup.examples, folder, device)
    optimizer = torch.optim.AdamW([p for p in trl.parameters if p.requires_grad], lr=1e-5)
    for _ in range(STEPS):
        synchronize()
        start = time.perf_counter()
        trl.step(tokens)
        optimizer.step()
        synchronize()
        seconds = time.perf_counter() - start
    return figures(setup, seconds, device)


def figures(setup: SimpleNamespace, seconds: float, device: str) -> dict[str, Any]:
    """Return what is said of any side: sizes of the step, speed of the update, peak memory."""
    sequences = [sequence for example in setup.examples for sequence in example.sequences]
    tokens = sum(map(len, sequences))
    flops = model_flops(setup.config, setup.examples, setup.reference, setup.policy_config.lora_r)
    return {
        "sequences": len(sequences),
        "tokens": tokens,
        "completion_tokens": sum(len(s.completion) for s in sequences),
        "update_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": utilisation(flops, seconds),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def reset_memory(device: str) -> None:
    """Free what an earlier side has left, and begin a new peak."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run(name: str, device: str, only: Sequence[str], minutes: float, out: Path | None) -> dict[str, Any]:
    """Measure the objectives one after the other; results are kept even if a later one fails.

    Args:
        name: a name in ``SHAPES``.
        device: "cuda" or "cpu".
        only: objectives; none means all.
        minutes: nothing begins after this time; what is left out is named.
        out: JSON file; None writes none.
    """
    shape, deadline = SHAPES[name], time.monotonic() + 60 * minutes
    results = provenance() | {"shape": name, "device": device, "settings": asdict(shape), "rows": []}

    def add(objective: str, side: str, make: Callable[[], Any]) -> Any:
        """Measure a side, keep its row, and return the rest of what it returned."""
        row, rest = {"objective": objective, "side": side}, None
        try:
            if time.monotonic() > deadline:
                row["skipped"] = f"{minutes:g} minutes are over"
            else:
                measured, rest = make()
                row |= measured
        except ModuleNotFoundError as error:
            row["skipped"] = f"{error.name} is not installed"
        except Exception as error:
            traceback.print_exc()
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        results["rows"].append(row)
        print(line(row), flush=True)
        if out is not None:
            write_json(out, results)
        return rest

    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(shape, Path(folder) / "model")
        for objective in only or objectives(shape, model):
            batch_size = shape.prompts if objective == "GRPO" else shape.rows
            setup = None
            for side, share in (("lovec", True), ("lovec padded", False)):
                make = objectives(shape, model, share)[objective]
                setup = add(objective, side, partial(measure, make, batch_size, device, Path(folder) / side)) or setup
            if objective != "ExpectedReward" and setup is not None:
                arguments = (objective, setup, shape.micro_batch_tokens, device, Path(folder) / "trl")
                add(objective, "TRL", lambda arguments=arguments: (measure_trl(*arguments), None))
    return results


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    name = f"{row['objective']:<15} {row['side']:<13}"
    if reason := row.get("skipped") or row.get("failed"):
        return f"{name} {'skipped' if 'skipped' in row else 'failed'}: {reason}"
    memory = "" if row["peak_gb"] is None else f", peak {row['peak_gb']:.1f} GB"
    used = "" if row["mfu"] is None else f", {100 * row['mfu']:.0f} % of the device's arithmetic"
    phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in row.get("phases", {}).items())
    return (
        f"{name} {row['sequences']} sequences, {row['tokens']} tokens, update {row['update_seconds']:.2f} s"
        f"{f' ({phases})' if phases else ''}: {row['tokens_per_second']:.0f} tokens/s{used}{memory}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Parse the flags, measure, and exit with an error if an objective failed or took too much memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", default=[], help="objectives (default: all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="nothing begins after this time")
    parser.add_argument(
        "--out", type=Path, help=f"JSON file (default: {RESULTS.relative_to(ROOT)} for a GPU, else none)"
    )
    flags = parser.parse_args(words)
    if flags.device == "cuda" and not torch.cuda.is_available():
        print("skipped: benchmarks/gpu.py needs a CUDA device; --shape tiny --device cpu shows that the code runs")
        return
    out = flags.out or (RESULTS if flags.device == "cuda" else None)
    rows = run(flags.shape, flags.device, flags.only, flags.minutes, out)["rows"]
    failures = [f"{row['objective']} ({row['side']}) failed" for row in rows if "failed" in row]
    large = [row for row in rows if row["side"] == "lovec" and (row.get("peak_gb") or 0.0) >= LIMIT_GB]
    failures += [f"{row['objective']} took {row['peak_gb']:.1f} GB" for row in large]
    if failures:
        raise SystemExit(f"{', '.join(failures)}; expected every step to run in less than {LIMIT_GB:g} GB")


if __name__ == "__main__":
    main()
