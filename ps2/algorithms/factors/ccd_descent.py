"""Coordinate descent ("ccd") over a worker's users or items; it requests vectors of the other side in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.factors.ccd_kernels import BLOCK, Array, descend, multiply_rows, sum_losses
from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, join_columns
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.factors.rating_runs import RatingArrays, RatingRuns, join, range_bytes
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.data.block_file import BlockFile, BlockSlice, read_ahead, read_pages
from ps2.data.row_spill import RowSpill, Spilled

# The maximum of float32s (128 MiB) of the other side's vectors in a batch; ratings of one user (or item) can need more.
MAX_FLOATS = 1 << 25
# Requests the other side's vectors at ascending positions; ``result()`` of the returned future waits for them.
Request = Callable[[Int64s], Any]


@dataclass(frozen=True, eq=False)
class RatingRows:
    """Ratings in any order; ``rows`` are indices among the worker's users (or items)."""

    rows: Array
    other_positions: Array
    ratings: Float32s
    weights: Float32s | None = None

    @staticmethod
    def from_parts(parts: Sequence[RatingArrays], first: int = 0) -> RatingRows:
        """Join parts; ``first`` becomes row 0."""
        rows, other_positions, ratings, weights = join(parts)
        return RatingRows(rows - np.int32(first), other_positions, ratings, weights if len(weights) else None)


@dataclass(frozen=True, eq=False)
class SideRatings:
    """The ratings of some users, sorted by user, or of some items, sorted by item.

    Attributes:
        ends: 0, and then the index after the last rating of each user (or item).
        other_positions: the position of each rating's item (or user), ascending for each user (or item).
        curvatures, targets: a (empty: all are 1) and b of each rating; see ``ccd_kernels``.
        penalties: the weight of each user's (or item's) squared norm in the penalty, without ``regParam``.
    """

    ends: Int64s
    other_positions: Int32s
    curvatures: Float32s
    targets: Float32s
    penalties: Float64s
    is_implicit: bool

    def __len__(self) -> int:
        return len(self.other_positions)

    @property
    def count(self) -> int:
        """The number of users, or of items, including those without ratings."""
        return len(self.ends) - 1

    @property
    def arrays(self) -> tuple[Int64s, Int32s, Float32s, Float32s]:
        """The argument ``ratings`` of the kernels."""
        return self.ends, self.other_positions, self.curvatures, self.targets

    @staticmethod
    def from_rows(ratings: RatingRows, count: int, plan: FactorizationPlan) -> SideRatings:
        """Sort the ratings of ``count`` users, or items."""
        order = _sort_order(ratings)
        ends = np.append(0, np.cumsum(np.bincount(ratings.rows, minlength=count)))
        weights = None if ratings.weights is None else ratings.weights[order]
        curvatures, targets, penalty_weights = _objective_terms(ratings.ratings[order], weights, plan)
        penalties = np.diff(ends).astype(np.float64)
        if len(penalty_weights):
            penalties = np.bincount(ratings.rows[order], penalty_weights, minlength=count).astype(np.float64)
        other_positions = ratings.other_positions[order].astype(np.int32)
        return SideRatings(ends, other_positions, curvatures, targets, penalties, plan.settings.implicitPrefs)

    @property
    def row_weights(self) -> Float64s:
        """The sum of each user's (or item's) weights of explicit feedback, or of its targets of implicit feedback."""
        weights, counts = self.targets if self.is_implicit else self.curvatures, np.diff(self.ends)
        if not len(weights):
            return counts.astype(np.float64)
        return np.bincount(np.repeat(np.arange(self.count), counts), weights, minlength=self.count).astype(np.float64)

    @property
    def weight(self) -> float:
        return float(self.row_weights.sum())

    def blocks(self) -> Iterator[tuple[int, SideRatings]]:
        """Yield the ratings of consecutive users (or items), and the index of the first one."""
        yield 0, self

    def select(self, first: int, end: int) -> SideRatings:
        """Return the ratings of the users (or items) in [first, end)."""
        selected = slice(self.ends[first], self.ends[end])
        return SideRatings(
            self.ends[first : end + 1] - self.ends[first],
            self.other_positions[selected],
            self.curvatures[selected] if len(self.curvatures) else self.curvatures,
            self.targets[selected],
            self.penalties[first:end],
            self.is_implicit,
        )

    def renumber(self, indices: Int32s) -> SideRatings:
        """Return the ratings with each of ``other_positions`` replaced by its entry in ``indices``."""
        return replace(self, other_positions=indices[self.other_positions])


