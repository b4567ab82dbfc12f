"""The family of objectives that learn from answers the policy writes itself, judged while it trains."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lovec.evaluation.evaluator import label
from lovec.losses import TokenMean, importance_weights, row_means
from lovec.metrics.functional import entropy
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.policy import TokenSequence
from lovec.randomness import stream_seed
from lovec.rewards import LogReward, Reward, answer_reward, sentence_rewards
from lovec.taggers.freeform import read_answer
from lovec.tags import parse
from lovec.types import N_SCORES, Completion, LossOutput, LovecError, Record, Sampling, Term, to_rating

Credit = Literal["answer", "sentence"]


class RolloutModule(PolicyModule):
    """Samples a group of answers to every question, rewards their scores, and learns from how they compare.

    A subclass overrides ``token_loss``, and ``advantages`` where groups are compared in another way. A step is whole:
    rollouts are made, judged and learned from within one ``training_step``, so no checkpoint holds half of one.

    Args:
        reward: what a score is worth; null is the paper's log reward.
        group_size: answers sampled a question (G).
        temperature: of sampling, and of the probabilities in the loss.
        max_new_tokens: longest answer, in tokens.
        inner_epochs: optimiser steps a batch of rollouts is learned from (mu).
        normalisation: how a row's tokens are averaged: "sequence" (the paper: over each answer, then over answers),
            "token" (over all tokens; DAPO), "constant" (over ``max_new_tokens``; Dr. GRPO).
        credit: what a token is credited with: the reward of its "answer" (the paper), or of its "sentence", compared
            with all sentences of the group.
        empty: reward of an answer without any sentence.
        importance_cap: where the engine runs a copy of the policy with arithmetic of its own (vLLM), advantages are
            multiplied by truncated importance weights, at most this large; null leaves them as they are. With an
            engine that runs the policy's own model there is nothing to correct.
        kwargs: arguments of ``PolicyModule``.
    """

    probes = False  # its rollouts show what a probe would

    def __init__(
        self,
        reward: Reward | None = None,
        group_size: int = 8,
        temperature: float = 1.0,
        max_new_tokens: int = 512,
        inner_epochs: int = 1,
        normalisation: TokenMean = "sequence",
        credit: Credit = "answer",
        empty: float = -60.0,
        importance_cap: float | None = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if group_size < 2 or inner_epochs < 1 or not temperature > 0:
            raise LovecError(
                f"group_size is {group_size}, inner_epochs {inner_epochs} and temperature {temperature}; expected at "
                "least 2 answers to compare, at least 1 epoch, and a temperature above 0"
            )
        if importance_cap is not None and not importance_cap > 0:
            raise LovecError(f"importance_cap is {importance_cap}, expected a number above 0, or null for no weights")
        for name, value, known in (("credit", credit, Credit), ("normalisation", normalisation, TokenMean)):
            if value not in get_args(known):
                raise LovecError(f"{name} is {value!r}, expected one of {', '.join(get_args(known))}")
        self.reward = reward or LogReward()
        self.group_size = group_size
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.updates_per_batch = inner_epochs
        self.normalisation = normalisation
        self.credit = credit
        self.empty = empty
        self.importance_cap = importance_cap

    # What an objective gives

    def advantages(self, rewards: Tensor) -> Tensor:
        """How much better each rollout is than the others of its group: [P, G] from rewards [P, G]."""
        raise TypeError(f"{type(self).__name__} has no advantages: override advantages(rewards)")

    def token_loss(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None, advantages: Tensor
    ) -> Tensor:
        """Loss of every sampled token, all [N, T]; the reference is None where ``needs_reference`` is False.

        The advantages hold the importance weights, where there are any: the loss is to be linear in them.
        """
        raise TypeError(f"{type(self).__name__} has no loss: override token_loss")

    def figures(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None
    ) -> dict[str, Tensor]:
        """Figures of every sampled token to log, [N, T], without gradient; here none."""
        return {}

    # Rollouts

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """One batch of rollouts, learned from ``inner_epochs`` times."""
        examples = self.rollouts(rows)
        self._log_scores(examples)
        for _ in range(self.updates_per_batch):
            yield examples

    def rollouts(self, rows: Sequence[Record]) -> list[Example]:
        """``group_size`` judged answers to every question, side by side, with advantages in ``data``.

        Raises:
            LovecError: there is no oracle, no question fits the context, or a reward is not a finite number.
        """
        oracle = self.evaluator.oracle
        if oracle is None:
            raise LovecError(
                f"{type(self).__name__} needs an oracle to judge new answers, and the data has none: give "
                "--model.oracle, such as lovec.oracles.SelfJudge"
            )
        prompts = self._prompts(rows)
        self.engine.sync(self.policy)
        sampling = Sampling(
            self.max_new_tokens, self.temperature, self.group_size, stream_seed(self.seed, self.global_step)
        )
        groups = self.engine.generate(
            [prompt for _, prompt in prompts], sampling, self.encoder.stop_ids, keys=[row.id for row, _ in prompts]
        )
        completions = [completion for group in groups for completion in group]
        sources = [source for source in prompts for _ in range(self.group_size)]
        answers = [read_answer(row, c, self.encoder) for (row, _), c in zip(sources, completions, strict=True)]
        answers = [label(answer, rates) for answer, rates in zip(answers, oracle.rate(answers), strict=True)]
        examples = []
        for start in range(0, len(answers), self.group_size):
            group = slice(start, start + self.group_size)
            credits, even = self._credit(answers[group], completions[group])
            for (_, prompt), completion, answer, credit in zip(
                sources[group], completions[group], answers[group], credits, strict=True
            ):
                data: dict[str, Any] = {
                    "advantages": credit,
                    "figures": self._figures(answer) | {"zero_variance": float(even)},
                }
                if not self.engine.shares_model:
                    data["sampler"] = completion.logps
                examples.append(Example((TokenSequence(tuple(prompt), completion.ids),), answer, data))
        return examples

    def _prompts(self, rows: Sequence[Record]) -> list[tuple[Record, list[int]]]:
        """Rows with their prompts; those that leave no room for an answer are left out, with one notice each."""
        prompts = [(row, self.encoder.prompt(row.question)) for row in rows]
        kept = [(row, prompt) for row, prompt in prompts if len(prompt) < self.policy.max_length]
        for row, prompt in prompts:
            if len(prompt) >= self.policy.max_length and row.id not in self._shortened:
                self._shortened.add(row.id)
                rank_zero_warn(
                    f"{row.id}: the prompt has {len(prompt)} tokens and leaves no room for an answer in a context of "
                    f"{self.policy.max_length}; it is left out ({len(self._shortened)} so far)"
                )
        if not kept:
            raise LovecError(
                f"no question of this batch fits the context of {self.policy.max_length} tokens; shorten them, or "
                "raise policy.max_length"
            )
        return kept

    def _credit(self, answers: Sequence[Record], completions: Sequence[Completion]) -> tuple[list[list[float]], bool]:
        """Advantages of every token of a group's answers; whether all rewards of the group are equal."""
        if self.credit == "answer":
            rewards = [self._reward(answer) for answer in answers]
            found = self.advantages(_filled(rewards)[None])[0].tolist()
            return [[a] * len(c.ids) for a, c in zip(found, completions, strict=True)], _even(rewards)
        parts = [self._sentence_rewards(answer) for answer in answers]
        pooled = [reward for part in parts for reward in part]
        flat = iter(self.advantages(_filled(pooled)[None])[0].tolist())
        credits = []
        for part, completion in zip(parts, completions, strict=True):
            own = [next(flat) for _ in part]
            credits.append(self._spread(own, completion))
        return credits, _even(pooled)

    def _reward(self, answer: Record) -> float | None:
        """Reward of a whole answer; None where nothing in it could be judged."""
        if not answer.sentences:
            return self.empty
        return answer_reward(self.reward, *_scores_and_ratings(answer))

    def _sentence_rewards(self, answer: Record) -> list[float | None]:
        """Rewards of an answer's sentences; of an answer without any, the one for that."""
        if not answer.sentences:
            return [self.empty]
        return sentence_rewards(self.reward, *_scores_and_ratings(answer))

    def _spread(self, credits: Sequence[float], completion: Completion) -> list[float]:
        """The credit of each sentence on its tokens, tag included; the end token gets their mean."""
        text = self.encoder.decode(completion.ids)
        parsed = parse(text, self.encoder.tags)
        tokens = len(completion.ids) - completion.finished
        ends = list(accumulate(len(sentence.raw) for sentence in parsed.sentences))
        # The first token behind which the text holds the whole sentence is its last; an untagged tail takes the rest.
        cuts = [
            bisect_left(range(tokens), end, key=lambda n: len(self.encoder.decode(completion.ids[: n + 1]))) + 1
            for end in ends
        ]
        if len(credits) > len(cuts) or not cuts:
            cuts.append(tokens)
        cuts[-1] = tokens
        spread = [credits[0]] * cuts[0]
        for credit, cut in zip(credits[1:], cuts[1:], strict=True):
            spread += [credit] * (cut - len(spread))
        return spread + [sum(credits) / len(credits)] * (len(completion.ids) - tokens)

    def _figures(self, answer: Record) -> dict[str, float | None]:
        """What is logged of one answer; None where it is not defined."""
        judged = [s.factuality for s in answer.sentences if s.factuality is not None]
        stated = [s.confidence for s in answer.sentences if s.confidence is not None]
        count = len(answer.sentences)
        return {
            "reward": self._reward(answer),
            "factuality": sum(judged) / len(judged) if judged else None,
            "confidence": sum(stated) / len(stated) if stated else None,
            "malformed": 1.0 - len(stated) / count if count else 1.0,
            "words": float(sum(len(s.text.split()) for s in answer.sentences)),
            "finished": float(answer.meta["finished"]),
        }

    def _log_scores(self, examples: Sequence[Example]) -> None:
        """Entropy (nats) and number of the distinct scores stated in all rollouts: a collapse shows here first."""
        stated = [s.score for example in examples for s in example.record.sentences if s.score is not None]
        counts = self._sum({str(score): float(stated.count(score)) for score in range(N_SCORES)})
        scores = torch.tensor([counts[str(score)] for score in range(N_SCORES)])
        distinct = float((scores > 0).sum()) if scores.any() else float("nan")
        self.log("train/entropy", float(entropy(scores)), batch_size=len(examples))
        self.log("train/distinct", distinct, batch_size=len(examples))

    # Learning

    def loss(self, batch: Batch) -> LossOutput:
        """The token loss, averaged as ``normalisation`` says."""
        mask = batch.tokens.mask
        token_logps = self.token_logps(batch, self.temperature)
        old = self._old(batch, token_logps)
        ref = self.reference_token_logps(batch, self.temperature) if self.needs_reference else None
        advantages = batch.tokens.padded([example.data["advantages"] for example in batch.examples])
        metrics: dict[str, Term] = {}
        peaks: dict[str, Tensor] = {}
        if "sampler" in batch.examples[0].data:
            sampler = batch.tokens.padded([example.data["sampler"] for example in batch.examples])
            apart = (old - sampler).abs()
            metrics["mismatch"] = Term(apart, mask, per="token")
            peaks["mismatch_max"] = apart
            if self.importance_cap is not None:
                weights = importance_weights(old, sampler, self.importance_cap)
                metrics["weight"] = Term(weights, mask, per="token")
                advantages = weights * advantages
        values = self.token_loss(token_logps, old, ref, advantages)
        if self.normalisation == "token":
            term = Term(values, mask, per="token")
        else:
            length = None if self.normalisation == "sequence" else self.max_new_tokens
            term = Term(row_means(values, mask, length), batch.ones(), per="row")
        figures = self.figures(token_logps.detach(), old, ref)
        metrics.update({name: Term(values, mask, per="token") for name, values in figures.items()})
        for name in batch.examples[0].data["figures"]:
            found = [example.data["figures"][name] for example in batch.examples]
            known = torch.tensor([value is not None for value in found], device=mask.device, dtype=torch.float64)
            numbers = torch.tensor([value or 0.0 for value in found], device=mask.device, dtype=torch.float64)
            metrics[name] = Term(numbers, known, per="row")
        return LossOutput({"policy": term}, metrics, peaks)

    def _old(self, batch: Batch, token_logps: Tensor) -> Tensor:
        """Log-probs under the policy that sampled: in the first round those of now, kept for the later ones.

        So no forward pass is spent on them, and on-policy ratios are 1 to the last bit.
        """
        if "old" in batch.examples[0].data:
            return batch.tokens.padded([example.data["old"] for example in batch.examples])
        old = token_logps.detach()
        if self.updates_per_batch > 1:
            for example, row in zip(batch.examples, old, strict=True):
                example.data["old"] = row[: len(example.sequences[0].completion)].tolist()
        return old

    def configure_callbacks(self) -> list[Any]:
        """Steps and checkpoints must not cut the inner epochs of a batch."""
        trainer: Any = self.trainer
        mu = self.updates_per_batch
        intervals = [c._every_n_train_steps for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
        for name, value in (("trainer.max_steps", trainer.max_steps), *(("every_n_train_steps", n) for n in intervals)):
            if value > 0 and value % mu:
                raise LovecError(f"{name} is {value}, expected a multiple of inner_epochs, {mu}")
        return super().configure_callbacks()


def _scores_and_ratings(answer: Record) -> tuple[list[int | None], list[int | None]]:
    ratings = [None if s.factuality is None else to_rating(s.factuality) for s in answer.sentences]
    return [s.score for s in answer.sentences], ratings


def _filled(rewards: Sequence[float | None]) -> Tensor:
    """Rewards as float64; what could not be judged gets the mean of the others, and so an advantage of zero."""
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / len(known) if len(set(known)) > 1 else (*known, 0.0)[0]  # of equals to the last bit
    return torch.tensor([mean if reward is None else reward for reward in rewards], dtype=torch.float64)


def _even(rewards: Sequence[float | None]) -> bool:
    """Whether there is nothing to learn from: no two rewards differ."""
    return len({reward for reward in rewards if reward is not None}) <= 1
