"""Metrics of confidences against soft labels: torchmetrics here, their functional twins in ``functional``."""

from lovec.metrics.pairs import AURC, ECEM, BrierScore, SpearmanCorrelation
from lovec.metrics.suite import CalibrationSuite

__all__ = ["AURC", "ECEM", "BrierScore", "CalibrationSuite", "SpearmanCorrelation"]
