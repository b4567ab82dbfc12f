"""Thresholds with a guarantee: which sentences to leave out so that what is kept is true, for answers not seen before.

Two kinds of promise, both from labelled passages that are exchangeable with those to come (as if drawn from the same
source, in any order):

- Conformal factuality (Mohri and Hashimoto 2024, arXiv 2402.10978): with probability at least 1 - alpha, at least a
  share a of the kept sentences of a new passage are true; a = 1 is all of them. A passage of which nothing is kept
  counts as true.
- Conformal risk control (Angelopoulos et al. 2022, arXiv 2208.02814): the expected loss of a new passage is at most
  alpha, where the loss is the number of kept false sentences divided by the number of all sentences of the passage.

The probability is over the labelled passages and the new one together, not for each passage by itself. Several answers
to one question are not drawn by themselves: they count as much as one, and the promise is about an answer to a new
question (hierarchical conformal prediction: Lee, Barber and Willett 2023, arXiv 2306.06342). A sentence is true if its
factuality is at least ``true_from``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lovec.calibration.logistic import Array
from lovec.core.notices import counted
from lovec.core.plain import PlainObject, Share, checked_number, plain_object, read_object, wrong
from lovec.core.settings import check_choice, check_range
from lovec.types import LovecError, Promise, Record, Sentence, question_id

TRUE_FROM = 0.5
"""Factuality from which a sentence counts as true by default: at least half of what it says is supported."""

_DIGITS = 9  # to which ranks are rounded before they are rounded up: (29 + 1)(1 - 0.9) is 3, not 2.9999999999999996
_ENDS = {math.inf: "nothing", -math.inf: "everything"}
_BELOW_ALL = -math.inf


class Passage(NamedTuple):
    """The sentences of one passage.

    Attributes:
        scores: how sure the tagger is of each, on any scale; None where it said nothing, so that it is never kept.
        true: whether each is true.
        weight: share of the passage in those of its question, of which all labelled ones have the sum 1.
    """

    scores: Sequence[float | None]
    true: Sequence[bool]
    weight: float = 1.0


def passages_of(
    records: Iterable[Record], score: Callable[[Sentence], float | None], true_from: float = TRUE_FROM
) -> tuple[list[Passage], int]:
    """Return the passages of tagged and labelled records.

    Sentences without a factuality are left out, so that a guarantee is about sentences that can be judged; a record
    without any other is left out altogether.

    Args:
        records: tagged and labelled records.
        score: what sentences are kept by, None where a sentence has none, such as ``Calibration.rank``.
        true_from: factuality from which a sentence is true, in (0, 1].

    Returns:
        The passages, and the number of sentences left out.

    Raises:
        LovecError: ``true_from`` is outside (0, 1].
    """
    check_range("true_from", true_from, above=0, at_most=1)
    passages, questions, unlabelled = [], [], 0
    for record in records:
        labelled = [sentence for sentence in record.sentences if sentence.factuality is not None]
        unlabelled += len(record.sentences) - len(labelled)
        if labelled:
            passages.append(Passage([score(s) for s in labelled], [is_true(s, true_from) for s in labelled]))
            questions.append(question_id(record.id))
    return weighted(passages, questions), unlabelled


def weighted(passages: Iterable[Passage], questions: Sequence[Hashable]) -> list[Passage]:
    """Return passages with equal weights among those of one question.

    Args:
        passages: the passages.
        questions: what each answers, [number of passages].
    """
    answers = Counter(questions)
    return [
        passage._replace(weight=1.0 / answers[question]) for passage, question in zip(passages, questions, strict=True)
    ]


def is_true(sentence: Sentence, true_from: float) -> bool:
    """Return whether a labelled sentence counts as true."""
    return sentence.factuality is not None and sentence.factuality >= true_from


def conformal_scores(passages: Iterable[Passage], share: float = 1.0) -> list[float]:
    """Return the score r of each passage: keeping what lies strictly above r keeps at least the share a of true ones.

    Going down from the highest score, r is the first score t at which the share of true sentences among those with a
    score of at least t is below a; minus infinity where that never happens. So if fewer than a share a of the sentences
    above a threshold are true, then r lies above the threshold.

    Args:
        passages: scores and truths.
        share: a, in (0, 1].

    Raises:
        LovecError: ``share`` is outside (0, 1], a score is NaN, or a passage has not as many truths as scores.
    """
    check_range("share", share, above=0, at_most=1)
    found = []
    for passage in passages:
        scores, true = _checked(passage)
        levels, kept, correct = _from_the_top(scores, true)
        short = np.flatnonzero(correct / kept < share)  # quotients of integers: 7/10 is the float 0.7
        found.append(float(levels[short[0]]) if short.size else _BELOW_ALL)
    return found


def conformal_threshold(scores: Sequence[float], alpha: float, weights: Sequence[float] | None = None) -> float:
    """Return the ceil((n + 1)(1 - alpha))-th smallest of n scores r, infinity where that is more than n.

    With weights, n is their sum, and it is the smallest score r up to which they have the sum (n + 1)(1 - alpha).

    Args:
        scores: see ``conformal_scores``.
        alpha: in (0, 1).
        weights: see ``Passage.weight``, one per score; None is 1 for all.

    Raises:
        LovecError: ``alpha`` is outside (0, 1).
    """
    check_range("alpha", alpha, above=0, below=1)
    weights = [1.0] * len(scores) if weights is None else weights
    needed = round((math.fsum(weights) + 1) * (1.0 - alpha), _DIGITS)
    reached = 0.0
    for score, weight in sorted(zip(scores, weights, strict=True)):
        reached += weight
        if round(reached, _DIGITS) >= needed:
            return score
    return math.inf


def risk_threshold(passages: Iterable[Passage], alpha: float) -> float:
    """Return the lowest threshold t for which (sum of L_i(t) + 1) / (n + 1) <= alpha, infinity where there is none.

    L_i(t) is the number of false sentences of passage i with a score above t, divided by the number of its sentences.
    It lies in [0, 1], never rises with t, and is continuous from the right, which is what risk control asks for; then
    the expected loss of a new passage is at most alpha. With weights, n is their sum, and each L_i(t) is multiplied by
    its weight.

    Args:
        passages: scores and truths.
        alpha: in (0, 1).

    Raises:
        LovecError: ``alpha`` is outside (0, 1), a score is NaN, or a passage has not as many truths as scores.
    """
    check_range("alpha", alpha, above=0, below=1)
    false: list[tuple[float, float]] = []  # score and loss of every false sentence
    weights: list[float] = []
    for passage in passages:
        scores, true = _checked(passage)
        weights.append(passage.weight)
        false += [(float(score), passage.weight / len(scores)) for score in scores[~true & ~np.isneginf(scores)]]
    n = round(math.fsum(weights), _DIGITS)
    if round(1.0 / (n + 1), _DIGITS) > alpha:
        return math.inf
    if not false:
        return _BELOW_ALL
    levels, place = np.unique([score for score, _ in false], return_inverse=True)
    at_level = np.bincount(place, weights=[loss for _, loss in false])
    above = np.append(at_level[::-1].cumsum()[::-1], 0.0)  # losses above -infinity, and above each level in turn
    allowed = np.round((above + 1.0) / (n + 1), _DIGITS) <= alpha
    return float(np.append(_BELOW_ALL, levels)[np.argmax(allowed)])


def losses(passages: Sequence[Passage], kind: Promise, share: float, thresholds: ArrayLike) -> Array:
    """Return how far each passage breaks a promise at each threshold.

    Args:
        passages: scores and truths.
        kind: what is promised.
        share: for "share", the share of the kept sentences that is true.
        thresholds: [T].

    Returns:
        [number of passages, T], in [0, 1]. For "errors" the number of kept false sentences divided by that of all, else
        1 where the score r of the passage lies above the threshold. It never rises with the threshold.

    Raises:
        LovecError: see ``conformal_scores``.
    """
    at = np.asarray(thresholds, dtype=np.float64)
    if kind != "errors":
        return (np.array(conformal_scores(passages, share))[:, None] > at).astype(np.float64)
    found = np.empty((len(passages), len(at)))
    for number, passage in enumerate(passages):
        scores, true = _checked(passage)
        false = np.sort(scores[~true])
        found[number] = (len(false) - np.searchsorted(false, at, side="right")) / len(scores)
    return found


@dataclass(frozen=True, slots=True)
class Guarantee(PlainObject):
    """A threshold, and what is promised of the sentences whose score lies strictly above it.

    Attributes:
        kind: what is promised, see ``Promise``.
        alpha: how often the promise may fail for "all-true" and "share", the bound on the expected loss for "errors".
        share: share a of the kept sentences that is true; 1 for "all-true", and without meaning for "errors".
        true_from: factuality from which a sentence is true.
        threshold: infinity keeps nothing, minus infinity keeps everything with a score.
        passages: number of passages it was computed from.
        sentences: number of their labelled sentences.
        kept: share of these that it keeps.
        certainty: share of such thresholds, each from other labelled passages, that keep the promise by themselves;
            None where the promise holds on average over them.
    """

    what: ClassVar[str] = "a guarantee"

    kind: Promise
    alpha: Share
    share: Share
    true_from: Share
    threshold: Annotated[float, _threshold]
    passages: int
    sentences: int
    kept: Share
    certainty: Share | None = None

    @property
    def keep_factual(self) -> float:
        """Probability 1 - alpha with which the promise holds; for "errors", 1 less the bound."""
        return round(1.0 - self.alpha, _DIGITS)

    @property
    def keeps_nothing(self) -> bool:
        """Whether there were too few passages, or too many errors, for any sentence to be kept."""
        return self.threshold == math.inf

    def keeps(self, score: float | None) -> bool:
        """Return whether a sentence is kept: its score lies strictly above the threshold."""
        return keeps(score, self.threshold)

    def promise(self, item: str = "sentence", group: str = "answer", label: str = "true") -> str:
        """Return in one sentence what is promised.

        Args:
            item: what is kept or not.
            group: what such things belong to.
            label: what such things are whose label is high.
        """
        true = f"{label} (factuality of at least {self.true_from:g})"
        by_itself = "" if self.certainty is None else f", which {self.certainty:.3g} of such thresholds keep"
        if self.kind == "errors":
            most = f"at most {self.alpha:.3g} of all {item}s{by_itself}"
            return f"the kept {item}s that are not {true} are on average {most}"
        part = "all" if self.kind == "all-true" else f"at least {self.share:.3g} of the"
        article = "an" if group[0] in "aeiou" else "a"
        probability = f"with probability {self.keep_factual:.3g} or more{by_itself}"
        return f"{part} kept {item}s of {article} {group} are {true} {probability}"

    def describe(self, item: str = "sentence", group: str = "answer", label: str = "true") -> str:
        """Return in one sentence what is promised, and how much is kept; arguments as of ``promise``."""
        if self.keeps_nothing:
            labelled = counted(self.passages, f"labelled {group}")
            return (
                f"{self.promise(item, group, label)}: {labelled}, too few or with too many errors, so nothing is kept; "
                f"label more {group}s, or promise less"
            )
        counts = f"{counted(self.sentences, item)} of {counted(self.passages, group)}"
        return f"{self.promise(item, group, label)}; {100 * self.kept:.0f} % of {counts} are kept"

    def to_dict(self) -> dict[str, Any]:
        """Return the guarantee as a plain JSON object; an infinite threshold is "nothing" or "everything"."""
        said = plain_object(self) | {"threshold": _ENDS.get(self.threshold, self.threshold)}
        return said if self.certainty is not None else {name: said[name] for name in said if name != "certainty"}

    @classmethod
    def from_dict(cls, data: Any) -> Guarantee:
        """Return the guarantee that a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        return read_object(cls, {"certainty": None, **data} if isinstance(data, Mapping) else data)


