"""``lovec tag``: any text in, every sentence with a confidence out; or questions in, tagged answers out."""

from __future__ import annotations

import json
import logging
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from lovec import display
from lovec.core.files import atomic_file, check_output, check_writable
from lovec.core.hub import CALIBRATION_FILE
from lovec.core.imports import without_progress_bars
from lovec.core.notices import counted
from lovec.core.progress import note
from lovec.core.provenance import PROVENANCE, digest, file_digest
from lovec.core.settings import decisive
from lovec.datasets.hub_rows import HubRows
from lovec.datasets.jsonl import open_input, record_to_dict
from lovec.encoding.grounding import UNGROUNDED
from lovec.labelling import OnRay, Outcome, Progress, RaySettings, Shard, Source, Stage, run_stage
from lovec.labelling.joining import shard_file
from lovec.labelling.sources import input_digest, select, shard_identity
from lovec.labelling.stage import manifest_of, read_counts
from lovec.models.names import is_built_offline
from lovec.oracles.chat import address
from lovec.taggers import open_session
from lovec.taggers.scoring import ScoredSentence, Tagged
from lovec.taggers.served_confidence import ServedConfidence
from lovec.taggers.session import adapter_folder, session_provenance
from lovec.tagging import (
    DEFAULT_QUESTION,
    OPENAI,
    SAMPLED,
    ApiModel,
    ApiTagger,
    Documents,
    DocumentTagger,
    MethodTagger,
    TextTagger,
    about_question,
    check_questions,
    question_notices,
    read_sources,
)
from lovec.tagging.apis import api_provenance
from lovec.tagging.revising import REVISED
from lovec.tags import strip, thought_length
from lovec.types import BY_SOURCE, FREE_FORM, ITERATIVE, LovecError, Record

from .arguments import add_working_directory
from .console import confirm_calls, locked, log_level, remark, say_next, warn
from .errors import UsageError
from .printer import Printer
from .progress import ProgressLines, heartbeat, progress
from .signatures import SignatureParser
from .tag_options import api_prompting, check_opening, checked, inputs, tag_parser
from .tag_reports import DOUBT, Problems, Tally, doubtful, doubtful_lines


def run(words: list[str]) -> None:
    """Tag the texts or questions of a command line and write the result.

    Args:
        words: the command line after ``tag``.

    Raises:
        LovecError: something the user can fix. If lines of the input cannot be read it is raised at the end, when
            everything else is done.
    """
    add_working_directory()  # an engine of the user's own
    parser = tag_parser()
    options = checked(parser.parse_args(words))
    # What the taggers warn of is also among the problems of a record, which are reported here.
    with log_level("lovec.taggers", logging.ERROR), tempfile.TemporaryDirectory() as folder:
        command = TagCommand(parser, options, _documents(options, Path(folder)), words)
        try:
            command.run()
        finally:
            command.problems.close()
    if unread := command.problems.unread:
        raise LovecError(f"{unread} of the input's lines or files could not be read; all others are tagged")


def _documents(options: Any, folder: Path) -> Documents:
    """Return what is to be tagged; standard input and questions of the command line are written to files first."""
    if options.asking:
        files = [(options.ask_file, Path(options.ask_file))] if options.ask_file else []
        if options.ask:
            path = folder / "questions.jsonl"
            lines = (json.dumps({"id": f"question-{at}", "question": q}) for at, q in enumerate(options.ask, 1))
            path.write_text("\n".join(lines), encoding="utf-8")
            files.insert(0, ("--ask", path))
    else:
        if not options.files and sys.stdin.isatty():
            raise UsageError("no text is given; name a FILE, pipe a text in, or --ask a question")
        files = [(name, Path(name)) for name in options.files or ["-"]]
    for at, (name, _) in enumerate(files):
        if name == "-":
            files[at] = ("stdin", folder / "stdin")
            files[at][1].write_bytes(sys.stdin.buffer.read())
    for name, path in files:
        if HubRows.parse(name) is None:
            open_input(path, "a text, or a file with rows").close()
    question = options.question or (about_question(options.about) if options.about else DEFAULT_QUESTION)
    guess = not (options.about or options.question)
    evidence = () if options.evidence is None else read_sources(options.evidence)
    return Documents(files, question, options.paragraphs, options.asking, guess, evidence)


