"""A worker's rows while a random forest grows: binned, with whole weights and labels, and drawn for each tree."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.compiled_growing import rows_of
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.forests import forest_kernels
from ps2.algorithms.trees.forests.impurity_kernels import ForestRules
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.gradients import exponents_of, quantised
from ps2.algorithms.trees.layout import Array, UInt8s
from ps2.algorithms.trees.problem import TreeProblem, key_of
from ps2.algorithms.trees.rows import Binned, binned, row_ids
from ps2.algorithms.trees.tree_kernels import Rows
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

# Key of the rounding of labels and weights, beside those of trees.
ROUNDING = -1


class ForestRows:
    """The rows of a worker; ids: ``row_ids``; rows: None until they are binned; whole: see ``forest_kernels``."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, unbinned: LocalRows) -> None:
        self._problem, self._plan, self._unbinned = problem, plan, unbinned
        self.ids = row_ids(unbinned, problem.absent)
        self.rows: Binned | None = None
        self.whole: Array = np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _pairs(self) -> Float64s:
        """Weights, and labels less the base times weights: float64, shape (n, 2)."""
        assert self._unbinned.y is not None
        weights = np.ones(len(self)) if self._unbinned.weights is None else self._unbinned.weights
        labels = np.zeros(len(self)) if self._plan.classes else self._unbinned.y - self._problem.base[0]
        return np.column_stack([weights, labels * weights])

    def exponents(self) -> Int64s:
        """Count weights and labels by exponent: what ``sums_below`` takes."""
        return exponents_of(self._pairs[None], self._pairs[:, 0])

    def begin(self, bins: Bins, columns: FeatureColumns | None, scales: tuple[float, float]) -> None:
        """Bin the rows, and convert weights and labels to whole numbers by multiplying them by ``scales``."""
        self.rows = binned(self._unbinned, bins, self._problem.absent, columns)
        assert self._unbinned.y is not None
        plan = self._plan
        if plan.counts_alone:
            whole = np.column_stack([np.ones(len(self)), self._unbinned.y])
        else:
            whole = quantised(self._pairs, self.ids, key_of(plan.seed, ROUNDING % 2**63), scales)
            if plan.classes:
                whole[:, 1] = self._unbinned.y
        self.whole = readable(whole.astype(np.int64))
        self.__dict__.pop("_pairs", None)  # as large as the rows

    @cached_property
    def arrays(self) -> Rows:
        """The rows as the kernels take them, once they are binned."""
        assert self.rows is not None
        return rows_of(self.rows, has_blocks=False)

    def sample(self, tree: int, rules: ForestRules) -> tuple[Int32s, UInt8s, Int64s]:
        """Return the numbers of the rows that a tree has, ascending, how often it has each row, and their sums."""
        draws = np.empty(len(self), np.uint8)
        plan = self._plan
        if not plan.settings.bootstrap and plan.settings.subsamplingRate == 1:
            draws[:] = 1
        else:
            forest_kernels.count_draws(readable(self.ids), plan.keys(tree)[0], plan.draws_below, draws)
        order = np.flatnonzero(draws).astype(np.int32)
        entries, totals = np.empty((len(order), 3), np.int64), np.zeros(plan.channels, np.int64)
        forest_kernels.gather(readable(order), draws, self.whole, rules, entries)
        forest_kernels.sum_rows(entries, rules, totals)
        return order, draws, totals
