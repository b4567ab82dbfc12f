"""The work behind the routes: requests are read in threads, and the worker runs the engine."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import lovec.serving.wire as wire
from lovec.answers import split_record
from lovec.encoding import Encoder
from lovec.serving.answers import AnswerJob, GrowingAnswer, ScoredSpan
from lovec.serving.body import DISCARDED, check_headers, read_json, too_large
from lovec.serving.jobs import StepsJob, queue_full, shutting_down
from lovec.serving.limits import RequestLimits
from lovec.taggers import IterativeTagger, Session
from lovec.taggers.freeform import read_sentence
from lovec.taggers.scoring import with_score
from lovec.tags import TaggedText
from lovec.types import FREE_FORM, ITERATIVE, Completion, LovecError, Record, Sentence

if TYPE_CHECKING:
    from starlette.requests import Request

    from lovec.serving.counters import Counters
    from lovec.serving.streams import StreamWorker
    from lovec.serving.worker import EngineWorker

T = TypeVar("T")

Event: TypeAlias = list[ScoredSpan] | tuple[TaggedText, Completion] | Exception
"""What the engine's thread says about an answer: new sentences, its end, or what prevented it."""

FAILED = "the server failed; its log says how"
"""What a client learns of an error that is not its own: no paths, no addresses."""

_SMALL = 1 << 14
"""The most bytes of a request that is read before larger ones."""


@dataclass(eq=False, slots=True)
class PendingAnswers:
    """The answers to a request that the engine has been asked for.

    Attributes:
        request: the request.
        jobs: the worker's job for every answer.
        events: with the index of their answer its sentences, and at its end what follows them and the completion, or
            an error.
        deadline: time of the event loop after which the request fails.
    """

    request: wire.ChatRequest
    jobs: list[AnswerJob]
    events: asyncio.Queue[tuple[int, Event]]
    deadline: float

    def cancel(self) -> None:
        """Tell the worker that nobody waits for the answers any more."""
        for job in self.jobs:
            job.cancel()


@dataclass(eq=False, slots=True)
class PendingText:
    """A given text that the engine has been asked to tag.

    Attributes:
        request: the request.
        record: the text, cut into sentences.
        job: the worker's job.
        events: the tagged sentences in their order, and then the whole record, or an error.
        deadline: as for answers.
    """

    request: wire.TagRequest
    record: Record
    job: StepsJob
    events: asyncio.Queue[Sentence | Record | Exception]
    deadline: float

    def cancel(self) -> None:
        """Tell the worker that nobody waits for the text any more."""
        self.job.cancel()


