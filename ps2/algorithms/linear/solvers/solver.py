"""What every solver is: one half in the driver, between clocks, and one in each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, Space
from ps2.algorithms.linear.problem import Problem, Recipe
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.linear.view import ModelView
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.table import Facts
from ps2.algorithms.training.tally import Tally
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class Data:
    """A worker's rows.

    Attributes:
        rows: to train on.
        held: held out, with the same keys; None: there are none.
    """

    rows: LocalRows
    held: LocalRows | None = None

    @property
    def weight(self) -> float:
        """The sum of the weights of the rows to train on."""
        return float(len(self.rows) if self.rows.weights is None else self.rows.weights.sum())

    def sample(self, fraction: float, rng: np.random.Generator) -> LocalRows:
        """Take each row to train on with a probability, and all keys."""
        if fraction == 1.0:
            return self.rows
        return self.rows.chosen(np.flatnonzero(rng.random(len(self.rows)) < fraction))


@dataclass(frozen=True, eq=False)
class Bench:
    """What a solver has to work with in the driver.

    Attributes:
        space: where vectors are made.
        beginning: the parameters to begin with.
        tally: of ``controls(problem)`` and ``TALLY`` columns.
        record: what has been done so far.
        workers: how many there are.
        first_clock: of the run, in which the solver's clock 0 is.
        scale: of each weight's feature, by which rows were multiplied, and weights will be; None: rows are as given.
        box: where parameters have to stay; None: anywhere.
        center: means of the scaled features, which the solver is to subtract; None: it is not.
    """

    problem: Problem
    recipe: Recipe
    facts: Facts
    loss: Loss
    space: Space
    beginning: Parameters
    tally: Tally
    record: Record
    workers: int
    first_clock: int
    scale: DCV | None = None
    center: Center | None = None
    box: Box | None = None

    @property
    def conditions(self) -> bool:
        """Whether ``scale`` only makes L-BFGS quick, and penalties are on weights of features as they were given."""
        return self.scale is not None and not self.problem.standardize and self.recipe.solver == "l-bfgs"

    def stop(self, reason: str) -> None:
        """Tell the workers to stop when they begin their next clock."""
        self.record.reason = reason
        self.tally.stop()


class SolverPart(Protocol):
    """A solver's half in a worker; picklable."""

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        """Take part in the clocks up to ``clocks``, or until the driver says that it is over."""


class Solver(Protocol):
    """A solver's half in the driver."""

    @property
    def clocks(self) -> int:
        """How many it takes at most."""

    @property
    def part(self) -> SolverPart:
        """Its half in the workers."""

    def on_clock(self, clock: int) -> None:
        """Go on after a clock, counted from 0, in which all workers have done their share."""

    def result(self) -> Parameters:
        """Return the parameters found."""
