"""What /metrics shows, in Prometheus' text format."""

from __future__ import annotations

from lovec.serving.worker import Worker
from lovec.types import LovecError


class Counters:
    """Counts of one server, in a registry of their own.

    Args:
        worker: whose queue and batch are shown.

    Raises:
        LovecError: the extra ``serve`` is not installed.
    """

    def __init__(self, worker: Worker) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            raise LovecError(f"serving needs prometheus-client: pip install 'lovec[serve]' ({error})") from error
        self._registry = CollectorRegistry()
        self._requests = Counter("lovec_requests", "Requests answered.", ("path", "status"), registry=self._registry)
        self._seconds = Histogram(
            "lovec_request_seconds",
            "Seconds to the head of the response; of a stream, its first chunk.",
            ("path",),
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=self._registry,
        )
        self._tokens = Counter("lovec_tokens", "Tokens of answered questions.", ("kind",), registry=self._registry)
        for name, text, read in (
            ("lovec_running", "Answers that the engine writes now.", lambda: worker.running),
            ("lovec_waiting", "Requests that wait for the engine.", lambda: worker.queued),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def count(self, path: str, status: int, seconds: float) -> None:
        """A request was answered, or began to be."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def tokens(self, prompt: int, completion: int) -> None:
        """A question was answered whole."""
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def text(self) -> tuple[bytes, str]:
        """All of them, and the media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST
