"""The input of a solver: the rows of a worker, and the context in the driver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.losses.loss import Array, Loss
from ps2.algorithms.linear.parameters import Parameters, Space, columns_of
from ps2.algorithms.linear.plan import LinearPlan, Start
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.linear.view import NOTHING
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows

# Maximum random numbers in memory at a time.
DRAWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Data:
    """A worker's rows.

    Attributes:
        rows: the rows to train on.
        held: the held-out rows, with the same keys; None: there are none.
        width: number of weights of a feature.
    """

    rows: KeptRows
    held: KeptRows | None = None
    width: int = 1

    @cached_property
    def columns(self) -> Int64s:
        """The columns of the weights of the rows' features."""
        return columns_of(self.rows.keys, self.width)

    @property
    def weight(self) -> float:
        """The sum of the weights of the rows to train on."""
        return self.rows.weight

    @property
    def whole(self) -> LocalRows:
        """The rows to train on, for a solver that needs all of them in memory."""
        assert isinstance(self.rows, LocalRows)
        return self.rows

    def held_loss(self, loss: Loss, w: Array, b: Float64s) -> tuple[float, float]:
        """Return the summed loss of the held-out rows, and their summed weight."""
        return NOTHING if self.held is None else loss.loss(self.held, w, b)

    def sample(self, fraction: float, rng: np.random.Generator) -> KeptRows:
        """Select each row to train on with a probability; keep all keys."""
        if fraction == 1.0:
            return self.rows
        begins = range(0, len(self.rows), DRAWS)
        drawn = [np.flatnonzero(rng.random(min(DRAWS, len(self.rows) - begin)) < fraction) + begin for begin in begins]
        return self.rows.chosen(np.concatenate([np.empty(0, np.int64), *drawn]))


@dataclass(frozen=True, eq=False)
class SolverContext:
    """The context of a solver in the driver.

    Attributes:
        space: makes vectors.
        initial_model: the parameters before the first step.
        record: the history of the training so far.
        workers: the number of workers.
        columns: the names of the table's columns.
        scale: for each weight, the factor of its feature in all rows; weights are multiplied by it in the end. None:
            rows are not scaled.
        box: the bounds of the parameters; None: there are none.
        start: the model of an earlier training, whose gradient is small, and so is a good first step. None: the loss
            has initial parameters.
        center: the means of the scaled features, which the solver subtracts; None: it subtracts none.
    """

    problem: Problem
    plan: LinearPlan
    facts: Facts
    loss: Loss
    space: Space
    initial_model: Parameters
    record: Record
    workers: int
    columns: ColumnNames
    scale: DCV | None = None
    center: Center | None = None
    box: Box | None = None
    start: Start | None = None

    @property
    def conditions(self) -> bool:
        """Whether ``scale`` only makes L-BFGS quick, while penalties are on the weights of unscaled features."""
        return self.scale is not None and not self.problem.standardize and self.plan.solver == "l-bfgs"
