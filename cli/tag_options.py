"""The options of ``lovec tag``, and their parser."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from lovec.baselines import Judge
from lovec.core.devices import check_device_name, check_dtype_name, check_engine_name
from lovec.core.files import check_output, check_unused
from lovec.core.hub import is_shipped
from lovec.core.settings import ELSEWHERE, NO_EFFECT, Count, check_range
from lovec.core.settings import checked as checked_settings
from lovec.encoding import default_instruction
from lovec.labelling import RaySettings, Shard
from lovec.models import NO_MODEL
from lovec.models.names import is_built_offline
from lovec.taggers import open_session
from lovec.tagging import OPENAI, SAMPLED, ApiModel, Method, Selection, TextTagger
from lovec.tagging.apis import check_api
from lovec.tagging.base import check_unit
from lovec.tagging.methods import check_method
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, Engine, LovecError, Scale, check_confidence, error_in

from .errors import UsageError
from .signatures import SignatureParser

_FORMATS = {".jsonl": "jsonl", ".html": "html", ".htm": "html", ".txt": "text", ".md": "text", "": "text"}
"""The format of an output, by the ending of its name."""


@dataclass
class TagSettings:
    """What the texts answer (by default the paper's question about their title, or "this topic"), and the output.

    Attributes:
        ask_file: JSONL, JSON, CSV or Parquet with questions for the model to answer; "-" is standard input.
        about: the text tells what one knows about this name: the paper's question.
        question: the question that the text answers, where --about does not fit.
        evidence: a file of text, Markdown or HTML, or a folder of such files, that the sentences are compared with: an
            adapter trained with policy.grounded says of each how well this supports it, and how sure it is without it.
            Answers to questions are written with it. Rows with evidence of their own keep it. null compares with the
            evidence of rows only.
        format: format of the output; None goes by the ending of --out, and is text without one.
        out: file to write; a JSONL file is continued after a kill.
        doubt: show only the sentences with a confidence below this one, such as 0.5, or without one, each with its
            line; null shows all.
        shard: tag every n-th record only, into a JSONL file of its own beside --out: 3/8 is the third of eight shards,
            which `lovec join` puts together; null is all records.
    """

    ask_file: Annotated[str | None, ELSEWHERE] = None
    about: Annotated[str | None, ELSEWHERE] = None
    question: Annotated[str | None, ELSEWHERE] = None
    evidence: Annotated[str | None, ELSEWHERE] = None
    format: Annotated[Literal["text", "jsonl", "html"] | None, NO_EFFECT] = None
    out: Annotated[Path | None, NO_EFFECT] = None
    doubt: float | None = None
    shard: Annotated[str | None, ELSEWHERE] = None


@checked_settings("--{}")
@dataclass
class MethodSettings:
    """Methods that give a text's sentences a confidence with any model, and no adapter.

    Attributes:
        method: likelihood, p_true, verbal, self_consistency or luq, see the page on baselines; null asks the model for
            tags, as an adapter was trained to give.
        samples: other answers to the question of a text, for self_consistency and luq.
        judge: what tells them whether a text supports a sentence: YesNoJudge, NLIJudge, FactsJudge, or a class of your
            own such as my_file.MyJudge; its options are --judge.NAME. Null asks the model itself.
    """

    method: Method | None = None
    samples: Count = 10
    judge: Judge | None = None


def tag_parser() -> SignatureParser:
    """Return the parser of the command."""
    parser = SignatureParser(
        prog="lovec tag",
        description="Give every sentence of a text a confidence; or have questions answered, with a confidence after "
        "every sentence.",
    )
    files = "texts, or JSONL, JSON, CSV or Parquet with text, answer or sentences; - or none is standard input"
    parser.add_argument("files", nargs="*", default=[], metavar="FILE", help=files)
    parser.add_argument("--ask", action="append", type=str, help="let the model answer a question; may be repeated")
    parser.add_argument("--paragraphs", action="store_true", help="tag every paragraph as a text of its own")
    parser.add_argument("--redo", action="store_true", help="write --out anew; JSONL is continued without it")
    parser.add(TagSettings)
    parser.add(MethodSettings)
    parser.add(RaySettings)
    parser.add(open_session)
    parser.add(TextTagger, "session", "selection")
    parser.add(Selection)
    parser.add(ApiModel, "model", "progress")
    parser.add_argument("--yes", action="store_true", help="make the calls of --engine openai without asking")
    return parser


def check_opening(options: Any) -> None:
    """Refuse what no model can be opened with, before anything is imported that takes a second.

    Args:
        options: those of ``open_session``, parsed; an engine may be a class of the user's own.

    Raises:
        LovecError: no model is named, or there is no such device, engine or dtype.
    """
    if options.engine == OPENAI:
        if options.model is None:
            raise LovecError(f"--engine {OPENAI} needs --model NAME, the name of a model that the server knows")
        return
    if options.model is None and options.adapter is None:
        raise LovecError(NO_MODEL)
    check_engine(options.engine)
    if options.device is not None:
        check_device_name(options.device)
    if options.dtype is not None:
        check_dtype_name(options.dtype)


def check_engine(engine: Any) -> None:
    """Refuse what is no engine, before a model is loaded for it.

    Args:
        engine: as parsed; an engine with its options, or a name. The path of a class that is no engine, or that cannot
            be imported, is taken for a name by a parser that takes both.

    Raises:
        UsageError: a class has not the methods of an engine, or is not found.
        LovecError: it has no name of an engine.
    """
    if not isinstance(engine, str):
        return
    try:
        check_engine_name(engine)
    except LovecError:
        if "." in engine:
            parser = SignatureParser()
            parser.add_argument("--engine", type=Engine)
            parser.parse_args(["--engine", engine])  # says what is wrong with the class
        raise


def checked(options: Any) -> Any:
    """Return the options with what follows from them.

    Raises:
        UsageError: they do not go together.
    """
    options.asking = options.ask is not None or options.ask_file is not None
    if options.asking and (options.files or options.about or options.question or options.paragraphs):
        raise UsageError(
            "--ask and --ask_file have the model write; they take no FILE, --about, --question or --paragraphs"
        )
    if options.evidence is not None:
        _check_evidence(options, "--evidence")
    if options.threshold_by == "source":
        _check_evidence(options, "--threshold_by source")
    check_engine_options(options)
    if options.engine == OPENAI:
        _check_api(options)
    if options.method is not None:
        _check_method(options)
    elif options.judge is not None or options.samples != MethodSettings.samples:
        name = "samples" if options.judge is None else "judge"
        raise UsageError(f"--{name} works only with --method {' or '.join(SAMPLED)}; give one of them")
    if options.about and options.question:
        raise UsageError("--about and --question both say what the text answers; give one of them")
    ending = _FORMATS.get(options.out.suffix.lower()) if options.out else "text"
    if options.redo and not options.out:
        raise UsageError("--redo is of a file that --out names")
    options.format = options.format or ending
    if options.format is None:
        endings = ", ".join(filter(None, _FORMATS))
        raise UsageError(f"--out is {options.out}, expected a name that ends in {endings}, or else a --format")
    if options.out and options.format == "jsonl" and ending != "jsonl":
        raise UsageError(f"--out is {options.out}, expected a name that ends in .jsonl for --format jsonl")
    if options.out and options.format == "jsonl":
        options.out = options.out.with_suffix(".jsonl")  # as the file is called, whatever capitals were given
    if options.out and options.out.is_dir():
        raise UsageError(f"--out is {options.out}, which is a folder; expected the name of a file")
    check_confidence("--min_confidence", options.min_confidence)
    if options.hedge_phrase is not None and options.revise != "hedge":
        raise UsageError("--hedge_phrase needs --revise hedge")
    with error_in("--", kind=UsageError):
        check_unit(options.unit, options.keep_factual, options.asking)
        options.selection = Selection(**{one.name: options[one.name] for one in fields(Selection)})
        options.selection.check_compared(options.doubt)
    check_confidence("--doubt", options.doubt)
    check_range("--doubt", options.doubt, above=0)
    if options.doubt is not None:
        if options.format == "html":
            raise UsageError("--doubt works only with --format text or jsonl; a page highlights them anyway")
        if not options.selection.keeps_all:
            raise UsageError("--doubt cannot be combined with --min_confidence or --keep_factual; give one of them")
    if options.shard is not None:
        if not options.out or options.format != "jsonl":
            raise UsageError("--shard writes JSONL files, which can be joined; give --out a name that ends in .jsonl")
        Shard.parse(options.shard)  # raises an error before anything is tagged
    RaySettings(**{one.name: options[one.name] for one in fields(RaySettings)})  # refuses what only --on ray takes
    if options.on is not None:
        if not options.out or options.format != "jsonl":
            raise UsageError(f"--on {options.on} writes JSONL files; give --out a name that ends in .jsonl")
        if options.shard is not None:
            raise UsageError(f"--on {options.on} and --shard both split the work; give one of them")
    if options.out and options.format != "jsonl":
        check_output(options.out, inputs(options))
        if not options.redo:
            check_unused(options.out, "choose another --out, or replace it with --redo")
    return options


_HERE = ("adapter", "chat_template", "dtype", "quantization", "device", "scoring", "keep_factual", "on")
"""Options that have no effect on a model behind chat completions."""


_ELSEWHERE = ("base_url", "parameters", "calibration")
"""Options that have an effect on a model behind chat completions only."""


def check_engine_options(options: Any, *others: str) -> None:
    """Refuse what is of models that lovec runs where it runs none, and the other way round.

    Args:
        options: the options, parsed.
        others: more options that have an effect on a model behind chat completions only.

    Raises:
        UsageError: so it is.
    """
    names = _HERE if options.engine == OPENAI else (*_ELSEWHERE, *others)
    if given := [name for name in names if options.get(name) is not None]:
        where = "models that lovec runs, not with" if options.engine == OPENAI else ""
        raise UsageError(f"--{given[0]} works only with {where}{' ' * bool(where)}--engine {OPENAI}")


def api_prompting(options: Any) -> tuple[str, TagFormat]:
    """Return instruction and tags of a model that no file says them of.

    Args:
        options: those of ``open_session``.
    """
    words, scale = options.tag_words, options.scale
    levels = DEFAULT_SCALE if scale is None else Scale(tuple(scale))
    opening, closing = words or (DEFAULT_TAGS.open, DEFAULT_TAGS.close)
    tags = TagFormat(opening, closing, levels)
    return options.instruction or default_instruction(tags), tags


def _check_api(options: Any) -> None:
    """Refuse what a model behind chat completions cannot do.

    Raises:
        UsageError: so it is.
    """
    try:
        check_api(options.method, options.readout, options.asking)
    except LovecError as error:
        raise UsageError(f"{error} (--ask)" if options.method is None else str(error)) from None


def _check_evidence(options: Any, given: str) -> None:
    """Refuse what does not go together with evidence.

    Args:
        options: the options, parsed.
        given: the option that needs an adapter trained with evidence.

    Raises:
        UsageError: so it is.
    """
    for name, others in (("engine", (OPENAI,)), ("method", (options.method,))):
        if options[name] is not None and options[name] in others:
            raise UsageError(
                f"{given} is for an adapter trained with policy.grounded, which --{name} {options[name]} does not "
                "use; leave one of them out"
            )


def _check_method(options: Any) -> None:
    """Refuse what does not go together with a method.

    Raises:
        UsageError: so it is.
    """
    given = f"--method {options.method}"
    if options.asking:
        raise UsageError(
            f"{given} scores given texts only; answer the questions first, with lovec label --questions FILE --stages "
            "answers, and tag the file that it writes"
        )
    if options.keep_factual is not None:
        raise UsageError(f"--keep_factual needs a threshold, and there is none for {given}; use --min_confidence")
    if options.judge is not None and options.method not in SAMPLED:
        raise UsageError(f"--judge works only with --method {' or '.join(SAMPLED)}; {given} asks no judge")
    with error_in("--", kind=UsageError):
        check_method(options.method, options.readout)
    options.raw = True  # calibrations are fitted to stated scores


def inputs(options: Any) -> list[str | None]:
    """Return the files and folders that the command reads; names of what comes with lovec or is built are none."""
    model = None if options.model is None or is_built_offline(options.model) else options.model
    adapter = None if options.adapter is None or is_shipped(options.adapter) else options.adapter
    stdin = [] if options.asking or (options.files and "-" not in options.files) else ["/dev/stdin"]
    read = options.ask_file, options.evidence, model, adapter, options.chat_template
    return [*options.files, *stdin, *read]
