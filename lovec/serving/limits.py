"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lovec.core.settings import NonNegative, Positive, Setting, checked


@checked()
@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on requests and connections.

    Attributes:
        max_waiting: the most requests that wait while others run.
        max_body: the most bytes of a request.
        max_tokens: the most tokens of an answer.
        max_choices: the most answers that one request may ask for (``n``).
        timeout: the most seconds of a request, waiting included.
        io_timeout: the most seconds in which a request's head, its body, and what a client is sent have to arrive.
        max_connections: the most open connections; fewer if the process may open fewer files.
        max_client_connections: the most open connections of one address.
        grace: seconds in which accepted requests are finished after SIGTERM or Ctrl-C; the rest gets status 503.

    Raises:
        LovecError: a limit is not positive, or ``grace`` is negative.
    """

    max_waiting: Annotated[int, Setting(above=0)] = 256
    max_body: Annotated[int, Setting(above=0)] = 1 << 20
    max_tokens: Annotated[int, Setting(above=0)] = 1024
    max_choices: Annotated[int, Setting(above=0)] = 8
    timeout: Positive = 300.0
    io_timeout: Positive = 30.0
    max_connections: Annotated[int, Setting(above=0)] = 1024
    max_client_connections: Annotated[int, Setting(above=0)] = 512
    grace: NonNegative = 20.0
