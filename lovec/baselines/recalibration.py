"""Post-hoc recalibration: a tagger whose confidences a map fitted on held-out answers replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lovec.baselines.base import with_confidences
from lovec.types import Readout, Record, Sentence

if TYPE_CHECKING:
    from lovec.calibration.maps import Calibrator


def recalibrate(records: Sequence[Record], calibrator: Calibrator, readout: Readout) -> list[Record]:
    """Map the confidences of tagged records.

    Args:
        records: tagged records.
        calibrator: the map.
        readout: the confidence to map, "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Returns:
        The records with mapped confidences, None where a sentence has none, and without scores and distributions:
        the map is defined for a confidence only.

    Raises:
        LovecError: the readout is unknown.
    """
    return [with_confidences(r, (_mapped(s, calibrator, readout) for s in r.sentences)) for r in records]


def _mapped(sentence: Sentence, calibrator: Calibrator, readout: Readout) -> float | None:
    from lovec.metrics.records import confidence_of  # here, since it loads torch

    confidence = confidence_of(sentence, readout)
    return None if confidence is None else float(calibrator([confidence])[0])
