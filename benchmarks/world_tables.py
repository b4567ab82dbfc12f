"""The results of the embedded world as Markdown: docs/results/world.md, which begins with a short table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import CALIBRATION, seeds_of, select
from page_parts import HEADINGS, VERDICTS, interval_cell, interval_text, mean_text, verdict, world_text

from lovec.types import ResultRow, to_rating

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
- **DPO is better than SFT**, as in the paper; than a second epoch of SFT its BS is lower on given texts, and free-form
  the difference is not shown. `dpo.yaml` carries an SFT term, without which free-form tags break; some break all the
  same (`malformed`).
- **GRPO is better than SFT**, and free-form than its second epoch. It is underconfident: it states 5 on average where
  6.5 is true, since it learns from rollouts at temperature 0.7, which are less true than the greedy answers it is
  measured on. Its free-form answers differ from seed to seed, in truth and in length. An epoch is 80 steps here, and
  5667 in the paper.
- **Distil is best by its stated score**, in both modes, and its free-form answers are as true as SFT's. What it states
  is as good as the mean of its distribution (.1 to .2 points of BS more), and on given texts better than that of the
  other methods. SFT with a map has a lower ECE-M, and ranks badly. Distil states eight scores, expected reward two or
  three ([why](ablation.md)).
- **Out of domain only Distil's stated score has a lower BS than the best constant**, on given texts, without a map, and
  the difference may be chance (-1.3, -3.1 to +0.4): training saw no company. Free-form none has, and every method's
  answers are less true there than those of the untrained model.
- **Other questions about the same people are answered badly**: about a third of what is stated is true. SFT hardly
  notices; all but SFT, SFT-2 and ORPO state low scores, and are better than the best constant. **Answers about one
  fact**, of one sentence with no text before it, are rated too high by all methods; no stated score is below the best
  constant.
"""
"""What the tables do not show by themselves; to be read again whenever the benchmark is run again."""

ABOUT_METHODS = (
    "*Isotonic* is a monotone map fitted afterwards. Two objectives are ours, not the paper's: ExpectedReward sums the "
    "reward over all scores instead of sampling them, and Distil states a calibrated blend of what the model's own "
    "distribution, the likelihood of the sentence and agreement with other answers say of the training answers "
    "([more about it](distil.md))."
)

Entry = Mapping[str, Any]


def table(results: Mapping[str, Any]) -> str:
    """Return the short table: in domain, per sentence, stated score; means over seeds, with intervals."""
    lines = ["| Method | BS | minus SFT's | ECE-M | SC |", "|---|---|---|---|---|"]
    for mode, heading in MODES.items():
        lines.append(f"| **{heading}** | | | | |")
        for method in METHODS:  # five columns are as wide as a phone
            if rows := select(results["rows"], method=method, mode=mode):
                (entry,) = _comparison(results, method, "SFT", mode) or [{}]
                brier, *others = (mean_text(rows, name) for name in CALIBRATION)
                cells = [method, brier, interval_text(entry.get("brier"), signed=True) or "-", *others]
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
        "Written by `benchmarks/world.py`; the numbers are in `world.json` and `world-further.json` in "
        "`benchmarks/results`. Percent, means over "
        f"{len(seeds_of(results['rows']))} seeds; {results['date']}, commit {results['commit']}. In "
        "domain: people, towns and ships whose answers no fine-tuning step saw. Other questions, one fact: about the "
        "same things. Out of domain: companies, which fine-tuning never saw.",
        "",
        "## In short",
        "",
        "By the stated score, per sentence; [Metrics](../metrics.md) explains BS, ECE-M and SC. Text given (iterative "
        "tagging): the model scores a given text, sentence by sentence. Free-form: it writes the text as well. Vanilla "
        f"is the untrained model. {ABOUT_METHODS}",
        "",
        table(results),
        "",
        "![Reliability diagrams of SFT, DPO, expected reward and Distil: mean factuality over mean confidence in ten "
        "bins](../reliability.svg)",
        "",
        "An ordinary answer of Distil, the median by Brier score of those that mix true and false sentences:",
        "",
        example_table(results["example"]),
        *_claims(results),
        *FINDINGS.splitlines(),
    ]
    for level, readout in (("sentence", "stated"), ("sentence", "mean"), ("passage", "stated")):
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


def example_table(answer: Mapping[str, Any]) -> str:
    """Return a tagged answer, each sentence beside how true it is."""
    lines = [f"> {answer['question']}", "", "| The model's answer | True, 0 to 10 |", "|---|:-:|"]
    for s in answer["sentences"]:
        tag = "(no valid tag)" if s["score"] is None else f"`<confidence> {s['score']} </confidence>`"
        lines.append(f"| {s['text']} {tag} | {to_rating(s['factuality'])} |")
    return "\n".join(lines)


def _claims(results: Mapping[str, Any]) -> list[str]:
    """Return the section on which method is better than which, in domain, stated score, and what is not shown."""
    lines = [
        "",
        "## What holds here",
        "",
        "In domain, stated score; differences with 95 % intervals over things and training seeds. A claim holds where "
        f"both intervals lie below 0. {VERDICTS}",
        "",
        "| Better than | Mode | BS | ECE-M | |",
        "|---|---|---|---|---|",
    ]
    names = CALIBRATION[:2]
    for method, other in CLAIMS:
        for mode in MODES:
            for entry in _comparison(results, method, other, mode):
                cells = [
                    f"{method}, {other}",
                    mode,
                    *(interval_text(entry[name], signed=True) or "-" for name in names),
                    verdict(entry),
                ]
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
                    cells = [interval_cell(entry[metric], difference) for metric in CALIBRATION]
                    lines.append(f"| {' | '.join([name, entry['domain'], entry['mode'], *cells])} |")
    return lines


def _comparison(results: Mapping[str, Any], method: str, other: str, mode: str) -> list[Entry]:
    """Return the comparison of two methods in domain, by stated score, if there is one."""
    place = {"method": method, "against": other, "mode": mode, "domain": "in-domain", "readout": "stated"}
    return [entry for entry in results["intervals"] if place.items() <= entry.items()]


def _highest_mean(rows: Sequence[ResultRow], name: str) -> str:
    """Return the highest mean over seeds of a metric, in percent."""
    groups = (select(rows, method=method, mode=mode) for method in METHODS for mode in MODES)
    return f"{max(float(mean_text(group, name)) for group in groups if group):.1f}"


def _cells(rows: Sequence[ResultRow]) -> list[str]:
    """Return the means over seeds, with the range of the Brier score where it can be seen."""
    names = (*CALIBRATION, "malformed", "mean_confidence", "mean_factuality")
    brier, *others = (mean_text(rows, name) for name in names)
    scores = [100 * value for row in rows if (value := row.metrics["brier"]) is not None]
    spread = f" ({min(scores):.1f}-{max(scores):.1f})" if scores and max(scores) - min(scores) >= 0.05 else ""
    return [brier + spread, *others]
