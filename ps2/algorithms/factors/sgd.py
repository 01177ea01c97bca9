"""The workers of "sgd": stochastic gradient descent with model rotation.

Users' vectors stay in the worker that has their ratings. Blocks of items' vectors rotate among the workers, through the
servers (Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section V). The threads
of a worker train on different groups of users and different groups of a block's items at the same time, so no two of
them change the same vector. Workers do the same with blocks (Gemulla et al., "Large-Scale Matrix Factorization with
Distributed Stochastic Gradient Descent", section 4).
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
from ps2.algorithms.factors.timetable import Begin, IterationSchedule, Kind, Phase, Timetable
from ps2.array_types import Float32s, Int64s
from ps2.run.rotation import IDLE

# The approximate ratings per thread and stratum, without and with a time budget, which is checked after each stratum.
STRATUM_RATINGS, TIMED_RATINGS = 1 << 16, 1 << 12


@dataclass(frozen=True)
class Stratum:
    """Ratings of a block that all threads can train on at once, because they share no user and no item (a stratum of
    Gemulla et al.).

    Attributes:
        round: the thread with the users of group g has the items of group ``(g + round) mod groups``.
        range_index: the users of each group are divided into ranges; the index of the range.
    """

    round: int
    range_index: int


class BlockDescent:
    """Takes gradient steps for the ratings of a block. The result does not depend on how many threads run the groups.

    Steps change ``users``: the rows of the worker's users, shape (users, ``SgdPlan.width``).
    """

    def __init__(self, grid: Grid, plan: SgdPlan, rank: int, users: Float32s) -> None:
        self.grid, self.plan, self.users = grid, plan, users
        self.rates = plan.rates()
        self._rank = rank
        bounds = grid.layout.user_bounds(rank)
        self._group_bounds = bounds - bounds[0]

    def strata(self, block: int) -> list[Stratum]:
        """Return the strata of a block, in a fixed order."""
        groups = self.grid.layout.groups
        ratings = STRATUM_RATINGS if self.plan.settings.budgetS is None else TIMED_RATINGS
        ranges = max(1, self.grid.ratings_in(block) // (groups * groups * ratings))
        return [Stratum(round, index) for round in range(groups) for index in range(ranges)]

    def shuffled_strata(self, block: int, iteration: int) -> list[Stratum]:
        """Return the strata of a block in a random order, which depends on seed, iteration, block and worker."""
        strata = self.strata(block)
        sequence = np.random.SeedSequence(self.plan.seed, spawn_key=(iteration, block, self._rank))
        order = np.random.Generator(np.random.Philox(sequence)).permutation(len(strata))
        return [strata[index] for index in order.tolist()]

    def train_stratum(
        self, block: int, stratum: Stratum, iteration: int, rows: Float32s, threads: ThreadPoolExecutor | None
    ) -> dict[str, float]:
        """Take a step for each rating of a stratum, and change the items' ``rows``; return LOSS, WEIGHT and RATINGS."""
        groups = range(self.grid.layout.groups)

        def train_group(group: int) -> dict[str, float]:
            return self._train_group(block, stratum, group, iteration, rows)

        sums = [*map(train_group, groups)] if threads is None else [*threads.map(train_group, groups)]
        return {name: sum(group_sums[name] for group_sums in sums) for name in (LOSS, WEIGHT, RATINGS)}

    def _train_group(
        self, block: int, stratum: Stratum, group: int, iteration: int, rows: Float32s
    ) -> dict[str, float]:
        grid, settings = self.grid, self.plan.settings
        groups = grid.layout.groups
        begins = grid.cells(block, (group + stratum.round) % groups)
        first, end = self._user_range(begins, group, stratum.range_index, len(self.strata(block)) // groups)
        if first == end:
            return {LOSS: 0.0, WEIGHT: 0.0, RATINGS: 0}
        part = slice(int(begins[first]), int(begins[end]))
        weights = grid.weights[part]
        loss = descend(
            *(begins[first : end + 1] - begins[first], 0, end - first, grid.items[part], grid.values[part], weights),
            *(self.users[first:end], rows, settings.rank, self.rates, iteration > 1),
            *(settings.biases, settings.nonnegative),
        )
        ratings = part.stop - part.start
        return {LOSS: loss, WEIGHT: float(weights.sum(dtype=np.float64)) if len(weights) else ratings, RATINGS: ratings}

    def _user_range(self, begins: Int64s, group: int, range_index: int, ranges: int) -> tuple[int, int]:
        """Return the bounds of a range of a group's users, balanced by ratings; ``begins``: see ``Grid.cells``."""
        first, end = int(self._group_bounds[group]), int(self._group_bounds[group + 1])
        if ranges == 1:
            return first, end
        ratings = begins[end] - begins[first]
        targets = begins[first] + ratings * np.arange(ranges + 1) // ranges
        bounds = first + np.searchsorted(begins[first : end + 1], targets[[range_index, range_index + 1]])
        bounds = [first if range_index == 0 else int(bounds[0]), end if range_index + 1 == ranges else int(bounds[1])]
        return bounds[0], bounds[1]


@dataclass(frozen=True, eq=False)
class SgdLoop:
    """The loop of each worker; picklable."""

    plan: SgdPlan
    fleet: SharedFactors
    schedule: IterationSchedule

    def __call__(self, worker: Any, grid: Grid) -> None:
        with ExitStack() as stack:
            threads = None
            if grid.layout.groups > 1:
                threads = stack.enter_context(ThreadPoolExecutor(grid.layout.groups, "ps2-factors"))
            _SgdWorker(worker, self, grid, threads).follow()


class _SgdWorker:
    """A worker's ratings, its users' vectors, and the timetable. A worker has no vectors when it starts, and after a
    rollback of the fleet. It trains only after a clock in which all workers load saved vectors."""

    def __init__(self, worker: Any, loop: SgdLoop, grid: Grid, threads: ThreadPoolExecutor | None) -> None:
        self._worker, self._grid, self._threads = worker, grid, threads
        self._plan, self._fleet, self._timetable = loop.plan, loop.fleet, Timetable(loop.schedule)
        self._user_positions = np.arange(grid.first_user, grid.first_user + grid.users)
        count, rank, workers = grid.layout.items, worker.rank, worker.workers
        # The items that this worker copies when vectors are saved or loaded.
        self._copied_items = count * rank // workers, count * (rank + 1) // workers
        self._descent = BlockDescent(grid, loop.plan, rank, np.empty((0, loop.plan.width), np.float32))
        self._epoch, self._has_vectors = worker.epoch, False

    def follow(self) -> None:
        """Follow the timetable, clock by clock, until the driver ends the run."""
        worker, timetable, rotation = self._worker, self._timetable, self._grid.layout.rotation
        budget_s = self._plan.settings.budgetS

        def fetch(block: int) -> Any:
            return worker.prefetch(self._fleet.items, columns=self._columns(block))

        for turn in worker.rotate(
            rotation.blocks, slices=rotation.slices, budgetS=budget_s, fetch=fetch, at=self._find_turn
        ):
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
                    report = self._close(timetable.schedule.saves(phase.iteration, timetable.last(worker.clock)))
                worker.barrier()
            elif phase.kind is Kind.TURN and self._has_vectors and turn.block != IDLE and not worker.goesBack:
                report = self._train(turn, phase)
            worker.report({**ZERO_SUMS, **report, ASKS: float(not self._has_vectors)})

    def _find_turn(self, clock: int) -> tuple[int, int] | None:
        """Return the index of a clock's rotation, and of its turn in the rotation; None if the clock is not a turn."""
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
        turns = self._grid.layout.rotation.turns
        rotation, turn = divmod(phase.turn, turns)
        return (phase.iteration - 1) * (timetable.schedule.turns // turns) + rotation, turn

    def _load_saved(self, begin: Begin) -> None:
        """Load the saved vectors that a message names. Barriers before and after keep other workers from training."""
        copy_vectors(self._fleet.saved_items[begin.copy], self._fleet.items, *self._copied_items)
        self._descent.users = self._fleet.saved_users[begin.copy].pull(columns=self._user_positions)
        self._descent.rates = self._plan.rates(begin.halvings)

    def _train(self, turn: Any, phase: Phase) -> dict[str, float]:
        """Train on the block of items of a turn; return the report."""
        rows = turn.pull()
        descent, block = self._descent, turn.block
        sums = {LOSS: 0.0, WEIGHT: 0.0, RATINGS: 0.0}
        # With a time budget the order is fixed: ``turn.parts`` begins with the strata that the last turn omitted.
        is_timed = self._plan.settings.budgetS is not None
        strata = descent.strata(block) if is_timed else descent.shuffled_strata(block, phase.iteration)
        for stratum in turn.parts(strata):
            for name, value in descent.train_stratum(block, stratum, phase.iteration, rows, self._threads).items():
                sums[name] += value
        self._fleet.items.push(columns=self._columns(block), values=rows, wait=False)
        return {**sums, BYTES: 2 * rows.nbytes}

    def _close(self, saves: bool) -> dict[str, float]:
        """Evaluate held-out rows, and save vectors if ``saves``. No worker trains at the same time."""
        report = self._evaluate() if self._timetable.schedule.evaluates else {}
        if not saves:
            return report
        copy = self._timetable.free_copy
        self._fleet.saved_users[copy].push(columns=self._user_positions, values=self._descent.users)
        copy_vectors(self._fleet.items, self._fleet.saved_items[copy], *self._copied_items)
        return {**report, BYTES: self._descent.users.nbytes}

    def _evaluate(self) -> dict[str, float]:
        """Return the loss of the held-out rows with the vectors at the end of the iteration."""
        held_out = self._grid.held_out
        if held_out is None:
            return {HELD_LOSS: 0.0, HELD_WEIGHT: 0.0}
        rows = self._fleet.items.pull(columns=held_out.columns)
        settings = self._plan.settings
        loss = squared_errors(
            *(held_out.users, held_out.items, held_out.values, held_out.weights),
            *(self._descent.users, rows, settings.rank, settings.biases),
        )
        return {HELD_LOSS: loss, HELD_WEIGHT: held_out.weight}

    def _columns(self, block: int) -> Int64s:
        bounds = self._grid.layout.item_bounds(block)
        return np.arange(bounds[0], bounds[-1])
