"""Online variational Bayes in plain NumPy, as pyspark.ml's OnlineLDAOptimizer has it: what ours is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln, psi

REST = 1e-3


def expectation(x: Any) -> Any:
    """Return E[log p] of Dirichlet distributions, along the last axis."""
    return psi(x) - psi(x.sum(axis=-1, keepdims=True))


def inferred(counts: Any, weights: Any, alpha: Any, begun: Any = None) -> tuple[Any, Any, float]:
    """Find the topics of documents.

    Args:
        counts: shape (documents, words).
        weights: exp(E[log beta]), shape (words, topics).
        begun: what gamma begins with, shape (documents, topics); None: 1.

    Returns:
        gamma, shape (documents, topics); statistics, shape (words, topics), times weights; the bound.
    """
    gammas, stats, bound = np.zeros((len(counts), len(alpha))), np.zeros(weights.shape), 0.0
    for d, row in enumerate(counts):
        ids = np.flatnonzero(row)
        n, own = row[ids], weights[ids]
        gamma, change = np.ones(len(alpha)) if begun is None else begun[d], np.inf
        theta = np.exp(expectation(gamma))
        while change > REST:
            last = gamma
            gamma = theta * ((n / (own @ theta + 1e-100)) @ own) + alpha
            theta = np.exp(expectation(gamma))
            change = np.abs(gamma - last).mean()
        sums = own @ theta + 1e-100
        gammas[d] = gamma
        stats[ids] += np.outer(n / sums, theta) * own
        bound += n @ np.log(sums) + ((alpha - gamma) * expectation(gamma) + gammaln(gamma) - gammaln(alpha)).sum()
        bound += gammaln(alpha.sum()) - gammaln(gamma.sum())
    return gammas, stats, bound
