"""Alpha fitted to documents: Minka, "Estimating a Dirichlet distribution" (2000), equation 55. Pure.

Documents come in by counts of counts: in how many a topic is so often, and how many are so long. These are whole
numbers, so what workers add up is the same in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

# Iterations before the first fit, and from one to the next.
BURN_IN, EVERY = 20, 10
# Steps of a fit, at most, and the change of alpha's sum, as a part of it, at which it is done.
STEPS, TOLERANCE = 50, 1e-5
# What alpha is at least: a topic in no document could never come back.
LEAST = 1e-6
COUNT_BITS = 32


@dataclass(frozen=True)
class Fits:
    """After which iterations alpha is fitted, and in which it is used: all workers agree on that.

    Fit n is made after iteration n * every. Two rows keep the last two.

    Attributes:
        is_asked: whether there are any.
        staleness: of the run.
    """

    is_asked: bool
    staleness: int

    @property
    def every(self) -> int:
        # Nobody uses a fit any more when the one after the next is made.
        return max(EVERY, 2 * self.staleness + 2)

    @property
    def first(self) -> int:
        return -(-BURN_IN // self.every)

    def made_after(self, iteration: int) -> int | None:
        """Return which fit is made after an iteration, if any."""
        number, rest = divmod(iteration, self.every)
        return number if self.is_asked and not rest and number >= self.first else None

    def used_in(self, iteration: int) -> int:
        """Return which fit is used in an iteration; the one before the first is what alpha is in the beginning."""
        if not self.is_asked:
            return 0
        # The driver has made it before any worker begins so many iterations after it.
        return max((iteration - 1 - self.staleness) // self.every, self.first - 1)

    def last(self, iterations: int) -> int | None:
        """Return the last fit of so many iterations; None: there was none."""
        number = iterations // self.every
        return number if self.is_asked and number >= self.first else None


def row_of(fit: int) -> int:
    return fit % 2


def keys_of(topics: Int64s, counts: Int64s) -> Int64s:
    """Return where the number of documents is kept in which topics are so often; the lengths' topic comes last."""
    return (topics << COUNT_BITS) + counts


def fitted(alpha: Float64s, keys: Int64s, documents: Int64s) -> Float64s:
    """Return the alpha under which documents are likeliest, from one that is near.

    Args:
        keys: int64: of ``keys_of``; documents: how many there are of each.
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
