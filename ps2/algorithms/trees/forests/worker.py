"""What a worker does while a random forest grows on servers: it parts its rows as it is told, and adds histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.forests import draw_kernels
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import BinForms, ForestRows
from ps2.algorithms.trees.forests.growth import NUMBER, PLACE, ROW, TREE, TURN
from ps2.algorithms.trees.forests.matrices import read_bins
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import END, Quantiles
from ps2.algorithms.trees.rows import NodeRows
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
UInt8s = npt.NDArray[np.uint8]

# Most clocks of a run.
MAX_CLOCKS = 1 << 30
# Cost of a node's histogram, in additions: threads share nodes.
NODE_COST = 1 << 17


@dataclass(frozen=True, eq=False)
class ForestProgram:
    """What each worker does; picklable.

    Attributes:
        first: the clock that the run begins with.
    """

    problem: TreeProblem
    options: ForestOptions
    quantiles: Quantiles
    first: int = 0

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        if rows.weights is not None:
            rows = rows.chosen(np.flatnonzero(rows.weights > 0))
        columns = self.quantiles.take_part(worker, rows)
        mine: _WorkerTrees | None = None
        for clock in worker.clocks(MAX_CLOCKS):
            if mine is None or mine.clock > clock:  # the fleet may have rolled back
                mine = _WorkerTrees(self, rows, columns)
                columns = None
            told = [message for message in worker.messages if "task" in message]
            if told and told[-1]["task"] == "stop" and told[-1]["clock"] > self.first:
                break
            worker.report(mine.go_on(told, clock))


class _WorkerTrees:
    """The rows of a worker, as far as trees have grown.

    Attributes:
        clock: the next one.
    """

    def __init__(self, program: ForestProgram, rows: LocalRows, columns: FeatureColumns | None = None) -> None:
        self.clock = END
        self._problem, self._options = program.problem, program.options
        self._columns = columns
        self._rows = ForestRows(program.problem, program.options, rows)
        self._forms: BinForms | None = None
        self._growing: list[tuple[NodeRows, UInt8s]] = []
        self._first = 0
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

    def go_on(self, told: Sequence[Mapping[str, Any]], clock: int) -> dict[str, Any]:
        """Take part in a clock, after the earlier clocks that this attempt has not seen; return the report."""
        sums: dict[str, Any] = {"rows": len(self._rows)}
        if clock == END:
            sums["exponents"] = self._rows.exponents()
        else:
            grow = [message for message in told if message["task"] == "grow"]
            todo = [message for message in grow if self.clock <= message["clock"] <= clock]
            # Trees that are over need nothing.
            begin = max((i for i, message in enumerate(todo) if message["plants"]), default=0)
            for message in todo[begin:]:
                sums |= self._do(message, is_over=message["clock"] < clock)
        self.clock = clock + 1
        return sums

    def _do(self, told: Mapping[str, Any], is_over: bool) -> dict[str, Any]:
        """Do one clock; servers and driver already have the sums of a clock that is over."""
        if self._forms is None:
            self._begin(told)
        sums: dict[str, Any] = {}
        if told["plants"]:
            sums = self._plant(told["first"], told["count"])
        else:
            splits = told["splits"]
            for tree in np.unique(splits[:, TREE]).tolist():
                self._growing[tree][0].part(np.ascontiguousarray(splits[splits[:, TREE] == tree, 1:]))
        return {} if is_over else {**sums, "bytes": self._add(told["opened"])}

    def _begin(self, told: Mapping[str, Any]) -> None:
        """Bin the rows."""
        bins = read_bins(self._problem, told["matrices"].tolist())
        self._rows.begin(bins, self._columns, tuple(told["scales"].tolist()))
        self._columns = None
        self._forms = BinForms(bins, self._problem)
        self._matrix = DCVMatrix.existing(int(told["matrices"][0]))

    def _plant(self, first: int, count: int) -> dict[str, Any]:
        """Draw the rows of some trees; return the sums of their roots."""
        assert self._rows.rows is not None
        options = self._options
        totals = np.zeros((count, options.channels), np.int64)
        self._growing, self._first = [], first
        for tree in range(count):
            order, draws = self._rows.drawn(first + tree)
            held = np.empty((len(order), 3), np.int64)
            kernels.gather(readable(order), draws, self._rows.whole, options.kinds, held)
            kernels.sum_rows(held, options.kinds, totals[tree])
            self._growing.append((NodeRows(self._rows.rows, order), draws))
        return {"totals": totals}

    def _add(self, opened: Int64s) -> int:
        """Add the histograms of open nodes to those on the servers; return how many bytes of sums that takes."""
        if not len(opened):
            return 0
        moved, channels = 0, self._options.channels
        made = over_blocks(lambda some: [self._histogram(node) for node in some], (opened,), cost=NODE_COST)
        with batch():
            for row, bins, sums in (one for some in made for one in some if one is not None):
                self._matrix.apply("trees.add", slots=bins * channels, sums=sums, row=row, marks=True)
                moved += sums.nbytes
        return moved

    def _histogram(self, node: Int64s) -> tuple[int, Int64s, Array] | None:
        """Return the row, bins and sums of the features that a node draws; None: it has no rows here."""
        assert self._forms is not None
        options, forms = self._options, self._forms
        rows, draws = self._growing[int(node[TREE])]
        order = readable(rows.of(int(node[NUMBER])))
        if not len(order):
            return None
        histogram, is_drawn = self._take_scratch()
        key = options.keys(self._first + int(node[TREE]))[1]
        features = np.empty(len(forms.usable), np.int64)
        given = forms.usable, key, int(node[PLACE]), int(node[TURN]), options.features, features
        features = features[: draw_kernels.draw_features(*given)]
        held = np.empty((len(order), 3), np.int64)
        kernels.gather(order, draws, self._rows.whole, options.kinds, held)
        how = held, options.kinds, options.channels, histogram
        kernels.build(order, self._rows.arrays, forms.arrays, features, is_drawn, *how)
        most = int(forms.arrays[1][features].sum())
        bins, sums = np.empty(most, np.int64), np.empty((most, options.channels), np.int64)
        count = kernels.take_filled(features, forms.arrays, histogram, bins, sums)
        self._scratch.put((histogram, is_drawn))
        return int(node[ROW]), bins[:count], sums[:count]

    def _take_scratch(self) -> tuple[Array, Array]:
        """Return a flat histogram of zeros, and a flag a feature; threads have their own."""
        assert self._forms is not None
        with suppress(Empty):
            return self._scratch.get_nowait()
        zeros = np.zeros(max(self._forms.most_columns, 1) * self._options.channels, np.int64)
        return zeros, np.zeros(self._problem.dim, np.bool_)
