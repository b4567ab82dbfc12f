"""What is left of texts without their doubted sentences, judged again as texts.

    python benchmarks/revise.py                # -> benchmarks/results/revise.json and a table in docs/tag.md
    python benchmarks/revise.py --parts atlas  # one set of answers only; the other stays as it is

Test answers are revised as `lovec tag --revise` does, at the levels of revise.yaml. A revised text is split into
sentences anew, and the oracle judges these; so a sentence that the revision had broken would count as false, or as one
that cannot be judged. On random divisions into halves, one half of the answers gives the threshold, and the texts of
the other are revised by it. The scores are mean readouts, text given: the embedded world's of the adapter that comes
with the package, and Atlas' of the run of Distil whose scored sentences are in benchmarks/results/real. The world's
test answers are also revised by the threshold beside its adapter, which was fitted to validation answers.

On the world, clauses that the rule finds are left out as well, and compared with whole sentences at the same lowest
confidence. What is left of a shortened sentence is judged where it is of a form that the oracle reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml
from common import ROOT, provenance, results_and_page, results_file
from page_parts import page_options, percent, run_for_page, versions_text
from real_scores import Answer, Place, read_scored

from lovec.calibration import read_calibrations
from lovec.calibration.conformal import TRUE_FROM, Guarantee, guarantee, passages_of
from lovec.calibration.features import FEATURES
from lovec.datamodules import Atlas, World
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world.grading import readings
from lovec.oracles.world import WorldOracle
from lovec.taggers import open_session
from lovec.tagging import PHRASES, Revise, TextTagger, revise
from lovec.tagging.revising import PLACE
from lovec.text.clauses import in_clauses
from lovec.text.untag import split_record
from lovec.types import ITERATIVE, Oracle, Record, Sentence

RESULTS, PAGE = results_and_page("revise", "docs/tag.md")
MARKS = ("<!-- revise: written by benchmarks/revise.py -->", "<!-- /revise -->")
SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ATLAS = results_file("real/atlas-larger/seed-1-distil")
TITLES = {"world": "World", "atlas": "Atlas"}
THRESHOLDS = {"shipped": "its own", "divisions": "halves"}

Values = Sequence[float | None]


@dataclass
class Texts:
    """Tagged and labelled answers, and what the oracle says of their revised texts.

    Attributes:
        records: the answers.
        oracle: judges sentences about their subjects.
    """

    records: Sequence[Record]
    oracle: Oracle
    _judged: dict[tuple[int, tuple[bool, ...]], tuple[list[float | None], int]] = field(default_factory=dict)

    def judged(self, at: int, kept: Sequence[bool]) -> tuple[list[float | None], int]:
        """Return how true the firm sentences of a revised text are, and how many of them read otherwise than before.

        Args:
            at: index of the answer.
            kept: whether each of its sentences is.

        Raises:
            AssertionError: dropping and hedging do not leave the same firm sentences.
        """
        key = at, tuple(kept)
        if key not in self._judged:
            record = self.records[at]
            pairs = zip(record.sentences, kept, strict=True)
            sure = replace(record, sentences=tuple(replace(s, confidence=float(stays)) for s, stays in pairs))
            dropped, hedged = (
                _reread(record, revise(sure, _is_sure, how).text, self.oracle) for how in get_args(Revise)
            )
            doubt = PHRASES["low"].removesuffix(PLACE)
            firm = [sentence for sentence in hedged if not sentence.text.startswith(doubt)]
            assert [s.text for s in firm] == [s.text for s in dropped], record.id
            before = [s.factuality for s, stays in zip(record.sentences, kept, strict=True) if stays]
            after = [s.factuality for s in dropped]
            changed = sum(a != b for a, b in zip(before, after, strict=False)) + abs(len(before) - len(after))
            self._judged[key] = after, changed
        return self._judged[key]

    @property
    def seen(self) -> int:
        """Number of different revised texts so far."""
        return len(self._judged)

    def measured(self, numbers: Sequence[int], keeps: Callable[[Sentence], bool]) -> dict[str, float]:
        """Return what is left of some of the answers, see `table`."""
        truths: list[float] = []
        whole: list[bool] = []
        all_true, changed, sentences, true, false_hedged, hedged = 0, 0, 0, 0, 0, 0
        for at in numbers:
            kept = [keeps(sentence) for sentence in self.records[at].sentences]
            after, differing = self.judged(at, kept)
            rated = [value for value in after if value is not None]
            changed += differing
            truths += rated
            whole += [all(value >= TRUE_FROM for value in rated)] if after else []
            all_true += all(value >= TRUE_FROM for value in rated)
            for sentence, stays in zip(self.records[at].sentences, kept, strict=True):
                if sentence.factuality is not None:
                    sentences += 1
                    true += sentence.factuality >= TRUE_FROM
                    hedged += not stays
                    false_hedged += not stays and sentence.factuality < TRUE_FROM
        return {
            "held": all_true / len(numbers),
            "kept": len(truths) / sentences,
            "true_kept": sum(value >= TRUE_FROM for value in truths) / true,
            "truth": statistics.mean(truths) if truths else 1.0,
            "all_true": statistics.mean(whole) if whole else 1.0,
            "empty": 1 - len(whole) / len(numbers),
            "false_hedged": false_hedged / hedged if hedged else 1.0,
            "changed": changed,
        }


def _is_sure(sentence: Sentence) -> bool:
    return sentence.confidence == 1


def _reread(record: Record, text: str, oracle: Oracle) -> tuple[Sentence, ...]:
    """Return the sentences of a text about the subject of a record, as they are read anew, with their truths."""
    read = split_record(replace(record, answer=text, sentences=()))
    [values] = oracle.rate([read])
    return read.with_factuality(values).sentences


def tagged(records: Sequence[Record], path: Path) -> list[Record]:
    """Return answers about the world tagged by the shipped adapter; what is in a file already is not tagged again."""
    if not path.exists():
        with open_session("world", "world") as session:
            write_records(path, TextTagger(session).tag_texts([replace(record, rejected=None) for record in records]))
    return list(read_records(path))


def world(work: Path) -> tuple[Texts, Any]:
    """Return the test answers about the world, tagged, and the calibration beside the adapter."""
    data = World(test_sets=["test"])
    records = tagged(data.load("test"), work / "world-test-sentence.jsonl")
    found = read_calibrations(ROOT / "lovec" / "datasets" / "world" / "adapter")[ITERATIVE]
    return Texts([record for record in records if record.sentences], WorldOracle(data.world)), found


def atlas(work: Path) -> tuple[Texts, Any]:
    """Return the test answers of Atlas with stored confidences, which no calibration belongs to.

    Raises:
        AssertionError: they are not those of these answers.
    """
    scored = read_scored(ATLAS)[Place("Distil", "in-domain", "iterative", "mean")]
    records = []
    data = Atlas(test_sets=["test"])
    for record, answer, row in zip(data.load("test"), scored.answers, scored.confidences, strict=True):
        assert Answer.of(record) == answer, record.id
        pairs = zip(record.sentences, row, strict=True)
        records.append(replace(record, sentences=tuple(replace(s, confidence=c) for s, c in pairs)))
    return Texts(records, data.oracle), None


SETS: Mapping[str, Callable[[Path], tuple[Texts, Any]]] = {"world": world, "atlas": atlas}


def measure(part: str, work: Path, seed: int) -> dict[str, Any]:
    """Measure one set of answers."""
    texts, made = SETS[part](work)
    rank = cache(FEATURES["mean"] if part == "world" else _confidence)
    rng, half = np.random.default_rng(seed), len(texts.records) // 2
    divisions = [rng.permutation(len(texts.records)).tolist() for _ in range(SETTINGS["splits"])]
    rows = []
    for level in SETTINGS["levels"]:
        if made is not None:
            shipped = partial(made.keeps, promised=made.threshold(level))
            found = texts.measured(range(len(texts.records)), shipped)
            rows.append({"level": level, "threshold": "shipped", **found})
        drawn = []
        for division in divisions:
            passages, _ = passages_of([texts.records[at] for at in division[:half]], rank)
            drawn.append(
                texts.measured(division[half:], partial(_is_kept, rank, guarantee(passages, round(1 - level, 9))))
            )
        means = {name: statistics.mean(one[name] for one in drawn) for name in drawn[0]}
        rows.append({"level": level, "threshold": "divisions", **means})
    labels = [[s.factuality for s in record.sentences if s.factuality is not None] for record in texts.records]
    every = [value for row in labels for value in row]
    return {
        "answers": len(texts.records),
        "sentences": len(every),
        "truth": statistics.mean(every),
        "all_true": statistics.mean(all(value >= TRUE_FROM for value in row) for row in labels),
        "texts": texts.seen,
        "rows": rows,
        "clauses": clauses(texts, work) if part == "world" else [],
    }


def _confidence(sentence: Sentence) -> float | None:
    return sentence.confidence


def _is_kept(rank: Callable[[Sentence], float | None], found: Guarantee, sentence: Sentence) -> bool:
    return found.keeps(rank(sentence))


def clauses(whole: Texts, work: Path) -> list[dict[str, Any]]:
    """Measure clauses of the world's test answers, as the rule finds them, beside whole sentences."""
    parts = tagged([in_clauses(record) for record in whole.records], work / "world-test-clause.jsonl")
    rows = []
    for least in SETTINGS["least"]:
        for unit, records in (("sentence", whole.records), ("clause", parts)):
            truths, shortened, unread = [], 0, 0
            for record in records:
                old = {sentence.text for sentence in given_sentences(record)}
                text = revise(record, partial(_reaches, least), "drop").text
                for sentence in _reread(record, text, whole.oracle):
                    if sentence.text not in old:
                        shortened += 1
                        if not readings(record.meta["kind"], sentence.text):
                            unread += 1
                            continue
                    truths.append(sentence.factuality or 0.0)
            total = sum(len(record.sentences) for record in whole.records)
            rows.append(
                {
                    "least": least,
                    "unit": unit,
                    "kept": (len(truths) + unread) / total,
                    "truth": statistics.mean(truths) if truths else None,
                    "shortened": shortened,
                    "unread": unread,
                }
            )
    return rows


