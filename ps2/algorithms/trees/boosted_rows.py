"""A worker's rows while boosted trees grow: their bins, margins and gradients, and their nodes in the growing tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.trees import growing_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import FeatureSets
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.goss import CELLS, TopRows, magnitude_cells, sample_by_gradient
from ps2.algorithms.trees.gradients import NO_WEIGHTS, exponent_counts, quantise_pairs
from ps2.algorithms.trees.layout import Array, Bools
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem, key_of
from ps2.algorithms.trees.ranking import RowGroups
from ps2.algorithms.trees.rows import Binned, NodeRows, binned, rounded_weights, row_ids, sample_rows, with_all_columns
from ps2.algorithms.trees.statistic_sums import StatisticSums, StatisticTask
from ps2.algorithms.trees.tree import Forest
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable


@dataclass(frozen=True, eq=False)
class RowSet:
    """Training rows, or held-out rows; margins: shape (n, width); weights: empty if each row counts 1."""

    rows: Binned
    y: Float64s
    weights: Float64s
    margins: Float64s
    groups: RowGroups | None = None

    @staticmethod
    def of(problem: TreeProblem, rows: LocalRows, bins: Bins, columns: FeatureColumns | None = None) -> RowSet:
        """Bin rows, and order the rows of a ranking group by their content: trees do not depend on their order."""
        assert rows.y is not None
        weights = NO_WEIGHTS if rows.weights is None else rows.weights
        margins = starting_margins(rows, problem.base, problem.initial)
        groups = None
        if rows.groups is not None:
            groups = RowGroups.of(rows.groups, row_ids(rows, problem.absent), weights)
        return RowSet(binned(rows, bins, problem.absent, columns), rows.y, weights, margins, groups)


class UnbinnedRows:
    """A worker's training rows and held-out rows as they were read; if there are target statistics, with these."""

    def __init__(
        self, problem: TreeProblem, statistics: StatisticSums | None, training: LocalRows, held_out: LocalRows | None
    ) -> None:
        self._statistics, self._read = statistics, (training, held_out)
        self.ids = row_ids(training, problem.absent)
        self.rank = 0  # a worker sets its rank

    def do(self, task: StatisticTask) -> None:
        assert self._statistics is not None
        self._statistics.do(task, self._read[0], self.ids, self.rank)

    @cached_property
    def training(self) -> LocalRows:
        rows = self._read[0]
        return rows if self._statistics is None else self._statistics.training_rows(rows, self.ids, self.rank)

    @cached_property
    def held_out(self) -> LocalRows | None:
        rows = self._read[1]
        return rows if rows is None or self._statistics is None else self._statistics.new_rows(rows)


