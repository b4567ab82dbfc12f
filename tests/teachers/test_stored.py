"""What estimates depend on is in the name of their file, and what failed is not kept."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import loaded, module

from lovec.baselines import LUQ, Baseline, LinearProbe, NLIJudge, Samples, SelfConsistency, Words
from lovec.baselines.identity import _IMPORTED, plain_settings
from lovec.modules import Distil
from lovec.oracles import OpenAIOracle, SelfJudge
from lovec.teachers import BaselineTeacher, Estimates, OracleTeacher, Teacher, TeacherResources
from lovec.teachers.base import StoredTeacher
from lovec.types import Record, Sentence

RECORD = Record("a", "Who?", sentences=(Sentence("One."), Sentence("Two.")))


class Table:
    """An oracle that nobody has declared anything of."""

    def __init__(self, ratings: dict[str, float], path: Any = None) -> None:
        self.ratings, self.path, self.itself, self._private = ratings, path, self, object()
        self.model = torch.nn.Dropout(0.1)

    @cached_property
    def total(self) -> float:
        return sum(self.ratings.values())


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (OpenAIOracle, {"model": "m"}, {"model": "n"}),
        (OpenAIOracle, {"model": "m"}, {"model": "m", "base_url": "http://localhost/v1"}),
        (OpenAIOracle, {"model": "m"}, {"model": "m", "evidence_tokens": 10}),
        (OpenAIOracle, {"model": "m"}, {"model": "m", "evidence_cut": "head"}),
        (
            OpenAIOracle,
            {"model": "m", "parameters": {"effort": "low"}},
            {"model": "m", "parameters": {"effort": "high"}},
        ),
        (LUQ, {}, {"samples": 5}),
        (LUQ, {}, {"judge": NLIJudge("some/model")}),
        (LUQ, {"judge": NLIJudge("some/model")}, {"judge": NLIJudge("another/model")}),
        (LinearProbe, {}, {"layers": [2]}),
        (LinearProbe, {}, {"folds": 3}),
        (Words, {}, {"least": 4}),
        (Table, {"ratings": {"x": 0.1}}, {"ratings": {"x": 0.9}}),
        (Table, {"ratings": {}, "path": RECORD}, {"ratings": {}, "path": replace(RECORD, question="What?")}),
        (Table, {"ratings": {}, "path": Path("a")}, {"ratings": {}, "path": Path("b")}),
    ],
)
def test_what_decides_tells_settings_apart(kind: type, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert plain_settings(kind(**first)) == plain_settings(kind(**first))
    assert plain_settings(kind(**first)) != plain_settings(kind(**second))


def test_a_default_that_is_given_changes_nothing() -> None:
    assert plain_settings(LUQ()) == plain_settings(LUQ(judge=None, samples=LUQ().samples))


def test_what_decides_nothing_does_not() -> None:
    oracle = OpenAIOracle("m")
    described = plain_settings(oracle)
    assert described == plain_settings(OpenAIOracle("m", concurrency=2, timeout=5, retries=1))
    oracle.calls, oracle.tokens_in = 7, 100
    assert plain_settings(oracle) == described
    probe = LinearProbe()
    probe.errors[3] = 0.1  # of an earlier fit
    assert plain_settings(probe) == plain_settings(LinearProbe())


def test_all_kinds_of_values_are_described() -> None:
    def judge() -> None: ...

    assert plain_settings({"a": (1, None), "b": {3, 2}, "c": judge, "d": Samples}) == {
        "a": [1, None],
        "b": [2, 3],
        "c": f"{__name__}.{judge.__qualname__}",
        "d": "lovec.baselines.samples.Samples",
    }
    table = Table({})
    described = plain_settings(table)
    assert table.total == 0 and plain_settings(table) == described  # what is computed once is no setting
    assert described["model"] == "torch.nn.modules.dropout.Dropout"
    assert described["itself"] == described["class"] == f"{__name__}.Table" and "_private" not in described
    assert plain_settings(SelfConsistency(judge=None))["judge"] is None and "class" in plain_settings(SelfJudge())


class Half(Teacher):
    """Knows nothing."""

    def estimates(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        return [[0.5 for _ in record.sentences] for record in records]


@pytest.fixture
def resources(model: str, adapter: str, tmp_path: Path) -> TeacherResources:
    objective = loaded(tmp_path, module(Distil, model, adapter, teacher=Half()))
    return replace(objective.teacher_resources, folder=tmp_path / "teachers")


class Flaky:
    """An oracle behind a server that is down the first time."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.calls = 0

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        self.calls += 1
        self.failures = {"a": "the server does not answer"} if self.calls == 1 else {}
        return [[None if self.failures else 0.5 for _ in record.sentences] for record in records]


