"""The oracle for TriviaQA: a short answer is compared with the aliases of the right one; no model, no cost."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.datasets.triviaqa import matches
from lovec.types import LovecError, Oracle, Record


class TriviaQAOracle(Oracle):
    """Rates short answers 1 or 0: right if the best token F1 over the aliases exceeds 0.5 (``matches``)."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality of the first sentence of every record, by ``record.meta["aliases"]``; None for others.

        Raises:
            LovecError: a record has no aliases.
        """
        return [self._ratings(record) for record in records]

    def _ratings(self, record: Record) -> list[float | None]:
        if not record.meta.get("aliases"):
            raise LovecError(
                f"record {record.id!r} has no meta.aliases to compare its answer with; this oracle is for questions of "
                "lovec.datasets.triviaqa"
            )
        first = [float(matches(sentence.text, record.meta["aliases"])) for sentence in record.sentences[:1]]
        return [*first, *[None] * (len(record.sentences) - len(first))]
