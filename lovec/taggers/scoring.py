"""Asking for the score of every sentence of many passages, in step, on top of what is computed already.

Every sentence's context begins with the context of the one before (or with the prompt), so an engine that keeps its KV
cache computes a passage once, however many sentences it has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lovec.encoding import Encoder
from lovec.notices import listed
from lovec.types import Engine, LovecError, Sentence

History: TypeAlias = Literal["scores", "hidden", "previous"]
Readout: TypeAlias = Literal["stated", "mean"]

OnSentence: TypeAlias = Callable[[int, int, Sentence], None]
"""Is on_scored (index of the record, index of the sentence, the sentence with its score) while others are worked on."""

log = logging.getLogger(__name__)


def best(logps: Sequence[float]) -> int:
    """The most probable score 0..10; the lowest of equals."""
    return max(range(len(logps)), key=lambda score: logps[score])


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of a passage.

    Attributes:
        text: a sentence, or text as it stands where ``literal``.
        score: what later contexts hold as its score; None lets the passage choose.
        literal: the text is history only and is not scored.
    """

    text: str
    score: int | None = None
    literal: bool = False


@dataclass(slots=True)
class Passage:
    """A prompt and the steps of its answer; `score_passages` fills in the rest.

    Attributes:
        name: for messages.
        prompt: token ids.
        steps: the answer.
        choose: picks the score that later contexts hold, from the log-probabilities of all eleven, where a step has
            none of its own.
        logps: log-probability of each of the 11 whole score strings, for every step; None where there is none.
        chosen: the score that contexts hold of every step; None where there is none.
        problems: why a sentence has no scores.
    """

    name: str
    prompt: Sequence[int]
    steps: Sequence[Step]
    choose: Callable[[Sequence[float]], int] = best
    logps: list[list[float] | None] = field(default_factory=list)
    chosen: list[int | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _past: list[int] = field(default_factory=list)

    def next_context(self, encoder: Encoder, history: History, room: int | None) -> list[int] | None:
        """Ids up to the opening tag word of the next sentence to score; None at the end of the passage.

        Literal steps become history. Sentences whose context and tag exceed ``room`` tokens become problems.
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
        """Take the log-probabilities of the next step's scores, and make the step history."""
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


def score_passages(
    engine: Engine,
    encoder: Encoder,
    passages: Sequence[Passage],
    history: History = "scores",
    on_scored: Callable[[Passage], None] | None = None,
) -> None:
    """Fill in ``logps`` and ``problems`` of every passage, many passages together sentence by sentence.

    A sentence whose context does not fit the model gets no scores and a problem; nothing else is lost.

    Args:
        engine: scores contexts; ``max_rows`` passages go together, and contexts longer than ``context_length`` are
            not tried.
        encoder: makes contexts and score strings.
        passages: what to ask about; those with equally many sentences go together.
        history: what a context holds of earlier sentences, see `IterativeTagger`.
        on_scored: hears of a passage whenever more of its ``logps`` are filled in.
    """
    room = engine.context_length
    order = sorted(passages, key=lambda passage: len(passage.steps))
    for start in range(0, len(order), engine.max_rows):
        group = order[start : start + engine.max_rows]
        while asked := [(p, context) for p in group if (context := p.next_context(encoder, history, room)) is not None]:
            scores = engine.score([context for _, context in asked], encoder.tails)
            for (passage, _), logps in zip(asked, scores, strict=True):
                passage.advance(encoder, history, logps)
                if on_scored is not None:
                    on_scored(passage)
        if on_scored is not None:  # of sentences at the end that do not fit
            for passage in group:
                on_scored(passage)
        engine.score([], encoder.tails)  # frees what the engine kept for these passages
    if failed := [passage.name for passage in order if passage.problems]:
        log.warning(
            "%d of %d answers are longer than the model's context, and their sentences beyond it have no score: %s",
            *(len(failed), len(order), listed(failed)),
        )


def distribution(logps: Sequence[float]) -> tuple[float, ...]:
    """Raw probabilities of the whole score strings; what is missing to 1 is the probability of anything else."""
    return tuple(math.exp(logp) for logp in logps)


def expected_confidence(logps: Sequence[float]) -> float:
    """E[score] / 10 in [0, 1] under the renormalised distribution.

    Args:
        logps: log-probabilities of the scores 0..10, up to a common constant.
    """
    top = max(logps)
    weights = [math.exp(logp - top) for logp in logps]
    return math.fsum(score * weight for score, weight in enumerate(weights)) / (10.0 * math.fsum(weights))


def checked_readout(readout: str) -> Readout:
    """The readout, if it is one.

    Raises:
        LovecError: it is none.
    """
    if readout == "stated":
        return "stated"
    if readout == "mean":
        return "mean"
    raise LovecError(f"readout is {readout!r}, expected 'stated' or 'mean'")
