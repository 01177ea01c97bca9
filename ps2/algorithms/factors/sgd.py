"""Stochastic gradient descent by rotation: a worker's part.

Users' vectors stay in the worker that has their ratings. Items' vectors rotate through the servers, block by block
(Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section V). Within a block,
threads take groups of users and groups of items such that no two of them touch one user or one item, as workers do with
blocks (Gemulla et al., "Large-Scale Matrix Factorization with Distributed Stochastic Gradient Descent", section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.factors.following import BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, RATINGS, WEIGHT, follow
from ps2.algorithms.factors.grid import Grid
from ps2.algorithms.factors.rows import SgdPlan
from ps2.algorithms.factors.sgd_kernels import descend, squared_errors
from ps2.algorithms.factors.shared_factors import SharedFactors, share
from ps2.algorithms.factors.timetable import Begin, Lengths, Phase, Timetable
from ps2.array_types import Float32s

# Ratings of one thread between two draws of the order; between two checks of the time, if turns have a budget.
PIECE_RATINGS, TIMED_RATINGS = 1 << 16, 1 << 12


def draw_order(seed: int, iteration: int, block: int, rank: int, pieces: int) -> list[int]:
    """Draw the order in which a worker takes the pieces of a block in an iteration."""
    sequence = np.random.SeedSequence(seed, spawn_key=(iteration, block, rank))
    return list(np.random.Generator(np.random.Philox(sequence)).permutation(pieces).tolist())


@dataclass(frozen=True)
class Piece:
    """Work that threads do together: each takes a group of users, and each another group of items.

    Attributes:
        round: group g of users meets group ``(g + round) mod groups`` of items.
        number: which part of each group's users.
    """

    round: int
    number: int


class BlockDescent:
    """Takes steps for the ratings of a block: the same in a worker as in a serial program.

    Attributes:
        rates: see ``SgdPlan.rates``.
    """

    def __init__(self, grid: Grid, plan: SgdPlan, rank: int, users: Float32s) -> None:
        """Args:
        users: float32, shape (users, width): rows; changed.
        """
        self.grid, self.plan, self.users = grid, plan, users
        self.rates = plan.rates()
        self._rank = rank
        bounds = grid.layout.users_of(rank)
        self._groups = bounds - bounds[0]

    def pieces(self, block: int) -> list[Piece]:
        """Return the work on a block, in a fixed order."""
        groups = self.grid.layout.groups
        ratings = PIECE_RATINGS if self.plan.settings.budgetS is None else TIMED_RATINGS
        each = max(1, self.grid.ratings_in(block) // (groups * groups * ratings))
        return [Piece(turn, number) for turn in range(groups) for number in range(each)]

    def ordered(self, block: int, iteration: int) -> list[Piece]:
        """Return the work on a block in the order of an iteration."""
        pieces = self.pieces(block)
        order = draw_order(self.plan.seed, iteration, block, self._rank, len(pieces))
        return [pieces[index] for index in order]

    def take(
        self, block: int, piece: Piece, iteration: int, rows: Float32s, threads: ThreadPoolExecutor | None
    ) -> dict[str, float]:
        """Take the steps of a piece; the result does not depend on the number of threads.

        Args:
            rows: float32, shape (items, width): the block's rows; changed.
        """
        groups = range(self.grid.layout.groups)
        parts = [(block, piece, group, iteration, rows) for group in groups]
        sums = (
            [self._take_group(*part) for part in parts] if threads is None else list(threads.map(self._unpack, parts))
        )
        return {name: sum(one[name] for one in sums) for name in (LOSS, WEIGHT, RATINGS)}

    def _unpack(self, part: Any) -> dict[str, float]:
        return self._take_group(*part)

    def _take_group(self, block: int, piece: Piece, group: int, iteration: int, rows: Float32s) -> dict[str, float]:
        grid, settings = self.grid, self.plan.settings
        groups = grid.layout.groups
        begins = grid.cells(block, (group + piece.round) % groups)
        first, end = self._part(begins, group, piece.number, len(self.pieces(block)) // groups)
        if first == end:
            return {LOSS: 0.0, WEIGHT: 0.0, RATINGS: 0}
        loss = descend(
            *(begins, first, end, grid.items, grid.values, grid.weights, self.users, rows, settings.rank),
            *(self.rates, iteration > 1, settings.biases, settings.nonnegative),
        )
        ratings = int(begins[end] - begins[first])
        weights = grid.weights[begins[first] : begins[end]]
        return {LOSS: loss, WEIGHT: float(weights.sum(dtype=np.float64)) if len(weights) else ratings, RATINGS: ratings}

    def _part(self, begins: npt.NDArray[np.int64], group: int, number: int, parts: int) -> tuple[int, int]:
        """Return the users of a part of a group, about as many ratings in each part."""
        first, end = int(self._groups[group]), int(self._groups[group + 1])
        if parts == 1:
            return first, end
        ratings = begins[end] - begins[first]
        marks = begins[first] + ratings * np.arange(parts + 1) // parts
        bounds = first + np.searchsorted(begins[first : end + 1], marks[[number, number + 1]])
        bounds = [first if number == 0 else int(bounds[0]), end if number + 1 == parts else int(bounds[1])]
        return bounds[0], bounds[1]


@dataclass(frozen=True, eq=False)
class SgdLoop:
    """The loop of each worker; picklable.

    Attributes:
        fleet: the vectors on the servers.
        lengths: the lengths of the timetable.
    """

    plan: SgdPlan
    fleet: SharedFactors
    lengths: Lengths

    def __call__(self, worker: Any, grid: Grid) -> None:
        with ExitStack() as stack:
            threads = None
            if grid.layout.groups > 1:
                threads = stack.enter_context(ThreadPoolExecutor(grid.layout.groups, "ps2-factors"))
            timetable = Timetable(self.lengths)
            work = _SgdWork(worker, self, timetable, grid, threads)
            follow(worker, timetable, work, grid.layout.ring, work.fetch, self.plan.settings.budgetS)


class _SgdWork:
    """``PlannedWork`` of this solver."""

    def __init__(
        self, worker: Any, loop: SgdLoop, timetable: Timetable, grid: Grid, threads: ThreadPoolExecutor | None
    ) -> None:
        self._worker, self._loop, self._timetable, self._grid, self._threads = worker, loop, timetable, grid, threads
        self._mine = np.arange(grid.first_user, grid.first_user + grid.users)
        users = np.empty((0, loop.plan.width), np.float32)
        self._descent = BlockDescent(grid, loop.plan, worker.rank, users)

    def fetch(self, block: int) -> Any:
        """Request a block's rows."""
        return self._worker.prefetch(self._loop.fleet.items, columns=self._columns(block))

    def begin(self, begin: Begin) -> None:
        fleet = self._loop.fleet
        fleet.take_items(begin.copy, *share(self._grid.layout.items, self._worker.rank, self._worker.workers))
        self._descent.users = fleet.saved_users[begin.copy].pull(columns=self._mine)
        self._descent.rates = self._loop.plan.rates(begin.halvings)

    def train(self, turn: Any, phase: Phase) -> Mapping[str, float]:
        rows = turn.pull()
        descent, block = self._descent, turn.block
        sums = {LOSS: 0.0, WEIGHT: 0.0, RATINGS: 0.0}
        # Where time ends turns, pieces come in turn: those that were left over come first.
        is_timed = self._loop.plan.settings.budgetS is not None
        pieces = descent.pieces(block) if is_timed else descent.ordered(block, phase.iteration)
        for piece in turn.parts(pieces):
            for name, value in descent.take(block, piece, phase.iteration, rows, self._threads).items():
                sums[name] += value
        self._loop.fleet.items.push(columns=self._columns(block), values=rows, wait=False)
        return {**sums, BYTES: 2 * rows.nbytes}

    def close(self, saves: bool) -> Mapping[str, float]:
        report = self._evaluate() if self._loop.lengths.evaluates else {}
        if not saves:
            return report
        fleet, worker = self._loop.fleet, self._worker
        fleet.saved_users[self._timetable.free].push(columns=self._mine, values=self._descent.users)
        fleet.keep_items(self._timetable.free, *share(self._grid.layout.items, worker.rank, worker.workers))
        return {**report, BYTES: self._descent.users.nbytes}

    def _evaluate(self) -> dict[str, float]:
        """Return the loss of the held-out rows; all vectors are those of the iteration's end."""
        held = self._grid.held_out
        if held is None:
            return {HELD_LOSS: 0.0, HELD_WEIGHT: 0.0}
        rows = self._loop.fleet.items.pull(columns=held.columns)
        settings = self._loop.plan.settings
        loss = squared_errors(
            held.users, held.items, held.values, held.weights, self._descent.users, rows, settings.rank, settings.biases
        )
        return {HELD_LOSS: loss, HELD_WEIGHT: held.weight}

    def _columns(self, block: int) -> npt.NDArray[np.int64]:
        bounds = self._grid.layout.items_of(block)
        return np.arange(bounds[0], bounds[-1])
