"""Answers from any OpenAI-compatible server, by the same client, cache, prices and limits as `OpenAIOracle`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from lovec.labelling.steps import Answer, Writer
from lovec.oracles.answers import longest_reply, read_answer, sampling_parameters
from lovec.oracles.asking import Asker, Prompt
from lovec.oracles.cache import ChatReply
from lovec.oracles.costs import Estimate
from lovec.oracles.prefetching import prefetch
from lovec.types import LovecError, Record, Sampling


class OpenAIWriter(Asker, Writer):
    """Lets a model on an OpenAI-compatible server (OpenAI, a vLLM server, ...) answer questions.

    See `Asker` for the cache, the key, and the options that are not described here. Every answer is one call, with the
    question as its only message. An empty reply cannot be used; then the question has no answer. Each sample of a
    question has a seed of its own: a function of the seed, the record's id and the sample's number.

    Args:
        max_cost: the most US dollars to spend, over all calls of this object; an answer is expected to be as long as it
            may be.
        parameters: sent with every call, in place of ``temperature``, ``max_tokens`` and ``seed`` of the sampling, such
            as ``{"max_completion_tokens": 2048}`` for models that think first; null leaves one out.
        ask_again: whether questions whose replies in the cache cannot be used are asked again, three times at most.
    """

    def estimate(self, records: Iterable[Record], sampling: Sampling, batch: bool = False) -> Estimate:
        """Estimate what it takes to answer the questions of these records, without any call.

        Args:
            records: consumed one by one.
            sampling: how to sample.
            batch: whether ``prefetch`` is called before they are answered.

        Raises:
            LovecError: the cache cannot be used.
        """
        return self._estimate((prompt for record in records for _, prompt in self._prompts(record, sampling)), batch)

    def prefetch(
        self, records: Iterable[Record], sampling: Sampling, notify: Callable[[str], None] | None = None
    ) -> None:
        """Get the answers by OpenAI's Batch API, at half the price, within a day; ``write`` finds them in the cache.

        Args:
            records: see `OpenAIOracle.prefetch`, also for all else.
            sampling: how to sample.
            notify: called with a line whenever a batch has come further; None logs it.

        Raises:
            LovecError: see `OpenAIOracle.prefetch`.
        """
        prefetch(self, lambda: (prompt for record in records for _, prompt in self._prompts(record, sampling)), notify)

    def write(self, records: Sequence[Record], sampling: Sampling) -> list[list[Answer]]:
        """Return ``sampling.n`` answers to every question.

        Raises:
            LovecError: the money is spent, the server refuses every call, 20 questions in a row have no answer, or a
                reply could not be stored; all replies so far are in the cache.
        """
        named = [pair for record in records for pair in self._prompts(record, sampling)]
        asked = self._ask([name for name, _ in named], [prompt for _, prompt in named])
        if asked.missing or asked.gave_up:
            rest = f"{len(asked.missing)} of {len(named)} answers are not there, " if asked.missing else ""
            raise LovecError(f"{asked.stop_reason}; {rest}all replies so far are in the cache")
        answers = [
            Answer("", problem=self.failures[name]) if answer is None else answer
            for (name, _), answer in zip(named, asked.values, strict=True)
        ]
        return [answers[start : start + sampling.n] for start in range(0, len(answers), sampling.n)]

    def _prompts(self, record: Record, sampling: Sampling) -> Iterator[tuple[str, partial[Prompt[Answer]]]]:
        """Yield the name of every sample of a record's answer, and what returns its question to the server."""
        for number in range(1, sampling.n + 1):
            sent = sampling_parameters(sampling, f"{sampling.seed}/{record.id}/{number}", self.parameters)
            longest = longest_reply(sent, sampling)
            yield f"{record.id}/sample-{number}", partial(Prompt, record.question, longest, sent, _read)


def _read(reply: ChatReply) -> Answer | str:
    """Return the answer in a reply, or why it cannot be used."""
    read = read_answer(reply)
    return read if isinstance(read, str) else Answer(*read)
