"""Evidence cut to a token budget: its beginning, or the passages that speak of what is to be checked."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias, get_args

from lovec.notices import listed
from lovec.types import LovecError, Record

How: TypeAlias = Literal["bm25", "head"]
Counts: TypeAlias = Callable[[str], int]

GAP = "[...]"
"""Stands where something was cut, so that nobody takes the rest for the whole."""

_PASSAGE = 100  # words, as in DPR
_ENOUGH = 50  # words behind which the end of a line ends a passage
_WORD = re.compile(r"\S{1,20}")  # scripts without spaces have no longer words either
_K1, _B = 1.5, 0.75

log = logging.getLogger(__name__)


class Cutter:
    """Cuts the evidence of records, and says whose (at the first one, and again whenever their number has doubled).

    Args:
        budget: most tokens.
        how: see ``cut``.
        count_tokens: tokens of a text.

    Attributes:
        cut: ids of the records whose evidence was cut so far.
        bare: ids of the records that have none.

    Raises:
        LovecError: an unknown ``how``, or no budget.
    """

    def __init__(self, budget: int, how: How, count_tokens: Counts) -> None:
        if budget < 1:
            raise LovecError(f"the budget of evidence is {budget} tokens, expected a positive number")
        self.budget = budget
        self.how = _checked(how)
        self.count_tokens = count_tokens
        self.cut: dict[str, None] = {}  # in the order they came
        self.bare: dict[str, None] = {}

    def __call__(self, record: Record) -> str:
        """The record's evidence for all its sentences, as one text; "" where there is none."""
        whole = _joined(record.evidence)
        text = cut(record.evidence, [s.text for s in record.sentences], self.budget, self.how, self.count_tokens)
        if not whole:
            _tell(self.bare, record.id, "records have no evidence")
        elif text != whole:
            _tell(self.cut, record.id, f"records have more than {self.budget} tokens of evidence, cut by {self.how}")
        return text


def cut(evidence: Sequence[str], sentences: Sequence[str], budget: int, how: How, count_tokens: Counts) -> str:
    """Evidence as one text of at most ``budget`` tokens.

    What fits is kept whole, texts joined by an empty line. What does not is cut into passages of about a hundred
    words: "head" keeps the first ones; "bm25" keeps the best one for every sentence, then the second best for every
    sentence, and so on, in their order in the evidence. ``[...]`` marks every place where something is missing.

    Args:
        evidence: texts; empty ones are passed over.
        sentences: what is to be checked. Without any, "bm25" is "head".
        budget: most tokens, the marks included.
        how: "bm25" or "head".
        count_tokens: tokens of a text.

    Raises:
        LovecError: an unknown ``how``, or a budget in which not a word of the evidence fits.
    """
    _checked(how)
    texts = [text.strip() for text in evidence if text.strip()]
    whole = _joined(texts)
    if not whole or count_tokens(whole) <= budget:
        return whole
    pieces = [piece for number, text in enumerate(texts) for piece in _pieces(number, text)]
    ranked = list(range(len(pieces)))
    if how == "bm25" and sentences:
        ranked = _turn_by_turn(bm25([piece.text for piece in pieces], sentences))
    mark = count_tokens(f"\n\n{GAP}\n\n")
    chosen, room = [], budget - mark
    for place in ranked:
        room -= count_tokens(pieces[place].text) + mark
        if room < 0:
            break
        chosen.append(place)
    while chosen:
        text = _rendered(texts, pieces, sorted(chosen))
        if count_tokens(text) <= budget:  # the counts of parts need not add up to that of the whole
            return text
        chosen.pop()
    return _some_words(pieces[ranked[0]], ranked[0] > 0, budget, count_tokens)


