"""What answers read like, whatever is true of them: a policy that earns its reward by saying less shows here.

The diagnostics of the paper's appendix on reward hacking.
"""

from __future__ import annotations

import string

from torch import Tensor

# ruff: noqa: RUF001 - quotation marks and dashes are meant
_MARKS = string.punctuation + "“”‘’«»…–—"


def type_token_ratio(text: str) -> float | None:
    """Different words / words, in (0, 1]: in small letters, between white space, without punctuation at their ends.

    Longer texts have lower values, so compare answers of like length. None for a text without words.
    """
    words = [word for word in (piece.strip(_MARKS) for piece in text.lower().split()) if word]
    return len(set(words)) / len(words) if words else None


def semantic_diversity(embeddings: Tensor) -> Tensor:
    """How little the sentences of an answer resemble each other: 1 - 2/(n(n-1)) sum over i < j of cos(e_i, e_j).

    Args:
        embeddings: one a sentence, [n, D], of any length; a zero vector resembles nothing.

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
