"""The params that estimators have beside pyspark.ml's own, and how params become a ``Recipe``.

Names, defaults, types and docs of what pyspark.ml has are its own: they come from its mixins. What is here is for the
optimisers and solvers, for the fleet, and for features in several columns.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasSeed,
    HasSolver,
    HasStepSize,
    HasValidationIndicatorCol,
)

from ps2.algorithms.solvers.optimizer import DECAYING
from ps2.algorithms.training.problem import Recipe
from ps2.errors import ConfigError

F = TypeVar("F", bound="HasFeaturesCols")
P = TypeVar("P", bound="TrainingParams")

OPTIMIZERS = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl")
ASP = -1
# Which of the params that not every solver takes it does take.
TAKES: dict[str, tuple[str, ...]] = {
    "l-bfgs": (),
    "minibatch": ("optimizer", "lazy", "staleness", "stepSize", "miniBatchFraction"),
    "ma-sgd": ("stepSize", "localPasses", "localBatchSize"),
    "ftsgd": ("stepSize", "miniBatchFraction", "localSteps"),
}
# Names of solvers, each with the solver and the optimizer that it stands for.
SOLVERS_OF_LINEAR: dict[str, tuple[str, str | None]] = {
    "auto": ("l-bfgs", None),
    **{name: (name, None) for name in TAKES},
}
SOLVERS_OF_LEAST_SQUARES: dict[str, tuple[str, str | None]] = {**SOLVERS_OF_LINEAR, "normal": ("normal", None)}
SOLVERS_OF_FM: dict[str, tuple[str, str | None]] = {
    "adamW": ("minibatch", "adamW"),
    "gd": ("minibatch", "gd"),
    **{name: (name, None) for name in TAKES if name != "ma-sgd"},
}
CHOOSY = sorted({name for names in TAKES.values() for name in names})
TAKES_L1 = ("l-bfgs", "normal", "minibatch")


def are_thresholds(values: Sequence[float]) -> bool:
    """Tell whether no value is negative, and one is 0 at most."""
    return all(0 <= value < math.inf for value in values) and sum(value == 0 for value in values) <= 1


Check = tuple[Callable[[Any], bool], str]
_NOT_NEGATIVE: Check = (lambda value: 0 <= value < math.inf, "a finite number that is not negative")
_POSITIVE: Check = (lambda value: 0 < value < math.inf, "a finite positive number")
_COUNT: Check = (lambda value: value >= 1, "1 at least")
_SHARE: Check = (lambda value: 0 <= value <= 1, "a number in [0, 1]")
RANGES: dict[str, Check] = {
    "regParam": _NOT_NEGATIVE,
    "elasticNetParam": _SHARE,
    "maxIter": _NOT_NEGATIVE,
    "tol": _NOT_NEGATIVE,
    "stepSize": _POSITIVE,
    "miniBatchFraction": (lambda value: 0 < value <= 1, "a number in (0, 1]"),
    "staleness": (lambda value: value >= ASP, "the clocks to be ahead, or -1 for no bound"),
    "numWorkers": _COUNT,
    "numServers": _COUNT,
    "localPasses": _COUNT,
    "localBatchSize": (lambda value: value >= 0, "rows, or 0 for all of a worker's"),
    "localSteps": _COUNT,
    "optimizer": (lambda value: value in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    "epsilon": (lambda value: 1 < value < math.inf, "a finite number above 1"),
    "threshold": (lambda value: not math.isnan(value), "a number"),
    "thresholds": (are_thresholds, "positive numbers, of which one may be 0"),
    "factorSize": _COUNT,
    "initStd": _NOT_NEGATIVE,
}


def _param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def described(param: Any, doc: str) -> Any:
    """Return a param of the same name and type with another description."""
    return _param(param.name, doc, param.typeConverter)


class HasFeaturesCols(HasFeaturesCol):
    """Features in one column, or in several columns of numbers."""

    featuresCols: Param[Any] = _param(
        "featuresCols",
        "names of columns of numbers that are the features, instead of featuresCol; the weights are in their order",
        TypeConverters.toListString,
    )

    def getFeaturesCols(self) -> list[str]:
        """Get the names of the columns of numbers; KeyError if features are in one column."""
        return list(self.getOrDefault(self.featuresCols))

    def setFeaturesCols(self: F, value: Sequence[str]) -> F:
        """Set the names of columns of numbers that are the features."""
        return self._set(featuresCols=list(value))

    @property
    def _features(self) -> str | tuple[str, ...]:
        """Where features are."""
        return tuple(self.getFeaturesCols()) if self.isSet(self.featuresCols) else self.getFeaturesCol()


class TrainingParams(HasFeaturesCols, HasStepSize, HasSolver, HasSeed, HasValidationIndicatorCol):
    """How a model is trained: params that pyspark.ml has nowhere, or not in every estimator."""

    _SOLVERS = SOLVERS_OF_LINEAR

    solver: Param[str] = _param(
        "solver",
        f"how to train: {', '.join(SOLVERS_OF_LINEAR)}; auto is minibatch if an optimizer is set, else l-bfgs",
        TypeConverters.toString,
    )
    optimizer: Param[str] = _param(
        "optimizer", f"update rule of solver minibatch: {', '.join(OPTIMIZERS)}", TypeConverters.toString
    )
    miniBatchFraction: Param[float] = _param(
        "miniBatchFraction",
        "fraction of the input data set that should be used for one iteration of gradient descent",
        TypeConverters.toFloat,
    )
    lazy: Param[bool] = _param(
        "lazy", "whether only weights of a minibatch's features take its step (minibatch)", TypeConverters.toBoolean
    )
    staleness: Param[int] = _param(
        "staleness",
        "steps that a worker may be ahead of the slowest: 0 is BSP, s is SSP, -1 is ASP (minibatch)",
        TypeConverters.toInt,
    )
    numWorkers: Param[int] = _param(
        "numWorkers",
        "tasks that train; if it is not set, one for each partition, as far as there are task slots",
        TypeConverters.toInt,
    )
    numServers: Param[int] = _param(
        "numServers", "servers of the fleet that fit starts where no PS2Context is active", TypeConverters.toInt
    )
    localPasses: Param[int] = _param(
        "localPasses", "passes over a worker's rows between two averages (ma-sgd)", TypeConverters.toInt
    )
    localBatchSize: Param[int] = _param(
        "localBatchSize", "rows that a local step averages, 0 for all of a worker's (ma-sgd)", TypeConverters.toInt
    )
    localSteps: Param[int] = _param(
        "localSteps", "local steps between two averages, at most (ftsgd)", TypeConverters.toInt
    )

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args)
        self._setDefault(
            solver="auto",
            optimizer="adam",
            stepSize=0.1,
            miniBatchFraction=1.0,
            lazy=False,
            staleness=0,
            localPasses=1,
            localBatchSize=1,
            localSteps=5,
            seed=0,
        )
        self._set_theirs()
        self.setParams(**params)

    def _set_theirs(self) -> None:
        """Set defaults that differ from the ones here."""

    def setParams(self: P, **params: Any) -> P:
        """Set params by name.

        Raises:
            TypeError: there is no such param, or its value is of another type.
        """
        unknown = sorted(name for name in params if not self.hasParam(name))
        if unknown:
            known = ", ".join(param.name for param in self.params)
            raise TypeError(f"{type(self).__name__}: there is no param {unknown[0]!r}; there are: {known}")
        return self._set(**params)

    def _set(self: P, **params: Any) -> P:
        features = params.get("featuresCol")
        if isinstance(features, (list, tuple)):
            params = {**params, "featuresCols": list(features), "featuresCol": None}
        elif features is not None and params.get("featuresCols") is None:
            self.clear(self.featuresCols)
        super()._set(**params)
        return self

    # -- getters and setters ---------------------------------------------------------------------------------------

    def getOptimizer(self) -> str:
        """Get the update rule of solver "minibatch"."""
        return self.getOrDefault(self.optimizer)

    def getMiniBatchFraction(self) -> float:
        """Get the share of rows in a minibatch."""
        return self.getOrDefault(self.miniBatchFraction)

    def getLazy(self) -> bool:
        """Get whether only weights of a minibatch's features take its step."""
        return self.getOrDefault(self.lazy)

    def getStaleness(self) -> int:
        """Get how many steps a worker may be ahead of the slowest; -1: any number."""
        return self.getOrDefault(self.staleness)

    def getNumWorkers(self) -> int:
        """Get the number of tasks that train; KeyError if it is not set."""
        return self.getOrDefault(self.numWorkers)

    def getNumServers(self) -> int:
        """Get the number of servers to start; KeyError if it is not set."""
        return self.getOrDefault(self.numServers)

    def getLocalPasses(self) -> int:
        """Get the passes over a worker's rows between two averages."""
        return self.getOrDefault(self.localPasses)

    def getLocalBatchSize(self) -> int:
        """Get the rows that a local step averages."""
        return self.getOrDefault(self.localBatchSize)

    def getLocalSteps(self) -> int:
        """Get the largest number of local steps between two averages."""
        return self.getOrDefault(self.localSteps)