def bm25(passages: Sequence[str], queries: Sequence[str]) -> list[list[float]]:
    """Okapi BM25 with Lucene's idf, k1 1.5, b 0.75 (Robertson and Zaragoza 2009): [queries][passages].

    Written out here, because the passages of one question are a few hundred at most: a library's sparse index takes
    longer on them than the arithmetic.
    """
    asked = [_terms(query) for query in queries]
    known = {term for terms in asked for term in terms}
    sizes: list[int] = []
    holders: dict[str, list[tuple[int, int]]] = {}  # passages that hold a term, and how often
    for place, passage in enumerate(passages):
        terms = _terms(passage)
        sizes.append(len(terms))
        for term, count in Counter(filter(known.__contains__, terms)).items():
            holders.setdefault(term, []).append((place, count))
    mean = sum(sizes) / len(sizes) or 1.0
    scores = []
    for terms in asked:
        row = [0.0] * len(passages)
        for term in terms:
            found = holders.get(term, [])
            idf = math.log(1 + (len(passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, count in found:
                row[place] += idf * count / (count + _K1 * (1 - _B + _B * sizes[place] / mean))
        scores.append(row)
    return scores


@dataclass(frozen=True, slots=True)
class _Piece:
    """A passage: what stands from ``begin`` to ``end`` in the text with this number."""

    number: int
    begin: int
    end: int
    text: str


def _pieces(number: int, text: str) -> Iterator[_Piece]:
    """The passages of a text, which end with a line where they can; no word is left out."""
    words = list(_WORD.finditer(text))
    first = 0
    for last, word in enumerate(words):
        count = last - first + 1
        rest = words[last + 1].start() if last + 1 < len(words) else None
        if rest is None or count >= _PASSAGE or (count >= _ENOUGH and "\n" in text[word.end() : rest]):
            begin, end = words[first].start(), word.end()
            yield _Piece(number, begin, end, text[begin:end])
            first = last + 1


def _turn_by_turn(scores: Sequence[Sequence[float]]) -> list[int]:
    """Places by rank: the best for each query, then the second best for each; the earlier one where two are alike."""
    orders = [sorted(range(len(row)), key=lambda place: -row[place]) for row in scores]
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _rendered(texts: Sequence[str], pieces: Sequence[_Piece], chosen: Sequence[int]) -> str:
    """The chosen passages, given in their order; neighbours as they stand in the evidence."""
    out = [] if chosen[0] == 0 else [GAP, "\n\n"]
    for before, place in zip([None, *chosen], chosen, strict=False):
        piece = pieces[place]
        if before is not None:
            last = pieces[before]
            if place > before + 1:
                out.append(f"\n\n{GAP}\n\n")
            else:
                out.append(texts[piece.number][last.end : piece.begin] if last.number == piece.number else "\n\n")
        out.append(piece.text)
    return "".join(out if chosen[-1] == len(pieces) - 1 else [*out, "\n\n", GAP])


def _some_words(piece: _Piece, later: bool, budget: int, count_tokens: Counts) -> str:
    """The beginning of a passage that does not fit as a whole."""
    ends = [word.end() for word in _WORD.finditer(piece.text)]
    head = f"{GAP}\n\n" if later else ""
    low, high = 0, len(ends)  # how many words fit is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        fits = count_tokens(f"{head}{piece.text[: ends[middle - 1]]} {GAP}") <= budget
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        raise LovecError(f"a budget of {budget} tokens holds no word of the evidence; give more")
    return f"{head}{piece.text[: ends[low - 1]]} {GAP}"


def _terms(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _joined(evidence: Sequence[str]) -> str:
    return "\n\n".join(text.strip() for text in evidence if text.strip())


def _checked(how: str) -> How:
    if how not in get_args(How):
        raise LovecError(f"evidence is to be cut by {how!r}, expected one of {', '.join(get_args(How))}")
    return how  # type: ignore[return-value]


def _tell(names: dict[str, None], name: str, what: str) -> None:
    """Add a name; say what all of them share whenever their number has doubled."""
    if name not in names:
        names[name] = None
        if len(names).bit_count() == 1:  # 1, 2, 4, 8, ...
            log.warning("%d %s: %s", len(names), what, listed(list(names)[len(names) // 2 :]))
