"""Models and adapters of the Hugging Face hub by their names, ``org/name`` or ``org/name@revision``.

Only files are fetched that lovec reads: JSON, safetensors, tokenizers and chat templates, and never a pickle. They are
then files of a folder like any other and are read under the same rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lovec.core.errors import LovecError
from lovec.core.files import ADAPTER_CONFIG, version_of
from lovec.core.files import SHIPPED as SHIPPED

ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors")
"""Files of an adapter, without which it cannot be loaded."""

RANDOM = "random:"
"""Prefix of a model's name: load its configuration and tokenizer only, and draw its weights at random.

For measuring speed and memory without 16 GB of weights on the disk; the output of such a model is meaningless.
"""

SETTINGS = "lovec.json"
"""File beside an adapter or a model with its prompt format."""

TEMPLATE = "chat_template.jinja"
"""File beside an adapter with the chat template of its training, where that was not the tokenizer's own."""

CALIBRATION_FILE = "calibration.json"
"""File beside an adapter or a model with its calibrations."""

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r'(W/)?"?(?!/)((?!\.\.)[^"\\])*"?')
_FILE = re.compile(r"(?!/)(?!(.*/)?\.\.(/|$))[^\\]*")
_NAMING_HEADERS = (("X-Repo-Commit", _COMMIT), ("X-Linked-ETag", _ETAG), ("ETag", _ETAG))
"""Headers of which the client makes names of folders and files, and what each may be."""

_UNREACHED = ("ConnectError", "ConnectTimeout", "ReadTimeout", "PoolTimeout")
"""Names of errors of the client's HTTP library, which is httpx or httpx2 by its version."""

_PATIENCE = 10  # seconds to wait for the hub's word about a model
_RUNS = "runs"  # folder of the runs where no recipe names another
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub.

    Attributes:
        repo: owner and name, with a slash between them.
        revision: branch, tag or commit; None is the main branch.
    """

    repo: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Return the repository that a text names; None where it names none, or a file or folder, there or not."""
        match = _NAME.fullmatch(text)
        if match is None or os.path.lexists(text):
            return None
        if (owner := text.partition("/")[0]) == _RUNS or os.path.isdir(owner):  # a path that is not there
            return None
        return cls(match["repo"], match["revision"])

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


@contextmanager
def hub_errors(name: HubName | None, kind: str = "model") -> Iterator[None]:
    """Raise whatever the client of the hub raises as an error that says what to do.

    The client makes paths of its cache from the names of commits and files that the hub sends. A reply whose names
    would lead out of the cache is refused.

    Args:
        name: the repository that is asked for; None where nothing of the hub is, and no error is changed.
        kind: what it should be.

    Raises:
        LovecError: the hub refused, cannot be reached, broke off, or answered something else than the hub does.
    """
    if name is None:
        yield
        return
    try:
        with _checked_replies():
            yield
    except (LovecError, MemoryError):
        raise
    except Exception as error:  # of the client, of its HTTP library, or of what they make of an odd reply
        raise LovecError(_explained(error, name, kind)) from error


@contextmanager
def _checked_replies() -> Iterator[None]:
    """Check the headers of every reply of the hub inside the block, redirects included."""
    from huggingface_hub import get_session

    client = get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _check_reply]}
    try:
        yield
    finally:
        client.event_hooks = hooks


def _check_reply(reply: Any) -> None:
    """Refuse a reply of which the client would make paths outside of its cache.

    Raises:
        LovecError: a commit, an ETag or the name of a file is none.
    """
    host = reply.url.host
    for header, pattern in _NAMING_HEADERS:
        if (value := reply.headers.get(header)) is not None:
            _check_name(value, pattern, f"header {header}", host)
    if "/api/" not in reply.url.path or "json" not in reply.headers.get("Content-Type", ""):
        return
    reply.read()
    try:
        value = reply.json()
    except ValueError:
        return  # the client says what it makes of it
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            continue
        if "sha" in item:
            _check_name(item["sha"], _COMMIT, "commit", host)
        siblings = item.get("siblings")
        for file in (item, *(siblings if isinstance(siblings, list) else ())):
            for key in ("rfilename", "path"):
                if isinstance(file, dict) and key in file:
                    _check_name(file[key], _FILE, "name of a file", host)