class BoostedRows:
    """The rows of a worker, and the tree that grows from them.

    Attributes:
        held_out: the rows of all validation sets; None: no rows are held out.
        tree_rows: the rows from which the tree grows, by node; None: no tree grows.
        histogram_rows: the training rows with the features that the tree has sampled.
        moving_rows: all rows by node of the tree: ``tree_rows``, the training rows that the tree has not sampled, and
            the held-out rows; each with the margins to which leaf values are added.
        integer_pairs: the hessians and gradients for the tree, as integers, shape (n, 2).
        channel_values: the values that histograms sum: ``integer_pairs``, and a third channel if the plan has one.
    """

    def __init__(
        self,
        problem: TreeProblem,
        plan: BoostingPlan,
        bins: Bins,
        rows: tuple[LocalRows, LocalRows | None],
        columns: FeatureColumns | None = None,
        ids: Int64s | None = None,
    ) -> None:
        training, held_out = rows
        self._problem, self._plan = problem, plan
        self._ids = row_ids(training, problem.absent) if ids is None else ids
        self.metric = plan.metric
        self._span = problem.span  # the range of the margins
        self.training = RowSet.of(problem, training, bins, columns)
        # In held-out rows, features may have missing values that have none in training rows.
        held_out_bins = replace(bins, has_missing=np.ones(bins.num_features, np.bool_), block_width=0)
        self.held_out = None if held_out is None else RowSet.of(problem, held_out, held_out_bins)
        # The rows of each validation set, in their order: metrics of rankings depend on it.
        self._sets: list[tuple[Any, RowGroups | None]] = []
        if held_out is not None:
            chosen_rows: list[Any] = [
                np.flatnonzero(held_out.sets == i) for i in range(1, 1 + len(plan.validation_sets))
            ]
            for chosen in chosen_rows or [slice(None)]:
                groups = None if held_out.groups is None else RowGroups.in_row_order(held_out.groups[chosen])
                self._sets.append((chosen, groups))
        self.histogram_rows = self.training.rows
        self.tree_rows: NodeRows | None = None
        self.moving_rows: list[tuple[NodeRows, Float64s]] = []
        self.integer_pairs: Array | None = None
        self.channel_values: Array = np.empty((0, 2), np.int64)
        self._pairs: Float64s | None = None  # hessians and gradients of a round, shape (width, n, 2)
        self._is_sampled: Bools | None = None
        self._integer_weights: Array | None = None  # integer weights of rows, if they are the third channel
        if plan.third_channel == "weights":
            self._integer_weights = rounded_weights(self.training.weights, readable(self._ids), plan.weight_unit)

    def compute_gradients(self) -> dict[str, Any]:
        """Compute a round's gradients; return losses, the reports of validation sets, and ``exponent_counts``."""
        rows, objective = self.training, self._problem.objective
        self._pairs, (loss, weight) = objective.gradients(rows.margins, rows.y, rows.weights, self._pairs, rows.groups)
        if objective.function is not None and self._plan.custom_metric is not None:
            sums_of_metric = self.metric.sums(objective, rows.margins, rows.y, rows.weights, self._span)
            loss, weight = sums_of_metric[:, 0].tolist()
        sums: dict[str, Any] = {"loss": loss, "weight": weight}
        if (held_out := self.held_out) is not None:
            sums["held"] = np.array([self._metric_sums(held_out, *validation_set) for validation_set in self._sets])
        if self._plan.is_goss:
            self._cells = magnitude_cells(self._pairs)
            sums["cells"] = np.bincount(self._cells, minlength=CELLS)
        return {**sums, "rows": len(rows.y), "exponents": exponent_counts(self._pairs, rows.weights)}

    def _metric_sums(self, held_out: RowSet, chosen: Any, groups: RowGroups | None) -> Float64s:
        """Return ``Metric.sums`` of one validation set; chosen: its rows."""
        weights = held_out.weights[chosen] if len(held_out.weights) else held_out.weights
        rows = held_out.margins[chosen], held_out.y[chosen], weights
        return self.metric.sums(self._problem.objective, *rows, self._span, groups)

    def plant(self, tree: int, scales: tuple[float, float], top: Sequence[float] = ()) -> Int64s:
        """Begin tree number ``tree``; return its root's totals, int64, shape (3,); scales, top: see ``PlantTrees``."""
        plan, output = self._plan, tree % self._problem.objective.width
        assert self._pairs is not None
        if not output:  # the trees of one round grow from the same rows
            self._is_sampled = self._sample(self._pairs, key_of(plan.seed, tree), top)
        key = key_of(plan.seed, tree)
        self.integer_pairs = quantise_pairs(self._pairs[output], self._ids, key, scales, self.integer_pairs)
        self.channel_values = self.integer_pairs
        if plan.third_channel is not None:
            third_values = self._integer_weights
            third_values = np.ones(len(self.integer_pairs), np.int64) if third_values is None else third_values
            self.channel_values = np.column_stack([self.integer_pairs, third_values])
        if plan.tree_features:
            in_tree = FeatureSets.for_tree(plan, self._problem.dim, tree).in_tree
            self.histogram_rows = self.training.rows.with_features(in_tree)
        margins = self.training.margins[:, output]
        if self._is_sampled is not None:
            flags = self._is_sampled, ~self._is_sampled
            self.tree_rows, others = (NodeRows(self.training.rows, np.flatnonzero(f).astype(np.int32)) for f in flags)
            self.moving_rows = [(others, margins)]
        else:
            self.tree_rows = NodeRows(self.training.rows, np.arange(len(self._ids), dtype=np.int32))
            self.moving_rows = []
        self.moving_rows.append((self.tree_rows, margins))
        if self.held_out is not None:
            row_numbers = np.arange(len(self.held_out.y), dtype=np.int32)
            self.moving_rows.append((NodeRows(self.held_out.rows, row_numbers), self.held_out.margins[:, output]))
        return self._totals()

    def _sample(self, pairs: Float64s, key: int, top: Sequence[float]) -> Bools | None:
        """Return whether the trees of a round sample each row (None: they have all), and amplify GOSS's gradients."""
        settings = self._plan.settings
        if top:
            other_fraction = settings.otherRate / (1 - settings.topRate)
            limits, keys = TopRows(int(top[0]), top[1]), (key, key_of(key, 1))
            is_top, is_other = sample_by_gradient(self._cells, self._ids, limits, other_fraction, keys)
            pairs[:, is_other] *= self._plan.amplification
            return is_top | is_other
        return sample_rows(self._ids, key, settings.subsamplingRate) if settings.subsamplingRate < 1 else None

    def _totals(self) -> Int64s:
        """Return the sums over the tree's rows: of hessians, gradients and third channel (or number)."""
        assert self.tree_rows is not None
        assert self.integer_pairs is not None
        order = self.tree_rows.rows_of(0)
        third_total = len(order) if self._integer_weights is None else self._integer_weights[order].sum(dtype=np.int64)
        return np.array([*growing_kernels.sum_pairs(order, self.integer_pairs), third_total], np.int64)

    def end(self, nodes: FinalNodes) -> None:
        """End the tree: add the value of each leaf to the margins of its rows."""
        for rows, margins in self.moving_rows:
            rows.add_leaf_values(nodes, margins)
        self.tree_rows, self.moving_rows = None, []
        self.widen_span(nodes.values[nodes.is_leaf])

    def widen_span(self, values: Float64s) -> None:
        """Widen the range of the margins by the leaf values of a tree."""
        self._span = self._span[0] + float(values.min()), self._span[1] + float(values.max())

    @property
    def residuals(self) -> Float64s:
        """Labels minus margins, for objectives of one output."""
        return self.training.y - self.training.margins[:, 0]


def starting_margins(rows: LocalRows, base: tuple[float, ...], initial: Forest | None) -> Float64s:
    """Return the margins of rows before the first new tree, shape (n, width)."""
    if initial is None:
        margins = np.tile(np.array(base), (len(rows), 1))
    else:
        margins = Predictor(initial).margins(with_all_columns(rows, initial.features))
    return margins if rows.margins is None else margins + rows.margins[:, None]
