"""What a worker does while trees grow: it parts its rows as the driver says, and adds histograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.binning import Bins, bins_of, of_shapes
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.driver_messages import BUILT, LEFT, NONE, ROW, DriverMessage, Task, has_gradients
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.growth import ROOT
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.quantiles import END, Quantiles
from ps2.algorithms.trees.rows import Histograms, NodeRows, row_ids
from ps2.algorithms.trees.tree_matrices import add_histograms
from ps2.array_types import Int32s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import existing_handle
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class TreeProgram:
    """What each worker does; picklable.

    Attributes:
        leaf_quantiles: for losses whose leaves are quantiles of their rows' residuals.
        first: the clock that the run begins with.
    """

    problem: TreeProblem
    options: BoostingOptions
    quantiles: Quantiles
    leaf_quantiles: LeafQuantiles | None = None
    first: int = 0

    @property
    def clocks(self) -> int:
        """The most clocks of the run."""
        of_leaves = 2 * self.options.rounds if self.leaf_quantiles else 0
        return END + self.options.clocks(self.problem.objective.width) + of_leaves

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        if rows.weights is not None:
            rows = rows.chosen(np.flatnonzero(rows.weights > 0))
        columns = self.quantiles.take_part(worker, rows)
        grower: _Grower | None = None
        for clock in worker.clocks(self.clocks):
            if grower is None or grower.clock > clock:  # the fleet may have rolled back
                grower = _Grower(self, rows, reading.held_out, columns)
                columns = None
            told = [DriverMessage.of_data(message) for message in worker.messages if "task" in message]
            sums = grower.go_on(told, clock)
            # An earlier driver may have wanted fewer trees: its last message leaves the run's first clock empty.
            if told and told[-1].task == Task.STOP and told[-1].clock > self.first:
                break
            if sums:
                worker.report(sums)


class _Grower:
    """The rows of a worker, as far as trees have grown.

    Attributes:
        clock: the next one.
    """

    def __init__(
        self, program: TreeProgram, rows: LocalRows, held_out: LocalRows | None, columns: FeatureColumns | None = None
    ) -> None:
        """Args:
        columns: of ``rows``, if they have been made.
        """
        self.clock = END
        self._program = program
        self._given, self._columns = (rows, held_out), columns
        self._ids = row_ids(rows, program.problem.absent)
        self._moved_bytes = 0
        self._rows: BoostedRows | None = None

    def go_on(self, told: list[DriverMessage], clock: int) -> dict[str, Any]:
        """Take part in a clock, after the earlier clocks that this attempt has not seen.

        Args:
            told: messages that are new to the attempt, oldest first.

        Returns:
            The report of the clock.
        """
        sums: dict[str, Any] = {}
        for message in told:
            if message.clock == clock:
                sums = self._do(message, is_over=False)
            elif message.clock >= self.clock:
                self._do(message, is_over=True)
        self.clock = clock + 1
        return sums

    def _do(self, told: DriverMessage, is_over: bool) -> dict[str, Any]:
        """Do one clock; servers and driver already have the sums of a clock that is over."""
        if self._rows is None:
            self._rows = self._begin(told)
        of = self._rows
        for rows, _ in of.moving:
            rows.part(told.splits)
        if told.task in (Task.COARSE, Task.FINE):
            if not is_over:
                self._add_residuals(of, told)
            return {}
        sums: dict[str, Any] = {}
        for rows, margins in of.moving:
            rows.end(told.nodes, margins)
        if len(told.nodes.numbers):
            assert of.grown is not None
            sums["counts"] = of.grown.counts(told.nodes)
            of.grown, of.moving = None, []
            of.note_leaves(told.nodes.values[told.nodes.is_leaf])
        if has_gradients(told.task, told.tree, self._program.problem.objective.width):
            moved, self._moved_bytes = self._moved_bytes, 0
            sums |= {**of.compute_gradients(), "bytes": moved}
        if told.task == Task.ROOT:
            totals = of.plant(told.tree, told.scales)
            if not is_over:
                sums["totals"] = totals
        if not is_over:
            self._add_histograms(of, told)
        return sums

    def _begin(self, told: DriverMessage) -> BoostedRows:
        """Bin the rows."""
        bins = self._read_bins(told.matrices)
        problem, options = self._program.problem, self._program.options
        made = BoostedRows(problem, options, bins, self._given, self._columns, self._ids)
        self._columns = None
        self._histograms = Histograms(made.training.rows, options.channels)
        self._matrix = DCVMatrix.existing(told.matrices[0])
        return made

    def _read_bins(self, matrices: tuple[int, int, int]) -> Bins:
        """Read the bins that the driver has made (``shapes_of``)."""
        cuts, sizes = existing_handle(DCV, matrices[1]), existing_handle(DCV, matrices[2])
        with batch():
            answers = cuts.pull(), sizes.pull()
        counts, missing = of_shapes(answers[1].result())
        offsets = np.append(0, np.cumsum(counts))
        return bins_of(self._program.problem, answers[0].result()[: offsets[-1]], offsets, missing)

    def _add_histograms(self, of: BoostedRows, told: DriverMessage) -> None:
        """Add histograms to those on the servers."""
        nodes: list[tuple[int, Int32s]] = []
        if told.task == Task.ROOT and self._program.options.depth:
            assert of.grown is not None
            nodes = [(ROOT, of.grown.of(0))]
        elif told.task == Task.NODES:
            nodes = list(built(of.grown, told.splits))
        histograms = [(row, *self._histograms.of(order, of.summed)) for row, order in nodes if len(order)]
        if nodes and max(row for row, _ in nodes) >= self._matrix.rows:
            self._matrix = DCVMatrix.existing(self._matrix.number)  # it has grown
        with batch():
            self._moved_bytes += add_histograms(self._matrix, histograms)

    def _add_residuals(self, of: BoostedRows, told: DriverMessage) -> None:
        """Let the driver find the leaves' quantiles."""
        assert of.grown is not None
        assert self._program.leaf_quantiles is not None
        rows = [of.grown.of(node) for node in told.nodes.leaves.tolist()]
        cells = told.cells if told.task == Task.FINE else None
        self._program.leaf_quantiles.add(rows, of.residuals, of.training.weights, cells)


def built(grown: NodeRows | None, splits: Int64s) -> Iterator[tuple[int, Int32s]]:
    """Yield the matrix rows of the histograms to build, and the data rows of their nodes."""
    assert grown is not None
    for split in splits[splits[:, BUILT] != NONE]:
        yield int(split[ROW]), grown.of(int(split[LEFT] + split[BUILT]))
