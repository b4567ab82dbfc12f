"""A test that was stopped goes on with what its baselines have judged, and ends as if it had not been stopped."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from tinyrun import Rows, module, tiny, trainer

from lovec.baselines import LUQ, Baseline, BaselineResources, Claim, NLIJudge, SelfConsistency, Words
from lovec.baselines.consistency import SampleBaseline
from lovec.baselines.identity import _IMPORTED, UntoldSettings, plain_settings, told_settings
from lovec.core.settings import NO_EFFECT, checked
from lovec.evaluation import Comparison
from lovec.metrics.results import read_results
from lovec.modules import EvaluationConfig, PolicyConfig
from lovec.types import LovecError, Record


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


@checked(remember=True)
class Letters:
    """A judge without a model: the share of the sentence's letters that the text has, of a part of it.

    Args:
        last: number of calls after which it fails, on which no result depends.
        part: what is multiplied with the share.
    """

    def __init__(self, last: Annotated[int, NO_EFFECT] = 100, part: float = 1.0) -> None:
        self._last = last
        self._part = part
        self._judged: list[str] = []

    def attach(self, resources: object) -> None:
        """Needs none."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        if self._last == 0:
            raise LovecError("stopped")
        self._last -= 1
        self._judged += dict.fromkeys(f"{c.record.id} {c.record.question}" for c in claims)
        return [self._part * len(set(c.hypothesis) & set(c.premise)) / len(set(c.hypothesis)) for c in claims]


def run(folder: Path, model: str, *baselines: Baseline, rows: int = 2, **settings: Any) -> Comparison:
    """Test baselines, recalibrated as well."""
    evaluation = EvaluationConfig(
        modes=["iterative"], max_new_tokens=8, rows=rows, vanilla=False, recalibrated_baselines=True
    )
    made: Comparison = module(Comparison, model, evaluation=evaluation, baselines=list(baselines), **settings)
    trainer(folder).test(made, Rows(), verbose=False)
    return made


def judged(baseline: SampleBaseline) -> list[str]:
    """The answers whose claims its judge was asked about, by id and question, in the order of the calls."""
    assert isinstance(baseline.judge, Letters)
    return baseline.judge._judged


NAMES = ("whole", "run")


class Length(Baseline):
    """The longer the surer."""

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[min(1.0, len(s.text) / 60) for s in r.sentences] for r in records]


def kept_in(folder: Path) -> list[Path]:
    """The files of answers that a stopped test has left."""
    judged = folder / "test" / "rows.unfinished" / "judged"
    return sorted(path for path in judged.rglob("*.json") if not path.parent.name.startswith("samples-"))


class Once(Baseline):
    """Fails at the second batch."""

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        if hasattr(self, "_once"):
            raise LovecError("stopped")
        self._once = True
        return super().confidences(records)


class OneBatch(Once, Length):
    """Judges the first batch by length."""


class OneBatchOfWords(Once, Words):
    """Judges the first batch by words, which it learns from labels."""


def answers_in(kept: Path) -> list[Any]:
    """The tagged records in a file."""
    return list(json.loads(kept.read_text())["answers"].values())


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
    folder = kept_in(tmp_path / "run")[0].parent
    (folder / "torn.json").write_text('{"answers": {"')
    (folder / "strange.json").write_text('{"answers": {"a": [1]}, "spent": 3}')
    caplog.clear()
    made = run(tmp_path / "run", model, after := LUQ(samples=2, judge=Letters()), rows=rows)
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
    (path,) = kept_in(tmp_path)
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
        lambda: LUQ(samples=2, judge=Letters(part=0.5)),
        lambda: LUQ(samples=2, judge=type("Others", (Letters,), {"__module__": __name__})()),
        lambda: type("Own", (LUQ,), {"__module__": __name__})(samples=2, judge=Letters()),
    ],
)
def test_what_was_judged_otherwise_is_judged_anew(model: str, tmp_path: Path, other: Callable[[], LUQ]) -> None:
    baseline, _ = whole(tmp_path / "whole", model)
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path / "run", model, LUQ(samples=2, judge=Letters(2)))
    run(tmp_path / "run", model, after := other())
    assert judged(after) == judged(baseline)


