"""Objectives over the whole distribution of scores: sums by hand, the scores in the context, what is learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tinyrun import Rows, check_loss, check_same_steps, fit, loaded, module, records, trainer
from torch import Tensor

from lovec.encoding.choices import ChoiceTree
from lovec.modules import Batch, ExpectedReward, PolicyConfig, ScoreModule, SFTRegression
from lovec.modules.base import ratings
from lovec.modules.batching import micro_batches
from lovec.policy import TokenBatch, TokenSequence
from lovec.rewards import LinearReward, LogReward, QuadraticReward
from lovec.types import LovecError, Record

TAGS = ("[", "]")
KNOWN = records(8, seed=len("train"))
"""What the tagger was trained on."""


class CrossEntropy(ScoreModule):
    """A user's own objective over the scores."""

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        return -logps.gather(-1, ratings[:, None])[:, 0]


@pytest.fixture(scope="module")
def tagger(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter with which short tags have much of the probability, and scores differ."""
    folder = tmp_path_factory.mktemp("tags")
    torch.manual_seed(0)  # the same tagger, whatever ran before
    exact = short(model, scoring="exact")  # closing words are learned, too
    objective = module(CrossEntropy, model, policy=exact, lr=3e-2, text_weight=0.0)
    trainer(folder, max_epochs=32).fit(objective, Rows(8, batch_size=8))
    return str(folder / "adapter")


def short(model: str, adapter: str | None = None, **config: Any) -> PolicyConfig:
    return PolicyConfig(
        model=model, adapter=adapter, lora_r=8, lora_alpha=16, instruction="Rate.", tag_words=TAGS, **config
    )


def by_hand(objective: Any, row: Record, scores: list[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities [S, 11] of what is scored, one sequence per score, and nll of the text tokens."""
    encoder, tails, choices = objective.encoder, objective.encoder.tails, objective.encoder.choices
    ids = list(encoder.prompt(row.question))
    start, contexts, text = len(ids), [], []
    for i, (sentence, score) in enumerate(zip(row.sentences, scores, strict=True)):
        head = encoder.head(sentence.text, first=i == 0)
        scored = len(choices[score])
        text += [True] * len(head) + [False] * scored + [True] * (len(tails[score]) - scored)
        contexts.append([*ids, *head])
        ids = [*contexts[-1], *tails[score]]
    text.append(True)
    each = TokenBatch.of([TokenSequence(tuple(c), tuple(choice)) for c in contexts for choice in choices])
    logps = objective.policy.token_logps(each).double().sum(-1).view(len(contexts), 11)
    whole = TokenBatch.of([TokenSequence(tuple(ids[:start]), (*ids[start:], encoder.end_id))])
    return logps, -objective.policy.token_logps(whole)[0][torch.tensor(text)]


@torch.no_grad()
def well_formed(objective: Any, row: Record, scores: list[int]) -> Tensor:
    """Probability [S] of some score, and of the end of the tag behind the one that is there."""
    encoder = objective.encoder
    logps, _ = by_hand(objective, row, scores)
    ids, ends = list(encoder.prompt(row.question)), []
    for i, (sentence, score) in enumerate(zip(row.sentences, scores, strict=True)):
        scored, tail = len(encoder.choices[score]), encoder.tails[score]
        ids += [*encoder.head(sentence.text, first=i == 0), *tail[:scored]]
        rest = TokenBatch.of([TokenSequence(tuple(ids), (*tail[scored:], encoder.end_id))])  # and a token to drop
        ends.append(objective.policy.token_logps(rest)[0, :-1].double().sum())
        ids += tail[scored:]
    return logps.exp().sum(-1) * torch.stack(ends).exp()


def drawn(objective: Any, rows: list[Record]) -> list[list[int]]:
    return [[s.score for s in row.sentences] for row in objective.with_own_scores(rows)]


# The objective


@pytest.mark.parametrize("scoring", ["exact", "prefix"])
@pytest.mark.parametrize("reward", [QuadraticReward(contrast=2.0), LogReward()], ids=["quadratic", "log"])
def test_expected_reward_by_hand(reward: Any, scoring: str, model: str, tagger: str, tmp_path: Path) -> None:
    """Value and gradient, with own scores in the context, against one forward pass per score."""
    objective = loaded(
        tmp_path,
        module(
            ExpectedReward,
            model,
            policy=short(model, tagger, scoring=scoring),
            reward=reward,
            reward_scale=5.0,
            text_weight=0.7,
            score_weight=1.5,
        ),
    )
    rows = KNOWN[:4]
    (examples,) = objective.update_batches(rows)
    losses, texts = [], []
    for row, scores in zip(rows, drawn(objective, rows), strict=True):
        logps, nll = by_hand(objective, row, scores)
        texts.append(nll)
        for probs, rating in zip(logps.exp(), ratings(row), strict=True):
            gain = sum(p * reward(c, rating) for c, p in enumerate(probs))
            losses.append(-(gain + (1 - probs.sum()) * reward(None, rating)) / 5.0)
    expected = 1.5 * torch.stack(losses).mean() + 0.7 * torch.cat(texts).mean()
    out = check_loss(objective, examples, expected)
    mass = torch.cat([well_formed(objective, *pair) for pair in zip(rows, drawn(objective, rows), strict=True)])
    assert 0.1 < float(mass.mean()) < 0.999  # both parts of the sum are in play
    malformed = out.metrics["malformed"]
    assert float((malformed.values * malformed.mask).sum() / malformed.mask.sum()) == pytest.approx(
        float(1 - mass.mean()), rel=1e-4
    )


def test_regression_by_hand(model: str, tagger: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(SFTRegression, model, policy=short(model, tagger), regression_weight=2.0))
    rows = KNOWN[:4]
    (examples,) = objective.update_batches(rows)
    losses, texts = [], []
    for row in rows:
        logps, nll = by_hand(objective, row, ratings(row))  # the earlier scores are the true ones
        texts.append(nll)
        for p, sentence in zip(logps.exp(), row.sentences, strict=True):
            mean = sum(c * x for c, x in enumerate(p / p.sum())) / 10
            losses.append(2.0 * (mean - sentence.factuality) ** 2 - p.sum().log())
    expected = torch.stack(losses).mean() + torch.cat(texts).mean()
    ours = objective._total(objective.loss(Batch.of(examples, objective.policy.device)), objective.counts(examples))
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_score_in_the_text_times_its_end_is_its_whole_string(model: str, tagger: str, tmp_path: Path) -> None:
    """The two ways of scoring differ by the closing word only, whose probability is that in the text."""
    exact, prefix = (
        loaded(tmp_path, module(CrossEntropy, model, policy=short(model, tagger, scoring=scoring)))
        for scoring in ("exact", "prefix")
    )
    found = {}
    for name, objective in (("exact", exact), ("prefix", prefix)):
        batch = Batch.of([objective.example(row) for row in KNOWN[:4]], objective.policy.device)
        positions = [example.tag_positions for example in batch.examples]
        token_logps, logps = objective.policy.choice_logps(batch.tokens, positions, objective.encoder.choices)
        stated = torch.tensor([score for row in KNOWN[:4] for score in ratings(row)])
        found[name] = logps.gather(-1, stated[:, None])[:, 0] + objective._closed(batch, token_logps).log()
    torch.testing.assert_close(found["exact"], found["prefix"], atol=1e-4, rtol=1e-5)
    assert prefix.example(KNOWN[0]).extra_tokens < exact.example(KNOWN[0]).extra_tokens / 3


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (ExpectedReward, {}),
        (ExpectedReward, {"context": "true"}),
        (SFTRegression, {}),
        (SFTRegression, {"policy": {"scoring": "prefix"}}),
    ],
)
def test_ragged_micro_batches_equal_one_batch(
    cls: type, options: dict[str, Any], model: str, adapter: str, tmp_path: Path
) -> None:
    config = PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_alpha=8, **options.get("policy", {}))
    options = {**options, "policy": config}
    whole, parts = (
        fit(tmp_path, module(cls, model, sgd=True, micro_batch_tokens=n, **options), max_steps=2) for n in (10**6, 300)
    )
    objective = loaded(tmp_path, module(cls, model, **options))
    assert len(micro_batches([objective.example(row) for row in records(4)], 300, True)) > 2
    assert len(whole.logged) == len(parts.logged) == 2
    check_same_steps(whole, parts, "train/loss", "train/score", "train/text", "train/malformed", "train/confidence")