_LATER = {
    **dict.fromkeys(("evidence", "doubt", "method", "judge", "base_url", "parameters", "revise", "hedge_phrase")),
    "unit": "sentence",
    "threshold_by": "knowledge",
}
"""Options that earlier versions did not have, and what these did; manifests have them where they say otherwise."""


class TagCommand:
    """One run of the command.

    Args:
        parser: the parser of the command.
        options: what it read, checked.
        documents: what is to be tagged.
        words: the command line after ``tag``, from which other processes make the command.

    Attributes:
        problems: reports what is wrong with the input and with what became of it.
    """

    def __init__(self, parser: SignatureParser, options: Any, documents: Documents, words: Sequence[str]) -> None:
        self.parser = parser
        self.options = options
        self.words = list(words)
        self._lines: ProgressLines | None = None
        self._rest: Iterable[Record] | None = None  # what a run into a JSONL file has left to do
        whole = not (options.paragraphs or options.asking)
        self.problems = Problems(" (--paragraphs tags every paragraph by itself)" if whole else "")
        self.documents = replace(documents, on_error=self.problems.unreadable)
        self._silent = replace(documents, on_error=lambda error: None)  # to look at them without reporting anything
        self.tally = Tally(DOUBT if options.doubt is None else options.doubt, options.threshold_by)

    def run(self) -> None:
        """Tag the documents and write them in the format that is asked for."""
        options = self.options
        silent = self._silent
        if not any(record.answer.strip() or record.sentences or options.asking for record in silent.records(0)):
            for _ in self.documents.records(0):  # reports what cannot be read
                pass
            names = ", ".join(name for name, _ in silent.files)
            unit = "question" if options.asking else "sentence"
            raise LovecError(f"there is nothing to tag in {names}; give at least one {unit}")
        check_opening(options)
        self._check_grounded()
        if options.method is not None:
            check_questions(options.method, silent.records(0), DEFAULT_QUESTION)
        topics = silent.topics()
        unnamed = not (options.asking or options.about or options.question) and any(
            record.question == silent.question for record in silent.records(0)
        )
        for notice in question_notices(topics, silent.question if unnamed else None, "--about NAME"):
            remark(notice)
        if options.out and options.format == "jsonl":
            self._continue_jsonl()
            return
        if options.out:
            check_writable(options.out.parent)
        with self.tagger, _open_output(options.out) as file:
            self._say_cost(silent.records(0))
            if options.doubt is not None and options.format == "text":
                self._print_doubtful(file)
            elif options.format == "text":
                show = self._print_text if options.revise is None else self._print_revised
                show(file, headings=len(list(islice(silent.records(0), 2))) > 1)
            else:
                tagged = self._tagged()
                for piece in _json_lines(tagged) if options.format == "jsonl" else self._html(tagged):
                    file.write(piece)
                    file.flush()
            self._say_account()
        self._warn_of_drift()
        if (limit := self._limit()) is not None:
            what = "hedged" if options.revise == "hedge" else "left out"
            remark(f"{counted(self.problems.left_out, 'sentence')} {limit} {what}")
        if options.out:
            note(f"{options.out}: {counted(self.tally.documents, 'document')}, {self.tally.summary()}")
            if options.format == "html":
                say_next((f"python -m webbrowser {shlex.quote(str(options.out))}", "look at the page"))
        elif options.format == "jsonl" or (options.format == "text" and options.doubt is None):
            remark(self.tally.summary())

    @cached_property
    def tagger(self) -> DocumentTagger:
        """The model, opened when it is first needed."""
        tagger = self._opened()
        tagger.whole = True  # the summary, the printer and the page must know of every sentence
        modes, compared = self._read_modes(tagger), self._threshold_modes(tagger)
        for mode in compared:
            tagger.keeps(mode)  # raises an error before anything is tagged
        if len(compared) > 1 and self.options.keep_factual is not None:
            raise LovecError(
                "--keep_factual has one threshold for answers that are written with evidence and another for those "
                "without, and the questions are of both kinds; have them answered in two runs"
            )
        for line in tagger.notes(modes, self.mode if self._is_sourced(tagger) else None):
            remark(line)
        if (promise := tagger.promise(compared[0])) is not None:
            remark(promise)
        return tagger

    def _opened(self) -> DocumentTagger:
        self._check_guarantee()
        options = self.parser.instantiate(self.options)
        if options.engine == OPENAI:
            asker = self.parser.call(ApiModel, options, model=options.model, progress=False)
            chosen = options.method, options.samples, options.judge, options.readout
            limits = options.max_new_tokens, options.selection
            return ApiTagger(asker, *chosen, *limits, *api_prompting(options), unit=options.unit)
        with without_progress_bars(), heartbeat("loading the model"):
            session = self.parser.call(open_session, options)
        if options.model is None:
            remark(f"the base model is {session.model}, which the adapter in {session.adapter} names")
        if options.method is None:
            return self.parser.call(TextTagger, options, session=session, selection=options.selection)
        how = options.readout, options.max_new_tokens, options.selection
        return MethodTagger(session, options.method, options.samples, options.judge, *how, options.unit)

    def _say_cost(self, records: Iterable[Record]) -> None:
        """Say what it takes to tag documents."""
        if (cost := self.tagger.cost(records, self.mode)) is not None:
            remark(cost)
        if isinstance(self.tagger, ApiTagger):
            confirm_calls(self.tagger.expected_calls, self.options.yes)

    def _say_account(self) -> None:
        """Say what tagging has taken."""
        if (account := self.tagger.account()) is not None:
            remark(account)

    def _warn_of_drift(self) -> None:
        """Say if the confidences look unlike those that their map was fitted to."""
        for mode in self._read_modes(self.tagger):
            if (drift := self.tagger.drift(mode)) is not None:
                warn(drift)

    def _check_guarantee(self) -> None:
        """Refuse a guarantee that there is no threshold for, before the model is loaded.

        Raises:
            LovecError: the folder of the adapter or of the model has no such threshold.
        """
        options = self.options
        depends = options.threshold_by == "knowledge" and options.asking and True in self._with_evidence
        if options.keep_factual is None or depends:
            return  # whether answers are written with their evidence, and read as given texts, depends on the adapter
        folder = options.model if options.adapter is None else adapter_folder(options.adapter)
        if folder is not None and (Path(folder).exists() or is_built_offline(folder)):  # the latter have no thresholds
            applied = not options.raw and options.readout is None
            found = (
                ServedConfidence.beside(folder, lambda: session_provenance(options)) if applied else ServedConfidence()
            )
            mode = self.mode if options.threshold_by == "knowledge" else BY_SOURCE[self.mode]
            found.keeps(mode, None, options.keep_factual)

    def _check_grounded(self) -> None:
        """Refuse evidence for a model that was not trained with any, before it is loaded, and thresholds without any.

        Raises:
            LovecError: so it is.
        """
        options = self.options
        given = [f"--evidence is {options.evidence}"] if options.evidence is not None else []
        given += ["--threshold_by is source"] if options.threshold_by == "source" else []
        if given and "grounding" not in session_provenance(options).parts["prompt"]:
            name = f"the adapter {options.adapter}" if options.adapter else f"the model {options.model}"
            raise LovecError(f"{given[0]}, and {name} {UNGROUNDED}")
        if options.threshold_by == "source" and True not in self._with_evidence:
            raise LovecError(
                "--threshold_by is source, and nothing comes with evidence; give --evidence, or rows that have some"
            )

    def _is_sourced(self, tagger: DocumentTagger) -> bool:
        """Return whether sentences get a confidence by source as well; for most adapters without reading the texts."""
        grounded = isinstance(tagger, TextTagger) and tagger.session.encoder.grounding is not None
        return grounded and True in self._with_evidence

    def _read_modes(self, tagger: DocumentTagger) -> list[str]:
        """Return how confidences by knowledge are read, see ``DocumentTagger.knowledge_mode``."""
        if not (self.options.asking and self._is_sourced(tagger)):
            return [self.mode]
        return [ITERATIVE if sourced else FREE_FORM for sourced in sorted(self._with_evidence)]

    def _threshold_modes(self, tagger: DocumentTagger) -> list[str]:
        """Return which confidences decide what is kept, see ``DocumentTagger.threshold_mode``."""
        return [BY_SOURCE[self.mode]] if self.options.threshold_by == "source" else self._read_modes(tagger)

    @cached_property
    def _with_evidence(self) -> set[bool]:
        """Whether the records bring evidence: all, none, or some of them."""
        return {any(text.strip() for text in record.evidence) for record in self._silent.records(0)}

    @property
    def mode(self) -> str:
        """How the sentences are tagged."""
        return FREE_FORM if self.options.asking else ITERATIVE

    def _limit(self) -> str | None:
        """Say which sentences are left out; None where none are."""
        least, share = self.options.min_confidence, self.options.keep_factual
        by = "" if self.options.threshold_by == "knowledge" else "with a confidence by source "
        limits = [f"{by}below {least:g}"] if least is not None else []
        limits += [f"{by}below the threshold of --keep_factual {share:g}"] if share is not None else []
        return " or ".join(limits) or None

    def _tag(self, records: Sequence[Record], printer: Printer | None = None) -> Iterator[Record]:
        """Yield tagged documents, and count their sentences on standard error where they come one by one.

        Args:
            records: the documents.
            printer: prints their sentences.
        """

        def show(item: Tagged) -> None:
            if printer is not None:
                printer.add(item)
            if self._lines is not None and isinstance(item, ScoredSentence) and item.sentence.is_statement:
                self._lines.count_sentence()

        written = False

        def show_written(item: Tagged) -> None:
            nonlocal written
            written = True
            show(item)

        # Stated scores are known as an answer is written; for its confidences it pauses, or they follow at its end.
        as_written = show_written if printer is not None and self.options.readout == "stated" else None
        for item in self.tagger.stream(records, self.mode, as_written):
            if (not self.options.asking or self.tagger.live) and not written:
                show(item)
            elif printer is not None:
                printer.add(item)
            if isinstance(item, Record):
                if (left := self.tagger.left()) is not None and (printer is None or not sys.stdout.isatty()):
                    remark(left)
                yield item

    def _tagged(self) -> Iterator[Record]:
        """Yield all tagged documents, as `_narrowed` leaves them."""
        for records in self._chunks():
            for record in self._tag(records):
                self.tally.add(record)
                yield self._narrowed(self.problems.check(record))

    def _narrowed(self, record: Record) -> Record:
        """Return a record for JSON lines with the sentences that are asked for only; a page lists the others, too."""
        if self.options.revise is not None:
            return record if self.options.format == "jsonl" else self._as_revised(record)
        if self.options.format != "jsonl" or (self._limit() is None and self.options.doubt is None):
            return record
        keeps = self.tagger.keeps(self.tagger.threshold_mode(record, self.mode))
        if self.options.doubt is not None:
            keeps = partial(doubtful, limit=self.options.doubt, by=self.options.threshold_by)
        kept = tuple(one for one in record.sentences if not one.is_statement or keeps(one))
        meta = {**record.meta, "left_out": len(record.sentences) - len(kept)}
        return replace(record, sentences=kept, meta=meta, rejected=None)

    def _as_revised(self, record: Record) -> Record:
        """Return a record for a page: with the revised text and its sentences, and those that were dropped."""
        revised = self.tagger.revised(record, self.tagger.threshold_mode(record, self.mode))
        return replace(record, answer=revised.text, sentences=revised.shown)

    def _print_revised(self, file: TextIO, headings: bool) -> None:
        """Tag, and print the revised texts; one that was given alone is printed as it is, without a line break more."""
        for records in self._chunks():
            for record in self._tag(records):
                text = self.problems.check(record).meta[REVISED]
                if headings:
                    name = record.question if self.options.asking else record.id
                    file.write(f"{chr(10) if self.tally.documents else ''}==> {name} <==\n")
                self.tally.add(record)
                alone = not (headings or self.options.asking or file.isatty())
                file.write(text if alone or text.endswith("\n") else f"{text}\n")
                file.flush()

    def _print_doubtful(self, file: TextIO) -> None:
        """Tag, and print a summary and the sentences to doubt."""
        lines: list[str] = []
        for records in self._chunks():
            given = {} if self.options.asking else {record.id: record.answer for record in records}
            for record in self._tag(records):
                self.tally.add(record)
                self.problems.check(record)
                text = given.get(record.id) or record.answer
                name, before = self.documents.places.get(record.id, (record.id, 0))
                limit, by = self.options.doubt, self.options.threshold_by
                begin = thought_length(text, not record.given)
                before = None if before is None else before + text.count("\n", 0, begin)
                bare = (strip(line, self.tagger.text_tags, opened=False) for line in text[begin:].split("\n"))
                lines += doubtful_lines(record, "\n".join(bare), limit, by, name, before)
        file.write("\n".join([self.tally.summary(), *lines]) + "\n")

    def _chunks(self, report: bool = True) -> Iterator[list[Record]]:
        """Yield documents that are tagged together, and report on standard error how many are done."""
        rest, taken = self.documents.records(0), 0
        with progress("tag", None, report) as lines:
            self._lines = lines if report else None
            while chunk := list(islice(rest, self.options.rows)):
                yield chunk
                taken += len(chunk)
                if self._lines is not None and taken > 1:
                    self._lines(Progress("tag", taken, 0, {}))

    def _print_text(self, file: TextIO, headings: bool) -> None:
        """Tag and print, sentence by sentence."""
        tagger, options = self.tagger, self.options
        # In a pause the answer so far is computed again, which pays where somebody waits for the next sentence.
        tagger.live = file.isatty() or (_is_watched(file) and options.ask_file is None and len(options.ask or ()) == 1)
        stated = options.readout == "stated"
        keeps = tagger.keeps(self._threshold_modes(tagger)[0])
        tags = tagger.tags if options.asking else tagger.text_tags
        printer = Printer(file, tags, headings, options.asking, keeps, stated)
        for records in self._chunks(report=not file.isatty()):
            printer.begin(records)
            for record in list(self._tag(records, printer)):
                self.tally.add(record)
                self.problems.check(record)

    def _html(self, tagged: Iterator[Record]) -> Iterator[str]:
        """Yield a page of HTML, piece by piece."""
        tagger, limit = self.tagger, self._limit()
        adapter = f", adapter {_last_parts(tagger.adapter)}" if tagger.adapter else ""
        records = list(tagged)  # the summary comes first
        modes, sourced = self._read_modes(tagger), self._is_sourced(tagger)
        notes = [self.tally.summary(), f"Model: {_last_parts(tagger.model)}{adapter}."]
        notes += tagger.notes(modes, self.mode if sourced else None)
        revise, share = self.options.revise, self.options.keep_factual
        what = "worded as uncertain" if revise == "hedge" else "left out"
        notes += [f"Sentences {limit} are {what}."] if limit is not None else []
        (compared, *_) = self._threshold_modes(tagger)
        if (promise := tagger.promise(compared)) is not None:
            notes.append(promise)
        elif share is not None:
            notes.append(tagger.served.promise(compared, share))
        keeps = tagger.keeps(compared) if revise is None else lambda sentence: sentence.revision != "dropped"
        title = "Tagged text" if revise is None else "Revised text"
        return display.page(title, notes, records, keeps, sourced)

    def _continue_jsonl(self) -> None:
        """Tag into a JSONL file, chunk by chunk, from where an earlier run was stopped."""
        options = self.options
        joined: Path = options.out
        shard = None if options.shard is None else Shard.parse(options.shard)
        out = joined if shard is None else shard_file(joined, shard)
        for path in [*self.stage(out.stem, {}).files(out.parent), joined, manifest_of(joined)]:
            check_output(path, inputs(options))
        stage = self.stage(out.stem, self._settings())
        ray = self.parser.call(RaySettings, options)
        compute = None
        if ray.on is not None:
            compute = OnRay(ray, stage, out.parent, partial(_stage_of, self.words), options.redo)
        files = [input_digest(path) for _, path in self.documents.files]
        identity = {"files": files, **shard_identity(shard)}
        has_read = False

        def read(skip: int) -> Iterator[Record]:
            nonlocal has_read
            has_read = True
            return select(self.documents.records(0), shard, skip)

        done = 0 if options.redo else int((read_counts(out.stem, out.parent) or {}).get("records", 0))
        self._rest = Source(lambda skip: select(self._silent.records(0), shard, skip), identity).after(done)
        try:
            with locked(out), progress("tag", None) as self._lines:
                counts = run_stage(stage, Source(read, identity), out.parent, options.redo, self._lines, compute)
            if not has_read:  # a finished file needs no records, yet lacks those lines that cannot be read
                for _ in self.documents.records(0):
                    pass
        finally:
            if "tagger" in vars(self):  # a finished file needs no model
                self._say_account()
                self.tagger.close()
                self._warn_of_drift()
        left = f", {int(counts['left out'])} left out" if counts.get("left out") else ""
        if compute is not None and (problems := int(counts.get("problems", 0))):
            documents = counted(problems, "document has", "documents have")
            warn(f'{documents} problems; the JSONL names them in "meta"')
        records = counted(int(counts["records"]), "record")
        note(f"{out}: {records}, {self.tally.summary(dict(counts))}{left}")

    def stage(self, name: str, settings: Mapping[str, Any]) -> Stage:
        """Return the tagging of documents into a JSONL file as a stage; the model is opened at the first chunk."""
        return Stage(name, self._outcomes, settings, chunk=self.options.rows)

    def _outcomes(self, records: Sequence[Record]) -> list[Outcome]:
        if self._rest is not None:
            self._say_cost(self._rest)
            self._rest = None
        outcomes = []
        for record in self._tag(records):
            counts = self.tally.add(record)
            narrowed = self._narrowed(self.problems.check(record))
            counts |= {"left out": narrowed.meta.get("left_out", 0), "problems": bool(record.meta.get("problems"))}
            outcomes.append(Outcome([narrowed], counts))
        return outcomes

    def _settings(self) -> dict[str, Any]:
        """Return what the JSONL file depends on beside its input."""
        options = self.options.as_dict()
        settings = self.parser.decisive(self.options) | {name: options[name] for name in ("paragraphs", "asking")}
        settings["judge"] = decisive(settings["judge"])
        settings["calibration"] = _calibration(options)
        if self.options.engine == OPENAI:
            settings[PROVENANCE] = api_provenance(self.options.model, *api_prompting(self.options)).to_dict()
            settings["base_url"] = address(self.options.base_url)
        else:
            provenance = session_provenance(options)
            settings["adapter"] = provenance.parts["adapter"].get("weights")
            settings[PROVENANCE] = provenance.to_dict()
            settings["scoring"] = provenance.parts["computing"]["scoring"]  # manifests before provenance had it
        settings["evidence"] = None if options["evidence"] is None else digest(list(self.documents.evidence))
        settings["question"] = None if options["asking"] else self.documents.question
        if topics := self.documents.topics():
            settings["topics"] = [topic for topic, _ in topics.values()]
        for name, before in _LATER.items():
            if settings[name] == before:
                del settings[name]
        if options["method"] not in SAMPLED:
            del settings["samples"]
            if not options["asking"]:
                settings["max_new_tokens"] = None
        return settings


def _stage_of(words: Sequence[str]) -> Stage:
    """Return the stage of a command line in another process, which gets the documents from the first one."""
    add_working_directory()
    parser = tag_parser()
    return TagCommand(parser, checked(parser.parse_args(words)), Documents(()), words).stage("tags", {})


def _calibration(options: Any) -> str | None:
    """Return what tells the calibration that confidences depend on from others; None without one."""
    folder = options["adapter"] or options["model"]
    file = Path(adapter_folder(folder), CALIBRATION_FILE) if folder is not None else Path()
    return file_digest(file) if not options["raw"] and file.is_file() else None


def _last_parts(folder: str) -> str:
    """Return the end of a path: pages are for others, who need not know where files are stored here."""
    return "/".join(Path(folder).parts[-2:])


@contextmanager
def _open_output(path: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that is written whole or not at all."""
    if path is None:
        yield sys.stdout
        return
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yield file


def _is_watched(file: TextIO) -> bool:
    """Return whether somebody, or a program, may read what is printed before its end: not in a file on a disk."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # it has no descriptor
        return False


def _json_lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield json.dumps(record_to_dict(record), ensure_ascii=False, allow_nan=False) + "\n"
