"""Scoring the sentences of many passages: the log-probability of every level of the scale at every sentence.

The passages advance together, one sentence at a time. The context of a sentence begins with the context of the sentence
before it (or with the prompt), so an engine that keeps its KV cache computes the tokens of a passage only once, however
many sentences it has. A passage longer than the model's context is scored with a sliding window of whole sentences, see
``score_passages``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

from lovec.core.notices import listed
from lovec.core.progress import doing
from lovec.encoding import Encoder
from lovec.encoding.written import Steps, choice_logps, steps_behind
from lovec.types import Engine, Readout, Record, Scale, Sentence, TokenScores, token_scorer

if TYPE_CHECKING:
    from lovec.calibration import Calibration

History: TypeAlias = Literal["scores", "hidden", "previous"]
"""What the context of a sentence contains of the sentences before it, see ``IterativeTagger``."""

T = TypeVar("T")

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


class ScoredSentence(NamedTuple):
    """A sentence in a stream of tagged records.

    Attributes:
        record: index of its record.
        at: index of the sentence in the record, counted behind sentences of a thought that a stream has handed over.
        sentence: the sentence with its readouts, as the record has it in the end.
    """

    record: int
    at: int
    sentence: Sentence


class WrittenSentence(ScoredSentence):
    """A sentence of an answer that is still being written.

    It is equal to the same sentence of the answer when this is complete, which says itself what stands before it.

    Attributes:
        before: the white space that the answer has before it.
    """

    before: str = ""

    @classmethod
    def of(cls, record: int, at: int, sentence: Sentence, raw: str) -> Self:
        """Return a sentence of an answer.

        Args:
            record: index of its record.
            at: index of the sentence in the record.
            sentence: the sentence.
            raw: the sentence as it was written, with the white space before it.
        """
        written = cls(record, at, sentence)
        written.before = space_before(raw)
        return written


def space_before(raw: str) -> str:
    """Return the white space that a text begins with."""
    return raw[: len(raw) - len(raw.lstrip())]


Tagged: TypeAlias = ScoredSentence | Record
"""What a stream of tagged records yields: the sentences of a record in their order, and behind its last sentence the
record itself."""


def items_of(record: Record, number: int = 0, first: int = 0) -> Iterator[Tagged]:
    """Yield a tagged record as a stream does, given its index and that of its first sentence."""
    yield from (ScoredSentence(number, at, sentence) for at, sentence in enumerate(record.sentences, first))
    yield record


class ScoreRequest(NamedTuple):
    """Contexts whose scores are to be computed together.

    Attributes:
        contexts: token ids of each context, up to where a score begins.
        starts: index of the first token of each context whose log-probability is asked for, too; None asks for none.
        passages: the passage that each context is of.
    """

    contexts: list[list[int]]
    starts: list[int] | None
    passages: Sequence[Passage] = ()


Requests: TypeAlias = Generator[ScoreRequest | T, Sequence[TokenScores] | None, None]
"""Work that leaves the engine to others: it yields what to score, and is sent the scores; all else that it yields
is its result. So an engine, a thread that serves many and an event loop can each do the same work."""


@dataclass(slots=True)
class Passage:
    """A prompt and the steps of its answer, with the results that ``score_passages`` fills in step by step.

    Attributes:
        name: name of the passage in log messages.
        prompt: token ids of the prompt.
        steps: the sentences of the answer in their order.
        choose: picks, from the log-probabilities of all scores, the score that later contexts contain for a step
            without a score of its own; the most probable one by default.
        number: tells the passage from others of the same work.
        ids: token ids that the model wrote behind the prompt, where it has written the answer itself.
        watched: log-probabilities in the places of these, see ``Completion.watched``. A sentence whose scores they tell
            is not left to an engine.
        logps: result: for every step, the log-probabilities of what is scored, one per level of the scale; None
            where the step was not scored.
        chosen: result: the score that later contexts contain for every step; None where there is none.
        token_logps: result: for every step, the log-probabilities of the sentence's tokens; None where they were not
            asked for, or the step was not scored.
        problems: result: that the passage is longer than the model's context, once, and why sentences were not scored.
    """

    name: str
    prompt: Sequence[int]
    steps: Sequence[Step]
    choose: Callable[[Sequence[float]], int] = most_probable
    number: int = 0
    ids: Sequence[int] = ()
    watched: Sequence[Mapping[int, float]] = ()
    logps: list[list[float] | None] = field(default_factory=list)
    chosen: list[int | None] = field(default_factory=list)
    token_logps: list[tuple[float, ...] | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _past: list[int] = field(default_factory=list)
    _begin: int = 0  # the step that `_past` begins with
    _is_cut: bool = False
    _head: list[int] = field(default_factory=list)  # the end of the last context: its sentence and opening tag word

    def next_context(self, encoder: Encoder, history: History, room: int | None) -> list[int] | None:
        """Return the ids up to the opening tag word of the next sentence to score; None at the end of the passage.

        Literal steps on the way there become part of the context, and so do sentences whose scores are known from
        writing them. Where the context is too long, the oldest steps leave it, see ``score_passages``. Sentences that
        do not fit without any other get no scores and are added to ``problems``.

        Args:
            encoder: encodes the steps.
            history: what the context contains of the sentences before.
            room: length of the model's context in tokens, for the context and the longest tail; None is no limit.
        """
        while (at := len(self.logps)) < len(self.steps):
            step = self.steps[at]
            if not step.literal:
                head = encoder.head(step.text, first=at == self._begin)
                needed = len(self.prompt) + max(map(len, encoder.tails))
                if room is not None and self._begin < at and needed + len(self._past) + len(head) > room:
                    self._cut(encoder, history, min((room - len(self.prompt)) // 2, room - needed - len(head)))
                    head = encoder.head(step.text, first=at == self._begin)
                    if not self._is_cut:
                        self._is_cut = True
                        self.problems.append(
                            f"the text is longer than the model's context holds ({room} tokens): from sentence "
                            f"{at + 1} on, only the latest sentences before each one are part of its context"
                        )
                if room is None or needed + len(self._past) + len(head) <= room:
                    self._head = head
                    context = [*self.prompt, *self._past, *head]
                    if (logps := choice_logps(encoder.choices, self.steps_behind(context))) is None:
                        return context
                    self.advance(encoder, history, logps)
                    continue
                self.problems.append(
                    f"sentence {at + 1}: with the prompt and its tag it has {needed + len(head)} tokens, more than the "
                    f"model's context ({room}); shorten it or use a model with a longer context"
                )
            self.advance(encoder, history, None)
        return None

    def steps_behind(self, context: Sequence[int]) -> Steps:
        """Return what the model wrote behind a context, see ``lovec.encoding.written.steps_behind``."""
        return steps_behind(context, self.prompt, self.ids, self.watched)

    def advance(
        self,
        encoder: Encoder,
        history: History,
        logps: list[float] | None,
        token_logps: tuple[float, ...] | None = None,
    ) -> None:
        """Store the log-probabilities of the next step's scores and tokens, and make it part of later contexts."""
        at = len(self.logps)
        step = self.steps[at]
        self.logps.append(logps)
        self.token_logps.append(token_logps)
        self.chosen.append(self.choose(logps) if step.score is None and logps is not None else step.score)
        if history == "previous":
            self._begin, self._past = at, []
        self._past += self._ids(at, at == self._begin, encoder, history)

    def start(self, context: Sequence[int]) -> int:
        """Return the index of the first token of the sentence that a context ends with, see ``next_context``."""
        return len(context) - len(self._head)

    def take(self, encoder: Encoder, history: History, scores: TokenScores, likelihoods: bool) -> None:
        """Store what was computed for the last context, see ``advance``.

        Args:
            encoder: encodes the steps.
            history: as for ``next_context``.
            scores: of the choices, and where ``likelihoods`` of the tokens from ``start`` on.
            likelihoods: whether the log-probabilities of the sentence's tokens are stored, too.
        """
        tokens = scores.logps[: encoder.sentence_tokens(self._head)] if likelihoods else None
        self.advance(encoder, history, list(scores.choices), tokens)

    def _cut(self, encoder: Encoder, history: History, most: int) -> None:
        """Let the oldest steps leave the context; those that stay have at most ``most`` tokens."""
        at = begin = len(self.logps)
        later = 0  # tokens of the steps after ``begin``
        while begin and later + len(self._ids(begin - 1, True, encoder, history)) <= most:
            begin -= 1
            later += len(self._ids(begin, False, encoder, history))
        self._begin = begin
        self._past = [i for step in range(begin, at) for i in self._ids(step, step == begin, encoder, history)]

    def _ids(self, at: int, first: bool, encoder: Encoder, history: History) -> list[int]:
        """Return the ids of an earlier step in the context of a later one, which begins with it if it is ``first``."""
        step, score = self.steps[at], self.chosen[at]
        if step.literal:
            return encoder.pieces(step.text)
        if history != "scores":
            return encoder.pieces(f"{'' if first else ' '}{step.text}")
        return encoder.head(step.text, first) + ([] if score is None else encoder.tails[score])


