"""Whether labelled answers are new to a model: those that it was trained on would make it look surer than it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lovec.core.plain import inside, nested
from lovec.text.untag import bare_statements
from lovec.types import LovecError, Record

from .console import quiet
from .saved_recipe import parse_recipe

_OF_FILES = ("path", "val_path", "val_fraction", "seed")


@dataclass(frozen=True)
class Trained:
    """A file that a run was trained on.

    Attributes:
        run: folder of the run.
        path: the file or folder, as its recipe names it.
        data: class of the data in the recipe.
        settings: settings of the data as JSON, the seed among them.
    """

    run: Path
    path: Path
    data: str
    settings: str

    def told(self, seen: int, of: int, what: str = "answers") -> str:
        """Say that training has seen some of the answers, or of what they are called."""
        return f"{self.run} was trained on {seen} of these {of} {what} ({self.path})"

    def records(self) -> Sequence[Record]:
        """Return the records that training has seen, as the data themselves give them.

        Raises:
            LovecError: the file is not there, or cannot be read.
        """
        from lovec import datamodules

        if not self.path.exists():
            raise LovecError(f"{self.path} is not there")
        module, _, name = self.data.rpartition(".")
        settings = json.loads(self.settings)
        own = getattr(datamodules, name, None) if f"{module}.".startswith("lovec.datamodules.") else None
        if own is None:  # a class of somebody else's: a folder may name any, so none is imported
            own, settings = datamodules.FilesDataModule, {k: v for k, v in settings.items() if k in _OF_FILES}
        try:
            with quiet():
                found: Sequence[Record] = own(**settings).load("train")
        except TypeError as error:
            raise LovecError(f"the recipe has settings that {name} does not take ({error})") from None
        return found


def seen(records: Sequence[Record], run: Path) -> list[str]:
    """Return what is to be said of test records that a run, or a run that it continues, was trained on.

    Answers are compared with their questions, and questions without an answer with their evidence. Nothing is said of
    training files that cannot be read.

    Args:
        records: the test records.
        run: folder of the run.
    """
    notes: list[str] = []
    if not (files := dict.fromkeys(trained_on(run))):
        return notes
    answers = [_asked(record) for record in records]
    asked = [answer or _question(record) for answer, record in zip(answers, records, strict=True)]
    for file in files:
        try:
            trained = file.records()
        except LovecError:
            continue
        known = {key(record) for record in trained for key in (_asked, _question)} - {""}
        if count := sum(map(known.__contains__, asked)):
            told = file.told(count, len(asked), "answers" if any(answers) else "questions")
            notes.append(f"{told}, on which a model is too sure; test it on others")
    return notes


def unseen(records: Sequence[Record], run: Path) -> tuple[list[Record], list[str]]:
    """Return the labelled answers that neither a run nor a run that it continues was trained on, wherever they lie now.

    Args:
        records: the labelled answers.
        run: folder of the run.

    Returns:
        The answers, and what is to be said of the others, and of training files that could not be compared.

    Raises:
        LovecError: training has seen all of the answers.
    """
    left, notes = list(records), []
    for file in dict.fromkeys(trained_on(run)):
        try:
            answers = {_asked(record) for record in file.records()} - {""}
        except LovecError as error:
            notes.append(f"whether {file.run} was trained on these answers was not checked: {error}")
            continue
        kept = [record for record in left if _asked(record) not in answers]
        if len(kept) < len(left):
            trained = file.told(len(left) - len(kept), len(records))
            if not kept:
                raise LovecError(
                    f"{trained}, on which a model is too sure; give --data FILE with labelled answers that training "
                    "has not seen"
                )
            notes.append(f"{trained}; they are left out, because a model is too sure of them")
        left = kept
    return left, notes


def trained_on(run: Path, visited: frozenset[Path] = frozenset()) -> Iterator[Trained]:
    """Yield the files that the recipes of a run name as training data, and those of the runs that it continues."""
    visited |= {run.resolve()}
    for path in sorted([*run.glob("logs/version_*/config.yaml"), *run.glob("recipe.yaml")]):
        try:
            recipe = parse_recipe(path.read_text(encoding="utf-8"), str(path))
        except (LovecError, OSError, ValueError):
            continue  # no training of lovec's wrote it
        data = {"seed": recipe.get("seed_everything", 0), **inside(recipe, "data", "init_args")}
        named = str(nested(recipe, "data", "class_path"))
        file = data.get("labels" if "labels" in data else "path")  # other files of a test set are questions
        if isinstance(file, str):
            yield Trained(run, Path(file), named, json.dumps(data, sort_keys=True, default=str))
        adapter = nested(recipe, "model", "init_args", "policy", "adapter")
        if isinstance(adapter, str) and (earlier := run_of(Path(adapter))).resolve() not in visited:
            yield from trained_on(earlier, visited)


def run_of(adapter: Path) -> Path:
    """Return the folder of the run that has written an adapter, or the folder itself where it lies in none."""
    return adapter.parent if adapter.name == "adapter" else adapter


def _asked(record: Record) -> str:
    """Return question and answer of a record as they are compared, without white space; "" without an answer."""
    record = bare_statements(record)
    answer = "".join(sentence.text for sentence in record.sentences) or record.answer
    return _squeezed(record.question, answer) if answer.strip() else ""


def _question(record: Record) -> str:
    """Return question and evidence of a record as they are compared, without white space."""
    return _squeezed(record.question, *record.evidence)


def _squeezed(*texts: str) -> str:
    return "".join("\n".join(texts).split()).casefold()
