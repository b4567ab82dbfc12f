"""Compare where sentences end, and which answers decline, with the annotations of two data sets.

    python benchmarks/sentences.py ChatGPT.jsonl dataset-generated.json    # -> benchmarks/results/sentences.json

FActScore's annotators worked sentence by sentence: their texts say where sentences end (splits inside quoted titles
included, counted as they are), and a line without annotations is an abstention. WikiBio is held out: the rules were
written without looking at it, and disagreements on it are not printed. ``tests/data/boundaries.yaml`` holds texts of
four kinds and six languages; the rules were corrected on them. Installed libraries are measured as well; those that
know several languages are told which one it is.
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

import yaml
from common import ROOT, provenance, results_file, write_json

from lovec.datasets.factscore import read_factscore
from lovec.datasets.wikibio import read_wikibio
from lovec.text.abstentions import is_abstention
from lovec.text.sentences import split_sentences
from lovec.types import Record, Sentence

RESULTS = results_file("sentences")
HOSTILE = ("." * 100_000, "'" * 100_000, '." ' * 33_333, "U.S. " * 20_000, "..[" + "111 " * 25_000)
PATIENCE = 10
"""Processor seconds that a hostile text may take; wall time would depend on what else the machine does."""

LANGUAGES = {"german": "de", "french": "fr", "spanish": "es", "russian": "ru", "hindi": "hi", "chinese": "zh"}
"""Sets of texts that are not English, with the codes by which libraries know the languages."""

Splitter = Callable[[str], Sequence[str]]


def without_space(text: str) -> str:
    """Return the text without white space, since splitters differ in how much of it they keep."""
    return "".join(text.split())


def ends(sentences: Sequence[str]) -> set[int]:
    """Return where sentences end, without the last one, as numbers of characters that are not white space before it."""
    positions, position = set(), 0
    for sentence in sentences:
        position += len(without_space(sentence))
        positions.add(position)
    return positions - {0, position}


def compare(split: Splitter, records: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """Compare a splitter with annotated records.

    Returns:
        Counts, precision and recall over all records; and every end that only one side has, with the text around it.
    """
    matched = extra = missed = not_whole = 0
    disagreements = []
    for record in records:
        pieces = split(record.answer)
        text = without_space(record.answer)
        predicted, annotated = ends(pieces), ends([s.text for s in record.sentences])
        not_whole += "".join(map(without_space, pieces)) != text
        matched += len(predicted & annotated)
        extra += len(predicted - annotated)
        missed += len(annotated - predicted)
        for end in sorted(predicted ^ annotated):
            kind = "extra " if end in predicted else "missed"
            disagreements.append(f"{kind} {text[max(0, end - 40) : end]} | {text[end:][:30]}")
    counts = {
        "answers": len(records),
        "ends": matched + missed,
        "precision": matched / max(1, matched + extra),
        "recall": matched / max(1, matched + missed),
        "extra": extra,
        "missed": missed,
        "not_whole": not_whole,
    }
    return counts, disagreements


def boundaries() -> dict[str, list[Record]]:
    """Return the texts of ``tests/data/boundaries.yaml`` by kind or language, with the sentences that a person sees."""
    kinds = yaml.safe_load((ROOT / "tests" / "data" / "boundaries.yaml").read_text(encoding="utf-8"))
    return {
        kind: [
            Record(
                f"{kind}-{number}",
                "",
                answer=text.replace(" ¦ ", " ").replace("¦", ""),
                sentences=tuple(Sentence(piece.strip()) for piece in text.split("¦")),
            )
            for number, text in enumerate(texts)
        ]
        for kind, texts in kinds.items()
    }


def splitters() -> Iterator[tuple[str, str | None, Callable[[str], Splitter]]]:
    """Yield name, version and maker of lovec's splitter, and of those of installed libraries that need no download.

    A maker takes the code of a language.
    """
    yield "lovec", None, lambda language: split_sentences
    for package, build in LIBRARIES.items():
        try:
            build("en")
            yield package, version(package), build
        except ImportError:
            print(f"{package} is not installed", file=sys.stderr)


def _pysbd(language: str) -> Splitter:
    from pysbd import Segmenter

    return Segmenter(language=language, clean=False).segment


def _nltk(language: str) -> Splitter:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer().tokenize  # untrained: its trained model is a download


def _spacy(language: str) -> Splitter:
    import spacy

    model = spacy.blank(language)
    model.max_length = 10**7
    model.add_pipe("sentencizer")
    return lambda text: [sentence.text for sentence in model(text).sents]


def _sentencex(language: str) -> Splitter:
    from sentencex import segment

    return lambda text: list(segment(language, text))


def _blingfire(language: str) -> Splitter:
    from blingfire import text_to_sentences

    return lambda text: text_to_sentences(text).split("\n")


def _syntok(language: str) -> Splitter:
    from syntok import segmenter

    return lambda text: [
        "".join(token.spacing + token.value for token in sentence)
        for paragraph in segmenter.process(text)
        for sentence in paragraph
    ]


def _sentence_splitter(language: str) -> Splitter:
    from sentence_splitter import SentenceSplitter

    return SentenceSplitter("en" if language in ("hi", "zh") else language).split  # it does not know these two


LIBRARIES: dict[str, Callable[[str], Splitter]] = {
    "sentencex": _sentencex,
    "blingfire": _blingfire,
    "pysbd": _pysbd,
    "sentence-splitter": _sentence_splitter,
    "syntok": _syntok,
    "spacy": _spacy,
    "nltk": _nltk,
}


def speed(split: Splitter, texts: Sequence[str]) -> int:
    """Return characters per processor second, the best of three rounds."""
    rounds = []
    for _ in range(3):
        begin = time.process_time()
        for text in texts:
            split(text)
        rounds.append(time.process_time() - begin)
    return round(sum(map(len, texts)) / min(rounds))


def slowest(split: Splitter) -> float | None:
    """Return the processor seconds of the slowest hostile text; None if one takes longer than ``PATIENCE``.

    Each text is split in a process of its own.
    """
    fork = multiprocessing.get_context("fork")
    worst = 0.0
    for text in HOSTILE:
        seconds = fork.SimpleQueue()
        process = fork.Process(target=_report, args=(partial(split, text), seconds))
        process.start()
        process.join()
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return None
        if process.exitcode:  # a crash is not slowness
            raise SystemExit(f"a splitter died with {process.exitcode} on {text[:10]!r}...")
        worst = max(worst, seconds.get())
    return round(worst, 2)


def _report(work: Callable[[], Any], seconds: Any) -> None:
    """Do the work and put its processor seconds into a queue; the process is killed when it takes too long."""
    begin = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(begin) + PATIENCE, math.ceil(begin) + PATIENCE))
    work()
    seconds.put(time.process_time() - begin)


def refusals(records: Sequence[Record], passages: Sequence[Record]) -> dict[str, Any]:
    """Return how many abstentions are recognised, and how many answers are mistaken for one."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    from refusals import ABSTENTIONS, ANSWERS, HELD_OUT_ABSTENTIONS, HELD_OUT_ANSWERS

    declined = [record.answer for record in records if record.meta["abstained"]]
    answered = [record.answer for record in records if not record.meta["abstained"]]
    groups = {
        "factscore": (declined, answered),
        "wikibio": ([], [record.answer for record in passages]),
        "paraphrases": (ABSTENTIONS, ANSWERS),
        "held out": (HELD_OUT_ABSTENTIONS, HELD_OUT_ANSWERS),
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
    """Return the results without their provenance, and where lovec disagrees with FActScore's annotators."""
    sets = {"factscore": [record for record in records if record.sentences], "wikibio": passages}
    texts = [record.answer for rows in sets.values() for record in rows]
    rows: list[dict[str, Any]] = []
    disagreements: list[str] = []
    written = boundaries()
    for name, number, build in splitters():
        split = build("en")
        counts = {part: compare(split, annotated)[0] for part, annotated in sets.items()}
        if name == "lovec":
            disagreements = compare(split, sets["factscore"])[1]
        kinds = {kind: compare(build(LANGUAGES.get(kind, "en")), texts)[0] for kind, texts in written.items()}
        rows.append({"name": name, "version": number, **counts, "kinds": kinds})
        rows[-1] |= {"characters_per_cpu_second": speed(split, texts), "hostile_cpu_seconds": slowest(split)}
    return {"splitters": rows, "abstention": refusals(records, passages)}, disagreements


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factscore", type=Path, help="FActScore's labelled ChatGPT.jsonl")
    parser.add_argument("wikibio", type=Path, help="WikiBio's passages with human labels, a .json file")
    flags = parser.parse_args()
    results, disagreements = measure(read_factscore(flags.factscore), read_wikibio(flags.wikibio))
    write_json(RESULTS, provenance() | results)
    print(*disagreements, sep="\n")
    for row in results["splitters"]:
        shares = [f"{part} {row[part]['precision']:.2%} {row[part]['recall']:.2%}" for part in ("factscore", "wikibio")]
        print(
            row["name"], *shares, f"{row['characters_per_cpu_second']:,}/s", f"{row['hostile_cpu_seconds']} s", sep=", "
        )
    print(results["abstention"])


if __name__ == "__main__":
    main()
