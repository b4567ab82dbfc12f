"""Split sentences into clauses: parts that can be true or false by themselves.

The rules are for English. They need no model, take linear time on any input, and are careful: a sentence that fits none
of them stays whole. ``benchmarks/clauses.py`` measures what the parts hold of the facts that people found in sentences.

A clause ends at a space, before one of these, where a verb stands before and behind it:

1. What follows a semicolon.
2. "and", "but", "or", "nor", "so" or "yet" before another predicate ("was born in Ulm and grew up in Munich") or
   another subject with its verb ("and she won").
3. "although", "because", "while", "after" and the like before a subject with its verb, or before a word in "ing".
4. "who", "which", "where" and the like before a verb, or behind a comma, also as "of which"; and the verb of the main
   clause behind such a clause and a comma.
5. A participle behind a comma ("becoming the first", "known for").
6. The subject behind the comma that closes a clause at the beginning ("Born in Ulm, she").

It never ends inside quotation marks or brackets, or before a word with a capital letter but as in 6: names, titles,
numbers and dates stay whole. Verbs are known from a list, and words in "ed" from what follows them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import yaml

from lovec.text.sentences import reach_of_pairs
from lovec.types import Record, Sentence

DEPENDENCE = 0.25
"""How much the truths of the clauses of a sentence depend on each other, see `joint_confidence`: the best of 0, 0.25,
0.5, 0.75 and 1 on validation answers of the embedded world (``benchmarks/clause_units.py``)."""

CONFIDENCES = "sentence_confidences"
"""Key of ``Record.meta``: the confidences of the sentences of an answer whose units are clauses, by their places."""

_CLOSING = "\"'”’»)]"  # noqa: RUF001 - behind a comma; an apostrophe is meant
_FEWEST_LEFT = 3  # words of a clause that may be left without one that belongs to it and no comma parts from it
_SUBJECTS = ("who", "which")  # relatives that a verb follows
_LONGEST_SUBJECT = 6  # words
_MOST_ADVERBS = 3  # before a verb
_FEWEST_WORDS = 2  # of a clause

_Joint: TypeAlias = Literal["main", "separate", "coordinated", "dependent", "participle", "resumed"]
"""How a clause is joined to what stands before it: behind a clause that opens the sentence, behind a semicolon, by
"and" and the like, by "because" or "who" and the like, by a participle, or as the rest of one that another was put
into."""

_ENDING = re.compile(r"[.!?…]+[\"'”’»)\]*_`]*\Z")  # noqa: RUF001 - an apostrophe is meant
_REFERENCES = re.compile(r"(?:\s?\[\d{1,3}\])+\Z")
_LONGEST_ENDING = 60  # characters that are searched for the end of a sentence
_LOOSE_END = " \t\n,;:–—-"  # noqa: RUF001 - dashes of any length
_TOKEN = re.compile(r"\S+")
_LETTERS = re.compile(r"[^\W_](?:[\w'’.-]*[^\W_])?")  # noqa: RUF001 - an apostrophe is meant
_LISTS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_WORDS = {name: frozenset(words.split()) for name, words in _LISTS.items()}


class Shortened(NamedTuple):
    """What is left of a sentence.

    Attributes:
        text: a sentence.
        begin: the index of the first of its clauses.
        end: that behind the last of them.
    """

    text: str
    begin: int
    end: int


def split_clauses(sentence: str) -> list[str]:
    """Split a sentence into its clauses.

    Joined by single spaces, the clauses are the sentence.

    Args:
        sentence: one sentence, without tags.

    Returns:
        At least one text.
    """
    return [sentence[start:end] for start, end in spans(sentence)]


def spans(sentence: str) -> list[tuple[int, int]]:
    """Return start and end of every clause: ``sentence[start:end]`` is the clause.

    The spans are in order, and one space stands between each and the next.

    Args:
        sentence: as for `split_clauses`.
    """
    starts = [0, *(start for start, _ in _joints(_Reader(sentence)))]
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], len(sentence) + 1], strict=True)]


def in_clauses(record: Record) -> Record:
    """Return a record whose units are clauses, each with the place of its sentence (``Sentence.part_of``).

    What states nothing stays as it is, and so do units that are clauses already. A label stays where the sentence is
    one clause; what is known of a whole sentence says nothing of its parts.

    Args:
        record: an answer with its sentences.
    """
    return replace(record, sentences=tuple(_clauses_of(record)), rejected=None)


def shortened(clauses: Sequence[str], doubted: Sequence[bool]) -> Shortened | None:
    """Return what is left of a sentence without its doubted clauses; None where that may be no sentence.

    A doubted clause goes with all clauses behind it, which may refer to it. A clause that opens the sentence may go by
    itself. Punctuation and "and" that lead to what is left out go, too; the end of the sentence and a capital letter at
    its beginning stay. Nothing is left where the first clause with a subject is doubted, where another one is needed to
    understand what is left ("either", "if"), and of clauses that are divided otherwise than by `split_clauses`.

    Args:
        clauses: the clauses of a sentence.
        doubted: whether each of them is.

    Returns:
        What is left.
    """
    reader = _Reader(" ".join(clauses))
    starts = [*accumulate((len(clause) + 1 for clause in clauses), initial=0)]
    known: dict[int, _Joint | None] = {0: None, **dict(_joints(reader))}
    if not known.keys() >= set(starts[:-1]):
        return None
    joints = [known[start] for start in starts[:-1]]
    words = [[token.word for token in reader.tokens if start <= token.start < end] for start, end in pairwise(starts)]
    head = int(joints[1:2] == ["main"])
    end = next((at for at in range(head, len(clauses)) if doubted[at]), len(clauses))
    begin = head if doubted[0] else 0
    if end <= head or "resumed" in joints[end:] or (begin and not _may_open(words[0], words[1])):
        return None
    comma = clauses[end - 1].rstrip(_CLOSING).endswith(",")
    if end < len(clauses) and not _may_end(joints[end - 1 : end + 1], words[begin:end], words[end], comma):
        return None
    text = " ".join(clauses[begin:end])
    if end < len(clauses):
        ending = _ENDING.search(_REFERENCES.sub("", clauses[-1][-_LONGEST_ENDING:]))
        text = text.rstrip(_LOOSE_END)
        text += ending[0][text.endswith(".") :] if ending else ""
    text = text[: 1 if begin else 0].upper() + text[1 if begin else 0 :]
    return Shortened(text, begin, end) if _is_balanced(text) else None


def joint_confidence(confidences: Sequence[float], dependence: float = DEPENDENCE) -> float:
    """Compute the confidence that all of some clauses are true, from the confidence in each.

    It is m^d p^(1 - d), with m the lowest confidence, p their product and d the dependence. If nothing is known of one
    clause from the others, d is 0, and it is the product; if the least certain clause is never true without all
    others, d is 1, and it is the lowest. More clauses never have more confidence than some of them, and one clause has
    its own.

    Args:
        confidences: [N] in [0, 1], at least one.
        dependence: in [0, 1].

    Returns:
        In [0, 1].
    """
    lowest = min(confidences)
    return lowest * math.pow(math.prod(confidences) / lowest, 1 - dependence) if lowest else 0.0


def sentence_confidences(record: Record) -> dict[int, float | None]:
    """Return the confidence of every sentence of an answer whose units are clauses: that all of its clauses are true.

    Args:
        record: an answer with clauses, see `in_clauses`.

    Returns:
        By the place of the sentence. None where a clause has no confidence.
    """
    clauses: dict[int, list[float | None]] = {}
    for sentence in record.sentences:
        if sentence.part_of is not None:
            clauses.setdefault(sentence.part_of, []).append(sentence.confidence)
    return {place: whole_confidence(values) for place, values in clauses.items()}


def whole_confidence(confidences: Sequence[float | None]) -> float | None:
    """Return the confidence of a sentence, see `joint_confidence`; None where one of its clauses has none.

    Args:
        confidences: those of its clauses, at least one.
    """
    known = [value for value in confidences if value is not None]
    return joint_confidence(known) if len(known) == len(confidences) else None


def _joints(reader: _Reader) -> Iterator[tuple[int, _Joint]]:
    """Yield where every clause but the first begins, and how it is joined to what stands before it."""
    begin, is_inserted = 0, False  # whether a clause inside another one has begun since
    for at in range(1, len(reader.tokens)):
        joint = reader.joint(begin, at, is_inserted)
        if joint is not None:
            yield reader.tokens[at].start, joint
            begin, is_inserted = at, reader.is_insertion(at)
        elif not is_inserted:
            is_inserted = reader.is_insertion(at)


def _may_open(opening: Sequence[str], head: Sequence[str]) -> bool:
    """Return whether a sentence may begin with its head, without the clause before it; both as their words.

    It may not where that is a condition, or may name what the head calls "she".
    """
    return opening[0] not in _WORDS["conditions"] and not (
        opening[0] in _WORDS["subordinators"] and head[0] in _WORDS["pronouns"]
    )


def _may_end(
    joints: Sequence[_Joint | None], kept: Sequence[Sequence[str]], dropped: Sequence[str], comma: bool
) -> bool:
    """Return whether a sentence may end before a clause.

    It may not where the clause is a condition or an alternative, where a word such as "either" announces it, or where
    it is the last item of a list of verbs: "She wrote notes, won a prize, and died." Without a comma, it may not where
    the clause narrows what stays ("the first person who walked on the Moon", "never returned until he was old"), or
    where hardly anything stays ("It was").

    Args:
        joints: how the last clause that stays, and the one behind it, are joined to the others.
        kept: the words of the clauses that stay.
        dropped: those of the clause behind them.
        comma: whether a comma stands between both.
    """
    if joints[-1] == "dependent" and not comma:
        negated = any(word in _WORDS["negations"] or word.endswith(("n't", "n’t")) for word in kept[-1])  # noqa: RUF001
        article = next((word for word in reversed(kept[-1]) if word in _WORDS["articles"]), "")
        relative = dropped[0] in _WORDS["relatives"] and dropped[0] != "when"
        narrowed = relative and article in _WORDS["narrowed"]
        if negated or narrowed or len(kept[-1]) < _FEWEST_LEFT:
            return False
    if dropped[0] in _WORDS["conditions"] or dropped[0] in _WORDS["alternatives"]:
        return False
    if joints[-1] != "coordinated":
        return True
    is_list = joints[0] == "participle" and not kept[-1][0].endswith("ing")
    return not is_list and not any(word in _WORDS["correlatives"] for words in kept for word in words)


def _is_balanced(text: str) -> bool:
    """Return whether brackets, quotation marks and marks of emphasis that are opened in a text are closed in it."""
    pairs = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "“”", "«»"))
    return pairs and all(text.count(mark) % 2 == 0 for mark in ('"', "**", "__", "`"))


def _clauses_of(record: Record) -> Iterator[Sentence]:
    for place, sentence in enumerate(record.sentences):
        if not sentence.is_statement or sentence.part_of is not None:
            yield sentence
            continue
        texts = split_clauses(sentence.text)
        label = sentence.factuality if len(texts) == 1 else None
        yield from (Sentence(text, label, part_of=place) for text in texts)


@dataclass(frozen=True, slots=True)
class _Token:
    """A word with the punctuation around it.

    Attributes:
        start: its place in the sentence.
        word: the word without punctuation, in lower case; "" where there is none.
        bare: whether no punctuation stands before the word.
        capital: whether it begins with a capital letter.
        mark: the punctuation behind it.
        after_space: whether exactly one space, outside of quotation marks and brackets, stands before it.
    """

    start: int
    word: str
    bare: bool
    capital: bool
    mark: str
    after_space: bool


class _Reader:
    """Reads the words of a sentence.

    Args:
        sentence: the sentence.
    """

    def __init__(self, sentence: str) -> None:
        self.tokens: list[_Token] = []
        reach = reach_of_pairs(sentence, 0, len(sentence))
        for match in _TOKEN.finditer(sentence):
            text, start = match[0], match.start()
            word = _LETTERS.search(text)
            before = sentence[start - 2 : start] if start > 1 else ""
            self.tokens.append(
                _Token(
                    start,
                    "" if word is None else word[0].casefold(),
                    word is not None and word.start() == 0,
                    word is not None and word[0][0].isupper(),
                    "" if word is None else text[word.end() :],
                    len(before) == 2 and before[1] == " " and not before[0].isspace() and reach(start) < start,
                )
            )

        self._verbs = [0]  # before every word
        for at in range(len(self.tokens)):
            self._verbs.append(self._verbs[-1] + self._is_verb(at))
        self._ends = [len(self.tokens)] * len(self.tokens)  # behind the next word with a comma or a semicolon
        for at in reversed(range(len(self.tokens) - 1)):
            self._ends[at] = at + 1 if self.tokens[at].mark[-1:] in (",", ";") else self._ends[at + 1]

    def joint(self, begin: int, at: int, is_inserted: bool) -> _Joint | None:
        """Return how the clause that begins at a word is joined to the one before it; None where none begins.

        Args:
            begin: index of the word that the clause before begins with.
            at: index of the word.
            is_inserted: whether a clause inside another one has begun between them.
        """
        token, before = self.tokens[at], self.tokens[at - 1]
        if not token.after_space or at - begin < _FEWEST_WORDS or not token.bare:
            return None
        if not any(self.tokens[at + more].word for more in range(1, _FEWEST_WORDS) if at + more < len(self.tokens)):
            return None
        comma = before.mark.endswith(",")
        if comma and self._opens_sentence(begin, at) and self._has_subject(at):
            return "main"
        if token.capital or not self._has_verb(begin, at):
            return None
        if before.mark.endswith(";"):
            return "separate" if self._has_verb(at, self._ends[at]) else None
        if self._is_coordinated(at, comma):
            return "coordinated"
        if self._is_subordinate(at, comma) or self._is_relative(at, comma):
            return "dependent"
        if comma and is_inserted and self._is_verb(at):
            return "resumed"
        return "participle" if comma and self._is_participle(at) else None

    def is_insertion(self, at: int) -> bool:
        """Return whether a clause behind a comma stands at a word that another clause may go on after."""
        comma = self.tokens[at - 1].mark.endswith(",")
        return comma and not self.tokens[at].capital and (self._is_relative(at, True) or self._is_participle(at))

    def _is(self, at: int, kind: str) -> bool:
        """Return whether a word is in a list."""
        return at < len(self.tokens) and self.tokens[at].word in _WORDS[kind]

    def _is_adverb(self, at: int) -> bool:
        word = self.tokens[at].word if at < len(self.tokens) else ""
        return word in _WORDS["adverbs"] or (word.endswith("ly") and len(word) > 4)

    def _after_adverbs(self, at: int) -> int:
        """Return the index of the first word that is not an adverb."""
        for _ in range(_MOST_ADVERBS):
            if not self._is_adverb(at) or self.tokens[at].mark:
                break
            at += 1
        return at

    def _is_followed(self, at: int) -> bool:
        """Return whether a word stands before one that follows verbs: a small word, a name or a number."""
        if self.tokens[at].mark or at + 1 >= len(self.tokens):
            return False
        after = self.tokens[at + 1]
        return self._is(at + 1, "followers") or after.capital or after.word[:1].isdigit() or self._is_adverb(at + 1)

    def _is_verb(self, at: int) -> bool:
        """Return whether a verb that has a subject stands at a word, behind adverbs."""
        at = self._after_adverbs(at)
        if at >= len(self.tokens) or self.tokens[at].capital or not self.tokens[at].bare:
            return False
        return self._is(at, "verbs") or self._is_likely_verb(at)

    def _is_likely_verb(self, at: int) -> bool:
        word = self.tokens[at].word
        regular = word.endswith("ed") and len(word) > 3 and word not in _WORDS["no_verbs"]
        known = regular or self._is(at, "maybe_verbs") or self._is(at, "participles")
        return known and (self._is_followed(at) or self._is_preceded(at))

    def _is_preceded(self, at: int) -> bool:
        """Return whether a word stands behind one that subjects end in: a pronoun, "who" or a name."""
        if at == 0 or self.tokens[at - 1].mark or self.tokens[at].capital:
            return False
        return self._is(at - 1, "pronouns") or self.tokens[at - 1].word in _SUBJECTS or self.tokens[at - 1].capital

    def _has_verb(self, begin: int, end: int) -> bool:
        """Return whether a verb stands among some words."""
        return self._verbs[end] > self._verbs[begin]

    def _has_subject(self, at: int) -> bool:
        """Return whether a subject begins at a word, with its verb behind it and no comma between."""
        if at >= len(self.tokens) or self.tokens[at].mark:
            return False
        if self._is(at, "pronouns"):
            return self._is_verb(at + 1)
        if not (self._is(at, "determiners") or self.tokens[at].capital):
            return False
        for verb in range(at + 1, min(at + 1 + _LONGEST_SUBJECT, len(self.tokens))):
            if self._is_verb(verb):
                return True
            if self.tokens[verb].mark or self._is(verb, "prepositions"):
                return False
        return False

    def _is_gerund(self, at: int) -> bool:
        """Return whether a word in "ing" stands at a word, before one that follows verbs."""
        return self._is_in_ing(at) and (self._is_followed(at) or self.tokens[at].word == "having")

    def _is_in_ing(self, at: int) -> bool:
        if at >= len(self.tokens) or self.tokens[at].capital:
            return False
        word = self.tokens[at].word
        return word.endswith("ing") and len(word) > 4 and word not in _WORDS["no_participles"]

    def _is_coordinated(self, at: int, comma: bool) -> bool:
        if not self._is(at, "coordinators") or self.tokens[at].mark:
            return False
        if self._is(at + 1, "pronouns") and self._has_subject(at + 1):
            return True
        if self._is_verb(at + 1):
            return comma or not self._is_bare_verb(at - 1)
        return comma and (self._has_subject(at + 1) or self._is_relative(at + 1, True))

    def _is_bare_verb(self, at: int) -> bool:
        """Return whether a word is a verb that waits for what follows: "written" in "written and directed by"."""
        token = self.tokens[at]
        return not token.mark and (token.word.endswith("ed") or token.word in _WORDS["participles"])

    def _is_subordinate(self, at: int, comma: bool) -> bool:
        if self.tokens[at].mark or not self._is(at, "subordinators"):
            return False
        if comma:
            return self._has_verb(at + 1, self._ends[at]) or self._is_gerund(at + 1)
        if self._is(at, "bare_subordinators"):
            return self._has_verb(at + 1, self._ends[at])
        return self._is(at, "loose_subordinators") and (
            self._is_in_ing(at + 1) or (self._is(at + 1, "pronouns") and self._has_subject(at + 1))
        )

    def _is_relative(self, at: int, comma: bool) -> bool:
        if self.tokens[at].mark:
            return False
        if self._is(at, "relatives"):
            return comma or (self.tokens[at].word in _SUBJECTS and self._is_verb(at + 1))
        if self._is(at, "quantities") and self._is(at + 1, "prepositions"):
            at += 1
        is_preposition = comma and self._is(at, "prepositions")
        return is_preposition and at + 1 < len(self.tokens) and self.tokens[at + 1].word in ("which", "whom")

    def _is_participle(self, at: int) -> bool:
        at = self._after_adverbs(at)
        if at >= len(self.tokens):
            return False
        return self._is_gerund(at) or (not self.tokens[at].capital and self._is_likely_verb(at))

    def _opens_sentence(self, begin: int, at: int) -> bool:
        """Return whether the words up to another one are a clause at the beginning of the sentence."""
        if begin > 0:
            return False
        first = self.tokens[0].word
        if first in _WORDS["subordinators"]:
            return self._has_verb(1, at) or self._is_opening_participle(1)
        return self._is_opening_participle(0)

    def _is_opening_participle(self, at: int) -> bool:
        word = self.tokens[at].word
        known = (
            word in _WORDS["participles"]
            or word.endswith("ed")
            or (word.endswith("ing") and word not in _WORDS["no_participles"])
        )
        return known and len(word) > 3 and self._is_followed(at)
