"""The work behind the routes: requests are read in threads, and the worker runs the engine."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import lovec.serving.wire as wire
from lovec.answers import split_record
from lovec.encoding import Encoder
from lovec.serving.body import check_headers, read_json, too_large
from lovec.serving.history import History
from lovec.serving.inline import Inline
from lovec.serving.jobs import AnswerJob, Job, StepsJob, queue_full, shutting_down
from lovec.serving.limits import RequestLimits
from lovec.serving.responses import AnswerResponse, ChatResponse, Chunk, Response, TextResponse
from lovec.serving.responses_api import ItemRequest, ItemResponse
from lovec.serving.wire import AnswerRequest, ChatRequest, TagRequest
from lovec.taggers import IterativeTagger, Session
from lovec.taggers.freeform import GrowingAnswer
from lovec.tagging import about_question, guessed_question, question_notices, text_record, with_unknown_words
from lovec.types import FREE_FORM, ITERATIVE, Completion, LovecError, Record

if TYPE_CHECKING:
    from starlette.requests import Request

    from lovec.serving.counters import Counters
    from lovec.serving.feedback import Feedback
    from lovec.serving.streams import StreamWorker
    from lovec.serving.worker import EngineWorker

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=Response)

SILENCE = 5.0
"""Seconds without a sentence after which a stream says that it is alive."""

_SMALL = 1 << 14
"""The most bytes of a request that is read before larger ones."""


@dataclass(eq=False, slots=True)
class Pending:
    """A request that the worker has been asked for.

    Attributes:
        response: the response to it.
        size: bytes of the request.
        deadline: time of the event loop after which the request fails.
        items: what becomes known, each with the number of its part of the response, see ``Response.parts``: sentences,
            and the end of the part or the error that prevented it.
        jobs: the worker's jobs so far.
        cancelled: whether nobody waits for the response any more.
    """

    response: Response
    size: int
    deadline: float
    items: asyncio.Queue[tuple[int, Any]] = field(default_factory=asyncio.Queue)
    jobs: list[Job] = field(default_factory=list)
    cancelled: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def put(self, part: int, item: Any) -> None:
        """Add what has become known of a part; from any thread."""
        self._loop.call_soon_threadsafe(self.items.put_nowait, (part, item))

    def add(self, jobs: Sequence[Job]) -> None:
        """Add jobs; where nobody waits any more they are cancelled."""
        self.jobs += jobs
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Tell the worker that nobody waits for the response any more."""
        self.cancelled = True
        for job in list(self.jobs):
            job.cancel()


