"""``lovec label``: questions or answers to labelled records, preference pairs and splits, stage by stage."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lovec import labelling
from lovec.core.files import check_output
from lovec.core.hub import is_shipped
from lovec.core.imports import import_function
from lovec.core.progress import note
from lovec.core.provenance import PROVENANCE
from lovec.core.settings import decisive, declared
from lovec.encoding import default_instruction
from lovec.labelling import STAGES, Counts, OnRay, RaySettings, Shard, Source, Stage
from lovec.labelling.stage import FAILURES
from lovec.taggers import Session, open_session
from lovec.taggers.session import adapter_folder, base_model, prompt_format, session_provenance
from lovec.types import LovecError, Sampling, check_ready

from .arguments import add_working_directory, overlay_of, value_of
from .console import confirm_calls, locked, texts_in, warn
from .errors import UsageError, check_folder_name, unknown
from .label_options import LabelSettings, label_parser
from .parser import with_underscores
from .progress import print_summary, progress
from .signatures import SignatureParser

_BEGINNINGS = ("questions", "answers", "labelled", "data")
"""Options that say what to begin with."""

_PAID = ("OpenAIOracle", "OpenAIWriter")
"""Oracles and writers that cost money."""

_ASKING = ("answers", "label")
"""Stages that ask a model, a writer or an oracle. They are what --on ray spreads over a cluster; the others take less
than reading and writing their records."""

_SPLITS = "splits"
"""The last stage: it reads ``labelled.jsonl``, and writes three files and the recipe."""


def run(words: list[str]) -> None:
    """Run the stages that are asked for, each from the file of the one before, and print a summary.

    Args:
        words: the command line after ``label``.

    Raises:
        LovecError: something the user can fix; what is done stays done. If records failed it is raised at the end,
            when everything else is done.
    """
    add_working_directory()  # an oracle, a data set or a splitter of the user's own
    words = with_underscores(words)
    if (limit := value_of(words, "--max_cost")) is not None:
        paid = [f"--{kind}" for kind in ("oracle", "writer") if (value_of(words, f"--{kind}") or "").endswith(_PAID)]
        words += [word for kind in paid or ["--oracle"] for word in (f"{kind}.max_cost", limit)]
    command = _command(words)
    check_folder_name("--out", command.out)
    with locked(command.out, folder=True):
        try:
            command.run()
            command.check_failures()
        finally:
            command.print_summary()


def _command(words: Sequence[str]) -> LabelCommand:
    parser = label_parser(words)
    return LabelCommand(parser, parser.parse_args(words), words)


def _stage_of(words: Sequence[str], word: str) -> Stage:
    """Return a stage of a command line in another process, which gets the records from the first one."""
    add_working_directory()
    return _command(words).stage(word)


class LabelCommand:
    """One run of the command.

    Args:
        parser: the parser of the command.
        config: what it read.
        words: the command line after ``label``, from which other processes make the command.

    Raises:
        UsageError: options that do not go together.
        LovecError: a number is out of range, or the oracle or the data set refuses its options.
    """

    def __init__(self, parser: SignatureParser, config: Any, words: Sequence[str]) -> None:
        self.parser = parser
        self.options = config
        self.words = list(words)
        self.ray = parser.call(RaySettings, config)
        self.splitting = parser.call(LabelSettings, config).splitting
        self.shard = None if config.shard is None else Shard.parse(config.shard)
        self.out: Path = config.out if self.shard is None else config.out / self.shard.name
        self.begin, self.source = self._beginning()
        self.stages = _chosen(config.stages, self.begin)
        if self.shard is not None:
            self.stages = [word for word in self.stages if word != _SPLITS]  # entities are in several shards
        self._check_outputs()
        if config.samples > 1 and not config.temperature > 0:
            raise UsageError(f"--samples {config.samples} needs a --temperature above 0, such as 0.7")
        has_model = config.model is not None or config.adapter is not None
        if "answers" in self.stages and not has_model and config.writer is None:
            raise UsageError(
                "--model must be given to answer questions: world, a hub id or a folder; or --writer OpenAIWriter "
                "--writer.model NAME for one on a server"
            )
        if "label" in self.stages and config.oracle is None:
            raise UsageError("--oracle must be given to label, such as --oracle OpenAIOracle --oracle.model gpt-4o")
        objects = parser.instantiate(config)
        self.oracle: Any = objects.oracle
        self.writer: Any = objects.writer
        if hasattr(self.oracle, "attach") and not has_model:
            raise UsageError(f"--model must be given for {type(self.oracle).__name__} to judge with")
        if config.batch and not any(hasattr(asked, "prefetch") for asked in (self.oracle, self.writer)):
            raise UsageError(
                "--batch true works only with --oracle OpenAIOracle or --writer OpenAIWriter; name one, or leave it out"
            )
        for asked in (self.oracle, self.writer):
            if hasattr(asked, "progress"):
                asked.progress = False  # the command has a line of its own
        if self.ray.on is not None:
            if self.shard is not None:
                raise UsageError(f"--on {self.ray.on} and --shard both split the work; give one of them")
            if not any(map(self._spreads, self.stages)):
                raise UsageError(
                    f"--on {self.ray.on} spreads answers of a --model and labels of an --oracle that asks no server, "
                    "and there are none; a server gets many requests at once without it (--oracle.concurrency)"
                )
        self.counts: dict[str, Counts] = {}
        self.split: Counts | None = None

    def run(self) -> None:
        """Run the stages.

        With --yes nobody is asked about costs when calls begin, so what they lack is said before anything is run. Where
        a server is asked first, it is said as soon as there are calls: replies in the cache need no key.
        """
        asking = [word for word in self.stages if word in _ASKING and self._is_due(word)]
        if self.options.yes and asking and not hasattr(self._asked(asking[0]), "estimate"):
            self._check_ready(asking)
        if self.begin is not None and self.source is not None:
            self._run_stage(self.begin, Stage(self.begin, labelling.copy_records, {}, 1024), self.source)
        for word in self.stages:
            if word == _SPLITS:
                self._splits()
                continue
            file = self._input(word)
            if not file.exists():
                before = [stage for stage, (_, written) in STAGES.items() if written == file.stem]
                fix = f"run the stage {before[0]}, or" if before else "give it with --questions or --data, or"
                raise LovecError(f"there is no {file} for the stage {word}; {fix} choose another --out")
            stage, compute = self.stage(word), None
            if self._spreads(word):
                compute = OnRay(self.ray, stage, self.out, partial(_stage_of, self.words, word), self.options.redo)
            self._run_stage(word, stage, labelling.stage_file(file), compute)

    def print_summary(self) -> None:
        """Print what the stages counted, and the commands that go on from there."""
        if not self.counts:
            return
        print_summary(self.counts, {"answers": self.writer, "label": self.oracle})
        if self.shard is not None:
            print(f"\nwhen all {self.shard.count} shards are done:\n  lovec join {self.options.out}")
            print(f"  lovec label --stages {_SPLITS} --out {self.options.out}")
            return
        if self.split is None:
            return
        folder, model = self.out, self._trained
        print(f"\n{folder}: {labelling.summary(self.split)}; {folder / labelling.RECIPE} names them")
        if model is None:
            print("it names no model to train: put one in place of MODEL, or run this again with --model")
        print("\nnext:")
        for line in labelling.next_commands(folder, model, self._is_offline, self._overlay):
            print(f"  {line}")

    def check_failures(self) -> None:
        """Say that records failed, and where they are named.

        Raises:
            LovecError: some failed.
        """
        failed = [word for word, counts in self.counts.items() if counts.get("failed")]
        if not failed:
            return
        counts, named = self.counts[failed[-1]], f"{self.out / FAILURES} names them"
        if failed[-1] == "answers":  # the stage label, which has not run, lists them
            named = f'"problem" in the "meta" of {self.out / "answers.jsonl"} says why'
        again = f"--stages {','.join(self.stages[self.stages.index(failed[0]) :])} --redo"
        for word, option in (("answers", "writer"), ("label", "oracle")):
            if word in failed and hasattr(getattr(self, option), "ask_again"):  # unusable replies are in the cache
                again += f" --{option}.ask_again true"
        raise LovecError(
            f"{int(counts['failed'])} of {int(counts['records'])} records failed, and all others are done; {named}, "
            f"and {again} makes them again"
        )

    def _splits(self) -> None:
        """Split the labelled records by entity, and write the recipe.

        Raises:
            LovecError: there are no labelled records, or files that are there are not to be replaced. Too few entities
                are an error only where the stage is named.
        """
        file = self.out / "labelled.jsonl"
        if not file.exists():
            raise LovecError(
                f"there is no {file} for the stage {_SPLITS}; run the stage label, or choose another --out"
            )
        try:
            self.split = labelling.split_file(file, self.splitting, self.options.redo)
        except labelling.TooFewEntities as error:
            if self.options.stages is not None:
                raise
            warn(f"no files to train, develop and test on are made: {error}")
            return
        instruction = self._trained_instruction
        labelling.write_recipe(self.out, self._trained, self._is_offline, instruction, self._overlay)

    @cached_property
    def _trained(self) -> str | None:
        """The model that the recipe trains: that of the command, or the base of its adapter."""
        if self.options.model is None and self.options.adapter is not None:
            return base_model(adapter_folder(self.options.adapter))
        return None if self.options.model is None else str(self.options.model)

    @property
    def _overlay(self) -> str | None:
        """The packaged recipe for the model to train, where it is a large one."""
        return None if self._trained is None or self._is_offline else overlay_of(self._trained)

    @property
    def _is_offline(self) -> bool:
        """Whether the model to train is one that lovec builds."""
        from lovec.datasets.world import VARIANTS

        return self._trained is not None and (self._trained in VARIANTS or self._trained.startswith("tiny-"))

    @property
    def _trained_instruction(self) -> str | None:
        """The instruction that the model to train knows; None where it is the paper's."""
        from lovec.datasets.world import VARIANTS, EmbeddedWorld

        if self._trained is None:
            return None
        if self._trained in VARIANTS:
            return EmbeddedWorld.instruction
        trained = prompt_format(self._trained)
        return None if trained.instruction == default_instruction(trained.tags) else trained.instruction

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
            raise UsageError("--split needs --data NAME")
        if not names:
            return None, None
        (begin,) = names
        file = self.out / f"{begin}.jsonl"
        if options.evidence is None and Path(options[begin]).resolve() == file.resolve():
            labelling.check_stage_file(file)
            return begin, None
        return begin, labelling.open_file(options[begin], options.evidence, self.shard)

    def _check_outputs(self) -> None:
        """Refuse to write over a file that is read, also where shards are joined, before anything is paid for.

        Raises:
            LovecError: an input lies where a stage writes.
        """
        inputs = self._inputs()
        stages = [word for word in self.stages if word != _SPLITS]
        written = [STAGES[word][1] for word in stages] + ["failed"]
        if _SPLITS in self.stages:
            written += labelling.SPLITS
        if self.begin is not None and self.source is not None:
            written.append(self.begin)
        for folder in dict.fromkeys((self.out, Path(self.options.out))):
            for name in written:
                for path in Stage(name, labelling.copy_records, {}).files(folder):
                    check_output(path, inputs)
            for name in (labelling.MANIFEST, labelling.RECIPE) if _SPLITS in self.stages else ():
                check_output(folder / name, inputs)

    def _inputs(self) -> list[str]:
        """Return what may name an input, if there is such a file or folder: no words, by what options are declared."""
        plain = self.options.as_dict()
        options = {name: declared(of)[name] for of, names in self.parser.targets.items() for name in names}
        words = {name for name, one in options.items() if one.taken in ("word", "text") or plain[name] in one.choices}
        if isinstance(plain["adapter"], str) and is_shipped(plain["adapter"]):
            words.add("adapter")
        return list(texts_in({name: value for name, value in plain.items() if name not in {"out", *words}}))

    def _input(self, word: str) -> Path:
        return self.out / f"{STAGES[word][0]}.jsonl"

    def _run_stage(self, word: str, stage: Stage, source: Source, compute: OnRay | None = None) -> None:
        try:
            with progress(word, self._asked(word)) as notify:
                labelling.run_stage(stage, source, self.out, self.options.redo, notify, compute)
        finally:
            self.counts[word] = labelling.read_counts(stage.name, self.out) or {}

    def stage(self, word: str) -> Stage:
        """Return a stage by its word."""
        made: Stage = getattr(self, f"_{word}")()
        return made

    def _asked(self, word: str) -> Any:
        """Return what a stage asks: a writer, an oracle, or None."""
        return {"answers": self.writer, "label": self.oracle}.get(word)

    def _is_due(self, word: str) -> bool:
        """Return whether a stage will be run, and not found finished."""
        return bool(self.options.redo) or not labelling.is_finished(STAGES[word][1], self.out)

    def _check_ready(self, words: Iterable[str]) -> None:
        """Refuse writers and oracles of stages that lack what they need, such as a key."""
        for word in words:
            check_ready(self._asked(word))

    def _spreads(self, word: str) -> bool:
        """Return whether a stage is computed on a cluster. What costs money has one account, in this process."""
        return self.ray.on is not None and word in _ASKING and not hasattr(self._asked(word), "estimate")

    # The stages. Their work is prepared at the first chunk: a finished stage loads no model and asks for no money.

    def _answers(self) -> Stage:
        options = self.options
        settings = {"samples": options.samples, **self.parser.decisive(options, Sampling)}
        settings["seed"] = options.seed if options.temperature else None
        if options.writer is not None:
            settings["writer"] = _described(options.writer)
            return Stage("answers", lambda records: self._answer_step(records), settings, options.chunk)
        settings |= self._provenance
        settings |= {"model": options.model, "adapter": settings[PROVENANCE]["adapter"].get("weights")}
        settings |= {"dtype": self._dtype, "chat_template": options.chat_template}
        return Stage("answers", lambda records: self._answer_step(records), settings, options.rows)

    def _sentences(self) -> Stage:
        splitter, abstentions = self.options.splitter, self.options.abstentions
        step = labelling.SplitStep(
            import_function(splitter, "a function from a text to its sentences"),
            import_function(abstentions, "a function that tells whether an answer declines"),
        )
        return Stage("sentences", step, {"splitter": splitter, "abstentions": abstentions})

    def _label(self) -> Stage:
        settings: dict[str, Any] = {"oracle": _described(self.options.oracle)}
        if (fingerprint := getattr(self.oracle, "fingerprint", None)) is not None:
            settings["labels"] = fingerprint
        if hasattr(self.oracle, "attach"):
            settings["model"] = [self.options.model, self._dtype]
            settings |= self._provenance
        chunk = self.options.chunk
        return Stage("labelled", lambda records: self._label_step(records), settings, chunk, failures=True)

    def _pairs(self) -> Stage:
        seed, wrong = self.options.seed, self.options.wrong_scores
        settings = {"seed": seed} | ({} if wrong == "uniform" else {"wrong_scores": wrong})
        return Stage("pairs", labelling.PairStep(seed, wrong), settings)

    @cached_property
    def _answer_step(self) -> labelling.AnswerStep:
        options = self.options
        sampling = Sampling(options.max_new_tokens, options.temperature, options.samples, options.seed)
        if self.writer is None:
            return labelling.AnswerStep(labelling.EngineWriter(self._session.engine, self._session.encoder), sampling)
        if hasattr(self.writer, "estimate"):
            self._prepare_calls("answers", "answers", self.writer, sampling)
        return labelling.AnswerStep(self.writer, sampling)

    @cached_property
    def _label_step(self) -> Any:
        if hasattr(self.oracle, "estimate"):
            if self.options.max_cost is not None and getattr(self.writer, "spent", None):
                self.oracle.max_cost = max(0.0, self.options.max_cost - self.writer.spent)
            self._prepare_calls("label", "labelled", self.oracle)
        if hasattr(self.oracle, "attach"):
            self.oracle.attach(self._session.policy, self._session.encoder)
        return labelling.LabelStep(self.oracle)

    def _prepare_calls(self, stage: str, written: str, asked: Any, *how: Any) -> None:
        """Print what the rest of a stage will cost, ask whether to go on, and have batches answer what they can.

        Args:
            stage: the stage.
            written: name of the file that it writes.
            asked: the oracle or the writer.
            how: what it needs to know besides the records.

        Raises:
            LovecError: the user does not want to, or cannot be asked, or a batch failed.
        """
        done = 0 if self.options.redo else int((labelling.read_counts(written, self.out) or {}).get("records", 0))
        rest = labelling.stage_file(self._input(stage)).after(done)
        batch = {"batch": True} if self.options.batch and hasattr(asked, "prefetch") else {}
        estimate = asked.estimate(rest, *how, **batch)
        asks = estimate.calls and not self.options.yes
        if asks:  # what is asked about is said with --quiet, too
            print(f"{stage}: {estimate}", file=sys.stderr, flush=True)
        else:
            note(f"{stage}: {estimate}")
        confirm_calls(estimate.calls, self.options.yes)
        if estimate.calls and self.options.yes:
            later = self.stages[self.stages.index(stage) :]
            self._check_ready(word for word in later if word in _ASKING and self._is_due(word))
        if batch:
            asked.prefetch(rest, *how, notify=lambda line: note(f"{stage}: {line}"))

    @cached_property
    def _session(self) -> Session:
        return self.parser.call(open_session, self.options)

    @property
    def _provenance(self) -> dict[str, Any]:
        """What decides the replies of the model, which is asked for no confidences; as settings of a stage."""
        return {PROVENANCE: session_provenance(self.options.as_dict()).without_tags().to_dict()}

    @property
    def _dtype(self) -> str:
        return str(self.options.dtype or "float32")


def _chosen(stages: str | None, begin: str | None) -> list[str]:
    """The stages to run, in their order."""
    if stages is None:
        if begin is None:
            raise UsageError("give --questions, --answers, --labelled or --data, or --stages to go on from --out")
        inputs = [read for read, _ in STAGES.values()]
        return [*list(STAGES)[inputs.index(begin) :], _SPLITS]
    names, known = stages.split(","), [*STAGES, _SPLITS]
    for name in names:
        if name not in known:
            raise unknown("stage", name, known, listed=True)
    return [name for name in known if name in names]


def _described(chosen: Any) -> dict[str, Any]:
    """Return class and options of an oracle or a writer, without those on which replies do not depend."""
    spec = decisive(chosen.as_dict())
    return {"class": spec["class_path"], **spec.get("init_args", {})}
