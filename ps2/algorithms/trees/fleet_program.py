"""What trainings of trees on servers have in common, in the driver: matrices, and the clocks in which trees grow."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from ps2.algorithms.frame.program import Ask, Program, Steps
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Record
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import AddHistograms, Moves
from ps2.algorithms.trees.growth import Growth
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree_matrices import HistogramMatrices

T = TypeVar("T")


def form_of(problem: TreeProblem) -> Form:
    """Return the form that rows must have."""
    return Form(problem.dim, problem.classes, missing=True, categories=problem.categories)


class FleetProgram(Program[T]):
    """A training of trees with histograms on the servers."""

    def __init__(self, problem: TreeProblem, options: Any, record: Record, quantiles: Quantiles) -> None:
        super().__init__(options, form_of(problem), record)
        self._problem, self._quantiles = problem, quantiles
        self._matrices: HistogramMatrices | None = None

    @abstractmethod
    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        """Make the matrices of histograms."""

    def begin(self, ask: Ask) -> Steps[HistogramMatrices]:
        """Find cut points, and make the matrices of histograms."""
        yield from self._quantiles.find_cut_points(ask)
        numbers = ask(self._make_matrices)
        if self._matrices is None:  # an earlier driver has made them
            bins = self._quantiles.cut()
            self._matrices = HistogramMatrices.existing(bins, self._problem, self.options.channels, numbers)
        ask.start()
        return self._matrices

    def _make_matrices(self) -> list[int]:
        if self._matrices is not None:  # the fleet has rolled back
            self._matrices.free()
        self._matrices = self.make_matrices(self._quantiles.cut())
        return list(self._matrices.numbers)

    def free(self) -> None:
        self._quantiles.free()
        if self._matrices is not None:
            self._matrices.free()


def grow(ask: Ask, growth: Growth, matrices: HistogramMatrices) -> Steps[tuple[Moves, int]]:
    """Grow trees whose roots' histograms are on the servers, by any ``Growth``.

    The servers search the best splits of the open nodes. The driver chooses among these. The workers part the rows of
    nodes, and add the histograms of their children.

    Returns:
        How rows move to the leaves, and the bytes of histograms that workers report.
    """
    moved_bytes = 0
    while True:
        best = None
        if growth.open:
            best = Splits(*ask(lambda: list[Any](matrices.best_splits(growth))))
        moves = growth.advance(best)
        if growth.keeps_histograms:
            ask(lambda: matrices.prepare(growth))
        if growth.is_over:
            return moves, moved_bytes
        report = yield AddHistograms(matrices=matrices.numbers, **moves.fields())
        moved_bytes += int(getattr(report, "bytes", 0))
