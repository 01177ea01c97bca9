"""Gradient boosting on servers as a durable program.

Friedman, "Greedy function approximation" (2001), with the second-order gains and leaves of Chen and Guestrin, "XGBoost"
(2016), section 2.2. Workers hold the rows. The servers add up histograms of gradients, and search these for the best
splits. The driver chooses among these splits, and tells the workers which nodes to split.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from ps2.algorithms.frame.program import Ask, Program, Steps
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, TrainingHistory
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.driver_messages import (
    AddHistograms,
    AddResiduals,
    FinalNodes,
    Moves,
    PlantTrees,
    SumGradients,
)
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.growth import Growth, opened_roots
from ps2.algorithms.trees.leaf_quantiles import CoarseQuantiles, LeafQuantiles
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rounds import first_scales, next_scales
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.starts import fingerprint
from ps2.algorithms.trees.tree import Forest, Tree, tree_as_data
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, boosting_matrices
from ps2.algorithms.trees.worker import TreeWorker
from ps2.array_types import Int64s
from ps2.client.dcv import DCV

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TrainedForest(Generic[F]):
    """The result of a training of boosted trees, or of a random forest."""

    forest: F
    history: TrainingHistory


class TreesProgram(Program[T]):
    """A training of trees."""

    def __init__(self, problem: TreeProblem, plan: Any, record: Record) -> None:
        form = Form(problem.dim, problem.classes, missing=True, categories=problem.categories)
        super().__init__(plan, form, record)
        self._problem = problem


class LocalProgram(TreesProgram[T]):
    """A training of trees in the only worker's process."""

    def __init__(self, problem: TreeProblem, plan: Any, record: Record, names: CheckpointNames) -> None:
        super().__init__(problem, plan, record)
        # A restored context recognizes the training by this vector's name.
        self._named = names.give(lambda name: DCV.dense(1, 1, "int64", name=name))

    def free(self) -> None:
        self._named.free()


class FleetProgram(TreesProgram[T]):
    """A training of trees with histograms on the servers."""

    def __init__(self, problem: TreeProblem, plan: Any, record: Record, quantiles: Quantiles) -> None:
        super().__init__(problem, plan, record)
        self._quantiles = quantiles
        self._matrices: HistogramMatrices | None = None

    def prepare_histograms(self, ask: Ask) -> Steps[HistogramMatrices]:
        """Find cut points, and make the matrices of histograms."""
        yield from self._quantiles.find_cut_points(ask)
        numbers = ask(self._make_matrices)
        if self._matrices is None:  # an earlier driver has made them
            bins = self._quantiles.cut()
            self._matrices = HistogramMatrices.existing(bins, self._problem, self.plan.channels, numbers)
        ask.start_timer()
        return self._matrices

    def _make_matrices(self) -> list[int]:
        if self._matrices is not None:  # the fleet has rolled back
            self._matrices.free()
        self._matrices = self.make_matrices(self._quantiles.cut())
        return list(self._matrices.numbers)

    @abstractmethod
    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        """Make the matrices of histograms."""

    def free(self) -> None:
        self._quantiles.free()
        if self._matrices is not None:
            self._matrices.free()


def grow_trees(ask: Ask, growth: Growth, matrices: HistogramMatrices) -> Steps[tuple[Moves, int]]:
    """Grow trees whose roots' histograms are on the servers, by any ``Growth``.

    The servers search for the best splits of the open nodes. The driver chooses among these. The workers move the rows
    of the chosen nodes to their children, and add the children's histograms.

    Returns:
        How rows move to the leaves, and the bytes of histograms that workers report.
    """
    histogram_bytes = 0
    while True:
        best = None
        if growth.open:
            best = Splits(*ask(lambda: list[Any](matrices.best_splits(growth))))
        moves = growth.advance(best)
        if growth.keeps_histograms:
            ask(lambda: matrices.prepare(growth))
        if growth.is_over:
            return moves, histogram_bytes
        report = yield AddHistograms(matrices=matrices.numbers, **moves.fields())
        histogram_bytes += int(getattr(report, "bytes", 0))


