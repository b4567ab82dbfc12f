"""The settings of a policy, and loading its tokenizer and base model from the hub or a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from torch import nn

from lovec.core.devices import check_dtype_name
from lovec.core.hub import RANDOM, HubName, hub_errors
from lovec.core.imports import quick_transformers, without_progress_bars
from lovec.core.provenance import template_text
from lovec.core.settings import NO_EFFECT, Count, PlainWord, PromptText, ProperShare, Setting, TrustRemoteCode, checked
from lovec.core.weights import check_whole
from lovec.encoding import Scoring
from lovec.encoding.choices import AttentionKind
from lovec.policy.quantization import (
    Quantization,
    import_bitsandbytes,
    quantization_options,
    quantize,
    repair_on_cpu,
    stored_quantization,
)
from lovec.tries import use_trie_attention
from lovec.types import LovecError


@checked("policy.{}")
@dataclass
class PolicyConfig:
    """Which model to train, and how it is adapted.

    Attributes:
        model: hub id or folder of the base model, or a GGUF file, here or on the hub (org/name:file.gguf), which is
            dequantised once; `world`, `world-small`, `tiny-llama` and `smollm2` need no hub; `random:` before a hub id
            or folder draws weights instead of loading them.
        adapter: PEFT adapter folder or hub id (org/name, org/name@revision) to continue from; null starts a fresh one.
            It also becomes the reference.
        lora_r: rank of a fresh adapter.
        lora_alpha: LoRA scale of a fresh adapter (the update is multiplied by alpha / r).
        lora_dropout: dropout on the adapter's input; only SFT, SFT-regression and p(true) have it.
        target_modules: linear layers that get a fresh adapter; a fused layer stands for all of its parts.
        dtype: precision of the frozen base (float32 or bfloat16); the adapter stays in float32.
        quantization: nf4 keeps the linear layers of the base in 4 bits and computes in ``dtype`` (extra ``quant``);
            null loads them as they are stored.
        gradient_checkpointing: recompute activations in the backward pass.
        share_prefixes: compute tokens with which several sequences of a micro-batch begin once; models whose attention
            does not allow it are computed row by row, padded, as with false. With dropout, which inputs are dropped
            changes with it.
        max_length: the most tokens of prompt and completion together; null takes the length of the model's context.
        instruction: system prompt asking for tags; null takes the data's own, or else the paper's.
        tag_words: the words before and after a score; an instruction of your own should name them.
        scale: words of the confidence scale, lowest first; null is 0 to 10.
        scoring: what is scored at a tag: exact every score up to the closing tag word, prefix the first tokens that
            tell the scores apart, which costs a small part of it; objectives then learn the closing word as text. null
            is what the adapter was trained with, and prefix for a fresh one.
        grounded: whether the evidence of a record stands in its prompt, so that confidences say how well it supports a
            sentence; records without evidence get the plain prompt. null is what the adapter was trained with, and
            false for a fresh one.
        evidence_tokens: the most tokens of evidence in a prompt, and never more than half of what the rest of the
            prompt leaves of the context; longer evidence is cut. null is what the adapter was trained with, or 512.
        grounding: text behind the question with {evidence} in it; null is what the adapter was trained with, or else
            the data's own or ours.
        chat_template: Jinja file to use instead of the tokenizer's template; null is what the adapter was trained with.
        trust_remote_code: run code from the model's repository.
        any_base: load adapters that name another base model, too.

    Raises:
        LovecError: a number is out of range, or a name is unknown.
    """

    model: Annotated[str, Setting(taken="model")] = "world"
    adapter: Annotated[str | None, Setting(taken="unread")] = None
    lora_r: Count = 16
    lora_alpha: Count = 32
    lora_dropout: ProperShare = 0.0
    target_modules: list[PlainWord] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    dtype: PlainWord = "float32"
    quantization: Quantization | None = None
    gradient_checkpointing: Annotated[bool, NO_EFFECT] = False
    share_prefixes: Annotated[bool, NO_EFFECT] = True
    max_length: Count | None = None
    instruction: PromptText | None = None
    tag_words: tuple[PromptText, PromptText] = ("<confidence>", "</confidence>")
    scale: list[PromptText] | None = None
    scoring: Scoring | None = None
    grounded: bool | None = None
    evidence_tokens: Count | None = None
    grounding: PromptText | None = None
    chat_template: str | None = None
    trust_remote_code: TrustRemoteCode = False
    any_base: Annotated[bool, Setting(decides=False, taken="unread")] = False

    def __post_init__(self) -> None:
        check_dtype_name(self.dtype)
        if self.quantization not in (None, "nf4"):
            raise LovecError(f"policy.quantization is {self.quantization!r}, expected nf4 or null")
        if self.grounded is False and (self.evidence_tokens or self.grounding):
            raise LovecError(
                "policy.evidence_tokens and policy.grounding are of prompts with evidence, and "
                "policy.grounded is false; set it to true, or leave them out"
            )


def load_tokenizer(config: PolicyConfig) -> Any:
    """Load the tokenizer of a model, with the chat template that the config names.

    Raises:
        LovecError: the model or the template file is missing.
    """
    with quick_transformers():
        from transformers import AutoTokenizer

    tokenizer = _from_hub(AutoTokenizer, config)
    if config.chat_template is not None:
        tokenizer.chat_template = template_text(config.chat_template)
    return tokenizer


def load_config(config: PolicyConfig) -> Any:
    """Load the configuration of a model.

    Raises:
        LovecError: the model is missing or gated.
    """
    with quick_transformers():
        from transformers import AutoConfig

    return _from_hub(AutoConfig, config)


def load_base(config: PolicyConfig) -> Any:
    """Load the frozen base model in the precision that the config names, from safetensors only.

    Raises:
        LovecError: the model is missing, gated or incomplete, or quantised by a method that is not supported; or it is
            in 4 bits, and bitsandbytes is not installed; or its code takes no masks for single tokens.
    """
    with quick_transformers():
        from transformers import AutoModelForCausalLM

    settings = load_config(config)
    eager = not _has_sdpa(settings)
    dtype: torch.dtype = getattr(torch, config.dtype)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "eager" if eager else "sdpa"}
    stored = stored_quantization(settings, config.model)
    if config.model.startswith(RANDOM):
        model: Any = AutoModelForCausalLM.from_config(settings, trust_remote_code=config.trust_remote_code, **options)
        model.drawn_at_random = True  # an engine that loads a model by its name would get other weights
        if stored or config.quantization:
            quantize(model, dtype)
    else:
        if stored:
            import_bitsandbytes()
        elif config.quantization:
            options |= quantization_options(dtype)
        options |= {"config": settings, "use_safetensors": True, "output_loading_info": True}
        model, loading_info = _from_hub(AutoModelForCausalLM, config, **options)
        check_whole(loading_info, f"the model {config.model}", "give a model with all of its safetensors weights")
    repair_on_cpu(model)
    if not eager:
        use_trie_attention(model)
    _check_masks(model)
    return model.requires_grad_(False)


class _Passed(Exception):
    """Ends a forward pass at the first layer."""


def _check_masks(model: Any) -> None:
    """Check that the code of a model takes the masks that scoring needs, on two tokens and in its first layer only.

    Raises:
        LovecError: it does not.
    """
    kind = AttentionKind.of(model.config)

    def stop(*_: Any) -> None:
        raise _Passed

    try:
        decoder = model.get_decoder()
        layers = next((part for part in decoder.modules() if isinstance(part, nn.ModuleList) and len(part)), [decoder])
        # Layers in 4 bits would take their type from these tokens for good, so such a model is stopped before them.
        quantized = getattr(model, "is_loaded_in_4bit", False)
        hook = (layers[0].register_forward_pre_hook if quantized else layers[0].register_forward_hook)(stop)
        try:
            positions = torch.arange(2, device=model.device)[None]
            visible = torch.ones(1, 2, 2, dtype=torch.bool, device=model.device).tril()
            masks = kind.masks(visible, positions, positions, model.dtype)
            ids = torch.zeros_like(positions)
            with torch.no_grad():
                decoder(input_ids=ids, position_ids=positions, attention_mask=masks, use_cache=False)
        finally:
            hook.remove()
    except _Passed:
        return
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        name = model.config.get_text_config().model_type
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise LovecError(
            f"the code of {name} models takes no masks for single tokens, which scoring needs ({reason}); use another "
            "model family"
        ) from None


def checkpoint_activations(model: Any, on: bool = True) -> None:
    """Let a transformers model recompute its activations in the backward pass, or keep them.

    Args:
        model: the model, which may have PEFT's adapters.
        on: whether they are recomputed.
    """
    # transformers 5.23 has renamed it, and warns where it is called by the old name.
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if on:
        options = {f"{name}_checkpointing_kwargs": {"use_reentrant": False}}
        getattr(model, f"{name}_checkpointing_enable")(**options)
    else:
        getattr(model, f"{name}_checkpointing_disable")()


def _has_sdpa(settings: Any) -> bool:
    """Return whether the attention of a model can be computed by torch's scaled dot product attention."""
    from transformers import AutoModelForCausalLM

    # Of soft-capped attention (Gemma-2) transformers would silently leave out the cap.
    if getattr(settings.get_text_config(), "attn_logit_softcapping", None):
        return False
    # `get` and not `keys`, which would import the modules of all models.
    with quick_transformers():  # the class of the model is imported here
        known = AutoModelForCausalLM._model_mapping.get(type(settings), None)
    return known is None or bool(known._supports_sdpa)  # attention sinks: gpt-oss


