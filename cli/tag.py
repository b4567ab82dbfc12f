"""``lovec tag``: any text in, every sentence with a confidence out; or questions in, tagged answers out."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lovec.types import N_SCORES, LovecError

from .errors import UsageError, one_line
from .parser import OneLineParser
from .progress import progress

if TYPE_CHECKING:
    from lovec.labelling import Outcome
    from lovec.tagging import Documents, TextTagger
    from lovec.types import Record

_MOST = 3  # documents whose problems are said one by one
_FORMATS = {".jsonl": "jsonl", ".html": "html", ".htm": "html"}


def run(words: list[str]) -> None:
    """Tags what is given and writes it.

    Args:
        words: the command line after ``tag``.

    Raises:
        LovecError: something the user can mend. Where lines of the input cannot be read it comes at the end, when the
            rest is done.
    """
    options = _checked(_parser().read(words))
    with _told_once(), tempfile.TemporaryDirectory() as spool:
        documents = _documents(options, Path(spool))
        notes = documents.report = _Notes(options)
        try:
            _run(options, documents, notes)
        except BrokenPipeError:  # whoever read has seen enough, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        finally:
            notes.close()
    if notes.unread:
        raise LovecError(f"{notes.unread} of the input's lines or files could not be read; all others are tagged")


@contextmanager
def _told_once() -> Iterator[None]:
    """Inside: taggers keep silent, since what they warn of is among a record's problems."""
    taggers = logging.getLogger("lovec.taggers")
    before = taggers.level
    taggers.setLevel(logging.ERROR)
    try:
        yield
    finally:
        taggers.setLevel(before)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        "tag",
        "Give every sentence of a text a confidence from 0 to 10; or have questions answered, with a confidence after "
        "every sentence.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="texts, or JSONL with text, answer or sentences; - or "
                        "none is standard input")  # fmt: skip
    parser.add_argument("--ask", action="append", metavar="QUESTION", help="let the model answer; may be given again")
    parser.add_argument("--ask-file", metavar="FILE", help="JSONL with questions for the model to answer")
    asked = parser.add_argument_group("what a text answers (by default the paper's question, about “this topic”)")
    asked.add_argument("--about", metavar="NAME", help="the text tells what one knows about NAME: the paper's question")
    asked.add_argument("--question", metavar="TEXT", help="the question that the text answers, in other words")
    asked.add_argument("--paragraphs", action="store_true", help="tag every paragraph by itself, as a text of its own")
    model = parser.add_argument_group("the model")
    model.add_argument("--model", help="world, world-small, tiny-llama, a hub id or a folder; null is the adapter's")
    model.add_argument("--adapter", metavar="FOLDER", help="PEFT adapter, or the run that wrote it")
    model.add_argument(
        "--engine", default="transformers", help="transformers, vllm, or the http address of a vLLM server"
    )
    model.add_argument("--dtype", help="of the weights: float32 or bfloat16; null is float32, with vLLM as stored")
    model.add_argument("--device", help="cpu, cuda, cuda:1; null takes CUDA where there is some")
    model.add_argument("--instruction", metavar="TEXT", help="system prompt; null is the model's own, or the paper's")
    model.add_argument(
        "--tag-words", nargs=2, metavar=("OPEN", "CLOSE"), help="words around a score; null is the model's"
    )
    model.add_argument("--chat-template", metavar="FILE", help="Jinja file instead of the tokenizer's template")
    model.add_argument("--rows", type=int, default=64, help="documents tagged together")
    model.add_argument("--max-new-tokens", type=int, default=512, help="longest answer to a question, in tokens")
    out = parser.add_argument_group("the output")
    out.add_argument("--format", choices=("text", "jsonl", "html"), help="null goes by the ending of --out")
    out.add_argument("--out", type=Path, metavar="FILE", help="file to write; a JSONL file is continued after a kill")
    out.add_argument("--min-score", type=int, metavar="N", help="leave out sentences with a score below N (0 to 10)")
    out.add_argument("--readout", choices=("stated", "mean"), default="stated", help="confidence: score / 10, or the "
                     "expected score / 10")  # fmt: skip
    out.add_argument("--redo", action="store_true", help="write --out anew instead of continuing it")
    return parser


