"""What all that tags documents shares: who tags, which sentences stay, and what is said of the confidences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from lovec.core.settings import check_choice
from lovec.taggers import Session
from lovec.taggers.freeform import OnWritten
from lovec.taggers.scoring import Tagged
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging.revising import REVISED, Revised, revise
from lovec.tagging.selection import KEEP_ALL, Selection
from lovec.tags import TagFormat, strip
from lovec.text.clauses import CONFIDENCES, DEPENDENCE, sentence_confidences
from lovec.text.untag import split_record
from lovec.types import (
    BY_SOURCE,
    FREE_FORM,
    ITERATIVE,
    Keeps,
    LovecError,
    Record,
    Unit,
)

CUT_OFF = "the answer was cut off at its token limit or at the end of the model's context"
"""The problem of an answer that is not finished."""

CLAUSE_NOTE = (
    "Each clause has one; that of a sentence, behind its last clause, says that all of its clauses are true "
    f"(dependence {DEPENDENCE:g})."
)
"""What is said of confidences of clauses."""


class DocumentTagger(ABC):
    """Tags texts, or answers questions; a context manager that closes the model.

    Args:
        model: name of the model, for messages.
        tags: the tag words, and the scale of stated scores.
        served: what becomes of the confidences.
        selection: which sentences are kept, and what becomes of the others.
        unit: what gets a confidence in a given text: its sentences, or the clauses inside them; then
            ``meta["sentence_confidences"]`` of a record has those of the sentences.

    Attributes:
        adapter: folder of the adapter; None without one.
        text_tags: the tag words, and the scale of the scores of given texts: that of a method, where it has its own.
        whole: whether sentences that are left out stay in the records all the same, for those who show them; `keeps`
            tells which they are. False at first.
        live: whether `stream` yields the sentences of answers one by one while a model of this process writes them, for
            those who watch, and not when all are complete, which takes less. False at first.

    Raises:
        LovecError: a guarantee is asked for clauses.
    """

    adapter: str | None = None

    def __init__(
        self,
        model: str,
        tags: TagFormat,
        served: ServedConfidence,
        selection: Selection = KEEP_ALL,
        unit: Unit = "sentence",
    ) -> None:
        check_unit(unit, selection.keep_factual, asking=False)
        self.model = model
        self.tags = self.text_tags = tags
        self.served = served
        self.selection = selection
        self.unit = unit
        self.whole = False
        self.live = False
        self._ranks: dict[str, list[list[float]]] = {}

    @abstractmethod
    def stream(self, records: Sequence[Record], mode: str, on_written: OnWritten | None = None) -> Iterator[Tagged]:
        """Yield the sentences of records, those that are left out included, and the records as they are in the end.

        Args:
            records: the texts, or the questions.
            mode: "iterative" for given texts, "free-form" for questions that are answered.
            on_written: see ``FreeFormTagger.stream``.
        """

    @abstractmethod
    def note(self, mode: str) -> str:
        """Return one sentence that says what the confidences of a mode are."""

    def is_sourced(self, record: Record) -> bool:
        """Return whether the sentences of a record get a confidence by its evidence as well."""
        return False

    def knowledge_mode(self, record: Record, mode: str) -> str:
        """Return how the confidence by knowledge of a record is read.

        An answer that is written with evidence says by source how sure the model is. By knowledge it is a given text,
        which is scored without the evidence.

        Args:
            record: a text, or the question of an answer.
            mode: how it is tagged.
        """
        return ITERATIVE if mode == FREE_FORM and self.is_sourced(record) else mode

    def threshold_mode(self, record: Record, mode: str) -> str:
        """Return which confidence of a record decides what is kept, as `keeps` takes it; arguments as above."""
        return BY_SOURCE[mode] if self.selection.threshold_by == "source" else self.knowledge_mode(record, mode)

    def notes(self, modes: Iterable[str], sourced: str | None = None) -> list[str]:
        """Return what is said of confidences, in sentences.

        Args:
            modes: how those by knowledge were read.
            sourced: the mode of tagging whose confidences by source there are; None where there are none.
        """
        notes = dict.fromkeys(map(self.note, modes))
        return [*notes, *([] if sourced is None else [self.served.source_note(sourced)])]

    def cost(self, records: Iterable[Record], mode: str) -> str | None:
        """Return in words what it takes to tag documents, before it is done; None where that is not known.

        Args:
            records: the documents; they are read one by one, and none is kept.
            mode: "iterative" or "free-form".
        """
        return None

    def left(self) -> str | None:
        """Return, once, how long the rest of what ``cost`` was asked about takes; None where that is not known yet."""
        return None

    def account(self) -> str | None:
        """Return in words what tagging has taken; None where nobody has counted."""
        return None

    def tag_texts(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with a confidence for every sentence, in the order given.

        Answers without sentences are split, and tags in them are removed. What states nothing (headings, code: see
        ``lovec.types.PartKind``) stays among the sentences without a confidence, and the model does not see it.
        ``meta["problems"]`` names problems with a text, such as a length beyond the model's context.

        Args:
            records: the texts.
        """
        return [item for item in self.stream(records, ITERATIVE) if isinstance(item, Record)]

    def keeps(self, mode: str) -> Keeps:
        """Return a function that tells whether a tagged sentence is kept.

        Args:
            mode: what decides it, see `threshold_mode`.

        Raises:
            LovecError: there is no threshold for the guarantee that is asked for.
        """
        return self.served.keeps(mode, self.selection.min_confidence, self.selection.keep_factual)

    def revised(self, record: Record, mode: str) -> Revised:
        """Return the text to pass on of a tagged record, see ``lovec.tagging.revise``.

        Args:
            record: a record of `stream`; the tagger revises.
            mode: what decides what is doubted, see `threshold_mode`.
        """
        selection = self.selection
        assert selection.revise is not None
        if any(word in record.answer for word in (self.tags.open, self.tags.close)):  # as the model wrote it
            opened = not record.given
            sentences = (replace(one, text=strip(one.text, self.tags, opened)) for one in record.sentences)
            record = replace(record, answer=strip(record.answer, self.tags, opened), sentences=tuple(sentences))
        return revise(record, self.keeps(mode), selection.revise, selection.hedge_phrase, selection.threshold_by)

    def promise(self, mode: str) -> str | None:
        """Return in one sentence what is promised of revised texts; None where none are made.

        Args:
            mode: what decides what is doubted, see `threshold_mode`.

        Raises:
            LovecError: there is no such guarantee.
        """
        how, keep_factual = self.selection.revise, self.selection.keep_factual
        if how is None:
            return None
        what = "the remaining text" if how == "drop" else "the sentences that are not hedged"
        if keep_factual is None:
            return f"min_confidence gives no guarantee about {what}; keep_factual does."
        return f"The promise is about {what}. {self.served.promise(mode, keep_factual)}"

    def drift(self, mode: str) -> str | None:
        """Return in one sentence how all texts so far differ from those that the map was fitted to; None if not.

        Args:
            mode: how their confidences were read.
        """
        return self.served.drift(self._ranks.get(mode, []), mode)

    @abstractmethod
    def close(self) -> None:
        """Release what the model holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _split(self, record: Record) -> Record:
        """Return a given text with the units that get a confidence."""
        record = split_record(record, self.tags, unit=self.unit)
        if self.selection.keep_factual is not None and any(one.part_of is not None for one in record.sentences):
            raise LovecError(
                f"{record.id} is divided into clauses, and keep_factual has a threshold for sentences; give the text "
                "itself, or use min_confidence instead"
            )
        return replace(record, rejected=None)

    def _noted(self, note: str) -> str:
        """Return what is said of the confidences, and of those of sentences where clauses have them."""
        return note if self.unit == "sentence" else f"{note} {CLAUSE_NOTE}"

    def _filtered(self, record: Record, mode: str) -> Record:
        """Return a record without the sentences that are not kept, and with their number in its meta data.

        Where its units are clauses, its meta data have the confidences of its sentences, too.
        """
        read, compared = self.knowledge_mode(record, mode), self.threshold_mode(record, mode)
        self._ranks.setdefault(read, []).append(self.served.ranks(record, read))
        if any(sentence.part_of is not None for sentence in record.sentences):
            sentences = {str(place): confidence for place, confidence in sentence_confidences(record).items()}
            record = replace(record, meta={**record.meta, CONFIDENCES: sentences})
        if self.selection.revise is not None:
            return self._with_revised(record, compared)
        if self.selection.keeps_all:
            return record
        kept = tuple(filter(self.keeps(compared), record.sentences))
        meta = {**record.meta, "left_out": len(record.sentences) - len(kept)}
        return replace(record, sentences=record.sentences if self.whole else kept, meta=meta, rejected=None)

    def _with_revised(self, record: Record, mode: str) -> Record:
        """Return a record with its revised text, and with what became of each of its sentences."""
        revised = self.revised(record, mode)
        pairs = zip(record.sentences, revised.actions, strict=True)
        sentences = tuple(replace(sentence, revision=action) for sentence, action in pairs)
        changed = sum(sentence.is_statement and sentence.revision != "kept" for sentence in sentences)
        count = "left_out" if self.selection.revise == "drop" else "hedged"
        meta = {**record.meta, count: changed, REVISED: revised.text}
        return replace(record, sentences=sentences, meta=meta, rejected=None)


class SessionTagger(DocumentTagger):
    """Tags with a model that runs here, or on a vLLM server.

    Args:
        session: the model.
        served: as for `DocumentTagger`, as are the others.
        selection: which sentences are kept.
        unit: what gets a confidence in a given text.
    """

    def __init__(
        self, session: Session, served: ServedConfidence, selection: Selection = KEEP_ALL, unit: Unit = "sentence"
    ) -> None:
        super().__init__(session.model, session.encoder.tags, served, selection, unit)
        self.session = session
        self.adapter = session.adapter

    def close(self) -> None:
        """Release what the engine holds."""
        self.session.close()


def check_unit(unit: Unit, keep_factual: float | None, asking: bool) -> None:
    """Refuse what clauses cannot have: a threshold of whole sentences, or answers that the model tags itself.

    Args:
        unit: what texts are split into.
        keep_factual: probability of a guarantee; None asks for none.
        asking: whether questions are answered.

    Raises:
        LovecError: so it is.
    """
    check_choice("unit", unit, Unit)
    if unit == "clause" and keep_factual is not None:
        raise LovecError("keep_factual has a threshold for sentences only, not for clauses; use a minimum confidence")
    if unit == "clause" and asking:
        raise LovecError("unit clause works on given texts only; answer the questions first, and tag the answers")


def with_problem(record: Record, problem: str) -> Record:
    """Return a record with one more problem, before those that it has."""
    return replace(record, meta={**record.meta, "problems": [problem, *record.meta.get("problems", ())]})


def with_cut_off(record: Record) -> Record:
    """Return a record with a problem more if its answer was cut off."""
    return record if record.finished or not record.answer else with_problem(record, CUT_OFF)


def with_unknown_words(record: Record, session: Session, mode: str) -> Record:
    """Return a tagged record with a problem more if the model knows too few words of what it has read.

    Args:
        record: a tagged text, or a question that was answered.
        session: the model.
        mode: "iterative" or "free-form".
    """
    read = [part.text for part in record.sentences if part.is_statement] if mode == ITERATIVE else [record.question]
    problem = session.unknown_words_problem(read)
    return record if problem is None else with_problem(record, problem)
