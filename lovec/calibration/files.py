"""The file with the calibrations of an adapter or a merged model, one per mode of tagging, beside its weights."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from lovec.calibration.calibration import Calibration
from lovec.core.files import read_json, write_text
from lovec.core.hub import CALIBRATION_FILE
from lovec.core.plain import checked_list, checked_object
from lovec.core.provenance import Provenance, weights_digest
from lovec.types import FittedMode, LovecError, error_in

MOST_BYTES = 8_000_000
"""Largest file that is read."""

_FIX = "calibrate again, or leave confidences as they are: without that file, or by --raw of `lovec tag` and `serve`"

log = logging.getLogger(__name__)


def read_calibrations(folder: str | os.PathLike[str], provenance: Provenance | None = None) -> dict[str, Calibration]:
    """Read the calibrations beside weights, by the mode of tagging that each was fitted to.

    Args:
        folder: folder of an adapter or a model.
        provenance: what decides the scores that they are applied to; None does not compare, for those who only show or
            copy them. What a calibration does not say cannot be compared: a warning names it.

    Returns:
        The calibrations; none where there is no file.

    Raises:
        LovecError: there is a file, but it is not whole, or it was fitted to other weights, or to the scores of another
            model, adapter or prompt.
    """
    path = Path(folder) / CALIBRATION_FILE
    if not os.path.lexists(path):
        return {}
    data = read_json(path, MOST_BYTES, _FIX)
    with error_in(f"{path} holds no calibrations: ", f"; {_FIX}"):
        listed = checked_list(
            checked_object(data, "the file", {"calibrations"})["calibrations"],
            "calibrations",
            len(get_args(FittedMode)),
        )
        made = [Calibration.from_dict(item) for item in listed]
    found = {calibration.mode: calibration for calibration in made}
    if len(found) < len(made):
        raise LovecError(f"{path} has two calibrations for {made[0].mode} tagging; {_FIX}")
    digest = weights_digest(folder)
    for calibration in made:
        if calibration.adapter != digest:
            raise LovecError(
                f"{path} was fitted to other weights ({calibration.adapter[:12]}, here they are {digest[:12]}); {_FIX}"
            )
    if provenance is not None:
        _check(path, made, provenance)
    return {str(mode): calibration for mode, calibration in found.items()}


def _check(path: Path, made: Sequence[Calibration], here: Provenance) -> None:
    """Check that calibrations were fitted to the scores that they are applied to.

    Raises:
        LovecError: they were not; the error names the differences.
    """
    unchecked: dict[str, None] = {}
    for calibration in made:
        if calibration.provenance is None:
            unchecked |= dict.fromkeys(["base model", "prompt", "options of the adapter"])
            continue
        if unlike := calibration.provenance.differences(here):
            raise LovecError(f"{path} was fitted to other scores ({'; '.join(unlike)}); {_FIX}")
        unchecked |= dict.fromkeys(calibration.provenance.unchecked(here))
    if unchecked:
        log.warning(
            "%s is applied, but could not be checked against this model in all: %s; to be sure, calibrate again",
            path,
            ", ".join(unchecked),
        )


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
