"""The server: answers by two APIs of OpenAI, tagging of given text, what describes it, and a page to try it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import lovec.serving.wire as wire
from lovec.serving.limits import RequestLimits
from lovec.serving.page import PAGE_HEADERS, render_page
from lovec.serving.pending import Pending
from lovec.serving.provider import ProviderModel
from lovec.serving.served import ServedModel, SessionModel
from lovec.serving.service import Service
from lovec.serving.worker import EngineWorker, score_answers
from lovec.taggers import Session
from lovec.tagging import ApiTagger
from lovec.types import LovecError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from lovec.serving.counters import Counters
    from lovec.serving.feedback import Feedback

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSING = 5.0
"""Seconds that the engine has to stop in when the server ends; a single call of it cannot be interrupted."""

STREAM_HEADERS: Mapping[str, str] = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of streams. nginx collects a response before it passes it on, unless it is told not to."""

CORS: Mapping[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],  # Authorization, and what client libraries add
    "expose_headers": ["Retry-After"],
    "max_age": 600,
}
"""What pages of other origins may do, where any are allowed. There are no cookies, so all headers may be sent."""


def make_app(
    session: Session | ApiTagger,
    name: str,
    limits: RequestLimits | None = None,
    key: str | None = None,
    cors: Sequence[str] = (),
    inline: str = "",
    feedback: Feedback | None = None,
) -> Starlette:
    """Return the application; it starts the engine's thread when it starts, and closes the session when it ends.

    Args:
        session: the model; nothing else may use its engine. It may also be one behind another server.
        name: name of the model in requests.
        limits: limits on requests; None takes the defaults.
        key: the bearer token that requests under /v1 must have; None asks for none.
        cors: origins such as "https://example.org" whose pages may read the answers in a browser; "*" is all of them.
        inline: template of what stands behind every sentence in texts, see ``lovec.serving.inline.Inline``, where a
            request has no other.
        feedback: takes verdicts on answers; it is closed when the application ends. None takes none.

    Returns:
        The application; ``state.model`` is its ``ServedModel``, and ``state.service`` its ``Service`` once it runs.

    Raises:
        LovecError: the extra ``serve`` is not installed, or ``inline`` is no such template.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.middleware.cors import CORSMiddleware
        from starlette.responses import JSONResponse, Response, StreamingResponse
        from starlette.routing import Route

        from lovec.serving.counters import Counters
        from lovec.serving.openapi import describe
    except ImportError as error:
        raise LovecError(f"serving needs more packages: pip install 'lovec[serve]' ({error})") from error

    limits = limits or RequestLimits()
    model = _served_model(session, limits)
    worker = model.worker
    counters = Counters(worker)
    service = Service(model, counters, limits, name, inline, feedback)
    if feedback is not None:
        counters.report(feedback)
    description = describe(name, key is not None, model.is_grounded)
    started = int(time.time())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service
        await worker.open()
        yield
        service.close()
        if await worker.close(CLOSING):
            model.close()
        else:
            log.warning("the engine is still in a call; it is left there")

    async def page(_: Request) -> Response:
        problems = () if feedback is None else tuple(feedback.problems())
        document, policy = render_page(name, key is not None, problems, model.is_grounded)
        return Response(document, media_type="text/html", headers={**PAGE_HEADERS, "Content-Security-Policy": policy})

    async def health(_: Request) -> Response:
        problem = await worker.problem()
        return JSONResponse({"status": problem or "ok", "model": name}, 503 if problem else 200)

    async def metrics(_: Request) -> Response:
        text, media_type = counters.text()
        return Response(text, media_type=media_type)

    async def openapi(_: Request) -> Response:
        return JSONResponse(description)

    async def labels(request: Request) -> Response:
        return JSONResponse(await service.take_labels(await service.read_body(request)))

    def card() -> dict[str, Any]:
        said = {"id": name, "object": "model", "created": started, "owned_by": "lovec"}
        scales = {"scale": list(model.tags.scale.words), "text_scale": list(model.text_tags.scale.words)}
        return said | {"confidence": model.notes(), **scales}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card()]})

    async def one_model(request: Request) -> Response:
        wire.check_model(request.path_params["name"], name)
        return JSONResponse(card())

    class EventStream(StreamingResponse):
        """Sends the response to a request as events; however that ends, the engine need not go on."""

        def __init__(self, pending: Pending, count_seconds: Callable[[], None]) -> None:
            events = service.stream(pending, count_seconds)
            super().__init__(events, media_type="text/event-stream", headers=STREAM_HEADERS)
            self.pending, self.count_seconds = pending, count_seconds

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                self.pending.cancel()
                self.count_seconds()

    def answering(start: Callable[[bytes], Coroutine[Any, Any, Pending]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = await service.read_body(request)
            pending = await _unless_disconnected(request, start(body))
            if pending.response.request.stream:
                return EventStream(pending, request.state.count_seconds)
            try:
                whole = await _unless_disconnected(request, service.whole(pending))
            finally:
                pending.cancel()
            return Response(whole, media_type="application/json")

        return answer

    async def refused(_: Request, error: Exception) -> Response:
        return _error_response(wire.visible(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        is_known = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        advice = f"use {(error.headers or {})['Allow']}" if is_known else f"there are {', '.join(paths)}"
        message = f"{request.method} {request.scope['path']}: {error.detail.lower()}; {advice}"
        return _error_response(wire.RequestRefused(message, status=error.status_code), error.headers)

    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),  # names may have slashes
        Route("/v1/chat/completions", answering(service.start_chat), methods=["POST"]),
        Route("/v1/responses", answering(service.start_items), methods=["POST"]),
        Route("/v1/tag", answering(service.start_text), methods=["POST"]),
        Route("/v1/labels", labels, methods=["POST"]),
    ]
    paths = [route.path for route in routes if ":" not in route.path]
    app = Starlette(
        routes=routes,
        middleware=[  # a browser asks without the key whether it may send the request
            *([Middleware(CORSMiddleware, **CORS, allow_origins=list(cors))] if cors else ()),
            Middleware(_KeyAndCounters, counters=counters, key=key, routes=routes),
        ],
        exception_handlers={wire.RequestRefused: refused, HTTPException: http_error, Exception: refused},
        lifespan=lifespan,
    )
    app.state.model = model
    app.router.redirect_slashes = False  # the address of a redirection would come from the client's Host header
    return app


def _served_model(session: Session | ApiTagger, limits: RequestLimits) -> ServedModel:
    """Return a model with what runs it: a thread for an engine of this process, tasks where another server does."""
    if isinstance(session, ApiTagger):
        return ProviderModel(session, limits.max_waiting)
    from lovec.engines import RemoteVllm  # here, since other commands start without the libraries of engines
    from lovec.serving.streams import StreamWorker

    engine, encoder = session.engine, session.encoder
    if isinstance(engine, RemoteVllm):
        most = engine.max_rows + limits.max_waiting
        return SessionModel(session, StreamWorker(engine, encoder.stop_ids, encoder.choices, most))
    score = partial(score_answers, engine)
    return SessionModel(session, EngineWorker(engine, encoder.stop_ids, limits.max_waiting, score, encoder.choices))


def _error_response(error: wire.RequestRefused, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in OpenAI's format."""
    from starlette.responses import JSONResponse

    more = {429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}, 401: {"WWW-Authenticate": "Bearer"}}
    return JSONResponse(wire.error_body(error), error.status, {**(headers or {}), **more.get(error.status, {})})


