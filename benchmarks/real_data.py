"""People's labels for benchmarks/real.py: which files a set is, and which answers train, choose and test.

The files are those of the published data sets, in a folder that is given: SETS names the paths in it. Nobody that a
model answered about in training is asked about in validation or test: answers are divided by the person, or by the
question where it names none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lovec.datasets.jsonl import write_records
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record

FOLDS = 5
"""Number of parts; each is the test of one fold."""
VALIDATION = 6
"""One of so many of the people outside the test is for validation."""

_DOMAINS = ("Bio-Medical", "Education", "Finance", "Open-Domain", "Science")


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Answers that people have judged, unless ``about`` says otherwise.

    Attributes:
        title: what tables call it.
        files: its files in the folder of all data.
        about: what is labelled, and by whom.
        chosen: which records of the files belong to it.
        people: the set with everybody that it asks about, where it is a part of that one: both have the same folds.
    """

    title: str
    files: tuple[str, ...]
    about: str
    chosen: Callable[[Record], bool] = lambda record: True
    people: str | None = None


SYSTEMS = ("ChatGPT", "InstructGPT", "PerplexityAI")
"""Systems that wrote the biographies of FActScore, about the same people."""

SETS = {
    "bios": LabelledSet(
        "Bios",
        tuple(f"factscore_labeled/{system}.jsonl" for system in SYSTEMS),
        "biographies by three systems, sentences: the share of atomic facts that people found supported",
    ),
    "wikibio": LabelledSet(
        "WikiBio",
        ("wikibio_gpt3_human/dataset-generated.json",),
        "passages by GPT-3, sentences: accurate, minor or major inaccuracies",
    ),
    "halueval": LabelledSet(
        "HaluEval 2.0",
        tuple(f"halueval2/human-{domain}.json" for domain in _DOMAINS),
        "answers by ChatGPT in five fields, claims: true or false",
    ),
    "factcheck-gpt": LabelledSet(
        "Factcheck-GPT",
        ("factcheck_gpt/factcheck-GPT-benchmark.jsonl",),
        "answers by ChatGPT, sentences that need a check: true or false",
    ),
    "felm": LabelledSet(
        "FELM",
        ("factcheck_gpt/Factbench.jsonl",),
        "answers by ChatGPT on world knowledge, claims: true or false",
        lambda record: record.meta.get("source") == "felm-wk",
    ),
    "conformal": LabelledSet(
        "Biographies, automatic labels",
        ("conformal_bios/factscore_processed.json",),
        "biographies of 421 other people by ChatGPT, claims: FActScore's automatic labels, not people's",
    ),
} | {
    f"bios-{system.lower()}": LabelledSet(
        f"Bios, {system}",
        (f"factscore_labeled/{system}.jsonl",),
        f"biographies by {system}, sentences: the share of atomic facts that people found supported",
        people="bios",
    )
    for system in SYSTEMS
}
"""Labelled sets by the name that --data takes."""
SETS["bios-qwen"] = replace(
    SETS["bios"],
    title="Bios, read by Qwen2.5-Coder-0.5B-Instruct",
    about="the answers and folds of Bios, and another model that is trained and tested on them",
    people="bios",
)


def is_folded(data: str) -> bool:
    """Return whether what ``--data`` names is tested fold by fold: one set, or two about the same people."""
    train, _, test = data.partition(":")
    people = [(SETS[name].people or name) for name in (train, test or train) if name in SETS]
    return len(people) == 2 and people[0] == people[1]


def read_set(name: str, folder: Path) -> list[Record]:
    """Return the answers of a set that have a label, with ``meta`` person, system (name of the file) and domain.

    Raises:
        LovecError: there is no such set, or a file of it is missing in the folder.
    """
    if name not in SETS:
        raise LovecError(f"there is no labelled set {name!r}, expected one of {', '.join(SETS)}")
    chosen, records = SETS[name], []
    for file in chosen.files:
        path = folder / file
        if not path.exists():
            raise LovecError(f"the set {name} needs {path}; give the folder of its files with --labels FOLDER")
        for record in filter(chosen.chosen, read_any(path)):
            if any(sentence.factuality is not None for sentence in record.sentences):
                meta = {**record.meta, "domain": chosen.title, "system": path.stem, "person": person(record)}
                records.append(replace(record, id=f"{path.stem}/{record.id}", meta=meta))
    return records


def person(record: Record) -> str:
    """Return whom an answer is about, or its question where that names nobody: such answers stay together."""
    return str(record.meta.get("topic") or record.meta.get("entity") or record.question)


def fold_of(records: Sequence[Record], folds: int = FOLDS) -> dict[str, int]:
    """Return the fold of every person, in which the answers about them are tested.

    Folds are as large as each other and have as many rare people as each other; the seed is always the same.
    """
    rarity = {record.meta["person"]: str(record.meta.get("rarity", "")) for record in records}
    ranked = sorted(rarity, key=lambda name: (rarity[name], _draw("fold", name)))
    return {name: place % folds for place, name in enumerate(ranked)}


def split(
    records: Sequence[Record], fold: int | None, folds: Mapping[str, int] | None = None
) -> dict[str, list[Record]]:
    """Return the answers for training, validation and test.

    Args:
        records: answers with ``meta["person"]``.
        fold: the fold that is tested; None trains on all people but those of validation, and tests none.
        folds: the fold of every person; None divides those of ``records``.
    """
    folds = folds or fold_of(records)
    others = sorted((name for name in folds if folds[name] != fold), key=lambda name: _draw("validation", name))
    part = dict.fromkeys(folds, "test")
    part.update({name: "train" if place % VALIDATION else "validation" for place, name in enumerate(others)})
    found: dict[str, list[Record]] = {"train": [], "validation": [], "test": []}
    for record in records:
        found[part[record.meta["person"]]].append(record)
    return found


def write_split(folder: Path, train: str, test: str | None, fold: int | None, labels: Path) -> None:
    """Write train.jsonl, validation.jsonl and test.jsonl into a folder, unless they are there.

    Args:
        folder: folder to write to.
        train: name of the set that is trained on.
        test: name of another set, which is tested without the people of training; None tests the same set.
        fold: the fold that is tested; None tests all people of ``test`` that training does not ask about.
        labels: folder with the files of all sets.
    """
    if all((folder / f"{name}.jsonl").exists() for name in ("train", "validation", "test")):
        return
    records, everybody = read_set(train, labels), SETS[train].people
    folds = fold_of(records if everybody is None else read_set(everybody, labels))
    parts = split(records, fold, folds)
    if test is not None:
        seen = {record.meta["person"] for name in ("train", "validation") for record in parts[name]}
        seen |= {name for name, number in folds.items() if fold is not None and number != fold}
        parts["test"] = [record for record in read_set(test, labels) if record.meta["person"] not in seen]
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in parts.items():
        write_records(folder / f"{name}.jsonl", records)
    print(
        f"{folder}: " + ", ".join(f"{len(records)} answers for {name}" for name, records in parts.items()), flush=True
    )


def _draw(use: str, name: str) -> bytes:
    return hashlib.sha256(f"{use}/{name}".encode()).digest()
