"""The plan of a training of a linear model or a factorization machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.settings import NO_BOUND, PathSettings, SolverName, SolverSettings, When
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.data.spilling import Spill, SpillName
from ps2.errors import ConfigError

# How to choose coordinates, in the order of the operation's numbers: with probabilities by their changes; those of the
# largest changes; at random; one after the other.
ScheduleName = Literal["sap", "greedy", "random", "cyclic"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
# Solvers that read their rows block by block, so that these may be in a file.
SPILLING: tuple[SolverName, ...] = ("l-bfgs", "normal", "minibatch", "ftsgd")


@dataclass(frozen=True, eq=False)
class Bounds:
    """The ranges of the parameters, for unscaled features; infinite where there is no bound.

    Attributes:
        lower, upper: float64, shape (dim, width).
        lower_biases, upper_biases: float64, shape (biases,).
    """

    lower: Float64s
    upper: Float64s
    lower_biases: Float64s
    upper_biases: Float64s

    @property
    def are_on_biases(self) -> bool:
        """Whether a bias is bounded."""
        return bool(np.isfinite([self.lower_biases, self.upper_biases]).any())


@dataclass(frozen=True, eq=False)
class Start:
    """The initial parameters of a training, for unscaled features.

    Attributes:
        weight: float64, shape (dim, width); or a vector of dim * width columns on the fleet, feature by feature.
        biases: float64, shape (biases,).
    """

    weight: Float64s | DCV
    biases: Float64s


@dataclass(frozen=True, eq=False)
class PathPoint:
    """The model of one strength of a regularization path.

    Attributes:
        strength: the factor of the problem's penalties.
        columns: int64, sorted: the features whose weights are not 0.
        w: float64: these weights, for unscaled features.
        bias: the intercept.
        history: the history of the steps from the model before.
    """

    strength: float
    columns: Int64s
    w: Float64s
    bias: float
    history: TrainingHistory


@dataclass(frozen=True, kw_only=True)
class LinearPlan(Plan[SolverSettings]):
    """A training of a model of weights and biases.

    Attributes:
        solver: "l-bfgs" (OWL-QN where there is an L1 penalty), "normal" (equations, for the squared loss), "minibatch"
            with an ``optimizer``, "ma-sgd", "ftsgd", or "sap" (coordinate descent; squared and logistic loss, L1).
        optimizer: the operation that takes the steps of "minibatch" (``ps2.ops.all.optimizer_steps``); "adamW" and
            "gd" are pyspark.ml's for factorization machines: they take L2 penalties alone, by which the intercept
            decays too.
        factors: whether gradients of the multinomial model travel as sufficient factors ("l-bfgs", "minibatch").
        path: the strengths to train models of, one after the other ("sap"); None: that of the problem.
        schedule: how to choose coordinates ("sap").
        set_size: the minimum number of coordinates to choose at a time ("sap").
        bounds: the range of each parameter ("l-bfgs" without an L1 penalty); None: unbounded.
        start: the initial parameters ("l-bfgs", "minibatch", "ma-sgd", "ftsgd"); None: those of the loss.
        all_columns: whether vectors hold all columns, also where there are many; else those that the rows use.
        validation_tol: the relative improvement of the held-out rows' loss below which training stops.
    """

    solver: SolverName = "l-bfgs"
    optimizer: str = "adam"
    factors: When = "auto"
    path: PathSettings | None = None
    schedule: ScheduleName = "sap"
    set_size: int = 512
    bounds: Bounds | None = None
    start: Start | None = None
    all_columns: bool = False
    validation_tol: float = 0.01

    @property
    def staleness(self) -> int | None:
        """The clocks that a worker may be ahead of the slowest one: 0 for BSP, s for SSP, None for ASP."""
        return None if self.settings.staleness == NO_BOUND else self.settings.staleness

    @property
    def validate(self) -> bool:
        """Whether rows are held out, and training stops when their loss gets worse."""
        return self.settings.validationIndicatorCol is not None

    @property
    def spilling(self) -> Spill | None:
        """How workers keep their rows; None: in memory."""
        spill = cast(SpillName, self.settings.spill)
        return Spill(spill) if self.solver in SPILLING and spill != "never" else None

    def scales(self, problem: Problem) -> bool:
        """Return whether each feature is multiplied by a factor: 1 / std, or one that helps L-BFGS."""
        helps = self.solver == "l-bfgs" and problem.curvature is not None
        return problem.standardize or self.solver == "normal" or helps

    def __post_init__(self) -> None:
        staleness = self.settings.staleness
        if self.settings.spill == "always" and self.solver not in SPILLING:
            takers = ", ".join(map(repr, SPILLING))
            raise ConfigError(f"spill: solver {self.solver!r} keeps its rows in memory, only {takers} read files")
        if staleness != 0 and self.solver != "minibatch":
            raise ConfigError(f"staleness: solver {self.solver!r} takes none, got {staleness}")
        if staleness != 0 and self.validate:
            raise ConfigError(f"staleness: expected 0 with rows held out for validation, got {staleness}")
