"""Random forests where one worker has all rows: it grows whole trees in each clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Program, Steps, Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, TrainingHistory
from ps2.algorithms.trees.binning import Bins, bins_of, of_shapes, shapes_of
from ps2.algorithms.trees.compiled_growing import bin_columns
from ps2.algorithms.trees.fleet_program import form_of
from ps2.algorithms.trees.forests.compiled_growing import ForestGrower
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.grown_tree import ForestTree
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import rows_with_weight
from ps2.client.dcv import DCV
from ps2.ops import parallel

# A clock grows trees for so long, or so many bytes of them: a report takes 64 MB at most.
BUDGET_S, BUDGET_BYTES = 0.5, 1 << 24


@dataclass(frozen=True)
class GrowTrees(Task):
    """Grow trees until the time of a clock is spent.

    Attributes:
        first: the number of the first of them.
    """

    first: int


@dataclass(frozen=True, eq=False)
class GrownForest:
    """The result of a training."""

    forest: RandomForest
    history: TrainingHistory


def settings_of(problem: TreeProblem, options: ForestOptions) -> dict[str, Any]:
    """Return the settings that trees depend on."""
    settings = {**asdict(replace(problem, initial=None)), **asdict(options)}
    return {name: value for name, value in settings.items() if name not in ("initial", "name")}


@dataclass(frozen=True, eq=False)
class LocalForestWork:
    """Makes the worker of its rows; picklable.

    Attributes:
        mean_weight: the mean weight of the rows; None: all weights are 1.
    """

    problem: TreeProblem
    options: ForestOptions
    mean_weight: float | None

    def __call__(self, reading: Reading) -> LocalForestWorker:
        rows = rows_with_weight(reading.training)
        return LocalForestWorker(self, rows)


class LocalForestWorker:
    """The rows of the worker."""

    def __init__(self, work: LocalForestWork, rows: Any) -> None:
        problem, options = work.problem, work.options
        bins, columns = Quantiles.here(problem, options.bins, work.mean_weight, least_rows(options)).find_here(rows)
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


class LocalForestProgram(Program[GrownForest]):
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
        super().__init__(options, form_of(problem), record)
        self._problem, self._mean_weight = problem, mean_weight
        # By its name a restored context knows the training.
        self._named = names.give(lambda name: DCV.dense(1, 1, "int64", name=name))

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.options)

    def worker(self) -> LocalForestWork:
        return LocalForestWork(self._problem, self.options, self._mean_weight)

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

    def result(self, forest: ForestRecord) -> GrownForest:
        return GrownForest(forest.forest(), forest.history())

    def free(self) -> None:
        self._named.free()


def _bins(problem: TreeProblem, reply: Mapping[str, Any]) -> Bins:
    counts, missing = of_shapes(reply["shapes"])
    return bins_of(problem, reply["cuts"], np.append(0, np.cumsum(counts)), missing)
