"""Rows in a file, which workers read block by block: features for cut points, then bins, with nodes while trees grow.

Each block of bins has its own ``NodeRows``. Splits wait until the next pass over the file. The pass first moves the
rows of a block by these splits, and then sums the block's histograms. So a level of a tree takes one pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count

import numpy as np

from ps2.algorithms.trees.ascending import union_sorted
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.cut_points import FeatureColumns, integer_weights
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.growing_kernels import partition_dense
from ps2.algorithms.trees.layout import Array, Bools
from ps2.algorithms.trees.rows import (
    Binned,
    DenseRows,
    Histogram,
    Histograms,
    NodeRows,
    SparseRows,
    Split,
    binned,
    dense_of,
    stores_dense_bins,
)
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.block_file import BlockFile, BlockSlice, read_ahead, read_pages
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, SpilledRows
from ps2.ops.guards import readable

# The size of a block of bins, in blocks of the file of the features: large, as each node costs some time in each block.
BLOCK_RATIO = 2
# The number of bins of sparse rows from which on the histograms of several blocks are merged.
MIN_MERGED = 1 << 14
# The number of bits of the mean weight as an integer, and what is added to the integer weight of each row.
WEIGHT_BITS = 8
ROW_COUNT = 1 << WEIGHT_BITS

# The columns of some rows, and the integer weights of the rows (empty: each row counts 1).
ColumnPart = tuple[FeatureColumns, Int64s]


@dataclass(frozen=True, eq=False)
class ColumnBlocks:
    """Rows by feature: all rows in memory at once, and rows in a file block by block.

    Attributes:
        weight_unit: the weight that 1 in an integer weight stands for; 0: each row counts 1.
    """

    rows: KeptRows
    dim: int
    absent: Absent
    weight_unit: float

    @cached_property
    def is_dense(self) -> bool:
        """Whether columns have a value for each row, and all features have a column."""
        return stores_dense_bins(self.rows, self.dim)

    def parts(self) -> Iterator[ColumnPart]:
        if isinstance(self.rows, LocalRows):
            yield self.whole
        else:
            yield from map(self._part, self.rows.blocks())

    @cached_property
    def whole(self) -> ColumnPart:
        """The only part of rows in memory."""
        (rows,) = self.rows.blocks()
        return self._part(rows)

    def _part(self, rows: LocalRows) -> ColumnPart:
        weights = np.empty(0, np.int64)
        if self.weight_unit and rows.weights is not None:
            # Without ROW_COUNT, all rows of small weights would share a bin.
            weights = ROW_COUNT + integer_weights(rows.weights, self.weight_unit)
        if self.is_dense:
            return FeatureColumns.of_dense(dense_of(rows, self.dim, self.absent)), readable(weights)
        return FeatureColumns.of_sparse(rows.x), readable(weights)


@dataclass(frozen=True, eq=False)
class RowWiseRows(DenseRows):
    """Dense rows that are stored only row by row, in blocks of features; ``columns`` has no rows."""

    row_wise: Array = field(kw_only=True)

    @cached_property
    def blocks(self) -> Array:
        return self.row_wise

    def partition(self, order: Int32s, split: Split, spare: Int32s) -> int:
        block, position = divmod(int(np.searchsorted(self._features, split.feature)), self.row_wise.shape[2])
        return int(partition_dense(order, self.row_wise[block][:, position], split.left_bins(self.bins), spare))


@dataclass(frozen=True, eq=False)
class BinnedBlock:
    """Rows ``[begin, begin + rows)`` of a ``BinnedFile``; width: the number of features in a block of features."""

    begin: int
    rows: int
    width: int
    location: BlockSlice

    @property
    def end(self) -> int:
        return self.begin + self.rows


@dataclass(frozen=True, eq=False)
class BinnedFile:
    """Binned rows in a file.

    Attributes:
        row_wise: whether dense rows are stored row by row, and not by feature.
        is_used: whether histograms have each feature, if dense rows are stored by feature; None: they have all.
    """

    bins: Bins
    absent: Absent
    is_dense: bool
    row_wise: bool
    file: BlockFile
    stored: tuple[BinnedBlock, ...]
    is_used: Bools | None = None
    passes: Iterator[int] = field(default_factory=count)  # numbers the passes over the file
    free_orders: list[Int32s] = field(default_factory=list)  # memory of ``FileNodeRows`` that no tree uses

    def with_features(self, is_used: Bools) -> BinnedFile:
        """Return these rows, but histograms have only some features; to select those of sparse rows takes too long."""
        return replace(self, is_used=is_used)

    @staticmethod
    def write(
        rows: SpilledRows, bins: Bins, absent: Absent, row_wise: bool, visit: Callable[[LocalRows], None]
    ) -> BinnedFile:
        """Bin rows, and call ``visit`` with each of their blocks; SpillError: the disk fails."""
        is_dense = stores_dense_bins(rows, bins.num_features)
        block_bytes = BLOCK_RATIO * max(block.location.size for block in rows.stored.blocks)
        file, stored, begin = BlockFile(rows.stored.file.folder), list[BinnedBlock](), 0
        parts, size = list[dict[str, Array]](), 0

        def append() -> int:
            arrays = _join_parts(parts)
            rows = arrays["bins"].shape[1] if is_dense else len(arrays["begins"]) - 1
            location = file.append({name: array.reshape(-1) for name, array in arrays.items()})
            stored.append(BinnedBlock(begin, rows, arrays["bins"].shape[-1] if row_wise else 0, location))
            return begin + rows

        for block in rows.blocks():
            visit(block)
            parts.append(_part_arrays(binned(block, bins, absent, is_dense=is_dense), row_wise))
            size += parts[-1]["bins"].nbytes
            if size >= block_bytes:
                begin = append()
                parts, size = [], 0
        if parts:
            append()
        return BinnedFile(bins, absent, is_dense, row_wise, file, tuple(stored))

    @property
    def num_rows(self) -> int:
        return sum(block.rows for block in self.stored)

    @cached_property
    def spare(self) -> Int32s:
        """Scratch memory for ``NodeRows`` of any block; they use it one after the other."""
        return np.empty(max((block.rows for block in self.stored), default=0), np.int32)

    def blocks(self) -> Iterator[tuple[BinnedBlock, int, Binned]]:
        """Yield blocks, their numbers and their rows; a thread reads the next block.

        Every second pass goes backwards: it begins with the blocks that the page cache still has from the pass before.
        """
        numbers = range(len(self.stored))[:: -1 if next(self.passes) % 2 else 1]
        blocks = [self.stored[number] for number in numbers]
        yield from zip(blocks, numbers, read_ahead([partial(self._read, block) for block in blocks]), strict=True)

    def _read(self, block: BinnedBlock) -> Binned:
        arrays = {name: readable(array) for name, array in self.file.arrays(block.location).items()}
        bins = arrays["bins"]
        if self.is_dense and not self.row_wise:
            columns = bins.reshape(-1, block.rows)
            for feature in range(len(columns)) if self.is_used is None else np.flatnonzero(self.is_used):
                read_pages(columns[feature])
            return DenseRows(self.bins, columns, self.is_used)
        for array in arrays.values():
            read_pages(array)
        if not self.is_dense:
            return SparseRows(self.bins, arrays["begins"], bins, self.absent)
        return RowWiseRows(self.bins, NO_COLUMNS, row_wise=bins.reshape(-1, block.rows, max(block.width, 1)))


NO_COLUMNS = np.empty((0, 0), np.uint8)

AnyBinned = DenseRows | SparseRows | BinnedFile


def _part_arrays(rows: Binned, row_wise: bool) -> dict[str, Array]:
    """Return the arrays of rows for the file; those of dense rows have the rows along axis 1."""
    if isinstance(rows, SparseRows):
        return {"bins": rows.columns, "begins": rows.begins}
    return {"bins": rows.blocks if row_wise else rows.columns}


def _join_parts(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    bins = [part["bins"] for part in parts]
    if "begins" not in parts[0]:
        return {"bins": np.concatenate(bins, axis=1)}
    lengths = [np.diff(part["begins"]) for part in parts]
    return {"bins": np.concatenate(bins), "begins": np.append(0, np.cumsum(np.concatenate(lengths)))}


def bin_rows(
    rows: KeptRows,
    bins: Bins,
    absent: Absent,
    columns: FeatureColumns | None,
    row_wise: bool = True,
    visit: Callable[[LocalRows], None] = lambda block: None,
) -> AnyBinned:
    """Bin rows in memory or in a file, and call ``visit`` with each of their blocks; columns: see ``binned``."""
    if isinstance(rows, SpilledRows):
        return BinnedFile.write(rows, bins, absent, row_wise, visit)
    visit(rows)
    return binned(rows, bins, absent, columns)


class FileNodeRows:
    """The rows of each node of a growing tree, with the methods of ``NodeRows``; row numbers are in the file."""

    def __init__(self, rows: BinnedFile, is_member: Bools | None) -> None:
        self.rows = rows
        order = rows.free_orders.pop() if rows.free_orders else rows.file.reserve(rows.num_rows, np.int32)[:]
        weakref.finalize(self, rows.free_orders.append, order)
        self._blocks: list[NodeRows] = []
        for block in rows.stored:
            members = root_order(None if is_member is None else is_member[block.begin : block.end], block.rows)
            part = order[block.begin : block.begin + len(members)]
            part[:] = members
            self._blocks.append(NodeRows(None, part, rows.spare))
        self._splits: list[Int64s] = []

    def partition(self, splits: Int64s) -> None:
        """Let splits wait for the next pass over the file."""
        if len(splits):
            self._splits.append(splits)

    def take_splits(self) -> list[Int64s]:
        waiting, self._splits = self._splits, []
        return waiting

    def groups(self) -> Iterator[tuple[slice, NodeRows]]:
        """Yield intervals of row numbers, and these rows by node, after the splits that have waited."""
        if self._splits:
            for _ in read_parts([self]):
                pass
        for block, part in zip(self.rows.stored, self._blocks, strict=True):
            yield slice(block.begin, block.end), part

    def add_leaf_values(self, nodes: FinalNodes, margins: Float64s) -> None:
        for where, part in self.groups():
            part.add_leaf_values(nodes, margins[where])

    def counts(self, nodes: FinalNodes) -> Int64s:
        return np.sum([part.counts(nodes) for _, part in self.groups()], axis=0)


AnyNodeRows = NodeRows | FileNodeRows


def node_rows(rows: AnyBinned, count: int, is_member: Bools | None = None) -> AnyNodeRows:
    """Return the root of a tree; count: the number of all rows; is_member: whether it has each; None: it has all."""
    if isinstance(rows, BinnedFile):
        return FileNodeRows(rows, is_member)
    return NodeRows(rows, root_order(is_member, count))


def root_order(is_member: Bools | None, count: int) -> Int32s:
    """Return the numbers of a root's rows, ascending; for the args, see ``node_rows``."""
    return np.arange(count, dtype=np.int32) if is_member is None else np.flatnonzero(is_member).astype(np.int32)


