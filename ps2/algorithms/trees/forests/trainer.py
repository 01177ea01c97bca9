"""Random forests on servers as a durable program (Breiman, "Random forests", 2001): some trees grow at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.growth import ForestGrowth
from ps2.algorithms.trees.forests.local import GrownForest, LocalForestProgram, form_of, settings_of
from ps2.algorithms.trees.forests.matrices import ForestMatrices
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.worker import ForestWork, Grow, SumRows
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.search_kernels import Splits


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


class ForestProgram(Program[GrownForest]):
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
        super().__init__(options, form_of(problem), record)
        self._problem, self._memory = problem, memory
        self._quantiles = Quantiles.make(problem, options.bins, mean_weight, names, least_rows(options))
        self._matrices: ForestMatrices | None = None

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.options)

    def worker(self) -> ForestWork:
        return ForestWork(self._problem, self.options, self._quantiles)

    def drive(self, ask: Ask) -> Steps[ForestRecord]:
        problem, options = self._problem, self.options
        yield from self._quantiles.find_cut_points(ask)
        numbers = ask(self._make_matrices)
        matrices = self._open_matrices(numbers)
        ask.start()
        report = yield SumRows()
        scales = options.scales(sums_below(report.exponents))
        forest = ForestRecord(problem, options, self.record)
        forest.begin(matrices.bins, scales)
        usable = int((matrices.bins.columns > 0).sum())
        growth = ForestGrowth(options, scales, matrices.rows, usable, problem.words)
        while growth.orders is not None:
            report = yield Grow(numbers, scales, **vars(growth.orders))
            growth.take_totals(getattr(report, "totals", None))
            best = None
            if len(growth.rows):
                best = Splits(*ask(lambda: list[Any](matrices.best_splits(growth))))
            growth.go_on(best)
            self.record.add(0, int(report.bytes))
            forest.add(ask, growth.trees[len(forest.trees) :], int(report.rows))
        return forest

    def _make_matrices(self) -> list[int]:
        """Make the matrices of histograms, once cut points are known; return their numbers."""
        if self._matrices is not None:  # the fleet has rolled back
            self._matrices.free()
        self._matrices = ForestMatrices.make(self._quantiles.cut(), self._problem, self.options, self._memory)
        return list(self._matrices.numbers)

    def _open_matrices(self, numbers: list[int]) -> ForestMatrices:
        if self._matrices is None:  # an earlier driver has made them
            self._matrices = ForestMatrices.existing(
                self._quantiles.cut(), self._problem, self.options.channels, numbers
            )
        return self._matrices

    def result(self, forest: ForestRecord) -> GrownForest:
        return GrownForest(forest.forest(), forest.history())

    def free(self) -> None:
        self._quantiles.free()
        if self._matrices is not None:
            self._matrices.free()
