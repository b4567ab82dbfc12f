"""``lovec fit``, ``validate``, ``test`` and ``predict``.

LightningCLI in subclass mode, with errors in one line and the recipe inside every checkpoint.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_warn

import lovec
from lovec.callbacks import ProgressLine
from lovec.callbacks.progress import learned
from lovec.core.files import check_output, remove_leftovers
from lovec.core.hub import CALIBRATION_FILE
from lovec.core.imports import without_progress_bars
from lovec.core.notices import counted
from lovec.core.progress import Heartbeat, clock, is_quiet
from lovec.core.settings import check_count, check_seed
from lovec.datamodules import RecordsDataModule
from lovec.evaluation import EvaluationModule
from lovec.evaluation.run_folders import folder_name, predictions_file
from lovec.evaluation.stopping import TERMINATED, SignalConnector
from lovec.modules import PolicyModule
from lovec.policy.fingerprint import PARTS, settings_part
from lovec.reports import print_results
from lovec.types import LovecError, ResultRow

from . import at_work
from .arguments import NO_OPTIONS, arrange, find_recipe, recipe_names, value_of, with_place, without
from .console import is_first_process, locked, remark, say_next, texts_in, warn
from .errors import UsageError, error_of_own_file, one_line, unknown
from .parser import with_underscores
from .resume import mention_earlier_run, parts_of
from .saved_recipe import RECIPE_KEY, recipe_text
from .signatures import SignatureParser
from .unseen import run_of, seen

_MISLEADING = (
    "Using ModelCheckpoint with manual optimization",  # weights after the step are the ones we want
    "The dirpath has changed",  # of course: every run logs to a folder of its own
    "Spearman's correlation is undefined",  # the table shows a dash
    "The ``compute`` method of metric",  # a row without any pair shows dashes, too
    ".*isinstance.treespec, LeafSpec",  # Lightning's own affair
)
"""Beginnings of warnings that tell a user nothing."""

_NOISE = (
    "💡 Tip",
    "TPU available",  # a machine with one is rare, and --trainer.accelerator says what is used
    "GPU available: False",  # what is used says so already
    "Loading `train_dataloader`",
    "`Trainer.fit` stopped",  # the last line of the command says how far it came
    "Seed set to",
)
"""Beginnings of what Lightning logs and tells a user nothing."""

_LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
)

_FRACTIONS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")
"""Trainer options that are a number of batches where they are written as a whole number, and else a share of them."""

_FORMAT = warnings.formatwarning
_INTERVALS = {"log_every_n_steps": 0, "check_val_every_n_epoch": 1, "num_sanity_val_steps": -1, "num_nodes": 1}
"""Trainer options that Lightning does not check, and the least that they may be."""

_RECIPE = ("seed_everything", "trainer", "model", "data")
_WRITTEN = {"fit": "adapter", "test": "test/{data}/results.json", "predict": "predictions/{data}.jsonl"}
"""What a command writes at its end, in the folder of the run, by the name of the data set."""


class TrainingParser(SignatureParser, LightningArgumentParser):
    """Lightning's parser, with errors in one line."""


def resolved(parser: LightningArgumentParser, config: Any) -> dict[str, Any]:
    """Return every setting of a run, defaults included; the seeds that follow ``seed_everything`` are left out."""
    settings = yaml.safe_load(parser.dump(config, skip_unset=False))
    return {key: settings[key] for key in _RECIPE}


class SaveRecipe(SaveConfigCallback):
    """Writes the resolved recipe beside the logs and into every checkpoint."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write config.yaml, for training only; with the checkpoint that it goes on from, a test would measure that."""
        if stage == "fit":
            self.config = self.config.clone()
            self.config["ckpt_path"] = self.config["ckpt_despite"] = None
            super().setup(trainer, pl_module, stage)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the recipe into the checkpoint, as text."""
        checkpoint[RECIPE_KEY] = recipe_text(resolved(self.parser, self.config))


class SeenRecords(Callback):
    """Warns of test records that the measured adapters were trained on, before a model is loaded."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the test records with the training files that the runs of the adapters name."""
        if stage != "test" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, EvaluationModule)
        adapters = [pl_module.tested_adapter(), *pl_module.methods.values()]
        records = trainer.datamodule.loaded("test")  # type: ignore[attr-defined]
        for run in dict.fromkeys(run_of(Path(adapter)) for adapter in adapters if adapter is not None):
            for note in seen(records, run):
                warn(note)


