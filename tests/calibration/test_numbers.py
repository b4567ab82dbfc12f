from __future__ import annotations

import numpy as np
import pytest

from lovec.calibration.numbers import resolved, resolved_number


@pytest.mark.parametrize("scale", [1e-40, 1e-6, 1.0, 1e3, 1e39])
def test_one_number_is_resolved_as_many_are(scale):
    drawn = np.random.default_rng(0).normal(size=2000) * scale
    numbers = [*drawn, *np.round(drawn, 3), *drawn.astype(np.float32).astype(np.float64), 0.0, -0.0, np.inf, np.nan]
    assert str([resolved_number(float(number)) for number in numbers]) == str(resolved(numbers).tolist())


def test_what_float32_stores_alike_is_one_number():
    for decimal in (0.1, 0.3, 0.7, 0.123456, 12.5):
        assert resolved_number(float(np.float32(decimal))) == resolved_number(decimal) == decimal
