"""Sources in prompts: a record's evidence, cut to a number of tokens, stands behind its question.

A source is foreign text. It is encoded as plain characters (see ``lovec.encoding``), so nothing in it can end its turn,
begin another one or state a confidence, and the prompt says that it gives no instructions.
"""

from __future__ import annotations

import logging
from copy import copy
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

from lovec.core.notices import DoublingWarning
from lovec.encoding import DEFAULT_SCORING, EVIDENCE, Encoder, Grounding, Scoring
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.text.cutting import cut, stripped
from lovec.types import LovecError, Record, error_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedTokenizerBase

DEFAULT_SOURCE_TOKENS = 512
"""The most tokens of a source where nothing says otherwise."""

UNGROUNDED = (
    "was trained without evidence in its prompts, so it has no confidence by source; train one on records with "
    "evidence: lovec fit --config sft.yaml --model.policy.grounded true (docs/grounded.md)"
)
"""What is said of a model that is given evidence which it cannot use."""

_MOST_QUERIES = 100
"""The most texts that long evidence is cut by: far more than there are passages in a prompt, each the best for one."""

_KEPT = 1 << 11  # prompts with sources that are kept encoded: a few hundred tokens each

log = logging.getLogger(__name__)


def encoder_of(
    tokenizer: PreTrainedTokenizerBase,
    instruction: str | None = None,
    tags: TagFormat = DEFAULT_TAGS,
    scoring: Scoring = DEFAULT_SCORING,
    grounding: Grounding | None = None,
    stops: Iterable[int] = (),
) -> Encoder:
    """Return an encoder that puts sources into prompts, or without ``grounding`` one that does not.

    Args:
        tokenizer: as for `Encoder`, as are instruction, tags, scoring and stops.
        instruction: system prompt that asks for tags.
        tags: the tag words and the scale.
        scoring: what is scored at a tag.
        grounding: how sources are put into prompts; None ignores them.
        stops: ids at which sampling stops.
    """
    if grounding is None:
        return Encoder(tokenizer, instruction, tags, scoring, stops)
    return GroundedEncoder(tokenizer, instruction, tags, scoring, stops, grounding)


class GroundedEncoder(Encoder):
    """An encoder for prompts with sources: the evidence of a record follows its question.

    A record without evidence gets the plain prompt. Longer evidence than ``grounding.tokens``, or than half of what the
    plain prompt leaves of the context, is cut by BM25 to the passages most similar to the question and the sentences of
    the record, and a warning says so as the number of such records doubles.

    Args:
        tokenizer: as for `Encoder`, as are the next four.
        instruction: system prompt that asks for tags.
        tags: the tag words and the scale.
        scoring: what is scored at a tag.
        stops: ids at which sampling stops.
        grounding: the text around a source, and the most tokens of one.

    Attributes:
        context: tokens of the model's context; None for no limit.
        cut_records: ids of the records whose evidence was cut so far.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        instruction: str | None,
        tags: TagFormat,
        scoring: Scoring,
        stops: Iterable[int],
        grounding: Grounding,
    ) -> None:
        super().__init__(tokenizer, instruction, tags, scoring, stops)
        self.grounding: Grounding = grounding
        self.context: int | None = None
        self._cut = DoublingWarning(
            log, f"%d records have evidence of more than {grounding.tokens} tokens or half the context; it is cut: %s"
        )
        self.cut_records = self._cut.ids
        self._grounded = lru_cache(maxsize=_KEPT)(partial(_grounded_ids, self))

    @cached_property
    def _longest_token(self) -> int:
        """The most characters that a token stands for."""
        return max(map(len, self.tokenizer.get_vocab()))

    def within(self, context: int | None) -> Encoder:
        """Return this encoder for a context of so many tokens; None for no limit."""
        other = copy(self)
        other.context = context
        other._grounded = lru_cache(maxsize=_KEPT)(partial(_grounded_ids, other))
        return other

    def record_prompt(self, record: Record, answered: bool = True, instruct: bool = True) -> list[int]:
        """Return the ids of the prompt for a record: that of its question, or of its question and its evidence.

        Args:
            record: the record.
            answered: whether the answer is that of the record, so that long evidence is cut by its sentences as well.
            instruct: whether the prompt contains the instruction; False asks for a plain answer without tags.

        Raises:
            LovecError: the question leaves no place for a word of the evidence.
        """
        evidence = _texts(record.evidence)
        if not evidence:
            return self.prompt(record.question, instruct)
        given = record.sentences if answered else ()
        with error_in(f"{record.id}: "):
            sentences = _texts(part.text for part in given if part.is_statement)
            ids, was_cut = self._grounded(record.question, evidence, sentences, instruct)
        if was_cut:
            self._cut.add(record.id)
            self._cut.flush()
        return list(ids)

    def cut_source(
        self,
        turns: Sequence[tuple[str, str]],
        evidence: Iterable[str],
        sentences: Iterable[str] = (),
        instruct: bool = True,
    ) -> tuple[str, bool]:
        """Return the source that the prompt of a conversation has of evidence, and whether that is less than all of it.

        Args:
            turns: as for ``dialogue``.
            evidence: texts.
            sentences: of the answer, where there is one; longer evidence is cut by these, too.
            instruct: see ``prompt``.

        Raises:
            LovecError: the conversation leaves no place for a word of the evidence.
        """
        budget, texts = self.grounding.tokens, _texts(evidence)
        if self.context is not None:
            budget = min(budget, (self.context - len(self.sourced_dialogue(turns, "", instruct))) // 2)
        if budget < 1:
            raise LovecError(
                f"the question and what is said of a source fill the context of {self.context} tokens, so that no "
                "evidence fits; shorten the question, or leave the evidence out"
            )

        def count_tokens(text: str) -> int:
            is_long = len(text) > budget * self._longest_token  # then it is not encoded in vain
            return budget + 1 if is_long else len(self.source_pieces(text))

        asked = [turns[-1][1], *_texts(sentences)][:_MOST_QUERIES]
        source = cut(texts, asked, budget, "bm25", count_tokens)
        return source, source != "\n\n".join(texts)

    def sourced_dialogue(self, turns: Sequence[tuple[str, str]], source: str, instruct: bool = True) -> list[int]:
        """Return the ids of a conversation whose last turn is followed by a source, see ``cut_source``.

        Args:
            turns: as for ``dialogue``; the last one is the question.
            source: the source.
            instruct: see ``prompt``.
        """
        before, _, after = f"\n\n{self.grounding.text}".partition(EVIDENCE)
        return self.source_prompt(turns, before, source, after, instruct)

    def most_tokens(self, question: int, answer: int = 0, sentences: int = 0) -> int:
        """Return a bound on the tokens of a prompt and its tagged answer, see `Encoder`; a source is counted."""
        around = len(self.grounding.text.encode()) + self.grounding.tokens
        return super().most_tokens(question + around, answer, sentences)


def _grounded_ids(
    encoder: GroundedEncoder, question: str, evidence: tuple[str, ...], sentences: tuple[str, ...], instruct: bool
) -> tuple[tuple[int, ...], bool]:
    """Return the ids of a prompt with a source, and whether the source was cut."""
    turns = [("user", question)]
    source, was_cut = encoder.cut_source(turns, evidence, sentences, instruct)
    return tuple(encoder.sourced_dialogue(turns, source, instruct)), was_cut


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts as ``stripped`` does, without the halves of surrogate pairs, which no tokenizer takes."""
    return tuple(stripped(text.encode(errors="replace").decode() for text in texts))
