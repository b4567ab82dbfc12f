"""``lovec fit``, ``validate``, ``test`` and ``predict``.

LightningCLI in subclass mode, with errors in one line and the recipe inside every checkpoint.
"""

from __future__ import annotations

import logging
import re
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import lovec
from lovec.datamodules import RecordsDataModule
from lovec.evaluation import EvaluationModule
from lovec.modules import PolicyModule
from lovec.reports import print_results
from lovec.types import LovecError

from .arguments import RECIPE_KEY, arrange
from .errors import one_line
from .signatures import SignatureParser

_MISLEADING = (
    "Using ModelCheckpoint with manual optimization",  # weights after the step are the ones we want
    "The dirpath has changed",  # of course: every run logs to a folder of its own
    "Spearman's correlation is undefined",  # the table shows a dash
    "The ``compute`` method of metric",  # a row without any pair shows dashes, too
    ".*isinstance.treespec, LeafSpec",  # Lightning's own affair
)
"""Beginnings of warnings that tell a user nothing."""

_FORMAT = warnings.formatwarning
TERMINATED = 128 + signal.SIGTERM
_RECIPE = ("seed_everything", "trainer", "model", "data")


class TrainingParser(SignatureParser, LightningArgumentParser):
    """Lightning's parser, with errors in one line."""


def resolved(parser: LightningArgumentParser, config: Any) -> dict[str, Any]:
    """Return every setting of a run, defaults included; the seeds that follow ``seed_everything`` are left out."""
    settings = yaml.safe_load(parser.dump(config, skip_unset=False))
    return {key: settings[key] for key in _RECIPE}


class SaveRecipe(SaveConfigCallback):
    """Writes the resolved recipe beside the logs and into every checkpoint."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write config.yaml, for training only."""
        if stage == "fit":
            super().setup(trainer, pl_module, stage)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the recipe into the checkpoint, as text."""
        checkpoint[RECIPE_KEY] = yaml.safe_dump(resolved(self.parser, self.config), sort_keys=False)


class TrainingCLI(LightningCLI):
    """One command of the trainer, over any objective and any data.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.
    """

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command = command
        self.words = arrange(command, words)
        super().__init__(
            PolicyModule if command == "fit" else EvaluationModule,
            RecordsDataModule,
            save_config_callback=SaveRecipe,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"use_distributed_sampler": False},  # the datamodules share out rows themselves
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
        parser.link_arguments("seed_everything", "model.init_args.seed")
        parser.link_arguments("seed_everything", "data.init_args.seed")
        ours = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders", "verbose"}
        self.method_arguments = parser.add_method_arguments(Trainer, self.command, skip=ours)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arranged words."""
        self.config = parser.parse_args(self.words)

    def before_instantiate_classes(self) -> None:
        """Send a logger without a folder of its own to the folder of the run."""
        logger = self.config.trainer.logger
        if logger is not None and not isinstance(logger, (bool, list)) and logger.init_args.get("save_dir") == ".":
            logger.init_args.save_dir = self.config.trainer.default_root_dir or "."

    def instantiate_classes(self) -> None:
        """Build data, model and trainer.

        Raises:
            LovecError: a class refuses its settings, or needs a package that is not installed.
        """
        try:
            super().instantiate_classes()
        except ModuleNotFoundError as error:
            if packages := re.findall(r"pip install -U '([\w-]+)", str(error)):
                package = packages[-1]
                raise LovecError(f"a package that is asked for is not installed; pip install {package}") from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer.

        Raises:
            LovecError: its settings do not go together.
        """
        try:
            return super().instantiate_trainer(**kwargs)
        except (ValueError, MisconfigurationException) as error:
            raise LovecError(one_line(error)) from error

    def run_trainer(self, verbose: bool = True) -> None:
        """Call the trainer's method.

        Args:
            verbose: whether a validation prints its metrics.
        """
        arguments = {name: self.config_init[name] for name in self.method_arguments}
        if arguments["ckpt_path"] and Path(arguments["ckpt_path"]).is_file():
            self.trainer.ckpt_path = arguments.pop("ckpt_path")  # so that the module knows it when it builds its policy
        if self.command in ("validate", "test"):
            arguments["verbose"] = (
                verbose and self.command == "validate"
            )  # a test ends with a table that says it better
        getattr(self.trainer, self.command)(self.model, datamodule=self.datamodule, **arguments)
        if self.trainer.received_sigterm:
            raise SystemExit(TERMINATED)


def run(command: str, words: Sequence[str]) -> None:
    """Run one command; after a test, print the table of results.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.

    Raises:
        LovecError: something the user can mend.
    """
    cli = execute(command, words)
    if command == "test" and cli.trainer.is_global_zero:
        print_results(
            cli.model.results, title=f"Test of {type(cli.model).__name__}", metrics=cli.model.evaluator.metric_infos
        )


def execute(command: str, words: Sequence[str], verbose: bool = True) -> TrainingCLI:
    """Run one command and return the objects it ran with.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.
        verbose: whether a validation prints its metrics.

    Raises:
        LovecError: something the user can mend.
    """
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_advertisement)
    for message in _MISLEADING:
        warnings.filterwarnings("ignore", message)
    warnings.formatwarning = _one_line_warning
    try:
        cli = TrainingCLI(command, words)
        cli.run_trainer(verbose)
    except MisconfigurationException as error:
        raise LovecError(one_line(error)) from error
    return cli


def _one_line_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of lovec's is one line; those of other packages keep their place and code."""
    if Path(filename).is_relative_to(Path(lovec.__file__).parent):
        return f"lovec: warning: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)


def _no_advertisement(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("💡 Tip")