class _KeyAndCounters:
    """Middleware that refuses requests without the API key before their bodies are read, and counts all requests.

    A response that begins before the body has arrived ends the connection: the rest of the body is not worth reading.
    ``state.count_seconds`` of a request counts its time, once: a stream calls it for each sentence, and at its end.
    """

    def __init__(self, app: ASGIApp, counters: Counters, key: str | None, routes: Sequence[Route]) -> None:
        self.app, self.counters, self.routes = app, counters, routes
        self.expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.monotonic()
        known = (route.path for route in self.routes if route.path_regex.match(scope["path"]))
        path = next(known, "other")  # metrics must not grow with unknown paths

        headers = dict(scope["headers"])
        is_complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"

        async def note_and_receive() -> Message:
            nonlocal is_complete
            message = await receive()
            is_complete = is_complete or not message.get("more_body", True)
            return message

        is_counted = False

        def count_seconds() -> None:
            nonlocal is_counted
            if not is_counted:
                self.counters.count_seconds(path, time.monotonic() - begin)
            is_counted = True

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters.count_request(path, message["status"])
                if not dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
                    count_seconds()
                if not is_complete:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        scope.setdefault("state", {})["count_seconds"] = count_seconds
        await (self._refusal(scope) or self.app)(scope, note_and_receive, count_and_send)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that must not be read; None for others."""
        headers = dict(scope["headers"])
        if {b"content-length", b"transfer-encoding"} <= headers.keys():  # a proxy may have read another request
            message = "the length of the body is given twice, by Content-Length and by Transfer-Encoding"
            return _error_response(wire.RequestRefused(message))
        given = headers.get(b"authorization", b"")
        if self.expected and scope["path"].startswith("/v1/") and not hmac.compare_digest(given, self.expected):
            message = "the API key is missing or wrong"
            return _error_response(wire.RequestRefused(message, status=401, code="invalid_api_key"))
        return None


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
