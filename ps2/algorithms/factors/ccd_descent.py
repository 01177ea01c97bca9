"""Coordinate descent over a worker's users, or its items: their ratings and vectors.

It requests the vectors of the other side part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.factors.ccd_kernels import BLOCK, Array, descend, measure, multiply
from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, join_columns
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.array_types import Float32s, Float64s, Int32s, Int64s

# The maximum number of float32s of the other side's vectors that a worker stores at a time; a single user, or item, can
# need more.
MAX_FLOATS = 1 << 25
# Requests vectors by their positions on the other side, in ascending order; ``result()`` of the value returns them.
Request = Callable[[Int64s], Any]


@dataclass(frozen=True, eq=False)
class RatingRows:
    """Ratings in any order.

    Attributes:
        rows: the number of each rating's user, or item, from 0.
        others: each rating's position on the other side.
    """

    rows: Array
    others: Array
    ratings: Float32s
    weights: Float32s | None = None

    def select(self, mask: Array) -> RatingRows:
        weights = None if self.weights is None else self.weights[mask]
        return RatingRows(self.rows[mask], self.others[mask], self.ratings[mask], weights)


@dataclass(frozen=True, eq=False)
class SideRatings:
    """Ratings of some users, or of some items.

    Attributes:
        ends: the end of the ratings of each user (or item), after a leading 0.
        others: each rating's position on the other side, ascending for each user (or item).
        curvatures: each rating's a of ``ccd_kernels``; empty: all are 1.
        targets: each rating's b of ``ccd_kernels``.
        penalties: the weight of the squared norm of each user (or item) in the penalty.
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
    def count(self) -> int:
        """The number of users, or of items, including those without ratings."""
        return len(self.ends) - 1

    @property
    def arrays(self) -> tuple[Int64s, Int32s, Float32s, Float32s]:
        """The arrays that the kernels take."""
        return self.ends, self.others, self.curvatures, self.targets

    @staticmethod
    def from_rows(ratings: RatingRows, count: int, plan: FactorizationPlan) -> SideRatings:
        """Sort the ratings of ``count`` users, or items."""
        order = _order(ratings)
        ends = np.append(0, np.cumsum(np.bincount(ratings.rows, minlength=count)))
        weights = None if ratings.weights is None else ratings.weights[order]
        curvatures, targets, shares = _terms(ratings.ratings[order], weights, plan)
        penalties = np.diff(ends).astype(np.float64)
        if len(shares):
            penalties = np.bincount(ratings.rows[order], shares, minlength=count).astype(np.float64)
        others = ratings.others[order].astype(np.int32)
        return SideRatings(ends, others, curvatures, targets, penalties, plan.settings.implicitPrefs)

    @property
    def weight(self) -> float:
        """The sum of the weights of explicit feedback, or of the targets of implicit feedback."""
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


def _order(ratings: RatingRows) -> Int64s:
    """Return the order by row, other position, rating and weight, which does not depend on how ratings travelled."""
    keys = ratings.rows.astype(np.int64) * (int(ratings.others.max(initial=0)) + 1) + ratings.others
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] > ordered[:-1]).all():
        return order
    return np.lexsort((ratings.ratings, keys) if ratings.weights is None else (ratings.weights, ratings.ratings, keys))


