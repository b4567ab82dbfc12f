"""Which checkpoint ``--ckpt_path`` means: a file, or the last or the best one in the folder of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lovec.types import LovecError

from .errors import unknown

# The last: name and version of a logger. A slash in the name of a metric makes a folder in ``checkpoints``.
_PLACES = ("*.ckpt", "checkpoints/**/*.ckpt", "*/*/checkpoints/**/*.ckpt")


def is_name(checkpoint: str) -> bool:
    """Return whether ``--ckpt_path`` gives no file, but a word: ours, or one that Lightning knows."""
    return checkpoint in ("auto", "best", "last", "hpc") or checkpoint.partition(":")[0] == "registry"


def find_checkpoint(name: str, folder: Path, command: str) -> Path | None:
    """Return the checkpoint that a word stands for, and say which it is; None where there need not be one.

    Args:
        name: "last" is the checkpoint with the most steps of the training that was started last; "best" is the one that
            a ``ModelCheckpoint`` with a ``monitor`` has kept as the best; "auto" is the last one, or none in a folder
            without checkpoints.
        folder: folder of the run, ``trainer.default_root_dir``.
        command: the command that takes the checkpoint.

    Raises:
        LovecError: there is none, or it is another word.
    """
    check_present(name, folder, command)
    from lightning.pytorch.utilities import rank_zero_info

    from lovec.policy.checkpoints import peek

    if not (found := checkpoints_in(folder)):
        if name == "auto":
            return None
        raise _none_in(folder, name, command)
    path, of = _best(folder, found) if name == "best" else (found[-1][0], "")
    rank_zero_info(f"--ckpt_path {name} is {path}, step {peek(path)['global_step']}{of}")
    return path


def check_present(name: str, folder: Path, command: str) -> None:
    """Refuse a word that stands for no checkpoint, before anything heavy is imported.

    Raises:
        LovecError: there is no file that could be one, or it is another word.
    """
    if name not in ("auto", "best", "last"):
        raise LovecError(f"--ckpt_path {name} is not supported; give auto, last, best or the path of a .ckpt file")
    if name != "auto" and not any(_files_in(folder)):
        raise _none_in(folder, name, command)


def _none_in(folder: Path, name: str, command: str) -> LovecError:
    without = "train from step 0" if command in ("fit", "sweep") else f"take the adapter in {folder / 'adapter'}"
    return LovecError(
        f"--ckpt_path {name}: there is no checkpoint in {folder}; leave it out to {without}, or name the folder of the "
        "run with its --config or --trainer.default_root_dir"
    )


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for place in _PLACES for path in folder.glob(place))


def checkpoints_in(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the checkpoints in the folder of a run, and what they hold.

    The last one has the most steps of the training that was started last. A file that is not a whole checkpoint is left
    out, with a warning.
    """
    from lightning.pytorch.utilities import rank_zero_warn

    from lovec.policy.checkpoints import peek
    from lovec.policy.fingerprint import start_of

    found = []
    for path in sorted(_files_in(folder)):
        try:
            checkpoint = peek(path)
        except LovecError as error:
            rank_zero_warn(f"{error}; it is left out")
            continue
        order = (start_of(checkpoint, "started"), checkpoint["global_step"], path.stat().st_mtime)
        found.append((order, path, checkpoint))
    return [(path, checkpoint) for _, path, checkpoint in sorted(found, key=lambda entry: entry[:2])]


def mention_earlier_run(folder: Path) -> None:
    """Say that a folder holds an earlier run, when training starts there from step 0."""
    from lightning.pytorch.utilities import rank_zero_info

    if (folder / "adapter").is_dir():
        rank_zero_info(
            f"{folder} holds a finished run; if this one learns other weights, its adapter and what was measured with "
            "it are kept beside the new ones, as adapter-1, test-1 and so on"
        )
    if found := checkpoints_in(folder):
        path, checkpoint = found[-1]
        rank_zero_info(
            f"{folder} holds an earlier run; this one starts at step 0 beside it, and removes nothing of it. To go on "
            f"from {path}, step {checkpoint['global_step']}, give --ckpt_path last"
        )


def parts_of(words: str | None) -> frozenset[str]:
    """Return the parts of a fingerprint in the comma list of ``--ckpt_despite``.

    Raises:
        UsageError: there is no such part.
    """
    from lovec.policy.fingerprint import PARTS

    parts = frozenset(word.strip() for word in words.split(",")) if words else frozenset()
    for word in sorted(parts - set(PARTS)):
        raise unknown("part in --ckpt_despite:", word, PARTS, listed=True)
    return parts


def _best(folder: Path, found: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Path, str]:
    """Return the best checkpoint of the run that was trained last, and by which metric.

    Every time a run goes on, its callbacks begin anew to look for the best; so all its checkpoints are asked.
    """
    from lovec.policy.fingerprint import start_of

    newest, last = found[-1]
    of_run = [checkpoint for _, checkpoint in found if start_of(checkpoint, "run") == start_of(last, "run")]
    kept = {entry for checkpoint in of_run for entry in _kept(checkpoint.get("callbacks"))}
    metrics = {entry[:2] for entry in kept}
    other = f"give last, or the path of a file such as {newest}"
    if len(metrics) != 1:
        what = "ModelCheckpoints keep the best by several metrics" if metrics else "no ModelCheckpoint keeps the best"
        raise LovecError(f"--ckpt_path best: {what} (one with a monitor, such as val/brier, does); {other}")
    ((monitor, mode),) = metrics
    _, _, score, name = (min if mode == "min" else max)(kept, key=lambda entry: entry[2])
    parts = Path(name).parts
    inside = [path.relative_to(folder).parts for path, _ in found]  # it may have moved
    here = [place for place in inside if parts[-len(place) :] == place]
    path = folder.joinpath(*max(here, key=len)) if here else Path(name)
    if not path.is_file():
        raise LovecError(f"--ckpt_path best: {name} is gone; {other}")
    return path, f", the best {monitor}: {score:.4g}"


def _kept(callbacks: Any) -> Iterator[tuple[str, str, float, str]]:
    """Yield what callbacks have kept as the best: metric, "min" or "max", its value, and the file."""
    for key, state in callbacks.items() if isinstance(callbacks, dict) else ():
        if isinstance(state, dict) and state.get("monitor") and state.get("best_model_score") is not None:
            mode = "max" if "'mode': 'max'" in str(key) else "min"
            yield str(state["monitor"]), mode, float(state["best_model_score"]), str(state.get("best_model_path"))
