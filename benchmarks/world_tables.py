"""The results of the embedded world as Markdown: the short tables of README, and all of them for docs/results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import CALIBRATION, HEADINGS, interval_text, mean_text, seeds_of, select, side, world_text

from lovec.metrics.table import METRICS
from lovec.types import ResultRow

METHODS = (
    "Best constant",
    "Vanilla",
    "SFT",
    "SFT + isotonic",
    "SFT-2",
    "ORPO",
    "DPO",
    "GRPO",
    "ExpectedReward",
    "Distil",
)
MODES = {"iterative": "Text given", "free-form": "Free-form"}
DOMAINS = ("in-domain", "other questions", "one fact", "out-of-domain")
CLAIMS = (
    ("DPO", "SFT"),
    ("GRPO", "SFT"),
    ("DPO", "SFT-2"),
    ("GRPO", "SFT-2"),
    ("ExpectedReward", "SFT-2"),
    ("ExpectedReward", "DPO"),
    ("ExpectedReward", "GRPO"),
    ("ExpectedReward", "SFT + isotonic"),
    ("ExpectedReward", "Best constant"),
    ("Distil", "SFT-2"),
    ("Distil", "DPO"),
    ("Distil", "GRPO"),
    ("Distil", "ExpectedReward"),
    ("Distil", "SFT + isotonic"),
    ("Distil", "Best constant"),
)
"""Pairs of methods of which the first is claimed to be better, by the paper and by us."""
FINDINGS = """
- **A second epoch of SFT does what DPO does.** The paper finds DPO and GRPO better than SFT that goes on for as long;
  here only GRPO's ECE-M in free-form answers is. `dpo.yaml` carries an SFT term, without which free-form tags break: it
  is a second epoch of SFT with a preference term. Wrong scores are drawn at random and are mostly far from the truth;
  three quarters of the pairs and more are told apart after fifty steps, and how far off a score is, is not learned from
  them. Some tags break all the same (`malformed`).
- **GRPO is underconfident, and varies with the seed.** It learns from rollouts at temperature 0.7, which are less
  true than the greedy answers it is measured on; at temperature 1 it fails. An epoch is 60 steps here, 5667
  in the paper, and it writes fewer words. The paper finds its log reward best by far; on one seed of the validation
  people ([ablations](ablation.md)) quadratic and linear rewards do as well, and more rollouts per question lower ECE-M.
- **Expected reward is best by its stated score.** Its BS is lower than that of SFT recalibrated by isotonic regression
  on the validation people, which keeps SFT's SC; its ECE-M is not. Read by the mean of its distribution SFT has a lower
  BS than expected reward has by its stated score. SFT learns a good distribution and states its mode; expected reward
  moves the stated score to where the mean was. It does so with two scores only: on every seed it states 5 or 10 and
  nothing else, where the others state two to six ([why](ablation.md)). The mean of its distribution tells sentences
  apart better than that. Without its text term it destroys free-form answers; whether earlier scores in the context are
  its own or the true ones made no difference on one seed, nor did the linear reward do worse than the proper one,
  though the log reward did (ablations).
- **Out of domain no stated score beats the best constant.** All methods are overconfident in sentences about companies,
  and after fine-tuning these sentences are less true.
"""
"""What the tables do not show by themselves; to be read again whenever the benchmark is run again."""

Entry = Mapping[str, Any]


def table(results: Mapping[str, Any]) -> str:
    """Return README's table: in domain, per sentence, stated score; means over seeds, with intervals."""
    lines = ["| Method | BS | minus SFT's | ECE-M | SC |", "|---|---|---|---|---|"]
    for mode, heading in MODES.items():
        lines.append(f"| **{heading}** | | | | |")
        for method in METHODS:  # five columns are as wide as a phone
            if rows := select(results["rows"], method=method, mode=mode):
                (entry,) = _comparison(results, method, "SFT", mode) or [{}]
                brier, *others = (mean_text(rows, name) for name in CALIBRATION)
                cells = [method, brier, _interval(entry.get("brier"), True), *others]
                lines.append(f"| {' | '.join(cells)} |")
    sentences = select(results["rows"], method="SFT", mode="iterative")[0].n
    seeds = len(seeds_of(results["rows"]))
    lines += [
        "",
        f"Percent; mean over {seeds} seeds, in brackets the 95 % interval of the difference to SFT, over things "
        f"and seeds; malformed tags: at most {_highest_mean(results['rows'], 'malformed')} %; {sentences} sentences "
        "about things whose answers no fine-tuning step saw. Best constant: one score for all, chosen on the "
        f"validation things. {world_text(results)}.",
    ]
    return "\n".join(lines)


