"""Models by their names: those that are built on this machine, folders, and those of the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from lovec.core.hub import RANDOM, HubName, check_on_hub, fetched_model
from lovec.core.notices import nearest
from lovec.datasets.world import VARIANTS, ensure_world
from lovec.models.gguf import SMOLLM2, check_gguf, ensure_dequantised, is_gguf, offline_gguf
from lovec.models.tiny import ensure_tiny, tiny_names
from lovec.types import LovecError


def offline_model(folder: str) -> str | None:
    """Return the name of the offline model whose folder is named like this one, on any machine; None for others."""
    path = Path(folder)
    if (match := re.fullmatch(r"(.+)-[0-9a-f]{12}", path.parent.name)) and path.name == "model":
        return match[1] if match[1] in VARIANTS else None
    match = re.fullmatch(r"(tiny-\w+)-[0-9a-f]{12}", path.name)
    return match[1] if match else offline_gguf(path)


def is_built_offline(name: str) -> bool:
    """Return whether a name is that of a model that is built on this machine, whatever lies in the working folder."""
    return name in VARIANTS or name in tiny_names() or name == SMOLLM2


NO_MODEL = (
    "no model is given; offline, `--adapter atlas` (extra real) and `--adapter world` are models with confidences; "
    "`--adapter runs/dpo` is your own, `--model meta-llama/Meta-Llama-3-8B-Instruct --adapter FOLDER` one of the "
    "hub's"
)
"""What is said where neither a model nor an adapter is named."""


def check_model(name: str) -> None:
    """Check that there is a model of a name, without loading it.

    Args:
        name: as for ``resolve_model``, also behind ``random:``.

    Raises:
        LovecError: there is none, or the hub that it would be of cannot be reached.
    """
    name = name.removeprefix(RANDOM)
    if is_gguf(name):
        check_gguf(name)
        return
    if is_built_offline(name) or os.path.lexists(name):
        return
    if (of_hub := HubName.parse(name)) is None:
        names = ", ".join((*VARIANTS, SMOLLM2, "tiny-llama"))
        raise LovecError(
            f"there is no model {name}, expected {names}, a folder, a GGUF file, or a hub id such as org/name"
            f"{nearest(name, _names_near(name))}"
        )
    try:
        check_on_hub(of_hub)
    except LovecError as error:
        raise LovecError(f"{error}{nearest(name, _names_near(name))}") from error


def resolve_model(name: str, dtype: str = "float32") -> str:
    """Return the folder of a model on this machine by its absolute path, or the name itself for one of the hub.

    Args:
        name: ``world``, ``world-small``, ``tiny-<architecture>``, ``smollm2``, a hub id, a folder or a GGUF file, here
            or on the hub as ``org/name:file.gguf``. Offline models are built, and GGUF files dequantised, at their
            first use and cached. A hub id may end in ``@`` and a revision.
        dtype: precision in which the weights will be loaded, float32 or bfloat16; a GGUF file may be kept in it.

    Raises:
        LovecError: there is no such model.
    """
    import torch  # imported here because it is slow

    check_model(name)
    if is_gguf(name):
        return str(ensure_dequantised(name, dtype))
    with torch.device("cpu"):  # the model is kept, so it must not depend on the trainer's default device
        if name in VARIANTS:
            return str(ensure_world(name).model_path)
        if name in tiny_names():
            return str(ensure_tiny(name))
    return fetched_model(name) or absolute_name(name)


def absolute_name(name: str) -> str:
    """Return the name of a model by which it is found from any working folder: of a path, the absolute one.

    Args:
        name: as for ``resolve_model``, also behind ``random:``.
    """
    place = name.removeprefix(RANDOM)
    if is_built_offline(place) or not os.path.lexists(place):
        return name
    return name.removesuffix(place) + os.path.abspath(place)


def _names_near(name: str) -> Iterator[str]:
    """Yield the names of offline models, and of the folders beside the one that a name would be."""
    yield from (*VARIANTS, SMOLLM2)
    yield from tiny_names()
    parent = Path(name).parent
    if parent.is_dir():
        yield from (str(path) for path in parent.iterdir() if path.is_dir())
