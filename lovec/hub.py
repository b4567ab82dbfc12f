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

from lovec.types import CALIBRATION_FILE, LovecError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Files of an adapter, without which it cannot be loaded."""

SETTINGS = "lovec.json"
"""File beside an adapter or a model with its prompt format."""

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
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
def hub_errors(name: HubName, kind: str = "model") -> Iterator[None]:
    """Raise what the client of the hub raises as an error that says what to do.

    Args:
        name: the repository that is asked for.
        kind: what it should be.

    Raises:
        LovecError: the hub refused, or cannot be reached.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise LovecError(
            f"{name} is gated; accept its licence on its page, and log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise LovecError(
            f"{name.repo} has no revision {name.revision or 'main'}; name a branch, tag or commit"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise LovecError(
            f"there is no {kind} {name.repo} on the hub and no such file or folder here, or your token may not read "
            "it; check the name, and for a private one log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        raise LovecError(_refused(error, name)) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.IncompleteSnapshotError) as error:
        raise LovecError(
            f"the {kind} {name} is neither a file or folder here nor in the cache of the hub, and the hub cannot be "
            "reached; check the name, the network and HF_HUB_OFFLINE"
        ) from error
    except (OSError, RuntimeError, errors.HFValidationError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, errors.HfHubHTTPError):
            raise LovecError(_refused(cause, name)) from error
        raise LovecError(f"the hub and {name}: {' '.join(str(cause).split())[:300]}") from error


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


def adapter_folder(path: str) -> str:
    """Return the folder of an adapter, given that folder, the folder of the run that wrote it, or its name on the hub.

    Raises:
        LovecError: it is neither here nor on the hub.
    """
    if (name := HubName.parse(path)) is not None:
        return _fetched_adapter(name)
    outer, inner = Path(path) / ADAPTER_FILES[0], Path(path) / "adapter" / ADAPTER_FILES[0]
    return str(inner.parent) if inner.is_file() and not outer.is_file() else path


@cache  # one command asks for it several times, and must get the same revision
def _fetched_adapter(name: HubName) -> str:
    from huggingface_hub import snapshot_download

    files = [*ADAPTER_FILES, SETTINGS, CALIBRATION_FILE]
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


def fetched_model(text: str) -> str | None:
    """Return the folder of a model of the hub that lovec has exported, or that is named with a revision.

    Of other models only the name is needed: transformers loads them by it.

    Args:
        text: name of a model.

    Returns:
        The folder; None for other models, and for one that cannot be asked about.

    Raises:
        LovecError: it is named with a revision and cannot be fetched.
    """
    name = HubName.parse(text)
    return None if name is None else _fetched_model(name)


@cache
def _fetched_model(name: HubName) -> str | None:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if name.revision is None:
        try:
            hf_hub_download(name.repo, SETTINGS)
        except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled):
            return None  # transformers says what is wrong with it, if anything is
    with hub_errors(name):
        return str(snapshot_download(name.repo, revision=name.revision, allow_patterns=list(_MODEL_FILES)))
