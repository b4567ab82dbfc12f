"""The family of objectives that learn from answers which the policy writes during training and an oracle rates."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from lovec.core.notices import DoublingWarning
from lovec.core.randomness import stream_seed
from lovec.core.settings import Count, CountFromTwo, Finite, Positive
from lovec.datasets.stored import RecordSize
from lovec.evaluation.evaluator import label
from lovec.evaluation.processes import reduce_over_processes
from lovec.losses import TokenMean, importance_weights, row_means
from lovec.metrics.functional import entropy
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.modules.distributed import even_groups
from lovec.policy import TokenSequence
from lovec.rewards import AnswerReward, LogReward, Reward, answer_reward, mean_reward, sentence_rewards, with_scale
from lovec.taggers.freeform import read_answer
from lovec.tags import TaggedText
from lovec.types import Completion, LossOutput, LovecError, Record, Sampling, Term

log = logging.getLogger(__name__)

Credit = Literal["answer", "sentence", "tag"]


@dataclass(frozen=True, slots=True)
class RolloutExample(Example):
    """A sampled answer.

    Attributes:
        number: index among the answers of the batch on this process.
        advantages: advantage of every completion token, [T].
        metrics: what is logged of the answer; None where a value is undefined.
        sampler_logps: log-probability of every completion token as the engine that sampled it returned it, [T]; None
            where the engine runs the policy's own model, at the temperature of the loss.
    """

    number: int
    advantages: list[float]
    metrics: dict[str, float | None]
    sampler_logps: Sequence[float] | None = None


class RolloutModule(PolicyModule):
    """Samples a group of answers to every question, rewards their scores, and learns from how they compare.

    A subclass overrides ``token_loss``, and ``advantages`` where it compares answers in another way. Answers are
    sampled, rated and learned from within one ``training_step``, so a checkpoint never falls in between.

    Args:
        reward: what a score is worth; null is the paper's log reward.
        answer_reward: what a whole answer is worth, which may depend on its text. It is added to the mean of the
            sentences' rewards (with credit "sentence", to the reward of each sentence). Null adds nothing.
        group_size: answers sampled per question (G).
        temperature: of sampling, and of the probabilities in the loss unless ``loss_temperature`` is given.
        loss_temperature: of the probabilities in the loss; null is ``temperature``. With another one, such as 1, the
            policy at that temperature is trained on samples that are not its own, which ``importance_cap`` corrects.
        max_new_tokens: longest answer, in tokens; null is that of ``evaluation``. An answer that it cuts has no end of
            turn to be credited, and its last sentence, which has no tag yet, the reward of one without a valid tag: so
            answers learn to end in time, and a limit below the length of good answers does harm.
        inner_epochs: optimiser steps per batch of rollouts (mu).
        normalisation: how the loss is averaged over tokens: "sequence" (the paper: over each answer, then over
            answers), "token" (over all tokens; DAPO), "constant" (each answer's sum over ``max_new_tokens``; Dr. GRPO).
        credit: whose reward a token is credited with: that of its "answer" (the paper), compared with the other
            answers of the group; that of its "sentence", compared with all sentences of the group; or with "tag" the
            same, on the tokens of tags only, so that the text is not changed for the sake of the scores (a sentence
            without a tag is credited as a whole).
        empty: reward of an answer without any sentence.
        importance_cap: where the engine runs a copy of the policy whose arithmetic differs (vLLM), or samples at
            another temperature than that of the loss, advantages are multiplied by truncated importance weights, at
            most this large; null leaves them unweighted. An engine that runs the policy's own model needs no weights.
        kwargs: arguments of ``PolicyModule``.

    Attributes:
        reward_std: standard deviation (with Bessel's correction) of all rewards of the present batch of rollouts, over
            all processes; those of answers, or of sentences where ``credit`` is not "answer". 0 before the first batch,
            and where there are fewer than two.
    """

    probes = False  # its rollouts show what a probe would

    def __init__(
        self,
        reward: Reward | None = None,
        answer_reward: AnswerReward | None = None,
        group_size: CountFromTwo = 8,
        temperature: Positive = 1.0,
        loss_temperature: Positive | None = None,
        max_new_tokens: Count | None = None,
        inner_epochs: Count = 1,
        normalisation: TokenMean = "sequence",
        credit: Credit = "answer",
        empty: Finite = -60.0,
        importance_cap: Positive | None = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reward = with_scale(reward or LogReward(), self.scale)
        self.answer_reward = answer_reward
        self.group_size = group_size
        self.temperature = temperature
        self.loss_temperature = temperature if loss_temperature is None else loss_temperature
        self.max_new_tokens = max_new_tokens or self.evaluation.max_new_tokens
        self.updates_per_batch = inner_epochs
        self.normalisation = normalisation
        self.credit = credit
        self.empty = empty
        self.importance_cap = importance_cap
        self.reward_std = 0.0
        self._left_out = DoublingWarning(
            log, "%d questions so far are left out, since policy.max_length leaves no room for an answer: %s"
        )
        self._little_room = DoublingWarning(
            log,
            f"%d questions so far leave less room than max_new_tokens {self.max_new_tokens} in policy.max_length or "
            "the model's context, so long answers to them are cut: %s",
        )
        self._notices.append(self._little_room)
        self._rollouts: Sequence[RolloutExample] = ()  # the present batch of them
        self._old_logps: dict[int, list[float]] = {}  # of these, by the number of the example

    def asks_oracle(self, stage: str) -> bool:
        """Return whether a stage asks the oracle, which rates the answers of every training step."""
        return super().asks_oracle(stage) or stage == "fit"

    # What an objective defines

    def advantages(self, rewards: Tensor) -> Tensor:
        """Compute how much better each reward is than the others of its row.

        With credit "answer" this is called once per batch, with the rewards of all P questions of this process, G
        answers each. With credit "sentence" or "tag" it is called once per question, with the rewards of the S
        sentences of all its answers, [1, S]: questions differ in S. ``reward_std`` is that of the whole batch.

        Args:
            rewards: [P, G] or [1, S], float64, finite. An answer or a sentence that could not be judged has the mean of
                its row.

        Returns:
            Advantages in the shape of ``rewards``.
        """
        raise TypeError(f"{type(self).__name__} has no advantages: override advantages(rewards)")

    def token_loss(
        self,
        token_logps: Tensor,
        old_token_logps: Tensor,
        ref_token_logps: Tensor | None,
        advantages: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Compute the loss of every sampled token.

        Args:
            token_logps: log-probabilities under the policy, [N, T], 0 where masked.
            old_token_logps: log-probabilities under the policy that sampled, without gradient, [N, T].
            ref_token_logps: log-probabilities under the reference, without gradient, [N, T]; None where
                ``needs_reference`` is False.
            advantages: [N, T], multiplied by importance weights where there are any; the loss must be linear in them.
            mask: 1 on sampled tokens, [N, T], for losses that depend on a whole sequence.

        Returns:
            [N, T]; ``normalisation`` says how it is averaged.
        """
        raise TypeError(f"{type(self).__name__} has no loss: override token_loss")

    def token_metrics(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute further values to log as means over sampled tokens, by name, [N, T] without gradient; here none."""
        return {}

    # Rollouts

    @property
    def longest_answer(self) -> int:
        """The most tokens that answers may have, in training or validation."""
        return min(self.max_new_tokens, super().longest_answer)

    def work(self, rows: Sequence[Record]) -> float:
        """Return the number of questions: how long their answers become is not known."""
        return float(len(rows))

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[RolloutExample]]:
        """Yield one batch of rollouts, ``inner_epochs`` times."""
        examples = self.rollouts(rows)
        self._log_scores(examples)
        for _ in range(self.updates_per_batch):
            yield examples

    def rollouts(self, rows: Sequence[Record]) -> list[RolloutExample]:
        """Sample ``group_size`` answers to every question, have them rated, and compute their tokens' advantages.

        Raises:
            LovecError: there is no oracle, no question fits the context, or a reward is not a finite number.
        """
        self._old_logps.clear()
        oracle = self.evaluator.oracle
        if oracle is None:
            raise LovecError(
                f"{type(self).__name__} needs an oracle to judge new answers, and the data has none: give "
                "--model.oracle, such as lovec.oracles.SelfJudge"
            )
        prompts = self._prompts(rows)
        self.engine.sync(self.policy)
        groups = self._sampled(prompts)
        sampled = [(row, prompt, c) for (row, prompt), group in zip(prompts, groups, strict=True) for c in group]
        read = [read_answer(row, completion, self.encoder) for row, _, completion in sampled]
        answers = label([answer for answer, _ in read], oracle)
        rewards = [self._rewards(answer) for answer in answers]
        units = [[mean_reward(values)] if self.credit == "answer" else values for values in rewards]
        unit_advantages, zero_variance = self._compare(units)
        as_sampled = self.engine.shares_model and self.loss_temperature == self.temperature
        examples = []
        for number, ((_, prompt, completion), (_, text), answer) in enumerate(zip(sampled, read, answers, strict=True)):
            metrics = self._answer_metrics(answer, mean_reward(rewards[number]))
            metrics["zero_variance"] = float(zero_variance[number // self.group_size])
            if self.credit == "answer":
                advantages = unit_advantages[number] * len(completion.ids)
            else:
                advantages = self._spread(unit_advantages[number], text, completion)
            sequence = TokenSequence(tuple(prompt), completion.ids)
            logps = None if as_sampled else completion.logps
            examples.append(RolloutExample((sequence,), answer, number, advantages, metrics, logps))
        self._rollouts = examples
        return examples

    def _sampled(self, prompts: Sequence[tuple[Record, list[int]]]) -> list[list[Completion]]:
        """Sample answers to every prompt; none becomes longer with its prompt than ``policy.max_length``."""
        sampling = Sampling(
            self.max_new_tokens, self.temperature, self.group_size, stream_seed(self.seed, self.global_step)
        )
        places: dict[int, list[int]] = defaultdict(list)
        for at, (_, prompt) in enumerate(prompts):
            places[min(self.max_new_tokens, self.policy.max_length - len(prompt))].append(at)
        found: dict[int, list[Completion]] = {}
        for limit, alike in sorted(places.items()):
            groups = self.engine.generate(
                [prompts[at][1] for at in alike],
                replace(sampling, max_new_tokens=limit),
                self.encoder.stop_ids,
                keys=[prompts[at][0].id for at in alike],
            )
            found.update(zip(alike, groups, strict=True))
        return [found[at] for at in range(len(prompts))]

    def _prompts(self, rows: Sequence[Record]) -> list[tuple[Record, list[int]]]:
        """Return the rows with their prompts, without those whose prompt leaves no room for an answer."""
        prompts = [(row, self.encoder.record_prompt(row, answered=False)) for row in rows]
        fitting = [(row, prompt) for row, prompt in prompts if len(prompt) < self.policy.max_length]
        for row, prompt in prompts:
            if len(prompt) >= self.policy.max_length:
                self._left_out.add(row.id)
        self._left_out.flush()
        if not fitting:
            raise LovecError(
                f"no question of this batch fits the context of {self.policy.max_length} tokens; shorten them, or "
                "raise policy.max_length"
            )
        return fitting

    def check_row(self, row: Record) -> None:
        """Raise a ``LovecError`` for a question that leaves no room for an answer; count those that leave little."""
        length, limit = len(self.encoder.record_prompt(row, answered=False)), self.policy.max_length
        if length >= limit:
            raise LovecError(
                f"{row.id}: the prompt has {length} tokens, and policy.max_length or the model's context is {limit}; "
                "leave the question out, shorten it, or raise policy.max_length"
            )
        if length + self.max_new_tokens > limit:
            self._little_room.add(row.id)

    def most_tokens(self, size: RecordSize) -> int | None:
        """Return the most tokens of a question and the longest answer to it."""
        if size.must_be_read or not self.encodes_as(RolloutModule):
            return None
        return self.encoder.most_tokens(size.question) + self.max_new_tokens

    def _rewards(self, answer: Record) -> list[float | None]:
        """Return the rewards of an answer's sentences, that of the whole answer added; None without a needed label.

        An answer without sentences counts as one sentence, whose reward is ``empty``.
        """
        ratings = [None if s.factuality is None else self.scale.nearest(s.factuality) for s in answer.sentences]
        rewards = sentence_rewards(self.reward, [s.score for s in answer.sentences], ratings) or [self.empty]
        if self.answer_reward is None:
            return rewards
        extra = answer_reward(self.answer_reward, answer)
        return [None if reward is None else reward + extra for reward in rewards]

    def _compare(self, units: Sequence[Sequence[float | None]]) -> tuple[list[list[float]], list[bool]]:
        """Compute advantages from the rewards of units, which are whole answers or sentences.

        Args:
            units: rewards of every answer's units, ``group_size`` answers per question one after the other.

        Returns:
            The advantages, like ``units``; and for every question, whether all its rewards are equal.
        """
        starts = range(0, len(units), self.group_size)
        pooled = [[reward for unit in units[i : i + self.group_size] for reward in unit] for i in starts]
        self.reward_std = self._std([reward for rewards in pooled for reward in rewards if reward is not None])
        filled = [_fill_unknown(rewards) for rewards in pooled]
        batches = [torch.stack(filled)] if self.credit == "answer" else [rewards[None] for rewards in filled]
        flat = iter([value for rewards in batches for value in self.advantages(rewards).flatten().tolist()])
        advantages = [[next(flat) for _ in unit] for unit in units]
        return advantages, [len(set(rewards) - {None}) <= 1 for rewards in pooled]

    def _std(self, rewards: Sequence[float]) -> float:
        """Return the standard deviation of the rewards of all processes; 0 where there are fewer than two."""
        sums = reduce_over_processes(self.trainer, {"count": len(rewards), "sum": math.fsum(rewards)}, sum)
        mean = sums["sum"] / max(1.0, sums["count"])
        squares = math.fsum((reward - mean) ** 2 for reward in rewards)
        total = reduce_over_processes(self.trainer, {"squares": squares}, sum)["squares"]
        return math.sqrt(total / max(1.0, sums["count"] - 1.0))

    def _spread(self, advantages: Sequence[float], text: TaggedText, completion: Completion) -> list[float]:
        """Give every token the advantage of its sentence, tag included, and the end token the mean of all sentences.

        With credit "tag", tokens before the opening tag word of their sentence have none, and the end token has none
        unless the last sentence has no tag.
        """
        tokens = len(completion.ids) - completion.finished
        lengths = [len(sentence.raw) for sentence in text.sentences]
        ends = list(accumulate(lengths, initial=len(text.thought)))[1:]
        # A sentence ends with the first token after which the text contains all of it; an untagged tail has the rest.
        texts = self.encoder.token_texts(completion.ids[:tokens])
        cuts = [texts.tokens_until(end, partly=True) for end in ends]
        if len(advantages) > len(cuts) or not cuts:
            cuts.append(tokens)
            ends.append(len(texts.text))
        cuts[-1] = tokens
        raws = [*(sentence.raw for sentence in text.sentences), ""][: len(cuts)]
        spread: list[float] = []
        last = sum(advantages) / len(advantages)
        for advantage, cut, end, raw in zip(advantages, cuts, ends, raws, strict=True):
            if self.credit == "tag":
                opening = raw.find(self.encoder.tags.open)
                # The token with the first character of the tag is the first after which the text is longer than that.
                begin = end - len(raw) + opening
                text_tokens = texts.tokens_until(begin + 1, partly=True) - 1 if opening >= 0 else 0
                spread += [0.0] * (text_tokens - len(spread))
                last = 0.0 if opening >= 0 else advantage
            spread += [advantage] * (cut - len(spread))
        return spread + [last] * (len(completion.ids) - tokens)

    def _answer_metrics(self, answer: Record, reward: float | None) -> dict[str, float | None]:
        """Compute what is logged of one answer; None where it is undefined."""
        factuality = [s.factuality for s in answer.sentences if s.factuality is not None]
        confidence = [s.confidence for s in answer.sentences if s.confidence is not None]
        count = len(answer.sentences)
        return {
            "reward": reward,
            "factuality": sum(factuality) / len(factuality) if factuality else None,
            "confidence": sum(confidence) / len(confidence) if confidence else None,
            "malformed": 1.0 - len(confidence) / count if count else 1.0,
            "words": float(sum(len(s.text.split()) for s in answer.sentences)),
            "cut_off": float(not answer.finished),
        }

    def _log_scores(self, examples: Sequence[RolloutExample]) -> None:
        """Log entropy (nats) and number of the distinct scores in all rollouts, which show a collapse first."""
        stated = [s.score for example in examples for s in example.record.sentences if s.score is not None]
        scores = range(self.scale.size)
        counts = reduce_over_processes(self.trainer, {str(score): float(stated.count(score)) for score in scores}, sum)
        histogram = torch.tensor([counts[str(score)] for score in scores])
        distinct = float((histogram > 0).sum()) if histogram.any() else float("nan")
        self.log("train/entropy", float(entropy(histogram)), batch_size=len(examples))
        self.log("train/distinct", distinct, batch_size=len(examples))

    # Learning

    def loss(self, batch: Batch[RolloutExample]) -> LossOutput:
        """Return the token loss, averaged as ``normalisation`` says."""
        examples, mask = batch.examples, batch.tokens.mask
        token_logps = self.token_logps(batch, self.loss_temperature)
        old = self._old_token_logps(batch, token_logps)
        ref = self.reference_token_logps(batch, self.loss_temperature) if self.needs_reference else None
        advantages = batch.tokens.padded([example.advantages for example in examples])
        metrics: dict[str, Term] = {}
        peaks: dict[str, Tensor] = {}
        sampler_logps = [example.sampler_logps for example in examples if example.sampler_logps is not None]
        if sampler_logps:
            sampler = batch.tokens.padded(sampler_logps)
            mismatch = (old - sampler).abs()
            metrics["mismatch"] = Term(mismatch, mask, per="token")
            peaks["mismatch_max"] = mismatch
            if self.importance_cap is not None:
                weights = importance_weights(old, sampler, self.importance_cap)
                metrics["weight"] = Term(weights, mask, per="token")
                advantages = weights * advantages
        values = self.token_loss(token_logps, old, ref, advantages, mask)
        if self.normalisation == "token":
            term = Term(values, mask, per="token")
        else:
            length = None if self.normalisation == "sequence" else self.max_new_tokens
            term = Term(row_means(values, mask, length), batch.ones(), per="row")
        for name, values in self.token_metrics(token_logps.detach(), old, ref).items():
            metrics[name] = Term(values, mask, per="token")
        for name in examples[0].metrics:
            numbers = [example.metrics[name] for example in examples]
            known = torch.tensor([value is not None for value in numbers], device=mask.device, dtype=torch.float64)
            filled = torch.tensor([value or 0.0 for value in numbers], device=mask.device, dtype=torch.float64)
            metrics[name] = Term(filled, known, per="row")
        return LossOutput({"policy": term}, metrics, peaks)

    def _old_token_logps(self, batch: Batch[RolloutExample], token_logps: Tensor) -> Tensor:
        """Return log-probs under the policy that sampled: the present ones in the first step, which later ones reuse.

        So no forward pass is spent on them, and on-policy ratios are exactly 1.
        """
        if all(example.number in self._old_logps for example in batch.examples):
            return batch.tokens.padded([self._old_logps[example.number] for example in batch.examples])
        old = token_logps.detach()
        if self.updates_per_batch > 1:
            self._keep_old_logps(batch, old)
        return old

    def _keep_old_logps(self, batch: Batch[RolloutExample], old: Tensor) -> None:
        """Keep log-probs under the policy that sampled for later steps on the same rollouts."""
        for example, row in zip(batch.examples, old, strict=True):
            self._old_logps[example.number] = row[: len(example.sequences[0].completion)].tolist()

    def update(self, examples: Sequence[Any]) -> None:
        """Make one optimiser step; before the first of several, find what the policy that sampled says of the rest."""
        if self.updates_per_batch > 1:
            known = {example.number for example in examples} | self._old_logps.keys()
            rest = [example for example in self._rollouts if example.number not in known]
            for group in even_groups(self.trainer, self._groups(rest)):
                batch = Batch.of(group, self.device)
                with torch.no_grad():
                    self._keep_old_logps(batch, self.token_logps(batch, self.loss_temperature))
        super().update(examples)


def _fill_unknown(rewards: Sequence[float | None]) -> Tensor:
    """Return rewards as float64; those that nobody could judge get the mean of the others, hence no advantage."""
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / len(known) if len(set(known)) > 1 else (*known, 0.0)[0]  # of equals to the last bit
    return torch.tensor([mean if reward is None else reward for reward in rewards], dtype=torch.float64)
