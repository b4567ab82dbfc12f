"""The earlier answers of a conversation, with the tags that they had when they were written.

Clients see answers without tags. A model that finds none in its own answers writes none in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

from lovec.encoding import Encoder, dialogue_parts
from lovec.encoding.grounding import GroundedEncoder
from lovec.serving.inline import Inline
from lovec.serving.wire import Turn
from lovec.taggers.scoring import Passage, Requests, Step, score_requests
from lovec.tags import TagFormat
from lovec.text.documents import kind_of
from lovec.text.sentences import spans
from lovec.types import STATEMENT

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an earlier answer.

    Attributes:
        text: the part, with the white space before it.
        score: the score that its tag states; None where it has no tag.
        unknown: whether it is a sentence whose score is not known yet.
    """

    text: str
    score: int | None = None
    unknown: bool = False

    def tagged(self, tags: TagFormat) -> str:
        """Return the part with its tag."""
        return self.text if self.score is None else f"{self.text} {tags.tag(self.score)}"


def pieces_of(turn: Turn, tags: TagFormat, inline: Inline) -> list[Piece]:
    """Return the parts of a turn, which together are its text; one part where it is not an answer.

    Confidences in the text are removed, and scores in it become tags. The scores of sentences are those that the client
    has sent back with the answer. Others are not known: of sentences that had no valid tag, of all if the client has
    sent back the text alone, and from where it has changed the text. A text that holds tags is left as it is.

    Args:
        turn: the turn.
        tags: the tag words.
        inline: how confidences stand in the text.
    """
    text = inline.restored(turn.text) if turn.role == "assistant" else turn.text
    if turn.role != "assistant" or tags.occur_in(text):
        return [Piece(text)]
    pieces: list[Piece] = []
    scored = end = 0
    for entry in turn.confidence:
        if not entry.kept:
            continue
        start = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if not text.startswith(entry.text, start):
            break
        before, end = end, start + len(entry.text)
        if entry.score is not None:
            pieces += [*_unscored(text[scored:before]), Piece(text[before:end], entry.score)]
            scored = end
    return [*pieces, *_unscored(text[scored:])]


def _unscored(text: str) -> list[Piece]:
    """Return the parts of a text that has no scores."""
    ends = [0, *(end for _, end in spans(text))]
    return [*(_unscored_piece(text[begin:end], begin == 0) for begin, end in pairwise(ends)), Piece(text[ends[-1] :])]


def _unscored_piece(text: str, first: bool) -> Piece:
    sentence = text.lstrip()
    begins_line = first or "\n" in text[: len(text) - len(sentence)]
    return Piece(text, unknown=kind_of(sentence, begins_line) == STATEMENT)


class History:
    """A conversation up to the question that is to be answered.

    Args:
        turns: the messages, in order.
        tags: the tag words and the scale.
        inline: how confidences stand in the text of earlier answers.

    Attributes:
        source: what stands behind the question, see ``GroundedEncoder.cut_source``; None where nothing does.
        problems: what is wrong with earlier answers that the model has scored, see ``requests``.
    """

    source: str | None = None
    problems: Sequence[str] = ()

    def __init__(self, turns: Sequence[Turn], tags: TagFormat, inline: Inline) -> None:
        # The instruction, which holds the texts of the system, is the same before every answer.
        ordered = sorted(turns, key=lambda turn: turn.role != "system")
        self._turns = [(turn.role, pieces_of(turn, tags, inline)) for turn in ordered]
        self._tags = tags

    @property
    def is_known(self) -> bool:
        """Whether the scores of all earlier answers are known."""
        return not any(piece.unknown for _, pieces in self._turns for piece in pieces)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The roles and the tagged texts of the turns; scores that are not known yet are the highest."""
        top = self._tags.scale.top
        return self._texts(
            [
                (role, [replace(piece, score=top) if piece.unknown else piece for piece in pieces])
                for role, pieces in self._turns
            ]
        )

    def prompt(self, encoder: Encoder) -> list[int]:
        """Return the token ids of the conversation, without a source.

        Raises:
            LovecError: see ``Encoder.dialogue``.
        """
        return encoder.dialogue(self.texts)

    def written_prompt(self, encoder: Encoder) -> list[int]:
        """Return the token ids that the answer is written behind: those of the conversation, with its source.

        Raises:
            LovecError: see ``Encoder.dialogue``.
        """
        if self.source is None:
            return self.prompt(encoder)
        assert isinstance(encoder, GroundedEncoder)  # requests to others bring no evidence
        return encoder.sourced_dialogue(self.texts, self.source)

    def messages(self, instruction: str) -> list[dict[str, str]]:
        """Return the conversation as chat messages; sentences whose scores are not known have no tags.

        Args:
            instruction: what asks for tags; the texts of the system follow it.

        Raises:
            LovecError: see ``dialogue_parts``.
        """
        system_texts, turns = dialogue_parts(self._texts(self._turns))
        turns = [("system", "\n\n".join([instruction, *system_texts])), *turns]
        return [{"role": role, "content": text} for role, text in turns]

    def requests(self, encoder: Encoder, room: int | None) -> Requests[History]:
        """Let the model score the sentences that have no score yet, and yield the conversation with these scores.

        A score is the most probable one behind the conversation up to there, which is what the model writes at
        temperature 0. A source is not part of it: it is about the question alone.

        Args:
            encoder: encodes the contexts.
            room: length of the model's context in tokens; None is no limit.
        """
        done: list[tuple[str, list[Piece]]] = []
        problems: list[str] = []
        for role, pieces in self._turns:
            if any(piece.unknown for piece in pieces):
                steps = [
                    Step(piece.text.strip()) if piece.unknown else Step(piece.tagged(self._tags), literal=True)
                    for piece in pieces
                ]
                passage = Passage("an earlier answer", encoder.dialogue(self._texts(done)), steps)
                yield from score_requests(encoder, [passage], 1, room)
                problems += [f"an earlier answer: {problem}" for problem in passage.problems]
                pieces = [
                    replace(piece, score=score, unknown=False) if piece.unknown else piece
                    for piece, score in zip(pieces, passage.chosen, strict=True)
                ]
            done.append((role, pieces))
        known = copy(self)
        known._turns, known.problems = done, problems
        yield known

    def _texts(self, turns: Sequence[tuple[str, Sequence[Piece]]]) -> list[tuple[str, str]]:
        """Return the roles and the tagged texts of turns."""
        return [(role, "".join(piece.tagged(self._tags) for piece in pieces)) for role, pieces in turns]
