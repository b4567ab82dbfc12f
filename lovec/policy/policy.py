"""The policy that every objective trains: a causal language model with a LoRA adapter, and its frozen reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from lovec.core.files import atomic_folder
from lovec.core.hub import RANDOM
from lovec.encoding.choices import AttentionKind, context_length
from lovec.policy.adapters import (
    ADAPTER,
    REFERENCE,
    TEMPORARY,
    add_adapter,
    check_adapter,
    continued_adapter,
    fresh_adapter,
    lora_options,
)
from lovec.policy.head import target_logps
from lovec.policy.loading import PolicyConfig, checkpoint_activations, load_base, load_tokenizer
from lovec.policy.sequences import Branch, Layout, TokenBatch, by_choice, by_token, completion_tokens
from lovec.policy.targets import Targets
from lovec.tries import missing_kernels, why_not_shared
from lovec.types import Engine, LovecError

_TINY = 50_000_000  # weights; the embedded world's models have up to a few million


class Policy(nn.Module):
    """A base model with one trainable LoRA adapter, and its reference: the frozen policy that the run started from.

    Where training starts from a fresh adapter, the reference is the base with the adapter disabled. Where it continues
    an adapter, the reference is a frozen second copy of that adapter.

    Args:
        config: which model and adapter to load.
        dropout: whether the adapter's dropout may be active. SFT allows it; elsewhere it would make policy and
            reference differ at the start (DPO's loss would not begin at ln 2, nor GRPO's ratios at 1).
        reference: whether the frozen copy of a continued adapter is needed.
        checkpoint_shape: shape of a checkpoint's adapters, see ``shape``. If it is given, ``config.adapter`` is not
            read; the checkpoint is expected to fill in all weights, the reference's included.
        trained: whether a fresh adapter will be trained. If it will, every name in ``config.target_modules`` must have
            a layer; otherwise the policy only serves to compute with the base, and names without a layer do not matter.

    Attributes:
        tokenizer: the model's tokenizer.
        peft: the PEFT model.
        continued: whether there is a frozen copy of the adapter that serves as reference.
        max_length: the most tokens that a prompt and its completion may have together.
        adapted_note: which layers a fresh adapter is on, where the model has fused layers instead of those that were
            asked for; else None.
        has_own_template: whether the tokenizer has another chat template than the one that it came with.

    Raises:
        LovecError: the model or the adapter is missing or gated, or the adapter does not fit the model or names another
            one; or an adapter will be trained, and the model has no layers of some of its names.
    """

    def __init__(
        self,
        config: PolicyConfig,
        dropout: bool = False,
        reference: bool = True,
        checkpoint_shape: dict[str, Any] | None = None,
        trained: bool = True,
    ) -> None:
        super().__init__()
        self._base, self._any_base = config.model.removeprefix(RANDOM), config.any_base
        if config.adapter is not None and checkpoint_shape is None:
            check_adapter(config.adapter, self._base, self._any_base)  # before minutes are spent on a large model
        self.tokenizer = load_tokenizer(config)
        self.has_own_template = config.chat_template is not None
        base = load_base(config)
        self.adapted_note: str | None = None
        if checkpoint_shape is not None:
            self.continued = bool(checkpoint_shape["reference"])
            self.peft: Any = fresh_adapter(base, checkpoint_shape["lora"], self.continued)
        elif config.adapter is not None:
            self.continued = reference
            self.peft = continued_adapter(base, config.adapter, self.continued)
        else:
            self.continued = False
            targets = Targets.of(base, config.target_modules, trained)
            self.adapted_note = targets.note
            lora = {
                "r": config.lora_r,
                "lora_alpha": config.lora_alpha,
                "lora_dropout": config.lora_dropout,
                "target_modules": targets.names,
                "base_model_name_or_path": self._base,
            }
            self.peft = fresh_adapter(base, lora, False)
        self.peft.set_adapter(ADAPTER)
        self._set_dropout(config.lora_dropout if dropout else 0.0)
        if config.gradient_checkpointing:
            checkpoint_activations(self.model)
        settings = self.model.config.get_text_config()
        context = context_length(settings) or 1 << 30
        self.max_length = min(context, config.max_length or context)
        for name in ("logit_scale", "logits_scaling"):
            if getattr(settings, name, None) not in (None, 1, 1.0):
                raise LovecError(
                    f"{config.model} scales its logits ({name}), which is not supported; use another model family"
                )
        self._not_packed = why_not_shared(self.model) if config.share_prefixes else "policy.share_prefixes is false"
        self._window = None if self._not_packed else AttentionKind.of(self.model.config).window

    @property
    def model(self) -> Any:
        """The transformers model, with the adapter's layers inserted."""
        return self.peft.get_base_model()

    @property
    def is_tiny(self) -> bool:
        """Whether the model has so few weights that nothing has to be saved: probes and validations are cheap."""
        return sum(p.numel() for p in self.parameters()) < _TINY

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def shares_prefixes(self) -> bool:
        """Whether tokens with which several sequences of a batch begin are computed once."""
        return self.packing_disabled_reason is None

    @property
    def packing_disabled_reason(self) -> str | None:
        """Why sequences that begin alike are computed one by one; None where they are computed as a trie."""
        return self._not_packed or missing_kernels(self.device)

    @property
    def shape(self) -> dict[str, Any]:
        """What a checkpoint needs to build the adapters again, as plain values: LoRA options, and if there are two."""
        return {"lora": lora_options(self.peft.peft_config[ADAPTER]), "reference": self.continued}

    def trainable(self) -> list[nn.Parameter]:
        """Return the parameters of the trained adapter, sorted by name."""
        return [p for name, p in sorted(self.named_parameters()) if is_adapter(name) and f".{ADAPTER}." in name]

    def token_logps(self, batch: TokenBatch, temperature: float = 1.0) -> Tensor:
        """Compute the log-probability of every completion token given all tokens before it.

        Args:
            batch: the sequences.
            temperature: divides the logits, as in sampling.

        Returns:
            [N, T] float32, 0 where masked.
        """
        shared = self.shares(max(map(len, batch.sequences)))
        layout, targets = batch.shared if shared else batch.apart, completion_tokens(batch.sequences)
        if not targets:
            return torch.zeros_like(batch.mask)
        return by_token(batch, self.logps_of(self._states(layout, shared), layout.outputs, targets, temperature))

    def choice_logps(
        self, batch: TokenBatch, starts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities of the completion tokens, and of choices within them, in one forward pass.

        The choices of a place branch off from the sequence: they attend to what precedes the place and to nothing
        else, and the sequence does not attend to them.

        Args:
            batch: the sequences.
            starts: for every sequence, the indices into its completion at which choices begin, ``[N][places]``.
            choices: token ids of each choice, the same at every place, at least one each.

        Returns:
            Log-probabilities of the completions as ``token_logps`` gives them, [N, T] float32, and of the choices,
            [M, choices] float64, with M the places of all sequences in their order.
        """
        branches = [
            Branch(at, len(sequence.prompt) + start, tuple(choice))
            for at, (sequence, places) in enumerate(zip(batch.sequences, starts, strict=True))
            for start in places
            for choice in choices
        ]
        shared = self.shares(max(map(len, batch.sequences)) + max(map(len, choices)))
        layout = Layout.of(batch.sequences, batch.mask.device, branches, shared=shared)
        targets = [*completion_tokens(batch.sequences), *(token for branch in branches for token in branch.ids)]
        logps = self.logps_of(self._states(layout, shared), layout.outputs, targets)
        count = int(batch.mask.sum())
        return by_token(batch, logps[:count]), by_choice(logps[count:], choices)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Compute with the reference inside the block, without gradient. Leave the block before any backward pass."""
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
        """Compute with the bare base model inside the block, the adapter disabled."""
        with self.peft.disable_adapter():
            yield

    @contextmanager
    def with_adapter(self, path: str) -> Iterator[None]:
        """Compute with the adapter of a folder inside the block instead of the policy's own, without gradient.

        The base is not loaded again, and the results equal those of a model that was loaded with this adapter. An
        engine must ``sync`` after the block is entered, and again after it is left.

        Args:
            path: folder of a PEFT adapter.

        Raises:
            LovecError: there is no adapter, or it does not fit, or names another base model.
        """
        training = self.training
        check_adapter(path, self._base, self._any_base)
        try:
            with torch.inference_mode(False):  # engines read the version counters of parameters
                add_adapter(self.peft, path)
            self.train(training)  # PEFT leaves the model in eval mode
            for module in list(self.peft.modules()):
                dropouts = getattr(module, "lora_dropout", None)
                if isinstance(dropouts, nn.ModuleDict) and TEMPORARY in dropouts:
                    dropouts[TEMPORARY] = nn.Identity()
            self.peft.base_model.set_adapter(TEMPORARY, inference_mode=True)
            with torch.no_grad():
                yield
        finally:
            self.peft.base_model.set_adapter(ADAPTER)
            if TEMPORARY in self.peft.peft_config:
                self.peft.delete_adapter(TEMPORARY)

    @contextmanager
    def using_adapter(self, adapter: str | None, engine: Engine) -> Iterator[None]:
        """Use the adapter of a folder inside the block, or none, here and in an engine."""
        with self.without_adapter() if adapter is None else self.with_adapter(adapter):
            engine.sync(self)
            yield
        engine.sync(self)

    @contextmanager
    def without_casts(self) -> Iterator[None]:
        """Let the adapter's layers take their inputs as they are inside the block, where that changes no result.

        PEFT casts them to float32, the type of the adapter's weights. Under autocast the first product rounds them
        back to what they were, so the casts only take time, and memory until the backward pass. Without autocast the
        product needs them, and active dropout computes in the type of its input; there the block changes nothing.
        Enter it once around a step with its backward pass, since every entry walks through all layers.
        """
        from peft.helpers import disable_input_dtype_casting  # here, since importing peft imports bitsandbytes too

        drops = any(isinstance(m, nn.Dropout) and m.training and m.p > 0 for m in self.peft.modules())
        needless = torch.is_autocast_enabled(self.device.type) and not drops
        with disable_input_dtype_casting(self.peft, active=needless):
            yield

    @property
    def active_adapter(self) -> str | None:
        """PEFT's name of the adapter that the model computes with now; None for the bare base."""
        from peft.tuners.tuners_utils import BaseTunerLayer  # here, since importing peft imports bitsandbytes too

        layer = next(module for module in self.peft.modules() if isinstance(module, BaseTunerLayer))
        return None if layer.disable_adapters else str(layer.active_adapters[0])

    def save_adapter(
        self,
        path: str | Path,
        name: str = ADAPTER,
        extra_files: Mapping[str, str] | None = None,
        keep_other: bool = False,
    ) -> None:
        """Write an adapter in PEFT format; the folder is replaced only once the new one is complete.

        Args:
            path: folder to write.
            name: PEFT's name of the adapter.
            extra_files: texts to write into the same folder, by file name.
            keep_other: whether an adapter in the folder that has other weights is kept, see ``atomic_folder``.

        Raises:
            LovecError: it cannot be written.
        """
        try:
            with atomic_folder(path, "adapter_model.safetensors" if keep_other else None) as folder:
                # Of an adapted output layer PEFT would save the frozen weights, too.
                self.peft.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
                if name != ADAPTER:  # PEFT writes every adapter but the default one into a subfolder
                    for file in (folder / name).iterdir():
                        file.rename(folder / file.name)
                    (folder / name).rmdir()
                for file_name, text in (extra_files or {}).items():
                    (folder / file_name).write_text(text, encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise LovecError(
                f"cannot write the adapter {path}: {error}; an older one is untouched: make room, and resume from a "
                "checkpoint of the run"
            ) from None

    def shares(self, longest: int) -> bool:
        """Return whether tokens that sequences share are computed once, where these have up to ``longest`` tokens."""
        return self.shares_prefixes and longest <= (self._window or longest)

    def states_of(self, ids: np.ndarray, positions: np.ndarray, attention: Any) -> Tensor:
        """Compute the last hidden states of tokens that lie in one row, [L, D].

        Args:
            ids: token ids, [L].
            positions: number of tokens before each one in its sequence, [L].
            attention: how attention among them is computed, a plan of ``lovec.tries``.
        """
        tokens, places = (torch.from_numpy(row)[None].to(self.device) for row in (ids, positions))
        # Of a mask with four dimensions transformers makes nothing; this one is not read.
        return self._decoded(tokens, places, attention_mask=torch.empty(1, 1, 0, 0, device=self.device), trie=attention)

    def logps_of(
        self, states: Tensor, outputs: Sequence[np.ndarray], targets: Sequence[int], temperature: float = 1.0
    ) -> Tensor:
        """Compute the log-probabilities of tokens from the hidden states before them, [P] float32.

        Args:
            states: hidden states, [S, D].
            outputs: indices of the states from which the tokens are predicted, P in all.
            targets: the tokens, P.
            temperature: divides the logits.
        """
        needed, rows = torch.unique(torch.from_numpy(np.concatenate(outputs)), return_inverse=True)
        order = rows.argsort(stable=True)
        softcap = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        logps = target_logps(
            states[needed.to(states.device)],
            rows[order].to(states.device),
            torch.tensor(targets)[order].to(states.device),
            self.model.get_output_embeddings(),
            temperature,
            softcap,
        )
        return logps[order.argsort().to(states.device)]

    def _states(self, layout: Layout, shared: bool) -> Tensor:
        """Return the last hidden states of all rows, [R W, D]."""
        if shared:
            return self.states_of(layout.rows[0].ids, layout.rows[0].positions, layout.plan)
        mask = layout.masks(AttentionKind.of(self.model.config), self.model.dtype)
        return self._decoded(layout.ids, layout.positions, attention_mask=mask)

    def _decoded(self, ids: Tensor, positions: Tensor, **attention: Any) -> Tensor:
        output = self.model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False, **attention)
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1)

    def _set_dropout(self, p: float) -> None:
        """Set dropout p on the trained adapter, and none anywhere else (the base's own would change ratios as well)."""
        for module in list(self.peft.modules()):
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            # Many models call torch's function with a probability of their own, under several names, or skip layers.
            for name, value in list(vars(module).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)
            if isinstance(dropouts := getattr(module, "lora_dropout", None), nn.ModuleDict):
                for name in dropouts:
                    dropouts[name] = nn.Dropout(p) if p and name == ADAPTER else nn.Identity()


def is_adapter(name: str) -> bool:
    """Return whether a parameter or state-dict key belongs to an adapter, by its name."""
    return ".lora_" in name
