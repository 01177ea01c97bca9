"""A worker's rows while trees grow: binned once, and moved from node to node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees import driver_messages as messages
from ps2.algorithms.trees import growing_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.growing import DenseRows, Scratch, SparseRows, Split
from ps2.algorithms.trees.layout import DENSE_FROM, Array, UInt64s
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.rows import LocalRows
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks

# Rows hashed together, so that their data stay in the caches.
HASHED_ROWS = 1 << 12
# Histograms with few empty bins, and small ones, are sent whole: bin numbers would cost more.
MIN_DENSE_SHARE, SMALL_BYTES = 0.25, 1 << 17

# The cost of moving a row to a child, of adding a leaf's value to a row, and of hashing a value, in element additions.
PART_COST, LEAF_COST, HASH_COST = 4, 4, 16

Binned = DenseRows | SparseRows


def is_dense(x: sp.csr_array, dim: int) -> bool:
    """Return whether rows are stored dense."""
    return bool(x.nnz >= DENSE_FROM * x.shape[0] * dim)


def rows_with_weight(rows: LocalRows) -> LocalRows:
    """Return the rows whose weight is above 0."""
    return rows if rows.weights is None else rows.chosen(np.flatnonzero(rows.weights > 0))


def with_all_columns(rows: LocalRows, dim: int) -> sp.csr_array:
    """Return rows' features by their global numbers."""
    indices = rows.keys.astype(np.int32)[rows.x.indices]
    return sp.csr_array((rows.x.data, indices, rows.x.indptr), shape=(len(rows), dim))


def filled(x: sp.csr_array, absent: Absent) -> Array:
    """Return sparse rows as dense ones; absent values are 0, or NaN if they are missing."""
    out: Array = x.toarray()
    if absent == "missing":
        is_stored = sp.csr_array((np.ones(x.nnz, np.bool_), x.indices, x.indptr), shape=x.shape)
        out[~is_stored.toarray()] = np.nan
    return out


def dense_of(rows: LocalRows, dim: int, absent: Absent) -> Array:
    """Return rows as a dense array, shape (n, dim): ``filled``, but without a copy where no value is absent."""
    x = rows.x
    if x.shape[1] == dim and x.nnz == len(rows) * dim:
        indices, order = x.indices.reshape(x.shape), np.arange(dim)
        if np.array_equal(rows.keys, order) and (indices == order.astype(indices.dtype)).all():
            return x.data.reshape(x.shape)
    return filled(with_all_columns(rows, dim), absent)


def binned(rows: LocalRows, bins: Bins, absent: Absent, columns: FeatureColumns | None = None) -> Binned:
    """Return binned rows. ``columns``: the columns of dense rows, if the caller has them."""
    if columns is not None:
        return DenseRows(bins, bins.bin_dense(columns))
    if is_dense(rows.x, bins.features):
        return DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(dense_of(rows, bins.features, absent))))
    x = with_all_columns(rows, bins.features)
    x.sort_indices()
    return SparseRows(bins, *bins.bin_sparse(x, absent), absent)


def row_ids(rows: LocalRows, absent: Absent) -> Int64s:
    """Return a hash of each row's features and label; it does not depend on the worker or on the position."""
    x = rows.x
    labels = readable((np.zeros(len(rows)) if rows.y is None else rows.y).view(np.uint64))
    absent_bits = np.array([0.0 if absent == "zero" else np.nan]).view(np.uint64)[0]
    ids = np.empty(len(rows), np.uint64)

    def identify(begins: Int64s) -> None:
        for begin in begins.tolist():
            part = slice(begin, begin + HASHED_ROWS)
            indptr = x.indptr[begin : begin + HASHED_ROWS + 1].astype(np.int64)
            entries = slice(indptr[0], indptr[-1])
            values = x.data[entries].astype(np.float64) + 0.0  # -0 is 0
            values[np.isnan(values)] = np.nan  # NaN has many bit patterns
            columns, words = readable(rows.keys[x.indices[entries]]), readable(values.view(np.uint64))
            _hash(readable(indptr - indptr[0]), columns, words, absent_bits, labels[part], ids[part])

    cost = HASH_COST * HASHED_ROWS * x.nnz // max(len(rows), 1)
    over_blocks(identify, (np.arange(0, len(rows), HASHED_ROWS),), cost=cost)
    return ids.view(np.int64)


