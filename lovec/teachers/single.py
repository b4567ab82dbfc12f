"""Teachers that ask one source: the policy that training starts from, a baseline, or an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lovec.baselines import Baseline
from lovec.taggers import IterativeTagger
from lovec.teachers.base import Estimates, StoredTeacher, TeacherResources, plain_settings
from lovec.types import LovecError, Oracle, Record, checked_ratings


class PolicyMean(StoredTeacher):
    """The mean of the policy's distribution over the scale, with the scores that it states as context.

    Args:
        adapter: folder of the adapter of the policy; None is the one that training starts from. Either is frozen.
    """

    def __init__(self, adapter: str | None = None) -> None:
        self._adapter = adapter

    @property
    def settings(self) -> Mapping[str, Any]:
        """No settings: what counts are the weights."""
        return {}

    def adapter(self, resources: TeacherResources) -> str | None:
        """Return the folder of the policy's adapter.

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


class BaselineTeacher(StoredTeacher):
    """The confidences of a baseline: p(true), sentence likelihood, agreement with samples, or any other.

    All answers to a question are compared with the same samples.

    Args:
        baseline: gives the confidences. One that learns from labels would be asked about what it has learned, and is
            refused.

    Raises:
        LovecError: the baseline learns from labels.
    """

    def __init__(self, baseline: Baseline) -> None:
        if baseline.needs_labels:
            raise LovecError(
                f"the teacher's baseline {baseline.name!r} learns from labels of the answers that it would be asked "
                "about; choose another, such as lovec.baselines.LUQ"
            )
        self.baseline = baseline
        self._settings = {
            "baseline": plain_settings(baseline),
            "judge": plain_settings(getattr(baseline, "judge", None)),
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """Class and plain attributes of the baseline and of its judge."""
        return self._settings

    def adapter(self, resources: TeacherResources) -> str | None:
        """Return the folder of the baseline's adapter; None for the bare base model."""
        return self.baseline.adapter

    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the confidences of the baseline."""
        first: dict[str, str] = {}
        named = [replace(record, id=first.setdefault(record.question, record.id)) for record in records]
        self.baseline.attach(resources.baselines)
        return self.baseline.confidences(named)


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
        """Class and fingerprint, or plain attributes, of the oracle."""
        return self._settings

    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the ratings.

        Raises:
            LovecError: there is no oracle, or it returned something other than ratings.
        """
        if (oracle := self.oracle or resources.oracle) is None:
            raise LovecError(
                "the teacher OracleTeacher has no oracle, and the data come without one; give it one by class path"
            )
        return checked_ratings(oracle, records)
