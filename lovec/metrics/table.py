"""The one table of metrics: how each is called, shown, logged and compared.

Validation, result tables, training curves, sweeps, reports and benchmarks all read it, so a metric that is added to
``table.yaml`` (or by a user, see ``lovec.metrics.suite.user_metric_infos``) is a column everywhere. This module imports
nothing heavy, so that reports start fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """How one metric is shown and used.

    Attributes:
        name: key in result rows, logs and files.
        heading: heading of its column.
        better: which direction is better; None where neither is.
        unit: "percent" metrics are stored as fractions and shown times 100; others are shown as they are.
        digits: digits after the decimal point where it is shown.
        logged: "always": validation logs it for every level and readout; "once": once per mode, since it does not
            depend on the readout; None: only tests measure it.
        bootstrapped: whether the bootstrap gives intervals for it, see ``lovec.metrics.bootstrap``.
        main: whether the short result table, which ``lovec test`` prints, has it.
        detail: whether it is a column of the table of further metrics in reports.
        uses: what it uses of pairs of confidence and factuality: the confidences as numbers in [0, 1] ("probability"),
            their order only ("order"), or the factualities only ("labels"); None for metrics of something else.
    """

    name: str
    heading: str
    better: Literal["lower", "higher"] | None = None
    unit: Literal["percent", "number"] = "percent"
    digits: int = 1
    logged: Literal["always", "once"] | None = None
    bootstrapped: bool = False
    main: bool = False
    detail: bool = False
    uses: Literal["probability", "order", "labels"] | None = None

    def text(self, value: float | None) -> str:
        """Return a value as tables show it; "-" where it is undefined (None, NaN or infinite)."""
        if (value := finite(value)) is None:
            return "-"
        return f"{100 * value if self.unit == 'percent' else value:.{self.digits}f}"


def finite(value: float | None) -> float | None:
    """Return a value, or None where it is undefined: None, NaN or infinite."""
    return None if value is None or not math.isfinite(value) else value


_ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

METRICS = {name: MetricInfo(name, **settings) for name, settings in _ROWS.items()}
"""Metrics by name, in the order in which tables show them."""


def metric_info(name: str) -> MetricInfo:
    """Return a metric's entry in ``METRICS``; for a name that is not there, a plain one with three digits."""
    return METRICS.get(name) or MetricInfo(name, name, unit="number", digits=3)
