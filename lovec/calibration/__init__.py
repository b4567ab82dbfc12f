"""Calibration: a fitted map from what a tagger tells about a sentence to a confidence, and thresholds with a guarantee.

It loads no model and has no command line: records in, records out, and one JSON file beside an adapter.
"""

from lovec.calibration.calibration import Calibration, Promised, calibrate
from lovec.calibration.conformal import Guarantee, guarantee
from lovec.calibration.files import read_calibrations, write_calibrations
from lovec.calibration.fitting import Fitted, fit_map
from lovec.calibration.maps import Beta, Calibrator, Identity, Isotonic, Platt, Stack
from lovec.provenance import weights_digest

__all__ = [
    "Beta",
    "Calibration",
    "Calibrator",
    "Fitted",
    "Guarantee",
    "Identity",
    "Isotonic",
    "Platt",
    "Promised",
    "Stack",
    "calibrate",
    "fit_map",
    "guarantee",
    "read_calibrations",
    "weights_digest",
    "write_calibrations",
]
