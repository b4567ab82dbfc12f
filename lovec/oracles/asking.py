"""Questions to any OpenAI-compatible server: calls in parallel, a cache of replies, prices, limits, a cost estimate.

A subclass of `Asker` says what is asked about a record and how a reply is read: `OpenAIOracle` asks for ratings,
`lovec.labelling.OpenAIWriter` for answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from rich.console import Console
from rich.progress import Progress

from lovec.core.calls import CallFailed, CallRefused, ServerRefused
from lovec.core.notices import DoublingWarning, counted
from lovec.core.progress import is_quiet
from lovec.core.settings import NO_EFFECT, Count, CountFromZero, NonNegative, PlainWord, Positive, checked
from lovec.oracles.batches import BatchList, Load
from lovec.oracles.cache import ChatReply, ReplyCache, ReplyToken, reply_key
from lovec.oracles.chat import Chat, address, api_key, encodable
from lovec.oracles.costs import BATCH_SHARE, Estimate, Prices, count_tokens
from lovec.types import LovecError

T = TypeVar("T")

_ATTEMPTS = 3  # replies that are paid for before a record fails
_RETRY_TEMPERATURE = 0.7  # from the second reply on: at 0 most servers would give the same reply again
_SEEDS = 1 << 31  # seeds of further attempts are below this
_RESERVED_PARAMETERS = ("model", "messages", "stream", "n")

MAX_FAILED = 20
"""Records without a usable reply, in a row or as the larger part of a batch, after which no further call is made."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt(Generic[T]):
    """One question to the server.

    Attributes:
        text: the user turn.
        reply_tokens: tokens that the reply is expected to have.
        sent: parameters of the call, such as ``{"temperature": 0}``.
        read: returns what a reply says, or why it cannot be used, as a text.
        instruction: the system turn; "" for none.
        attempts: replies that are paid for before a record fails.
        settle: reads the last of these replies, where less is asked of it; None reads it like the others.
        wishes: further parameters, of which the server may refuse some: the first ones that it accepts are sent.
        kept: returns the tokens of a reply whose log-probabilities are stored; None stores them all.
    """

    text: str
    reply_tokens: int
    sent: Mapping[str, Any]
    read: Callable[[ChatReply], T | str]
    instruction: str = ""
    attempts: int = _ATTEMPTS
    settle: Callable[[ChatReply], T | str] | None = None
    wishes: Sequence[Mapping[str, Any]] = ({},)
    kept: Callable[[ChatReply], tuple[ReplyToken, ...]] | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat that is sent."""
        turns = {"system": self.instruction, "user": self.text}
        return [{"role": role, "content": encodable(text)} for role, text in turns.items() if text or role == "user"]

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, estimated."""
        return sum(count_tokens(message["content"]) for message in self.messages)

    @property
    def load(self) -> Load:
        """What asking is expected to take."""
        return Load(1, self.tokens, self.reply_tokens)

    def parameters(self, attempt: int, wish: int = 0) -> Mapping[str, Any]:
        """Return the parameters of a call; attempts after the first one use neither temperature 0 nor its seed.

        Args:
            attempt: which attempt it is, from 0.
            wish: which of the wishes is sent.
        """
        sent = {**self.sent, **self.wishes[wish]}
        return another(sent, attempt) if attempt else sent

    def value(self, reply: ChatReply, attempt: int) -> T | str:
        """Return what the reply to an attempt says, or why it cannot be used, as a text."""
        return (self.settle if self.settle and attempt + 1 >= self.attempts else self.read)(reply)


def another(sent: Mapping[str, Any], attempt: int = 1) -> Mapping[str, Any]:
    """Return the parameters of a further attempt at a call, so that the reply may be another one.

    Args:
        sent: those of the first attempt. A temperature of 0 is raised, and a seed becomes another one.
        attempt: which attempt it is, from 1.
    """
    changed: dict[str, Any] = {"temperature": _RETRY_TEMPERATURE} if sent.get("temperature") == 0 else {}
    if isinstance(seed := sent.get("seed"), int):
        changed["seed"] = (seed + attempt) % _SEEDS
    return {**sent, **changed}