def guarantee(
    passages: Sequence[Passage],
    alpha: float,
    kind: Promise = "all-true",
    share: float = 1.0,
    true_from: float = TRUE_FROM,
) -> Guarantee:
    """Compute the threshold for a promise from labelled passages.

    Args:
        passages: see ``passages_of``, or ``weighted``; the scores must not have been fitted to their labels.
        alpha: how often the promise may fail, or the bound on the expected loss; in (0, 1).
        kind: what is promised.
        share: for "share", the share of the kept sentences that is true, in (0, 1].
        true_from: what ``passages_of`` was called with, to be kept with the threshold.

    Raises:
        LovecError: there is no passage, a setting is out of its range, or a score is NaN.
    """
    check_choice("kind of a guarantee", kind, Promise)
    check_range("true_from", true_from, above=0, at_most=1)
    if not passages:
        raise LovecError("a guarantee got no labelled passage, expected tagged and labelled answers; label some first")
    if kind == "all-true":
        check_range("share of a guarantee that all kept sentences are true", share, at_least=1, at_most=1)
    if kind == "errors":
        threshold = risk_threshold(passages, alpha)
    else:
        weights = [passage.weight for passage in passages]
        threshold = conformal_threshold(conformal_scores(passages, share), alpha, weights)
    found = retention(passages, threshold)
    return Guarantee(kind, alpha, share, true_from, threshold, len(passages), found.sentences, found.share)


