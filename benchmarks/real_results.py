"""The figures of benchmarks/real.py: entries of real.json, how they are merged, and 95 % intervals from tagged files.

An entry holds the rows of one method, trained with one seed or tested on one fold, and what they took. Intervals draw
people, cities or questions again, and training seeds (``lovec.metrics.bootstrap``). The folds of people's labels test
different people each, and are pooled: there every answer is measured once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import CALIBRATION, interval_values
from real_scores import VARIANT, Place, Scored
from torch import Tensor

from lovec.metrics.bootstrap import Resampled, resample
from lovec.types import FREE_FORM, ResultRow

METRICS = (*CALIBRATION, "order")
"""Metrics that tables show; order only where sentences name what they claim."""
COLUMNS = (
    "method",
    "domain",
    "mode",
    "level",
    "readout",
    "n",
    *METRICS,
    "malformed",
    "mean_confidence",
    "mean_factuality",
)
"""Fields of a row of real.json."""
KEY = ("data", "method", "seed")
"""What tells entries apart."""
REFERENCES = ("SFT", "Words", "Best constant")
"""Methods that every other one is compared with, where they were measured on the same answers."""
DPO_HIGHER = "DPO, higher rate"
TRAINED = ("SFT", "SFT-2", "SFT-regression", "ORPO", "DPO", DPO_HIGHER, "GRPO", "ExpectedReward", "Distil")
"""Methods that are trained to state scores."""
WITHOUT = ("Words", "Likelihood", "Probe")
"""What they have to beat: the words alone, the base model's likelihood and its hidden states."""
CLAIMS = (
    *((method, other) for method in TRAINED for other in ("Vanilla", "Best constant")),
    *((method, other) for method in ("DPO", DPO_HIGHER) for other in ("SFT", "SFT-2")),
    (DPO_HIGHER, "DPO"),
    ("GRPO", "SFT"),
    ("GRPO", "SFT-2"),
    *(("DPO", other) for other in ("p(true)", "p(true)-ft", "Verb-Conf", "Self-Cons", "LUQ")),
    *(("ExpectedReward", other) for other in ("SFT-2", "DPO", *WITHOUT)),
    *(("Distil", other) for other in ("SFT-2", "DPO", "ExpectedReward", *WITHOUT)),
    ("ExpectedReward", "ExpectedReward, own scores"),
    ("Words", "Best constant"),
    ("Likelihood", "Best constant"),
    ("Probe", "Best constant"),
    ("Probe", "Words"),
)
"""Pairs of methods of which the first is claimed to be better, by the paper and by us."""
DRAWN = ("SFT", "DPO", "ExpectedReward", "Distil")
"""Methods whose confidences are given by population."""
TENTHS = 10

_NOT_NEEDED = {FREE_FORM: ("scoring",)}  # phases that only fill in the distributions over scores


