"""A worker's ratings in the form that coordinate descent reads them: once user by user, and once item by item."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ps2.algorithms.factors.ccd_kernels import Array
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.array_types import Float32s, Float64s, Int32s, Int64s


@dataclass(frozen=True, eq=False)
class RatingRows:
    """Ratings in any order.

    Attributes:
        own: integers: numbers from 0 of the side (users, or items) whose ratings these are.
        others: integers: positions on the other side.
        ratings, weights: float32; None: all weights are 1.
    """

    own: Array
    others: Array
    ratings: Float32s
    weights: Float32s | None = None

    def chosen(self, marks: Array) -> RatingRows:
        """Return the rows that are marked."""
        weights = None if self.weights is None else self.weights[marks]
        return RatingRows(self.own[marks], self.others[marks], self.ratings[marks], weights)


@dataclass(frozen=True, eq=False)
class SideRatings:
    """Ratings of some users, or of some items.

    Attributes:
        ends: the end of each one's ratings, after a leading 0.
        others: int32: for each rating, the position on the other side; of one user, or item, ascending.
        curvatures: for each rating, a of ``ccd_kernels``; empty: all are 1.
        targets: for each rating, b.
        penalties: the weight of each one's squared norm in the penalty.
        is_implicit: whether feedback is implicit.
    """

    ends: Int64s
    others: Int32s
    curvatures: Float32s
    targets: Float32s
    penalties: Float64s
    is_implicit: bool

    def __len__(self) -> int:
        return len(self.others)

    @property
    def own(self) -> int:
        """The number of the users, or of the items."""
        return len(self.ends) - 1

    @staticmethod
    def from_rows(rows: RatingRows, own: int, plan: FactorizationPlan) -> SideRatings:
        """Sort ratings, which come in any order.

        Args:
            own: the number of the users, or of the items, of whom some may have no ratings.
        """
        order = _order(rows)
        ends = np.append(0, np.cumsum(np.bincount(rows.own, minlength=own)))
        weights = None if rows.weights is None else rows.weights[order]
        curvatures, targets, counted = _terms(rows.ratings[order], weights, plan)
        penalties = np.diff(ends).astype(np.float64)
        if len(counted):
            penalties = np.bincount(rows.own[order], counted, minlength=own).astype(np.float64)
        others = rows.others[order].astype(np.int32)
        return SideRatings(ends, others, curvatures, targets, penalties, plan.settings.implicitPrefs)

    @property
    def weight(self) -> float:
        """The sum of the weights of explicit feedback, or of the confidences in positive feedback."""
        if self.is_implicit:
            return float(self.targets.sum(dtype=np.float64))
        return float(self.curvatures.sum(dtype=np.float64)) if len(self.curvatures) else float(len(self))

    def part(self, first: int, end: int) -> SideRatings:
        """Return the ratings of some of the users, or items."""
        cut = slice(self.ends[first], self.ends[end])
        return SideRatings(
            self.ends[first : end + 1] - self.ends[first],
            self.others[cut],
            self.curvatures[cut] if len(self.curvatures) else self.curvatures,
            self.targets[cut],
            self.penalties[first:end],
            self.is_implicit,
        )

    def renumbered(self, positions: Int32s) -> SideRatings:
        """Return the ratings with ``positions[position]`` for each position of the other side."""
        return replace(self, others=positions[self.others])


def _order(rows: RatingRows) -> Int64s:
    """Return the order by the number of the own side, the other's, rating and weight: one that does not depend on how
    rows travelled."""
    keys = rows.own.astype(np.int64) * (int(rows.others.max(initial=0)) + 1) + rows.others
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] > ordered[:-1]).all():
        return order
    last = (rows.ratings, keys) if rows.weights is None else (rows.weights, rows.ratings, keys)
    return np.lexsort(last)


def _terms(ratings: Float32s, weights: Float32s | None, plan: FactorizationPlan) -> tuple[Float32s, Float32s, Float32s]:
    """Return a, b and the shares in the penalties of ratings; the latter are empty if all are 1."""
    if plan.settings.implicitPrefs:
        # As pyspark.ml's ALS: only positive feedback counts in the penalties, and repeated ratings add up.
        weights = np.ones_like(ratings) if weights is None else weights
        confidence, liked = np.float32(plan.settings.alpha) * np.abs(ratings), weights * (ratings > 0)
        return weights * confidence, liked * (1 + confidence), liked
    if weights is None:
        none = np.zeros(0, np.float32)
        return none, ratings, none
    return weights, weights * ratings, weights