def keeps(score: float | None, threshold: float) -> bool:
    """Return whether a sentence is kept: it has a score, and the score lies strictly above the threshold.

    "Strictly" is what the guarantee needs: r itself is a score at which too many sentences were false.
    """
    return score is not None and score > threshold


class Retention(NamedTuple):
    """What a threshold keeps.

    Attributes:
        kept: number of sentences that are kept.
        sentences: number of all sentences.
        true_kept: number of sentences that are kept and true.
        errors: mean over passages of the kept false sentences divided by all sentences of the passage.
    """

    kept: int
    sentences: int
    true_kept: int
    errors: float

    @property
    def share(self) -> float:
        """Share of sentences that are kept."""
        return self.kept / self.sentences if self.sentences else 0.0


def retention(passages: Iterable[Passage], threshold: float) -> Retention:
    """Return what a threshold keeps of passages."""
    kept = sentences = true_kept = 0
    errors: list[float] = []
    for scores, true, _ in passages:
        chosen = [bool(is_right) for score, is_right in zip(scores, true, strict=True) if keeps(score, threshold)]
        kept, sentences, true_kept = kept + len(chosen), sentences + len(scores), true_kept + sum(chosen)
        errors += [(len(chosen) - sum(chosen)) / len(scores)] if len(scores) else []
    return Retention(kept, sentences, true_kept, math.fsum(errors) / len(errors) if errors else 0.0)


