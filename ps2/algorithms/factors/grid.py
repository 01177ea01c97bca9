"""The ratings of a worker, sorted by group of items and then by user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, join_columns
from ps2.algorithms.factors.rating_runs import RatingArrays, RatingRuns, join, range_bytes
from ps2.algorithms.factors.rows import Scaling
from ps2.algorithms.factors.sgd_kernels import fill_cells, sort_cells
from ps2.array_types import Float32s, Int32s, Int64s
from ps2.data.block_file import StoredArray
from ps2.data.row_spill import RowSpill, Spilled
from ps2.run.rotation import RotationSchedule


@dataclass(frozen=True, eq=False)
class Layout:
    """The users of each worker, and the items that rotate together.

    A position is a column of the matrices on the servers. Users' positions are ordered by worker, and within a worker
    by group; items' positions are ordered by block, and within a block by group. Each thread of a worker trains on one
    group of users and one group of the block's items, so no two threads change the same user or item.

    Attributes:
        groups: the number of groups of a worker's users, and of a block's items: the threads of a worker.
        user_begins, item_begins: the first position of each group, and then the number of users or items.
    """

    rotation: RotationSchedule
    groups: int
    user_begins: Int64s
    item_begins: Int64s

    @property
    def users(self) -> int:
        return int(self.user_begins[-1])

    @property
    def items(self) -> int:
        return int(self.item_begins[-1])

    def user_bounds(self, rank: int) -> Int64s:
        """Return the bounds of a worker's groups of users, shape (groups + 1,)."""
        return self.user_begins[rank * self.groups : (rank + 1) * self.groups + 1]

    def items_owned_by(self, rank: int) -> tuple[int, int]:
        """Return the first position of the items that a worker solves, and the end, if blocks do not rotate ("ccd")."""
        groups = self.rotation.blocks // self.rotation.workers * self.groups
        return int(self.item_begins[rank * groups]), int(self.item_begins[(rank + 1) * groups])

    def item_bounds(self, block: int) -> Int64s:
        """Return the bounds of a block's groups of items, shape (groups + 1,)."""
        return self.item_begins[block * self.groups : (block + 1) * self.groups + 1]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A worker's held-out ratings, scaled (see ``rows.Scaling``).

    ``users`` are indices among the worker's users, ``items`` indices in ``columns``: the items' positions, ascending.
    Empty ``weights``: all are 1.
    """

    users: Int32s
    items: Int32s
    values: Float32s
    weights: Float32s
    columns: Int64s

    @property
    def weight(self) -> float:
        return float(self.weights.sum(dtype=np.float64)) if len(self.weights) else float(len(self.values))


@dataclass(frozen=True, eq=False)
class Grid:
    """A worker's ratings, sorted into cells.

    A cell has the ratings of one user for one group of items, sorted by item. Cells are ordered by group and then by
    user; groups are numbered over all blocks.

    Attributes:
        first_user, users: the position of the worker's first user, and the number of its users.
        begins: the index of the first rating of each cell, and the end: shape (item groups * users + 1,).
        items: the index of each rating's item within its block.
        values, weights: the scaled ratings (see ``rows.Scaling``), and their weights (empty: all are 1), like ``items``
            in memory or in a file.
        unknown_rows: the number of rows with ids that did not occur when the ratings were surveyed.
        spilled: the file of the ratings; None: they are in memory.
    """

    layout: Layout
    first_user: int
    users: int
    begins: Int64s
    items: StoredArray
    values: StoredArray
    weights: StoredArray
    held_out: HeldOut | None
    unknown_rows: int
    spilled: Spilled | None = None

    def cells(self, block: int, item_group: int) -> Int64s:
        """Return where each user's ratings of a group of a block's items begin, and the end, shape (users + 1,)."""
        row = block * self.layout.groups + item_group
        return self.begins[row * self.users : (row + 1) * self.users + 1]

    def ratings_in(self, block: int) -> int:
        begin, end = (index * self.layout.groups * self.users for index in (block, block + 1))
        return int(self.begins[end] - self.begins[begin])


def read_grid(
    batches: Iterable[pa.RecordBatch],
    layout: Layout,
    rank: int,
    scaling: Scaling,
    spill: RowSpill | None = None,
) -> Grid:
    """Read packed ratings (``dealing.PACKED``), and scale them and their weights.

    Ratings that are not held out are written to a file if they exceed the memory of ``spill``; None: they never are.
    """
    first, end = layout.user_bounds(rank)[[0, -1]].tolist()
    unknown_rows, held_out, runs = 0, list[RatingArrays](), _cell_runs(layout, end - first)
    for row in (row for batch in batches for row in batch.to_pylist()):
        unknown_rows += row["unknown_rows"]
        columns = join_columns([row])
        ratings = columns.get(RATING, np.ones(len(columns[USER]), np.float32))
        values = ((ratings.astype(np.float64) - scaling.mean) / scaling.scale).astype(np.float32)
        weights = (columns.get(WEIGHT, np.empty(0, np.float32)) * scaling.weight_scale).astype(np.float32)
        arrays: RatingArrays = (columns[USER] - np.int32(first), columns[ITEM], values, weights)
        if HELD in columns and (mask := columns[HELD]).any():
            held_out.append(tuple(array[mask[: len(array)]] for array in arrays))
            arrays = tuple(array[~mask[: len(array)]] for array in arrays)
        runs.add(arrays)
        if spill is not None and spill.is_due(runs.nbytes):
            runs.write(spill)
    held = _held_out(*join(held_out)) if held_out else None
    return _sorted_grid(layout, (first, end - first), runs, spill, held, unknown_rows)


def build_grid(layout: Layout, user_range: tuple[int, int], ratings: RatingArrays) -> Grid:
    """Sort ratings into a grid. ``user_range``: the position of the worker's first user, and the number of its users.

    ``ratings``: users, as indices among the worker's users; items' positions; values; weights, or an empty array.
    """
    runs = _cell_runs(layout, user_range[1])
    runs.add(ratings)
    return _sorted_grid(layout, user_range, runs)


def _cell_runs(layout: Layout, num_users: int) -> RatingRuns:
    """Return ratings that are sorted by cell."""
    groups = _item_groups(layout).astype(np.int64) * num_users
    return RatingRuns((len(layout.item_begins) - 1) * num_users, lambda users, items: groups[items] + users)


def _item_groups(layout: Layout) -> Int32s:
    """Return the group of each item."""
    return np.repeat(np.arange(len(layout.item_begins) - 1, dtype=np.int32), np.diff(layout.item_begins))


def _sorted_grid(
    layout: Layout,
    user_range: tuple[int, int],
    runs: RatingRuns,
    spill: RowSpill | None = None,
    held_out: HeldOut | None = None,
    unknown_rows: int = 0,
) -> Grid:
    if spill is not None and spill.uses_file:
        runs.write(spill)
    block_begins = layout.item_begins[:: layout.groups]
    index_in_block = (np.arange(layout.items) - np.repeat(block_begins[:-1], np.diff(block_begins))).astype(np.int32)
    groups, begins = _item_groups(layout), runs.begins()
    file = None if runs.file is None or spill is None else spill.new_file()

    def new_array(length: int, dtype: npt.DTypeLike) -> StoredArray:
        return np.empty(length, dtype) if file is None else file.reserve(length, dtype)

    total = int(begins[-1])
    items, values = new_array(total, np.int32), new_array(total, np.float32)
    weights = new_array(total if runs.is_weighted else 0, np.float32)
    for first, end, parts in runs.ranges(range_bytes(spill)):
        part = slice(begins[first], begins[end])
        cells, range_begins = (items[part], values[part], weights[part]), begins[first : end + 1] - begins[first]
        ends = range_begins[:-1].copy()
        for part_users, part_items, part_values, part_weights in parts:
            source = part_values, part_weights
            fill_cells(part_users, part_items, groups, user_range[1], first, ends, source, index_in_block, cells)
        sort_cells(range_begins, *cells)
    spilled = None if file is None else Spilled(file.size, file.folder)
    return Grid(layout, *user_range, begins, items, values, weights, held_out, unknown_rows, spilled)


def _held_out(users: Int32s, items: Int32s, values: Float32s, weights: Float32s) -> HeldOut:
    keys = (values, items, users)
    order = np.lexsort((weights, *keys) if len(weights) else keys)  # rows arrive in any order
    columns, indices = np.unique(items[order], return_inverse=True)
    weights = weights[order] if len(weights) else weights
    return HeldOut(users[order], indices.astype(np.int32), values[order], weights, columns.astype(np.int64))
