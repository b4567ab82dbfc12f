"""Semantic entropy: how many different things the model says in the place of a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lovec.baselines.base import Claim, Judge
from lovec.baselines.consistency import SampleBaseline
from lovec.core.settings import Count, PlainWord
from lovec.text.sentences import split_sentences
from lovec.types import Record

_WORD = re.compile(r"\w+")


class SemanticEntropy(SampleBaseline):
    """Semantic entropy (Kuhn et al. 2023, arXiv 2302.09664; Farquhar et al. 2024) of every sentence of an answer.

    In each of the n samples, the counterpart of a sentence is the sentence of the sample that supports it best; of
    those that support it equally well, such as not at all, the one that shares most words with it (as a share of the
    words of both). The sentence and its n counterparts are grouped into meanings: one after the other, each joins the
    first group whose first member it entails and is entailed by, or begins a group of its own. With p(g) the share of
    the n + 1 statements in group g (the discrete form, which needs no probabilities):

        H = -sum over g of p(g) ln p(g)        confidence = 1 - H / ln(n + 1)

    A sample without a sentence is a meaning of its own. Farquhar et al. find counterparts in long answers by questions
    that another model makes up about every claim, and ask them anew; here they come from the same samples that LUQ and
    Self-Consistency use, so there is no second round of sampling. Without any sample there is no confidence.

    Args:
        samples: number of other answers per question.
        judge: tells how statements relate, see ``lovec.baselines.base.relations``; None takes the judge that comes with
            the data, or else the model's own yes or no.
        name: its name in tables.

    Raises:
        LovecError: ``samples`` is not positive.
    """

    def __init__(self, samples: Count = 10, judge: Judge | None = None, name: PlainWord = "Sem-Entropy") -> None:
        super().__init__(samples, judge, name)

    def compare(self, records: Sequence[Record], samples: Sequence[Sequence[str]]) -> list[list[float | None]]:
        """Return one minus the normalised semantic entropy of every sentence."""
        pieces = [[split_sentences(text) for text in texts] for texts in samples]
        groups = [
            [_Meanings(record, sentence.text, list[str | None]()) for sentence in record.sentences]
            for record in records
        ]
        support = self.support_by_pieces(records, pieces)
        for number, (row, texts) in enumerate(zip(groups, pieces, strict=True)):
            for meanings in row:
                for sentences in texts:
                    ranks = [
                        (support[number, piece, meanings.sentence], _overlap(piece, meanings.sentence))
                        for piece in sentences
                    ]
                    best = sentences[ranks.index(max(ranks))] if ranks else None  # the first of equals
                    meanings.counterparts.append(best)
        self._group([meanings for row in groups for meanings in row])
        return [[meanings.confidence for meanings in row] for row in groups]

    def _group(self, all_meanings: Sequence[_Meanings]) -> None:
        """Group the statements of all sentences, one counterpart at a time, so that judges get many claims at once."""
        for turn in range(max((len(meanings.counterparts) for meanings in all_meanings), default=0)):
            due = [meanings for meanings in all_meanings if turn < len(meanings.counterparts)]
            claims = {
                (claim.record.id, claim.premise, claim.hypothesis): claim
                for meanings in due
                for claim in meanings.claims(turn)
            }
            found = self.relations(list(claims.values()))
            entailed = {key for key, relation in zip(claims, found, strict=True) if relation == "entailment"}
            for meanings in due:
                meanings.join(turn, entailed)


@dataclass(slots=True)
class _Meanings:
    """A sentence and its counterparts in samples, grouped by meaning.

    Attributes:
        record: the record of the sentence.
        sentence: its text.
        counterparts: its counterpart in each sample; None where the sample has no sentence.
        firsts: the first member of every group, the sentence itself in the first one; None for an empty sample.
        sizes: number of members of every group.
    """

    record: Record
    sentence: str
    counterparts: list[str | None]
    firsts: list[str | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.firsts, self.sizes = [self.sentence], [1]

    @property
    def confidence(self) -> float | None:
        """1 - H / ln(n + 1); None without any sample."""
        n = len(self.counterparts)
        if not n:
            return None
        entropy = math.fsum(-size / (n + 1) * math.log(size / (n + 1)) for size in self.sizes)
        return min(1.0, max(0.0, 1.0 - entropy / math.log(n + 1)))

    def claims(self, turn: int) -> list[Claim]:
        """Return the claims that tell which group a counterpart belongs to; none where its very words are a group's."""
        statement = self.counterparts[turn]
        if statement is None or statement in self.firsts:
            return []
        others = [first for first in self.firsts if first is not None]
        pairs = [pair for first in others for pair in ((first, statement), (statement, first))]
        return [Claim(self.record, premise, hypothesis) for premise, hypothesis in pairs]

    def join(self, turn: int, entailed: set[tuple[str, str, str]]) -> None:
        """Put a counterpart into its group, given the keys (record, premise, hypothesis) of claims that hold."""
        statement, name = self.counterparts[turn], self.record.id
        for place, first in enumerate(self.firsts):
            if statement is None or first is None:
                continue
            both = {(name, first, statement), (name, statement, first)}
            if statement == first or both <= entailed:
                self.sizes[place] += 1
                return
        self.firsts.append(statement)
        self.sizes.append(1)


def _overlap(one: str, other: str) -> float:
    """Return the words that two sentences share, as a share of the words of both; capitals do not count."""
    a, b = (set(_WORD.findall(text.lower())) for text in (one, other))
    return len(a & b) / len(a | b) if a | b else 0.0
