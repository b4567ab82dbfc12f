"""The server: chat completions, tagging of given text, models, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import lovec.serving.wire as wire
from lovec.sentences import split_sentences
from lovec.serving.worker import CompletionJob, EngineCall, EngineWorker
from lovec.taggers import IterativeTagger, Session
from lovec.tags import strip
from lovec.types import Completion, LovecError, Record, Sentence, check_range

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from lovec.serving.counters import Counters

T = TypeVar("T")

_FAILED = "the server failed; its log says how"
_PATHS = ("/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/tag")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on requests.

    Attributes:
        max_waiting: the most requests that wait while others run.
        max_body: the most bytes of a request.
        max_tokens: the most tokens of an answer.
        timeout: the most seconds of a request, waiting included.

    Raises:
        LovecError: a limit is not positive.
    """

    max_waiting: int = 256
    max_body: int = 1 << 20
    max_tokens: int = 1024
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_range(field.name, getattr(self, field.name), above=0)


def make_app(session: Session, name: str, limits: RequestLimits | None = None, key: str | None = None) -> Starlette:
    """Return the application; it starts the engine's thread when it starts, and closes the session when it ends.

    Args:
        session: the model; nothing else may use its engine.
        name: name of the model in requests.
        limits: limits on requests; None takes the defaults.
        key: the bearer token that requests under /v1 must have; None asks for none.

    Raises:
        LovecError: the extra ``serve`` is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response, StreamingResponse
        from starlette.routing import Route

        from lovec.serving.counters import Counters
    except ImportError as error:
        raise LovecError(f"serving needs more packages: pip install 'lovec[serve]' ({error})") from error

    limits = limits or RequestLimits()
    worker = EngineWorker(session.engine, session.encoder.stop_ids, limits.max_waiting)
    counters = Counters(worker)
    service = _Service(session, worker, counters, limits, name)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop)
        session.close()

    async def health(_: Request) -> Response:
        status, code = ("ok", 200) if worker.thread.is_alive() else ("the engine has stopped", 503)
        return JSONResponse({"status": status, "model": name}, code)

    async def metrics(_: Request) -> Response:
        text, media_type = counters.text()
        return Response(text, media_type=media_type)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "lovec"}]})

    async def chat(request: Request) -> Response:
        body = await service.read_body(request)
        answer = service.start_answer(wire.ChatRequest.parse(body, name, limits.max_tokens, session.encoder.scale))
        if answer.request.stream:
            return StreamingResponse(service.stream(answer), media_type="text/event-stream")
        return JSONResponse(await _unless_disconnected(request, service.whole(answer)))

    async def tag(request: Request) -> Response:
        body = await service.read_body(request)
        return JSONResponse(await _unless_disconnected(request, service.tag(body)))

    async def user_error(_: Request, error: Exception) -> Response:
        refused = error if isinstance(error, wire.RequestRefused) else wire.RequestRefused(str(error))
        return _error_response(refused.status, str(refused), refused.parameter, refused.code)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error_response(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    async def server_error(_: Request, error: Exception) -> Response:
        return _error_response(500, _FAILED)

    handlers = zip(_PATHS, (health, metrics, models, chat, tag), strict=True)
    return Starlette(
        routes=[Route(path, do, methods=["POST" if do in (chat, tag) else "GET"]) for path, do in handlers],
        middleware=[Middleware(_KeyAndCounters, counters=counters, key=key)],
        exception_handlers={LovecError: user_error, HTTPException: http_error, Exception: server_error},
        lifespan=lifespan,
    )


def _error_response(status: int, message: str, parameter: str | None = None, code: str | None = None) -> Response:
    """Return an error in OpenAI's format."""
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse(wire.error_body(message, kind, parameter, code), status, headers)


class _KeyAndCounters:
    """Middleware that refuses requests without the API key, and counts all requests."""

    def __init__(self, app: ASGIApp, counters: Counters, key: str | None) -> None:
        self.app, self.counters = app, counters
        self.expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.monotonic()
        path = scope["path"] if scope["path"] in _PATHS else "other"  # metrics must not grow with unknown paths

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters.count_request(path, message["status"], time.monotonic() - begin)
            await send(message)

        header = dict(scope["headers"]).get(b"authorization", b"")
        guarded = self.expected is not None and scope["path"].startswith("/v1/")
        if guarded and not hmac.compare_digest(header, self.expected or b""):
            response = _error_response(401, "the API key is missing or wrong", code="invalid_api_key")
            await response(scope, receive, count_and_send)
        else:
            await self.app(scope, receive, count_and_send)


@dataclass(eq=False, slots=True)
class _PendingAnswer:
    """An answer that the engine has been asked for.

    Attributes:
        request: the request that it answers.
        job: the worker's job.
        events: the tokens of the answer, and at its end the completion or an error.
        deadline: time of the event loop after which the request fails.
    """

    request: wire.ChatRequest
    job: CompletionJob
    events: asyncio.Queue[int | Completion | Exception]
    deadline: float


