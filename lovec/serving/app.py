"""The endpoint: chat completions, tagging of given text, models, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lovec.sentences import split_sentences
from lovec.serving.counters import Counters
from lovec.serving.wire import (
    AnswerPieces,
    BadRequest,
    ChatRequest,
    Piece,
    Reply,
    entry,
    error_body,
    event,
    min_score_of,
    passes,
    usage,
)
from lovec.serving.worker import Busy, Call, Job, Worker
from lovec.taggers import IterativeTagger, Session
from lovec.tags import strip
from lovec.types import Completion, LovecError, Record, Sentence

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY_S = 1
"""Seconds after which a client that was turned away may come again."""

FAILED = "the server failed; its log says how"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, and all of them together, may ask for.

    Attributes:
        waiting: requests that may wait while others run.
        body: bytes of a request.
        tokens: of an answer.
        seconds: for a request, waiting included.
    """

    waiting: int = 256
    body: int = 1 << 20
    tokens: int = 1024
    seconds: float = 300.0


def make_app(session: Session, name: str, limits: Limits | None = None, key: str | None = None) -> Starlette:
    """The application; its worker lives as long as it does.

    Args:
        session: the model; nobody else may use its engine.
        name: what requests call the model.
        limits: bounds; None takes the defaults.
        key: what requests under /v1 must bring as a bearer token; None asks for none.

    Raises:
        LovecError: the extra ``serve`` is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise LovecError(f"serving needs Starlette: pip install 'lovec[serve]' ({error})") from error

    limits = limits or Limits()
    worker = Worker(session.engine, session.encoder.stop_ids, limits.waiting)
    counters = Counters(worker)
    served = _Served(session, worker, counters, limits, name)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop)
        session.close()

    async def health(_: Request) -> Response:
        if worker.alive:
            return JSONResponse({"status": "ok", "model": name})
        return JSONResponse({"status": "the engine has stopped", "model": name}, 503)

    async def metrics(_: Request) -> Response:
        text, kind = counters.text()
        return Response(text, media_type=kind)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "lovec"}]})

    async def chat(request: Request) -> Response:
        asked = ChatRequest.read(await served.body(request), name, limits.tokens)
        answer = served.ask(asked)
        if asked.stream:
            return StreamingResponse(served.stream(answer), media_type="text/event-stream")
        return JSONResponse(await served.attended(request, served.whole(answer)))

    async def tag(request: Request) -> Response:
        body = await served.body(request)
        return JSONResponse(await served.attended(request, served.tagged(body)))

    async def mended(_: Request, error: Exception) -> Response:
        if isinstance(error, BadRequest):
            return _refused(error.status, str(error), error.parameter, error.code)
        if isinstance(error, Busy):
            return _refused(429, str(error), code="rate_limit_exceeded")
        return _refused(400, str(error))

    async def missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refused(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    async def broken(_: Request, error: Exception) -> Response:
        return _refused(500, FAILED)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/tag", tag, methods=["POST"]),
        ],
        middleware=[Middleware(_Door, counters=counters, key=key)],
        exception_handlers={LovecError: mended, HTTPException: missing, Exception: broken},
        lifespan=lifespan,
    )


def _refused(status: int, message: str, parameter: str | None = None, code: str | None = None) -> Response:
    """An error in OpenAI's shape."""
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"Retry-After": str(RETRY_S)} if status == 429 else {}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(error_body(message, kind, parameter, code), status, headers)


class _Door:
    """Turns away who has no key, and counts all who come."""

    def __init__(self, app: ASGIApp, counters: Counters, key: str | None) -> None:
        self.app, self.counters = app, counters
        self.wanted = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters.count(_known(scope["path"]), message["status"], time.monotonic() - begin)
            await send(message)

        given = dict(scope["headers"]).get(b"authorization", b"")
        guarded = self.wanted is not None and scope["path"].startswith("/v1/")
        if guarded and not hmac.compare_digest(given, self.wanted or b""):
            refusal = _refused(401, "the API key is missing or wrong", code="invalid_api_key")
            await refusal(scope, receive, counted)
        else:
            await self.app(scope, receive, counted)


@dataclass(eq=False, slots=True)
class _Answer:
    """An answer under way."""

    asked: ChatRequest
    job: Job
    pieces: AnswerPieces
    events: asyncio.Queue[int | Completion | Exception]
    deadline: float


