"""What clauses hold of the facts that people found in sentences.

    python benchmarks/clauses.py shared/data      # -> benchmarks/results/clauses.json

The folder holds, in ``factscore_labeled``, FActScore's labelled biographies by ChatGPT, InstructGPT and PerplexityAI
(Min et al. 2023), in which people wrote down the atomic facts of every sentence and labelled them. A fact belongs to
the clause that completes it; ``lovec.datasets.places.fact_places`` says how it is found. The rules of
``lovec/text/clauses.py`` were written with examples from ChatGPT's file in view; the other two were not looked at.

In ``halueval2`` it holds HaluEval 2.0 (Li et al. 2024), whose claims people judged. They were taken from whole answers,
so that their sentences are found first, see ``lovec.datasets.places.fact_sentences``. In ``factcheck_gpt`` it holds
Factcheck-GPT's Factbench.jsonl with the segments of FELM (Chen et al. 2023), which stand in its answers word for word:
their boundaries are compared with those of lovec's sentences and clauses.

Writes benchmarks/results/clauses.json and a table in docs/spans.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import results_and_page
from page_parts import page_options, percent, run_for_page, versions_text

from lovec.datasets.halueval import by_sentence
from lovec.datasets.places import clause_at, fact_places
from lovec.datasets.rows import Reading, read_rows
from lovec.text.clauses import spans
from lovec.text.sentences import spans as sentence_spans

RESULTS, PAGE = results_and_page("clauses", "docs/spans.md")
BEGIN, END = "<!-- clauses: written by benchmarks/clauses.py -->", "<!-- /clauses -->"
FILES = ("ChatGPT", "InstructGPT", "PerplexityAI")
HALUEVAL = "HaluEval 2.0"
FELM = "felm-wk"
Facts = Sequence[tuple[tuple[int, int] | None, bool]]
"""Place of every fact of a sentence, and whether it is true."""


def labelled_sentences(path: Path) -> Iterator[tuple[str, Facts]]:
    """Yield every sentence of a file with its facts that are supported or not; those without such facts are left out.

    Args:
        path: a labelled file of FActScore.
    """
    for _, row in read_rows(path):
        for annotation in row["annotations"] or ():
            facts = annotation["human-atomic-facts"] or ()
            text = annotation["text"].strip()
            places = fact_places(text, [fact["text"] for fact in facts], row["topic"])
            labelled = [
                (place, fact["label"] == "S")
                for place, fact in zip(places, facts, strict=True)
                if fact["label"] in ("S", "NS")
            ]
            if labelled:
                yield text, labelled


def judged_sentences(folder: Path) -> tuple[list[tuple[str, Facts]], int]:
    """Return the sentences of HaluEval 2.0 with the claims that people judged, and how many are of no sentence.

    Args:
        folder: the files of HaluEval 2.0; sentences that state no such claim are left out.
    """
    found: list[tuple[str, Facts]] = []
    total = 0
    for path in sorted(folder.glob("human-*.json")):
        reading = Reading(path)
        for _, row in read_rows(path):
            total += len(row["human_judge"])
            for answer, claims in by_sentence(row, reading):
                for sentence, own in zip(answer.sentences, claims, strict=True):
                    places = fact_places(sentence.text, [claim for claim, _ in own])
                    judged = zip(places, own, strict=True)
                    labelled = [(place, label == 1) for place, (_, label) in judged if label is not None]
                    if labelled:
                        found.append((sentence.text, labelled))
    return found, total - sum(len(facts) for _, facts in found)


def segmented(path: Path) -> dict[str, int]:
    """Return how the boundaries of FELM's segments and those of lovec's sentences and clauses agree.

    Args:
        path: Factbench.jsonl of Factcheck-GPT.
    """
    counts: dict[str, int] = dict.fromkeys(("answers", "segments", "boundaries", "sentences", "both", "clauses"), 0)
    for _, row in read_rows(path):
        if row["source"] != FELM or not row["response"]:
            continue
        text = row["response"]
        whole = sentence_spans(text)
        ends, at = set(), 0
        for segment in row["claims"]:
            at = text.index(segment.strip(), at) + len(segment.strip())
            ends.add(at)
        own = {end for _, end in whole}
        last = max(ends | own)  # the end of the answer is nobody's choice
        counts["answers"] += 1
        counts["segments"] += len(row["claims"])
        counts["boundaries"] += len(ends - {last})
        counts["sentences"] += len(own - {last})
        counts["both"] += len(ends & own - {last})
        counts["clauses"] += sum(len(spans(text[start:end])) for start, end in whole)
    return counts


def units_of(facts: Facts, clauses: Sequence[tuple[int, int]]) -> list[list[bool]]:
    """Return the truths of the facts of every clause."""
    truths: list[list[bool]] = [[] for _ in clauses]
    for place, is_true in facts:
        if place is not None:
            truths[clause_at(clauses, place)].append(is_true)
    return truths


def described(units: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return the number of units, their facts, and how many have facts of both truth values, of those with facts."""
    held = [truths for truths in units if truths]
    several = [truths for truths in held if len(truths) > 1]
    mixed = sum(len(set(truths)) > 1 for truths in held)
    return {
        "units": len(units),
        "with_facts": len(held),
        "facts": statistics.mean(map(len, held)),
        "mixed": mixed / len(held),
        "mixed_of_several": mixed / len(several),
    }


