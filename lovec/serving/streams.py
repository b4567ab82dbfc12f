"""Answers of a vLLM server, which batches them continuously: each is a task of the event loop and begins at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lovec.core.calls import CallFailed, ServerRefused
from lovec.encoding.choices import ChoiceTree, choice_tree
from lovec.encoding.written import Steps
from lovec.engines import RemoteVllm
from lovec.engines.common import sample_rows
from lovec.engines.completions import CompletionClient, ServerReply, read_models
from lovec.serving.jobs import AnswerJob, Job, StepsJob
from lovec.serving.tasks import TaskWorker
from lovec.serving.wire import RequestRefused
from lovec.taggers.freeform import Due
from lovec.taggers.scoring import ScoreRequest
from lovec.types import Completion, LovecError, TokenScores

STREAM_INTERVAL = 4
"""Tokens per event of the streams that the server sends. Sentences are sent whole, so that single tokens would only
cost time on both sides; vLLM sends the first and the last token of a completion at once."""

UNREACHABLE = "the server that runs the model has failed or cannot be reached; the log of this server says how"
"""What a client learns of an error of the other server."""


CHECK_EVERY = 2.0
"""Seconds for which what is known of the other server's health holds; anybody may ask for it."""

CHECK_TIMEOUT = 5.0
"""Seconds that the other server has to say that it has the model."""


class ScoreBatches:
    """Scores contexts, with one call at a time: those that arrive during a call share the next one.

    A step of the server that also reads new prompts costs more than one that only continues answers, so contexts of
    many answers are better read in one step than in many.

    Args:
        client: makes the calls, which may hold contexts of different answers.
        tree: the scores behind a context.
    """

    def __init__(self, client: CompletionClient, tree: ChoiceTree) -> None:
        self.client, self.tree = client, tree
        self._due: list[tuple[list[int], Steps, asyncio.Future[list[float]]]] = []
        self._calls: asyncio.Task[None] | None = None

    async def score(self, context: list[int], written: Steps) -> list[float]:
        """Return the log-probability of every choice behind a context.

        Args:
            context: token ids.
            written: what the model wrote behind it; nothing is asked that it tells.

        Raises:
            CallFailed: see ``CompletionClient.score``; also ServerRefused and LovecError.
        """
        result: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._due.append((context, written, result))
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._score_due())
        return await result

    async def _score_due(self) -> None:
        while self._due:
            waiting, self._due = [due for due in self._due if not due[-1].done()], []
            if waiting:
                await self._call(*zip(*waiting, strict=True))

    async def _call(
        self, contexts: Sequence[list[int]], written: Sequence[Steps], results: Sequence[asyncio.Future[list[float]]]
    ) -> None:
        """Score contexts in one call, which ends when nobody waits for its results any more."""
        call = asyncio.create_task(self.client.score(contexts, self.tree, written))
        for result in results:
            result.add_done_callback(lambda _: all(one.done() for one in results) and call.cancel())
        [found] = await asyncio.gather(call, return_exceptions=True)
        for row, result in enumerate(results):
            if result.done():
                continue
            if isinstance(found, BaseException):
                result.set_exception(found)
            else:
                result.set_result(found[row])


class StreamWorker(TaskWorker):
    """Does jobs on a vLLM server.

    The tokens of an answer arrive as a stream. The sentences of an answer are scored while its stream goes on, one
    after the other; what the stream tells of their scores is not asked again. A job that is cancelled closes its stream
    and its calls, at which vLLM stops computing them.

    Args:
        engine: the engine in front of the server, with a model opened.
        stop_ids: ids that end a completion.
        choices: token ids of every score behind a context.
        most: the most jobs at a time.
    """

    def __init__(
        self, engine: RemoteVllm, stop_ids: Sequence[int], choices: Sequence[Sequence[int]], most: int
    ) -> None:
        self.client = engine.connect()
        super().__init__(self.client.api, most)
        self.stop_ids = tuple(stop_ids)
        self.tree = choice_tree(choices)
        self.scores = ScoreBatches(self.client, self.tree)
        self._check: asyncio.Task[str | None] | None = None
        self._checked = -CHECK_EVERY

    async def problem(self) -> str | None:
        """Return why jobs cannot be done, for the health check; None where they can.

        The other server is asked for its models, at most every ``CHECK_EVERY`` seconds.
        """
        now = asyncio.get_running_loop().time()
        if self._check is None or (self._check.done() and now - self._checked >= CHECK_EVERY):
            self._checked = now
            self._check = asyncio.create_task(self._ask_for_model())
        return await asyncio.shield(self._check)  # another may wait for it, too

    async def _ask_for_model(self) -> str | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                cards = await self.client.api.get("/models", read_models)
        except (TimeoutError, CallFailed, ServerRefused, LovecError):
            return "the server that runs the model does not answer"
        return None if self.client.model in [card["id"] for card in cards] else "the server has lost the model"

    async def _do(self, job: Job) -> None:
        if isinstance(job, AnswerJob):
            job.end(await self._write(job))
        elif isinstance(job, StepsJob):
            await self._score_text(job)

    def _refusal(self, error: Exception) -> RequestRefused:
        return RequestRefused(UNREACHABLE, status=502)

    async def _write(self, job: AnswerJob) -> Completion:
        """Return an answer, whose sentences are scored and handed over while it is written, or at its end."""
        growing = job.growing
        [row] = sample_rows([job.prompt], job.sampling, [job.key], None, self.client.context_length)
        options = row.vllm_options(job.sampling, self.stop_ids)
        reply = ServerReply(with_logps=growing.likelihoods or "logprob_token_ids" in options)
        scoring: asyncio.Task[None] | None = None

        def on_token(token: int) -> bool:
            nonlocal scoring
            growing.on_token(token)
            if growing.is_pending and (scoring is None or scoring.done()):
                scoring = tasks.create_task(self._score(job, reply))
            return not growing.stopped

        try:
            async with asyncio.TaskGroup() as tasks:
                await self.client.stream(row.ids, reply, on_token, **options, stream_interval=STREAM_INTERVAL)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        completion = reply.completion(self.stop_ids, job.sampling)
        if job.finish(completion.finished):
            await self._score(job, reply)
        return completion

    async def _score(self, job: AnswerJob, reply: ServerReply) -> None:
        """Score the sentences of an answer that are complete, and hand each over."""
        growing = job.growing
        while growing.is_pending:
            due = growing.due(self.client.context_length, reply.ids, reply.candidates)
            for one, scores in zip(due, await asyncio.gather(*map(self._scores_of, due)), strict=True):
                growing.take(one, scores)
            job.release(reply.logps)

    async def _scores_of(self, due: Due) -> TokenScores:
        """Return the scores of a context of an answer."""
        if due.start is None:
            return TokenScores((), choices=tuple(await self.scores.score(due.context, due.written)))
        [found] = await self.client.token_logps([due.context], [due.start], self.tree)
        return found

    async def _score_text(self, job: StepsJob) -> None:
        """Do a job in steps."""
        try:
            request = job.advance()
            while request is not None:
                request = job.advance(await self._computed(request))
        finally:
            job.requests.close()

    async def _computed(self, request: ScoreRequest) -> list[TokenScores]:
        """Return the answer to a request."""
        if request.starts is not None:
            return await self.client.token_logps(request.contexts, request.starts, self.tree)
        rows = await self.client.score(request.contexts, self.tree)
        return [TokenScores((), choices=tuple(row)) for row in rows]
