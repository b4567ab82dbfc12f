"""Replies by the Batch API: all that was never asked is submitted, waited for, and put into the reply cache.

After that, questions are asked as always: the cache answers, and the few that a batch could not answer, or whose
replies cannot be used, are asked one by one.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, TypeVar

from lovec.core.calls import CallFailed, ServerRefused
from lovec.core.notices import counted
from lovec.oracles.asking import MAX_FAILED, Asker, Prompt, run_to_the_end
from lovec.oracles.batch_client import (
    MOST_BYTES,
    MOST_REQUESTS,
    NOT_RUN,
    SETTLE_SECONDS,
    BatchClient,
    Problem,
    Status,
    read_lines,
    request_line,
)
from lovec.oracles.batches import Batch, BatchList, Load
from lovec.oracles.cache import ChatReply, ReplyCache
from lovec.oracles.chat import address
from lovec.oracles.costs import BATCH_SHARE, count_tokens
from lovec.types import LovecError

T = TypeVar("T")
_GO_ON = "run again to go on: what was submitted is not submitted again"
_FEWEST_FAILED = 2  # requests of a batch without any usable reply that are not asked one by one
_POLL_SECONDS = 2.0, 60.0  # between two looks at a batch: at first, and at most
_QUEUE_FULL = "token_limit_exceeded"  # the account may have only so many tokens in batches at the same time

log = logging.getLogger(__name__)


def prefetch(
    asker: Asker, prompts: Callable[[], Iterable[Callable[[], Prompt[Any]]]], notify: Callable[[str], None] | None
) -> None:
    """Have questions answered by batches, and put the replies into the cache; see `OpenAIOracle.prefetch`.

    Args:
        asker: whose model, server, cache and limits are used.
        prompts: returns functions that return what is asked; it is called several times, and its functions one by one.
        notify: called with a line whenever a batch has come further; None logs it.
    """
    url = address(asker.base_url)

    async def run() -> None:
        with ReplyCache(asker.cache) as cache, BatchList(cache.path) as batches:
            if next(_missing(asker, prompts, cache, batches), None) is None:
                return  # without calls no key is needed
            async with BatchClient(url, asker.timeout, asker.retries) as client:
                await _Prefetch(asker, prompts, notify or log.info, url, cache, batches, client).run()

    run_to_the_end(run(), lambda: None)


def _missing(
    asker: Asker, prompts: Callable[[], Iterable[Callable[[], Prompt[Any]]]], cache: ReplyCache, batches: BatchList
) -> Iterator[tuple[str, Prompt[Any]]]:
    """Yield all questions that were never asked, and their keys."""
    for prompt in _made(prompts):
        key = asker.key(prompt, 0)
        if cache.get(key) is None and not batches.is_alone(key):
            yield key, prompt


def _made(prompts: Callable[[], Iterable[Callable[[], Prompt[Any]]]]) -> Iterator[Prompt[Any]]:
    """Yield all questions, without those that cannot be made, which will be told when they are asked."""
    for make in prompts():
        with suppress(CallFailed):
            yield make()


@dataclass
class _Pending:
    """Requests that wait to be submitted: their lines in a file, and what they are expected to take."""

    file: IO[bytes]
    loads: dict[str, Load] = field(default_factory=dict)  # by key, in the order of the lines
    load: Load = field(default_factory=Load)
    size: int = 0

    def add(self, key: str, line: bytes, load: Load) -> None:
        self.file.write(line)
        self.loads[key] = load
        self.load += load
        self.size += len(line)

    def copy(self, keys: set[str], file: IO[bytes]) -> None:
        """Write the lines of some of the requests into another file."""
        self.file.seek(0)
        file.writelines(line for key, line in zip(self.loads, self.file, strict=True) if key in keys)

    def clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.loads, self.load, self.size = {}, Load(), 0


@dataclass
class _Prefetch:
    """One call of `prefetch`: rounds of submitting what is missing, and waiting for it.

    A second round is needed where a batch expired, where the account's queue or ``max_cost`` had no room for
    everything, and where another process gave up what it held.
    """

    asker: Asker
    prompts: Callable[[], Iterable[Callable[[], Prompt[Any]]]]
    notify: Callable[[str], None]
    url: str
    cache: ReplyCache
    batches: BatchList
    client: BatchClient
    most: int = MOST_REQUESTS
    one_at_a_time: bool = False
    awaited: dict[int, Load] = field(default_factory=dict)  # by number: submitted batches that hold our requests
    seen: dict[str, str] = field(default_factory=dict)  # the last line about each batch

    async def run(self) -> None:
        """Go on until every request has a reply, is to be asked by itself, or does not fit into ``max_cost``.

        Raises:
            LovecError: see `OpenAIOracle.prefetch`.
        """
        try:
            while True:
                await self._submit_missing()
                if not self.awaited:
                    return
                await self._wait()
        except ServerRefused as error:
            raise LovecError(f"{self.url} takes no batches: {error}; ask without batches there") from None
        except CallFailed as error:
            raise LovecError(f"the Batch API of {self.url} failed: {error}; {_GO_ON}") from None
        except asyncio.CancelledError:  # Ctrl-C
            log.warning("interrupted; %s", _GO_ON)
            raise

    # Submit

    def _missing(self) -> Iterator[tuple[str, Prompt[Any]]]:
        return _missing(self.asker, self.prompts, self.cache, self.batches)

    async def _submit_missing(self) -> None:
        """Submit all that is missing, and await what is submitted already, by this process or another one."""
        async with self.batches.submitting():
            await self._confirm()
        if self.asker.max_cost is not None and self.batches.unfinished(self.url):
            for key, _ in self._missing():  # what is submitted has its share of the limit before anything else
                self._await_holder(key)
        with self._temporary() as file:
            pending = _Pending(file)
            for key, prompt in self._missing():
                if key in pending.loads or self._await_holder(key):
                    continue
                line = request_line(key, self.asker.model, prompt.messages, prompt.parameters(0))
                if len(line) > MOST_BYTES:
                    continue  # asked by itself
                if len(pending.loads) == self.most or pending.size + len(line) > MOST_BYTES:
                    await self._submit(pending)
                if (self.one_at_a_time and self.awaited) or not self._fits(pending.load + prompt.load):
                    break
                pending.add(key, line, prompt.load)
            await self._submit(pending)

    def _temporary(self) -> IO[bytes]:
        """Open a file that has no name, so that a killed process leaves none; where the cache is, there is room."""
        return tempfile.TemporaryFile(dir=self.cache.path.parent)

    def _await_holder(self, key: str) -> bool:
        """Await the batch that holds a request; return whether there is one that the server knows."""
        holder = self.batches.holder(key)
        if holder is None or holder.remote is None:
            return False
        self.awaited[holder.number] = holder.load
        return True

    def _fits(self, load: Load) -> bool:
        """Return whether further requests fit into ``max_cost``, beside those that are submitted."""
        asker = self.asker
        if asker.max_cost is None:
            return True
        expected = asker.cost(sum(self.awaited.values(), load)) or 0.0
        return (asker.spent or 0.0) + BATCH_SHARE * expected <= asker.max_cost

    async def _submit(self, pending: _Pending) -> None:
        """Submit pending requests as one batch, without those that another process has submitted in the meantime."""
        async with self.batches.submitting():
            await self._confirm()
            number, claimed = self.batches.claim(self.url, pending.loads, lambda key: self.cache.get(key) is not None)
            try:
                file = await self._upload(pending, claimed) if claimed else ""
            except BaseException:
                self.batches.drop(number)
                raise
            if claimed:
                self.batches.set_file(number, file)
                remote = await self.client.create(file)
                self.batches.set_remote(number, remote)
                self.notify(f"batch {remote}: submitted, {counted(len(claimed), 'request')}")
            else:
                self.batches.drop(number)
        for key in pending.loads:
            self._await_holder(key)
        pending.clear()

    async def _upload(self, pending: _Pending, keys: set[str]) -> str:
        with self._temporary() as file:
            pending.copy(keys, file)
            return await self.client.upload("lovec.jsonl", file)

    async def _confirm(self) -> None:
        """Find out whether batches that a process was submitting when it was killed have begun."""
        for batch in self.batches.unfinished(self.url):
            if batch.remote is not None:
                continue
            if batch.file is not None:
                await asyncio.sleep(batch.at + SETTLE_SECONDS - time.time())
                remote = await self.client.find(batch.file)
                if remote is not None:
                    self.batches.set_remote(batch.number, remote)
                    continue
                try:
                    await self.client.delete(batch.file)
                except (CallFailed, ServerRefused) as error:
                    log.info("the file %s, which no batch uses, cannot be deleted: %s", batch.file, error)
            self.batches.drop(batch.number)

    # Wait

    async def _wait(self) -> None:
        """Wait until all submitted batches have ended, and store their replies as each ends."""
        wait, longest = _POLL_SECONDS
        while True:
            for number in list(self.awaited):
                batch, check = self.batches.batch(number), None
                if not batch.finished:
                    status = await self._look(batch)
                    if not status.ended:
                        continue
                    check = await self._store(batch, status)
                del self.awaited[number]
                self.asker.count_batch(self.batches.batch(number).load)
                if check is not None:
                    check()
            if not self.awaited:
                return
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, longest)

    async def _look(self, batch: Batch) -> Status:
        status = await self._of_batch(batch, self.client.status(batch.remote or ""))
        line = f"batch {batch.remote}: {status.state}, {status.done} of {status.total} requests done"
        if self.seen.get(status.id) != line:
            self.seen[status.id] = line
            self.notify(line)
        return status

    async def _of_batch(self, batch: Batch, call: Awaitable[T]) -> T:
        """Return what a call about a batch returns.

        Raises:
            LovecError: the server refuses it; another key may not see the batch, and files are deleted after a time.
        """
        try:
            return await call
        except ServerRefused as error:
            raise LovecError(
                f"batch {batch.remote} cannot be read: {error}; give the API key that it was submitted with, or, if it "
                f"is lost, remove {self.batches.path}, and its requests are submitted, and paid for, again"
            ) from None

    async def _store(self, batch: Batch, status: Status) -> Callable[[], None] | None:
        """Put the replies of a batch that has ended into the cache, and let go of its requests.

        Returns:
            What raises a `LovecError` if that is a reason to stop; None where another process was faster.
        """
        keys = self.batches.keys(batch.number)
        replies: dict[str, ChatReply] = {}
        problems: dict[str, Problem] = {}
        contradicted: set[str] = set()
        for file in status.files:
            for key, result in read_lines(await self._of_batch(batch, self.client.content(file))):
                if key in keys and isinstance(result, ChatReply):
                    first = replies.setdefault(key, result)
                    if (first.text, first.finish) != (result.text, result.finish):
                        contradicted.add(key)
                elif key in keys and isinstance(result, Problem):
                    problems.setdefault(key, result)
        for key in contradicted:  # nobody knows which of them is the reply
            del replies[key]
            problems[key] = Problem("", "the server has returned two different replies to it")
        if contradicted:
            self.notify(
                f"batch {batch.remote}: {len(contradicted)} requests have two different replies; neither is taken, and "
                "they are asked one by one"
            )
        if status.state == "completed":
            problems = dict.fromkeys(keys, Problem("", "the server has returned no line for it")) | problems
        alone = {k: p for k, p in problems.items() if k not in replies and p.code not in NOT_RUN}
        unusable = self._unusable(replies)
        failed, usable = len(alone) + len(unusable), len(replies) - len(unusable)
        hopeless = failed > usable and failed >= (MAX_FAILED if usable else _FEWEST_FAILED)
        self.cache.put_all(replies)
        self.batches.finish(batch.number, _load(replies, batch.load), () if hopeless else alone)
        self.notify(f"batch {batch.remote}: {status.state}, {counted(len(replies), 'reply', 'replies')}")
        if not keys:
            return None
        if hopeless:
            return partial(_refuse, batch, {**alone, **unusable})
        return partial(self._check, batch, status, len(replies), len(alone))

    def _unusable(self, replies: Mapping[str, ChatReply]) -> dict[str, Problem]:
        """Return why replies cannot be used, by their keys; those that can be used are left out."""
        found = {}
        for prompt in _made(self.prompts) if replies else ():
            key = self.asker.key(prompt, 0)
            if key in replies and isinstance(why := prompt.read(replies[key]), str):
                found[key] = Problem("", why)
        return found

    def _check(self, batch: Batch, status: Status, replies: int, alone: int) -> None:
        """Submit less at a time if the account's queue is full.

        Raises:
            LovecError: the batch failed for another reason, was cancelled, or expired without any reply.
        """
        calls = batch.load.calls
        if status.state == "failed":
            if calls == 1 or not any(problem.code == _QUEUE_FULL for problem in status.problems):
                reasons = "; ".join(problem.message for problem in status.problems[:3]) or "the server does not say why"
                raise LovecError(
                    f"batch {batch.remote} failed, and nothing was paid for: {reasons}; mend that, or ask without "
                    "batches"
                )
            if not self.awaited:  # nothing else of ours was in the queue
                self.most = (calls + 1) // 2
            self.one_at_a_time = True
            self.notify(f"batch {batch.remote}: the account's queue is full; next {self.most} requests at a time")
        elif status.state == "cancelled" or (status.state == "expired" and not replies + alone):
            raise LovecError(
                f"batch {batch.remote} {'was' if status.state == 'cancelled' else 'has'} {status.state}; {replies} "
                f"of {calls} replies are in the cache, and the others are submitted when it is run again"
            )


def _refuse(batch: Batch, problems: Mapping[str, Problem]) -> None:
    """Raise a `LovecError`: to ask so many requests one by one, at their full price, is nothing that was agreed to."""
    ((message, count),) = Counter(problem.message for problem in problems.values()).most_common(1)
    raise LovecError(
        f"{len(problems)} of the {batch.load.calls} requests of batch {batch.remote} failed or have a reply that "
        f"cannot be used, {count} of them with {message!r}; mend that and run again, or ask without batches"
    )


def _load(replies: Mapping[str, ChatReply], expected: Load) -> Load:
    """Return what replies took; where the server has not counted, what was expected."""
    mean = expected.tokens_in / max(expected.calls, 1)
    tokens_in = sum(mean if reply.tokens_in is None else reply.tokens_in for reply in replies.values())
    tokens_out = sum(
        count_tokens(reply.text) if reply.tokens_out is None else reply.tokens_out for reply in replies.values()
    )
    return Load(len(replies), round(tokens_in), tokens_out)
