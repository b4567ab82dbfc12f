"""Files and folders that are written whole or not at all, and what keeps a user's own files from being written over.

This is the only place that renames into position. Everything is written beside its target under a temporary name,
flushed to the disk, and renamed. A reader sees the old content or the new one, and a kill or a full disk leaves the old
one as it was. What a killed process has left behind is removed by the next one that writes the same target.
"""

from __future__ import annotations

import filecmp
import os
import platform
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from lovec.core.errors import LovecError, error_in
from lovec.core.notices import nearest
from lovec.core.plain import parse_json

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-(?P<host>[0-9a-f]{8})\.(?P<kind>part|new|old)", re.DOTALL)
"""Temporary names: that of the target, the process, a digest of the host, and what it is."""

ADAPTER_CONFIG = "adapter_config.json"
"""File in the folder of an adapter with its options, as PEFT writes them."""

_DATASETS = Path(__file__).parents[1] / "datasets"

SHIPPED = {
    "atlas": _DATASETS / "atlas" / "adapter",
    "atlas-grounded": _DATASETS / "atlas" / "grounded",
    "world": _DATASETS / "world" / "adapter",
}
"""Folders of the adapters that come with the package, by their names."""

_LONGEST_CONFIG = 1 << 20  # bytes
_PROBE = 64 * 1024  # bytes: a file system that is nearly full still has room for a name and a few bytes


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` if the block ends without an error, and is removed if not.

    Args:
        path: file to write; its folder is created if it is missing. A symbolic link stays, and what it leads to is
            written.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary = _temporary(path, "part")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str, errors: str = "strict") -> None:
    """Write a UTF-8 text file, whole or not at all.

    Args:
        path: file to write.
        text: its new content.
        errors: how characters that UTF-8 cannot encode are handled, as for ``str.encode``.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=errors)


def read_json(path: str | os.PathLike[str], most: int, fix: str) -> Any:
    """Return what a JSON file holds that anybody may have written; its values are still to be checked.

    Args:
        path: the file.
        most: bytes of the largest file that is read.
        fix: what to do about a file that cannot be read, for the error.

    Raises:
        LovecError: it is not a regular file (a pipe would be waited for), cannot be read, is too large, or is not JSON.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LovecError(f"cannot read {path} (it is not a regular file); {fix}")
            content = file.read(most + 1)
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); {fix}") from None
    if len(content) > most:
        raise LovecError(f"{path} has more than {most} bytes; {fix}")
    with error_in(f"{path} is ", f"; {fix}"):
        return parse_json(content)


def read_json_object(path: str | os.PathLike[str], most: int, fix: str) -> dict[str, Any]:
    """Return the JSON object in a file that anybody may have written; its values are still to be checked.

    Raises:
        LovecError: as for ``read_json``, which takes the same arguments, or the file holds something else.
    """
    found = read_json(path, most, fix)
    if not isinstance(found, dict):
        raise LovecError(f"{path} is broken: it holds a {type(found).__name__}, expected a JSON object; {fix}")
    return found


@contextmanager
def atomic_folder(path: str | os.PathLike[str], compared: str | None = None) -> Iterator[Path]:
    """Yield a new, empty folder that replaces ``path`` if the block ends without an error, and is removed if not.

    Args:
        path: folder to write; what it held before is gone only once the new one is in place. A symbolic link stays, and
            what it leads to is written.
        compared: name of a file in it; where the new folder has another one than the old, the old folder is kept under
            ``free_name(os.path.realpath(path))``. Where it has the same, what only the old folder holds is kept in the
            new one.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    fresh, old = _temporary(path, "new"), _temporary(path, "old")
    fresh.mkdir()
    try:
        yield fresh
        same = compared is not None and same_content(path / compared, fresh / compared)
        if same:
            _copy_missing(path, fresh)
        for file in fresh.rglob("*"):
            if file.is_file():
                _flush_to_disk(file)
        if path.exists():
            os.replace(path, old if same or compared is None else free_name(path))
        os.replace(fresh, path)
    finally:
        if old.exists() and not path.exists():  # stopped between the two renames
            with suppress(FileNotFoundError):  # another process has just moved it back
                os.replace(old, path)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def free_name(path: str | os.PathLike[str]) -> Path:
    """Return the first of ``NAME-1``, ``NAME-2`` and so on, before the suffix, under which nothing exists."""
    path = Path(path)
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def same_content(one: Path, other: Path) -> bool:
    """Return whether two files are there and equal, byte for byte."""
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of processes of this host that are dead.

    A folder that a killed process had moved away, without another one in its place, is moved back.

    Args:
        folder: where to look; folders in it are not searched.
        name: name of the file or folder that was being written; None is any.
    """
    if not folder.is_dir():
        return
    for leftover in list(folder.iterdir()):
        match = _TEMPORARY.fullmatch(leftover.name)
        if match is None or match["host"] != _host() or name not in (None, match["name"]):
            continue
        own = name is not None and int(match["pid"]) == os.getpid()  # of an earlier process with the same number
        if not own and _alive(int(match["pid"])):
            continue
        target = leftover.with_name(match["name"])
        if match["kind"] == "part":
            leftover.unlink(missing_ok=True)
        elif match["kind"] == "old" and not target.exists():
            with suppress(FileNotFoundError):  # another process has just moved it back
                os.replace(leftover, target)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def check_output(
    output: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str] | None],
    fix: str = "choose another --out",
) -> None:
    """Refuse an output that would damage an input: one that is an input, holds one, or lies in one.

    A folder that commands run in is refused, too, because the folder of an output is replaced as a whole.

    Symbolic links, hard links, ``..`` and spellings that the file system takes for the same are seen through.

    Args:
        output: file or folder to write, which need not exist.
        inputs: files and folders that are read; None and what does not exist, such as a hub id, are passed over.
        fix: what to do about it, for the error.

    Raises:
        LovecError: the output would damage an input, is neither a file nor a folder, as a device is, or holds the
            working folder.
    """
    place = Path(os.path.realpath(output))
    if place.exists() and not place.is_file() and not place.is_dir():
        raise LovecError(f"the output {output} is neither a file nor a folder; {fix}")
    for name in inputs:
        if name is None or not os.path.exists(name):
            continue
        source = Path(os.path.realpath(name))
        if _same(place, source):
            raise LovecError(f"the output {output} is also the input {name}, which would be lost; {fix}")
        if any(_same(place, parent) for parent in source.parents):
            raise LovecError(f"the output {output} holds the input {name}, which would be lost; {fix}")
        if any(_same(parent, source) for parent in place.parents):
            raise LovecError(f"the output {output} lies in the input {name}, which is only to be read; {fix}")
    here = Path.cwd()
    if place.is_dir() and any(_same(place, folder) for folder in (here, *here.parents)):
        raise LovecError(f"the output {output} is the working folder or holds it, and cannot be replaced; {fix}")


def check_unused(output: str | os.PathLike[str], fix: str) -> None:
    """Refuse a file or a folder that holds something already.

    Args:
        output: file or folder to write, which need not exist.
        fix: what to do about it, for the error.

    Raises:
        LovecError: there is a file that is not empty, or a folder with something in it.
    """
    path = Path(output)
    if path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size):
        raise LovecError(f"{output} exists and is not empty; {fix}")


def check_writable(folder: Path) -> None:
    """Check that files can be written into a folder, before time is spent on what they are to hold.

    Args:
        folder: the folder; it is created if it is missing.

    Raises:
        LovecError: it cannot be created, nothing may be written into it, or the disk is full.
    """
    probe = _temporary(folder / "probe", "part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(_PROBE))
            _flush_to_disk(probe)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise LovecError(
            f"cannot write into {folder} ({error.strerror}); make room there, or choose another folder"
        ) from None


def version_of(file: Path) -> int:
    """Return the number of the version of a log that a file belongs to; -1 if its folder has none."""
    number = file.parent.name.rpartition("_")[2]
    return int(number) if number.isdigit() else -1


def _copy_missing(source: Path, target: Path) -> None:
    """Copy the files and folders that lie in one folder, and have no namesake in another one, into that."""
    for item in source.iterdir():
        if not (target / item.name).exists():
            (shutil.copytree if item.is_dir() else shutil.copy2)(item, target / item.name)


def _temporary(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{_host()}.{kind}")


def _host() -> str:
    """Return a digest of this host's name: elsewhere, a number of a process means another process."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return one == other


def _flush_to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of what is kept for all runs: the one that is given, else ``$LOVEC_CACHE``, else the user's."""
    from platformdirs import user_cache_dir

    return Path(given or os.environ.get("LOVEC_CACHE") or user_cache_dir("lovec")).expanduser()


def ensure_folder(path: Path, make: Callable[[], object]) -> Path:
    """Return a folder, which is made first where there is none; of several processes one makes it, the others wait.

    Args:
        path: the folder. Its name holds a digest of what it is made from, so that nothing else is taken for it.
        make: writes it, whole or not at all.
    """
    if not path.exists():
        from filelock import FileLock

        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                make()
    return path


def check_run_folder(run: str | os.PathLike[str]) -> None:
    """Refuse a run that is not a folder.

    Raises:
        LovecError: there is no such folder.
    """
    if not Path(run).is_dir():
        raise LovecError(f"there is no folder {run}; give the folder of a run (trainer.default_root_dir)")


def check_adapter_folder(adapter: str, written: bool = False) -> None:
    """Refuse a folder that holds no adapter in PEFT format; its weights are not read.

    Args:
        adapter: the folder, or a name that stands for none.
        written: whether something is written into the folder, so that only one of the user's own will do.

    Raises:
        LovecError: there is none; the error says how to make one, or what else can be given.
    """
    folder = Path(adapter)
    if (folder / ADAPTER_CONFIG).is_file():
        return
    of_run = folder.name == "adapter"
    run = folder.parent if of_run else folder
    places = [place / "configs" for place in Path(__file__).resolve().parents[1:3]]
    if (of_run or run.parent.name == "runs") and any((place / f"{run.name}.yaml").is_file() for place in places):
        hint = f"make it with: lovec fit --config {run.name}.yaml (and the same overlays)"
        raise LovecError(f"there is no adapter in {adapter}; {hint}")
    if of_run:
        raise LovecError(f"there is no adapter in {adapter}; train it first, with lovec fit")
    own = "the folder of an adapter in PEFT format or of the run that wrote it"
    if folder.exists():
        raise LovecError(f"there is no adapter in {adapter}; give {own}")
    expected = own if written else f"{', '.join(SHIPPED)}, {own}, or a hub id such as org/name"
    beside = (str(path) for path in folder.parent.iterdir() if path.is_dir()) if folder.parent.is_dir() else ()
    near = nearest(adapter, [*(() if written else SHIPPED), *beside])
    raise LovecError(f"there is no adapter {adapter}, expected {expected}{near}")


def read_adapter_config(adapter: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the options of the adapter in a folder, as PEFT wrote them; their values are still to be checked.

    Raises:
        LovecError: there is no adapter, or its options are not a JSON object of modest size.
    """
    check_adapter_folder(os.fspath(adapter))
    return read_json_object(Path(adapter) / ADAPTER_CONFIG, _LONGEST_CONFIG, "copy it again")
