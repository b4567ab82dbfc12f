"""What all baselines share: the resources they work with, and tagging by a list of confidences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from lovec.baselines.samples import Samples
from lovec.core.settings import CheckedSettings, PlainWord, check_choice, check_range
from lovec.core.stopwatch import Stopwatch
from lovec.encoding import Encoder
from lovec.encoding.prompts import prompt
from lovec.types import Engine, LovecError, Record, plain_numbers


@dataclass(frozen=True, slots=True)
class Wording:
    """The prompts that baselines ask a model, as user turns, and the replies that it may give.

    Prompts have the slots ``{question}``, ``{context}`` and ``{sentence}``, each at most once.

    Attributes:
        p_true: asks whether a sentence of the answer ``{context}`` is true; the paper's prompt, word for word.
        true: the reply that it is.
        false: the reply that it is not.
        verbal: asks how confident the model is of a sentence of the answer ``{context}``; the paper's prompt as well.
        score: the reply to it, with the slot ``{score}`` for the numbers 0 to 10.
        support: asks whether the text ``{context}``, one of the model's samples, supports a sentence; our own prompt.
        yes: the reply that it does.
        no: the reply that it does not.

    Raises:
        LovecError: a prompt has another slot, has one twice, or has no slot for the sentence; or a text is empty.
    """

    p_true: str = prompt("p_true")
    true: str = "True"
    false: str = "False"
    verbal: str = prompt("verbal_confidence")
    score: str = "{score}"
    support: str = prompt("support")
    yes: str = "Yes"
    no: str = "No"

    def __post_init__(self) -> None:
        for name in ("p_true", "verbal", "support"):
            prompt = getattr(self, name)
            counts = [prompt.count(f"{{{slot}}}") for slot in ("sentence", "context", "question")]
            try:
                prompt.format(question="", context="", sentence="")
            except (KeyError, IndexError, ValueError, AttributeError):
                counts = []
            if not counts or counts[0] != 1 or max(counts) > 1:
                raise LovecError(
                    f"the prompt {name} is {prompt!r}, expected {{sentence}} once and {{context}} and {{question}} at "
                    "most once; write other braces twice"
                )
        for field in fields(self):
            if not getattr(self, field.name).strip():
                raise LovecError(f"the wording has an empty {field.name}, expected text")


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that a text supports a sentence, for a ``Judge`` to rate.

    Attributes:
        record: the answer that contains the sentence.
        premise: the text; never blank.
        hypothesis: the sentence.
    """

    record: Record
    premise: str
    hypothesis: str


Relation: TypeAlias = Literal["entailment", "contradiction", "neutral"]
"""How a text relates to a sentence, see ``relations``."""


class Judge(Protocol):
    """Rates how well texts support sentences.

    It may also have a method ``relations(claims)``, which returns a ``Relation`` for each claim. One that needs
    something that may be missing says so, see ``lovec.types.check_ready``.
    """

    def attach(self, resources: BaselineResources) -> None:
        """Use these resources from now on."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return how well the text of each claim supports its sentence, in [0, 1].

        All claims come in one call, so that they can be run in batches.
        """


def support(judge: Judge, claims: Sequence[Claim]) -> list[float]:
    """Return how well the text of each claim supports its sentence, as a judge says.

    Raises:
        LovecError: the judge did not return one number in [0, 1] for each claim.
    """
    found = _one_for_each(judge, claims, judge.support(claims))
    for value in found:
        check_range(f"the support that {type(judge).__name__} gave a claim", value, at_least=0, at_most=1)
    return [float(value) for value in found]


def relations(judge: Judge, claims: Sequence[Claim]) -> list[Relation]:
    """Return for every claim whether its text entails its sentence, contradicts it, or neither.

    A judge without a method ``relations`` can only say how well a text supports a sentence: more than 0.5 is
    entailment, all else contradiction.

    Raises:
        LovecError: the judge did not return one relation, or one number in [0, 1], for each claim.
    """
    own = getattr(judge, "relations", None)
    if own is None:
        return ["entailment" if value > 0.5 else "contradiction" for value in support(judge, claims)]
    found = _one_for_each(judge, claims, own(claims))
    for value in found:
        check_choice(f"a relation that {type(judge).__name__} returned", value, Relation)
    return found


def _one_for_each(judge: Judge, claims: Sequence[Claim], values: Iterable[Any]) -> list[Any]:
    """Return what a judge said of claims.

    Raises:
        LovecError: these are not as many values as claims.
    """
    found = list(values)
    if len(found) != len(claims):
        raise LovecError(
            f"{type(judge).__name__} returned {len(found)} values for {len(claims)} claims, expected one for each"
        )
    return found


