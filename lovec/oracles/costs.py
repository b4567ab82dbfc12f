"""The cost of calls: token counts are estimated before a call and corrected by the server's counts after it."""

from __future__ import annotations

from dataclasses import dataclass

from lovec.core.notices import counted
from lovec.types import LovecError

REPLY_TOKENS = 80
"""Tokens that a reply is expected to have per sentence; the paper's four examples have about 60 each."""


BATCH_SHARE = 0.5
"""Share of its price that a call costs in a batch: the Batch API is half the price."""


def count_tokens(text: str) -> int:
    """Return roughly how many tokens a text has: one for every four bytes of UTF-8, rounded up.

    This is the rule of thumb for English, and too high for most other scripts, whose letters take two to four bytes.
    Only estimates and the cut of the evidence use it: exact counts before a call would need the server's own
    tokenizer, and after it the server reports them.
    """
    return -(-len(text.encode(errors="replace")) // 4)


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens of prompts and of replies; None where unknown.

    Raises:
        LovecError: one price is given without the other.
    """

    tokens_in: float | None = None
    tokens_out: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens_in is None) != (self.tokens_out is None):
            raise LovecError(
                "only one of price_in and price_out is given; give both or none (US dollars per 1M tokens)"
            )

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return the cost in US dollars; None where the prices are unknown."""
        if self.tokens_in is None or self.tokens_out is None:
            return None
        return (self.tokens_in * tokens_in + self.tokens_out * tokens_out) / 1e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What it will take to ask about some records, estimated before the first call.

    Attributes:
        records: number of records to ask about: those with sentences, or for answers every sample of a question.
        calls: number of calls to make; records with the same prompt share one.
        cached: number of records whose reply is in the cache.
        submitted: number of records whose call is in a batch that was submitted before; its cost is not counted again.
        batched: number of the calls to make that go into batches.
        tokens_in: approximate number of tokens of the prompts to send.
        tokens_out: approximate number of tokens of the replies.
        cost: approximate cost in US dollars; None where the prices are unknown. Second calls, after a reply that
            cannot be used, are not counted.
        unit: what a record is called.
    """

    records: int
    calls: int
    cached: int
    tokens_in: int
    tokens_out: int
    cost: float | None
    submitted: int = 0
    batched: int = 0
    unit: str = "record"

    def __str__(self) -> str:
        price = "prices unknown, give price_in and price_out" if self.cost is None else f"about ${self.cost:.2f}"
        submitted = f"{self.submitted} in batches submitted before, " if self.submitted else ""
        batched = f" ({self.batched} in batches, at half the price)" if self.batched else ""
        return (
            f"{counted(self.records, self.unit)}: {self.cached} answered by the cache, "
            f"{submitted}{counted(self.calls, 'call')}{batched}, "
            f"about {self.tokens_in:,} tokens in and {self.tokens_out:,} out, {price}"
        )
