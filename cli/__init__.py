"""The ``lovec`` command.

This file answers ``--help``, ``--version`` and a mistyped command without importing torch, and prints every error that
the user can fix as one line. Set LOVEC_DEBUG=1 to see the traceback instead.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from itertools import pairwise
from signal import SIGINT, Signals
from types import FunctionType

from lovec.core.imports import gc_paused
from lovec.core.plugins import plugins
from lovec.core.progress import EVERY, Heartbeat, quiet
from lovec.core.signals import Terminated, terminating
from lovec.types import LovecError, is_text

from .console import is_first_process, logged_warnings
from .errors import UsageError, one_line, system_error, unknown

TRAINING = {
    "fit": "train an adapter, as a recipe says: --config sft.yaml, then dpo.yaml",
    "validate": "measure an adapter on the dev split",
    "test": "measure an adapter on the test split, and print the table of results",
    "predict": "tag the test split of a data set",
}
"""The commands of the trainer, each a method of it, and what they do in one line."""

_OTHERS = {
    "sweep": "train a recipe with several values of its options, and compare them in one table",
    "label": "make training data: answer questions, split the answers, have sentences labelled",
    "agreement": "compare two files of labels",
    "calibrate": "fit confidences, of an adapter or in any file, to how often the rated sentences are true",
    "apply": "calibrate the scores of new rows",
    "tag": "give the sentences of any text, or of answers to questions, a confidence",
    "join": "join the shards that `tag --shard` and `label --shard` have written",
    "serve": "serve a model behind OpenAI's chat API, with a confidence for each sentence, and a page",
    "export": "write an adapter or a merged model for others, with a model card",
    "score": "measure any file with confidences and labels, made with lovec or not",
    "report": "write tables, plots and one HTML page of what tests measured",
    "curves": "print and plot how trainings went, by step",
    "world": "print where the embedded world's tiny model is; build it where it is missing",
    "completion": "print a script by which bash, zsh or fish completes commands, options and file names",
    "demo": "train, test and compare on real cities or on the embedded world, offline",
}
COMMANDS = TRAINING | _OTHERS
"""Every command of lovec, and what it does in one line."""

_BROUGHT = "lovec.commands"
"""The entry points of commands that other packages bring: functions that take the words after the command."""

_SPOKEN = ("about", "ask", "hedge_phrase", "instruction", "question", "title")
"""Ends of the names of options that take a text, whatever that begins with."""

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: words after ``lovec``; None takes those of this process.

    Returns:
        The exit code: 0 for success, also if the reader of standard output is gone before its end, 1 for an error that
        the user can fix, 2 for a command line or recipe that cannot be read, 130 for an interrupt, 143 for SIGTERM, 129
        for SIGHUP, 138 for SIGUSR1.
    """
    if argv is None:  # at the end of this process, no search for garbage among all that was imported
        atexit.register(gc.freeze)
    words, silent = without_quiet(sys.argv[1:] if argv is None else argv)
    with terminating() as signals, logged_warnings(), quiet() if silent else nullcontext():
        code = _code_of(words, argv is None, signals)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()  # where Python does so at its end, an error is a traceback
        except OSError as error:
            _discard_output()
            if not isinstance(error, BrokenPipeError):
                print(f"lovec: error: {system_error(error) or one_line(error)}", file=sys.stderr)
                return code or 1
        return code


def _code_of(words: list[str], alone: bool, signals: Sequence[int]) -> int:
    """Run one command, print its error in one line, and return its exit code, see ``main`` and ``run``."""
    try:
        return _run_unread(words, alone)
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
        if isinstance(stop.__context__, BrokenPipeError):  # as rich ends a program
            return 0
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _run_unread(words: list[str], alone: bool) -> int:
    """Run one command, which a reader of standard output that is gone before its end does not make fail."""
    try:
        return run(words, alone)
    except BrokenPipeError as error:
        if not _is_unread():
            raise
        _discard_output()
        if isinstance(failed := error.__context__, LovecError | KeyboardInterrupt | Terminated):
            raise failed from None  # the command had failed, and printed what was done until then
        return 0


