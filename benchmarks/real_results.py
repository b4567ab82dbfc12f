"""The figures of benchmarks/real.py: entries of real.json, how they are merged, and 95 % intervals from tagged files.

An entry holds the rows of one method, trained with one seed or tested on one fold, and what they took. Intervals draw
people, cities or questions again, and training seeds (``lovec.metrics.bootstrap``). The folds of people's labels test
different people each, and are pooled: there every answer is measured once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import CALIBRATION, interval_values
from torch import Tensor

from lovec.datasets.jsonl import read_records
from lovec.metrics.bootstrap import Resampled, resample
from lovec.metrics.records import confidence_of, sentence_pairs
from lovec.results import read_results
from lovec.types import FREE_FORM, Record, ResultRow

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
VARIANT = "isotonic"
"""The map whose rows are kept."""
REFERENCES = ("SFT", "Words", "Best constant")
"""Methods that every other one is compared with, where they were measured on the same answers."""
TRAINED = ("SFT", "SFT-2", "SFT-regression", "ORPO", "DPO", "GRPO", "ExpectedReward", "Distil")
"""Methods that are trained to state scores."""
WITHOUT = ("Words", "Likelihood", "Probe")
"""What they have to beat: the words alone, the base model's likelihood and its hidden states."""
CLAIMS = (
    *((method, other) for method in TRAINED for other in ("Vanilla", "Best constant")),
    ("DPO", "SFT"),
    ("DPO", "SFT-2"),
    ("GRPO", "SFT"),
    ("GRPO", "SFT-2"),
    *(("DPO", other) for other in ("p(true)", "p(true)-ft", "Verb-Conf", "Self-Cons", "LUQ")),
    *(("ExpectedReward", other) for other in ("SFT-2", "DPO", *WITHOUT)),
    *(("Distil", other) for other in ("SFT-2", "DPO", "ExpectedReward", *WITHOUT)),
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
    results: Mapping[str, Any], data: str, tested: Mapping[str, Mapping[int, Path]], folded: bool
) -> dict[str, Any]:
    """Return results with the intervals of a data set, and its confidences by population, from all finished tests.

    What was computed from more seeds than are at hand stays.

    Args:
        results: content of real.json.
        data: name of the data set.
        tested: folders with the results of tests, by run and seed.
        folded: whether seeds are folds with different answers, which are pooled.
    """
    found = Found.of(tested)
    place = ("data", "method", "against", "domain", "mode", "readout")
    new = {
        "intervals": _newest(results["intervals"], list(_intervals(data, found, folded)), place),
        "population": _newest(results["population"], list(_population(data, found)), ("data", "method", "mode")),
    }
    return {**results, **new}