class _Service:
    """The work behind the routes."""

    def __init__(
        self, session: Session, worker: EngineWorker, counters: Counters, limits: RequestLimits, name: str
    ) -> None:
        self.session, self.worker, self.counters = session, worker, counters
        self.limits, self.name = limits, name

    async def read_body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of a request; reading ends at the limit of bytes.

        Raises:
            wire.RequestRefused: it is too large, too slow, or not a JSON object.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.limits.max_body:
                        raise wire.RequestRefused(f"the body is larger than {self.limits.max_body} bytes", status=413)
        except TimeoutError:
            raise wire.RequestRefused("the body took too long to arrive", status=408) from None
        try:
            data = json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise wire.RequestRefused(f"the body is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise wire.RequestRefused(f"the body is a JSON {type(data).__name__}, expected an object")
        return data

    def start_answer(self, request: wire.ChatRequest) -> _PendingAnswer:
        """Submit a chat request to the worker.

        Raises:
            LovecError: it does not fit the model, or the queue is full.
        """
        room = self.session.engine.context_length
        prompt = self.session.encoder.dialogue(request.turns)
        if room is not None and len(prompt) >= room:
            raise wire.RequestRefused(
                f"the messages have {len(prompt)} tokens with the instruction, the model's context holds {room}",
                "messages",
                code="context_length_exceeded",
            )
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[int | Completion | Exception] = asyncio.Queue()

        def put(item: int | Completion | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, item)

        job = CompletionJob(prompt, request.sampling, uuid.uuid4().hex if request.seed is None else "", put, put)
        self.worker.submit(job)
        return _PendingAnswer(request, job, events, loop.time() + self.limits.timeout)

    async def pieces(self, answer: _PendingAnswer) -> AsyncIterator[wire.Piece | Completion]:
        """Yield the sentences of an answer as they are complete, then its completion.

        Raises:
            LovecError: the engine failed, or the time is up.
        """
        pieces = wire.AnswerPieces(self.session.encoder, answer.request.min_score)
        try:
            while True:
                item = await self._before(answer.deadline, answer.events.get())
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, Completion):
                    break
                for piece in pieces.on_token(item):
                    yield piece
            for piece in pieces.rest():
                yield piece
            self.counters.count_tokens(len(answer.job.prompt), len(item.ids))
            yield item
        finally:
            answer.job.cancelled.set()  # also where the client has disconnected

    async def whole(self, answer: _PendingAnswer) -> dict[str, Any]:
        """Return a chat response in one piece."""
        pieces: list[wire.Piece] = []
        async for item in self.pieces(answer):
            if isinstance(item, Completion):
                usage = wire.count_usage(answer.job.prompt, item.ids)
                return wire.ResponseBuilder(self.name).whole(pieces, _finish_reason(item), usage)
            pieces.append(item)
        raise AssertionError("an answer ends with its completion")

    async def stream(self, answer: _PendingAnswer) -> AsyncIterator[str]:
        """Yield a chat response as server-sent events."""
        builder = wire.ResponseBuilder(self.name)
        yield builder.chunk({"role": "assistant", "content": ""})
        try:
            async for item in self.pieces(answer):
                if isinstance(item, wire.Piece):
                    yield builder.chunk({"content": item.content, "confidence": [item.entry]})
                    continue
                yield builder.chunk({}, _finish_reason(item))
                if answer.request.stream_options.include_usage:
                    yield builder.usage_chunk(wire.count_usage(answer.job.prompt, item.ids))
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status has been sent already
            message = str(error) if isinstance(error, LovecError) else _FAILED
            yield wire.event(wire.error_body(message, "server_error"))

    async def tag(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return given text with a confidence for every sentence.

        Raises:
            LovecError: the request is wrong, or the queue is full.
        """
        engine, encoder = self.session.engine, self.session.encoder
        request = wire.TagRequest.read(body, encoder.scale)
        sentences = tuple(map(Sentence, split_sentences(strip(request.text, encoder.tags))))
        record = Record("text", request.question, answer=request.text, sentences=sentences)
        tagged: Record = await self._run_in_worker(lambda: IterativeTagger(engine, encoder).tag([record])[0])
        entries = [wire.confidence_entry(s.text, s.score, encoder.scale, request.min_score) for s in tagged.sentences]
        return {
            "object": "tagged_text",
            "model": self.name,
            "content": " ".join(entry["text"] for entry in entries if entry["kept"]),
            "confidence": entries,
            "problems": list(tagged.meta.get("problems", ())),
        }

    async def _run_in_worker(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function that runs in the worker's thread."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def end(value: Any) -> None:
            loop.call_soon_threadsafe(lambda: None if result.done() else result.set_result(value))

        call = EngineCall(function, end)
        self.worker.submit(call)
        try:
            value = await self._before(loop.time() + self.limits.timeout, result)
        finally:
            call.cancelled.set()
        if isinstance(value, Exception):
            raise value
        return value

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


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled if the client disconnects first.

    Raises:
        wire.RequestRefused: the client has disconnected.
    """
    task = asyncio.create_task(work)
    disconnected = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise wire.RequestRefused("the client has disconnected", status=499)
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _finish_reason(completion: Completion) -> str:
    return "stop" if completion.finished else "length"
