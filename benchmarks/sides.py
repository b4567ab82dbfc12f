"""What is compared: a training step of lovec, or of a peer, on the same weights and the same token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lovec.callbacks import Probe
from lovec.datamodules import RecordsDataModule
from lovec.datasets.pairs import with_rejected
from lovec.encoding import Scoring, distinct_prefixes
from lovec.modules import DPO, GRPO, ORPO, SFT, EvaluationConfig, ExpectedReward, PolicyConfig, SFTRegression
from lovec.modules.base import ratings
from lovec.modules.batching import Example
from lovec.modules.rollout import RolloutExample
from lovec.policy import TokenBatch, TokenSequence
from lovec.types import Record, Sentence

OBJECTIVES: dict[str, Any] = {
    "SFT": SFT,
    "DPO": DPO,
    "ORPO": ORPO,
    "GRPO": GRPO,
    "ExpectedReward": partial(ExpectedReward, context="true"),
    "SFTRegression": SFTRegression,
}
"""The objectives that are measured; expected reward takes the true scores as context, so that nothing is sampled."""
WHOLE, SMALLEST = 1 << 30, 1
"""Token budgets of a micro-batch: everything at once, and one example at a time."""


class Source(Protocol):
    """Where the model and the rows of a step come from."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def instruction(self) -> str | None:
        """System prompt, which all rows share; None is lovec's own."""

    @property
    def shorter(self) -> Source:
        """The same with shorter rows, on which sides are compared before anything is measured."""

    def model(self, folder: Path) -> str:
        """Return the name of the model, which may be written to a folder."""

    def answers(self, questions: int, group: int, encoder: Any) -> list[Record]:
        """Return labelled pairs, ``group`` answers to every question."""


