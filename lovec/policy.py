"""The policy that every objective shares: a causal language model with a LoRA adapter, and what it started from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lovec.types import LovecError

ADAPTER = "default"
REFERENCE = "reference"
LOGIT_CHUNK = 2048
"""Completion positions whose logits are in memory at once."""


@dataclass
class PolicyConfig:
    """Which model to train, and how it is adapted.

    Attributes:
        model: hub id or folder of the base model; `world`, `world-small` and `tiny-llama` are built offline.
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


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and its completion as token ids (end of turn included)."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences as right-padded tensors. Masks come from lengths, so a pad id may equal the end token.

    Attributes:
        input_ids: [N, L].
        attention_mask: [N, L], 1 on real tokens.
        targets: [N, T] completion ids, left-aligned.
        mask: [N, T] float, 1 on completion tokens.
        positions: [N, T] index into L of the token that predicts each target.
    """

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    mask: Tensor
    positions: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], device: torch.device | str = "cpu") -> TokenBatch:
        """Pad sequences [N] into a batch on ``device``."""
        n, length = len(sequences), max(len(s) for s in sequences)
        steps = max(len(s.completion) for s in sequences)
        input_ids = torch.zeros(n, length, dtype=torch.long)
        attention_mask = torch.zeros(n, length, dtype=torch.long)
        targets = torch.zeros(n, steps, dtype=torch.long)
        mask = torch.zeros(n, steps)
        first = torch.tensor([len(s.prompt) - 1 for s in sequences])
        for i, s in enumerate(sequences):
            input_ids[i, : len(s)] = torch.tensor(s.prompt + s.completion)
            attention_mask[i, : len(s)] = 1
            targets[i, : len(s.completion)] = torch.tensor(s.completion)
            mask[i, : len(s.completion)] = 1.0
        positions = (first[:, None] + torch.arange(steps)).clamp(max=length - 1)
        tensors = (input_ids, attention_mask, targets, mask, positions)
        return cls(*(t.to(device) for t in tensors))


class Policy(nn.Module):
    """A base model with one trainable LoRA adapter, and the frozen policy it started from.

    The reference is the bare base for a fresh adapter, and a frozen second copy for a continued one.

    Args:
        config: what to load.
        dropout: whether the adapter's dropout may be active (SFT only: elsewhere it breaks ln 2 and ratios).
        reference: whether the frozen copy of a continued adapter is needed.
        held: adapter shapes as a checkpoint holds them (``shape``); then ``config.adapter`` is not read, and the
            weights, the reference among them, are expected from the checkpoint.

    Raises:
        LovecError: the model or adapter is missing, gated, or the two do not fit.
    """

    def __init__(
        self,
        config: PolicyConfig,
        dropout: bool = False,
        reference: bool = True,
        held: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.tokenizer = load_tokenizer(config)
        base = load_base(config)
        if held is not None:
            self.continued = bool(held["reference"])
            self.peft: Any = _fresh_adapter(base, held["lora"], self.continued)
        elif config.adapter is not None:
            self.continued = reference
            self.peft = _continued_adapter(base, config.adapter, self.continued)
        else:
            self.continued = False
            lora = {
                "r": config.lora_r,
                "lora_alpha": config.lora_alpha,
                "lora_dropout": config.lora_dropout,
                "target_modules": sorted(config.target_modules),
                "base_model_name_or_path": config.model,
            }
            self.peft = _fresh_adapter(base, lora, False)
        self.peft.set_adapter(ADAPTER)
        self._set_dropout(config.lora_dropout if dropout else 0.0)
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        settings = self.model.config.get_text_config()
        context = int(getattr(settings, "max_position_embeddings", 0) or 1 << 30)
        self.max_length = min(context, config.max_length or context)
        for name in ("logit_scale", "logits_scaling"):
            if getattr(settings, name, None) not in (None, 1, 1.0):
                raise LovecError(f"{config.model} scales its logits ({name}): not supported; use another model family")

    @property
    def model(self) -> Any:
        """The transformers model, with the adapter's layers in place."""
        return self.peft.get_base_model()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def shape(self) -> dict[str, Any]:
        """Shape of the adapters as plain values, enough to build them again."""
        return {"lora": _plain(self.peft.peft_config[ADAPTER]), "reference": self.continued}

    def trainable(self) -> list[nn.Parameter]:
        """The adapter's parameters, by name order."""
        return [p for name, p in sorted(self.named_parameters()) if is_adapter(name) and f".{ADAPTER}." in name]

    def token_logps(self, batch: TokenBatch, temperature: float = 1.0) -> Tensor:
        """Log-probability of every completion token given all before it: [N, T] float32, 0 where masked.

        Only completion positions reach the output layer, ``LOGIT_CHUNK`` at a time.

        Args:
            batch: padded sequences.
            temperature: divides the logits, as in sampling.
        """
        hidden = self.model.get_decoder()(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
        ).last_hidden_state
        row, step = batch.mask.nonzero(as_tuple=True)
        logps = self._logps(hidden[row, batch.positions[row, step]], batch.targets[row, step], temperature)
        return torch.zeros_like(batch.mask).index_put((row, step), logps)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside: the start-of-run policy, without gradient. Close it before any backward pass."""
        with torch.no_grad():
            if not self.continued:
                with self.bare():
                    yield
                return
            self.peft.base_model.set_adapter(REFERENCE, inference_mode=True)
            try:
                yield
            finally:
                self.peft.base_model.set_adapter(ADAPTER)

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Inside: the base model, adapter off."""
        with self.peft.disable_adapter():
            yield

    def save_adapter(self, path: str | Path) -> None:
        """Write the adapter in PEFT format; ``path`` is replaced only once the new one is whole."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        self.peft.save_pretrained(str(fresh), selected_adapters=[ADAPTER])
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
        shutil.rmtree(old, ignore_errors=True)

    def _logps(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """Log-probabilities [M] of targets [M] after hidden states [M, D], in chunks kept out of memory."""
        from torch.utils.checkpoint import checkpoint

        parts = []
        for h, t in zip(torch.split(hidden, LOGIT_CHUNK), torch.split(targets, LOGIT_CHUNK), strict=True):
            if torch.is_grad_enabled() and hidden.shape[0] > LOGIT_CHUNK:
                parts.append(checkpoint(self._chunk_logps, h, t, temperature, use_reentrant=False))
            else:
                parts.append(self._chunk_logps(h, t, temperature))
        return torch.cat(parts)

    def _chunk_logps(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden).float()
        if softcap := getattr(self.model.config.get_text_config(), "final_logit_softcapping", None):
            logits = softcap * torch.tanh(logits / softcap)
        if temperature != 1.0:
            logits = logits / temperature
        logps: Tensor = logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)
        return logps

    def _set_dropout(self, p: float) -> None:
        """Dropout p on the trained adapter, none anywhere else (the base's own would break ratios as well)."""
        for module in list(self.peft.modules()):
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0
            if isinstance(dropouts := getattr(module, "lora_dropout", None), nn.ModuleDict):
                for name in dropouts:
                    dropouts[name] = nn.Dropout(p) if p and name == ADAPTER else nn.Identity()


def is_adapter(name: str) -> bool:
    """Whether a parameter or state-dict key belongs to an adapter."""
    return ".lora_" in name


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
    attention = "eager" if capped else "sdpa"
    model = _from_hub(
        AutoModelForCausalLM,
        config,
        config=settings,
        dtype=getattr(torch, config.dtype),
        attn_implementation=attention,
        use_safetensors=True,
    )
    return model.requires_grad_(False)


def _from_hub(auto: Any, policy: PolicyConfig, /, **kwargs: Any) -> Any:
    """Load through an Auto class; a missing or gated model is one clear line."""
    try:
        return auto.from_pretrained(policy.model, trust_remote_code=policy.trust_remote_code, **kwargs)
    except (OSError, ValueError) as error:
        text = str(error)
        if "gated" in text.lower() or "401" in text or "403" in text:
            fix = "it needs a licence accepted on its page and a token: run `hf auth login` or set HF_TOKEN"
        elif Path(policy.model).exists():
            fix = f"the folder does not hold a whole model with safetensors weights ({text.splitlines()[0][:120]})"
        else:
            fix = "expected a hub id that this machine can reach or has cached, a local folder, or `world`"
        raise LovecError(f"cannot load the model {policy.model!r}: {fix}") from None


def _fresh_adapter(base: Any, lora: dict[str, Any], reference: bool) -> Any:
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


def _plain(config: Any) -> dict[str, Any]:
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


def _continued_adapter(base: Any, adapter: str, reference: bool) -> Any:
    """The base with a trainable adapter from a folder, and its frozen copy where it is the reference."""
    from peft import PeftModel

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
    try:
        model = PeftModel.from_pretrained(base, adapter, adapter_name=ADAPTER, is_trainable=True)
        if reference:
            model.load_adapter(adapter, adapter_name=REFERENCE, is_trainable=False)
    except (RuntimeError, ValueError) as error:
        raise LovecError(
            f"the adapter in {adapter} does not fit the base model: {str(error).strip().splitlines()[0][:160]}; "
            "it was trained on another base (see base_model_name_or_path in its adapter_config.json)"
        ) from None
    return model
