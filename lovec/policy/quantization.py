"""Base models in 4 bits, as in QLoRA (https://arxiv.org/abs/2305.14314): NF4 with double quantisation, by bitsandbytes.

Only the linear layers inside the model are stored in 4 bits; embeddings, norms and the output layer are not. A layer is
multiplied in the precision of ``policy.dtype``, and its packed weights are kept in tensors of that type, so that
sharded training can split them like all others.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from lovec.types import LovecError

# Importing peft imports bitsandbytes where it is installed, which on a CPU then warns that a faster kernel is missing.
logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)

Quantization: TypeAlias = Literal["nf4"]

METHOD = "bitsandbytes"
"""The method of quantisation that is supported, as configurations of models name it."""


def import_bitsandbytes() -> Any:
    """Import bitsandbytes.

    Raises:
        LovecError: it is not installed, or does not load on this machine.
    """
    try:
        import bitsandbytes
    except Exception as error:  # it loads compiled libraries, which fail in many ways
        raise LovecError(
            f"a base model in 4 bits needs bitsandbytes, which does not load ({str(error).splitlines()[0][:120]}): "
            "pip install 'lovec[quant]'"
        ) from None
    return bitsandbytes


def stored_quantization(settings: Any, model: str) -> Quantization | None:
    """Return how the weights of a model are stored, from its configuration; None where they are not quantised.

    Args:
        settings: the model's configuration.
        model: its name, for the error.

    Raises:
        LovecError: they are quantised by another method than NF4 of bitsandbytes.
    """
    stored = getattr(settings, "quantization_config", None)
    if stored is None:
        return None
    options = stored if isinstance(stored, dict) else stored.to_dict()
    method, kind = str(options.get("quant_method")), options.get("bnb_4bit_quant_type")
    if method == METHOD and options.get("load_in_4bit") and kind == "nf4":
        return "nf4"
    found = f"{method} {kind or ''}".strip() if options.get("load_in_4bit") else method
    raise LovecError(
        f"the weights of {model} are quantised by {found}; expected none or NF4 of {METHOD}: give the model that it "
        "was made from, with policy.quantization: nf4 if it should take less memory"
    )


def quantization_options(dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that load a model in NF4.

    Args:
        dtype: precision of the products, and type of the tensors that hold the packed weights.

    Raises:
        LovecError: bitsandbytes is not installed.
    """
    from transformers import BitsAndBytesConfig

    import_bitsandbytes()
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_quant_storage=dtype,
        )
    }


def quantize(model: Any, dtype: torch.dtype) -> None:
    """Round the linear layers of a model in memory to NF4, in place, all but the output layer.

    Args:
        model: a transformers model, whose weights were not loaded but drawn.
        dtype: as for ``quantization_options``.

    Raises:
        LovecError: bitsandbytes is not installed.
    """
    layers, output = import_bitsandbytes().nn, model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not nn.Linear or layer is output:
                continue
            new = layers.Linear4bit(
                layer.in_features, layer.out_features, layer.bias is not None, dtype, quant_type="nf4", device="meta"
            )
            new.weight = layers.Params4bit(
                layer.weight.data, requires_grad=False, quant_type="nf4", quant_storage=dtype, module=new
            )
            new.bias = layer.bias
            setattr(parent, name, new.to(layer.weight.device))  # moving it is what rounds it
    model.is_loaded_in_4bit = True  # PEFT chooses the class of its layers by this


def repair_on_cpu(model: nn.Module) -> None:
    """Keep layers in 4 bits from repacking their weights for the CPU, after which gradients would be wrong.

    bitsandbytes does so in the first forward pass without gradient on a CPU with AVX-512 for bfloat16, and computes
    later backward passes from the repacked weights as if they were not.

    Args:
        model: the model, whose layers are changed in place.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
