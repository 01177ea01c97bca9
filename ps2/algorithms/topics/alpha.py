"""Fit alpha to documents: Minka, "Estimating a Dirichlet distribution" (2000), equation 55. Pure.

The input is a histogram: for each topic and n, the number of documents in which the topic occurs n times, and for each
n, the number of documents with n tokens. These are integers, so sums over workers do not depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from ps2.array_types import Float64s, Int64s

# The minimum number of iterations before the first fit, and between two fits.
BURN_IN, EVERY = 20, 10
# The maximum number of steps of a fit, and the relative change of alpha's sum below which the fit has converged.
STEPS, TOLERANCE = 50, 1e-5
# The lower bound of alpha: with alpha 0, a topic could never get tokens again.
MIN_ALPHA = 1e-6
# A histogram's key has the count in its low 32 bits, and the topic above them.
COUNT_BITS = 32


@dataclass(frozen=True)
class AlphaSchedule:
    """The iterations after which alpha is fitted, and the fit that all workers use in an iteration.

    Fit number n is made after iteration n * every; the number of the first fit is ``first``.

    Attributes:
        is_fitted: whether alpha is fitted; if not, workers use the initial alpha.
        staleness: the staleness of the run.
    """

    is_fitted: bool
    staleness: int

    @property
    def every(self) -> int:
        return max(EVERY, 2 * self.staleness + 2)

    @property
    def first(self) -> int:
        return -(-BURN_IN // self.every)

    def fit_after(self, iteration: int) -> int | None:
        """Return the number of the fit after an iteration; None: there is no fit."""
        number, remainder = divmod(iteration, self.every)
        return number if self.is_fitted and not remainder and number >= self.first else None

    def fit_used_in(self, iteration: int) -> int:
        """Return the number of the fit that workers use in an iteration; ``first - 1``: the initial alpha."""
        if not self.is_fitted:
            return 0
        # The driver finishes this fit before any worker begins the iteration.
        return max((iteration - 1 - self.staleness) // self.every, self.first - 1)


def histogram_keys(topics: Int64s, counts: Int64s) -> Int64s:
    """Return the histogram's keys of topics and counts. Lengths of documents have the number of topics as topic."""
    return (topics << COUNT_BITS) + counts


def fit_alpha(alpha: Float64s, keys: Int64s, documents: Int64s) -> Float64s:
    """Return the alpha of maximum likelihood; the search starts at the current alpha.

    ``documents`` has the number of documents of each key; keys may repeat.
    """
    keys, inverse = np.unique(keys, return_inverse=True)
    histogram = np.zeros(len(keys), np.int64)
    np.add.at(histogram, inverse, documents)
    keys, histogram = keys[histogram > 0], histogram[histogram > 0]
    topics, counts = keys >> COUNT_BITS, keys & ((1 << COUNT_BITS) - 1)
    is_topic = topics < len(alpha)
    lengths, length_histogram = counts[~is_topic], histogram[~is_topic]
    topics, counts, count_histogram = topics[is_topic], counts[is_topic], histogram[is_topic]
    if not len(lengths):
        return alpha
    for _ in range(STEPS):
        total = alpha.sum()
        sums = np.bincount(
            topics, count_histogram * (digamma(counts + alpha[topics]) - digamma(alpha[topics])), len(alpha)
        )
        alpha = np.maximum(alpha * sums / (length_histogram @ (digamma(lengths + total) - digamma(total))), MIN_ALPHA)
        if abs(alpha.sum() - total) < TOLERANCE * total:
            break
    return alpha