def _reaches(least: float, sentence: Sentence) -> bool:
    return sentence.confidence is not None and sentence.confidence >= least


def given_sentences(record: Record) -> tuple[Sentence, ...]:
    """Return the sentences of an answer, whatever its units are."""
    return split_record(replace(record, sentences=())).sentences


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the page from the file of results."""
    lines = [
        "| Answers | Promise | Threshold | kept the promise | sentences kept | of the true ones | mean truth of these "
        "| all true, of texts with something left | nothing left | false, of the hedged |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for part, found in results["parts"].items():
        for row in found["rows"]:
            names = ("held", "kept", "true_kept", "truth", "all_true", "empty", "false_hedged")
            numbers = [percent(row[name]) for name in names]
            threshold = THRESHOLDS[row["threshold"]]
            lines.append(f"| {' | '.join([TITLES[part], percent(row['level']), threshold, *numbers])} |")
    before = "; ".join(
        f"{TITLES[part]}: {found['sentences']} labelled sentences of {found['answers']} test answers, with a mean "
        f"truth of {percent(found['truth'])}, and {percent(found['all_true'])} % of the answers all true"
        for part, found in results["parts"].items()
    )
    changed = sum(row["changed"] for found in results["parts"].values() for row in found["rows"])
    texts = sum(found["texts"] for found in results["parts"].values())
    same = (
        "Every sentence that was kept was found again and judged as before"
        if not changed
        else (f"Sentences that were not judged as before, per division: {changed:.1f}")
    )
    lines += [
        "",
        f"Percent, texts given. Before: {before}. *All true*: every sentence has a factuality of at least "
        f"{TRUE_FROM:g}. *Its own*: the threshold beside the adapter, from validation answers; *halves*: means over "
        f"{results['splits']} random divisions of the test answers, one half for the threshold. The scores are those "
        "of the shipped adapter on the world, and on Atlas of the run of Distil in `benchmarks/results/real`. Revised "
        "texts were split into sentences anew, and these judged by the oracle. "
        f"{same}, in {texts} different revised texts; by `hedge` the sentences that are not hedged are those that "
        "`drop` leaves. Sentences that no oracle can judge are not counted.",
        "",
        *_clause_lines(results["parts"]),
        "; ".join(f"{TITLES[part]}: {versions_text(found)}" for part, found in results["parts"].items())
        + ". Written by `benchmarks/revise.py`.",
    ]
    return "\n".join(lines)


def _clause_lines(parts: Mapping[str, Any]) -> list[str]:
    """Return the table of clauses beside sentences."""
    rows = [row for found in parts.values() for row in found["clauses"]]
    if not rows:
        return []
    lines = [
        "| World, test answers | `--min_confidence` | sentences left, whole or in part | mean truth | shortened "
        "| of these, without a template of the oracle |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [f"`--unit {row['unit']}`", f"{row['least']:g}", percent(row["kept"]), percent(row["truth"])]
        lines.append(f"| {' | '.join([*cells, str(row['shortened']), str(row['unread'])])} |")
    return [*lines, ""]


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts that are asked for; other parts stay as the file has them."""
    parts = json.loads(RESULTS.read_text(encoding="utf-8"))["parts"] if RESULTS.exists() else {}
    for part in flags.parts:
        parts[part] = provenance() | measure(part, flags.work, flags.seed)
    return {"splits": SETTINGS["splits"], "parts": parts}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(__doc__ or "")
    parser.add_argument("--parts", nargs="+", choices=sorted(SETS), default=sorted(SETS))
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "revise", help="folder of the tagged answers")
    run_for_page(parser, run, table, RESULTS, PAGE, MARKS)


if __name__ == "__main__":
    main()
