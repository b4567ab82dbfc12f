"""A model behind another server's chat completions: its answers get confidences on their way to clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from lovec.core.calls import CallFailed, CallRefused, ServerRefused
from lovec.core.notices import counted
from lovec.oracles.asking import Prompt, another
from lovec.oracles.chat import Chat, address
from lovec.serving.history import History
from lovec.serving.inline import Inline
from lovec.serving.jobs import AnswerEnd, Job, added
from lovec.serving.pending import Pending
from lovec.serving.responses import AnswerResponse, TextResponse
from lovec.serving.served import ServedModel
from lovec.serving.tasks import TaskWorker
from lovec.serving.wire import AnswerRequest, RequestRefused
from lovec.taggers.freeform import CUT_BY_STOP, ScoredSpan, TextReader, withdrawal
from lovec.taggers.scoring import ScoredSentence
from lovec.tagging import SAMPLED, ApiTagger
from lovec.tagging.apis import Word
from lovec.tags import TaggedSentence, without_thoughts
from lovec.types import FREE_FORM, ITERATIVE, LovecError, Mode, Record, Sentence, error_in

T = TypeVar("T")

_USAGE: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
_MOST_TOKENS = 4096  # whose log-probabilities are kept until the sentence ends that they are of
_EMPTY = "the provider's answer is empty"
_IN_A_THOUGHT = "the provider's answer ends inside a thought; give more max_tokens"
_BEFORE = 64  # of them that stay where a sentence has ended: its last ones may come late


@dataclass(eq=False)
class ReplyJob(Job):
    """An answer of the provider: it hands over the answer's sentences, and at the end an ``AnswerEnd``.

    Attributes:
        messages: the chat.
        sent: parameters of the call.
        stops: texts that end the answer, see ``TextReader``.
        streams: whether the client gets sentences before the answer is complete.
    """

    messages: Sequence[Mapping[str, str]]
    sent: Mapping[str, Any]
    stops: Sequence[str]
    streams: bool


@dataclass(eq=False)
class TextJob(Job):
    """A given text: it hands over the text's sentences, and at the end the ``Record``.

    Attributes:
        record: the text, cut into its parts.
    """

    record: Record


class ProviderWorker(TaskWorker):
    """Does jobs by calls of the provider: one for an answer, as a stream, and one for every sentence of a given text.

    Args:
        tagger: says what is asked, and reads the replies.
        waiting: the most jobs that may wait.

    Raises:
        LovecError: there is no API key, and the provider is OpenAI.
    """

    def __init__(self, tagger: ApiTagger, waiting: int) -> None:
        asker = tagger.asker
        self.tagger = tagger
        self.chat = Chat(asker.model, address(asker.base_url), asker.timeout, asker.retries)
        super().__init__(self.chat, asker.concurrency + waiting)
        self._free = asyncio.Semaphore(asker.concurrency)
        self._begun: set[Job] = set()

    @property
    def waiting(self) -> int:
        """Number of jobs without a call so far."""
        return len(self._tasks) - len(self._begun)

    async def _do(self, job: Job) -> None:
        try:
            if isinstance(job, ReplyJob):
                job.end(await self._write(job))
            elif isinstance(job, TextJob):
                job.end(await self._rate(job))
        finally:
            self._begun.discard(job)

    def _refusal(self, error: Exception) -> RequestRefused:
        message = f"the provider of the model has failed: {error}"
        if isinstance(error, CallRefused):
            code = error.code if isinstance(error.code, str) else None
            return RequestRefused(f"the provider of the model refuses the request: {error}", code=code)
        if isinstance(error, CallFailed) and error.status == 429:
            return RequestRefused(message, status=429, code="rate_limit_exceeded")
        return RequestRefused(message, status=502)

    async def _write(self, job: ReplyJob) -> AnswerEnd:
        """Return the end of an answer, whose sentences are handed over.

        An empty answer and one with malformed tags are asked for once more, as by `lovec tag`, unless the client has
        begun to get it.
        """
        if job.streams:
            return (await self._reply(job, job.sent, job.put))[0]
        end, spans = await self._reply(job, job.sent)
        is_empty = not spans and bool(end.problems)  # a stop may leave nothing
        if end.finished and (is_empty or any(one.span.problem not in (None, CUT_BY_STOP) for one in spans)):
            with suppress(CallFailed, ServerRefused):  # then there is the first one
                second, others = await self._reply(job, another(job.sent))
                if is_empty or (others and second.finished):
                    kept, spans = second, others
                else:
                    kept = end
                counts = added(end.prompt_tokens, second.prompt_tokens), added(end.tokens, second.tokens)
                end = AnswerEnd(kept.finished, *counts, kept.problems, repeated=True, own_prompt=True)
        for span in spans:
            job.put(span)
        return end

    async def _reply(
        self, job: ReplyJob, sent: Mapping[str, Any], put: Callable[[ScoredSpan], object] | None = None
    ) -> tuple[AnswerEnd, list[ScoredSpan]]:
        """Return the end of a reply, and its sentences.

        Args:
            job: the answer.
            sent: parameters of the call.
            put: called with every sentence while the reply is written, also with some that turn out to be part of a
                thought; the end says so. None where nobody gets them so early.
        """
        tagger = self.tagger
        pieces: list[str] = []
        spans: list[ScoredSpan] = []
        items: deque[Any] = deque(maxlen=_MOST_TOKENS)
        reader = TextReader(tagger.tags, lambda: "".join(pieces), job.stops)

        def add(span: TaggedSentence, listed: Sequence[Any] = ()) -> None:
            spans.append(ScoredSpan(span, tagger.read_span(span, listed)))
            if put is not None:
                put(spans[-1])

        def on_piece(piece: str, listed: Sequence[Any]) -> bool:
            pieces.append(piece)
            items.extend(listed)
            new = reader.add(piece)
            for span in new:
                add(span, items)
            while new and len(items) > len(listed) + _BEFORE:
                items.popleft()
            return not reader.stopped

        usages = tagger.asker.wished((_USAGE, {}))
        wishes = [{**wish, **usage} for wish in tagger.wishes for usage in usages]
        reply = await self._call(
            job,
            lambda: tagger.asker.granted(
                wishes, lambda wish: self.chat.write(job.messages, {**sent, **wishes[wish]}, on_piece)
            ),
        )
        if reply.finish == "content_filter":
            raise CallFailed("the answer was cut off (content_filter)")
        for span in reader.ending():
            add(span)
        answer = spans[reader.withdrawn :]
        problems = withdrawal(reader.withdrawn) if put is not None else []
        if not answer and not reader.stopped:
            problems.append(_IN_A_THOUGHT if without_thoughts(reply.text) is None else _EMPTY)
        unknown = sum(one.span.score is not None and one.sentence.distribution is None for one in answer)
        if unknown and tagger.needs_logps:
            problems.append(self._unknown(unknown, FREE_FORM, "the stated score"))
        finished = reader.stopped or reply.finish != "length"
        return AnswerEnd(finished, reply.tokens_in, reply.tokens_out, problems, own_prompt=True), answer

    def _unknown(self, sentences: int, mode: Mode, otherwise: str) -> str:
        """Return what follows from log-probabilities that the provider has not given.

        Args:
            sentences: number of sentences without.
            mode: how they were tagged.
            otherwise: what their confidence is where no calibration needs log-probabilities.
        """
        problem = f"the provider gives no log-probabilities of the scores of {counted(sentences, 'sentence')}"
        if mode not in self.tagger.served.calibrations:
            return f"{problem}: the confidence is {otherwise}"
        return f"{problem}, and the calibration needs them, so there is no confidence"

    async def _rate(self, job: TextJob) -> Record:
        """Return a given text whose sentences the provider was asked about; they are handed over in their order."""
        tagger, record = self.tagger, job.record
        problems: list[str] = []
        is_p_true = tagger.method == "p_true"
        prompts = tagger.sentence_prompts(record.statements())
        found: list[asyncio.Future[Word | str]] = [asyncio.get_running_loop().create_future() for _ in prompts]
        left = zip(prompts, found, strict=True)

        async def ask() -> None:
            for prompt, word in left:
                word.set_result(await self._asked(job, prompt))

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(tagger.asker.concurrency, len(prompts))):
                    tasks.create_task(ask())
                unknown, words = 0, iter(found)
                for at, part in enumerate(record.sentences):
                    sentence = Sentence(part.text, kind=part.kind)
                    if part.is_statement:
                        word = await next(words)
                        if isinstance(word, str):
                            problems.append(f"sentence {at + 1} has no confidence: {word}")
                        else:
                            unknown += word.logps is None and (is_p_true or tagger.readout == "mean")
                        sentence = tagger.read_word(part, None if isinstance(word, str) else word)
                    job.put(ScoredSentence(0, at, sentence))
                if unknown:
                    otherwise = "0 or 1" if is_p_true else "the stated score"
                    problems.append(self._unknown(unknown, ITERATIVE, otherwise))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return replace(record, meta={**record.meta, "problems": problems})

    async def _asked(self, job: Job, make: Callable[[], Prompt[Word]]) -> Word | str:
        """Return what the reply to a question says, or why it cannot be used; the question is made for its call."""

        async def ask() -> Word | str:
            prompt = make()
            reply = await self.tagger.asker.granted(
                prompt.wishes, lambda wish: self.chat.ask(prompt.messages, prompt.parameters(0, wish))
            )
            return prompt.value(reply, 0)

        return await self._call(job, ask)

    async def _call(self, job: Job, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call gives, once there are few enough others."""
        async with self._free:
            self._begun.add(job)
            return await call()


