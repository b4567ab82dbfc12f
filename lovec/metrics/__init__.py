"""Metrics of confidences against soft labels: torchmetrics here, pure functions in the modules.

The functions are in ``functional``, ``corp``, ``smooth``, ``ranking`` and ``risk``.
"""

# ruff: noqa: F403, F405 - the classes are imported on first use

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lovec.metrics.suite import *

__all__ = [
    "AUARC",
    "AUPRC",
    "AURC",
    "AUROC",
    "ECEM",
    "BrierScore",
    "CIndex",
    "CalibrationSuite",
    "Discrimination",
    "F1AtK",
    "LogScore",
    "Miscalibration",
    "PredictionRejectionRatio",
    "SmoothECE",
    "SpearmanCorrelation",
    "Uncertainty",
]


def __getattr__(name: str) -> Any:
    """Import a torchmetrics class on first use: importing torchmetrics takes seconds that reports need not wait."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.suite"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
