"""Diagnostics of the text of answers: a policy that earns its reward by saying less, or the same, shows here.

They are those of the paper's appendix on reward hacking.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

from torch import Tensor

# ruff: noqa: RUF001 - quotation marks and dashes are meant
_MARKS = string.punctuation + "“”‘’«»…–—"


def type_token_ratio(words: Iterable[str]) -> float | None:
    """Compute the number of different words divided by the number of words, in (0, 1].

    Letter case and punctuation at the ends of words are ignored. Longer texts have lower values, so compare answers of
    similar length.

    Args:
        words: the text, split at white space.

    Returns:
        None for a text without words.
    """
    bare = [word for word in (piece.lower().strip(_MARKS) for piece in words) if word]
    return len(set(bare)) / len(bare) if bare else None


def semantic_diversity(embeddings: Tensor) -> Tensor:
    """Compute how little the sentences of an answer resemble each other: 1 - 2/(n(n-1)) sum over i < j cos(e_i, e_j).

    Args:
        embeddings: one vector per sentence, [n, D], of any length; a zero vector resembles nothing.

    Returns:
        Scalar in [0, 2], float64: 0 where all point the same way, 1 where they are orthogonal; NaN for n < 2.
    """
    e = embeddings.detach().double()
    lengths = e.norm(dim=1, keepdim=True)
    unit = e / lengths.where(lengths > 0, 1.0)
    n = len(unit)
    # The cosines of all ordered pairs are the squared length of the sum, less those of a sentence with itself.
    between = unit.sum(0).square().sum() - unit.square().sum()
    return (1.0 - between / (n * (n - 1))).clamp(0.0, 2.0) if n > 1 else e.new_tensor(float("nan"))
