"""Evidence cut to a token budget: its beginning, or the passages most similar to the sentences to be checked."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from lovec.core.notices import DoublingWarning, SingleWarning
from lovec.core.settings import check_choice, check_count
from lovec.text.documents import unix_lines
from lovec.types import LovecError, Record

EvidenceCut: TypeAlias = Literal["bm25", "head"]
CountTokens: TypeAlias = Callable[[str], int]

GAP = "[...]"
"""Marks every place where text was cut, so that the rest is not taken for the whole."""

_PASSAGE = 100  # words, as in DPR
_MIN_PASSAGE = 50  # words after which a line break ends a passage
_WORD = re.compile(r"\S{1,20}")  # longer words are split, for scripts without spaces
_K1, _B = 1.5, 0.75

log = logging.getLogger(__name__)


class Cutter:
    """Cuts the evidence of records to a budget, and warns about records with too much evidence or none.

    Args:
        budget: largest number of tokens.
        how: "bm25" or "head", see ``cut``.
        count_tokens: returns the number of tokens of a text.

    Attributes:
        cut: ids of the records whose evidence was cut so far.
        bare: ids of the records without evidence.

    Raises:
        LovecError: ``how`` is unknown, or the budget is not positive.
    """

    def __init__(self, budget: int, how: EvidenceCut, count_tokens: CountTokens) -> None:
        check_count("evidence_tokens", budget)
        check_choice("the way to cut evidence", how, EvidenceCut)
        self.budget = budget
        self.how = how
        self.count_tokens = count_tokens
        self._cut = DoublingWarning(
            log, f"%d records have more than {budget} tokens of evidence, which is cut by {how}: %s"
        )
        self._bare = SingleWarning(log, "%d records have no evidence: %s")
        self.cut, self.bare = self._cut.ids, self._bare.ids

    def __call__(self, record: Record) -> str:
        """Return a record's evidence for all its sentences as one text; "" if it has none."""
        text = cut(record.evidence, [s.text for s in record.sentences], self.budget, self.how, self.count_tokens)
        if not text:
            self._bare.add(record.id)
        elif text != _joined(record.evidence):
            self._cut.add(record.id)
            self._cut.flush()
        return text

    def warn(self) -> None:
        """Log, once, that the records so far include some without evidence; to be called when many have been seen."""
        self._bare.flush()


def cut(
    evidence: Sequence[str], sentences: Sequence[str], budget: int, how: EvidenceCut, count_tokens: CountTokens
) -> str:
    """Return evidence as one text of at most ``budget`` tokens.

    Evidence within the budget is kept whole, its texts joined by an empty line. Longer evidence is split into passages
    of about a hundred words: "head" keeps the first passages; "bm25" keeps the best passage for every sentence, then
    the second best for every sentence, and so on, in the order of the evidence. ``[...]`` marks every place where
    something is missing.

    Args:
        evidence: texts; empty ones are ignored.
        sentences: sentences to be checked. Without any, "bm25" is the same as "head".
        budget: largest number of tokens, including the marks.
        how: "bm25" or "head".
        count_tokens: returns the number of tokens of a text.

    Raises:
        LovecError: ``how`` is unknown, or the budget is too small for a single word of the evidence.
    """
    check_choice("the way to cut evidence", how, EvidenceCut)
    texts = stripped(evidence)
    whole = _joined(texts)
    if not whole or count_tokens(whole) <= budget:
        return whole
    passages = [passage for number, text in enumerate(texts) for passage in _passages(number, text)]
    ranking = list(range(len(passages)))
    if how == "bm25" and sentences:
        ranking = _interleaved(bm25([passage.text for passage in passages], sentences))
    mark = count_tokens(f"\n\n{GAP}\n\n")
    chosen, remaining = [], budget - mark
    for index in ranking:
        remaining -= count_tokens(passages[index].text) + mark
        if remaining < 0:
            break
        chosen.append(index)
    while chosen:
        text = _rendered(texts, passages, sorted(chosen))
        if count_tokens(text) <= budget:  # a whole may have more tokens than the sum of its parts
            return text
        chosen.pop()
    return _first_words(passages[ranking[0]], ranking[0] > 0, budget, count_tokens)


