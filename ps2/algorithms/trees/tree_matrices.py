"""The matrices of a training on the servers: histograms of open nodes, cut points, and ``bin_codes``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.frame.memory import MORE_SERVERS, check_servers, fitting_servers
from ps2.algorithms.trees.binning import Bins, bin_codes, bins_from_codes
from ps2.algorithms.trees.growth import LAYOUT, Growth
from ps2.algorithms.trees.layout import (
    CATEGORICAL,
    DECREASING,
    HAS_MISSING,
    INCREASING,
    MAX_CATEGORIES,
    SUM_BYTES,
    Array,
    layout_of,
)
from ps2.algorithms.trees.nonempty_bins import marked_rows, rows_with_marks
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import existing_handle, free_all
from ps2.client.matrix import DCVMatrix

# The maximum initial number of histograms.
MAX_INITIAL_HISTOGRAMS = 16
# A feature's bytes in ``Quantiles.stored_rows``, ``missing_weights`` and ``many_valued``, and in ``bin_codes``.
FEATURE_BYTES = 8 + 8 + 4 + 4
MORE_MEMORY = f"{MORE_SERVERS}, or let trees have less depth or leaves"


@dataclass(frozen=True, eq=False)
class HistogramMatrices:
    """The matrices on the servers, which the driver makes when the bins are known.

    ``histograms`` has a row for the layout of bins, a row for each open node, and the marks of ``nonempty_bins``.
    """

    bins: Bins
    histograms: DCVMatrix
    cuts: DCV
    codes: DCV
    channels: int
    words: int

    @staticmethod
    def make(
        bins: Bins, problem: TreeProblem, channels: int, rows: int, monotone: Sequence[int] = ()
    ) -> HistogramMatrices:
        """Make the matrices, and push the bins; rows: the number of rows for layout, histograms and marks."""
        first = DCV.dense(columns_of(bins, channels), rows, "int64", align=bins.block_width * channels)
        histograms, row = first.matrix(), np.zeros((1, first.dim), np.int64)
        layout = layout_row(bins, problem.absent, channels, monotone)
        row[0, : len(layout)] = layout
        histograms.push([LAYOUT], row)
        cuts, codes = DCV.dense(max(len(bins.cuts), 1), 1, "float64"), DCV.dense(bins.num_features, 1, "int32")
        if len(bins.cuts):
            cuts.push(bins.cuts)
        codes.push(bin_codes(bins))
        return HistogramMatrices(bins, histograms, cuts, codes, channels, problem.words)

    @staticmethod
    def existing(bins: Bins, problem: TreeProblem, channels: int, numbers: Sequence[int]) -> HistogramMatrices:
        """Return the matrices that an earlier driver has made, perhaps on another number of servers."""
        first, cuts, codes = (existing_handle(DCV, number) for number in numbers)
        matrices = HistogramMatrices(bins, first.matrix(), cuts, codes, channels, problem.words)
        matrices.histograms.apply("trees.mark", layout=LAYOUT, channels=channels)
        return matrices

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The ids of the matrices: histograms, cut points, and bin codes."""
        return self.histograms.number, self.cuts._matrix, self.codes._matrix

    @property
    def rows(self) -> list[int]:
        return [row for row in marked_rows(self.histograms.rows) if row != LAYOUT]

    def best_splits(self, growth: Growth) -> Splits:
        """Let the servers subtract histograms, and search the best split of each open node."""
        operands = growth.operands()
        with batch():
            if growth.subtract:
                parents, children = np.array(growth.subtract).T
                operation, channels = "trees.subtract", self.channels
                self.histograms.apply(operation, rows=parents, others=children, marks=True, channels=channels)
            splits = self.histograms.apply(growth.operation, **operands, layout=LAYOUT, words=self.words)
            if not growth.keeps_histograms:
                self._clear(operands["rows"])
        return Splits(*splits.result())

    def prepare(self, growth: Growth) -> None:
        """Add rows for the next histograms, and clear rows of old ones; LimitError if the servers lack memory."""
        self.reserve_rows(growth.num_rows)
        if growth.clear:
            self._clear(growth.clear)

    def reserve_rows(self, rows: int) -> None:
        """Grow the matrix of histograms to at least this number of rows."""
        with _explain_memory(self.bins, rows, self.histograms.dim * SUM_BYTES):
            self.histograms.grow(rows)

    def _clear(self, rows: Sequence[int] | Int64s) -> None:
        self.histograms.apply("trees.clear", rows=rows, channels=self.channels)

    def free(self) -> None:
        self.histograms.free()
        free_all([self.cuts, self.codes])


