"""Distil: the policy learns to state what a teacher estimates, sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lovec.core.notices import counted, listed
from lovec.core.settings import ProperShare
from lovec.evaluation.processes import gather
from lovec.losses import soft_score_nll
from lovec.metrics.functional import expected_confidence
from lovec.modules.checks import check_ids
from lovec.modules.scores import ScoreModule
from lovec.oracles.cache import default_cache
from lovec.teachers import Teacher, TeacherResources
from lovec.types import LovecError, Record

_ESTIMATES = "teacher_estimates"


class Distil(ScoreModule):
    """Minimises the cross-entropy of the stated score to a soft label around the teacher's estimate t in [0, 1].

    With z = top t, which lies between two scores a and a + 1, the label gives a + 1 the probability z - a and a the
    rest, so its mean is z (linear interpolation). The loss of a sentence is

        -(a + 1 - z) log pi(a | q, s_<=i, c_<i) - (z - a) log pi(a + 1 | q, s_<=i, c_<i)

    with pi(c) the exact probability of the score's first tokens or whole string. A rounded true score says "false" or
    "true" of what the model cannot know; an estimate says how sure one can be, so the most probable score is a
    calibrated one. The earlier scores in the context are the rounded estimates, unless ``context`` names others. All
    estimates are made before the first step, on all training answers; those that take time are kept in files, see
    ``lovec.teachers.base.StoredTeacher``. A teacher that uses no labels, or a blend of which some are labelled, also
    gives targets to answers without labels.

    What the model states is its most probable score. Where its state cannot tell answers that the teacher rates 4 from
    ones that it rates 10, this loss alone makes both scores probable and the mean of the two improbable. Therefore z is
    moved towards the mean score m of the policy's own present distribution, which has no gradient (soft bootstrapping,
    Reed et al. 2014, arXiv 1412.6596): z' = (1 - w) z + w m. That leaves the mean that is learned where it is, since at
    the optimum m is the mean of z, and makes the distribution narrower by the factor 1 - w, so that its mode is near
    its mean.

    Args:
        teacher: estimates how true every sentence of the training answers is.
        own_share: share w of the policy's own mean in the target, at least 0 and below 1.
        kwargs: arguments of ``ScoreModule``.

    Raises:
        LovecError: before the first step, where answers share an id, or the teacher gives no estimate for a sentence.
    """

    def __init__(self, teacher: Teacher, own_share: ProperShare = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.teacher = teacher
        self.own_share = own_share
        self._estimates: dict[str, tuple[float, ...]] = {}

    def setup(self, stage: str) -> None:
        """Refuse a teacher that lacks what it needs, unless a checkpoint brings its estimates."""
        super().setup(stage)
        if stage == "fit" and self.trainer.ckpt_path is None:
            self.teacher.check_ready(self._oracle)

    def on_fit_start(self) -> None:
        """Let the teacher estimate all training answers, unless a checkpoint has brought its estimates."""
        super().on_fit_start()
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        check_ids(data)  # first, since a teacher may take hours or money
        records: Sequence[Record] = data.loaded("train")
        resumed = self.trainer.ckpt_path is not None
        if resumed and all(len(self._estimates.get(r.id, ())) == len(r.sentences) for r in records):
            return
        rows = self.teacher.estimates(records, self.teacher_resources)
        missing = [r.id for r, row in zip(records, rows, strict=True) if any(value is None for value in row)]
        if missing:
            raise LovecError(
                f"{type(self.teacher).__name__} gives {counted(len(missing), 'training answer')} no estimate for some "
                f"sentence: {listed(missing)}; leave them out, or choose a teacher that can judge them"
            )
        self._estimates = {
            record.id: tuple(float(value) for value in row if value is not None)
            for record, row in zip(records, rows, strict=True)
        }
        values = [value for row in self._estimates.values() for value in row]
        rank_zero_info(
            f"{type(self.teacher).__name__} has estimated {counted(len(values), 'sentence')} of "
            f"{counted(len(records), 'answer')}: "
            f"mean {math.fsum(values) / max(1, len(values)):.3f}"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the estimates: a run that goes on needs neither the teacher nor the adapter that it started from."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[_ESTIMATES] = {name: list(values) for name, values in self._estimates.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the estimates of the run that goes on."""
        super().on_load_checkpoint(checkpoint)
        self._estimates = {str(name): tuple(values) for name, values in checkpoint.get(_ESTIMATES, {}).items()}

    @property
    def teacher_resources(self) -> TeacherResources:
        """What the teacher works with."""
        return TeacherResources(
            self.policy,
            self.baseline_resources,
            start=self.policy_config.adapter,
            oracle=self.evaluator.oracle,
            folder=default_cache().with_name("teachers"),
            rank=self.global_rank,
            processes=self.trainer.world_size,
            gather=lambda part: gather(self.trainer, part),
        )

    def targets(self, row: Record) -> list[float]:
        """Return the estimates of a row's sentences on the scale 0..top; the middle before there are any."""
        known = self._estimates.get(row.id, (0.5,) * len(row.sentences))
        return [self.scale.top * value for value in known[: len(row.sentences)]]  # a long row has lost its last ones

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute the cross-entropy of every sentence to its soft label, [M]."""
        own = self.scale.top * expected_confidence(logps.detach().softmax(-1))
        return soft_score_nll(logps, (1 - self.own_share) * ratings.to(own.dtype) + self.own_share * own)
