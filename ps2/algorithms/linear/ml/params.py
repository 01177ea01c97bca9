"""The params of linear models and factorization machines, and how they become a ``SolverOptions``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import (
    HasFitIntercept,
    HasRegParam,
    HasSeed,
    HasSolver,
    HasStandardization,
    HasStepSize,
    HasTol,
    HasValidationIndicatorCol,
)

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Check,
    FleetParams,
    FleetSetters,
    any_case,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.estimators.params import RANGES as RANGES_OF_ALL
from ps2.algorithms.estimators.via import VIA
from ps2.algorithms.linear.problem import LOCAL_SEARCHES, LocalSearchName, SolverOptions
from ps2.algorithms.linear.solvers.optimizer import lazy_ones, step_of
from ps2.algorithms.training.sent_gradients import FACTORS
from ps2.data.spilling import SPILL, SpillName
from ps2.errors import ConfigError
from ps2.ops.all import optimizer_steps

P = TypeVar("P", bound="TrainingParams")

ASP = -1
# Which of the params that not every solver takes it does take.
TAKES: dict[str, tuple[str, ...]] = {
    "l-bfgs": ("factors",),
    "minibatch": ("optimizer", "lazy", "staleness", "stepSize", "miniBatchFraction", "factors"),
    "ma-sgd": ("stepSize", "localPasses", "localBatchSize"),
    "ftsgd": ("stepSize", "miniBatchFraction", "localSteps", "momentum", "adaptiveMomentum", "localSearch"),
    "sap": (),
}
# Names of solvers, each with the solver and the optimizer that it stands for.
SOLVERS_OF_LINEAR: dict[str, tuple[str, str | None]] = {
    "auto": ("l-bfgs", None),
    **{name: (name, None) for name in TAKES if name != "sap"},
}
SOLVERS_OF_LASSO: dict[str, tuple[str, str | None]] = {**SOLVERS_OF_LINEAR, "sap": ("sap", None)}
SOLVERS_OF_LEAST_SQUARES: dict[str, tuple[str, str | None]] = {**SOLVERS_OF_LASSO, "normal": ("normal", None)}
SOLVERS_OF_FM: dict[str, tuple[str, str | None]] = {
    "adamW": ("minibatch", "adamW"),
    "gd": ("minibatch", "gd"),
    **{name: (name, None) for name in TAKES if name not in ("ma-sgd", "sap")},
}
CHOOSY = sorted({name for names in TAKES.values() for name in names})
TAKES_L1 = ("l-bfgs", "normal", "minibatch", "ma-sgd", "sap")


def are_descending(values: Sequence[float]) -> bool:
    """Return whether these are strengths of a path."""
    numbers = [*values, 0.0]
    return len(values) > 0 and all(math.inf > one > other for one, other in itertools.pairwise(numbers))


RANGES: Mapping[str, Check] = {
    **RANGES_OF_ALL,
    **VIA,
    "regParam": NOT_NEGATIVE,
    "elasticNetParam": SHARE,
    "tol": NOT_NEGATIVE,
    "stepSize": POSITIVE,
    "miniBatchFraction": (lambda value: 0 < value <= 1, "a number in (0, 1]"),
    "staleness": (lambda value: value >= ASP, "the clocks to be ahead, or -1 for no bound"),
    "localPasses": COUNT,
    "localBatchSize": (lambda value: value >= 0, "rows, or 0 for all of a worker's"),
    "localSteps": COUNT,
    "momentum": (lambda value: 0 <= value < 1, "a number in [0, 1)"),
    "localSearch": one_of(LOCAL_SEARCHES),
    "optimizer": (
        lambda name: name in optimizer_steps(),
        f"one of {', '.join(optimizer_steps())}, or one of your own modules'",
    ),
    "epsilon": (lambda value: 1 < value < math.inf, "a finite number above 1"),
    "factorSize": COUNT,
    "initStd": NOT_NEGATIVE,
    "lambdaPath": (
        are_descending,
        "finite positive numbers, each smaller than the one before",
    ),
    "factors": one_of(FACTORS),
    "spill": one_of(SPILL),
    "lambdaCount": COUNT,
    "lambdaRatio": (lambda value: 0 < value < 1, "a number in (0, 1)"),
}


class TrainingParams(FleetParams, HasStepSize, HasSolver, HasSeed, HasValidationIndicatorCol):
    """How a model is trained: params that pyspark.ml has nowhere, or not in every estimator."""

    _SOLVERS = SOLVERS_OF_LINEAR
    _RANGES = RANGES

    solver: Param[str] = own_param(
        "solver",
        f"how to train: {', '.join(SOLVERS_OF_LINEAR)}; auto is minibatch if an optimizer is set, else l-bfgs",
        any_case(SOLVERS_OF_LINEAR),
    )
    optimizer: Param[str] = own_param(
        "optimizer", f"update rule of solver minibatch: {', '.join(optimizer_steps())}", any_case(optimizer_steps())
    )
    miniBatchFraction: Param[float] = own_param(
        "miniBatchFraction",
        "fraction of the input data set that should be used for one iteration of gradient descent",
        TypeConverters.toFloat,
    )
    lazy: Param[bool] = own_param(
        "lazy",
        "whether a step updates only the weights of the minibatch's features (minibatch)",
        TypeConverters.toBoolean,
    )
    staleness: Param[int] = own_param(
        "staleness",
        "how many steps a worker may be ahead of the slowest one: 0 is BSP, s is SSP, -1 is ASP (minibatch)",
        TypeConverters.toInt,
    )
    localPasses: Param[int] = own_param(
        "localPasses", "passes over a worker's rows between two model averages (ma-sgd)", TypeConverters.toInt
    )
    localBatchSize: Param[int] = own_param(
        "localBatchSize", "rows per local step; 0: all rows of the worker (ma-sgd)", TypeConverters.toInt
    )
    localSteps: Param[int] = own_param(
        "localSteps", "maximum number of local steps between two model averages (ftsgd)", TypeConverters.toInt
    )
    momentum: Param[float] = own_param(
        "momentum",
        "the momentum of a local step is this times 1 + the cosine of the angle between its gradient and the one "
        "before (ftsgd)",
        TypeConverters.toFloat,
    )
    adaptiveMomentum: Param[bool] = own_param(
        "adaptiveMomentum",
        "whether local steps have a momentum, and the step size is halved when they oscillate; else the step size is "
        "stepSize / sqrt(step) (ftsgd)",
        TypeConverters.toBoolean,
    )
    localSearch: Param[LocalSearchName] = own_param(
        "localSearch",
        "whether there are local steps: 'auto' (after the first average, if the workers' models agree by the "
        "68-95-99.7 rule), 'always' or 'never', which is MLlib's SGD (ftsgd)",
        any_case(LOCAL_SEARCHES),
    )

    spill: Param[SpillName] = own_param(
        "spill",
        "whether workers keep their rows in files on Spark's local disks: 'auto' (those that exceed a quarter of a "
        "worker's memory), 'always' or 'never'; solvers ma-sgd and sap keep rows in memory",
        any_case(SPILL),
    )

    def _set_defaults(self) -> None:
        self._setDefault(
            solver="auto",
            spill="auto",
            optimizer="adam",
            stepSize=0.1,
            miniBatchFraction=1.0,
            lazy=False,
            staleness=0,
            localPasses=1,
            localBatchSize=1,
            localSteps=5,
            momentum=0.45,
            adaptiveMomentum=True,
            localSearch="auto",
            seed=0,
        )

    getOptimizer = getter(optimizer)
    getMiniBatchFraction = getter(miniBatchFraction)
    getLazy = getter(lazy)
    getStaleness = getter(staleness)
    getLocalPasses = getter(localPasses)
    getLocalBatchSize = getter(localBatchSize)
    getLocalSteps = getter(localSteps)
    getMomentum = getter(momentum)
    getAdaptiveMomentum = getter(adaptiveMomentum)
    getLocalSearch = getter(localSearch)
    getSpill = getter(spill)


class TrainingSetters(TrainingParams, FleetSetters):
    """Setters of what linear models and factorization machines have."""

    def setSolver(self: P, value: str) -> P:
        """Set how to train."""
        return self._set(solver=value)

    setRegParam = setter(HasRegParam.regParam)
    setTol = setter(HasTol.tol)
    setFitIntercept = setter(HasFitIntercept.fitIntercept)
    setOptimizer = setter(TrainingParams.optimizer)
    setStepSize = setter(HasStepSize.stepSize)
    setMiniBatchFraction = setter(TrainingParams.miniBatchFraction)
    setLazy = setter(TrainingParams.lazy)
    setStaleness = setter(TrainingParams.staleness)
    setLocalPasses = setter(TrainingParams.localPasses)
    setLocalBatchSize = setter(TrainingParams.localBatchSize)
    setLocalSteps = setter(TrainingParams.localSteps)
    setMomentum = setter(TrainingParams.momentum)
    setAdaptiveMomentum = setter(TrainingParams.adaptiveMomentum)
    setLocalSearch = setter(TrainingParams.localSearch)
    setSpill = setter(TrainingParams.spill)


class LinearSetters(TrainingSetters):
    """Setters of what linear models have and factorization machines have not."""

    setStandardization = setter(HasStandardization.standardization)

    def setAggregationDepth(self: P, value: int) -> P:
        """Set what has no effect here: nothing is aggregated in a tree."""
        return self._set(aggregationDepth=value)

    def setMaxBlockSizeInMB(self: P, value: float) -> P:
        """Set what has no effect here: a worker's rows are one block."""
        return self._set(maxBlockSizeInMB=value)