def boosting_matrices(bins: Bins, problem: TreeProblem, plan: BoostingPlan, rows: int) -> HistogramMatrices:
    """Make the matrices of boosted trees; LimitError if the servers lack memory."""
    channels, count = plan.channels, rows_with_marks(initial_rows(plan, rows))
    with _explain_memory(bins, count, columns_of(bins, channels) * SUM_BYTES):
        return HistogramMatrices.make(bins, problem, channels, count, plan.monotone)


def columns_of(bins: Bins, channels: int) -> int:
    """Return the number of columns of a matrix of histograms, a multiple of the block width times channels."""
    return max(-(-int(bins.first_columns[-1]) // bins.block_width), 1) * bins.block_width * channels


def layout_row(bins: Bins, absent: Absent | None, channels: int, monotone: Sequence[int] = ()) -> Int64s:
    """Return the layout row of a matrix of histograms; absent None: rows store all values."""
    flags = CATEGORICAL * (bins.categories > 0).astype(np.int64) | HAS_MISSING * bins.has_missing.astype(np.int64)
    if len(monotone):
        signs = np.array(monotone)
        flags |= np.where(signs > 0, INCREASING, 0) | np.where(signs < 0, DECREASING, 0)
    implied = None if absent is None else bins.implied(absent)
    return layout_of(bins.num_columns, bins.first_columns, implied, flags, channels)


def read_bins(problem: TreeProblem, numbers: Sequence[int]) -> Bins:
    """Read the bins that the driver has made; numbers: see ``HistogramMatrices.numbers``."""
    cuts, codes = (existing_handle(DCV, number) for number in numbers[1:])
    with batch():
        cut_points, all_codes = cuts.pull(), codes.pull()
    return bins_from_codes(problem, cut_points.result(), all_codes.result())


def add_histograms(matrix: DCVMatrix, built: Iterable[tuple[int, Int64s | None, Array]]) -> int:
    """Add a worker's histograms (row, bins or None for all bins, sums) to the servers'; return the sums' bytes."""
    sent_bytes, complete = 0, []
    for row, bins, sums in built:
        sent_bytes += sums.nbytes
        if bins is None:
            complete.append((row, sums))
        else:
            matrix.apply("trees.add", slots=bins * sums.shape[1], sums=sums, row=row, marks=True)
    if complete:
        channels = complete[0][1].shape[1]
        all_sums = np.zeros((len(complete), matrix.dim), matrix.dtype)
        for out, (_, sums) in zip(all_sums, complete, strict=True):
            out[: sums.size] = sums.reshape(-1)
        matrix.apply("trees.add_rows", rows=[row for row, _ in complete], sums=all_sums, channels=channels)
    return sent_bytes


def _explain_memory(bins: Bins, rows: int, histogram_bytes: int) -> AbstractContextManager[None]:
    """Return a context that explains a LimitError; rows: the number of histograms of a tree."""
    num_bins = bins.num_columns.sum()
    what = f"{bins.num_features:,} features have {num_bins:,} bins that can split rows: a tree that grows"
    need = f"{rows:,} histograms of {histogram_bytes:,} bytes at a time"
    return fitting_servers(f"{what} needs {need}, and they", advice=MORE_MEMORY)


def check_memory(problem: TreeProblem, plan: BoostingPlan, rows: int, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if the servers certainly lack memory; servers: the limit and the used bytes of each."""
    histograms = initial_rows(plan, rows)
    bins = _min_bins(problem)
    needed = problem.dim * FEATURE_BYTES + bins * rows_with_marks(histograms) * plan.channels * SUM_BYTES
    what = (
        f"{problem.dim:,} features: the sums for their cut points, and the first {histograms:,} histograms of trees of "
        f"depth {plan.settings.maxDepth}, of at least {bins:,} bins, take at least"
    )
    check_servers(what, needed, servers, MORE_MEMORY)


def _min_bins(problem: TreeProblem) -> int:
    """Return the minimum number of bins that can split rows."""
    missing_bins = int(problem.absent == "missing")  # of each feature
    numeric = problem.dim - len(problem.categories)
    counts = [count + missing_bins for count in problem.categories.values() if count <= MAX_CATEGORIES]
    return 2 * numeric * missing_bins + sum(count for count in counts if count > 1)


def initial_rows(plan: BoostingPlan, rows: int) -> int:
    """Return the initial number of rows of a matrix of histograms, with the layout row, without rows of marks."""
    return 1 + min(1 << max(plan.settings.maxDepth - 1, 0), plan.max_leaves, rows, MAX_INITIAL_HISTOGRAMS)
