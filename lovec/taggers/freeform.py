"""Free-form tagging: the model writes the answer and its scores in one go."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from lovec.core.notices import counted
from lovec.core.settings import checked
from lovec.core.stopwatch import Stopwatch
from lovec.encoding import Encoder
from lovec.encoding.token_texts import TokenTexts
from lovec.encoding.written import Steps
from lovec.taggers.scoring import (
    Passage,
    ScoredSentence,
    ScoreRequest,
    Step,
    Tagged,
    WrittenSentence,
    computed,
    items_of,
    most_probable,
    read_out,
    score_passages,
    with_source,
)
from lovec.tags import UNTAGGED, TagFormat, TaggedSentence, TaggedText, parse
from lovec.types import (
    Completion,
    Engine,
    LovecError,
    OnToken,
    Readout,
    Record,
    Sampling,
    Scale,
    Sentence,
    TokenScores,
    token_scorer,
)

if TYPE_CHECKING:
    from lovec.calibration import Calibration

OnWritten: TypeAlias = Callable[[ScoredSentence], None]
"""Called by an engine, while it writes, with each sentence once its tag is complete: with the stated score and its
confidence, and without distribution."""

CUT_BY_STOP = "cut by stop"
"""The problem of a sentence that a stop has cut."""

log = logging.getLogger(__name__)


@checked()
class FreeFormTagger:
    """Samples a tagged answer for every question and reads the tags.

    Args:
        engine: samples from the policy.
        encoder: encodes prompts; the prompt contains the instruction.
        sampling: how to sample; greedy, as in the paper, by default. Random streams are keyed by record id.
        readout: what ``confidence`` is: "stated" is the written score / top of the scale; "mean" is the expected
            score / top under the distribution over all scores, renormalised (and implies ``distributions``).
        distributions: whether to fill in the distribution over all scores at every valid tag, given the text and the
            scores that the model itself wrote before it (encoded as in iterative tagging; malformed parts verbatim).
        likelihoods: whether to fill in the log-probabilities of the tokens of every sentence, as the model wrote them.
            They are known from writing where ``sampling.keeps_logps``; otherwise the answer is scored once more.
        calibration: makes the confidence of what was read, log-probabilities included if it needs them; None leaves it.
        by_source: the same for records whose prompt has their evidence; None leaves theirs as it was read.

    Attributes:
        watch: seconds spent, in the phases "writing" and, for the distributions, "scoring".

    Raises:
        LovecError: the readout is unknown, or more than one completion per prompt is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        sampling: Sampling | None = None,
        readout: Readout = "stated",
        distributions: bool = False,
        likelihoods: bool = False,
        calibration: Calibration | None = None,
        by_source: Calibration | None = None,
    ) -> None:
        self.engine = engine
        self.encoder = encoder
        self.sampling = sampling or Sampling()
        self.readout: Readout = readout
        self.distributions = distributions or readout == "mean"
        used = [made for made in (calibration, by_source) if made is not None]
        self.likelihoods = likelihoods or any(made.needs_token_logps for made in used)
        self.calibration = calibration
        self.by_source = by_source
        self.watch = Stopwatch()
        if self.sampling.n != 1:
            raise LovecError(f"free-form tagging got sampling.n={self.sampling.n}, expected 1 (one answer per record)")

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with a new answer and its sentences, in the order given; factuality is None.

        A sentence with a malformed tag, and text after the last tag, have neither score nor confidence.
        ``meta["problems"]`` lists what is wrong, sentence by sentence; ``meta["finished"]`` is False where the answer
        was cut by the token limit. A prompt longer than the model's context leaves an empty answer and a problem.

        Args:
            records: questions.
        """
        return [item for item in self.stream(records) if isinstance(item, Record)]

    def stream(self, records: Sequence[Record], on_written: OnWritten | None = None) -> Iterator[Tagged]:
        """Yield the sentences of each record of ``tag`` and the record, in the order given, once all are scored.

        Args:
            records: questions.
            on_written: called with every sentence long before, once its tag is complete, as a ``WrittenSentence``; the
                sentences of a record come in their order. Not called with text after the last tag. Where it was called
                with sentences of a thought whose beginning the model has not written, all sentences are numbered behind
                them.
        """
        prompts = [self.encoder.record_prompt(record, answered=False) for record in records]
        room = self.engine.context_length
        fitting = [number for number, prompt in enumerate(prompts) if room is None or len(prompt) < room]
        asked = [prompts[number] for number in fitting]
        readers = [AnswerReader(self.encoder) for _ in asked]
        with self.watch.phase("writing"):
            groups = self.engine.generate(
                asked,
                replace(self.sampling, watched=self.encoder.watched if self.distributions else ()),
                self.encoder.stop_ids,
                keys=[records[number].id for number in fitting],
                on_token=None if on_written is None else _token_callback(readers, fitting, on_written),
            )
        completions = dict(zip(fitting, (completion for [completion] in groups), strict=True))
        answers = {n: read_answer(records[n], completion, self.encoder) for n, completion in completions.items()}
        passages = [
            Passage(records[n].id, prompts[n], _steps(answers[n][1]), ids=written.ids, watched=written.watched)
            for n, written in completions.items()
        ]
        if self.distributions:
            with self.watch.phase("scoring"):
                score_passages(self.engine, self.encoder, [passage for passage in passages if passage.steps])
        token_logps = self._token_logps([text for _, text in answers.values()], asked, [*completions.values()])
        found = dict(zip(answers, zip(passages, token_logps, strict=True), strict=True))
        withdrawn = {number: reader.withdrawn for number, reader in zip(fitting, readers, strict=True)}
        for number, record in enumerate(records):
            if number in answers:
                tagged = self._tagged(answers[number][0], *found[number])
                problems = [*tagged.meta["problems"], *withdrawal(withdrawn[number])]
                tagged = replace(tagged, meta={**tagged.meta, "problems": problems})
            else:
                tagged = unanswered(record, len(prompts[number]), room)
            yield from items_of(tagged, number, withdrawn.get(number, 0))

    def _token_logps(
        self, texts: Sequence[TaggedText], prompts: Sequence[list[int]], completions: Sequence[Completion]
    ) -> list[list[tuple[float, ...] | None]]:
        """Return the log-probabilities of the tokens of every sentence of every answer; nothing if nobody asks."""
        if not self.likelihoods:
            return [[] for _ in texts]
        logps = [completion.logps for completion in completions]
        if not self.sampling.keeps_logps:  # the completions' own are of the distribution drawn from
            contexts = [[*prompt, *completion.ids] for prompt, completion in zip(prompts, completions, strict=True)]
            with self.watch.phase("scoring"):
                scores = token_scorer(self.engine).token_logps(contexts, [len(prompt) for prompt in prompts])
            logps = [found.logps for found in scores]
        return [
            [None if span is None else values[span] for span in sentence_spans(text, completion.ids, self.encoder)]
            for text, completion, values in zip(texts, completions, logps, strict=True)
        ]

    def _tagged(self, record: Record, passage: Passage, token_logps: Sequence[tuple[float, ...] | None]) -> Record:
        """Return the record of a parsed answer with what is known of each of its sentences."""
        known = zip(
            record.sentences,
            chain(passage.logps, repeat(None)),  # fewer where there is an untagged tail, or nothing was scored
            chain(token_logps, repeat(None)),
            strict=False,
        )
        calibration = self.by_source if self.encoder.has_source(record) else self.calibration
        more = self.encoder.scale, self.readout, calibration
        sentences = tuple(read_out(one, one.score, logps, tokens, *more) for one, logps, tokens in known)
        meta = {**record.meta, "problems": [*record.meta["problems"], *passage.problems]}
        return replace(record, sentences=sentences, meta=meta)


def read_answer(record: Record, completion: Completion, encoder: Encoder) -> tuple[Record, TaggedText]:
    """Return a record with the answer in a completion: its sentences and their scores, an untagged tail as the last.

    Args:
        record: the question.
        completion: what the model wrote.
        encoder: the encoder of the model that wrote it.

    Returns:
        The record, and the parsed text. ``meta["problems"]`` and ``meta["finished"]`` are as in `FreeFormTagger.tag`.
    """
    return read_tagged(record, encoder.written(completion.ids, completion.finished), completion.finished, encoder.tags)


def read_tagged(record: Record, text: str, finished: bool, tags: TagFormat) -> tuple[Record, TaggedText]:
    """Return a record with a tagged answer: its sentences and their scores, an untagged tail as the last.

    Args:
        record: the question.
        text: what a model wrote.
        finished: whether it has ended it.
        tags: the tag words and the scale.

    Returns:
        As `read_answer`.
    """
    parsed = parse(text, tags)
    sentences, problems = [], []
    for number, span in enumerate(parsed.sentences, start=1):
        sentences.append(read_sentence(span, tags.scale))
        if span.problem is not None:
            problems.append(f"sentence {number}: {span.problem}")
    if parsed.thought and not (sentences or parsed.tail.strip()):
        problems.append("the answer ends inside a thought; give more tokens with max_new_tokens")
    if tail := parsed.tail.strip():
        sentences.append(Sentence(tail, levels=tags.scale.size))
        problems.append(f"sentence {len(sentences)}: {UNTAGGED}")
    meta = {**record.meta, "problems": problems, "finished": finished}
    return replace(record, answer=text, sentences=tuple(sentences), meta=meta, rejected=None), parsed


def sentence_spans(text: TaggedText, ids: Sequence[int], encoder: Encoder) -> list[slice | None]:
    """Return which tokens of an answer each sentence has, without its tag; white space before it belongs to it.

    A token that a sentence and the tag after it share belongs to the sentence.

    Args:
        text: the answer, parsed.
        ids: its token ids.
        encoder: the encoder of the model that wrote it.

    Returns:
        A slice of ``ids`` for every tagged sentence and for an untagged tail; None for a tag without a sentence.
    """
    spans: list[slice | None] = []
    texts = encoder.token_texts(ids)
    begin = len(text.thought)  # characters before the sentence
    for raw, sentence in [(span.raw, span.text) for span in text.sentences] + [(text.tail, text.tail.strip())]:
        spans.append(_sentence_span(texts, begin, raw, sentence))
        begin += len(raw)
    return spans if text.tail.strip() else spans[:-1]


def _sentence_span(texts: TokenTexts, begin: int, raw: str, sentence: str) -> slice | None:
    """Return which tokens of an answer a sentence has, see ``sentence_spans``.

    Args:
        texts: the texts of the tokens.
        begin: number of characters before the sentence and the white space before it.
        raw: the sentence with its tag and the white space before it.
        sentence: the sentence alone.
    """
    if not sentence:
        return None
    end = begin + len(raw) - len(raw.lstrip()) + len(sentence)
    return slice(texts.tokens_until(begin), texts.tokens_until(end))


class TextReader:
    """Reads the tagged spans of one answer while it is written, up to a text that ends it.

    Args:
        tags: the tag words and the scale.
        written: returns all that is written so far.
        stops: texts that end the answer, looked for in the answer without its tags. What begins with one is left out,
            unless it stands in a span that was returned already.

    Where a chat template has opened a thought, only ``</think>`` tells that the answer begins behind it. What was
    returned by then is no part of the answer, and the spans behind it are counted from the first one on.

    Attributes:
        tags: as given.
        stops: as given.
        stopped: whether one of them has ended the answer.
        thought: number of characters of the thought before the answer, as far as it is known to be one.
        withdrawn: number of spans that were returned before it was known that they are part of this thought.
    """

    def __init__(self, tags: TagFormat, written: Callable[[], str], stops: Sequence[str] = ()) -> None:
        self.tags, self.stops, self.stopped = tags, stops, False
        self.thought = self.withdrawn = 0
        self._written = written
        self._returned = 0  # spans that `add` has seen
        self._text = ""  # of these, without tags
        self._kept = ""  # of the sentence that a stop cuts
        # A piece may also end in the middle of a character (U+FFFD), which may be the last of a tag word or of a stop.
        self._ends = {tags.close[-1], "\ufffd"}
        self._stop_ends = {stop[-1] for stop in stops} | {"\ufffd"}

    def add(self, piece: str) -> list[TaggedSentence]:
        """Return the spans whose closing tag word a new piece completes: usually none, rarely several.

        Spans are returned in the order of the answer. What follows them is at most an unclosed tag or an untagged tail.

        Args:
            piece: what was written last, which ``written`` has by now.
        """
        new: list[TaggedSentence] = []
        if self._ends & set(piece):
            spans = self._parsed().sentences
            complete = [span for span in spans if span.raw.endswith(self.tags.close)]
            for span in complete[self._returned :]:
                if self._stops_in(span.raw, span.text):
                    break
                new.append(span)
            self._returned = len(complete)
        if self.stops and not self.stopped and self._stop_ends & set(piece):
            tail = self.rest().tail
            opening = self.tags.open
            begun = max((n for n in range(len(opening)) if tail.endswith(opening[:n])), default=0)
            self._stops_in(tail, tail[: len(tail) - begun].strip(), final=False)
        return new

    def rest(self) -> TaggedText:
        """Return what follows the spans that ``add`` has returned."""
        parsed = self._parsed()
        return TaggedText(parsed.sentences[self._returned :], parsed.tail)

    def ending(self) -> list[TaggedSentence]:
        """Return what follows these spans up to a stop, an untagged tail as the last; for the end of the answer."""
        rest = TaggedText((), "") if self.stopped else self.rest()
        spans = list(takewhile(lambda span: not self._stops_in(span.raw, span.text), rest.sentences))
        is_cut = self.stopped or self._stops_in(rest.tail, rest.tail.strip())
        tail = self._kept if is_cut else rest.tail
        if tail.strip():
            spans.append(TaggedSentence(tail.strip(), None, CUT_BY_STOP if is_cut else UNTAGGED, tail))
        return spans

    def _parsed(self) -> TaggedText:
        """Return all that is written, parsed; where it has turned out to begin with a thought, count anew behind it."""
        parsed = parse(self._written(), self.tags)
        if parsed.thought and not self.thought:
            self.withdrawn, self._returned, self._text = self._returned, 0, ""
        self.thought = len(parsed.thought)
        return parsed

    def _stops_in(self, raw: str, text: str, final: bool = True) -> bool:
        """Return whether a stop ends in a sentence, and keep what stands before it.

        Args:
            raw: the sentence as it was written, with the white space before it.
            text: the sentence without tag and surrounding white space.
            final: whether it is complete; then the next one follows it.
        """
        space = raw[: len(raw) - len(raw.lstrip())] if self._text else ""
        if text and self._text and not (space or self._text[-1].isspace()):
            space = " "  # as in the text without tags, where the model writes none between sentences
        whole = f"{self._text}{space}{text}"
        begin = len(self._text)
        found = [
            (at + len(stop), at) for stop in self.stops if (at := whole.find(stop, max(0, begin - len(stop) + 1))) >= 0
        ]
        if found:
            self.stopped = True
            self._kept = whole[begin : max(begin, min(found)[1])]
        elif final:
            self._text = whole
        return self.stopped


class AnswerReader(TextReader):
    """Reads the tagged spans of one answer while its tokens arrive.

    Args:
        encoder: the encoder of the model that writes the answer.
        stops: see ``TextReader``.

    Attributes:
        texts: the texts of its tokens.
    """

    def __init__(self, encoder: Encoder, stops: Sequence[str] = ()) -> None:
        super().__init__(encoder.tags, self._text_so_far, stops)
        self._encoder = encoder
        self.texts = encoder.token_texts()
        self._end: int | None = None  # a token that ends an answer, as long as none follows it

    def on_token(self, token: int) -> list[TaggedSentence]:
        """Add a token, and return the spans that it completes, see ``add``."""
        if self._end is not None:
            self.texts.add(self._end)
        self._end = token if token in self._encoder.stop_ids else None
        if self._end is None:
            self.texts.add(token)
        return self.add(self._encoder.token_text(token))

    def _text_so_far(self) -> str:
        """Return what ``Encoder.written`` returns for the tokens so far."""
        return self.texts.whole_characters if self._end is None else self.texts.text


class ScoredSpan(NamedTuple):
    """A tagged span of an answer, and what is read from it.

    Attributes:
        span: the span.
        sentence: the sentence with its readouts.
    """

    span: TaggedSentence
    sentence: Sentence


class Due(NamedTuple):
    """A context of an answer, whose scores are to be computed.

    Attributes:
        passage: what it is the context of.
        context: token ids, up to where a score begins.
        start: index of the first token whose log-probability is asked for, too; None asks for none.
    """

    passage: Passage
    context: list[int]
    start: int | None = None

    @property
    def written(self) -> Steps:
        """What the model wrote behind the context, see ``Passage.steps_behind``."""
        return self.passage.steps_behind(self.context)


@dataclass(eq=False)
class WithoutSource:
    """An answer that is written with a source, as a given text that is scored without it while it grows.

    Attributes:
        prompt: returns the token ids of the prompt without the source; called where the answer is scored.
        calibration: makes the confidence of what was read; None leaves the readout.
        readout: what the confidence is without one, see ``FreeFormTagger``.
        steps: the sentences of the answer so far.
    """

    prompt: Callable[[], Sequence[int]]
    calibration: Calibration | None = None
    readout: Readout = "mean"
    steps: list[Step] = field(default_factory=list, init=False)

    @cached_property
    def passage(self) -> Passage:
        """What is scored."""
        return Passage("answer", self.prompt(), self.steps)

    @property
    def likelihoods(self) -> bool:
        """Whether sentences get the log-probabilities of their tokens."""
        return self.calibration is not None and self.calibration.needs_token_logps

    def restart(self) -> None:
        """Forget the sentences so far, which have turned out to be part of a thought."""
        self.steps = []
        self.__dict__.pop("passage", None)

    def read(self, sentence: Sentence, at: int, scale: Scale, by_source: Calibration | None) -> Sentence:
        """Return a sentence with what is known of it without the source, and with what was read of it with the source.

        Args:
            sentence: as it was written with the source.
            at: its place among the sentences.
            scale: the scale of the scores.
            by_source: has made the confidence of ``sentence``; None where nothing has.
        """
        logps, token_logps = self.passage.logps[at], self.passage.token_logps[at]
        score = None if logps is None else most_probable(logps)
        known = read_out(sentence, score, logps, token_logps, scale, self.readout, self.calibration)
        return with_source(known, sentence, by_source)


@dataclass(eq=False)
class GrowingAnswer:
    """An answer that is written token by token.

    Its methods run where the worker runs the model: in the thread of an engine, or in the event loop.

    Attributes:
        encoder: the encoder of the model that writes it.
        prompt: token ids of its prompt.
        calibration: makes the confidence of what was read; None leaves the readout.
        keeps_logps: whether the log-probabilities of the tokens are those of the model (``Sampling.keeps_logps``), not
            of another distribution that is drawn from.
        stops: texts that end the answer, see ``TextReader``.
        without_source: what is known of an answer that is written with a source; its sentences get both confidences.
        readout: what the confidence is without a calibration, see ``FreeFormTagger``.
        distributions: whether sentences get the distribution over all scores: not where no confidence needs it.
        withdrawn: number of sentences that were handed over before they turned out to be part of a thought.
    """

    encoder: Encoder
    prompt: Sequence[int]
    calibration: Calibration | None = None
    keeps_logps: bool = True
    stops: Sequence[str] = ()
    without_source: WithoutSource | None = None
    readout: Readout = "mean"
    distributions: bool = field(init=False)
    withdrawn: int = field(default=0, init=False)
    _reader: AnswerReader = field(init=False)
    _passage: Passage = field(init=False)
    _steps: list[Step] = field(default_factory=list, init=False)
    _spans: list[TaggedSentence] = field(default_factory=list, init=False)
    _begins: list[int] = field(default_factory=list, init=False)  # characters of the answer before each sentence
    _end: int = field(default=0, init=False)  # characters up to the end of the last one
    _left_out: int = field(default=0, init=False)  # sentences that are part of a thought
    _tagged: int | None = field(default=None, init=False)  # sentences before the rest of a finished answer

    def __post_init__(self) -> None:
        self.distributions = self.calibration is None or self.calibration.needs_distribution
        self._reader = AnswerReader(self.encoder, self.stops)
        self._passage = Passage("answer", self.prompt, self._steps)

    @property
    def stopped(self) -> bool:
        """Whether a stop has ended it."""
        return self._reader.stopped

    @property
    def likelihoods(self) -> bool:
        """Whether sentences get the log-probabilities of their tokens."""
        return self.keeps_logps and self.calibration is not None and self.calibration.needs_token_logps

    @property
    def is_finished(self) -> bool:
        """Whether ``finish`` was called."""
        return self._tagged is not None

    @property
    def is_pending(self) -> bool:
        """Whether it has sentences that were not handed over."""
        return bool(self._spans)

    def on_token(self, token: int) -> bool:
        """Add a token, and return whether the answer can go on: not where it has a sentence to be scored, or stops."""
        spans = self._reader.on_token(token)
        self._leave_thought()
        for span in spans:
            scored = self.distributions and span.score is not None
            self._add(span, Step(span.text, score=span.score) if scored else Step(span.raw, literal=True))
        return not (self._spans or self.stopped)

    def finish(self, finished: bool) -> bool:
        """Add what follows the sentences so far, up to a stop, and return whether any were not handed over.

        The beginning of a sentence that a stop or a limit has cut gets no score, with or without a source.

        Args:
            finished: whether the model has ended the answer.
        """
        spans = self._reader.ending()
        self._leave_thought()
        self._tagged = len(self._steps)
        for span in spans:
            is_cut = span.problem == CUT_BY_STOP or (span.problem == UNTAGGED and not finished)
            self._add(span, Step(span.raw, literal=True), is_cut)
        return self.is_pending

    def due(self, room: int | None, ids: Sequence[int], watched: Sequence[Mapping[int, float]]) -> list[Due]:
        """Return the contexts that are to be scored next, which do not depend on each other; none at the end.

        Args:
            room: length of the model's context in tokens; None is no limit.
            ids: all tokens of the answer so far, or more.
            watched: log-probabilities in their places, see ``Completion.watched``.
        """
        self._passage.ids, self._passage.watched = ids, watched
        passages = [self._passage, *([] if self.without_source is None else [self.without_source.passage])]
        found = []
        for passage in passages:
            if (context := passage.next_context(self.encoder, "scores", room)) is not None:
                found.append(Due(passage, context, passage.start(context) if self._asks_tokens(passage) else None))
        return found

    def take(self, due: Due, scores: TokenScores) -> None:
        """Store what was computed for a context."""
        due.passage.take(self.encoder, "scores", scores, self._asks_tokens(due.passage))

    def release(self, logps: Sequence[float]) -> list[ScoredSpan]:
        """Return the sentences that are scored, and those between them that have no score, once.

        Args:
            logps: log-probabilities of all tokens of the answer so far, or of more.
        """
        first, done = len(self._steps) - len(self._spans), len(self._passage.logps)
        if self.without_source is not None and self._spans:
            done = min(done, len(self.without_source.passage.logps))
        spans, self._spans = self._spans[: done - first], self._spans[done - first :]
        tokens: list[tuple[float, ...] | None] = []
        if self.likelihoods:
            tagged = spans[: None if self._tagged is None else max(self._tagged - first, 0)]
            for begin, span in zip(self._begins[first:], tagged, strict=False):
                place = _sentence_span(self._reader.texts, begin, span.raw, span.text)
                tokens.append(None if place is None else tuple(logps[place]))
        known = chain(tokens, repeat(None))  # what is not tagged has none
        return list(map(self._scored, range(first, done), spans, self._passage.logps[first:], known))

    @property
    def withdrawal(self) -> Sequence[str]:
        """What is to be said of sentences that were handed over and are part of a thought; nothing without any."""
        return withdrawal(self.withdrawn)

    @property
    def own_problems(self) -> Sequence[str]:
        """What is wrong with its sentences as they were written."""
        return self._passage.problems

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong with its sentences without the source."""
        return [] if self.without_source is None or not self._steps else self.without_source.passage.problems

    def _leave_thought(self) -> None:
        """Begin the answer anew, if its sentences so far have turned out to be part of a thought."""
        if self._reader.withdrawn > self._left_out:
            self._left_out = self._reader.withdrawn
            self.withdrawn = len(self._steps) - len(self._spans)
            self._steps, self._spans, self._begins = [], [], []
            self._passage = Passage("answer", self.prompt, self._steps)
            if self.without_source is not None:
                self.without_source.restart()

    def _add(self, span: TaggedSentence, step: Step, is_cut: bool = False) -> None:
        self._begins.append(self._end if self._begins else self._reader.thought)
        self._end = self._begins[-1] + len(span.raw)
        self._spans.append(span)
        self._steps.append(step)
        if self.without_source is not None:
            text = read_sentence(span, self.encoder.scale).text
            self.without_source.steps.append(Step(text, literal=is_cut))

    def _asks_tokens(self, passage: Passage) -> bool:
        return passage is not self._passage and self.without_source is not None and self.without_source.likelihoods

    def _scored(
        self, at: int, span: TaggedSentence, logps: list[float] | None, token_logps: tuple[float, ...] | None
    ) -> ScoredSpan:
        scale = self.encoder.scale
        sentence = read_sentence(span, scale)
        sentence = read_out(sentence, span.score, logps, token_logps, scale, self.readout, self.calibration)
        known = self.without_source
        return ScoredSpan(span, sentence if known is None else known.read(sentence, at, scale, self.calibration))


