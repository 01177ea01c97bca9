"""Random forests where one worker has all rows: it grows whole trees in each clock, several threads a tree each."""

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
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import LocalProgram, TrainedForest
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import rows_with_weight
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.ops import parallel
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks


class ForestGrower:
    """Grows trees of the rows of one worker.

    Args:
        scales: factors of weights and labels; words: of sets.
    """

    def __init__(
        self, options: ForestOptions, bins: BinColumns, rows: ForestRows, scales: tuple[float, float], words: int
    ) -> None:
        self._options, self._bins, self._rows, self._words = options, bins, rows, words
        self._rules = options.rules(scales)

    def grow(self, trees: Sequence[int]) -> list[ForestTree]:
        """Grow some trees, by number."""
        assert len(trees) <= MAX_BLOCKS
        numbers = np.array(trees, np.int64)
        # Each tree is a block of its own.
        found = over_blocks(
            lambda some: [self._grow(tree) for tree in some.tolist()], (numbers,), cost=MIN_BLOCKS * MIN_BLOCK
        )
        return [tree for some in found for tree in some]

    def _grow(self, tree: int) -> ForestTree:
        options = self._options
        order, draws, totals = self._rows.sample(tree, self._rules)
        nodes = node_memory(2 * min(1 << options.depth, max(len(order), 1)) - 1, options.channels, self._words)
        nodes.ends[0, 1], nodes.totals[0] = len(order), totals
        histogram = np.zeros(len(self._bins.features) * options.channels, np.int64)
        drawing = kernels.FeatureDraws(options.keys(tree)[1], options.features, options.turns)
        sample = order, draws, self._rows.whole, self._rows.arrays, self._bins
        count = kernels.grow_forest_tree(*sample, drawing, self._rules, histogram, nodes)
        best, children, sums = nodes.best, nodes.children[:count].copy(), nodes.totals[:count].copy()
        return without_unused(ForestTree(children, best.where[:count], best.sets[:count], best.gains[:count], sums))


# A clock grows trees for so long, or so many bytes of them: a report takes 64 MB at most.
BUDGET_S, BUDGET_BYTES = 0.5, 1 << 24


@dataclass(frozen=True)
class GrowTrees(Task):
    """Grow trees until the time of a clock is spent.

    Attributes:
        first: the number of the first of them.
    """

    first: int


def settings_of(problem: TreeProblem, options: ForestOptions) -> dict[str, Any]:
    """Return the settings that trees depend on."""
    settings = {**asdict(replace(problem, initial=None)), **asdict(options)}
    return {name: value for name, value in settings.items() if name not in ("initial", "name")}


class LocalForestWorker:
    """The rows of the worker.

    Args:
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

    def __init__(
        self, problem: TreeProblem, options: ForestOptions, mean_weight: float | None, reading: Reading
    ) -> None:
        rows = rows_with_weight(reading.training)
        bins, columns = Quantiles.here(problem, options.bins, mean_weight, least_rows(options)).find_here(rows)
        mine = ForestRows(problem, options, rows)
        self._scales = options.scales(sums_below(mine.exponents()))
        mine.begin(bins, columns, self._scales)
        self._grower = ForestGrower(options, bin_columns(bins, problem.absent), mine, self._scales, problem.words)
        self._bins, self._options, self._rows = bins, options, mine

    def __call__(self, worker: Any, task: GrowTrees) -> None:
        worker.report({"replies": [self._grow(task.first)]}, merge="concat")

    def _grow(self, first: int) -> dict[str, Any]:
        """Grow the trees from a number on until the time of a clock is spent; return a reply."""
        grown: list[ForestTree] = []
        began_s, threads, size = time.monotonic(), parallel.cores(), 0
        trees, at_once = self._options.trees, threads
        while first + len(grown) < trees and time.monotonic() < began_s + BUDGET_S and size < BUDGET_BYTES:
            begin = first + len(grown)
            some = self._grower.grow(range(begin, min(begin + at_once, trees)))
            grown += some
            size = sum(tree.gains.nbytes * 10 for tree in grown)
            # Trees for half of the time that is left, so that threads seldom wait for each other.
            each_s = (time.monotonic() - began_s) / len(grown)
            left_s = began_s + BUDGET_S - time.monotonic()
            at_once = int(min(max(left_s / 2 / each_s, threads), parallel.MAX_BLOCKS))
        reply: dict[str, Any] = {"trees": [tree.as_data() for tree in grown], "rows": len(self._rows)}
        reply["tree_s"] = (time.monotonic() - began_s) / max(len(grown), 1)
        if first == 0:
            reply |= {"scales": np.array(self._scales), "cuts": self._bins.cuts, "shapes": shapes_of(self._bins)}
        return reply


class LocalForestProgram(LocalProgram[TrainedForest[RandomForest]]):
    """A random forest that grows in the only worker's process.

    Args:
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

    def __init__(
        self,
        problem: TreeProblem,
        options: ForestOptions,
        mean_weight: float | None,
        record: Record,
        names: CheckpointNames,
    ) -> None:
        super().__init__(problem, options, record, names)
        self._mean_weight = mean_weight

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.options)

    def worker(self) -> Callable[[Reading], LocalForestWorker]:
        return partial(LocalForestWorker, self._problem, self.options, self._mean_weight)

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        forest = ForestRecord(self._problem, self.options, self.record)
        ask.start()
        while len(forest.trees) < self.options.trees:
            report = yield GrowTrees(len(forest.trees))
            (reply,) = report.replies
            if "scales" in reply:
                weight_scale, label_scale = reply["scales"].tolist()
                forest.begin(_bins(self._problem, reply), (weight_scale, label_scale))
            forest.add(ask, [ForestTree(*data) for data in reply["trees"]], reply["rows"], reply["tree_s"])
        return forest

    def result(self, forest: ForestRecord) -> TrainedForest[RandomForest]:
        return TrainedForest(forest.forest(), forest.history())


def _bins(problem: TreeProblem, reply: Mapping[str, Any]) -> Bins:
    counts, missing = of_shapes(reply["shapes"])
    return bins_of(problem, reply["cuts"], np.append(0, np.cumsum(counts)), missing)