def test_numbers_of_numpy_are_stored_as_plain_ones(resources: TeacherResources) -> None:
    class Vectors(Baseline):
        def confidences(self, records: Sequence[Record]) -> Any:
            return [np.full(len(record.sentences), 0.25, dtype=np.float32) for record in records]

    for _ in range(2):
        rows = BaselineTeacher(Vectors()).estimates([RECORD], resources)
        assert rows == [[0.25, 0.25]] and {type(value) for value in rows[0]} == {float}

    class Own(StoredTeacher):
        @property
        def settings(self) -> Mapping[str, Any]:
            return {}

        def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Any:
            return [[np.float32(0.5), None] for _ in records]

    assert Own().estimates([RECORD], resources) == [[0.5, None]]


OWN = """
from lovec.teachers.base import StoredTeacher
from my_helper import SURE

class Own(StoredTeacher):
    settings = {}

    def estimate(self, records, resources):
        return [[SURE for _ in record.sentences] for record in records]
"""


def test_other_code_of_the_users_own_estimates_anew(
    resources: TeacherResources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def estimated(value: float, age: float) -> tuple[float | None, int]:
        """The estimate of a teacher from files that were written before these tests began, and how many are kept."""
        (tmp_path / "my_teacher.py").write_text(OWN)
        (tmp_path / "my_helper.py").write_text(f"SURE = {value}")
        for name in ("my_teacher", "my_helper"):
            os.utime(tmp_path / f"{name}.py", (_IMPORTED - age, _IMPORTED - age))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        teacher = importlib.import_module("my_teacher").Own()
        return teacher.estimates([RECORD], resources)[0][0], len(list(folder.glob("*")))

    folder = resources.folder
    assert folder is not None
    assert [estimated(value, 100) for value in (0.25, 0.75, 0.25)] == [(0.25, 1), (0.75, 2), (0.25, 2)]
    assert estimated(0.5, -1) == (0.5, 2), "what runs may be older than the file"
    (path,) = (path for path in folder.iterdir() if "0.25" in path.read_text())
    path.write_text(path.read_text().replace("0.25", "0.125"))
    assert estimated(0.25, 100) == (0.125, 2), "it is read"


def test_nothing_is_kept_of_a_teacher_of_a_notebook(
    resources: TeacherResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shown(StoredTeacher):
        @property
        def settings(self) -> Mapping[str, Any]:
            return {}

        def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
            return [[0.25 for _ in record.sentences] for record in records]

    folder = resources.folder
    assert folder is not None
    assert Shown().estimates([RECORD], resources) == [[0.25, 0.25]] and len(list(folder.glob("*"))) == 1
    monkeypatch.setattr(Shown, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert Shown().estimates([RECORD], resources) == [[0.25, 0.25]] and len(list(folder.glob("*"))) == 1


def test_what_an_oracle_could_not_rate_is_asked_again(resources: TeacherResources) -> None:
    oracle = Flaky()
    teacher = OracleTeacher(oracle)  # type: ignore[arg-type]
    assert teacher.estimates([RECORD], resources) == [[None, None]]
    assert teacher.estimates([RECORD], resources) == [[0.5, 0.5]]
    assert teacher.estimates([RECORD], resources) == [[0.5, 0.5]] and oracle.calls == 2  # the second is kept


def test_what_another_process_could_not_have_rated_is_asked_again(resources: TeacherResources) -> None:
    oracle = Flaky()
    oracle.calls = 1
    teacher = OracleTeacher(oracle)  # type: ignore[arg-type]
    elsewhere = replace(resources, gather=lambda part: [part, False] if isinstance(part, bool) else [part])
    assert teacher.estimates([RECORD], elsewhere) == teacher.estimates([RECORD], resources) == [[0.5, 0.5]]
    assert oracle.calls == 3