def options_of(params: Any, l1: float) -> SolverOptions:
    """Make the options that params ask for.

    Args:
        params: of an estimator.
        l1: strength of the L1 penalty.

    Raises:
        ConfigError: there is no such solver, or it does not take what has been set.
    """
    solver, optimizer = _solver_of(params)
    for name in CHOOSY:
        if name in TAKES.get(solver, ()) or not params.hasParam(name) or not params.isSet(name):
            continue
        if _differs(params, name):
            takers = ", ".join(repr(taker) for taker, names in TAKES.items() if name in names)
            raise ConfigError(f"{name}: solver {params.getSolver()!r} does not take it, only {takers}")
    if l1 > 0 and solver not in TAKES_L1:
        raise ConfigError(
            f"elasticNetParam: solver {solver!r} takes L2 penalties only, got {params.getElasticNetParam():g}; "
            f"{', '.join(map(repr, TAKES_L1))} take both"
        )
    if params.getLazy():
        _check_lazy(optimizer, params.getOrDefault("regParam"))
    _check_ftsgd(params)
    options = SolverOptions(
        solver=solver,  # type: ignore[arg-type]
        optimizer=optimizer,
        lazy=params.getLazy(),
        steps=params.getMaxIter(),
        tol=params.getTol(),
        step_size=params.getStepSize(),
        fraction=params.getMiniBatchFraction(),
        staleness=None if params.getStaleness() == ASP else params.getStaleness(),
        seed=params._seed,
        validate=params.isSet("validationIndicatorCol"),
    )
    return replace(
        options,
        local_passes=params.getLocalPasses(),
        local_batch=params.getLocalBatchSize(),
        local_steps=params.getLocalSteps(),
        momentum=params.getMomentum(),
        adaptive_momentum=params.getAdaptiveMomentum(),
        local_search=params.getLocalSearch(),
        factors=params.getOrDefault("factors") if params.hasParam("factors") else "auto",
        spill=params.getSpill(),
    )


