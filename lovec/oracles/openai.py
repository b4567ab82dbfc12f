"""Fact-checking by any OpenAI-compatible endpoint: the paper's prompt, one call a record, nothing paid for twice."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from lovec.calls import Failed, Refused
from lovec.datasets.cutting import Cutter, How
from lovec.oracles.cache import Reply, ReplyCache, reply_key
from lovec.oracles.chat import Chat, address, writable
from lovec.oracles.costs import REPLY_TOKENS, Estimate, Prices, count_tokens
from lovec.oracles.gold import GOLD, check
from lovec.oracles.prompts import fact_check, read_ratings
from lovec.types import LovecError, Record

_ASKS = 3  # replies to one question before its record is given up
_WARMER = 0.7  # temperature from the second reply on: at 0 most servers would say the same again
_LOST = 20  # records that fail in a row before the server is given up
_OURS = ("model", "messages", "stream", "n")

log = logging.getLogger(__name__)


class OracleStopped(LovecError):
    """Rating ended before all records were done; every reply that came is in the cache, so that a new run goes on.

    Attributes:
        ratings: for every record given what ``rate`` would have said of it; None where it was not done.
        left: ids of the records that were not done.
    """

    def __init__(self, message: str, ratings: Sequence[list[float | None] | None], left: Sequence[str]) -> None:
        super().__init__(message)
        self.ratings = list(ratings)
        self.left = list(left)


class OpenAIOracle:
    """Rates sentences by asking a model behind an OpenAI-compatible endpoint (OpenAI, a vLLM server, ...).

    A record is one call: its evidence and all its sentences in the paper's prompt. A reply whose number of ratings is
    not that of the sentences, or that was cut off, is asked for again, twice at most; then no sentence of the record
    gets a rating. Every reply goes to the cache before it is used, also those that could not be used, so that a
    killed run goes on where it was.

    The key to the server is read from ``$OPENAI_API_KEY`` when calls are made, and kept nowhere; servers that want
    none work without.

    Args:
        model: name of the model, as the server knows it.
        base_url: address of the server, such as ``http://localhost:8000/v1``; null takes ``$OPENAI_BASE_URL``, or else
            OpenAI's.
        concurrency: most calls under way at a time.
        cache: file of the replies; null is ``replies.sqlite`` in ``$LOVEC_CACHE`` or the user's cache folder.
        max_cost: US dollars to spend at most, over all calls of this object; what it has no money left for is not
            done. A call is made only if its estimated cost fits beside that of the calls under way, so the bill can
            go beyond by what these turn out to cost more.
        price_in: US dollars per 1M tokens of the prompts; null is unknown.
        price_out: US dollars per 1M tokens of the replies.
        evidence_tokens: most tokens of evidence in a prompt (counted roughly: four bytes a token).
        evidence_cut: which part of longer evidence stays: "bm25" the passages nearest to the sentences, "head" the
            first ones.
        parameters: sent with every call, such as ``{"temperature": 0, "max_tokens": 4096}``; null is temperature 0.
        timeout: seconds a call may take.
        retries: how often a call is made again after 429, 5xx, a time-out or a broken reply.
        progress: whether to show a bar with the cost so far; it is only shown on a terminal.

    Attributes:
        failures: id of every record that failed -> why, in one line; all its sentences were rated None.
        calls: replies bought.
        cached: replies found in the cache.
        tokens_in: tokens of the prompts of the bought replies, as the server counted them.
        tokens_out: tokens of these replies, likewise.
        cutter: cuts the evidence; it names the records whose evidence was cut, and those that have none.

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
        evidence_cut: How = "bm25",
        parameters: dict[str, Any] | None = None,
        timeout: float = 300.0,
        retries: int = 6,
        progress: bool = True,
    ) -> None:
        if not model:
            raise LovecError("model is empty, expected the name of a model that the server knows")
        if concurrency < 1:
            raise LovecError(f"concurrency is {concurrency}, expected a positive number of calls")
        if not timeout > 0:
            raise LovecError(f"timeout is {timeout}, expected seconds")
        if retries < 0:
            raise LovecError(f"retries is {retries}, expected 0 or more")
        if max_cost is not None and not max_cost >= 0:
            raise LovecError(f"max_cost is {max_cost}, expected US dollars")
        if max_cost is not None and price_in is None:
            raise LovecError("max_cost needs prices; give price_in and price_out (US dollars per 1M tokens)")
        if taken := [name for name in _OURS if name in (parameters or {})]:
            raise LovecError(f"parameters has {taken[0]!r}, which is not free; it holds what shapes a reply")
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
        self.progress = progress
        self.failures: dict[str, str] = {}
        self.calls = self.cached = self.tokens_in = self.tokens_out = 0
        self._lost = 0  # records failed in a row, over calls of `rate`

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
        """What rating these records will take; no call is made.

        Args:
            records: taken one by one.

        Raises:
            LovecError: the cache cannot be used.
        """
        known: dict[str, bool] = {}  # question -> whether the cache answers it
        asked = hits = tokens_in = tokens_out = 0
        with ReplyCache(self.cache) as cache:
            for record in records:
                if not record.sentences:
                    continue
                asked += 1
                try:
                    question = _Question(self, record)
                except Failed:
                    continue
                if question.key(0) not in known:
                    known[question.key(0)] = question.answered(cache)
                    if not known[question.key(0)]:
                        tokens_in += question.tokens
                        tokens_out += REPLY_TOKENS * question.count
                hits += known[question.key(0)]
        calls = len(known) - sum(known.values())
        return Estimate(asked, calls, hits, tokens_in, tokens_out, self.prices.cost(tokens_in, tokens_out))

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality in [0, 1] of every sentence of every record, or None; records that failed are in ``failures``.

        It may be called where an event loop runs already (a notebook): the calls then run in a thread of their own.

        Raises:
            OracleStopped: the money is spent, the server refuses every call, 20 records in a row failed, or a reply
                could not be kept; what was done is in the exception.
            LovecError: there is no key to OpenAI's server, or the cache cannot be used.
        """
        run = _Run(self, records)
        _complete(run.all(), run.halt)
        left = [record.id for record, found in zip(records, run.ratings, strict=True) if found is None]
        if left:
            raise OracleStopped(
                f"{run.closed}; {len(left)} of {len(records)} records are not done ({', '.join(left[:5])}"
                f"{', ...' if len(left) > 5 else ''}), all replies so far are in the cache",
                run.ratings,
                left,
            )
        return [found for found in run.ratings if found is not None]

    def validate(self, gold: Sequence[Record] = GOLD) -> int:
        """Score gold: every rating must lie within 0.4 of the known factuality.

        Args:
            gold: records whose sentences have a factuality; the built-in ones are plainly true or false by their
                evidence.

        Returns:
            Number of sentences rated.

        Raises:
            LovecError: a rating is far off or missing.
        """
        ratings = self.rate(gold)
        if failed := [record.id for record in gold if record.id in self.failures]:
            raise LovecError(f"{self.model} cannot rate {failed[0]!r}: {self.failures[failed[0]]}")
        return check(self.model, gold, ratings)


class _Question:
    """What is asked about a record, and under which names the replies are kept."""

    def __init__(self, oracle: OpenAIOracle, record: Record) -> None:
        try:
            evidence = oracle.cutter(record)
        except LovecError as error:
            raise Failed(str(error)) from None
        prompt = writable(fact_check(evidence, [sentence.text for sentence in record.sentences]))
        self.messages = [{"role": "user", "content": prompt}]
        self.count = len(record.sentences)
        self.tokens = count_tokens(prompt)
        self._oracle = oracle
        self._keys: dict[int, str] = {}

    def parameters(self, attempt: int) -> Mapping[str, Any]:
        parameters = self._oracle.parameters
        return {**parameters, "temperature": _WARMER} if attempt and parameters.get("temperature") == 0 else parameters

    def key(self, attempt: int) -> str:
        if attempt not in self._keys:
            url = address(self._oracle.base_url)
            self._keys[attempt] = reply_key(self._oracle.model, url, self.messages, self.parameters(attempt), attempt)
        return self._keys[attempt]

    def read(self, reply: Reply) -> list[float | None] | str:
        """The ratings, or why the reply cannot be used."""
        if reply.finish in ("length", "content_filter"):  # "$1" may have been on the way to "$10$"
            return f"cut off ({reply.finish})"
        ratings = read_ratings(reply.text)
        return ratings if len(ratings) == self.count else f"{len(ratings)} ratings for {self.count} sentences"

    def answered(self, cache: ReplyCache) -> bool:
        """Whether no call is needed."""
        for attempt in range(_ASKS):
            reply = cache.get(self.key(attempt))
            if reply is None:
                return False
            if not isinstance(self.read(reply), str):
                return True
        return True


class _Closed(Exception):
    """Nothing more is bought."""


class _Run:
    """One call of ``rate``: workers that share a queue of records.

    Attributes:
        ratings: by record; None where it is not done.
        closed: why nothing more is bought, once that is so; what the cache knows is still answered.
    """

    def __init__(self, oracle: OpenAIOracle, records: Sequence[Record]) -> None:
        self.ratings: list[list[float | None] | None] = [None] * len(records)
        self.closed = ""
        self._oracle = oracle
        self._records = records
        self._queue = iter(range(len(records)))
        self._asked: dict[str, asyncio.Task[list[float | None]]] = {}  # records that ask the same share a call
        self._reserved = 0.0  # US dollars that the calls under way are expected to cost

    async def all(self) -> None:
        oracle = self._oracle
        shown = _bar(oracle.progress and sys.stderr.isatty(), oracle.model, len(self._records))
        with ReplyCache(oracle.cache) as cache, shown as show:
            async with Chat(oracle.model, address(oracle.base_url), oracle.timeout, oracle.retries) as chat:
                crew = min(oracle.concurrency, len(self._records))
                done = asyncio.gather(*(self._work(cache, chat, show) for _ in range(crew)))
                try:
                    await asyncio.shield(done)
                except asyncio.CancelledError:  # Ctrl-C
                    self.halt()
                    log.warning("interrupted; waiting for the calls under way, which are paid for (again: drop them)")
                    await done
                    raise

    def halt(self) -> None:
        """Take no further record."""
        self.closed = self.closed or "interrupted"
        for _ in self._queue:
            pass

    async def _work(self, cache: ReplyCache, chat: Chat, show: Callable[[str], None]) -> None:
        for place in self._queue:
            record = self._records[place]
            failures = self._oracle.failures
            try:
                self.ratings[place] = await self._rated(record, cache, chat)
                failures.pop(record.id, None)
            except Failed as error:
                self.ratings[place] = [None] * len(record.sentences)
                failures[record.id] = str(error)
                if len(failures).bit_count() == 1:  # 1, 2, 4, 8, ...
                    log.warning("%d records failed so far, the last one %s: %s", len(failures), record.id, error)
            except _Closed:
                pass
            show(self._oracle.status)

    async def _rated(self, record: Record, cache: ReplyCache, chat: Chat) -> list[float | None]:
        if not record.sentences:
            return []
        question = _Question(self._oracle, record)
        name = question.key(0)
        if name not in self._asked:
            self._asked[name] = asyncio.ensure_future(self._answer(question, cache, chat))
        return list(await self._asked[name])

    async def _answer(self, question: _Question, cache: ReplyCache, chat: Chat) -> list[float | None]:
        problem = ""
        for attempt in range(_ASKS):
            reply = self._looked_up(question.key(attempt), cache)
            if reply is None:
                reply = await self._bought(question, attempt, chat)
                try:
                    cache.put(question.key(attempt), reply)
                except LovecError as error:  # buy no more, but use this one
                    self.closed = self.closed or str(error)
            found = question.read(reply)
            if not isinstance(found, str):
                return found
            problem = found
        raise Failed(f"{_ASKS} replies could not be used, the last one: {problem}")

    def _looked_up(self, key: str, cache: ReplyCache) -> Reply | None:
        try:
            reply = cache.get(key)
        except LovecError as error:
            self.closed = self.closed or str(error)
            return None
        self._oracle.cached += reply is not None
        return reply

    async def _bought(self, question: _Question, attempt: int, chat: Chat) -> Reply:
        oracle = self._oracle
        expected = oracle.prices.cost(question.tokens, REPLY_TOKENS * question.count) or 0.0
        if oracle.max_cost is not None and (oracle.spent or 0.0) + self._reserved + expected > oracle.max_cost:
            self.closed = self.closed or f"the next call would go beyond max_cost ${oracle.max_cost:g}"
        if self.closed:
            raise _Closed
        self._reserved += expected
        try:
            reply = await chat.ask(question.messages, question.parameters(attempt))
        except Refused as error:
            self.closed = self.closed or f"the server refuses every call: {error}"
            raise _Closed from None
        except Failed as error:
            oracle._lost += 1
            if oracle._lost >= _LOST:
                oracle._lost = 0
                self.closed = self.closed or f"{_LOST} records in a row failed, the last one: {error}"
            raise
        finally:
            self._reserved -= expected
        oracle._lost = 0
        oracle.calls += 1
        oracle.tokens_in += question.tokens if reply.tokens_in is None else reply.tokens_in
        oracle.tokens_out += count_tokens(reply.text) if reply.tokens_out is None else reply.tokens_out
        return reply


def _complete(work: Coroutine[Any, Any, None], halt: Callable[[], None]) -> None:
    """Run to the end, in a thread if this one has a running event loop."""
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
            halt()
            raise


@contextmanager
def _bar(shown: bool, title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; it is called after every record with what to show behind it."""
    if not shown:
        yield lambda status: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, status="")
        yield lambda status: bar.update(task, advance=1, status=status)
