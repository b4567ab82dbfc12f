"""An analytic model of the floating-point operations of a training step, and the least that a step can cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flops import attention_pairs

from lovec.modules.batching import Example
from lovec.policy import TokenSequence

LLAMA_3_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


@dataclass(frozen=True)
class Sizes:
    """What runs through a model in one forward pass, or in several.

    Attributes:
        tokens: tokens that pass the layers, padding included.
        pairs: pairs of a query and a key that attention computes, per head.
        outputs: positions that pass the output layer.
    """

    tokens: int
    pairs: int
    outputs: int

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.tokens + other.tokens, self.pairs + other.pairs, self.outputs + other.outputs)

    def __sub__(self, other: Sizes) -> Sizes:
        return Sizes(self.tokens - other.tokens, self.pairs - other.pairs, self.outputs - other.outputs)


def unique(sequences: Iterable[TokenSequence]) -> Sizes:
    """Return the sizes of a batch in which nothing is computed twice: of the trie of its sequences.

    A token that follows the same tokens in several sequences counts once. The last token of a sequence does not count
    unless another one goes on from it: nothing depends on it.
    """
    root: dict[int, Any] = {}
    predicting: set[int] = set()
    tokens = pairs = 0
    for sequence in sequences:
        node = root
        for depth, token in enumerate([*sequence.prompt, *sequence.completion[:-1]], 1):
            if token not in node:
                node[token] = {}
                tokens, pairs = tokens + 1, pairs + depth
            node = node[token]
            if depth >= len(sequence.prompt):
                predicting.add(id(node))
    return Sizes(tokens, pairs, len(predicting))


def rectangle(
    sequences: Sequence[TokenSequence], width: int = 0, last: bool = False, all_outputs: bool = False
) -> Sizes:
    """Return the sizes of a batch that is padded to its longest sequence.

    Attention skips later keys only where there is no padding, since a mask turns its causal path off.

    Args:
        sequences: rows of the batch.
        width: length of the longest sequence, where it is in another batch.
        last: whether the last token of a sequence is computed as well, though nothing depends on it.
        all_outputs: whether all positions pass the output layer, and not only those that predict completion tokens.
    """
    lengths, n = {width, *map(len, sequences)} - {0}, len(sequences)
    columns = max(lengths) - (not last)
    outputs = n * columns if all_outputs else sum(len(s.completion) for s in sequences)
    return Sizes(n * columns, n * attention_pairs(columns, columns, causal=len(lengths) == 1), outputs)


def step_flops(
    config: Mapping[str, Any],
    policy: Sizes,
    reference: Sizes | None = None,
    head_products: int = 2,
    lora_r: int = 16,
    checkpointing: bool = False,
) -> int:
    """Return the floating-point operations of a step of LoRA on the projections of attention.

    Args:
        config: values of the transformers config of a Llama.
        policy: what runs forward and backward.
        reference: what runs forward through the bare model; None without a reference.
        head_products: products of the output layer per position: two (forward and backward), or three where the
            forward one is made again.
        lora_r: rank of the adapter.
        checkpointing: whether the layers run forward again in the backward pass, up to the last product of each.
    """
    width, inner, layers = (config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    queries, keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    into = width * (queries + 2 * keys)  # the weights that read a layer's input
    layer = into + queries * width + 3 * width * inner
    into_lora = lora_r * (3 * width + queries + 2 * keys)
    lora = into_lora + lora_r * (queries + width)
    attention = 2 * queries  # products of one pair per token: with the key, and with the value
    head = width * config["vocab_size"]

    def forward(sizes: Sizes, weights: int) -> int:
        return layers * (weights * sizes.tokens + attention * sizes.pairs)

    products = forward(policy, layer + lora)
    # Backward: to the input of every weight, but for the first layer's, whose input has no gradient; and to LoRA.
    products += policy.tokens * (layers * (layer + 2 * lora) - into - lora_r * 3 * width)
    products += layers * attention * policy.pairs * 5 // 2
    if checkpointing:
        products += forward(policy, layer + lora - width * inner)
    products += head_products * head * policy.outputs
    if reference is not None:
        products += forward(reference, layer) + head * reference.outputs
    return 2 * products


def forward_flops(config: Mapping[str, Any], sizes: Sizes) -> int:
    """Return the floating-point operations of a forward pass without an adapter.

    Args:
        config: values of the transformers config of a Llama.
        sizes: what runs through the model.
    """
    return step_flops(config, Sizes(0, 0, 0), reference=sizes)


def least_flops(config: Mapping[str, Any], sequences: Iterable[TokenSequence], reference: bool, **options: Any) -> int:
    """Return the operations of a step in which nothing is computed twice, a lower bound.

    Args:
        config: values of the transformers config.
        sequences: what is learned from, every choice whose probability is needed among them: of a score the first
            tokens that no other one has.
        reference: whether log-probabilities under the reference are needed.
        options: further arguments of ``step_flops``.
    """
    sizes = unique(sequences)
    return step_flops(config, sizes, sizes if reference else None, **options)


def trl_flops(
    config: Mapping[str, Any], objective: str, examples: Sequence[Example], reference: bool, **options: Any
) -> int:
    """Return the operations of a step of TRL on CUDA, by the micro-batches that suit it best: one example each.

    Args:
        config: values of the transformers config.
        objective: "SFT", "DPO", "ORPO" or "GRPO"; GRPO's answers are padded to the longest of the step.
        examples: what is learned from.
        reference: whether the reference is computed.
        options: further arguments of ``step_flops``.
    """
    width = max(len(s) for example in examples for s in example.sequences) if objective == "GRPO" else 0
    groups = (rectangle(e.sequences, width, last=True, all_outputs=objective == "ORPO") for e in examples)
    sizes = sum(groups, Sizes(0, 0, 0))
    products = 2 if objective == "ORPO" else 3
    return step_flops(config, sizes, sizes if reference else None, products, **options)
