"""By how much workers' changes of a word count, where several workers have changed it from one beginning.

Workers that begin at the same vectors and train for a while each make a change; the servers add them up. Along a
direction in which the loss hardly curves, what one worker makes of a word is a small step, and the sum of all is the
step of all their sentences. Along one in which it curves much, each ends near where the gradient is 0, and the sum
would go beyond: there their mean is right. In between, take the loss of a word for a parabola, along which n updates
leave ``exp(-h)`` of the way, h = n * rate * curvature. A worker goes ``1 - exp(-h)`` of it, and all w of them, one
after the other, would ``1 - exp(-w h)``. With exp(-h) = (1 - h/2) / (1 + h/2), each of which is what implicit steps
come to, the share of the sum that is taken is

    (1 - exp(-w h)) / (w (1 - exp(-h)))  =  (1 + h/2) / (1 + w h/2)

1 for small h, 1/w for large h. The curvature is known: the loss of an input x and an output o is log(1 + exp(+-x . o)),
whose second derivative by x is p (1 - p) o o', at most o o' / 4 (Boehning and Lindsay 1988). The mean over outputs is a
matrix that is the same for all inputs, and has a few directions along which outputs are long, and many in which they
are short: the former are followed, and the latter taken as equal. By outputs, inputs and outputs change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe
from ps2.ops.kernels import Float64s, Int64s

Float32s = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

# The second derivative of log(1 + exp(x)), at most.
CURVE = 0.25
# Directions that are told apart. Four workers learn as much with 8 as with 64 (docs/decisions/0022).
DIRECTIONS = 16
# Rows that are changed at once, so that they stay in a cache.
AT_ONCE = 2048
ALL = (slice(None), slice(None))


@dataclass(frozen=True, eq=False)
class Updates:
    """How often words are learned from, for one token.

    Attributes:
        vectors, contexts: float64, shape (vocabulary,): of each word in the two tables; in one, of both.
    """

    vectors: Float64s
    contexts: Float64s

    @staticmethod
    def of(recipe: Recipe, frequencies: Int64s, chances: Float64s) -> Updates:
        """Args:
        frequencies: how often each word comes.
        chances: of each word to be a negative.
        """
        shares = frequencies / max(frequencies.sum(), 1)
        # A word is a context as often as others are its contexts: window + 1 times, in the mean.
        pairs = {"skipgram": recipe.window + 1.0, "cbow": 1.0, "edges": 0.5}[recipe.architecture]
        inputs = recipe.window + 1.0 if recipe.architecture == "cbow" else pairs * (1 + recipe.negative)
        vectors, contexts = shares * inputs, pairs * (shares + recipe.negative * chances)
        return Updates(vectors + contexts, vectors + contexts) if recipe.shares_table else Updates(vectors, contexts)

    @property
    def most(self) -> float:
        """Of the most frequent word."""
        return float(max(self.vectors.max(), self.contexts.max()))


class Damping:
    """Of a worker's changes, clock by clock."""

    def __init__(self, recipe: Recipe, updates: Updates) -> None:
        self._updates = (updates.vectors, updates.contexts)
        self._directions = [Directions(recipe.size) for _ in range(recipe.tables)]

    def damp(
        self,
        changes: Sequence[Float32s],
        tables: Sequence[Float32s],
        tokens: float,
        rate: float,
        workers: int,
        words: Sequence[Any] = ALL,
    ) -> None:
        """Make changes, in place, what is to be added of them.

        Args:
            changes: of each table that there is, by so many tokens and at this rate, with workers - 1 others like them.
            tables: the rows that are changed, as they are now.
            words: whose rows these are.
        """
        updates = [of[some] for of, some in zip(self._updates, words, strict=False)]
        for directions, rows, of in zip(self._directions, tables, updates, strict=False):
            directions.follow(rows, of)
        for changed, of, other in zip(changes, updates, reversed(self._directions), strict=False):
            other.damp(changed, of * (tokens * rate * CURVE), workers)


class Directions:
    """Along which the rows of a table are longest, in the mean: by subspace iteration, one step at a time.

    Attributes:
        basis: float32, shape (size, DIRECTIONS) or less: of length 1, and orthogonal.
        lengths: float64: mean squares of rows along them.
        rest: the same along any other one.
    """

    def __init__(self, size: int) -> None:
        count = min(DIRECTIONS, size)
        self.basis: Float32s = np.linalg.qr(np.random.default_rng(0).normal(size=(size, count)))[0].astype(np.float32)
        self.lengths, self.rest = np.zeros(count), 0.0

    def follow(self, rows: Float32s, weights: Float64s) -> None:
        """Turn to where rows are now, each weighed by how often it is learned from."""
        size, count = self.basis.shape
        shares = (weights / max(weights.sum(), 1e-300)).astype(np.float32)[:, None]
        self.basis = np.linalg.qr(rows.T @ ((rows @ self.basis) * shares))[0].astype(np.float32, copy=False)
        self.lengths = np.sum((rows @ self.basis) ** 2 * shares, axis=0, dtype=np.float64)
        whole = float(np.einsum("nd,nd->n", rows, rows) @ shares[:, 0])
        self.rest = max(whole - float(self.lengths.sum()), 0.0) / max(size - count, 1)

    def damp(self, changes: Float32s, steps: Float64s, workers: int) -> None:
        """Damp changes of the other table, in place.

        Args:
            steps: of each row, its updates times the rate and the curve.
        """
        for begin in range(0, len(changes), AT_ONCE):
            some, by = changes[begin : begin + AT_ONCE], steps[begin : begin + AT_ONCE, None]
            others = _share(by * self.rest, workers)
            along = (some @ self.basis) * (_share(by * self.lengths, workers) - others)
            some *= others
            some += along @ self.basis.T


def _share(h: Array, workers: int) -> Float32s:
    return ((1 + h / 2) / (1 + workers * h / 2)).astype(np.float32)