def score_passages(engine: Engine, encoder: Encoder, passages: Sequence[Passage], history: History = "scores") -> None:
    """Fill in ``logps``, ``chosen`` and ``problems`` of every passage.

    A passage may be longer than the model's context. Where a sentence does not fit any more, the oldest sentences leave
    the context, whole and with their scores, until those that stay take at most half of the room behind the prompt.
    From there on the context is that of a passage which begins with the oldest of them. So the tokens computed for a
    passage are at most about twice its own, whatever its length. A sentence that does not even fit directly behind the
    prompt gets no scores and a problem.

    Args:
        engine: scores contexts. ``max_rows`` passages are scored together; ``context_length`` is the room of a context
            and the longest score string, None is no limit.
        encoder: encodes contexts and score strings.
        passages: the passages to score; those with equally many sentences are scored together.
        history: what a context contains of earlier sentences, see ``IterativeTagger``.
    """
    requests: Requests[Any] = score_requests(encoder, passages, engine.max_rows, engine.context_length, history)
    for _ in answered(requests, engine, encoder.choices):  # nothing but requests
        pass


def next_item(requests: Requests[T], scores: Sequence[TokenScores] | None = None) -> ScoreRequest | T | None:
    """Go on with work, and return what it yields; None at its end.

    Args:
        requests: the work.
        scores: the answer to what it yielded last, if that was a request.
    """
    try:
        return requests.send(scores)
    except StopIteration:
        return None


