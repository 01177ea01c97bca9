"""The ratings of a worker's users, in the form that coordinate descent reads them: user by user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.factors.ccd_kernels import Array, Float32s, Int32s, count
from ps2.algorithms.factors.options import FactorOptions
from ps2.ops.kernels import Float64s, Int64s


@dataclass(frozen=True, eq=False)
class RatingRows:
    """Ratings in any order.

    Attributes:
        users, items: integers, numbers from 0.
        ratings, weights: float32; None: all weights are 1.
    """

    users: Array
    items: Array
    ratings: Float32s
    weights: Float32s | None = None

    def chosen(self, marks: Array) -> RatingRows:
        """Return the rows that are marked."""
        weights = None if self.weights is None else self.weights[marks]
        return RatingRows(self.users[marks], self.items[marks], self.ratings[marks], weights)


@dataclass(frozen=True, eq=False)
class UserRatings:
    """Ratings of some users.

    Attributes:
        ends: of each user's ratings, after a leading 0.
        items: of each rating; of one user, ascending.
        curvatures: a of ``ccd_kernels``, of each rating; empty: all are 1.
        targets: b of each rating.
        counted: each rating's share in the penalties; empty: all are 1.
        is_implicit: feedback is implicit.
    """

    ends: Int64s
    items: Int32s
    curvatures: Float32s
    targets: Float32s
    counted: Float32s
    is_implicit: bool

    def __len__(self) -> int:
        return len(self.items)

    @property
    def users(self) -> int:
        """Number of the users."""
        return len(self.ends) - 1

    @staticmethod
    def of(rows: RatingRows, users: int, options: FactorOptions) -> UserRatings:
        """Sort ratings, which come in any order.

        Args:
            users: number of the users, of whom some may have no ratings.
        """
        order = _order(rows)
        ends = np.append(0, np.cumsum(np.bincount(rows.users, minlength=users)))
        weights = None if rows.weights is None else rows.weights[order]
        curvatures, targets, counted = _terms(rows.ratings[order], weights, options)
        return UserRatings(ends, rows.items[order].astype(np.int32), curvatures, targets, counted, options.implicit)

    @property
    def weight(self) -> float:
        """Sum of the weights of explicit feedback, or of the confidences in positive feedback."""
        if self.is_implicit:
            return float(self.targets.sum(dtype=np.float64))
        return float(self.curvatures.sum(dtype=np.float64)) if len(self.curvatures) else float(len(self))

    def shares(self, items: int) -> tuple[Float64s, Float64s]:
        """Return the sums of the ratings' shares in the penalties: of each of these users, and of each item."""
        of_users, of_items = np.zeros(self.users), np.zeros(items)
        count(self.ends, self.items, self.counted, of_users, of_items)
        return of_users, of_items


def _order(rows: RatingRows) -> Int64s:
    """Return the order by user, item, rating and weight: one that does not depend on how rows travelled."""
    keys = rows.users.astype(np.int64) * (int(rows.items.max(initial=0)) + 1) + rows.items
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] > ordered[:-1]).all():
        return order
    last = (rows.ratings, keys) if rows.weights is None else (rows.weights, rows.ratings, keys)
    return np.lexsort(last)


def _terms(ratings: Float32s, weights: Float32s | None, options: FactorOptions) -> tuple[Float32s, Float32s, Float32s]:
    """Return a, b and the shares in the penalties of ratings."""
    if options.implicit:
        # As pyspark.ml's ALS: only positive feedback counts in the penalties, and repeated ratings add up.
        weights = np.ones_like(ratings) if weights is None else weights
        confidence, liked = np.float32(options.alpha) * np.abs(ratings), weights * (ratings > 0)
        return weights * confidence, liked * (1 + confidence), liked
    if weights is None:
        none = np.zeros(0, np.float32)
        return none, ratings, none
    return weights, weights * ratings, weights
