"""Coordinate descent over the ratings of some users. Items' coordinates are solved elsewhere, of many users' sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.factors.ccd_kernels import (
    Float32s,
    combined,
    descend,
    descend_biases,
    explicit_loss,
    implicit_loss,
    predict,
    products,
)
from ps2.algorithms.factors.ccd_ratings import UserRatings
from ps2.algorithms.factors.ops import BLOCK, SUMS
from ps2.algorithms.factors.options import FactorOptions
from ps2.ops.kernels import Float64s

# What is told of the vectors after an iteration: sums over ratings and users.
LOSS, WEIGHT, PENALTY, HELD_LOSS, HELD_WEIGHT = "loss", "weight", "penalty", "held_loss", "held_weight"


@dataclass(frozen=True)
class Pass:
    """The solution of a block of coordinates of all users and items.

    Attributes:
        number: of the pass in its iteration.
        first, width: the coordinates.
        nonnegative: whether none is negative.
        of_biases: whether the coordinate is the bias; users' and items' biases are added, not multiplied.
    """

    number: int
    first: int
    width: int
    nonnegative: bool
    of_biases: bool

    @property
    def end(self) -> int:
        return self.first + self.width

    @property
    def sums(self) -> int:
        """How many sums of each item it needs."""
        return self.width + self.width * (self.width + 1) // 2


# Called with a pass, the sums of these users (float64, shape (items, sums of the pass)) and the products of the users'
# coordinates of the pass with those of every rank (shape (width, ranks); of explicit feedback empty); returns the
# items' coordinates, shape (width, items).
SolveItems = Callable[[Pass, Float64s, Float64s], Float32s]


def padded(rank: int) -> int:
    """Return the number of coordinates without biases: whole blocks. Those beyond the rank are and stay 0."""
    return -(-rank // BLOCK) * BLOCK


def passes(options: FactorOptions) -> list[Pass]:
    """Return the passes of one iteration, in order."""
    rank, found = padded(options.rank), []
    if options.biases:
        found.append(Pass(0, rank, 1, False, of_biases=True))
    for first in range(0, rank, BLOCK):
        found.append(Pass(len(found), first, BLOCK, options.nonnegative, of_biases=False))
    return found


class Descent:
    """Users, their ratings, and the vectors.

    Attributes:
        p: float32, shape (ranks, users): whole blocks of ranks, and then the biases, if there are biases.
        q: float32, shape (ranks, items).
    """

    def __init__(
        self,
        options: FactorOptions,
        items: int,
        ratings: UserRatings,
        held_out: UserRatings | None = None,
        mean: float = 0.0,
    ) -> None:
        """Args:
        items: number of all items.
        held_out: ratings of the same users.
        mean: of the ratings; 0 without biases.
        """
        self._options, self._ratings, self._held_out, self._mean = options, ratings, held_out, mean
        self._of_users, self._of_items = ratings.shares(items)
        self._ridge = (options.reg * self._of_users).astype(np.float32)
        ranks = padded(options.rank) + options.biases
        self.p, self.q = np.zeros((ranks, ratings.users), np.float32), np.zeros((ranks, items), np.float32)
        self._y = np.empty(len(ratings), np.float32)

    def iterate(self, solve_items: SolveItems) -> None:
        """Solve all coordinates once. The residuals must be those of the vectors (``evaluate``)."""
        ratings = self._ratings.ends, self._ratings.items, self._ratings.curvatures
        users, items = self.p.shape[1], self.q.shape[1]
        of_items, sums = np.zeros((items, 2 * BLOCK), np.float32), np.empty((items, SUMS))
        last = np.zeros((users, BLOCK), np.float32)
        for one in passes(self._options):
            sums[:] = 0
            if one.of_biases:
                descend_biases(ratings, self._y, (self.p[one.first], self.q[one.first]), self._ridge, sums)
                # In the products that the next pass subtracts, the items' biases are multiplied by 1.
                last[:, 0] = 1
            else:
                of_items[:, BLOCK:] = self.q[one.first : one.end].T
                now, cells = np.ascontiguousarray(self.p[one.first : one.end].T), self._all_cells(one)
                descend(ratings, self._y, (last, now), of_items, self._ridge, cells, one.nonnegative, sums)
                self.p[one.first : one.end], last = now.T, now
            self.q[one.first : one.end] = solve_items(one, sums[:, : one.sums], self._gram(self.p, one))
            of_items[:, : one.width] = self.q[one.first : one.end].T

    def evaluate(self) -> dict[str, float]:
        """Make the residuals anew of the vectors, so that rounding errors do not grow; return sums that tell how good
        the vectors are."""
        options = self._options
        rank = padded(options.rank)
        p, q = (np.ascontiguousarray(rows[:rank].T) for rows in (self.p, self.q))
        loss = self._loss(self._ratings, p, q, self._y)
        penalty = np.sum(np.square(self.p, dtype=np.float64) * self._of_users)
        penalty += np.sum(np.square(self.q, dtype=np.float64) * self._of_items)
        if options.implicit:
            # The x^2 of all cells of these users: the inner product of both sides' Gram matrices.
            loss += sum(float(np.sum(self._gram(self.p, one) * self._gram(self.q, one))) for one in passes(options))
        told = {LOSS: loss, WEIGHT: self._ratings.weight, PENALTY: options.reg * float(penalty)}
        told[HELD_LOSS] = told[HELD_WEIGHT] = 0.0
        if self._held_out is not None:
            y = np.empty(len(self._held_out), np.float32)
            told[HELD_LOSS], told[HELD_WEIGHT] = self._loss(self._held_out, p, q, y), self._held_out.weight
        return told

    def _all_cells(self, one: Pass) -> tuple[Float64s, Float64s]:
        """Return what predictions of all cells subtract from users' numerators, and what they add to products."""
        gram = self._gram(self.q, one)
        if not len(gram):
            return np.zeros((0, one.width)), np.zeros((one.width, one.width))
        linear = np.empty((one.width, self.p.shape[1]))
        combined(self.p, gram, one.first, linear)
        return np.ascontiguousarray(linear.T), np.ascontiguousarray(gram[:, one.first : one.end])

    def _gram(self, rows: Float32s, one: Pass) -> Float64s:
        """Return the products of a block's coordinates with those of every rank; of explicit feedback nothing."""
        if not self._options.implicit:
            return np.zeros((0, len(rows)))
        out = np.empty((BLOCK, len(rows)))
        products(rows, one.first, out)
        return out

    def _loss(self, ratings: UserRatings, p: Float32s, q: Float32s, y: Float32s) -> float:
        """Set ``y`` to the residuals of ratings; return their loss."""
        rank = padded(self._options.rank)
        biases = np.zeros(len(p), np.float32), np.zeros(len(q), np.float32), self._mean
        if self._options.biases:
            biases = self.p[rank], self.q[rank], self._mean
        predict(ratings.ends, ratings.items, p, q, biases, y)
        loss = implicit_loss if self._options.implicit else explicit_loss
        return float(loss(y, ratings.curvatures, ratings.targets, y))
