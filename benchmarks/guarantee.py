"""Does the guarantee hold? Thresholds of half of the answers, tried on the other half, on 500 random splits.

    python benchmarks/guarantee.py ChatGPT.jsonl --world runs/seed-*/distil/test/world/distil.iterative.jsonl

The first file holds FActScore's biographies with human labels. Their scores are a stand-in: the mean log-probability of
the tokens of each sentence under a tiny Llama with random weights, which knows next to nothing of what is true; the
promise has to hold all the same, and what it costs is seen in the share of sentences that is kept. ``--world`` takes
tagged and labelled answers as `lovec test` writes them; only those in domain count, and the score is the mean readout.

Writes benchmarks/results/guarantee.json and the table in docs/calibrate.md. What was measured of the world before stays
when ``--world`` is not given.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import results_and_page
from page_parts import page_options, percent, run_for_page, versions_text

from lovec.calibration.conformal import (
    TRUE_FROM,
    Passage,
    Promise,
    conformal_scores,
    conformal_threshold,
    holds,
    passages_of,
    retention,
    risk_threshold,
)
from lovec.calibration.features import FEATURES
from lovec.datasets.factscore import read_factscore
from lovec.datasets.jsonl import read_records
from lovec.models.tiny import ensure_tiny
from lovec.types import Record, Sentence

RESULTS, PAGE = results_and_page("guarantee", "docs/calibrate.md")
BEGIN, END = "<!-- guarantee: written by benchmarks/guarantee.py -->", "<!-- /guarantee -->"
ALPHAS = (0.05, 0.1, 0.2)
PROMISES: Mapping[Promise, float] = {"all-true": 1.0, "share": 0.8, "errors": 1.0}
WORDS = {"all-true": "all kept are true", "share": "80 % of the kept are true", "errors": "errors of all sentences"}
FACTSCORE = "FActScore"

Entry = Mapping[str, Any]


def stand_in(records: Sequence[Record]) -> list[Record]:
    """Return the records with the log-probabilities of the bytes of their sentences under a random tiny Llama."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ensure_tiny("tiny-llama")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tagged = []
    for record in records:
        pieces = [tokenizer(f" {s.text}", add_special_tokens=False).input_ids for s in record.sentences]
        ids = tokenizer(record.question).input_ids
        start = len(ids)
        ids = torch.tensor([ids + [token for piece in pieces for token in piece]])
        with torch.inference_mode():
            logps = model(ids).logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        parts = torch.split(logps[start - 1 :], [len(piece) for piece in pieces])
        pairs = zip(record.sentences, parts, strict=True)
        tagged.append(replace(record, sentences=tuple(replace(s, token_logps=tuple(p.tolist())) for s, p in pairs)))
    return tagged


def in_best_order(passages: Iterable[Passage], seed: int) -> list[Passage]:
    """Return passages whose scores tell true from false: 1 for a true sentence, for a false one random in [0, 1)."""
    return [
        Passage([1.0 if is_right else score for score, is_right in zip(scores, true, strict=True)], true)
        for scores, true, _ in in_random_order(passages, seed)
    ]


def in_random_order(passages: Iterable[Passage], seed: int) -> list[Passage]:
    """Return passages whose sentences all have scores, drawn at random from [0, 1)."""
    rng = np.random.default_rng(seed)
    return [Passage(rng.random(len(true)).tolist(), true) for _, true, _ in passages]


def kept_as_published(passage: Passage, threshold: float) -> list[bool]:
    """Return which of the sentences that the authors' code keeps, those from the threshold on, are true.

    That keeps the sentence whose score is the threshold, with which the share of true ones falls below a in the passage
    that it is from. The published thresholds are reproduced; their guarantee is not sound, since where scores tie, as
    stated scores do, a new passage fails at the same score.
    """
    pairs = zip(passage.scores, passage.true, strict=True)
    return [is_right for score, is_right in pairs if score is not None and score >= threshold]


def tried(passages: Sequence[Passage], splits: int, seed: int) -> list[dict[str, Any]]:
    """Return one row per promise and alpha: how often it was kept, and the share of sentences that was.

    Args:
        passages: labelled answers, of different questions.
        splits: number of random divisions into two halves, of which the first gives the threshold.
        seed: seed of the divisions and of the random orders.
    """
    orders = {"own": list(passages), "random": in_random_order(passages, seed), "best": in_best_order(passages, seed)}
    rng = np.random.default_rng(seed)
    divisions = [rng.permutation(len(passages)) for _ in range(splits)]
    half = len(passages) // 2
    rows = []
    for kind, share in PROMISES.items():
        known = {name: conformal_scores(order, share) for name, order in orders.items()}
        for alpha in ALPHAS:
            reached, published, kept = [], [], {name: [] for name in orders}
            for division in divisions:
                first, second = division[:half], division[half:]
                for name, order in orders.items():
                    new = [order[index] for index in second]
                    if kind == "errors":
                        threshold = risk_threshold([order[index] for index in first], alpha)
                    else:
                        threshold = conformal_threshold([known[name][index] for index in first], alpha)
                    found = retention(new, threshold)
                    kept[name].append(found.share)
                    if name == "own":
                        fulfilled = [holds(passage, threshold, share) for passage in new]
                        reached.append(found.errors if kind == "errors" else statistics.mean(fulfilled))
                        published.append(statistics.mean(_as_published(p, threshold, share) for p in new))
            band = _band(alpha, splits)
            rows.append(
                {
                    "promise": kind,
                    "share": share,
                    "alpha": alpha,
                    "reached": statistics.mean(reached),
                    "spread": statistics.stdev(reached),
                    "bound": alpha + band if kind == "errors" else 1 - alpha - band,
                    "published_rule": None if kind == "errors" else statistics.mean(published),
                    **{f"kept_{name}": statistics.mean(shares) for name, shares in kept.items()},
                }
            )
    return rows