def read_results_file(path: Path) -> dict[str, Any]:
    """Return the content of real.json, or that of one without results."""
    if not path.exists():
        return {"columns": list(COLUMNS), "entries": [], "intervals": [], "population": []}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def entry_of(
    place: Mapping[str, Any], note: Mapping[str, Any], rows: Iterable[ResultRow], times: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the entry of one method of a test.

    Args:
        place: ``data``, ``method``, ``seed`` and ``model``.
        note: when, where and how it was run, with seconds of ``fit`` and ``test``.
        rows: all rows of the test.
        times: content of its times.json.
    """
    method = place["method"]
    return {
        **place,
        **{name: value for name, value in note.items() if name != "world"},
        "rows": [stored_row(row) for row in rows if _is_kept(row, method)],
        "times": [_per_answer(entry) for entry in times if entry["method"] == method and entry["records"]],
    }


def stored_row(row: ResultRow) -> list[Any]:
    """Return the values of ``COLUMNS`` of a row; metrics have four decimals, and None where they are undefined."""
    values = [getattr(row, name) if hasattr(row, name) else row.metrics.get(name) for name in COLUMNS]
    return [round(value, 4) if isinstance(value, float) else value for value in values]


def _is_kept(row: ResultRow, method: str) -> bool:
    """Return whether a row of a test is one of a method: its own, or at sentence level after a map."""
    if row.method == method:
        return row.readout != "deployed" or row.level == "sentence"
    return row.bases == (method,) and row.variant == VARIANT and row.level == "sentence"


def _per_answer(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds that a tagged answer needs, of the clock and of the processor."""
    spared = _NOT_NEEDED.get(entry["mode"], ())

    def total(clock: str) -> float:
        return sum(spent for phase, spent in entry[clock].items() if phase not in spared) / entry["records"]

    return {
        "mode": entry["mode"],
        "answers": entry["records"],
        "seconds": round(total("seconds"), 4),
        "cpu_seconds": round(total("cpu_seconds"), 4),
    }


def merged(results: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return results with new entries, in place of those of the same data, method and seed."""
    new = {tuple(entry[name] for name in KEY): entry for entry in entries}
    kept = [entry for entry in results["entries"] if tuple(entry[name] for name in KEY) not in new]
    ordered = sorted([*kept, *new.values()], key=lambda entry: tuple(entry[name] for name in KEY))
    return {**results, "columns": list(COLUMNS), "entries": ordered}


def collect(
    results: Mapping[str, Any], data: str, tests: Mapping[int, Mapping[Place, Scored]], folded: bool
) -> dict[str, Any]:
    """Return results with the intervals of a data set, and its confidences by population, from all kept tests.

    What was computed from more seeds than are kept stays.

    Args:
        results: content of real.json.
        data: name of the data set.
        tests: what was scored, by seed.
        folded: whether seeds are folds with different answers, which are pooled.
    """
    found: dict[Place, dict[int, Scored]] = {}
    for seed, scored in sorted(tests.items()):
        for at, values in scored.items():
            found.setdefault(at, {})[seed] = values
    place = ("data", "method", "against", "domain", "mode", "readout")
    new = {
        "intervals": _newest(results["intervals"], list(_intervals(data, found, folded)), place),
        "population": _newest(results["population"], list(_population(data, found)), ("data", "method", "mode")),
    }
    return {**results, **new}


def _newest(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    """Return entries by place: the new one, unless the old one is of more seeds."""
    entries = {tuple(str(entry[name]) for name in names): entry for entry in old}
    for entry in new:
        key = tuple(str(entry[name]) for name in names)
        if key not in entries or len(entries[key]["seeds"]) <= len(entry["seeds"]):
            entries[key] = entry
    return [entries[key] for key in sorted(entries)]


def _intervals(data: str, found: Mapping[Place, Mapping[int, Scored]], folded: bool) -> Iterator[dict[str, Any]]:
    """Yield the intervals of every method, and of its differences to others over the seeds that both have."""
    resampled: dict[tuple[Place, tuple[int, ...]], Resampled | None] = {}

    def drawn(place: Place, seeds: Sequence[int]) -> Resampled | None:
        key = place, tuple(seeds)
        if key not in resampled:
            resampled[key] = _resampled(data, place, [found[place][seed] for seed in seeds], folded)
        return resampled[key]

    for place, tests in found.items():
        others = [other for other in REFERENCES if other != place.method]
        others += [other for first, other in CLAIMS if first == place.method and other not in others]
        if (own := drawn(place, sorted(tests))) is None:
            continue
        yield _entry(data, sorted(tests), place, None, interval_values(own))
        for other in others:
            against = place._replace(method=other)
            if against not in found:  # a confidence without a distribution is compared with every readout
                against = against._replace(readout="stated")
            seeds = sorted(tests.keys() & found.get(against, {}).keys())
            pair = [drawn(at, seeds) for at in (place, against)] if seeds else [None]
            sides = [side for side in pair if side is not None]
            if len(sides) == 2 and sides[0].questions == sides[1].questions:
                yield _entry(data, seeds, place, other, interval_values(*_alike(*sides)))


def _resampled(data: str, place: Place, tests: Sequence[Scored], folded: bool) -> Resampled | None:
    """Return the draws of the tests of a method, with order where it can be told; None where there are no pairs."""
    runs = [scored.pairs for scored in tests]
    if folded:
        runs = [{name: pairs for run in runs for name, pairs in run.items()}]
    if not any(confidences for run in runs for confidences, _ in run.values()):
        return None
    print(f"intervals of {data}: {', '.join(place)}", flush=True)
    drawn = resample(runs, bases=[data] * len(runs))
    orders = [claim_pairs(scored) for scored in tests]
    if not all(orders) or folded:
        return drawn
    order = order_draws(orders, drawn.questions, len(drawn.metrics["brier"]) - 1)
    return replace(drawn, metrics={**drawn.metrics, "order": order})


def _alike(*methods: Resampled) -> list[Resampled]:
    """Return draws with the metrics that all of them have."""
    names = [name for name in methods[0].metrics if all(name in method.metrics for method in methods)]
    return [replace(method, metrics={name: method.metrics[name] for name in names}) for method in methods]


def claim_pairs(scored: Scored) -> list[tuple[str, str, float]]:
    """Return all pairs of sentences that claim the same and are not equally true.

    Args:
        scored: answers, whose sentences may name what they claim.

    Returns:
        What is drawn again of both sentences, and 1 where the truer one has the higher confidence, 0.5 where both have
        the same, else 0.
    """
    claims: dict[str, list[tuple[str, float, float]]] = {}
    for answer, row in zip(scored.answers, scored.confidences, strict=True):
        for claim, factuality, confidence in zip(answer.claims, answer.truth, row, strict=True):
            if claim is not None and factuality is not None and confidence is not None:
                claims.setdefault(claim, []).append((answer.drawn, factuality, confidence))
    pairs = (pair for sentences in claims.values() for pair in combinations(sentences, 2))
    return [(a, b, 0.5 if c == d else float((c > d) == (f > g))) for (a, f, c), (b, g, d) in pairs if f != g]


def order_draws(
    runs: Sequence[Sequence[tuple[str, str, float]]], questions: Sequence[str], draws: int, seed: int = 0
) -> Tensor:
    """Return order among equal claims on all questions and on draws of questions and of training seeds, [1 + draws].

    A pair counts as often as both of its questions were drawn. The draws are the same for all methods.

    Args:
        runs: pairs of every training seed, see `claim_pairs`.
        questions: all questions, in an order that all methods share.
        draws: number of draws.
        seed: seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.ones(1 + draws, len(questions), dtype=torch.float64)
    chosen = torch.randint(len(questions), (draws, len(questions)), generator=generator)
    counts[1:] = torch.zeros_like(counts[1:]).scatter_add_(1, chosen, torch.ones_like(counts[1:]))
    at = {question: number for number, question in enumerate(questions)}
    values = []
    for pairs in runs:
        weights = counts[:, [at[a] for a, _, _ in pairs]] * counts[:, [at[b] for _, b, _ in pairs]]
        right = torch.tensor([value for _, _, value in pairs], dtype=torch.float64)
        values.append(weights @ right / weights.sum(1))
    of_run, rng = torch.stack(values, dim=1), random.Random(f"{seed}/runs")
    picked = [range(len(runs)), *(rng.choices(range(len(runs)), k=len(runs)) for _ in range(draws))]
    return torch.stack([of_run[row, list(members)].mean() for row, members in enumerate(picked)])


def _entry(
    data: str, seeds: Sequence[int], place: Place, against: str | None, values: Mapping[str, Any]
) -> dict[str, Any]:
    where = {"data": data, **place._asdict(), "against": against, "seeds": seeds}
    rounded = {name: ends and [round(end, 4) for end in ends] for name, ends in values.items()}
    return {**where, **rounded}


def _population(data: str, found: Mapping[Place, Mapping[int, Scored]]) -> Iterator[dict[str, Any]]:
    """Yield stated confidence, mean readout and truth by tenths of population, where answers have a population."""
    for place, tests in found.items():
        if place.method in DRAWN and (place.domain, place.readout) == ("in-domain", "stated"):
            means = found.get(place._replace(readout="mean"), {})
            readouts = {"stated": [*tests.values()], "mean": [means[seed] for seed in tests if seed in means]}
            if tenths := by_population(readouts):  # none where nothing that was written can be judged
                yield {
                    "data": data,
                    "method": place.method,
                    "mode": place.mode,
                    "seeds": sorted(tests),
                    "tenths": tenths,
                }


def by_population(readouts: Mapping[str, Sequence[Scored]], parts: int = TENTHS) -> list[dict[str, float]]:
    """Return truth and confidences by population, from the smallest part of the places to the largest.

    Args:
        readouts: answers and their confidences, of every seed, by readout; several answers about a place count to one
            part.
        parts: number of equally large parts.

    Returns:
        Mappings with ``population`` (the median), ``truth``, the mean confidence of each readout, and ``n`` sentences;
        a part in which no sentence has such a confidence lacks it. Empty where the population of a place is not known.
    """
    rows = [  # population and question, readout, truths and confidences
        ((answer.inhabitants, answer.question), readout, [*zip(answer.truth, row, strict=True)])
        for readout, tests in readouts.items()
        for scored in tests
        for answer, row in zip(scored.answers, scored.confidences, strict=True)
    ]
    places = sorted({(inhabitants, question) for (inhabitants, question), *_ in rows if inhabitants is not None})
    if len(places) < len({place for place, *_ in rows}):
        return []
    part_of = {place: at * parts // len(places) for at, place in enumerate(places)}
    found = []
    for part in range(parts):
        members = [place for place in places if part_of[place] == part]
        inside: dict[str, list[tuple[float, float | None]]] = {}
        for place, readout, sentences in rows:
            if part_of[place] == part:
                inside.setdefault(readout, []).extend((f, c) for f, c in sentences if f is not None)
        first = next((sentences for sentences in inside.values() if sentences), None)
        if first is None:
            continue
        values = {"population": members[len(members) // 2][0], "n": len(first)}
        values["truth"] = round(mean(truth for truth, _ in first), 4)
        for readout, sentences in inside.items():
            if confidences := [c for _, c in sentences if c is not None]:
                values[readout] = round(mean(confidences), 4)
        found.append(values)
    return found
