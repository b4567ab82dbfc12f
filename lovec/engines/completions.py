"""Completions of a vLLM server, asynchronously: sampled and streamed, exact scores of choices, given tokens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from lovec.core.calls import ApiClient, CallFailed, MalformedReply
from lovec.encoding.choices import NO_CHOICES, ChoiceTree
from lovec.encoding.written import Steps
from lovec.engines.choice_scoring import TokenQuery, score_by_continuations
from lovec.engines.common import SampleRow, TokenCallback, TokenReply, checked_texts, reply_scores, with_choices
from lovec.engines.token_scoring import check_starts
from lovec.types import LovecError, Sampling, TokenScores

T = TypeVar("T")

_PLAIN_SAMPLING = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""Sent with every call, since a server takes what is missing from the model's generation_config.json."""

log = logging.getLogger(__name__)


class CallbackFailed(Exception):
    """A callback has raised an exception.

    Attributes:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class ServerReply(TokenReply):
    """The completion of one prompt, whole or growing with the events of a stream.

    Attributes:
        ended: whether the completion is complete.
        with_logps: whether log-probabilities were asked for.
    """

    ended: bool = False
    with_logps: bool = True

    def add(self, choice: Any) -> None:
        """Add what a reply or an event of a stream says of the completion; nothing of one that cannot be read.

        Raises:
            MalformedReply: the server has ended the completion for a reason of its own.
        """
        reason, ids = choice.get("finish_reason"), list(map(int, choice["token_ids"]))
        if reason not in (None, "stop", "length"):
            raise MalformedReply(f"a completion that ended by {reason}")
        logps: list[float] = []
        candidates: list[dict[int, float]] = []
        prompt: list[dict[int, float]] = []
        if self.with_logps:
            logprobs = choice["logprobs"]
            logps = list(map(float, logprobs["token_logprobs"]))
            for row in logprobs.get("top_logprobs") or ():
                candidates.append({int(k.removeprefix("token_id:")): float(v) for k, v in (row or {}).items()})
            numbers = len(self.ids) + len(ids), len(self.logps) + len(logps), len(self.candidates) + len(candidates)
            if numbers[0] != numbers[1] or numbers[2] not in (0, numbers[0]):
                raise ValueError("{} tokens, log-probabilities of {} and {}".format(*numbers))
            for row in choice.get("prompt_logprobs") or ():
                prompt.append({int(k): float(v["logprob"]) for k, v in (row or {}).items()})
        self.ended = self.ended or reason is not None
        self.ids += ids
        self.logps += logps
        self.candidates += candidates
        self.prompt_candidates += prompt


@dataclass(slots=True)
class Prefill:
    """How many context tokens a server has computed.

    Attributes:
        tokens: the tokens that it did not find in its cache; all tokens where it does not say.
        is_warned: whether a warning was logged that it does not say.
    """

    tokens: int = 0
    is_warned: bool = False


@dataclass
class CompletionClient:
    """Calls for the completions of one model of a vLLM server, from one event loop.

    Args:
        api: makes the calls; whoever uses the client enters it before and leaves it afterwards.
        context_length: length of the model's context; None where the server does not say.
        max_calls: the most simultaneous calls.
        prefill: counts the context tokens that the server has computed; None counts nothing, and contexts are scored
            together in one call, of which a server says it of one context only.
        model: name of the model or adapter that calls ask for; "" before there is one.
    """

    api: ApiClient
    context_length: int | None = None
    max_calls: int = 1 << 20
    prefill: Prefill | None = field(default_factory=Prefill)
    model: str = ""

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.max_calls)

    async def sample(self, rows: Sequence[SampleRow], sampling: Sampling, stop_ids: Sequence[int]) -> list[ServerReply]:
        """Return the completions of rows, as streams where the rows have a callback.

        Raises:
            CallbackFailed: a callback has raised an exception, which has ended all calls.
        """

        async def one(row: SampleRow) -> ServerReply:
            options = row.vllm_options(sampling, stop_ids)
            if row.on_token is None:
                [reply] = await self.complete([row.ids], **options)
            else:
                await self.stream(row.ids, reply := ServerReply(), row.on_token, **options)
            self._count(row.ids, reply)
            return reply

        return await together(map(one, rows))

    async def score(
        self, contexts: Sequence[Sequence[int]], tree: ChoiceTree, written: Sequence[Steps] = ()
    ) -> list[list[float]]:
        """Return the exact log-probability of every whole choice after every context, see ``RemoteVllm.score``.

        Args:
            contexts: token ids of each context.
            tree: the choices.
            written: what the model wrote behind each context; nothing is asked that it tells. Empty where it is not
                known.
        """
        texts = checked_texts(contexts, tree.longest, self.context_length, "context")
        return await score_by_continuations(texts, tree, self._continue, written)

    async def token_logps(
        self,
        contexts: Sequence[Sequence[int]],
        starts: Sequence[int],
        tree: ChoiceTree = NO_CHOICES,
        top: int = 0,
    ) -> list[TokenScores]:
        """Return the log-probabilities of given tokens, and of choices behind, see ``RemoteVllm.token_logps``."""
        texts = checked_texts(contexts, 1, self.context_length, "context")
        check_starts(texts, starts, top)

        async def one(text: tuple[int, ...], start: int) -> TokenScores:
            if start == len(text):
                return TokenScores(())
            [reply] = await self.complete([text], max_tokens=1, temperature=0.0, prompt_logprobs=top)
            self._count(text, reply)
            known = reply.prompt_candidates if len(reply.prompt_candidates) == len(text) else [{}] * len(text)
            reply.keep_prompt(text[start:], known[start:])
            if (scores := reply_scores(reply, top)) is None:
                raise self._too_old("of the prompt (prompt_logprobs)")
            return scores

        found = await together(map(one, texts, starts))
        scored = await self.score(texts, tree)
        return with_choices(found, scored)

    async def has_temperature(self) -> bool:
        """Return whether log-probabilities at half the temperature lie twice as far apart."""

        async def spread(temperature: float) -> float:
            options = {"temperature": temperature, "seed": 0, "logprob_token_ids": list(range(64))}
            [reply] = await self.complete([[1]], max_tokens=1, **options)
            logps = reply.candidates[0].values()
            return max(logps) - min(logps)

        whole, half = await together(map(spread, (1.0, 0.5)))
        return half >= 1.5 * whole

    async def complete(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[ServerReply]:
        """Return the completions of prompts that go into one call, with log-probabilities.

        Args:
            prompts: token ids of each prompt.
            options: parameters of the call.

        Raises:
            CallFailed: there is no usable reply.
            ServerRefused: no call to this server will succeed.
        """
        prompt = [list(prompt) for prompt in prompts] if len(prompts) > 1 else list(prompts[0])
        async with self._free:
            body = self._body(prompt, {"logprobs": 0, **options})
            return await self.api.post("/completions", body, partial(read_completions, count=len(prompts)))

    async def stream(self, prompt: Sequence[int], reply: ServerReply, on_token: TokenCallback, **options: Any) -> None:
        """Let a completion grow until it is complete, or until a callback ends it.

        Args:
            prompt: token ids.
            reply: what grows.
            on_token: called with every token; returns False to end the completion.
            options: parameters of the call.

        Raises:
            CallbackFailed: ``on_token`` has raised an exception.
            CallFailed: see ``complete``; also where the stream breaks off.
            ServerRefused: see ``complete``.
        """

        def on_event(data: Any) -> bool:
            before = len(reply.ids)
            _add([reply], data)
            for place in range(before, len(reply.ids)):
                try:
                    going = on_token(reply.ids[place])
                except BaseException as error:  # must neither count as a fault of the server nor end the event loop
                    raise CallbackFailed(error) from error
                if not going:
                    del reply.ids[place + 1 :], reply.logps[place + 1 :], reply.candidates[place + 1 :]
                    reply.ended = True
                    return False
            return True

        reply.cached = 0  # until the last event says more, which does not come where a callback ends the stream
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        options |= {"logprobs": 0} if reply.with_logps else {}
        async with self._free:
            body = self._body(list(prompt), options)
            await self.api.stream("/completions", body, on_event, lambda: bool(reply.ids or reply.ended))
        if not (reply.ids and reply.ended):
            raise CallFailed("the stream of a completion broke off")

    async def _continue(self, queries: Sequence[TokenQuery]) -> list[list[tuple[int, list[float]]]]:
        """Return the greedily generated tokens, and before each the log-probabilities of the query's tokens.

        Queries about one context that differ in their node only go into one call, and those about others, where
        nothing is counted.
        """

        async def one(group: Sequence[TokenQuery]) -> list[ServerReply]:
            options = {"max_tokens": group[0].steps, "logprob_token_ids": list(group[0].tokens)}
            replies = await self.complete([query.prompt for query in group], temperature=0.0, **options)
            for query, reply in zip(group, replies, strict=True):
                self._count(query.context, reply)
            return replies

        def call(query: TokenQuery) -> tuple[Any, ...]:
            return (query.steps, query.tokens, query.context if self.prefill is not None else None)

        groups = [list(group) for _, group in groupby(queries, call)]
        replies = [reply for replies in await together(map(one, groups)) for reply in replies]
        try:
            return [
                [(token, [logps[t] for t in q.tokens]) for token, logps in zip(r.ids, r.candidates, strict=True)]
                for q, r in zip(queries, replies, strict=True)
            ]
        except (KeyError, ValueError):
            raise self._too_old("that were asked for (logprob_token_ids)") from None

    def _body(self, prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, **_PLAIN_SAMPLING, **options}

    def _count(self, context: Sequence[int], reply: ServerReply) -> None:
        """Count the tokens of a context that the server has computed."""
        if self.prefill is None:
            return
        self.prefill.tokens += reply.computed(len(context))
        if reply.cached is None and not self.prefill.is_warned:
            self.prefill.is_warned = True
            log.warning(
                "%s does not say how many prompt tokens its cache held, so all of them count as prefill; start it "
                "with --enable-prompt-tokens-details",
                self.api.url,
            )

    def _too_old(self, what: str) -> LovecError:
        return LovecError(
            f"the server at {self.api.url} leaves out log-probabilities {what}; it has to be vLLM 0.32 or later"
        )


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at once; the first error ends all others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def read_completions(text: str, count: int = 1) -> list[ServerReply]:
    """Return the completions in the reply to a call.

    Args:
        text: the reply.
        count: number of prompts of the call.

    Raises:
        MalformedReply: they are not all there.
    """
    replies = [ServerReply() for _ in range(count)]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedReply(text[:100] or "nothing") from None
    _add(replies, data)
    if not all(reply.ids and reply.ended for reply in replies):
        raise MalformedReply("a completion without an end")
    return replies


def read_models(text: str) -> list[dict[str, Any]]:
    """Return the models and adapters of a server from its reply to ``/models``.

    Raises:
        MalformedReply: the reply is not a list of models.
    """
    try:
        cards = json.loads(text)["data"]
        if not all(isinstance(card["id"], str) for card in cards):
            raise TypeError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise MalformedReply(f"{text[:100]!r} instead of a list of models") from None
    return list(cards)


def _add(replies: Sequence[ServerReply], data: Any) -> None:
    """Add the content of a reply, or of an event of a stream, to the completions of its prompts."""
    try:
        for choice in data["choices"]:
            replies[choice.get("index", 0)].add(choice)
        if usage := data.get("usage"):
            for reply in replies:  # a server counts those of one prompt; prompts of one call share their context
                reply.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"no completion with token ids and log-probabilities ({error!r}); is it vLLM?"
        raise MalformedReply(message) from None
