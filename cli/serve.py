"""``lovec serve``: an OpenAI-compatible server whose answers carry confidences."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from lovec.core.calls import read_key
from lovec.core.hub import SHIPPED
from lovec.core.imports import without_progress_bars
from lovec.core.settings import Setting
from lovec.serving import RequestLimits, make_app
from lovec.serving.inline import check_template
from lovec.serving.logs import log_to_stderr
from lovec.taggers import Session, open_session
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging import OPENAI, P_TRUE_SCALE, ApiModel, ApiTagger
from lovec.tags import TagFormat
from lovec.types import DEFAULT_SCALE, ITERATIVE, LovecError, Readout, error_in

from .arguments import add_working_directory
from .console import remark, warn
from .signatures import SignatureParser
from .tag_options import api_prompting, check_engine_options, check_opening

KEY = "LOVEC_API_KEY"

_NO_OPTIONS = ("model", "cache", "max_cost", "price_in", "price_out", "timeout", "ask_again", "progress")
"""Parameters of ``ApiModel`` that a server sets itself, or that are of files of questions."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""


def run(words: list[str]) -> None:
    """Serve a model until SIGTERM, SIGHUP or Ctrl-C; accepted requests are answered first, for a limited time.

    Args:
        words: the command line after ``serve``.

    Raises:
        LovecError: the model cannot be opened, or the port is taken.
        SystemExit: the process has got SIGTERM.
        KeyboardInterrupt: the process has got SIGINT.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    add_working_directory()  # an engine of the user's own
    parser = SignatureParser(
        prog="lovec serve",
        description="Serve a model behind OpenAI's chat API, with a confidence for every sentence. Requests under /v1 "
        f"must bring the key in ${KEY}, if it is set.",
    )
    parser.add(open_session)
    parser.add(ApiModel, *_NO_OPTIONS)
    parser.add(open_provider, "asker", "instruction", "tags")
    parser.add_argument("--name", type=str, help="what requests call the model; null is the last part of its name")
    parser.add_argument(
        "--cors",
        type=str,
        action="append",
        metavar="ORIGIN",
        help="origin whose pages may ask from a browser, such as https://example.org; * is any; may be repeated",
    )
    parser.add_argument(
        "--inline",
        type=str,
        default="",
        metavar="TEMPLATE",
        help="what stands behind every sentence in the text of a reply, such as ' [{confidence:.0%}]' or "
        "' <confidence> {score} </confidence>', or with {by_source} for requests with evidence; a request may have "
        "another; by default nothing",
    )
    parser.add_argument(
        "--feedback",
        type=str,
        metavar="FILE",
        help="take people's verdicts on answers at /v1/labels, append them to this JSON Lines file (no texts), and "
        "watch whether promises and confidences hold; null takes none",
    )
    parser.add(listen)
    parser.add(RequestLimits)
    config = parser.parse_args(words)
    check_opening(config)
    check_engine_options(config, "method")
    try:
        from lovec.serving.connections import make_server
        from lovec.serving.feedback import Feedback
    except ImportError as error:
        raise LovecError(f"serving needs uvicorn: pip install 'lovec[serve]' ({error})") from error
    options = parser.instantiate(config)
    limits = parser.call(RequestLimits, options)
    cors = [checked_origin(origin) for origin in options.cors or ()]
    inline = checked_template(options.inline)
    key = read_key(KEY) or None
    listener = parser.call(listen, options)  # before a model is loaded in vain
    session: Session | ApiTagger
    if options.engine == OPENAI:
        asker = parser.call(ApiModel, options, model=options.model, timeout=limits.timeout)
        instruction, tags = api_prompting(options)
        if options.raw:
            options.calibration = options.text_calibration = None
        session = parser.call(open_provider, options, asker=asker, instruction=instruction, tags=tags)
        name = options.name or options.model
    else:
        with without_progress_bars():
            session = parser.call(open_session, options)
        name = options.name or served_name(session)
    log_to_stderr(key)
    feedback = None if options.feedback is None else Feedback(options.feedback, session)
    app = make_app(session, name, limits, key, cors, inline, feedback)
    host, port = listener.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # "all addresses of this machine" cannot be opened
    address = f"http://{f'[{here}]' if ':' in here else here}:{port}"
    guard = f"key from {KEY}" if key else "no key"
    if key is None and host not in ("127.0.0.1", "::1"):
        warn(f"anyone who can reach {host} can use this server; set {KEY} to require a key")
    gc.collect()
    gc.freeze()  # a full collection over the model's objects would stop all threads for a second
    sys.setswitchinterval(1e-4)  # the engine asks for the interpreter at every operation, also while requests are read
    for line in dict.fromkeys(app.state.model.notes().values()):
        remark(line)
    print(f"{name} is served. Open {address}/ in a browser to try it; stop with Ctrl-C.")
    print(f"For programs: {address}/v1 ({guard}), {address}/health, {address}/metrics", flush=True)
    try:
        make_server(app, limits).run(sockets=[listener])
    except BaseException as end:
        if app.state.service.worker.alive:  # it would crash in the engine when the interpreter ends
            os._exit(128 + signal.SIGINT if isinstance(end, KeyboardInterrupt) else TERMINATED)
        raise


def open_provider(
    asker: ApiModel,
    instruction: str,
    tags: TagFormat,
    method: Literal["p_true", "verbal"] | None = None,
    calibration: str | None = None,
    text_calibration: str | None = None,
) -> ApiTagger:
    """Open a model behind another server's chat completions.

    Args:
        asker: the model.
        instruction: system turn that asks for tags.
        tags: the tag words and the scale.
        method: how a model of --engine openai gives the sentences of texts at /v1/tag a confidence; null takes no
            texts.
        calibration: the calibration of a model of --engine openai, what `lovec calibrate FILE` wrote for answers that
            `lovec tag` has from it: file or folder; null leaves confidences as they are.
        text_calibration: the same for texts at /v1/tag, made of given texts that `lovec tag` has scored by the same
            --method.

    Raises:
        LovecError: there is no such calibration, or it is of something else; or there is one of texts without a method,
            or one for p_true of another number than the probability of True.
    """
    if text_calibration is not None and method is None:
        raise LovecError("--text_calibration applies to texts at /v1/tag and needs --method verbal or --method p_true")
    answers = (
        ServedConfidence() if calibration is None else ServedConfidence.of_scores(calibration, asker.model, tags.scale)
    )
    texts, readout = ServedConfidence(), None
    if text_calibration is not None:
        scale = P_TRUE_SCALE if method == "p_true" else DEFAULT_SCALE
        texts = ServedConfidence.of_scores(text_calibration, asker.model, scale, ITERATIVE)
        readout = _text_readout(texts, method, text_calibration)
    served = replace(answers, calibrations={**answers.calibrations, **texts.calibrations}, falls_back=False)
    return ApiTagger(asker, method, readout=readout, instruction=instruction, tags=tags, served=served)


def _text_readout(texts: ServedConfidence, method: str | None, path: str) -> Readout | None:
    """Return how the method of given texts is read for a calibration; None where it is read in one way only."""
    of_means = all(made.needs_distribution for made in texts.calibrations.values())
    if method == "verbal":
        return "mean" if of_means else None  # answers have the mean anyway
    if not of_means:  # the reply alone is 0 or 1
        from lovec.datasets.scored import MEAN  # here, because it needs torch

        raise LovecError(
            f"the calibration {path} is of stated scores, and --method p_true needs one of the probability of True; "
            f"make it with: lovec calibrate FILE --layout lovec --confidence '{MEAN}'"
        )
    return None


def checked_origin(origin: str) -> str:
    """Return an origin as browsers write it.

    Raises:
        LovecError: it is neither "*" nor scheme and host, with a port where it is not the scheme's own.
    """
    if origin == "*" or re.fullmatch(r"https?://(\[[\da-f:.]+\]|[a-z\d.-]+)(:\d+)?", origin.lower()):
        return origin.lower()
    raise LovecError(
        f"--cors is {origin!r}, expected an origin as browsers send it, such as https://example.org or "
        "http://localhost:3000 (no path, no / at the end), or * for any"
    )


def checked_template(template: str) -> str:
    """Return a template of confidences in texts.

    Raises:
        LovecError: it cannot be used.
    """
    with error_in("--inline: "):
        return check_template(template)


def served_name(session: Session) -> str:
    """Return a name for a model: its hub id, that of an adapter of the package, or the last part of its folder or run.

    It is never a path.

    Args:
        session: the model.
    """
    from lovec.policy import is_hub_id

    if session.adapter is None and is_hub_id(session.model):
        return session.model
    folder = Path(session.adapter or session.model)
    if shipped := [name for name, path in SHIPPED.items() if path == folder]:
        return shipped[0]
    if cached := [part for part in folder.parts if part.startswith("models--")]:  # a snapshot in the hub's cache
        return cached[-1].removeprefix("models--").replace("--", "/")
    if folder.exists():
        folder = folder.resolve()
    if session.adapter is not None and folder.name == "adapter":  # the adapter of a run
        folder = folder.parent
    return folder.name or "lovec"


def listen(host: str = "127.0.0.1", port: Annotated[int, Setting(at_least=0, at_most=65535)] = 8080) -> socket.socket:
    """Listen at an address of this machine.

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
