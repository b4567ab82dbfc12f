"""Is a model surer of a text as its own than as the user's? The same answers, tagged three times.

    python benchmarks/authors.py    # the embedded world takes seconds, SmolLM2 about half an hour on one core

The text is given, and its sentences are scored in the assistant's turn, at the same places behind the same characters.
What differs is the prompt before it: only the question; or the question, the text and the question again, where the
text is an earlier turn of the model, or is part of the user's turn (``lovec.encoding.Encoder.prompt_with_text``). So
the model and the user as authors differ in nothing but the marks of the turns, while the plain prompt also differs in
that the model has not seen the sentences that follow. Confidences are means of the distribution over scores, before any
calibration, which would have been fitted to the plain prompt.

The answers are those of the embedded world's test things (in-domain), and every second one of Atlas' test cities.

Writes benchmarks/results/authors.json and the table in docs/metrics.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from common import results_and_page
from page_parts import interval_text, page_options, run_for_page, versions_text
from torch import Tensor

from lovec.datamodules.atlas import Atlas
from lovec.datamodules.world import World
from lovec.encoding import Author
from lovec.metrics.bootstrap import MAIN, interval_of, resample_groups
from lovec.metrics.grouped import grouped_pairs
from lovec.metrics.table import METRICS
from lovec.taggers import IterativeTagger, Session, open_session
from lovec.types import Record

RESULTS, PAGE = results_and_page("authors", "docs/metrics.md")
BEGIN, END = "<!-- authors: written by benchmarks/authors.py -->", "<!-- /authors -->"
AUTHORS: Mapping[Author | None, str] = {
    None: "the answer that it is giving",
    "model": "its earlier answer",
    "user": "the user's",
}
MODELS: Sequence[tuple[str, str, str | None]] = (
    ("World", "world", "world"),
    ("World", "world", None),
    ("Atlas", "smollm2", "atlas"),
    ("Atlas", "smollm2", None),
)
"""Data, base and adapter."""
NAMES = ("mean_confidence", *MAIN)
SUREST = 0
"""Index into NAMES of what the gap is of."""
ANSWERS: Mapping[str, Callable[[], Sequence[Record]]] = {
    "World": lambda: World(test_sets=["test"]).load("test"),
    "Atlas": lambda: Atlas(test_sets=["test"], test_every=2).load("test"),
}


def measured(session: Session, records: Sequence[Record], draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row per author: metrics with intervals over answers, and how far they lie above those of the user's text.

    Args:
        session: the model.
        records: labelled answers.
        draws: number of draws of the answers, the same for all authors.
        seed: seed of the draws.
    """
    drawn: dict[Author | None, Mapping[str, Tensor]] = {}
    for author in AUTHORS:
        tagged = IterativeTagger(session.engine, session.encoder, "mean", author=author).tag(records)
        if unscored := [record.id for record in tagged if record.meta.get("problems")]:
            raise SystemExit(f"{unscored[0]} does not fit the context of {session.model}; leave it out")
        drawn[author] = resample_groups(grouped_pairs(tagged, "mean"), draws, seed, NAMES)
    for author, found in drawn.items():
        row: dict[str, Any] = {"author": author or "answer", "answers": len(records)}
        for name in NAMES:
            row[name] = _ends(found[name])
            row[f"{name} gap"] = None if author == "user" else _ends(found[name] - drawn["user"][name])
        yield row


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    headings = [METRICS[name].heading for name in NAMES]
    lines = [
        f"| Model | The text is | {' | '.join(headings)} | {headings[SUREST]}, above the user's |",
        f"|---|---|{'--:|' * (len(NAMES) + 1)}",
    ]
    for row in results["rows"]:
        named = {author or "answer": text for author, text in AUTHORS.items()}
        model = f"{row['data']}, {'adapter' if row['adapter'] else 'base'}"
        cells = [METRICS[name].text(row[name] and row[name][0]) for name in NAMES]
        gap = interval_text(row[f"{NAMES[SUREST]} gap"], signed=True)
        lines.append(f"| {' | '.join([model, named[row['author']], *cells, gap])} |")
    counts = {row["data"]: row["answers"] for row in results["rows"]}
    answers = ", ".join(f"{number} of {data}" for data, number in counts.items())
    lines += [
        "",
        f"Percent; answers: {answers}, text given, mean readout without calibration. Intervals: 95 %, over answers. "
        f"Written by `benchmarks/authors.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    rows = []
    for data, base, adapter in MODELS:
        with open_session(None if adapter else base, adapter, raw=True) as session:
            for row in measured(session, ANSWERS[data](), flags.draws, flags.seed):
                rows.append({"data": data, "base": base, "adapter": adapter, **row})
                print(rows[-1], flush=True)
    return {"draws": flags.draws, "rows": rows}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__))
    parser.add_argument("--draws", type=int, default=2000, help="draws of the answers")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


def _ends(values: Tensor) -> list[float] | None:
    found = interval_of(values)
    return None if found is None else [found.value, found.low, found.high]


if __name__ == "__main__":
    main()
