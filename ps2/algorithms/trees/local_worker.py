"""What the only worker does where it has all rows: it finds cut points, and grows whole trees in each clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.leaf_quantiles import unit_of_weights
from ps2.algorithms.trees.local_growing import LocalGrower
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rounds import first_scales, next_scales
from ps2.algorithms.trees.rows import with_all_columns
from ps2.algorithms.trees.tree import Forest, Tree
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows

# A clock grows rounds for so long: its own time is small beside it, and a worker that dies repeats no more than this.
BUDGET_S = 0.5
# Trees that rows walk through at once when a worker begins again.
WALKED = 16


def tree_as_data(tree: Tree) -> list[Any]:
    """Return a tree as plain data."""
    return [getattr(tree, field.name) for field in fields(Tree)]


@dataclass(frozen=True, eq=False)
class LocalTreeProgram:
    """What the worker does; picklable.

    Attributes:
        least: least rows with a feature for it to get cut points.
        mean_weight: of the rows; None: all weights are 1.
        first: the clock that the run begins with.
    """

    problem: TreeProblem
    options: BoostingOptions
    least: int
    mean_weight: float | None
    first: int = 0

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        if rows.weights is not None:
            rows = rows.chosen(np.flatnonzero(rows.weights > 0))
        boosting: _Boosting | None = None
        # One clock a round at most, and the last one.
        for clock in worker.clocks(self.first + FIRST_CLOCK + self.options.rounds + 2):
            if boosting is None or boosting.clock > clock:  # the fleet may have rolled back
                boosting = _Boosting(self, rows, reading.held_out)
            told = [message for message in worker.messages if "trees" in message]
            boosting.follow(told)
            if told and told[-1]["ends"] and told[-1]["clock"] > self.first:
                break
            worker.report(boosting.go_on(clock), merge="concat")


class _Boosting:
    """The rows of the worker, as far as trees have grown.

    Attributes:
        clock: the next one.
    """

    def __init__(self, program: LocalTreeProgram, rows: LocalRows, held_out: LocalRows | None) -> None:
        self.clock = 0
        problem, options = self._problem, self._options = program.problem, program.options
        self._given = rows, held_out
        bins, columns = Quantiles.here(problem, options.bins, program.mean_weight, program.least).find_here(rows)
        self._rows = BoostedRows(problem, options, bins, self._given, columns)
        self._grower = LocalGrower(problem, options, bins, self._rows, unit_of_weights(program.mean_weight))
        self._trees = 0
        self._scales = (1.0, 1.0)
        self._lap_began_s = time.monotonic()

    def follow(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Add the trees that an earlier attempt has grown."""
        trees: list[Tree] = []
        for message in told:
            new = self._trees + len(trees) - message["first"]
            if new < len(message["trees"]):
                trees += [Tree(*data) for data in message["trees"][new:]]
                self._scales = tuple(message["scales"].tolist())
        for begin in range(0, len(trees), WALKED):
            self._add(trees[begin : begin + WALKED])

    def _add(self, trees: list[Tree]) -> None:
        problem, width = self._problem, self._problem.objective.width
        forest = Forest(tuple(trees), np.zeros(1), problem.dim, absent=problem.absent)
        for rows, group in zip(self._given, (self._rows.training, self._rows.held_out), strict=True):
            if rows is None or group is None or not len(rows):
                continue
            leaves = Predictor(forest).leaves(with_all_columns(rows, problem.dim))
            for number, tree in enumerate(trees, self._trees):
                group.margins[:, number % width] += tree.value[leaves[:, number - self._trees]]
        for tree in trees:
            self._rows.note_leaves(tree.value[tree.leaves])
        self._trees += len(trees)

    def go_on(self, clock: int) -> list[dict[str, Any]]:
        """Grow rounds until the time of a clock is spent, or all are grown; return what there is to tell of each."""
        self.clock = clock + 1
        ends_s, said = time.monotonic() + BUDGET_S, []
        width = self._problem.objective.width
        while True:
            round_ = self._trees // width
            sums = self._rows.compute_gradients()
            # Of the round that ends with these losses.
            sums["lap_s"], self._lap_began_s = time.monotonic() - self._lap_began_s, time.monotonic()
            below = sums_below(sums.pop("exponents"))
            if "held" in sums:
                sums["held"] = self._rows.metric.value(sums["held"])
            trees = self._grow(below) if round_ < self._options.rounds else []
            said.append({**sums, "bytes": 0, "round": round_, "trees": [tree_as_data(tree) for tree in trees]})
            said[-1]["scales"] = np.array(self._scales)
            if not trees or time.monotonic() > ends_s:
                return said

    def _grow(self, below: Float64s) -> list[Tree]:
        """Grow the trees of a round; below: bounds of sums before it."""
        if not self._trees:
            self._scales = first_scales(self._options, below)
        trees = []
        for _ in range(self._problem.objective.width):
            trees.append(self._grower.grow(self._trees, self._scales))
            self._trees += 1
        self._scales = next_scales(self._problem, self._options, below, trees)
        return trees