class TrainingSetters(TrainingParams):
    """The setters of estimators; models have those of their columns alone."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Say in the signature, as ``help`` shows it, which params there are."""
        super().__init_subclass__(**kwargs)
        names = sorted(name for name in dir(cls) if isinstance(getattr(cls, name, None), Param))
        keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]

    def setMaxIter(self: P, value: int) -> P:
        """Set the largest number of steps."""
        return self._set(maxIter=value)

    def setRegParam(self: P, value: float) -> P:
        """Set the strength of the penalty."""
        return self._set(regParam=value)

    def setTol(self: P, value: float) -> P:
        """Set the relative improvement below which training ends."""
        return self._set(tol=value)

    def setFitIntercept(self: P, value: bool) -> P:
        """Set whether there are intercepts."""
        return self._set(fitIntercept=value)

    def setWeightCol(self: P, value: str) -> P:
        """Set the name of the column of weights."""
        return self._set(weightCol=value)

    def setValidationIndicatorCol(self: P, value: str) -> P:
        """Set the name of the column that is true for rows to hold out."""
        return self._set(validationIndicatorCol=value)

    def setSolver(self: P, value: str) -> P:
        """Set how to train."""
        return self._set(solver=value)

    def setOptimizer(self: P, value: str) -> P:
        """Set the update rule of solver "minibatch"."""
        return self._set(optimizer=value)

    def setStepSize(self: P, value: float) -> P:
        """Set the learning rate."""
        return self._set(stepSize=value)

    def setMiniBatchFraction(self: P, value: float) -> P:
        """Set the share of rows in a minibatch."""
        return self._set(miniBatchFraction=value)

    def setLazy(self: P, value: bool) -> P:
        """Set whether only weights of a minibatch's features take its step."""
        return self._set(lazy=value)

    def setStaleness(self: P, value: int) -> P:
        """Set how many steps a worker may be ahead of the slowest; -1: any number."""
        return self._set(staleness=value)

    def setNumWorkers(self: P, value: int) -> P:
        """Set the number of tasks that train."""
        return self._set(numWorkers=value)

    def setNumServers(self: P, value: int) -> P:
        """Set the number of servers to start where no PS2Context is active."""
        return self._set(numServers=value)

    def setLocalPasses(self: P, value: int) -> P:
        """Set the passes over a worker's rows between two averages."""
        return self._set(localPasses=value)

    def setLocalBatchSize(self: P, value: int) -> P:
        """Set the rows that a local step averages."""
        return self._set(localBatchSize=value)

    def setLocalSteps(self: P, value: int) -> P:
        """Set the largest number of local steps between two averages."""
        return self._set(localSteps=value)

    def setSeed(self: P, value: int) -> P:
        """Set the seed of minibatches, orders and beginnings."""
        return self._set(seed=value)