def _sort_order(ratings: RatingRows) -> Int64s:
    """Return the order by row, other position, rating and weight: the order in which rows arrive does not matter."""
    num_positions = int(ratings.other_positions.max(initial=0)) + 1
    keys = ratings.rows.astype(np.int64) * num_positions + ratings.other_positions
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] > ordered[:-1]).all():
        return order
    return np.lexsort((ratings.ratings, keys) if ratings.weights is None else (ratings.weights, ratings.ratings, keys))


def _objective_terms(
    ratings: Float32s, weights: Float32s | None, plan: FactorizationPlan
) -> tuple[Float32s, Float32s, Float32s]:
    """Return curvatures and targets (see ``SideRatings``), and the weights for penalties (empty: all are 1)."""
    if plan.settings.implicitPrefs:
        # As in pyspark.ml's ALS, only ratings above 0 add to the penalties, and repeated ratings add up.
        weights = np.ones_like(ratings) if weights is None else weights
        confidence, positive_weights = np.float32(plan.settings.alpha) * np.abs(ratings), weights * (ratings > 0)
        return weights * confidence, positive_weights * (1 + confidence), positive_weights
    if weights is None:
        empty = np.zeros(0, np.float32)
        return empty, ratings, empty
    return weights, weights * ratings, weights


@dataclass(frozen=True, eq=False)
class SideFile:
    """Like ``SideRatings``, but in a file: a thread reads the next block while the caller uses one.

    Attributes:
        stored: the blocks: the index of the first user (or item), and the location of the arrays.
    """

    file: BlockFile
    stored: Sequence[tuple[int, BlockSlice]]
    penalties: Float64s
    row_weights: Float64s
    num_ratings: int
    is_implicit: bool

    def __len__(self) -> int:
        return self.num_ratings

    @property
    def count(self) -> int:
        return len(self.penalties)

    @property
    def weight(self) -> float:
        return float(self.row_weights.sum())

    def blocks(self) -> Iterator[tuple[int, SideRatings]]:
        blocks = read_ahead([partial(self._read, location) for _, location in self.stored])
        return zip((first for first, _ in self.stored), blocks, strict=True)

    def _read(self, location: BlockSlice) -> SideRatings:
        arrays = self.file.arrays(location)
        for array in arrays.values():
            read_pages(array)
        return SideRatings(**arrays, is_implicit=self.is_implicit)

    @staticmethod
    def write(file: BlockFile, ranges: Iterable[tuple[int, SideRatings]]) -> SideFile:
        """Write the ratings of consecutive users (or items), and the index of the first one; SpillError: disk fails."""
        stored, penalties, row_weights, num_ratings, is_implicit = [], [], [], 0, False
        for first, side in ranges:
            names = ("ends", "other_positions", "curvatures", "targets", "penalties")
            stored.append((first, file.append({name: getattr(side, name) for name in names})))
            penalties.append(side.penalties)
            row_weights.append(side.row_weights)
            num_ratings, is_implicit = num_ratings + len(side), side.is_implicit
        return SideFile(file, stored, np.concatenate(penalties), np.concatenate(row_weights), num_ratings, is_implicit)


@dataclass(frozen=True, eq=False)
class WorkersRatings:
    """The ratings of a worker, once by user and once by item.

    Attributes:
        held_out: the held-out ratings of the worker's items; None: there are none.
        unknown_rows: the number of rows with ids that did not occur when the ratings were surveyed.
        user_bounds, item_bounds: the first position of the worker's users (or items), and the end.
        spilled: the files of the ratings; None: they are in memory.
    """

    users: SideRatings | SideFile
    items: SideRatings | SideFile
    held_out: SideRatings | None
    unknown_rows: int
    user_bounds: tuple[int, int]
    item_bounds: tuple[int, int]
    spilled: Spilled | None = None


