"""What several commands share: quiet loading, headings, what to run next, and what keeps two runs' output apart."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lovec.core.files import remove_leftovers
from lovec.core.imports import gc_paused, without_progress_bars
from lovec.core.progress import note
from lovec.core.settings import class_at, declared
from lovec.types import LovecError

from .errors import UsageError, one_line

_PROCESS = "process "  # begins the note in the file of a lock
_COMMAND = 46  # columns of a command that is said to come next; what it is for stands behind them


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress bars of loading, and do not repeat Lightning's lines about the machine at every stage."""
    with gc_paused():
        import lightning.pytorch  # noqa: F401 - it sets the levels of its loggers when it is imported

    pytorch, fabric = (log_level(f"lightning.{part}", logging.WARNING) for part in ("pytorch", "fabric"))
    with without_progress_bars(), pytorch, fabric:
        yield


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Let a logger log nothing below a level."""
    logger = logging.getLogger(name)
    previous = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(previous)


@contextmanager
def locked(output: Path, folder: bool = False) -> Iterator[None]:
    """Keep other runs away from an output, and remove what killed runs have left there.

    The lock is the operating system's and ends with the process, however it ends. Of several processes of a distributed
    run, the first one holds it.

    Args:
        output: the file or folder that is written.
        folder: whether it is a folder; it is created if it is missing.

    Raises:
        LovecError: another run is writing it.
    """
    if not is_first_process():
        yield
        return
    from filelock import FileLock, Timeout

    home = output if folder else output.parent
    home.mkdir(parents=True, exist_ok=True)
    path = home / (".lock" if folder else f".{output.name}.lock")
    holder = _note(path)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, timeout=0))
        except Timeout:
            raise LovecError(
                f"another run{f' ({holder})' if holder else ''} writes {output}; wait for it, or choose another "
                f"{'folder' if folder else 'file'}"
            ) from None
        except (OSError, NotImplementedError) as error:  # not every network file system has locks
            reason = f"{home} has no locks ({getattr(error, 'strerror', None) or error})"
            warn(f"{reason}; start no second run that writes {output}")
        if not _note(path) or _note(path).startswith(_PROCESS):  # where there are no locks, filelock keeps its own note
            path.write_text(f"{_PROCESS}{os.getpid()} on {platform.node()}", encoding="utf-8")
        remove_leftovers(home)
        yield


def _note(lock: Path) -> str:
    """Return what the file of a lock says of the process that holds it."""
    return lock.read_text(encoding="utf-8", errors="replace").strip() if lock.exists() else ""


def is_first_process() -> bool:
    """Return whether this is the first, or only, process of a distributed run."""
    return all(os.environ.get(rank, "0") == "0" for rank in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def texts_in(settings: Any, of: type | None = None) -> Iterator[str]:
    """Yield the texts in settings as JSON that may name an input of the command, if there is such a file or folder.

    A model that is built offline is no input, nor is what is declared as a word or a text that nothing opens.

    Args:
        settings: plain values; a class as ``class_path`` and ``init_args``, nested ones included.
        of: the class whose parameters they are; None where that is not known.
    """
    from lovec.models.names import is_built_offline  # here, because it reads the embedded world

    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from texts_in(value)
    elif isinstance(settings, Mapping):
        if "class_path" in settings:
            yield from texts_in(settings.get("init_args"), class_at(settings["class_path"]))
            yield from texts_in(settings.get("dict_kwargs"))
            return
        options = {} if of is None else declared(of)
        for name, value in settings.items():
            option = options.get(name)
            is_word = option is not None and option.taken in ("word", "text")
            if not is_word and not (name == "model" and isinstance(value, str) and is_built_offline(value)):
                yield from texts_in(value, None if option is None else option.group)


def warn(line: str) -> None:
    """Print a warning on standard error, which ``--quiet`` does not leave out.

    Args:
        line: what is to be known; runs of white space become one space.
    """
    print(f"lovec: warning: {one_line(line)}", file=sys.stderr, flush=True)


class _Warnings(logging.Handler):
    """Prints what the package warns of in its log, unless this process has a log of its own, as a server has."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            warn(record.getMessage())


@contextmanager
def logged_warnings() -> Iterator[None]:
    """Print the warnings in the package's log like those of commands."""
    logger, handler = logging.getLogger("lovec"), _Warnings(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def remark(line: str) -> None:
    """Print on standard error what is good to know; ``--quiet`` leaves it out.

    Args:
        line: the line; runs of white space become one space.
    """
    note(f"lovec: {one_line(line)}")


def confirm_calls(calls: int, yes: bool) -> None:
    """Ask whether to make calls that cost money.

    Args:
        calls: how many; none need no answer.
        yes: whether the command line says yes.

    Raises:
        UsageError: there is no terminal to ask at.
        LovecError: the answer is no.
    """
    if not calls or yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation without a terminal; give --yes to make these calls")
    try:
        answer = input("make these calls? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise LovecError("no calls were made; what was done so far stays")


def say(line: str) -> None:
    """Announce a stage on standard error."""
    note(f"\n{line}")


def say_next(*steps: tuple[str, str]) -> None:
    """End a command with what can be run next, on standard error.

    Args:
        steps: commands, and what each is for.
    """
    if not is_first_process():
        return
    for number, (command, purpose) in enumerate(steps):
        gap = f"{command:<{_COMMAND}}  # {purpose}" if len(command) <= _COMMAND else f"{command}  # {purpose}"
        note(f"{'next:' if number == 0 else '':6}{gap}")
