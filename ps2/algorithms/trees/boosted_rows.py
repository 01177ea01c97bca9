"""A worker's rows while boosted trees grow: their bins, margins and gradients, and their nodes in the growing tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.trees import growing_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import FeatureSets
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.dropout import Dropout, scaled_trees
from ps2.algorithms.trees.goss import TopRows, magnitude_cells, sample_by_gradient
from ps2.algorithms.trees.gradients import NO_WEIGHTS, exponent_counts, quantise_pairs
from ps2.algorithms.trees.layout import Array, Bools
from ps2.algorithms.trees.leaf_quantiles import LeafRows
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem, key_of
from ps2.algorithms.trees.ranking import RowGroups
from ps2.algorithms.trees.row_blocks import AnyBinned, AnyNodeRows, bin_rows, node_rows
from ps2.algorithms.trees.rows import (
    ROWS_AT_ONCE,
    load_empty_rows,
    rounded_weights,
    row_ids,
    sample_rows,
    with_all_columns,
)
from ps2.algorithms.trees.statistic_sums import StatisticSums, StatisticTask
from ps2.algorithms.trees.tree import Forest, Tree
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, RowArrays, new_table, row_fields
from ps2.ops.guards import readable


@dataclass(frozen=True, eq=False)
class RowSet:
    """Training rows, or held-out rows; margins: shape (n, width); weights: empty if each row counts 1."""

    rows: AnyBinned
    y: Float64s
    weights: Float64s
    margins: Float64s
    groups: RowGroups | None = None

    @staticmethod
    def of(
        problem: TreeProblem,
        rows: KeptRows,
        bins: Bins,
        columns: FeatureColumns | None = None,
        row_wise: bool = True,
    ) -> RowSet:
        """Bin rows, and order the rows of a ranking group by their content: trees do not depend on their order."""

        def compute(block: LocalRows) -> dict[str, Array | None]:
            margins = starting_margins(block, problem.base, problem.initial)
            ids = None if block.groups is None else row_ids(block, problem.absent)
            fields = {"y": block.y, "weights": block.weights, "groups": block.groups}
            return {"margins": margins, "ids": ids, **fields}

        collected = RowArrays(rows, compute)
        binned_rows = bin_rows(rows, bins, problem.absent, columns, row_wise, collected.add)
        arrays, weights = collected.arrays, collected.arrays.get("weights", NO_WEIGHTS)
        row_groups = RowGroups.of(arrays["groups"], arrays["ids"], weights) if "groups" in arrays else None
        return RowSet(binned_rows, arrays["y"], weights, arrays["margins"], row_groups)


class UnbinnedRows:
    """A worker's training rows and held-out rows as they were read; if there are target statistics, with these."""

    def __init__(
        self, problem: TreeProblem, statistics: StatisticSums | None, training: KeptRows, held_out: KeptRows | None
    ) -> None:
        self._statistics, self._read = statistics, (training, held_out)
        self.ids = row_ids(training, problem.absent)
        self.rank = 0  # a worker sets its rank

    def forget_statistics(self) -> None:
        """Free the rows with statistics, after they were binned. After a rollback, workers bin the read rows again."""
        for name in ("training", "held_out"):
            self.__dict__.pop(name, None)

    def do(self, task: StatisticTask) -> None:
        assert self._statistics is not None
        self._statistics.do(task, self._read[0], self.ids, self.rank)

    @cached_property
    def training(self) -> KeptRows:
        rows, statistics = self._read[0], self._statistics
        return rows if statistics is None else statistics.training_rows(rows, self.ids, self.rank)

    @cached_property
    def held_out(self) -> KeptRows | None:
        rows = self._read[1]
        return rows if rows is None or self._statistics is None else self._statistics.new_rows(load_empty_rows(rows))