def bm25(passages: Sequence[str], queries: Sequence[str]) -> list[list[float]]:
    """Compute Okapi BM25 with Lucene's idf, k1 = 1.5, b = 0.75 (Robertson and Zaragoza 2009): ``[queries][passages]``.

    It is implemented here because the passages of one question are a few hundred at most, for which building the sparse
    index of a library takes longer than the arithmetic.
    """
    query_terms = [words_of(query) for query in queries]
    vocabulary = {term for terms in query_terms for term in terms}
    lengths: list[int] = []
    postings: dict[str, list[tuple[int, int]]] = {}  # indices of passages that have a term, and how often
    for index, passage in enumerate(passages):
        terms = words_of(passage)
        lengths.append(len(terms))
        for term, count in Counter(filter(vocabulary.__contains__, terms)).items():
            postings.setdefault(term, []).append((index, count))
    mean_length = sum(lengths) / len(lengths) or 1.0
    scores = []
    for terms in query_terms:
        row = [0.0] * len(passages)
        for term, times in Counter(terms).items():  # a text may repeat a word a hundred thousand times
            matches = postings.get(term, [])
            idf = times * math.log(1 + (len(passages) - len(matches) + 0.5) / (len(matches) + 0.5))
            for index, count in matches:
                row[index] += idf * count / (count + _K1 * (1 - _B + _B * lengths[index] / mean_length))
        scores.append(row)
    return scores


@dataclass(frozen=True, slots=True)
class _Passage:
    """The text from ``begin`` to ``end`` in the evidence text with this number."""

    number: int
    begin: int
    end: int
    text: str


def _passages(number: int, text: str) -> Iterator[_Passage]:
    """Yield the passages of a text, which end at a line break where possible; together they have all words."""
    words = list(_WORD.finditer(text))
    first = 0
    for last, word in enumerate(words):
        count = last - first + 1
        next_word = words[last + 1].start() if last + 1 < len(words) else None
        line_ends = "\n" in text[word.end() : next_word]
        if next_word is None or count >= _PASSAGE or (count >= _MIN_PASSAGE and line_ends):
            begin, end = words[first].start(), word.end()
            yield _Passage(number, begin, end, text[begin:end])
            first = last + 1


def _interleaved(scores: Sequence[Sequence[float]]) -> list[int]:
    """Rank passages: the best for each query, then the second best for each; the earlier one of equal ones."""
    orders = [sorted(range(len(row)), key=lambda index: -row[index]) for row in scores]
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _rendered(texts: Sequence[str], passages: Sequence[_Passage], chosen: Sequence[int]) -> str:
    """Return the chosen passages (sorted indices) as one text; adjacent ones are joined as in the evidence."""
    parts = [] if chosen[0] == 0 else [GAP, "\n\n"]
    for before, index in zip([None, *chosen], chosen, strict=False):
        passage = passages[index]
        if before is not None:
            last = passages[before]
            if index > before + 1:
                parts.append(f"\n\n{GAP}\n\n")
            else:
                parts.append(
                    texts[passage.number][last.end : passage.begin] if last.number == passage.number else "\n\n"
                )
        parts.append(passage.text)
    return "".join(parts if chosen[-1] == len(passages) - 1 else [*parts, "\n\n", GAP])


def _first_words(passage: _Passage, after_gap: bool, budget: int, count_tokens: CountTokens) -> str:
    """Return as many words of a passage as fit into the budget, for a passage that does not fit as a whole."""
    ends = [word.end() for word in _WORD.finditer(passage.text)]
    head = f"{GAP}\n\n" if after_gap else ""
    low, high = 0, len(ends)  # the number of words that fit is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        fits = count_tokens(f"{head}{passage.text[: ends[middle - 1]]} {GAP}") <= budget
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        raise LovecError(f"a budget of {budget} tokens is too small for one word of the evidence; give a larger one")
    return f"{head}{passage.text[: ends[low - 1]]} {GAP}"


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order, numbers among them, without capitals."""
    return re.findall(r"\w+", text.casefold())


def stripped(evidence: Iterable[str]) -> list[str]:
    """Return the texts of evidence as they are read: without white space at their edges, with Unix's line breaks.

    Those that are blank are left out.
    """
    return [text for given in evidence if (text := unix_lines(given).strip())]


def _joined(evidence: Iterable[str]) -> str:
    return "\n\n".join(stripped(evidence))