class LinearSetters(TrainingSetters):
    """Setters of what linear models have and factorization machines have not."""

    def setStandardization(self: P, value: bool) -> P:
        """Set whether the penalty is on the weights of features of standard deviation 1."""
        return self._set(standardization=value)

    def setAggregationDepth(self: P, value: int) -> P:
        """Set what has no effect here: nothing is aggregated in a tree."""
        return self._set(aggregationDepth=value)

    def setMaxBlockSizeInMB(self: P, value: float) -> P:
        """Set what has no effect here: a worker's rows are one block."""
        return self._set(maxBlockSizeInMB=value)


def check_ranges(params: TrainingParams) -> None:
    """Raise ConfigError for a value that cannot be."""
    for name, (is_fine, expected) in RANGES.items():
        if params.hasParam(name) and params.isDefined(name):
            value = params.getOrDefault(name)
            if not is_fine(value):
                raise ConfigError(f"{name}: expected {expected}, got {value!r}")


def recipe_of(params: Any, l1: float) -> Recipe:
    """Make the recipe that params ask for.

    Args:
        params: of an estimator.
        l1: strength of the L1 penalty.

    Raises:
        ConfigError: there is no such solver, or it does not take what has been set.
    """
    solver, optimizer = _solver_of(params)
    for name in CHOOSY:
        if name not in TAKES.get(solver, ()) and params.isSet(name) and _differs(params, name):
            takers = ", ".join(repr(taker) for taker, names in TAKES.items() if name in names)
            raise ConfigError(f"{name}: solver {params.getSolver()!r} does not take it, only {takers}")
    if l1 > 0 and solver not in TAKES_L1:
        raise ConfigError(
            f"elasticNetParam: solver {solver!r} takes L2 penalties only, got {params.getElasticNetParam():g}; "
            f"{', '.join(map(repr, TAKES_L1))} take both"
        )
    if optimizer in DECAYING and params.getLazy() and params.getOrDefault("regParam") > 0:
        raise ConfigError(
            f"lazy: solver {params.getSolver()!r} lets all weights decay in each step; with a penalty set solver "
            f"'minibatch', got regParam {params.getOrDefault('regParam'):g}"
        )
    recipe = Recipe(
        solver=solver,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        lazy=params.getLazy(),
        steps=params.getMaxIter(),
        tol=params.getTol(),
        step_size=params.getStepSize(),
        fraction=params.getMiniBatchFraction(),
        staleness=None if params.getStaleness() == ASP else params.getStaleness(),
        # A seed of pyspark.ml may be a hash, of either sign.
        seed=params.getSeed() % 2**63,
        validate=params.isSet("validationIndicatorCol"),
    )
    return replace(
        recipe,
        local_passes=params.getLocalPasses(),
        local_batch=params.getLocalBatchSize(),
        local_steps=params.getLocalSteps(),
    )


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
