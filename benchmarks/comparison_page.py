"""The comparison as Markdown: what holds, all rows, and what they take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]

FIGURES = {"brier": "BS", "ece_m": "ECE-M", "spearman": "SC"}
LOWER = {"brier": True, "ece_m": True, "spearman": False}
MODES = {"iterative": "Iterative tagging and baselines: the text is given", "free-form": "Free-form: text and scores"}
WRITER = "DPO"
"""The method whose free-form answers running times are held against."""


def page(results: Mapping[str, Any]) -> str:
    """docs/comparison.md."""
    seeds = sorted({row["seed"] for row in results["rows"]})
    part = "" if results["part"] == 1 else f" Only {100 * results['part']:g} % of the test records: a trial."
    lines = [
        "# Every baseline and every method on the embedded world",
        "",
        f"Written by `benchmarks/comparison.py`; the numbers are in `benchmarks/results/comparison.json`. Means over "
        f"{len(seeds)} seed(s); {results['date']}, commit {results['commit']}; {results['machine']}.{part} All rows of "
        f"a seed come from one `lovec test --config comparison.yaml`, which took "
        f"{statistics.median(results['seconds'].values()) / 60:.1f} minutes (median). The judge of Self-Cons and LUQ "
        "is the exact comparison of facts, better than any judge there is for real text.",
        *_claims(results["intervals"]),
        *_times(results["times"]),
    ]
    for domain in dict.fromkeys(row["domain"] for row in results["rows"]):
        for mode, said in MODES.items():
            lines += _table(results, domain, mode, said)
    return "\n".join(lines) + "\n"


def _claims(entries: Rows) -> list[str]:
    """What holds and what does not: differences with intervals, by domain."""
    lines = [
        "",
        "## What holds and what does not",
        "",
        "Sentence level, stated score, percent: the first method minus the second, with 95 % intervals over questions "
        "(drawn 2000 times, the same ones for both and for all seeds). *holds*: the first is better in all three "
        "figures, beyond the interval; otherwise the figures in which it is better or worse are named.",
    ]
    for domain in dict.fromkeys(entry["domain"] for entry in entries):
        lines += ["", f"### {domain}", "", "| Better than | Mode | BS | ECE-M | SC | |", "|---|---|---|---|---|---|"]
        for entry in entries:
            if entry["against"] is not None and entry["domain"] == domain:
                cells = [_interval(entry[figure]) for figure in FIGURES]
                name = f"{entry['method']}, than {entry['against']}"
                lines.append(f"| {name} | {entry['mode']} | " + " | ".join([*cells, verdict(entry)]) + " |")
    return lines


def verdict(entry: Mapping[str, Any]) -> str:
    """Whether a comparison holds: "holds", or in which figures the first is better or worse; "not shown" if in none."""
    better = {name: _better(name, entry[name]) for name in FIGURES}
    if all(side == 1 for side in better.values()):
        return "holds"
    said = [
        f"{word}: {', '.join(FIGURES[name] for name, side in better.items() if side == which)}"
        for word, which in (("better", 1), ("worse", -1))
        if which in better.values()
    ]
    return "; ".join(said) or "not shown"


def _better(figure: str, ends: Sequence[float] | None) -> int:
    """1 where the whole interval of a difference is on the better side, -1 on the worse one, else 0."""
    if ends is None:
        return 0
    _, low, high = (round(100 * end, 1) for end in ends)  # as it is shown
    side = 0 if low <= 0 <= high else 1 if low > 0 else -1
    return -side if LOWER[figure] else side


def _times(times: Rows) -> list[str]:
    """Seconds of every method by phase, and LUQ's as a multiple of free-form tagging's."""
    lines = ["", "## Running time", ""]
    if ratio := luq_ratio(times):
        lines += [
            f"LUQ takes {ratio['total']:.1f} times as long as {WRITER} takes to write answers and scores: its samples "
            f"{ratio['sampling']:.1f} times, its judge {ratio['judging']:.2f} times, and the answer itself, which must "
            f"be there first, {ratio['answer']:.1f} times. (Medians over seeds of the ratios, same process, same "
            "questions, same engine. The judge here compares facts; a model that judges costs more.)",
            "",
        ]
    lines += [
        "Seconds for all test questions, median over seeds, one thread. *writing*: text, with scores where the method "
        "writes them; *scoring*: scores of given text, or, in free-form, the distributions beside the written scores.",
        "",
        "| Method | Mode | writing | sampling | judging | scoring | a second: sentences |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for place in dict.fromkeys((row["method"], row["mode"]) for row in times):
        rows = [row for row in times if (row["method"], row["mode"]) == place]
        cells = [_median(rows, lambda r, p=phase: r["seconds"].get(p)) for phase in PHASES]  # type: ignore[misc]
        speed = statistics.median(row["sentences"] / sum(row["seconds"].values()) for row in rows)
        lines.append(f"| {place[0]} | {place[1]} | " + " | ".join([*cells, f"{speed:.0f}"]) + " |")
    return lines


PHASES = ("writing", "sampling", "judging", "scoring")


def luq_ratio(times: Rows) -> dict[str, float]:
    """What LUQ takes, part by part, over what a method takes to write a tagged answer; medians over seeds."""
    found: dict[str, list[float]] = {"total": [], "answer": [], "sampling": [], "judging": []}
    for seed in dict.fromkeys(row["seed"] for row in times):
        own = {(row["method"], row["mode"]): row["seconds"] for row in times if row["seed"] == seed}
        parts = [own.get(place) for place in (("LUQ", "iterative"), ("Answers", "free-form"), (WRITER, "free-form"))]
        if None in parts:
            return {}
        luq, answers, written = parts
        whole = {"answer": answers["writing"], "sampling": luq["sampling"], "judging": luq["judging"]}  # type: ignore[index]
        for name, seconds in {**whole, "total": sum(whole.values())}.items():
            found[name].append(seconds / written["writing"])  # type: ignore[index]
    return {name: statistics.median(values) for name, values in found.items() if values}


def _table(results: Mapping[str, Any], domain: str, mode: str, said: str) -> list[str]:
    """All rows of a domain and mode."""
    rows = [r for r in results["rows"] if (r["domain"], r["mode"], r["readout"]) == (domain, mode, "stated")]
    if not rows:
        return []
    ends = {
        e["method"]: e for e in results["intervals"] if (e["domain"], e["mode"], e["against"]) == (domain, mode, None)
    }
    lines = [
        "",
        f"## {domain}: {said}",
        "",
        "| Method | BS | ECE-M | SC | AURC | bad tags | c | f |",
        "|---|---|---|---|--:|--:|--:|--:|",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = [_interval(ends.get(method, {}).get(name), signed=False) or _mean(own, name) for name in FIGURES]
        others = [_mean(own, name) for name in ("aurc", "malformed", "mean_confidence", "mean_factuality")]
        lines.append(f"| {method} | " + " | ".join([*cells, *others]) + " |")
    return lines


def _interval(ends: Sequence[float] | None, signed: bool = True) -> str:
    """A figure in percent with its interval; "" where there is none."""
    if ends is None:
        return ""
    sign = "+" if signed else ""
    value, low, high = (f"{round(100 * end, 1) + 0.0:{sign}.1f}" for end in ends)  # no -0.0
    return f"{value} ({low} to {high})"


def _mean(rows: Rows, name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{100 * statistics.mean(values):.1f}" if values else "-"


def _median(rows: Rows, of: Callable[[Mapping[str, Any]], float | None]) -> str:
    values: Iterable[float] = [value for row in rows if (value := of(row)) is not None]
    return f"{statistics.median(values):.1f}" if values else ""
