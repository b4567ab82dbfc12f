"""The work behind the routes: requests are read in threads, and the worker runs the engine."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import lovec.serving.wire as wire
from lovec.serving.body import check_headers, read_json, too_large
from lovec.serving.inline import Inline, check_template
from lovec.serving.jobs import AnswerEnd, Job, queue_full, shutting_down
from lovec.serving.limits import RequestLimits
from lovec.serving.pending import Pending
from lovec.serving.responses import AnswerResponse, ChatResponse, Chunk, Response, TextResponse
from lovec.serving.responses_api import ItemRequest, ItemResponse
from lovec.serving.served import ServedModel
from lovec.serving.wire import AnswerRequest, ChatRequest, TagRequest
from lovec.taggers.freeform import CUT_BY_STOP, ScoredSpan
from lovec.tagging import about_question, guessed_question, question_notices, text_record
from lovec.tags import TagFormat
from lovec.text.untag import split_record
from lovec.types import Record

if TYPE_CHECKING:
    from starlette.requests import Request

    from lovec.serving.counters import Counters
    from lovec.serving.feedback import Feedback

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=Response)

SILENCE = 5.0
"""Seconds without a sentence after which a stream says that it is alive."""

_SMALL = 1 << 14
"""The most bytes of a request that is read before larger ones."""


class Service:
    """The work behind the routes.

    Args:
        model: answers the requests.
        counters: count tokens.
        limits: limits on requests.
        name: what requests call the model.
        inline: template of what stands behind every sentence in texts, see ``Inline``, where a request has no other.
        feedback: takes verdicts on answers; None takes none.
    """

    def __init__(
        self,
        model: ServedModel,
        counters: Counters,
        limits: RequestLimits,
        name: str,
        inline: str,
        feedback: Feedback | None = None,
    ) -> None:
        self.model, self.worker, self.counters = model, model.worker, counters
        self.limits, self.name, self.feedback = limits, name, feedback
        self._template = check_template(inline)
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
        return await self._start(body, partial(self._read_answers, ChatRequest, ChatResponse), self.model.answer_jobs)

    async def start_items(self, body: bytes) -> Pending:
        """Submit a request of the Responses API to the worker, see ``_start``."""
        return await self._start(body, partial(self._read_answers, ItemRequest, ItemResponse), self.model.answer_jobs)

    async def start_text(self, body: bytes) -> Pending:
        """Submit a request to tag a given text to the worker, see ``_start``."""
        return await self._start(body, self._read_tag, self.model.text_jobs)

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

    def _read_answers(
        self, request_type: type[AnswerRequest], response_type: type[AnswerResponse], body: bytes
    ) -> AnswerResponse:
        """Return the response to a request for answers, which has nothing yet."""
        most = min(self.limits.max_choices, self.worker.most)  # more could never be accepted together
        request = request_type.parse(read_json(body), self.name, self.limits.max_tokens, self.model.tags.scale, most)
        self.model.check_evidence(request.evidence)
        inline = self._inline(request.inline, self.model.tags)
        history, prompt, problems = self.model.read(request, inline)
        return response_type(request, history, prompt, self.model.served, self.name, inline, problems)

    def _read_tag(self, body: bytes) -> TextResponse:
        """Return the response to a request to tag a text, which has nothing yet."""
        request = TagRequest.read(read_json(body), self.name, self.model.tags.scale)
        if request.question is not None and request.about is not None:
            message = "both question and about are given; the question says what the text is about"
            raise wire.RequestRefused(message, "about", code="invalid_value")
        self.model.check_evidence(request.evidence)
        question, notices = request.question, list[str]()
        if request.about is not None:
            question = about_question(request.about)
        if question is None:
            question, topic = guessed_question(request.text, tags=self.model.tags)
            topics, default = ({}, question) if topic is None else ({"the text": topic}, None)
            notices = list(question_notices(topics, default, '"about": "NAME"'))
        self.model.check_question(question)
        record = split_record(text_record(request.text, question, tags=self.model.tags), self.model.tags)
        record, more = self.model.with_source(replace(record, evidence=tuple(request.evidence or ())))
        most = self.model.most_characters + 1
        inline = self._inline(request.inline, self.model.text_tags)
        return TextResponse(request, record, most, self.model.served, self.name, inline, [*notices, *more])

    def _inline(self, template: str | None, tags: TagFormat) -> Inline:
        """Return what writes confidences into the text of a response; without a template that of the server."""
        return Inline(self._template if template is None else template, tags)

    async def whole(self, pending: Pending) -> bytes:
        """Return a response in one piece, as JSON, see ``_chunks`` for the errors."""
        async for _ in self._chunks(pending):
            pass
        response = pending.response
        return await self._in_thread(pending.size, lambda: json.dumps(response.whole(), ensure_ascii=False).encode())

    async def stream(self, pending: Pending, on_sentence: Callable[[], object]) -> AsyncIterator[str]:
        """Yield a response as server-sent events, see ``_chunks`` for the arguments."""
        try:
            async for chunk in self._chunks(pending, on_sentence):
                yield wire.KEEP_ALIVE if chunk is None else wire.event(chunk)
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status has been sent already
            if not isinstance(error, wire.RequestRefused):  # those of the engine are logged by the worker
                log.exception("a stream failed")
            yield wire.event(pending.response.failed(wire.visible(error)))

    async def _chunks(
        self, pending: Pending, on_sentence: Callable[[], object] = lambda: None
    ) -> AsyncIterator[Chunk | None]:
        """Let a response grow to its end, and yield its chunks; None after ``SILENCE`` seconds without any.

        Args:
            pending: the request.
            on_sentence: called before the chunks of every sentence.

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
            is_end = isinstance(item, AnswerEnd | Record)
            unfinished -= is_end
            if isinstance(item, AnswerEnd):
                counts_prompt = item.own_prompt or not unfinished
                self.counters.count_tokens(item.prompt_tokens or 0 if counts_prompt else 0, item.tokens or 0)
                if item.repeated:
                    self.counters.count_repeated()
            elif isinstance(item, ScoredSpan) and item.span.problem != CUT_BY_STOP:
                self.counters.count_tag(item.span.problem is None)
            chunks = response.add(part, item)
            if not unfinished and self.feedback is not None:
                self.feedback.remember(response)  # before the client sees its end
            if not is_end:
                on_sentence()
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
