"""Attention over tries, and of rows without padding, as an attention function of transformers; and for which models."""

from __future__ import annotations

import os
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lovec.tries.attention import TriePlan
from lovec.tries.growing import FirstPart, NextPart
from lovec.tries.places import TokenPlaces
from lovec.types import LovecError

TRIE_ATTENTION = "lovec_trie"
"""Name of the attention implementation: that of sdpa, but for calls with ``trie=`` or ``places=``."""

_TRIAL = "lovec_trial"
"""Name of an attention implementation that tells whether ``trie=`` arrives at it."""


def use_trie_attention(model: Any) -> None:
    """Let a transformers model that was loaded with sdpa take ``trie=``; a model that cannot stays as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name, function in ((TRIE_ATTENTION, _attention), (_TRIAL, _tell)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)
    if model._supports_attention_backend:
        model.set_attn_implementation(_TRIAL)
        model.set_attn_implementation(TRIE_ATTENTION if _passes_tries_on(model) else "sdpa")


class _Told(Exception):
    """Ends a forward pass at the first attention, and says whether ``trie=`` has arrived there."""

    def __init__(self, arrived: bool) -> None:
        super().__init__()
        self.arrived = arrived


def _tell(*_: Any, trie: Any = None, **__: Any) -> None:
    raise _Told(trie is not None)


def _passes_tries_on(model: Any) -> bool:
    """Return whether the code of a model passes ``trie=`` on to its attention; the layers of Nemotron drop it.

    It is tried on two tokens, which are computed up to the first attention only.
    """
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    mask = torch.empty(1, 1, 0, 0, device=model.device)
    try:
        with torch.no_grad():
            model.get_decoder()(input_ids=tokens, position_ids=tokens, attention_mask=mask, use_cache=False, trie=True)
    except _Told as told:
        return told.arrived
    except (TypeError, ValueError, RuntimeError):  # it takes no such argument, or computes with the mask, as Doge does
        pass
    return False


def why_not_shared(model: Any) -> str | None:
    """Return why a transformers model cannot compute tokens that sequences share once; None where it can."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if config._attn_implementation != TRIE_ATTENTION:
        eager = config._attn_implementation == "eager"
        unpassed = "its code does not pass on what attention over shared tokens needs"
        return "its attention is eager, with a mask" if eager else unpassed
    if kinds:
        return f"it has layers of the kind {', '.join(sorted(kinds))}"
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        return "it has attention sinks"
    return None


def missing_kernels(device: torch.device) -> str | None:
    """Return why attention over tries cannot be computed on a device; None where it can."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there is no attention over shared tokens for {device.type}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not any(map(which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "triton needs a C compiler, and finds no gcc or clang"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's, which has no headers
    if not (headers := Path(sysconfig.get_path("include", scheme)) / "Python.h").is_file():
        return f"triton needs the headers of Python (python3-dev), and finds no {headers}"
    return None


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    trie: TriePlan | FirstPart | NextPart | None = None,
    places: TokenPlaces | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention over the trie where there is one, else as sdpa does, in rows where queries are packed."""
    if places is not None:
        assert attention_mask is not None  # CachedRows gives one with every places

        def attend_rows(query: Tensor, rows: slice, width: int) -> Tensor:
            mask = attention_mask[rows, :, -width:]
            return _attention(module, query, key[rows], value[rows], mask, scaling, **kwargs)[0]

        return places.in_rows(attend_rows, query), None
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if trie is None:
        if not unknown and _shares_keys(query, key, attention_mask):
            out = scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
            )
            return out.transpose(1, 2).contiguous(), None
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    window = kwargs.get("sliding_window")
    if unknown or (window is not None and window < trie.longest):
        raise LovecError(
            f"{type(module).__name__} asks for {', '.join(unknown) or f'a window of {window} tokens'}, which attention "
            "over shared tokens does not compute; set policy.share_prefixes to false"
        )
    return trie.attend(module, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def _shares_keys(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Return whether torch should share keys [B, G, K, D] among the heads of a query [B, H, Q, D], instead of copies.

    With a mask, transformers repeats the keys for every head, since kernels of GPUs are slow otherwise. That of CPUs is
    not, and gives the same numbers; a copy of all cached keys in every layer costs more than the attention. A single
    query is never given copies.
    """
    grouped = mask is not None and query.device.type == "cpu" and query.shape[1] != key.shape[1]
    return grouped and query.shape[2] > 1 and not torch.is_grad_enabled()