def holds(passage: Passage, threshold: float, share: float = 1.0) -> bool:
    """Return whether at least a share of the kept sentences of a passage is true; also where nothing is kept."""
    kept = [is_right for score, is_right in zip(passage.scores, passage.true, strict=True) if keeps(score, threshold)]
    return not kept or sum(kept) / len(kept) >= share


def _threshold(value: Any, name: str) -> float:
    """Return the threshold in a file: a number, or the words for one of its ends."""
    if not isinstance(value, str):
        return checked_number(value, name, 0.0, 1.0)
    ends = {words: end for end, words in _ENDS.items()}
    if value not in ends:
        raise wrong(name, value, "a number, 'nothing' or 'everything'")
    return ends[value]


def _checked(passage: Passage) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return scores [n], minus infinity where there is none, and truths [n].

    Raises:
        LovecError: there are not as many of the one as of the other, or a score is NaN.
    """
    scores = np.array([_BELOW_ALL if score is None else score for score in passage.scores], dtype=np.float64)
    true = np.array(passage.true, dtype=bool)
    if scores.shape != true.shape or np.isnan(scores).any() or np.isposinf(scores).any():
        raise LovecError(
            f"a passage has {scores.size} scores and {true.size} truths, expected equally many, and scores that are "
            "finite; a sentence without a score has None"
        )
    return scores, true


def _from_the_top(scores: Array, true: Any) -> tuple[Array, Array, Array]:
    """Return the different scores from the highest, and the numbers of sentences and of true ones from each upwards."""
    scored = ~np.isneginf(scores)
    levels, place = np.unique(-scores[scored], return_inverse=True)
    kept = np.bincount(place, minlength=len(levels)).cumsum()
    correct = np.bincount(place, weights=true[scored], minlength=len(levels)).cumsum()
    return -levels, kept, correct
