"""Teachers that ask one source: the policy that training starts from, a baseline, or an oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from lovec.baselines import Baseline
from lovec.baselines.identity import plain_settings
from lovec.core.notices import counted, listed
from lovec.core.settings import checked
from lovec.taggers import IterativeTagger
from lovec.teachers.base import Estimates, StoredTeacher, TeacherResources
from lovec.types import LovecError, Oracle, Record, check_ready, checked_ratings

Comparison: TypeAlias = Literal["samples", "answers"]
"""What a teacher compares an answer with: newly sampled answers, or the other training answers to its question."""


class PolicyMean(StoredTeacher):
    """The mean of the policy's distribution over the scale, with the scores that it states as context.

    Args:
        adapter: the adapter of the policy, as for ``policy.adapter``; None is the one that training starts from. Either
            is frozen.
    """

    def __init__(self, adapter: str | None = None) -> None:
        self._adapter = adapter

    @property
    def settings(self) -> Mapping[str, Any]:
        """No settings: what counts are the weights."""
        return {}

    def adapter(self, resources: TeacherResources) -> str | None:
        """Return the policy's adapter.

        Raises:
            LovecError: training starts with a fresh adapter, which says nothing.
        """
        if (adapter := self._adapter or resources.start) is None:
            raise LovecError(
                "the teacher PolicyMean has no adapter, as training starts a fresh one; give --model.policy.adapter "
                "FOLDER of a policy that states confidences, or the teacher's own adapter"
            )
        return adapter

    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the mean readout of every sentence; None where it does not fit the context."""
        tagger = IterativeTagger(resources.baselines.engine, resources.baselines.encoder, readout="mean")
        return [[sentence.confidence for sentence in record.sentences] for record in tagger.tag(records)]


@runtime_checkable
class HeldOut(Protocol):
    """What a baseline that learns from labels needs, to be a teacher."""

    def held_out(self, records: Sequence[Record]) -> Estimates:
        """Learn from labelled records, and return confidences of them that the labels of a question have no part in."""


@checked()
class BaselineTeacher(StoredTeacher):
    """The confidences of a baseline: p(true), sentence likelihood, agreement with samples, a probe, or any other.

    Args:
        baseline: gives the confidences. One that learns from labels must have a method ``held_out``, as
            ``LinearProbe`` and ``Words`` have: it gives confidences that the labels of the same question have no part
            in.
        compare_with: what a baseline that compares answers is given. With "samples" it samples answers to every
            question, and compares all training answers to it with the same ones. With "answers" nothing is sampled:
            every training answer is compared with the other training answers to the same question.

    Raises:
        LovecError: the baseline learns from labels and has no ``held_out``, or ``compare_with`` is something else.
    """

    def __init__(self, baseline: Baseline, compare_with: Comparison = "samples") -> None:
        if baseline.needs_labels and not isinstance(baseline, HeldOut):
            raise LovecError(
                f"the teacher's baseline {baseline.name!r} learns from labels of the answers that it would be asked "
                "about; choose another, such as lovec.baselines.LinearProbe"
            )
        self.baseline = baseline
        self.uses_labels = baseline.needs_labels
        self.compare_with = compare_with
        self._settings = {"compare_with": compare_with, "baseline": plain_settings(baseline)}

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the baseline was made with, its judge among it."""
        return self._settings

    def adapter(self, resources: TeacherResources) -> str | None:
        """Return the baseline's adapter; None for the bare base model."""
        return self.baseline.adapter

    def check_ready(self, oracle: Oracle | None) -> None:
        """Refuse a baseline that lacks what it needs, such as a key of its judge."""
        self.baseline.check_ready()

    def estimates(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the estimates of records, as every teacher that keeps them.

        Raises:
            LovecError: answers are to be compared with each other, and some question has one answer only.
        """
        if self.compare_with == "answers":
            records = _with_others(records)
        elif not isinstance(self.baseline, HeldOut):
            records = _named(records)  # before each process takes its share, so that the samples do not depend on it
        return super().estimates(records, resources)

    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the confidences of the baseline."""
        self.baseline.attach(resources.baselines)
        if isinstance(self.baseline, HeldOut):
            return self.baseline.held_out(records)
        return self.baseline.confidences(records)


def _named(records: Sequence[Record]) -> list[Record]:
    """Give all answers to a question one id, so that they are compared with the same samples."""
    first: dict[str, str] = {}
    return [replace(record, id=first.setdefault(record.question, record.id)) for record in records]


def _with_others(records: Sequence[Record]) -> list[Record]:
    """Give every answer the other answers to its question as samples."""
    answers: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        answers[record.question].append(record)
    if alone := [group[0].id for group in answers.values() if len(group) == 1]:
        raise LovecError(
            f"{counted(len(alone), 'question has', 'questions have')} one answer only, so there is no other to compare "
            f"it with: {listed(alone)}; "
            "give several answers per question (--data.samples of the embedded world), or compare with samples"
        )
    found = []
    for record in records:
        others = [
            r.answer or " ".join(s.text for s in r.sentences) for r in answers[record.question] if r is not record
        ]
        found.append(replace(record, meta={**record.meta, "samples": others}))
    return found


class OracleTeacher(StoredTeacher):
    """The ratings of an oracle.

    Args:
        oracle: rates the sentences; None is the oracle of the run.
    """

    def __init__(self, oracle: Oracle | None = None) -> None:
        self.oracle = oracle
        self._settings = {"oracle": plain_settings(oracle)}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The fingerprint of the oracle, or what it was made with."""
        return self._settings

    def check_ready(self, oracle: Oracle | None) -> None:
        """Refuse a run without an oracle, and an oracle that lacks what it needs, such as a key."""
        check_ready(self._asked(oracle))

    def lasting(self, resources: TeacherResources) -> bool:
        """Return whether the oracle could rate all that it was asked; what failed is asked again by the next run."""
        return not getattr(self.oracle or resources.oracle, "failures", None)

    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the ratings.

        Raises:
            LovecError: there is no oracle, or it returned something other than ratings.
        """
        return checked_ratings(self._asked(resources.oracle), records)

    def _asked(self, oracle: Oracle | None) -> Oracle:
        """Return the teacher's own oracle, or else that of the run."""
        if (asked := self.oracle or oracle) is None:
            raise LovecError(
                "the teacher OracleTeacher has no oracle, and the data come without one; give it one by class path"
            )
        return asked
