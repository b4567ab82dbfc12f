"""Pairs of confidence and factuality, and which of them belong together: the sentences of an answer.

Results that were made elsewhere come as such pairs, without records behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lovec.metrics.functional import checked_pair
from lovec.metrics.records import sentence_pairs
from lovec.types import Record, question_id


@dataclass(frozen=True, slots=True)
class GroupedPairs:
    """Pairs of confidence and factuality, and what belongs together: sentences on a question, rows of a passage.

    Attributes:
        confidence: [N], float64, in [0, 1].
        factuality: [N], float64, in [0, 1].
        group: [N], int64: the number of the group that each pair belongs to, 0 to ``groups`` - 1.
        groups: number of groups; some may have no pair.
    """

    confidence: Tensor
    factuality: Tensor
    group: Tensor
    groups: int


def grouped_pairs(records: Sequence[Record], readout: str) -> GroupedPairs:
    """Return confidence and factuality of every sentence that has both; each question is a group.

    Args:
        records: tagged and labelled records.
        readout: see ``confidence_of``.

    Raises:
        LovecError: see ``confidence_of``; a value lies outside [0, 1].
    """
    pairs = [sentence_pairs([record], readout)[:2] for record in records]
    double = torch.float64
    confidence = torch.tensor([value for confidences, _ in pairs for value in confidences], dtype=double)
    factuality = torch.tensor([value for _, factualities in pairs for value in factualities], dtype=double)
    lengths = torch.tensor([len(confidences) for confidences, _ in pairs], dtype=torch.int64)
    groups: dict[str, int] = {}
    group = torch.tensor([groups.setdefault(question_id(r.id), len(groups)) for r in records], dtype=torch.int64)
    return GroupedPairs(*checked_pair(confidence, factuality), group.repeat_interleave(lengths), len(groups))


def group_means(pairs: GroupedPairs) -> GroupedPairs:
    """Return mean confidence and mean factuality of every group that has a pair; each is a group of its own.

    Means are rounded to 12 digits: three times 0.7 and four times 0.7 must tie, or ranks are made of noise.
    """
    count, confidence, factuality = (
        torch.zeros(pairs.groups, dtype=torch.float64).index_add(0, pairs.group, values)
        for values in (torch.ones_like(pairs.confidence), pairs.confidence, pairs.factuality)
    )
    there = count > 0
    confidence, factuality = (((total / count)[there] * 1e12).round() / 1e12 for total in (confidence, factuality))
    return GroupedPairs(confidence, factuality, torch.arange(len(confidence)), len(confidence))


def ranks(values: Tensor) -> Tensor:
    """Return numbers in (0, 1) with the order and the ties of any numbers: the middle of their ranks, as a share.

    Args:
        values: [N], float64, finite.

    Returns:
        [N], float64.
    """
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    middle: Tensor = count.cumsum(0).double() - count / 2
    return middle[place] / max(len(values), 1)
