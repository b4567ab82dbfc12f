"""The work of each stage: answer questions, split answers into sentences, label sentences, draw wrong scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lovec.core.settings import Seed, checked
from lovec.datasets.pairs import WrongScores, with_rejected
from lovec.datasets.values import flag_of
from lovec.encoding import Encoder
from lovec.encoding.answering import plain_completions
from lovec.labelling.stage import Outcome
from lovec.tags import thought_length
from lovec.text.sentences import ends_with_stop
from lovec.text.untag import split_record, untag
from lovec.types import Engine, LovecError, Oracle, Record, Sampling, checked_ratings

_OF_AN_ANSWER = ("finished", "problem", "abstained")
"""Keys of ``meta`` that are about the answer of a record, and not about its question."""


def copy_records(records: Sequence[Record]) -> list[Outcome]:
    """Return the records as they are: the first stage copies what a data set or a user's file holds."""
    return [Outcome([record]) for record in records]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a question.

    Attributes:
        text: the answer; "" where there is none.
        finished: False if it was cut off by the token limit.
        problem: why there is no answer; None if there is one.
    """

    text: str
    finished: bool = True
    problem: str | None = None


class Writer(Protocol):
    """Answers questions, without the instruction that asks for confidences."""

    def write(self, records: Sequence[Record], sampling: Sampling) -> list[list[Answer]]:
        """Return ``sampling.n`` answers to the question of every record, or a single one that says why there is none.

        An answer must not depend on the other records.
        """


class EngineWriter(Writer):
    """Lets the model of an engine answer.

    Args:
        engine: samples the answers, with the weights that it was last synced with.
        encoder: encodes the prompts for the engine's model.
    """

    def __init__(self, engine: Engine, encoder: Encoder) -> None:
        self.engine = engine
        self.encoder = encoder

    def write(self, records: Sequence[Record], sampling: Sampling) -> list[list[Answer]]:
        """Return answers; random streams are keyed by record id, so that they do not depend on the other records.

        A question that leaves no room for an answer in the model's context gets none.
        """
        questions = {record.id: record.question for record in records}
        samples = plain_completions(self.engine, self.encoder, questions, sampling)
        answers = []
        for name, question in questions.items():
            if name in samples:
                answers.append([_answer(self.encoder.written(c.ids, c.finished), c.finished) for c in samples[name]])
                continue
            tokens, room = len(self.encoder.prompt(question, instruct=False)), self.engine.context_length
            problem = f"the prompt has {tokens} tokens, the model's context holds {room}; shorten the question"
            answers.append([Answer("", problem=problem)])
        return answers


def _answer(text: str, finished: bool) -> Answer:
    answer = text[thought_length(text, opened=True) :].strip()
    if text.strip() and not answer:
        return Answer("", problem="cut off before the answer began; give more tokens with --max_new_tokens")
    return Answer(answer, finished)


class AnswerStep:
    """Lets a model answer questions.

    Args:
        writer: writes the answers.
        sampling: how to sample. Several samples become several records, ``<id>/sample-1`` and so on.
    """

    def __init__(self, writer: Writer, sampling: Sampling) -> None:
        self.writer = writer
        self.sampling = sampling

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return answered records; what a question brings of an earlier answer is dropped, labels included.

        A question without an answer keeps an empty one, and ``meta["problem"]`` says why. ``meta["finished"]`` is False
        where an answer was cut off by the token limit.

        Raises:
            LovecError: the writer, which may be the user's own, returned something else than answers.
        """
        written = self.writer.write(records, self.sampling)
        if len(written) != len(records):
            name = type(self.writer).__name__
            raise LovecError(f"{name} returned answers to {len(written)} questions, expected {len(records)}")
        for record, answers in zip(records, written, strict=True):
            if len(answers) not in (1, self.sampling.n) or not all(isinstance(a, Answer) for a in answers):
                raise LovecError(
                    f"{type(self.writer).__name__} returned {str(answers)[:60]} for record {record.id!r}, expected a "
                    f"list of {self.sampling.n} lovec.labelling.Answer"
                )
        return [self._outcome(*pair) for pair in zip(records, written, strict=True)]

    def _outcome(self, record: Record, answers: Sequence[Answer]) -> Outcome:
        records = []
        for number, answer in enumerate(answers, 1):
            name = record.id if len(answers) == 1 else f"{record.id}/sample-{number}"
            drops = _OF_AN_ANSWER if record.answer else ()
            meta = {key: value for key, value in record.meta.items() if key not in drops}
            meta |= {} if answer.finished else {"finished": False}
            meta |= {} if answer.problem is None else {"problem": answer.problem}
            records.append(replace(record, id=name, answer=answer.text, sentences=(), rejected=None, meta=meta))
        problems = [answer.problem for answer in answers if answer.problem is not None]
        counts = {"unfinished": sum(not answer.finished for answer in answers)}
        return Outcome(records, {} if len(problems) == len(answers) else counts, problems[0] if problems else None)


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
        What states nothing (see ``lovec.types.PartKind``) stays in the answer and is not a sentence.
        An abstention keeps its answer and gets no sentences, and ``meta["abstained"]`` is True. If an answer was cut
        off by the token limit, its unfinished last sentence is left out, because it cannot be labelled.
        """
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> Outcome:
        record, tags = untag(record, split=self.split)
        read = {"tags read": tags} if tags else {}
        if record.sentences:
            record = record.statements()
            return Outcome([record], {"sentences": len(record.sentences), **read})
        answer = record.answer[thought_length(record.answer, not record.given) :]
        if not answer.strip():
            return Outcome([record], {"without an answer": 1})
        if _has_abstained(record) or self.is_abstention(answer):
            return Outcome([replace(record, meta={**record.meta, "abstained": True})], {"abstained": 1})
        record = split_record(record, split=self.split)
        last = record.sentences[-1].text if record.sentences else ""
        if not record.finished and len(record.sentences) > 1 and not ends_with_stop(last):
            record = replace(record, sentences=record.sentences[:-1])
        record = record.statements()
        return Outcome([record], {"sentences": len(record.sentences)})


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
        ratings = iter(checked_ratings(self.oracle, with_sentences) if with_sentences else [])
        return [self._outcome(record, next(ratings) if record.sentences else []) for record in records]

    def _outcome(self, record: Record, ratings: Sequence[float | None]) -> Outcome:
        if not record.sentences:
            if _has_abstained(record):
                return Outcome([record], {"abstained": 1})
            problem = "the answer states nothing" if record.answer.strip() else "the answer is empty"
            return Outcome([record], failed=str(record.meta.get("problem") or problem))
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


def _has_abstained(record: Record) -> bool:
    """Return what ``meta["abstained"]`` says, also as a word, which tables have."""
    return flag_of(record.meta.get("abstained"), f"abstained of {record.id!r}")


@checked()
class PairStep:
    """Draws wrong scores for preference pairs (the paper's Algorithm 1); a record that has some keeps them.

    Args:
        seed: seed of the draws.
        wrong_scores: which scores are drawn from, see ``lovec.datasets.pairs.WrongScores``.
    """

    def __init__(self, seed: Seed, wrong_scores: WrongScores = "uniform") -> None:
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
