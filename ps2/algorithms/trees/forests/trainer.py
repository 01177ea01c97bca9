"""Random forests on servers as a durable program (Breiman, "Random forests", 2001): some trees grow at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import Ask, Steps, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees import fleet_program
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import Moves, PlantTrees, SumRows
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.growth import ForestGrowth
from ps2.algorithms.trees.forests.local import GrownForest, LocalForestProgram, settings_of
from ps2.algorithms.trees.forests.matrices import forest_matrices
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.worker import ForestWork
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.growth import opened_roots
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.tree_matrices import HistogramMatrices


def grow(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    options: ForestOptions,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> GrownForest:
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


class ForestProgram(fleet_program.FleetProgram[GrownForest]):
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

    def worker(self) -> ForestWork:
        return ForestWork(self._problem, self.options, self._quantiles)

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
            _, moved_bytes = yield from fleet_program.grow(ask, growth, matrices)
            self.record.add(0, int(report.bytes) + moved_bytes)
            forest.add(ask, growth.trees, num_rows)
        return forest

    def result(self, forest: ForestRecord) -> GrownForest:
        return GrownForest(forest.forest(), forest.history())
