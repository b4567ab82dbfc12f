"""The self-judge: the policy's own frozen base model rates how well evidence supports a sentence."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lovec.core.notices import SingleWarning
from lovec.core.settings import Count, checked
from lovec.encoding import Encoder
from lovec.encoding.prompts import prompt
from lovec.encoding.reply_scoring import SentenceQuestion
from lovec.text.cutting import stripped
from lovec.types import DEFAULT_SCALE, Engine, LovecError, Oracle, Readout, Record

if TYPE_CHECKING:
    from lovec.policy import Policy

EVIDENCE_PROMPT = prompt("judge_with_evidence")
"""The user turn for a record with evidence. The sentence comes last, so that all text before it is shared."""

KNOWLEDGE_PROMPT = prompt("judge_without_evidence")
"""The user turn for a record without evidence."""

_ROWS = 32

log = logging.getLogger(__name__)


@checked(remember=True)
class SelfJudge(Oracle):
    """Rates sentences with the policy's base weights, adapter off, so that no second model is in memory.

    The model is asked about each sentence separately, after its evidence and question. The eleven possible replies are
    scored as ``SentenceQuestion`` does, so that "1" and "10" are told apart exactly and no reply has to be parsed. As
    the evidence comes first, its computation is shared by the sentences of all answers to one question.

    Without evidence the judge relies on what the model itself knows. Warnings name the records without evidence, those
    whose evidence was cut, and those with a sentence that does not fit the model.

    Args:
        readout: how a rating is read: "stated" is the most probable number / 10, "mean" the expected number / 10 under
            the eleven probabilities, renormalised.
        evidence_tokens: longest evidence, in tokens; longer evidence is cut at its end.
        engine: scores the replies; None is the policy's engine where that runs a copy of the model (a second copy
            would take as much memory again), else a transformers engine of its own, so that the policy's engine keeps
            its cache.

    Raises:
        LovecError: an option is out of range.
    """

    reads_evidence = True

    def __init__(
        self, readout: Readout = "stated", evidence_tokens: Count = 2048, engine: Engine | None = None
    ) -> None:
        from lovec.engines import TransformersEngine  # here, so that oracles without a model load no torch

        self.readout = readout
        self.evidence_tokens = evidence_tokens
        self.engine: Engine = engine or TransformersEngine(max_rows=_ROWS)
        self._may_share_engine = engine is None
        self._shares_engine = False
        self._policy: Policy | None = None
        self._question: SentenceQuestion | None = None
        self._no_evidence = SingleWarning(
            log, "%d records so far have no evidence, and the judge goes by what the model knows: %s"
        )

    def attach(self, policy: Policy, encoder: Encoder, engine: Engine | None = None) -> None:
        """Judge with the base of ``policy`` from now on.

        Args:
            policy: the policy that is trained; only its base is used.
            encoder: its tokenizer, chat template and end of turn.
            engine: the policy's engine, where it runs a copy of the model; the judge uses it unless it was made with
                an engine, and gives it back with the policy's adapter.
        """
        if engine is not None and self._may_share_engine:
            self.engine, self._shares_engine = engine, True
        self._policy = policy
        self._question = SentenceQuestion(
            encoder, EVIDENCE_PROMPT, DEFAULT_SCALE.words, "SelfJudge", KNOWLEDGE_PROMPT, self.evidence_tokens
        )

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality in [0, 1] of every sentence; None where question and sentence fill the context.

        Raises:
            LovecError: there is no policy yet.
        """
        if self._policy is None or self._question is None:
            raise LovecError(
                "SelfJudge has no model to judge with; give it as model.oracle, or call attach(policy, encoder) first"
            )
        evidence = ["\n\n".join(stripped(record.evidence)) for record in records]
        for record, text in zip(records, evidence, strict=True):
            if not text:
                self._no_evidence.add(record.id)
        self._no_evidence.flush()
        with self._policy.without_adapter():
            self.engine.sync(self._policy)
            logps = self._question.score_sentences(self.engine, records, evidence)
        if self._shares_engine:
            self.engine.sync(self._policy)
        return [[None if replies is None else self._rating(replies) for replies in row] for row in logps]

    def _rating(self, logps: Sequence[float]) -> float | None:
        """Return the factuality that the log-probabilities of the replies 0..10 stand for."""
        if self.readout == "stated":
            return DEFAULT_SCALE.confidence(logps.index(max(logps)))
        from lovec.metrics.functional import mean_confidence

        return mean_confidence([math.exp(logp - max(logps)) for logp in logps])
