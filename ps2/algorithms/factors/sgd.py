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

from ps2.algorithms.factors.grid import Grid
from ps2.algorithms.factors.program import ASKS, BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, RATINGS, WEIGHT, ZERO_SUMS
from ps2.algorithms.factors.rows import SgdPlan
from ps2.algorithms.factors.sgd_kernels import descend, squared_errors
from ps2.algorithms.factors.shared_factors import SharedFactors, copy_vectors
from ps2.algorithms.factors.timetable import Begin, Kind, Lengths, Phase, Timetable
from ps2.array_types import Float32s, Int64s
from ps2.run.rotation import IDLE

# The number of ratings of a piece per thread: without a time budget, and with one, which is checked after each piece.
PIECE_RATINGS, TIMED_RATINGS = 1 << 16, 1 << 12


@dataclass(frozen=True)
class Piece:
    """Ratings that all threads train at once; each thread has a group of users and a group of items.

    Attributes:
        round: group g of users is paired with group ``(g + round) mod groups`` of items.
        number: the number of the part of each group's users, from 0.
    """

    round: int
    number: int


class BlockDescent:
    """Takes the gradient steps of a block's ratings, in an order that does not depend on the number of threads.

    Attributes:
        users: the users' rows, shape (users, width), which it updates.
        rates: see ``SgdPlan.rates``.
    """

    def __init__(self, grid: Grid, plan: SgdPlan, rank: int, users: Float32s) -> None:
        self.grid, self.plan, self.users = grid, plan, users
        self.rates = plan.rates()
        self._rank = rank
        bounds = grid.layout.user_bounds(rank)
        self._groups = bounds - bounds[0]

    def pieces(self, block: int) -> list[Piece]:
        """Return the pieces of a block, in a fixed order."""
        groups = self.grid.layout.groups
        ratings = PIECE_RATINGS if self.plan.settings.budgetS is None else TIMED_RATINGS
        parts = max(1, self.grid.ratings_in(block) // (groups * groups * ratings))
        return [Piece(turn, number) for turn in range(groups) for number in range(parts)]

    def ordered(self, block: int, iteration: int) -> list[Piece]:
        """Return the pieces of a block in the random order of an iteration."""
        pieces = self.pieces(block)
        sequence = np.random.SeedSequence(self.plan.seed, spawn_key=(iteration, block, self._rank))
        order = np.random.Generator(np.random.Philox(sequence)).permutation(len(pieces))
        return [pieces[index] for index in order.tolist()]

    def take(
        self, block: int, piece: Piece, iteration: int, rows: Float32s, threads: ThreadPoolExecutor | None
    ) -> dict[str, float]:
        """Take the steps of a piece, and update the block's ``rows``; return the piece's LOSS, WEIGHT and RATINGS."""
        groups = range(self.grid.layout.groups)

        def take_group(group: int) -> dict[str, float]:
            return self._take_group(block, piece, group, iteration, rows)

        sums = [*map(take_group, groups)] if threads is None else [*threads.map(take_group, groups)]
        return {name: sum(part[name] for part in sums) for name in (LOSS, WEIGHT, RATINGS)}

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

    def _part(self, begins: Int64s, group: int, number: int, parts: int) -> tuple[int, int]:
        """Return the bounds of the users in one part of a group; all parts have about as many ratings."""
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
    """The loop of each worker; picklable."""

    plan: SgdPlan
    fleet: SharedFactors
    lengths: Lengths

    def __call__(self, worker: Any, grid: Grid) -> None:
        with ExitStack() as stack:
            threads = None
            if grid.layout.groups > 1:
                threads = stack.enter_context(ThreadPoolExecutor(grid.layout.groups, "ps2-factors"))
            _SgdWorker(worker, self, grid, threads).follow()


class _SgdWorker:
    """A worker's ratings, its users' vectors, and the timetable.

    A worker has no vectors when it starts, and after a rollback of the fleet. Then it does not train until a clock in
    which all workers load saved vectors.
    """

    def __init__(self, worker: Any, loop: SgdLoop, grid: Grid, threads: ThreadPoolExecutor | None) -> None:
        self._worker, self._grid, self._threads = worker, grid, threads
        self._plan, self._fleet, self._timetable = loop.plan, loop.fleet, Timetable(loop.lengths)
        self._user_positions = np.arange(grid.first_user, grid.first_user + grid.users)
        count, rank, workers = grid.layout.items, worker.rank, worker.workers
        # The items that this worker copies when vectors are saved or loaded.
        self._copied_items = count * rank // workers, count * (rank + 1) // workers
        self._descent = BlockDescent(grid, loop.plan, rank, np.empty((0, loop.plan.width), np.float32))
        self._epoch, self._has_vectors = worker.epoch, False

    def follow(self) -> None:
        """Follow the timetable, clock by clock, until the driver ends the run."""
        worker, timetable, ring = self._worker, self._timetable, self._grid.layout.ring
        budget_s = self._plan.settings.budgetS

        def fetch(block: int) -> Any:
            return worker.prefetch(self._fleet.items, columns=self._columns(block))

        for turn in worker.rotate(ring.blocks, slices=ring.slices, budgetS=budget_s, fetch=fetch, at=self._find_turn):
            phase = timetable.phase(worker.clock)
            report: Mapping[str, float] = {}
            if phase.kind is Kind.BEGIN:
                worker.barrier()
                self._load_saved(timetable.begin(worker.clock))
                worker.barrier()
                self._has_vectors = not worker.goesBack
            elif phase.kind is Kind.CLOSE:
                worker.barrier()
                if self._has_vectors:
                    report = self._close(timetable.lengths.saves(phase.iteration, timetable.last(worker.clock)))
                worker.barrier()
            elif phase.kind is Kind.TURN and self._has_vectors and turn.block != IDLE and not worker.goesBack:
                report = self._train(turn, phase)
            worker.report({**ZERO_SUMS, **report, ASKS: float(not self._has_vectors)})

    def _find_turn(self, clock: int) -> tuple[int, int] | None:
        """Return the rotation and the turn of a clock; None if it is not a turn."""
        worker, timetable = self._worker, self._timetable
        if clock == worker.clock:
            if worker.epoch != self._epoch:
                self._epoch, self._has_vectors = worker.epoch, False
                timetable.forget_messages()
            for message in worker.messages:
                timetable.read(message)
        phase = timetable.phase(clock)
        if phase.kind is not Kind.TURN:
            return None
        turns = self._grid.layout.ring.turns
        rotation, number = divmod(phase.turn, turns)
        return (phase.iteration - 1) * (timetable.lengths.turns // turns) + rotation, number

    def _load_saved(self, begin: Begin) -> None:
        """Load the saved vectors that a message names; barriers before and after keep workers from changing them."""
        copy_vectors(self._fleet.saved_items[begin.copy], self._fleet.items, *self._copied_items)
        self._descent.users = self._fleet.saved_users[begin.copy].pull(columns=self._user_positions)
        self._descent.rates = self._plan.rates(begin.halvings)

    def _train(self, turn: Any, phase: Phase) -> dict[str, float]:
        """Train on the block of a turn; return the report."""
        rows = turn.pull()
        descent, block = self._descent, turn.block
        sums = {LOSS: 0.0, WEIGHT: 0.0, RATINGS: 0.0}
        # With a time budget the order is fixed, so that the pieces that the last turn left come first.
        is_timed = self._plan.settings.budgetS is not None
        pieces = descent.pieces(block) if is_timed else descent.ordered(block, phase.iteration)
        for piece in turn.parts(pieces):
            for name, value in descent.take(block, piece, phase.iteration, rows, self._threads).items():
                sums[name] += value
        self._fleet.items.push(columns=self._columns(block), values=rows, wait=False)
        return {**sums, BYTES: 2 * rows.nbytes}

    def _close(self, saves: bool) -> dict[str, float]:
        """Evaluate held-out rows, and save vectors if ``saves``; no worker trains at the same time."""
        report = self._evaluate() if self._timetable.lengths.evaluates else {}
        if not saves:
            return report
        copy = self._timetable.free
        self._fleet.saved_users[copy].push(columns=self._user_positions, values=self._descent.users)
        copy_vectors(self._fleet.items, self._fleet.saved_items[copy], *self._copied_items)
        return {**report, BYTES: self._descent.users.nbytes}

    def _evaluate(self) -> dict[str, float]:
        """Return the loss of the held-out rows; all vectors are those of the iteration's end."""
        held = self._grid.held_out
        if held is None:
            return {HELD_LOSS: 0.0, HELD_WEIGHT: 0.0}
        rows = self._fleet.items.pull(columns=held.columns)
        settings = self._plan.settings
        loss = squared_errors(
            held.users, held.items, held.values, held.weights, self._descent.users, rows, settings.rank, settings.biases
        )
        return {HELD_LOSS: loss, HELD_WEIGHT: held.weight}

    def _columns(self, block: int) -> Int64s:
        bounds = self._grid.layout.item_bounds(block)
        return np.arange(bounds[0], bounds[-1])
