"""Finds the model of a world: in the package, in the cache, or built once into the cache.

Building is safe against concurrent processes, kills and damaged files.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lovec.core.files import atomic_folder, cache_folder
from lovec.core.progress import note
from lovec.core.provenance import file_digest, text_digest
from lovec.datasets.world.build import build, corpus_digest
from lovec.datasets.world.facts import WorldSpec
from lovec.encoding import QUESTION
from lovec.tags import render
from lovec.types import LovecError

SHIPPED = Path(__file__).with_name("shipped")
"""Folder of the models that come with the package; their names end with a digest of the weights."""

_MANIFEST = "manifest.json"
_CODE = ("facts", "things", "text", "tokenizer", "pretrain", "build")  # modules that decide what is built


def content_hash(spec: WorldSpec) -> str:
    """Return a digest of everything a world is made from: its numbers and the code that reads them."""
    code = [code_of(Path(__file__).with_name(f"{name}.py")) for name in _CODE]
    vocabulary = Path(__file__).with_name("vocabulary.yaml").read_bytes()
    written = render([("A.", 7), ("B.", 10)])
    return text_digest([json.dumps(asdict(spec), sort_keys=True), *code, vocabulary, QUESTION, written])[:12]


def code_of(file: str | os.PathLike[str]) -> str:
    """Return the code of a Python file without comments, docstrings and layout."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            ]
    return ast.unparse(tree)


def shipped(variant: str, spec: WorldSpec) -> Path | None:
    """Return the folder of a world whose model comes with the package; None if it is not one of them."""
    for path in SHIPPED.glob(f"{variant}-{'[0-9a-f]' * 12}"):
        if json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["spec"] == asdict(spec):
            return path
    return None


def cache_root(cache_dir: Path | None) -> Path:
    """Return the folder of all worlds: under ``cache_dir``, else ``$LOVEC_CACHE``, else the user's cache folder."""
    return cache_folder(cache_dir) / "world"


def ensure_built(variant: str, spec: WorldSpec, root: Path, progress: bool) -> Path:
    """Return the folder of a world; build the world first if the folder is missing or damaged.

    Args:
        variant: name of the world.
        spec: the numbers that the world is made from.
        root: folder of all worlds.
        progress: whether to show the progress of building on standard error.

    Raises:
        LovecError: the folder cannot be written.
    """
    name = f"{variant}-{content_hash(spec)}"
    path = root / name
    if damage(path) is None:
        return path
    with _locked(root, name):
        if (problem := damage(path)) is None:  # another process has built it in the meantime
            return path
        if path.exists():
            note(f"the cached world {path} is damaged ({problem}); building it again")
        if progress:
            note(f"building the offline world {variant!r} once, into {path}")
        _build(spec, path, progress)
    return path


def build_into(variant: str, spec: WorldSpec, root: Path, progress: bool) -> Path:
    """Build a world into a new folder under ``root``, named by the variant and a digest of the weights; return it.

    Raises:
        LovecError: the folder cannot be written.
    """
    try:
        path = _build(spec, root / f"{variant}-new", progress)
        named = root / f"{variant}-{file_digest(path / 'model' / 'model.safetensors')[:12]}"
        shutil.rmtree(named, ignore_errors=True)
        return path.rename(named)
    except OSError as error:
        raise LovecError(f"cannot write {root} ({error.strerror}); name another folder") from error


def _build(spec: WorldSpec, path: Path, progress: bool) -> Path:
    with atomic_folder(path) as folder:
        write_manifest(folder, spec, build(spec, folder, progress))
    return path


def damage(path: Path) -> str | None:
    """Say what is wrong with a cached world, or return None if every file is as it was written."""
    try:
        files = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, digest in files.items():
            if file_digest(path / name) != digest:
                return f"{name} has changed"
    except OSError as error:
        return f"cannot read {Path(error.filename or path).name}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is unreadable"
    return None


def write_manifest(path: Path, spec: WorldSpec, training: dict[str, float]) -> None:
    """Write the numbers of a world, loss and cost of its pre-training, and digests of its documents and files."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    digests = {file.relative_to(path).as_posix(): file_digest(file) for file in files}
    manifest = {"spec": asdict(spec), "training": training, "corpus": corpus_digest(spec), "files": digests}
    (path / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a world inside the block; wait for another process that holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(root / f"{name}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        note(f"another process is building the world {name}; waiting for it")
        lock.acquire()
    except OSError as error:
        raise LovecError(
            f"cannot write the cache folder {root} ({error.strerror}); name another one in $LOVEC_CACHE"
        ) from error
    try:
        yield
    finally:
        lock.release()
