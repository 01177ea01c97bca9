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
from ps2.algorithms.trees.leaf_quantiles import quantiles_here
from ps2.algorithms.trees.local_histograms import LocalHistograms
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.tree import Tree


class LocalGrower:
    """Grows trees of the rows of one worker.

    Args:
        weight_unit: of weights in the quantiles that leaves may be.
    """

    def __init__(
        self, problem: TreeProblem, plan: BoostingPlan, bins: Bins, of: BoostedRows, weight_unit: float
    ) -> None:
        self._problem, self._plan, self._bins, self._of = problem, plan, bins, of
        self._weight_unit = weight_unit
        rows = of.training.rows
        self._compiled: CompiledGrower | None = None
        if is_compiled(plan, rows):
            self._compiled = CompiledGrower(problem, plan, rows)
        else:
            self._histograms = LocalHistograms(problem, plan, bins, rows)

    def grow(self, number: int, scales: tuple[float, float]) -> Tree:
        """Grow a tree of the gradients that have been computed, and add it to the margins.

        Args:
            number: of the tree, from 0.
            scales: factors of hessians and gradients.
        """
        plan, of = self._plan, self._of
        totals = of.plant(number, scales)
        rate = plan.rate_of(number, self._problem.objective.width)
        if self._compiled is not None:
            tree, moves = self._compiled.grow(of, scales, totals, rate)
            nodes = moves.nodes
            for rows, _ in of.moving:
                if rows is not of.grown:
                    rows.walk(moves.splits)
        else:
            growth = BoostedGrowth(plan, self._bins, scales, totals, number, rate)
            growth.explores = 1
            nodes = self._explore(growth)
            tree = growth.tree
        assert of.grown is not None
        tree.count[:] = of.grown.counts(nodes)
        share = self._problem.objective.leaf_share
        # The bounds of monotone features hold for leaves from gradients only.
        if share is not None and not plan.monotone:
            leaves = [of.grown.of(node) for node in nodes.leaves.tolist()]
            found = quantiles_here(share, self._weight_unit, leaves, of.residuals, of.training.weights)
            tree.value[nodes.is_leaf] = found * rate
            nodes = replace(nodes, values=np.where(nodes.is_leaf, tree.value, 0.0))
        of.end(nodes)
        return tree

    def _explore(self, growth: BoostedGrowth) -> FinalNodes:
        """Choose all splits, and move rows to the leaves."""
        of, histograms, opened = self._of, self._histograms, opened_roots([ROOT])
        assert of.grown is not None
        while True:
            best = None
            if growth.open:
                nodes = [(row, of.grown.of(node)) for node, row in opened[:, [NODE, ROW]].tolist()]
                histograms.add(nodes, of.summed)
                best = histograms.best_splits(growth)
            moves = growth.advance(best)
            histograms.make_room(growth.num_rows)
            if growth.clear:
                histograms.clear(growth.clear)
            for rows, _ in of.moving:
                rows.part(moves.splits)
            if growth.is_over:
                return moves.nodes
            opened = moves.opened
