"""The connections of the server: how many, how long they may stay silent, and how they end."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import resource
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lovec.serving.limits import RequestLimits
from lovec.serving.wire import RequestRefused, error_body

if TYPE_CHECKING:
    from starlette.applications import Starlette

log = logging.getLogger(__name__)

_OTHER_FILES = 96
"""Files that the process may open beside the connections of clients, of which the last few are just being closed."""

_AT_ONCE = 64
"""The most connections that are accepted before those over a limit are closed; less than ``_OTHER_FILES``."""

_BACKLOG = 1024
"""The most connections that the system holds until they are accepted."""

_CLOSING = 2.0
"""Seconds in which the last responses are sent after the grace."""

_PIECE = 1024
"""The most bytes of a connection that are parsed before it is the turn of the others. They may be some 170 chunks of a
body, and each takes microseconds: with the 256 KiB that asyncio reads by default, nobody else is answered for long."""

_DISCARDED = 16
"""A client may send so many times the limit of a body, which is counted in what is sent: chunk headers included. Many
clients send a body that is too large to its end before they look for the answer."""


class _Transport:
    """A transport that Connection closes: ``close`` asks it to, everything else is done by the transport itself."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection to a client.

    While it waits for a request, or for the rest of one that was answered before its body had arrived, it has
    ``io_timeout`` seconds in all, however the bytes trickle. A client that takes no bytes for as long is cut off, too.

    Args:
        connections: those of all clients.
        arguments: as for uvicorn's class.
    """

    def __init__(self, connections: Connections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.all = connections
        self.address = ""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._piece = bytearray(_PIECE)
        self._received = 0  # bytes since the last response
        self._is_ending = False  # whether what comes is not read any more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; a connection that is one too many gets an error."""
        self._socket = transport
        super().connection_made(cast(asyncio.Transport, _Transport(transport, self.close)))
        self.address = self.client[0] if self.client else ""
        if self.all.admit(self):
            self._update()
        else:
            transport.write(_error(503, "too many connections are open; try again later"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._stop("read")
        self._stop("write")
        self.all.discard(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where the next bytes are read to."""
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        """Read, unless the connection is ending; who sends too much is cut off."""
        self._received += nbytes
        if self._received > _DISCARDED * self.all.limits.max_body:
            self.abort()
        elif not self._is_ending:
            self.data_received(bytes(self._piece[:nbytes]))
            self._update()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._received = 0
        super().on_response_complete()
        self._update()

    def close(self) -> None:
        """Close the connection, once its client has sent what it may still be sending.

        Until then that is thrown away unread: systems drop a response that has arrived if they are told that the other
        side has closed and not taken what was sent.
        """
        if self._is_ending or self._socket.is_closing() or self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            self._socket.close()
            return
        self._is_ending = True
        self._socket.write_eof()
        self.flow.resume_reading()
        self._update()

    def pause_writing(self) -> None:
        """Wait for a client that does not take what it is sent."""
        super().pause_writing()
        self._start("write")

    def resume_writing(self) -> None:
        """Go on sending."""
        super().resume_writing()
        self._stop("write")

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the format of all other errors; a response that has begun is cut off."""
        if self._is_busy():
            self.cycle.disconnected = True  # whoever reads the body learns that there is no more of it
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(_error(400, msg))
        self.close()

    def abort(self) -> None:
        """Cut the connection."""
        self.all.discard(self)
        self.transport.abort()

    def _update(self) -> None:
        """Start waiting, or stop it where a request has arrived whose response is not complete."""
        if self._is_busy():
            self._stop("read")
            self.all.waiting.pop(self, None)
        elif "read" not in self._timers and self in self.all.members:
            self._start("read")
            self.all.waiting[self] = None

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start(self, name: str) -> None:
        self._timers[name] = self.loop.call_later(self.all.limits.io_timeout, self.abort)

    def _stop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()


class Connections:
    """The open connections of a server. Who needs one takes it from those that have not sent a request yet.

    Args:
        limits: how many there may be.

    Attributes:
        limits: as given.
        most: the most connections, with the number of files that the process may open.
        members: the open connections.
        open: their number by address.
        waiting: connections that wait for a request; the keys are in the order in which they began to.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.most = min(limits.max_connections, max(1, _most_files() - _OTHER_FILES))
        self.open: Counter[str] = Counter()
        self.waiting: dict[Connection, None] = {}
        self.members: set[Connection] = set()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, and return whether there is room for it.

        At a limit the connection that has waited longest for a request is cut off: of the same address at the limit of
        an address, of all addresses at the limit of all.
        """
        address = connection.address
        at_its_limit = self.open[address] >= self.limits.max_client_connections
        if at_its_limit or len(self.members) >= self.most:
            replaceable = (other for other in self.waiting if other.address == address or not at_its_limit)
            if (oldest := next(replaceable, None)) is None:
                return False
            oldest.abort()
        self.members.add(connection)
        self.open[address] += 1
        return True

    def discard(self, connection: Connection) -> None:
        """Forget a connection."""
        self.waiting.pop(connection, None)
        if connection in self.members:
            self.members.remove(connection)
            self.open[connection.address] -= 1
            if not self.open[connection.address]:
                del self.open[connection.address]


class _Server(uvicorn.Server):
    """A server that cancels what it has not answered when the grace is over."""

    def __init__(self, config: uvicorn.Config, app: Starlette, grace: float) -> None:
        super().__init__(config)
        self._app, self._grace = app, grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service = self._app.state.service
        service.worker.refuse()
        ending = asyncio.get_running_loop().call_later(self._grace, service.cancel)
        try:
            await super().shutdown(sockets)
        finally:  # also where a second Ctrl-C has ended the wait
            ending.cancel()
            service.cancel()


def make_server(app: Starlette, limits: RequestLimits) -> uvicorn.Server:
    """Return a server; its ``run`` answers requests until SIGTERM or Ctrl-C, and then raises the signal once more.

    Args:
        app: what ``make_app`` returned.
        limits: limits on connections, and the grace at the end.
    """
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(Connection, Connections(limits))),
        ws="none",
        lifespan="on",
        backlog=_AT_ONCE,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(limits.grace + _CLOSING),
    )
    return _Server(config, app, limits.grace)


def _most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _error(status: int, message: str) -> bytes:
    """Return a whole response that closes the connection."""
    body = json.dumps(error_body(RequestRefused(message, status=status))).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    retry = "retry-after: 1\r\n" if status == 503 else ""
    return f"{head}content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n".encode() + body