def read_parts(trees: Sequence[AnyNodeRows]) -> Iterator[tuple[slice, Binned, Sequence[NodeRows]]]:
    """Yield intervals of row numbers, their rows, and these by node of each tree; rows in memory are one interval.

    The rows of a file are read in one pass. They are yielded after the splits that have waited.
    """
    in_memory = [tree for tree in trees if isinstance(tree, NodeRows)]
    in_file = [tree for tree in trees if isinstance(tree, FileNodeRows)]
    for tree in in_memory[:1]:
        assert tree.rows is not None
        yield slice(None), tree.rows, in_memory
    waiting = [tree.take_splits() for tree in in_file]
    for block, number, rows in in_file[0].rows.blocks() if in_file else ():
        parts = [tree._blocks[number] for tree in in_file]
        for part, moves in zip(parts, waiting, strict=True):
            for splits in moves:
                part.partition(splits, rows)
        yield slice(block.begin, block.end), rows, parts
        del rows


class HistogramSum:
    """The histogram of a node, which is the sum of those of several blocks."""

    def __init__(self) -> None:
        self._dense: Array | None = None
        self._parts: list[tuple[Int64s, Array]] = []
        self._size = 0

    def dense(self, shape: tuple[int, int]) -> Array:
        """Return the sums of all bins, to add to."""
        if self._dense is None:
            self._dense = np.zeros(shape, np.int64)
        return self._dense

    def add(self, bins: Int64s, sums: Array) -> None:
        """Add the sums of some bins, ascending."""
        self._parts.append((bins, sums))
        self._size += len(bins)
        if self._size > max(2 * len(self._parts[0][0]), MIN_MERGED):
            self._parts = [_merge(self._parts)]
            self._size = 0

    @property
    def sparse(self) -> tuple[Int64s, Array] | None:
        """The bins, ascending, and their sums, from ``add``; None: the node has no rows."""
        return _merge(self._parts) if self._parts else None

    def total(self, histograms: Histograms) -> Histogram | None:
        """Return the sum; None: the node has no rows."""
        return self.sparse if self._dense is None else histograms.compact(self._dense)


