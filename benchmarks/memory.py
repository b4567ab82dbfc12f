"""An analytic model of the memory of a training step: LoRA on the projections of attention of a Llama.

Every number of bytes is read off the code of transformers, PEFT and lovec: which tensors a layer keeps for its backward
pass, and which exist at the two moments at which most of them do. ``takes.py`` compares it with allocated bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost import Sizes

from lovec.policy.head import LOGITS_AT_ONCE

GATHERED = 2
"""Layers that a process holds whole with FSDP2: the one that is computed, and the next one, which arrives meanwhile."""
_BLOCK, _NESTED = 64, 256
"""NF4: weights that share a scale, and scales that share a scale of their own (double quantisation)."""
_CODES = 4 * (16 + 256 + 1)  # the values of NF4 and of 8-bit scales, and the mean of the scales


@dataclass(frozen=True)
class Setup:
    """How a model is trained.

    Attributes:
        base: how the layers of the base are stored: "float32", "bfloat16" or "nf4".
        lora_r: rank of the adapter.
        checkpointing: whether the layers run forward again in the backward pass.
        state_bytes: bytes of optimiser state per weight of the adapter: 8 for AdamW, 2 + 8 / 256 in 8 bits.
        reference: whether a frozen copy of the adapter serves as the reference.
        gpus: processes that share the layers of one base.
    """

    base: str = "bfloat16"
    lora_r: int = 64
    checkpointing: bool = True
    state_bytes: float = 8.0
    reference: bool = False
    gpus: int = 1

    @property
    def element(self) -> int:
        """Bytes of a number in products and activations; 4 bits are computed in bfloat16."""
        return 4 if self.base == "float32" else 2


def linears(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of the linear layers of a layer of the model."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    attention = {"q": (width, queries), "k": (width, keys), "v": (width, keys), "o": (queries, width)}
    return attention | {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}


def base_weights(config: Mapping[str, Any]) -> int:
    """Return the weights of the base model: layers, embeddings, last norm and an output layer of its own."""
    width = config["hidden_size"]
    layer = sum(a * b for a, b in linears(config).values()) + 2 * width
    return int(config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width + width)


def adapter_weights(config: Mapping[str, Any], lora_r: int) -> int:
    """Return the weights of an adapter on the projections of attention."""
    sizes = linears(config)
    return int(config["num_hidden_layers"] * lora_r * sum(sum(sizes[name]) for name in "qkvo"))


def nf4_bytes(weights: int) -> tuple[int, int]:
    """Return the bytes of a linear layer in NF4 with double quantisation: packed weights, and what decodes them."""
    scales = -(-weights // _BLOCK)
    return (weights + 1) // 2, scales + 4 * -(-scales // _NESTED) + _CODES


def layer_bytes(config: Mapping[str, Any], base: str) -> tuple[int, int]:
    """Return the stored bytes of a layer of the base: what FSDP2 splits, and what every process holds whole."""
    element = 4 if base == "float32" else 2
    norms = 2 * config["hidden_size"] * element
    weights = [a * b for a, b in linears(config).values()]
    if base != "nf4":
        return norms + element * sum(weights), 0
    packed, decoding = zip(*map(nf4_bytes, weights), strict=True)
    return norms + sum(packed), sum(decoding)


def stored(config: Mapping[str, Any], setup: Setup) -> dict[str, float]:
    """Return what is there between two steps, in bytes: the base, and the adapter with its optimiser and reference."""
    layers, adapter = config["num_hidden_layers"], adapter_weights(config, setup.lora_r)
    split, whole = layer_bytes(config, setup.base)
    ends = (2 * config["vocab_size"] + 1) * config["hidden_size"] * setup.element
    copies = 2 if setup.reference else 1
    return {
        "base": layers * (split / setup.gpus + whole) + ends,
        "adapter": adapter * (4 * copies + setup.state_bytes),
    }


def kept(config: Mapping[str, Any], setup: Setup) -> int:
    """Return what one layer keeps of a token for its backward pass, in bytes.

    In bfloat16 a norm keeps its input in float32, and each of the three projections its input as autocast made it.
    """
    width, inner, heads = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    queries, keys = linears(config)["q"][1], linears(config)["k"][1]
    gated = 3 * inner  # of the gate, of its activation, and of the other half
    attention = 2 * queries + 2 * keys  # queries, output; keys, values
    numbers = 4 * heads + 2 * 4  # log-sum-exp; scales of two norms
    if setup.element == 4:
        return 4 * (gated + attention + 3 * width + 4 * setup.lora_r) + numbers
    cast = queries + 3 * width  # inputs of the adapter, cast
    return 2 * (gated + attention + cast + 4 * setup.lora_r) + 4 * 2 * width + numbers


def working(
    config: Mapping[str, Any], setup: Setup, micro: Sizes, several: bool, logits_at_once: int = LOGITS_AT_ONCE
) -> dict[str, float]:
    """Return what a micro-batch needs beyond that at its peak, in bytes.

    Args:
        config: values of the transformers config.
        setup: how it is trained.
        micro: tokens of the micro-batch, and its positions that pass the output layer.
        several: whether the step has more micro-batches, so that gradients are there from the one before.
        logits_at_once: logits that the output layer makes at a time.
    """
    width, inner, layers = (config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    element, tokens = setup.element, micro.tokens
    adapter = adapter_weights(config, setup.lora_r)
    gradients, casts = 4 * adapter, (2 * adapter if element == 2 else 0)
    layer = kept(config, setup)
    if setup.checkpointing:  # the inputs of all layers; in float32 a norm keeps the last one as it is
        inputs, graph = layers * element * width, layer - (element * width if element == 4 else 0)
    else:
        inputs, graph = layers * layer - 4 * width, 0  # the first norm has no gradient to pass on
    # The last layer's feed-forward part: gradients of its product and of both factors, and that of its output.
    top = tokens * (inputs + graph + element * (3 * inner + width))
    bottom = tokens * (layer + element * (3 * inner + width))  # the first layer's, with all other gradients made
    gathered = GATHERED * layer_bytes(config, setup.base)[0] if setup.gpus > 1 else 0
    backward = max(top + gradients * several, bottom + gradients) + gathered
    chunk = min(micro.outputs, max(1, logits_at_once // config["vocab_size"]))
    logits = config["vocab_size"] * 8 * chunk  # of a chunk in float32, with the copy that their sum takes
    states = tokens * (4 + 2 * element) * width if element == 2 else tokens * 2 * element * width
    head = tokens * inputs + states + 2 * micro.outputs * width * element + logits + gradients * several
    if head > backward:  # no layer is computed while the output layer is, so none is gathered
        gathered = 0
    decoded = 2 * width * inner if setup.base == "nf4" else 0  # the largest linear layer, which a GPU decodes whole
    return {
        "activations": max(backward, head) - gathered - gradients * several,
        "gradients": gradients * several,
        "casts": casts,
        "gathered": gathered,
        "decoded": decoded,
    }
