"""Boosting where one worker has all rows: it finds cut points, and grows whole rounds of trees in each clock.

It finds the splits that servers would find, by the same kernels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.boosting_record import next_scales
from ps2.algorithms.trees.compiled_growing import CompiledGrower, is_compiled
from ps2.algorithms.trees.driver_messages import NODE, ROW, FinalNodes
from ps2.algorithms.trees.gradients import scales_of, sums_below
from ps2.algorithms.trees.growth import opened_roots
from ps2.algorithms.trees.leaf_quantiles import local_quantiles, unit_of_weights
from ps2.algorithms.trees.local_histograms import LocalHistograms
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import rows_with_weight, with_all_columns
from ps2.algorithms.trees.tree import Forest, Tree, tree_as_data
from ps2.array_types import Float64s

# The time in which a clock grows rounds: long beside a clock's own time, and all that a restarted worker repeats.
BUDGET_S = 0.5
# The number of trees that rows walk through at once when a worker starts again.
TREES_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class GrowRounds(Task):
    """Grow whole rounds until the time of a clock is spent.

    Attributes:
        first: the number of trees before ``trees``.
        trees: the trees of the clock before (``tree_as_data``), for a worker that begins again and lacks them.
        scales: the factors of hessians and gradients after these trees; None: there are no trees.
    """

    first: int
    trees: list[Any]
    scales: Float64s | None


class LocalTreeWorker:
    """The worker's rows, with the margins of the trees that have grown; min_rows: see ``Quantiles``."""

    def __init__(
        self,
        problem: TreeProblem,
        plan: BoostingPlan,
        min_rows: int,
        mean_weight: float | None,
        reading: Reading,
    ) -> None:
        self._problem, self._plan = problem, plan
        rows = rows_with_weight(reading.training)
        self._rows_as_read = rows, reading.held_out
        bins, columns = Quantiles.in_process(problem, plan.settings.maxBins, mean_weight, min_rows).find_bins(rows)
        self._rows = BoostedRows(problem, plan, bins, self._rows_as_read, columns)
        self._grower = LocalGrower(problem, plan, bins, self._rows, unit_of_weights(mean_weight))
        self._num_trees = 0
        self._scales = (1.0, 1.0)
        self._lap_began_s = time.monotonic()

    def __call__(self, worker: Any, task: GrowRounds) -> None:
        self.catch_up([task])
        worker.report({"rounds": self._grow_rounds()}, merge="concat")

    def catch_up(self, tasks: Sequence[GrowRounds]) -> None:
        """Add the trees that an earlier attempt has grown."""
        trees: list[Tree] = []
        for task in tasks:
            num_known = self._num_trees + len(trees) - task.first
            if num_known < len(task.trees):
                assert task.scales is not None
                trees += [Tree(*data) for data in task.trees[num_known:]]
                h_scale, g_scale = task.scales.tolist()
                self._scales = h_scale, g_scale
        for begin in range(0, len(trees), TREES_AT_ONCE):
            self._add(trees[begin : begin + TREES_AT_ONCE])

    def _add(self, trees: list[Tree]) -> None:
        """Add trees to the margins of all rows."""
        problem, width = self._problem, self._problem.objective.width
        forest = Forest(tuple(trees), np.zeros(1), problem.dim, absent=problem.absent)
        for rows, group in zip(self._rows_as_read, (self._rows.training, self._rows.held_out), strict=True):
            if rows is None or group is None or not len(rows):
                continue
            leaves = Predictor(forest).leaves(with_all_columns(rows, problem.dim))
            for number, tree in enumerate(trees, self._num_trees):
                group.margins[:, number % width] += tree.value[leaves[:, number - self._num_trees]]
        for tree in trees:
            self._rows.widen_span(tree.value[tree.leaves])
        self._num_trees += len(trees)

    def _grow_rounds(self) -> list[dict[str, Any]]:
        """Grow rounds for a clock's time; return a reply for each. A last one without trees has the final losses."""
        ends_s, replies = time.monotonic() + BUDGET_S, []
        width = self._problem.objective.width
        while True:
            round_ = self._num_trees // width
            sums = self._rows.compute_gradients()
            # The duration of the round that ends with these losses.
            sums["lap_s"], self._lap_began_s = time.monotonic() - self._lap_began_s, time.monotonic()
            bounds = sums_below(sums.pop("exponents"))
            if "held" in sums:
                sums["held"] = self._rows.metric.value(sums["held"])
            trees = self._grow_round(bounds) if round_ < self._plan.settings.maxIter else []
            reply = {**sums, "bytes": 0, "round": round_, "trees": [tree_as_data(tree) for tree in trees]}
            replies.append({**reply, "scales": np.array(self._scales)})
            if not trees or time.monotonic() > ends_s:
                return replies

    def _grow_round(self, bounds: Float64s) -> list[Tree]:
        """Grow the trees of a round; bounds: those of the sums of gradients before it (``sums_below``)."""
        if not self._num_trees:
            self._scales = scales_of(*bounds[:2])
        trees = []
        for _ in range(self._problem.objective.width):
            trees.append(self._grower.grow(self._num_trees, self._scales))
            self._num_trees += 1
        self._scales = next_scales(self._problem, self._plan, bounds, trees)
        return trees