def read_ratings(
    batches: Iterable[pa.RecordBatch],
    user_bounds: tuple[int, int],
    item_bounds: tuple[int, int],
    plan: FactorizationPlan,
    spill: RowSpill | None = None,
) -> WorkersRatings:
    """Read packed ratings (``dealing.PACKED``).

    Ratings that are not held out are written to files if they exceed the memory of ``spill``; None: they never are.
    """
    bounds, held_out, unknown_rows = (user_bounds, item_bounds), list[RatingArrays](), 0
    runs = [RatingRuns(end - first, lambda rows, _: rows) for first, end in bounds]
    for row in (row for batch in batches for row in batch.to_pylist()):
        by_item, unknown_rows = row["by_item"], unknown_rows + row["unknown_rows"]
        columns = join_columns([row])
        rows, other_positions = (columns[ITEM], columns[USER]) if by_item else (columns[USER], columns[ITEM])
        ratings = columns.get(RATING, np.ones(len(rows), np.float32))
        weights = columns.get(WEIGHT, np.empty(0, np.float32))
        arrays: RatingArrays = (rows - np.int32(bounds[by_item][0]), other_positions, ratings, weights)
        if HELD in columns and (mask := columns[HELD]).any():
            if by_item:
                held_out.append(tuple(array[mask[: len(array)]] for array in arrays))
            arrays = tuple(array[~mask[: len(array)]] for array in arrays)
        runs[by_item].add(arrays)
        if spill is not None and spill.is_due(sum(side.nbytes for side in runs)):
            for side in runs:
                side.write(spill)
    users, items = (_sorted_side(side, plan, spill) for side in runs)
    held = SideRatings.from_rows(RatingRows.from_parts(held_out), items.count, plan) if held_out else None
    files = [side.file for side in (users, items) if isinstance(side, SideFile)]
    spilled = Spilled(sum(file.size for file in files), files[0].folder) if files else None
    return WorkersRatings(users, items, held, unknown_rows, *bounds, spilled)


