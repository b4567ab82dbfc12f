"""``lovec serve``: an OpenAI-compatible server whose answers carry confidences."""

from __future__ import annotations

import os
import signal
import socket
import sys

from lovec.serving import RequestLimits, make_app
from lovec.taggers import open_session
from lovec.types import LovecError

from .arguments import add_working_directory
from .console import quiet
from .signatures import SignatureParser

KEY = "LOVEC_API_KEY"


def run(words: list[str]) -> None:
    """Serve a model until SIGTERM or Ctrl-C; requests that were accepted are answered first.

    Args:
        words: the command line after ``serve``.

    Raises:
        LovecError: the model cannot be opened, or the port is taken.
    """
    add_working_directory()  # an engine of the user's own
    parser = SignatureParser(
        prog="lovec serve",
        description="Serve a model behind OpenAI's chat API, with a confidence for every sentence. Requests under /v1 "
        f"must bring the key in ${KEY}, if it is set.",
    )
    parser.add(open_session)
    parser.add_argument("--name", type=str, help="what requests call the model; null is its own name")
    parser.add(listen)
    parser.add(RequestLimits)
    config = parser.parse_args(words)
    try:
        import uvicorn
    except ImportError as error:
        raise LovecError(f"serving needs uvicorn: pip install 'lovec[serve]' ({error})") from error
    options = parser.instantiate(config)
    limits = parser.call(RequestLimits, options)
    listener = parser.call(listen, options)  # before a model is loaded in vain
    with quiet():
        session = parser.call(open_session, options)
    name = options.name or session.model
    key = os.environ.get(KEY) or None
    app = make_app(session, name, limits, key)
    connections = 4 * (limits.max_waiting + options.rows) + 256  # requests that are refused are connections, too
    server = uvicorn.Config(app, log_level="warning", access_log=False, limit_concurrency=connections, lifespan="on")
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    guard = f"key from {KEY}" if key else "no key"
    if key is None and host not in ("127.0.0.1", "::1"):
        print(f"lovec: warning: anybody who reaches {host} may ask; set {KEY} to ask for a key", file=sys.stderr)
    print(f"{name} at {address}/v1 ({guard}); {address}/health, {address}/metrics; stop with Ctrl-C", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it once more when all is done: exit code 0
    uvicorn.Server(server).run(sockets=[listener])


def listen(host: str = "127.0.0.1", port: int = 8080) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: address to listen at; the default is this machine only.
        port: port to listen at; 0 takes a free one.

    Raises:
        LovecError: there is no such address, or it is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        raise LovecError(f"cannot listen at {host}:{port}: {error}; choose another --host or --port") from error
    return listener
