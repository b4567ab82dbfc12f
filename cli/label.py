"""``lovec label``: questions or answers to labelled records and preference pairs, stage by stage."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.types import LovecError

from .errors import UsageError, unknown
from .parser import OneLineParser
from .progress import print_summary, progress

if TYPE_CHECKING:
    from lovec.labelling import Counts, Source, Stage
    from lovec.types import Oracle

FILES = {"answers": "answers", "sentences": "sentences", "label": "labelled", "pairs": "pairs"}
"""Stages by their word for ``--stages``, and the file each writes."""

_BEFORE = {"answers": "questions", "sentences": "answers", "label": "sentences", "pairs": "labelled"}
_FIRST = {"questions": "answers", "answers": "sentences", "labelled": "pairs"}
_SPLITTER = "lovec.sentences.split_sentences"


def run(words: list[str]) -> None:
    """Runs the stages asked for, each from the file of the one before, and prints what came of them.

    Args:
        words: the command line after ``label``.

    Raises:
        LovecError: something the user can mend; what is done stays done.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an oracle or a splitter of the user's own
    oracle_words, rest = split_words(words)
    options = _parser().read(rest)
    if any(word.startswith("--oracle.help") for word in oracle_words):
        from .oracle import read_oracle

        read_oracle(oracle_words)  # prints the options, and ends here
    labelling = Labelling(options, oracle_words)
    with _one_at_a_time(options.out):
        try:
            labelling.run()
        finally:
            labelling.summary()


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that speak of the oracle, with their values, and all others."""
    ours: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name != "--oracle" and not name.startswith("--oracle."):
            others.append(word)
            continue
        ours.append(word)
        if not equals and (value := next(rest, None)) is not None:
            ours.append(value)
    return ours, others


def _parser() -> OneLineParser:
    parser = OneLineParser(
        "label",
        "Questions to answers, sentences, labels and preference pairs. Every stage writes a file into --out, is taken "
        "up again where it was interrupted, and is not done twice.",
    )
    source = parser.add_argument_group("what to begin with (one of them)").add_mutually_exclusive_group()
    source.add_argument("--questions", metavar="FILE", help="JSONL with questions, for a model to answer")
    source.add_argument("--answers", metavar="FILE", help="records with answers, whole or split into sentences")
    source.add_argument("--labelled", metavar="FILE", help="labelled records, to make pairs of")
    source.add_argument("--data", metavar="NAME", help="World, WildHallu, Bios, PopQA, TriviaQA, WikiBio, FActScore")
    parser.add_argument("--data.path", dest="path", metavar="FILE", help="a copy of the data set on this machine")
    parser.add_argument("--data.split", dest="split", metavar="NAME", help="a split of the data set")
    parser.add_argument("--evidence", metavar="FILE", help="FActScore's sqlite file, or JSONL with title and text")
    parser.add_argument("--out", type=Path, default=Path("runs/labels"), help="folder of the files")
    parser.add_argument("--stages", help=f"comma list of {', '.join(FILES)}; null is all that follow the beginning")
    parser.add_argument("--redo", action="store_true", help="make the files of the stages anew")
    parser.add_argument("--model", help="answers, and judges as SelfJudge: world, tiny-llama, a hub id or a folder")
    parser.add_argument("--adapter", metavar="FOLDER", help="PEFT adapter for the answers")
    parser.add_argument("--dtype", default="float32", help="of the model: float32 or bfloat16")
    parser.add_argument("--samples", type=int, default=1, help="answers a question; more need a temperature")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampling; 0 is greedy")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="longest answer, in tokens")
    parser.add_argument("--rows", type=int, default=64, help="answers sampled together")
    parser.add_argument("--splitter", default=_SPLITTER, help="function from an answer to its sentences")
    parser.add_argument(
        "--oracle",
        metavar="CLASS",
        help="says how true sentences are: OpenAIOracle, SelfJudge, WorldOracle, LabelFile, TriviaQAOracle, or a class "
        "of your own such as my_file.MyOracle; its options are --oracle.NAME, listed by --oracle.help CLASS",
    )
    parser.add_argument("--chunk", type=int, default=64, help="records rated together and written at once")
    parser.add_argument("--max-cost", type=float, metavar="USD", help="same as --oracle.max_cost")
    parser.add_argument("--yes", action="store_true", help="do not ask before paid calls")
    parser.add_argument("--seed", type=int, default=0, help="of sampling and of wrong scores")
    return parser


class Labelling:
    """One run of the command.

    Args:
        options: what the parser read.
        oracle_words: the words of the oracle.

    Raises:
        UsageError: options that do not go together.
    """

    def __init__(self, options: argparse.Namespace, oracle_words: list[str]) -> None:
        self.options = options
        self.begin = _beginning(options)
        self.stages = _chosen(options.stages, self.begin)
        if options.max_cost is not None:
            oracle_words = [*oracle_words, "--oracle.max_cost", str(options.max_cost)]
        for name in ("rows", "chunk", "samples", "max_new_tokens"):
            if getattr(options, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected a positive number")
        if options.samples > 1 and not options.temperature > 0:
            raise UsageError(f"--samples {options.samples} needs a --temperature above 0, such as 0.7")
        if "answers" in self.stages and options.model is None:
            raise UsageError("--model must be given to answer questions: world, a hub id or a folder")
        if "label" in self.stages and not oracle_words:
            raise UsageError("--oracle must be given to label, such as --oracle OpenAIOracle --oracle.model gpt-4o")
        self.oracle: Oracle | None = None
        self.oracle_settings: Mapping[str, Any] = {}
        if oracle_words:
            from .oracle import read_oracle

            self.oracle, self.oracle_settings = read_oracle(oracle_words)
        self._model: tuple[Any, Any] | None = None
        self.counts: dict[str, Counts] = {}

    def run(self) -> None:
        """Runs the stages."""
        if self.begin is not None:
            self._import(self.begin)
        for word in self.stages:
            if not self._input(word).exists():
                before = _BEFORE[word]
                made = next((known for known, file in FILES.items() if file == before), None)
                fix = f"run the stage {made}, or" if made else "give it with --questions or --data, or"
                raise LovecError(f"there is no {self._input(word)} for the stage {word}; {fix} choose another --out")
            from lovec.labelling import FileSource

            source = FileSource(self._input(word))
            stage = getattr(self, f"_{word}")(source)
            self._stage(word, stage, source)

    def summary(self) -> None:
        """Prints the figures of the stages that ran, and the command that goes on from there."""
        if not self.counts:
            return
        print_summary(self.counts, self.oracle)
        if not self.counts.get("pairs", {}).get("written"):
            return
        out = self.options.out
        model = f" --model.policy.model {self.options.model}" if self.options.model else ""
        print("\nnext:")
        if not Path("runs/sft/adapter").exists():  # where DPO starts
            print(f"  lovec fit --config sft.yaml --data Demonstrations --data.path {out / 'labelled.jsonl'}{model}")
        print(f"  lovec fit --config dpo.yaml --data Preferences --data.path {out / 'pairs.jsonl'}{model}")

    def _input(self, word: str) -> Path:
        return Path(self.options.out) / f"{_BEFORE[word]}.jsonl"

    def _import(self, begin: str) -> None:
        """Copies what to begin with into the folder, with evidence; a file that lies there already stays."""
        from lovec.labelling import NamedSource, Stage, imported

        options = self.options
        path = options.path if options.data is not None else getattr(options, begin)
        target = Path(options.out) / f"{begin}.jsonl"
        if options.data is None and options.evidence is None and Path(path).resolve() == target.resolve():
            return
        source = NamedSource(path, options.data, options.split, options.evidence)
        self._stage(begin, Stage(begin, imported, {}, chunk=1024), source)

    def _stage(self, word: str, stage: Stage, source: Source) -> None:
        from lovec.labelling import read_counts, run_stage

        folder = Path(self.options.out)
        try:
            with progress(word, self.oracle if word == "label" else None) as notify:
                run_stage(stage, source, folder, self.options.redo, notify)
        finally:
            self.counts[word] = read_counts(stage.name, folder) or {}

    def _answers(self, source: Source) -> Stage:
        from lovec.labelling import Answers, Stage
        from lovec.types import Sampling

        options = self.options
        sampling = Sampling(options.max_new_tokens, options.temperature, options.samples, options.seed)
        settings = {
            "model": options.model,
            "adapter": _adapter(options.adapter),
            "dtype": options.dtype,
            "samples": options.samples,
            "temperature": options.temperature,
            "max_new_tokens": options.max_new_tokens,
            "seed": options.seed if options.temperature else None,
        }
        return Stage("answers", _Late(lambda: self._answering(Answers, sampling)), settings, chunk=options.rows)

    def _sentences(self, source: Source) -> Stage:
        from lovec.labelling import Sentences, Stage
        from lovec.labelling.steps import function_at
        from lovec.sentences import is_abstention

        work = Sentences(function_at(self.options.splitter), is_abstention)
        return Stage("sentences", work, {"splitter": self.options.splitter})

    def _label(self, source: Source) -> Stage:
        from lovec.labelling import Stage

        assert self.oracle is not None
        settings: dict[str, Any] = {"oracle": self.oracle_settings}
        if (fingerprint := getattr(self.oracle, "fingerprint", None)) is not None:
            settings["labels"] = fingerprint
        if hasattr(self.oracle, "attach"):
            if self.options.model is None:
                raise UsageError(f"--model must be given for {type(self.oracle).__name__} to judge with")
            settings["model"] = [self.options.model, self.options.dtype]
        return Stage("labelled", _Late(self._judging), settings, chunk=self.options.chunk, failures=True)

    def _pairs(self, source: Source) -> Stage:
        from lovec.labelling import Pairs, Stage

        return Stage("pairs", Pairs(self.options.seed), {"seed": self.options.seed})

    def _answering(self, answers: Callable[..., Any], sampling: Any) -> Any:
        from lovec.engines import TransformersEngine

        policy, encoder = self._loaded()
        engine = TransformersEngine(max_rows=self.options.rows)
        engine.sync(policy)
        return answers(engine, encoder, sampling)

    def _judging(self) -> Any:
        """The oracle, asked for its price and given its model, once there is something to rate."""
        from lovec.labelling import Labels

        assert self.oracle is not None
        self._ask(self.oracle)
        if hasattr(self.oracle, "attach"):
            self.oracle.attach(*self._loaded())
        return Labels(self.oracle)

    def _ask(self, oracle: Oracle) -> None:
        """Says what the rest of the labels will cost, and asks whether to go on.

        Raises:
            LovecError: the user does not want to, or cannot be asked.
        """
        if not hasattr(oracle, "estimate"):
            return
        from lovec.labelling import FileSource, read_counts

        done = 0 if self.options.redo else int((read_counts("labelled", self.options.out) or {}).get("records", 0))
        estimate = oracle.estimate(FileSource(self._input("label")).records(done))
        print(f"label: {estimate}", file=sys.stderr, flush=True)
        if not estimate.calls or self.options.yes:
            return
        if not sys.stdin.isatty():
            raise UsageError("nobody is at a terminal to be asked whether to make these calls; give --yes")
        if input("make these calls? [y/N] ").strip().lower() not in ("y", "yes"):
            raise LovecError("no calls were made; what was done so far stays")

    def _loaded(self) -> tuple[Any, Any]:
        """The model with its adapter, and its encoder; loaded once."""
        if self._model is None:
            import torch

            from lovec.encoding import Encoder
            from lovec.policy import Policy, PolicyConfig
            from lovec.taggers.models import resolve_model

            options = self.options
            config = PolicyConfig(resolve_model(options.model), adapter=options.adapter, dtype=options.dtype)
            policy = Policy(config, reference=False)
            policy.to("cuda" if torch.cuda.is_available() else "cpu")
            self._model = policy, Encoder(policy.tokenizer)
        return self._model


class _Late:
    """Work that is set up at its first chunk: a finished stage loads no model and asks for no money."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._work: Any = None

    def __call__(self, records: Sequence[Any]) -> Any:
        if self._work is None:
            self._work = self._make()
        return self._work(records)


