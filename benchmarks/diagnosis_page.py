"""What ``diagnosis.py`` found, as a section of docs/results/ablation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from page_parts import world_text

Line = Mapping[str, Any]
SHOWN = 0.005
"""Least share of the sentences with which a score counts as stated."""


WHY = (
    "- **SFT states the most probable score, not the best one.** Cross-entropy makes the distribution that of the true "
    "scores; its greedy score is their mode, while the Brier score is least at their mean. Where many sentences are "
    "wholly true, the mode is the top of the scale even for sentences whose mean is far below.",
    "- **DPO's optimum is the mode as well, sharpened.** A pair holds the true score against one that is drawn without "
    "regard to the sentence. If a score c is true of a sentence with the probability P(c), c wins against c' in the "
    "share P(c) / (P(c) + P(c')) of the pairs of the two, so the optimum of a sentence is ref(c) P(c)^(1 / beta), up "
    "to a constant: with beta = 0.1 nearly all of it on the mode. Near misses leave that ratio as it is, since the "
    "draw is as likely from c to c' as back (but for the ends of the scale); they only change which scores are "
    "compared. Either way a pair says which score is true more often, never which is nearer, so the stated score has "
    "the same aim as that of a second epoch of SFT.",
    "- **Expected reward has the right optimum, and is slow to reach it.** E (c - f)^2 = (E c - f)^2 + Var c: at the "
    "start, where the mean is calibrated, nearly all of the loss that can be saved is the spread. It is saved first "
    "by whatever has much of the probability already, since the gradient of a logit is the probability times the "
    "advantage. The score nearest the mean begins with a small probability, and loses what it has to the frequent ones "
    "that are nearly as good; from there its gradient is small. The second table shows this without a model, the third "
    "with one, in which all sentences share their parameters, so that the first moves are the same for all.",
    "- **GRPO estimates a gradient of the same form from samples.** What holds of expected reward holds of it, with "
    "the noise of the samples on top, and with credit for the text of the answers.",
)
"""What the tables are evidence for; it follows from the objectives, so it holds on any world."""


def section(results: Mapping[str, Any]) -> str:
    """Return the section as Markdown.

    Args:
        results: what ``diagnosis.py`` wrote.
    """
    seeds = sorted({line["seed"] for line in results["methods"]})
    lines = [
        "## Why: what training does to the distribution over the scores",
        "",
        "Written by `benchmarks/diagnosis.py`; all numbers are in `benchmarks/results/diagnosis.json`. Dev things, "
        "text given, each sentence scored after the model's own scores of those before it; BS and SC in %. *Spread* is "
        "the variance of the score within a sentence's distribution, in squared points. The readouts: *stated*, the "
        "most probable score; *mean*, that of the distribution; *rounded*, the score nearest the mean.",
        "",
        *WHY,
        "",
        f"True scores of the training sentences, 0 to {len(results['labels']) - 1}, in %: {shares(results['labels'])}.",
        "",
        "### What the policies know, and what they state",
        "",
        "| method | stated, % of sentences | spread | BS: stated | mean | rounded | SC: stated | mean | rounded "
        "| as SFT-2 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method in dict.fromkeys(line["method"] for line in results["methods"]):
        group = [line for line in results["methods"] if line["method"] == method]
        cells = [method, said(group), f"{mean(group, 'spread'):.1f}", *readouts(group), percent(group, "as_sft2")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Means over seeds {', '.join(map(str, seeds))}; *as SFT-2*: share of the sentences with the same stated score "
        "as after the second epoch of SFT.",
        "",
        "### The same start, every sentence on its own",
        "",
        "Gradient descent on a distribution per sentence, with no model: the start is that of the SFT policy, and the "
        "factuality of a sentence is drawn from it, so that the best score is the one nearest its mean.",
        "",
        "| w | t | step | stated, % of sentences | spread | BS: stated | SC: stated |",
        "| ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for line in results["free"]:
        cells = [f"{line['w']:g}", f"{line['t']:g}", str(line["step"]), said([line]), f"{line['spread']:.1f}"]
        cells += [percent([line], "stated_brier"), percent([line], "stated_spearman")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "### Step by step",
        "",
        "From the SFT adapter; k is `score_weight`, w `variance_weight`, t `entropy_weight`. *Gradient*: norm of the "
        "term on scores or pairs, over that of the term on text, of the batch that the step learns from.",
        "",
        "| run | step | stated, % of sentences | spread | entropy | BS: stated | mean | rounded | SC: stated | mean "
        "| rounded | gradient |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in results["traces"]:
        cells = [line["run"], str(line["step"]), said([line]), f"{line['spread']:.1f}", f"{line['entropy']:.2f}"]
        lines.append(f"| {' | '.join([*cells, *readouts([line]), ratio(line)])} |")
    seed = results["traces"][0]["seed"] if results["traces"] else None
    lines += ["", f"Runs of seed {seed}. {world_text(results)}.", ""]
    return "\n".join(lines)


def said(group: Sequence[Line]) -> str:
    """Return how many percent of the sentences have each score as the most probable one, such as "5: 48, 10: 52"."""
    share = [sum(line["said"][score] for line in group) / len(group) for score in range(len(group[0]["said"]))]
    return ", ".join(f"{score}: {100 * part:.0f}" for score, part in enumerate(share) if part >= SHOWN)


def readouts(group: Sequence[Line]) -> list[str]:
    """Return Brier score and Spearman's correlation of the three readouts."""
    names = [f"{name}_{metric}" for metric in ("brier", "spearman") for name in ("stated", "mean", "rounded")]
    return [percent(group, name) for name in names]


def percent(group: Sequence[Line], name: str) -> str:
    """Return the mean of a number over lines in %; "-" where it is undefined in one of them."""
    value = mean(group, name)
    return "-" if value is None else f"{100 * value:.1f}"


def mean(group: Sequence[Line], name: str) -> float | None:
    """Return the mean of a number over lines; None where it is undefined in one of them."""
    values = [line[name] for line in group if line[name] is not None]
    return sum(values) / len(values) if len(values) == len(group) else None


def ratio(line: Line) -> str:
    """Return the norm of the first term's gradient over that of the second; "-" where there are no two."""
    norms = list((line.get("gradient") or {}).values())
    return f"{norms[0] / norms[1]:.1f}" if len(norms) > 1 and norms[1] else "-"


def shares(values: Sequence[float]) -> str:
    """Return shares in %, in their order."""
    return ", ".join(f"{100 * value:.0f}" for value in values)
