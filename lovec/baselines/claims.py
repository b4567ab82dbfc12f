"""Claim-conditioned probability: how probable the model finds what a sentence says, whatever words it uses for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

from lovec.baselines.base import Claim, Judge
from lovec.baselines.judged import JudgedBaseline
from lovec.baselines.plain import PlainText, plain_texts
from lovec.core.settings import PlainWord, Setting
from lovec.types import MOST_TOP, Record, TokenScores, token_scorer


class ClaimConditioned(JudgedBaseline):
    """Claim-conditioned probability (CCP; Fadeeva et al. 2024, arXiv 2403.04696) of whole sentences.

    For every token of a sentence, the ``top`` most probable tokens in its place are put there instead, one at a time,
    and a judge tells whether the sentence that results entails the original one, contradicts it, or neither. With E and
    C the sums of the probabilities of the tokens that entail and contradict, the original token among E:

        CCP(token) = E / (E + C)        confidence = product of CCP(token) over the tokens of the sentence

    So what the model might have said of something else (neutral) does not count against a sentence, and other words for
    the same count for it. Three things differ from the paper: the sentence is judged as a whole, with what follows the
    token, since facts can only be compared in whole sentences; words without a meaning of their own are not looked up
    in a list, and only tokens without a letter or digit are left out (CCP = 1); and a sentence is one claim. A sentence
    that the judge finds neutral to itself, because it cannot read it, has confidence 0, as with LUQ.

    Args:
        top: number of the most probable tokens that are tried in every place; 10 in the paper.
        judge: tells how sentences relate, see ``lovec.baselines.base.relations``; None takes the judge that comes with
            the data, or else the model's own yes or no.
        name: its name in tables.

    Raises:
        LovecError: ``top`` is out of range; when tagging, the engine gives no log-probabilities of given tokens.
    """

    def __init__(
        self,
        top: Annotated[int, Setting(at_least=1, at_most=MOST_TOP)] = 10,
        judge: Judge | None = None,
        name: PlainWord = "CCP",
    ) -> None:
        super().__init__(judge, name)
        self.top = top

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the claim-conditioned probability of every sentence; None where it does not fit the context."""
        engine, encoder = self.resources.engine, self.resources.encoder
        rows: list[list[float | None]] = [[None] * len(record.sentences) for record in records]
        with self.watch.phase("scoring"):
            texts = plain_texts(records, engine, encoder)
            found = token_scorer(engine).token_logps(
                [text.ids for text in texts], [text.start for text in texts], top=self.top
            )
            engine.score([], [])  # frees the states that the engine keeps
        with self.watch.phase("judging"):
            places = [
                (text.record, at, list(self._places(records[text.record], text, scores, at, begin, end)))
                for text, scores in zip(texts, found, strict=True)
                for at, begin, end in text.spans
            ]
            asked = [claim for _, _, tokens in places for _, others in tokens for claim, _ in others]
            asked += [Claim(records[at], s.text, s.text) for at, i, _ in places for s in [records[at].sentences[i]]]
            claims = {(claim.record.id, claim.premise, claim.hypothesis): claim for claim in asked}
            relation = dict(zip(claims, self.relations(list(claims.values())), strict=True))
        for number, at, tokens in places:
            name, sentence = records[number].id, records[number].sentences[at].text
            confidence = float(relation[name, sentence, sentence] != "neutral")
            for own, others in tokens:
                weights = {"entailment": [own], "contradiction": [0.0], "neutral": [0.0]}
                for claim, weight in others:
                    weights[relation[name, claim.premise, claim.hypothesis]].append(weight)
                same, against = math.fsum(weights["entailment"]), math.fsum(weights["contradiction"])
                confidence *= same / (same + against) if same + against else 1.0
            rows[number][at] = confidence
        return rows

    def _places(
        self, record: Record, text: PlainText, scores: TokenScores, at: int, begin: int, end: int
    ) -> Iterator[tuple[float, list[tuple[Claim, float]]]]:
        """Yield, for every token of a sentence, its own probability, and the claims of others with theirs.

        Other tokens that leave the sentence as it is count as the token itself.
        """
        encoder = self.resources.encoder
        ids, sentence = text.ids[begin:end], record.sentences[at].text
        own_logps, tops = scores.logps[text.tokens(begin, end)], scores.top[text.tokens(begin, end)]
        for place, (token, logp, top) in enumerate(zip(ids, own_logps, tops, strict=True)):
            if not any(map(str.isalnum, encoder.decode([token]))):
                continue
            own, others = math.exp(logp), []
            for other, other_logp in top.items():
                changed = encoder.decode([*ids[:place], other, *ids[place + 1 :]]).strip()
                if other == token or not encoder.decode([other]).strip():
                    continue  # a special token or white space says nothing
                if changed == sentence:
                    own += math.exp(other_logp)
                elif changed:
                    others.append((Claim(record, changed, sentence), math.exp(other_logp)))
            yield own, others
