"""The file with the calibrations of an adapter or a merged model, one per mode of tagging, beside its weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from lovec.calibration.calibration import Calibration
from lovec.calibration.plain import checked_list, checked_object
from lovec.files import write_text
from lovec.types import CALIBRATION_FILE, MODES, LovecError

MOST_BYTES = 8_000_000
"""Largest file that is read."""

_ADAPTER = "adapter_model.safetensors"
_PIECE = 1 << 20  # bytes at the beginning and at the end of a model's file that its digest depends on
_FIX = "calibrate again, or leave confidences as they are with --raw"


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """Return what tells the weights in a folder from others: a SHA-256 in hexadecimal digits.

    Of an adapter it is that of the whole file. Of a model, whose files may have gigabytes, it depends on the name, the
    size, the first and the last MiB of every file with weights.

    Args:
        folder: folder of a PEFT adapter, or of a model.

    Raises:
        LovecError: there are no weights in the folder, or they cannot be read.
    """
    place = Path(folder)
    try:
        if (place / _ADAPTER).is_file():
            with open(place / _ADAPTER, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        digest, found = hashlib.sha256(), sorted(place.glob("*.safetensors"))
        for path in found:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            with open(path, "rb") as file:
                digest.update(file.read(_PIECE))
                file.seek(max(0, size - _PIECE))
                digest.update(file.read(_PIECE))
    except OSError as error:
        raise LovecError(f"cannot read the weights in {place} ({error.strerror})") from None
    if not found:
        raise LovecError(f"there are no weights in {place}, expected {_ADAPTER} or another .safetensors file")
    return digest.hexdigest()


def read_calibrations(folder: str | os.PathLike[str]) -> dict[str, Calibration]:
    """Read the calibrations beside weights, by the mode of tagging that each was fitted to.

    Args:
        folder: folder of an adapter or a model.

    Returns:
        The calibrations; none where there is no file.

    Raises:
        LovecError: there is a file, but it is not whole, or it was fitted to other weights.
    """
    path = Path(folder) / CALIBRATION_FILE
    if not os.path.lexists(path):
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); {_FIX}") from None
    if len(content) > MOST_BYTES:
        raise LovecError(f"{path} has more than {MOST_BYTES} bytes, expected calibrations; {_FIX}")
    try:
        data = checked_object(json.loads(content.decode("utf-8")), "the file", {"calibrations"})
        made = [Calibration.from_dict(item) for item in checked_list(data["calibrations"], "calibrations", len(MODES))]
    except LovecError as error:
        raise LovecError(f"{path} holds no calibrations: {error}; {_FIX}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise LovecError(f"{path} is no JSON ({str(error)[:100]}); {_FIX}") from None
    found = {calibration.mode: calibration for calibration in made}
    if len(found) < len(made):
        raise LovecError(f"{path} has two calibrations for {made[0].mode} tagging; {_FIX}")
    digest = weights_digest(folder)
    for calibration in made:
        if calibration.adapter != digest:
            raise LovecError(
                f"{path} was fitted to other weights ({calibration.adapter[:12]}, here they are {digest[:12]}); {_FIX}"
            )
    return {str(mode): calibration for mode, calibration in found.items()}


def write_calibrations(folder: str | os.PathLike[str], calibrations: Mapping[str, Calibration]) -> Path:
    """Write calibrations beside weights, whole or not at all; the file that is there is replaced.

    Args:
        folder: folder of the weights.
        calibrations: by the mode of tagging.

    Returns:
        The path of the file.
    """
    path = Path(folder) / CALIBRATION_FILE
    data = {"calibrations": [calibration.to_dict() for calibration in calibrations.values()]}
    write_text(path, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    return path
