"""What it saves to compute texts that are tagged together without padding: processor time with and without it.

    python benchmarks/padding.py shared/data/factscore_labeled/ChatGPT.jsonl     # needs the weights of SmolLM2

Answers of Atlas, whose sentences are about as long as each other's, and biographies by ChatGPT, whose are not, are
tagged with the adapter of Atlas on one thread, all at once, packed and padded in turn. Every round has the ratio of
both, so that what else the machine does meets both alike, and the median of the rounds counts.

Writes benchmarks/results/padding.json and a table in docs/speed.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from common import results_and_page
from page_parts import page_options, run_for_page, versions_text

from lovec.datasets.atlas.shipped import atlas_records
from lovec.datasets.factscore import read_factscore
from lovec.engines import kv
from lovec.taggers import IterativeTagger, open_session
from lovec.types import Record

RESULTS, PAGE = results_and_page("padding", "docs/speed.md")
BEGIN, END = "<!-- padding: written by benchmarks/padding.py -->", "<!-- /padding -->"
PACKED, PADDED = WAYS = ("packed", "padded")


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of every round, and how far confidences lie apart."""
    biographies = [replace(record, rejected=None) for record in read_factscore(flags.data) if record.sentences]
    texts = {"answers of Atlas": atlas_records("test")[: flags.texts], "biographies": biographies[: flags.texts]}
    found = {}
    torch.set_num_threads(1)
    with open_session(adapter="atlas") as session:
        tagger = IterativeTagger(session.engine, session.encoder)
        for name, records in texts.items():
            tagger.tag(records[:1])  # loads what is loaded once
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            tagged: dict[str, list[Record]] = {}
            for number in range(flags.rounds):
                for way in WAYS:
                    most = kv.MOST_PADDING if way == PACKED else math.inf
                    with mock.patch.object(kv, "MOST_PADDING", most):
                        begin = time.process_time()
                        tagged[way] = tagger.tag(records)
                        seconds[way].append(time.process_time() - begin)
                    print(f"{name}, round {number + 1}, {way}: {seconds[way][-1]:.1f} s", flush=True)
            found[name] = {
                "texts": len(records),
                "sentences": sum(len(record.sentences) for record in records),
                "cpu_seconds": seconds,
                "largest_difference": _largest_difference(tagged[PACKED], tagged[PADDED]),
            }
    return {"rounds": flags.rounds, "texts": found}


def _largest_difference(some: list[Record], others: list[Record]) -> float:
    """Return the largest difference between the probabilities of a score."""
    pairs = (
        pair
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one.sentences, other.sentences, strict=True)
        for pair in zip(a.distribution or (), b.distribution or (), strict=True)
    )
    return max((abs(a - b) for a, b in pairs), default=0.0)


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["| Texts | | packed, CPU-s | padded, CPU-s | packed over padded |", "|---|---|---|---|---|"]
    for name, found in results["texts"].items():
        packed, padded = (found["cpu_seconds"][way] for way in WAYS)
        ratios = [one / other for one, other in zip(packed, padded, strict=True)]
        lines.append(
            f"| {name} | {found['texts']}, {found['sentences']} sentences | {statistics.median(packed):.1f} | "
            f"{statistics.median(padded):.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) |"
        )
    apart = max(found["largest_difference"] for found in results["texts"].values())
    lines += [
        "",
        f"Medians of {results['rounds']} rounds, in brackets the range of the ratios. The probabilities of scores "
        f"{f'differ by at most {apart:.0e}' if apart else 'are the same in both'}. {versions_text(results)}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "FActScore's labelled ChatGPT.jsonl")
    parser.add_argument("--texts", type=int, default=16, help="number of texts of each kind")
    parser.add_argument("--rounds", type=int, default=7)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