def test_a_reward_that_is_not_finite_is_refused_by_name(model: str) -> None:
    class Broken:
        def __init__(self, at: int | None) -> None:
            self.at = at

        def __call__(self, score: int | None, rating: int) -> float:
            return float("nan") if score == self.at else 1.0

    for at in (3, None):
        with pytest.raises(LovecError, match=r"Broken.*nan"):
            module(ExpectedReward, model, reward=Broken(at))
    with pytest.raises(LovecError, match="context is 'both', expected one of own, last, true"):
        module(ExpectedReward, model, context="both")


def test_equal_rewards_give_no_gradient(model: str, tagger: str, tmp_path: Path) -> None:
    class Even:
        def __call__(self, score: int | None, rating: int) -> float:
            return 3.0

    objective = module(ExpectedReward, model, policy=short(model, tagger), reward=Even(), text_weight=0.0)
    run = fit(tmp_path, objective, max_steps=1)
    assert run.logged[0]["train/loss"] == pytest.approx(-0.3)
    assert run.gradients[0].abs().max() < 1e-6


# The scores in the context


def test_the_context_contains_scores_drawn_from_the_policy(model: str, tagger: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(ExpectedReward, model, policy=short(model, tagger)))
    rows = KNOWN[:6]
    (examples,) = objective.update_batches(rows)
    batch, _, logps = objective.computed(Batch.of(examples, objective.policy.device))
    examples = batch.examples
    scores_of_rows = drawn(objective, rows)
    assert scores_of_rows == drawn(objective, rows)
    assert scores_of_rows == [[s.score for s in example.record.sentences] for example in examples]
    assert scores_of_rows != [list(ratings(row)) for row in rows]
    for row, scores, example in zip(rows, scores_of_rows, examples, strict=True):
        expected = objective.encoder.completion([s.text for s in row.sentences], scores)
        assert example.sequences[0].completion == tuple(expected)
        assert example.ratings == list(ratings(row))  # what is rewarded stays the truth
    assert drawn(objective, rows[3:4]) == scores_of_rows[3:4]  # whatever the other rows are

    first = replace(rows[0], sentences=rows[0].sentences[:1])
    many = [replace(first, id=f"x{i}") for i in range(400)]
    counts = Counter(scores[0] for scores in drawn(objective, many))
    with torch.no_grad():
        logps, _ = by_hand(objective, first, [0])
    probs = logps[0].softmax(-1)
    assert len(counts) > 2
    for score in range(11):  # four standard deviations
        p = float(probs[score])
        assert abs(counts[score] / 400 - p) < 4 * (p * (1 - p) / 400) ** 0.5 + 1e-9, score