@dataclass(eq=False)
class PausingCompletion(ABC):
    """An answer, or another completion, that is written in parts, between which something is done with what there is.

    Attributes:
        prompt: token ids of its prompt.
        sampling: how to sample; one completion.
        key: names the random stream, together with the seed.
        ids: the tokens so far.
        logps: their log-probabilities, up to the last pause.
        watched: log-probabilities in their places, up to the last pause, see ``Completion.watched``.
    """

    prompt: Sequence[int]
    sampling: Sampling
    key: str
    ids: list[int] = field(default_factory=list, init=False)
    logps: list[float] = field(default_factory=list, init=False)
    watched: list[Mapping[int, float]] = field(default_factory=list, init=False)

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether it ends with the token that it has paused at."""


P = TypeVar("P", bound=PausingCompletion)


class Pause(NamedTuple):
    """How a part of a completion has ended.

    Attributes:
        asked: whether ``on_token`` has asked for the pause.
        goes_on: whether there may be a further part.
        finished: whether the model has ended the completion.
    """

    asked: bool
    goes_on: bool
    finished: bool


def write_on(
    engine: Engine, stop_ids: Sequence[int], parts: Sequence[P], on_token: Callable[[P, int], bool]
) -> list[Pause]:
    """Write a batch of completions until each of them pauses or ends, and return how.

    Args:
        engine: samples; all completions are sampled alike.
        stop_ids: tokens that end a completion.
        parts: the completions, which get what is written.
        on_token: called with every new token, which the completion has by then; returns False for a pause.
    """
    asked: set[int] = set()

    def add(prompt: int, sample: int, token: int) -> bool:
        part = parts[prompt]
        part.ids.append(token)
        if not on_token(part, token):
            asked.add(prompt)
        return prompt not in asked and len(part.ids) < part.sampling.max_new_tokens

    groups = engine.generate(
        [[*part.prompt, *part.ids] for part in parts],
        replace(parts[0].sampling, max_new_tokens=max(p.sampling.max_new_tokens - len(p.ids) for p in parts)),
        stop_ids,
        keys=[f"{part.key}\x1f{len(part.ids)}" if part.ids else part.key for part in parts],
        on_token=add,
    )
    pauses = []
    for number, (part, (completion,)) in enumerate(zip(parts, groups, strict=True)):
        part.logps += completion.logps
        part.watched += completion.watched
        goes_on = number in asked and not completion.finished and not part.stopped and _has_room(engine, part)
        pauses.append(Pause(number in asked, goes_on, completion.finished))
    return pauses


def _has_room(engine: Engine, part: PausingCompletion) -> bool:
    """Return whether a completion may have another token."""
    room = engine.context_length
    has_context = room is None or len(part.prompt) + len(part.ids) < room
    return has_context and len(part.ids) < part.sampling.max_new_tokens


def score_growing(
    engine: Engine, answers: Sequence[tuple[GrowingAnswer, Sequence[int], Sequence[Mapping[int, float]]]]
) -> None:
    """Score the new sentences of answers together.

    The context of a sentence is the one that ``FreeFormTagger`` scores it in. Sentences whose scores are known from
    writing them are not scored again. Those of an answer that is written with a source are scored without it, too.

    Args:
        engine: scores contexts.
        answers: answers of one model that have paused or ended, and their tokens so far with the log-probabilities in
            their places, see ``Completion.watched``.
    """
    room = engine.context_length
    choices: Sequence[Sequence[int]] = ()
    while together := [(one, due) for one, ids, watched in answers for due in one.due(room, ids, watched)]:
        choices = together[0][0].encoder.choices
        for asks_tokens in (False, True):  # those without tokens are cheaper
            some = [(growing, due) for growing, due in together if (due.start is not None) == asks_tokens]
            if some:
                starts = [due.start for _, due in some if due.start is not None]
                request = ScoreRequest([due.context for _, due in some], starts or None)
                for (growing, due), scores in zip(some, computed(request, engine, choices), strict=True):
                    growing.take(due, scores)
    if choices and all(growing.is_finished for growing, *_ in answers):  # no answer of the batch goes on
        engine.score([], choices)  # frees what the engine kept


def withdrawal(sentences: int) -> list[str]:
    """Return what is to be said of sentences that were handed over before their thought ended; nothing of none."""
    if not sentences:
        return []
    number = counted(sentences, "sentence that was shown first is", "sentences that were shown first are")
    return [f"{number} part of a thought, which only its end has told from the answer"]


def _token_callback(readers: Sequence[AnswerReader], numbers: Sequence[int], on_written: OnWritten) -> OnToken:
    """Return a callback for ``Engine.generate`` that calls ``on_written``.

    Args:
        readers: read the answers.
        numbers: the records' indices.
        on_written: see ``FreeFormTagger.stream``.
    """
    reported = [0] * len(numbers)

    def on_token(prompt: int, sample: int, token: int) -> bool:
        for span in readers[prompt].on_token(token):
            sentence = read_sentence(span, readers[prompt].tags.scale)
            on_written(WrittenSentence.of(numbers[prompt], reported[prompt], sentence, span.raw))
            reported[prompt] += 1
        return True

    return on_token


def unanswered(record: Record, tokens: int, room: int | None) -> Record:
    """Return a record with an empty answer, whose prompt does not fit the model's context, and log a warning."""
    problem = f"the prompt has {tokens} tokens, the model's context holds {room}; shorten the question"
    log.warning("record %s: %s", record.id, problem)
    meta = {**record.meta, "problems": [problem], "finished": False}
    return replace(record, answer="", sentences=(), meta=meta, rejected=None)


def read_sentence(span: TaggedSentence, scale: Scale) -> Sentence:
    """Return a parsed span as a sentence; a tag without text keeps its raw span, so that no sentence is empty."""
    confidence = None if span.score is None else scale.confidence(span.score)
    return Sentence(span.text or span.raw.strip(), confidence=confidence, score=span.score, levels=scale.size)


def _steps(text: TaggedText) -> list[Step]:
    """Return an answer as steps of a passage: well-formed sentences with their scores, everything else verbatim."""
    return [
        Step(span.raw, literal=True) if span.score is None else Step(span.text, score=span.score)
        for span in text.sentences
    ]
