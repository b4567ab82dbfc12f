"""p(true): how probable the model finds the reply True (Kadavath et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.baselines.asked import AskedBaseline
from lovec.baselines.base import Wording
from lovec.core.settings import PlainWord
from lovec.encoding import Encoder
from lovec.encoding.reply_scoring import SentenceQuestion, first_reply_probability
from lovec.types import Record


class PTrue(AskedBaseline):
    """Asks whether each sentence is true, with the whole answer as context.

    c = p(True) / (p(True) + p(False)), with the probabilities of the two replies: of the whole strings, or of their
    first tokens.

    Args:
        adapter: PEFT adapter that was trained for this question; None asks the bare base model.
        name: its name in tables; None is "p(true)", or "p(true)-ft" with an adapter.
    """

    def __init__(self, adapter: str | None = None, name: PlainWord | None = None) -> None:
        super().__init__(name or ("p(true)" if adapter is None else "p(true)-ft"), adapter)

    @staticmethod
    def question(encoder: Encoder, wording: Wording, name: str = "p(true)") -> SentenceQuestion:
        """Return the question, which training asks as well; its replies are True and False, in this order."""
        return SentenceQuestion(encoder, wording.p_true, (wording.true, wording.false), name)

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the probability of True among the two replies; None where the prompt does not fit the context."""
        return [[first_reply_probability(replies) for replies in row] for row in self.reply_logps(records)]
