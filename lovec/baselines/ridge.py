"""Ridge regression from features of sentences to their factuality, chosen and held out by question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lovec.types import NoTrainingLabels

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ridge:
    """A linear map with the lowest squared error plus a penalty on its squared weights (Hoerl and Kennard 1970).

    Attributes:
        weights: [D].
        intercept: added to the product.
    """

    weights: Tensor
    intercept: Tensor

    @classmethod
    def path(cls, x: Tensor, y: Tensor, penalties: Sequence[float], scaled: bool = True) -> list[Ridge]:
        """Fit a map for every penalty, from one eigenvalue decomposition.

        Args:
            x: [N, D]; every column is centred, and constant ones are left out.
            y: [N].
            penalties: of the squared weights, per row.
            scaled: whether the penalty is that of columns scaled to a standard deviation of 1.
        """
        import torch  # here, so that other baselines load none

        x, y = x.double(), y.double()
        mean, centre = x.mean(0), y.mean()
        scale = x.std(0, correction=0)
        inverse = torch.where(scale > 1e-8, 1.0 / scale.clamp(min=1e-8) if scaled else torch.ones_like(scale), 0.0)
        z = (x - mean) * inverse
        values, vectors = torch.linalg.eigh(z.T @ z / len(z))
        projected = vectors.T @ (z.T @ (y - centre) / len(z))
        fitted = []
        for penalty in penalties:
            weights = inverse * (vectors @ (projected / (values.clamp(min=0.0) + penalty)))
            fitted.append(cls(weights, centre - mean @ weights))
        return fitted

    def __call__(self, x: Tensor) -> Tensor:
        """Return the values of states [N, D], clipped to [0, 1]: [N], float64."""
        return (x.double() @ self.weights + self.intercept).clamp(0.0, 1.0)


def cross_validated(
    x: Tensor, y: Tensor, parts: Tensor, penalties: Sequence[float], scaled: bool = True
) -> list[float]:
    """Return the mean squared error of ridge regression for every penalty, each part predicted from the others.

    Args:
        x: [N, D].
        y: [N], in [0, 1].
        parts: [N], number of the part that each row belongs to; there are at least two.
        penalties: see ``Ridge.path``.
        scaled: see ``Ridge.path``.
    """
    import torch  # here, so that other baselines load none

    errors = torch.zeros(len(penalties), dtype=torch.float64)
    for part in sorted(set(parts.tolist())):
        held = parts == part
        for number, fitted in enumerate(Ridge.path(x[~held], y[~held], penalties, scaled)):
            errors[number] += ((fitted(x[held]) - y[held]) ** 2).sum()
    mean: list[float] = (errors / len(y)).tolist()
    return mean


def held_out_values(x: Tensor, y: Tensor, parts: Tensor, penalty: float, scaled: bool = True) -> Tensor:
    """Return the values of ridge regression for all rows, those of a part from the labelled rows of the others.

    Args:
        x: [N, D].
        y: [N], in [0, 1]; NaN where there is no label.
        parts: see `cross_validated`.
        penalty: see ``Ridge.path``.
        scaled: see ``Ridge.path``.
    """
    import torch  # here, so that other baselines load none

    values, known = torch.zeros_like(y), ~y.isnan()
    for part in sorted(set(parts[known].tolist())):
        other = known & (parts != part)
        [fitted] = Ridge.path(x[other], y[other], [penalty], scaled)
        values[parts == part] = fitted(x[parts == part])
    return values


def parts_by_question(questions: Sequence[str], labelled: Tensor, folds: int, name: str) -> Tensor:
    """Return the part of cross-validation that every sentence belongs to: [N]. All of a question are in one part.

    A question without a labelled sentence has no part of its own, and may be in any.

    Args:
        questions: of every sentence.
        labelled: [N], whether it has a label.
        folds: number of parts.
        name: what messages call the baseline.

    Raises:
        NoTrainingLabels: the labelled sentences belong to fewer than two questions.
    """
    import torch  # here, so that other baselines load none

    distinct = list(dict.fromkeys(question for question, has in zip(questions, labelled.tolist(), strict=True) if has))
    if len(distinct) < 2:
        raise NoTrainingLabels(
            f"the baseline {name!r} got labelled sentences of {len(distinct)} questions, expected at least two; give "
            "training records with labels, or leave it out of --model.baselines"
        )
    part = {question: number % folds for number, question in enumerate(distinct)}
    return torch.tensor([part.get(question, 0) for question in questions])