def full_tables(results: Mapping[str, Any]) -> str:
    """Return docs/results/world.md: every domain, mode, level and readout, as means over seeds; then the intervals."""
    lines = [
        "# The embedded world, all results",
        "",
        "Written by `benchmarks/world.py`; the numbers are in `benchmarks/results/world.json`. Percent, means over "
        f"{len(seeds_of(results['rows']))} seeds; {results['date']}, commit {results['commit']}. In "
        "domain: people, towns and ships whose answers no fine-tuning step saw. Other questions, one fact: about the "
        "same things. Out of domain: companies, which fine-tuning never saw.",
        *_claims(results),
        *FINDINGS.splitlines(),
    ]
    for level in ("sentence", "passage"):
        for readout in ("stated", "mean"):
            lines += [
                "",
                f"## {level.capitalize()} level, {readout} readout",
                "",
                f"| Method | Domain | Mode | {HEADINGS} | malformed | c | f |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for method in METHODS:
                for domain in DOMAINS:
                    for mode in MODES:
                        place = {"method": method, "domain": domain, "mode": mode, "level": level, "readout": readout}
                        if rows := select(results["rows"], **place):
                            lines.append(f"| {' | '.join([method, domain, mode, *_cells(rows)])} |")
    lines += _all_intervals(results)
    return "\n".join(lines) + "\n"


def _claims(results: Mapping[str, Any]) -> list[str]:
    """Return the section on which method is better than which, in domain, stated score, and what is not shown."""
    lines = [
        "",
        "## What holds here",
        "",
        "In domain, stated score; differences with 95 % intervals over things and training seeds. A claim holds where "
        "both intervals lie below 0.",
        "",
        "| Better than | Mode | BS | ECE-M | |",
        "|---|---|---|---|---|",
    ]
    names = CALIBRATION[:2]
    for method, other in CLAIMS:
        for mode in MODES:
            for entry in _comparison(results, method, other, mode):
                sides = [side(entry[name]) for name in names]
                verdict = "holds" if sides == [-1, -1] else "the opposite" if 1 in sides else "not shown"
                if verdict == "not shown" and -1 in sides:
                    verdict = f"{METRICS[names[sides.index(-1)]].heading} only"
                cells = [f"{method}, {other}", mode, *(_interval(entry[name], True) for name in names), verdict]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _all_intervals(results: Mapping[str, Any]) -> list[str]:
    """Return the sections with the intervals of each method, and of the differences of methods."""
    lines = [
        "",
        "## Intervals",
        "",
        "Sentence level. In brackets 95 % intervals: questions are drawn again with their sentences, and training "
        "seeds, 2000 times, the same ones for all methods. They say what other questions and seeds would change, not "
        "what another base model would. ECE-M is biased upwards on few questions, and more so on draws of them: "
        "intervals of well calibrated methods lie too high, and differences to them lean towards 0. A difference is "
        "bold where its interval leaves out 0; where BS and ECE-M lie below 0, or SC above, the first method is "
        "better.",
    ]
    for readout in ("stated", "mean"):
        for heading, first_column in (("Each method", "Method"), ("Differences", "Method, minus the other")):
            difference = heading == "Differences"
            lines += ["", f"### {heading}, {readout} readout", ""]
            lines += [f"| {first_column} | Domain | Mode | {HEADINGS} |", "|---|---|---|---|---|---|"]
            for entry in results["intervals"]:
                if entry["readout"] == readout and (entry["against"] is not None) == difference:
                    name = f"{entry['method']}, {entry['against']}" if difference else entry["method"]
                    cells = [_interval(entry[metric], difference, bold=difference) for metric in CALIBRATION]
                    lines.append(f"| {' | '.join([name, entry['domain'], entry['mode'], *cells])} |")
    return lines


def _comparison(results: Mapping[str, Any], method: str, other: str, mode: str) -> list[Entry]:
    """Return the comparison of two methods in domain, by stated score, if there is one."""
    place = {"method": method, "against": other, "mode": mode, "domain": "in-domain", "readout": "stated"}
    return [entry for entry in results["intervals"] if place.items() <= entry.items()]


def _interval(ends: Sequence[float] | None, difference: bool, bold: bool = False) -> str:
    text = interval_text(ends, signed=difference) or "-"
    return f"**{text}**" if bold and side(ends) else text


def _highest_mean(rows: Sequence[ResultRow], name: str) -> str:
    """Return the highest of README's means of a metric, in percent."""
    groups = (select(rows, method=method, mode=mode) for method in METHODS for mode in MODES)
    return f"{max(float(mean_text(group, name)) for group in groups if group):.1f}"


def _cells(rows: Sequence[ResultRow]) -> list[str]:
    """Return the means over seeds, with the range of the Brier score where it can be seen."""
    names = (*CALIBRATION, "malformed", "mean_confidence", "mean_factuality")
    brier, *others = (mean_text(rows, name) for name in names)
    scores = [100 * value for row in rows if (value := row.metrics["brier"]) is not None]
    spread = f" ({min(scores):.1f}-{max(scores):.1f})" if scores and max(scores) - min(scores) >= 0.05 else ""
    return [brier + spread, *others]