class BoostedRows:
    """The rows of a worker, and the tree that grows from them.

    Attributes:
        held_out: the rows of all validation sets; None: no rows are held out.
        tree_rows: the rows from which the tree grows, by node, with the features that it samples; None: no tree grows.
        moving_rows: all rows by node of the tree: ``tree_rows``, the training rows that the tree has not sampled, and
            the held-out rows; each with the margins to which leaf values are added.
        channel_values: the values that histograms sum, shape (n, channels): the hessians and gradients for the tree, as
            integers, and a third channel if the plan has one.
    """

    def __init__(
        self,
        problem: TreeProblem,
        plan: BoostingPlan,
        bins: Bins,
        rows: tuple[KeptRows, KeptRows | None],
        columns: FeatureColumns | None = None,
        ids: Int64s | None = None,
    ) -> None:
        training, held_out = rows
        self._problem, self._plan = problem, plan
        self._ids = row_ids(training, problem.absent) if ids is None else ids
        self.metric = plan.metric
        self._span = problem.span  # the range of the margins
        self.training = RowSet.of(problem, training, bins, columns, row_wise=not plan.tree_features)
        # In held-out rows, features may have missing values that have none in training rows.
        held_out_bins = replace(bins, has_missing=np.ones(bins.num_features, np.bool_), block_width=0)
        self._sets: list[tuple[Any, RowGroups | None]] = []
        self.held_out: RowSet | None = None
        if held_out is not None:
            held_out = load_empty_rows(held_out)
            self.held_out = RowSet.of(problem, held_out, held_out_bins)
            self._sets = validation_sets(held_out, len(plan.validation_sets))
        # DART reads the rows again; all others need only their bins.
        self._unbinned = (training, held_out) if plan.dropout is not None else ()
        self.tree_rows: AnyNodeRows | None = None
        self.moving_rows: list[tuple[AnyNodeRows, Float64s]] = []
        width = problem.objective.width
        # The hessians and gradients of a round.
        self._pairs = new_table(training, (width, len(training), 2), np.float64)
        self.channel_values = new_table(training, (len(training), plan.channels), np.int64)
        if plan.third_channel is not None:
            self.channel_values[:, 2] = 1
        if plan.third_channel == "weights":
            self.channel_values[:, 2] = rounded_weights(self.training.weights, readable(self._ids), plan.weight_unit)
        self._is_sampled: Bools | None = None
        # With DART: the trees so far, whether a round drops some, and their margins, of training and of held-out rows.
        self._dropout = None if plan.dropout is None else Dropout(plan.settings, plan.seed)
        self._trees, self._has_dropped, self._dropped_margins = list[Tree](), False, list[Float64s]()
        if self._dropout is not None:
            sets = [rows for rows in self._unbinned if rows is not None]
            self._dropped_margins = [new_table(rows, (len(rows), width), np.float64) for rows in sets]

    def begin_round(self, last_trees: Sequence[Tree]) -> None:
        """With DART, scale the trees that the last round has dropped, and drop others; last_trees: its trees."""
        if self._dropout is None:
            return
        width, sets = self._problem.objective.width, (self.training, self.held_out)
        number = len(self._trees) // width
        for row_set, margins in zip(sets, self._dropped_margins if self._has_dropped else (), strict=False):
            assert row_set is not None
            scale = self._dropout.drop(number).new_scale
            for begin in range(0, len(margins), ROWS_AT_ONCE):
                part = slice(begin, begin + ROWS_AT_ONCE)
                row_set.margins[part] -= margins[part] * scale
        self._trees += last_trees
        drop = self._dropout.drop(len(self._trees) // width)
        trees = [tree for first in drop.rounds * width for tree in self._trees[first : first + width]]
        base, problem = np.zeros(width), self._problem
        forest = Forest(scaled_trees(trees, drop.scales, width), base, problem.dim, absent=problem.absent)
        self._has_dropped = bool(trees)
        for rows, out in zip(self._unbinned, self._dropped_margins if trees else (), strict=False):
            assert rows is not None
            forest_margins(forest, rows, out)

    def compute_gradients(self, last_trees: Sequence[Tree] = ()) -> dict[str, Any]:
        """Begin a round, and compute its gradients; return losses, reports of validation sets, ``exponent_counts``."""
        self.begin_round(last_trees)
        rows, objective = self.training, self._problem.objective
        others = rows.y, rows.weights, self._pairs, rows.groups
        self._pairs, (loss, weight) = objective.gradients(self._margins_of_round(), *others)
        if self._has_dropped:
            loss, weight = objective.losses(rows.margins, rows.y, rows.weights, rows.groups)
        if objective.function is not None and self._plan.custom_metric is not None:
            sums_of_metric = self.metric.sums(objective, rows.margins, rows.y, rows.weights, self._span)
            loss, weight = sums_of_metric[:, 0].tolist()
        sums: dict[str, Any] = {"loss": loss, "weight": weight}
        if (held_out := self.held_out) is not None:
            sums["held"] = np.array([self._metric_sums(held_out, *validation_set) for validation_set in self._sets])
        if self._plan.is_goss:
            self._cells, sums["cells"] = magnitude_cells(self._pairs)
        return {**sums, "rows": len(rows.y), "exponents": exponent_counts(self._pairs, rows.weights)}

    def _metric_sums(self, held_out: RowSet, chosen: Any, groups: RowGroups | None) -> Float64s:
        """Return ``Metric.sums`` of one validation set; chosen: its rows."""
        weights = held_out.weights[chosen] if len(held_out.weights) else held_out.weights
        rows = held_out.margins[chosen], held_out.y[chosen], weights
        return self.metric.sums(self._problem.objective, *rows, self._span, groups)

    def plant(self, tree: int, scales: tuple[float, float], top: Sequence[float] = ()) -> Int64s:
        """Begin tree number ``tree``; return its root's totals, int64, shape (3,); scales, top: see ``PlantTrees``."""
        plan, output = self._plan, tree % self._problem.objective.width
        if not output:  # the trees of one round grow from the same rows
            self._is_sampled = self._sample(self._pairs, key_of(plan.seed, tree), top)
        key = key_of(plan.seed, tree)
        quantise_pairs(self._pairs[output], self._ids, key, scales, self.channel_values)
        binned_rows = self.training.rows
        if plan.tree_features:
            binned_rows = binned_rows.with_features(FeatureSets.for_tree(plan, self._problem.dim, tree).in_tree)
        margins = self.training.margins[:, output]
        if self._is_sampled is not None:
            flags = self._is_sampled, ~self._is_sampled
            self.tree_rows, others = (node_rows(binned_rows, len(margins), f) for f in flags)
            self.moving_rows = [(others, margins)]
        else:
            self.tree_rows, self.moving_rows = node_rows(binned_rows, len(margins)), []
        self.moving_rows.append((self.tree_rows, margins))
        if self.held_out is not None:
            held_out_rows = node_rows(self.held_out.rows, len(self.held_out.y))
            self.moving_rows.append((held_out_rows, self.held_out.margins[:, output]))
        return self._totals()

    def _sample(self, pairs: Float64s, key: int, top: Sequence[float]) -> Bools | None:
        """Return whether the trees of a round sample each row (None: they have all), and amplify GOSS's gradients."""
        settings = self._plan.settings
        if top:
            other_fraction = settings.otherRate / (1 - settings.topRate)
            limits, keys = TopRows(int(top[0]), top[1]), (key, key_of(key, 1))
            is_top, is_other = sample_by_gradient(self._cells, self._ids, limits, other_fraction, keys)
            np.multiply(pairs, self._plan.amplification, out=pairs, where=is_other[:, None])
            return is_top | is_other
        return sample_rows(self._ids, key, settings.subsamplingRate) if settings.subsamplingRate < 1 else None

    def _totals(self) -> Int64s:
        """Return the sums over the tree's rows: of hessians, gradients and third channel (or number)."""
        assert self.tree_rows is not None
        totals = np.zeros(3, np.int64)
        for where, part in self.tree_rows.groups():
            order, values = part.rows_of(0), self.channel_values[where]
            third_total = values[order, 2].sum() if self._plan.third_channel == "weights" else len(order)
            totals += np.array([*growing_kernels.sum_pairs(order, values), third_total], np.int64)
        return totals

    def end(self, nodes: FinalNodes) -> None:
        """End the tree: add the value of each leaf to the margins of its rows."""
        for rows, margins in self.moving_rows:
            rows.add_leaf_values(nodes, margins)
        self.tree_rows, self.moving_rows = None, []
        self.widen_span(nodes.values[nodes.is_leaf])

    def widen_span(self, values: Float64s) -> None:
        """Widen the range of the margins by the leaf values of a tree, which DART may scale."""
        if self._dropout is not None:
            values = np.append(values, 0.0)
        self._span = self._span[0] + float(values.min()), self._span[1] + float(values.max())

    def leaf_rows(self, leaves: Int64s) -> Iterator[LeafRows]:
        """Yield the rows of leaves, part by part, for objectives of one output."""
        assert self.tree_rows is not None
        for where, part in self.tree_rows.groups():
            residuals = self.training.y[where] - self._margins_of_round(where)[:, 0]
            yield LeafRows([part.rows_of(leaf) for leaf in leaves.tolist()], residuals, self.training.weights[where])

    def _margins_of_round(self, where: slice = slice(None)) -> Float64s:
        """The margins of training rows without the dropped trees."""
        margins = self.training.margins[where]
        return margins - self._dropped_margins[0][where] if self._has_dropped else margins


def validation_sets(held_out: KeptRows, count: int) -> list[tuple[Any, RowGroups | None]]:
    """Return the rows of each validation set, in their order: metrics of rankings depend on it; count 0: one set."""
    sets, groups = row_fields(held_out, "sets", "groups")
    chosen_rows: list[Any] = [np.flatnonzero(sets == i) for i in range(1, 1 + count)] or [slice(None)]
    return [(chosen, None if groups is None else RowGroups.in_row_order(groups[chosen])) for chosen in chosen_rows]


def starting_margins(rows: LocalRows, base: tuple[float, ...], initial: Forest | None) -> Float64s:
    """Return the margins of rows before the first new tree, shape (n, width)."""
    if initial is None:
        margins = np.tile(np.array(base), (len(rows), 1))
    else:
        margins = Predictor(initial).margins(with_all_columns(rows, initial.features))
    return margins if rows.margins is None else margins + rows.margins[:, None]


def forest_margins(forest: Forest, rows: KeptRows, out: Float64s) -> None:
    """Set ``out``, shape (n, width), to the margins of rows by a forest."""
    predictor, begin = Predictor(forest), 0
    for block in rows.blocks():
        out[begin : begin + len(block)] = predictor.margins(with_all_columns(block, forest.features))
        begin += len(block)