class BoostingProgram(FleetProgram[TrainedForest[Forest]]):
    """Gradient boosting with histograms on the servers.

    Args:
        facts: statistics of the rows' labels and weights.
    """

    def __init__(
        self,
        table: Table,
        problem: TreeProblem,
        plan: BoostingPlan,
        facts: Facts,
        record: Record,
        names: CheckpointNames,
    ) -> None:
        self._rows, self._mean_weight = facts.rows, mean_weight_of(table, facts)
        min_rows = min_rows_to_split(problem, plan, self._mean_weight)
        quantiles = Quantiles.make(problem, plan.settings.maxBins, self._mean_weight, names, min_rows)
        super().__init__(problem, plan, record, quantiles)
        share = problem.objective.leaf_share
        # The bounds of monotone features hold only for leaves whose values come from gradients.
        self._leaf_quantiles = None if share is None or plan.monotone else LeafQuantiles.make(share, self._mean_weight)

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[BoostingRecord]:
        problem, plan, width = self._problem, self.plan, self._problem.objective.width
        matrices = yield from self.prepare_histograms(ask)
        numbers, roots = matrices.numbers, opened_roots([ROOT] if plan.settings.maxDepth else [])
        boosting, moves = BoostingRecord(problem, plan, self.record), Moves()
        trees = boosting.trees
        losses = yield SumGradients(matrices=numbers).then(self._summarize)
        boosting.begin(losses)
        is_recorded = True  # whether the losses after the last round are recorded
        # Scaled gradients are rounded to whole numbers, so that sums do not depend on the order of the rows.
        scales = first_scales(plan, losses.below)
        while True:
            if boosting.rounds >= ask.setting(lambda: plan.settings.maxIter):
                if is_recorded:
                    return boosting
                # No further tree comes with which workers would report these losses.
                losses = yield SumGradients(matrices=numbers, **moves.fields()).then(self._summarize)
                _set_counts(trees, losses)
                is_recorded, moves = True, Moves()
                if boosting.end_round(ask, losses):
                    return boosting
                continue
            for output in range(width):  # a round has a tree for each class (Friedman, algorithm 6), else one
                # With the first tree of a round, workers report the losses after the round before.
                begins_round, fields = bool(trees) and output == 0, replace(moves, opened=roots).fields()
                plant = PlantTrees(
                    matrices=numbers, first=len(trees), scales=scales, begins_round=begins_round, **fields
                )
                report = yield plant.then(self._summarize)
                _set_counts(trees, report)
                if begins_round:
                    losses = report
                    if not is_recorded and boosting.end_round(ask, losses):
                        return boosting
                grow_tree = partial(self._grow_tree, ask, matrices, len(trees), scales, report.totals)
                grown = yield from ask.part(grow_tree)
                trees.append(Tree(*grown["tree"]))
                moves = Moves(grown["splits"], FinalNodes(*grown["nodes"]))
            scales, is_recorded = next_scales(problem, plan, losses.below, trees[-width:]), False

    def _summarize(self, report: Any) -> dict[str, Any]:
        """Return a report whose sums are summarized.

        "below" has bounds of the sums of hessians, gradients and weights, instead of their exponents. "held" has the
        metric of the held-out rows, instead of its sums.
        """
        summary = dict(vars(report))
        if (exponents := summary.pop("exponents", None)) is not None:
            summary["below"] = sums_below(exponents)
        if (metric_sums := summary.pop("held", None)) is not None:
            summary["held"] = Metric.parsed(self.plan.settings.evalMetric or "").value(metric_sums)
        return summary

    def _grow_tree(
        self, ask: Ask, matrices: HistogramMatrices, number: int, scales: tuple[float, float], totals: Int64s
    ) -> Steps[dict[str, Any]]:
        """Grow a tree whose root's histogram is on the servers.

        Args:
            number: the tree's number, from 0.
            scales: factors of hessians and gradients.
            totals: int64, shape (3,): the sums of all rows: hessians, gradients, and the third channel.

        Returns:
            The tree, and how rows move to its leaves (``splits`` and ``nodes`` of ``Moves``), as plain data.
        """
        rate = self.plan.rate_of(number, self._problem.objective.width)
        growth = BoostedGrowth(self.plan, matrices.bins, scales, totals, number, rate)
        moves, _ = yield from grow_trees(ask, growth, matrices)
        tree, nodes = growth.tree, moves.nodes
        if (quantiles := self._leaf_quantiles) is not None:
            # A leaf's value is a quantile of its rows' residuals, such as the median (Friedman, algorithm 3).
            yield AddResiduals(matrices=matrices.numbers, cells=None, **moves.fields())
            coarse = CoarseQuantiles(*ask(lambda: astuple(quantiles.find_coarse(len(nodes.leaves)))))
            yield AddResiduals(matrices=matrices.numbers, cells=coarse.cells, **Moves(nodes=nodes).fields())
            tree.value[nodes.is_leaf] = ask(lambda: quantiles.find_fine(coarse)) * rate
            moves = Moves(nodes=replace(nodes, values=np.where(nodes.is_leaf, tree.value, 0.0)))
        return {"tree": tree_as_data(tree), "splits": moves.splits, "nodes": list(vars(moves.nodes).values())}

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.plan, self._rows, self._mean_weight)

    def worker(self) -> Callable[[Reading], TreeWorker]:
        return partial(TreeWorker, self._problem, self.plan, self._quantiles, self._leaf_quantiles)

    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        return boosting_matrices(bins, self._problem, self.plan, self._rows)

    def result(self, boosting: BoostingRecord) -> TrainedForest[Forest]:
        boosting.cut(self.plan.settings.maxIter)
        return TrainedForest(boosting.forest(), boosting.history())

    def free(self) -> None:
        super().free()
        if self._leaf_quantiles is not None:
            self._leaf_quantiles.free()


def _set_counts(trees: list[Tree], report: Any) -> None:
    """Set the number of rows in each node of the last tree, if workers have just moved their rows to its leaves."""
    if hasattr(report, "counts"):
        trees[-1] = replace(trees[-1], count=report.counts)


def mean_weight_of(table: Table, facts: Facts) -> float | None:
    """Return the mean weight of the rows; None: all weights are 1."""
    return None if table.columns.weight is None else facts.weight / facts.rows


def min_rows_to_split(problem: TreeProblem, plan: BoostingPlan, mean_weight: float | None) -> int:
    """Return the minimum number of rows that must hold a feature, so that it can split a node.

    One side of a split has only rows that hold the feature, and these must be heavy enough.
    """
    if mean_weight is not None:
        return 0
    # Each quantised hessian is rounded up by 1 / 32 of the largest one, at most.
    max_hessian = problem.objective.max_hessian * (1 + 1 / 32)
    return max(1, plan.min_third, math.ceil(plan.min_hessian / max_hessian))


def settings_of(problem: TreeProblem, plan: BoostingPlan, rows: int, mean_weight: float | None) -> dict[str, Any]:
    """Return the settings that trees depend on: not maxIter, and not sums of weights, whose last digits vary."""
    initial = "" if problem.initial is None else fingerprint(problem.initial)
    held_out = plan.settings.validationIndicatorCol is not None
    facts = {"rows": rows, "initial": initial, "weighted": mean_weight is not None, "held_out": held_out}
    settings = {**asdict(replace(problem, initial=None)), **plan.plain(), **facts}
    return {name: value for name, value in settings.items() if name not in ("maxIter", "name")}
