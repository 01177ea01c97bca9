"""One training: one run of workers that stay, and a solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.losses.choice import loss_of
from ps2.algorithms.losses.loss import Float64Array
from ps2.algorithms.solvers.averaging import Averaging
from ps2.algorithms.solvers.fast_turn import FastTurn
from ps2.algorithms.solvers.lbfgs import Lbfgs
from ps2.algorithms.solvers.minibatch import Minibatch
from ps2.algorithms.solvers.normal import Normal
from ps2.algorithms.solvers.regions import Box
from ps2.algorithms.solvers.solver import Bench, Part, Solver
from ps2.algorithms.training.faults import Columns
from ps2.algorithms.training.footprint import Room, check_fleet, check_worker, rows_of
from ps2.algorithms.training.parameters import CONTROL, SHIFT, SPARSE_FROM, TALLY, Space, View
from ps2.algorithms.training.preparation import CLOCKS, Preparation
from ps2.algorithms.training.problem import Facts, Problem, Recipe, Table, TrainingHistory
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.record import Record, StepReport
from ps2.client.dcv import DCV
from ps2.rows import Float
from ps2.server.memory import free_bytes

SOLVERS: dict[str, Callable[[Bench], Solver]] = {
    "l-bfgs": Lbfgs,
    "normal": Normal,
    "minibatch": Minibatch,
    "ma-sgd": Averaging,
    "ftsgd": FastTurn,
}


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a training.

    Attributes:
        weight: on the fleet, for features as they were given; the caller frees it.
        biases: float64, shape (biases,).
        history: how it went.
    """

    weight: DCV
    biases: Float64Array
    history: TrainingHistory


@dataclass(frozen=True, eq=False)
class _Work:
    """What each worker does; picklable."""

    columns: Columns
    dtype: Float
    problem: Problem
    recipe: Recipe
    preparation: Preparation
    part: Part
    clocks: int
    control: DCV
    tally: DCV

    def __call__(self, worker: Any, batches: Iterator[Any]) -> None:
        reading = read(batches, self.columns, self.dtype, self.problem.classes, self.problem.dim)
        check_worker(self.problem, self.recipe, len(reading.training.keys), free_bytes())
        data = self.preparation.take_part(worker, reading)
        self.part(worker, data, View(self.control, self.tally), CLOCKS + self.clocks)


def train(
    ps: Any,
    table: Table,
    problem: Problem,
    recipe: Recipe,
    facts: Facts,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> Trained:
    """Train a model on the servers of a context.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: the objective.
        recipe: how to find its minimum.
        facts: of the rows' labels and weights.
        on_step: called in the driver after each step.

    Raises:
        LimitError: the vectors cannot fit the servers, or a worker's share of them its machine.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    loss = loss_of(problem)
    check_fleet(problem, recipe, [Room(*room) for room in ps.memory()])
    space = Space(problem, rows_of(recipe))
    result: DCV | None = None
    try:
        beginning = space.new()
        beginning.bias.push(loss.first_biases(facts))
        control, tally = space.small(CONTROL), space.small(TALLY)
        record = Record(on_step)
        scale = space.weight() if problem.standardize or recipe.solver == "normal" else None
        box = None if recipe.bounds is None else Box.make(recipe.bounds, space)
        center = space.weight() if _centers(problem, recipe) else None
        bench = Bench(
            problem,
            recipe,
            facts,
            loss,
            space,
            beginning,
            control,
            tally,
            record,
            table.workers,
            CLOCKS,
            scale,
            center,
            box,
        )
        preparation = Preparation.make(bench)
        solver = SOLVERS[recipe.solver](bench)
        dtype: Float = "float64" if problem.size < SPARSE_FROM else "float32"
        work = _Work(table.columns, dtype, problem, recipe, preparation, solver.part, solver.clocks, control, tally)

        def on_clock(clock: int) -> None:
            if clock == 0:
                preparation.check(table.workers, table.columns)
            elif clock == CLOCKS - 1:
                preparation.check_scales(table.columns)
                if box is not None:
                    box.prepare(scale, beginning)
                    if center is not None:
                        control.push(np.array([center.dot(beginning.weight)]), np.array([SHIFT]))
                record.start()
            elif clock >= CLOCKS:
                record.enter(clock - CLOCKS)
                solver.on_clock(clock - CLOCKS)

        ps.run(table.frame, work, table.workers, recipe.staleness, onClock=on_clock, seed=recipe.seed)
        found = solver.result()
        if scale is not None:
            found.weight.mul(scale)
        result = found.weight
        return Trained(found.weight, np.asarray(found.bias.pull()), record.history())
    finally:
        space.free(keep=result)


def _centers(problem: Problem, recipe: Recipe) -> bool:
    """Tell whether means are to be subtracted: sparse features have small ones, and vectors that are long enough."""
    if recipe.solver == "normal":
        return problem.fit_intercept
    return (
        recipe.solver == "l-bfgs"
        and problem.standardize
        and problem.fit_intercept
        and problem.width == 1
        and problem.size < SPARSE_FROM
        and not (recipe.bounds is not None and recipe.bounds.are_on_biases)
    )
