"""Given texts tagged by a method that needs no adapter: a baseline, with the model as it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from lovec.baselines import (
    LUQ,
    WORLD_WORDING,
    Baseline,
    BaselineResources,
    Judge,
    PTrue,
    Samples,
    SelfConsistency,
    SentenceLikelihood,
    VerbalConfidence,
    Wording,
    Work,
)
from lovec.baselines.samples import brought_samples
from lovec.core.notices import counted
from lovec.core.progress import rounded_time
from lovec.core.settings import Count, check_choice, checked
from lovec.taggers import Session
from lovec.taggers.freeform import OnWritten
from lovec.taggers.scoring import Tagged, items_of
from lovec.taggers.served_confidence import ServedConfidence, with_mean_readout
from lovec.tagging.base import SessionTagger, with_problem, with_unknown_words
from lovec.tagging.selection import KEEP_ALL, Selection
from lovec.tags import TagFormat
from lovec.types import DEFAULT_SCALE, ITERATIVE, LovecError, Readout, Record, Sentence, Unit

Method: TypeAlias = Literal["likelihood", "p_true", "verbal", "self_consistency", "luq"]
"""How a model that was not taught to state confidences gives them, see ``lovec.baselines``."""

SAMPLED = ("self_consistency", "luq")
"""Methods that compare a text with other answers to its question."""

_NOTES: Mapping[Method, str] = {
    "likelihood": "the geometric mean of the probabilities of a sentence's tokens; it is no probability of truth, "
    "and only says which sentences are surer than others",
    "p_true": "the probability that the model gives to True, of True and False",
    "verbal": "the number from 0 to 10 that the model finds most probable",
    "self_consistency": "how well sentences of {samples} other answers support a sentence, on average; it is not a "
    "probability of being true",
    "luq": "how well {samples} other answers support a sentence, on average; it is not a probability of being true",
}
_MEAN = "the mean of the numbers from 0 to 10, by their probabilities"


def method_note(method: Method, samples: int, readout: Readout | None = None) -> str:
    """Return one sentence that says what the confidences of a method are.

    Args:
        method: the method.
        samples: number of other answers that it compares with, if it does.
        readout: how the numbers of "verbal" are read; None is the most probable one.
    """
    what = _MEAN if readout == "mean" else _NOTES[method].format(samples=samples)
    return f"Confidence ({method}): {what}; not calibrated."


def check_method(method: Method, readout: Readout | None) -> None:
    """Refuse what is not a method, and a readout where a method states no score.

    Raises:
        LovecError: so it is.
    """
    check_choice("method", method, Method)
    if readout is not None and method != "verbal":
        raise LovecError(f"readout does not apply to the method {method}, which states no scores; leave it out")


def tags_of_method(method: Method | None, tags: TagFormat) -> TagFormat:
    """Return the tags with the scale of a method's scores: "verbal" asks for a number from 0 to 10 in any case."""
    return replace(tags, scale=DEFAULT_SCALE) if method == "verbal" else tags


def check_questions(method: Method, records: Iterable[Record], default: str) -> None:
    """Refuse texts without a question where a method compares them with other answers to it.

    Args:
        method: the method.
        records: the texts; those that bring samples of their own need no question.
        default: the question of texts that have none.

    Raises:
        LovecError: a text has no question.
    """
    if method not in SAMPLED:
        return
    for record in records:
        if record.question == default and not brought_samples(record):
            raise LovecError(
                f"{method} compares a text with other answers to the question that it answers, and {record.id} has "
                "no question; give one with --question, or what the text is about with --about (in Python: question, "
                "about)"
            )


def baseline_of(method: Method, samples: int, judge: Judge | None) -> Baseline:
    """Return the baseline of a method.

    Args:
        method: the method.
        samples: number of other answers per question.
        judge: tells whether a text supports a sentence; None asks the model itself.
    """
    if method == "self_consistency":
        return SelfConsistency(samples, judge)
    if method == "luq":
        return LUQ(samples, judge)
    if method == "likelihood":
        return SentenceLikelihood()
    return PTrue() if method == "p_true" else VerbalConfidence()