class Service:
    """The work behind the routes.

    Args:
        session: the model.
        worker: runs its engine.
        counters: count tokens.
        limits: limits on requests.
        name: what requests call the model.
        inline: template of what stands behind every sentence in texts, see ``Inline``, where a request has no other.
        feedback: takes verdicts on answers; None takes none.
    """

    def __init__(
        self,
        session: Session,
        worker: EngineWorker | StreamWorker,
        counters: Counters,
        limits: RequestLimits,
        name: str,
        inline: str,
        feedback: Feedback | None = None,
    ) -> None:
        self.session, self.worker, self.counters = session, worker, counters
        self.limits, self.name, self.feedback = limits, name, feedback
        self.inline = Inline(inline, session.encoder.tags)
        # A tokenizer has settings that a call may change: the engine's thread and those of requests each have one.
        encoder = session.encoder
        self.encoder = Encoder(
            copy.deepcopy(encoder.tokenizer), encoder.instruction, encoder.tags, encoder.scoring, encoder.stop_ids
        )
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
        """End the threads that read requests, and close the file of verdicts."""
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)
        if self.feedback is not None:
            self.feedback.close()

    async def read_body(self, request: Request) -> bytes:
        """Return the bytes of a request; reading ends at the limit.

        Raises:
            wire.RequestRefused: they are too many, too slow, or by their headers not JSON.
        """
        from starlette.requests import ClientDisconnect

        check_headers(request.headers, self.limits.max_body)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.io_timeout) as arriving:
                self._arriving.add(arriving)
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.limits.max_body:
                        raise too_large(self.limits.max_body)
        except TimeoutError:
            if self.worker.stopping:
                raise shutting_down() from None
            raise wire.RequestRefused("the body took too long to arrive", status=408) from None
        except ClientDisconnect:
            raise wire.RequestRefused("the client has disconnected", status=499) from None
        finally:
            self._arriving.discard(arriving)
        return bytes(body)

    async def start_chat(self, body: bytes) -> Pending:
        """Submit a chat request to the worker, see ``_start``."""
        return await self._start(body, partial(self._read_answers, ChatRequest, ChatResponse), self._chat_jobs)

    async def start_items(self, body: bytes) -> Pending:
        """Submit a request of the Responses API to the worker, see ``_start``."""
        return await self._start(body, partial(self._read_answers, ItemRequest, ItemResponse), self._chat_jobs)

    async def start_text(self, body: bytes) -> Pending:
        """Submit a request to tag a given text to the worker, see ``_start``."""
        return await self._start(body, self._read_tag, self._text_jobs)

    async def take_labels(self, body: bytes) -> dict[str, Any]:
        """Take verdicts on an answer, see ``Feedback.take``.

        Raises:
            wire.RequestRefused: they cannot be taken, or this server takes none.
        """
        if self.feedback is None:
            message = "this server takes no verdicts; start it with --feedback FILE"
            raise wire.RequestRefused(message, status=404)
        feedback = self.feedback
        return await self._in_thread(len(body), lambda: feedback.take(body))

    async def _start(
        self, body: bytes, read: Callable[[bytes], R], jobs_for: Callable[[R, Pending], Sequence[Job]]
    ) -> Pending:
        """Submit a request to the worker.

        Args:
            body: the bytes of the request.
            read: reads them, in a thread.
            jobs_for: returns the jobs for a response.

        Raises:
            wire.RequestRefused: it is wrong or does not fit the model, or too many others wait.
        """
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        if self._preparing >= self.limits.max_waiting:
            raise queue_full(self.limits.max_waiting)
        self._preparing += 1
        try:
            response = await self._in_thread(len(body), lambda: read(body))
        finally:
            self._preparing -= 1
        pending = Pending(response, len(body), deadline)
        jobs = jobs_for(response, pending)
        self.worker.submit(*jobs)
        pending.add(jobs)
        return pending

    def _chat_jobs(self, response: AnswerResponse, pending: Pending) -> Sequence[Job]:
        """Return the worker's jobs for a chat: its answers, which have to wait for the scores of earlier ones."""
        if response.history.is_known:
            return self._answer_jobs(response, pending)

        def go_on(prompt: list[int] | Exception) -> None:
            if isinstance(prompt, Exception):
                pending.put(0, prompt)
                return
            response.prompt = prompt
            jobs = self._answer_jobs(response, pending)
            self.worker.submit(*jobs, accepted=True)
            pending.add(jobs)

        requests = response.history.requests(self.session.encoder, self.session.engine.context_length)
        return [StepsJob(go_on, requests)]

    def _answer_jobs(self, response: AnswerResponse, pending: Pending) -> list[AnswerJob]:
        """Return the worker's jobs for the answers to a prompt."""
        return [self._answer_job(response, part, partial(pending.put, part)) for part in range(response.parts)]

    def _answer_job(self, response: AnswerResponse, part: int, put: Callable[[Any], None]) -> AnswerJob:
        """Return the worker's job for one answer."""
        request, encoder = response.request, self.session.encoder
        calibration = self.session.deployment.calibration(FREE_FORM)
        growing = GrowingAnswer(encoder, response.prompt, calibration, request.sampling.keeps_logps, request.stop)
        key = uuid.uuid4().hex if request.seed is None else f"\x1e{part}" if part else ""
        sampling = replace(request.sampling, watched=encoder.watched if growing.distributions else ())
        return AnswerJob(put, response.prompt, sampling, key, growing.on_token, growing=growing)

    def _text_jobs(self, response: TextResponse, pending: Pending) -> Sequence[Job]:
        """Return the worker's job for a given text."""
        session = self.session

        def put(item: Any) -> None:
            pending.put(0, with_unknown_words(item, session, ITERATIVE) if isinstance(item, Record) else item)

        calibration = session.deployment.calibration(ITERATIVE)
        tagger = IterativeTagger(session.engine, session.encoder, "mean", calibration=calibration)
        return [StepsJob(put, tagger.requests([response.record]))]

    def _read_answers(
        self, request_type: type[AnswerRequest], response_type: type[AnswerResponse], body: bytes
    ) -> AnswerResponse:
        """Return the response to a request for answers, which has nothing yet."""
        request = request_type.parse(
            read_json(body), self.name, self.limits.max_tokens, self.encoder.scale, self.limits.max_choices
        )
        turns, inline = request.turns, self._inline_of(request)
        history: History

        def encode() -> list[int]:
            nonlocal history
            history = History(turns, self.encoder.tags, inline)
            return history.prompt(self.encoder)

        prompt = self._encode(request.PLACE, sum(len(turn.text) for turn in turns), encode)
        asked = [turn.text for turn in turns if turn.role == "user"]
        with self._encoding:
            unknown = replace(self.session, encoder=self.encoder).unknown_words_problem(asked)
        problems = [] if unknown is None else [unknown]
        return response_type(request, history, prompt, self.session.deployment, self.name, inline, problems)

    def _read_tag(self, body: bytes) -> TextResponse:
        """Return the response to a request to tag a text, which has nothing yet."""
        request = TagRequest.read(read_json(body), self.name, self.encoder.scale)
        if request.question is not None and request.about is not None:
            message = "both question and about are given; the question says what the text is about"
            raise wire.RequestRefused(message, "about", code="invalid_value")
        question, notices = request.question, list[str]()
        if request.about is not None:
            question = about_question(request.about)
        if question is None:
            question, topic = guessed_question(request.text)
            topics, default = ({}, question) if topic is None else ({"the text": topic}, None)
            notices = list(question_notices(topics, default, '"about": "NAME"'))
        self._encode("question", len(question), lambda: self.encoder.prompt(question))
        record = split_record(text_record(request.text, question), self.encoder.tags)
        most = self._most_characters() + 1
        inline = self._inline_of(request)
        return TextResponse(request, record, most, self.session.deployment, self.name, inline, notices)

    def _inline_of(self, request: AnswerRequest | TagRequest) -> Inline:
        """Return what writes confidences into the text of a response."""
        return self.inline if request.inline is None else Inline(request.inline, self.encoder.tags)

    def _encode(self, parameter: str, characters: int, encode: Callable[[], list[int]]) -> list[int]:
        """Return the token ids of a prompt. It is not encoded if it is too long even where all tokens are the longest.

        Args:
            parameter: the parameter that it comes from.
            characters: number of its characters.
            encode: returns its token ids.

        Raises:
            wire.RequestRefused: it does not fit the model's context, or is none that the model has.
        """
        room = self.session.engine.context_length
        if characters > self._most_characters():
            length = f"{characters} characters, at least {characters // self._longest_token} tokens"
        else:
            try:
                with self._encoding:
                    prompt = encode()
            except LovecError as error:
                raise wire.RequestRefused(str(error), parameter) from None
            if room is None or len(prompt) < room:
                return prompt
            length = f"{len(prompt)} tokens with the instruction"
        message = f"the {parameter} {'have' if parameter == 'messages' else 'has'} {length}, "
        message += f"the model's context holds {room}"
        raise wire.RequestRefused(message, parameter, code="context_length_exceeded")

    def _most_characters(self) -> int:
        """Return the most characters that fit the model's context."""
        room = self.session.engine.context_length
        return sys.maxsize if room is None else room * self._longest_token

    async def whole(self, pending: Pending) -> bytes:
        """Return a response in one piece, as JSON, see ``_chunks`` for the errors."""
        async for _ in self._chunks(pending):
            pass
        response = pending.response
        return await self._in_thread(pending.size, lambda: json.dumps(response.whole(), ensure_ascii=False).encode())

    async def stream(self, pending: Pending) -> AsyncIterator[str]:
        """Yield a response as server-sent events."""
        try:
            async for chunk in self._chunks(pending):
                yield wire.KEEP_ALIVE if chunk is None else wire.event(chunk)
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status has been sent already
            if not isinstance(error, wire.RequestRefused):  # those of the engine are logged by the worker
                log.exception("a stream failed")
            yield wire.event(pending.response.failed(wire.visible(error)))

    async def _chunks(self, pending: Pending) -> AsyncIterator[Chunk | None]:
        """Let a response grow to its end, and yield its chunks; None after ``SILENCE`` seconds without any.

        Raises:
            wire.RequestRefused: the engine failed, or the time is up.
        """
        response = pending.response
        unfinished = response.parts
        for chunk in response.first():
            yield chunk
        while unfinished:
            until = min(pending.deadline, asyncio.get_running_loop().time() + SILENCE)
            try:
                async with asyncio.timeout_at(until):
                    part, item = await pending.items.get()
            except TimeoutError:
                if until < pending.deadline:
                    yield None
                    continue
                message = f"no answer within {self.limits.timeout:g} s"
                raise wire.RequestRefused(message, status=504) from None
            if isinstance(item, Exception):
                raise wire.visible(item)
            unfinished -= isinstance(item, Completion | Record)
            if isinstance(item, Completion):
                self.counters.count_tokens(0 if unfinished else len(response.prompt), len(item.ids))
            chunks = response.add(part, item)
            if not unfinished and self.feedback is not None:
                self.feedback.remember(response)  # before the client sees its end
            for chunk in chunks:
                yield chunk
        for chunk in response.last():
            yield chunk

    async def _in_thread(self, size: int, function: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread, so that the event loop can go on.

        There is one thread for small requests and one for large ones, which take longer.
        """
        small, large = self._threads
        return await asyncio.get_running_loop().run_in_executor(small if size <= _SMALL else large, function)
