"""Questions about sentences that a language model can only answer with one of a few replies.

Every reply is scored, as a whole string, end of turn included, or by the first tokens that tell it from the others, so
nothing is sampled and no reply has to be parsed.
p(true), verbalized confidence, the yes/no judge and the self-judge all ask this way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from lovec.core.notices import DoublingWarning
from lovec.encoding import Encoder, UserTurn
from lovec.types import Engine, Record

log = logging.getLogger(__name__)


class SentenceQuestion:
    """A question about one sentence, with a text as context, and the replies that the model may give.

    The prompt is a user turn with the slots ``{question}``, ``{context}`` and ``{sentence}``, each at most once.
    Special tokens in the texts that fill them are read as plain characters. A context that is too long is cut at its
    end: its beginning says who it is about, and the prompts of all its sentences share it. Two warnings name the
    records whose context is cut and the records with a sentence that leaves no room for the prompt.

    Args:
        encoder: tokenizer, chat template and end of turn of the model.
        prompt: template of the user turn.
        replies: texts of the possible replies.
        asker: who asks the question; warnings begin with this name.
        prompt_without_context: template to use where the context is empty; None uses ``prompt`` there as well.
        max_context_tokens: the most tokens of a context; None limits it by the length of the model's context only.

    Attributes:
        replies: token ids of the replies, end of turn included.
        choices: what is scored of each: all of it, or the first tokens that tell the replies apart.
        cut: the warning about records whose context was cut; ``cut.ids`` holds their ids.
        failed: the warning about records with a sentence that leaves no room for the prompt, likewise.
    """

    def __init__(
        self,
        encoder: Encoder,
        prompt: str,
        replies: Sequence[str],
        asker: str,
        prompt_without_context: str | None = None,
        max_context_tokens: int | None = None,
    ) -> None:
        self._turn = UserTurn(encoder, replies)
        self._prompt = prompt
        self._prompt_without_context = prompt if prompt_without_context is None else prompt_without_context
        self._max_context_tokens = max_context_tokens
        self.replies = self._turn.replies
        self.choices = encoder.scored(self.replies)
        limit = "" if max_context_tokens is None else f"of more than {max_context_tokens} tokens or "
        self.cut = DoublingWarning(
            log, "%s: contexts %stoo long for the model are cut at their end, in %d records so far: %s", asker, limit
        )
        self.failed = DoublingWarning(
            log, "%s: sentences that leave no room for the prompt are not scored, in %d records so far: %s", asker
        )

    def prompt_ids(
        self, record: Record, sentence: str, room: int | None, context: str | None = None
    ) -> list[int] | None:
        """Return the token ids of the prompt about one sentence, up to where the reply begins.

        Args:
            record: the record that the sentence belongs to; its question fills the slot ``{question}``.
            sentence: fills the slot ``{sentence}``.
            room: tokens that the model's context holds, for the prompt and the longest reply; None is no limit.
            context: fills the slot ``{context}``; None takes the whole answer, the sentences joined by spaces.

        Returns:
            The ids; None where the prompt does not fit, even if the context is cut.
        """
        if context is None:
            context = " ".join(sentence.text for sentence in record.sentences)
        head, slot, tail = (self._prompt if context else self._prompt_without_context).rpartition("{context}")
        before = head.rstrip(" ")
        quoted = self._turn.quoted(head[len(before) :] + context) if slot else []  # " Ada" is often one token
        texts = {"question": record.question.strip(), "sentence": sentence}
        prompt = self._turn.context(
            before.format(**texts), quoted[: self._max_context_tokens], tail.format(**texts), room
        )
        if prompt is None:
            self.failed.add(record.id)
            return None
        ids, kept = prompt
        if kept < len(quoted):
            self.cut.add(record.id)
        return ids

    def score(self, engine: Engine, prompts: Sequence[list[int] | None]) -> list[list[float] | None]:
        """Return the log-probability of every reply after every prompt: ``[prompts][replies]``; None for a None.

        Logs the warnings about contexts that were cut and sentences that did not fit, if they are due.
        """
        self.warn()
        logps = iter(engine.score([prompt for prompt in prompts if prompt is not None], self.choices))
        engine.score([], self.choices)  # frees the states that the engine keeps of the prompts
        return [None if prompt is None else next(logps) for prompt in prompts]

    def score_sentences(
        self, engine: Engine, records: Sequence[Record], contexts: Sequence[str] | None = None
    ) -> list[list[list[float] | None]]:
        """Return the log-probability of every reply about every sentence: ``[records][sentences][replies]``.

        Args:
            engine: runs the model.
            records: the answers, sentence by sentence.
            contexts: the context of each record; None takes the whole answer of each.

        Returns:
            Log-probabilities; None for a sentence whose prompt does not fit the model's context.
        """
        room = engine.context_length
        prompts = [
            self.prompt_ids(record, sentence.text, room, None if contexts is None else contexts[number])
            for number, record in enumerate(records)
            for sentence in record.sentences
        ]
        logps = iter(self.score(engine, prompts))
        return [[next(logps) for _ in record.sentences] for record in records]

    def tokens(self, engine: Engine, records: Sequence[Record]) -> int:
        """Return how many tokens the prompts about all sentences have; what those of one record share counts once.

        Args:
            engine: runs the model, and says how long its context is.
            records: the answers, sentence by sentence.
        """
        total = 0
        for record in records:
            before: list[int] = []
            for sentence in record.sentences:
                ids = self.prompt_ids(record, sentence.text, engine.context_length) or []
                shared = next(
                    (at for at, pair in enumerate(zip(before, ids, strict=False)) if len(set(pair)) > 1), None
                )
                total += len(ids) - (min(len(before), len(ids)) if shared is None else shared)
                before = ids
        return total

    def warn(self) -> None:
        """Log which contexts were cut and which sentences did not fit, if there are twice as many as last time."""
        self.cut.flush()
        self.failed.flush()


def first_reply_probability(logps: Sequence[float] | None) -> float | None:
    """Return the probability of the first of two replies, given that it is one of them.

    Args:
        logps: the log-probabilities of both; None is passed on.
    """
    if logps is None:
        return None
    first, second = logps
    low = math.exp(-abs(first - second))
    return (1.0 if first >= second else low) / (1.0 + low)
