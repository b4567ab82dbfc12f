"""Judges that need no second model: the model's own yes or no, and the exact comparison of the world's facts."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.baselines.base import BaselineResources, Claim, Judge, Relation
from lovec.core.settings import checked
from lovec.datasets.world.reading import relation, support
from lovec.encoding.reply_scoring import SentenceQuestion, first_reply_probability
from lovec.types import LovecError


@checked(remember=True)
class YesNoJudge(Judge):
    """Asks the model itself whether a text supports a sentence.

    Both replies are scored as ``SentenceQuestion`` does. A text that is too long is cut at its end; a
    sentence that leaves no room for any of it is not supported. Both are logged.

    Args:
        soft: whether the support is the probability of Yes among the two replies; otherwise it is 1 where Yes is the
            more probable one, and 0 elsewhere.
    """

    def __init__(self, soft: bool = False) -> None:
        self.soft = soft
        self._resources: BaselineResources | None = None
        self._question: SentenceQuestion | None = None

    def attach(self, resources: BaselineResources) -> None:
        """Ask the model of these resources from now on."""
        wording, name = resources.wording, type(self).__name__
        self._resources = resources
        self._question = SentenceQuestion(resources.encoder, wording.support, (wording.yes, wording.no), name)

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return the support of each claim in [0, 1].

        Raises:
            LovecError: ``attach`` has not been called.
        """
        if self._resources is None or self._question is None:
            raise LovecError("YesNoJudge has no model to ask; call attach(resources) first")
        engine, question = self._resources.engine, self._question
        room = engine.context_length
        prompts = [question.prompt_ids(c.record, c.hypothesis, room, context=c.premise) for c in claims]
        yes = [first_reply_probability(logps) or 0.0 for logps in question.score(engine, prompts)]
        return yes if self.soft else [float(probability > 0.5) for probability in yes]


class FactsJudge(Judge):
    """Compares facts of the embedded world: the share of a sentence's facts that the text states with equal values.

    Both are read back through the forms of the world's sentences, so the comparison is exact and costs nothing. A
    sentence that no form matches, or that is about something else, states no fact; a sentence without facts is not
    supported.
    """

    def attach(self, resources: BaselineResources) -> None:
        """Do nothing: the judge needs no resources."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return the support of each claim in [0, 1].

        Raises:
            LovecError: a record is not about an entity of a world.
        """
        return [support(*_entity(claim), claim.premise, claim.hypothesis) for claim in claims]

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        """Return how the facts of each claim's text and sentence relate, see ``lovec.datasets.world.reading.relation``.

        Raises:
            LovecError: a record is not about an entity of a world.
        """
        return [relation(*_entity(claim), claim.premise, claim.hypothesis) for claim in claims]


def _entity(claim: Claim) -> tuple[str, str]:
    """Return name and kind of the entity that the record of a claim is about."""
    meta = claim.record.meta
    if "entity" not in meta or "kind" not in meta:
        raise LovecError(
            f"record {claim.record.id!r} has no meta.entity and meta.kind, so FactsJudge does not know what it is "
            "about; choose another judge for answers that are not about the world"
        )
    return str(meta["entity"]), str(meta["kind"])
