"""Tag any text: what `lovec tag` and `lovec.tag` do.

A text that is there is scored sentence by sentence (iterative tagging); without one, the model answers a question and
tags its own answer (free-form tagging).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from lovec.datasets.jsonl import parse_line, record_from_dict, record_to_dict
from lovec.encoding import QUESTION
from lovec.sentences import split_sentences
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, open_session
from lovec.taggers.scoring import OnSentence, Readout
from lovec.tags import TagFormat, strip
from lovec.types import N_SCORES, Engine, LovecError, Record, Sampling, Sentence

DEFAULT_QUESTION = QUESTION.format(entity="this topic")
"""What a text is taken to answer where nobody says: the paper's question, about nothing in particular."""

UNKNOWN = 0.2
"""Share of words that a model may not know before a warning says that its scores mean little."""

_JSONL = (".jsonl", ".ndjson")
_BLANK = re.compile(r"\n\s*\n")

log = logging.getLogger(__name__)


class TextTagger:
    """Tags texts, or has questions answered, with one model.

    Args:
        session: the model.
        readout: what ``confidence`` is: "stated" is score / 10, "mean" the expected score / 10.
        max_new_tokens: longest answer, in tokens.
        distributions: whether answers get the distribution over the 11 scores at every tag (texts always do).
        min_score: sentences with a lower score, or none, are left out; ``meta["left_out"]`` counts them, and the
            answer stays whole. None keeps all.

    Raises:
        LovecError: min_score is no integer 0..10, or the readout is unknown.
    """

    def __init__(
        self,
        session: Session,
        readout: Readout = "stated",
        max_new_tokens: int = 512,
        distributions: bool = True,
        min_score: int | None = None,
    ) -> None:
        if min_score is not None and (type(min_score) is not int or not 0 <= min_score < N_SCORES):
            raise LovecError(f"min_score is {min_score!r}, expected an integer 0..10")
        self.session = session
        self.min_score = min_score
        engine, encoder = session.engine, session.encoder
        self._iterative = IterativeTagger(engine, encoder, readout)
        self._free = FreeFormTagger(engine, encoder, Sampling(max_new_tokens), readout, distributions)

    def texts(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Records with a confidence for every sentence that is there, in the order given.

        Answers without sentences are split; tags they hold already are taken out. ``meta["problems"]`` says what is
        wrong with a text: words that the model does not know, sentences beyond its context.

        Args:
            records: what to tag.
            on_sentence: is told every sentence as soon as it is scored, those that are left out as well.
        """
        cut = [cut_up(record, self.session.encoder.tags) for record in records]
        tagged = self._iterative.tag(cut, on_sentence)
        return [self._kept(self._noted(r, [s.text for s in c.sentences])) for r, c in zip(tagged, cut, strict=True)]

    def answers(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Records with an answer of the model to their question, and its confidence, in the order given.

        ``meta["problems"]`` says what is wrong with an answer: broken tags, words of the question that the model does
        not know, an end that is missing.

        Args:
            records: questions.
            on_sentence: is told every sentence as soon as its tag is written; not what stands behind the last tag.
        """
        tagged = self._free.tag(records, on_sentence)
        return [self._kept(_cut_short(self._noted(record, [record.question]))) for record in tagged]

    def _noted(self, record: Record, read: Sequence[str]) -> Record:
        """The record with a problem where the model knows too few words of what it read."""
        unknown = self.session.unknown_words(read)
        if unknown <= UNKNOWN:
            return record
        return with_problem(
            record,
            f"the model does not know {100 * unknown:.0f} % of these words (it reads them byte by byte); its scores "
            "mean little here",
        )

    def _kept(self, record: Record) -> Record:
        if self.min_score is None:
            return record
        kept = tuple(s for s in record.sentences if s.score is not None and s.score >= self.min_score)
        meta = {**record.meta, "left_out": len(record.sentences) - len(kept)}
        return replace(record, sentences=kept, meta=meta, rejected=None)


def tag(
    text: str | Sequence[str] | None = None,
    question: str | Sequence[str] | None = None,
    model: str | None = None,
    adapter: str | None = None,
    engine: Engine | str = "transformers",
    *,
    session: Session | None = None,
    min_score: int | None = None,
    readout: Readout = "stated",
    max_new_tokens: int = 512,
    **settings: Any,
) -> Any:
    """Give every sentence of a text a confidence; without a text, answer a question and give that one.

    The model stays open for the next call that asks for the same one.

    Args:
        text: one text, or a list of them.
        question: what the text answers, or a list with one a text; by default ``DEFAULT_QUESTION``.
        model: as in `lovec.taggers.open_session`, as are adapter and engine.
        adapter: PEFT adapter folder, or the folder of its run.
        engine: "transformers", "vllm", the address of a vLLM server, or an engine.
        session: a model opened by `lovec.taggers.open_session`; then none of the others is read.
        min_score: sentences with a lower score 0..10, or none, are left out.
        readout: what ``confidence`` is: "stated" is score / 10, "mean" the expected score / 10.
        max_new_tokens: longest answer to a question.
        **settings: others of `open_session`, such as ``dtype`` and ``device``.

    Returns:
        The record as a dict (``{"id", "question", "answer", "sentences": [{"text", "confidence", "score", ...}],
        ...}``), or a list of them for a list.

    Raises:
        LovecError: neither text nor question is given, their numbers differ, or the model cannot be opened.
    """
    given = question if text is None else text
    if given is None:
        raise LovecError("neither text nor question is given; tag('A sentence.') tags, tag(question='Who ...?') asks")
    single = isinstance(given, str)
    texts = [None] if text is None else [text] if isinstance(text, str) else list(text)
    questions = [question] if question is None or isinstance(question, str) else list(question)
    n = max(len(texts), len(questions)) if text is None else len(texts)
    if len(questions) not in (1, n) or (single and len(questions) != 1):
        raise LovecError(f"got {len(questions)} questions for {n} texts, expected one for all or one each")
    questions = questions if len(questions) == n else questions * n
    texts = texts if len(texts) == n else texts * n
    pairs = enumerate(zip(texts, questions, strict=True), 1)
    records = [document(t or "", q, f"text-{number}") for number, (t, q) in pairs]
    opened = session or _opened(model=model, adapter=adapter, engine=engine, **settings)
    tagger = TextTagger(opened, readout, max_new_tokens, min_score=min_score)
    tagged = tagger.answers(records) if text is None else tagger.texts(records)
    for record in tagged:
        if problems := record.meta.get("problems"):
            log.warning("%s: %s%s", record.id, problems[0], f" (and {len(problems) - 1} more)" * (len(problems) > 1))
    found = [record_to_dict(record) for record in tagged]
    return found[0] if single else found


def document(text: str, question: str | None = None, name: str = "text") -> Record:
    """A record of a text, not yet cut up."""
    return Record(name, question or DEFAULT_QUESTION, answer=text)


def cut_up(record: Record, tags: TagFormat) -> Record:
    """The record with sentences, without tags: those it has, else those of its answer. Problems are forgotten."""
    meta = {key: value for key, value in record.meta.items() if key not in ("problems", "left_out")}
    record = replace(record, meta=meta)
    clean = [strip(s.text, tags) if tags.open in s.text or tags.close in s.text else s.text for s in record.sentences]
    if clean:
        pairs = zip(record.sentences, clean, strict=True)
        sentences = tuple(replace(s, text=text) for s, text in pairs if text)
        return replace(record, sentences=sentences, rejected=record.rejected if all(clean) else None)
    tagged = tags.open in record.answer or tags.close in record.answer
    text = strip(record.answer, tags) if tagged else record.answer
    return replace(record, sentences=tuple(map(Sentence, split_sentences(text))), rejected=None)


@dataclass
class Documents:
    """What is to be tagged or asked: files of text and of JSON lines, one after the other.

    A text file is one document, or one a paragraph (blank lines are between them). A JSON line is one document: its
    "text", "answer" or "sentences", and its "question"; or a question alone, where questions are asked.

    Attributes:
        files: name and path of each; a name is the id of its document.
        question: of documents that bring none.
        paragraphs: whether every paragraph of a text is a document of its own.
        asking: whether questions are asked; then every line needs one, and nothing else.
        report: is told of every line or file that cannot be read; the rest is not lost to it.
    """

    files: Sequence[tuple[str, Path]]
    question: str = DEFAULT_QUESTION
    paragraphs: bool = False
    asking: bool = False
    report: Callable[[LovecError], None] = field(default=lambda error: log.warning("%s; left out", error))

    def records(self, skip: int) -> Iterator[Record]:
        """The records behind the first ``skip`` ones, one by one, with ids that differ."""
        given: set[str] = set()
        for at, record in enumerate(self._all()):
            names = chain([record.id], (f"{record.id}#{number}" for number in count(2)))
            name = next(name for name in names if name not in given)
            given.add(name)
            if at >= skip:
                yield replace(record, id=name)

    def _all(self) -> Iterator[Record]:
        for name, path in self.files:
            if self.asking or path.suffix in _JSONL or _holds_objects(path):
                yield from self._lines(name, path)
            else:
                yield from self._text(name, path)

    def _text(self, name: str, path: Path) -> Iterator[Record]:
        try:
            text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            self.report(LovecError(f"{name}: not valid UTF-8 text ({error.reason})"))
            return
        if not self.paragraphs:
            yield document(text, self.question, name)
            return
        for number, paragraph in enumerate(filter(None, map(str.strip, _BLANK.split(text))), 1):
            yield document(paragraph, self.question, f"{name}:{number}")

    def _lines(self, name: str, path: Path) -> Iterator[Record]:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"{name}:{number}"
                try:
                    yield self._record(parse_line(line, place, first=number == 1), place)
                except LovecError as error:
                    self.report(error)

    def _record(self, data: dict[str, Any], place: str) -> Record:
        if data.get("text") is not None and not data.get("answer"):
            data["answer"] = data.pop("text")
        data["id"] = place if data.get("id") is None else data["id"]
        if not self.asking:
            data["question"] = data.get("question") or self.question
        try:
            record = record_from_dict(data)
        except LovecError as error:
            raise LovecError(f"{place}: {error}") from None
        if not self.asking and not record.answer.strip() and not record.sentences:
            raise LovecError(
                f"{place}: holds no 'text', 'answer' or 'sentences' to tag; have questions answered with --ask-file"
            )
        return record


def _holds_objects(path: Path) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    with open(path, "rb") as file:
        first = next((line for line in file if line.strip()), b"")
    if not first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return False
    try:
        return bool(parse_line(first, str(path), first=True))
    except LovecError:
        return False


def with_problem(record: Record, problem: str) -> Record:
    """The record with a problem more, before those it has."""
    return replace(record, meta={**record.meta, "problems": [problem, *record.meta.get("problems", ())]})


def _cut_short(record: Record) -> Record:
    """The record with a problem where its answer was cut off."""
    if record.meta.get("finished", True) or not record.answer:
        return record
    return with_problem(record, "the answer was cut off at the longest length allowed (max_new_tokens, or the context)")


_last: tuple[Any, Session] | None = None


def _opened(**wanted: Any) -> Session:
    """The session of the last call, if it asked for the same, else a new one; adapters may have changed on the disk."""
    global _last
    weights = Path(wanted["adapter"] or "", "adapter_model.safetensors")
    key = (wanted, os.stat(weights).st_mtime_ns if wanted["adapter"] and weights.exists() else None)
    if _last is None or _last[0] != key:
        if _last is not None:
            _last[1].close()
            _last = None  # its memory is needed
        _last = key, open_session(**wanted)
    return _last[1]
