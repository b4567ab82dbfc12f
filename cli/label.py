"""``lovec label``: questions or answers to labelled records and preference pairs, stage by stage."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lovec.oracles  # noqa: F401 - options take oracles by their short names once these are imported
from lovec import labelling
from lovec.datasets.pairs import WrongScores
from lovec.files import check_output
from lovec.imports import import_function
from lovec.labelling import STAGES, Counts, Shard, Source, Stage
from lovec.taggers import Session, open_session
from lovec.types import LovecError, Oracle, Sampling, check_count, check_seed

from .arguments import add_working_directory, value_of
from .console import locked, texts_in, weights_digest
from .errors import UsageError, unknown
from .parser import with_underscores
from .progress import print_summary, progress
from .signatures import SignatureParser

_BEGINNINGS = ("questions", "answers", "labelled", "data")
"""Options that say what to begin with."""

_NO_EFFECT = (
    "concurrency",
    "cache",
    "timeout",
    "retries",
    "ask_again",
    "max_cost",
    "price_in",
    "price_out",
    "progress",
)
"""Options of oracles on which the ratings do not depend: an interrupted run may be continued with others."""

_UNUSED = {"labels", "val_labels", "evidence", "batch_size", "eval_batch_size", "seed", "first_epoch", "unfit"}
"""Options of data sets that have no effect on their questions."""


@dataclass
class LabelSettings:
    """What to begin with (one of questions, answers, labelled and data), and what to do.

    Attributes:
        questions: file with questions, for a model to answer (JSONL, JSON, CSV or Parquet, as all files).
        answers: records with answers, whole or split into sentences.
        labelled: labelled records, to make pairs of.
        split: split of the data set; null is its first one.
        evidence: where evidence is looked up for records that have none: FActScore's sqlite file, or JSONL with title
            and text.
        out: folder of the files.
        stages: comma list of answers, sentences, label, pairs; null is all that follow what it begins with.
        shard: work on every n-th record only, in a folder of its own in --out: 3/8 is the third of eight shards, which
            `lovec join` puts together; null is all records.
        samples: answers per question; more than one need a temperature.
        splitter: function that splits an answer into its sentences.
        abstentions: function that tells whether an answer declines to answer, or a class without arguments that makes
            one, such as a judge model.
        oracle: labels sentences: OpenAIOracle, SelfJudge, WorldOracle, LabelFile, TriviaQAOracle, or a class of your
            own such as my_file.MyOracle; its options are --oracle.NAME.
        chunk: records that are rated together and written at once.
        max_cost: US dollars to spend at most; the same as --oracle.max_cost.
        seed: of sampling and of wrong scores.
        wrong_scores: wrong scores of the pairs: "uniform" over all but the true one (the paper), or "near", at most two
            points from it.
    """

    questions: str | None = None
    answers: str | None = None
    labelled: str | None = None
    split: str | None = None
    evidence: str | None = None
    out: Path = Path("runs/labels")
    stages: str | None = None
    shard: str | None = None
    samples: int = 1
    splitter: str = "lovec.sentences.split_sentences"
    abstentions: str = "lovec.abstentions.is_abstention"
    oracle: Oracle | None = None
    chunk: int = 64
    max_cost: float | None = None
    seed: int = 0
    wrong_scores: WrongScores = "uniform"

    def __post_init__(self) -> None:
        check_count("--samples", self.samples)
        check_count("--chunk", self.chunk)
        check_seed("--seed", self.seed)


def run(words: list[str]) -> None:
    """Run the stages that are asked for, each from the file of the one before, and print a summary.

    Args:
        words: the command line after ``label``.

    Raises:
        LovecError: something the user can mend; what is done stays done.
    """
    add_working_directory()  # an oracle, a data set or a splitter of the user's own
    words = with_underscores(words)
    if (limit := value_of(words, "--max_cost")) is not None:
        words += ["--oracle.max_cost", limit]
    parser = _parser(words)
    command = LabelCommand(parser, parser.parse_args(words))
    with locked(command.out, folder=True):
        try:
            command.run()
        finally:
            command.print_summary()


def _parser(words: Sequence[str]) -> SignatureParser:
    parser = SignatureParser(
        prog="lovec label",
        description="Questions to answers, sentences, labels and preference pairs. Every stage writes a file into "
        "--out, is continued where it was interrupted, and is not done twice.",
    )
    parser.add(LabelSettings)
    parser.add_argument("--redo", action="store_true", help="make the files of the stages anew")
    parser.add_argument("--yes", action="store_true", help="make paid calls without asking")
    if any(word.startswith(("--data", "--help", "-h")) for word in words):  # only these need Lightning
        from lovec.datamodules import RecordsDataModule
        from lovec.labelling.data_sets import data_sets

        names = f"{', '.join(data_sets())}, or a class of your own such as my_file.MySet"
        text = f"begin with a data set: {names}; its options are --data.NAME"
        parser.add_subclass_arguments(RecordsDataModule, "data", skip=_UNUSED, metavar="CLASS", help=text)
    else:
        parser.add_argument("--data", type=str, help=SUPPRESS)
    parser.add(open_session, "engine", "instruction", "tag_words", "scale")
    parser.add(Sampling, "n", "seed")
    return parser


class LabelCommand:
    """One run of the command.

    Args:
        parser: the parser of the command.
        config: what it read.

    Raises:
        UsageError: options that do not go together.
        LovecError: a number is out of range, or the oracle or the data set refuses its options.
    """

    def __init__(self, parser: SignatureParser, config: Any) -> None:
        self.parser = parser
        self.options = config
        parser.call(LabelSettings, config)  # checks the numbers
        self.shard = None if config.shard is None else Shard.parse(config.shard)
        self.out: Path = config.out if self.shard is None else config.out / self.shard.name
        self.begin, self.source = self._beginning()
        self.stages = _chosen(config.stages, self.begin)
        self._check_outputs()
        if config.samples > 1 and not config.temperature > 0:
            raise UsageError(f"--samples {config.samples} needs a --temperature above 0, such as 0.7")
        has_model = config.model is not None or config.adapter is not None
        if "answers" in self.stages and not has_model:
            raise UsageError("--model must be given to answer questions: world, a hub id or a folder")
        if "label" in self.stages and config.oracle is None:
            raise UsageError("--oracle must be given to label, such as --oracle OpenAIOracle --oracle.model gpt-4o")
        self.oracle: Any = parser.instantiate(config).oracle
        if hasattr(self.oracle, "attach") and not has_model:
            raise UsageError(f"--model must be given for {type(self.oracle).__name__} to judge with")
        if hasattr(self.oracle, "progress"):
            self.oracle.progress = False  # the command has a line of its own
        self.counts: dict[str, Counts] = {}

    def run(self) -> None:
        """Run the stages."""
        if self.begin is not None and self.source is not None:
            self._run_stage(self.begin, Stage(self.begin, labelling.copy_records, {}, 1024), self.source)
        for word in self.stages:
            file = self._input(word)
            if not file.exists():
                before = [stage for stage, (_, written) in STAGES.items() if written == file.stem]
                fix = f"run the stage {before[0]}, or" if before else "give it with --questions or --data, or"
                raise LovecError(f"there is no {file} for the stage {word}; {fix} choose another --out")
            self._run_stage(word, getattr(self, f"_{word}")(), labelling.stage_file(file))

    def print_summary(self) -> None:
        """Print what the stages counted, and the commands that go on from there."""
        if not self.counts:
            return
        print_summary(self.counts, self.oracle)
        if self.shard is not None:
            print(f"\nwhen all {self.shard.count} shards are done:\n  lovec join {self.options.out}")
            return
        if not self.counts.get("pairs", {}).get("written"):
            return
        model = f" --model.policy.model {self.options.model}" if self.options.model else ""
        labelled, pairs = self.out / "labelled.jsonl", self.out / "pairs.jsonl"
        print("\nnext:")
        if not Path("runs/sft/adapter").exists():  # where DPO starts
            print(f"  lovec fit --config sft.yaml --data Demonstrations --data.path {labelled}{model}")
        print(f"  lovec fit --config dpo.yaml --data Preferences --data.path {pairs}{model}")

    def _beginning(self) -> tuple[str | None, Source | None]:
        """Return the file that the input becomes, and the input; None where the stages continue what is in the folder.

        There is no input either where it is that file itself.
        """
        options = self.options
        names = [name for name in _BEGINNINGS if options[name] is not None]
        if len(names) > 1:
            raise UsageError(f"--{names[0]} and --{names[1]} both say what to begin with; give one of them")
        if names == ["data"]:
            from lovec.labelling.data_sets import open_data_set

            source = open_data_set(
                options.data.class_path,
                split=options.split,
                evidence=options.evidence,
                shard=self.shard,
                **options.data.init_args,
            )
            return ("answers" if source.answered else "questions"), source
        if options.split is not None:
            raise UsageError("--split is of --data NAME, which is not given")
        if not names:
            return None, None
        (begin,) = names
        copied = options.evidence is None and Path(options[begin]).resolve() == (self.out / f"{begin}.jsonl").resolve()
        return begin, None if copied else labelling.open_file(options[begin], options.evidence, self.shard)

    def _check_outputs(self) -> None:
        """Refuse to write over a file that is read, also where shards are joined, before anything is paid for.

        Raises:
            LovecError: an input lies where a stage writes.
        """
        inputs = list(texts_in({name: value for name, value in self.options.as_dict().items() if name != "out"}))
        written = [STAGES[word][1] for word in self.stages] + ["failed"]
        if self.begin is not None and self.source is not None:
            written.append(self.begin)
        for folder in dict.fromkeys((self.out, Path(self.options.out))):
            for name in written:
                for path in Stage(name, labelling.copy_records, {}).files(folder):
                    check_output(path, inputs)

    def _input(self, word: str) -> Path:
        return self.out / f"{STAGES[word][0]}.jsonl"

    def _run_stage(self, word: str, stage: Stage, source: Source) -> None:
        try:
            with progress(word, self.oracle if word == "label" else None) as notify:
                labelling.run_stage(stage, source, self.out, self.options.redo, notify)
        finally:
            self.counts[word] = labelling.read_counts(stage.name, self.out) or {}

    # The stages. Their work is prepared at the first chunk: a finished stage loads no model and asks for no money.

    def _answers(self) -> Stage:
        options = self.options
        settings = {name: options[name] for name in ("model", "samples", "temperature", "max_new_tokens")}
        settings |= {"adapter": weights_digest(options.adapter), "dtype": self._dtype}
        settings |= {"chat_template": options.chat_template, "seed": options.seed if options.temperature else None}
        return Stage("answers", lambda records: self._answer_step(records), settings, options.rows)

    def _sentences(self) -> Stage:
        splitter, abstentions = self.options.splitter, self.options.abstentions
        step = labelling.SplitStep(
            import_function(splitter, "a function from a text to its sentences"),
            import_function(abstentions, "a function that tells whether an answer declines"),
        )
        return Stage("sentences", step, {"splitter": splitter, "abstentions": abstentions})

    def _label(self) -> Stage:
        oracle = self.options.oracle.as_dict()
        arguments = {name: value for name, value in oracle.get("init_args", {}).items() if name not in _NO_EFFECT}
        settings: dict[str, Any] = {"oracle": {"class": oracle["class_path"], **arguments}}
        if (fingerprint := getattr(self.oracle, "fingerprint", None)) is not None:
            settings["labels"] = fingerprint
        if hasattr(self.oracle, "attach"):
            settings["model"] = [self.options.model, self._dtype]
        chunk = self.options.chunk
        return Stage("labelled", lambda records: self._label_step(records), settings, chunk, failures=True)

    def _pairs(self) -> Stage:
        seed, wrong = self.options.seed, self.options.wrong_scores
        settings = {"seed": seed} | ({} if wrong == "uniform" else {"wrong_scores": wrong})
        return Stage("pairs", labelling.PairStep(seed, wrong), settings)

    @cached_property
    def _answer_step(self) -> labelling.AnswerStep:
        options, session = self.options, self._session
        sampling = Sampling(options.max_new_tokens, options.temperature, options.samples, options.seed)
        return labelling.AnswerStep(session.engine, session.encoder, sampling)

    @cached_property
    def _label_step(self) -> Any:
        if hasattr(self.oracle, "estimate"):
            self._confirm_cost()
        if hasattr(self.oracle, "attach"):
            self.oracle.attach(self._session.policy, self._session.encoder)
        return labelling.LabelStep(self.oracle)

    def _confirm_cost(self) -> None:
        """Print what the rest of the labels will cost, and ask whether to go on.

        Raises:
            LovecError: the user does not want to, or cannot be asked.
        """
        done = 0 if self.options.redo else int((labelling.read_counts("labelled", self.out) or {}).get("records", 0))
        estimate = self.oracle.estimate(labelling.stage_file(self._input("label")).records(done))
        print(f"label: {estimate}", file=sys.stderr, flush=True)
        if not estimate.calls or self.options.yes:
            return
        if not sys.stdin.isatty():
            raise UsageError("nobody is at a terminal to be asked whether to make these calls; give --yes")
        if input("make these calls? [y/N] ").strip().lower() not in ("y", "yes"):
            raise LovecError("no calls were made; what was done so far stays")

    @cached_property
    def _session(self) -> Session:
        return self.parser.call(open_session, self.options)

    @property
    def _dtype(self) -> str:
        return str(self.options.dtype or "float32")


def _chosen(stages: str | None, begin: str | None) -> list[str]:
    """The stages to run, in their order."""
    if stages is None:
        if begin is None:
            raise UsageError("give --questions, --answers, --labelled or --data, or --stages to go on from --out")
        inputs = [read for read, _ in STAGES.values()]
        return list(STAGES)[inputs.index(begin) :]
    names = stages.split(",")
    for name in names:
        if name not in STAGES:
            raise unknown("stage", name, STAGES, listed=True)
    return [name for name in STAGES if name in names]
