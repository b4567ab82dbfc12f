"""Order among sentences that claim the same: by hand, against loops, over batches, and in the rows of a test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.evaluation.evaluator import EvaluationConfig, Evaluator
from lovec.metrics.ranking import c_index, order_within
from lovec.metrics.records import claim_numbers, sentence_claims, sentence_pairs
from lovec.metrics.suite import OrderWithinClaims
from lovec.types import Record, Sentence

ROWS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2), st.integers(-1, 3)), max_size=30)


def tensors(rows):
    c, f, group = zip(*rows, strict=True) if rows else ((), (), ())
    double = torch.float64
    return torch.tensor(c, dtype=double) / 10, torch.tensor(f, dtype=double) / 2, torch.tensor(group, dtype=torch.int64)


def test_pairs_by_hand():
    # Group 0: a true one (0.9) against two false ones (0.2, 0.9): right, and a tie. Group 1: wrong. Group 2: equal.
    c = [0.9, 0.2, 0.9, 0.1, 0.8, 0.3, 0.7]
    f = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    assert order_within(c, f, group).item() == pytest.approx((1 + 0.5 + 0) / 3)
    # A confidence that only knows how often a claim is true has 0.5, whatever its order over all sentences.
    known = [1 / 3] * 3 + [0.5] * 2 + [1.0] * 2
    assert order_within(known, f, group).item() == 0.5 and c_index(known, f).item() > 0.5


@given(ROWS)
def test_all_pairs_are_counted(rows):
    right = total = 0.0
    for c, f, group in rows:
        for other_c, other_f, other in rows:
            if group == other >= 0 and f > other_f:
                total += 1
                right += (c > other_c) + (c == other_c) / 2
    expected = right / total if total else float("nan")
    assert order_within(*tensors(rows)).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_groups_are_counted_together(monkeypatch):
    torch.manual_seed(0)
    calls = []
    unique = torch.unique
    monkeypatch.setattr(torch, "unique", lambda *args, **options: calls.append(args) or unique(*args, **options))
    used = []
    for n, groups in ((60, 3), (300, 200), (400, 30)):
        c, f = ((torch.rand(n, dtype=torch.float64) * levels).round() / levels for levels in (10, 3))
        group = torch.randint(-1, groups, (n,)) * 7
        right = total = 0.0
        for number in range(0, 7 * groups, 7):
            of = f[group == number]
            if comparable := int((of[:, None] < of).sum()):
                right, total = right + comparable * c_index(c[group == number], of).item(), total + comparable
        calls.clear()
        assert order_within(c, f, group).item() == pytest.approx(right / total, abs=1e-12)
        used.append(len(calls))
    assert len(set(used)) == 1


def test_one_group_is_the_c_index_and_no_group_is_undefined():
    c, f = [0.1, 0.4, 0.4, 0.8], [0.0, 1.0, 0.5, 0.5]
    assert order_within(c, f, torch.zeros(4, dtype=torch.int64)).item() == c_index(c, f).item()
    assert order_within(c, f, torch.full((4,), -1)).isnan()
    assert order_within(c, f, torch.arange(4)).isnan()


@given(ROWS, st.integers(0, 30))
def test_batches_are_as_good_as_the_whole(rows, cut):
    metric = OrderWithinClaims()
    for part in (rows[:cut], rows[cut:]):
        metric.update(*tensors(part))
    assert metric.compute().item() == pytest.approx(order_within(*tensors(rows)).item(), abs=1e-12, nan_ok=True)


def test_names_are_numbers_that_a_float_holds():
    numbers = claim_numbers(["capital: FR", None, "capital: DE", "capital: FR"])
    assert numbers[0] == numbers[3] != numbers[2] and numbers[1] == -1
    assert numbers.double().long().equal(numbers)


def record(name, *sentences):
    return Record(name, "Q?", sentences=tuple(Sentence(f"{name}.", *values) for values in sentences))


def test_claims_go_with_the_pairs():
    given = record("a", (1.0, 0.9), (None, 0.4), (0.0, None), (0.5, 0.2)).with_claims(["x", "y", "z", None])
    assert sentence_pairs([given], "stated")[:2] == ([0.9, 0.2], [1.0, 0.5])
    assert sentence_claims([given], "stated") == ["x", None]


class Given:
    """Tags nothing: the records have their confidences already."""

    def tag(self, records):
        return list(records)


class Names:
    """Rates every sentence by its text and names all claims alike."""

    def rate(self, records):
        return [[float(s.text == "true.") for s in r.sentences] for r in records]

    def claims(self, records):
        return [["same"] * len(r.sentences) for r in records]


def test_rows_of_a_test_have_it_where_claims_are_known():
    evaluator = Evaluator({"iterative": Given(), "free-form": Given()}, Names(), EvaluationConfig(), ["in-domain"])
    records = [record("true", (1.0, 0.7)), record("false", (0.0, 0.8)), record("false", (0.0, 0.1))]
    stored = [r.with_claims(["one"]) for r in records[:2]] + records[2:]
    for mode, part in (("iterative", stored), ("free-form", records)):
        evaluator.update(mode, evaluator.tag_and_label(part, mode))
    rows = {(row.mode, row.level): row.metrics["order"] for row in evaluator.rows("M") if row.readout == "stated"}
    assert rows["iterative", "sentence"] == 0.0  # the third sentence has no claim
    assert rows["free-form", "sentence"] == 0.5  # the oracle names the claims of new answers
    assert rows["iterative", "passage"] is None and rows["free-form", "passage"] is None


def test_a_claim_stays_with_its_sentence_in_files():
    from lovec.datasets.jsonl import record_from_dict, record_to_dict
    from lovec.types import LovecError

    known = record("a", (1.0, 0.9), (0.0, 0.2)).with_claims(["capital: FR", None])
    stored = record_to_dict(known)
    assert [sentence.get("claim") for sentence in stored["sentences"]] == ["capital: FR", None]
    assert "claim" not in stored["sentences"][1]
    assert record_from_dict(stored) == known
    stored["sentences"][0]["claim"] = 7
    with pytest.raises(LovecError, match="claim"):
        record_from_dict(stored)
    with pytest.raises(ValueError):
        replace(known).with_claims(["one"])
