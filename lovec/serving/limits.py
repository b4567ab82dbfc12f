"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lovec.types import check_range


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

    max_waiting: int = 256
    max_body: int = 1 << 20
    max_tokens: int = 1024
    max_choices: int = 8
    timeout: float = 300.0
    io_timeout: float = 30.0
    max_connections: int = 1024
    max_client_connections: int = 512
    grace: float = 20.0

    def __post_init__(self) -> None:
        check_range("grace", self.grace, at_least=0)
        for field in fields(self):
            if field.name != "grace":
                check_range(field.name, getattr(self, field.name), above=0, integer=field.type == "int")
