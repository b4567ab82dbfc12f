"""The work of each stage: answer questions, split answers into sentences, label sentences, draw wrong scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from lovec.answers import untag
from lovec.datasets.pairs import WrongScores, with_rejected
from lovec.encoding import Encoder
from lovec.labelling.stage import Outcome
from lovec.types import (
    Completion,
    Engine,
    Oracle,
    Record,
    Sampling,
    Sentence,
    check_choice,
    check_seed,
    checked_ratings,
)

_SENTENCE_ENDS = (*".!?…\"'”)]*。", "\u2019", "\uff01", "\uff1f")


def copy_records(records: Sequence[Record]) -> list[Outcome]:
    """Return the records as they are: the first stage copies what a data set or a user's file holds."""
    return [Outcome([record]) for record in records]


class AnswerStep:
    """Lets a model answer questions without the instruction that asks for confidences.

    Args:
        engine: samples the answers, with the weights that it was last synced with.
        encoder: encodes the prompts for the engine's model.
        sampling: how to sample. Random streams are keyed by record id, so that an answer does not depend on the other
            prompts of its batch. Several samples become several records, ``<id>/sample-1`` and so on.
    """

    def __init__(self, engine: Engine, encoder: Encoder, sampling: Sampling) -> None:
        self.engine = engine
        self.encoder = encoder
        self.sampling = sampling

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return answered records; sentences and labels that came with a question are dropped.

        A question that leaves no room for an answer in the model's context keeps an empty answer, and
        ``meta["problem"]`` says why. ``meta["finished"]`` is False where an answer was cut off by the token limit.
        """
        prompts = {record.id: self.encoder.prompt(record.question, instruct=False) for record in records}
        limit = self.engine.context_length
        fitting = {name: ids for name, ids in prompts.items() if limit is None or len(ids) < limit}
        completions = self.engine.generate(
            list(fitting.values()), self.sampling, self.encoder.stop_ids, keys=list(fitting)
        )
        samples = dict(zip(fitting, completions, strict=True))
        outcomes = []
        for record in records:
            question = replace(record, answer="", sentences=(), rejected=None)
            if record.id in samples:
                outcomes.append(self._outcome(question, samples[record.id]))
                continue
            length = len(prompts[record.id])
            problem = f"the prompt has {length} tokens, the model's context holds {limit}; shorten the question"
            outcomes.append(Outcome([replace(question, meta={**record.meta, "problem": problem})], failed=problem))
        return outcomes

    def _outcome(self, question: Record, completions: Sequence[Completion]) -> Outcome:
        records = []
        for number, completion in enumerate(completions, 1):
            name = question.id if self.sampling.n == 1 else f"{question.id}/sample-{number}"
            meta = question.meta if completion.finished else {**question.meta, "finished": False}
            answer = self.encoder.decode(completion.ids).strip()
            records.append(replace(question, id=name, answer=answer, meta=meta))
        return Outcome(records, {"unfinished": sum(not completion.finished for completion in completions)})


class SplitStep:
    """Splits answers into sentences, and finds answers that decline to answer.

    Args:
        split: returns the sentences of an answer.
        is_abstention: returns whether an answer declines to answer.
    """

    def __init__(self, split: Callable[[str], list[str]], is_abstention: Callable[[str], bool]) -> None:
        self.split = split
        self.is_abstention = is_abstention

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return records with sentences; those that have sentences keep them.

        Confidence tags in the text are removed, so that an oracle never sees them, and their scores are kept as scores.
        An abstention keeps its answer and gets no sentences, and ``meta["abstained"]`` is True. If an answer was cut
        off by the token limit, its unfinished last sentence is left out, because it cannot be labelled.
        """
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> Outcome:
        record, tags = untag(record, split=self.split)
        read = {"tags read": tags} if tags else {}
        if record.sentences:
            return Outcome([record], {"sentences": len(record.sentences), **read})
        if not record.answer.strip():
            return Outcome([record], {"without an answer": 1})
        if record.meta.get("abstained") or self.is_abstention(record.answer):
            return Outcome([replace(record, meta={**record.meta, "abstained": True})], {"abstained": 1})
        texts = self.split(record.answer)
        if record.meta.get("finished") is False and len(texts) > 1 and not texts[-1].endswith(_SENTENCE_ENDS):
            texts = texts[:-1]
        return Outcome([replace(record, sentences=tuple(map(Sentence, texts)))], {"sentences": len(texts)})


class LabelStep:
    """Labels sentences with the ratings of an oracle.

    Args:
        oracle: rates how true sentences are. If it has an attribute ``failures`` (reason by record id), these records
            count as failed.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return records with the oracle's labels; earlier labels are dropped, also where the oracle gives None.

        Raises:
            LovecError: the ratings of a record are not one number in [0, 1] or None per sentence.
        """
        with_sentences = [record for record in records if record.sentences]
        ratings = checked_ratings(self.oracle, with_sentences) if with_sentences else []
        by_id = dict(zip((record.id for record in with_sentences), ratings, strict=True))
        return [self._outcome(record, by_id.get(record.id, [])) for record in records]

    def _outcome(self, record: Record, ratings: Sequence[float | None]) -> Outcome:
        if not record.sentences:
            if record.meta.get("abstained"):
                return Outcome([record], {"abstained": 1})
            return Outcome([record], failed=str(record.meta.get("problem") or "the answer is empty"))
        labels = [rating for rating in ratings if rating is not None]
        labelled = replace(record.with_factuality(ratings), rejected=None)
        failure = getattr(self.oracle, "failures", {}).get(record.id)
        kind = "labelled" if labelled.labelled else "not labelled" if not labels else "labelled in part"
        counts = {
            "sentences": len(ratings),
            "sentences without a label": len(ratings) - len(labels),
            "factuality": math.fsum(labels),
        }
        return Outcome([labelled], counts | ({} if failure else {kind: 1}), failed=failure)


class PairStep:
    """Draws wrong scores for preference pairs (the paper's Algorithm 1); a record that has some keeps them.

    Args:
        seed: seed of the draws.
        wrong_scores: which scores are drawn from, see ``lovec.datasets.pairs.WrongScores``.
    """

    def __init__(self, seed: int, wrong_scores: WrongScores = "uniform") -> None:
        check_seed("seed", seed)
        check_choice("wrong_scores", wrong_scores, WrongScores)
        self.seed = seed
        self.wrong_scores: WrongScores = wrong_scores

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return the fully labelled records as pairs; the others are left out and counted."""
        return [
            Outcome([with_rejected(record, self.seed, wrong_scores=self.wrong_scores)])
            if record.labelled
            else Outcome([], {"left out": 1} if record.sentences else {"without sentences": 1})
            for record in records
        ]
