"""Where sentences end and which answers decline, against the people who annotated two data sets.

    python benchmarks/sentences.py ChatGPT.jsonl dataset-generated.json    # -> benchmarks/results/sentences.json

FActScore's annotators worked sentence by sentence: their texts say where sentences end (splits inside quoted titles
included, counted as they are), and a line without annotations is an abstention. WikiBio is held out: the rules were not
made with it in view, and what was missed there is not printed. The libraries that are installed are measured as well.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import ROOT, provenance, write_json

from lovec.datasets.factscore import read_factscore
from lovec.datasets.wikibio import read_wikibio
from lovec.sentences import is_abstention, split_sentences
from lovec.types import Record

RESULTS = ROOT / "benchmarks" / "results" / "sentences.json"
HOSTILE = ("." * 100_000, "'" * 100_000, '." ' * 33_333, "U.S. " * 20_000, "..[" + "111 " * 25_000)
PATIENCE = 10
"""Processor seconds that a hostile text may take: on a busy machine the clock on the wall says little."""

Splitter = Callable[[str], Sequence[str]]


def spoken(text: str) -> str:
    """The text without its white space: splitters differ in what they leave of it."""
    return "".join(text.split())


def ends(sentences: Sequence[str]) -> set[int]:
    """Where sentences end, the last left out, in characters that are not white space."""
    found, here = set(), 0
    for sentence in sentences:
        here += len(spoken(sentence))
        found.add(here)
    return found - {0, here}


def compare(split: Splitter, records: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """Figures over all records, and every end that one side has alone, with the text around it."""
    matched = extra = missed = lost = 0
    alone = []
    for record in records:
        pieces = split(record.answer)
        ours, theirs, text = ends(pieces), ends([s.text for s in record.sentences]), spoken(record.answer)
        lost += "".join(map(spoken, pieces)) != text
        matched += len(ours & theirs)
        extra += len(ours - theirs)
        missed += len(theirs - ours)
        for end in sorted(ours ^ theirs):
            alone.append(f"{'extra ' if end in ours else 'missed'} {text[max(0, end - 40) : end]} | {text[end:][:30]}")
    figures = {
        "answers": len(records),
        "ends": matched + missed,
        "precision": matched / (matched + extra),
        "recall": matched / (matched + missed),
        "extra": extra,
        "missed": missed,
        "not_whole": lost,
    }
    return figures, alone


def splitters() -> Iterator[tuple[str, str | None, Splitter]]:
    """Name, version and splitter of lovec and of the libraries that are installed and need no download."""
    yield "lovec", None, split_sentences
    for package, build in LIBRARIES.items():
        try:
            yield package, version(package), build()
        except ImportError:
            print(f"{package} is not installed", file=sys.stderr)


def _pysbd() -> Splitter:
    from pysbd import Segmenter

    return Segmenter(language="en", clean=False).segment


def _nltk() -> Splitter:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer().tokenize  # untrained: its trained model is a download


def _spacy() -> Splitter:
    import spacy

    model = spacy.blank("en")
    model.max_length = 10**7
    model.add_pipe("sentencizer")
    return lambda text: [sentence.text for sentence in model(text).sents]


def _sentencex() -> Splitter:
    from sentencex import segment

    return lambda text: list(segment("en", text))


def _blingfire() -> Splitter:
    from blingfire import text_to_sentences

    return lambda text: text_to_sentences(text).split("\n")


def _syntok() -> Splitter:
    from syntok import segmenter

    return lambda text: [
        "".join(token.spacing + token.value for token in sentence)
        for paragraph in segmenter.process(text)
        for sentence in paragraph
    ]


def _sentence_splitter() -> Splitter:
    from sentence_splitter import SentenceSplitter

    return SentenceSplitter("en").split


LIBRARIES: dict[str, Callable[[], Splitter]] = {
    "sentencex": _sentencex,
    "blingfire": _blingfire,
    "pysbd": _pysbd,
    "sentence-splitter": _sentence_splitter,
    "syntok": _syntok,
    "spacy": _spacy,
    "nltk": _nltk,
}


def speed(split: Splitter, texts: Sequence[str]) -> int:
    """Characters a second of the processor, the best of three rounds."""
    rounds = []
    for _ in range(3):
        begin = time.process_time()
        for text in texts:
            split(text)
        rounds.append(time.process_time() - begin)
    return round(sum(map(len, texts)) / min(rounds))


def slowest(split: Splitter) -> float | None:
    """Processor seconds of the worst hostile text, each in its own process; None where one takes over PATIENCE."""
    fork = multiprocessing.get_context("fork")
    worst = 0.0
    for text in HOSTILE:
        said = fork.SimpleQueue()
        process = fork.Process(target=_report, args=(partial(split, text), said))
        process.start()
        process.join()
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return None
        if process.exitcode:  # a crash is not slowness
            raise SystemExit(f"a splitter died with {process.exitcode} on {text[:10]!r}...")
        worst = max(worst, said.get())
    return round(worst, 2)


def _report(work: Callable[[], Any], said: Any) -> None:
    begin = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(begin) + PATIENCE, math.ceil(begin) + PATIENCE))
    work()
    said.put(time.process_time() - begin)


def refusals(records: Sequence[Record], passages: Sequence[Record]) -> dict[str, Any]:
    """How many abstentions are found, and how many answers are taken for one."""
    sys.path.insert(0, str(ROOT / "tests"))
    from refusals import ABSTENTIONS, ANSWERS

    declined = [record.answer for record in records if record.meta["abstained"]]
    answered = [record.answer for record in records if not record.meta["abstained"]]
    groups = {
        "factscore": (declined, answered),
        "wikibio": ([], [record.answer for record in passages]),
        "paraphrases": (ABSTENTIONS, ANSWERS),
    }
    return {
        name: {
            "abstentions": len(yes),
            "found": sum(map(is_abstention, yes)),
            "answers": len(no),
            "mistaken": sum(map(is_abstention, no)),
        }
        for name, (yes, no) in groups.items()
    }


def measure(records: Sequence[Record], passages: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """The results without their provenance, and lovec's disagreements with FActScore's annotators."""
    sets = {"factscore": [record for record in records if record.sentences], "wikibio": passages}
    texts = [record.answer for rows in sets.values() for record in rows]
    rows, alone = [], []
    for name, number, split in splitters():
        figures = {part: compare(split, rows)[0] for part, rows in sets.items()}
        if name == "lovec":
            alone = compare(split, sets["factscore"])[1]
        rows.append({"name": name, "version": number, **figures})
        rows[-1] |= {"characters_per_cpu_second": speed(split, texts), "hostile_cpu_seconds": slowest(split)}
    return {"splitters": rows, "abstention": refusals(records, passages)}, alone


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factscore", type=Path, help="FActScore's labelled ChatGPT.jsonl")
    parser.add_argument("wikibio", type=Path, help="WikiBio's passages with human labels, a .json file")
    flags = parser.parse_args()
    results, alone = measure(read_factscore(flags.factscore), read_wikibio(flags.wikibio))
    write_json(RESULTS, provenance() | results)
    print(*alone, sep="\n")
    for row in results["splitters"]:
        said = [f"{part} {row[part]['precision']:.2%} {row[part]['recall']:.2%}" for part in ("factscore", "wikibio")]
        print(
            row["name"], *said, f"{row['characters_per_cpu_second']:,}/s", f"{row['hostile_cpu_seconds']} s", sep=", "
        )
    print(results["abstention"])


if __name__ == "__main__":
    main()
