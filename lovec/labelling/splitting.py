"""Labelled records in three files, for training, development and test; every entity is in one of them only."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.core.files import atomic_file, check_unused, read_json, write_text
from lovec.core.plain import checked_integer, checked_text, wrong
from lovec.core.provenance import Origin
from lovec.core.settings import Probability, checked
from lovec.datasets.evidence import PAPERS_QUESTION
from lovec.datasets.jsonl import json_line, record_to_dict
from lovec.labelling.sources import input_digest, stage_file
from lovec.labelling.stage import Counts
from lovec.types import LovecError, Record, error_in

SPLITS = ("train", "dev", "test")
"""Names of the splits, and of their files without the suffix."""

MANIFEST = "splits.json"
"""File beside them that says how they were made, and how many entities and records each of them has."""

ENTITY_KEY = "entity"
"""Key in ``meta`` that names the entity of a record, where none is given; records without it go by their question."""

_MOST_BYTES = 1 << 20  # of such a file that is read
_MAKE_ANEW = "make the splits anew with --redo"
_RULE = (
    "An entity is meta.{key} of a record, else the name in the paper's question, else the whole question. Entities are "
    "sorted by the SHA-256 of seed and name; the first ones are test, the next ones dev, the others train."
)
_OWN_RULE = (
    "An entity is meta.{key} of a record, else the name in the paper's question, else the whole question. It is in the "
    "split that meta.split of its records names, and where they name several, in test or else in dev."
)
_OWN_SPLITS = {"train": "train", "validation": "dev", "dev": "dev", "test": "test"}  # by what ``meta["split"]`` says


class TooFewEntities(LovecError):
    """There is no entity for each of the splits."""


@checked("{}_share")
@dataclass(frozen=True, slots=True)
class Splitting:
    """How labelled records are split.

    Attributes:
        dev: share of the entities whose records are for development.
        test: share of the entities whose records are for the test; the others are for training.
        seed: decides which entities they are.
        key: key in ``meta`` that names the entity of a record.

    Raises:
        LovecError: a share is not in (0, 1), they leave nothing for training, or the seed is out of range.
    """

    dev: Probability = 0.1
    test: Probability = 0.1
    seed: int = 0
    key: str = ENTITY_KEY

    def __post_init__(self) -> None:
        if self.dev + self.test >= 1:
            raise LovecError(f"dev_share {self.dev:g} and test_share {self.test:g} leave nothing to train on")

    def entity(self, record: Record) -> str:
        """Return the entity that a record is about, in lower case, with single spaces and composed Unicode.

        Samples and repeated questions have the same; so have all questions that name their entity in ``meta``.
        """
        named = self.named(record)
        if not named:
            asked = PAPERS_QUESTION.fullmatch(record.question.strip())
            named = record.question if asked is None else asked[1]
        return unicodedata.normalize("NFC", " ".join(named.split()).casefold())

    def named(self, record: Record) -> str:
        """Return the entity that the ``meta`` of a record names, by a text or a number; "" where it names none."""
        value = record.meta.get(self.key)
        names = isinstance(value, str | int | float) and not isinstance(value, bool)
        return str(value).strip() if names else ""

    def assign(self, entities: Iterable[str]) -> dict[str, str]:
        """Return the split of every entity; each split has at least one.

        Raises:
            TooFewEntities: there are fewer than three.
        """
        drawn = sorted(set(entities), key=lambda name: (hashlib.sha256(f"{self.seed}/{name}".encode()).digest(), name))
        if len(drawn) < len(SPLITS):
            raise TooFewEntities(f"the labels are of {len(drawn)} entities, expected at least {len(SPLITS)}")
        n_test = min(max(1, round(self.test * len(drawn))), len(drawn) - 2)
        n_dev = min(max(1, round(self.dev * len(drawn))), len(drawn) - n_test - 1)
        ends = {"test": n_test, "dev": n_test + n_dev, "train": len(drawn)}
        return {name: next(s for s, end in ends.items() if at < end) for at, name in enumerate(drawn)}


def split_file(labelled: Path, splitting: Splitting, redo: bool = False) -> Counts:
    """Write ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl`` beside a file of labelled records, and a manifest.

    Where every labelled record names its split in ``meta["split"]``, as those of WildHallucinations do, and each of the
    three is named, they are split so; otherwise they are drawn. Records without any labelled sentence are left out.
    Files that are there already and fit are left as they are. The manifest is written before them, without their
    digests, and again after them, so an interrupted run is repeated.

    Args:
        labelled: the file.
        splitting: how it is split.
        redo: whether to make files anew that were made from others, otherwise, or changed since.

    Returns:
        Number of "entities", and of "train", "dev" and "test" records, and of those "left out"; and of those "by
        meta.split" where it counts.

    Raises:
        TooFewEntities: there is not one for each file.
        LovecError: files are there that are not to be replaced.
    """
    folder, manifest = labelled.parent, labelled.with_name(MANIFEST)
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    settings = {"dev": splitting.dev, "test": splitting.test, "seed": splitting.seed, "entity": splitting.key}
    origin = Origin({"file": input_digest(labelled)}, settings)
    if not redo and (counts := _earlier_counts(manifest, origin, paths)) is not None:
        return counts
    records = stage_file(labelled).records
    entities, named, stated = dict[str, str](), False, True
    for record in records(0):
        if record.has_labels:
            entity, own = splitting.entity(record), _OWN_SPLITS.get(str(record.meta.get("split")))
            entities[entity] = max(entities.get(entity, "train"), own or "train", key=SPLITS.index)
            named |= bool(splitting.named(record))
            stated &= own is not None
    if entities and not named and splitting.key != ENTITY_KEY:
        raise LovecError(
            f"no labelled record of {labelled} names its entity in meta.{splitting.key}, as --entity_key says; give a "
            "key that they have, or leave the option out"
        )
    stated &= set(entities.values()) == set(SPLITS)
    split_of, rule = (entities, _OWN_RULE) if stated else (splitting.assign(entities), _RULE)
    state: dict[str, Any] = {"identity": origin.to_dict(), "rule": rule.format(key=splitting.key), "digests": {}}
    _save(manifest, state)
    counts = Counter({"entities": len(entities), **dict.fromkeys(SPLITS, 0)})
    with ExitStack() as stack:
        parts = {split: stack.enter_context(atomic_file(path)) for split, path in paths.items()}
        opened = {split: stack.enter_context(open(part, "wb")) for split, part in parts.items()}
        for record in records(0):
            if not record.has_labels:
                counts["left out"] += 1
                continue
            split = split_of[splitting.entity(record)]
            opened[split].write(json_line(record_to_dict(record), record.id))
            counts[split] += 1
    if stated:
        counts["by meta.split"] = sum(counts[split] for split in SPLITS)
    state["entities"] = {split: list(split_of.values()).count(split) for split in SPLITS}
    state["counts"] = dict(counts)
    state["digests"] = {split: input_digest(path) for split, path in paths.items()}
    _save(manifest, state)
    return counts


def _save(manifest: Path, state: Mapping[str, Any]) -> None:
    write_text(manifest, json.dumps(state, indent=1) + "\n")


def _earlier_counts(manifest: Path, origin: Origin, paths: Mapping[str, Path]) -> Counts | None:
    """Return the counts of an earlier run whose files are all there; None where they are to be written.

    Raises:
        LovecError: there are files that this run would not have written.
    """
    if not manifest.exists():
        for path in paths.values():
            check_unused(path, "make it anew with --redo, or choose another --out")
        return None
    state = read_json(manifest, _MOST_BYTES, _MAKE_ANEW)
    with error_in(f"{manifest} does not say how splits were made: ", f"; {_MAKE_ANEW}"):
        digests = {split: checked_text(name, "a digest") for split, name in _part(state, "digests").items()}
        unlike = Origin.from_dict(_part(state, "identity")).unlike(origin)
        counts = {name: checked_integer(n, "a count") for name, n in _part(state, "counts").items()} if digests else {}
    if not digests:
        return None  # an earlier run was interrupted
    if unlike:
        raise LovecError(f"{', '.join(_names(paths))} were made with {unlike}; make them anew with --redo")
    changed = [path for split, path in paths.items() if not path.is_file() or input_digest(path) != digests.get(split)]
    if changed:
        raise LovecError(f"{changed[0]} was changed or removed since it was written; make the splits anew with --redo")
    return counts


def _part(state: Any, name: str) -> dict[str, Any]:
    """Return an object in a manifest.

    Raises:
        LovecError: it is not an object.
    """
    found = state.get(name) if isinstance(state, dict) else None
    if not isinstance(found, dict):
        raise wrong(f"its {name}", found, "an object")
    return found


def _names(paths: Mapping[str, Path]) -> Sequence[str]:
    return [str(path) for path in paths.values()]
