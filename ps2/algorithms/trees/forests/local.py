"""Random forests where one worker has all rows: it grows whole trees in each clock, and the driver takes them in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.trees.binning import Bins, bins_of, of_shapes, shapes_of
from ps2.algorithms.trees.forests.compiled_growing import ForestGrower
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.forest_rows import BinForms, ForestRows
from ps2.algorithms.trees.forests.grown_tree import GrownTree
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.client.dcv import DCV
from ps2.ops import parallel
from ps2.run.message import Message

# A clock grows trees for so long, or so many bytes of them: a report takes 64 MB at most.
BUDGET_S, BUDGET_BYTES = 0.5, 1 << 24


@dataclass(frozen=True, eq=False)
class LocalForestProgram:
    """What the worker does; picklable.

    Attributes:
        mean_weight: of the rows; None: all weights are 1.
        first: the clock that the run begins with.
    """

    problem: TreeProblem
    options: ForestOptions
    mean_weight: float | None
    first: int = 0

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        if rows.weights is not None:
            rows = rows.chosen(np.flatnonzero(rows.weights > 0))
        worker_trees: _WorkerTrees | None = None
        # One clock a tree at most, and the last one.
        for _ in worker.clocks(self.first + FIRST_CLOCK + self.options.trees + 2):
            if worker_trees is None:
                worker_trees = _WorkerTrees(self, rows)
            told = [message for message in worker.messages if "grown" in message]
            if told and told[-1]["grown"] >= self.options.trees and told[-1]["clock"] > self.first:
                break
            worker.report(worker_trees.grow(told[-1]["grown"] if told else 0), merge="concat")


class _WorkerTrees:
    """What the worker grows trees of."""

    def __init__(self, program: LocalForestProgram, rows: Any) -> None:
        problem, options = program.problem, program.options
        least = least_rows(options)
        bins, columns = Quantiles.here(problem, options.bins, program.mean_weight, least).find_here(rows)
        forms, mine = BinForms(bins, problem), ForestRows(problem, options, rows)
        self._scales = options.scales(sums_below(mine.exponents()))
        mine.begin(bins, columns, self._scales)
        self._grower = ForestGrower(options, forms, mine, self._scales, problem.words)
        self._bins, self._options, self._rows = bins, options, mine

    def grow(self, first: int) -> list[dict[str, Any]]:
        """Grow the trees from a number on until the time of a clock is spent; return what there is to tell of them."""
        grown: list[GrownTree] = []
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
        said: dict[str, Any] = {"trees": [tree.as_data() for tree in grown], "rows": len(self._rows)}
        said["tree_s"] = (time.monotonic() - began_s) / max(len(grown), 1)
        if first == 0:
            said |= {"scales": np.array(self._scales), "cuts": self._bins.cuts, "shapes": shapes_of(self._bins)}
        return [said]


class LocalForestDriver:
    """The driver's program.

    Args:
        record: grows with the trees.
        named: what the servers have of the training: a vector with its name.

    Attributes:
        is_over: whether all trees have grown.
    """

    def __init__(self, program: LocalForestProgram, record: Record, journal: ReplayJournal, named: DCV) -> None:
        self.program, self.journal, self._named = program, journal, named
        self.forest = ForestRecord(program.problem, program.options, record)
        self._starts: list[int] = []  # trees at the beginning of each clock

    @property
    def is_over(self) -> bool:
        return self.forest.is_whole

    def free(self) -> None:
        """Free what is on the servers."""
        self._named.free()

    def go_on_from(self, names: CheckpointNames) -> None:
        """Replay what an earlier driver heard, up to the first clock that the worker has not finished."""
        self.forest.record.start()
        for clock in range(names.begun - FIRST_CLOCK):
            if not self.is_over:
                self._after(clock, dict)

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has rolled back."""
        if not clock:
            self.forest.record.start()
        said = dict(reports[0][0]) if reports and reports[0] else {}
        self._after(clock, lambda: said)
        return self.journal.message(clock=FIRST_CLOCK + clock + 1, grown=len(self.forest.trees))

    def _after(self, clock: int, ask: Callable[[], Mapping[str, Any]]) -> None:
        """Take in the trees of a clock."""
        self.forest.record.enter(clock)
        if clock < len(self._starts):  # the fleet has rolled back
            self.forest.keep(self._starts[clock])
            del self._starts[clock:]
        self._starts.append(len(self.forest.trees))
        with self.journal.page(FIRST_CLOCK + clock):
            said = self.journal.hear(ask)
            if "scales" in said:
                self.forest.begin(_bins(self.program.problem, said), tuple(said["scales"].tolist()))
            if "trees" in said:
                self.forest.take_in([GrownTree(*data) for data in said["trees"]], said["rows"], said["tree_s"])


def _bins(problem: TreeProblem, said: Mapping[str, Any]) -> Bins:
    counts, missing = of_shapes(said["shapes"])
    return bins_of(problem, said["cuts"], np.append(0, np.cumsum(counts)), missing)
