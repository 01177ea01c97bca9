"""The matrices of a random forest on the servers: histograms of open nodes, cut points, and sizes of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.trees.binning import Bins, bins_of, of_shapes, shapes_of
from ps2.algorithms.trees.forests.growth import ForestGrowth, FoundSplits
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.growing import SparseRows
from ps2.algorithms.trees.layout import SUM_BYTES
from ps2.algorithms.trees.nonempty_bins import marked_rows, rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import existing_handle, free_all
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError

LAYOUT = 0
# Histograms at a time, at most; and the share of the servers' free memory that they take, at most.
MAX_ROWS, SHARE = 1024, 4


@dataclass(frozen=True, eq=False)
class ForestMatrices:
    """The matrices, made when bins are known.

    Attributes:
        histograms: a row for the layout of bins, one per open node, and the bitmaps of ``nonempty_bins``.
        sizes: ``shapes_of`` the bins.
    """

    bins: Bins
    histograms: DCVMatrix
    cuts: DCV
    sizes: DCV

    @staticmethod
    def make(
        bins: Bins, problem: TreeProblem, options: ForestOptions, servers: Sequence[tuple[int, int]]
    ) -> ForestMatrices:
        """Make the matrices, with the layout of the bins.

        Args:
            servers: of each the memory limit, and what is taken of it, in bytes.

        Raises:
            LimitError: they cannot fit.
        """
        columns = max(-(-int(bins.first[-1]) // bins.block), 1) * bins.block * options.channels
        size = columns * SUM_BYTES
        left = sum(max(limit - taken, 0) for limit, taken in servers)
        useful = options.trees_at_once << min(max(options.depth - 1, 0), 10)
        rows = max(min(useful, MAX_ROWS, left // SHARE // size), 1)
        try:
            first = DCV.dense(columns, rows_with_marks(1 + rows), "int64", align=bins.block * options.channels)
        except LimitError as error:
            raise LimitError(
                f"{bins.features:,} features have {bins.columns.sum():,} bins that can part rows: a histogram takes "
                f"{size:,} bytes, and does not fit the servers: {error}; start more servers, or with a larger memory "
                "limit, or let features have fewer bins"
            ) from error
        histograms = first.matrix()
        layout = np.zeros((1, first.dim), np.int64)
        no_rows = SparseRows(bins, np.zeros(1, np.int64), np.empty(0, np.int32), problem.absent)
        layout[0, : int(bins.first[-1]) * options.channels] = no_rows.layout(None, options.channels)
        histograms.push([LAYOUT], layout)
        cuts, sizes = DCV.dense(max(len(bins.cuts), 1), 1, "float64"), DCV.dense(bins.features, 1, "int32")
        if len(bins.cuts):
            cuts.push(bins.cuts)
        sizes.push(shapes_of(bins))
        return ForestMatrices(bins, histograms, cuts, sizes)

    @staticmethod
    def existing(bins: Bins, options: ForestOptions, numbers: Sequence[int]) -> ForestMatrices:
        """Return the matrices of an earlier driver, perhaps on another number of servers."""
        first, cuts, sizes = (existing_handle(DCV, number) for number in numbers)
        fleet = ForestMatrices(bins, first.matrix(), cuts, sizes)
        fleet.histograms.apply("trees.mark", layout=LAYOUT, channels=options.channels)
        return fleet

    @property
    def numbers(self) -> list[int]:
        """Numbers of the matrices."""
        return [self.histograms.number, self.cuts._matrix, self.sizes._matrix]

    @property
    def rows(self) -> list[int]:
        """Rows for histograms."""
        return [row for row in marked_rows(self.histograms.rows) if row != LAYOUT]

    def best_splits(self, growth: ForestGrowth, options: ForestOptions, words: int) -> FoundSplits:
        """Let the servers find the best split of each open node, and clear its histogram."""
        with batch():
            found = self.histograms.apply(
                "trees.purest_splits",
                rows=growth.rows,
                totals=growth.totals,
                kinds=np.array(growth.rules[:4], np.int64),
                rules=np.array(growth.rules[4:]),
                layout=LAYOUT,
                words=words,
            )
            self.histograms.apply("trees.clear", rows=growth.rows, channels=options.channels)
        return FoundSplits(*found.result())

    def free(self) -> None:
        self.histograms.free()
        free_all([self.cuts, self.sizes])


def read_bins(problem: TreeProblem, numbers: Sequence[int]) -> Bins:
    """Read the bins that the driver has made; numbers: of the matrices."""
    cuts, sizes = existing_handle(DCV, numbers[1]), existing_handle(DCV, numbers[2])
    with batch():
        answers = cuts.pull(), sizes.pull()
    counts, missing = of_shapes(answers[1].result())
    offsets = np.append(0, np.cumsum(counts))
    return bins_of(problem, answers[0].result()[: offsets[-1]], offsets, missing)