@dataclass(frozen=True)
class BaselineResources:
    """What baselines work with; all baselines of one test share it.

    Attributes:
        engine: runs the model, with the adapter that the baseline names or without any; the caller sees to that.
        encoder: makes prompts for the tokenizer of the model.
        wording: the prompts that baselines ask the model.
        samples: other answers to the same questions, sampled once for all baselines.
        judge: tells whether a text supports a sentence; None where the data come without a judge.
    """

    engine: Engine
    encoder: Encoder
    wording: Wording
    samples: Samples
    judge: Judge | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What it takes to judge some answers, as far as it is known before it is done.

    Attributes:
        sentences: number of sentences that are judged.
        tokens: number of tokens that the model reads, equal beginnings of the prompts of one answer counted once.
        samples: number of other answers that are written.
        judgements: number of times that a judge is asked about a sentence and a text; where sentences are compared with
            the sentences of samples, whose number is not known, that of sentences and samples.
    """

    sentences: int = 0
    tokens: int = 0
    samples: int = 0
    judgements: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Work)))


def with_confidences(record: Record, confidences: Iterable[float | None]) -> Record:
    """Return a record with one confidence per sentence, and without all else that a model has said of it."""
    cleared = partial(replace, score=None, distribution=None, token_logps=None, by_source=None, source_rank=None)
    pairs = zip(record.sentences, confidences, strict=True)
    return replace(record, sentences=tuple(cleared(s, confidence=c) for s, c in pairs))


class Baseline(CheckedSettings):
    """A tagger of answers that exist already, untrained or with an adapter of its own.

    A subclass overrides :meth:`confidences`, and, if it learns from labels, sets ``needs_labels`` and overrides
    :meth:`fit`.

    Args:
        name: its name in tables; None takes the name of the class.
        adapter: PEFT adapter that it works with; None is the bare base model.

    Attributes:
        name: its name in tables.
        adapter: as passed.
        watch: seconds spent since ``attach``, by phase: "sampling", "judging", "scoring".
        needs_labels: whether a test calls ``fit`` with the training records before it tags.
    """

    needs_labels: ClassVar[bool] = False
    remember_settings: ClassVar[bool] = True  # a teacher's file of estimates is named after them

    def __init__(self, name: PlainWord | None = None, adapter: str | None = None) -> None:
        self.name = name or type(self).__name__
        self.adapter = adapter
        self.watch = Stopwatch()
        self._resources: BaselineResources | None = None

    @property
    def resources(self) -> BaselineResources:
        """The engine, the encoder, and whatever else the baseline works with.

        Raises:
            LovecError: ``attach`` has not been called.
        """
        if self._resources is None:
            raise LovecError(f"the baseline {self.name!r} has no model to work with; call attach(resources) first")
        return self._resources

    def check_ready(self) -> None:
        """Refuse a baseline that lacks what it needs, see ``lovec.types.check_ready``; here nothing can be missing."""

    def attach(self, resources: BaselineResources) -> None:
        """Use these resources from now on, and start a new stopwatch."""
        self._resources = resources
        self.watch = Stopwatch()

    def fit(self, records: Sequence[Record]) -> None:
        """Learn from labelled records; the resources are attached already. A baseline that needs none does nothing.

        Raises:
            NoTrainingLabels: too few records are labelled; a test leaves the baseline out.
        """

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with a confidence for every sentence, and without scores and distributions.

        Raises:
            LovecError: :meth:`confidences` did not return one number in [0, 1], or None, for every sentence.
        """
        rows = self.confidences(records)
        sizes = [len(record.sentences) for record in records]
        if [len(row) for row in rows] != sizes:
            raise LovecError(
                f"the baseline {self.name!r} gave {[len(row) for row in rows]} confidences for records of {sizes} "
                "sentences; confidences() must return one for every sentence, or None"
            )
        for confidence in (c for row in rows for c in row):
            check_range(f"a confidence of the baseline {self.name!r}", confidence, at_least=0, at_most=1)
        return [with_confidences(record, row) for record, row in zip(records, plain_numbers(rows), strict=True)]

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes to judge these answers; the resources are attached already."""
        return Work(sum(len(record.sentences) for record in records))

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return a confidence in [0, 1] for every sentence of every record; None where there is none.

        Subclasses override this method.
        """
        raise LovecError(f"the baseline {self.name!r} has no confidences; override confidences(records)")