def own_code(folder: Path, text: str, age: float = 100.0) -> Any:
    """Import a baseline from a file that was written some seconds before these tests began."""
    path = folder / "own_baseline.py"
    path.write_text(text)
    os.utime(path, (_IMPORTED - age, _IMPORTED - age))
    sys.modules.pop("own_baseline", None)
    importlib.invalidate_caches()
    return importlib.import_module("own_baseline").Own(samples=2, judge=Letters(1))


CODE = "from lovec.baselines import LUQ\n\nclass Own(LUQ):\n    pass\n"


def stopped(folder: Path, model: str, baseline: SampleBaseline, **settings: Any) -> list[str]:
    """What a test judges that is stopped."""
    with pytest.raises(LovecError, match="stopped"):
        run(folder, model, baseline, **settings)
    return judged(baseline)


def test_a_baseline_whose_code_was_changed_judges_anew(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, same, other = (
        stopped(tmp_path, model, own_code(tmp_path, text, age))
        for text, age in ((CODE, 100), (CODE, 90), (f"{CODE}    # better\n", 80))
    )
    assert first == other and not set(first) & set(same)


def test_code_that_its_file_imports_is_told_from_other_code(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    parts, judges = tmp_path / "parts_of_it", []
    parts.mkdir()
    for number in (1, 1, 2):
        (parts / "deeper.py").write_text(f"LEVEL = {number}\n")
        (tmp_path / "helper.py").write_text("from parts_of_it.deeper import LEVEL\n")
        for path in (parts / "deeper.py", tmp_path / "helper.py"):
            os.utime(path, (_IMPORTED - 100, _IMPORTED - 100))
        judges.append(stopped(tmp_path, model, own_code(tmp_path, f"import helper\n{CODE}")))
    first, same, other = judges
    assert first == other and not set(first) & set(same)
    os.utime(tmp_path / "helper.py", (_IMPORTED + 1, _IMPORTED + 1))
    before = kept_in(tmp_path)
    assert stopped(tmp_path, model, own_code(tmp_path, f"import helper\n{CODE}")) == first
    assert kept_in(tmp_path) == before, "what runs may be older than the file"


@pytest.mark.parametrize("where", ["file that is new", "notebook"])
def test_code_that_may_not_be_what_runs_keeps_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    baseline = own_code(tmp_path, CODE, age=-1 if where == "file that is new" else 1)
    if where == "notebook":
        del sys.modules["own_baseline"].__file__
    assert stopped(tmp_path, model, baseline) and not kept_in(tmp_path)


class Untold:
    """A judge that keeps its setting to itself."""

    def __init__(self, share: float) -> None:
        self._share = share

    def attach(self, resources: object) -> None:
        """Needs none."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        return [self._share for _ in claims]


@pytest.mark.parametrize(
    "setting", [Untold(0.5), lambda text: 0.5, re.compile("a"), np.array([0.5]), Decimal("0.5"), {"a": Untold(1.0)}]
)
def test_an_object_that_cannot_tell_its_settings_is_not_told_apart(setting: Any) -> None:
    with pytest.raises(UntoldSettings):
        told_settings([setting])


@pytest.mark.parametrize("told", [told_settings, plain_settings])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_other_weights_in_the_folder_of_a_judges_model_are_told_apart(
    tmp_path: Path, told: Callable[[Any], Any], name: str
) -> None:
    def described(weights: bytes, folder: str = "nli") -> Any:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(weights)
        return told(LUQ(judge=NLIJudge(str(tmp_path / folder))))

    first = described(b"one")
    assert described(b"two") != first == described(b"one") != described(b"one", "other")


def test_another_file_that_a_judge_names_is_told_apart(tmp_path: Path) -> None:
    @dataclass
    class Listed:
        words: Path

    path = tmp_path / "words.txt"
    told = []
    for text in ("a", "b", "a"):
        path.write_text(text)
        told.append(told_settings(Listed(path)))
    assert told[0] == told[2] != told[1]


def test_a_judge_that_does_not_tell_its_settings_keeps_nothing(model: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, LUQ(samples=2, judge=Untold(0.1)), OneBatch())
    (kept,) = kept_in(tmp_path)  # of the second alone
    assert {len(s["text"]) / 60 == s["confidence"] for r in answers_in(kept) for s in r["sentences"]} == {True}


def test_another_precision_judges_anew(model: str, tmp_path: Path) -> None:
    first = stopped(tmp_path, model, LUQ(samples=2, judge=Letters(1)))
    half = PolicyConfig(model=model, lora_r=4, lora_alpha=8, dtype="bfloat16")
    assert stopped(tmp_path, model, LUQ(samples=2, judge=Letters(1)), policy=half) == first


def test_samples_that_baselines_share_are_kept(model: str, tmp_path: Path) -> None:
    """A test that is stopped in the second baseline has drawn all samples of the test records."""

    def both(*last: int) -> list[SampleBaseline]:
        return [kind(samples=2, judge=Letters(n)) for kind, n in zip((LUQ, SelfConsistency), last, strict=True)]

    run(tmp_path / "whole", model, *both(100, 100))
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path / "run", model, *both(100, 1))
    made = run(tmp_path / "run", model, *both(100, 100))
    first, second = (json.loads((tmp_path / name / "test" / "rows" / "times.json").read_text()) for name in NAMES)
    assert [row["prefill_tokens"] for row in first] == [row["prefill_tokens"] for row in second]
    assert first[1]["prefill_tokens"] == 0 < first[0]["prefill_tokens"]
    assert made.baseline_resources.samples.tokens > 0


def test_numbers_of_numpy_and_odd_keys_are_judged(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Rows.load

    def odd(self: Rows, split: str) -> list[Record]:
        meta = {"year": np.int64(1999), "share": np.float32(0.5), 1: "a"}
        return [replace(record, meta=meta) for record in plain(self, split)]

    monkeypatch.setattr(Rows, "load", odd)
    first = stopped(tmp_path, model, LUQ(samples=2, judge=Letters(1)))
    run(tmp_path, model, after := LUQ(samples=2, judge=Letters()))
    assert first and not set(first) & set(judged(after))


def test_a_baseline_may_attach_resources_as_it_likes(model: str, tmp_path: Path) -> None:
    class Own(Length):
        """Keeps the engine only."""

        def attach(self, resources: BaselineResources) -> None:
            self.engine = resources.engine

    assert run(tmp_path, model, Own()).results


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
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, OneBatchOfWords())
    assert not kept_in(tmp_path)


def test_a_baseline_that_leaves_out_an_answer_is_refused(model: str, tmp_path: Path) -> None:
    class Short(LUQ):
        """Returns too few."""

        def tag(self, records: Sequence[Record]) -> list[Record]:
            return super().tag(records)[1:]

    with pytest.raises(LovecError, match="Short returned 1 records for 2"):
        run(tmp_path, model, Short(samples=2, judge=Letters()))


def test_results_of_an_earlier_test_stay_where_the_next_one_is_stopped(model: str, tmp_path: Path) -> None:
    _, expected = whole(tmp_path, model)
    before = {path.name: path.read_bytes() for path in expected.iterdir()}
    with pytest.raises(LovecError, match="stopped"):
        run(tmp_path, model, LUQ(samples=2, judge=Letters(2)))
    assert {path.name: path.read_bytes() for path in expected.iterdir()} == before and "results.json" in before


def test_the_folder_of_what_was_judged_may_be_deleted_meanwhile(model: str, tmp_path: Path) -> None:
    class Deletes(Words):
        """Removes the folder, as somebody who makes room, and keeps nothing itself."""

        def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
            shutil.rmtree(tmp_path / "test" / "rows.unfinished" / "judged", ignore_errors=True)
            return super().confidences(records)

    run(tmp_path, model, Deletes(), rows=8)
    assert (tmp_path / "test" / "rows" / "results.json").exists()
