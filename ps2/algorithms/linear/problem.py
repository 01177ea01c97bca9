"""The objective of a linear model, and the options of its solvers.

A model is a vector of ``dim * width`` weights, feature by feature (a feature's ``width`` numbers lie side by side), and
a short vector of biases, which no penalty touches. The objective is

    sum_i c_i loss(x_i, y_i; w, b) / sum_i c_i + l1 |w|_1 + l2 / 2 |w|^2

where c_i is the weight of row i, and w belongs to features that have been divided by their standard deviation if
``standardize`` is set, as in pyspark.ml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ps2.algorithms.linear.coordinates.path import PathOptions
from ps2.algorithms.training.sent_gradients import FactorsName
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.data.spilling import Spill, SpillName
from ps2.errors import ConfigError

LossName = Literal["logistic", "softmax", "hinge", "squaredHinge", "squared", "huber", "fmLogistic", "fmSquared"]
SolverName = Literal["l-bfgs", "normal", "minibatch", "ma-sgd", "ftsgd", "sap"]
# How coordinates are drawn, in the order of the operation's numbers: with probabilities by their changes; those of the
# largest changes; by chance; one after the other.
ScheduleName = Literal["sap", "greedy", "random", "cyclic"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
# Whether FTSGD searches locally: if the workers' first models agree; in any case; not at all, which is MLlib's SGD.
LocalSearchName = Literal["auto", "always", "never"]
LOCAL_SEARCHES: tuple[LocalSearchName, ...] = get_args(LocalSearchName)
# Solvers that read their rows block by block, so that these may be in a file.
SPILLING: tuple[SolverName, ...] = ("l-bfgs", "normal", "minibatch", "ftsgd")


@dataclass(frozen=True)
class Problem:
    """An objective.

    Attributes:
        loss: "logistic", "hinge" and "squaredHinge" want labels 0 and 1, "softmax" 0 to width - 1; "huber" is Owen's,
            with a scale of its own (2007, as in pyspark.ml), "fm..." that of a factorization machine.
        dim: number of features.
        width: weights of a feature: 1; the number of classes ("softmax"); 1 + factors ("fm...": linear weight first).
        fit_intercept: whether the intercepts are trained; else they stay 0.
        fit_linear: whether a factorization machine has linear weights.
        l1: strength of the L1 penalty, at least 0.
        l2: strength of the L2 penalty, at least 0.
        standardize: whether features are divided by their standard deviation first.
        epsilon: of "huber", above 1: where it turns from quadratic to linear, in scales.
        init_std: standard deviation of the factors at the beginning ("fm...").
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

    @property
    def biases(self) -> int:
        """How many: the intercepts; with "huber" also the logarithm of the scale, which comes last."""
        return {"softmax": self.width, "huber": 2}.get(self.loss, 1)

    @property
    def outputs(self) -> int:
        """How many margins a row has, each with an intercept."""
        return self.width if self.loss == "softmax" else 1

    @property
    def classes(self) -> int | None:
        """How many classes labels are of; None: they are numbers."""
        return {"softmax": self.width, "logistic": 2, "hinge": 2, "squaredHinge": 2, "fmLogistic": 2}.get(self.loss)

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.dim * self.width

    @property
    def curvature(self) -> float | None:
        """The largest second derivative of the loss by a margin, or about that; None: margins are not linear."""
        return {"logistic": 0.25, "softmax": 0.25, "squaredHinge": 2.0, "fmLogistic": None, "fmSquared": None}.get(
            self.loss, 1.0
        )


