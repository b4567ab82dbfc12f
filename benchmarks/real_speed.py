"""Measure on a real language model what scores cost: a training step beside SFT's, and tagging beside reading.

    python benchmarks/real_speed.py             # -> benchmarks/results/real_speed.json, docs/speed.md
    python benchmarks/real_speed.py --rounds 3  # fewer than seven rounds are printed only

The model is SmolLM2-135M-Instruct in float32 (``smollm2``, see docs/install.md), on one thread. A step learns from
eight answers of six sentences about cities, from the rows to the gradient: encoding, drawing the policy's own scores
for the context (expected reward), forward and backward pass, in one micro-batch. Tagging scores the same 48 sentences
with exact scores and with first tokens; "reading" is one forward pass over the same texts, with their tags, in one
batch, with the log-probability of every token; "bare forward passes" run the layers over the same texts in the
batches of the tagging, without scores or output layer: once without a cache, so that no token sees an earlier batch,
and once with transformers' own cache. Expected reward with the context of the last epoch draws its scores from the
distributions of the step before. All sides take turns; given are medians of their CPU-seconds, and of the ratios
within a round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import publish, read_json, results_and_page
from page_parts import replace_between, versions_text
from real_rows import NAMES, ForSmolLM2
from sides import OBJECTIVES, WHOLE, Case, Lovec
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from lovec.encoding.choices import NO_CHOICES, ChoiceTree
from lovec.engines import TransformersEngine
from lovec.engines.kv import CachedRows
from lovec.modules import ExpectedReward, SFTRegression
from lovec.modules.base import ratings
from lovec.policy import TokenBatch
from lovec.taggers import IterativeTagger
from lovec.types import Record, Sentence

RESULTS, PAGE = results_and_page("real_speed", "docs/speed.md")
BEGIN, END = "<!-- real model: written by benchmarks/real_speed.py -->", "<!-- end of the real model -->"

FACTS = (
    "{city} is a city in Indonesia.",
    "It lies on the continent of Asia.",
    "It has about 1,200,000 inhabitants.",
    "The capital of Indonesia is Jakarta.",
    "The currency used there is the Rupiah.",
    "The official language there is Indonesian.",
)
STEPS = {
    "SFT": ("SFT", "exact"),
    "Expected reward, exact": ("ExpectedReward", "exact"),
    "Expected reward, first tokens": ("ExpectedReward", "prefix"),
    "Expected reward, first tokens, context of the last epoch": ("LastReward", "prefix"),
    "SFT with regression, first tokens": ("SFTRegression", "prefix"),
}
"""Training steps by their name in the table: objective and scoring."""
TAGGING = {"Tagging, exact": "exact", "Tagging, first tokens": "prefix"}
READING = "Reading"
BARE = "Bare forward passes"
CACHED = "Bare forward passes with a cache"
BARES = (BARE, CACHED)
READS = (READING, *BARES)
TARGETS = {
    "Expected reward, first tokens": 1.5,
    "Expected reward, first tokens, context of the last epoch": 1.2,
    "SFT with regression, first tokens": 1.2,
    "Tagging, first tokens": 1.15,
}
"""The most that is aimed at, of SFT's step or of the bare forward passes."""
OBJECTIVES.update(LastReward=partial(ExpectedReward, context="last"), SFTRegression=SFTRegression)


class Cities(ForSmolLM2):
    """The answers that are learned from and tagged."""

    name = "cities"

    def answers(self, rows: int, group: int = 1, encoder: Any = None) -> list[Record]:
        """Return one labelled answer per city; the labels are made up."""
        records = []
        for at, city in enumerate(NAMES[:rows]):
            texts = [fact.format(city=city) for fact in FACTS]
            labels = [(3 * at + 7 * place) % 11 / 10 for place in range(len(texts))]
            sentences = tuple(Sentence(text, factuality=f) for text, f in zip(texts, labels, strict=True))
            question = f"Tell me about the city of {city}."
            records.append(Record(city, question, answer=" ".join(texts), sentences=sentences))
        return records