def computed(request: ScoreRequest, engine: Engine, choices: Sequence[Sequence[int]]) -> list[TokenScores]:
    """Return the answer of an engine to a request.

    Raises:
        LovecError: log-probabilities of tokens are asked for, and the engine cannot give them.
    """
    if request.starts is None:
        return [TokenScores((), choices=tuple(row)) for row in engine.score(request.contexts, choices)]
    return token_scorer(engine).token_logps(request.contexts, request.starts, choices)


def answered(requests: Requests[T], engine: Engine, choices: Sequence[Sequence[int]]) -> Generator[T, None, None]:
    """Let an engine answer the requests of some work, and yield what comes of it.

    While the generator waits others may use the engine; what it has kept may then be computed again. Closing the
    generator ends the work and frees what the engine keeps for it.

    Args:
        requests: the work.
        engine: scores contexts.
        choices: token ids of every choice behind a context.

    Raises:
        LovecError: see ``computed``.
    """
    try:
        item = next_item(requests)
        while item is not None:
            scores = None
            if isinstance(item, ScoreRequest):
                scores = computed(item, engine, choices)
            else:
                yield item
            item = next_item(requests, scores)
    finally:
        requests.close()
        engine.score([], choices)  # frees what the engine kept


def score_requests(
    encoder: Encoder,
    passages: Sequence[Passage],
    rows: int,
    room: int | None,
    history: History = "scores",
    likelihoods: bool = False,
) -> Generator[ScoreRequest, Sequence[TokenScores] | None, None]:
    """Do the work of ``score_passages``, with the engine left to the caller, see ``Requests``.

    Args:
        encoder: encodes contexts and score strings.
        passages: the passages to score.
        rows: the most passages that are scored together.
        room: length of the model's context in tokens; None is no limit.
        history: what a context contains of earlier sentences.
        likelihoods: whether to ask for the log-probabilities of the tokens of every sentence, too.
    """
    order = sorted(passages, key=lambda passage: len(passage.steps))
    with doing("scoring", sum(len(passage.steps) for passage in passages), "sentences") as scoring:
        for start in range(0, len(order), rows):
            group = order[start : start + rows]
            while due := [(p, ids) for p in group if (ids := p.next_context(encoder, history, room)) is not None]:
                starts = [passage.start(ids) for passage, ids in due] if likelihoods else None
                results = yield ScoreRequest([ids for _, ids in due], starts, [passage for passage, _ in due])
                assert results is not None
                for (passage, _), found in zip(due, results, strict=True):
                    passage.take(encoder, history, found, likelihoods)
                scoring.advance(len(due))
    if long := [passage.name for passage in order if passage.problems]:
        log.warning(
            "%d of %d answers are longer than the model's context; of what comes before a sentence it holds only the "
            "latest part, and a sentence that does not fit by itself has no score: %s",
            *(len(long), len(order), listed(long)),
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
        from lovec.metrics.functional import mean_confidence  # here, because it imports torch

        highest = max(logps)  # subtracted because all probabilities may be too small for a float
        confidence = mean_confidence([math.exp(logp - highest) for logp in logps])
    return replace(sentence, score=score, confidence=confidence, distribution=distribution(logps), levels=scale.size)


def read_out(
    sentence: Sentence,
    score: int | None,
    logps: Sequence[float] | None,
    token_logps: tuple[float, ...] | None,
    scale: Scale,
    readout: Readout,
    calibration: Calibration | None = None,
) -> Sentence:
    """Return a sentence with everything that is read from what a model says of it, and with its confidence.

    Args:
        sentence: the sentence.
        score: its stated score; None where it has none.
        logps: log-probabilities of all scores; None where they are not known.
        token_logps: log-probabilities of its own tokens; None where they are not known.
        scale: the scale of the scores.
        readout: what the confidence is, see ``with_score``; without ``logps`` there is no mean.
        calibration: turns all of this into the confidence; None leaves the readout.
    """
    if logps is not None and score is not None:
        sentence = with_score(sentence, score, logps, scale, readout)
    else:
        confidence = None if readout == "mean" or score is None else scale.confidence(score)
        sentence = replace(sentence, score=score, confidence=confidence, distribution=None, levels=scale.size)
    sentence = replace(sentence, token_logps=token_logps, by_source=None, source_rank=None)  # of an earlier run
    return sentence if calibration is None else replace(sentence, confidence=calibration.confidence(sentence))


def with_source(sentence: Sentence, sourced: Sentence, calibration: Calibration | None) -> Sentence:
    """Return a sentence with what was read of it with the evidence in the prompt.

    Args:
        sentence: as it was read without the evidence.
        sourced: the same sentence, read with it.
        calibration: has made the confidence of the latter; None where nothing has.
    """
    rank = None if calibration is None else calibration.rank(sourced)
    return replace(sentence, by_source=sourced.confidence, source_rank=rank)
