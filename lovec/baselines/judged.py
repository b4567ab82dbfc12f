"""What the baselines share that ask a judge how texts relate to sentences."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.baselines.base import Baseline, BaselineResources, Claim, Judge, Relation, relations, support
from lovec.baselines.judges import YesNoJudge
from lovec.core.settings import PlainWord
from lovec.types import check_ready


class JudgedBaseline(Baseline):
    """A baseline that asks a judge.

    Args:
        judge: tells how texts relate to sentences; None takes the judge that comes with the data, or else the model's
            own yes or no.
        name: its name in tables; None takes the name of the class.
    """

    _judge: Judge  # from `attach` or `judge_by`

    def __init__(self, judge: Judge | None = None, name: PlainWord | None = None) -> None:
        super().__init__(name)
        self.judge = judge

    def check_ready(self) -> None:
        """Refuse a judge that lacks what it needs."""
        check_ready(self.judge)

    def attach(self, resources: BaselineResources) -> None:
        """Use these resources, and the judge they have where none was passed, from now on."""
        super().attach(resources)
        judge = self.judge or resources.judge or YesNoJudge()
        judge.attach(resources)
        self.judge_by(judge)

    def judge_by(self, judge: Judge) -> None:
        """Use a judge, which is attached already, from now on."""
        self._judge = judge

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return how well the text of each claim supports its sentence, see ``lovec.baselines.base.support``."""
        return support(self._judge, claims)

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        """Return how the text of each claim relates to its sentence, see ``lovec.baselines.base.relations``."""
        return relations(self._judge, claims)
