"""Builds a world once and keeps it on disk: safe against two processes, a kill at any moment, and damaged files."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lovec.datasets.world import build, facts, pretrain, text, tokenizer
from lovec.datasets.world.facts import WorldSpec
from lovec.encoding import QUESTION
from lovec.tags import render
from lovec.types import LovecError

_MANIFEST = "manifest.json"
_BUILDING = ".building"


def content_hash(spec: WorldSpec) -> str:
    """Names a world by what makes it: its numbers and the code that reads them (comments and docstrings left out)."""
    digest = hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode())
    for module in (facts, text, tokenizer, pretrain, build):
        digest.update(_code(Path(str(module.__file__)).read_text(encoding="utf-8")).encode())
    digest.update(QUESTION.encode())
    digest.update(render([("A.", 7), ("B.", 10)]).encode())
    return digest.hexdigest()[:12]


def cache_root(cache_dir: Path | None) -> Path:
    """The folder of all worlds: under ``cache_dir``, else ``$LOVEC_CACHE``, else the user's cache folder."""
    if cache_dir is None:
        from platformdirs import user_cache_dir

        cache_dir = Path(os.environ.get("LOVEC_CACHE") or user_cache_dir("lovec"))
    return Path(cache_dir).expanduser() / "world"


def ensure_built(variant: str, spec: WorldSpec, root: Path, progress: bool) -> Path:
    """The folder of a world, built first if it is not there or no longer what was written.

    Args:
        variant: name of the world.
        spec: its numbers.
        root: folder of all worlds.
        progress: whether to show the progress of building.

    Raises:
        LovecError: the folder cannot be written.
    """
    name = f"{variant}-{content_hash(spec)}"
    path = root / name
    if damage(path) is None:
        return path
    with _locked(root, name):
        if (problem := damage(path)) is None:  # another process was faster
            return path
        if path.exists():
            _say(f"the cached world {path} is damaged ({problem}); building it again")
            shutil.rmtree(path)
        _sweep(root)
        building = root / f"{name}{_BUILDING}"
        shutil.rmtree(building, ignore_errors=True)  # we hold the lock: whoever left it is dead
        building.mkdir()
        if progress:
            _say(f"building the offline world {variant!r} once, into {path}")
        _seal(building, spec, build.build(spec, building, progress))
        os.replace(building, path)
        _sync(root)
    return path


def damage(path: Path) -> str | None:
    """What is wrong with a cached world, in a few words; None if every file is as it was written."""
    try:
        files = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, digest in files.items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != digest:
                return f"{name} has changed"
    except OSError as error:
        return f"cannot read {Path(error.filename or path).name}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is unreadable"
    return None


def figures(path: Path) -> dict[str, float]:
    """What building a world came to: ``loss``, ``cpu_s``, ``wall_s``."""
    return dict(json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["figures"])


def _seal(path: Path, spec: WorldSpec, figures: dict[str, float]) -> None:
    """Write the manifest, and make sure that everything has reached the disk."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    digests = {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    manifest = path / _MANIFEST
    manifest.write_text(json.dumps({"spec": asdict(spec), "figures": figures, "files": digests}, indent=1), "utf-8")
    for file in [*files, manifest, *(d for d in path.rglob("*") if d.is_dir()), path]:
        _sync(file)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    """Remove what killed processes left of other worlds: a half-built folder whose lock is free."""
    from filelock import FileLock, Timeout

    for building in root.glob(f"*{_BUILDING}"):
        try:
            with FileLock(_lock_path(root, building.name.removesuffix(_BUILDING)), timeout=0):
                shutil.rmtree(building, ignore_errors=True)
        except Timeout:
            continue


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(_lock_path(root, name))
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        _say(f"another process is building the world {name}; waiting for it")
        lock.acquire()
    except OSError as error:
        raise LovecError(
            f"cannot write the cache folder {root} ({error.strerror}); name another one in $LOVEC_CACHE"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _lock_path(root: Path, name: str) -> Path:
    return root / f"{name}.lock"


def _code(source: str) -> str:
    """Source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            ]
    return ast.unparse(tree)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
