"""Trees that one worker with all rows grows: it finds the splits that servers would find, by the same kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.compiled_growing import CompiledGrower, is_compiled
from ps2.algorithms.trees.driver_messages import NODE, ROW, FinalNodes
from ps2.algorithms.trees.growth import opened_roots
from ps2.algorithms.trees.leaf_quantiles import local_quantiles
from ps2.algorithms.trees.local_histograms import LocalHistograms
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.tree import Tree


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
            leaves = [rows.grown.of(node) for node in nodes.leaves.tolist()]
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
                nodes = [(row, rows.grown.of(node)) for node, row in opened[:, [NODE, ROW]].tolist()]
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
