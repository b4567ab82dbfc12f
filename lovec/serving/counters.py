"""The counters that /metrics reports, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from lovec.serving.feedback import Feedback
    from lovec.serving.tasks import TaskWorker
    from lovec.serving.worker import EngineWorker


class Counters:
    """The counters of one server, in a registry of their own.

    Args:
        worker: the worker whose queue and batch are reported.
    """

    def __init__(self, worker: EngineWorker | TaskWorker) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("lovec_requests", "Requests answered.", ("path", "status"), registry=self._registry)
        self._seconds = Histogram(
            "lovec_request_seconds",
            "Seconds until the response starts; for a stream, until its first sentence, or its end without any.",
            ("path",),
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=self._registry,
        )
        self._tokens = Counter("lovec_tokens", "Tokens of completed answers.", ("kind",), registry=self._registry)
        self._tags = Counter(
            "lovec_tags", "Tags of answers, by whether they are well-formed.", ("tag",), registry=self._registry
        )
        self._repeated = Counter(
            "lovec_repeated", "Answers asked for once more: empty, or with malformed tags.", registry=self._registry
        )
        running = Gauge("lovec_running", "Answers and texts that have begun.", registry=self._registry)
        running.set_function(lambda: worker.running)
        waiting = Gauge("lovec_waiting", "Answers and texts that wait for their turn.", registry=self._registry)
        waiting.set_function(lambda: worker.waiting)

    def report(self, feedback: Feedback) -> None:
        """Report the verdicts of people on answers, too, and what is watched of them."""
        self._registry.register(_Watched(feedback))

    def count_request(self, path: str, status: int) -> None:
        """Count a request when its response starts."""
        self._requests.labels(path, str(status)).inc()

    def count_seconds(self, path: str, seconds: float) -> None:
        """Count the seconds until a response starts, or until the first sentence of a stream."""
        self._seconds.labels(path).observe(seconds)

    def count_tokens(self, prompt: int, completion: int) -> None:
        """Count the tokens of a completed answer."""
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def count_tag(self, is_valid: bool) -> None:
        """Count the tag of a sentence of an answer; a sentence without one has none that is valid."""
        self._tags.labels("valid" if is_valid else "malformed").inc()

    def count_repeated(self) -> None:
        """Count an answer that was asked for once more."""
        self._repeated.inc()

    def text(self) -> tuple[bytes, str]:
        """Return all counters as text, and the media type of the text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Watched(Collector):
    """Reports what is watched of the verdicts on answers."""

    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, by the mode of tagging."""
        answers = GaugeMetricFamily("lovec_rated_answers", "Answers that people have rated.", labels=["mode"])
        sentences = GaugeMetricFamily("lovec_rated_sentences", "Sentences of these.", labels=["mode"])
        map_e = GaugeMetricFamily("lovec_map_e_value", "Evidence that confidences are wrong.", labels=["mode"])
        drifted = GaugeMetricFamily("lovec_map_drifted", "Whether it has ever been enough.", labels=["mode"])
        names = ["mode", "promise", "keep_factual"]
        promise_e = GaugeMetricFamily("lovec_promise_e_value", "Evidence that a promise is broken.", labels=names)
        broken = GaugeMetricFamily("lovec_promise_broken", "Whether it has ever been enough.", labels=names)
        recent = GaugeMetricFamily("lovec_promise_loss", "Share of recent answers that break it.", labels=names)
        for mode, watch in self._feedback.watches.items():
            answers.add_metric([mode], watch.answers)
            sentences.add_metric([mode], self._feedback.sentences[mode])
            map_e.add_metric([mode], watch.map.e_value)
            drifted.add_metric([mode], watch.map.raised is not None)
            for promised, alarm in zip(watch.guarantees, watch.promises, strict=True):
                labels = [mode, promised.kind, f"{promised.keep_factual:g}"]
                promise_e.add_metric(labels, alarm.e_value)
                broken.add_metric(labels, alarm.raised is not None)
                recent.add_metric(labels, alarm.bets[0].recent)
        yield from (answers, sentences, map_e, drifted, promise_e, broken, recent)
