"""Go on with a test that was stopped: what its baselines have judged is kept until the test is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from lovec.baselines import Baseline, BaselineResources
from lovec.baselines.identity import (
    UntoldSettings,
    answer_part,
    code_part,
    parts_digest,
    resources_part,
    told_settings,
)
from lovec.baselines.kept import KeptFiles
from lovec.core.hub import adapter_folder
from lovec.core.provenance import adapter_options, text_digest
from lovec.core.stopwatch import Stopwatch
from lovec.datasets.jsonl import json_line, record_from_dict, record_to_dict
from lovec.evaluation.evaluator import checked_answers
from lovec.policy import Policy
from lovec.policy.fingerprint import loaded_digest
from lovec.types import LovecError, Record, Tagger

_TOKENS = "prefill_tokens"


class Keeping:
    """Keeps what the baselines of a test have judged, and the samples that they compare answers with, in a folder.

    What is kept belongs to the test, which removes the folder when it is complete. Baselines are described before any
    of them works, since some change while they do.

    Args:
        folder: the folder.
        policy: holds the model.
        resources: what the baselines work with.
        precision: precision of the trainer.
    """

    def __init__(self, folder: Path, policy: Policy, resources: BaselineResources, precision: Any) -> None:
        self._folder, self._resources = folder, resources
        self._base = loaded_digest(policy.model)
        self._computing = {"dtype": str(next(policy.model.parameters()).dtype), "precision": str(precision)}
        with suppress(UntoldSettings):
            resources.samples.keep_in(folder / f"samples-{self._digest({}, None, [])}")

    def tagger(self, baseline: Baseline) -> Tagger:
        """Return a baseline that judges only the answers that are not kept; as it is where nothing can be kept.

        That is one that learns from labels, and one of which nobody can say whether it is the same as before: it or its
        judge does not tell its settings, or the file with its class was changed while this process ran.
        """
        if baseline.needs_labels:
            return baseline
        adapter = None if baseline.adapter is None else adapter_folder(baseline.adapter)
        judges = [getattr(baseline, "judge", None), self._resources.judge]
        try:
            digest = self._digest({"baseline": told_settings(baseline)}, adapter, [baseline, *judges])
        except UntoldSettings:
            return baseline
        return ResumingTagger(baseline, self._resources.engine, digest, KeptFiles(self._folder / digest))

    def _digest(self, parts: Mapping[str, Any], adapter: str | None, objects: Sequence[Any]) -> str:
        """Return a digest of all that confidences depend on beside the answers.

        Args:
            parts: what is asked.
            adapter: folder with the weights of the adapter; None for the bare model.
            objects: what computes them, beside the engine.

        Raises:
            UntoldSettings: that cannot be said.
        """
        resources = self._resources
        made: dict[str, Any] = resources_part(self._base, resources, adapter) | {
            "judge": told_settings(resources.judge),
            "engine": told_settings(resources.engine),
            "adapter_options": None if adapter is None else adapter_options(Path(adapter)),
            "code": _code(resources.engine, *objects),
        }
        return parts_digest([made | self._computing | dict(parts)])


class _Kept(NamedTuple):
    """An answer that was judged: the tagged record, and its share of what its batch took, by what is counted."""

    record: Record
    spent: Mapping[str, Mapping[str, float]]


class ResumingTagger:
    """A baseline that is asked only about the answers that it had not judged when the same test was stopped.

    Every batch becomes a file, so those that another process wrote, or other sizes of batches, make no difference.

    Args:
        baseline: the baseline.
        engine: the engine that it works with.
        digest: tells all that its confidences depend on beside the answers.
        files: what it has judged so far.
    """

    def __init__(self, baseline: Baseline, engine: Any, digest: str, files: KeptFiles) -> None:
        self._baseline, self._engine, self._digest, self._files = baseline, engine, digest, files
        self._kept: dict[str, _Kept] | None = None

    @property
    def watch(self) -> Stopwatch:
        """The baseline's own, which also counts the seconds that kept answers took."""
        return self._baseline.watch

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with the confidences that were kept, and those of the baseline for the others.

        Raises:
            LovecError: the baseline did not return the records, or gave a confidence outside [0, 1].
        """
        if self._kept is None:
            self._kept = _read(self._files)
            if self._kept:
                rank_zero_info(
                    f"{self._baseline.name}: answers that were judged before the test was stopped are not judged "
                    f"again; they are in {self._files.folder}"
                )
        keys = [self._key(record) for record in records]
        old = [self._kept.pop(key, None) for key in keys]
        self._count([kept for kept in old if kept is not None])
        new = {place: record for place, record in enumerate(records) if old[place] is None}
        judged = dict(zip(new, self._judge(list(new.values()), [keys[place] for place in new]), strict=True))
        return [judged[place] if kept is None else kept.record for place, kept in enumerate(old)]

    def _key(self, record: Record) -> str:
        return text_digest([self._digest, json_line(answer_part(record, labels=True), record.id)])[:32]

    def _count(self, found: Sequence[_Kept]) -> None:
        """Count what kept answers took."""
        for kept in found:
            for phase, seconds in kept.spent["seconds"].items():
                self.watch.add(phase, seconds, kept.spent["cpu_seconds"][phase])
        self._engine.prefill_tokens += round(sum(kept.spent[_TOKENS][_TOKENS] for kept in found))

    def _judge(self, records: Sequence[Record], keys: Sequence[str]) -> list[Record]:
        """Ask the baseline about records, and keep what it says."""
        if not records:
            return []
        before = self._counts()
        tagged = checked_answers(self._baseline, records)
        spent = {
            name: {part: (value - before[name].get(part, 0)) / len(records) for part, value in counts.items()}
            for name, counts in self._counts().items()
        }
        lines = (json_line(record_to_dict(record), record.id) for record in tagged)
        self._files.add({"spent": spent, "answers": dict(zip(keys, map(json.loads, lines), strict=True))})
        return tagged

    def _counts(self) -> dict[str, dict[str, float]]:
        """Return the seconds so far by phase, and the context tokens of the engine."""
        tokens: dict[str, float] = {_TOKENS: self._engine.prefill_tokens}
        return {"seconds": dict(self.watch.seconds), "cpu_seconds": dict(self.watch.cpu_seconds), _TOKENS: tokens}


def _code(*objects: Any) -> list[str]:
    """Return digests of the files that define the classes of objects, and the classes that these are made from.

    With them go the user's own modules that these files import.

    Raises:
        UntoldSettings: what runs is not known, see ``code_part``.
    """
    modules = {kind.__module__ for made in objects for kind in type(made).__mro__} - {"builtins", "typing"}
    return sorted(code_part(modules).values())


def _read(files: KeptFiles) -> dict[str, _Kept]:
    """Return the answers that are kept, by key; what has another form is passed over."""
    found: dict[str, _Kept] = {}
    for data in files.read():
        with suppress(ValueError, LookupError, TypeError, AttributeError, LovecError):
            found |= {key: _Kept(record_from_dict(record), data["spent"]) for key, record in data["answers"].items()}
    return found
