"""What tagging clauses costs beside tagging sentences: processor time of the same texts, with the adapter of Atlas.

    python benchmarks/clause_cost.py shared/data/factscore_labeled/ChatGPT.jsonl     # needs the weights of SmolLM2

Biographies by ChatGPT, whose sentences are long, are tagged one after the other, as `lovec tag` does with a text, in
sentences and in clauses in turn, on one thread. Every round has the ratio of both, so that what else the machine does
meets both alike, and the median of the rounds counts. A first text, which is not counted, loads what is loaded once.

Writes benchmarks/results/clause_cost.json and a sentence in docs/spans.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from common import ROOT, page_options, run_for_page, versions_text

from lovec.datasets.factscore import read_factscore
from lovec.taggers import open_session
from lovec.tagging import TextTagger
from lovec.types import Unit

RESULTS = ROOT / "benchmarks" / "results" / "clause_cost.json"
PAGE = ROOT / "docs" / "spans.md"
BEGIN, END = "<!-- clause cost: written by benchmarks/clause_cost.py -->", "<!-- /clause cost -->"


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds and the numbers of units."""
    records = [replace(record, sentences=()) for record in read_factscore(flags.data) if record.sentences]
    records = records[: flags.texts]
    seconds: dict[str, list[float]] = {unit: [] for unit in get_args(Unit)}
    units = {}
    torch.set_num_threads(1)
    with open_session(adapter="atlas") as session:
        TextTagger(session).tag_texts(records[:1])
        for _ in range(flags.rounds):
            for unit, of_unit in seconds.items():
                tagger = TextTagger(session, unit=unit)
                begin = time.process_time()
                tagged = [tagger.tag_texts([record])[0] for record in records]
                of_unit.append(time.process_time() - begin)
                units[unit] = sum(len(record.sentences) for record in tagged)
    return {"texts": len(records), "rounds": flags.rounds, "units": units, "cpu_seconds": seconds}


def table(results: Mapping[str, Any]) -> str:
    """Return the sentence of the page."""
    seconds = results["cpu_seconds"]
    each = results["units"]["clause"] / results["units"]["sentence"]
    ratios = [clause / sentence for clause, sentence in zip(seconds["clause"], seconds["sentence"], strict=True)]
    return (
        f"With SmolLM2 and the adapter of Atlas, {results['texts']} biographies with {each:.2f} clauses per sentence "
        f"take {statistics.median(ratios):.2f} times the processor time of sentences, the median of "
        f"{results['rounds']} rounds from {min(ratios):.2f} to {max(ratios):.2f} (`benchmarks/clause_cost.py`; "
        f"{versions_text(results)})."
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "FActScore's labelled ChatGPT.jsonl")
    parser.add_argument("--texts", type=int, default=4, help="number of biographies")
    parser.add_argument("--rounds", type=int, default=7)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
