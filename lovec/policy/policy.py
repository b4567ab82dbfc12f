"""The policy that every objective shares: a causal language model with a LoRA adapter, and what it started from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lovec.choices import AttentionKind, ChoiceTree
from lovec.policy.loading import (
    ADAPTER,
    RANDOM,
    REFERENCE,
    WORN,
    PolicyConfig,
    add_adapter,
    continued_adapter,
    fresh_adapter,
    load_base,
    load_tokenizer,
    plain,
)
from lovec.policy.sequences import TokenBatch
from lovec.types import LovecError

LOGIT_CHUNK = 2048
"""Completion positions whose logits are in memory at once."""


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
            self.peft: Any = fresh_adapter(base, held["lora"], self.continued)
        elif config.adapter is not None:
            self.continued = reference
            self.peft = continued_adapter(base, config.adapter, self.continued)
        else:
            self.continued = False
            lora = {
                "r": config.lora_r,
                "lora_alpha": config.lora_alpha,
                "lora_dropout": config.lora_dropout,
                "target_modules": sorted(config.target_modules),
                "base_model_name_or_path": config.model.removeprefix(RANDOM),
            }
            self.peft = fresh_adapter(base, lora, False)
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
        return {"lora": plain(self.peft.peft_config[ADAPTER]), "reference": self.continued}

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
        hidden = self._hidden(batch.input_ids, batch.attention_mask)
        return self._completion_logps(hidden, batch, temperature)

    def choice_logps(
        self, batch: TokenBatch, marks: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the completion tokens, and of every choice at every mark, from one forward pass.

        The choices at a mark run beside the sequence as the branches of a tree that sees what lies before the mark
        and nothing else; the sequence does not see them.

        Args:
            batch: padded sequences.
            marks: for every sequence the indices into its completion at which choices begin, [N][marks of it].
            choices: token ids of each choice, the same at every mark.

        Returns:
            [N, T] float32, as ``token_logps`` gives it; [M, choices] float64, mark by mark, sequence by sequence.
        """
        tree, device = ChoiceTree(choices), batch.input_ids.device
        most = max(map(len, marks))
        padded = torch.tensor([[*m, *[0] * (most - len(m))] for m in marks], device=device)
        real = torch.arange(most, device=device) < torch.tensor([[len(m)] for m in marks], device=device)
        beside = tree.beside(batch.positions.gather(1, padded), batch.input_ids.shape[1])
        masks = AttentionKind.of(self.model.config).masks(
            beside.seen, beside.positions, beside.positions, self.model.dtype
        )
        hidden = self._hidden(torch.cat([batch.input_ids, beside.ids], dim=1), masks, beside.positions)
        row, mark = real.nonzero(as_tuple=True)
        states = hidden[row[:, None], beside.ends[row, mark]]  # [M, 1 + nodes, D]
        asked = tree.asked.to(device).repeat(len(row), 1)
        edges = self._logps(states.flatten(0, 1), asked, 1.0).view(*states.shape[:2], -1)
        return self._completion_logps(hidden, batch, 1.0), tree.sums(edges)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside: the start-of-run policy, without gradient. Close it before any backward pass."""
        with torch.no_grad():
            if not self.continued:
                with self.without_adapter():
                    yield
                return
            self.peft.base_model.set_adapter(REFERENCE, inference_mode=True)
            try:
                yield
            finally:
                self.peft.base_model.set_adapter(ADAPTER)

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside: the base model, adapter off."""
        with self.peft.disable_adapter():
            yield

    @contextmanager
    def with_adapter(self, path: str) -> Iterator[None]:
        """Inside: the base with the adapter of a folder instead of its own, without gradient.

        The base is not loaded again, and the model computes what one that was loaded with this adapter computes.
        Whoever uses an engine lets it ``sync`` afterwards, inside and outside.

        Raises:
            LovecError: there is no adapter, or it does not fit.
        """
        training = self.training
        try:
            with torch.inference_mode(False):  # engines ask parameters for their version
                add_adapter(self.peft, path, self.device)
            self.train(training)  # PEFT leaves the model in eval mode
            for module in list(self.peft.modules()):
                if isinstance(dropouts := getattr(module, "lora_dropout", None), nn.ModuleDict) and WORN in dropouts:
                    dropouts[WORN] = nn.Identity()
            self.peft.base_model.set_adapter(WORN, inference_mode=True)
            with torch.no_grad():
                yield
        finally:
            self.peft.base_model.set_adapter(ADAPTER)
            if WORN in self.peft.peft_config:
                self.peft.delete_adapter(WORN)

    @property
    def active_adapter(self) -> str | None:
        """Name of the adapter that the model computes with now, as PEFT knows it; None for the bare base."""
        from peft.tuners.tuners_utils import (
            BaseTunerLayer,
        )  # here, because peft loads bitsandbytes where it is installed

        layer = next(module for module in self.peft.modules() if isinstance(module, BaseTunerLayer))
        return None if layer.disable_adapters else str(layer.active_adapters[0])

    def save_adapter(self, path: str | Path, name: str = ADAPTER, beside: Mapping[str, str] | None = None) -> None:
        """Write an adapter in PEFT format; ``path`` is replaced only once the new one is whole.

        Args:
            path: folder to write.
            name: which of the adapters.
            beside: texts to write beside it, by file name.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        self.peft.save_pretrained(str(fresh), selected_adapters=[name])
        whole = fresh if name == ADAPTER else fresh / name  # PEFT gives others a folder of their own
        for file, text in (beside or {}).items():
            (whole / file).write_text(text, encoding="utf-8")
        if path.exists():
            os.replace(path, old)
        os.replace(whole, path)
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)

    def _hidden(self, input_ids: Tensor, attention_mask: Any, position_ids: Tensor | None = None) -> Tensor:
        """Last hidden states [N, L, D]."""
        output = self.model.get_decoder()(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _completion_logps(self, hidden: Tensor, batch: TokenBatch, temperature: float) -> Tensor:
        """Log-probabilities [N, T] of the completions, from hidden states [N, L, D]."""
        row, step = batch.mask.nonzero(as_tuple=True)
        targets = batch.targets[row, step, None]
        logps = self._logps(hidden[row, batch.positions[row, step]], targets, temperature)
        return torch.zeros_like(batch.mask).index_put((row, step), logps[:, 0])

    def _logps(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """Log-probabilities [M, K] of targets [M, K] after hidden states [M, D], in chunks kept out of memory."""
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
        logps: Tensor = logits.gather(-1, targets) - logits.logsumexp(-1, keepdim=True)
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
