"""Texts tagged by a model that states confidences, documents to tag, and the function ``lovec.tag``.

A given text is scored sentence by sentence (iterative tagging); without a text, the model answers a question and tags
its own answer (free-form tagging).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from lovec.baselines import Judge
from lovec.core.hub import ADAPTER_FILES, CALIBRATION_FILE, SETTINGS, TEMPLATE, adapter_folder
from lovec.core.notices import counted
from lovec.core.settings import Count, checked
from lovec.datasets.jsonl import open_input, record_from_dict, record_to_dict
from lovec.datasets.layouts import known_layout
from lovec.datasets.rows import Reading, is_rows, read_records_of, read_rows
from lovec.encoding import QUESTION
from lovec.encoding.grounding import UNGROUNDED
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, TaggedText, TaggedTexts, open_session
from lovec.taggers.by_source import by_both, requests_by_both
from lovec.taggers.freeform import OnWritten
from lovec.taggers.growing import stream_growing
from lovec.taggers.scoring import ScoredSentence, Tagged, answered, items_of
from lovec.taggers.served_confidence import UNCALIBRATED, ServedConfidence, renamed_threshold
from lovec.tagging.apis import OPENAI, ApiModel, ApiTagger, check_api
from lovec.tagging.base import (
    DocumentTagger,
    SessionTagger,
    check_unit,
    with_cut_off,
    with_unknown_words,
)
from lovec.tagging.methods import Method, MethodTagger, check_method, check_questions
from lovec.tagging.revising import Revise
from lovec.tagging.selection import KEEP_ALL, Selection
from lovec.tags import DEFAULT_TAGS, UNTAGGED, TagFormat, mentions_thought, thought_length
from lovec.text.documents import is_html, paragraphs, parts, readable, title_of, unix_lines
from lovec.types import (
    BY_SOURCE,
    DEFAULT_SCALE,
    FREE_FORM,
    ITERATIVE,
    MODES,
    STATEMENT,
    Engine,
    LovecError,
    Readout,
    Record,
    Sampling,
    Sentence,
    ThresholdBy,
    Unit,
    error_in,
    is_text,
)

DEFAULT_QUESTION = QUESTION.format(entity="this topic")
"""The question that a text is taken to answer where none is given: the paper's, about nothing in particular."""

_NOTES: Mapping[str, str] = {
    "stated": "Confidence: the stated score, as a share of the highest score.",
    "mean": UNCALIBRATED,
}
"""What the confidence is, by readout."""

_LONGEST_TOPIC = 80  # characters
_SOURCES = (".txt", ".md", ".markdown", ".html", ".htm")
_MOST_NOTICES = 3  # texts whose topics are said one by one

log = logging.getLogger(__name__)


