"""Judges that need no second model: the model's own yes or no, and the exact comparison of the world's facts."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.baselines.asking import Asking
from lovec.baselines.base import Bench, Claim
from lovec.baselines.ptrue import share_of_first
from lovec.datasets.world.reading import support
from lovec.types import LovecError


class YesNoJudge:
    """Asks the model itself whether a text supports a sentence.

    The two replies are scored as whole strings, end of turn included. A text that is too long is cut at its end; a
    sentence that leaves no room for any of it is not supported. Both are said.

    Args:
        soft: whether support is the probability of Yes among the two, instead of 1 where it is the likelier one and 0
            elsewhere.
    """

    def __init__(self, soft: bool = False) -> None:
        self.soft = soft
        self._bench: Bench | None = None
        self._asking: Asking | None = None

    def attach(self, bench: Bench) -> None:
        """Ask the model of this bench from now on."""
        wording = bench.wording
        self._bench = bench
        self._asking = Asking(bench.encoder, wording.support, (wording.yes, wording.no), type(self).__name__)

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Support of each claim in [0, 1].

        Raises:
            LovecError: nothing is attached.
        """
        if self._bench is None or self._asking is None:
            raise LovecError("YesNoJudge has no model to ask; call attach(bench) first")
        engine, asking = self._bench.engine, self._asking
        room = engine.context_length
        contexts = [asking.context(claim.record, claim.premise, claim.hypothesis, room) for claim in claims]
        yes = [share_of_first(logps) or 0.0 for logps in asking.scores(engine, contexts)]
        return yes if self.soft else [float(share > 0.5) for share in yes]


class FactsJudge:
    """Compares facts of the embedded world: the share of a sentence's facts that the text states with equal values.

    Both are read back through the world's templates, so this judge is exact and costs nothing. What no template reads,
    and what is about somebody else, states nothing; a sentence that states nothing is not supported.
    """

    def attach(self, bench: Bench) -> None:
        """Nothing is needed."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Support of each claim in [0, 1].

        Raises:
            LovecError: a record is not about an entity of a world.
        """
        return [support(*_subject(claim), claim.premise, claim.hypothesis) for claim in claims]


def _subject(claim: Claim) -> tuple[str, str]:
    """Name and kind of what a claim's record is about."""
    meta = claim.record.meta
    if "entity" not in meta or "kind" not in meta:
        raise LovecError(
            f"record {claim.record.id!r} has no meta.entity and meta.kind, so FactsJudge does not know what it is "
            "about; choose another judge for answers that are not the world's"
        )
    return str(meta["entity"]), str(meta["kind"])