def _newest(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    """Return entries by place: the new one, unless the old one is of seeds that the new one lacks."""
    entries = {tuple(str(entry[name]) for name in names): entry for entry in old}
    for entry in new:
        key = tuple(str(entry[name]) for name in names)
        if key not in entries or {*entries[key]["seeds"]} <= {*entry["seeds"]}:
            entries[key] = entry
    return [entries[key] for key in sorted(entries)]


@dataclass(frozen=True, slots=True)
class Found:
    """The tagged files of tests.

    Attributes:
        files: file and the readout under which it holds the confidences, by seed, by method, domain, mode and readout.
    """

    files: dict[tuple[str, str, str, str], dict[int, tuple[Path, str]]]

    @classmethod
    def of(cls, tested: Mapping[str, Mapping[int, Path]]) -> Found:
        """Return the files of tests, by run and seed."""
        files: dict[tuple[str, str, str, str], dict[int, tuple[Path, str]]] = {}
        for folders in tested.values():
            for seed, folder in folders.items():
                for row in read_results(folder / "results.json").rows:
                    if row.level == "sentence" and row.variant in (None, VARIANT) and row.file and row.kind != "hybrid":
                        # A confidence that was mapped has no distribution: it is stored as if it were stated.
                        stored = row.readout if row.variant is None and row.readout != "deployed" else "stated"
                        place = (row.method, row.domain, row.mode, row.readout)
                        files.setdefault(place, {}).setdefault(seed, (folder / row.file, stored))
        return cls(files)


def _intervals(data: str, found: Found, folded: bool) -> Iterator[dict[str, Any]]:
    drawn: dict[tuple[str, str, str, str], Resampled] = {}
    for place, files in found.files.items():
        domain = place[1]
        answers = [(records_in(path, domain), stored) for _, (path, stored) in sorted(files.items())]
        runs = [pairs_of(records, stored) for records, stored in answers]
        if folded:
            runs = [{name: pairs for run in runs for name, pairs in run.items()}]
        if any(confidences for run in runs for confidences, _ in run.values()):
            print(f"intervals of {data}: {', '.join(place)}", flush=True)
            drawn[place] = resample(runs, bases=[data] * len(runs))
            orders = [claim_pairs(records, stored) for records, stored in answers]
            if all(orders) and not folded:
                order = order_draws(orders, drawn[place].questions, len(drawn[place].metrics["brier"]) - 1)
                drawn[place] = replace(drawn[place], metrics={**drawn[place].metrics, "order": order})
    for place in drawn:
        method, domain, mode, readout = place
        others = [other for other in REFERENCES if other != method]
        others += [other for first, other in CLAIMS if first == method and other not in others]
        yield _entry(data, found, place, None, interval_values(drawn[place]))
        for other in others:
            against = (other, domain, mode, readout)
            if against not in drawn:  # a confidence without a distribution is compared with every readout
                against = (other, domain, mode, "stated")
            if against in drawn and drawn[against].questions == drawn[place].questions:
                yield _entry(data, found, place, other, interval_values(*_alike(drawn[place], drawn[against])))


def _alike(*methods: Resampled) -> list[Resampled]:
    """Return draws with the metrics that all of them have."""
    names = [name for name in methods[0].metrics if all(name in method.metrics for method in methods)]
    return [replace(method, metrics={name: method.metrics[name] for name in names}) for method in methods]


def claim_pairs(records: Iterable[Record], readout: str) -> list[tuple[str, str, float]]:
    """Return all pairs of sentences that claim the same and are not equally true.

    Args:
        records: tagged and labelled answers, whose sentences may name what they claim.
        readout: see ``lovec.metrics.records.confidence_of``.

    Returns:
        The questions of both sentences, and 1 where the truer one has the higher confidence, 0.5 where both have the
        same, else 0.
    """
    claims: dict[str, list[tuple[str, float, float]]] = {}
    for record in records:
        for s in record.sentences:
            confidence = confidence_of(s, readout)
            if s.claim is not None and s.factuality is not None and confidence is not None:
                claims.setdefault(s.claim, []).append((question_of(record), s.factuality, confidence))
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


def question_of(record: Record) -> str:
    """Return what is drawn again with all its sentences: a person with all answers about it, or an answer."""
    return str(record.meta.get("person", record.id))


def _entry(
    data: str, found: Found, place: tuple[str, str, str, str], against: str | None, values: Mapping[str, Any]
) -> dict[str, Any]:
    method, domain, mode, readout = place
    where = {"data": data, "method": method, "against": against, "domain": domain, "mode": mode, "readout": readout}
    rounded = {name: ends and [round(end, 4) for end in ends] for name, ends in values.items()}
    return {**where, "seeds": sorted(found.files[place]), **rounded}


def records_in(path: Path, domain: str) -> list[Record]:
    """Return the records of a file that belong to a domain."""
    return [record for record in read_records(path) if record.domain == domain]


def pairs_of(records: Iterable[Record], readout: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return confidences and factualities by what is drawn again, see `question_of`."""
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        confidences, factualities = pairs.setdefault(question_of(record), ([], []))
        found = sentence_pairs([record], readout)
        confidences += found[0]
        factualities += found[1]
    return pairs


def _population(data: str, found: Found) -> Iterator[dict[str, Any]]:
    """Yield stated confidence, mean readout and truth by tenths of population, where answers have a population."""
    for (method, domain, mode, readout), files in found.files.items():
        if method in DRAWN and (domain, readout) == ("in-domain", "stated"):
            records = [record for path, _ in files.values() for record in records_in(path, domain)]
            known = all("inhabitants" in record.meta for record in records)
            if known and (tenths := by_population(records)):  # none where nothing that was written can be judged
                yield {"data": data, "method": method, "mode": mode, "seeds": sorted(files), "tenths": tenths}


def by_population(records: Sequence[Record], parts: int = TENTHS) -> list[dict[str, float]]:
    """Return truth and confidences by population, from the smallest part of the places to the largest.

    Args:
        records: tagged and labelled answers with ``meta["inhabitants"]``; several about a place count to one part.
        parts: number of equally large parts.

    Returns:
        Mappings with ``population`` (the median), ``truth``, ``stated``, ``mean`` (of the distributions) and ``n``
        sentences; a part in which no sentence has such a confidence lacks it.
    """
    places = sorted({(float(record.meta["inhabitants"]), record.question) for record in records})
    part_of = {place: at * parts // len(places) for at, place in enumerate(places)}
    found = []
    for part in range(parts):
        members = [place for place in places if part_of[place] == part]
        inside = [r for r in records if part_of[float(r.meta["inhabitants"]), r.question] == part]
        sentences = [s for record in inside for s in record.sentences if s.factuality is not None]
        if not sentences:
            continue
        values = {"population": members[len(members) // 2][0], "n": len(sentences)}
        values["truth"] = round(mean(s.factuality for s in sentences if s.factuality is not None), 4)
        for readout in ("stated", "mean"):
            confidences = [c for s in sentences if (c := confidence_of(s, readout)) is not None]
            if confidences:
                values[readout] = round(mean(confidences), 4)
        found.append(values)
    return found
