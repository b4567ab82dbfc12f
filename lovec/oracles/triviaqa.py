"""TriviaQA's oracle: a short answer is right or wrong, by its aliases; no model, no evidence, no cost."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.datasets.triviaqa import matches
from lovec.types import LovecError, Record

_GOLD = (
    ("Sunset Boulevard", ("west sunset boulevard", "sunset blvd"), True),  # F1 0.8
    ("It was Paris, France", ("paris",), False),  # four words, one of them wanted: 0.4
    ("paris france", ("paris",), True),  # 0.67
    ("London", ("paris",), False),
    ("New York", ("york minster",), False),  # exactly 0.5 is not enough
    ("The A-Team!", ("a team",), True),
    ("A", ("a",), True),
    ("", ("paris",), False),
)


class TriviaQAOracle:
    """Rates short answers 1 or 0: right if the best token F1 over the aliases exceeds 0.5 (``matches``)."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality of every record's first sentence, by ``record.meta["aliases"]``; None for what follows it.

        Raises:
            LovecError: a record has no aliases.
        """
        return [self._rated(record) for record in records]

    def validate(self) -> int:
        """Score answers of which it is known whether they are right.

        Returns:
            Number of answers rated.

        Raises:
            LovecError: a rating is not what it must be.
        """
        for answer, aliases, right in _GOLD:
            if matches(answer, aliases) != right:
                raise LovecError(
                    f"{answer!r} for {aliases} is rated {not right}, expected {right}: matches() is broken"
                )
        return len(_GOLD)

    def _rated(self, record: Record) -> list[float | None]:
        if not record.meta.get("aliases"):
            raise LovecError(
                f"record {record.id!r} has no meta.aliases to compare its answer with; this oracle is for questions of "
                "lovec.datasets.triviaqa"
            )
        first = [float(matches(sentence.text, record.meta["aliases"])) for sentence in record.sentences[:1]]
        return [*first, *[None] * (len(record.sentences) - len(first))]