def _terms(ratings: Float32s, weights: Float32s | None, plan: FactorizationPlan) -> tuple[Float32s, Float32s, Float32s]:
    """Return each rating's a and b, and its share in its vectors' penalties; the shares are empty if all are 1."""
    if plan.settings.implicitPrefs:
        # As in pyspark.ml's ALS, only positive feedback counts in the penalties, and repeated ratings add up.
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
        positions, others = (columns[ITEM], columns[USER]) if by_item else (columns[USER], columns[ITEM])
        ratings = columns.get(RATING, np.ones(len(positions), np.float32))
        side = RatingRows(positions - np.int32(first), others, ratings, columns.get(WEIGHT))
        held = columns.get(HELD, np.zeros(len(positions), np.bool_))
        sides.append(SideRatings.from_rows(side.select(~held), end - first, plan))
        if by_item and held.any():
            held_out = SideRatings.from_rows(side.select(held), end - first, plan)
    strange = sum(row["strange"] for row in rows)
    return WorkersRatings(sides[0], sides[1], held_out, strange, user_bounds, item_bounds)


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive users, or items, with their ratings.

    Attributes:
        first, end: the first user or item, and the end.
        columns: the positions on the other side that occur in the ratings, ascending.
        ratings, held_out: the ratings; their ``others`` are indices into ``columns``.
    """

    first: int
    end: int
    columns: Int64s
    ratings: SideRatings
    held_out: SideRatings | None


def padded(rank: int) -> int:
    """Return the number of coordinates without the bias: whole blocks. Coordinates beyond the rank stay 0."""
    return -(-rank // BLOCK) * BLOCK


def num_coordinates(plan: FactorizationPlan) -> int:
    """Return the number of coordinates of a vector: whole blocks, and then the bias if the model has biases."""
    return padded(plan.settings.rank) + plan.settings.biases


def gram_matrix(vectors: Float32s) -> Float64s:
    """Return ``vectors.T @ vectors``. Unlike BLAS, it always adds in the same order."""
    rows = np.ascontiguousarray(vectors.T)
    gram = np.empty((len(rows), len(rows)))
    for first in range(0, len(rows), BLOCK):
        multiply(rows, first, gram[first : first + BLOCK])
    return gram


class SideDescent:
    """The vectors of a worker's users, or of its items, and their ratings.

    Attributes:
        vectors: shape (n, ``num_coordinates``).
        ratings: the number of ratings.
        bytes: the bytes of vectors that travel in an iteration.
        weight, held_weight: ``SideRatings.weight`` of the training ratings and of the held-out ratings.
    """

    def __init__(
        self,
        plan: FactorizationPlan,
        ratings: SideRatings,
        mean: float = 0.0,
        held_out: SideRatings | None = None,
        threads: int = 1,
    ) -> None:
        settings, ranks = plan.settings, num_coordinates(plan)
        self._mean, self._reg, self._threads = mean, settings.regParam, threads
        self._kind = settings.biases, settings.nonnegative, settings.implicitPrefs
        self.vectors = np.zeros((ratings.count, ranks), np.float32)
        self.ratings = len(ratings)
        self.weight = ratings.weight
        self.held_weight = held_out.weight if held_out is not None else 0.0
        self._penalties = ratings.penalties
        limit = max(1, MAX_FLOATS // ranks)
        self._parts = list(_parts(ratings, held_out, 0, ratings.count, limit)) if ratings.count else []
        self.bytes = self.vectors.nbytes + sum(len(part.columns) for part in self._parts) * ranks * 4

    def solve(self, request: Request, gram: Float64s) -> tuple[float, float]:
        """Solve all coordinates once; return the losses of training and held-out ratings with the new vectors.

        ``gram`` is the ``gram_matrix`` of all vectors of the other side for implicit feedback, else empty.
        """
        loss = held_loss = 0.0
        future = request(self._parts[0].columns) if self._parts else None
        for number, part in enumerate(self._parts):
            assert future is not None
            others = future.result()
            if number + 1 < len(self._parts):  # the next part's vectors travel while this part is solved
                future = request(self._parts[number + 1].columns)
            vectors = self.vectors[part.first : part.end]
            loss += self._descend(part.ratings, vectors, others, gram)
            if part.held_out is not None:
                held_loss += measure(part.held_out.arrays, vectors, others, self._mean, self._kind)
        return loss, held_loss

    def penalty(self) -> float:
        """Return the penalty of these vectors."""
        return self._reg * float(self._penalties @ np.sum(np.square(self.vectors, dtype=np.float64), axis=1))

    def _descend(self, ratings: SideRatings, vectors: Float32s, others: Float32s, gram: Float64s) -> float:
        """Solve the vectors of a part in threads; return the loss of their ratings."""
        marks = ratings.ends[-1] * np.arange(1, self._threads) // self._threads
        bounds = [0, *np.searchsorted(ratings.ends, marks).tolist(), ratings.count]
        losses = np.empty(ratings.count)

        def solve(rows: tuple[int, int]) -> None:
            ridge = self._reg * ratings.penalties
            descend(ratings.arrays, rows, vectors, others, gram, ridge, self._mean, self._kind, losses)

        if self._threads == 1:
            solve((0, ratings.count))
        else:
            with ThreadPoolExecutor(self._threads, "ps2-factors") as pool:
                list(pool.map(solve, pairwise(bounds)))
        return float(losses.sum())


def _parts(ratings: SideRatings, held_out: SideRatings | None, first: int, end: int, limit: int) -> Iterator[Part]:
    """Cut ratings into parts in which at most ``limit`` positions of the other side occur."""
    part = ratings.part(first, end)
    held = None if held_out is None else held_out.part(first, end)
    positions = part.others if held is None else np.append(part.others, held.others)
    occurs = np.zeros(int(positions.max(initial=-1)) + 1, np.bool_)
    occurs[positions] = True
    columns = np.flatnonzero(occurs)
    if len(columns) > limit and end - first > 1:
        middle = int(np.searchsorted(part.ends, part.ends[-1] // 2))
        middle = first + min(max(middle, 1), end - first - 1)
        yield from _parts(ratings, held_out, first, middle, limit)
        yield from _parts(ratings, held_out, middle, end, limit)
        return
    indices = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    yield Part(first, end, columns, part.renumbered(indices), None if held is None else held.renumbered(indices))
