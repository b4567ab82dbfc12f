"""The plots of a report: every plot that a run has data for, as a file and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from lovec import rewards
from lovec.core.plain import inside
from lovec.reports.breakdown import KINDS, slug
from lovec.reports.curves import write_curves
from lovec.reports.next_tokens import score_tokens
from lovec.reports.runs import RunResults
from lovec.reports.shown import Picture
from lovec.reports.style import COLOURS, short, write_both
from lovec.reports.surface import reward_surface
from lovec.reports.texts import texts
from lovec.reports.times import (
    Timing,
    conditions,
    few_phases,
    free_form_seconds,
    plain_answer_seconds,
    running_times,
    timings,
)
from lovec.reports.training_log import read_training_log
from lovec.rewards import Reward
from lovec.types import DEFAULT_SCALE, LovecError, Scale


def write_plots(
    run: RunResults, folder: Path, on_plot: Callable[[str], object] = lambda name: None
) -> tuple[list[Picture], list[str]]:
    """Draw what a run has data for beside the plots of its places: times, tokens, training and rewards.

    Args:
        run: results, see ``lovec.reports.runs.read_run``.
        folder: folder for the plots, NAME.svg and NAME.pdf.
        on_plot: called with the name of every plot before it is drawn.

    Returns:
        The plots, and a sentence per plot that could not be drawn.

    Raises:
        LovecError: a file of the run cannot be read.
    """
    on_plot("times")
    plots, left_out = [*_times_plot(run, folder)], []
    if run.tokens:
        on_plot("tokens")
        write = partial(score_tokens, run.tokens, title=_title("tokens"))
        plots.append(_picture("tokens", write_both(write, folder / "tokens.svg")))
    for name, group in groupby(sorted(run.logs, key=lambda path: path.name), key=lambda path: path.name):
        on_plot(f"training, {name}")
        try:
            plots.append(_curves_plot(name, list(group), folder))
        except LovecError as error:
            left_out.append(f"No training curves of {name}: {error}.")
    on_plot("reward")
    return [*plots, *_reward_plots(run, folder, left_out)], left_out


def _times_plot(run: RunResults, folder: Path) -> Iterator[Picture]:
    """Yield a plot of running times per data set, if there are any."""
    every = timings(run)
    for data in dict.fromkeys(timing.data for timing in every):
        yield from _times_on(data, [timing for timing in every if timing.data == data], run, folder)


def _times_on(data: str, all_timings: Sequence[Timing], run: RunResults, folder: Path) -> Iterator[Picture]:
    """Yield the plot of the running times on one data set, unless there is nothing to draw."""
    plain = plain_answer_seconds(all_timings).get(data)
    seconds: dict[str, dict[str, float]] = {}
    spreads: dict[str, tuple[float, float]] = {}
    left_out: list[str] = []
    order = [row.method for row in run.rows]
    for timing in sorted(all_timings, key=lambda timing: [*order, timing.method].index(timing.method)):
        if timing.kind == "answers":
            seconds[timing.method] = {"answer": timing.total}
        elif timing.kind in KINDS:
            waiting = {"answer": plain} if plain is not None and timing.mode == "iterative" else {}
            name = f"{timing.method}, {timing.mode}"
            seconds[name] = {**waiting, **timing.needed}
            waited = sum(waiting.values())
            spreads[name] = timing.spread[0] + waited, timing.spread[1] + waited
        else:
            left_out.append(f"{timing.method} ({timing.kind})")
    if seconds:
        base, shared = free_form_seconds(all_timings).get(data), conditions(all_timings)
        title = _title("times", data) + " (not alone on the machine)" * bool(shared)
        write = partial(running_times, few_phases(seconds), title=title, base=base, spreads=spreads)
        notes = [shared, f"Not drawn: {', '.join(left_out)}." if left_out else ""]
        path = folder / f"times{f'.{slug(data)}' if data else ''}.svg"
        picture = _picture("times", write_both(write, path))
        yield replace(picture, title=title, note=" ".join(filter(None, notes)))


def _curves_plot(name: str, folders: Sequence[Path], folder: Path) -> Picture:
    """Draw the training curves of the runs whose folders have the same name, one colour per seed."""
    drawn, left_out = folders[: len(COLOURS)], [path.parent.name for path in folders[len(COLOURS) :]]
    logs = [replace(read_training_log(path), name=path.parent.name) for path in drawn]
    path = write_both(partial(write_curves, logs), folder / f"training.{slug(name)}.svg")
    colours = f"there are {len(COLOURS)} colours that can be told apart"
    note = f"{len(drawn)} of {len(folders)} runs. Not drawn: {', '.join(left_out)} ({colours})." if left_out else ""
    return replace(_picture("training", path, name), note=note)


def _reward_plots(run: RunResults, folder: Path, left_out: list[str]) -> Iterator[Picture]:
    """Yield a plot of the rewards that the runs were trained with, one per confidence scale; others are named."""
    by_scale: dict[Scale, dict[str, Reward]] = {}
    for log in run.logs:
        name, found = _training_reward(run.recipes.get(log, {}))
        if found is not None:
            by_scale.setdefault(found[1], {})[log.name] = found[0]
        elif name:
            left_out.append(
                f"No plot of the reward of {log.name}: {short(name)} with its options is not of this lovec."
            )
    for scale, named in by_scale.items():
        suffix = "" if scale == DEFAULT_SCALE else f".{slug(f'{scale.words[0]} to {scale.words[-1]}')}"
        write = partial(reward_surface, named, title=_title("reward"), scale=scale)
        yield _picture("reward", write_both(write, folder / f"reward{suffix}.svg"), themed=False)


def _training_reward(recipe: Mapping[str, Any]) -> tuple[str, tuple[Reward, Scale] | None]:
    """Return the class of the reward in a run's recipe, "" for none, and the reward with its scale.

    Rewards of other packages are not imported, and those with options of another version cannot be drawn: None.
    """
    options = inside(recipe, "model", "init_args") or inside(recipe, "model")
    reward, words = inside(options, "reward"), inside(options, "policy").get("scale")
    given = str(reward.get("class_path") or "")
    module, _, name = given.rpartition(".")
    if module == "lovec.rewards" and name in ("LogReward", "QuadraticReward", "LinearReward"):
        with suppress(TypeError, LovecError):
            scale = Scale(tuple(words)) if words else DEFAULT_SCALE
            return given, (getattr(rewards, name)(**inside(reward, "init_args")), scale)
    return given, None


def _title(name: str, place: str = "") -> str:
    """Return the title of a plot in texts.yaml, with what it shows behind it."""
    title = texts()["plots"][name]["title"]
    return f"{title}: {place}" if place else title


def _picture(name: str, path: Path, place: str = "", themed: bool = True) -> Picture:
    caption = texts()["plots"][name]["caption"]
    return Picture(path.stem, _title(name, place), caption, path.read_text(encoding="utf-8"), themed)
