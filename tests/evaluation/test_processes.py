"""Values and records of several processes, put together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lovec.evaluation import processes
from lovec.evaluation.processes import in_data_order, in_order_of, own_share, reduce_over_processes
from lovec.types import Record

ALONE = SimpleNamespace(world_size=1, global_rank=0)


def test_one_process_has_everything() -> None:
    records = [Record(str(i), "Q?") for i in range(3)]
    assert list(own_share(ALONE, records)) == in_data_order(ALONE, records) == records
    assert reduce_over_processes(ALONE, {"a": 2.0}, sum) == reduce_over_processes(ALONE, {"a": 2.0}, max) == {"a": 2.0}


@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_shares_of_records_come_back_in_the_order_of_the_data(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(str(i), "Q?") for i in range(number)]
    trainers = [SimpleNamespace(world_size=3, global_rank=rank) for rank in range(3)]
    shares = [own_share(trainer, records) for trainer in trainers]
    monkeypatch.setattr(processes, "gather", lambda trainer, part: shares)
    assert in_data_order(trainers[0], shares[0]) == records


def test_records_that_a_process_leaves_out_move_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(str(i), "Q?") for i in range(6)]
    trainers = [SimpleNamespace(world_size=2, global_rank=rank) for rank in range(2)]
    shares = [own_share(trainer, records) for trainer in trainers]
    parts = [[[record.id for record in share] for share in shares], [shares[0][:1] + shares[0][2:], shares[1]]]
    monkeypatch.setattr(processes, "gather", lambda trainer, part: parts.pop(0))
    found = in_order_of(trainers[0], shares[0], parts[1][0])
    assert [record.id for record in found] == ["0", "1", "3", "4", "5"]


def test_named_values_combine_over_the_processes_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[dict[str, Any]] = [{"a": 1.0, "b": 2.0}, {"b": 5.0}, {"b": -1.0, "c": -3.0}]
    monkeypatch.setattr(processes, "gather", lambda trainer, part: parts)
    assert reduce_over_processes(None, parts[0], sum) == {"a": 1.0, "b": 6.0, "c": -3.0}
    assert reduce_over_processes(None, parts[0], max) == {"a": 1.0, "b": 5.0, "c": -3.0}
