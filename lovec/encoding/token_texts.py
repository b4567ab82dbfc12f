"""The text of tokens that are written one after the other, and which of them hold how much of it.

Decoding all tokens so far for every question about them takes quadratic time in an answer, and cubic time where a
bisection asks. Here every token is decoded a few times, however long the answer grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

_STEP = 16  # tokens between two places up to which the text is known for good
_UNSETTLED = "\ufffd"  # what a part of a character decodes to
_HALF_CHARACTER = re.compile("\ufffd{1,3}$")  # one for a part of a character, or one for each of its bytes
_MOST_BYTES = 4  # of a character


def without_half_character(text: str) -> str:
    """Return a text that was cut between tokens without the part of a character at its end, if there is one."""
    return _HALF_CHARACTER.sub("", text)


def whole_characters(text_without: Callable[[int], str]) -> str:
    """Return the text of tokens without the part of a character at its end, if there is one.

    Where SentencePiece has written characters as bytes, a part of the last one makes the whole run of them U+FFFD; they
    are there once its tokens are left out.

    Args:
        text_without: returns the text without so many of the last tokens.
    """
    text = text_without(0)
    if not text.endswith(_UNSETTLED):
        return text
    texts = [without_half_character(text), *map(text_without, range(1, _MOST_BYTES))]
    return max((text for text in texts if not text.endswith(_UNSETTLED)), key=len, default=texts[0])


class TokenTexts:
    """The text of tokens, as far as they are there.

    Args:
        decode: returns the text of token ids.
        is_open: whether what follows a token may change the text up to it: it stands for one byte, which decodes
            together with such tokens around it, or has no text, so that it may lie between two of them.
        ids: the first tokens.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_open: Callable[[int], bool], ids: Iterable[int] = ()
    ) -> None:
        self._decode, self._is_open = decode, is_open
        self._ids = list(ids)
        # What follows cannot change the text up to a settled place. A text is decoded from the place before, since
        # some tokenizers leave out a space where a text begins.
        self._settled = [0]  # tokens before each place
        self._lengths = [0]  # characters before it
        self._last = ""  # text of the tokens between the last two places, decoded by themselves
        self._pieces: list[str] = []  # texts between the places
        self._open = ""  # text behind the last place
        self._read = 0  # tokens whose text is known

    def add(self, token: int) -> None:
        """Add the token that was written last."""
        self._ids.append(token)

    @property
    def text(self) -> str:
        """The text of all tokens."""
        self._settle()
        return "".join((*self._pieces, self._open))

    @property
    def whole_characters(self) -> str:
        """The text of all tokens, without the part of a character at its end."""

        def text_without(count: int) -> str:
            end = max(len(self._ids) - count, self._settled[-1])
            return "".join((*self._pieces, self._open if count == 0 else self._piece(end)))

        self._settle()
        return whole_characters(text_without)

    def tokens_until(self, length: int, partly: bool = False) -> int:
        """Return how many of the first tokens hold the first ``length`` characters of the text.

        Args:
            length: number of characters; more than there are count as all.
            partly: whether a part of the last character is enough, where its bytes are tokens of their own.
        """
        text = self.text
        length = min(length, len(text))

        def is_held(count: int) -> bool:
            at = bisect_right(self._settled, count) - 1  # the last settled place among these tokens
            if self._lengths[at] >= length:
                return True
            before = self._settled[max(at - 1, 0)]
            skipped = len(self._decode(self._ids[before : self._settled[at]]))
            piece = self._decode(self._ids[before:count])[skipped:]
            wanted = text[self._lengths[at] : length]
            return len(piece) >= len(wanted) if partly else piece.startswith(wanted)

        counts = range(int(partly), len(self._ids) + 1)
        return bisect_left(counts, True, key=is_held) + counts.start

    def _settle(self) -> None:
        """Read the tokens that were added, and note the places up to which their text is known for good."""
        while self._read < len(self._ids):
            start = self._settled[-1]
            count, tried = min(start + _STEP, len(self._ids)), 0
            while not self._settles(count) and count < len(self._ids):
                tried += 1  # a character has few bytes; a longer run of parts of characters is looked through in leaps
                count = min(count + (1 if tried < _STEP else tried), len(self._ids))
            self._read = count

    def _settles(self, count: int) -> bool:
        """Note that a place is settled, if it is; otherwise keep the text up to there for now."""
        if count < len(self._ids) and self._is_open(self._ids[count - 1]):
            return False
        start, piece = self._settled[-1], self._piece(count)
        alone = self._decode(self._ids[start:count])
        # Text that is all spaces or nothing may lose a space by itself, and then so does all that follows it.
        if count - start < _STEP or self._is_open(self._ids[count - 1]) or not alone or piece.endswith(_UNSETTLED):
            self._open = piece
            return False
        self._settled.append(count)
        self._lengths.append(self._lengths[-1] + len(piece))
        self._pieces.append(piece)
        self._last, self._open = alone, ""
        return True

    def _piece(self, count: int) -> str:
        """Return the text of the first ``count`` tokens behind the last place."""
        before = self._settled[-2] if len(self._settled) > 1 else 0
        return self._decode(self._ids[before:count])[len(self._last) :]