def check_coordinates(params: Any, l1: float) -> None:
    """Raise ConfigError for params that do not go with solver "sap"."""
    if l1 <= 0:
        raise ConfigError(
            "solver: 'sap' is for L1 penalties: expected regParam and elasticNetParam above 0, got "
            f"{params.getRegParam():g} and {params.getElasticNetParam():g}; 'l-bfgs' takes L2 penalties alone, and none"
        )
    if params.isSet("validationIndicatorCol"):
        raise ConfigError("validationIndicatorCol: solver 'sap' takes no steps that it could judge")


def _check_lazy(optimizer: str, penalty: float) -> None:
    declared = step_of(optimizer).optimizer
    if penalty > 0 and (declared is None or declared.catch_up is None):
        takers = ", ".join(
            repr(name) for name, op in optimizer_steps().items() if op.optimizer and op.optimizer.catch_up
        )
        raise ConfigError(
            f"lazy: with a penalty, which changes all weights in each step, only optimizer {takers} takes it, "
            f"got {optimizer!r} with regParam {penalty:g}"
        )
    if "lazy" not in step_of(optimizer).params:
        takers = ", ".join(map(repr, lazy_ones()))
        raise ConfigError(f"lazy: optimizer {optimizer!r} does not take it, only {takers}")


def _check_ftsgd(params: Any) -> None:
    """Raise ConfigError for params of local steps that are without effect."""
    if _differs(params, "momentum") and not params.getAdaptiveMomentum():
        raise ConfigError(f"momentum: adaptiveMomentum=False has none, got {params.getMomentum():g}")
    if params.getLocalSearch() == "never":
        for name in ("momentum", "adaptiveMomentum", "localSteps"):
            if _differs(params, name):
                got = params.getOrDefault(name)
                raise ConfigError(f"{name}: localSearch='never' takes no local steps, got {got}")


def _differs(params: Any, name: str) -> bool:
    """Tell whether a param is something else than its default."""
    param = params.getParam(name)
    return params.getOrDefault(param) != params._defaultParamMap.get(param)


def _solver_of(params: Any) -> tuple[str, str]:
    """Return solver and optimizer, without the names that stand for others."""
    asked, optimizer = params.getSolver(), params.getOptimizer()
    standing_for = params._SOLVERS
    if asked not in standing_for:
        raise ConfigError(f"solver: expected one of {', '.join(standing_for)}, got {asked!r}")
    solver, its_optimizer = standing_for[asked]
    if params.isSet("optimizer"):
        if not params.isSet("solver") or asked == "auto":
            return "minibatch", optimizer
        if its_optimizer not in (None, optimizer):
            raise ConfigError(
                f"optimizer: solver {asked!r} has an update rule of its own, got {optimizer!r}; 'minibatch' takes it"
            )
    return solver, its_optimizer or optimizer
