"""What one pass of a tagger tells about a sentence, as numbers that a calibration can use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from lovec.calibration.numbers import resolved_number
from lovec.metrics.functional import entropy
from lovec.metrics.records import confidence_of
from lovec.types import LovecError, Sentence

WORST_SHARE = 0.1
"""Share of a sentence's tokens that "logp_worst" is the mean of."""


def _entropy(sentence: Sentence) -> float | None:
    if sentence.distribution is None or sum(sentence.distribution) <= 0:
        return None
    return float(entropy(torch.tensor(sentence.distribution, dtype=torch.float64)))


def _of_tokens(measure: Callable[[Sequence[float]], float]) -> Callable[[Sentence], float | None]:
    def feature(sentence: Sentence) -> float | None:
        return measure(sentence.token_logps) if sentence.token_logps else None

    return feature


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _worst(values: Sequence[float]) -> float:
    return _mean(sorted(values)[: math.ceil(WORST_SHARE * len(values))])


FEATURES: Mapping[str, Callable[[Sentence], float | None]] = MappingProxyType(
    {
        "mean": lambda sentence: confidence_of(sentence, "mean"),
        "entropy": _entropy,
        "stated": lambda sentence: confidence_of(sentence, "stated"),
        "logp_mean": _of_tokens(_mean),
        "logp_sum": _of_tokens(math.fsum),
        "logp_min": _of_tokens(min),
        "logp_worst": _of_tokens(_worst),
    }
)
"""Features by name; each is None where the sentence lacks what it is computed from.

- "mean": expected confidence under the distribution over the levels, renormalised; in [0, 1].
- "entropy": entropy of that distribution, in nats; 0 where one level has all the mass.
- "stated": the stated confidence; in [0, 1].
- "logp_mean", "logp_sum", "logp_min": mean, sum and smallest of the log-probabilities of the sentence's own tokens, in
  nats; the worst token bounds how surprising a single name or number was.
- "logp_worst": mean of the worst tenth of them, rounded up to a whole token.
"""


def feature_row(sentence: Sentence, names: Sequence[str]) -> list[float] | None:
    """Return the features of a tagged sentence.

    Args:
        sentence: a tagged sentence.
        names: names of features, see ``FEATURES``.

    Returns:
        One finite number per name, see ``resolved``, or None where one of them is missing or not finite.

    Raises:
        LovecError: a name is unknown, or a distribution does not have one probability per level of the scale.
    """
    check_names(names)
    row: list[float] = []
    for name in names:
        value = FEATURES[name](sentence)
        if value is None or not math.isfinite(value):
            return None
        row.append(resolved_number(value))
    return row


def check_names(names: Sequence[str]) -> None:
    """Refuse names of features that are unknown, twice there, or none.

    Raises:
        LovecError: as said.
    """
    unknown = [name for name in names if name not in FEATURES]
    if unknown or not names or len(set(names)) < len(names) or isinstance(names, str):
        raise LovecError(f"the features are {list(names)}, expected different ones of {', '.join(FEATURES)}")
