"""Go on with a test that was stopped: what its baselines have judged is kept until the test is complete."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from lovec.baselines import Baseline
from lovec.baselines.identity import answer_part, class_name, parts_digest, plain_settings, resources_part
from lovec.core.files import write_text
from lovec.core.hub import adapter_folder
from lovec.core.provenance import adapter_options, file_digest
from lovec.core.stopwatch import Stopwatch
from lovec.datasets.jsonl import record_from_dict, record_to_dict
from lovec.evaluation.evaluator import checked_answers
from lovec.policy import Policy
from lovec.types import LovecError, Record

_TOKENS = "prefill_tokens"


class _Kept(NamedTuple):
    """An answer that was judged: the tagged record, and its share of what its batch took, by what is counted."""

    record: Record
    spent: Mapping[str, Mapping[str, float]]


class ResumingTagger:
    """A baseline that is asked only about the answers that it had not judged when the same test was stopped.

    Every batch becomes a file, so those that another process wrote, or other sizes of batches, make no difference. What
    a confidence depends on is part of the key of its answer: the baseline and its settings, the files that define its
    class and its judge's, the model, adapter, prompts, samples, engine, precision, and the answer itself.

    Args:
        baseline: the baseline; what it works with is attached already.
        policy: holds its model.
        precision: precision of the trainer.
        folder: where answers are kept. The files belong to a test, which removes them when it is complete.

    Attributes:
        watch: the baseline's own, which also counts the seconds that kept answers took.
    """

    def __init__(self, baseline: Baseline, policy: Policy, precision: Any, folder: Path) -> None:
        self.watch: Stopwatch = baseline.watch
        self._baseline, self._folder = baseline, folder
        self._engine = baseline.resources.engine
        adapter = None if baseline.adapter is None else adapter_folder(baseline.adapter)
        judges = [getattr(baseline, "judge", None), baseline.resources.judge]
        self._made = resources_part(policy.model, baseline.resources, adapter) | {
            "baseline": plain_settings(baseline),
            "adapter_options": None if adapter is None else adapter_options(Path(adapter)),
            "code": _code(baseline, *judges),
            "engine": class_name(self._engine),
            "precision": str(precision),
        }
        self._kept = dict(_read(folder))
        self._said = False

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with the confidences that were kept, and those of the baseline for the others."""
        keys = [parts_digest([self._made, answer_part(record, labels=True)]) for record in records]
        old = [self._kept[key] for key in keys if key in self._kept]
        if old and not self._said:
            rank_zero_info(
                f"{self._baseline.name}: answers that were judged before the test was stopped are not judged again; "
                f"they are in {self._folder}"
            )
            self._said = True
        for kept in old:
            for phase, seconds in kept.spent["seconds"].items():
                self.watch.add(phase, seconds, kept.spent["cpu_seconds"][phase])
        self._engine.prefill_tokens += round(sum(kept.spent[_TOKENS][_TOKENS] for kept in old))
        new = {key: record for key, record in zip(keys, records, strict=True) if key not in self._kept}
        if new:
            self._judge(new)
        return [self._kept[key].record for key in keys]

    def _judge(self, records: Mapping[str, Record]) -> None:
        """Ask the baseline about records, by their keys, and keep what it says."""
        before = self._counts()
        tagged = checked_answers(self._baseline, list(records.values()))
        spent = {
            name: {part: (value - before[name].get(part, 0)) / len(records) for part, value in counts.items()}
            for name, counts in self._counts().items()
        }
        fresh = {key: _Kept(record, spent) for key, record in zip(records, tagged, strict=True)}
        self._kept.update(fresh)
        data = {"spent": spent, "answers": {key: record_to_dict(kept.record) for key, kept in fresh.items()}}
        with suppress(OSError):  # what cannot be kept is judged again if need be; a full disk is reported by the test
            write_text(self._folder / f"{uuid.uuid4().hex}.json", json.dumps(data) + "\n")

    def _counts(self) -> dict[str, dict[str, float]]:
        """Return the seconds so far by phase, and the context tokens of the engine."""
        tokens: dict[str, float] = {_TOKENS: self._engine.prefill_tokens}
        return {"seconds": dict(self.watch.seconds), "cpu_seconds": dict(self.watch.cpu_seconds), _TOKENS: tokens}


def _code(*objects: Any) -> list[str]:
    """Return digests of the files that define the classes of objects, and the classes that these are made from."""
    modules = {kind.__module__ for made in objects for kind in type(made).__mro__}
    paths = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return sorted(file_digest(path) for path in paths if path is not None and Path(path).is_file())


def _read(folder: Path) -> Iterator[tuple[str, _Kept]]:
    """Yield the answers that are kept in a folder, by key; a file that cannot be read is passed over."""
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, LovecError):
            data = json.loads(path.read_text(encoding="utf-8"))
            answers = {key: record_from_dict(record) for key, record in data["answers"].items()}
            for key, record in answers.items():
                yield key, _Kept(record, data["spent"])
