"""Check the models of the embedded world against criteria that were set before any method was trained on it.

    python benchmarks/base.py                     # all worlds of the full size -> benchmarks/results/base.json and page
    python benchmarks/base.py --worlds world      # some of them, only printed
    python benchmarks/base.py --page              # only write docs/results/base.md from that file

Everything is measured on validation things and on companies that are not tested, with the untrained model.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from common import publish, read_json, results_and_page
from page_parts import page_of_lines, versions_text
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.baselines import LUQ, BaselineResources, LinearProbe, Samples, SentenceLikelihood
from lovec.calibration.maps import Isotonic
from lovec.datamodules import World
from lovec.datasets.world.grading import fact_credits, readings
from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.metrics.functional import brier_score, spearman
from lovec.types import Record

RESULTS, PAGE = results_and_page("base")
WORLDS = ("world", "world-1", "world-2")
DOMAINS = {"in-domain": "things of the trained kinds", "out-of-domain": "companies"}
THIRDS = ("best known third", "middle third", "least known third")


@dataclass(frozen=True)
class Criterion:
    """A bound that every world must keep.

    Attributes:
        text: what is bounded, for the page.
        value: finds it in the measurements of a world.
        low: smallest allowed value.
        high: largest allowed value.
    """

    text: str
    value: Callable[[Mapping[str, Any]], float]
    low: float = float("-inf")
    high: float = float("inf")

    def holds(self, measured: Mapping[str, Any]) -> bool:
        """Return whether a world keeps the bound."""
        return self.low <= self.value(measured) <= self.high


CRITERIA = (
    Criterion("mean factuality, in domain", lambda m: m["in-domain"]["factuality"], 0.5, 0.8),
    Criterion("mean factuality, companies", lambda m: m["out-of-domain"]["factuality"], 0.4, 0.8),
    Criterion("exact facts about the best known third", lambda m: m["in-domain"]["exact"][0], 0.7),
    Criterion("exact facts about the least known third", lambda m: m["in-domain"]["exact"][2], 0.0, 0.5),
    Criterion("sentences that the grader cannot read", lambda m: m["in-domain"]["unreadable"], 0.0, 0.02),
    Criterion("Spearman of a linear probe of the hidden states", lambda m: m["in-domain"]["spearman"]["Probe"], 0.5),
    Criterion("Spearman of agreement of ten samples (LUQ)", lambda m: m["in-domain"]["spearman"]["LUQ"], 0.55),
    Criterion(
        "the same, minus that of the best likelihood of the sentence",
        lambda m: m["in-domain"]["spearman"]["LUQ"] - best_likelihood(m["in-domain"]),
        0.1,
    ),
)
"""Written down on 2026-11-23, before any method was trained on these worlds."""

LIKELIHOODS = tuple(SentenceLikelihood(how) for how in ("mean", "sum", "min"))


def best_likelihood(measured: Mapping[str, Any]) -> float:
    """Return the highest rank correlation of the likelihoods (mean, product, least token)."""
    return max(measured["spearman"][baseline.name] for baseline in LIKELIHOODS)


def measure(data: World) -> dict[str, Any]:
    """Return what the model of a world knows and tells, by domain."""
    tokenizer = AutoTokenizer.from_pretrained(data.world.model_path)
    encoder = Encoder(tokenizer, data.instruction)
    engine = TransformersEngine()
    engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(data.world.model_path)))
    resources = BaselineResources(engine, encoder, data.wording, Samples(), data.judge)
    baselines = [LUQ(), *LIKELIHOODS, LinearProbe()]
    for baseline in baselines:
        baseline.attach(resources)
    data.prepare_data()
    baselines[-1].fit(data.load("train"))
    groups = {
        "in-domain": data.load("validation"),
        "out-of-domain": data.greedy_answers("unlabelled", encoder, engine),
    }
    return {domain: _measured(data, records, baselines) for domain, records in groups.items()}


def _measured(data: World, records: Sequence[Record], baselines: Sequence[Any]) -> dict[str, Any]:
    truth = [s.factuality for record in records for s in record.sentences]
    known = {entity.name: entity for entity in data.world.entities}
    exact: list[list[bool]] = [[], [], []]
    unreadable = 0
    for record in records:
        entity = known[record.meta["entity"]]
        peers = max(e.rank for e in known.values() if e.kind == entity.kind) + 1
        for sentence in record.sentences:
            read = [fact_credits(entity, slots) for slots in readings(entity.kind, sentence.text)]
            unreadable += not any(read)
            exact[3 * entity.rank // peers] += [credit == 1.0 for credit in max(read, key=sum, default=[])]
    correlations, errors = {}, {}
    for baseline in baselines:
        values = [c for row in baseline.confidences(records) for c in row]
        correlations[baseline.name] = float(spearman(values, truth))
        errors[baseline.name] = float(brier_score(Isotonic.fit(values, truth)(values).tolist(), truth))
    return {
        "sentences": len(truth),
        "factuality": statistics.mean(truth),
        "unreadable": unreadable / len(truth),
        "exact": [statistics.mean(values) if values else None for values in exact],
        "constant": statistics.pvariance(truth),
        "spearman": correlations,
        "isotonic": errors,
    }


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results, line by line."""
    worlds = results["worlds"]
    several = len(worlds) > 1
    yield from (f"# The {'models' if several else 'model'} of the embedded world", "")
    others = "; the others have the same facts, and other documents, initial weights and order"
    yield (
        "The criteria were written down before any method was trained on "
        f"{'these models' if several else 'this model'}, and have not changed since. "
        f"`world` comes with the package{others if several else ''}."
    )
    yield ""
    yield f"| Criterion | Bound | {' | '.join(worlds)} |"
    yield f"|---|---|{'---|' * len(worlds)}"
    for criterion in CRITERIA:
        cells = [f"{criterion.value(m):.3f}{'' if criterion.holds(m) else ' (missed)'}" for m in worlds.values()]
        bound = " and ".join(
            f"{word} {end:g}"
            for word, end in (("at least", criterion.low), ("at most", criterion.high))
            if abs(end) != float("inf") and not (word == "at least" and end == 0)
        )
        yield f"| {criterion.text[0].upper()}{criterion.text[1:]} | {bound} | {' | '.join(cells)} |"
    for domain, words in DOMAINS.items():
        yield ""
        yield f"## {words[0].upper()}{words[1:]}"
        yield ""
        yield f"| | {' | '.join(worlds)} |"
        yield f"|---|{'---|' * len(worlds)}"
        of = [m[domain] for m in worlds.values()]
        yield _row("Sentences", [str(m["sentences"]) for m in of])
        for third, name in enumerate(THIRDS):
            yield _row(f"Exact facts, {name}", [f"{m['exact'][third]:.2f}" for m in of])
        for name in of[0]["spearman"]:
            yield _row(f"Spearman, {name}", [f"{m['spearman'][name]:.2f}" for m in of])
        for name in of[0]["isotonic"]:
            cells = [f"{100 * m['isotonic'][name]:.1f}" for m in of]
            yield _row(f"Brier score after an isotonic map fitted to the same sentences, {name}", cells)
        yield _row("Brier score of the best constant", [f"{100 * m['constant']:.1f}" for m in of])
    yield ""
    yield f"{versions_text(results)}."


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", help=f"comma list of worlds to measure and print; default: {', '.join(WORLDS)}")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results on disk")
    options = parser.parse_args()
    if not options.page:
        names = options.worlds.split(",") if options.worlds else WORLDS
        measured = {name: measure(World(name)) for name in names}
        publish(RESULTS, {"worlds": measured}, only_print=options.worlds is not None)
        if options.worlds:
            return
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