@dataclass(frozen=True)
class Asked(Generic[T]):
    """What became of the questions of one call of ``Asker._ask``.

    Attributes:
        values: what the reply to each question says; None where it failed, or was not asked.
        missing: positions of the questions that were not asked.
        stop_reason: why no further call was made; "" where all questions were asked.
        gave_up: whether the reason is that too many questions in a row failed.
    """

    values: Sequence[T | None]
    missing: Sequence[int]
    stop_reason: str
    gave_up: bool


@checked(remember=True)
class Asker:
    """Asks a model on an OpenAI-compatible server (OpenAI, a vLLM server, ...).

    Every reply is stored in the cache before it is used, unusable ones included, so that a killed run continues where
    it was, and no later run pays for a reply again unless it says so with ``ask_again``. A reply that cannot be used is
    asked for again, twice at most. After 20 failures in a row, over all calls, asking stops.

    The API key is read from ``$OPENAI_API_KEY`` when calls are made, and is stored nowhere; servers that need no key
    work without it.

    Args:
        model: name of the model on the server.
        base_url: address of the server, such as ``http://localhost:8000/v1``; None takes ``$OPENAI_BASE_URL``, or else
            OpenAI's.
        concurrency: the most calls at the same time.
        cache: file of the replies; None is ``replies.sqlite`` in ``$LOVEC_CACHE`` or the user's cache folder.
        max_cost: the most US dollars to spend, over all calls of this object. A call is made only if its estimated cost
            fits beside that of the calls in progress, so the bill can exceed the limit by the error of these estimates.
            Of a run on several devices, each process may spend as much.
        price_in: US dollars per 1M tokens of prompts; None is unknown.
        price_out: US dollars per 1M tokens of replies.
        parameters: sent with every call, such as ``{"temperature": 0, "max_tokens": 4096}``; None sends nothing more.
        timeout: the most seconds of a call.
        retries: how often a call is repeated after status 429 or 5xx, a time-out or a broken reply.
        ask_again: whether what has only unusable replies in the cache is asked again, three times at most.
        progress: whether to show a progress bar with the cost so far; it is shown on a terminal only.

    Attributes:
        failures: the reason, in one line, by the name of what was asked, for each that failed.
        calls: number of replies paid for, those of batches included.
        batched: how many of them came by batches, and their tokens.
        cached: number of replies found in the cache, those that ``prefetch`` has put there included.
        tokens_in: tokens of the prompts of the replies paid for, as the server counted them.
        tokens_out: tokens of these replies, likewise.
        unusable: number of replies that could not be used, so that the same was asked again where it could be.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(
        self,
        model: PlainWord,
        base_url: str | None = None,
        concurrency: Annotated[Count, NO_EFFECT] = 16,
        cache: Annotated[str | None, NO_EFFECT] = None,
        max_cost: Annotated[NonNegative | None, NO_EFFECT] = None,
        price_in: Annotated[NonNegative | None, NO_EFFECT] = None,
        price_out: Annotated[NonNegative | None, NO_EFFECT] = None,
        parameters: dict[str, Any] | None = None,
        timeout: Annotated[Positive, NO_EFFECT] = 300.0,
        retries: Annotated[CountFromZero, NO_EFFECT] = 6,
        ask_again: Annotated[bool, NO_EFFECT] = False,
        progress: Annotated[bool, NO_EFFECT] = True,
    ) -> None:
        if not model:
            raise LovecError("model is empty, expected the name of a model that the server knows")
        prices, parameters = Prices(price_in, price_out), parameters or {}
        if max_cost is not None and prices.tokens_in is None:
            raise LovecError("max_cost needs prices; give price_in and price_out (US dollars per 1M tokens)")
        if reserved := [name for name in _RESERVED_PARAMETERS if name in parameters]:
            raise LovecError(f"parameters has {reserved[0]!r}, which {type(self).__name__} sets itself; leave it out")
        address(base_url)
        self.model = model
        self.base_url = base_url
        self.concurrency = concurrency
        self.cache = cache
        self.max_cost = max_cost
        self.prices = prices
        self.parameters = dict(parameters)
        self.timeout = timeout
        self.retries = retries
        self.ask_again = ask_again
        self.progress = progress
        self.failures: dict[str, str] = {}
        self.calls = self.cached = self.tokens_in = self.tokens_out = self.unusable = 0
        self.batched = Load()
        self._failed_in_a_row = 0  # over all calls of `_ask`
        self._accepted: dict[str, int] = {}  # the first of some wishes that the server has granted
        self._failure_warning = DoublingWarning(log, "%d records failed so far: %s")

    @property
    def spent(self) -> float | None:
        """US dollars spent on the calls so far; None where the prices are unknown."""
        alone, batched = self.cost(Load(0, self.tokens_in, self.tokens_out)), self.cost(self.batched)
        return None if alone is None or batched is None else alone - (1.0 - BATCH_SHARE) * batched

    @property
    def status(self) -> str:
        """Calls, replies from the cache, failures and cost so far, in a few words."""
        spent = f"{self.tokens_in + self.tokens_out:,} tokens" if self.spent is None else f"${self.spent:.2f}"
        batched = f" ({self.batched.calls} in batches)" if self.batched.calls else ""
        return f"{counted(self.calls, 'call')}{batched}, {self.cached} cached, {len(self.failures)} failed, {spent}"

    def cost(self, load: Load) -> float | None:
        """Return what single calls cost, in US dollars; None where the prices are unknown."""
        return self.prices.cost(load.tokens_in, load.tokens_out)

    def count_batch(self, took: Load) -> None:
        """Count the calls of a batch as paid for."""
        self.calls += took.calls
        self.tokens_in += took.tokens_in
        self.tokens_out += took.tokens_out
        self.batched += took

    def check_ready(self) -> None:
        """Refuse to be asked later, as every call would be refused.

        Raises:
            LovecError: there is no API key, and the server is OpenAI's.
        """
        api_key(address(self.base_url))

    def _estimate(self, prompts: Iterable[Callable[[], Prompt[Any]]], batch: bool) -> Estimate:
        """Estimate what it takes to ask, without any call.

        Args:
            prompts: functions that return what is asked; they are consumed one by one.
            batch: whether all that was never asked is asked in batches.

        Raises:
            LovecError: the cache cannot be used.
        """
        kinds: dict[str, str] = {}  # by the key of the prompt
        records = Counter[str]()
        loads = {"alone": Load(), "batched": Load()}
        with ReplyCache(self.cache) as cache, BatchList(cache.path) if batch else nullcontext() as batches:
            for make in prompts:
                records["all"] += 1
                try:
                    prompt = make()
                except CallFailed:
                    continue
                key = self.key(prompt, 0)
                if key not in kinds:
                    kinds[key] = self._kind(prompt, cache, batches)
                    if kinds[key] in loads:
                        loads[kinds[key]] += prompt.load
                records[kinds[key]] += 1
        alone, batched = loads.values()
        load, costs = alone + batched, (self.cost(alone), self.cost(batched))
        return Estimate(
            records["all"],
            load.calls,
            records["cached"],
            load.tokens_in,
            load.tokens_out,
            None if costs[0] is None or costs[1] is None else costs[0] + BATCH_SHARE * costs[1],
            records["submitted"],
            batched.calls,
        )

    def _kind(self, prompt: Prompt[Any], cache: ReplyCache, batches: BatchList | None) -> str:
        """Return how the reply to a prompt will be had: "cached", "submitted", "batched" or "alone"."""
        key = self.key(prompt, 0)
        if self._is_answered(prompt, cache):
            return "cached"
        if batches is None or batches.is_alone(key) or cache.get(key) is not None:
            return "alone"
        holder = batches.holder(key)
        return "submitted" if holder is not None and holder.remote is not None else "batched"

    def _ask(self, names: Sequence[str], prompts: Sequence[Callable[[], Prompt[T]] | None]) -> Asked[T]:
        """Ask every question, from the cache where it has the reply.

        It can be called while an event loop is running (in a notebook): the calls then run in a thread of their own.

        Args:
            names: ids of the records, for ``failures``.
            prompts: for every record what returns the question, or raises ``CallFailed``; None asks nothing.

        Raises:
            LovecError: there is no API key for OpenAI's server, or the cache cannot be used.
        """
        run = _Run(self, names, prompts)
        run_to_the_end(run.ask_all(), lambda: run.stop("interrupted"))
        missing = [number for number, done in enumerate(run.done) if not done]
        return Asked(run.values, missing, run.stop_reason, run.gave_up)

    async def granted(self, wishes: Sequence[Mapping[str, Any]], call: Callable[[int], Awaitable[T]]) -> T:
        """Return the reply to a call with the first of the wishes that the server does not refuse.

        What it has granted to one call is sent with all later ones: where these are refused, it is not for the wishes.

        Args:
            wishes: see ``Prompt.wishes``.
            call: calls with the wish of an index.

        Raises:
            CallFailed: see ``Chat.ask``; where every wish is refused, the refusal of the last, and where one was
                granted before, the refusal of a call with that one.
            ServerRefused: see ``Chat.ask``.
        """
        last = len(wishes) - 1
        known = json.dumps(list(map(dict, wishes)), sort_keys=True)
        wish, refusal = self._accepted.get(known, 0), ""
        while True:
            try:
                reply = await call(wish)
            except CallRefused as error:
                granted = self._accepted.get(known, last)  # maybe meanwhile, to another call
                if wish >= granted:  # it is not the wishes that are refused
                    raise
                wish, refusal = granted if known in self._accepted else wish + 1, str(error)
                continue
            if known not in self._accepted:
                self._accepted[known] = wish
                names = [name for name in wishes[0] if name not in wishes[wish]]
                if names:
                    log.warning("the server refuses %s, so calls are made without: %s", " and ".join(names), refusal)
            return reply

    def key(self, prompt: Prompt[Any], attempt: int) -> str:
        """Return the key of an attempt's reply in the cache: what was wished for, whatever the server has granted."""
        return reply_key(self.model, address(self.base_url), prompt.messages, prompt.parameters(attempt), attempt)

    def stored_value(self, prompt: Prompt[T], cache: ReplyCache) -> T | None:
        """Return what the first usable reply in the cache says; None without one."""
        return self._first_usable(prompt, cache)[0]

    def _is_answered(self, prompt: Prompt[Any], cache: ReplyCache) -> bool:
        """Return whether the cache has a usable reply, or all the unusable ones that are asked for."""
        value, attempts = self._first_usable(prompt, cache)
        return value is not None or (attempts >= prompt.attempts and not self.ask_again)

    def _first_usable(self, prompt: Prompt[T], cache: ReplyCache) -> tuple[T | None, int]:
        """Return what the first usable reply in the cache says, None without one, and how many came before it."""
        for attempt in count():
            reply = cache.get(self.key(prompt, attempt))
            value = "" if reply is None else prompt.value(reply, attempt)
            if reply is None or not isinstance(value, str):
                return None if isinstance(value, str) else value, attempt
        raise AssertionError("count() does not end")


