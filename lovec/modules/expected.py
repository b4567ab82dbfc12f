"""The expected reward of the stated score, summed over all levels of the scale instead of sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from lovec.core.settings import NonNegative, Positive
from lovec.evaluation.processes import gather
from lovec.losses import score_entropy, score_variance
from lovec.modules.batching import Batch, Example
from lovec.modules.checks import check_ids
from lovec.modules.distributed import in_step
from lovec.modules.drawing import draw_scores, sampler
from lovec.modules.scores import ScoredExample, ScoreModule
from lovec.policy.growing import GrowingSequences
from lovec.rewards import QuadraticReward, Reward, reward_table, sentence_rewards, with_scale
from lovec.taggers.scoring import Passage, Step, score_passages
from lovec.types import LovecError, Record

Context = Literal["own", "last", "true"]

_LAST = "last_scores"


class ExpectedReward(ScoreModule):
    """Maximises sum over c of pi(c | q, s_<=i, c_<i) r(c, f_i) + (1 - sum over c of pi(c)) r(malformed), exactly.

    On fixed text the action is one of a few scores (11 by default), so the expectation that policy-gradient methods
    estimate from samples is a sum. The earlier scores in the context are drawn from the policy itself, anew for every
    batch: the true ones would leak how good the answer is so far. The forward pass whose gradient is taken goes through
    the sentences in their order and draws each score before it reads the next sentence (see
    ``lovec.policy.growing``). Where the policy cannot share prefixes, drops activations or is sharded, a pass of its
    own over the text draws them before. ``context: last`` draws from the distributions that the policy had when the
    answer was last learned from, so that all sentences are read at once. They lag behind by an epoch, and were given
    the scores that stood in the context then. An answer that is seen for the first time is scored as for "own".
    ConfTuner (Li et al. 2025, arXiv 2508.18847) is the nearest relative: the Brier rule over the tokens of one score
    per answer.

    Under the Brier rule the loss of a sentence is, up to scale and constant, E (c - f)^2 = (E c - f)^2 + Var c: the
    squared error of the mean score, and the spread of the scores about it. ``variance_weight`` w weighs the spread,
    (E c - f)^2 + w Var c. Let mu be the mean of f over all sentences that look alike to the model, g the score below
    mu and a = mu - g in [0, 1). No distribution with a mean between g and g + 1 varies less than that over g and g + 1
    alone; with the probability x of g + 1 the loss is (x - a)^2 + w x (1 - x) and a constant, whose minimum is at

    - w >= 1: x = 0 or 1, the nearer one: a single score is stated with certainty.
    - 0 < w < 1: x = (a - w / 2) / (1 - w), cut off at 0 and 1: two neighbouring scores share the probability. The
      nearer one has more of it, so the most probable score is the same as for w = 1.
    - w = 0: every distribution with the mean mu is a minimum, however wide, and the most probable score is undefined.

    So w moves the minimum of the stated score nowhere, but the way there. At w = 1 the loss is linear in the
    probabilities, and the gradient of a score's logit is its probability times its advantage, the loss of all less its
    own: a score that has become rare hardly comes back, so the scores that are frequent at the start win first, even
    where others are worth more (Mei et al. 2020, arXiv 2005.06392). With a small w the mean is corrected while the
    distribution is still wide, and narrows about it later.

    ``entropy_weight`` t is the usual remedy of policy gradients: it adds t times the entropy of the scores (in nats) to
    the reward, divided by ``reward_scale``. Then no score becomes too rare to learn of. Under the Brier rule with w = 1
    the best distribution of a sentence is p(c) ~ exp(-a (c - mu)^2 / t), with a the loss of one point's distance (1 /
    100 on the scale 0 to 10 with the defaults): normal about mu with a variance of t / (2 a), 50 t points. Its most
    probable score is the one nearest mu.

    Args:
        reward: what a score is worth; with a proper rule the true probability is the best score. Null is the Brier
            rule.
        reward_scale: the loss divides rewards by this number, above 0.
        context: earlier scores in the context: the policy's "own", drawn from its distributions of now; drawn from
            those that it had when the answer was "last" learned from; or the "true" ones.
        variance_weight: weight w of the spread of the scores, 0 or more; 1 is the reward as it is. Other values need a
            reward that is quadratic in the score.
        entropy_weight: weight of the entropy of the scores, in units of the scaled reward per nat; 0 leaves it out.
        kwargs: arguments of ``ScoreModule``.
    """

    table: Tensor

    def __init__(
        self,
        reward: Reward | None = None,
        reward_scale: Positive = 10.0,
        context: Context = "own",
        variance_weight: NonNegative = 1.0,
        entropy_weight: NonNegative = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reward_scale = reward_scale
        self.context = context
        self._last: dict[str, Tensor] = {}  # log-probabilities [S, K] when an answer was last learned from, by its id
        self._seen: dict[str, Tensor] = {}  # those of this process's part of the present step
        size = self.scale.size
        reward = with_scale(reward or QuadraticReward(), self.scale)
        rewards = reward_table(reward, self.scale)
        self.variance_weight = variance_weight
        self.entropy_weight = entropy_weight
        self.curvature = 0.0 if variance_weight == 1.0 else _curvature(reward, rewards) / reward_scale
        malformed = sentence_rewards(reward, [None] * size, range(size))
        table = torch.tensor([*rewards, malformed], dtype=torch.float64)
        self.register_buffer("table", table / reward_scale, persistent=False)  # [K scores and malformed, K ratings]

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield the rows once, with scores of the policy, now or an epoch ago, or true ones in their contexts."""
        if self.context == "true":
            yield from super().update_batches(rows)
            return
        known = [self._with_last_scores(row) for row in rows]
        if self._draws_in_passing() and self._shared(examples := list(map(self._to_draw, rows, known))):
            yield examples
            return
        own = iter(self.with_own_scores([row for row, scored in zip(rows, known, strict=True) if scored is None]))
        yield [self.example(next(own) if scored is None else scored) for scored in known]

    def with_own_scores(self, rows: Sequence[Record]) -> list[Record]:
        """Return the rows with scores drawn from the policy, each given those of the sentences before it."""
        passages = []
        for row in rows:
            steps = [Step(sentence.text) for sentence in row.sentences]
            passages.append(Passage(row.id, self.encoder.record_prompt(row), steps, sampler(self._stream(row))))
        self.engine.sync(self.policy)
        score_passages(self.engine, self.encoder, passages)
        return [self._with_scores(row, passage.chosen) for row, passage in zip(rows, passages, strict=True)]

    def computed(self, batch: Batch[ScoredExample]) -> tuple[Batch[ScoredExample], Tensor, Tensor]:
        """Compute what the policy says, and draw the scores in its contexts on the way where they are not drawn yet."""
        if all(example.drawn_by is None for example in batch.examples):
            return super().computed(batch)
        prompts = [example.sequences[0].prompt for example in batch.examples]
        slots = max(example.length for example in batch.examples)
        growing = GrowingSequences(self.policy, prompts, self.encoder.choices, slots)
        scores = draw_scores(growing, self.encoder, batch.examples)
        rows = [self._with_scores(e.record, drawn) for e, drawn in zip(batch.examples, scores, strict=True)]
        batch = Batch.of([self.encode(row) for row in rows], batch.tokens.mask.device)
        return batch, *growing.choice_logps(batch.tokens, [example.tag_positions for example in batch.examples])

    def see(self, examples: Sequence[ScoredExample], logps: Tensor) -> None:
        """Keep the distributions for the next time, where they are the context then."""
        if self.context == "last":
            parts = torch.split(logps, [len(example.tag_positions) for example in examples])
            self._seen.update((e.record.id, part.cpu().clone()) for e, part in zip(examples, parts, strict=True))

    def update(self, examples: Sequence[Example]) -> None:
        """Make one optimiser step; then every process knows the distributions of all, as it may get any row next."""
        super().update(examples)
        if self.context == "last":
            for part in gather(self.trainer, self._seen):
                self._last.update(part)
            self._seen = {}

    def on_fit_start(self) -> None:
        """Check that distributions of the last epoch can be told apart by the ids of their answers."""
        super().on_fit_start()
        if self.context == "last":
            check_ids(self.trainer.datamodule)  # type: ignore[attr-defined]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the distributions of the last epoch."""
        super().on_save_checkpoint(checkpoint)
        if self.context == "last":
            checkpoint[_LAST] = dict(self._last)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the distributions of the run that goes on."""
        super().on_load_checkpoint(checkpoint)
        self._last = dict(checkpoint.get(_LAST, {}))

    def _with_last_scores(self, row: Record) -> Record | None:
        """Return a row with scores drawn from the distributions of when it was last learned from.

        None where these are not asked for, where it has not been learned from, and where a sentence was cut then.
        """
        if self.context != "last" or len(self._last.get(row.id, ())) < len(row.sentences):
            return None
        return self._with_scores(row, list(map(sampler(self._stream(row)), self._last[row.id].tolist())))

    def _draws_in_passing(self) -> bool:
        """Return whether scores can be drawn in the forward pass of the loss itself.

        Not where that pass drops activations, where a subclass encodes rows in a way of its own, where some strings of
        scores are scored to their end and others are not, so that the number of text tokens depends on what is drawn,
        and where processes must run their forward passes together.
        """
        closed = [count == 0 for count in self.closing_tokens]
        alike = all(closed) or not any(closed)
        return alike and self.encodes_as(ScoreModule) and not self.uses_dropout and not in_step(self.trainer)

    def _to_draw(self, row: Record, scored: Record | None) -> Example:
        """Encode a row with known scores in its context, or with the longest ones in place of those to be drawn."""
        if scored is not None:
            return self.example(scored)
        tails = self.encoder.tails
        longest = max(range(len(tails)), key=lambda score: len(tails[score]))
        example: Any = self.example(self._with_scores(row, [longest] * len(row.sentences)))
        undrawn: Example = replace(example, drawn_by=self._stream(row))
        return undrawn

    def _shared(self, examples: Sequence[Example]) -> bool:
        """Return whether what examples begin with is computed once, however they come together."""
        return self.policy.shares(max((example.length for example in examples), default=0))

    def _stream(self, row: Record) -> str:
        """Return the name of the random numbers by which scores of a row are drawn in this step."""
        return f"{self.seed}/{self.global_step}/{row.id}"

    def _with_scores(self, row: Record, scores: Sequence[int | None]) -> Record:
        drawn = zip(row.sentences, scores, strict=True)
        return replace(row, sentences=tuple(replace(s, score=c, levels=self.scale.size) for s, c in drawn))

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute minus the expected reward of every sentence, with its weights of spread and entropy, [M]."""
        probs = logps.exp()
        probs = torch.cat([probs, 1.0 - probs.sum(-1, keepdim=True)], dim=-1)
        loss = -(probs * self.table.T[ratings]).sum(-1)
        if self.variance_weight != 1.0:
            loss = loss + (self.variance_weight - 1.0) * self.curvature * score_variance(logps)
        if self.entropy_weight:
            loss = loss - self.entropy_weight * score_entropy(logps)
        return loss


def _curvature(reward: Reward, table: Sequence[Sequence[float]]) -> float:
    """Return a of a reward of the form b - a (c - g)^2, where b and g may depend on the rating and a does not.

    Args:
        reward: the reward, for its name.
        table: its values, ``[score][rating]``.

    Raises:
        LovecError: the reward does not have this form with an a above 0, or the scale has fewer than three scores, so
            that its form cannot be seen.
    """
    rows = list(zip(table, table[1:], table[2:], strict=False))
    bends = [high + low - 2 * middle for three in rows for low, middle, high in zip(*three, strict=True)]
    largest = max((abs(value) for row in table for value in row), default=0.0)
    if not bends or max(bends) - min(bends) > 1e-9 * largest or bends[0] >= -1e-9 * largest:
        name = getattr(reward, "__name__", type(reward).__name__)
        raise LovecError(
            f"variance_weight is not 1 and the reward is {name}, which is not quadratic in the score; expected "
            "QuadraticReward with gamma 1, or another reward b - a (c - g)^2 on three scores or more"
        )
    return -bends[0] / 2
