"""The params of linear models and factorization machines."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ps2.algorithms.frame.settings import Flexible, Setting, Settings, getter, param, setter, with_default
from ps2.algorithms.frame.shared_settings import (
    ClassifierSettings,
    FeatureSettings,
    LabelSettings,
    ProbabilitySettings,
    SpillSettings,
    WeightSettings,
)

if TYPE_CHECKING:
    from pyspark.ml.linalg import Matrix, Vector

    from ps2.algorithms.frame.shared_settings import Floats

S = TypeVar("S")

LossName = Literal["logistic", "softmax", "hinge", "squaredHinge", "squared", "huber", "fmLogistic", "fmSquared"]
SolverName = Literal["l-bfgs", "normal", "minibatch", "ma-sgd", "ftsgd", "sap"]
UsePolicy = Literal["auto", "always", "never"]
USE_POLICIES: tuple[UsePolicy, ...] = get_args(UsePolicy)
# The value of ``staleness`` with which no worker waits for another (ASP).
ASP_STALENESS = -1
# The maximum number of features of the normal equations, as in pyspark.ml: their products take 64 MiB.
MAX_FEATURES = 4096
# The params of minibatches, and those that only some solvers support, by solver.
STEP_PARAMS = ("lazy", "staleness", "stepSize", "miniBatchFraction")
PARAMS_BY_SOLVER: dict[SolverName, tuple[str, ...]] = {
    "l-bfgs": ("factors",),
    "minibatch": ("optimizer", *STEP_PARAMS, "factors"),
    "ma-sgd": ("stepSize", "localPasses", "localBatchSize"),
    "ftsgd": ("stepSize", "miniBatchFraction", "localSteps", "momentum", "adaptiveMomentum", "localSearch"),
    "sap": (),
}
LINEAR_SOLVERS = ("auto", "l-bfgs", "minibatch", "ma-sgd", "ftsgd")
LASSO_SOLVERS = (*LINEAR_SOLVERS, "sap")
LEAST_SQUARES_SOLVERS = (*LASSO_SOLVERS, "normal")
FM_SOLVERS = ("auto", "l-bfgs", "adamW", "gd", "minibatch", "ftsgd")
REGRESSION_LOSSES: dict[str, LossName] = {"squaredError": "squared", "huber": "huber"}
OPTIMIZERS = ("adam", "sgd", "momentum", "adagrad", "rmsprop", "ftrl")
AUTO = "auto is minibatch if an optimizer is set, else l-bfgs"


def _optimizer_name(value: Any) -> str:
    """Return the declared name that equals ``value`` but for case; ``value`` itself if there is none."""
    from ps2.ops.all import optimizer_steps

    if not isinstance(value, str):
        raise TypeError(f"expected the name of an optimizer, got {value!r}")
    return next((name for name in optimizer_steps() if name.lower() == value.lower()), value)


def _is_optimizer(name: str) -> bool:
    from ps2.ops.all import optimizer_steps

    return name in optimizer_steps()


def _are_descending(values: Sequence[float]) -> bool:
    return len(values) > 0 and all(math.inf > a > b for a, b in itertools.pairwise([*values, 0.0]))


class SolverSettings(FeatureSettings, LabelSettings, WeightSettings, SpillSettings):
    """The params that all estimators of the family share, except ``solver``."""

    maxIter: Setting[int] = param(
        100,
        "the maximum number of iterations (l-bfgs, sap), of minibatches, or of model averages (ma-sgd, ftsgd)",
        at_least=0,
        option="steps",
    )
    regParam: Setting[float] = param(0.0, "the strength of the penalty on large coefficients", at_least=0, option=None)
    tol: Setting[float] = param(
        1e-6,
        "stop when an iteration improves the objective by less than this fraction of it (l-bfgs), or when the duality "
        "gap is below this fraction of the objective (sap)",
        at_least=0,
        option=None,
    )
    fitIntercept: Setting[bool] = param(True, "whether to fit an intercept", option="intercept")
    optimizer: Setting[str] = param(
        "adam",
        f"the update rule of solver minibatch: {', '.join(OPTIMIZERS)}",
        check=(_is_optimizer, f"one of {', '.join(OPTIMIZERS)}, or one of your own modules'"),
        type=_optimizer_name,
        option=None,
    )
    stepSize: Setting[float] = param(0.1, "the learning rate (minibatch, ma-sgd, ftsgd)", above=0, option="lr")
    miniBatchFraction: Setting[float] = param(
        1.0,
        "the fraction of the rows, drawn at random, that each step uses (minibatch, ftsgd)",
        above=0,
        at_most=1,
        option="fraction",
    )
    lazy: Setting[bool] = param(
        False, "whether a step updates only the weights of the minibatch's features (minibatch)", option=None
    )
    staleness: Setting[int] = param(
        0,
        "how many steps a worker may be ahead of the slowest worker: 0 is BSP, above 0 SSP, -1 ASP (minibatch)",
        check=(lambda value: value >= ASP_STALENESS, "a number of steps, or -1 for no bound"),
        option=None,
    )
    localPasses: Setting[int] = param(
        1, "the number of passes over a worker's rows between two model averages (ma-sgd)", at_least=1, option=None
    )
    localBatchSize: Setting[int] = param(
        1,
        "the number of rows of a local step; 0: all rows of the worker (ma-sgd)",
        check=(lambda value: value >= 0, "rows, or 0 for all of a worker's"),
        option=None,
    )
    localSteps: Setting[int] = param(
        5, "the maximum number of local steps between two model averages (ftsgd)", at_least=1
    )
    momentum: Setting[float] = param(
        0.45,
        "the factor of a local step's momentum: momentum * (1 + cos), where cos is the cosine of the angle between the "
        "gradients of the step and of the previous step (ftsgd)",
        at_least=0,
        below=1,
    )
    adaptiveMomentum: Setting[bool] = param(
        True,
        "True: local steps have momentum, and the step size is halved when they oscillate; False: no momentum, and the "
        "step size is stepSize / sqrt(step) (ftsgd)",
        option=None,
    )
    localSearch: Setting[str] = param(
        "auto",
        "whether workers take local steps: 'always', 'never' (which is MLlib's SGD), or 'auto': in the first step, and "
        "then if the workers' models agree by the 68-95-99.7 rule (ftsgd)",
        one_of=USE_POLICIES,
    )
    seed: Setting[int] = param(0, "the seed of minibatches, of the order of rows, and of initial factors", bits=64)
    validationIndicatorCol: Setting[str | None] = param(
        None,
        "the column that is true for rows held out for validation: training stops when their loss no longer improves; "
        "not set: all rows are trained on",
        type=str,
        option=None,
    )

    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getRegParam, setRegParam = getter(regParam), setter(regParam)
    getTol, setTol = getter(tol), setter(tol)
    getFitIntercept, setFitIntercept = getter(fitIntercept), setter(fitIntercept)
    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getMiniBatchFraction, setMiniBatchFraction = getter(miniBatchFraction), setter(miniBatchFraction)
    getLazy, setLazy = getter(lazy), setter(lazy)
    getStaleness, setStaleness = getter(staleness), setter(staleness)
    getLocalPasses, setLocalPasses = getter(localPasses), setter(localPasses)
    getLocalBatchSize, setLocalBatchSize = getter(localBatchSize), setter(localBatchSize)
    getLocalSteps, setLocalSteps = getter(localSteps), setter(localSteps)
    getMomentum, setMomentum = getter(momentum), setter(momentum)
    getAdaptiveMomentum, setAdaptiveMomentum = getter(adaptiveMomentum), setter(adaptiveMomentum)
    getLocalSearch, setLocalSearch = getter(localSearch), setter(localSearch)
    getSeed, setSeed = getter(seed), setter(seed)
    getValidationIndicatorCol = getter(validationIndicatorCol)
    setValidationIndicatorCol = setter(validationIndicatorCol)


class LinearSettings(SolverSettings):
    """The params of linear models. ``aggregationDepth`` and ``maxBlockSizeInMB`` of pyspark.ml have no effect."""

    standardization: Setting[bool] = param(
        True, "whether to divide the features by their standard deviations before training", option=None
    )
    aggregationDepth: Setting[int] = param(2, "no effect: servers aggregate", option=None)
    maxBlockSizeInMB: Setting[float] = param(0.0, "no effect: a worker's rows are one block", option=None)

    getStandardization, setStandardization = getter(standardization), setter(standardization)
    getAggregationDepth, setAggregationDepth = getter(aggregationDepth), setter(aggregationDepth)
    getMaxBlockSizeInMB, setMaxBlockSizeInMB = getter(maxBlockSizeInMB), setter(maxBlockSizeInMB)


class PathSettings(Settings):
    """The params of a regularization path."""

    lambdaPath: Flexible[list[float] | None, Floats] = param(
        None,
        "the values of regParam for fitPath, descending; not set: lambdaCount values are chosen",
        check=(_are_descending, "finite positive numbers, each smaller than the previous one"),
        type=list[float],
        option=None,
    )
    lambdaCount: Setting[int] = param(
        100,
        "the number of values of regParam that fitPath chooses; the first one is the smallest with all coefficients 0",
        at_least=1,
        option=None,
    )
    lambdaRatio: Setting[float] = param(
        1e-2, "the ratio of the last to the first value that fitPath chooses", above=0, below=1, option=None
    )

    getLambdaPath, setLambdaPath = getter(lambdaPath), setter(lambdaPath)
    getLambdaCount, setLambdaCount = getter(lambdaCount), setter(lambdaCount)
    getLambdaRatio, setLambdaRatio = getter(lambdaRatio), setter(lambdaRatio)


class ElasticNetSettings(LinearSettings, PathSettings):
    """The params of linear models with L1 penalties."""

    elasticNetParam: Setting[float] = param(
        0.0,
        "the fraction of the penalty that is L1: 0 is an L2 penalty alone, 1 an L1 penalty alone",
        at_least=0,
        at_most=1,
        option=None,
    )

    getElasticNetParam, setElasticNetParam = getter(elasticNetParam), setter(elasticNetParam)


class LogisticRegressionSettings(ElasticNetSettings, ProbabilitySettings):
    """The params of logistic regression."""

    solver: Setting[str] = param(
        "auto", f"how to train: {', '.join(LASSO_SOLVERS)}; {AUTO}", one_of=LASSO_SOLVERS, option=None
    )
    family: Setting[str] = param(
        "auto",
        "the model: 'binomial' (two classes), 'multinomial' (weights for each class), or 'auto' (binomial for at most "
        "two classes)",
        one_of=("auto", "binomial", "multinomial"),
        option=None,
    )
    factors: Setting[str] = param(
        "auto",
        "whether workers send gradients of the multinomial model as sufficient factors: 'auto' (if these take fewer "
        "bytes than the values), 'always' or 'never' (l-bfgs, minibatch)",
        one_of=USE_POLICIES,
        option=None,
    )
    threshold: Setting[float] = param(
        0.5,
        "class 1 of two classes is predicted if its probability is above this; if thresholds is set too, it must be "
        "equivalent",
        at_least=0,
        at_most=1,
        option=None,
        in_model=True,
    )
    lowerBoundsOnCoefficients: Setting[Matrix | None] = param(
        None,
        "the lower bounds of the coefficients: a row for each class (binomial: one row) and a column for each feature; "
        "not set: none (l-bfgs)",
        type="toMatrix",
        option=None,
    )
    upperBoundsOnCoefficients: Setting[Matrix | None] = param(
        None,
        "the upper bounds of the coefficients, of the same shape; not set: none (l-bfgs)",
        type="toMatrix",
        option=None,
    )
    lowerBoundsOnIntercepts: Setting[Vector | None] = param(
        None,
        "the lower bounds of the intercepts, one for each class (binomial: one); not set: none (l-bfgs)",
        type="toVector",
        option=None,
    )
    upperBoundsOnIntercepts: Setting[Vector | None] = param(
        None,
        "the upper bounds of the intercepts, one for each class (binomial: one); not set: none (l-bfgs)",
        type="toVector",
        option=None,
    )

    getSolver, setSolver = getter(solver), setter(solver)
    getFamily, setFamily = getter(family), setter(family)
    getFactors, setFactors = getter(factors), setter(factors)
    getLowerBoundsOnCoefficients = getter(lowerBoundsOnCoefficients)
    setLowerBoundsOnCoefficients = setter(lowerBoundsOnCoefficients)
    getUpperBoundsOnCoefficients = getter(upperBoundsOnCoefficients)
    setUpperBoundsOnCoefficients = setter(upperBoundsOnCoefficients)
    getLowerBoundsOnIntercepts = getter(lowerBoundsOnIntercepts)
    setLowerBoundsOnIntercepts = setter(lowerBoundsOnIntercepts)
    getUpperBoundsOnIntercepts = getter(upperBoundsOnIntercepts)
    setUpperBoundsOnIntercepts = setter(upperBoundsOnIntercepts)

    # -- threshold and thresholds: with two classes, each determines the other, as in pyspark.ml -----------------------

    def setThreshold(self: S, value: float) -> S:
        """Set threshold, and clear thresholds."""
        params: Any = self
        params._set(threshold=value).clear(params.thresholds)
        return self

    def setThresholds(self: S, value: Floats) -> S:
        """Set thresholds, and clear threshold."""
        params: Any = self
        params._set(thresholds=value).clear(params.threshold)
        return self

    def getThreshold(self: Any) -> float:
        """Get threshold, or the threshold that is equivalent to thresholds of two classes."""
        self._check_threshold_consistency()
        if not self.isSet("thresholds"):
            threshold: float = self.getOrDefault("threshold")
            return threshold
        return threshold_of(self.getOrDefault("thresholds"))

    def getThresholds(self: Any) -> list[float]:
        """Get thresholds, or the thresholds that are equivalent to threshold; KeyError if neither is set."""
        self._check_threshold_consistency()
        if self.isSet("threshold") and not self.isSet("thresholds"):
            threshold = self.getOrDefault("threshold")
            return [1.0 - threshold, threshold]
        thresholds: list[float] = self.getOrDefault("thresholds")
        return thresholds

    def _check_threshold_consistency(self: Any) -> None:
        if self.isSet("threshold") and self.isSet("thresholds"):
            threshold, equivalent = self.getOrDefault("threshold"), threshold_of(self.getOrDefault("thresholds"))
            if abs(threshold - equivalent) >= 1e-5:
                raise ValueError(
                    f"inconsistent values for threshold ({threshold:g}) and thresholds (equivalent to {equivalent:g})"
                )


def threshold_of(thresholds: Sequence[float]) -> float:
    """Return the threshold that is equivalent to thresholds of two classes."""
    if len(thresholds) != 2:
        raise ValueError(f"thresholds: expected two, as only two classes have a threshold, got {list(thresholds)}")
    return 1.0 / (1.0 + thresholds[0] / thresholds[1]) if thresholds[1] else 0.0


class LinearSVCSettings(LinearSettings, ClassifierSettings):
    """The params of linear support vector machines."""

    solver: Setting[str] = param("auto", f"how to train: {', '.join(LINEAR_SOLVERS)}; {AUTO}", one_of=LINEAR_SOLVERS)
    loss: Setting[str] = param("hinge", "the loss to minimize", one_of=("hinge", "squaredHinge"))
    threshold: Setting[float] = param(
        0.0,
        "class 1 is predicted if its score is above this; inf: never, -inf: always",
        check=(lambda value: not math.isnan(value), "a number"),
        option=None,
        in_model=True,
    )

    getSolver, setSolver = getter(solver), setter(solver)
    getLoss, setLoss = getter(loss), setter(loss)
    getThreshold, setThreshold = getter(threshold), setter(threshold)


class LinearRegressionSettings(ElasticNetSettings):
    """The params of linear regression."""

    solver: Setting[str] = param(
        "auto",
        f"how to train: {', '.join(LEAST_SQUARES_SOLVERS)}; auto is minibatch if an optimizer is set, else normal "
        f"for the squared error of up to {MAX_FEATURES} features, else l-bfgs",
        one_of=LEAST_SQUARES_SOLVERS,
    )
    loss: Setting[str] = param("squaredError", "the loss to minimize", one_of=REGRESSION_LOSSES)
    epsilon: Setting[float] = param(
        1.35, "the residual, as a multiple of the scale, from which Huber's loss is linear (huber)", above=1
    )

    getSolver, setSolver = getter(solver), setter(solver)
    getLoss, setLoss = getter(loss), setter(loss)
    getEpsilon, setEpsilon = getter(epsilon), setter(epsilon)


class FactorizationSettings(SolverSettings):
    """The params of factorization machines, with pyspark.ml's defaults, but for ``solver`` (decision 124)."""

    solver: Setting[str] = param(
        "auto",
        f"how to train: {', '.join(FM_SOLVERS)}; adamW and gd are pyspark.ml's, with minibatches; auto is adamW "
        "if regParam is above 0 or a param of minibatches is set, else l-bfgs",
        one_of=FM_SOLVERS,
    )
    stepSize: Setting[float] = with_default(SolverSettings, "stepSize", 1.0)
    factorSize: Setting[int] = param(8, "the number of factors of each feature", at_least=1)
    fitLinear: Setting[bool] = param(True, "whether to also fit a linear weight of each feature")
    initStd: Setting[float] = param(0.01, "the standard deviation of the initial factors", at_least=0)

    getSolver, setSolver = getter(solver), setter(solver)
    getFactorSize, setFactorSize = getter(factorSize), setter(factorSize)
    getFitLinear, setFitLinear = getter(fitLinear), setter(fitLinear)
    getInitStd, setInitStd = getter(initStd), setter(initStd)


# pyspark.ml's default seed is a hash of the class's name, which differs between Python processes. These do not.
class FMClassifierSettings(FactorizationSettings, ProbabilitySettings):
    """The params of factorization machines for two classes."""

    seed: Setting[int] = with_default(SolverSettings, "seed", zlib.crc32(b"FMClassifier"))


class FMRegressorSettings(FactorizationSettings):
    """The params of factorization machines for regression."""

    seed: Setting[int] = with_default(SolverSettings, "seed", zlib.crc32(b"FMRegressor"))