class Watch(ExpectedReward):
    """Notes the scores in the contexts of every step, by answer, and what they were drawn from."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.contexts: list[dict[str, list[int]]] = []
        self.logps: list[Tensor] = []

    def see(self, examples: Any, logps: Tensor) -> None:
        super().see(examples, logps)
        self.contexts.append({e.record.id: [s.score for s in e.record.sentences] for e in examples})
        self.logps.append(logps)


def test_scores_are_drawn_from_the_newest_policy(model: str, tagger: str, tmp_path: Path) -> None:
    """By the distributions that an engine gives at every step."""
    steps = []

    class Compare(Watch):
        def see(self, examples: Any, logps: Tensor) -> None:
            super().see(examples, logps)
            self.engine.sync(self.policy)
            contexts = [
                [*example.sequences[0].prompt, *example.sequences[0].completion[:position]]
                for example in examples
                for position in example.tag_positions
            ]
            expected = self.engine.score(contexts, self.encoder.choices)
            assert torch.allclose(logps, torch.tensor(expected, dtype=torch.float64), atol=1e-3)
            rows = [example.record for example in examples]
            assert drawn(self, rows) == [[s.score for s in row.sentences] for row in rows]
            steps.append(self.global_step)

    objective = module(Compare, model, policy=short(model, tagger), lr=2e-2)
    trainer(tmp_path, max_epochs=3).fit(objective, Rows(4))
    assert steps == [0, 1, 2]


def test_every_step_draws_other_scores(model: str, tagger: str, tmp_path: Path) -> None:
    objective = module(Watch, model, policy=short(model, tagger), lr=0.0)
    trainer(tmp_path, max_epochs=2).fit(objective, Rows(4))
    first, second = objective.contexts  # the same rows and the same policy
    assert first.keys() == second.keys() and first != second


@pytest.mark.parametrize("scoring", ["exact", "prefix"])
def test_scores_drawn_on_the_way_equal_those_of_a_pass_before(
    scoring: str, model: str, tagger: str, tmp_path: Path
) -> None:
    """The same scores, loss and gradient, whatever the micro-batches; one row has known scores already."""
    found = []
    for name, budget, share in (("one", None, True), ("several", 60, True), ("before", None, False)):
        policy = short(model, tagger, scoring=scoring, share_prefixes=share)
        objective = loaded(tmp_path / name, module(Watch, model, policy=policy, context="last"))
        objective._last = {KNOWN[2].id: torch.zeros(len(KNOWN[2].sentences), 11, dtype=torch.float64)}
        (examples,) = objective.update_batches(KNOWN)
        assert [e.drawn_by is not None for e in examples] == [share and e.record.id != KNOWN[2].id for e in examples]
        counts, total = objective.counts(examples), 0.0
        for group in micro_batches(examples, budget or 10**6, share):
            loss = objective._total(objective.loss(Batch.of(group, objective.policy.device)), counts)
            loss.backward()
            total += float(loss.detach())
        scores = {name: row for part in objective.contexts for name, row in part.items()}
        grads = torch.cat([p.grad.flatten() for p in objective.policy.trainable()])
        found.append((scores, total, grads, len(objective.contexts)))
    (one, *whole, parts), (several, *split, more), (before, *reference, _) = found
    assert one == several == before and parts == 1 < more
    for total, grads in (whole, split):
        assert total == pytest.approx(reference[0], rel=1e-5)
        assert (grads - reference[1]).norm() <= 1e-4 * reference[1].norm()


def test_scores_are_drawn_before_where_they_cannot_be_on_the_way(model: str, tagger: str, tmp_path: Path) -> None:
    class Dropping(ExpectedReward):
        uses_dropout = True

    class Encoding(ExpectedReward):
        def encode(self, row: Record) -> Any:
            return super().encode(row)

    rows = KNOWN[:3]
    for at, (cls, drawn_on_the_way) in enumerate(((ExpectedReward, True), (Dropping, False), (Encoding, False))):
        objective = loaded(tmp_path / str(at), module(cls, model, policy=short(model, tagger)))
        (examples,) = objective.update_batches(rows)
        assert all((example.drawn_by is not None) is drawn_on_the_way for example in examples)
        if not drawn_on_the_way:
            assert drawn(objective, rows) == [[s.score for s in example.record.sentences] for example in examples]


def test_text_weighs_the_same_whatever_scores_are_drawn(model: str, tmp_path: Path) -> None:
    """Also where a score takes the first token of the closing word to be told from another, as "1" from "10"."""
    objective = loaded(tmp_path, module(ExpectedReward, model))
    assert len(set(objective.closing_tokens)) == 2
    row = max(KNOWN, key=lambda row: len(row.sentences))
    examples = [objective.encode(objective._with_scores(row, [score] * len(row.sentences))) for score in range(11)]
    masks = [example.text_mask for example in examples]
    assert all(sum(mask) == pytest.approx(sum(masks[0]), rel=1e-9) for mask in masks)
    heavier = {sum(weight not in (0.0, 1.0) for weight in mask) for mask in masks}
    assert len(heavier) == 2 and min(heavier) == 0


def test_an_answer_is_cut_whatever_scores_are_drawn(model: str, tagger: str, tmp_path: Path) -> None:
    row = max(KNOWN, key=lambda row: len(row.sentences))
    whole = loaded(tmp_path / "whole", module(ExpectedReward, model, policy=short(model, tagger)))
    ((example,),) = whole.update_batches([row])
    policy = short(model, tagger, max_length=len(example.sequences[0]) - 1)
    objective = loaded(tmp_path / "cut", module(ExpectedReward, model, policy=policy))
    (cut,) = objective.update_batches([row])
    batch, token_logps, logps = objective.computed(Batch.of(cut, objective.policy.device))
    (example,) = batch.examples
    assert len(example.record.sentences) == len(row.sentences) - 1 == len(logps)
    assert not example.record.finished and example.sequences[0].completion[-1] != objective.encoder.end_id
    expected, _ = by_hand(objective, example.record, [s.score for s in example.record.sentences])
    torch.testing.assert_close(logps, expected, atol=1e-4, rtol=1e-4)
    assert token_logps.shape[1] == len(example.sequences[0].completion)


def test_true_scores_in_the_context_on_request(model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(ExpectedReward, model, context="true"))
    (examples,) = objective.update_batches(records(3))
    assert [example.sequences for example in examples] == [objective.example(row).sequences for row in records(3)]
    text = objective.encoder.decode(examples[0].sequences[0].completion)
    assert all(f" {rating} </confidence>" in text for rating in ratings(records(1)[0]))
    tagged = [replace(row, sentences=tuple(replace(s, score=0) for s in row.sentences)) for row in records(3)]
    (again,) = objective.update_batches(tagged)  # scores that answers were tagged with before do not matter
    assert [example.sequences for example in again] == [example.sequences for example in examples]


class Drawn(Watch):
    """Notes of which rows scores are drawn from the policy itself as well."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(context="last", **kwargs)
        self.drawn: list[set[str]] = []

    def computed(self, batch: Any) -> Any:
        if new := {example.record.id for example in batch.examples if example.drawn_by is not None}:
            self.drawn.append(new)
        return super().computed(batch)