def sides(folder: Path) -> dict[str, Callable[[], None]]:
    """Return what is measured, by its name: one call is one step, or one tagging of all answers."""
    source: Any = Cities()
    rows, model = source.answers(len(NAMES)), source.model(folder)
    found: dict[str, Callable[[], None]] = {}
    for name, (objective, scoring) in STEPS.items():
        side = Lovec(Case(objective, source), model, folder, scoring=scoring)
        if objective in ("ExpectedReward", "LastReward"):
            side.module.context = "own" if objective == "ExpectedReward" else "last"
            side.module.engine = TransformersEngine(max_rows=len(rows))
        found[name] = lambda side=side: _step(side, rows)
    policy, encoder = side.module.policy, side.module.encoder
    for name, scoring in TAGGING.items():
        engine = TransformersEngine(max_rows=len(rows))
        engine.sync(policy)
        own = type(encoder)(encoder.tokenizer, encoder.instruction, encoder.tags, scoring)
        found[name] = lambda engine=engine, own=own: _tag(engine, own, rows)
    batch = TokenBatch.of([side.module.tagged(row, ratings(row)) for row in rows])
    found[READING] = lambda: _read(policy, batch)
    batches = _batches(lambda: _tag(engine, own, rows))
    found[BARE] = lambda: _forward(policy, batches)
    found[CACHED] = lambda: _forward(policy, batches, DynamicCache(config=policy.model.config))
    return found


def _step(side: Lovec, rows: Sequence[Record]) -> None:
    (examples,) = side.module.update_batches(rows)
    side.take(examples)
    side.step(WHOLE)


def _tag(engine: TransformersEngine, encoder: Any, rows: Sequence[Record]) -> None:
    IterativeTagger(engine, encoder, "mean").tag(rows)


@torch.inference_mode()
def _read(policy: Any, batch: TokenBatch) -> None:
    policy.token_logps(batch)


def _batches(tag: Callable[[], None]) -> list[torch.Tensor]:
    """Return the tokens that every forward pass of a tagging keeps, those that all scores begin with among them."""
    found = []
    extend = CachedRows.extend

    def noting(rows: CachedRows, new: Sequence[Sequence[int]], tree: ChoiceTree = NO_CHOICES) -> Any:
        kept = [torch.tensor([*row, *tree.ids[: tree.shared]]) for row in new]
        found.append(pad_sequence(kept, batch_first=True))
        return extend(rows, new, tree)

    with mock.patch.object(CachedRows, "extend", noting):
        tag()
    return found


@torch.inference_mode()
def _forward(policy: Any, batches: Sequence[torch.Tensor], cache: DynamicCache | None = None) -> None:
    rows = len(batches[0])
    for ids in batches:
        if cache is not None and len(ids) > rows:  # after the prompt, which is read once
            cache.batch_repeat_interleave(len(ids) // rows)
            rows = len(ids)
        policy.model.get_decoder()(input_ids=ids, past_key_values=cache, use_cache=cache is not None)


def measure(rounds: int) -> dict[str, Any]:
    """Return the median CPU-seconds of every side, and the median of its ratios to SFT's or to reading."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = sides(Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in measured}
        for number in range(rounds + 1):  # the first is warm-up
            for name, run in measured.items():
                begin = time.process_time()
                run()
                if number:
                    seconds[name].append(time.process_time() - begin)
            print(f"round {number} of {rounds}", flush=True)
    rows = []
    for name, against in [*((step, "SFT") for step in STEPS), *product(TAGGING, BARES), *((n, READING) for n in READS)]:
        values = seconds[name]
        ratios = [value / other for value, other in zip(values, seconds[against], strict=True)]
        rows.append(
            {
                "name": name,
                "cpu_seconds": statistics.median(values),
                "against": against,
                "ratio": statistics.median(ratios),
                "range": [min(ratios), max(ratios)],
            }
        )
    return {"rounds": rounds, "sentences": len(NAMES) * len(FACTS), "sides": rows}


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| | CPU-seconds | ratio | to | target |", "|---|--:|--:|---|---|"]
    for row in results["sides"]:
        low, high = row["range"]
        ratio = "1" if row["name"] == row["against"] else f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        most = TARGETS.get(row["name"])
        target = "-" if most is None else f"{most:g}: {'reached' if row['ratio'] <= most else '**missed**'}"
        lines.append(f"| {row['name']} | {row['cpu_seconds']:.1f} | {ratio} | {row['against']} | {target} |")
    return "\n".join(lines)


def page(results: dict[str, Any]) -> None:
    """Write the table into the page."""
    note = f"Medians of {results['rounds']} rounds, in brackets the range of the ratios. {versions_text(results)}."
    text = replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, f"{table(results)}\n\n{note}")
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds; with fewer than 7 the results are printed only")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    flags = parser.parse_args()
    if flags.page:
        page(read_json(RESULTS))
        return
    results = measure(flags.rounds)
    print(table(results))
    if flags.rounds >= 7:
        publish(RESULTS, results, only_print=False)
        page(read_json(RESULTS))


if __name__ == "__main__":
    main()
