"""Asking a model one question about every sentence, all replies scored as whole strings."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lovec.encoding import Encoder, UserTurn
from lovec.notices import listed
from lovec.types import Engine, Record

log = logging.getLogger(__name__)


class Asking:
    """A prompt of ``Wording`` made ready for one tokenizer.

    A context that is too long is cut at its end: its beginning says who it is about, and is what the prompts of all
    sentences share. What is cut, and what does not fit at all, is said with the records' ids: at the first one, and
    again whenever their number has doubled.

    Args:
        encoder: of the model that is asked.
        prompt: may hold ``{question}``, ``{context}`` and ``{sentence}``.
        replies: what the model may say.
        name: who asks, for messages.

    Attributes:
        turn: the user turn, and ``turn.replies``, the token ids of the replies.
        cut: ids of the records whose context was cut so far.
        failed: ids of the records that have a sentence which leaves no room for any of the context.
    """

    def __init__(self, encoder: Encoder, prompt: str, replies: Sequence[str], name: str) -> None:
        self.turn = UserTurn(encoder, replies)
        self.name = name
        self.cut = _Names("the context of %d records so far is too long for %s and is cut at its end: %s")
        self.failed = _Names("sentences of %d records so far leave no room for the prompt of %s: %s")
        head, found, tail = prompt.partition("{context}")
        self._head, self._tail = (head.rstrip(" "), tail) if found else ("", prompt)
        self._blank = head[len(self._head) :] if found else ""  # a word and the blank before it are often one token
        self._holds_context = bool(found)

    def about(self, record: Record, at: int, room: int | None) -> list[int] | None:
        """Ids of the prompt about sentence ``at`` of a record, the whole answer being its context.

        Args:
            record: with its sentences.
            at: 0 for the first one.
            room: tokens that the model's context holds; None is any number.

        Returns:
            The ids up to the reply; None where they do not fit.
        """
        answer = " ".join(sentence.text for sentence in record.sentences)
        return self.context(record, answer, record.sentences[at].text, room)

    def context(self, record: Record, context: str, sentence: str, room: int | None) -> list[int] | None:
        """As :meth:`about`, for any context and sentence."""
        fields = {"question": record.question.strip(), "sentence": sentence}
        middle = self.turn.quoted(self._blank + context) if self._holds_context else []
        found = self.turn.context(self._head.format(**fields), middle, self._tail.format(**fields), room)
        if found is None:
            self.failed.add(record.id)
            return None
        ids, kept = found
        if kept < len(middle):
            self.cut.add(record.id)
        return ids

    def scores(self, engine: Engine, contexts: Sequence[list[int] | None]) -> list[list[float] | None]:
        """Log-probability of every reply after every context; None where there is none. Says what was left out."""
        for names in (self.cut, self.failed):
            names.tell(self.name)
        given = [context for context in contexts if context is not None]
        logps = iter(engine.score(given, self.turn.replies))
        engine.score([], self.turn.replies)  # frees what the engine kept of them
        return [None if context is None else next(logps) for context in contexts]

    def of_answers(self, engine: Engine, records: Sequence[Record]) -> list[list[list[float] | None]]:
        """Log-probability of every reply about every sentence, its answer being the context: [records][sentences]."""
        room = engine.context_length
        rows = [(record, at) for record in records for at in range(len(record.sentences))]
        found = iter(self.scores(engine, [self.about(record, at, room) for record, at in rows]))
        return [[next(found) for _ in record.sentences] for record in records]


class _Names(dict[str, None]):
    """Ids in the order they came, and a line about them that is said at the first one and at every doubling."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._told = 0

    def add(self, name: str) -> None:
        self[name] = None

    def tell(self, who: str) -> None:
        if len(self) >= max(1, 2 * self._told):
            new = list(self)[self._told :]
            self._told = len(self)
            log.warning(self._line, self._told, who, listed(new))
