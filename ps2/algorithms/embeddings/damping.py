"""Damp the changes that several workers make to the same vector in the same clock.

Workers start a clock with the same vectors and train, and the servers add up their changes. In a direction of low
curvature, each worker moves a vector a little, and the sum of the changes is right. In a direction of high curvature,
each worker almost reaches the minimum: the sum would overshoot, and the mean is right. Between these extremes, assume
that the loss of a word is a parabola. n updates leave the fraction ``exp(-h)`` of the distance from the minimum, with
h = n * rate * curvature. One worker covers the fraction ``1 - exp(-h)``; w workers, one after the other, would cover
``1 - exp(-w h)``. With the approximation exp(-h) = (1 - h/2) / (1 + h/2), the fraction of the sum to apply is

    (1 - exp(-w h)) / (w (1 - exp(-h)))  =  (1 + h/2) / (1 + w h/2)

This fraction is 1 for small h and 1/w for large h. The curvature is known: the loss of an input x and an output o is
log(1 + exp(+-x . o)), with the second derivative p (1 - p) o o^T in x, at most o o^T / 4 (Boehning and Lindsay 1988).
The mean of o o^T over outputs is one matrix for all inputs. Its few largest principal directions are tracked; the mean
curvature of the others is used for all of them. For changes of outputs, inputs and outputs are swapped.
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
# The number of tracked directions. Four workers learn equally well with 8 and with 64 (docs/decisions/0022).
DIRECTIONS = 16
# The number of rows that are processed at once: they fit into the cache.
BLOCK_ROWS = 2048
# All words of both tables.
ALL = (slice(None), slice(None))


@dataclass(frozen=True, eq=False)
class UpdateRates:
    """The expected number of updates of each word's vector and context per token, float64, shape (vocabulary,).

    If vectors and contexts share one table, both arrays are the sum.
    """

    vectors: Float64s
    contexts: Float64s

    @staticmethod
    def from_frequencies(plan: EmbeddingPlan, frequencies: Int64s, negative_probabilities: Float64s) -> UpdateRates:
        """Return the rates of words with these counts; see ``Sampler.negative_probabilities``."""
        fractions = frequencies / max(frequencies.sum(), 1)
        pairs = plan.inputs_per_token
        # CBOW's window sizes are uniform from 1 to ``window``, so a word is an input of 2 * (window + 1) / 2 groups.
        inputs = plan.window + 1.0 if plan.architecture == "cbow" else pairs * (1 + plan.settings.negative)
        vectors = fractions * inputs
        contexts = pairs * (fractions + plan.settings.negative * negative_probabilities)
        if plan.shares_table:
            return UpdateRates(vectors + contexts, vectors + contexts)
        return UpdateRates(vectors, contexts)

    @property
    def max_per_token(self) -> float:
        """The number of updates per token of the word with the most updates."""
        return float(max(self.vectors.max(), self.contexts.max()))


class ChangeDamping:
    """Damps a worker's changes of all tables."""

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
        """Damp the changes of each table, in place.

        Args:
            tables: the rows of each table after the changes.
            tokens, rate: the number of tokens and the step size from which the changes result.
            workers: the number of workers that make similar changes.
            words: for each table, the words of the rows.
        """
        updates = [table[table_words] for table, table_words in zip(self._updates, words, strict=False)]
        for directions, rows, weights in zip(self._directions, tables, updates, strict=False):
            directions.update(rows, weights)
        for change, weights, other in zip(changes, updates, reversed(self._directions), strict=False):
            other.damp(change, weights * (tokens * rate * CURVE), workers)


class PrincipalDirections:
    """The principal directions of a table's rows; each ``update`` is one step of a subspace iteration.

    Attributes:
        basis: orthonormal directions, shape (size, directions).
        squares: the weighted mean of the rows' squared coordinate along each direction.
        other_square: the mean of this value over all directions orthogonal to ``basis``.
    """

    def __init__(self, size: int) -> None:
        count = min(DIRECTIONS, size)
        self.basis: Float32s = np.linalg.qr(np.random.default_rng(0).normal(size=(size, count)))[0].astype(np.float32)
        self.squares, self.other_square = np.zeros(count), 0.0

    def update(self, rows: Float32s, weights: Float64s) -> None:
        """Update the directions for the current rows; a row's weight is its number of updates."""
        size, count = self.basis.shape
        fractions = (weights / max(weights.sum(), 1e-300)).astype(np.float32)[:, None]
        self.basis = np.linalg.qr(rows.T @ ((rows @ self.basis) * fractions))[0].astype(np.float32, copy=False)
        self.squares = np.sum((rows @ self.basis) ** 2 * fractions, axis=0, dtype=np.float64)
        total = float(np.einsum("nd,nd->n", rows, rows) @ fractions[:, 0])
        self.other_square = max(total - float(self.squares.sum()), 0.0) / max(size - count, 1)

    def damp(self, changes: Float32s, steps: Float64s, workers: int) -> None:
        """Damp changes of the other table, in place; ``steps``: each row's updates * step size * ``CURVE``."""
        for begin in range(0, len(changes), BLOCK_ROWS):
            block, block_steps = changes[begin : begin + BLOCK_ROWS], steps[begin : begin + BLOCK_ROWS, None]
            other_fractions = _fraction(block_steps * self.other_square, workers)
            corrections = (block @ self.basis) * (_fraction(block_steps * self.squares, workers) - other_fractions)
            block *= other_fractions
            block += corrections @ self.basis.T


def _fraction(h: Array, workers: int) -> Float32s:
    """Return the fraction of the sum to apply; see the module's formula."""
    return ((1 + h / 2) / (1 + workers * h / 2)).astype(np.float32)
