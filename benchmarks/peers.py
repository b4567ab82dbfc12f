"""A training step of TRL, by the trainers of the extra ``parity``, on the weights and token ids of lovec's side.

TRL runs as it does on CUDA: its fused output layer scores completion tokens only. On devices without Triton it would
score all tokens. Precision and gradient checkpointing are as on lovec's side. ORPO has no fused output layer; its term
on the chosen answer is taken over the completion, as in lovec, where TRL takes prompt and completion.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lovec.modules.batching import Example
from lovec.policy import ADAPTER, TokenBatch, TokenSequence, checkpoint_activations, load_base

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


IGNORED = -100
"""Label of a token that no loss is computed of."""


@dataclass(frozen=True)
class Padded:
    """Sequences as TRL takes them, padded on the right.

    Attributes:
        ids: token ids, [N, L].
        attention: 1 on real tokens, [N, L].
        labels: ids of completion tokens, ``IGNORED`` elsewhere, [N, L].
    """

    ids: Tensor
    attention: Tensor
    labels: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], device: str) -> Padded:
        """Pad sequences."""
        labels = [[IGNORED] * len(s.prompt) + [*s.completion] for s in sequences]
        ids = [[*s.prompt, *s.completion] for s in sequences]
        ones = [[1] * len(s) for s in sequences]
        return cls(*(padded(rows, device, fill) for rows, fill in ((ids, 0), (ones, 0), (labels, IGNORED))))


def padded(rows: Sequence[Sequence[int]], device: str, fill: int = 0, side: str = "right") -> Tensor:
    """Pad rows of token ids, [N, L]."""
    tensors = [torch.tensor(row, device=device) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)


class Trl:
    """A step of a TRL trainer; a subclass says which, and how it computes the loss of a micro-batch.

    Args:
        module: lovec's module, whose policy's settings, adapter and tokenizer are taken.
        examples: what is learned from.
        folder: what the trainer may write to.
        device: where it runs, "cpu" or "cuda".
    """

    rows: ClassVar[dict[str, list[str]]]
    """A data set for the trainer, which wants one; it is not used."""

    def __init__(self, module: Any, examples: Sequence[Example], folder: Path, device: str = "cpu") -> None:
        import trl.trainer.utils
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        # Asked only which positions to score; the kernels ask the module that they are in.
        trl.trainer.utils._use_triton = lambda device: True
        self.device = device
        self.policy: Any = None  # computes the log-probabilities under the reference, where they are given
        self.group, self.beta = getattr(module, "group_size", 1), getattr(module, "beta", 0.0)
        config = module.policy_config
        options = {"output_dir": str(folder), "report_to": "none", "disable_tqdm": True, "use_cpu": device == "cpu"}
        options |= {"bf16": config.dtype == "bfloat16", "gradient_checkpointing": config.gradient_checkpointing}
        with torch.device(device):
            model = load_base(config)
        model.set_attn_implementation("sdpa")
        self.trainer = self.build(
            options,
            model=model,
            peft_config=copy.deepcopy(module.policy.peft.peft_config[ADAPTER]),
            train_dataset=Dataset.from_dict(self.rows),
            processing_class=module.encoder.tokenizer,
        )
        self.trainer.current_gradient_accumulation_steps = 1
        self.model = self.trainer.model.to(device).train()
        if config.gradient_checkpointing:
            checkpoint_activations(self.model)
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.take(examples)

    def copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights by PEFT's names."""
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(weights[name])

    def take(self, examples: Sequence[Example]) -> None:
        """Learn from these examples from now on."""
        self.examples = list(examples)
        self.completion_tokens = sum(len(s.completion) for example in examples for s in example.sequences)
        if self.policy is not None:
            sequences = [s for example in examples for s in example.sequences]
            with self.policy.reference():
                logps = self.policy.token_logps(TokenBatch.of(sequences)).double().sum(1)
            self.reference = logps.float().view(-1, 2)

    def build(self, options: dict[str, Any], **kwargs: Any) -> Any:
        """Return the trainer."""
        raise TypeError(f"{type(self).__name__} has no trainer: override build")

    def loss(self, start: int, end: int) -> Tensor:
        """Compute the share of examples ``start`` to ``end`` in the loss of the step."""
        raise TypeError(f"{type(self).__name__} has no loss: override loss")

    def step(self, micro_batch_tokens: int) -> float:
        """Make the forward and backward passes of a step, with at most so many padded tokens at once."""
        self.model.zero_grad()
        longest = max(len(s) * len(example.sequences) for example in self.examples for s in example.sequences)
        total, size = 0.0, min(len(self.examples), max(1, micro_batch_tokens // longest))
        self.before(size)
        for start in range(0, len(self.examples), size):
            with self.trainer.accelerator.autocast():
                loss = self.loss(start, min(start + size, len(self.examples)))
            loss.backward()
            total += float(loss.detach())
        return total

    def before(self, size: int) -> None:
        """Compute what a step needs once, ``size`` examples at a time."""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last step by PEFT's names."""
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by PEFT's names."""
        return dict(self.model.named_parameters())

    def logps(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compute the log-probability of every completion token, one sequence at a time."""
        with torch.no_grad():
            return [self.scored(Padded.of([s], self.device))[0, -len(s.completion) :] for s in sequences]

    def scored(self, batch: Padded) -> Tensor:
        """Compute log-probabilities, 0 outside of completions, [N, L - 1]."""
        out = self.model(batch.ids, attention_mask=batch.attention, labels=batch.labels, fused_lm_head=True)
        return out.log_probs

    def batch(self, start: int, end: int) -> tuple[list[Example], Padded]:
        """Return examples, and their sequences: all first ones, then all second ones."""
        part = self.examples[start:end]
        sides = zip(*(example.sequences for example in part), strict=True)
        return part, Padded.of([sequence for side in sides for sequence in side], self.device)


class TrlSFT(Trl):
    """TRL's SFTTrainer, on completions only."""

    rows: ClassVar[dict[str, list[str]]] = {"prompt": ["a"], "completion": ["b"]}

    def build(self, options: dict[str, Any], **kwargs: Any) -> Any:
        """Return the trainer."""
        import trl

        return trl.SFTTrainer(args=trl.SFTConfig(completion_only_loss=True, **options), **kwargs)

    def loss(self, start: int, end: int) -> Tensor:
        """Compute the share of some examples in the mean over completion tokens."""
        _, batch = self.batch(start, end)
        inputs = {"input_ids": batch.ids, "attention_mask": batch.attention, "labels": batch.labels}
        return self.trainer.compute_loss(self.model, inputs, num_items_in_batch=self.completion_tokens)


class TrlDPO(Trl):
    """TRL's DPOTrainer."""

    rows: ClassVar[dict[str, list[str]]] = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}

    def build(self, options: dict[str, Any], **kwargs: Any) -> Any:
        """Return the trainer."""
        import trl

        return trl.DPOTrainer(args=trl.DPOConfig(beta=0.1, **options), **kwargs)

    def loss(self, start: int, end: int) -> Tensor:
        """Compute the share of some pairs in the mean over pairs."""
        part, batch = self.batch(start, end)
        inputs = {"input_ids": batch.ids, "attention_mask": batch.attention}
        inputs["completion_mask"] = (batch.labels != IGNORED).long()
        self.trainer.precompute_ref_logps = self.policy is not None
        if self.policy is not None:
            chosen, rejected = self.reference[start:end].unbind(1)
            inputs |= {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        return self.trainer._compute_loss(self.model, inputs, return_outputs=False) * len(part) / len(self.examples)


class TrlORPO(Trl):
    """TRL's experimental ORPOTrainer."""

    rows: ClassVar[dict[str, list[str]]] = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}

    def build(self, options: dict[str, Any], **kwargs: Any) -> Any:
        """Return the trainer."""
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        return ORPOTrainer(args=ORPOConfig(beta=0.1, max_length=None, **options), **kwargs)

    def scored(self, batch: Padded) -> Tensor:
        """Compute log-probabilities from all logits, [N, L - 1]."""
        logits = self.model(batch.ids, attention_mask=batch.attention).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, batch.ids[:, 1:, None])[..., 0]

    def loss(self, start: int, end: int) -> Tensor:
        """Compute the share of some pairs in the mean of the odds term, and in the mean over chosen tokens."""
        part, _ = self.batch(start, end)
        inputs: dict[str, Tensor] = {}
        for side, name in enumerate(("chosen", "rejected")):
            batch = Padded.of([example.sequences[side] for example in part], self.device)
            inputs |= {f"{name}_input_ids": batch.ids, f"{name}_attention_mask": batch.attention}
            inputs[f"{name}_labels"] = batch.labels
        chosen, rejected, *_ = self.trainer.concatenated_forward(self.model, inputs)
        odds = -self.trainer.odds_ratio_loss(chosen, rejected)[0].sum() / len(self.examples)
        lengths = torch.tensor([len(example.sequences[0].completion) for example in part], device=self.device)
        total = sum(len(example.sequences[0].completion) for example in self.examples)
        return odds - (chosen * lengths).sum() / total  # the log-probabilities are means over the completion


class TrlGRPO(Trl):
    """TRL's GRPOTrainer, on answers that are there; it pads all answers of a step to the longest."""

    rows: ClassVar[dict[str, list[str]]] = {"prompt": ["a"]}

    def build(self, options: dict[str, Any], **kwargs: Any) -> Any:
        """Return the trainer."""
        import trl

        settings = {"per_device_train_batch_size": self.group, "num_generations": self.group, "loss_type": "grpo"}
        # By default TRL multiplies its KL by the ratio, which the paper does not.
        args = trl.GRPOConfig(use_bias_correction_kl=False, epsilon=0.2, beta=0.0, **settings, **options)
        return trl.GRPOTrainer(args=args, reward_funcs=lambda **_: [0.0], **kwargs)

    def before(self, size: int) -> None:
        """Pad all answers, and compute the reference, as TRL does where answers are sampled."""
        sequences = [example.sequences[0] for example in self.examples]
        prompts, answers = [s.prompt for s in sequences], [s.completion for s in sequences]
        self.inputs = {
            "prompt_ids": padded(prompts, self.device, side="left"),
            "prompt_mask": padded([[1] * len(row) for row in prompts], self.device, side="left"),
            "completion_ids": padded(answers, self.device),
            "completion_mask": padded([[1] * len(row) for row in answers], self.device),
            "advantages": torch.tensor([example.advantages[0] for example in self.examples], device=self.device),
        }
        self.trainer.beta = self.beta
        if self.beta:
            whole = [torch.cat([self.inputs[f"{x}_{y}"] for x in ("prompt", "completion")], 1) for y in ("ids", "mask")]
            keep = self.inputs["completion_ids"].shape[1]
            with torch.no_grad(), self.model.disable_adapter():
                logps = self.trainer._get_per_token_logps_and_entropies(self.model, *whole, keep, size)[0]
            self.inputs["ref_per_token_logps"] = logps

    def loss(self, start: int, end: int) -> Tensor:
        """Compute the share of some answers in the mean over answers."""
        part = {name: value[start:end] for name, value in self.inputs.items()}
        return self.trainer._compute_loss(self.model, part) * (end - start) / len(self.examples)


TRAINERS: dict[str, type[Trl]] = {"SFT": TrlSFT, "DPO": TrlDPO, "ORPO": TrlORPO, "GRPO": TrlGRPO}
"""The trainer of each objective that TRL has."""