def measured(
    name: str, files: Sequence[tuple[Sequence[Record], Callable[[Sentence], float | None]]], flags: Any
) -> Entry:
    """Return the rows of a data set: means over its files, which are of different training seeds."""
    runs, counts = [], []
    for records, score in files:
        passages, unlabelled = passages_of(records, score)
        counts.append((len(passages), sum(len(p.true) for p in passages), unlabelled, _truth(passages)))
        runs.append(tried(passages, flags.splits, flags.seed))
    rows = []
    for same in zip(*runs, strict=True):
        numbers = [key for key, value in same[0].items() if key not in ("promise", "share", "alpha")]
        means = {key: statistics.mean(r[key] for r in same) if same[0][key] is not None else None for key in numbers}
        rows.append({**same[0], **means, "reached_by_file": [r["reached"] for r in same]})
    passages_n, sentences, unlabelled, truth = (statistics.mean(column) for column in zip(*counts, strict=True))
    return {
        "data": name,
        "files": len(files),
        "answers": round(passages_n),
        "sentences": round(sentences),
        "unlabelled": round(unlabelled),
        "true": truth,
        "rows": rows,
    }


def table(results: Entry) -> str:
    """Return the table of the page: coverage beside its promise, and the shares kept in three orders."""
    lines = [
        "| Data | Promise | alpha | promised | reached | kept | random order | best order |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ((entry["data"], row) for entry in results["data"] for row in entry["rows"]):
        errors = row["promise"] == "errors"
        promised = f"at most {percent(row['alpha'])}" if errors else f"at least {percent(1 - row['alpha'])}"
        shares = [percent(row[f"kept_{name}"]) for name in ("own", "random", "best")]
        cells = [name, WORDS[row["promise"]], f"{row['alpha']:g}", promised, percent(row["reached"]), *shares]
        lines.append(f"| {' | '.join(cells)} |")
    sets = "; ".join(
        f"{entry['data']}: {entry['sentences']} labelled sentences of {entry['answers']} answers, "
        f"{percent(entry['true'])} % true" + (f", mean over {entry['files']} seeds" if entry["files"] > 1 else "")
        for entry in results["data"]
    )
    bands = ", ".join(f"{percent(_band(alpha, results['splits']))} for alpha {alpha:g}" for alpha in ALPHAS)
    lines += [
        "",
        f"Percent; means over {results['splits']} random splits into halves, one for the threshold, the other to try "
        f"it. {'All' if all_hold(results) else 'Not all'} values reached keep the promise within the 95 % binomial "
        f"band of {results['splits']} draws (points: {bands}). A sentence is true from a factuality of {TRUE_FROM:g}. "
        f"{sets}. "
        f"Written by `benchmarks/guarantee.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def all_hold(results: Entry) -> bool:
    """Return whether every promise was kept, within the binomial band."""
    rows = [row for entry in results["data"] for row in entry["rows"]]
    return all((row["reached"] - row["bound"]) * (-1 if row["promise"] == "errors" else 1) >= 0 for row in rows)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured of every set of answers; without ``--world``, the world's is that of the last time."""
    biographies = [record for record in read_factscore(flags.data) if record.sentences]
    data = [measured(FACTSCORE, [(stand_in(biographies), FEATURES["logp_mean"])], flags)]
    groups: dict[str, list[Path]] = {}
    for path in flags.world:
        groups.setdefault(path.name.removesuffix(".jsonl"), []).append(path)
    for name, paths in groups.items():
        tagged = [[record for record in read_records(path) if record.domain == "in-domain"] for path in paths]
        data.append(measured(f"World, {name}", [(records, FEATURES["mean"]) for records in tagged], flags))
    if not groups and RESULTS.exists():
        before = json.loads(RESULTS.read_text(encoding="utf-8"))["data"]
        data += [entry for entry in before if entry["data"] != FACTSCORE]
    return {"splits": flags.splits, "data": data}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "a labelled file of FActScore, such as its ChatGPT.jsonl")
    parser.add_argument("--world", type=Path, nargs="+", default=[], help="tagged answers of tests on the world")
    parser.add_argument("--splits", type=int, default=500)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


def _band(alpha: float, draws: int) -> float:
    """Return half the width of the 95 % binomial band; a loss in [0, 1] with the mean alpha varies no more."""
    return 1.96 * math.sqrt(alpha * (1 - alpha) / draws)


def _as_published(passage: Passage, threshold: float, share: float) -> bool:
    """Return whether a promise is kept where the sentences at the threshold are kept as well."""
    kept = kept_as_published(passage, threshold)
    return not kept or sum(kept) / len(kept) >= share


def _truth(passages: Sequence[Passage]) -> float:
    return sum(sum(p.true) for p in passages) / sum(len(p.true) for p in passages)


if __name__ == "__main__":
    main()