class Service:
    """The work behind the routes.

    Args:
        session: the model.
        worker: runs its engine.
        counters: count tokens.
        limits: limits on requests.
        name: what requests call the model.
    """

    def __init__(
        self,
        session: Session,
        worker: EngineWorker | StreamWorker,
        counters: Counters,
        limits: RequestLimits,
        name: str,
    ) -> None:
        self.session, self.worker, self.counters = session, worker, counters
        self.limits, self.name = limits, name
        # A tokenizer has settings that a call may change: the engine's thread and those of requests each have one.
        encoder = session.encoder
        self.encoder = Encoder(copy.deepcopy(encoder.tokenizer), encoder.instruction, encoder.tags)
        self._encoding = threading.Lock()
        self._longest_token = max(map(len, encoder.tokenizer.get_vocab()))
        self._threads = ThreadPoolExecutor(1, "lovec-small"), ThreadPoolExecutor(1, "lovec-large")
        self._preparing = 0
        self._arriving: set[asyncio.Timeout] = set()

    def cancel(self) -> None:
        """Answer all requests that are not answered yet with status 503."""
        self.worker.cancel()
        for arriving in self._arriving:
            arriving.reschedule(0)

    def close(self) -> None:
        """End the threads that read requests."""
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)

    async def read_body(self, request: Request) -> bytes:
        """Return the bytes of a request; reading ends at the limit.

        Raises:
            wire.RequestRefused: they are too many, too slow, or by their headers not JSON.
        """
        from starlette.requests import ClientDisconnect

        check_headers(request.headers, self.limits.max_body)
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.limits.io_timeout) as arriving:
                self._arriving.add(arriving)
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > DISCARDED * self.limits.max_body:
                        break
                    body += chunk if size <= self.limits.max_body else b""
        except TimeoutError:
            if self.worker.stopping:
                raise shutting_down() from None
            raise wire.RequestRefused("the body took too long to arrive", status=408) from None
        except ClientDisconnect:
            raise wire.RequestRefused("the client has disconnected", status=499) from None
        finally:
            self._arriving.discard(arriving)
        if size > self.limits.max_body:
            raise too_large(self.limits.max_body)
        return bytes(body)

    async def start_answers(self, body: bytes) -> PendingAnswers:
        """Submit a chat request to the worker.

        Raises:
            wire.RequestRefused: it is wrong or does not fit the model, or the queue is full.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.timeout
        request, prompt = await self._read(body, self._read_chat)
        events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

        def put(index: int, item: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (index, item))

        jobs = [self._answer_job(request, prompt, index, put) for index in range(request.n)]
        self.worker.submit(*jobs)
        return PendingAnswers(request, jobs, events, deadline)

    def _answer_job(
        self, request: wire.ChatRequest, prompt: list[int], index: int, put: Callable[[int, Event], None]
    ) -> AnswerJob:
        """Return the worker's job for one answer; ``put`` gets its events."""

        def end(item: Completion | Exception) -> None:  # in the engine's thread: ``growing`` uses that one's tokenizer
            put(index, (growing.rest(), item) if isinstance(item, Completion) else item)

        sampling = request.sampling
        deployment = self.session.deployment
        asked = deployment.needs_distributions(FREE_FORM)
        likelihoods = deployment.needs_likelihoods(FREE_FORM) and sampling.keeps_logps
        stops = tuple(request.stop)
        encoder = self.session.encoder
        growing = GrowingAnswer(encoder, prompt, lambda spans: put(index, spans), asked, likelihoods, stops)
        key = uuid.uuid4().hex if request.seed is None else f"\x1e{index}" if index else ""
        return AnswerJob(end, prompt, sampling, key, growing.on_token, growing=growing)

    def _read_chat(self, body: bytes) -> tuple[wire.ChatRequest, list[int]]:
        """Return a chat request and the token ids of its prompt."""
        request = wire.ChatRequest.parse(
            read_json(body), self.name, self.limits.max_tokens, self.encoder.scale, self.limits.max_choices
        )
        self._check_length(sum(len(text) for _, text in request.turns), "messages")
        try:
            with self._encoding:
                prompt = self.encoder.dialogue(request.turns)
        except LovecError as error:
            raise wire.RequestRefused(str(error), "messages") from None
        self._check_fit(len(prompt), "messages")
        self._keeps(request, FREE_FORM)  # before an answer is written in vain
        return request, prompt

    def _read_tag(self, body: bytes) -> tuple[wire.TagRequest, Record]:
        """Return a request to tag a text, and the text cut into sentences."""
        request = wire.TagRequest.read(read_json(body), self.name, self.encoder.scale)
        self._check_length(len(request.question), "question")
        with self._encoding:
            prompt = self.encoder.prompt(request.question)
        self._check_fit(len(prompt), "question")
        self._keeps(request, ITERATIVE)
        return request, split_record(Record("text", request.question, answer=request.text), self.encoder.tags)

    def _check_length(self, characters: int, parameter: str) -> None:
        """Refuse a text that is too long for the model even if all its tokens are the longest, without encoding it."""
        if characters > self._most_characters():
            tokens = f"at least {characters // self._longest_token} tokens"
            raise _too_long(parameter, f"{characters} characters, {tokens},", self.session.engine.context_length)

    def _most_characters(self) -> int:
        """Return the most characters that fit the model's context."""
        room = self.session.engine.context_length
        return sys.maxsize if room is None else room * self._longest_token

    def _check_fit(self, n_tokens: int, parameter: str) -> None:
        room = self.session.engine.context_length
        if room is not None and n_tokens >= room:
            raise _too_long(parameter, f"{n_tokens} tokens with the instruction,", room)

    async def pieces(self, answers: PendingAnswers) -> AsyncIterator[tuple[int, wire.Piece | Completion]]:
        """Yield the sentences of answers as they are complete, and each answer's completion at its end.

        Raises:
            wire.RequestRefused: the engine failed, or the time is up.
        """
        keeps = self._keeps(answers.request, FREE_FORM)
        makers = [wire.AnswerPieces(keeps) for _ in answers.jobs]
        unfinished = len(makers)
        try:
            while unfinished:
                index, item = await self._before(answers.deadline, answers.events.get())
                pieces = makers[index]
                if isinstance(item, Exception):
                    raise _visible(item)
                if isinstance(item, list):
                    for scored in item:
                        yield index, pieces.piece(scored.span.raw, self._sentence(scored), scored.span.problem)
                    continue
                rest, completion = item
                for span in rest.sentences:
                    yield index, pieces.piece(span.raw, self._sentence(ScoredSpan(span, None)), span.problem)
                if tail := rest.tail.strip():
                    problem = "cut by stop" if answers.jobs[index].stopped else "untagged tail"
                    yield index, pieces.piece(rest.tail, Sentence(tail), problem)
                unfinished -= 1
                self.counters.count_tokens(0 if unfinished else len(answers.jobs[0].prompt), len(completion.ids))
                yield index, completion
        finally:
            answers.cancel()  # also where the client has disconnected

    def _sentence(self, scored: ScoredSpan) -> Sentence:
        """Return a span of an answer as a sentence with the confidence that is deployed."""
        sentence = replace(read_sentence(scored.span, self.encoder.scale), token_logps=scored.token_logps)
        if scored.logps is not None and sentence.score is not None:
            sentence = with_score(sentence, sentence.score, scored.logps, self.encoder.scale, "mean")
        else:
            sentence = replace(sentence, confidence=None)
        return self.session.deployment.sentence(sentence, FREE_FORM)

    def _keeps(self, request: wire.ChatRequest | wire.TagRequest, mode: str) -> Callable[[Sentence], bool]:
        """Return whether a sentence stays in the text that a request asks for.

        Raises:
            wire.RequestRefused: the request asks for a guarantee that there is no threshold for.
        """
        try:
            return self.session.deployment.keeps(mode, request.min_score, request.keep_factual)
        except LovecError as error:
            raise wire.RequestRefused(str(error), "keep_factual") from None

    async def whole(self, answers: PendingAnswers) -> dict[str, Any]:
        """Return a chat response in one piece."""
        pieces: list[list[wire.Piece]] = [[] for _ in answers.jobs]
        reasons = [""] * len(pieces)
        tokens = 0
        async for index, item in self.pieces(answers):
            if isinstance(item, wire.Piece):
                pieces[index].append(item)
            else:
                reasons[index] = _finish_reason(answers.jobs[index], item)
                tokens += len(item.ids)
        usage = wire.count_usage(answers.jobs[0].prompt, tokens)
        return wire.ResponseBuilder(self.name).whole(list(zip(pieces, reasons, strict=True)), usage)

    async def stream(self, answers: PendingAnswers) -> AsyncIterator[str]:
        """Yield a chat response as server-sent events."""
        builder = wire.ResponseBuilder(self.name)
        tokens = 0
        for index in range(len(answers.jobs)):
            yield builder.chunk(index, {"role": "assistant", "content": ""})
        try:
            async for index, item in self.pieces(answers):
                if isinstance(item, wire.Piece):
                    yield builder.chunk(index, {"content": item.content, "confidence": [item.entry]})
                    continue
                yield builder.chunk(index, {}, _finish_reason(answers.jobs[index], item))
                tokens += len(item.ids)
            if answers.request.stream_options.include_usage:
                yield builder.usage_chunk(wire.count_usage(answers.jobs[0].prompt, tokens))
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status has been sent already
            yield _error_event(error)

    async def start_text(self, body: bytes) -> PendingText:
        """Submit a request to tag a given text to the worker.

        Raises:
            wire.RequestRefused: it is wrong, or the queue is full.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.timeout
        request, record = await self._read(body, self._read_tag)
        events: asyncio.Queue[Sentence | Record | Exception] = asyncio.Queue()

        def put(item: Any) -> None:
            loop.call_soon_threadsafe(events.put_nowait, item)

        needed = self.session.deployment.needs_likelihoods(ITERATIVE)
        tagger = IterativeTagger(self.session.engine, self.session.encoder, "mean", likelihoods=needed)
        steps = self.worker.steps(tagger, [self._cut(record)], lambda _, at, sentence: put(sentence))
        job = StepsJob(lambda end: put(end[0] if isinstance(end, list) else end), steps)
        self.worker.submit(job)
        return PendingText(request, record, job, events, deadline)

    async def entries(self, text: PendingText) -> AsyncIterator[dict[str, Any] | list[str]]:
        """Yield the entries of a given text's sentences as they are tagged, then what is wrong with the text.

        Raises:
            wire.RequestRefused: the engine failed, or the time is up.
        """
        keeps = self._keeps(text.request, ITERATIVE)
        sentences = iter(text.record.sentences)
        try:
            while isinstance(item := await self._before(text.deadline, text.events.get()), Sentence):
                deployed = self.session.deployment.sentence(item, ITERATIVE)
                yield wire.confidence_entry(replace(deployed, text=next(sentences).text), keeps(deployed))
            if isinstance(item, Exception):
                raise _visible(item)
            yield list(item.meta.get("problems", ()))
        finally:
            text.cancel()

    async def whole_text(self, text: PendingText) -> bytes:
        """Return the JSON of a given text with a confidence for every sentence."""
        entries: list[dict[str, Any]] = []
        problems: list[str] = []
        async for item in self.entries(text):
            if isinstance(item, dict):
                entries.append(item)
            else:
                problems = item
        content = " ".join(entry["text"] for entry in entries if entry["kept"])
        response: dict[str, Any] = {"object": "tagged_text", "model": self.name, "content": content}
        response |= {"confidence": entries, "problems": problems}
        return await self._in_thread(len(content), lambda: json.dumps(response, ensure_ascii=False).encode())

    async def stream_text(self, text: PendingText) -> AsyncIterator[str]:
        """Yield a given text with its confidences as server-sent events, one per sentence and one at the end."""
        head: dict[str, Any] = {"object": "tagged_text.chunk", "model": self.name}
        try:
            async for item in self.entries(text):
                done = isinstance(item, list)
                news = {"confidence": [] if done else [item], **({"problems": item} if done else {})}
                yield wire.event({**head, **news})
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status has been sent already
            yield _error_event(error)

    def _cut(self, record: Record) -> Record:
        """Return a record without the ends of sentences that get no score anyway: encoding them would take long."""
        most = self._most_characters() + 1
        if max((len(s.text) for s in record.sentences), default=0) <= most:
            return record
        return replace(record, sentences=tuple(Sentence(s.text[:most]) for s in record.sentences))

    async def _read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """Return a request that a function reads in a thread.

        Raises:
            wire.RequestRefused: it is wrong, or too many others wait to be read.
        """
        if self._preparing >= self.limits.max_waiting:
            raise queue_full(self.limits.max_waiting)
        self._preparing += 1
        try:
            return await self._in_thread(len(body), lambda: read(body))
        finally:
            self._preparing -= 1

    async def _in_thread(self, size: int, function: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread, so that the event loop can go on.

        There is one thread for small requests and one for large ones, which take longer.
        """
        small, large = self._threads
        return await asyncio.get_running_loop().run_in_executor(small if size <= _SMALL else large, function)

    async def _before(self, deadline: float, result: Awaitable[T]) -> T:
        """Return an awaited result.

        Raises:
            wire.RequestRefused: there is none before the deadline.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await result
        except TimeoutError:
            raise wire.RequestRefused(f"no answer within {self.limits.timeout:g} s", status=504) from None


def _finish_reason(job: AnswerJob, completion: Completion) -> str:
    return "stop" if completion.finished or job.stopped else "length"


def _error_event(error: Exception) -> str:
    """Return an error as the last event of a stream."""
    visible = _visible(error)
    return wire.event(wire.error_body(str(visible), wire.error_kind(visible.status), code=visible.code))


def _too_long(parameter: str, length: str, room: int | None) -> wire.RequestRefused:
    verb = "have" if parameter == "messages" else "has"
    message = f"the {parameter} {verb} {length} the model's context holds {room}"
    return wire.RequestRefused(message, parameter, code="context_length_exceeded")


def _visible(error: Exception) -> wire.RequestRefused:
    """Return what a client learns of an error: of the server's own errors only that there was one."""
    return error if isinstance(error, wire.RequestRefused) else wire.RequestRefused(FAILED, status=500)