def test_from_the_second_epoch_on_last_scores_are_older(model: str, tagger: str, tmp_path: Path) -> None:
    """They are drawn from the distributions of training; with rate 0 those are what ``by_hand`` computes now."""
    objective = module(Drawn, model, policy=short(model, tagger), lr=0.0)
    trainer(tmp_path, max_epochs=3).fit(objective, Rows(6))
    rows = {row.id: row for row in records(6, seed=len("train"))}
    assert set().union(*objective.drawn) == rows.keys() == objective._last.keys()
    assert sum(map(len, objective.drawn)) == 6  # each row once, in the first epoch
    for name, scores in objective.contexts[-1].items():
        with torch.no_grad():
            logps, _ = by_hand(objective, rows[name], scores)
        torch.testing.assert_close(objective._last[name], logps, atol=1e-4, rtol=1e-4)
    first, *later = [[step[name] for step in objective.contexts if name in step] for name in sorted(rows)]
    assert any(scores[-1] != scores[-2] for scores in (first, *later))  # drawn anew


def test_a_resumed_run_draws_the_same_last_scores(model: str, tagger: str, tmp_path: Path) -> None:
    whole, first, rest = (module(Drawn, model, policy=short(model, tagger), lr=2e-2) for _ in range(3))
    trainer(tmp_path / "whole", max_epochs=3).fit(whole, Rows(6))
    run = trainer(tmp_path / "first", max_epochs=2)
    run.fit(first, Rows(6))
    path = tmp_path / "two.ckpt"
    run.save_checkpoint(path)
    trainer(tmp_path / "rest", max_epochs=3).fit(rest, Rows(6), ckpt_path=path)
    assert not rest.drawn and first.contexts + rest.contexts == whole.contexts
    for a, b in zip(whole.policy.trainable(), rest.policy.trainable(), strict=True):
        assert torch.equal(a, b)
    for name, logps in whole._last.items():
        assert torch.equal(logps, rest._last[name])


