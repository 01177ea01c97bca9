"""Damp each worker's change of a word, if several workers changed it from the same starting point.

Workers start a clock with the same vectors and train, and the servers add up their changes. In a direction of low
curvature, each worker makes a small step, and the sum of the steps is right. In a direction of high curvature, each
worker comes close to the minimum, and the sum would overshoot: the mean is right. In between, assume that the loss of a
word is a parabola. n updates leave ``exp(-h)`` of the distance from the minimum, with h = n * rate * curvature. One
worker covers ``1 - exp(-h)`` of the distance; w workers, one after the other, would cover ``1 - exp(-w h)``. With the
approximation exp(-h) = (1 - h/2) / (1 + h/2), as in implicit steps, the share of the sum to apply is

    (1 - exp(-w h)) / (w (1 - exp(-h)))  =  (1 + h/2) / (1 + w h/2)

The share is 1 for small h and 1/w for large h. The curvature is known: the loss of an input x and an output o is
log(1 + exp(+-x . o)), with the second derivative p (1 - p) o o' in x, at most o o' / 4 (Boehning and Lindsay 1988). The
mean of o o' over outputs is one matrix for all inputs. It is large in a few principal directions, which are tracked,
and small in all other directions, which share one mean. For changes of outputs, swap inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.array_types import Float32s, Float64s, Int64s

Array = npt.NDArray[Any]

# The largest second derivative of log(1 + exp(x)).
CURVE = 0.25
# The number of tracked directions. Four workers learn as much with 8 as with 64 (docs/decisions/0022).
DIRECTIONS = 16
# The number of rows that are processed at once, which stay in cache.
BLOCK_ROWS = 2048
ALL = (slice(None), slice(None))


@dataclass(frozen=True, eq=False)
class UpdateRates:
    """Expected updates of each word's vectors and contexts, per token, float64, shape (vocabulary,). If vectors and
    contexts share one table, both are the sum."""

    vectors: Float64s
    contexts: Float64s

    @staticmethod
    def from_frequencies(plan: EmbeddingPlan, frequencies: Int64s, chances: Float64s) -> UpdateRates:
        """Return the rates; ``chances`` has the probability of each word to be drawn as a negative."""
        shares = frequencies / max(frequencies.sum(), 1)
        pairs = plan.inputs_per_token
        inputs = plan.window + 1.0 if plan.architecture == "cbow" else pairs * (1 + plan.settings.negative)
        vectors, contexts = shares * inputs, pairs * (shares + plan.settings.negative * chances)
        return (
            UpdateRates(vectors + contexts, vectors + contexts) if plan.shares_table else UpdateRates(vectors, contexts)
        )

    @property
    def max_per_token(self) -> float:
        """The updates of the most frequent word, per token."""
        return float(max(self.vectors.max(), self.contexts.max()))


class ChangeDamping:
    """Damps a worker's changes, clock by clock."""

    def __init__(self, plan: EmbeddingPlan, updates: UpdateRates) -> None:
        self._updates = (updates.vectors, updates.contexts)
        self._directions = [PrincipalDirections(plan.size) for _ in range(plan.tables)]

    def damp(
        self,
        changes: Sequence[Float32s],
        tables: Sequence[Float32s],
        tokens: float,
        rate: float,
        workers: int,
        words: Sequence[Any] = ALL,
    ) -> None:
        """Damp the changes of each table, in place. They come from ``tokens`` tokens at this step size, and each of
        ``workers`` workers makes similar changes. ``tables`` has the changed rows, whose words are ``words``."""
        updates = [table[table_words] for table, table_words in zip(self._updates, words, strict=False)]
        for directions, rows, weights in zip(self._directions, tables, updates, strict=False):
            directions.follow(rows, weights)
        for change, weights, other in zip(changes, updates, reversed(self._directions), strict=False):
            other.damp(change, weights * (tokens * rate * CURVE), workers)


class PrincipalDirections:
    """The principal directions of a table's rows, by a subspace iteration per call.

    Attributes:
        basis: orthonormal directions, shape (size, directions).
        squares: the rows' mean square along each direction.
        other_square: the rows' mean square along any other direction.
    """

    def __init__(self, size: int) -> None:
        count = min(DIRECTIONS, size)
        self.basis: Float32s = np.linalg.qr(np.random.default_rng(0).normal(size=(size, count)))[0].astype(np.float32)
        self.squares, self.other_square = np.zeros(count), 0.0

    def follow(self, rows: Float32s, weights: Float64s) -> None:
        """Update the directions for the current rows; a row's weight is its number of updates."""
        size, count = self.basis.shape
        shares = (weights / max(weights.sum(), 1e-300)).astype(np.float32)[:, None]
        self.basis = np.linalg.qr(rows.T @ ((rows @ self.basis) * shares))[0].astype(np.float32, copy=False)
        self.squares = np.sum((rows @ self.basis) ** 2 * shares, axis=0, dtype=np.float64)
        total = float(np.einsum("nd,nd->n", rows, rows) @ shares[:, 0])
        self.other_square = max(total - float(self.squares.sum()), 0.0) / max(size - count, 1)

    def damp(self, changes: Float32s, steps: Float64s, workers: int) -> None:
        """Damp changes of the other table, in place; ``steps`` has each row's updates * step size * ``CURVE``."""
        for begin in range(0, len(changes), BLOCK_ROWS):
            block, block_steps = changes[begin : begin + BLOCK_ROWS], steps[begin : begin + BLOCK_ROWS, None]
            other_shares = _share(block_steps * self.other_square, workers)
            along = (block @ self.basis) * (_share(block_steps * self.squares, workers) - other_shares)
            block *= other_shares
            block += along @ self.basis.T


def _share(h: Array, workers: int) -> Float32s:
    return ((1 + h / 2) / (1 + workers * h / 2)).astype(np.float32)
