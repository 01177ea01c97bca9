"""Fit alpha to documents: Minka, "Estimating a Dirichlet distribution" (2000), equation 55. Pure.

The input is a histogram: the number of documents in which a topic occurs n times, and of documents with n tokens. These
are integers, so the workers' sum does not depend on order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from ps2.array_types import Float64s, Int64s

# Iterations before the first fit, and from one to the next.
BURN_IN, EVERY = 20, 10
# Maximum number of steps of a fit, and the relative change of alpha's sum at which it has converged.
STEPS, TOLERANCE = 50, 1e-5
# Lower bound of alpha; a topic with alpha 0 could never return.
LEAST = 1e-6
COUNT_BITS = 32


@dataclass(frozen=True)
class AlphaSchedule:
    """The iterations after which alpha is fitted, and in which a fit is used, equal for all workers.

    Fit n is made after iteration n * every.

    Attributes:
        is_asked: whether alpha is fitted at all.
        staleness: of the run.
    """

    is_asked: bool
    staleness: int

    @property
    def every(self) -> int:
        return max(EVERY, 2 * self.staleness + 2)

    @property
    def first(self) -> int:
        return -(-BURN_IN // self.every)

    def made_after(self, iteration: int) -> int | None:
        """Return the number of the fit made after an iteration, if any."""
        number, rest = divmod(iteration, self.every)
        return number if self.is_asked and not rest and number >= self.first else None

    def used_in(self, iteration: int) -> int:
        """Return the number of the fit used in an iteration; ``first - 1`` stands for the initial alpha."""
        if not self.is_asked:
            return 0
        # The driver has made this fit before any worker begins the iteration.
        return max((iteration - 1 - self.staleness) // self.every, self.first - 1)

    def last(self, iterations: int) -> int | None:
        """Return the number of the last fit within so many iterations; None: there was none."""
        number = iterations // self.every
        return number if self.is_asked and number >= self.first else None


def keys_of(topics: Int64s, counts: Int64s) -> Int64s:
    """Return keys of the histogram, from topics and counts; the number ``topics`` stands for documents' lengths."""
    return (topics << COUNT_BITS) + counts


def fit_alpha(alpha: Float64s, keys: Int64s, documents: Int64s) -> Float64s:
    """Return the alpha of maximum likelihood, starting from an alpha near it.

    Args:
        keys: int64, of ``keys_of``.
        documents: number of documents for each key.
    """
    some = documents > 0
    topics, counts, documents = keys[some] >> COUNT_BITS, keys[some] & ((1 << COUNT_BITS) - 1), documents[some]
    of_topic = topics < len(alpha)
    lengths, long = counts[~of_topic], documents[~of_topic]
    topics, counts, often = topics[of_topic], counts[of_topic], documents[of_topic]
    if not len(lengths):
        return alpha
    for _ in range(STEPS):
        total = alpha.sum()
        rises = np.bincount(topics, often * (digamma(counts + alpha[topics]) - digamma(alpha[topics])), len(alpha))
        alpha = np.maximum(alpha * rises / (long @ (digamma(lengths + total) - digamma(total))), LEAST)
        if abs(alpha.sum() - total) < TOLERANCE * total:
            break
    return alpha