def _beginning(options: argparse.Namespace) -> str | None:
    """The file that the input becomes; None where the stages go on from what is in the folder."""
    if options.data is None:
        for name in ("path", "split"):
            if getattr(options, name) is not None:
                raise UsageError(f"--data.{name} is of --data NAME, which is not given")
        return next((name for name in _FIRST if getattr(options, name) is not None), None)
    from lovec.labelling import DATASETS

    if options.data not in DATASETS:
        raise unknown("data set", options.data, DATASETS, listed=True)
    dataset = DATASETS[options.data]
    if options.split is not None and options.split not in dataset.splits:
        known = f"one of {', '.join(dataset.splits)}" if dataset.splits else "none"
        raise UsageError(f"--data.split is {options.split}, expected {known} for {options.data}")
    return "answers" if dataset.answered else "questions"


def _chosen(stages: str | None, begin: str | None) -> list[str]:
    """The stages to run, in their order."""
    if stages is None:
        if begin is None:
            raise UsageError("give --questions, --answers, --labelled or --data, or --stages to go on from --out")
        return list(FILES)[list(FILES).index(_FIRST[begin]) :]
    asked = stages.split(",")
    for name in asked:
        if name not in FILES:
            raise unknown("stage", name, FILES, listed=True)
    return [name for name in FILES if name in asked]


def _adapter(path: str | None) -> Any:
    """An adapter by its weights: the same folder may hold others later."""
    if path is None:
        return None
    from lovec.labelling.sources import file_digest

    weights = Path(path) / "adapter_model.safetensors"
    return file_digest(weights) if weights.exists() else path


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Inside: no other run works in the folder.

    Raises:
        LovecError: another one does.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise LovecError(f"another run works in {folder}; wait for it, or choose another --out") from None
