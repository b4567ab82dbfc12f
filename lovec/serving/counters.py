"""The counters that /metrics reports, in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from lovec.serving.streams import StreamWorker
    from lovec.serving.worker import EngineWorker


class Counters:
    """The counters of one server, in a registry of their own.

    Args:
        worker: the worker whose queue and batch are reported.
    """

    def __init__(self, worker: EngineWorker | StreamWorker) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("lovec_requests", "Requests answered.", ("path", "status"), registry=self._registry)
        self._seconds = Histogram(
            "lovec_request_seconds",
            "Seconds until the response starts; for a stream, until its first chunk.",
            ("path",),
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=self._registry,
        )
        self._tokens = Counter("lovec_tokens", "Tokens of completed answers.", ("kind",), registry=self._registry)
        running = Gauge("lovec_running", "Answers and texts that have begun.", registry=self._registry)
        running.set_function(lambda: worker.running)
        waiting = Gauge("lovec_waiting", "Answers and texts that wait for their turn.", registry=self._registry)
        waiting.set_function(lambda: worker.waiting)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request when its response starts."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_tokens(self, prompt: int, completion: int) -> None:
        """Count the tokens of a completed answer."""
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def text(self) -> tuple[bytes, str]:
        """Return all counters as text, and the media type of the text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
