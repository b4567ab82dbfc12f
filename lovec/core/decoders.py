"""Where a language model has its layers."""

from __future__ import annotations

from typing import Any

from lovec.core.errors import LovecError


def decoder_layers(model: Any, fix: str) -> Any:
    """Return the layers of a causal language model of transformers, a list of modules.

    Args:
        model: the model.
        fix: what follows from layers that cannot be found, and what to do about it, for the error.

    Raises:
        LovecError: they cannot be found.
    """
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not layers:
        raise LovecError(
            f"the layers of {type(decoder).__name__} are not where those of Llama, Gemma, Qwen and Mistral are "
            f"(attribute layers){fix}"
        )
    return layers
