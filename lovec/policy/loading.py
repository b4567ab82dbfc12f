"""What to train is read from the hub or a folder: configuration, tokenizer, base model, adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from lovec.types import LovecError

ADAPTER = "default"
REFERENCE = "reference"
WORN = "worn"
RANDOM = "random:"
"""Before a model's name: its configuration and tokenizer as they are, its weights drawn at random where they are used.

For measuring speed and memory without 16 GB of weights on the disk; such a model says nothing.
"""


@dataclass
class PolicyConfig:
    """Which model to train, and how it is adapted.

    Attributes:
        model: hub id or folder of the base model; `world`, `world-small` and `tiny-llama` are built offline, and
            `random:` before a hub id or folder draws weights instead of loading them.
        adapter: PEFT adapter folder to continue from; null starts a fresh one. It also becomes the reference.
        lora_r: rank of a fresh adapter.
        lora_alpha: LoRA scale of a fresh adapter (the update is multiplied by alpha / r).
        lora_dropout: dropout on the adapter's input; objectives other than SFT force it to 0.
        target_modules: linear layers that get an adapter.
        dtype: precision of the frozen base (float32 or bfloat16); the adapter stays in float32.
        gradient_checkpointing: recompute activations in the backward pass.
        max_length: longest prompt with completion, in tokens; null takes the model's context.
        instruction: system prompt asking for tags; null takes the data's own, or else the paper's.
        tag_words: the words before and after a score; an instruction of your own should name them.
        chat_template: Jinja file to use instead of the tokenizer's template.
        trust_remote_code: run code from the model's repository.
    """

    model: str = "world"
    adapter: str | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    target_modules: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    dtype: str = "float32"
    gradient_checkpointing: bool = False
    max_length: int | None = None
    instruction: str | None = None
    tag_words: tuple[str, str] = ("<confidence>", "</confidence>")
    chat_template: str | None = None
    trust_remote_code: bool = False


def load_tokenizer(config: PolicyConfig) -> Any:
    """The tokenizer of a model, with the chat template the config names."""
    from transformers import AutoTokenizer

    tokenizer = _from_hub(AutoTokenizer, config)
    if config.chat_template is not None:
        if not Path(config.chat_template).is_file():
            raise LovecError(f"policy.chat_template is {config.chat_template}, which is no file; give a Jinja file")
        tokenizer.chat_template = Path(config.chat_template).read_text(encoding="utf-8")
    return tokenizer


def load_base(config: PolicyConfig) -> Any:
    """The frozen base model in the precision the config names, from safetensors only."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if config.dtype not in ("float32", "bfloat16"):
        raise LovecError(f"policy.dtype is {config.dtype!r}; expected float32 or bfloat16")
    settings = _from_hub(AutoConfig, config)
    # Soft-capped attention (Gemma-2) has no sdpa form: transformers would leave the cap out without a word.
    capped = getattr(settings.get_text_config(), "attn_logit_softcapping", None)
    form = {"dtype": getattr(torch, config.dtype), "attn_implementation": "eager" if capped else "sdpa"}
    if config.model.startswith(RANDOM):
        model: Any = AutoModelForCausalLM.from_config(settings, trust_remote_code=config.trust_remote_code, **form)
        model.drawn_at_random = True  # whoever loads a model by its name must not take these weights for the hub's
    else:
        model = _from_hub(AutoModelForCausalLM, config, config=settings, use_safetensors=True, **form)
    return model.requires_grad_(False)


def _from_hub(auto: Any, policy: PolicyConfig, /, **kwargs: Any) -> Any:
    """Load through an Auto class; a missing or gated model is one clear line."""
    name = policy.model.removeprefix(RANDOM)
    try:
        return auto.from_pretrained(name, trust_remote_code=policy.trust_remote_code, **kwargs)
    except (OSError, ValueError) as error:
        text = str(error)
        if "gated" in text.lower() or "401" in text or "403" in text:
            fix = "it needs a licence accepted on its page and a token: run `hf auth login` or set HF_TOKEN"
        elif Path(name).exists():
            fix = f"the folder does not hold a whole model with safetensors weights ({text.splitlines()[0][:120]})"
        else:
            fix = "expected a hub id that this machine can reach or has cached, a local folder, or `world`"
        raise LovecError(f"cannot load the model {policy.model!r}: {fix}") from None


def fresh_adapter(base: Any, lora: dict[str, Any], reference: bool) -> Any:
    """The base with a new trainable adapter (an update of zero), and room for a reference if there is one."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(**{"task_type": "CAUSAL_LM", **lora})
    try:
        model = get_peft_model(base, config, adapter_name=ADAPTER)
        if reference:
            model.add_adapter(REFERENCE, config)
    except ValueError as error:
        raise LovecError(f"no adapter fits this model: {str(error)[:200]}; see policy.target_modules") from None
    return model


def continued_adapter(base: Any, adapter: str, reference: bool) -> Any:
    """The base with a trainable adapter from a folder, and its frozen copy where it is the reference."""
    from peft import PeftModel

    check_adapter(adapter)
    with _fitting(adapter):
        model = PeftModel.from_pretrained(base, adapter, adapter_name=ADAPTER, is_trainable=True)
        if reference:
            model.load_adapter(adapter, adapter_name=REFERENCE, is_trainable=False)
    return model


def add_adapter(model: Any, adapter: str, device: torch.device) -> None:
    """Put the adapter of a folder beside those that a PEFT model has, frozen and not in use, under the name WORN."""
    check_adapter(adapter)
    with _fitting(adapter):
        model.load_adapter(adapter, adapter_name=WORN, is_trainable=False, torch_device=str(device))


def check_adapter(adapter: str) -> None:
    """Say what is wrong with a folder before anything is loaded.

    Raises:
        LovecError: it holds no adapter, or one that is not a plain LoRA.
    """
    if not (Path(adapter) / "adapter_config.json").is_file():
        run = Path(adapter).parent.name
        made = Path(adapter).name == "adapter"
        hint = f"make it with: lovec fit --config {run}.yaml" if made else "give a PEFT adapter folder"
        raise LovecError(f"there is no adapter in {adapter}; {hint}")
    held = json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))
    if held.get("peft_type") != "LORA" or held.get("modules_to_save") or held.get("bias", "none") != "none":
        raise LovecError(
            f"the adapter in {adapter} is not a plain LoRA (it trains biases or whole modules); give one that is"
        )


@contextmanager
def _fitting(adapter: str) -> Iterator[None]:
    """Inside: an adapter that does not fit the base is one clear line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise LovecError(
            f"the adapter in {adapter} does not fit the base model: {str(error).strip().splitlines()[0][:160]}; "
            "it was trained on another base (see base_model_name_or_path in its adapter_config.json)"
        ) from None


def plain(config: Any) -> dict[str, Any]:
    """What a LoraConfig says beyond the defaults, as values that a checkpoint may hold."""
    from peft import LoraConfig

    found = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name in ("inference_mode", "peft_type") or value == getattr(LoraConfig(), item.name):
            continue
        found[item.name] = (
            sorted(value) if isinstance(value, set) else str(value.value) if isinstance(value, Enum) else value
        )
    return found
