"""Calibration: a map from what a tagger tells about a sentence to a confidence, and thresholds with a guarantee.

It loads no model and has no command line: records in, records out, and one JSON file beside an adapter; or scores of
any origin in, confidences out, and one JSON file of its own.
"""

from lovec.calibration.calibration import Calibration, Promised, calibrate, calibrate_answers
from lovec.calibration.conformal import Guarantee, guarantee
from lovec.calibration.files import read_calibrations, write_calibrations
from lovec.calibration.fitting import Fitted, fit_map
from lovec.calibration.maps import Beta, Calibrator, Identity, Isotonic, Platt, Stack
from lovec.calibration.scores import ScoreCalibration, calibrate_scores, load_calibration
from lovec.calibration.watching import Rated, Watch
from lovec.core.provenance import weights_digest

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
    "Rated",
    "ScoreCalibration",
    "Stack",
    "Watch",
    "calibrate",
    "calibrate_answers",
    "calibrate_scores",
    "fit_map",
    "guarantee",
    "load_calibration",
    "read_calibrations",
    "weights_digest",
    "write_calibrations",
]
