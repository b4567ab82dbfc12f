"""The figures of a report: those that a run has data for, each written as a file and ready for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from lovec import rewards
from lovec.metrics.records import confidence_of
from lovec.reports import curves
from lovec.reports.cells import inside
from lovec.reports.histogram import confidence_histogram
from lovec.reports.next_tokens import score_tokens
from lovec.reports.page import Picture
from lovec.reports.reliability import reliability_diagram
from lovec.reports.risk_coverage import risk_coverage_curves
from lovec.reports.runs import Run
from lovec.reports.style import COLOURS
from lovec.reports.surface import reward_surface
from lovec.reports.times import Duration, running_times
from lovec.reports.timing import free_form, plain_answer, timings
from lovec.rewards import Reward
from lovec.types import LovecError, Record

SHOWN = ("baseline", "constant", "method", "hybrid")
"""Kinds of rows whose records are drawn and read; the tables have the recalibrated methods and the ablations, too."""

_OF_RECORDS: dict[str, tuple[Callable[..., Path], str, str]] = {
    "reliability": (
        reliability_diagram,
        "How true against how sure",
        "A dot is a bin of the confidence: its mean factuality over its mean confidence. On the dashed line a method "
        "is calibrated; the thick line is the gap. Thin line: 95 % bootstrap interval over the questions; a hollow dot "
        "has none, its sentences are of fewer than five questions. Below: the share of the sentences in each bin.",
    ),
    "histogram": (
        confidence_histogram,
        "Which scores are given",
        "Share of the sentences that got each score (a finer confidence counts as the nearest). Triangle: mean "
        "confidence; dashed line: mean factuality.",
    ),
    "risk-coverage": (
        risk_coverage_curves,
        "How much is wrong in what is kept",
        "The most confident sentences are kept first; risk is 1 - factuality of what is kept. A dot is what a "
        "threshold keeps; between dots equal confidences are drawn at random. AURC: area under the curve, lower is "
        "better. A method that knows nothing is flat.",
    ),
}
_TIMES = (
    "Wall seconds an answer by phase, medians over runs. What tags a finished answer waits for that answer, so the "
    "time of a plain answer is part of it where it was measured."
)
_TOKENS = (
    "Probabilities of the next token after the opening tag, for one correct and one incorrect test sentence. "
    "Ordinality, over the eleven whole scores: 1 is a single hill, 0.5 is chance."
)
_CURVES = "What the run logged, by optimiser step; c: confidence, f: factuality."
_REWARDS = (
    "What the training reward paid. Above: every score (across) for every rating (up); dots: the best score of a "
    "rating. Below: for each probability that a sentence is true, the score that pays best on average."
)


def pictures(run: Run, folder: Path) -> tuple[list[Picture], list[str]]:
    """Draws everything that a run has data for.

    Args:
        run: see ``lovec.reports.runs.read_run``. Of several seeds, records are those of the first.
        folder: where the files are written, NAME.svg.

    Returns:
        The figures, and what could not be drawn, a sentence each.

    Raises:
        LovecError: a file of the run cannot be read.
    """
    found, left_out = list(_of_records(run, folder)), []
    found += _of_times(run, folder)
    if run.tokens:
        title = "The most probable tokens where the score is said"
        found.append(_picture(score_tokens(run.tokens, folder / "tokens.svg", title), title, _TOKENS))
    for name, group in groupby(sorted(run.logs, key=lambda path: path.name), key=lambda path: path.name):
        try:
            found.append(_of_training(name, list(group), folder))
        except LovecError as error:
            left_out.append(f"No training curves of {name}: {error}.")
    if paid := {name: reward for path in run.logs for name, reward in _reward(path)}:
        path = reward_surface(paid, folder / "reward.svg", "What a score was worth in training")
        found.append(_picture(path, "What a score was worth in training", _REWARDS, themed=False, front=False))
    return found, left_out


def methods(run: Run, mode: str) -> list[str]:
    """Methods of the kinds ``SHOWN`` whose answers are there in a mode, in the order of the rows."""
    names = dict.fromkeys(row["method"] for row in run.rows if row["kind"] in SHOWN)
    return [name for name in names if (name, mode, "stated") in run.files]


def _of_records(run: Run, folder: Path) -> Iterator[Picture]:
    """A figure of every kind for every mode and domain; those of the first are in front."""
    places = dict.fromkeys((row["mode"], row["domain"]) for row in run.rows)
    domains = len({domain for _, domain in places})
    front = True
    for mode, domain in places:
        groups = {name: inside(run.tagged(name, mode), domain) for name in methods(run, mode)}
        shown = {name: records for name, records in groups.items() if _drawable(records)}
        place = f"{mode}, {domain}" if domains > 1 else mode
        for kind, (draw, title, caption) in _OF_RECORDS.items() if shown else ():
            path = folder / f"{kind}.{_slug(place)}.svg"
            yield _picture(draw(shown, path, title=f"{title}: {place}"), f"{title}: {place}", caption, front=front)
        front = front and not shown


def _of_times(run: Run, folder: Path) -> Iterator[Picture]:
    found = timings(run)
    plain = plain_answer(found)
    bars = []
    for timing in (one for one in found if one.kind in (*SHOWN, "answers")):
        waits = {"answer": plain} if plain is not None and timing.mode == "iterative" else {}
        name = timing.method if timing.kind == "answers" else f"{timing.method}, {timing.mode}"
        bars.append(
            Duration(name, {**waits, **({"answer": timing.total} if timing.kind == "answers" else timing.needed)})
        )
    if bars:
        title = "Running time of an answer"
        yield _picture(running_times(bars, folder / "times.svg", title, free_form(found)), title, _TIMES)


def _of_training(name: str, folders: Sequence[Path], folder: Path) -> Picture:
    """Curves of the runs of one name, a colour a seed."""
    runs = [replace(curves.read_run(path), name=path.parent.name) for path in folders[: len(COLOURS)]]
    path = curves.curves_figure(runs, folder / f"training.{_slug(name)}.svg")
    return _picture(path, f"Training: {name}", _CURVES, front=False)


def _reward(folder: Path) -> Iterator[tuple[str, Reward]]:
    """The reward that a run's recipe names, if it is one of ours: classes from elsewhere are not imported."""
    for path in sorted(folder.glob("*/version_*/config.yaml"))[:1]:
        model = _dict(_dict(yaml.safe_load(path.read_text(encoding="utf-8"))).get("model"))
        reward = _dict(_dict(model.get("init_args", model)).get("reward"))
        module, _, name = str(reward.get("class_path")).rpartition(".")
        if module == "lovec.rewards" and name in ("LogReward", "QuadraticReward", "LinearReward"):
            with suppress(TypeError, LovecError):  # options of another version: nothing to draw
                yield folder.name, getattr(rewards, name)(**_dict(reward.get("init_args")))


def _drawable(records: Sequence[Record]) -> bool:
    """Whether there is a sentence with a confidence and a label."""
    sentences = (sentence for record in records for sentence in record.sentences)
    return any(s.factuality is not None and confidence_of(s, "stated") is not None for s in sentences)


def _picture(path: Path, title: str, caption: str, themed: bool = True, front: bool = True) -> Picture:
    return Picture(path.stem, title, caption, path.read_text(encoding="utf-8"), themed, front)


def _slug(text: str) -> str:
    return "-".join("".join(char if char.isalnum() else " " for char in text.lower()).split()) or "run"


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