class ProviderModel(ServedModel):
    """A model behind another server's chat completions.

    Args:
        tagger: the model.
        waiting: the most answers and texts that may wait.

    Raises:
        LovecError: its method needs more than one call for a sentence; or see ``ProviderWorker``.
    """

    def __init__(self, tagger: ApiTagger, waiting: int) -> None:
        if tagger.method in SAMPLED:
            raise LovecError(
                f"the method {tagger.method} takes many calls for every sentence, which is too slow for a server; use "
                "verbal or p_true, or `lovec tag`"
            )
        super().__init__(tagger.tags, tagger.served, ProviderWorker(tagger, waiting))
        self.tagger = tagger
        self.text_tags = tagger.text_tags

    def note(self, mode: Mode) -> str:
        """Return one sentence that says what the confidences of a mode of tagging are."""
        return self.tagger.note(mode)

    def read(self, request: AnswerRequest, inline: Inline) -> tuple[History, Sequence[Any], list[str]]:
        """Return the conversation and its chat messages, see ``ServedModel.read``."""
        history = History(request.turns, self.tags, inline)
        with error_in(kind=partial(RequestRefused, parameter=request.PLACE)):
            return history, history.messages(self.tagger.instruction), []

    def check_question(self, question: str) -> None:
        """Check that there is a method for given texts."""
        if self.tagger.method is None:
            message = "this server scores no given texts; start it with --method verbal or --method p_true"
            raise RequestRefused(message, status=404)

    def answer_jobs(self, response: AnswerResponse, pending: Pending) -> Sequence[Job]:
        """Return the jobs for answers."""
        request, asker = response.request, self.tagger.asker

        def job(part: int) -> ReplyJob:
            sent = asker.sent(request.sampling, f"{request.seed}/{part}")
            if request.seed is None and "seed" not in asker.parameters:
                sent.pop("seed", None)
            return ReplyJob(partial(pending.put, part), response.prompt, sent, request.stop, request.stream)

        return list(map(job, range(response.parts)))

    def text_jobs(self, response: TextResponse, pending: Pending) -> Sequence[Job]:
        """Return the job for a given text."""
        return [TextJob(partial(pending.put, 0), response.record)]

    def close(self) -> None:
        """Do nothing: the worker has closed its connections."""
