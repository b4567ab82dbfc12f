"""Metrics of confidences against soft labels: torchmetrics here, the same as pure functions in ``functional``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lovec.metrics.suite import AURC, AUROC, ECEM, BrierScore, CalibrationSuite, SpearmanCorrelation

__all__ = ["AURC", "AUROC", "ECEM", "BrierScore", "CalibrationSuite", "SpearmanCorrelation"]


def __getattr__(name: str) -> Any:
    """Import a torchmetrics class on first use: importing torchmetrics takes seconds that reports need not wait."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.suite"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
