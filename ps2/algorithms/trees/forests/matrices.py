"""The matrices of a random forest on the servers: histograms of open nodes, cut points, and sizes of features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.forests.growth import ForestGrowth
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.growth import LAYOUT
from ps2.algorithms.trees.layout import SUM_BYTES
from ps2.algorithms.trees.nonempty_bins import marked_rows, rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, columns_of, layout_row
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import LimitError

# The largest number of histograms at a time, and the part of the servers' free memory that they may take.
MAX_ROWS, MEMORY_PART = 1024, 4


class ForestMatrices(HistogramMatrices):
    """The matrices of a random forest."""

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
        columns = columns_of(bins, options.channels)
        size, free = columns * SUM_BYTES, sum(max(limit - taken, 0) for limit, taken in servers)
        useful = options.trees_at_once << min(max(options.depth - 1, 0), 10)
        rows = max(min(useful, MAX_ROWS, free // MEMORY_PART // size), 1)
        try:
            first = DCV.dense(columns, rows_with_marks(1 + rows), "int64", align=bins.block * options.channels)
        except LimitError as error:
            raise LimitError(
                f"{bins.features:,} features have {bins.columns.sum():,} bins that can part rows: a histogram takes "
                f"{size:,} bytes, and does not fit the servers: {error}; start more servers, or with a larger memory "
                "limit, or let features have fewer bins"
            ) from error
        layout = layout_row(bins, problem, options.channels)
        return ForestMatrices.filled(first, bins, layout, problem, options.channels)

    @property
    def rows(self) -> list[int]:
        """Rows for histograms."""
        return [row for row in marked_rows(self.histograms.rows) if row != LAYOUT]

    def best_splits(self, growth: ForestGrowth) -> Splits:
        """Let the servers find the best split of each open node, and clear its histogram."""
        with batch():
            splits = self.histograms.apply(
                "trees.purest_splits",
                rows=growth.rows,
                totals=growth.totals,
                kinds=np.array(growth.rules[:4], np.int64),
                rules=np.array(growth.rules[4:]),
                layout=LAYOUT,
                words=self.words,
            )
            self.histograms.apply("trees.clear", rows=growth.rows, channels=self.channels)
        return Splits(*splits.result())
