"""Boosting where one worker has all rows: it finds cut points, and grows whole rounds of trees in each clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps, Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.leaf_quantiles import unit_of_weights
from ps2.algorithms.trees.local_growing import LocalGrower
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.program import LocalProgram, TrainedForest, mean_weight_of, min_rows_to_split, settings_of
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rounds import first_scales, next_scales
from ps2.algorithms.trees.rows import rows_with_weight, with_all_columns
from ps2.algorithms.trees.tree import Forest, Tree, tree_as_data
from ps2.array_types import Float64s

# For so long a clock grows rounds: its own time is small beside it, and a worker that dies repeats no more than this.
BUDGET_S = 0.5
# The number of trees that rows walk through at once when a worker begins again.
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


class LocalBoostingProgram(LocalProgram[TrainedForest[Forest]]):
    """Gradient boosting in the only worker's process. The driver decides when it ends.

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
        super().__init__(problem, plan, record, names)
        self._rows, self._mean_weight = facts.rows, mean_weight_of(table, facts)

    def drive(self, ask: Ask) -> Steps[BoostingRecord]:
        boosting = BoostingRecord(self._problem, self.plan, self.record)
        ask.start_timer()
        task = GrowRounds(first=0, trees=[], scales=None)
        while True:
            report = yield task
            first, trees = len(boosting.trees), list[Any]()
            for reply in report.rounds:  # the losses before a round, and its trees
                if len(self.record.objective) <= reply["round"]:  # else a driver that wanted fewer rounds recorded them
                    losses = SimpleNamespace(**reply)
                    if not reply["round"]:
                        boosting.begin(losses)
                    elif boosting.end_round(ask, losses, reply["lap_s"]):
                        return boosting
                if boosting.rounds >= ask.setting(lambda: self.plan.settings.maxIter):
                    return boosting
                boosting.trees += [Tree(*data) for data in reply["trees"]]
                trees += reply["trees"]
            task = GrowRounds(first, trees, report.rounds[-1]["scales"] if trees else None)

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.plan, self._rows, self._mean_weight)

    def worker(self) -> Callable[[Reading], LocalTreeWorker]:
        min_rows = min_rows_to_split(self._problem, self.plan, self._mean_weight)
        return partial(LocalTreeWorker, self._problem, self.plan, min_rows, self._mean_weight)

    def result(self, boosting: BoostingRecord) -> TrainedForest[Forest]:
        boosting.cut(self.plan.settings.maxIter)
        return TrainedForest(boosting.forest(), boosting.history())


class LocalTreeWorker:
    """The worker's rows, with the margins of the trees that have grown.

    Args:
        min_rows: the minimum number of rows with a feature for it to get cut points.
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

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
        """Grow rounds until the time of a clock is spent, or all have grown; return a reply for each.

        The losses after the last round are in a reply without trees.
        """
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
            self._scales = first_scales(self._plan, bounds)
        trees = []
        for _ in range(self._problem.objective.width):
            trees.append(self._grower.grow(self._num_trees, self._scales))
            self._num_trees += 1
        self._scales = next_scales(self._problem, self._plan, bounds, trees)
        return trees