def test_answers_that_share_an_id_have_no_last_scores(model: str, tmp_path: Path) -> None:
    class Alike(Rows):
        def load(self, split: str) -> list[Record]:
            rows = super().load(split)
            return [replace(row, id="x") for row in rows] if split == "train" else rows

    with pytest.raises(LovecError, match=r"4 training answers share 1 id: .*; give each answer an id of its own$"):
        trainer(tmp_path).fit(module(ExpectedReward, model, context="last"), Alike(4))


# What is learned


def test_expected_reward_earns_more_and_keeps_its_tags(model: str, tagger: str, tmp_path: Path) -> None:
    class Mostly(Rows):
        """Sentences that are mostly false, except those that name a city."""

        def load(self, split: str) -> list[Record]:
            cities = ("london", "paris")
            truth = {True: 1.0, False: 0.2}
            return [
                replace(
                    row,
                    sentences=tuple(
                        replace(s, factuality=truth[any(c in s.text for c in cities)]) for s in row.sentences
                    ),
                )
                for row in KNOWN
            ]

    objective = module(ExpectedReward, model, policy=short(model, tagger), lr=5e-3, text_weight=0.0)
    run = fit(tmp_path, objective, Mostly(batch_size=8), max_epochs=30)
    first, last = run.logged[0], run.logged[-1]
    assert last["train/score"] < first["train/score"] - 0.3
    assert last["train/malformed"] < first["train/malformed"]