class TrainingCLI(LightningCLI):
    """One command of the trainer, over any objective and any data.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.
    """

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command = command
        self.given = with_underscores(words)
        self.words = arrange(command, words)
        super().__init__(
            PolicyModule if command == "fit" else EvaluationModule,
            RecordsDataModule,
            save_config_callback=SaveRecipe,
            save_config_kwargs={"overwrite": True},
            # The datamodules share out rows themselves; the summary of modules says nothing about an adapter.
            trainer_defaults={"use_distributed_sampler": False, "enable_model_summary": False},
            parser_kwargs={"prog": f"lovec {command}", "description": f"lovec {command}"},
            parser_class=TrainingParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            run=False,
            auto_configure_optimizers=False,
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the one seed; model and data take theirs from it."""
        parser.add_argument("--seed_everything", type=int, default=0, help="Seed of everything random.")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what the trainer's method itself takes, such as ``--ckpt_path``."""
        for action in parser._actions:  # Lightning says float or int, and so 1 would be read as 1.0, which is all
            if action.dest.removeprefix("trainer.") in _FRACTIONS:
                action._typehint = int | float | None  # type: ignore[attr-defined]
                action.help = "How many batches to use (1 is one batch), or with a point their share (1.0 is all)."
        parser.link_arguments("seed_everything", "model.init_args.seed")
        parser.link_arguments("seed_everything", "data.init_args.seed")
        self.method_arguments = parser.add_method_arguments(Trainer, self.command, skip=set(NO_OPTIONS))
        parser.add_argument(
            "--ckpt_despite",
            type=str | None,
            default=None,
            help="Use the checkpoint of --ckpt_path although it was written with other values of these parts, a comma "
            f"list of {', '.join(PARTS)}.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arranged words."""
        with self._placed():
            self.config = parser.parse_args(self.words)
        check_seed("--seed_everything", self.config.seed_everything)
        for name, least in _INTERVALS.items():
            check_count(f"--trainer.{name}", self.config.trainer[name], at_least=least)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Add file and line to an error about an option that a recipe sets."""
        try:
            yield
        except UsageError as error:
            recipes = [find_recipe(name) for name in recipe_names(self.given)]
            raise with_place(error, recipes, self.given) from None

    def instantiate_classes(self) -> None:
        """Build data, model and trainer; a logger without a folder of its own writes to the folder of the run.

        The recipe keeps that logger's ".": a run that goes on from a checkpoint elsewhere writes no logs here.

        Raises:
            LovecError: a class refuses its settings, or needs a package that is not installed; or one in a file of the
                user's own raises an error.
        """
        logger = self.config.trainer.logger
        follows = isinstance(logger, Namespace) and logger.init_args.get("save_dir") == "."
        try:
            if follows:
                logger.init_args.save_dir = self.config.trainer.default_root_dir or "."
            super().instantiate_classes()
            if follows:
                logger.init_args.save_dir = "."
            self.model.recipe_settings = settings_part(resolved(self.parser, self.config))
            self.model.ckpt_despite = parts_of(self.config.ckpt_despite)
        except Exception as error:
            packages = re.findall(r"pip install -U '([\w-]+)", str(error))
            if packages and isinstance(error, ModuleNotFoundError):
                package = packages[-1]
                raise LovecError(f"a package that is asked for is not installed; pip install {package}") from error
            if (own := error_of_own_file(error)) is not None:
                raise own from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with our line of progress unless bars are off or the user has another one.

        Raises:
            LovecError: its settings do not go together.
        """
        settings = self.config_init.trainer
        wanted = settings.enable_progress_bar is not False
        if wanted and not any(isinstance(callback, ProgressBar) for callback in settings.callbacks or []):
            self.trainer_defaults["callbacks"] = ProgressLine()
        with self._placed():
            check_accelerator(settings.accelerator)
        try:
            trainer = super().instantiate_trainer(**kwargs)
            trainer.callbacks.append(SeenRecords())  # type: ignore[attr-defined]
            SignalConnector.of(trainer)
            return trainer
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise LovecError(one_line(error)) from error

    def run_trainer(self, verbose: bool = True) -> None:
        """Call the trainer's method, while no other run writes into the folder of the run.

        Args:
            verbose: whether a validation prints its metrics.

        Raises:
            LovecError: another run writes into the folder, or an input lies where something is to be written.
        """
        arguments = {name: self.config_init[name] for name in self.method_arguments}
        if arguments["ckpt_path"]:
            self.trainer.ckpt_path = arguments.pop("ckpt_path")  # so that the module knows it when it builds its policy
        elif self.command == "fit":
            mention_earlier_run(Path(self.trainer.default_root_dir))
        if self.command in ("validate", "test"):
            arguments["verbose"] = (
                verbose and self.command == "validate"
            )  # a test ends with a table that says it better
        loading = nullcontext() if sys.stderr.isatty() and not is_quiet() else without_progress_bars()
        with self._folder(), loading, self._heartbeat():
            try:
                getattr(self.trainer, self.command)(self.model, datamodule=self.datamodule, **arguments)
            except MisconfigurationException as error:
                raise LovecError(one_line(error)) from error

    def _heartbeat(self) -> AbstractContextManager[Any]:
        """Return what says that the command is at work, also before the trainer's line of progress begins."""
        lines = [callback.every for callback in self.trainer.callbacks if isinstance(callback, ProgressLine)]  # type: ignore[attr-defined]
        if not lines or not lines[0] or not is_first_process():
            return nullcontext()
        return Heartbeat(lines[0], self.command)

    @contextmanager
    def _folder(self) -> Iterator[None]:
        """Keep other runs away from the folder of the run, and what is written there away from inputs."""
        if self.command not in _WRITTEN:
            yield
            return
        home = Path(self.trainer.default_root_dir)
        output = home / _WRITTEN[self.command].format(data=folder_name(self.datamodule))
        settings = resolved(self.parser, self.config)
        inputs = [*texts_in(settings["model"]), *texts_in(settings["data"])]
        check_output(output, inputs, "choose another --trainer.default_root_dir")
        with locked(home, folder=True):
            if is_first_process():
                for folder in (output.parent, *home.glob("logs/*/checkpoints/**/")):
                    remove_leftovers(folder)
            yield


def run(command: str, words: Sequence[str]) -> None:
    """Run one command, and say what was made and what comes next.

    After a test the table of results is printed, also if it could not be written.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.

    Raises:
        LovecError: something the user can fix.
    """
    with at_work(command, words):
        cli = prepare(command, words)
    begin = time.monotonic()
    try:
        cli.run_trainer()
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal
        if command == "fit":
            say_next(_resume_command(cli, words))
        raise
    finally:
        if command == "test" and cli.model.results and cli.trainer.is_global_zero:
            title = f"Test of {type(cli.model).__name__}"
            print_results(cli.model.results, title=title, metrics=cli.model.evaluator.metric_infos)
    if cli.trainer.is_global_zero and not cli.trainer.interrupted:
        check_done(cli)
    if command == "test" and not cli.trainer.interrupted:
        warn_of_unmeasured(cli.model.results, cli.model.methods)
    if cli.trainer.is_global_zero and not cli.trainer.interrupted:
        _end(cli, words, time.monotonic() - begin)


def check_done(cli: TrainingCLI) -> None:
    """Refuse to speak of the files of a command that has ended without doing anything.

    A training with ``--ckpt_path auto`` whose adapter is there may be over: jobs that are started again give it.

    Args:
        cli: the command, on the first process.

    Raises:
        LovecError: it has trained, measured or tagged nothing.
    """
    trainer = cli.trainer
    if cli.command == "fit" and not cli.model.costs.begun:
        is_over = f"the run had already ended at step {trainer.global_step}"
        if value_of(cli.given, "--ckpt_path") == "auto" and Path(trainer.default_root_dir, "adapter").is_dir():
            remark(f"nothing was trained: {is_over}")
            return
        if trainer.limit_train_batches == 0:
            raise LovecError("nothing was trained: trainer.limit_train_batches is 0")
        raise LovecError(f"nothing was trained: {is_over}; raise trainer.max_steps, max_epochs or max_time")
    for command, what, batches in (
        ("test", "test record was measured", trainer.num_test_batches),
        ("predict", "record was tagged", trainer.num_predict_batches),
    ):
        if cli.command == command and not sum(batches):
            raise LovecError(f"no {what}: the test split is empty, or trainer.limit_{command}_batches is 0")


def warn_of_unmeasured(rows: Sequence[ResultRow], methods: Iterable[str]) -> None:
    """Warn of results in which a trained method has not stated a single confidence.

    Args:
        rows: what a test measured.
        methods: names of the trained methods.
    """
    for method in methods:
        of_method = [row for row in rows if row.method == method and row.level == "sentence"]
        broken = [row for row in of_method if (row.metrics.get("malformed") or 0.0) == 1.0]
        if of_method and broken and all(row.n == 0 for row in of_method):
            rank_zero_warn(
                f"{method} was not measured: it has written no valid tag (n = 0), as an untrained model or one that is "
                "asked with another instruction than in training; compare --model.policy.instruction, tag_words and "
                "scale with the lovec.json beside the adapter"
            )


def check_accelerator(name: Any) -> None:
    """Refuse an accelerator by a name that is not known, or that this machine does not have.

    Args:
        name: ``--trainer.accelerator``; what is not text is left to Lightning.

    Raises:
        UsageError: so it is.
    """
    from lightning.pytorch.accelerators import AcceleratorRegistry

    known = sorted(AcceleratorRegistry.available_accelerators())
    if not isinstance(name, str) or name == "auto":
        return
    if name not in (*known, "gpu"):
        raise unknown("value for --trainer.accelerator", name, ["auto", "gpu", *known], listed=True)
    there = [other for other in known if AcceleratorRegistry[other]["accelerator"].is_available()]
    if not {"cuda", "mps"} & {*there} if name == "gpu" else name not in there:
        raise UsageError(
            f"--trainer.accelerator is {name}, which torch does not find here; give --trainer.accelerator cpu, or "
            f"install the build of torch for this machine's {name} (there is {', '.join(there)})"
        )


def _resume_command(cli: TrainingCLI, words: Sequence[str]) -> tuple[str, str]:
    """Return the command that goes on with a training that was stopped, and what it does."""
    stopped = Path(cli.trainer.default_root_dir, TERMINATED)
    saved = [getattr(callback, "last_model_path", "") for callback in cli.trainer.checkpoint_callbacks]
    agreed = SignalConnector.of(cli.trainer).agreed
    path = str(stopped) if agreed and stopped.is_file() else next((path for path in saved if Path(path).is_file()), "")
    if not path:
        again = "goes on where it began: no newer" if cli.config.ckpt_path else "starts again: no"
        return shlex.join(["lovec", "fit", *words]), f"{again} checkpoint was written yet"
    here = Path(path).resolve()
    short = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    kept = without(words, "--ckpt_path")
    return shlex.join(["lovec", "fit", *kept, "--ckpt_path", str(short)]), "goes on where it was saved last"


def _log_dir(cli: TrainingCLI) -> str:
    """Return the folder of the logs. ``trainer.log_dir`` is a collective operation: no process may ask it alone."""
    folder = getattr(cli.trainer.logger, "log_dir", None)
    return str(folder or cli.trainer.default_root_dir)


def _end(cli: TrainingCLI, words: Sequence[str], seconds: float) -> None:
    """Say where what was made lies, its key figures, and what can be run next."""
    home = Path(cli.trainer.default_root_dir)
    runs = shlex.quote(str(home))
    if cli.command == "fit":
        last = "".join(f", last {part}" for part in learned(cli.trainer))
        remark(f"{counted(cli.trainer.global_step, 'step')} in {clock(seconds)}{last}; logs: {_log_dir(cli)}")
        say_next(
            (_test_command(cli, words), "measure it on the test split"),
            (f"lovec tag page.txt --adapter {runs}", "a confidence for each sentence of a text"),
            (f"lovec serve --adapter {runs}", "a page to try it, and an endpoint"),
        )
    elif cli.command == "test":
        data = folder_name(cli.datamodule)
        remark(f"measured in {clock(seconds)}; rows and tagged records: {home / 'test' / data}")
        calibrate = [(f"lovec calibrate {runs}", "fit confidences to how often sentences are true")]
        fitted = (home / "adapter").is_dir() and not (home / "adapter" / CALIBRATION_FILE).exists()
        say_next((f"lovec report {runs}", "tables, plots and one page"), *(calibrate if fitted else []))
    elif cli.command == "predict":
        path = predictions_file(home, cli.datamodule)
        remark(f"tagged in {clock(seconds)}: {path}")
        say_next((f"lovec score {shlex.quote(str(path))}", "its metrics, where the records have labels"))


def _test_command(cli: TrainingCLI, words: Sequence[str]) -> str:
    """Return the command that tests what was trained: the same words, or else the recipe that the run has written."""
    kept = without(words, "--ckpt_path", "--ckpt_despite")  # the checkpoint that it went on from is older
    if not {with_underscores([word])[0].partition("=")[0] for word in kept} & {"--config", "-c"}:
        kept = ["--config", str(Path(_log_dir(cli), "config.yaml"))]
    lacking = getattr(cli.datamodule, "test_path", "") is None
    return shlex.join(["lovec", "test", *kept, *(["--data.test_path", "FILE.jsonl"] if lacking else [])])


def execute(command: str, words: Sequence[str], verbose: bool = True) -> TrainingCLI:
    """Run one command and return the objects it ran with.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.
        verbose: whether a validation prints its metrics.

    Raises:
        LovecError: something the user can fix.
    """
    cli = prepare(command, words)
    cli.run_trainer(verbose)
    return cli


def prepare(command: str, words: Sequence[str]) -> TrainingCLI:
    """Build the objects of a command, and keep misleading messages away.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.

    Raises:
        LovecError: something the user can fix.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_news)
    for message in _MISLEADING:
        warnings.filterwarnings("ignore", message)
    warnings.formatwarning = _one_line_warning
    try:
        return TrainingCLI(command, words)
    except MisconfigurationException as error:
        raise LovecError(one_line(error)) from error


def _one_line_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of lovec's is one line; those of other packages keep their place and code."""
    if Path(filename).is_relative_to(Path(lovec.__file__).parent):
        return f"lovec: warning: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)


def _is_news(record: logging.LogRecord) -> bool:
    silent = is_quiet() and record.levelno < logging.WARNING
    return not silent and not record.getMessage().startswith(_NOISE)