class _NoMoreCalls(Exception):
    """The run has a reason to stop, so no further call is made."""


_Opens: TypeAlias = Callable[[], Awaitable[Chat]]
"""Returns the client of the server."""


class _Run(Generic[T]):
    """One call of ``Asker._ask``: workers that take questions from one queue.

    Attributes:
        values: what the reply to each question says; None until there is one.
        done: whether each question was asked, or failed.
        stop_reason: why no further call is made; "" while calls are made. The cache is still used after that.
        gave_up: whether the reason is that too many questions in a row failed.
    """

    def __init__(self, asker: Asker, names: Sequence[str], prompts: Sequence[Callable[[], Prompt[T]] | None]) -> None:
        self.values: list[T | None] = [None] * len(names)
        self.done = [False] * len(names)
        self.stop_reason = ""
        self.gave_up = False
        self._asker = asker
        self._names = names
        self._prompts = prompts
        self._queue = iter(range(len(names)))
        self._tasks: dict[str, asyncio.Task[T]] = {}  # by prompt: records with the same share a call
        self._chat: Chat | None = None
        self._reserved_cost = 0.0  # US dollars that the calls in progress are expected to cost

    async def ask_all(self) -> None:
        """Ask all questions, or as many as possible before there is a reason to stop."""
        asker = self._asker
        hidden = is_quiet() or not (asker.progress and sys.stderr.isatty())
        with ReplyCache(asker.cache) as cache, Progress(console=Console(stderr=True), disable=hidden) as bar:
            task = bar.add_task(asker.model, total=len(self._names))

            def show() -> None:
                bar.update(task, advance=1, description=f"{asker.model}: {asker.status}")

            async with AsyncExitStack() as stack:

                async def chat() -> Chat:  # opened for the first call, since without calls no key is needed
                    if self._chat is None:
                        opened = Chat(asker.model, address(asker.base_url), asker.timeout, asker.retries)
                        self._chat = await stack.enter_async_context(opened)
                    return self._chat

                n_workers = min(asker.concurrency, len(self._names))
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

    async def _work(self, cache: ReplyCache, chat: _Opens, show: Callable[[], None]) -> None:
        asker = self._asker
        for number in self._queue:
            name, make = self._names[number], self._prompts[number]
            try:
                self.values[number] = None if make is None else await self._value(make(), cache, chat)
                self.done[number] = True
                asker.failures.pop(name, None)
            except CallFailed as error:
                self.done[number] = True
                asker.failures[name] = str(error)
                asker._failure_warning.add(f"{name} ({error})")
                asker._failure_warning.flush()
            except _NoMoreCalls:
                pass
            show()

    async def _value(self, prompt: Prompt[T], cache: ReplyCache, chat: _Opens) -> T:
        key = self._asker.key(prompt, 0)
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(self._usable_value(prompt, cache, chat))
        return await self._tasks[key]

    async def _usable_value(self, prompt: Prompt[T], cache: ReplyCache, chat: _Opens) -> T:
        asker, problem, paid = self._asker, "", 0
        for attempt in count():
            reply = self._cached_reply(asker.key(prompt, attempt), cache)
            if reply is None:
                if (paid if asker.ask_again else attempt) >= prompt.attempts:
                    break
                reply = await self._paid_reply(prompt, attempt, chat)
                paid += 1
                try:
                    cache.put(asker.key(prompt, attempt), reply)
                except LovecError as error:  # pay for no further reply, but use this one
                    self._make_no_more_calls(str(error))
            value = prompt.value(reply, attempt)
            if not isinstance(value, str):
                asker._failed_in_a_row = 0 if paid else asker._failed_in_a_row
                return value
            problem = value
            asker.unusable += 1
        problem = f"{counted(attempt, 'reply', 'replies')} could not be used, the last one: {problem}"
        if paid:  # what the cache holds says nothing about the server
            self._count_failure(problem)
        raise CallFailed(problem)

    def _count_failure(self, problem: str) -> None:
        """Count one more record in a row without a usable reply; give up after too many."""
        self._asker._failed_in_a_row += 1
        if self._asker._failed_in_a_row >= MAX_FAILED:
            self._asker._failed_in_a_row = 0
            self.gave_up = True
            self._make_no_more_calls(f"{MAX_FAILED} records in a row failed, the last one: {problem}")

    def _cached_reply(self, key: str, cache: ReplyCache) -> ChatReply | None:
        try:
            reply = cache.get(key)
        except LovecError as error:
            self._make_no_more_calls(str(error))
            return None
        self._asker.cached += reply is not None
        return reply

    async def _paid_reply(self, prompt: Prompt[T], attempt: int, chat: _Opens) -> ChatReply:
        asker = self._asker
        expected = asker.cost(prompt.load) or 0.0
        if asker.max_cost is not None and (asker.spent or 0.0) + self._reserved_cost + expected > asker.max_cost:
            self._make_no_more_calls(f"the next call would go beyond max_cost ${asker.max_cost:g}")
        if self.stop_reason:
            raise _NoMoreCalls
        opened = await chat()
        self._reserved_cost += expected
        try:
            reply = await asker.granted(
                prompt.wishes, lambda wish: opened.ask(prompt.messages, prompt.parameters(attempt, wish))
            )
        except ServerRefused as error:
            self._make_no_more_calls(f"the server refuses every call: {error}")
            raise _NoMoreCalls from None
        except CallFailed as error:
            self._count_failure(str(error))
            raise
        finally:
            self._reserved_cost -= expected
        asker.calls += 1
        asker.tokens_in += prompt.tokens if reply.tokens_in is None else reply.tokens_in
        asker.tokens_out += count_tokens(reply.text) if reply.tokens_out is None else reply.tokens_out
        return reply if prompt.kept is None else replace(reply, tokens=prompt.kept(reply))


def run_to_the_end(work: Coroutine[Any, Any, None], interrupt: Callable[[], None]) -> None:
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