def test_a_users_objective_over_scores_is_trained(model: str, tmp_path: Path) -> None:
    run = fit(tmp_path, module(CrossEntropy, model, lr=2e-2, text_weight=0.5), max_epochs=3)
    first = run.logged[0]
    assert first["train/loss"] == pytest.approx(first["train/score"] + 0.5 * first["train/text"], rel=1e-6)
    assert run.logged[-1]["train/score"] < first["train/score"]
    with pytest.raises(TypeError, match="ScoreModule has no loss of its own"):
        trainer(tmp_path).fit(module(ScoreModule, model), Rows())


def test_branches_count_towards_the_size_of_micro_batches(model: str, tmp_path: Path) -> None:
    policy = PolicyConfig(model, lora_r=4, scoring="exact")  # many branches
    objective = loaded(tmp_path, module(ExpectedReward, model, policy=policy))
    examples = [objective.example(row) for row in records(6)]
    branches = len(ChoiceTree(objective.encoder.choices).ids)
    assert [example.length - len(example.sequences[0]) for example in examples] == [
        branches * len(example.record.sentences) for example in examples
    ]
    budget = 2 * max(example.length for example in examples)
    assert all(len(g) * max(example.length for example in g) <= budget for g in micro_batches(examples, budget, False))
    without = [replace(example, extra_tokens=0) for example in examples]
    assert len(micro_batches(examples, budget, True)) > len(micro_batches(without, budget, True))


# The weight of the spread


