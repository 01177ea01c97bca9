"""The objective and the plan of a training of a linear model or a factorization machine.

A model is a vector of ``dim * width`` weights, feature by feature (a feature's ``width`` weights are adjacent), and a
short vector of biases, which have no penalty. The objective is

    sum_i c_i loss(x_i, y_i; w, b) / sum_i c_i + l1 |w|_1 + l2 / 2 |w|^2

where c_i is the weight of row i. With ``standardize``, w are the weights of features divided by their standard
deviations, as in pyspark.ml.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast, get_args

import numpy as np

from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.linear.settings import ASP_STALENESS, LossName, PathSettings, SolverName, SolverSettings, UsePolicy
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.data.spilling import Spill, SpillName
from ps2.errors import ConfigError

# The rules by which solver "sap" chooses coordinates, in the order of the schedules in ``ops.py``.
ScheduleName = Literal["sap", "greedy", "random", "cyclic"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
# The solvers that read rows block by block, so workers can keep rows in files.
SPILLING: tuple[SolverName, ...] = ("l-bfgs", "normal", "minibatch", "ftsgd")


@dataclass(frozen=True)
class Problem:
    """An objective.

    Attributes:
        loss: "logistic", "hinge" and "squaredHinge" take labels 0 and 1, "softmax" labels 0 to width - 1; "huber"
            trains its scale (Owen 2007, as in pyspark.ml); "fmLogistic" and "fmSquared" are for factorization machines.
        dim: the number of features.
        width: the number of weights of a feature: the number of classes ("softmax"), 1 + factors (factorization
            machines: a linear weight, then factors), else 1.
        fit_intercept: whether the intercepts are trained; otherwise they stay 0.
        fit_linear: whether a factorization machine has linear weights.
        l1, l2: the strengths of the penalties, at least 0.
        standardize: whether features are divided by their standard deviations first.
        epsilon: the residual, as a multiple of the scale, from which "huber" is linear instead of quadratic; above 1.
        init_std: the standard deviation of a factorization machine's initial factors.
    """

    loss: LossName
    dim: int
    width: int = 1
    fit_intercept: bool = True
    fit_linear: bool = True
    l1: float = 0.0
    l2: float = 0.0
    standardize: bool = True
    epsilon: float = 1.35
    init_std: float = 0.01

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> Problem:
        return Problem(**{field.name: content[field.name] for field in fields(Problem)})

    @property
    def biases(self) -> int:
        """The number of biases: the intercepts and, with "huber", the logarithm of the scale."""
        return {"softmax": self.width, "huber": 2}.get(self.loss, 1)

    @property
    def outputs(self) -> int:
        """The number of margins of a row, each with an intercept."""
        return self.width if self.loss == "softmax" else 1

    @property
    def classes(self) -> int | None:
        """The number of classes; None for regression."""
        return {"softmax": self.width, "logistic": 2, "hinge": 2, "squaredHinge": 2, "fmLogistic": 2}.get(self.loss)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.dim * self.width

    @property
    def curvature(self) -> float | None:
        """An approximate upper bound of the loss's second derivative by a margin; None: margins are not linear in w."""
        return {"logistic": 0.25, "softmax": 0.25, "squaredHinge": 2.0, "fmLogistic": None, "fmSquared": None}.get(
            self.loss, 1.0
        )


@dataclass(frozen=True, eq=False)
class Bounds:
    """The bounds of weights, shape (dim, width), and of biases, for unscaled features; infinite: no bound."""

    lower: Float64s
    upper: Float64s
    lower_biases: Float64s
    upper_biases: Float64s

    @property
    def are_on_biases(self) -> bool:
        return bool(np.isfinite([self.lower_biases, self.upper_biases]).any())


@dataclass(frozen=True, eq=False)
class Start:
    """The initial weights and biases of a training, for unscaled features; see ``Weights``."""

    weight: Float64s | DCV
    biases: Float64s


@dataclass(frozen=True, eq=False)
class PathPoint:
    """One model of a regularization path, for unscaled features.

    Attributes:
        strength: the factor by which the problem's penalties are multiplied.
        columns, w: the features whose weights are not 0, ascending, and their weights.
        history: the history of the steps from the previous model of the path.
    """

    strength: float
    columns: Int64s
    w: Float64s
    bias: float
    history: TrainingHistory


@dataclass(frozen=True, kw_only=True)
class LinearPlan(Plan[SolverSettings]):
    """The plan of a training: the user's settings, and the choices that follow from them and from the table.

    Attributes:
        optimizer: the operation that takes the steps of "minibatch" (``ps2.ops.all.optimizer_steps``), or pyspark.ml's
            "adamW" or "gd", which support only L2 penalties and decay the intercept as well.
        factors: whether gradients of the multinomial model are sent as sufficient factors.
        path: the strengths of the models to train, one after the other ("sap"); None: one model, strength 1.
        schedule: the rule that chooses coordinates ("sap").
        set_size: the minimum number of coordinates of a set ("sap").
        bounds: the range of each parameter ("l-bfgs" without an L1 penalty); None: unbounded.
        start: the initial parameters ("l-bfgs", "minibatch", "ma-sgd", "ftsgd"); None: initial values of the loss.
        all_columns: whether large vectors are dense; otherwise they store only the columns that the rows use.
        validation_tol: the relative improvement of the held-out rows' loss below which training stops.
    """

    solver: SolverName = "l-bfgs"
    optimizer: str = "adam"
    factors: UsePolicy = "auto"
    path: PathSettings | None = None
    schedule: ScheduleName = "sap"
    set_size: int = 512
    bounds: Bounds | None = None
    start: Start | None = None
    all_columns: bool = False
    validation_tol: float = 0.01

    @property
    def staleness(self) -> int | None:
        """The number of clocks that a worker may be ahead of the slowest one: 0 for BSP, s for SSP, None for ASP."""
        return None if self.settings.staleness == ASP_STALENESS else self.settings.staleness

    @property
    def validate(self) -> bool:
        """Whether rows are held out, and training stops when their loss no longer improves."""
        return self.settings.validationIndicatorCol is not None

    @property
    def spilling(self) -> Spill | None:
        """The rule by which workers write rows to files; None: rows are always in memory."""
        spill = cast(SpillName, self.settings.spill)
        return Spill(spill) if self.solver in SPILLING and spill != "never" else None

    def scales(self, problem: Problem) -> bool:
        """Return whether each feature is multiplied by a factor: 1 / std, or a preconditioner for L-BFGS."""
        is_preconditioned = self.solver == "l-bfgs" and problem.curvature is not None
        return problem.standardize or self.solver == "normal" or is_preconditioned

    def __post_init__(self) -> None:
        staleness = self.settings.staleness
        if self.settings.spill == "always" and self.solver not in SPILLING:
            solvers = ", ".join(map(repr, SPILLING))
            raise ConfigError(f"spill: solver {self.solver!r} keeps its rows in memory, only {solvers} read files")
        if staleness != 0 and self.solver != "minibatch":
            raise ConfigError(f"staleness: solver {self.solver!r} supports only 0, got {staleness}")
        if staleness != 0 and self.validate:
            raise ConfigError(f"staleness: expected 0 with rows held out for validation, got {staleness}")
