"""Logistic regression on soft labels: what the parametric maps have in common."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit

Array: TypeAlias = NDArray[np.float64]


def fit_logistic(design: Array, target: Array, ridge: Array | None = None) -> tuple[Array, float]:
    """Find the weights w with the lowest mean cross-entropy of sigmoid(w x) to soft labels, plus a ridge penalty.

    The function minimised is -mean(t log p + (1 - t) log(1 - p)) + sum(ridge w^2) / 2, with p = sigmoid(w x). It is
    convex, and Newton steps within a trust region find its minimum.

    Args:
        design: the inputs x of every item, [K, N]; a row of ones gives an intercept.
        target: soft labels t, [N], in [0, 1].
        ridge: strength of the penalty of every weight, [K], at least 0; None penalises nothing.

    Returns:
        The weights [K], and the value of the function.
    """
    penalty = np.zeros(len(design)) if ridge is None else ridge

    def entropy(weights: Array) -> tuple[float, Array]:
        z = weights @ design
        value = -(target * log_expit(z) + (1.0 - target) * log_expit(-z)).mean() + (penalty * weights**2).sum() / 2
        return float(value), design @ (expit(z) - target) / len(z) + penalty * weights

    def curvature(weights: Array) -> Array:
        p = expit(weights @ design)
        return np.asarray((design * (p * (1.0 - p))) @ design.T / len(p) + np.diag(penalty))

    start = np.zeros(len(design))
    solution = minimize(entropy, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-10})
    return np.asarray(solution.x, dtype=np.float64), float(solution.fun)


def softened(factuality: Array) -> Array:
    """Move soft labels a little towards the middle, as Platt (1999) does for yes/no labels.

    1 becomes (n + 1)/(n + 2) and 0 becomes 1/(m + 2), with n and m the sums of f and of 1 - f. Otherwise weights would
    grow without bound on data that a threshold separates.

    Args:
        factuality: [N], in [0, 1].

    Returns:
        [N], in (0, 1).
    """
    f = factuality
    return np.asarray(f * (f.sum() + 1.0) / (f.sum() + 2.0) + (1.0 - f) / ((1.0 - f).sum() + 2.0))