def _is_unread() -> bool:
    """Return whether the reader of standard output is gone, as ``head`` is once it has seen enough."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # what is wrong is reported unasked
    return bool(poll.poll(0))


def _discard_output() -> None:
    """Let nothing more reach standard output, so that what is left in its buffer raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def without_quiet(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of a command line without ``--quiet``, which every command takes, and whether it is given.

    Like other options that are true or false, it may be followed by one of these.
    """
    rest, silent, skip = [], False, False
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if skip:
            skip = False
        elif name == "--quiet" and (value.lower() in ("true", "false") if equals else True):
            skip = not equals and after.lower() in ("true", "false")
            silent = (value if equals else after).lower() != "false"
        else:
            rest.append(word)
    return rest, silent


def run(args: list[str], alone: bool = False) -> int:
    """Run one command; its errors are raised.

    Args:
        args: words after ``lovec``.
        alone: whether the process is there for this command only: then what is imported for it is never searched for
            garbage.

    Raises:
        LovecError: something the user can fix.
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
        brought = plugins(_BROUGHT)
        if command not in brought:
            raise unknown("command", command, [*COMMANDS, *brought])
        brought[command].load(FunctionType)(rest)
        return 0
    rest = _words_at_home(rest)
    training = command in TRAINING
    if training and (guide := import_module(".training_help", __name__)).asks_for_short_help(rest):
        print(guide.short_help(command), end="")
        return 0
    if training or command in ("sweep", "tag", "serve", "label", "calibrate", "export"):
        import_module(".preflight", __name__).check_words(command, rest)
    with gc_paused(), at_work(command, rest) if training else nullcontext():
        module = import_module(".training" if training else f".{command}", __name__)
        if alone:
            gc.freeze()
    module.run(*([command] if training else []), rest)
    return 0


def _words_at_home(words: Sequence[str]) -> list[str]:
    """Return the words with the home folder for a ``~/`` that the shell has left, as in ``--out=~/x``.

    Raises:
        UsageError: the output is to be written to "-".
    """
    found = []
    for before, word in pairwise(["", *words]):
        name, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if name == "--out" and value == "-":
            raise UsageError(
                "--out is -, expected the name of a file or folder; without --out, `lovec tag` prints what it writes, "
                "and other commands choose a name"
            )
        found.append(word.removesuffix(value) + with_home(name.removeprefix("--"), value))
    return found


def with_home(option: str, value: str) -> str:
    """Return the value of an option with the home folder for a ``~/`` at its beginning, unless it is a text."""
    is_text = option.rpartition(".")[2].replace("-", "_") in _SPOKEN
    return os.path.expanduser(value) if value.startswith("~/") and not is_text else value


def at_work(command: str, words: Sequence[str]) -> AbstractContextManager[object]:
    """Return what says that a command of the trainer is at work before its own lines begin, unless bars are off."""
    silent = any("enable_progress_bar" in word.replace("-", "_") for word in words)
    return Heartbeat(EVERY, command) if is_first_process() and not silent else nullcontext()


def _ended(signals: Sequence[int], announced: bool = False) -> int:
    """Say what has ended the command, and return its exit code; without a signal, Ctrl-C has."""
    interrupted = not signals or signals[0] == SIGINT
    if not announced and is_first_process():
        print(f"lovec: {'interrupted' if interrupted else f'ended by {Signals(signals[0]).name}'}", file=sys.stderr)
    return 128 + signals[0] if signals else INTERRUPTED


def usage() -> str:
    """Return the text of ``lovec --help``."""
    brought = {name: plugin.purpose for name, plugin in plugins(_BROUGHT).items()}
    commands = "\n".join(f"  {name:<10} {text}" for name, text in (COMMANDS | brought | COMMANDS).items())
    return f"""usage: lovec COMMAND [options]

Train language models to end each sentence with a confidence, and measure how well the confidences agree with the truth.

first steps, offline and on a CPU:
  lovec demo --quick                                 train and compare small models; ends with a report
  lovec tag page.txt --adapter runs/demo-world/sft   tag a page with the adapter that the demo trained

commands:
{commands}

`lovec COMMAND --help` lists the options of a command, with examples; `lovec --version` prints the version.
With --quiet, a command prints its result, warnings and errors, and nothing else.
"""
