"""Fact-checking by any OpenAI-compatible server: the paper's prompt, one call per record, nothing paid for twice."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from rich.console import Console
from rich.progress import Progress

from lovec.calls import CallFailed, ServerRefused
from lovec.datasets.cutting import Cutter, EvidenceCut
from lovec.notices import DoublingWarning, listed
from lovec.oracles.cache import ChatReply, ReplyCache, reply_key
from lovec.oracles.chat import NO_MESSAGE, Chat, address, encodable
from lovec.oracles.costs import REPLY_TOKENS, Estimate, Prices, count_tokens
from lovec.oracles.prompts import fact_check, read_ratings
from lovec.types import LovecError, Oracle, Record, check_count, check_range

_ATTEMPTS = 3  # replies that are paid for before a record fails
_RETRY_TEMPERATURE = 0.7  # from the second reply on: at 0 most servers would give the same reply again
_MAX_FAILED_IN_A_ROW = 20
_RESERVED_PARAMETERS = ("model", "messages", "stream", "n")

log = logging.getLogger(__name__)


class OracleStopped(LovecError):
    """Rating ended before all records were rated; all replies so far are in the cache, so a new run continues there.

    Attributes:
        ratings: for every record what ``rate`` would have returned for it; None for the records in ``missing_ids``.
        missing_ids: ids of the records that were not rated.
    """

    def __init__(self, message: str, ratings: Sequence[list[float | None] | None], missing_ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ratings = list(ratings)
        self.missing_ids = list(missing_ids)


class OpenAIOracle(Oracle):
    """Rates sentences by asking a model on an OpenAI-compatible server (OpenAI, a vLLM server, ...).

    A record is one call: its evidence and all its sentences in the paper's prompt. If the number of ratings in the
    reply is not the number of sentences, or the reply was cut off, the call is made again, twice at most; after that
    no sentence of the record gets a rating. Every reply is stored in the cache before it is used, unusable ones
    included, so that a killed run continues where it was, and no later run pays for the record again unless it says so
    with ``ask_again``. After 20 records in a row without a usable reply, over all calls of ``rate``, rating stops.

    The API key is read from ``$OPENAI_API_KEY`` when calls are made, and is stored nowhere; servers that need no key
    work without it.

    Args:
        model: name of the model on the server.
        base_url: address of the server, such as ``http://localhost:8000/v1``; None takes ``$OPENAI_BASE_URL``, or else
            OpenAI's.
        concurrency: the most calls at the same time.
        cache: file of the replies; None is ``replies.sqlite`` in ``$LOVEC_CACHE`` or the user's cache folder.
        max_cost: the most US dollars to spend, over all calls of this object; records beyond it are not rated. A call
            is made only if its estimated cost fits beside that of the calls in progress, so the bill can exceed the
            limit by the error of these estimates.
        price_in: US dollars per 1M tokens of prompts; None is unknown.
        price_out: US dollars per 1M tokens of replies.
        evidence_tokens: the most tokens of evidence in a prompt (estimated: four bytes per token).
        evidence_cut: which part of longer evidence is kept: "bm25" the passages most similar to the sentences, "head"
            the first ones.
        parameters: sent with every call, such as ``{"temperature": 0, "max_tokens": 4096}``; None is temperature 0.
        timeout: the most seconds of a call.
        retries: how often a call is repeated after status 429 or 5xx, a time-out or a broken reply.
        ask_again: whether records whose replies in the cache cannot be used are asked about again, three times at most.
        progress: whether to show a progress bar with the cost so far; it is shown on a terminal only.

    Attributes:
        failures: the reason, in one line, by record id, for each record that failed; its sentences are rated None.
        calls: number of replies paid for.
        cached: number of replies found in the cache.
        tokens_in: tokens of the prompts of the replies paid for, as the server counted them.
        tokens_out: tokens of these replies, likewise.
        cutter: cuts the evidence; it knows the records whose evidence was cut, and those without evidence.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        concurrency: int = 16,
        cache: str | None = None,
        max_cost: float | None = None,
        price_in: float | None = None,
        price_out: float | None = None,
        evidence_tokens: int = 16_384,
        evidence_cut: EvidenceCut = "bm25",
        parameters: dict[str, Any] | None = None,
        timeout: float = 300.0,
        retries: int = 6,
        ask_again: bool = False,
        progress: bool = True,
    ) -> None:
        if not model:
            raise LovecError("model is empty, expected the name of a model that the server knows")
        if max_cost is not None and price_in is None:
            raise LovecError("max_cost needs prices; give price_in and price_out (US dollars per 1M tokens)")
        check_count("concurrency", concurrency)
        check_range("timeout", timeout, above=0)
        check_count("retries", retries, at_least=0)
        check_range("max_cost", max_cost, at_least=0)
        if reserved := [name for name in _RESERVED_PARAMETERS if name in (parameters or {})]:
            raise LovecError(f"parameters has {reserved[0]!r}, which the oracle sets itself; leave it out")
        address(base_url)
        self.model = model
        self.base_url = base_url
        self.concurrency = concurrency
        self.cache = cache
        self.max_cost = max_cost
        self.prices = Prices(price_in, price_out)
        self.cutter = Cutter(evidence_tokens, evidence_cut, count_tokens)
        self.parameters: dict[str, Any] = {"temperature": 0} if parameters is None else dict(parameters)
        self.timeout = timeout
        self.retries = retries
        self.ask_again = ask_again
        self.progress = progress
        self.failures: dict[str, str] = {}
        self.calls = self.cached = self.tokens_in = self.tokens_out = 0
        self._failed_in_a_row = 0  # over all calls of `rate`
        self._failure_warning = DoublingWarning(log, "%d records failed so far: %s")

    @property
    def spent(self) -> float | None:
        """US dollars spent on the calls so far; None where the prices are unknown."""
        return self.prices.cost(self.tokens_in, self.tokens_out)

    @property
    def status(self) -> str:
        """Calls, replies from the cache, failures and cost so far, in a few words."""
        spent = f"{self.tokens_in + self.tokens_out:,} tokens" if self.spent is None else f"${self.spent:.2f}"
        return f"{self.calls} calls, {self.cached} cached, {len(self.failures)} failed, {spent}"

    def estimate(self, records: Iterable[Record]) -> Estimate:
        """Estimate what it takes to rate these records, without any call.

        Args:
            records: consumed one by one.

        Raises:
            LovecError: the cache cannot be used.
        """
        cached: dict[str, bool] = {}  # by the key of the prompt
        n_records = n_cached = tokens_in = tokens_out = 0
        with ReplyCache(self.cache) as cache:
            for record in records:
                if not record.sentences:
                    continue
                n_records += 1
                try:
                    prompt = _RecordPrompt(self, record)
                except CallFailed:
                    continue
                key = prompt.key(0)
                if key not in cached:
                    cached[key] = prompt.is_answered(cache)
                    if not cached[key]:
                        tokens_in += prompt.tokens
                        tokens_out += REPLY_TOKENS * prompt.n_sentences
                n_cached += cached[key]
        calls = len(cached) - sum(cached.values())
        return Estimate(n_records, calls, n_cached, tokens_in, tokens_out, self.prices.cost(tokens_in, tokens_out))

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality in [0, 1] of every sentence of every record, or None; ``failures`` says why.

        It can be called while an event loop is running (in a notebook): the calls then run in a thread of their own.

        Raises:
            OracleStopped: the money is spent, the server refuses every call, 20 records in a row (over all calls of
                this method) failed, or a reply could not be stored; the exception holds the ratings so far.
            LovecError: there is no API key for OpenAI's server, or the cache cannot be used.
        """
        run = _RatingRun(self, records)
        _run_to_the_end(run.rate_all(), lambda: run.stop("interrupted"))
        missing = [record.id for record, ratings in zip(records, run.ratings, strict=True) if ratings is None]
        if missing or run.gave_up:  # the last failures may be the last records, and the next call is as hopeless
            rest = f"{len(missing)} of {len(records)} records are not rated ({listed(missing)}), " if missing else ""
            raise OracleStopped(f"{run.stop_reason}; {rest}all replies so far are in the cache", run.ratings, missing)
        return [ratings for ratings in run.ratings if ratings is not None]


class _RecordPrompt:
    """The prompt about a record, and the keys of its replies in the cache.

    Raises:
        CallFailed: the evidence cannot be cut to its budget.
    """

    def __init__(self, oracle: OpenAIOracle, record: Record) -> None:
        try:
            evidence = oracle.cutter(record)
        except LovecError as error:
            raise CallFailed(str(error)) from None
        prompt = encodable(fact_check(evidence, [sentence.text for sentence in record.sentences]))
        self.messages = [{"role": "user", "content": prompt}]
        self.n_sentences = len(record.sentences)
        self.tokens = count_tokens(prompt)
        self._oracle = oracle

    def parameters(self, attempt: int) -> Mapping[str, Any]:
        """Return the parameters of a call; attempts after the first one do not use temperature 0."""
        parameters = self._oracle.parameters
        if attempt and parameters.get("temperature") == 0:
            return {**parameters, "temperature": _RETRY_TEMPERATURE}
        return parameters

    def key(self, attempt: int) -> str:
        """Return the key of an attempt's reply in the cache."""
        oracle, parameters = self._oracle, self.parameters(attempt)
        return reply_key(oracle.model, address(oracle.base_url), self.messages, parameters, attempt)

    def read(self, reply: ChatReply) -> list[float | None] | str:
        """Return the ratings in a reply, or why it cannot be used."""
        if reply.finish in ("length", "content_filter"):  # "$1" may be the beginning of "$10$"
            return f"cut off ({reply.finish})"
        if reply.finish == NO_MESSAGE:
            return f"no message in {reply.text[:100]}"
        ratings = read_ratings(reply.text)
        return (
            ratings if len(ratings) == self.n_sentences else f"{len(ratings)} ratings for {self.n_sentences} sentences"
        )

    def is_answered(self, cache: ReplyCache) -> bool:
        """Return whether the cache has a usable reply, or all the unusable ones that the oracle asks for."""
        for attempt in count():
            reply = cache.get(self.key(attempt))
            if reply is None:
                return attempt >= _ATTEMPTS and not self._oracle.ask_again
            if not isinstance(self.read(reply), str):
                return True
        raise AssertionError("count() does not end")


