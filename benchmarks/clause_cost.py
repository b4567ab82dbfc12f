"""What tagging clauses costs beside tagging sentences: processor time of the same texts, with the adapter of Atlas.

    python benchmarks/clause_cost.py shared/data/factscore_labeled/ChatGPT.jsonl     # needs the weights of SmolLM2

Biographies by ChatGPT, whose sentences are long, are tagged in sentences and in clauses in turn, on one thread: one
after the other, as `lovec tag` does with a text, and all at once, as it does with the rows of a file. Every round has
the ratio of both units, so that what else the machine does meets both alike, and the median of the rounds counts. A
first text, which is not counted, loads what is loaded once.

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
from common import results_and_page
from page_parts import page_options, run_for_page, versions_text

from lovec.datasets.factscore import read_factscore
from lovec.taggers import open_session
from lovec.tagging import TextTagger
from lovec.types import Unit

RESULTS, PAGE = results_and_page("clause_cost", "docs/spans.md")
ALONE, TOGETHER = WAYS = ("one after the other", "tagged together")
BEGIN, END = "<!-- clause cost: written by benchmarks/clause_cost.py -->", "<!-- /clause cost -->"


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds and the numbers of units."""
    records = [replace(record, sentences=()) for record in read_factscore(flags.data) if record.sentences]
    records = records[: flags.texts]
    seconds: dict[str, dict[str, list[float]]] = {way: {unit: [] for unit in get_args(Unit)} for way in WAYS}
    units = {}
    torch.set_num_threads(1)
    with open_session(adapter="atlas") as session:
        TextTagger(session).tag_texts(records[:1])
        for number in range(flags.rounds):
            for way, of_way in seconds.items():
                parts = [records] if way == TOGETHER else [[record] for record in records]
                for unit, of_unit in of_way.items():
                    tagger = TextTagger(session, unit=unit)
                    begin = time.process_time()
                    tagged = [record for part in parts for record in tagger.tag_texts(part)]
                    of_unit.append(time.process_time() - begin)
                    units[unit] = sum(len(record.sentences) for record in tagged)
                    print(f"round {number + 1}, {way}, {unit}: {of_unit[-1]:.1f} s", flush=True)
    return {"texts": len(records), "rounds": flags.rounds, "units": units, "cpu_seconds": seconds}


def table(results: Mapping[str, Any]) -> str:
    """Return the sentences of the page."""
    each = results["units"]["clause"] / results["units"]["sentence"]
    found = []
    for way in WAYS:
        seconds = results["cpu_seconds"][way]
        ratios = [clause / sentence for clause, sentence in zip(seconds["clause"], seconds["sentence"], strict=True)]
        found.append(f"{statistics.median(ratios):.2f} {way} ({min(ratios):.2f} to {max(ratios):.2f})")
    return (
        f"With SmolLM2 and the adapter of Atlas, {results['texts']} biographies with {each:.2f} clauses per sentence "
        f"take as many times the processor time of sentences: {', '.join(found)}; medians of {results['rounds']} "
        f"rounds (`benchmarks/clause_cost.py`; {versions_text(results)})."
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "FActScore's labelled ChatGPT.jsonl")
    parser.add_argument("--texts", type=int, default=8, help="number of biographies")
    parser.add_argument("--rounds", type=int, default=7)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
