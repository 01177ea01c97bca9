"""Stochastic gradient descent with model rotation, as a durable program: the driver's side of "sgd".

Gemulla et al., "Large-Scale Matrix Factorization with Distributed Stochastic Gradient Descent" (2011). An iteration is
an epoch of the paper's algorithm 2, and a turn of ``timetable.py`` is a subepoch: each worker trains on its users'
ratings of a block of items, which no other worker has in the same turn. ``sgd.py`` is the workers' side. Workers
compute the timetable without a message for each clock, so one worker can be a clock ahead of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ps2.algorithms.factors.grid import Grid, Layout, read_grid
from ps2.algorithms.factors.plan import FittedFactors
from ps2.algorithms.factors.program import WEIGHT, ZERO_SUMS, CheckAndTrain, FactorsProgram, Iteration, Problem
from ps2.algorithms.factors.rows import InitialRows, Scaling, SgdPlan, default_step
from ps2.algorithms.factors.sgd import SgdLoop
from ps2.algorithms.factors.shared_factors import SharedFactors, pull_vectors, push_vectors
from ps2.algorithms.factors.timetable import STALENESS, Begin, Iterate, IterationSchedule
from ps2.algorithms.frame.program import Ask, NextClock, Steps
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import StepReport
from ps2.data.row_spill import RowSpill
from ps2.data.spilling import Spill
from ps2.errors import PS2Error

# The maximum number of restarts with half the step.
MAX_HALVINGS = 10


@dataclass
class Descent:
    """The iterations with one step size.

    ``copies`` has the index of the copy on the servers, by iteration (0: the initial vectors), of saved vectors that
    are still needed.
    """

    halvings: int = 0
    results: list[Iteration] = field(default_factory=list)
    copies: dict[int, int] = field(default_factory=lambda: {0: 0})

    @property
    def saved(self) -> int:
        """The newest iteration whose vectors are saved."""
        return max(self.copies)

    @property
    def free_copy(self) -> int:
        """The index of the copy that the next save writes."""
        return min({0, 1, 2} - {*self.copies.values()})

    def save(self, best: int) -> None:
        """Record that workers have saved the newest iteration. Its copy is kept, and that of iteration ``best``."""
        newest = len(self.results)
        copies = {**self.copies, newest: self.free_copy}
        self.copies = {iteration: copies[iteration] for iteration in (newest, best)}


class SgdProgram(FactorsProgram):
    """Stochastic gradient descent."""

    staleness = STALENESS

    def __init__(self, problem: Problem, names: CheckpointNames, on_step: Callable[[StepReport], None]) -> None:
        super().__init__(problem, on_step)
        plan, layout = problem.plan, problem.assignment.layout
        self.scaling = Scaling.from_survey(problem.survey, plan)
        self.scale, self.mean = self.scaling.scale, self.scaling.mean
        step = plan.settings.stepSize or default_step(problem.survey.rows)
        self.plan = SgdPlan(**vars(plan), scale=self.scale, step_size=step)
        self.step_size = step
        # Twice the RMSE of predicting 0; no limit with an initial model, which can predict new ratings worse.
        self._max_rmse = 2 * math.hypot(1.0, self.scaling.mean_value) if problem.initial_model is None else math.inf
        self._schedule = IterationSchedule(
            layout.rotation.turns, plan.save_interval, problem.survey.held_out > 0, problem.keeps_best
        )
        self._fleet = SharedFactors.make(layout.users, layout.items, self.plan.width, self._schedule.copies, names)

    def drive(self, ask: Ask) -> Steps[tuple[int, int]]:
        ask(self._write_first_vectors)
        yield from self.check_ratings(ask)
        ask.start_timer()
        yield NextClock()  # all workers load the initial vectors
        descent = Descent()
        while True:
            iterations = ask.setting(lambda: self.plan.settings.maxIter)
            last = self.last_iteration(descent.results, iterations)
            if descent.saved >= last:
                self._forget_unsaved(descent)  # unsaved iterations exist if another driver has reduced maxIter
                best = self.end(descent.results, is_early=last < iterations)
                return descent.copies[best], descent.halvings
            sums = yield from self._rotate(descent, last)
            if sums is None:  # a worker has lost its vectors
                yield from self._restart(ask, descent)
            elif self._has_diverged(descent, sums):
                ask(self._write_first_vectors)
                descent = Descent(descent.halvings + 1)
                yield from self._restart(ask, descent)
            else:
                self.end_iteration(ask, descent.results, Iteration.from_sums(sums))
                if self._schedule.saves(len(descent.results), last):
                    descent.save(self.best_iteration(descent.results))

    def _rotate(self, descent: Descent, last: int) -> Steps[dict[str, float] | None]:
        """Run an iteration; return the sums of the workers' reports, or None if a worker has no vectors."""
        sums = ZERO_SUMS
        message: NextClock = Iterate(last, descent.free_copy)
        for _ in range(self._schedule.clocks(len(descent.results) + 1, last)):
            report, message = (yield message), NextClock()
            while not vars(report):  # the report was lost with an earlier driver; workers restart, and ask for vectors
                report = yield NextClock()
            if report.asks:
                return None
            sums = {name: value + getattr(report, name) for name, value in sums.items()}
        return sums

    def _has_diverged(self, descent: Descent, sums: dict[str, float]) -> bool:
        """Return whether the RMSE of an iteration is too large; raise PS2Error if the step cannot be halved again."""
        rmse = Iteration.from_sums(sums).objective
        if not sums[WEIGHT] or (rmse <= self._max_rmse and math.isfinite(rmse)):
            return False
        if descent.halvings == MAX_HALVINGS:
            raise PS2Error(
                f"iteration {len(descent.results) + 1}: the RMSE is {rmse}: the training has diverged, also with a "
                f"step of 1/{2**MAX_HALVINGS} of the first one; a smaller stepSize, or a smaller regParam, may help"
            )
        return True

    def _restart(self, ask: Ask, descent: Descent) -> Steps[None]:
        """Let all workers load the newest saved vectors, and repeat the iterations after them."""
        self._forget_unsaved(descent)
        # The first clock before which all workers will have read the message.
        clock = ask.clock + STALENESS
        yield Begin(clock, descent.saved, descent.copies[descent.saved], descent.halvings)
        for _ in range(STALENESS):
            yield NextClock()

    def _forget_unsaved(self, descent: Descent) -> None:
        del descent.results[descent.saved :]
        ratings, num_bytes = (sum(getattr(result, name) for result in descent.results) for name in ("ratings", "bytes"))
        self.record.truncate(descent.saved, ratings, num_bytes)

    def _write_first_vectors(self) -> None:
        survey, assignment = self.problem.survey, self.problem.assignment
        sides = (
            (self._fleet.saved_users[0], assignment.user_positions, survey.users, survey.user_penalties, "user"),
            (self._fleet.saved_items[0], assignment.item_positions, survey.items, survey.item_penalties, "item"),
        )
        initial_rows = InitialRows(self.plan, self.scaling, self.problem.initial_model)
        for matrix, positions, ids, penalties, kind in sides:
            push_vectors(matrix, positions, partial(initial_rows.rows, kind, ids, penalties))

    def loop(self) -> CheckAndTrain:
        return CheckAndTrain(SgdLoop(self.plan, self._fleet, self._schedule))

    def reader(self) -> Callable[[Any, Iterator[Any]], Grid]:
        return partial(_read, self.problem.assignment.layout, self.scaling, self.spill)

    def result(self, copy_and_halvings: tuple[int, int]) -> FittedFactors:
        (copy, halvings), assignment = copy_and_halvings, self.problem.assignment
        users = pull_vectors(self._fleet.saved_users[copy], assignment.user_positions)
        items = pull_vectors(self._fleet.saved_items[copy], assignment.item_positions)
        return self.fitted(self.scaling.restored(users, self.plan), self.scaling.restored(items, self.plan), halvings)

    def free(self) -> None:
        self._fleet.free()


def _read(layout: Layout, scaling: Scaling, spill: Spill | None, worker: Any, batches: Iterator[Any]) -> Grid:
    row_spill = None if spill is None else RowSpill(spill, worker.rank, worker.workers)
    return read_grid(batches, layout, worker.rank, scaling, row_spill)
