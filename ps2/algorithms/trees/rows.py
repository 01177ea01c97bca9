"""A worker's rows while trees grow: they are binned, moved from node to node, and added to the nodes' histograms.

Rows are binned once (``DenseRows``, ``SparseRows``). An array ``order`` has the numbers of the rows of a tree, and the
rows of a node are an interval of it. ``partition`` puts the rows of the left child before those of the right child. The
time for a node depends only on the number of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees import driver_messages as messages
from ps2.algorithms.trees import growing_kernels as kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.layout import DENSE_FROM, WORD_BITS, Array, Bools, UInt64s, set_left_bins
from ps2.algorithms.trees.predict import dense_rows
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, row_arrays, row_fields
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks

# The cost of adding to a bin, in additions of array elements.
BIN_COST = 4
# The maximum number of features in a block: their histogram stays in the L2 cache.
BLOCK_FEATURES = 32
# Threads divide the rows of a node into at most MAX_ROW_PARTS parts, each with at least MIN_PART_ADDITIONS additions.
MAX_ROW_PARTS, MIN_PART_ADDITIONS = 8, 1 << 20


@dataclass(frozen=True, eq=False)
class Split:
    """The split of a node; bin: the last bin on the left; -1: ``words`` has a bit for each category that goes left."""

    feature: int
    bin: int
    default_left: bool
    words: Int64s

    def left_bins(self, bins: Bins) -> Bools:
        """Return for each bin of the feature whether it goes left."""
        goes_left = np.empty(int(bins.num_bins[self.feature]), np.bool_)
        condition = np.array([self.feature, self.bin, self.default_left], np.int64)
        set_left_bins(condition, readable(self.words), bool(bins.has_missing[self.feature]), goes_left)
        return goes_left


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows that store a bin for each feature.

    Attributes:
        columns: see ``Bins.bin_dense``, shape (features, rows).
        is_used: whether histograms have each feature; None: they have all.
    """

    bins: Bins
    columns: Array
    is_used: Bools | None = None

    def with_features(self, is_used: Bools) -> DenseRows:
        """Return these rows, but histograms have only some features."""
        return DenseRows(self.bins, self.columns, is_used)

    def add_histogram(self, order: Int32s, pairs: Array, out: Array) -> None:
        """Add the rows of a node to its histogram, shape (bins, channels); pairs: shape (rows, channels)."""
        pairs = readable(pairs)
        blocks, width = self.blocks, self.blocks.shape[2]
        num_parts = min(MAX_ROW_PARTS // max(len(blocks), 1), len(order) * len(self.first) // MIN_PART_ADDITIONS) or 1
        # Sums are integers, so they do not depend on the number of parts.
        parts = [out, *np.zeros((num_parts - 1, *out.shape), np.int64)]
        ends = [len(order) * i // num_parts for i in range(num_parts + 1)]

        def add(tasks: Int64s) -> None:
            for task in tasks.tolist():
                part_number, block = divmod(task, len(blocks))
                part_rows = readable(order[ends[part_number] : ends[part_number + 1]])
                first = self.first[block * width : (block + 1) * width]
                kernels.add_dense(part_rows, blocks[block], first, pairs, 1, parts[part_number])

        if len(blocks):
            over_blocks(add, (np.arange(num_parts * len(blocks)),), cost=BIN_COST * width * len(order) // num_parts)
        for part in parts[1:]:
            out += part

    @cached_property
    def _features(self) -> Int64s:
        """The numbers of the features in a histogram."""
        has_columns = self.bins.num_columns > 0
        return readable(np.flatnonzero(has_columns if self.is_used is None else has_columns & self.is_used))

    @cached_property
    def first(self) -> npt.NDArray[np.uint64]:
        """The first column of each of these features."""
        return readable(self.bins.first_columns[self._features].astype(np.uint64))

    @cached_property
    def blocks(self) -> Array:
        """The bins of these features row by row, in blocks of features: shape (blocks, rows, features of a block)."""
        features, rows = self._features, self.columns.shape[1]
        count = -(-len(features) // BLOCK_FEATURES)
        out = np.empty((count, rows, -(-len(features) // max(count, 1))), self.columns.dtype)
        tiles = np.arange(-(-rows // kernels.TILE))
        over_blocks(kernels.to_rows, (tiles,), readable(self.columns), features, out, cost=kernels.TILE * len(features))
        return readable(out)

    def partition(self, order: Int32s, split: Split, spare: Int32s) -> int:
        """Move the rows of a node that go left to the front, in place; return their number."""
        column = readable(self.columns[split.feature])
        return int(kernels.partition_dense(order, column, split.left_bins(self.bins), spare))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows that do not store implied bins; begins, columns: see ``Bins.bin_sparse``."""

    bins: Bins
    begins: Int64s
    columns: Int32s
    absent: Absent

    def with_features(self, is_used: Bools) -> SparseRows:
        """Return these rows with the bins of only some features."""
        bins = self.bins
        has_feature = np.repeat(is_used, np.diff(bins.first_columns))[self.columns]
        begins = np.append(0, np.cumsum(has_feature))[self.begins]
        return SparseRows(bins, begins, self.columns[has_feature], self.absent)

    def histogram(self, order: Int32s, pairs: Array, scratch: Scratch) -> tuple[Int64s, Array]:
        """Return the filled bins of a node's histogram, ascending, without implied bins, and their sums."""
        pairs = readable(pairs)
        rows = readable(order), readable(self.begins), readable(self.columns)
        kernels.add_sparse(*rows, pairs, scratch.sums, scratch.touched)
        count = kernels.count_touched(scratch.touched)
        bins, sums = np.empty(count, np.int64), np.empty((count, scratch.sums.shape[1]), np.int64)
        kernels.take_touched(scratch.touched, scratch.sums, bins, sums)
        return bins, sums

    def partition(self, order: Int32s, split: Split, spare: Int32s) -> int:
        begins, columns, f = readable(self.begins), readable(self.columns), split.feature
        first, implied, goes_left = int(self.bins.first_columns[f]), int(self._implied[f]), split.left_bins(self.bins)
        return int(kernels.partition_sparse(order, begins, columns, first, implied, goes_left, spare))

    @cached_property
    def _implied(self) -> Int32s:
        return self.bins.implied(self.absent)


class Scratch:
    """Memory for a node's histogram of sparse rows, and a bit for each bin; all zeros before and after each use."""

    def __init__(self, bins: int, channels: int) -> None:
        self.sums: Array = np.zeros((bins, channels), np.int64)
        self.touched = np.zeros(-(-bins // WORD_BITS), np.uint64)


# The number of rows for which temporary arrays of NumPy are made at a time.
ROWS_AT_ONCE = 1 << 16
# The number of rows that are hashed at a time: their data stay in the caches.
HASH_BATCH_ROWS = 1 << 12
# A histogram of dense rows is sent with all bins, and without bin numbers, if more than this fraction of its bins is
# filled, or if it has at most this number of bytes.
MIN_FILLED_FRACTION, SMALL_BYTES = 0.25, 1 << 17

# The costs of moving a row to a child, of adding a leaf's value to a row's margin, and of hashing a value, in additions
# of array elements.
PARTITION_COST, LEAF_COST, HASH_COST = 4, 4, 16

Binned = DenseRows | SparseRows


def is_dense(x: sp.csr_array, dim: int) -> bool:
    """Return whether rows are stored as dense bins: they store at least DENSE_FROM of all entries."""
    return bool(x.nnz >= DENSE_FROM * x.shape[0] * dim)


def stores_dense_bins(rows: KeptRows, dim: int) -> bool:
    """Return ``is_dense`` for rows in memory or in a file."""
    if isinstance(rows, LocalRows):
        return is_dense(rows.x, dim)
    return rows.num_values >= DENSE_FROM * len(rows) * dim


def rows_with_weight(rows: KeptRows) -> KeptRows:
    """Return the rows whose weight is above 0; no rows are in memory."""
    if isinstance(rows, LocalRows):
        return rows if rows.weights is None else rows.chosen(np.flatnonzero(rows.weights > 0))
    if not len(rows):
        return load_empty_rows(rows)
    (weights,) = row_fields(rows, "weights")
    if weights is not None and not weights.all():
        rows = rows.chosen(np.flatnonzero(weights))
    return load_empty_rows(rows)


def load_empty_rows(rows: KeptRows) -> KeptRows:
    """Return rows in memory instead of a file without rows."""
    if isinstance(rows, LocalRows) or len(rows):
        return rows
    no_rows = sp.csr_array((0, len(rows.keys)))
    return LocalRows(rows.keys, no_rows, np.empty(0), groups=np.empty(0, np.int64), sets=np.empty(0, np.int8))


def with_all_columns(rows: LocalRows, dim: int) -> sp.csr_array:
    """Return the features of rows as a matrix with ``dim`` columns, one for each feature."""
    indices = rows.keys.astype(np.int32)[rows.x.indices]
    return sp.csr_array((rows.x.data, indices, rows.x.indptr), shape=(len(rows), dim))


def dense_of(rows: LocalRows, dim: int, absent: Absent) -> Array:
    """Return rows as a dense array, shape (n, dim): see ``dense_rows``; it is not a copy if rows store all entries."""
    x = rows.x
    if x.shape[1] == dim and x.nnz == len(rows) * dim:
        indices, order = x.indices.reshape(x.shape), np.arange(dim)
        if np.array_equal(rows.keys, order) and (indices == order.astype(indices.dtype)).all():
            return x.data.reshape(x.shape)
    return dense_rows(with_all_columns(rows, dim), absent)


def binned(
    rows: LocalRows,
    bins: Bins,
    absent: Absent,
    columns: FeatureColumns | None = None,
    is_dense: bool | None = None,
) -> DenseRows | SparseRows:
    """Bin rows; columns: those of dense rows, if the caller has made them; is_dense None: the rows' values decide."""
    if columns is not None:
        return DenseRows(bins, bins.bin_dense(columns))
    if stores_dense_bins(rows, bins.num_features) if is_dense is None else is_dense:
        return DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(dense_of(rows, bins.num_features, absent))))
    x = with_all_columns(rows, bins.num_features)
    x.sort_indices()
    return SparseRows(bins, *bins.bin_sparse(x, absent), absent)


def row_ids(rows: KeptRows, absent: Absent) -> Int64s:
    """Return a hash of each row's features and label, which does not depend on the row's worker or position."""
    return row_arrays(rows, lambda block: {"ids": _hash_rows(block, absent)})["ids"]


def _hash_rows(rows: LocalRows, absent: Absent) -> Int64s:
    x = rows.x
    labels = readable((np.zeros(len(rows)) if rows.y is None else rows.y).view(np.uint64))
    absent_bits = np.array([0.0 if absent == "zero" else np.nan]).view(np.uint64)[0]
    ids = np.empty(len(rows), np.uint64)

    def identify(begins: Int64s) -> None:
        for begin in begins.tolist():
            part = slice(begin, begin + HASH_BATCH_ROWS)
            indptr = x.indptr[begin : begin + HASH_BATCH_ROWS + 1].astype(np.int64)
            entries = slice(indptr[0], indptr[-1])
            values = x.data[entries].astype(np.float64) + 0.0  # -0 is 0
            values[np.isnan(values)] = np.nan  # NaN has many bit patterns
            columns, words = readable(rows.keys[x.indices[entries]]), readable(values.view(np.uint64))
            _hash(readable(indptr - indptr[0]), columns, words, absent_bits, labels[part], ids[part])

    cost = HASH_COST * HASH_BATCH_ROWS * x.nnz // max(len(rows), 1)
    over_blocks(identify, (np.arange(0, len(rows), HASH_BATCH_ROWS),), cost=cost)
    return ids.view(np.int64)


@kernel
def _hash(indptr: Array, columns: Int64s, values: UInt64s, absent: np.uint64, labels: UInt64s, out: UInt64s) -> None:
    for row in range(len(out)):
        state = scrambled(labels[row])
        for i in range(indptr[row], indptr[row + 1]):
            # Stored values that equal absent entries do not change the hash, and neither does the order of values.
            if values[i] != absent:
                state += scrambled(values[i] + GOLDEN * np.uint64(columns[i] + 1))
        out[row] = scrambled(state)


@kernel
def sample_rows(ids: Int64s, key: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Return for each row whether a tree samples it: with probability ``fraction``, by key and row id."""
    is_sampled = np.empty(len(ids), np.bool_)
    for i in range(len(ids)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(ids[i]))
        is_sampled[i] = np.float64(state >> np.uint64(11)) * 2.0**-53 < fraction
    return is_sampled


@kernel
def rounded_weights(weights: Float64s, ids: Int64s, unit: float) -> Int32s:
    """Round weights at random, by row id, to integer multiples of a unit."""
    units = np.empty(len(weights), np.int32)
    for i in range(len(weights)):
        random = np.float64(scrambled(np.uint64(ids[i]) + GOLDEN) >> np.uint64(11)) * TO_UNIT
        units[i] = np.floor(weights[i] / unit + random)
    return units


class NodeRows:
    """The rows of each node of a growing tree.

    Attributes:
        rows: all rows, of which ``order`` has the numbers of the tree's; None: the caller passes them to ``partition``.
    """

    def __init__(self, rows: Binned | None, order: Int32s, spare: Int32s | None = None) -> None:
        self.rows = rows
        self._order = order
        self._spare = np.empty_like(order) if spare is None else spare
        self._ends = np.array([[0, len(order)]])  # the interval of each node's rows in ``order``, shape (nodes, 2)

    def rows_of(self, node: int) -> Int32s:
        begin, end = self._ends[node].tolist()
        return self._order[begin:end]

    def groups(self) -> Iterator[tuple[slice, NodeRows]]:
        """Yield an interval of row numbers, and its rows by node: all. Rows in files have a part for each block."""
        yield slice(None), self

    @property
    def arrays(self) -> tuple[Int32s, Int32s]:
        """The numbers of all rows, grouped by node, and scratch memory of the same length."""
        return self._order, self._spare

    def set_ends(self, ends: Int64s) -> None:
        """Set the intervals of the nodes' rows, shape (nodes, 2), after a kernel has reordered ``arrays``."""
        self._ends = ends

    def partition(self, splits: Int64s, rows: Binned | None = None) -> None:
        """Move the rows of nodes to their children, by ``Moves.splits``; no node is a descendant of another one."""
        if len(splits):
            self._reserve(splits)
            # Nodes share no rows, so threads may work on different nodes.
            cost = PARTITION_COST * len(self._order) // len(splits)
            over_blocks(self._partition, (splits,), rows or self.rows, cost=cost)

    def partition_one_by_one(self, splits: Int64s) -> None:
        """Do what ``partition`` does, split by split: a node may be a descendant of an earlier one."""
        if len(splits):
            self._reserve(splits)
            assert self.rows is not None
            self._partition(splits, self.rows)

    def _reserve(self, splits: Int64s) -> None:
        num_nodes = int(splits[:, messages.LEFT].max()) + 2
        if num_nodes > len(self._ends):
            ends = np.zeros((2 * num_nodes, 2), np.int64)
            ends[: len(self._ends)] = self._ends
            self._ends = ends

    def _partition(self, splits: Int64s, rows: Binned) -> None:
        for row in splits:
            left, (begin, end) = int(row[messages.LEFT]), self._ends[row[messages.NODE]].tolist()
            feature, bin = int(row[messages.FEATURE]), int(row[messages.BIN])
            split = Split(feature, bin, bool(row[messages.DEFAULT_LEFT]), row[messages.FIELDS :])
            middle = begin + rows.partition(self._order[begin:end], split, self._spare[begin:end])
            self._ends[left : left + 2] = (begin, middle), (middle, end)

    def add_leaf_values(self, nodes: FinalNodes, margins: Float64s) -> None:
        """Add each leaf's value to the margins of its rows."""
        tiles = np.arange(-(-len(margins) // kernels.MARGIN_TILE))
        leaves = readable(self._ends[nodes.leaves]), readable(nodes.values[nodes.is_leaf])
        operands = *leaves, readable(self._order), margins
        over_blocks(kernels.add_leaf_values, (tiles,), *operands, cost=LEAF_COST * kernels.MARGIN_TILE)

    def counts(self, nodes: FinalNodes) -> Int64s:
        return np.diff(self._ends[nodes.numbers])[:, 0]


# Bins of a node's histogram (None: all bins), and their sums, shape (bins, channels).
Histogram = tuple[Int64s | None, Array]


class Histograms:
    """Memory for histograms of nodes, to be sent to the servers."""

    def __init__(self, bins: Bins, channels: int) -> None:
        self.shape = int(bins.first_columns[-1]), channels

    @cached_property
    def scratch(self) -> Scratch:
        return Scratch(*self.shape)

    def compact(self, out: Array) -> Histogram:
        """Return the filled bins of a histogram of dense rows, and their sums, if that is smaller."""
        if out.nbytes <= SMALL_BYTES:
            return None, out
        bins = np.flatnonzero(out[:, 0])
        return (None, out) if len(bins) > MIN_FILLED_FRACTION * len(out) else (bins, out[bins])