class LocalGrower:
    """Grows trees from the rows of one worker; weight_unit: the unit of weights in the quantiles of leaves."""

    def __init__(
        self, problem: TreeProblem, plan: BoostingPlan, bins: Bins, rows: BoostedRows, weight_unit: float
    ) -> None:
        self._problem, self._plan, self._bins, self._rows = problem, plan, bins, rows
        self._weight_unit = weight_unit
        self._compiled: CompiledGrower | None = None
        if is_compiled(plan, rows.training.rows):
            self._compiled = CompiledGrower(problem, plan, rows.training.rows)
        else:
            self._histograms = LocalHistograms(problem, plan, bins, rows.training.rows)

    def grow(self, number: int, scales: tuple[float, float]) -> Tree:
        """Grow a tree from the computed gradients, and add it to the margins; scales: of hessians and gradients."""
        plan, rows = self._plan, self._rows
        totals = rows.plant(number, scales)
        rate = plan.rate_of(number, self._problem.objective.width)
        if self._compiled is not None:
            tree, moves = self._compiled.grow(rows, scales, totals, rate)
            nodes = moves.nodes
            for group, _ in rows.moving:
                if group is not rows.grown:
                    group.walk(moves.splits)
        else:
            growth = BoostedGrowth(plan, self._bins, scales, totals, number, rate)
            growth.explores = 1
            nodes = self._explore(growth)
            tree = growth.tree
        assert rows.grown is not None
        tree.count[:] = rows.grown.counts(nodes)
        share = self._problem.objective.leaf_share
        # The bounds of monotone features hold for leaves from gradients only.
        if share is not None and not plan.monotone:
            leaves = [rows.grown.rows_of(node) for node in nodes.leaves.tolist()]
            values = local_quantiles(share, self._weight_unit, leaves, rows.residuals, rows.training.weights)
            tree.value[nodes.is_leaf] = values * rate
            nodes = replace(nodes, values=np.where(nodes.is_leaf, tree.value, 0.0))
        rows.end(nodes)
        return tree

    def _explore(self, growth: BoostedGrowth) -> FinalNodes:
        """Choose all splits, and move rows to the leaves."""
        rows, histograms, opened = self._rows, self._histograms, opened_roots([ROOT])
        assert rows.grown is not None
        while True:
            best = None
            if growth.open:
                nodes = [(row, rows.grown.rows_of(node)) for node, row in opened[:, [NODE, ROW]].tolist()]
                histograms.add(nodes, rows.summed)
                best = histograms.best_splits(growth)
            moves = growth.advance(best)
            histograms.make_room(growth.num_rows)
            if growth.clear:
                histograms.clear(growth.clear)
            for group, _ in rows.moving:
                group.part(moves.splits)
            if growth.is_over:
                return moves.nodes
            opened = moves.opened