def _checked(options: argparse.Namespace) -> argparse.Namespace:
    """The options with what they imply.

    Raises:
        UsageError: they do not go together.
    """
    options.asking = options.ask is not None or options.ask_file is not None
    if options.asking and (options.files or options.about or options.question or options.paragraphs):
        raise UsageError(
            "--ask and --ask-file have the model write; they take no FILE, --about, --question, --paragraphs"
        )
    if options.about and options.question:
        raise UsageError("--about and --question both say what the text answers; give one of them")
    if options.min_score is not None and not 0 <= options.min_score < N_SCORES:
        raise UsageError(f"--min-score is {options.min_score}, expected an integer 0..10")
    for name in ("rows", "max_new_tokens"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected a positive number")
    ending = _FORMATS.get(options.out.suffix, "text") if options.out else "text"
    options.format = options.format or ending
    if options.redo and not (options.out and options.format == "jsonl"):
        raise UsageError("--redo is of a JSONL file that --out names")
    if options.out and options.format == "jsonl" and ending != "jsonl":
        raise UsageError(f"--out is {options.out}, expected a name that ends in .jsonl for --format jsonl")
    return options


def _documents(options: argparse.Namespace, spool: Path) -> Documents:
    """What is to be tagged; standard input and questions of the command line are put into files first."""
    from lovec.encoding import QUESTION
    from lovec.tagging import DEFAULT_QUESTION, Documents

    if options.asking:
        files = [(options.ask_file, Path(options.ask_file))] if options.ask_file else []
        if options.ask:
            path = spool / "asked.jsonl"
            lines = (json.dumps({"id": f"question-{at}", "question": q}) for at, q in enumerate(options.ask, 1))
            path.write_text("\n".join(lines), encoding="utf-8")
            files.insert(0, ("--ask", path))
    else:
        if not options.files and sys.stdin.isatty():
            raise UsageError("no text is given; name a FILE, pipe a text in, or --ask a question")
        files = [(name, Path(name)) for name in options.files or ["-"]]
        for at, (name, _) in enumerate(files):
            if name == "-":
                files[at] = ("stdin", spool / "stdin")
                files[at][1].write_bytes(sys.stdin.buffer.read())
    for name, path in files:
        try:
            path.open("rb").close()
        except OSError as error:
            raise LovecError(f"cannot read {name} ({error.strerror}); give a text, or a JSONL file") from None
    question = options.question or (QUESTION.format(entity=options.about) if options.about else DEFAULT_QUESTION)
    return Documents(files, question, options.paragraphs, options.asking)


def _run(options: argparse.Namespace, documents: Documents, notes: _Notes) -> None:
    quietly = replace(documents, report=lambda error: None)
    if not any(record.answer.strip() or record.sentences or options.asking for record in quietly.records(0)):
        for _ in documents.records(0):  # says what cannot be read
            pass
        names = ", ".join(name for name, _ in documents.files)
        raise LovecError(
            f"there is nothing to tag in {names}; give at least one {'question' if options.asking else 'sentence'}"
        )
    if not (options.asking or options.about or options.question):
        _tell_question(quietly)
    if options.out and options.format == "jsonl":
        _continue(options, documents, notes)
        return
    several = len(list(islice(quietly.records(0), 2))) > 1
    tagger = _tagger(options)
    with tagger.session, _output(options.out) as file:
        if options.format == "text":
            _print(options, documents, notes, tagger, file, several)
        else:
            tagged = map(notes.of, _tagged(options, documents, tagger))
            for piece in map(_line, tagged) if options.format == "jsonl" else _page(options, tagger, tagged):
                file.write(piece)
                file.flush()
    if options.min_score is not None:
        print(f"lovec: {notes.left_out} sentences below {options.min_score} left out", file=sys.stderr)


def _tell_question(documents: Documents) -> None:
    """Says what texts that bring no question are taken to answer: scores depend on it."""
    if any(record.question == documents.question for record in documents.records(0)):
        print(
            f'lovec: taken to answer "{documents.question}"; scores are better where the text is named: --about NAME',
            file=sys.stderr,
        )


def _print(
    options: argparse.Namespace, documents: Documents, notes: _Notes, tagger: TextTagger, file: TextIO, headings: bool
) -> None:
    """Tags and prints, sentence by sentence."""
    from .printer import Printer

    printer = Printer(file, tagger.session.encoder.tags, headings, options.asking, options.min_score)
    for records in _chunks(options, documents, shown=not file.isatty()):
        printer.begin(records)
        tagged = _work(options, tagger)(records, printer.on_sentence)
        printer.end(tagged)
        notes.left_out = printer.left_out
        for record in tagged:
            notes.of(record)


def _page(options: argparse.Namespace, tagger: TextTagger, tagged: Iterator[Record]) -> Iterator[str]:
    """A page of HTML, piece by piece."""
    from lovec.reports.passages import page

    session = tagger.session
    said = [_short(session.model)] + ([f"adapter {_short(session.adapter)}"] if session.adapter else [])
    said += [f"sentences below {options.min_score} are left out"] if options.min_score is not None else []
    return page("Tagged text", "; ".join(said), tagged)


def _short(folder: str) -> str:
    """The end of a path: pages are shown to others, who need not know where things lie here."""
    return "/".join(Path(folder).parts[-2:])


def _tagged(options: argparse.Namespace, documents: Documents, tagger: TextTagger) -> Iterator[Record]:
    """The documents, tagged, one by one."""
    for records in _chunks(options, documents):
        yield from _work(options, tagger)(records)


def _continue(options: argparse.Namespace, documents: Documents, notes: _Notes) -> None:
    """Tags into a JSONL file, chunk by chunk, going on from where an earlier run was stopped."""
    from filelock import FileLock, Timeout

    from lovec.labelling import Outcome, Stage, run_stage

    taggers: list[TextTagger] = []

    def work(records: Sequence[Record]) -> list[Outcome]:
        if not taggers:  # a finished file needs no model
            taggers.append(_tagger(options))
        tagged = [notes.of(record) for record in _work(options, taggers[0])(records)]
        return [Outcome([r], {"sentences": len(r.sentences), "left out": r.meta.get("left_out", 0)}) for r in tagged]

    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    stage = Stage(out.stem, work, _settings(options, documents), chunk=options.rows)
    try:
        with FileLock(out.with_name(f".{out.name}.lock"), timeout=0), progress("tag", None) as notify:
            counts = run_stage(stage, _Source(documents), out.parent, options.redo, notify)
    except Timeout:
        raise LovecError(f"another run writes {out}; wait for it, or choose another --out") from None
    finally:
        for tagger in taggers:
            tagger.session.close()
    said = [f"{int(counts[name])} {name}" for name in ("records", "sentences", "left out") if counts.get(name)]
    print(f"{out}: {', '.join(said)}", file=sys.stderr)


def _settings(options: argparse.Namespace, documents: Documents) -> dict[str, Any]:
    """What a JSONL file depends on beside its input, for those who continue it."""
    from lovec.labelling.sources import file_digest
    from lovec.taggers.session import adapter_folder

    names = ("model", "engine", "dtype", "instruction", "tag_words", "chat_template", "min_score", "readout", "asking")
    settings = {name: getattr(options, name) for name in (*names, "paragraphs")}
    if options.adapter:
        weights = Path(adapter_folder(options.adapter), "adapter_model.safetensors")
        settings["adapter"] = file_digest(weights) if weights.exists() else options.adapter
    settings["question"] = None if options.asking else documents.question
    settings["max_new_tokens"] = options.max_new_tokens if options.asking else None
    return settings


@dataclass(frozen=True)
class _Source:
    """Documents as a stage reads them."""

    documents: Documents

    def identity(self) -> dict[str, Any]:
        from lovec.labelling.sources import file_digest

        return {"files": [file_digest(path) for _, path in self.documents.files]}

    def records(self, skip: int) -> Iterator[Record]:
        return self.documents.records(skip)


class _Notes:
    """Says on standard error what is wrong with the input and with what became of it.

    Attributes:
        unread: lines and files that could not be read.
        left_out: sentences that did not pass.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.unread = self.left_out = self._troubled = 0
        self._hint = "" if options.paragraphs or options.asking else " (--paragraphs tags every paragraph by itself)"

    def __call__(self, error: LovecError) -> None:
        """A line or file cannot be read."""
        self.unread += 1
        _say(f"{error}; left out")

    def of(self, record: Record) -> Record:
        """The record, whose problems are said; of many records, those of the first ones."""
        self.left_out += record.meta.get("left_out", 0)
        if problems := record.meta.get("problems"):
            self._troubled += 1
            more = f"; and {len(problems) - 1} problems more" if len(problems) > 1 else ""
            hint = self._hint if any("context holds" in problem for problem in problems) else ""
            if self._troubled <= _MOST:
                _say(f"{record.id}: {problems[0]}{more}{hint}")
        return record

    def close(self) -> None:
        """Says how many were not said."""
        if self._troubled > _MOST:
            _say(f'{self._troubled - _MOST} documents more have problems; JSONL names them in "meta"')


def _work(options: argparse.Namespace, tagger: TextTagger) -> Callable[..., list[Record]]:
    return tagger.answers if options.asking else tagger.texts


def _tagger(options: argparse.Namespace) -> TextTagger:
    """The model, opened."""
    from transformers.utils.logging import disable_progress_bar

    from lovec.taggers import open_session
    from lovec.tagging import TextTagger

    disable_progress_bar()  # of the weights of a tiny model
    names = ("model", "adapter", "engine", "instruction", "chat_template", "dtype", "device", "rows")
    words = tuple(options.tag_words) if options.tag_words else None
    session = open_session(**{name: getattr(options, name) for name in names}, tag_words=words)
    return TextTagger(
        session,
        options.readout,
        options.max_new_tokens,
        distributions=options.format == "jsonl",
        min_score=None if options.format == "text" else options.min_score,  # what is printed is left out there
    )


def _chunks(options: argparse.Namespace, documents: Documents, shown: bool = True) -> Iterator[list[Record]]:
    """Documents that are worked on together; ``shown`` tells on standard error how many are done."""
    from lovec.labelling import Progress

    rest, taken = documents.records(0), 0
    with progress("tag", None) as notify:
        while chunk := list(islice(rest, options.rows)):
            yield chunk
            taken += len(chunk)
            if shown and taken > 1:
                notify(Progress("tag", taken, 0, {}))


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that is there whole or not at all."""
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _line(record: Record) -> str:
    from lovec.datasets.jsonl import record_to_dict

    return json.dumps(record_to_dict(record), ensure_ascii=False, allow_nan=False) + "\n"


def _say(warning: str) -> None:
    print(f"lovec: warning: {one_line(warning)}", file=sys.stderr, flush=True)
