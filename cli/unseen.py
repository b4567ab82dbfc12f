"""Whether labelled answers are new to a model: those that it was trained on would make it look surer than it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lovec.core.plain import inside, nested
from lovec.datasets.layouts import read_any
from lovec.text.untag import untag
from lovec.types import LovecError, Record

from .saved_recipe import parse_recipe


@dataclass(frozen=True)
class Trained:
    """A file that a run was trained on.

    Attributes:
        run: folder of the run.
        path: the file, as its recipe names it.
        held_out: share of its records that training has not seen.
        seed: decides which records they are.
    """

    run: Path
    path: Path
    held_out: float
    seed: int

    def answers(self) -> set[str]:
        """Return questions with answers that training has seen.

        Raises:
            LovecError: the file cannot be read.
        """
        from lovec.datamodules.files import is_held_out

        records = read_any(str(self.path))
        return {_asked(r) for r in records if not is_held_out(r.id, self.held_out, self.seed)} - {""}


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
            if not file.path.is_file():
                raise LovecError(f"{file.path} is not there")
            answers = file.answers()
        except LovecError as error:
            notes.append(f"whether {file.run} was trained on these answers was not checked: {error}")
            continue
        kept = [record for record in left if _asked(record) not in answers]
        if len(kept) < len(left):
            trained = f"{file.run} was trained on {len(left) - len(kept)} of these {len(records)} answers ({file.path})"
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
        data, seed = inside(recipe, "data", "init_args"), recipe.get("seed_everything")
        held_out = 0.0 if data.get("val_path") else data.get("val_fraction", 0.0)
        for name in ("path", "unlabelled"):
            if isinstance(data.get(name), str):
                share = held_out if name == "path" and isinstance(held_out, float) else 0.0
                yield Trained(run, Path(data[name]), share, seed if isinstance(seed, int) else 0)
        adapter = nested(recipe, "model", "init_args", "policy", "adapter")
        if isinstance(adapter, str) and (earlier := run_of(Path(adapter))).resolve() not in visited:
            yield from trained_on(earlier, visited)


def run_of(adapter: Path) -> Path:
    """Return the folder of the run that has written an adapter, or the folder itself where it lies in none."""
    return adapter.parent if adapter.name == "adapter" else adapter


def _asked(record: Record) -> str:
    """Return the question and the answer of a record as they are compared; "" without an answer."""
    record, _ = untag(record)
    answer = " ".join(sentence.text for sentence in record.sentences) or record.answer
    return " ".join(f"{record.question}\n{answer}".split()).casefold() if answer.strip() else ""
