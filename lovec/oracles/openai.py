"""Fact-checking by any OpenAI-compatible server: the paper's prompt, one call per record, nothing paid for twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from lovec.core.calls import CallFailed
from lovec.core.notices import listed
from lovec.core.settings import Count, PlainWord, checked
from lovec.oracles.asking import Asker, Prompt
from lovec.oracles.cache import ChatReply
from lovec.oracles.chat import NO_MESSAGE
from lovec.oracles.costs import REPLY_TOKENS, Estimate, count_tokens
from lovec.oracles.prefetching import prefetch
from lovec.oracles.prompts import fact_check, read_ratings
from lovec.text.cutting import Cutter, EvidenceCut
from lovec.types import LovecError, Oracle, Record, error_in


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


@checked(remember=True)
class OpenAIOracle(Asker, Oracle):
    """Rates sentences by asking a model on an OpenAI-compatible server (OpenAI, a vLLM server, ...).

    See `Asker` for the cache, the key, and the options that are not described here. A record is one call: its evidence
    and all its sentences in the paper's prompt. A reply cannot be used if the number of its ratings is not the number
    of sentences, or if it was cut off; then no sentence of the record gets a rating.

    Args:
        evidence_tokens: the most tokens of evidence in a prompt (estimated: four bytes per token).
        evidence_cut: which part of longer evidence is kept: "bm25" the passages most similar to the sentences, "head"
            the first ones.
        parameters: sent with every call, such as ``{"temperature": 0, "max_tokens": 4096}``; None is temperature 0.
        kwargs: arguments of ``Asker``; records beyond its ``max_cost`` are not rated.

    Attributes:
        failures: the reason, in one line, by record id, for each record that failed; its sentences are rated None.
        cutter: cuts the evidence; it knows the records whose evidence was cut, and those without evidence.

    Raises:
        LovecError: an option is out of range.
    """

    reads_evidence = True

    def __init__(
        self,
        model: PlainWord,
        base_url: str | None = None,
        evidence_tokens: Count = 16_384,
        evidence_cut: EvidenceCut = "bm25",
        parameters: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, base_url, parameters={"temperature": 0} if parameters is None else parameters, **kwargs)
        self.cutter = Cutter(evidence_tokens, evidence_cut, count_tokens)

    def estimate(self, records: Iterable[Record], batch: bool = False) -> Estimate:
        """Estimate what it takes to rate these records, without any call.

        Args:
            records: consumed one by one.
            batch: whether ``prefetch`` is called before they are rated.

        Raises:
            LovecError: the cache cannot be used.
        """
        estimate = self._estimate((partial(self._prompt, record) for record in records if record.sentences), batch)
        self.cutter.warn()
        return estimate

    def prefetch(self, records: Iterable[Record], notify: Callable[[str], None] | None = None) -> None:
        """Get the replies about these records by OpenAI's Batch API, at half the price, within a day; then rate them.

        Whatever was never asked is submitted, and this returns when its replies are in the cache, where ``rate`` finds
        them. It can be killed at any moment: what was submitted is found again by the next call with the same cache.
        Expired requests are submitted again. Those that fail by themselves are left to ``rate``, which asks them one by
        one, at the full price. Requests beyond ``max_cost`` are not submitted.

        Args:
            records: iterated several times, so no iterator; only their keys are kept in memory, a batch at a time.
            notify: called with a line whenever a batch has come further; None logs it.

        Raises:
            LovecError: the server takes no batches, a batch failed, was cancelled, or expired without any reply, most
                requests of a batch failed, there is no API key for OpenAI's server, or the cache cannot be used.
                Replies so far are in the cache.
        """
        prefetch(self, lambda: (partial(self._prompt, record) for record in records if record.sentences), notify)
        self.cutter.warn()

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality in [0, 1] of every sentence of every record, or None; ``failures`` says why.

        It can be called while an event loop is running (in a notebook): the calls then run in a thread of their own.

        Raises:
            OracleStopped: the money is spent, the server refuses every call, 20 records in a row (over all calls of
                this method) failed, or a reply could not be stored; the exception holds the ratings so far.
            LovecError: there is no API key for OpenAI's server, or the cache cannot be used.
        """
        prompts = [partial(self._prompt, record) if record.sentences else None for record in records]
        asked = self._ask([record.id for record in records], prompts)
        self.cutter.warn()
        missing = set(asked.missing)
        rated: list[list[float | None] | None] = [
            None if number in missing else [None] * len(record.sentences) if row is None else list(row)
            for number, (record, row) in enumerate(zip(records, asked.values, strict=True))
        ]
        left = [record.id for record, row in zip(records, rated, strict=True) if row is None]
        if left or asked.gave_up:  # the last failures may be the last records, and the next call is as hopeless
            rest = f"{len(left)} of {len(records)} records are not rated ({listed(left)}), " if left else ""
            raise OracleStopped(f"{asked.stop_reason}; {rest}all replies so far are in the cache", rated, left)
        return [row for row in rated if row is not None]

    def _prompt(self, record: Record) -> Prompt[list[float | None]]:
        """Return what is asked about a record.

        Raises:
            CallFailed: the evidence cannot be cut to its budget.
        """
        with error_in(kind=CallFailed):
            evidence = self.cutter(record)
        text = fact_check(evidence, [sentence.text for sentence in record.sentences])
        count = len(record.sentences)
        return Prompt(text, REPLY_TOKENS * count, self.parameters, partial(_read, count))


def _read(sentences: int, reply: ChatReply) -> list[float | None] | str:
    """Return the ratings in a reply about so many sentences, or why it cannot be used."""
    if reply.finish in ("length", "content_filter"):  # "$1" may be the beginning of "$10$"
        return f"cut off ({reply.finish})"
    if reply.finish == NO_MESSAGE:
        return f"no message in {reply.text[:100]}"
    ratings = read_ratings(reply.text)
    return ratings if len(ratings) == sentences else f"{len(ratings)} ratings for {sentences} sentences"
