"""Scoring the sentences of many passages: the log-probability of every level of the scale at every sentence.

The passages advance together, one sentence at a time. The context of a sentence begins with the context of the sentence
before it (or with the prompt), so an engine that keeps its KV cache computes the tokens of a passage only once, however
many sentences it has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from lovec.encoding import Encoder
from lovec.metrics.functional import mean_confidence
from lovec.notices import listed
from lovec.types import Engine, Readout, Scale, Sentence

History: TypeAlias = Literal["scores", "hidden", "previous"]
"""What the context of a sentence contains of the sentences before it, see ``IterativeTagger``."""

OnSentence: TypeAlias = Callable[[int, int, Sentence], None]
"""Called with each sentence once it has its score, as (index of the record, index of the sentence, the sentence)."""

log = logging.getLogger(__name__)


def most_probable(logps: Sequence[float]) -> int:
    """Return the score with the highest log-probability; the lowest of equals."""
    return max(range(len(logps)), key=lambda score: logps[score])


@dataclass(frozen=True, slots=True)
class Step:
    """One sentence of a passage, or a piece of text that only later sentences see.

    Attributes:
        text: the sentence without its tag, or the raw text where ``literal``.
        score: the score that the contexts of later sentences contain for it; None takes the model's own.
        literal: whether ``text`` becomes part of later contexts as it stands and gets no scores itself.
    """

    text: str
    score: int | None = None
    literal: bool = False


@dataclass(slots=True)
class Passage:
    """A prompt and the steps of its answer, with the results that ``score_passages`` fills in step by step.

    Attributes:
        name: name of the passage in log messages.
        prompt: token ids of the prompt.
        steps: the sentences of the answer in their order.
        choose: picks, from the log-probabilities of all scores, the score that later contexts contain for a step
            without a score of its own; the most probable one by default.
        on_scored: called with (index of the step, its ``logps``) for every step once it is done, literal ones included.
        logps: result: for every step, the log-probabilities of the whole score strings, one per level of the scale;
            None where the step was not scored.
        chosen: result: the score that later contexts contain for every step; None where there is none.
        problems: result: why sentences were not scored, one message per sentence.
    """

    name: str
    prompt: Sequence[int]
    steps: Sequence[Step]
    choose: Callable[[Sequence[float]], int] = most_probable
    on_scored: Callable[[int, list[float] | None], None] | None = None
    logps: list[list[float] | None] = field(default_factory=list)
    chosen: list[int | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _past: list[int] = field(default_factory=list)

    def next_context(self, encoder: Encoder, history: History, room: int | None) -> list[int] | None:
        """Return the ids up to the opening tag word of the next sentence to score; None at the end of the passage.

        Literal steps on the way there become part of the context. Sentences that do not fit get no scores and are
        added to ``problems``.

        Args:
            encoder: encodes the steps.
            history: what the context contains of the sentences before.
            room: length of the model's context in tokens, for the context and the longest tail; None is no limit.
        """
        while len(self.logps) < len(self.steps):
            at = len(self.logps)
            step = self.steps[at]
            if not step.literal:
                head = encoder.head(step.text, first=at == 0)
                past = self._past
                if history == "previous":
                    past = encoder.pieces(self.steps[at - 1].text) if at else []
                context = [*self.prompt, *past, *head]
                tag = max(map(len, encoder.tails))
                if room is None or len(context) + tag <= room:
                    return context
                self.problems.append(
                    f"sentence {at + 1}: its context has {len(context)} tokens and its tag up to {tag}, the model's "
                    f"context holds {room}; shorten the text or use a model with a longer context"
                )
            self.advance(encoder, history, None)
        return None

    def advance(self, encoder: Encoder, history: History, logps: list[float] | None) -> None:
        """Store the log-probabilities of the next step's scores, and make the step part of later contexts."""
        at = len(self.logps)
        step = self.steps[at]
        self.logps.append(logps)
        score = self.choose(logps) if step.score is None and logps is not None else step.score
        self.chosen.append(score)
        if step.literal:
            self._past += encoder.pieces(step.text)
        elif history == "hidden":
            self._past += encoder.pieces(f"{' ' if at else ''}{step.text}")
        else:
            self._past += encoder.head(step.text, first=at == 0)
            self._past += [] if score is None else encoder.tails[score]
        if self.on_scored is not None:
            self.on_scored(at, logps)


def score_passages(engine: Engine, encoder: Encoder, passages: Sequence[Passage], history: History = "scores") -> None:
    """Fill in ``logps``, ``chosen`` and ``problems`` of every passage.

    A sentence whose context does not fit the model gets no scores and a problem; all others are scored.

    Args:
        engine: scores contexts. ``max_rows`` passages are scored together, and contexts longer than
            ``context_length`` are left out.
        encoder: encodes contexts and score strings.
        passages: the passages to score; those with equally many sentences are scored together.
        history: what a context contains of earlier sentences, see ``IterativeTagger``.
    """
    room = engine.context_length
    order = sorted(passages, key=lambda passage: len(passage.steps))
    for start in range(0, len(order), engine.max_rows):
        group = order[start : start + engine.max_rows]
        while due := [(p, context) for p in group if (context := p.next_context(encoder, history, room)) is not None]:
            scores = engine.score([context for _, context in due], encoder.tails)
            for (passage, _), logps in zip(due, scores, strict=True):
                passage.advance(encoder, history, logps)
        engine.score([], encoder.tails)  # frees what the engine kept for these passages
    if failed := [passage.name for passage in order if passage.problems]:
        log.warning(
            "%d of %d answers are longer than the model's context, and their sentences beyond it have no score: %s",
            *(len(failed), len(order), listed(failed)),
        )


def distribution(logps: Sequence[float]) -> tuple[float, ...]:
    """Return the raw probabilities of the whole score strings; what is missing to 1 belongs to all other strings."""
    return tuple(math.exp(logp) for logp in logps)


def with_score(sentence: Sentence, score: int, logps: Sequence[float], scale: Scale, readout: Readout) -> Sentence:
    """Return a sentence with its score, distribution and confidence.

    Args:
        sentence: the sentence.
        score: its stated score.
        logps: log-probabilities of all scores, one per level of the scale.
        scale: the scale of the scores.
        readout: what the confidence is: "stated" is score / top; "mean" is the expected score / top under the
            renormalised distribution.
    """
    confidence: float | None = scale.confidence(score)
    if readout == "mean":
        highest = max(logps)  # subtracted because all probabilities may be too small for a float
        confidence = mean_confidence([math.exp(logp - highest) for logp in logps])
    return replace(sentence, score=score, confidence=confidence, distribution=distribution(logps), levels=scale.size)