class _Served:
    """What the routes share."""

    def __init__(self, session: Session, worker: Worker, counters: Counters, limits: Limits, name: str) -> None:
        self.session, self.worker, self.counters = session, worker, counters
        self.limits, self.name = limits, name

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request, read no further than is allowed.

        Raises:
            BadRequest: it is too large, too slow, or no JSON object.
        """
        held = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    held += chunk
                    if len(held) > self.limits.body:
                        raise BadRequest(f"the body is larger than {self.limits.body} bytes", status=413)
        except TimeoutError:
            raise BadRequest("the body took too long to arrive", status=408) from None
        try:
            data = json.loads(held.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is no JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadRequest(f"the body is a JSON {type(data).__name__}, expected an object")
        return data

    def ask(self, asked: ChatRequest) -> _Answer:
        """Put a question into the worker's queue.

        Raises:
            LovecError: it does not fit the model, or the queue is full.
        """
        encoder, room = self.session.encoder, self.session.engine.context_length
        prompt = encoder.dialogue(asked.turns)
        if room is not None and len(prompt) >= room:
            raise BadRequest(
                f"the messages have {len(prompt)} tokens with the instruction, the model's context holds {room}",
                "messages",
                code="context_length_exceeded",
            )
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[int | Completion | Exception] = asyncio.Queue()

        def tell(happened: int | Completion | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, happened)

        name = "" if asked.seeded else uuid.uuid4().hex
        job = Job(prompt, asked.sampling, name, tell, tell)
        self.worker.submit(job)
        pieces = AnswerPieces(encoder, asked.min_score)
        return _Answer(asked, job, pieces, events, loop.time() + self.limits.seconds)

    async def pieces(self, answer: _Answer) -> AsyncIterator[Piece | Completion]:
        """The sentences of an answer as they come, then its completion.

        Raises:
            LovecError: the engine failed, or time is up.
        """
        try:
            while True:
                try:
                    async with asyncio.timeout_at(answer.deadline):
                        happened = await answer.events.get()
                except TimeoutError:
                    raise BadRequest(f"no answer within {self.limits.seconds:g} s", status=504) from None
                if isinstance(happened, Exception):
                    raise happened
                if isinstance(happened, Completion):
                    break
                for piece in answer.pieces.on_token(happened):
                    yield piece
            for piece in answer.pieces.rest():
                yield piece
            self.counters.tokens(len(answer.job.prompt), len(happened.ids))
            yield happened
        finally:
            answer.job.gone.set()  # also where the client has left

    async def whole(self, answer: _Answer) -> dict[str, Any]:
        """A reply in one go."""
        found: list[Piece] = []
        async for happened in self.pieces(answer):
            if isinstance(happened, Completion):
                counts = usage(answer.job.prompt, happened.ids)
                return self._reply().whole(found, _finish(happened), counts)
            found.append(happened)
        raise AssertionError("an answer ends with its completion")

    async def stream(self, answer: _Answer) -> AsyncIterator[str]:
        """A reply piece by piece."""
        reply = self._reply()
        yield reply.chunk({"role": "assistant", "content": ""})
        try:
            async for happened in self.pieces(answer):
                if isinstance(happened, Piece):
                    yield reply.chunk({"content": happened.content, "confidence": [happened.entry]})
                    continue
                yield reply.chunk({}, _finish(happened))
                if answer.asked.usage:
                    yield reply.counted(usage(answer.job.prompt, happened.ids))
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status is out already
            told = str(error) if isinstance(error, LovecError) else FAILED
            yield event(error_body(told, "server_error"))

    async def tagged(self, body: dict[str, Any]) -> dict[str, Any]:
        """Given text with a confidence for every sentence.

        Raises:
            LovecError: the request is not one, or the queue is full.
        """
        text, question = body.get("text"), body.get("question")
        if not isinstance(text, str) or not text.strip():
            raise BadRequest("text must be the text to tag", "text")
        if not isinstance(question, str) or not question.strip():
            raise BadRequest("question must be what the text answers", "question")
        if unknown := sorted(body.keys() - {"text", "question", "model", "min_score"}):
            raise BadRequest(f"unknown parameter {unknown[0]!r}", unknown[0])
        least = min_score_of(body)
        encoder = self.session.encoder
        sentences = tuple(map(Sentence, split_sentences(strip(text, encoder.tags))))
        record = Record("text", question, answer=text, sentences=sentences)
        found = await self._call(lambda: IterativeTagger(self.session.engine, encoder).tag([record])[0])
        entries = [entry(s.text, s.score, passes(s.score, least)) for s in found.sentences]
        kept = " ".join(said["text"] for said in entries if said["kept"])
        return {
            "object": "tagged_text",
            "model": self.name,
            "content": kept,
            "confidence": entries,
            "problems": list(found.meta.get("problems", ())),
        }

    async def _call(self, do: Callable[[], Any]) -> Any:
        """What ``do`` gives in the worker's thread."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()

        def end(value: Any) -> None:
            loop.call_soon_threadsafe(lambda: None if found.done() else found.set_result(value))

        call = Call(do, end)
        self.worker.submit(call)
        try:
            async with asyncio.timeout(self.limits.seconds):
                value = await found
        except TimeoutError:
            raise BadRequest(f"no answer within {self.limits.seconds:g} s", status=504) from None
        finally:
            call.gone.set()
        if isinstance(value, Exception):
            raise value
        return value

    async def attended(self, request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """What ``work`` gives; it is given up where the client leaves before."""
        task = asyncio.create_task(work)
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise BadRequest("the client has left", status=499)
            return task.result()
        finally:
            for one in (task, left):
                one.cancel()
            await asyncio.gather(task, left, return_exceptions=True)

    def _reply(self) -> Reply:
        return Reply(f"chatcmpl-{uuid.uuid4().hex}", self.name)


async def _left(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _finish(completion: Completion) -> str:
    return "stop" if completion.finished else "length"


def _known(path: str) -> str:
    """The route of a path, so that metrics do not grow with what strangers ask for."""
    known = ("/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/tag")
    return path if path in known else "other"
