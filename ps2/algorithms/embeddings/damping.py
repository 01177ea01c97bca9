"""Damp each worker's change of a word, if several workers changed it from the same starting point.

Workers start a clock with the same vectors, train for a while, and the servers add up their changes. In a direction
of low curvature each worker makes a small step, and the sum is the step of all sentences. In a direction of high
curvature each worker comes close to zero gradient, and the sum would overshoot: the mean is right there. In between,
take the loss of a word as a parabola. n updates leave ``exp(-h)`` of the distance, h = n * rate * curvature. One worker
covers ``1 - exp(-h)`` of it; w workers, one after the other, would cover ``1 - exp(-w h)``. With the approximation
exp(-h) = (1 - h/2) / (1 + h/2), as in implicit steps, the share of the sum to apply is

    (1 - exp(-w h)) / (w (1 - exp(-h)))  =  (1 + h/2) / (1 + w h/2)

This is 1 for small h and 1/w for large h. The curvature is known: the loss of an input x and an output o is
log(1 + exp(+-x . o)), with second derivative p (1 - p) o o' in x, at most o o' / 4 (Boehning and Lindsay 1988). Its
mean over outputs is one matrix for all inputs. It has a few principal directions in which outputs are long, and many
in which they are short: the former are tracked, the latter share one mean. For outputs, swap inputs and outputs.
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

# Upper bound of the second derivative of log(1 + exp(x)).
CURVE = 0.25
# Tracked directions. Four workers learn as much with 8 as with 64 (docs/decisions/0022).
DIRECTIONS = 16
# Rows processed at once, to stay in cache.
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
        """Return the rates; ``chances``: the probability of each word to be drawn as a negative."""
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
        """Replace the changes of each table, in place, by what the worker is to add. They come from ``tokens`` tokens
        at this rate, while workers - 1 others make similar changes; ``tables`` are the current rows, and ``words``
        their words."""
        updates = [table[some_words] for table, some_words in zip(self._updates, words, strict=False)]
        for directions, rows, weights in zip(self._directions, tables, updates, strict=False):
            directions.follow(rows, weights)
        for change, weights, other in zip(changes, updates, reversed(self._directions), strict=False):
            other.damp(change, weights * (tokens * rate * CURVE), workers)


class PrincipalDirections:
    """Principal directions of a table's rows, by one subspace iteration a call: an orthonormal ``basis``, the rows'
    mean squares along it (``lengths``), and the mean square along any other direction (``rest``)."""

    def __init__(self, size: int) -> None:
        count = min(DIRECTIONS, size)
        self.basis: Float32s = np.linalg.qr(np.random.default_rng(0).normal(size=(size, count)))[0].astype(np.float32)
        self.lengths, self.rest = np.zeros(count), 0.0

    def follow(self, rows: Float32s, weights: Float64s) -> None:
        """Update the directions for the current rows, weighted by how often each is updated."""
        size, count = self.basis.shape
        shares = (weights / max(weights.sum(), 1e-300)).astype(np.float32)[:, None]
        self.basis = np.linalg.qr(rows.T @ ((rows @ self.basis) * shares))[0].astype(np.float32, copy=False)
        self.lengths = np.sum((rows @ self.basis) ** 2 * shares, axis=0, dtype=np.float64)
        whole = float(np.einsum("nd,nd->n", rows, rows) @ shares[:, 0])
        self.rest = max(whole - float(self.lengths.sum()), 0.0) / max(size - count, 1)

    def damp(self, changes: Float32s, steps: Float64s, workers: int) -> None:
        """Damp changes of the other table, in place; a row's step is its number of updates * rate * curvature bound."""
        for begin in range(0, len(changes), BLOCK_ROWS):
            block, block_steps = changes[begin : begin + BLOCK_ROWS], steps[begin : begin + BLOCK_ROWS, None]
            others = _share(block_steps * self.rest, workers)
            along = (block @ self.basis) * (_share(block_steps * self.lengths, workers) - others)
            block *= others
            block += along @ self.basis.T


def _share(h: Array, workers: int) -> Float32s:
    return ((1 + h / 2) / (1 + workers * h / 2)).astype(np.float32)
