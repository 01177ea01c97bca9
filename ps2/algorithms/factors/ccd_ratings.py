"""A worker's ratings in the form that coordinate descent reads them: once user by user, and once item by item."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ps2.algorithms.factors.ccd_kernels import Array
from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, join_columns
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.array_types import Float32s, Float64s, Int32s, Int64s


@dataclass(frozen=True, eq=False)
class RatingRows:
    """Ratings in any order, of users (or items) numbered from 0 and positions on the other side."""

    own: Array
    others: Array
    ratings: Float32s
    weights: Float32s | None = None

    def select(self, mask: Array) -> RatingRows:
        weights = None if self.weights is None else self.weights[mask]
        return RatingRows(self.own[mask], self.others[mask], self.ratings[mask], weights)


@dataclass(frozen=True, eq=False)
class SideRatings:
    """Ratings of some users, or of some items.

    Attributes:
        ends: the end of each one's ratings, after a leading 0.
        others: each rating's position on the other side, ascending for each user (or item).
        curvatures: each rating's a of ``ccd_kernels``; empty: all are 1.
        targets: each rating's b of ``ccd_kernels``.
        penalties: the weight of each one's squared norm in the penalty.
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
        """The number of the users, or of the items; some may have no ratings."""
        return len(self.ends) - 1

    @property
    def arrays(self) -> tuple[Int64s, Int32s, Float32s, Float32s]:
        """The arrays that the kernels take."""
        return self.ends, self.others, self.curvatures, self.targets

    @staticmethod
    def from_rows(rows: RatingRows, own: int, plan: FactorizationPlan) -> SideRatings:
        """Sort the ratings of ``own`` users, or items."""
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
    """Return the order by own number, other position, rating and weight; it does not depend on how rows travelled."""
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


@dataclass(frozen=True, eq=False)
class WorkersRatings:
    """The ratings of a worker.

    Attributes:
        held_out: the held-out ratings of the worker's items; None: there are none.
        strange: the number of rows with ids that did not occur when the ratings were surveyed.
        user_bounds, item_bounds: the first position of the worker's users and items, and the end.
    """

    users: SideRatings
    items: SideRatings
    held_out: SideRatings | None
    strange: int
    user_bounds: tuple[int, int]
    item_bounds: tuple[int, int]


def read_ratings(
    batches: Iterable[pa.RecordBatch],
    user_bounds: tuple[int, int],
    item_bounds: tuple[int, int],
    plan: FactorizationPlan,
) -> WorkersRatings:
    """Read packed ratings (``dealing.PACKED``)."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    sides, held_out = [], None
    for by_item, (first, end) in ((False, user_bounds), (True, item_bounds)):
        columns = join_columns([row for row in rows if row["by_item"] == by_item])
        own, others = (columns[ITEM], columns[USER]) if by_item else (columns[USER], columns[ITEM])
        ratings = columns.get(RATING, np.ones(len(own), np.float32))
        side = RatingRows(own - np.int32(first), others, ratings, columns.get(WEIGHT))
        held = columns.get(HELD, np.zeros(len(own), np.bool_))
        sides.append(SideRatings.from_rows(side.select(~held), end - first, plan))
        if by_item and held.any():
            held_out = SideRatings.from_rows(side.select(held), end - first, plan)
    strange = sum(row["strange"] for row in rows)
    return WorkersRatings(sides[0], sides[1], held_out, strange, user_bounds, item_bounds)
