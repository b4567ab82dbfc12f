"""Upload what was exported to the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path

from lovec.calibration import read_calibrations
from lovec.core.hub import ADAPTER_FILES, CALIBRATION_FILE, SETTINGS, TEMPLATE, HubName, hub_errors
from lovec.types import LovecError

_TOKENIZER_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""Files of a merged model that not every model has."""


def check_upload(text: str) -> HubName:
    """Return the repository that a model is to be uploaded to, after checking that there is a token for it.

    Args:
        text: its name, ``org/name`` or ``org/name@branch``.

    Raises:
        LovecError: it is not a name of a repository, or there is no token.
    """
    from huggingface_hub import get_token

    name = HubName.parse(text)
    if name is None:
        raise LovecError(
            f"--push is {text!r}, expected a repository of the hub such as org/name, and no file or folder"
        )
    if get_token() is None:
        raise LovecError(
            "there is no token for the hub; log in with `hf auth login`, or set HF_TOKEN to one that may write"
        )
    return name


def upload(folder: Path, name: HubName, public: bool = False) -> str:
    """Upload what was exported to a repository of the hub, in one commit; it is made if it is not there.

    Nothing but the files of an export is uploaded, whatever else lies in the folder.

    Args:
        folder: folder of an exported adapter or model.
        name: the repository, and the branch if it is not the main one.
        public: whether everybody may read it; otherwise a new repository is private, and a public one is refused.

    Returns:
        Address of the repository.

    Raises:
        LovecError: the folder is not complete, or the hub refuses; what was there stays as it was.
    """
    from huggingface_hub import HfApi, ModelCard

    files = _exported_files(folder)
    api = HfApi()
    with hub_errors(name):
        try:
            ModelCard.load(folder / "README.md").validate()  # the hub would refuse the commit, with the repository made
        except ValueError as error:
            raise LovecError(
                f"the hub refuses the model card {folder / 'README.md'} ({' '.join(str(error).split())[:300]}); "
                "nothing was uploaded; correct it, or export again"
            ) from error
        address = api.create_repo(name.repo, private=not public, exist_ok=True)
        if not public and api.repo_info(name.repo).private is False:
            raise LovecError(f"{name.repo} is there and public; give --public if everybody may read this model, too")
        if name.revision is not None:
            api.create_branch(name.repo, branch=name.revision, exist_ok=True)
        api.upload_folder(
            repo_id=name.repo,
            folder_path=folder,
            allow_patterns=files,
            revision=name.revision,
            commit_message="Upload with lovec",
        )
    return str(address)


def _exported_files(folder: Path) -> list[str]:
    """Return the names of the files of an export.

    Raises:
        LovecError: one that it needs is not there, or the calibration is of other weights.
    """
    is_adapter = (folder / ADAPTER_FILES[0]).exists()
    needed = list(ADAPTER_FILES) if is_adapter else ["config.json", "tokenizer_config.json"]
    needed += ["README.md", SETTINGS]
    if not is_adapter:
        index = folder / "model.safetensors.index.json"
        weights = ["model.safetensors"]
        if index.is_file():
            weights = [index.name, *json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()]
        needed += dict.fromkeys(weights)
    for file in needed:
        if not (folder / file).is_file() or not (folder / file).stat().st_size:
            raise LovecError(
                f"{folder} has no {file}, without which it is not complete; nothing was uploaded; export it again"
            )
    read_calibrations(folder)  # raises an error if it is broken, or of other weights
    others = () if is_adapter else _TOKENIZER_FILES
    optional = (CALIBRATION_FILE, "recipe.yaml", TEMPLATE, *others)
    return [*needed, *(file for file in optional if (folder / file).is_file())]