def _check_name(value: Any, pattern: re.Pattern[str], what: str, host: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        expected = "40 hexadecimal digits" if pattern is _COMMIT else "a name inside a folder"
        raise LovecError(
            f"{host} answers unlike a hub: a {what} is {str(value)[:80]!r}, expected {expected}; check HF_ENDPOINT"
        )


def _explained(error: Exception, name: HubName, kind: str) -> str:
    """Return what the client of the hub stumbled over, and what to do about it."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated; accept its licence on its page, and log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision or 'main'}; name a branch, tag or commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no {kind} {name.repo} on the hub and no such file or folder here, or your token may not read "
            "it; check the name, and for a private one log in with `hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(error, name)
    unreached = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.IncompleteSnapshotError)
    if isinstance(error, unreached) or type(error).__name__ in _UNREACHED:
        return (
            f"the {kind} {name} is neither a file or folder here nor in the cache of the hub, and the hub cannot be "
            "reached; check the name, the network and HF_HUB_OFFLINE"
        )
    cause = error.__cause__ or error
    if isinstance(cause, errors.HfHubHTTPError):
        return _refused(cause, name)
    said = " ".join(str(cause).split())[:300]
    if isinstance(error, (OSError, RuntimeError)):
        return f"the hub and {name}: {said}"
    return (
        f"the hub broke off or answered something unexpected about the {kind} {name} ({type(cause).__name__}: {said}); "
        "try again, and check HF_ENDPOINT"
    )


def _refused(error: Exception, name: HubName) -> str:
    """Return what the hub refused, by its status."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"the hub refuses your token for {name.repo} (401); log in with `hf auth login`, or correct HF_TOKEN"
    if status == 403:
        return (
            f"your token may not do that with {name.repo} (403); make one with write access to "
            f"{name.repo.partition('/')[0]} in the settings of the hub, and log in with `hf auth login` or set HF_TOKEN"
        )
    return f"the hub has answered {status} about {name.repo} ({' '.join(str(error).split())[:200]}); try again"


def is_shipped(name: str) -> bool:
    """Return whether a name is that of an adapter that comes with lovec, and of none in the working folder.

    A folder of that name in which there is no adapter, as the one of an output that is called like it, changes nothing.
    """
    folders = Path(name), Path(name, "adapter")
    return name in SHIPPED and not any((folder / file).is_file() for folder in folders for file in ADAPTER_FILES)


def adapter_folder(path: str | os.PathLike[str]) -> str:
    """Return the folder of an adapter.

    Args:
        path: that folder, the folder of the run that wrote it, a name of ``SHIPPED``, or its name on the hub.

    Raises:
        LovecError: it is neither here nor on the hub.
    """
    path = os.fspath(path)
    if is_shipped(path):
        return str(SHIPPED[path])
    if (name := HubName.parse(path)) is not None:
        return _fetched_adapter(name)
    outer, inner = Path(path) / ADAPTER_FILES[0], Path(path) / "adapter" / ADAPTER_FILES[0]
    return str(inner.parent) if inner.is_file() and not outer.is_file() else path


def trained_recipe(run: str | os.PathLike[str]) -> Path | None:
    """Return the recipe, with all settings, by which a run has trained its adapter; None where none was logged.

    That is the newest one that was logged before the adapter was written, since a later training may have failed. Where
    all are newer, as in a copy that was made without the times of its files, it is the newest one.
    """
    recipes = sorted(Path(run).glob("*/version_*/config.yaml"), key=version_of)
    weights = Path(run) / "adapter" / ADAPTER_FILES[1]
    written = weights.stat().st_mtime if weights.is_file() else 0.0
    of_adapter = [path for path in recipes if path.stat().st_mtime <= written]
    return next(reversed(of_adapter or recipes), None)


@cache  # one command asks for it several times, and must get the same revision
def _fetched_adapter(name: HubName) -> str:
    from huggingface_hub import snapshot_download

    files = [*ADAPTER_FILES, SETTINGS, TEMPLATE, CALIBRATION_FILE]
    with hub_errors(name, "adapter"):
        folder = str(snapshot_download(name.repo, revision=name.revision, allow_patterns=files))
    for file in ADAPTER_FILES:
        if not os.path.isfile(os.path.join(folder, file)):
            raise LovecError(
                f"{name} on the hub has no {file}; give an adapter in PEFT format with safetensors weights"
            )
    return folder


def stored_model(name: str) -> Path | None:
    """Return the folder with the files of a model, as far as they are on this machine; nothing is fetched.

    Args:
        name: folder or hub id, as transformers loads it.

    Returns:
        The folder; None for a model of the hub that is not in its cache.
    """
    if os.path.isdir(name):
        return Path(name)
    if (found := HubName.parse(name)) is None and not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        return None
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(found.repo if found else name, "config.json", revision=found and found.revision)
    return Path(file).parent if isinstance(file, str) else None


def check_on_hub(name: HubName) -> None:
    """Check that a model is in the cache or on the hub, by one call at most and without waiting for a network.

    Raises:
        LovecError: it is not there, the hub cannot be reached, or may not be read.
    """
    if not _is_cached(name):
        _files_on_hub(name)


def fetched_model(text: str) -> str | None:
    """Return the folder of a model of the hub that lovec has exported, or that is named with a revision.

    Of other models only the name is needed: transformers loads them by it.

    Args:
        text: name of a model.

    Returns:
        The folder; None for other models.

    Raises:
        LovecError: it is neither in the cache nor on the hub, or it cannot be fetched.
    """
    name = HubName.parse(text)
    return None if name is None else _fetched_model(name)


@cache
def _fetched_model(name: HubName) -> str | None:
    from huggingface_hub import snapshot_download

    if name.revision is None and not _is_cached(name, SETTINGS):
        try:
            files = _files_on_hub(name)
        except LovecError:
            if _is_cached(name):
                return None
            raise
        if SETTINGS not in files:
            return None
    with hub_errors(name):
        return str(snapshot_download(name.repo, revision=name.revision, allow_patterns=list(_MODEL_FILES)))


def _is_cached(name: HubName, file: str = "config.json") -> bool:
    """Return whether a file of a model is in the cache."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name.repo, file, revision=name.revision), str)


@cache
def _files_on_hub(name: HubName) -> frozenset[str]:
    """Return the names of the files of a model on the hub, which is asked once and not again where it fails."""
    from huggingface_hub import HfApi

    with hub_errors(name):
        info = HfApi().model_info(name.repo, revision=name.revision, timeout=_PATIENCE)
        return frozenset(file.rfilename for file in info.siblings or ())
