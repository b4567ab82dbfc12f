"""The world's results as Markdown: the short tables of README, and all figures for docs/world.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]

METHODS = ("Best constant", "Vanilla", "SFT", "SFT + isotonic", "SFT-2", "ORPO", "DPO", "GRPO", "ExpectedReward")
MODES = {
    "iterative": "Iterative tagging: the text is given, the model scores it.",
    "free-form": "Free-form: the model writes text and scores.",
}
DOMAINS = ("in-domain", "out-of-domain")
FIGURES = ("brier", "ece_m", "spearman")
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
)
"""Pairs of methods, the first of which is said to be better; the paper's and ours."""
FINDINGS = """
- **A second epoch of SFT does what DPO does.** The paper finds DPO and GRPO better than SFT that goes on for as long;
  here only GRPO's ECE-M in free-form answers is. `dpo.yaml` carries an SFT term, without which free-form tags break: it
  is a second epoch of SFT with a preference term. Wrong scores are drawn at random and are mostly far from the truth;
  three quarters of the pairs and more are told apart after fifty steps, and how far off a score is, is not learned from
  them. Some tags break all the same (`malformed`).
- **GRPO is under-confident, and varies with the seed.** It learns from rollouts at temperature 0.7, which are less
  true than the greedy answers it is measured on; at temperature 1 it fails. An epoch is 60 steps here, 5667
  in the paper, and it writes fewer words. The paper finds its log reward best by far; on one seed of the validation
  people ([ablations](ablation.md)) quadratic and linear rewards do as well, and more rollouts a question lower ECE-M.
- **Expected reward is best by its stated score.** It does not beat every cheap remedy: SFT recalibrated by isotonic
  regression on the validation people has a BS that is not shown to be worse, and a lower ECE-M in free-form answers
  (its SC stays that of SFT); and read by the mean of its distribution SFT has a lower BS than expected reward has.
  SFT learns a good distribution and states its mode; expected reward moves the stated score to where the mean was.
  It does so with two scores alone: on every seed it says 5 or 10 and nothing else, where the others say two to five.
  The mean of its distribution tells sentences apart better than that. Without its text term it destroys free-form
  answers; whether earlier scores in the context are its own or the true ones made no difference on one seed, nor did
  the linear reward do worse than the proper one, though the log reward did (ablations).
- **Out of domain no stated score beats the best constant.** All methods trust what is said of companies more than is
  right, and after fine-tuning what is said of them is less true.
"""
"""What the tables do not say by themselves; to be read again whenever they are made anew."""


def table(results: Mapping[str, Any]) -> str:
    """README's tables: in domain, sentence level, stated score; means over seeds, intervals over people."""
    lines = _short(results)
    seeds = sorted({row["seed"] for row in results["rows"]})
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "lovec")
    sentences = select(results["rows"], method="SFT", mode="iterative")[0]["n"]
    lines += [
        "",
        f"Percent; mean over {len(seeds)} seeds, in brackets the 95 % interval of the difference to SFT, over people; "
        f"malformed tags: at most {_most(results, 'malformed')}; {sentences} sentences about people whose answers no "
        "fine-tuning step saw. Best constant: one score for all, chosen on the validation "
        f"people. {results['date']}, commit {results['commit']}, {versions}; {results['machine']}.",
    ]
    return "\n".join(lines)


def _short(results: Mapping[str, Any]) -> list[str]:
    """A table a mode, five columns: as wide as a phone."""
    lines: list[str] = []
    for mode, said in MODES.items():
        lines += ["", said, "", "| Method | BS | minus SFT's | ECE-M | SC |", "|---|---|---|---|---|"]
        for method in METHODS:
            if chosen := select(results["rows"], method=method, mode=mode):
                (entry,) = _entries(results, method, "SFT", mode=mode) or [{}]
                cells = [_mean(chosen, "brier"), _interval(entry.get("brier"), True), *_means(chosen, FIGURES[1:])]
                lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines[1:]