def measured(sentences: Sequence[tuple[str, Facts]], seed: int, lost: int = 0) -> dict[str, Any]:
    """Return what sentences and clauses hold of the facts, how facts were found, and what chance would do.

    Args:
        sentences: sentences with their facts.
        seed: seed of the division by chance, at as many spaces of each sentence as its clauses have between them.
        lost: number of further facts, which no sentence states.
    """
    rng = random.Random(seed)
    whole: list[list[bool]] = []
    parts: list[list[bool]] = []
    chance: list[list[bool]] = []
    total = lost
    found = inside = splits = between = gaps = met = divided = 0
    for text, facts in sentences:
        clauses = spans(text)
        places = [place for place, _ in facts if place is not None]
        total += len(facts)
        found += len(places)
        inside += sum(clauses[clause_at(clauses, place)][0] <= place[0] for place in places)
        divided += len(clauses) > 1
        whole.append([is_true for place, is_true in facts if place is not None])
        parts += units_of(facts, clauses)
        spaces = [at for at, character in enumerate(text) if character == " "]
        chance += units_of(facts, divided_at(text, sorted(rng.sample(spaces, len(clauses) - 1))))
        ends = [end for _, end in clauses[:-1]]
        splits += len(ends)
        between += sum(any(p[1] <= end for p in places) and any(p[1] > end for p in places) for end in ends)
        for first, second in pairwise(sorted({place[1] for place in places})):
            gaps += 1
            met += any(first <= end < second for end in ends)
    return {
        "sentences": len(sentences),
        "divided": divided / len(sentences),
        "facts": total,
        "found": found / total,
        "inside": inside / found,
        "splits": splits,
        "splits_between_facts": between / splits,
        "gaps_split": met / gaps,
        "sentence": described(whole),
        "clause": described(parts),
        "chance": described(chance),
    }


def divided_at(text: str, spaces: Sequence[int]) -> list[tuple[int, int]]:
    """Return the parts of a text between some of its spaces."""
    return list(zip([0, *(at + 1 for at in spaces)], [*spaces, len(text)], strict=True))


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    lines = [
        "| Answers of | sentences | with several clauses | facts found | inside one clause | splits between facts "
        "| facts per sentence | per clause | mixed sentences | mixed clauses | mixed by chance |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        shares = [percent(row[name]) for name in ("divided", "found", "inside", "splits_between_facts")]
        facts = [f"{row[unit]['facts']:.2f}" for unit in ("sentence", "clause")]
        mixed = [percent(row[unit]["mixed"]) for unit in ("sentence", "clause", "chance")]
        lines.append(f"| {' | '.join([row['name'], str(row['sentences']), *shares, *facts, *mixed])} |")
    felm = results["felm"]
    lines += [
        "",
        f"FELM's {felm['segments']} segments of {felm['answers']} answers meet at {felm['boundaries']} places. A "
        f"sentence of lovec ends at {percent(felm['both'] / felm['boundaries'])} % of them, and "
        f"{percent(felm['both'] / felm['sentences'])} % of the {felm['sentences']} places where two of its sentences "
        f"meet are among them. The segments are whole sentences, and say nothing about the {felm['clauses']} clauses.",
    ]
    lines += ["", f"Shares in percent. Written by `benchmarks/clauses.py`; {versions_text(results)}."]
    return "\n".join(lines)


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured, by file."""
    rows = []
    for name in FILES:
        path = flags.data / "factscore_labeled" / f"{name}.jsonl"
        rows.append({"name": name, **measured(list(labelled_sentences(path)), flags.seed)})
    sentences, lost = judged_sentences(flags.data / "halueval2")
    rows.append({"name": HALUEVAL, **measured(sentences, flags.seed, lost)})
    return {"rows": rows, "felm": segmented(flags.data / "factcheck_gpt" / "Factbench.jsonl")}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "folder with the folders of FActScore, HaluEval 2.0 and Factcheck-GPT")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
