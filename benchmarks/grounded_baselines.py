"""What grounded.py and grounded_text.py compare adapters with: baselines that read a source without being trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from lovec.baselines import BaselineResources, Samples, SentenceLikelihood, SourceOverlap, Wording
from lovec.baselines.base import Baseline, with_confidences
from lovec.baselines.likelihood import gain_of
from lovec.calibration import Isotonic
from lovec.metrics.bootstrap import QuestionPairs
from lovec.taggers import FreeFormTagger, IterativeTagger, open_session
from lovec.types import Record

CONSTANT = "best constant"
OVERLAP, PLAIN, GIVEN, GAIN = "overlap", "likelihood, without source", "likelihood, with source", "likelihood, gain"
PRECISION = "bfloat16"
"""Of the weights whose likelihoods are taken: half the time of float32, and likelihoods change by some 0.5 %."""
FOLDS = 5
"""Number of parts of cross-fitting."""
_AT_ONCE = 8  # answers between two lines that say how far it is


def read_by_baselines(model: str, records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return answers with the confidences of every baseline.

    Args:
        model: the bare model whose likelihood is taken.
        records: answers with evidence.
    """
    tagged = {OVERLAP: SourceOverlap().tag(records)}
    with open_session(model, dtype=PRECISION) as session:
        for name, baseline in ((PLAIN, SentenceLikelihood()), (GIVEN, SentenceLikelihood(evidence="given"))):
            baseline.attach(BaselineResources(session.engine, session.encoder, Wording(), Samples()))
            tagged[name] = tag_in_parts(baseline, records, name)
    tagged[GAIN] = [with_confidences(a, _gains(a, b)) for a, b in zip(tagged[GIVEN], tagged[PLAIN], strict=True)]
    return tagged


def tag_in_parts(
    tagger: Baseline | FreeFormTagger | IterativeTagger, records: Sequence[Record], name: str
) -> list[Record]:
    """Return tagged records, and say as they are tagged how many there are so far.

    Args:
        tagger: tags them.
        records: the answers.
        name: what the lines call it.
    """
    tagged: list[Record] = []
    for begin in range(0, len(records), _AT_ONCE):
        tagged += tagger.tag(records[begin : begin + _AT_ONCE])
        print(f"{name}: {len(tagged)} of {len(records)} answers", flush=True)
    return tagged


def _gains(given: Record, plain: Record) -> Iterator[float | None]:
    """Yield the gain of every sentence, from likelihoods that are known already."""
    for one, other in zip(given.sentences, plain.sentences, strict=True):
        yield gain_of(*(None if c is None else math.log(max(c, 1e-300)) for c in (one.confidence, other.confidence)))


def cross_fitted(pairs: QuestionPairs) -> dict[str, tuple[list[float], Sequence[float]]]:
    """Return pairs with confidences after a map that was fitted without the answers of their part.

    Args:
        pairs: confidences and factualities by answer; all answers about one person or question are one.

    Returns:
        The pairs with isotonic confidences; where all of the other parts are equal, with their mean factuality.
    """
    names = sorted(pairs)
    Random("parts").shuffle(names)
    found = {}
    for part in range(FOLDS):
        others = [pairs[name] for at, name in enumerate(names) if at % FOLDS != part]
        confidences, labels = ([value for pair in others for value in pair[side]] for side in (0, 1))
        fitted = None if len({*confidences}) < 2 else Isotonic.fit(confidences, labels)
        mean = sum(labels) / len(labels)
        for name in names[part::FOLDS]:
            own, truth = pairs[name]
            found[name] = ([mean] * len(own) if fitted is None else fitted(own).tolist(), truth)
    return found


def without_evidence(records: Iterable[Record]) -> list[Record]:
    """Return answers without their sources."""
    return [replace(record, evidence=()) for record in records]
