"""Likelihood: how probable the model finds the tokens of a sentence, with its source or without."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from lovec.baselines.base import Baseline, BaselineResources, Work
from lovec.baselines.plain import PlainText, plain_texts
from lovec.core.settings import Count, PlainWord
from lovec.encoding import Grounding
from lovec.encoding.grounding import DEFAULT_SOURCE_TOKENS, encoder_of
from lovec.encoding.prompts import prompt
from lovec.types import Record, token_scorer

How: TypeAlias = Literal["mean", "sum", "min"]
"""How the log-probabilities of the tokens of a sentence become one."""

EvidenceUse: TypeAlias = Literal["none", "given", "gain"]
"""What the evidence of a record is to the likelihood of its sentences, see `SentenceLikelihood`."""

_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda logps: math.fsum(logps) / len(logps),
    "sum": math.fsum,
    "min": min,
}
_NAMES: dict[str, tuple[str, ...]] = {"none": (), "given": ("source",), "gain": ("gain",)}


class SentenceLikelihood(Baseline):
    """The probability of a sentence given the question and the sentences before it; nothing is asked or sampled.

    An answer takes one forward pass, two for the gain. A sentence that does not fit the model's context directly behind
    the question has no confidence; where an answer is longer than the context, its sentences are read after the latest
    ones only.

    With p(s | q) this probability, and p(s | q, E) the same where the evidence E of the record follows the question,
    ``evidence`` "given" takes p(s | q, E), and "gain" takes how much more probable the evidence makes the sentence:
    p(s | q, E) / (p(s | q, E) + p(s | q)), the logistic function of log p(s | q, E) - log p(s | q), 0.5 where the
    evidence changes nothing. Both give no confidence to the sentences of a record without evidence.

    Args:
        how: "mean" is the geometric mean of the probabilities of the sentence's tokens; "sum" is their product, the
            probability of the whole sentence, which is lower the longer it is; "min" is that of the least probable
            token.
        name: its name in tables; None is "Likelihood", followed by ``how`` where that is not "mean", and by "source" or
            "gain" where evidence is used.
        evidence: whether the evidence is left out ("none"), is read before the answer ("given"), or both are compared
            ("gain").
        evidence_tokens: the most tokens of evidence; longer evidence is cut as for grounded adapters, see
            ``lovec.encoding.grounding.GroundedEncoder``.

    Raises:
        LovecError: ``how`` or ``evidence`` is not one of these, or the number of tokens is not positive; when tagging,
            the engine gives no log-probabilities of given tokens.
    """

    def __init__(
        self,
        how: How = "mean",
        name: PlainWord | None = None,
        evidence: EvidenceUse = "none",
        evidence_tokens: Count = DEFAULT_SOURCE_TOKENS,
    ) -> None:
        super().__init__(name or "-".join(["Likelihood", *([how] * (how != "mean")), *_NAMES[evidence]]))
        self.how = how
        self.evidence = evidence
        self.evidence_tokens = evidence_tokens

    def attach(self, resources: BaselineResources) -> None:
        """Use these resources from now on; where evidence is used, with an encoder that puts it into prompts."""
        super().attach(resources)
        self._encoder, given = resources.encoder, resources.encoder
        if self.evidence != "none":
            grounding = Grounding(prompt("answer_by_source"), self.evidence_tokens)
            made = encoder_of(given.tokenizer, given.instruction, given.tags, given.scoring, grounding, given.stop_ids)
            self._encoder = made.within(resources.engine.context_length)

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes: every text is read once, for the gain once with its evidence and once without."""
        tokens = sum(len(text.ids) for use in self._reads for text in self._texts(records, use))
        return replace(super().work(records), tokens=tokens)

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the probability of every sentence, or its gain; None where it does not fit, or lacks evidence."""
        with self.watch.phase("scoring"):
            first, *others = (self._logps(records, use) for use in self._reads)
        if not others:
            return [[None if logp is None else min(1.0, math.exp(logp)) for logp in row] for row in first]
        return [list(map(gain_of, *rows)) for rows in zip(first, *others, strict=True)]

    @property
    def _reads(self) -> Sequence[bool]:
        """Whether evidence is there, for every time that the answers are read."""
        return {"none": (False,), "given": (True,), "gain": (True, False)}[self.evidence]

    def _texts(self, records: Sequence[Record], with_source: bool) -> list[PlainText]:
        """Return what is read of the records, of which those without evidence are left out where it is used."""
        texts = plain_texts(records, self.resources.engine, self._encoder, with_source)
        every = self.evidence == "none"
        return [text for text in texts if every or self._encoder.has_source(records[text.record])]

    def _logps(self, records: Sequence[Record], with_source: bool) -> list[list[float | None]]:
        """Return the logarithm of the probability of every sentence; None where it is not read."""
        engine = self.resources.engine
        rows: list[list[float | None]] = [[None] * len(record.sentences) for record in records]
        texts = self._texts(records, with_source)
        found = token_scorer(engine).token_logps([text.ids for text in texts], [text.start for text in texts])
        engine.score([], [])  # frees the states that the engine keeps
        for text, scores in zip(texts, found, strict=True):
            for at, begin, end in text.spans:
                rows[text.record][at] = _REDUCE[self.how](scores.logps[text.tokens(begin, end)])
        return rows


def gain_of(given: float | None, plain: float | None) -> float | None:
    """Return how much more probable the evidence makes a sentence, see `SentenceLikelihood`.

    Args:
        given: the logarithm of its probability with the evidence; None where it is not known.
        plain: the same without.

    Returns:
        The logistic function of given - plain, in [0, 1].
    """
    return None if given is None or plain is None else 0.5 + 0.5 * math.tanh((given - plain) / 2)
