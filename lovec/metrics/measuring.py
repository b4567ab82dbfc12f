"""All metrics of pairs of confidence and factuality, with bootstrap intervals over their groups."""

from __future__ import annotations

import math
from collections.abc import Collection

from lovec.metrics.bootstrap import BOOTSTRAPPED, Interval, interval_of, resample_groups
from lovec.metrics.grouped import GroupedPairs
from lovec.metrics.table import METRICS
from lovec.settings import check_count

_MEANS = ("mean_confidence", "mean_factuality")
_FEWEST_DRAWS, _MOST_DRAWN = 100, 20_000_000


def draws_of(pairs: GroupedPairs, draws: int) -> int:
    """Return how many draws of pairs are computed: of very many pairs fewer, since every draw costs as much as a file.

    Args:
        pairs: what is drawn from.
        draws: number of draws that were asked for, 0 or more.

    Returns:
        At most ``draws``, and 100 or more if as many were asked for.

    Raises:
        LovecError: ``draws`` is negative.
    """
    check_count("draws", draws, at_least=0)
    return min(draws, max(_FEWEST_DRAWS, _MOST_DRAWN // max(len(pairs.factuality), 1)))


def measure(pairs: GroupedPairs, uses: Collection[str], draws: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
    """Compute all metrics of pairs that ``lovec.metrics.table`` has, with 95 % intervals over draws of the groups.

    Args:
        pairs: what is measured; at least one.
        uses: what of the pairs can be used, see ``MetricInfo.uses``.
        draws: number of draws; 0 gives no intervals. See `draws_of` for very many pairs.
        seed: seed of the draws.

    Returns:
        Metrics by name, in the order of the table; None where one is undefined, or uses what cannot be used. F1@K is
        there only if a group has several pairs. An interval without draws has NaN as ends.

    Raises:
        LovecError: there is no group, or a value lies outside [0, 1].
    """
    names = [name for name, info in METRICS.items() if info.uses in uses and name in (*BOOTSTRAPPED, *_MEANS)]
    alone = len(pairs.factuality) <= pairs.groups
    names = [name for name in names if not (alone and name == "f1_at_k")]
    binary = bool(((pairs.factuality == 0) | (pairs.factuality == 1)).all())
    same = {"c_index": "auroc"} if binary else {}  # the slow one is the quick one where labels are 0 and 1
    drawn = resample_groups(pairs, draws_of(pairs, draws), seed, [name for name in names if name not in same])
    drawn |= {name: drawn[other] for name, other in same.items() if name in names}
    measured: dict[str, Interval | None] = {}
    for name, info in METRICS.items():
        if info.uses is not None and name in (*BOOTSTRAPPED, *_MEANS) and not (alone and name == "f1_at_k"):
            measured[name] = interval_of(drawn[name]) if name in drawn else None
    graded = ((pairs.factuality > 0) & (pairs.factuality < 1)).double().mean()
    measured["graded"] = Interval(float(graded), math.nan, math.nan)
    return measured
