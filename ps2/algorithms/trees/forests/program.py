"""Random forests as durable programs, with histograms on servers or in the process of the only worker.

Breiman, "Random forests" (2001): each tree samples rows, and each node samples features. As in Panda et al., "PLANET"
(2009), many nodes of many trees are split at once: the workers build histograms, and the servers add them up and search
them for the best splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.memory import MORE_SERVERS, fitting_servers, free_server_bytes
from ps2.algorithms.frame.program import Ask, Steps, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Trained, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.binning import Bins, bins_from_codes
from ps2.algorithms.trees.driver_messages import Moves, PlantTrees, SumRows
from ps2.algorithms.trees.forests.growth import ForestGrowth, ForestRecord, ForestTree
from ps2.algorithms.trees.forests.plan import ForestPlan, min_rows_to_split
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.worker import ForestWorker, GrowTrees, LocalForestWorker
from ps2.algorithms.trees.gradients import sum_bounds
from ps2.algorithms.trees.growth import opened_roots
from ps2.algorithms.trees.layout import SUM_BYTES
from ps2.algorithms.trees.nonempty_bins import rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import FleetProgram, LocalProgram, TreeRun, grow_trees, mean_weight_of, settings_of
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, columns_of

# The maximum number of histograms. They take at most the servers' free memory divided by MEMORY_DIVISOR.
MAX_HISTOGRAMS, MEMORY_DIVISOR = 1024, 4


def grow(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    plan: ForestPlan,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> Trained[RandomForest]:
    """Grow a random forest, or resume: bitwise the same on any number of workers and servers, and in one process."""
    names = CheckpointNames.of(plan.name, ps)
    record = Record(on_step, Words("tree", "impurity"), completed="all trees have grown")
    settings = settings_of(problem, plan)
    run = TreeRun(problem, plan, facts.rows, mean_weight_of(table, facts), settings, record, names)
    # Compare the settings with those of a resumed training first: its vectors depend on ``via``.
    Journal.of(names, settings, ForestProgram.number)
    if plan.via == "local":
        return run_program(ps, LocalForestProgram(run), table, names)
    return run_program(ps, ForestProgram(run, ps.memory()), table, names)


class ForestProgram(FleetProgram[RandomForest]):
    """A random forest with histograms on the servers; memory: the limit and the used bytes of each server."""

    def __init__(self, run: TreeRun, memory: Sequence[tuple[int, int]]) -> None:
        super().__init__(run, min_rows_to_split(run.plan))
        self._memory = memory

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        plan = self.plan
        matrices = yield from self.prepare_histograms(ask)
        report = yield SumRows()
        scales, num_rows = plan.scales(sum_bounds(report.exponents)), int(report.rows)
        forest = ForestRecord(self._problem, plan, self.record)
        forest.begin(matrices.bins, scales)
        num_features = int((matrices.bins.num_columns > 0).sum())  # features that can split nodes
        while (first := len(forest.trees)) < plan.settings.numTrees:
            # Several trees grow at once. Workers sample the trees' rows, and send the histograms of the roots.
            slots = matrices.rows[: min(plan.trees_at_once, plan.settings.numTrees - first)]
            moves = Moves(opened=opened_roots(slots if plan.settings.maxDepth and num_features else []))
            report = yield PlantTrees(
                matrices=matrices.numbers, first=first, count=len(slots), scales=scales, **moves.fields()
            )
            growth = ForestGrowth(plan, scales, report.totals, matrices.rows, num_features)
            _, histogram_bytes = yield from grow_trees(ask, growth, matrices)
            self.record.add(0, int(report.bytes) + histogram_bytes)
            forest.add(ask, growth.trees, num_rows)
        return forest

    def worker(self) -> Callable[[Reading], ForestWorker]:
        return partial(ForestWorker, self._problem, self.plan, self._quantiles)

    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        """Make the matrices of histograms; LimitError if they cannot fit."""
        plan = self.plan
        size = columns_of(bins, plan.channels) * SUM_BYTES
        # All nodes of a level may be open.
        max_useful = plan.trees_at_once << min(max(plan.settings.maxDepth - 1, 0), 10)
        rows = max(min(max_useful, MAX_HISTOGRAMS, free_server_bytes(self._memory) // MEMORY_DIVISOR // size), 1)
        what = f"{bins.num_features:,} features have {bins.num_columns.sum():,} bins that can split rows: histograms"
        with fitting_servers(f"{what} of {size:,} bytes", advice=f"{MORE_SERVERS}, or let features have fewer bins"):
            return HistogramMatrices.make(bins, self._problem, plan.channels, rows_with_marks(1 + rows))


class LocalForestProgram(LocalProgram[RandomForest]):
    """A random forest that grows in the process of the only worker."""

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        forest = ForestRecord(self._problem, self.plan, self.record)
        ask.start_timer()
        while len(forest.trees) < self.plan.settings.numTrees:
            report = yield GrowTrees(len(forest.trees))
            (reply,) = report.replies
            if "scales" in reply:  # only the first reply has them
                weight_scale, label_scale = reply["scales"].tolist()
                bins = bins_from_codes(self._problem, reply["cuts"], reply["shapes"])
                forest.begin(bins, (weight_scale, label_scale))
            forest.add(ask, [ForestTree(*data) for data in reply["trees"]], reply["rows"], reply["tree_s"])
        return forest

    def worker(self) -> Callable[[Reading], LocalForestWorker]:
        return partial(LocalForestWorker, self._problem, self.plan, self._training_run.mean_weight)
