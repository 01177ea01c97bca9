"""Random forests where one worker has all rows: it grows whole trees in each clock, several at once in threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps, Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record
from ps2.algorithms.trees.binning import Bins, bins_of, of_shapes, shapes_of
from ps2.algorithms.trees.compiled_growing import bin_columns, node_memory
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.grown_tree import ForestTree, without_unused
from ps2.algorithms.trees.forests.plan import ForestPlan, min_rows_to_split
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import LocalProgram, TrainedForest
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import rows_with_weight
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.ops import parallel
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks

# The time in which a clock grows trees, and the size of its report at which it stops: reports have 64 MB at most.
BUDGET_S, BUDGET_BYTES = 0.5, 1 << 24


@dataclass(frozen=True)
class GrowTrees(Task):
    """Grow trees until the time of a clock is spent.

    Attributes:
        first: the number of the first tree.
    """

    first: int


class LocalForestProgram(LocalProgram[TrainedForest[RandomForest]]):
    """A random forest that grows in the only worker's process.

    Args:
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

    def __init__(
        self,
        problem: TreeProblem,
        plan: ForestPlan,
        mean_weight: float | None,
        record: Record,
        names: CheckpointNames,
    ) -> None:
        super().__init__(problem, plan, record, names)
        self._mean_weight = mean_weight

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        forest = ForestRecord(self._problem, self.plan, self.record)
        ask.start_timer()
        while len(forest.trees) < self.plan.settings.numTrees:
            report = yield GrowTrees(len(forest.trees))
            (reply,) = report.replies
            if "scales" in reply:  # the first one
                weight_scale, label_scale = reply["scales"].tolist()
                forest.begin(_bins(self._problem, reply), (weight_scale, label_scale))
            forest.add(ask, [ForestTree(*data) for data in reply["trees"]], reply["rows"], reply["tree_s"])
        return forest

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.plan)

    def worker(self) -> Callable[[Reading], LocalForestWorker]:
        return partial(LocalForestWorker, self._problem, self.plan, self._mean_weight)

    def result(self, forest: ForestRecord) -> TrainedForest[RandomForest]:
        return TrainedForest(forest.forest(), forest.history())


class LocalForestWorker:
    """The worker's rows, and what grows trees on them.

    Args:
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

    def __init__(self, problem: TreeProblem, plan: ForestPlan, mean_weight: float | None, reading: Reading) -> None:
        rows = rows_with_weight(reading.training)
        quantiles = Quantiles.in_process(problem, plan.settings.maxBins, mean_weight, min_rows_to_split(plan))
        bins, columns = quantiles.find_bins(rows)
        forest_rows = ForestRows(problem, plan, rows)
        self._scales = plan.scales(sums_below(forest_rows.exponents()))
        forest_rows.begin(bins, columns, self._scales)
        columns_of_bins = bin_columns(bins, problem.absent)
        self._grower = ForestGrower(plan, columns_of_bins, forest_rows, self._scales, problem.words)
        self._bins, self._plan, self._rows = bins, plan, forest_rows

    def __call__(self, worker: Any, task: GrowTrees) -> None:
        worker.report({"replies": [self._grow(task.first)]}, merge="concat")

    def _grow(self, first: int) -> dict[str, Any]:
        """Grow trees from a number on until the time of a clock is spent; return a reply."""
        trees: list[ForestTree] = []
        began_s, threads, size = time.monotonic(), parallel.cores(), 0
        num_trees, at_once = self._plan.settings.numTrees, threads
        while first + len(trees) < num_trees and time.monotonic() < began_s + BUDGET_S and size < BUDGET_BYTES:
            begin = first + len(trees)
            trees += self._grower.grow(range(begin, min(begin + at_once, num_trees)))
            size = sum(tree.gains.nbytes * 10 for tree in trees)
            # Grow next what takes half of the time that is left, so that threads seldom wait for each other.
            each_s = (time.monotonic() - began_s) / len(trees)
            left_s = began_s + BUDGET_S - time.monotonic()
            at_once = int(min(max(left_s / 2 / each_s, threads), parallel.MAX_BLOCKS))
        reply: dict[str, Any] = {"trees": [tree.as_data() for tree in trees], "rows": len(self._rows)}
        reply["tree_s"] = (time.monotonic() - began_s) / max(len(trees), 1)
        if first == 0:
            reply |= {"scales": np.array(self._scales), "cuts": self._bins.cuts, "shapes": shapes_of(self._bins)}
        return reply


class ForestGrower:
    """Grows trees on the rows of one worker.

    Args:
        scales: factors of weights and labels.
        words: the number of int64 that hold a set of categories.
    """

    def __init__(
        self, plan: ForestPlan, bins: BinColumns, rows: ForestRows, scales: tuple[float, float], words: int
    ) -> None:
        self._plan, self._bins, self._rows, self._words = plan, bins, rows, words
        self._rules = plan.rules(scales)

    def grow(self, trees: Sequence[int]) -> list[ForestTree]:
        """Grow some trees, by number."""
        assert len(trees) <= MAX_BLOCKS
        numbers = np.array(trees, np.int64)
        # Each tree is a block of its own.
        blocks = over_blocks(
            lambda block: [self._grow_tree(tree) for tree in block.tolist()], (numbers,), cost=MIN_BLOCKS * MIN_BLOCK
        )
        return [tree for block in blocks for tree in block]

    def _grow_tree(self, tree: int) -> ForestTree:
        plan = self._plan
        order, draws, totals = self._rows.sample(tree, self._rules)
        nodes = node_memory(2 * min(1 << plan.settings.maxDepth, max(len(order), 1)) - 1, plan.channels, self._words)
        nodes.ends[0, 1], nodes.totals[0] = len(order), totals
        histogram = np.zeros(len(self._bins.features) * plan.channels, np.int64)
        drawing = kernels.FeatureDraws(plan.keys(tree)[1], plan.node_features, plan.turns)
        sample = order, draws, self._rows.whole, self._rows.arrays, self._bins
        count = kernels.grow_forest_tree(*sample, drawing, self._rules, histogram, nodes)
        best, children, sums = nodes.best, nodes.children[:count].copy(), nodes.totals[:count].copy()
        return without_unused(ForestTree(children, best.where[:count], best.sets[:count], best.gains[:count], sums))


def settings_of(problem: TreeProblem, plan: ForestPlan) -> dict[str, Any]:
    """Return the settings that trees depend on."""
    settings = {**asdict(replace(problem, initial=None)), **plan.plain()}
    return {name: value for name, value in settings.items() if name not in ("initial", "name")}


def _bins(problem: TreeProblem, reply: Mapping[str, Any]) -> Bins:
    """Return the bins that a worker has found."""
    counts, missing = of_shapes(reply["shapes"])
    return bins_of(problem, reply["cuts"], np.append(0, np.cumsum(counts)), missing)
