"""A test that was stopped goes on with what its baselines have judged, and ends as if it had not been stopped."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tinyrun import Rows, module, tiny, trainer

from lovec.baselines import LUQ, Baseline, Claim, Words
from lovec.evaluation import Comparison
from lovec.metrics.results import read_results
from lovec.modules import EvaluationConfig
from lovec.types import LovecError, Record


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


class Letters:
    """A judge without a model: the share of the sentence's letters that the text has. It fails after some calls."""

    def __init__(self, last: int = 100) -> None:
        self._last = last
        self._judged: list[str] = []

    def attach(self, resources: object) -> None:
        """Needs none."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        if self._last == 0:
            raise LovecError("stopped")
        self._last -= 1
        self._judged += dict.fromkeys(f"{c.record.id} {c.record.question}" for c in claims)
        return [len(set(c.hypothesis) & set(c.premise)) / len(set(c.hypothesis)) for c in claims]


def run(folder: Path, model: str, baseline: Baseline, rows: int = 2) -> Comparison:
    """Test one baseline, recalibrated as well."""
    evaluation = EvaluationConfig(
        modes=["iterative"], max_new_tokens=8, rows=rows, vanilla=False, recalibrated_baselines=True
    )
    made: Comparison = module(Comparison, model, evaluation=evaluation, baselines=[baseline])
    trainer(folder).test(made, Rows(), verbose=False)
    return made


def judged(baseline: LUQ) -> list[str]:
    """The answers whose claims its judge was asked about, by id and question, in the order of the calls."""
    assert isinstance(baseline.judge, Letters)
    return baseline.judge._judged


def whole(folder: Path, model: str) -> tuple[LUQ, Path]:
    """A baseline that was not stopped, and the folder of its results."""
    baseline = LUQ(samples=2, judge=Letters())
    run(folder, model, baseline)
    return baseline, folder / "test" / "rows"


@pytest.mark.parametrize(("calls", "rows"), [(1, 2), (2, 2), (3, 2), (1, 3), (3, 3)])
def test_a_stopped_test_ends_like_one_that_was_not_stopped(
    model: str, tmp_path: Path, calls: int, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    baseline, expected = whole(tmp_path / "whole", model)
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path / "run", model, before := LUQ(samples=2, judge=Letters(calls)))
    found = tmp_path / "run" / "test" / "rows"
    assert not found.exists()
    (found.with_name("rows.unfinished") / "judged" / "torn.json").write_text('{"answers": {"')
    caplog.clear()
    made = run(tmp_path / "run", model, after := LUQ(samples=2, judge=Letters()), rows)
    assert caplog.text.count("LUQ: answers that were judged before the test was stopped") == 1
    assert judged(before) + judged(after) == judged(baseline) and judged(before) and judged(after)
    for path in sorted(expected.iterdir()):
        if path.name != "times.json" and (path.name != "results.json" or rows == 2):  # else sums are rounded otherwise
            assert (found / path.name).read_text() == path.read_text(), path.name
    metrics = [[row.metrics for row in read_results(place / "results.json").rows] for place in (found, expected)]
    assert [pytest.approx(row) for row in metrics[0]] == metrics[1]
    assert sorted(path.name for path in found.parent.iterdir()) == ["rows"]
    assert sorted(path.name for path in found.iterdir()) == sorted(path.name for path in expected.iterdir())
    (times,), (others,) = (json.loads((place / "times.json").read_text()) for place in (found, expected))
    assert times == made.measurement.times[0] and times["seconds"].keys() == others["seconds"].keys()
    assert times["records"] == others["records"] and min(times["seconds"].values()) > 0


def test_what_kept_answers_took_is_part_of_the_times(model: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, LUQ(samples=2, judge=Letters(1)))
    (path,) = (tmp_path / "test" / "rows.unfinished" / "judged").iterdir()
    kept = json.loads(path.read_text())
    kept["spent"] = {
        "seconds": {"sampling": 1000, "judging": 2000},
        "cpu_seconds": {"sampling": 3000, "judging": 4000},
        "prefill_tokens": {"prefill_tokens": 5000},
    }
    path.write_text(json.dumps(kept))
    run(tmp_path, model, LUQ(samples=2, judge=Letters()))
    (times,) = json.loads((tmp_path / "test" / "rows" / "times.json").read_text())
    count = len(kept["answers"])
    assert {name: int(value / 1000) for name, value in times["seconds"].items()} == {
        "sampling": count, "judging": 2 * count
    }  # fmt: skip
    assert {name: int(value / 1000) for name, value in times["cpu_seconds"].items()} == {
        "sampling": 3 * count, "judging": 4 * count
    }  # fmt: skip
    assert times["prefill_tokens"] // 5000 == count


@pytest.mark.parametrize(
    "other",
    [
        lambda: LUQ(samples=3, judge=Letters()),
        lambda: LUQ(samples=2, judge=type("Others", (Letters,), {})()),
        lambda: type("Own", (LUQ,), {})(samples=2, judge=Letters()),
    ],
)
def test_what_was_judged_otherwise_is_judged_anew(model: str, tmp_path: Path, other: Callable[[], LUQ]) -> None:
    baseline, _ = whole(tmp_path / "whole", model)
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path / "run", model, LUQ(samples=2, judge=Letters(2)))
    run(tmp_path / "run", model, after := other())
    assert judged(after) == judged(baseline)


def test_a_baseline_whose_code_was_changed_judges_anew(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path, code = tmp_path / "own_baseline.py", "from lovec.baselines import LUQ\n\nclass Own(LUQ):\n    pass\n"
    stopped = []
    for text in (code, code, f"{code}    # better\n"):
        path.write_text(text)
        sys.modules.pop("own_baseline", None)
        own = importlib.import_module("own_baseline").Own(samples=2, judge=Letters(1))
        with pytest.raises(LovecError, match="stopped"):
            run(tmp_path, model, own)
        stopped.append(judged(own))
    assert stopped[0] == stopped[2] and not set(stopped[0]) & set(stopped[1])


def test_another_answer_is_judged_anew(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, before := LUQ(samples=2, judge=Letters(2)))
    plain = Rows.load
    first = judged(before)[0]

    def relabelled(self: Rows, split: str) -> list[Record]:
        found = plain(self, split)
        relabel = f"{found[0].id} {found[0].question}" == first
        return [found[0].with_factuality([0.5] * len(found[0].sentences)), *found[1:]] if relabel else found

    monkeypatch.setattr(Rows, "load", relabelled)
    run(tmp_path, model, after := LUQ(samples=2, judge=Letters()))
    assert len(judged(before)) == 4 and set(judged(before)) & set(judged(after)) == {first}


def test_a_baseline_that_learns_keeps_nothing(model: str, tmp_path: Path) -> None:
    class Fails(Words):
        """Judges one batch."""

        def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
            if hasattr(self, "_once"):
                raise LovecError("stopped")
            self._once = True
            return super().confidences(records)

    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, Fails())
    assert not list((tmp_path / "test" / "rows.unfinished" / "judged").iterdir())


def test_a_baseline_that_leaves_out_an_answer_is_refused(model: str, tmp_path: Path) -> None:
    class Short(LUQ):
        """Returns too few."""

        def tag(self, records: Sequence[Record]) -> list[Record]:
            return super().tag(records)[1:]

    with pytest.raises(LovecError, match="Short returned 1 records for 2"):
        run(tmp_path, model, Short(samples=2, judge=Letters()))


def test_results_of_a_test_that_was_stopped_are_read_by_nobody(model: str, tmp_path: Path) -> None:
    _, expected = whole(tmp_path, model)
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, LUQ(samples=2, judge=Letters(2)))
    assert read_results(expected / "results.json").rows