class _NoMoreCalls(Exception):
    """The run has a reason to stop, so no further call is made."""


class _RatingRun:
    """One call of ``rate``: workers that take records from one queue.

    Attributes:
        ratings: the ratings of each record; None until it is rated.
        stop_reason: why no further call is made; "" while calls are made. The cache is still used after that.
        gave_up: whether the reason is that too many records in a row failed.
    """

    def __init__(self, oracle: OpenAIOracle, records: Sequence[Record]) -> None:
        self.ratings: list[list[float | None] | None] = [None] * len(records)
        self.stop_reason = ""
        self.gave_up = False
        self._oracle = oracle
        self._records = records
        self._queue = iter(range(len(records)))
        self._tasks: dict[str, asyncio.Task[list[float | None]]] = {}  # by prompt: records with the same share a call
        self._reserved_cost = 0.0  # US dollars that the calls in progress are expected to cost

    async def rate_all(self) -> None:
        """Rate all records, or as many as possible before there is a reason to stop."""
        oracle = self._oracle
        hidden = not (oracle.progress and sys.stderr.isatty())
        with ReplyCache(oracle.cache) as cache, Progress(console=Console(stderr=True), disable=hidden) as bar:
            task = bar.add_task(oracle.model, total=len(self._records))

            def show() -> None:
                bar.update(task, advance=1, description=f"{oracle.model}: {oracle.status}")

            async with Chat(oracle.model, address(oracle.base_url), oracle.timeout, oracle.retries) as chat:
                n_workers = min(oracle.concurrency, len(self._records))
                work = asyncio.gather(*(self._work(cache, chat, show) for _ in range(n_workers)))
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError:  # Ctrl-C
                    self.stop("interrupted")
                    log.warning("interrupted; waiting for the calls in progress (Ctrl-C again gives them up)")
                    await work
                    raise

    def stop(self, reason: str) -> None:
        """Take no further record from the queue."""
        self._make_no_more_calls(reason)
        for _ in self._queue:
            pass

    def _make_no_more_calls(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    async def _work(self, cache: ReplyCache, chat: Chat, show: Callable[[], None]) -> None:
        oracle = self._oracle
        for number in self._queue:
            record = self._records[number]
            try:
                self.ratings[number] = await self._rate(record, cache, chat)
                oracle.failures.pop(record.id, None)
            except CallFailed as error:
                self.ratings[number] = [None] * len(record.sentences)
                oracle.failures[record.id] = str(error)
                oracle._failure_warning.add(f"{record.id} ({error})")
                oracle._failure_warning.flush()
            except _NoMoreCalls:
                pass
            show()

    async def _rate(self, record: Record, cache: ReplyCache, chat: Chat) -> list[float | None]:
        if not record.sentences:
            return []
        prompt = _RecordPrompt(self._oracle, record)
        key = prompt.key(0)
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(self._usable_ratings(prompt, cache, chat))
        return list(await self._tasks[key])

    async def _usable_ratings(self, prompt: _RecordPrompt, cache: ReplyCache, chat: Chat) -> list[float | None]:
        oracle, problem, paid = self._oracle, "", 0
        for attempt in count():
            reply = self._cached_reply(prompt.key(attempt), cache)
            if reply is None:
                if paid == _ATTEMPTS or (attempt >= _ATTEMPTS and not (oracle.ask_again or paid)):
                    break
                reply = await self._paid_reply(prompt, attempt, chat)
                paid += 1
                try:
                    cache.put(prompt.key(attempt), reply)
                except LovecError as error:  # pay for no further reply, but use this one
                    self._make_no_more_calls(str(error))
            ratings = prompt.read(reply)
            if not isinstance(ratings, str):
                oracle._failed_in_a_row = 0 if paid else oracle._failed_in_a_row
                return ratings
            problem = ratings
        problem = f"{attempt} replies could not be used, the last one: {problem}"
        if paid:  # what the cache holds says nothing about the server
            self._count_failure(problem)
        raise CallFailed(problem)

    def _count_failure(self, problem: str) -> None:
        """Count one more record in a row without a usable reply; give up after too many."""
        self._oracle._failed_in_a_row += 1
        if self._oracle._failed_in_a_row >= _MAX_FAILED_IN_A_ROW:
            self._oracle._failed_in_a_row = 0
            self.gave_up = True
            self._make_no_more_calls(f"{_MAX_FAILED_IN_A_ROW} records in a row failed, the last one: {problem}")

    def _cached_reply(self, key: str, cache: ReplyCache) -> ChatReply | None:
        try:
            reply = cache.get(key)
        except LovecError as error:
            self._make_no_more_calls(str(error))
            return None
        self._oracle.cached += reply is not None
        return reply

    async def _paid_reply(self, prompt: _RecordPrompt, attempt: int, chat: Chat) -> ChatReply:
        oracle = self._oracle
        expected = oracle.prices.cost(prompt.tokens, REPLY_TOKENS * prompt.n_sentences) or 0.0
        if oracle.max_cost is not None and (oracle.spent or 0.0) + self._reserved_cost + expected > oracle.max_cost:
            self._make_no_more_calls(f"the next call would go beyond max_cost ${oracle.max_cost:g}")
        if self.stop_reason:
            raise _NoMoreCalls
        self._reserved_cost += expected
        try:
            reply = await chat.ask(prompt.messages, prompt.parameters(attempt))
        except ServerRefused as error:
            self._make_no_more_calls(f"the server refuses every call: {error}")
            raise _NoMoreCalls from None
        except CallFailed as error:
            self._count_failure(str(error))
            raise
        finally:
            self._reserved_cost -= expected
        oracle.calls += 1
        oracle.tokens_in += prompt.tokens if reply.tokens_in is None else reply.tokens_in
        oracle.tokens_out += count_tokens(reply.text) if reply.tokens_out is None else reply.tokens_out
        return reply


def _run_to_the_end(work: Coroutine[Any, Any, None], interrupt: Callable[[], None]) -> None:
    """Run a coroutine to its end, in a thread if this thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, work)
        try:
            running.result()
        except BaseException:
            interrupt()
            raise