def _merge(parts: Sequence[tuple[Int64s, Array]]) -> tuple[Int64s, Array]:
    if len(parts) == 1:
        return parts[0]
    all_bins = np.empty(0, np.int64)
    for bins, _ in parts:
        all_bins = union_sorted(all_bins, bins)
    out = np.zeros((len(all_bins), parts[0][1].shape[1]), np.int64)
    for bins, sums in parts:
        out[np.searchsorted(all_bins, bins)] += sums
    return all_bins, out


def build_histograms(
    histograms: Histograms, tree_rows: AnyNodeRows, nodes: Sequence[int], pairs: Array
) -> list[Histogram | None]:
    """Return the histogram of each node; None: it has no rows; pairs: see ``DenseRows.add_histogram``."""
    sums = [HistogramSum() for _ in nodes]
    for where, rows, (part,) in read_parts([tree_rows] if nodes else []):
        block_pairs = readable(pairs[where])
        for node, node_sum in zip(nodes, sums, strict=True):
            if len(order := part.rows_of(node)):
                if isinstance(rows, DenseRows):
                    rows.add_histogram(order, block_pairs, node_sum.dense(histograms.shape))
                else:
                    node_sum.add(*rows.histogram(order, block_pairs, histograms.scratch))
    return [node_sum.total(histograms) for node_sum in sums]
