"""The ``lovec`` command.

This file answers ``--help``, ``--version`` and a mistyped command without importing torch, and prints every error that
the user can mend as one line. Set LOVEC_DEBUG=1 to see the traceback instead.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from signal import Signals

from lovec.imports import without_collection
from lovec.signals import Terminated, terminating
from lovec.types import LovecError, is_text

from .console import is_first_process
from .errors import UsageError, one_line, system_error, unknown

_TRAINING = {
    "fit": "train: `lovec fit --config sft.yaml`, then `--config dpo.yaml`",
    "validate": "measure on the dev split",
    "test": "measure on the test split and print the table of results",
    "predict": "tag the answers of a data set",
}
_OTHERS = {
    "sweep": "vary options of a recipe: train, measure on the dev split, compare in one table",
    "label": "questions to answers, sentences, labels by an oracle, and preference pairs",
    "agreement": "how far two label files agree",
    "calibrate": "fit the map from an adapter's scores to how often its sentences are true",
    "tag": "give the sentences of any text, or of answers to questions, a confidence",
    "join": "one output of the shards that `tag --shard` and `label --shard` have written",
    "serve": "an OpenAI-compatible server whose answers carry confidences",
    "export": "an adapter or a merged model, with a model card",
    "score": "the metrics of any file with confidences and labels, made with lovec or not",
    "report": "tables, plots and one HTML page of what tests measured",
    "curves": "print and plot how runs went, by step",
    "world": "build the embedded world: its data and its tiny model",
    "demo": "the whole method on the embedded world: train, test, compare",
}
COMMANDS = _TRAINING | _OTHERS
"""Every command, and what it does in one line."""

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: words after ``lovec``; None takes those of this process.

    Returns:
        The exit code: 0 for success, 1 for an error that the user can mend, 2 for a command line or recipe that cannot
        be read, 130 for an interrupt, 143 for SIGTERM, 129 for SIGHUP, 138 for SIGUSR1.
    """
    if argv is None:  # at the end of this process, no search for garbage among all that was imported
        atexit.register(gc.freeze)
    with terminating() as signals:
        try:
            return run(sys.argv[1:] if argv is None else list(argv))
        except (LovecError, OSError) as error:
            if os.environ.get("LOVEC_DEBUG"):
                raise
            print(f"lovec: error: {system_error(error) or one_line(error)}", file=sys.stderr)
            return 2 if isinstance(error, UsageError) else 1
        except KeyboardInterrupt:
            return _ended(signals)
        except Terminated as stop:
            return _ended([stop.number], stop.announced)
        except SystemExit as stop:  # --help and --print_config end this way, and so does the trainer when interrupted
            if isinstance(stop.__context__, KeyboardInterrupt):
                return _ended(signals)
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def run(args: list[str]) -> int:
    """Run one command; its errors are raised.

    Args:
        args: words after ``lovec``.

    Raises:
        LovecError: something the user can mend.
    """
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if args[0] in ("-V", "--version"):
        print(f"lovec {import_module('lovec').__version__}")
        return 0
    # Bytes that are no UTF-8 reach a program as halves of surrogate pairs.
    if broken := [arg for arg in args if not is_text(arg)]:
        raise UsageError(f"{broken[0]!a} is not valid UTF-8 text; rename the file, or correct the word")
    command, rest = args[0], args[1:]
    if command.startswith("-"):
        raise unknown("option", command, ("--help", "--version"))
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS)
    training = command in _TRAINING
    if training or command in ("sweep", "tag", "serve", "label", "calibrate", "export"):
        import_module(".preflight", __name__).check_words(command, rest)
    with without_collection():
        module = import_module(".training" if training else f".{command}", __name__)
    module.run(*([command] if training else []), rest)
    return 0


def _ended(signals: Sequence[int], announced: bool = False) -> int:
    """Say what has ended the command, and return its exit code; without a signal, Ctrl-C has."""
    if not announced and is_first_process():
        print(f"lovec: {f'ended by {Signals(signals[0]).name}' if signals else 'interrupted'}", file=sys.stderr)
    return 128 + signals[0] if signals else INTERRUPTED


def usage() -> str:
    """Return the text of ``lovec --help``."""
    commands = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    return f"""usage: lovec COMMAND [options]

Train language models to say, sentence by sentence, how sure they are, and measure how true that is.

commands:
{commands}

`lovec COMMAND --help` lists the options of a command; `lovec --version` prints the version.
"""