def scores_of(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_the_spread_is_weighted(model: str) -> None:
    """m [S (1 - k ((E c - f)^2 + w Var c) / 100)] - 30 (1 - m), with m the probability of well-formed tags."""
    probs = torch.rand(5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.01
    probs = probs / probs.sum(-1, keepdim=True)
    mass = torch.tensor([1.0, 0.9, 0.5, 1.0, 0.2], dtype=torch.float64)
    truths = torch.tensor([0, 3, 10, 7, 5])
    scores = torch.arange(11, dtype=torch.float64)
    mean = (probs * scores).sum(-1)
    variance = (probs * (scores - mean[:, None]) ** 2).sum(-1)
    for w in (0.0, 0.3, 1.0, 2.0):
        reward = QuadraticReward(scale=4.0, contrast=3.0)
        objective = module(ExpectedReward, model, reward=reward, reward_scale=5.0, variance_weight=w)
        gain = 4.0 * (1 - 3.0 * ((mean - truths) ** 2 + w * variance) / 100)
        expected = -(mass * gain - 30 * (1 - mass)) / 5.0
        loss = objective.score_loss((mass[:, None] * probs).log(), truths)
        assert loss.tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_the_minimum_is_where_the_docstring_says(model: str) -> None:
    """By gradient descent on free logits, for sentences that look alike and are true to different degrees."""
    truths = torch.tensor([10, 10, 10, 2])  # mean 8.0
    shifted = torch.tensor([10, 10, 9, 2])  # mean 7.75: a = .75
    for w, ratings_, expected in (
        (1.0, shifted, {8: 1.0}),
        (2.0, shifted, {8: 1.0}),
        (0.3, shifted, {7: 1 - (0.75 - 0.15) / 0.7, 8: (0.75 - 0.15) / 0.7}),
        (0.6, shifted, {8: 1.0}),  # (0.75 - 0.3) / 0.4 is above 1
        (0.1, truths, {8: 1.0}),
    ):
        objective = module(ExpectedReward, model, variance_weight=w, reward_scale=1.0)
        logits = torch.zeros(11, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([logits], lr=0.3)
        for _ in range(500):
            optimizer.zero_grad()
            logps = logits.log_softmax(-1).expand(4, 11)
            objective.score_loss(logps, ratings_).mean().backward()
            optimizer.step()
        probs = logits.detach().softmax(-1)
        found = {score: float(p) for score, p in enumerate(probs) if p > 0.02}
        assert found == pytest.approx(expected, abs=0.03), (w, probs)


def test_with_entropy_the_best_distribution_is_normal_about_the_mean(model: str) -> None:
    weight = 0.04
    objective = module(ExpectedReward, model, entropy_weight=weight)
    truths = torch.tensor([10, 10, 8, 3])  # mean 7.75
    logits = torch.zeros(11, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(500):
        optimizer.zero_grad()
        objective.score_loss(logits.log_softmax(-1).expand(4, 11), truths).mean().backward()
        optimizer.step()
    expected = (-((torch.arange(11) - 7.75) ** 2) / 100 / weight).double().softmax(-1)
    torch.testing.assert_close(logits.detach().softmax(-1), expected, atol=1e-4, rtol=0)
    plain = module(ExpectedReward, model).score_loss(logits.detach()[None].log_softmax(-1), truths[:1])
    entropy = -(expected * expected.log()).sum()
    loss = objective.score_loss(logits.detach()[None].log_softmax(-1), truths[:1])
    assert float(plain - loss) == pytest.approx(weight * float(entropy), rel=1e-3)


def test_without_the_spread_any_width_is_as_good(model: str) -> None:
    objective = module(ExpectedReward, model, variance_weight=0.0)
    wide, narrow = scores_of([[0.5, *[1e-30] * 9, 0.5], [*[1e-30] * 5, 1.0, *[1e-30] * 5]])
    truths = torch.tensor([3, 3])
    assert objective.score_loss(torch.stack([wide, narrow]), truths).diff().abs().max() < 1e-12


def test_only_quadratic_rewards_have_a_weight_of_the_spread(model: str) -> None:
    class Mine:
        def __call__(self, score: int | None, rating: int) -> float:
            return -3.0 if score is None else 2.0 * rating - 0.5 * (score - 0.8 * rating) ** 2

    assert module(ExpectedReward, model, reward=Mine(), variance_weight=0.5).curvature == pytest.approx(0.05)

    class Flat:
        def __call__(self, score: int | None, rating: int) -> float:
            return 1.0

    for reward in (LogReward(), LinearReward(), QuadraticReward(gamma=1.5), Flat()):
        module(ExpectedReward, model, reward=reward)
        words = f"variance_weight is not 1 and the reward is {type(reward).__name__}, which is not quadratic"
        with pytest.raises(LovecError, match=words):
            module(ExpectedReward, model, reward=reward, variance_weight=0.5)
    two = PolicyConfig(model=model, scale=("no", "yes"))
    with pytest.raises(LovecError, match="three scores or more"):
        module(ExpectedReward, model, policy=two, variance_weight=0.5)