@kernel
def _hash(indptr: Array, columns: Int64s, values: UInt64s, absent: np.uint64, labels: UInt64s, out: UInt64s) -> None:
    for row in range(len(out)):
        state = scrambled(labels[row])
        for i in range(indptr[row], indptr[row + 1]):
            # Values equal to absent ones are skipped: storing them changes no hash. The order of values changes none.
            if values[i] != absent:
                state += scrambled(values[i] + GOLDEN * np.uint64(columns[i] + 1))
        out[row] = scrambled(state)


@kernel
def draw(ids: Int64s, key: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Draw the rows of a tree: each with probability ``fraction``, as a function of key and id."""
    is_drawn = np.empty(len(ids), np.bool_)
    for i in range(len(ids)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(ids[i]))
        is_drawn[i] = np.float64(state >> np.uint64(11)) * 2.0**-53 < fraction
    return is_drawn


@kernel
def whole_weights(weights: Float64s, ids: Int64s, unit: float) -> Int32s:
    """Return rows' weights as whole numbers of units. The row's id seeds their stochastic rounding."""
    units = np.empty(len(weights), np.int32)
    for i in range(len(weights)):
        draw = np.float64(scrambled(np.uint64(ids[i]) + GOLDEN) >> np.uint64(11)) * TO_UNIT
        units[i] = np.floor(weights[i] / unit + draw)
    return units


class NodeRows:
    """The rows of each node of a growing tree."""

    def __init__(self, rows: Binned, order: Int32s) -> None:
        self._rows = rows
        self._order = order
        self._spare = np.empty_like(order)
        self._nodes = {0: slice(0, len(order))}

    def rows_of(self, node: int) -> Int32s:
        """Return the numbers of the rows in a node."""
        return self._order[self._nodes[node]]

    @property
    def arrays(self) -> tuple[Int32s, Int32s]:
        """The numbers of all rows, grouped by node, and a scratch array of the same length."""
        return self._order, self._spare

    def set_bounds(self, bounds: Int64s) -> None:
        """Set the bounds of each node's rows, shape (nodes, 2), after ``arrays`` have changed."""
        self._nodes = {node: slice(begin, end) for node, (begin, end) in enumerate(bounds.tolist())}

    def part(self, splits: Int64s) -> None:
        """Move the rows of nodes to their children; no node is a descendant of another one. See ``Moves``."""
        if len(splits):
            # Nodes share no rows, so threads may work on different nodes.
            over_blocks(self.walk, (splits,), cost=PART_COST * len(self._order) // len(splits))

    def walk(self, splits: Int64s) -> None:
        """Move the rows of nodes to their children, one node after the other."""
        for row in splits:
            span, left = self._nodes[int(row[messages.NODE])], int(row[messages.LEFT])
            feature, bin = int(row[messages.FEATURE]), int(row[messages.BIN])
            split = Split(feature, bin, bool(row[messages.DEFAULT_LEFT]), row[messages.FIELDS :])
            middle = span.start + self._rows.part(self._order[span], split, self._spare[span])
            self._nodes[left], self._nodes[left + 1] = slice(span.start, middle), slice(middle, span.stop)

    def add_leaf_values(self, nodes: FinalNodes, margins: Float64s) -> None:
        """Add each leaf's value to the margins of its rows."""

        def add(leaves: Int64s, values: Float64s) -> None:
            for node, value in zip(leaves.tolist(), values.tolist(), strict=True):
                growing_kernels.add_to_rows(readable(self.rows_of(node)), margins, value)

        leaves = nodes.leaves
        if len(leaves):
            over_blocks(add, (leaves, nodes.values[nodes.is_leaf]), cost=LEAF_COST * len(self._order) // len(leaves))

    def counts(self, nodes: FinalNodes) -> Int64s:
        """Return how many rows are in each node."""
        return np.array([len(self.rows_of(node)) for node in nodes.numbers.tolist()], np.int64)


class Histograms:
    """Builds histograms of nodes."""

    def __init__(self, rows: Binned, channels: int) -> None:
        self._rows = rows
        count = int(rows.bins.first[-1])
        self._scratch = Scratch(count if isinstance(rows, SparseRows) else 0, channels)
        self._shape = (count, channels)

    def of(self, order: Int32s, pairs: Array) -> tuple[Int64s | None, Array]:
        """Return the bins that some rows use, ascending (None: all bins), and their sums, shape (n, channels)."""
        if isinstance(self._rows, SparseRows):
            return self._rows.histogram(order, pairs, self._scratch)
        out = np.zeros(self._shape, np.int64)
        self._rows.add_histogram(order, pairs, out)
        if out.nbytes <= SMALL_BYTES:
            return None, out
        bins = np.flatnonzero(out[:, 0])
        return (None, out) if len(bins) > MIN_DENSE_SHARE * len(out) else (bins, out[bins])
