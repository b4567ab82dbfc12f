"""``lovec serve``: an OpenAI-compatible endpoint whose answers carry confidences."""

from __future__ import annotations

import os
import signal
import socket
import sys

from lovec.types import LovecError

from .console import quiet
from .parser import OneLineParser

KEY = "LOVEC_API_KEY"


def run(words: list[str]) -> None:
    """Serves a model until SIGTERM or Ctrl-C; what was taken is answered first.

    Args:
        words: the command line after ``serve``.

    Raises:
        LovecError: the model cannot be opened, or the port is taken.
    """
    parser = OneLineParser(
        "serve",
        f"Serve a model behind OpenAI's chat API, with a confidence for every sentence. Requests under /v1 must bring "
        f"the key in {KEY}, if it is set.",
    )
    parser.add_argument("--model", help="world, world-small, tiny-llama, a hub id or a folder; null is the adapter's")
    parser.add_argument("--adapter", metavar="FOLDER", help="PEFT adapter, or the run that wrote it")
    parser.add_argument("--engine", default="transformers", help="transformers, vllm, or the address of a vLLM server")
    parser.add_argument("--dtype", help="of the weights: float32 or bfloat16; null is float32, with vLLM as stored")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; null takes CUDA where there is some")
    parser.add_argument("--name", help="what requests call the model; null is its own name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; the default is this machine only")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    parser.add_argument("--rows", type=int, default=64, help="answers that are written at once")
    parser.add_argument("--waiting", type=int, default=256, help="requests that may wait; others get status 429")
    parser.add_argument("--max-body", type=int, default=1 << 20, help="bytes of a request")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of an answer")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a request, waiting included")
    options = parser.read(words)
    try:
        import uvicorn
    except ImportError as error:
        raise LovecError(f"serving needs uvicorn: pip install 'lovec[serve]' ({error})") from error
    from lovec.serving import Limits, make_app
    from lovec.taggers import open_session

    limits = Limits(options.waiting, options.max_body, options.max_tokens, options.timeout)
    if min(options.rows, limits.waiting, limits.body, limits.tokens) < 1 or not limits.seconds > 0:
        raise LovecError("--rows, --waiting, --max-body, --max-tokens and --timeout must be at least 1")
    listener = _listen(options.host, options.port)
    with quiet():
        session = open_session(
            options.model,
            options.adapter,
            options.engine,
            dtype=options.dtype,
            device=options.device,
            rows=options.rows,
        )
    name = options.name or session.model
    key = os.environ.get(KEY) or None
    app = make_app(session, name, limits, key)
    connections = 4 * (limits.waiting + options.rows) + 256  # those who are told to come back, too
    config = uvicorn.Config(app, log_level="warning", access_log=False, limit_concurrency=connections, lifespan="on")
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    guard = f"key from {KEY}" if key else "no key"
    if key is None and host not in ("127.0.0.1", "::1"):
        print(f"lovec: warning: anybody who reaches {host} may ask; set {KEY} to ask for a key", file=sys.stderr)
    print(f"{name} at {address}/v1 ({guard}); {address}/health, {address}/metrics; stop with Ctrl-C", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it once more when all is done: exit code 0
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before a model is loaded in vain.

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
