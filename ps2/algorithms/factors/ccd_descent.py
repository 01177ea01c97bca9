"""Coordinate descent over the ratings of some users. Items' coordinates are solved elsewhere, of many users' sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.factors.ccd_kernels import (
    Float32s,
    combined,
    descend,
    explicit_loss,
    implicit_loss,
    predict,
    products,
)
from ps2.algorithms.factors.ccd_ratings import UserRatings
from ps2.algorithms.factors.options import FactorOptions
from ps2.ops.kernels import Float64s

# What is told of the vectors after an iteration: sums over ratings and users.
LOSS, WEIGHT, PENALTY, HELD_LOSS, HELD_WEIGHT = "loss", "weight", "penalty", "held_loss", "held_weight"
NONE = np.zeros(0)


@dataclass(frozen=True)
class Pass:
    """The solution of one coordinate of all users and items.

    Attributes:
        user, item: the coordinates' rows among those of the users and of the items; None: these are all 1 and are not
            solved, which is so for biases.
        number: among the passes that solve the items'.
        nonnegative: whether a solution below 0 becomes 0.
    """

    user: int | None
    item: int | None
    number: int
    nonnegative: bool


# Called with a pass, the sums of these users (float64, shape (items, 2): numerators, denominators) and the products of
# the users' coordinates with those of every rank (empty for explicit feedback); returns the items' coordinates.
SolveItems = Callable[[Pass, Float64s, Float64s], Float32s]


def passes(options: FactorOptions) -> Iterator[Pass]:
    """Yield the passes of one iteration, in order."""
    if options.biases:
        yield Pass(options.rank, None, 0, False)
        yield Pass(None, options.rank, options.rank, False)
    for f in range(options.rank):
        yield Pass(f, f, f, options.nonnegative)


class Descent:
    """Users, their ratings, and the vectors.

    Attributes:
        p: float32, shape (ranks, users): the last row is the biases, if there are biases.
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
        self.p = np.zeros((options.rank + options.biases, ratings.users), np.float32)
        self.q = np.zeros((options.rank + options.biases, items), np.float32)
        self._y = np.empty(len(ratings), np.float32)
        self._linear = np.empty(ratings.users if options.implicit else 0)

    def iterate(self, solve_items: SolveItems) -> None:
        """Solve all coordinates once. The residuals must be those of the vectors (``evaluate``)."""
        ratings, items = self._ratings, self.q.shape[1]
        sums, of_items = np.empty((items, 2)), np.zeros((items, 2), np.float32)
        ones = np.ones(ratings.users, np.float32)
        last = np.zeros_like(ones)
        for one in passes(self._options):
            now = ones if one.user is None else self.p[one.user]
            of_items[:, 1] = 1 if one.item is None else self.q[one.item]
            linear, square = self._all_cells(one)
            sums[:] = 0
            given = ratings.ends, ratings.items, ratings.curvatures
            settings = square, one.nonnegative, one.user is None
            descend(given, self._y, (last, now), of_items, self._ridge, linear, settings, sums)
            if one.item is not None:
                self.q[one.item] = solve_items(one, sums, self._gram(self.p, one))
            last, of_items[:, 0] = now, 1 if one.item is None else self.q[one.item]

    def evaluate(self) -> dict[str, float]:
        """Make the residuals anew of the vectors, so that rounding errors do not grow; return sums that tell how good
        the vectors are."""
        options = self._options
        p, q = (np.ascontiguousarray(rows[: options.rank].T) for rows in (self.p, self.q))
        loss = self._loss(self._ratings, p, q, self._y)
        penalty = np.sum(np.square(self.p, dtype=np.float64) @ self._of_users)
        penalty += np.sum(np.square(self.q, dtype=np.float64) @ self._of_items)
        if options.implicit:
            # The x^2 of all cells of these users: the inner product of both sides' Gram matrices.
            loss += float(np.sum((p.T @ p).astype(np.float64) * (q.T @ q)))
        told = {LOSS: loss, WEIGHT: self._ratings.weight, PENALTY: options.reg * float(penalty)}
        if self._held_out is None:
            return told
        y = np.empty(len(self._held_out), np.float32)
        return {**told, HELD_LOSS: self._loss(self._held_out, p, q, y), HELD_WEIGHT: self._held_out.weight}

    def _all_cells(self, one: Pass) -> tuple[Float64s, float]:
        """Return what predictions of all cells subtract from users' numerators, and what they add to denominators."""
        gram = self._gram(self.q, one)
        if not len(gram) or one.user is None:
            return NONE, 0.0
        combined(self.p, gram, one.user, self._linear)
        return self._linear, float(gram[one.user])

    def _gram(self, rows: Float32s, one: Pass) -> Float64s:
        """Return the products of a rank's coordinates with those of every rank; of explicit feedback nothing."""
        if not self._options.implicit or one.user is None:
            return NONE
        out = np.empty(len(rows))
        products(rows, one.user, out)
        return out

    def _loss(self, ratings: UserRatings, p: Float32s, q: Float32s, y: Float32s) -> float:
        """Set ``y`` to the residuals of ratings; return their loss."""
        rank = self._options.rank
        biases = np.zeros(len(p), np.float32), np.zeros(len(q), np.float32), self._mean
        if self._options.biases:
            biases = self.p[rank], self.q[rank], self._mean
        predict(ratings.ends, ratings.items, p, q, biases, y)
        loss = implicit_loss if self._options.implicit else explicit_loss
        return float(loss(y, ratings.curvatures, ratings.targets, y))