def full_tables(results: Mapping[str, Any]) -> str:
    """docs/world.md: every domain, mode, level and readout; means over seeds; then the intervals."""
    lines = [
        "# The embedded world, all figures",
        "",
        "Written by `benchmarks/world.py`; the numbers are in `benchmarks/results/world.json`. Percent, means over "
        f"{len({row['seed'] for row in results['rows']})} seeds; {results['date']}, commit {results['commit']}. In "
        "domain: people whose answers no fine-tuning step saw. Out of domain: companies, which fine-tuning never saw.",
        *_claims(results),
        *FINDINGS.splitlines(),
    ]
    for level in ("sentence", "passage"):
        for readout in ("stated", "mean"):
            lines += ["", f"## {level.capitalize()} level, {readout} readout", ""]
            lines += [
                "| Method | Domain | Mode | BS | ECE-M | SC | malformed | c | f |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for method in METHODS:
                for domain in DOMAINS:
                    for mode in MODES:
                        where = {"method": method, "domain": domain, "mode": mode, "level": level, "readout": readout}
                        if chosen := select(results["rows"], **where):
                            means = _means(chosen, ("mean_confidence", "mean_factuality"))
                            lines.append(
                                f"| {method} | {domain} | {mode} | " + " | ".join([*_cells(chosen), *means]) + " |"
                            )
    lines += _all_intervals(results)
    return "\n".join(lines) + "\n"


def _claims(results: Mapping[str, Any]) -> list[str]:
    """Section of docs/world.md: which method is better than which, in domain, stated score, and what is not shown."""
    lines = [
        "",
        "## What holds here",
        "",
        "In domain, stated score; differences with 95 % intervals over people. A claim holds where both intervals lie "
        "below 0.",
        "",
        "| Better than | Mode | BS | ECE-M | |",
        "|---|---|---|---|---|",
    ]
    for method, other in CLAIMS:
        for mode in MODES:
            for entry in _entries(results, method, other, mode=mode):
                signs = [_sign(entry[figure]) for figure in FIGURES[:2]]
                said = "holds" if signs == [-1, -1] else "the opposite" if 1 in signs else "not shown"
                if said == "not shown" and -1 in signs:
                    said = f"{('BS', 'ECE-M')[signs.index(-1)]} only"
                cells = [_interval(entry[figure], True) for figure in FIGURES[:2]]
                lines.append(f"| {method}, {other} | {mode} | " + " | ".join([*cells, said]) + " |")
    return lines


def _sign(ends: Sequence[float] | None) -> int:
    """On which side of 0 an interval lies; 0 where it holds 0, or there is none."""
    if ends is None:
        return 0
    _, low, high = (round(100 * end, 1) for end in ends)  # as it is shown
    return 0 if low <= 0 <= high else 1 if low > 0 else -1


def _all_intervals(results: Mapping[str, Any]) -> list[str]:
    """Sections of docs/world.md: each method with its intervals, and the differences of methods."""
    lines = [
        "",
        "## Intervals",
        "",
        "Sentence level. In brackets 95 % intervals: questions are drawn again with their sentences, 2000 times, the "
        "same ones for all methods and seeds. They say what other questions would change, not what other training "
        "seeds would: that is the range above. ECE-M is biased upwards on few questions, and more so on draws of them: "
        "intervals of well calibrated methods lie too high, and differences to them lean towards 0. A difference is "
        "bold where its interval leaves out 0; where BS and ECE-M lie below 0, or SC above, the first method is "
        "better.",
    ]
    for readout in ("stated", "mean"):
        for heading, columns in (("Each method", "Method"), ("Differences", "Method, minus the other")):
            single = heading == "Each method"
            lines += ["", f"### {heading}, {readout} readout", ""]
            lines += [f"| {columns} | Domain | Mode | BS | ECE-M | SC |", "|---|---|---|---|---|---|"]
            for entry in results["intervals"]:
                if entry["readout"] == readout and (entry["against"] is None) == single:
                    name = entry["method"] if single else f"{entry['method']}, {entry['against']}"
                    cells = [_interval(entry[figure], not single, bold=not single) for figure in FIGURES]
                    lines.append(f"| {name} | {entry['domain']} | {entry['mode']} | " + " | ".join(cells) + " |")
    return lines


def select(rows: Iterable[Mapping[str, Any]], **where: Any) -> list[Mapping[str, Any]]:
    """Rows of one method and mode: in domain, by sentence, stated score, unless said otherwise."""
    where = {"domain": "in-domain", "level": "sentence", "readout": "stated", **where}
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def _entries(results: Mapping[str, Any], method: str, against: str, mode: str) -> list[Mapping[str, Any]]:
    """The comparison of two methods in domain, stated score, if there is one."""
    where = {"method": method, "against": against, "mode": mode, "domain": "in-domain", "readout": "stated"}
    return [entry for entry in results["intervals"] if where.items() <= entry.items()]


def _interval(ends: Sequence[float] | None, difference: bool, bold: bool = False) -> str:
    if ends is None:
        return "-"
    rounded = [round(100 * end, 1) + 0.0 for end in ends]  # no -0.0
    value, low, high = (f"{end:+.1f}" if difference else f"{end:.1f}" for end in rounded)
    text = f"{value} ({low} to {high})"
    return f"**{text}**" if bold and not rounded[1] <= 0 <= rounded[2] else text


def _most(results: Mapping[str, Any], name: str) -> str:
    """The largest share among README's means, in percent."""
    means = [
        _mean(chosen, name)
        for m in METHODS
        for mode in MODES
        if (chosen := select(results["rows"], method=m, mode=mode))
    ]
    return f"{max(map(float, means)):.1f} %"


def _mean(rows: Rows, name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{100 * statistics.mean(values):.1f}" if values else "-"


def _means(rows: Rows, names: Iterable[str]) -> list[str]:
    return [_mean(rows, name) for name in names]


def _cells(rows: Rows) -> list[str]:
    scores = [100 * row["brier"] for row in rows if row["brier"] is not None]
    spread = f" ({min(scores):.1f}-{max(scores):.1f})" if scores and max(scores) - min(scores) >= 0.05 else ""
    return [_mean(rows, "brier") + spread, *_means(rows, ("ece_m", "spearman", "malformed"))]
