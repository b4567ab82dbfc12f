"""Reliability diagrams: bins and metrics by hand, and a file that is always the same."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from lovec.metrics.functional import ece_m
from lovec.reports import reliability, reliability_diagram
from lovec.reports.reliability import Bin
from lovec.types import LovecError, Record, Sentence


def record(*pairs, **more):
    """Return a record of sentences with these (score, factuality)."""
    return Record("r", "Q?", sentences=tuple(Sentence("S.", factuality=f, score=c, **more) for c, f in pairs))


RECORDS = [record((10, 0.8), (9, 0.5), (3, 0.4)), record((3, 0.1), (0, 0.2), (None, 0.7), (5, None))]


def test_bins_are_those_computed_by_hand():
    result = reliability(RECORDS)
    assert [bin_.count for bin_ in result.bins] == [1, 2, 2]  # 0.9 and 1 share the last bin; no bin is empty
    assert [bin_.confidence for bin_ in result.bins] == pytest.approx([0.0, 0.3, 0.95])
    assert [bin_.factuality for bin_ in result.bins] == pytest.approx([0.2, 0.25, 0.65])
    assert result.n == 5
    assert result.brier == pytest.approx((0.04 + 0.16 + 0.01 + 0.04 + 0.04) / 5)
    assert result.ece_m == pytest.approx((1 * 0.2 + 2 * 0.05 + 2 * 0.3) / 5)


def test_bins_are_those_of_ece_m():
    pairs = [(c, ((7 * c) % 11) / 10) for c in range(11)]
    result = reliability([record(*pairs)])
    c, f = torch.tensor([[c / 10, f] for c, f in pairs], dtype=torch.float64).T
    assert result.ece_m == pytest.approx(float(ece_m(c, f)))
    assert sum(b.count * abs(b.factuality - b.confidence) for b in result.bins) / result.n == pytest.approx(
        result.ece_m
    )


def test_the_mean_readout_uses_the_distribution():
    halves = tuple(0.4 if score in (2, 4) else 0.0 for score in range(11))  # sums to 0.8: renormalised
    (only,) = reliability([record((2, 1.0), distribution=halves)], "mean").bins
    assert (only.count, only.factuality) == (1, 1.0)
    assert only.confidence == pytest.approx(0.3)
    assert reliability([record((2, 1.0), distribution=halves)]).bins == (Bin(1, 0.2, 1.0),)


def test_nothing_to_draw_is_an_error_in_one_line(tmp_path):
    with pytest.raises(LovecError, match="none of 1 records"):
        reliability([record((None, 0.5), (4, None))])
    with pytest.raises(LovecError, match="no method"):
        reliability_diagram({}, tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_small_xml_and_always_the_same(tmp_path):
    groups = {"Vanilla": [record((10, 0.5))], "A & <B>": RECORDS}
    path = reliability_diagram(groups, tmp_path / "new" / "a.svg", title="How true")
    again = reliability_diagram(groups, tmp_path / "b.svg", title="How true")
    assert path.read_bytes() == again.read_bytes()
    assert path.stat().st_size < 60_000
    assert [p.name for p in path.parent.iterdir()] == ["a.svg"]
    texts = ["".join(text.itertext()) for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert "How true" in texts
    assert {"Vanilla", "BS 25.0, ECE-M 50.0 %", "A & <B>", "BS 5.8, ECE-M 18.0 %"} <= set(texts)
    other = reliability_diagram({**groups, "Vanilla": [record((10, 0.4))]}, tmp_path / "c.svg", title="How true")
    assert other.read_bytes() != path.read_bytes()