@dataclass(frozen=True, eq=False)
class Bounds:
    """A box that the parameters stay in, for features as they are given; infinite where there is no bound.

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
        return bool(np.isfinite([self.lower_biases, self.upper_biases]).any())


@dataclass(frozen=True, eq=False)
class Start:
    """Parameters that a training begins with, for features as they are given.

    Attributes:
        weight: float64, shape (dim, width); or a vector of dim * width columns on the fleet, feature by feature.
        biases: float64, shape (biases,).
    """

    weight: Float64s | DCV
    biases: Float64s


@dataclass(frozen=True)
class SolverOptions:
    """How to train.

    Attributes:
        solver: "l-bfgs" (OWL-QN where there is an L1 penalty), "normal" (equations, for the squared loss), "minibatch"
            with an ``optimizer``, "ma-sgd", "ftsgd", or "sap" (coordinate descent; squared and logistic loss, L1).
        optimizer: of "minibatch": an operation that declares to be one (``ps2.ops.all.optimizer_steps``); "adamW" and
            "gd" are pyspark.ml's for factorization machines: they take L2 penalties alone, by which the intercept
            decays too.
        lazy: only columns that a minibatch uses take its step ("minibatch" with an optimizer that has ``lazy``; with a
            penalty with "ftrl").
        steps: at most; iterations of "l-bfgs", communication steps of the others.
        tol: "l-bfgs" (and "normal" with an L1 penalty) stops when the objective improves by less than this, relatively;
            "sap" when the duality gap is less than this part of the objective.
        step_size: learning rate.
        fraction: share of the rows in a minibatch, in (0, 1] ("minibatch", "ftsgd").
        local_passes: over a worker's rows between two averages ("ma-sgd").
        local_batch: rows that a local step averages; 0: all of a worker's ("ma-sgd").
        local_steps: between two averages, at most ("ftsgd").
        momentum: a step's momentum is this times 1 + the cosine between its gradient and the one before ("ftsgd").
        adaptive_momentum: Algorithm 3; else Algorithm 2, without momentum, of a rate that falls ("ftsgd").
        local_search: whether there are local iterations after the first step ("ftsgd").
        staleness: 0 for BSP, s for SSP, None for ASP ("minibatch").
        workers: None: as many as the data have partitions, and at most one for each task slot.
        seed: of minibatches, orders and beginnings.
        path: strengths to train models of, one after the other ("sap"); None: that of the problem.
        schedule: how coordinates are drawn ("sap").
        set_size: coordinates that are drawn at a time, at least ("sap").
        bounds: where parameters may be ("l-bfgs" without an L1 penalty); None: anywhere.
        start: parameters to begin with ("l-bfgs", "minibatch", "ma-sgd", "ftsgd"); None: those of the loss.
        factors: whether gradients of the multinomial model travel as sufficient factors ("l-bfgs", "minibatch").
        all_columns: vectors hold all columns, also where there are many; else, then, those that the rows use.
        spill: whether workers keep their rows in files: "auto", where they are too large for memory, "always" or
            "never"; a solver that needs them in memory takes no "always".
        validate: rows marked for validation are held out, and training stops when their loss gets worse.
        validation_tol: by how much that has to improve, relatively.
        name: vectors have names that begin with this, and a context that was restored goes on with the training that
            they are of ("minibatch"); "": they have none.
    """

    solver: SolverName = "l-bfgs"
    optimizer: str = "adam"
    lazy: bool = False
    steps: int = 100
    tol: float = 1e-6
    step_size: float = 0.1
    fraction: float = 1.0
    local_passes: int = 1
    local_batch: int = 1
    local_steps: int = 5
    momentum: float = 0.45
    adaptive_momentum: bool = True
    local_search: LocalSearchName = "auto"
    staleness: int | None = 0
    workers: int | None = None
    seed: int = 0
    path: PathOptions | None = None
    schedule: ScheduleName = "sap"
    set_size: int = 512
    bounds: Bounds | None = None
    start: Start | None = None
    factors: FactorsName = "auto"
    all_columns: bool = False
    spill: SpillName = "auto"
    validate: bool = False
    validation_tol: float = 0.01
    name: str = ""

    def scales(self, problem: Problem) -> bool:
        """Return whether each feature is multiplied by a factor: 1 / std, or one that helps L-BFGS."""
        helps = self.solver == "l-bfgs" and problem.curvature is not None
        return problem.standardize or self.solver == "normal" or helps

    @property
    def spilling(self) -> Spill | None:
        """How workers keep their rows; None: in memory."""
        return Spill(self.spill) if self.solver in SPILLING and self.spill != "never" else None

    def __post_init__(self) -> None:
        if self.spill == "always" and self.solver not in SPILLING:
            takers = ", ".join(map(repr, SPILLING))
            raise ConfigError(f"spill: solver {self.solver!r} keeps its rows in memory, only {takers} read files")
        if self.staleness != 0 and self.solver != "minibatch":
            raise ConfigError(f"staleness: solver {self.solver!r} takes none, got {self.staleness}")
        if self.staleness != 0 and self.validate:
            raise ConfigError(f"staleness: expected 0 with rows held out for validation, got {self.staleness}")
        if self.path is not None and self.solver != "sap":
            raise ConfigError(f"lambdaPath: only solver 'sap' trains a path, got {self.solver!r}")
