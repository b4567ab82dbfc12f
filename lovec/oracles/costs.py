"""What calls cost: tokens guessed before a call, as the server counts them after it."""

from __future__ import annotations

from dataclasses import dataclass

from lovec.types import LovecError

REPLY_TOKENS = 80
"""Tokens expected of a reply for every sentence; the paper's four examples have about 60 each."""


def count_tokens(text: str) -> int:
    """About how many tokens a text has: one for every four bytes of UTF-8, rounded up.

    That is the rule of thumb for English, and leans high for most other scripts, whose letters take two to four
    bytes. Only what is guessed beforehand (estimates, the cut of the evidence) goes by it: a tokenizer would have to
    be the server's own, and the servers report what they counted.
    """
    return -(-len(text.encode(errors="replace")) // 4)


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens of the prompt and of the reply; None where unknown.

    Raises:
        LovecError: one is given without the other, or is negative.
    """

    tokens_in: float | None = None
    tokens_out: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens_in is None) != (self.tokens_out is None):
            raise LovecError("of price_in and price_out one is given; give both or none (US dollars per 1M tokens)")
        for price in (self.tokens_in, self.tokens_out):
            if price is not None and not 0.0 <= price < float("inf"):
                raise LovecError(f"a price is {price}, expected US dollars per 1M tokens")

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """US dollars; None where the prices are unknown."""
        if self.tokens_in is None or self.tokens_out is None:
            return None
        return (self.tokens_in * tokens_in + self.tokens_out * tokens_out) / 1e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What rating some records will take, before the first call.

    Attributes:
        records: records with sentences.
        calls: calls to be made; records that ask the very same share one.
        cached: records that the cache answers already.
        tokens_in: tokens of the prompts to be sent, about.
        tokens_out: tokens of the replies to come, about.
        cost: US dollars, about; None where the prices are unknown. Replies that cannot be used are asked for again,
            which is not counted.
    """

    records: int
    calls: int
    cached: int
    tokens_in: int
    tokens_out: int
    cost: float | None

    def __str__(self) -> str:
        price = "prices unknown, give price_in and price_out" if self.cost is None else f"about ${self.cost:.2f}"
        return (
            f"{self.records} records: {self.cached} answered by the cache, {self.calls} calls, about "
            f"{self.tokens_in:,} tokens in and {self.tokens_out:,} out, {price}"
        )