def _sorted_side(runs: RatingRuns, plan: FactorizationPlan, spill: RowSpill | None) -> SideRatings | SideFile:
    if spill is not None and spill.uses_file:
        runs.write(spill)
    sides = (
        (first, SideRatings.from_rows(RatingRows.from_parts(parts, first), end - first, plan))
        for first, end, parts in runs.ranges(range_bytes(spill))
    )
    if spill is None or runs.file is None:
        return next(sides)[1]
    return SideFile.write(spill.new_file(), sides)


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive users (or items) of a worker, from index ``first`` to ``end``, with their ratings.

    ``columns`` has the items' (or users') positions in the ratings, ascending; ``other_positions`` are indices into it.
    """

    first: int
    end: int
    columns: Int64s
    ratings: SideRatings
    held_out: SideRatings | None


def padded_rank(rank: int) -> int:
    """Return the rank, rounded up to a multiple of ``BLOCK``. The additional coordinates stay 0."""
    return -(-rank // BLOCK) * BLOCK


def num_coordinates(plan: FactorizationPlan) -> int:
    """Return the number of coordinates of a vector: ``padded_rank``, and one for the bias if the model has biases."""
    return padded_rank(plan.settings.rank) + plan.settings.biases


def gram_matrix(vectors: Float32s) -> Float64s:
    """Return ``vectors.T @ vectors``. Unlike BLAS, this function always adds in the same order."""
    rows = np.ascontiguousarray(vectors.T)
    gram = np.empty((len(rows), len(rows)))
    for first in range(0, len(rows), BLOCK):
        multiply_rows(rows, first, gram[first : first + BLOCK])
    return gram


class SideDescent:
    """The vectors of a worker's users, or of its items, and their ratings.

    Attributes:
        vectors: shape (n, ``num_coordinates``).
        bytes: the bytes of vectors that the worker pushed and pulled in the last iteration.
        weight, held_weight: ``SideRatings.weight`` of the training ratings and of the held-out ratings.
    """

    def __init__(
        self,
        plan: FactorizationPlan,
        ratings: SideRatings | SideFile,
        mean: float = 0.0,
        held_out: SideRatings | None = None,
        threads: int = 1,
    ) -> None:
        settings, ranks = plan.settings, num_coordinates(plan)
        self._mean, self._reg, self._threads = mean, settings.regParam, threads
        self._flags = settings.biases, settings.nonnegative, settings.implicitPrefs
        self.vectors = np.zeros((ratings.count, ranks), np.float32)
        self.ratings = len(ratings)
        self.weight = ratings.weight
        self.held_weight = held_out.weight if held_out is not None else 0.0
        self._penalties = ratings.penalties
        self._side, self._held_out, self._max_others = ratings, held_out, max(1, MAX_FLOATS // ranks)
        self._batches = list(self._split()) if isinstance(ratings, SideRatings) else None
        self.bytes = 0

    def solve(self, request: Request, gram: Float64s) -> tuple[float, float]:
        """Solve all coordinates; return the losses of training and held-out ratings. ``gram``: see ``descend``."""
        losses, held_losses = np.zeros(len(self.vectors)), np.zeros(len(self.vectors))
        batches = self._split() if self._batches is None else iter(self._batches)
        self.bytes, batch = self.vectors.nbytes, next(batches, None)
        future = None if batch is None else request(batch.columns)
        while batch is not None and future is not None:
            others = future.result()
            self.bytes += len(batch.columns) * self.vectors.itemsize * self.vectors.shape[1]
            next_batch = next(batches, None)
            if next_batch is not None:  # the next batch's vectors arrive while this batch is solved
                future = request(next_batch.columns)
            part = slice(batch.first, batch.end)
            self._descend(batch.ratings, self.vectors[part], others, gram, losses[part])
            if batch.held_out is not None:
                vectors, held = self.vectors[part], batch.held_out.arrays
                sum_losses(held, vectors, others, self._mean, self._flags, held_losses[part])
            batch = next_batch
        # Sums over all rows at once do not depend on the batches.
        return float(losses.sum()), float(held_losses.sum())

    def _split(self) -> Iterator[Batch]:
        """Split ratings into batches."""
        for begin, ratings in self._side.blocks():
            if ratings.count:
                end = begin + ratings.count
                held_out = None if self._held_out is None else self._held_out.select(begin, end)
                for batch in _split(ratings, held_out, 0, ratings.count, self._max_others):
                    yield replace(batch, first=begin + batch.first, end=begin + batch.end)

    def penalty(self) -> float:
        """Return ``regParam`` times the weighted sum of the vectors' squared norms."""
        return self._reg * float(self._penalties @ np.sum(np.square(self.vectors, dtype=np.float64), axis=1))

    def _descend(
        self, ratings: SideRatings, vectors: Float32s, others: Float32s, gram: Float64s, losses: Float64s
    ) -> None:
        """Solve the vectors of a batch in threads; ``losses``: see ``descend``."""
        # The bounds of each thread's vectors: threads get about equal numbers of ratings.
        targets = ratings.ends[-1] * np.arange(1, self._threads) // self._threads
        bounds = [0, *np.searchsorted(ratings.ends, targets).tolist(), ratings.count]

        def solve(rows: tuple[int, int]) -> None:
            ridge = self._reg * ratings.penalties
            descend(ratings.arrays, rows, vectors, others, gram, ridge, self._mean, self._flags, losses)

        if self._threads == 1:
            solve((0, ratings.count))
        else:
            with ThreadPoolExecutor(self._threads, "ps2-factors") as pool:
                list(pool.map(solve, pairwise(bounds)))


def _split(ratings: SideRatings, held_out: SideRatings | None, first: int, end: int, limit: int) -> Iterator[Batch]:
    """Split ratings into batches that need at most ``limit`` vectors of the other side each."""
    training = ratings.select(first, end)
    validation = None if held_out is None else held_out.select(first, end)
    positions = training.other_positions
    if validation is not None:
        positions = np.append(positions, validation.other_positions)
    occurs = np.zeros(int(positions.max(initial=-1)) + 1, np.bool_)
    occurs[positions] = True
    columns = np.flatnonzero(occurs)
    if len(columns) > limit and end - first > 1:
        middle = int(np.searchsorted(training.ends, training.ends[-1] // 2))
        middle = first + min(max(middle, 1), end - first - 1)
        yield from _split(ratings, held_out, first, middle, limit)
        yield from _split(ratings, held_out, middle, end, limit)
        return
    indices = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    validation = None if validation is None else validation.renumber(indices)
    yield Batch(first, end, columns, training.renumber(indices), validation)