@checked()
class TextTagger(SessionTagger):
    """Tags texts, or answers questions, with one model.

    A text with evidence gets two confidences from a model that was trained with evidence in its prompts: ``by_source``,
    with the evidence, and ``confidence``, without it. The answer to a question with evidence is written with it: then
    ``by_source`` is what the model says as it writes, and ``confidence`` is that of a given text, without the evidence.

    Args:
        session: the model.
        readout: how ``confidence`` is read: "stated" from the score, "mean" from the distribution over all scores. None
            is the mean, calibrated where the model has a calibration; the others are never calibrated.
        max_new_tokens: longest answer, in tokens.
        selection: which sentences are kept, and what becomes of the others.
        unit: what gets a confidence in a given text: its sentences, or the clauses inside them ("clause"); then
            ``meta["sentence_confidences"]`` has those of the sentences. A warning says that the model was trained on
            the other.

    Raises:
        LovecError: the readout is unknown, or a guarantee is asked for clauses, or the model was not trained with
            evidence by which sentences are to be kept.
    """

    def __init__(
        self,
        session: Session,
        readout: Readout | None = None,
        max_new_tokens: Count = 512,
        selection: Selection = KEEP_ALL,
        unit: Unit = "sentence",
    ) -> None:
        served = session.served if readout is None else ServedConfidence()
        super().__init__(session, served, selection, unit)
        if selection.threshold_by == "source" and session.encoder.grounding is None:
            raise LovecError(f"threshold_by is 'source', and the model {UNGROUNDED}")
        if (problem := session.unit_problem(unit)) is not None:
            _warn_once(problem)
        engine, encoder = session.engine, session.encoder
        self.readout = readout
        calibrations = {mode: self.served.calibration(mode) for mode in MODES}
        by_source = {mode: self.served.calibration(BY_SOURCE[mode]) for mode in MODES}
        self._iterative = IterativeTagger(
            engine,
            encoder,
            readout or "mean",
            calibration=calibrations[ITERATIVE],
            by_source=by_source[ITERATIVE],
        )
        self._free_form = FreeFormTagger(
            engine,
            encoder,
            Sampling(max_new_tokens),
            readout or "mean",
            distributions=True,
            calibration=calibrations[FREE_FORM],
            by_source=by_source[FREE_FORM],
        )

    def answer_questions(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with the model's answer to their question, tagged by itself, in the order given.

        ``meta["problems"]`` names problems with an answer: malformed tags, words of the question that the model does
        not know, an answer that was cut off.

        Args:
            records: the questions.
        """
        return [item for item in self.stream(records, FREE_FORM) if isinstance(item, Record)]

    def stream(self, records: Sequence[Record], mode: str, on_written: OnWritten | None = None) -> Iterator[Tagged]:
        """Yield the sentences of records, those that are left out included, and the records as they are in the end.

        Args:
            records: the texts, or the questions.
            mode: "iterative" as in ``tag_texts``, whose sentences come as soon as they are scored, or "free-form" as in
                ``answer_questions``.
            on_written: see ``FreeFormTagger.stream``; not called where ``live`` has the sentences come one by one.
        """
        for compared in {self.threshold_mode(record, mode) for record in records} or {mode}:
            self.keeps(compared)  # before anything is computed, since there may be no such guarantee
        check_unit(self.unit, None, asking=mode == FREE_FORM)
        if mode == ITERATIVE:
            items: Iterator[Tagged] = self._scored([self._split(record) for record in records])
        else:
            items = self._answered(records, on_written)
        for item in items:
            yield self._finished(item, mode) if isinstance(item, Record) else item

    def _scored(self, records: Sequence[Record]) -> Iterator[Tagged]:
        """Yield the sentences of texts and the texts, with both confidences where a prompt has evidence in it."""
        requests = requests_by_both(self._iterative, records)
        return answered(requests, self.session.engine, self.session.encoder.choices)

    def _answered(self, records: Sequence[Record], on_written: OnWritten | None) -> Iterator[Tagged]:
        """Yield the sentences of answers and the answers, with both confidences of those written with evidence.

        By source is what the model says as it writes. By knowledge the complete answer is a given text, without the
        beginning of a sentence that its limit has cut.
        """
        sourced = [self.is_sourced(record) for record in records]
        if self.live and (on_written is None or any(sourced)):
            yield from stream_growing(self._free_form, records, self._iterative.calibration)
            return

        def on_stated(item: ScoredSentence) -> None:
            if on_written is not None and not sourced[item.record]:  # what is stated with a source is not the score
                on_written(item)

        items = self._free_form.stream(records, None if on_written is None else on_stated)
        if not any(sourced):
            yield from items
            return
        written = [item for item in items if isinstance(item, Record)]
        texts = [
            replace(record, evidence=(), sentences=_uncut(record))
            for record, both in zip(written, sourced, strict=True)
            if both
        ]
        known = iter(self._iterative.tag(texts))
        for number, (record, both) in enumerate(zip(written, sourced, strict=True)):
            if both:
                text = next(known)
                text = replace(text, sentences=text.sentences + record.sentences[len(text.sentences) :])
                record = by_both(text, record, self._free_form.by_source)
            yield from items_of(record, number)

    def _finished(self, record: Record, mode: str) -> Record:
        """Return a tagged record with its problems, and without the sentences that are not kept."""
        record = with_unknown_words(record, self.session, mode)
        record = with_cut_off(record) if mode == FREE_FORM else record
        return self._filtered(record, mode)

    def note(self, mode: str) -> str:
        """Return one sentence that says what the confidences of a mode are."""
        return self._noted(self.served.note(mode) if self.readout is None else _NOTES[self.readout])

    def is_sourced(self, record: Record) -> bool:
        """Return whether the prompt of a record has its evidence in it."""
        return self.session.encoder.has_source(record)


def _uncut(record: Record) -> tuple[Sentence, ...]:
    """Return the sentences of an answer without the beginning of one that its limit has cut."""
    is_cut = not record.meta["finished"] and f"sentence {len(record.sentences)}: {UNTAGGED}" in record.meta["problems"]
    return record.sentences[:-1] if is_cut else record.sentences


def tag(
    text: str | Sequence[str] | None = None,
    question: str | Sequence[str] | None = None,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    engine: Engine | str = "transformers",
    *,
    about: str | Sequence[str] | None = None,
    evidence: str | Sequence[str] | None = None,
    session: Session | None = None,
    min_confidence: float | None = None,
    keep_factual: float | None = None,
    readout: Readout | None = None,
    max_new_tokens: int = 512,
    method: Method | None = None,
    samples: int = 10,
    judge: Judge | None = None,
    unit: Unit = "sentence",
    revise: Revise | None = None,
    hedge_phrase: str | None = None,
    threshold_by: ThresholdBy = "knowledge",
    **settings: Any,
) -> Any:
    """Give every sentence of a text a confidence; without a text, answer a question and tag the answer.

    The model stays open for the next call with the same settings.

    Args:
        text: one text, or a list of texts: plain text, Markdown or HTML.
        question: the question that the text answers, or a list with one question per text.
        about: in place of a question: what the text is about, or a list with one topic per text; the question is the
            paper's about it. Without both, the topic is the title of the text where it has one, see `topic_of`, and a
            warning says which question was taken.
        model: as in `lovec.taggers.open_session`, as are adapter and engine.
        adapter: folder of a PEFT adapter, or of the run that wrote it.
        engine: "transformers", "vllm", the address of a vLLM server, or an engine; or "openai" for a model behind chat
            completions, see `ApiModel` and `ApiTagger` for its settings (``base_url``, ``max_cost``, ...).
        evidence: a source that the sentences are compared with, or several, and that answers are written with; see
            `TextTagger`.
        session: a model opened by `lovec.taggers.open_session`; model, adapter, engine and settings are then ignored.
        min_confidence: sentences with a lower confidence, or without one, are left out, such as those below 0.7.
        keep_factual: probability that all sentences that are kept are true; see `Selection`.
        readout: how ``confidence`` is read: "stated" from the score, "mean" from the distribution over all scores; None
            is the mean, calibrated where the model has a calibration.
        max_new_tokens: longest answer to a question, in tokens.
        method: how texts are scored by a model that was not taught to state confidences: "likelihood", "p_true",
            "verbal", "self_consistency" or "luq"; None has it write tags. See `MethodTagger`, also for the next two.
        samples: other answers to the question of a text, for the last two methods.
        judge: tells them whether a text supports a sentence; None asks the model itself.
        unit: "clause" gives a confidence to every clause inside a sentence, see `TextTagger`.
        revise: "drop" makes a text without the sentences that are not kept, "hedge" one that words them as uncertain;
            it is ``meta["revised"]``, see `Selection`, also for the next one.
        hedge_phrase: how "hedge" words them; None goes by their confidence.
        threshold_by: "source" compares the confidence by the evidence with ``min_confidence`` and the threshold of
            ``keep_factual``, in place of that by "knowledge".
        **settings: other arguments of `open_session`, such as ``dtype`` and ``device``.

    Returns:
        The record as a dict (``{"id", "question", "answer", "sentences": [{"text", "confidence", "score", ...}],
        ...}``), or a list of them for a list. Notebooks show them as tagged text, and ``to_frame()`` gives a pandas
        frame, see `lovec.taggers.TaggedText`.

    Raises:
        LovecError: neither text nor question is given, or both question and topic, one is not text, their numbers
            differ, the method needs something else, or the model cannot be opened.
    """
    if about is not None:
        if question is not None:
            raise LovecError("both question and about are given; the question says what the text is about")
        topics = _listed("about", about)
        question = about_question(about) if isinstance(about, str) else [about_question(str(one)) for one in topics]
    single = isinstance(question if text is None else text, str)
    if text is None and question is None:
        raise LovecError("neither text nor question is given; tag('A sentence.') tags, tag(question='Who ...?') asks")
    texts, questions = (_listed(name, value) for name, value in (("text", text), ("question", question)))
    n = len(questions) if text is None else len(texts)
    if len(questions) not in (1, n) or (single and len(questions) != 1):
        raise LovecError(f"got {len(questions)} questions for {n} texts, expected one for all or one each")
    texts, questions = (values if len(values) == n else values * n for values in (texts, questions))
    if "min_score" in settings:
        scale = DEFAULT_SCALE if session is None else session.encoder.scale
        raise renamed_threshold(settings["min_score"], scale, "min_confidence={}")
    named = [(f"text-{number}", t or "", q) for number, (t, q) in enumerate(zip(texts, questions, strict=True), 1)]
    tags = DEFAULT_TAGS if session is None else session.encoder.tags
    guesses = {name: guessed_question(t, tags=tags) for name, t, q in named if not q}
    records = [text_record(t, q or guesses[name][0], name, tags) for name, t, q in named]
    guessed = {name: topic for name, (_, topic) in guesses.items() if topic is not None}
    default = DEFAULT_QUESTION if len(guessed) < len(guesses) else None
    for notice in question_notices(guessed, default, 'about="NAME"'):
        log.warning("%s", notice)
    mode = FREE_FORM if text is None else ITERATIVE
    if evidence is not None:
        if method is not None or engine == OPENAI:
            raise LovecError("evidence is for an adapter trained with it; leave out engine and method")
        records = [replace(record, evidence=tuple(map(str, _listed("evidence", evidence)))) for record in records]
    if method is not None:
        check_method(method, readout)
        check_questions(method, records, DEFAULT_QUESTION)
        if keep_factual is not None:
            raise LovecError(f"keep_factual needs a threshold, and there is none for {method}; use min_confidence")
    selection = Selection(min_confidence, keep_factual, revise, hedge_phrase, threshold_by)
    selection.check_compared()
    check_unit(unit, keep_factual, asking=text is None)
    if threshold_by == "source" and not any(text.strip() for record in records for text in record.evidence):
        raise LovecError("threshold_by is 'source', and there is no evidence; give evidence, or leave it out")
    how = samples, judge, readout, max_new_tokens, selection
    tagger: DocumentTagger
    if session is None and engine == OPENAI:
        if adapter is not None or keep_factual is not None:
            raise LovecError(f"adapter and keep_factual need a model that lovec runs, not engine={OPENAI!r}")
        check_api(method, readout, asking=text is None)
        instruction, tags = settings.pop("instruction", None), settings.pop("tags", DEFAULT_TAGS)
        asker = ApiModel(os.fspath(model or ""), **settings)
        tagger = ApiTagger(asker, method, *how, instruction, tags, unit=unit)
    else:
        session = session or _shared_session(model=model, adapter=adapter, engine=engine, **settings)
        if evidence is not None and session.encoder.grounding is None:
            raise LovecError(f"evidence is given, and the model {UNGROUNDED}")
        if method is None:
            tagger = TextTagger(session, readout, max_new_tokens, selection, unit)
        else:
            tagger = MethodTagger(session, method, *how, unit)
    tagged = [item for item in tagger.stream(records, mode) if isinstance(item, Record)]
    for record in tagged:
        if problems := record.meta.get("problems"):
            log.warning("%s: %s%s", record.id, problems[0], f" (and {len(problems) - 1} more)" * (len(problems) > 1))
    for read in dict.fromkeys(tagger.knowledge_mode(record, mode) for record in tagged):
        if (drift := tagger.drift(read)) is not None:
            log.warning("%s", drift)
    results = TaggedTexts(
        TaggedText(
            record_to_dict(record),
            " ".join(tagger.notes([tagger.knowledge_mode(record, mode)], mode if tagger.is_sourced(record) else None)),
        )
        for record in tagged
    )
    return results[0] if single else results


def _listed(name: str, value: Any) -> list[str | None]:
    """Return a text or several as a list.

    Raises:
        LovecError: the value is neither text nor a list of texts, or UTF-8 cannot encode one.
    """
    if value is None:
        return [None]
    single = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    texts = [value] if single else list(value)
    for text in texts:
        if not (isinstance(text, str) and is_text(text)) and not (name == "question" and text is None):
            raise LovecError(f"{name} is {text!r:.60}, expected a text that UTF-8 can encode, or a list of such texts")
    return texts


def text_record(
    text: str, question: str = DEFAULT_QUESTION, record_id: str = "text", tags: TagFormat = DEFAULT_TAGS
) -> Record:
    """Return a record of a text that is not split into sentences yet.

    Args:
        text: the text, with line breaks of any system; of HTML the record has the visible text, and tags that are in it
            already. A thought before it stays.
        question: the question that it answers.
        record_id: id of the record.
        tags: the tag words.
    """
    text = unix_lines(text)
    begin = thought_length(text)
    return _given(Record(record_id, question, answer=text[:begin] + readable(text[begin:], tags)))


def _given(record: Record) -> Record:
    """Return the record of a text that somebody gave; it says so where that matters, see ``Record.given``."""
    return replace(record, meta={**record.meta, "given": True}) if mentions_thought(record.answer) else record


@dataclass
class Documents:
    """The texts to tag or the questions to answer: text files and files with rows, one after the other.

    A text file is one document, or one per paragraph (blank lines separate paragraphs). A row of JSON Lines, JSON, CSV
    or Parquet is one document: its "text", "answer" or "sentences", and its "question"; or a question alone, where
    questions are to be answered. Rows may also have another layout of ``lovec.datasets.layouts``.

    Attributes:
        files: name and path of each file; the name is the id of its document.
        question: the question of documents that have none.
        paragraphs: whether every paragraph of a text is a document of its own.
        asking: whether questions are to be answered; then every line needs a question, and nothing else.
        guess: whether what a text file is about is guessed from its title, see `topic_of`.
        evidence: sources of the documents that bring none.
        on_error: called with the error of every row or file that cannot be read; the others are read all the same.
        places: by the id of every paragraph that was read so far, the name of its file and the lines before it there;
            of what was read from HTML, whose lines are others, its own id and None.
    """

    files: Sequence[tuple[str, Path]]
    question: str = DEFAULT_QUESTION
    paragraphs: bool = False
    asking: bool = False
    guess: bool = False
    evidence: tuple[str, ...] = ()
    on_error: Callable[[LovecError], None] = field(default=lambda error: log.warning("%s; left out", error))
    places: dict[str, tuple[str, int | None]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def records(self, skip: int) -> Iterator[Record]:
        """Yield the records after the first ``skip`` ones, with unique ids."""
        used: dict[str, int] = {}  # ids, and how often each was repeated
        for at, (record, place) in enumerate(self._all()):
            record_id, number = record.id, used.get(record.id, 1)
            while record_id in used:
                number += 1
                record_id = f"{record.id}#{number}"
            used[record.id] = number
            used.setdefault(record_id, 1)
            if place is not None:
                self.places[record_id] = place if place[1] is not None else (record_id, None)
            if at >= skip:
                yield replace(record, id=record_id, evidence=record.evidence or self.evidence)

    def _all(self) -> Iterator[tuple[Record, tuple[str, int | None] | None]]:
        for name, path in self.files:
            if self.asking or is_rows(path):
                yield from self._rows(name, path)
            else:
                yield from self._text(name, path)

    def topics(self) -> dict[str, tuple[str, str]]:
        """Return what every text file is about and where that was found, by name, where it can be guessed."""
        found = {}
        for name, path in self.files if self.guess and not self.asking else ():
            if not is_rows(path) and (topic := topic_of(path.read_bytes().decode("utf-8-sig", "replace"), name)):
                found[name] = topic
        return found

    def _text(self, name: str, path: Path) -> Iterator[tuple[Record, tuple[str, int | None] | None]]:
        """Yield the document of a text file, or its paragraphs, each with its place in ``places``."""
        try:
            text = unix_lines(path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            self.on_error(LovecError(f"{name}: not valid UTF-8 text ({error.reason})"))
            return
        question = guessed_question(text, name)[0] if self.guess else self.question
        document, has_lines = text_record(text, question, name), not is_html(text[thought_length(text) :])
        if not self.paragraphs:
            yield document, None if has_lines else (name, None)
            return
        end = thought_length(document.answer)
        before = document.answer.count("\n", 0, end)
        for number, (paragraph, kind) in enumerate(paragraphs(document.answer[end:]), 1):
            start = document.answer.index(paragraph, end)
            before += document.answer.count("\n", end, start)
            sentences = [] if kind == STATEMENT else [Sentence(paragraph, kind=kind)]
            keeps_lines = has_lines
            if not sentences and has_lines and is_html(paragraph):
                keeps_lines = not DEFAULT_TAGS.occur_in(paragraph)  # else it is read as its visible text
                sentences = parts(paragraph, begins=False) if keeps_lines else []  # as in the whole document
            yield (
                replace(document, id=f"{name}:{number}", answer=paragraph, sentences=tuple(sentences)),
                (name, before if keeps_lines else None),
            )
            end = start + len(paragraph)
            before += paragraph.count("\n")

    def _rows(self, name: str, path: Path) -> Iterator[tuple[Record, tuple[str, None] | None]]:
        """Yield the documents of a file with rows, each with its place in ``places`` if it was read from HTML."""
        reading = Reading(name)
        try:
            for number, row in read_rows(path, name, self.on_error):
                reading.number = number
                try:
                    yield from [self._checked(record, reading.place) for record in self._records(row, reading)]
                except LovecError as error:
                    self.on_error(error)
        except LovecError as error:  # of the whole file
            self.on_error(error)

    def _records(self, row: dict[str, Any], reading: Reading) -> Iterator[Record]:
        """Yield the records of a row; in lovec's own layout the question may be missing, and "text" is an answer."""
        layout = None if "text" in row else known_layout(row)
        if layout is not None and layout.read is not None:
            yield from read_records_of(row, layout.name, layout.read, reading)
            return
        is_given = row.get("text") is not None and not row.get("answer")
        if is_given:
            row["answer"] = row.pop("text")
        row["id"] = reading.place if row.get("id") is None else row["id"]
        if not self.asking:
            row["question"] = row.get("question") or self.question
        with error_in(f"{reading.place}: "):
            record = record_from_dict(row)
        yield _given(record) if is_given else record

    def _checked(self, record: Record, place: str) -> tuple[Record, tuple[str, None] | None]:
        if not self.asking and not record.answer.strip() and not record.sentences:
            raise LovecError(
                f"{place}: has no 'text', 'answer' or 'sentences' to tag; use --ask_file to have questions answered"
            )
        sentences = tuple(replace(sentence, text=unix_lines(sentence.text)) for sentence in record.sentences)
        answer = unix_lines(record.answer)
        has_lines = not is_html(answer[thought_length(answer, not record.given) :])
        record = replace(record, answer=readable(answer), sentences=sentences)
        return record, None if has_lines else (record.id, None)


def read_sources(place: str) -> tuple[str, ...]:
    """Return the texts of a file, or of the files of a folder in the order of their names; of HTML the visible text.

    Args:
        place: a file of text, Markdown or HTML, or a folder; of a folder the files that end in .txt, .md, .markdown,
            .html or .htm are read, and those in folders within it are not.

    Raises:
        LovecError: there is no such file, no such file in the folder, or none with a text in it.
    """
    path = Path(place)
    files = sorted(f for f in path.iterdir() if f.suffix.lower() in _SOURCES) if path.is_dir() else [path]
    if not files:
        raise LovecError(f"the folder {place} has no evidence, expected files that end in {', '.join(_SOURCES)}")
    texts = []
    for file in files:
        with open_input(str(file), "a text of evidence") as lines:
            texts.append(readable(unix_lines(lines.read().decode("utf-8-sig", "replace"))).strip())
    if not any(texts):
        raise LovecError(f"{place} has no evidence, expected a text; give another file")
    return tuple(filter(None, texts))


def topic_of(text: str, name: str, tags: TagFormat = DEFAULT_TAGS) -> tuple[str, str] | None:
    """Guess what a text is about.

    Args:
        text: the text.
        name: name of its file; "" without one.
        tags: the tag words.

    Returns:
        The topic, and where it was found: the title of the text (see ``lovec.text.documents.title_of``), or the name of
        the file, without its ending, if it has several words or begins with a capital letter. None where nothing looks
        like a title.
    """
    found = title_of(text[thought_length(text) :], tags)
    if found is None:
        words = re.sub(r"[-_\s]+", " ", Path(name).name.partition(".")[0]).strip()
        if not (" " in words or (words[:1].isupper() and not words.isupper())):
            return None
        found = words, "the name of the file"
    return found if found[0] and len(found[0]) <= _LONGEST_TOPIC and is_text(found[0]) else None


def about_question(topic: str) -> str:
    """Return the question that a text about a topic answers: the paper's."""
    return QUESTION.format(entity=topic)


def guessed_question(text: str, name: str = "", tags: TagFormat = DEFAULT_TAGS) -> tuple[str, tuple[str, str] | None]:
    """Return the question that a text is taken to answer where none is given, and the topic in it, see `topic_of`."""
    topic = topic_of(text, name, tags)
    return (DEFAULT_QUESTION, None) if topic is None else (about_question(topic[0]), topic)


def question_notices(topics: Mapping[str, tuple[str, str]], default: str | None, option: str) -> Iterator[str]:
    """Yield in a line each which questions texts are taken to answer where none was given.

    Args:
        topics: what texts are taken to be about, and where that was found, by the names of the texts.
        default: the question that the others are taken to answer; None where there are no others.
        option: how the reader names the topic of a text.
    """
    for name, (topic, where) in [*topics.items()][:_MOST_NOTICES]:
        yield f'assuming that {name} is about "{topic}" ({where}); {option} changes that'
    if len(topics) > _MOST_NOTICES:
        one, several = "more text is about what its title says", "more texts are about what their titles say"
        yield f"assuming that {counted(len(topics) - _MOST_NOTICES, one, several)}"
    if default is not None:
        yield f'taken to answer "{default}"; scores are better if you say what the text is about: {option}'


@cache
def _warn_once(problem: str) -> None:
    """Log a warning once, since a tagger is made for every call of `tag`."""
    log.warning("%s", problem)


_last: tuple[Any, Session] | None = None


def _shared_session(**settings: Any) -> Session:
    """Return the session of the last call if its settings, adapter and calibration are the same, else a new one."""
    global _last
    adapter = settings["adapter"]
    folder = Path(adapter_folder(adapter) if adapter else settings["model"] or "")
    files = [folder / name for name in (*ADAPTER_FILES, SETTINGS, TEMPLATE, CALIBRATION_FILE)]
    key = settings, [file.stat().st_mtime_ns if file.exists() else None for file in files]
    if _last is None or _last[0] != key:
        if _last is not None:
            _last[1].close()
            _last = None  # frees its memory before the next model is loaded
        _last = key, open_session(**settings)
    return _last[1]