@checked()
class MethodTagger(SessionTagger):
    """Tags given texts by a method that needs no adapter.

    Args:
        session: the model. Its adapter, if it has one, is used, as p(true) may have one; a calibration is not.
        method: how confidences are made.
        samples: number of other answers per question, for the methods that compare with some.
        judge: tells whether a text supports a sentence, for the same methods; None asks the model itself.
        readout: how the numbers of "verbal" are read: "stated", also for None, is the most probable one, "mean" the
            mean of all by their probabilities.
        max_new_tokens: longest sample, in tokens.
        selection: which sentences are kept, and what becomes of the others; there is no guarantee.
        unit: what gets a confidence: sentences, or the clauses inside them.

    Attributes:
        sentences: number of sentences that were tagged so far.
        seconds: time that it took.

    Raises:
        LovecError: there is no such method, or it takes no readout.
    """

    def __init__(
        self,
        session: Session,
        method: Method,
        samples: Count = 10,
        judge: Judge | None = None,
        readout: Readout | None = None,
        max_new_tokens: Count = 512,
        selection: Selection = KEEP_ALL,
        unit: Unit = "sentence",
    ) -> None:
        super().__init__(session, ServedConfidence(), selection, unit)
        check_method(method, readout)
        self.method = method
        self.text_tags = tags_of_method(method, self.tags)
        self.samples = samples
        self.readout = readout
        self.sentences, self.seconds = 0, 0.0
        self._rest = 0  # sentences that `cost` was asked about, until `left` has said how long they take
        self._samples = Samples(max_new_tokens=max_new_tokens)
        self._baseline = baseline_of(method, samples, judge)
        wording = WORLD_WORDING if session.of_world else Wording()
        self._baseline.attach(BaselineResources(session.engine, session.encoder, wording, self._samples))
        self._read_before = session.engine.prefill_tokens

    def note(self, mode: str) -> str:
        """Return one sentence that says what the confidences are."""
        return self._noted(method_note(self.method, self.samples, self.readout))

    def cost(self, records: Iterable[Record], mode: str) -> str:
        """Return in words what it takes to tag texts: tokens to read, answers to write, comparisons to judge."""
        work = sum((self._baseline.work([self._split(record).statements()]) for record in records), Work())
        self._rest = work.sentences
        parts = [counted(work.sentences, "sentence")]
        parts += [f"{work.tokens:,} tokens to read"] if work.tokens else []
        if self.method in SAMPLED:
            longest = f" of at most {self._samples.max_new_tokens} tokens" if work.samples else ""
            parts.append(f"{counted(work.samples, 'other answer')} to write{longest}")
            pieces = " with every sentence of an answer" if self.method == "self_consistency" else ""
            parts.append(f"{counted(work.judgements, 'comparison')}{pieces} to judge")
        return f"{self.method}: {', '.join(parts)}"

    def left(self) -> str | None:
        """Return, once, how long the other texts take at the speed of the first one."""
        rest, self._rest = self._rest - self.sentences, 0
        if not self.sentences or rest <= 0:
            return None
        seconds = rounded_time(rest * self.seconds / self.sentences)
        return f"{self.method}: about {seconds} for the other {counted(rest, 'sentence')}, at the speed of the first"

    def account(self) -> str:
        """Return in words what tagging has taken: time by phase, tokens that were read and written."""
        phases = self._baseline.watch.seconds
        split = f" ({', '.join(f'{name} {rounded_time(s)}' for name, s in phases.items())})" if len(phases) > 1 else ""
        read = self.session.engine.prefill_tokens - self._read_before
        written = f", {self._samples.tokens:,} written" if self._samples.tokens else ""
        return f"{self.method}: took {rounded_time(self.seconds)}{split}; {read:,} tokens read{written}"

    def stream(self, records: Sequence[Record], mode: str, on_written: OnWritten | None = None) -> Iterator[Tagged]:
        """Yield the sentences of records, and the records as they are in the end.

        Args:
            records: the texts. The first one of all is tagged by itself, so that it is known early how long the others
                take.
            mode: "iterative".
            on_written: not used.

        Raises:
            LovecError: the mode is another one.
        """
        if mode != ITERATIVE:
            raise LovecError(f"the method {self.method} tags given texts; give some, or leave the method out")
        first = 0 if self.sentences else 1
        for begin, end in ((0, first), (first, len(records))):
            tagged = self._tagged(records[begin:end])
            for number, record in enumerate(tagged, begin):
                yield from items_of(record, number)

    def _tagged(self, records: Sequence[Record]) -> list[Record]:
        """Tag texts together."""
        if not records:
            return []
        start = time.monotonic()
        split = [self._split(record) for record in records]
        tagged = self._baseline.tag([record.statements() for record in split])
        self._samples.forget()
        if self.readout == "mean":
            tagged = with_mean_readout(tagged)
        self.sentences += sum(len(record.sentences) for record in tagged)
        self.seconds += time.monotonic() - start
        return [self._finished(*pair) for pair in zip(split, tagged, strict=True)]

    def _finished(self, record: Record, tagged: Record) -> Record:
        """Return a record with its tagged statements and its problems."""
        if none := sum(sentence.confidence is None for sentence in tagged.sentences):
            fit = "it does not fit" if none == 1 else "they do not fit"
            problem = f"{counted(none, 'sentence has', 'sentences have')} no confidence: {fit} the model's context"
            record = with_problem(record, problem)
        return self._filtered(with_unknown_words(with_parts(record, tagged), self.session, ITERATIVE), ITERATIVE)


def with_parts(record: Record, tagged: Record) -> Record:
    """Return a record whose statements are tagged, with its other parts in their places.

    Args:
        record: the record with all of its parts.
        tagged: the same with its statements only, tagged.
    """
    statements = iter(tagged.sentences)
    parts = (
        next(statements) if part.is_statement else Sentence(part.text, part.factuality, kind=part.kind)
        for part in record.sentences
    )
    return replace(record, sentences=tuple(parts))
