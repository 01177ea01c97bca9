"""The ratings of a worker, sorted by group of items and then by user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, join_columns
from ps2.algorithms.factors.sgd_kernels import count_cells, fill_cells, sort_cells
from ps2.array_types import Float32s, Int32s, Int64s
from ps2.run.rotation import RotationSchedule

Array = npt.NDArray[Any]


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
        values, weights: the scaled ratings (see ``rows.Scaling``), and their weights; empty: all are 1.
        unknown_rows: the number of rows with ids that did not occur when the ratings were surveyed.
    """

    layout: Layout
    first_user: int
    users: int
    begins: Int64s
    items: Int32s
    values: Float32s
    weights: Float32s
    held_out: HeldOut | None
    unknown_rows: int

    def cells(self, block: int, item_group: int) -> Int64s:
        """Return where each user's ratings of a group of a block's items begin, and the end, shape (users + 1,)."""
        row = block * self.layout.groups + item_group
        return self.begins[row * self.users : (row + 1) * self.users + 1]

    def ratings_in(self, block: int) -> int:
        begin, end = (index * self.layout.groups * self.users for index in (block, block + 1))
        return int(self.begins[end] - self.begins[begin])


def read_grid(
    batches: Iterable[pa.RecordBatch], layout: Layout, rank: int, shift: float, scale: float, weight_scale: float = 1.0
) -> Grid:
    """Read packed ratings (``dealing.PACKED``): values ``(rating - shift) / scale``, weights * ``weight_scale``."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["part"], row["number"]))
    columns = join_columns(rows)
    first, end = layout.user_bounds(rank)[[0, -1]].tolist()
    users, items = columns[USER] - np.int32(first), columns[ITEM]
    ratings = columns.get(RATING, np.ones(len(users), np.float32))
    values = ((ratings.astype(np.float64) - shift) / scale).astype(np.float32)
    weights = (columns.get(WEIGHT, np.empty(0, np.float32)) * weight_scale).astype(np.float32)
    held_out = None
    if HELD in columns:
        mask = columns[HELD]
        if mask.any():
            held_out = _held_out(users[mask], items[mask], values[mask], weights[mask] if len(weights) else weights)
        users, items, values = users[~mask], items[~mask], values[~mask]
        weights = weights[~mask] if len(weights) else weights
    unknown_rows = sum(row["unknown_rows"] for row in rows)
    return build_grid(layout, (first, end - first), (users, items, values, weights), held_out, unknown_rows)


def build_grid(
    layout: Layout,
    user_range: tuple[int, int],
    ratings: tuple[Int32s, Int32s, Float32s, Float32s],
    held_out: HeldOut | None = None,
    unknown_rows: int = 0,
) -> Grid:
    """Sort ratings into a grid. ``user_range``: the position of the worker's first user, and the number of its users.

    ``ratings``: users, as indices among the worker's users; items' positions; values; weights, or an empty array.
    """
    users, items, values, weights = ratings
    groups, num_users = len(layout.item_begins) - 1, user_range[1]
    group = np.repeat(np.arange(groups, dtype=np.int32), np.diff(layout.item_begins))
    block_begins = layout.item_begins[:: layout.groups]
    index_in_block = (np.arange(layout.items) - np.repeat(block_begins[:-1], np.diff(block_begins))).astype(np.int32)
    begins = np.empty(groups * num_users + 1, np.int64)
    count_cells(users, items, group, num_users, begins)
    cell_items = np.empty(len(items), np.int32)
    cell_values, cell_weights = np.empty(len(items), np.float32), np.empty(len(weights), np.float32)
    cells = cell_items, cell_values, cell_weights
    fill_cells(users, items, group, num_users, begins[:-1].copy(), (values, weights), index_in_block, cells)
    sort_cells(begins, *cells)
    return Grid(layout, *user_range, begins, cell_items, cell_values, cell_weights, held_out, unknown_rows)


def _held_out(users: Int32s, items: Int32s, values: Float32s, weights: Float32s) -> HeldOut:
    order = np.lexsort((values, items, users))  # rows arrive in any order
    columns, indices = np.unique(items[order], return_inverse=True)
    weights = weights[order] if len(weights) else weights
    return HeldOut(users[order], indices.astype(np.int32), values[order], weights, columns.astype(np.int64))
