"""Small problems with an L1 penalty, and what plain NumPy says of their minima."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit
from training import Rows, deviations

from ps2.algorithms.linear.plan import Problem


def correlated(n: int = 80, dim: int = 12, cuts: tuple[int, ...] = (30,), classes: bool = False) -> Rows:
    """Make rows whose features come in threes of correlation .9, with a mean of 2 in every other one, and weights."""
    rng = np.random.default_rng(n + dim)
    common = np.repeat(rng.normal(size=(n, -(-dim // 3))), 3, axis=1)[:, :dim]
    x = np.sqrt(0.9) * common + np.sqrt(0.1) * rng.normal(size=(n, dim))
    x *= (rng.random((n, dim)) < 0.7) | (np.arange(dim) % 2 == 0)
    w = np.where(np.arange(dim) % 4 == 0, rng.normal(size=dim), 0.0)
    y = x @ w + 0.3 * rng.normal(size=n)
    x = x + 2.0 * (np.arange(dim) % 2 == 0)
    if classes:
        y = (rng.random(n) < expit(2 * y)).astype(float)
    return Rows(x, y, rng.integers(1, 4, n).astype(float), cuts)


def violation(problem: Problem, rows: Rows, w: Any, b: float) -> float:
    """The largest violation of the conditions of a minimum, of weights of features as they are given."""
    scale = deviations(rows) if problem.standardize else np.ones(problem.dim)
    inverse = np.divide(1.0, scale, out=np.zeros(problem.dim), where=scale > 0)
    margins = rows.x @ w + b
    means = margins if problem.loss == "squared" else expit(margins)
    share = rows.c / rows.c.sum()
    gradient = rows.x.T @ (share * (rows.y - means)) * inverse - problem.l2 * w * scale
    of_weights = np.where(
        w != 0, np.abs(gradient - problem.l1 * np.sign(w)), np.maximum(np.abs(gradient) - problem.l1, 0)
    )
    of_intercept = abs(share @ (rows.y - means)) if problem.fit_intercept else 0.0
    return float(max(of_weights[scale > 0].max(initial=0.0), of_intercept))


def largest_strength(problem: Problem, rows: Rows) -> float:
    """The least L1 penalty whose weights are all 0."""
    scale = deviations(rows) if problem.standardize else np.ones(problem.dim)
    share = rows.c / rows.c.sum()
    mean = share @ rows.y if problem.fit_intercept else (0.0 if problem.loss == "squared" else 0.5)
    return float(np.abs(rows.x.T @ (share * (rows.y - mean)) / scale).max())
