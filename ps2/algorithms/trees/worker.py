"""A worker's half of a training of trees: it moves its rows as it is told, and adds up their histograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.tally import BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, ROWS, SUMS, WEIGHT
from ps2.algorithms.trees import growing_kernels, told
from ps2.algorithms.trees.binning import Bins, Columns
from ps2.algorithms.trees.gradient_kernels import EXPONENTS
from ps2.algorithms.trees.gradients import KINDS, NO_WEIGHTS, Objective, exponents_of, quantised
from ps2.algorithms.trees.growth import ROOT
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.on_fleet import add_histograms
from ps2.algorithms.trees.problem import Problem, Recipe, key_of
from ps2.algorithms.trees.quantiles import END, Quantiles, bins_of, of_shapes
from ps2.algorithms.trees.rows import Binned, Herd, Histograms, binned, draw, row_ids, whole_weights
from ps2.algorithms.trees.told import Log, Task, Told, has_gradients
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import free_all, known
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Sums:
    """What workers add up for the driver; picklable.

    Attributes:
        tally: float64, as in ``ps2.algorithms.training.tally``.
        exponents: int64: how many hessians, gradients and weights have each, as of ``exponents_of``.
        totals: int64: sums of hessians and gradients, and of the third channel.
        counts: sparse, int64: a tree's rows in each node, by ``count_keys``.
    """

    tally: DCV
    exponents: DCV
    totals: DCV
    counts: DCV

    @staticmethod
    def make() -> Sums:
        # Each on one server.
        tally = DCV.dense(SUMS, 1, "float64", align=SUMS)
        exponents, totals = (DCV.dense(dim, 1, "int64", align=dim) for dim in (KINDS * EXPONENTS, 3))
        return Sums(tally, exponents, totals, DCV.sparse(2**63, 1, "int64"))

    def free(self) -> None:
        free_all([self.tally, self.exponents, self.totals, self.counts])


def count_keys(tree: int, nodes: int) -> Int64s:
    return (tree << told.CLOCK_BITS) + np.arange(nodes)


@dataclass(frozen=True, eq=False)
class Half:
    """What each worker does; picklable.

    Attributes:
        leaf_quantiles: of the residuals of leaves' rows, if that is what leaves say.
    """

    problem: Problem
    recipe: Recipe
    quantiles: Quantiles
    log: Log
    sums: Sums
    leaf_quantiles: LeafQuantiles | None = None

    @property
    def clocks(self) -> int:
        """How many there are at most, of the run."""
        of_leaves = 2 * self.recipe.rounds if self.leaf_quantiles else 0
        return END + self.recipe.clocks(self.problem.objective.width) + of_leaves

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        if rows.weights is not None:
            rows = rows.chosen(np.flatnonzero(rows.weights > 0))
        columns = self.quantiles.take_part(worker, rows)
        grower: _Grower | None = None
        for clock in worker.clocks(self.clocks):
            if grower is None or grower.clock > clock:  # the fleet may have gone back
                grower = _Grower(self, worker.rank, rows, reading.held_out, columns)
                columns = None
            if not grower.go_on(clock):
                break


class _Grower:
    """The rows of a worker, as far as trees have grown.

    Attributes:
        clock: the next one.
    """

    def __init__(
        self, half: Half, rank: int, rows: LocalRows, held_out: LocalRows | None, columns: Columns | None = None
    ) -> None:
        """Args:
        columns: of ``rows``, if they have been made.
        """
        self.clock = END
        self._half, self._rank = half, rank
        self._given, self._columns = (rows, held_out), columns
        self._ids = row_ids(rows, half.problem.absent)
        self._moved_bytes = 0
        self._bins: Bins | None = None
        # Of the tree that grows: the rows that it is grown of; all that move, each with the margins that leaves add to.
        self._grown: Herd | None = None
        self._moving: list[tuple[Herd, Float64s]] = []
        # Hessians and gradients of a round; of a tree, as whole numbers.
        self._pairs: Float64s | None = None
        self._quantised: Array | None = None
        # What rows weigh, as whole numbers, where the weight of nodes is asked for and nothing else tells it.
        self._whole_weights: Array | None = None

    def go_on(self, clock: int) -> bool:
        """Take part in a clock, after all those before it that this attempt has not seen; return whether more come."""
        while self.clock < clock:
            self._do(self._half.log.read(self.clock), is_over=True)
            self.clock += 1
        told = self._half.log.read(clock)
        self._do(told, is_over=False)
        self.clock += 1
        return told.task != Task.STOP

    def _do(self, told: Told, is_over: bool) -> None:
        """Do as told; what is over for all others is on the servers already."""
        if self._bins is None:
            self._begin(told)
        for herd, _ in self._moving:
            herd.part(told.splits)
        if told.task in (Task.COARSE, Task.FINE):
            if not is_over:
                self._add_residuals(told)
            return
        for herd, margins in self._moving:
            herd.end(told.ends, margins)
        counts = NO_COUNTS
        if len(told.ends):
            assert self._grown is not None
            counts = self._grown.counts(told.ends)
            self._grown, self._moving = None, []
        gradients = None
        if has_gradients(told.task, told.tree, self._half.problem.objective.width):
            gradients = self._compute_gradients()
        if told.task == Task.ROOT:
            self._plant(told)
        if not is_over:
            self._tell(told, counts, gradients)

    def _begin(self, told: Told) -> None:
        """Bin the rows."""
        self._bins = bins = self._read_bins(told.matrices)
        problem, recipe = self._half.problem, self._half.recipe
        rows, held_out = self._given
        self._training = _Group.of(problem, rows, bins, self._columns)
        self._columns = None
        # What is missing in none of the rows that bins were made of may be in these.
        lenient = replace(bins, missing=np.ones(bins.features, np.bool_), block=0)
        self._held_out = None if held_out is None else _Group.of(problem, held_out, lenient)
        self._histograms = Histograms(self._training.rows, recipe.channels, recipe.sums_dtype)
        self._matrix = DCVMatrix.known(told.matrices[0])
        if recipe.third == "weights":
            self._whole_weights = whole_weights(self._training.weights, readable(self._ids), recipe.weight_unit)

    def _read_bins(self, matrices: tuple[int, int, int]) -> Bins:
        """Read what the driver has made of cut points: see ``shapes_of``."""
        cuts, sizes = known(DCV, matrices[1]), known(DCV, matrices[2])
        with batch():
            answers = cuts.pull(), sizes.pull()
        counts, missing = of_shapes(answers[1].result())
        offsets = np.append(0, np.cumsum(counts))
        return bins_of(self._half.problem, answers[0].result()[: offsets[-1]], offsets, missing)

    def _compute_gradients(self) -> tuple[Float64s, Int64s]:
        """Compute those of a round; return the tally, and how many have which exponents."""
        of, objective = self._training, self._half.problem.objective
        self._pairs, losses = objective.gradients(of.margins, of.y, of.weights, self._pairs)
        tally = np.zeros(SUMS)
        tally[[LOSS, WEIGHT]] = losses
        if self._held_out is not None:
            tally[[HELD_LOSS, HELD_WEIGHT]] = self._held_out.losses(objective)
        tally[ROWS], tally[BYTES] = len(of.y), self._moved_bytes
        self._moved_bytes = 0
        return tally, exponents_of(self._pairs, of.weights).reshape(-1)

    def _tell(self, told: Told, counts: Int64s, gradients: tuple[Float64s, Int64s] | None) -> None:
        """Add to the sums of a clock, in one request a server.

        Args:
            counts: rows in each node of the tree that is over, if one is.
        """
        sums, root, nodes = self._half.sums, None, []
        if told.task == Task.ROOT:
            assert self._grown is not None
            assert self._quantised is not None
            order = self._grown.of(0)
            third = len(order) if self._whole_weights is None else self._whole_weights[order].sum(dtype=np.int64)
            root = np.array([*growing_kernels.sum_pairs(order, self._quantised), third])
            nodes = [(ROOT, order)] if self._half.recipe.depth else []
        elif told.task == Task.NODES:
            nodes = list(self._built(told.splits))
        histograms = [(row, *self._histograms.of(order, self._summed)) for row, order in nodes if len(order)]
        if nodes and max(row for row, _ in nodes) >= self._matrix.rows:
            self._matrix = DCVMatrix.known(self._matrix.number)  # it has grown
        with batch():
            if len(counts):
                sums.counts.add(counts, count_keys(told.tree - 1, len(counts)))
            if gradients is not None:
                sums.tally.add(gradients[0])
                some = np.flatnonzero(gradients[1])
                sums.exponents.add(gradients[1][some], some)
            if root is not None:
                sums.totals.add(root)
            self._moved_bytes += add_histograms(self._matrix, histograms)

    def _plant(self, told: Told) -> None:
        """Begin a tree: all rows are in its root."""
        recipe, output = self._half.recipe, told.tree % self._half.problem.objective.width
        assert self._pairs is not None
        key = key_of(recipe.seed, told.tree)
        given = self._pairs[output], self._ids, key, told.scales, recipe.sums_dtype
        self._quantised = quantised(*given, self._quantised)
        self._summed = self._quantised
        if recipe.third is not None:
            third = self._whole_weights
            third = np.ones(len(self._quantised)) if third is None else third
            self._summed = np.column_stack([self._quantised, third.astype(recipe.sums_dtype)])
        drawn = np.ones(len(self._ids), bool)
        if recipe.fraction < 1:
            # The trees of one round are grown of the same rows.
            drawn = draw(self._ids, key_of(recipe.seed, told.tree - output), recipe.fraction)
        margins = self._training.margins[:, output]
        self._grown = self._training.herd(np.flatnonzero(drawn))
        self._moving = [(self._grown, margins)]
        if not drawn.all():
            self._moving.append((self._training.herd(np.flatnonzero(~drawn)), margins))
        if self._held_out is not None:
            every = np.arange(len(self._held_out.y))
            self._moving.append((self._held_out.herd(every), self._held_out.margins[:, output]))

    def _add_residuals(self, said: Told) -> None:
        """Let the driver find what leaves are to say."""
        assert self._grown is not None
        assert self._half.leaf_quantiles is not None
        leaves = said.ends[said.ends[:, told.VALUE] != told.NONE]
        rows = [self._grown.of(int(node)) for node in leaves[:, told.CALLED]]
        cells = leaves[:, told.VALUE] if said.task == Task.FINE else None
        of = self._training
        self._half.leaf_quantiles.add(rows, of.y - of.margins[:, 0], of.weights, cells)

    def _built(self, splits: Int64s) -> Iterator[tuple[int, Int32s]]:
        """Yield the rows of the matrix that are to be added to, and the rows of their nodes."""
        assert self._grown is not None
        for said in splits[splits[:, told.BUILT] != told.NONE]:
            yield int(said[told.ROW]), self._grown.of(int(said[told.LEFT] + said[told.BUILT]))


@dataclass(frozen=True, eq=False)
class _Group:
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
    def of(problem: Problem, rows: LocalRows, bins: Bins, columns: Columns | None = None) -> _Group:
        assert rows.y is not None
        weights = NO_WEIGHTS if rows.weights is None else rows.weights
        margins = np.tile(np.array(problem.base), (len(rows), 1))
        return _Group(binned(rows, bins, problem.absent, columns), rows.y, weights, margins)

    def herd(self, numbers: Int64s) -> Herd:
        """Return some of the rows, all in the root of a tree."""
        return Herd(self.rows, numbers.astype(np.int32))

    def losses(self, objective: Objective) -> tuple[float, float]:
        """Return the sums of losses and of weights."""
        return objective.losses(self.margins, self.y, self.weights)
