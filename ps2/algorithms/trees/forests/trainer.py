"""Random forests on servers as a durable program.

Breiman, "Random forests" (2001): each tree grows of rows that it draws, each of its nodes looks at features that it
draws. As in Panda et al., "PLANET" (2009), many nodes of many trees are searched at once: the workers part their rows
and add up histograms, in which the servers search the best splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import Ask, Steps, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import Moves, PlantTrees, SumRows
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.growth import ForestGrowth
from ps2.algorithms.trees.forests.local import LocalForestProgram, settings_of
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.worker import ForestWorker
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.growth import opened_roots
from ps2.algorithms.trees.layout import SUM_BYTES
from ps2.algorithms.trees.nonempty_bins import rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import FleetProgram, TrainedForest, grow_trees
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, columns_of
from ps2.errors import LimitError

# The largest number of histograms at a time, and the part of the servers' free memory that they may take.
MAX_ROWS, MEMORY_PART = 1024, 4


def forest_matrices(
    bins: Bins, problem: TreeProblem, options: ForestOptions, servers: Sequence[tuple[int, int]]
) -> HistogramMatrices:
    """Make the matrices of a random forest.

    Args:
        servers: of each the memory limit, and what is taken of it, in bytes.

    Raises:
        LimitError: they cannot fit.
    """
    size, free = columns_of(bins, options.channels) * SUM_BYTES, sum(max(limit - taken, 0) for limit, taken in servers)
    useful = options.trees_at_once << min(max(options.depth - 1, 0), 10)
    rows = max(min(useful, MAX_ROWS, free // MEMORY_PART // size), 1)
    try:
        return HistogramMatrices.make(bins, problem, options.channels, rows_with_marks(1 + rows))
    except LimitError as error:
        raise LimitError(
            f"{bins.features:,} features have {bins.columns.sum():,} bins that can part rows: a histogram takes "
            f"{size:,} bytes, and does not fit the servers: {error}; start more servers, or with a larger memory "
            "limit, or let features have fewer bins"
        ) from error


def grow(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    options: ForestOptions,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> TrainedForest[RandomForest]:
    """Grow a random forest in a context, or go on in one that was restored: see ``ForestOptions.name``.

    Its trees are the same, bit for bit, on any number of workers and servers, and in the only worker's process.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: what labels are, and the base that is taken from labels that are numbers.
        options: how to grow trees.
        facts: of the rows' labels and weights.
        on_step: called in the driver after each tree.

    Raises:
        LimitError: histograms cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(options.name, ps)
    record = Record(on_step, Words("tree", "impurity"), completed="all trees have grown")
    mean = None if table.columns.weight is None else facts.weight / facts.rows
    # Before the vectors are looked for: with another ``via`` there are others.
    Journal.of(names, settings_of(problem, options), ForestProgram.number)
    if options.via == "local":
        return run_program(ps, LocalForestProgram(problem, options, mean, record, names), table, names)
    return run_program(ps, ForestProgram(problem, options, mean, record, names, ps.memory()), table, names)


class ForestProgram(FleetProgram[TrainedForest[RandomForest]]):
    """A random forest with histograms on the servers.

    Args:
        mean_weight: the mean weight of the rows; None: all weights are 1.
        memory: for each server the memory limit, and what is used of it, in bytes.
    """

    def __init__(
        self,
        problem: TreeProblem,
        options: ForestOptions,
        mean_weight: float | None,
        record: Record,
        names: CheckpointNames,
        memory: Sequence[tuple[int, int]],
    ) -> None:
        quantiles = Quantiles.make(problem, options.bins, mean_weight, names, least_rows(options))
        super().__init__(problem, options, record, quantiles)
        self._memory = memory

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.options)

    def worker(self) -> Callable[[Reading], ForestWorker]:
        return partial(ForestWorker, self._problem, self.options, self._quantiles)

    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        return forest_matrices(bins, self._problem, self.options, self._memory)

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        options = self.options
        matrices = yield from self.begin(ask)
        report = yield SumRows()
        scales, num_rows = options.scales(sums_below(report.exponents)), int(report.rows)
        forest = ForestRecord(self._problem, options, self.record)
        forest.begin(matrices.bins, scales)
        usable = int((matrices.bins.columns > 0).sum())
        while (first := len(forest.trees)) < options.trees:
            # Each tree draws rows, and each of its nodes features. Some trees grow at once.
            rows = matrices.rows[: min(options.trees_at_once, options.trees - first)]
            moves = Moves(opened=opened_roots(rows if options.depth and usable else []))
            report = yield PlantTrees(
                matrices=matrices.numbers, first=first, count=len(rows), scales=scales, **moves.fields()
            )
            growth = ForestGrowth(options, scales, report.totals, matrices.rows, usable)
            _, moved_bytes = yield from grow_trees(ask, growth, matrices)
            self.record.add(0, int(report.bytes) + moved_bytes)
            forest.add(ask, growth.trees, num_rows)
        return forest

    def result(self, forest: ForestRecord) -> TrainedForest[RandomForest]:
        return TrainedForest(forest.forest(), forest.history())
