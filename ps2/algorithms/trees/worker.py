"""What a worker does while trees grow: it parts its rows as the driver says, and adds histograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees import growing_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import BUILT, LEFT, NONE, ROW, DriverMessage, Task, has_gradients
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.gradients import NO_WEIGHTS, exponents_of, quantised
from ps2.algorithms.trees.growth import ROOT
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem, key_of
from ps2.algorithms.trees.quantiles import END, Quantiles, bins_of, of_shapes
from ps2.algorithms.trees.rows import Binned, Histograms, NodeRows, binned, draw, row_ids, whole_weights
from ps2.algorithms.trees.tree_matrices import add_histograms
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import known
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


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
            if grower is None or grower.clock > clock:  # the fleet may have gone back
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
        self._bins: Bins | None = None
        # The rows that the tree is grown of; all rows that move through it, with the margins that its leaves add to.
        self._grown: NodeRows | None = None
        self._moving: list[tuple[NodeRows, Float64s]] = []
        # Hessians and gradients of a round; of a tree, as whole numbers.
        self._pairs: Float64s | None = None
        self._quantised: Array | None = None
        # Weights of rows as whole numbers, where the weight of nodes counts and hessians do not tell it.
        self._whole_weights: Array | None = None
        # No margin is below the one, or above the other.
        self._span = min(program.problem.base), max(program.problem.base)

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
        if self._bins is None:
            self._begin(told)
        for rows, _ in self._moving:
            rows.part(told.splits)
        if told.task in (Task.COARSE, Task.FINE):
            if not is_over:
                self._add_residuals(told)
            return {}
        sums: dict[str, Any] = {}
        for rows, margins in self._moving:
            rows.end(told.nodes, margins)
        if len(told.nodes.numbers):
            assert self._grown is not None
            sums["counts"] = self._grown.counts(told.nodes)
            self._grown, self._moving = None, []
            leaves = told.nodes.values[told.nodes.is_leaf]
            self._span = self._span[0] + float(leaves.min()), self._span[1] + float(leaves.max())
        if has_gradients(told.task, told.tree, self._program.problem.objective.width):
            sums |= self._compute_gradients()
        if told.task == Task.ROOT:
            self._plant(told)
        if not is_over:
            sums |= self._add_histograms(told)
        return sums

    def _begin(self, told: DriverMessage) -> None:
        """Bin the rows."""
        self._bins = bins = self._read_bins(told.matrices)
        problem, options = self._program.problem, self._program.options
        rows, held_out = self._given
        self._training = _RowGroup.of(problem, rows, bins, self._columns)
        self._columns = None
        # A feature without missing values in the training rows may have some here.
        lenient = replace(bins, missing=np.ones(bins.features, np.bool_), block=0)
        self._held_out = None if held_out is None else _RowGroup.of(problem, held_out, lenient)
        self._histograms = Histograms(self._training.rows, options.channels, options.sums_dtype)
        self._matrix = DCVMatrix.known(told.matrices[0])
        if options.third == "weights":
            self._whole_weights = whole_weights(self._training.weights, readable(self._ids), options.weight_unit)

    def _read_bins(self, matrices: tuple[int, int, int]) -> Bins:
        """Read the bins that the driver has made (``shapes_of``)."""
        cuts, sizes = known(DCV, matrices[1]), known(DCV, matrices[2])
        with batch():
            answers = cuts.pull(), sizes.pull()
        counts, missing = of_shapes(answers[1].result())
        offsets = np.append(0, np.cumsum(counts))
        return bins_of(self._program.problem, answers[0].result()[: offsets[-1]], offsets, missing)

    def _compute_gradients(self) -> dict[str, Any]:
        """Compute gradients of a round; return losses, and counts by exponent."""
        of, objective = self._training, self._program.problem.objective
        self._pairs, (loss, weight) = objective.gradients(of.margins, of.y, of.weights, self._pairs)
        sums: dict[str, Any] = {"loss": loss, "weight": weight}
        if (held := self._held_out) is not None:
            metric = Metric.parsed(self._program.options.metric)
            sums["held"] = metric.sums(objective, held.margins, held.y, held.weights, self._span)
        moved, self._moved_bytes = self._moved_bytes, 0
        return {**sums, "rows": len(of.y), "bytes": moved, "exponents": exponents_of(self._pairs, of.weights)}

    def _add_histograms(self, told: DriverMessage) -> dict[str, Any]:
        """Add histograms to those on the servers; return the totals of a root, if there is one."""
        sums: dict[str, Any] = {}
        nodes: list[tuple[int, Int32s]] = []
        if told.task == Task.ROOT:
            assert self._grown is not None
            assert self._quantised is not None
            order = self._grown.of(0)
            third = len(order) if self._whole_weights is None else self._whole_weights[order].sum(dtype=np.int64)
            sums["totals"] = np.array([*growing_kernels.sum_pairs(order, self._quantised), third], np.int64)
            nodes = [(ROOT, order)] if self._program.options.depth else []
        elif told.task == Task.NODES:
            nodes = list(self._built(told.splits))
        histograms = [(row, *self._histograms.of(order, self._summed)) for row, order in nodes if len(order)]
        if nodes and max(row for row, _ in nodes) >= self._matrix.rows:
            self._matrix = DCVMatrix.known(self._matrix.number)  # it has grown
        with batch():
            self._moved_bytes += add_histograms(self._matrix, histograms)
        return sums

    def _plant(self, told: DriverMessage) -> None:
        """Begin a tree, with all rows in its root."""
        options, output = self._program.options, told.tree % self._program.problem.objective.width
        assert self._pairs is not None
        key = key_of(options.seed, told.tree)
        given = self._pairs[output], self._ids, key, told.scales, options.sums_dtype
        self._quantised = quantised(*given, self._quantised)
        self._summed = self._quantised
        if options.third is not None:
            third = self._whole_weights
            third = np.ones(len(self._quantised)) if third is None else third
            self._summed = np.column_stack([self._quantised, third.astype(options.sums_dtype)])
        drawn = np.ones(len(self._ids), bool)
        if options.fraction < 1:
            # The trees of one round are grown of the same rows.
            drawn = draw(self._ids, key_of(options.seed, told.tree - output), options.fraction)
        margins = self._training.margins[:, output]
        self._grown = self._training.in_root(np.flatnonzero(drawn))
        self._moving = [(self._grown, margins)]
        if not drawn.all():
            self._moving.append((self._training.in_root(np.flatnonzero(~drawn)), margins))
        if self._held_out is not None:
            every = np.arange(len(self._held_out.y))
            self._moving.append((self._held_out.in_root(every), self._held_out.margins[:, output]))

    def _add_residuals(self, told: DriverMessage) -> None:
        """Let the driver find the leaves' quantiles."""
        assert self._grown is not None
        assert self._program.leaf_quantiles is not None
        rows = [self._grown.of(node) for node in told.nodes.leaves.tolist()]
        cells = told.cells if told.task == Task.FINE else None
        of = self._training
        self._program.leaf_quantiles.add(rows, of.y - of.margins[:, 0], of.weights, cells)

    def _built(self, splits: Int64s) -> Iterator[tuple[int, Int32s]]:
        """Yield the matrix rows of the histograms to build, and the data rows of their nodes."""
        assert self._grown is not None
        for split in splits[splits[:, BUILT] != NONE]:
            yield int(split[ROW]), self._grown.of(int(split[LEFT] + split[BUILT]))


@dataclass(frozen=True, eq=False)
class _RowGroup:
    """Rows of one kind.

    Attributes:
        y, weights: float64, shape (n,); without weights each counts 1.
        margins: float64, shape (n, width).
    """

    rows: Binned
    y: Float64s
    weights: Float64s
    margins: Float64s

    @staticmethod
    def of(problem: TreeProblem, rows: LocalRows, bins: Bins, columns: FeatureColumns | None = None) -> _RowGroup:
        assert rows.y is not None
        weights = NO_WEIGHTS if rows.weights is None else rows.weights
        margins = np.tile(np.array(problem.base), (len(rows), 1))
        return _RowGroup(binned(rows, bins, problem.absent, columns), rows.y, weights, margins)

    def in_root(self, numbers: Int64s) -> NodeRows:
        """Return some of the rows, all in the root of a tree."""
        return NodeRows(self.rows, numbers.astype(np.int32))