class Side(Protocol):
    """One of the sides that are compared."""

    parameters: list[Tensor]
    """All weights."""

    def take(self, examples: Sequence[Example]) -> None:
        """Learn from these examples from now on."""

    def step(self, micro_batch_tokens: int) -> float:
        """Make the forward and backward passes of a step; return the loss."""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last step by PEFT's names."""

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by PEFT's names."""

    def logps(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compute the log-probability of every completion token."""


@dataclass(frozen=True)
class Case:
    """A step that is measured.

    Attributes:
        objective: a name in ``OBJECTIVES``.
        source: where model and rows come from.
        rows: rows or pairs of the step; questions, for GRPO.
        group: answers per question, for GRPO; else 1.
        beta: weight of the KL term, for GRPO.
        timed: whether CPU time is measured, and not only counts.
        scoring: what is scored at a tag.
    """

    objective: str
    source: Source
    rows: int = 8
    group: int = 1
    beta: float = 0.04
    timed: bool = False
    scoring: Scoring = "exact"

    @property
    def setting(self) -> str:
        """What tables call it."""
        sampled = f", {self.rows} x {self.group}, KL {self.beta:g}" if self.objective == "GRPO" else ""
        scored = ", first tokens" if self.scoring == "prefix" else ""
        return f"{self.source.name}{sampled}{scored}"

    @property
    def compared(self) -> Case:
        """The step on which sides are compared before anything is measured: fewer and shorter rows.

        TRL sums log-probabilities in float32, so that its rounding grows with the length of a completion.
        """
        return replace(self, source=self.source.shorter, rows=min(self.rows, 4), group=min(self.group, 4))

    def examples(self, module: Any) -> list[Example]:
        """Return the step's examples; answers of GRPO have advantages that differ."""
        rows = self.source.answers(self.rows, self.group, module.encoder)
        if self.objective != "GRPO":
            return [module.example(row) for row in rows]
        examples = []
        for number, row in enumerate(rows):
            sequence = module.tagged(row, ratings(row))
            advantage = 1.0 - number % self.group / self.group  # of one sign: a mean of nearly 0 could not be compared
            examples.append(RolloutExample((sequence,), row, number, [advantage] * len(sequence.completion), {}))
        return examples


class _OneRow(RecordsDataModule):
    """Serves a record that nothing is learned from."""

    def __init__(self, instruction: str | None) -> None:
        super().__init__(batch_size=1)
        self._instruction = instruction

    @property
    def instruction(self) -> str | None:
        return self._instruction

    def load(self, split: str) -> list[Record]:
        sentences = (Sentence("Yes.", factuality=1.0),)
        return [with_rejected(Record("r", "Yes?", sentences=sentences), seed=0)]


_STILL = partial(torch.optim.SGD, lr=0.0)


class Lovec:
    """A step of lovec, as a training run makes it.

    Args:
        case: what is measured.
        model: name of the model.
        folder: what the trainer may write to.
        optimizer: creates the optimiser; one at rate 0 lets every step begin with the same weights.
        options: further settings of the policy, such as whether prefixes are shared.
    """

    def __init__(
        self,
        case: Case,
        model: str,
        folder: Path,
        optimizer: Any = _STILL,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        sampled = {"group_size": case.group, "beta": case.beta} if case.objective == "GRPO" else {}
        self.module = OBJECTIVES[case.objective](
            policy=PolicyConfig(
                model=model, instruction=case.source.instruction, **{"scoring": case.scoring} | options
            ),
            optimizer=optimizer,
            evaluation=EvaluationConfig(rows=1),
            grad_norm=0,
            **sampled,
        )
        self.logged: dict[str, float] = {}
        self.module.log = lambda name, value, **_: self.logged.update({name: value})
        self.module.log_dict = lambda values, **_: None
        Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            max_steps=0,
            callbacks=[Probe(every=0)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(self.module, _OneRow(case.source.instruction))
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.module.policy.trainable():  # a fresh adapter has no effect, and half of its gradients are 0
                p.add_(0.02 * torch.randn(p.shape, generator=noise))
        self.parameters = list(self.module.policy.parameters())
        self.take(case.examples(self.module))
        self._gradients: list[Tensor] = []
        self.module.optimizers().optimizer.register_step_pre_hook(self._keep_gradients)

    def take(self, examples: Sequence[Example]) -> None:
        """Learn from these examples from now on."""
        self.examples = list(examples)

    @property
    def config(self) -> dict[str, Any]:
        """Values of the transformers config."""
        return self.module.policy.model.config.to_dict()

    @property
    def reference(self) -> bool:
        """Whether the loss uses the reference."""
        return getattr(self.module, "needs_reference", False)

    @property
    def sequences(self) -> list[TokenSequence]:
        """All sequences that are learned from."""
        return [sequence for example in self.examples for sequence in example.sequences]

    @property
    def choices(self) -> list[TokenSequence]:
        """What has to be predicted of the scores, each after what precedes it: the first tokens that no other has."""
        return [
            TokenSequence((*s.prompt, *s.completion[:start]), tuple(tail))
            for example in self.examples
            for s in example.sequences
            for start in getattr(example, "tag_positions", ())
            for tail in distinct_prefixes(self.module.encoder.tails)
        ]

    def step(self, micro_batch_tokens: int) -> float:
        """Make one optimiser step, at rate 0; return the loss."""
        self.module.micro_batch_tokens = micro_batch_tokens
        self.module.update(self.examples)
        return self.logged["train/loss"]

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last step."""
        names = {id(p): name for name, p in self.weights().items()}
        return {names[id(p)]: p_grad for p, p_grad in zip(self.module.policy.trainable(), self._gradients, strict=True)}

    def forget(self) -> None:
        """Let go of the gradients of the last step."""
        self._gradients = []

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by PEFT's names."""
        return dict(self.module.policy.peft.named_parameters())

    def logps(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compute the log-probability of every completion token."""
        batch = TokenBatch.of(sequences)
        with torch.no_grad():
            rows = self.module.policy.token_logps(batch)
        return [row[: len(s.completion)] for row, s in zip(rows, sequences, strict=True)]

    def _keep_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
