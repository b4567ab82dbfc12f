"""The frozen self as judge: the policy's own base model rates how well evidence supports a sentence."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lovec.encoding import Encoder, UserTurn
from lovec.types import N_SCORES, Engine, LovecError, Record

if TYPE_CHECKING:
    from lovec.policy import Policy

Readout: TypeAlias = Literal["stated", "mean"]

SUPPORT = """\
Evidence:
{evidence}

Question: {question}

Below is one sentence of an answer to this question. How well does the evidence support it? Rate it from 0 (the \
evidence contradicts it or says nothing of the kind) to 10 (the evidence supports all of it). Reply with the number \
only.

Sentence: {sentence}"""
"""The user turn for a record with evidence. The sentence stands last, so that all before it is shared."""

BELIEF = """\
Question: {question}

Below is one sentence of an answer to this question. How likely is it to be true, as far as you know? Rate it from 0 \
(certainly false) to 10 (certainly true). Reply with the number only.

Sentence: {sentence}"""
"""The user turn for a record without evidence."""

_ROWS = 32

log = logging.getLogger(__name__)


class SelfJudge:
    """Rates sentences with the policy's base weights, adapter off, so that no second model is in memory.

    Every sentence is asked about on its own, behind its evidence and question. The eleven possible replies are scored
    as whole strings, end of turn included, so that "1" and "10" are told apart exactly and no reply has to be parsed.
    As the evidence comes first, the sentences of all answers to one question share its computation.

    Without evidence the judge goes by what the model itself knows, and says so once.

    Args:
        readout: what a rating is: "stated" is the most probable number / 10, "mean" the expected number / 10 under
            the eleven probabilities, renormalised.
        evidence_tokens: longest evidence, in tokens; longer one is cut at its end, which is said with the records'
            ids (at the first one, and again whenever their number has doubled).
        engine: scores the replies; null is the policy's where that runs a copy of the model (a second copy would take
            as much memory again), else a transformers engine of its own, so that the policy's keeps its cache.

    Attributes:
        cut: ids of the records whose evidence was cut so far.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(self, readout: Readout = "stated", evidence_tokens: int = 2048, engine: Engine | None = None) -> None:
        from lovec.engines import TransformersEngine  # here, so that oracles without a model load no torch

        if readout not in get_args(Readout):
            raise LovecError(f"readout is {readout!r}, expected one of {', '.join(get_args(Readout))}")
        if evidence_tokens < 1:
            raise LovecError(f"evidence_tokens is {evidence_tokens}, expected a positive number")
        self.readout = readout
        self.evidence_tokens = evidence_tokens
        self.engine: Engine = engine or TransformersEngine(max_rows=_ROWS)
        self._chosen = engine is not None
        self._lent = False
        self.cut: dict[str, None] = {}  # in the order they came
        self._told = 0
        self._told_of_belief = False
        self._policy: Policy | None = None
        self._turn: UserTurn | None = None

    def attach(self, policy: Policy, encoder: Encoder, engine: Engine | None = None) -> None:
        """Judge with the base of ``policy`` from now on.

        Args:
            policy: the policy that is trained; only its base is used.
            encoder: its tokenizer, chat template and end of turn.
            engine: the policy's, where it runs a copy of the model; used in place of one that was not asked for, and
                given back with the policy's adapter.
        """
        if engine is not None and not self._chosen:
            self.engine, self._lent = engine, True
        self._policy = policy
        self._turn = UserTurn(encoder, [str(score) for score in range(N_SCORES)])

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality in [0, 1] of every sentence of every record; None where question and sentence fill the context.

        Raises:
            LovecError: there is no policy yet.
        """
        if self._policy is None or self._turn is None:
            raise LovecError(
                "SelfJudge has no model to judge with; give it as model.oracle, or call attach(policy, encoder) first"
            )
        with self._policy.without_adapter():
            self.engine.sync(self._policy)
            asked = self._contexts(records, self._turn)
            contexts = [context for group in asked for context in group if context is not None]
            scores = iter(self.engine.score(contexts, self._turn.replies))
            self.engine.score([], self._turn.replies)  # frees what the engine kept of them
        if self._lent:
            self.engine.sync(self._policy)
        return [[None if context is None else self._rating(next(scores)) for context in group] for group in asked]

    def _contexts(self, records: Sequence[Record], turn: UserTurn) -> list[list[list[int] | None]]:
        """Token ids up to the reply, for every sentence; None where it does not fit. Says what was left out."""
        evidence: dict[tuple[str, ...], list[int]] = {}  # rollouts of one question come with the same
        found, failed = [], []
        for record in records:
            texts = tuple(text.strip() for text in record.evidence if text.strip())
            if texts not in evidence:
                evidence[texts] = turn.quoted("\n\n".join(texts))
            group = [self._context(record, sentence.text, evidence[texts], turn) for sentence in record.sentences]
            found.append(group)
            if None in group:
                failed.append(record.id)
        self._tell_of_belief([record.id for record in records if not any(text.strip() for text in record.evidence)])
        self._tell_of_cuts()
        if failed:
            log.warning("sentences of %d records fill the judge's context and get no rating: %s", *_listed(failed))
        return found

    def _context(self, record: Record, sentence: str, evidence: list[int], turn: UserTurn) -> list[int] | None:
        """The ids for one sentence, with as much of the evidence as fits; without any it would be another judge."""
        head, _, tail = SUPPORT.partition("{evidence}") if evidence else ("", "", BELIEF)
        tail = tail.format(question=record.question.strip(), sentence=sentence)
        found = turn.context(head, evidence[: self.evidence_tokens], tail, self.engine.context_length)
        if found is None:
            return None
        ids, kept = found
        if kept < len(evidence):
            self.cut[record.id] = None
        return ids

    def _rating(self, logps: Sequence[float]) -> float:
        """Factuality from the log-probabilities of the replies 0..10."""
        if self.readout == "stated":
            return logps.index(max(logps)) / 10
        weights = [math.exp(logp - max(logps)) for logp in logps]
        mean = math.fsum(score * weight for score, weight in enumerate(weights)) / math.fsum(weights)
        return min(mean / 10, 1.0)  # rounding can lift a certain 10 above 1

    def _tell_of_belief(self, ids: list[str]) -> None:
        if ids and not self._told_of_belief:
            self._told_of_belief = True
            log.warning("%d records have no evidence, the judge goes by what the model knows: %s", *_listed(ids))

    def _tell_of_cuts(self) -> None:
        if len(self.cut) >= max(1, 2 * self._told):
            new = list(self.cut)[self._told :]
            self._told = len(self.cut)
            log.warning(
                "evidence of %d records so far is longer than %d tokens or the context and is cut at its end: %s",
                self._told,
                self.evidence_tokens,
                _listed(new)[1],
            )


def _listed(ids: Sequence[str]) -> tuple[int, str]:
    """How many there are, and the first ones by name."""
    return len(ids), ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