def load_stops(config: PolicyConfig) -> frozenset[int]:
    """Return the ids that end what a model writes, as its ``generation_config.json`` and ``config.json`` list them.

    A chat model may end its turn with any of several tokens, of which its tokenizer names one.

    Raises:
        LovecError: the model is missing or gated, or what it lists are no ids of tokens.
    """
    with quick_transformers():
        from transformers import GenerationConfig, PreTrainedConfig

    listed = [_get(PreTrainedConfig.get_config_dict, config)[0].get("eos_token_id")]
    try:
        listed.append(_get(GenerationConfig.from_pretrained, config).eos_token_id)
    except LovecError:
        pass  # not every model has such a file
    stops = [i for ids in listed for i in (ids if isinstance(ids, list) else [ids]) if i is not None]
    if not all(type(i) is int and i >= 0 for i in stops):
        raise LovecError(f"{config.model} lists {str(stops)[:80]} as its eos_token_id, expected ids of tokens")
    return frozenset(stops)


def _from_hub(auto: Any, policy: PolicyConfig, /, **kwargs: Any) -> Any:
    """Load through an Auto class; a missing or gated model becomes a LovecError."""
    return _get(auto.from_pretrained, policy, trust_remote_code=policy.trust_remote_code, **kwargs)


def _get(load: Callable[..., Any], policy: PolicyConfig, /, **kwargs: Any) -> Any:
    """Return what a function of transformers makes of the folder or the hub id of a model.

    Raises:
        LovecError: the model is missing, gated or broken, or the hub cannot be read.
    """
    from huggingface_hub.errors import StrictDataclassError

    name = policy.model.removeprefix(RANDOM)
    with hub_errors(HubName.parse(name)):
        try:
            with quick_transformers(), without_progress_bars():
                return load(name, **kwargs)
        except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
            reason = str(error)
            if "gated" in reason.lower() or "401" in reason or "403" in reason:
                fix = "it needs a licence accepted on its page and a token: run `hf auth login` or set HF_TOKEN"
            elif Path(name).exists():
                first = reason.splitlines()[0][:120]
                fix = f"the folder does not hold a whole model with safetensors weights ({first})"
            else:
                fix = "expected a hub id that this machine can reach or has cached, a local folder, or `world`"
            raise LovecError(f"cannot load the model {policy.model!r}: {fix}") from None
