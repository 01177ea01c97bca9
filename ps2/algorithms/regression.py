"""Regression: pyspark.ml's LinearRegression, FMRegressor, GBTRegressor and RandomForestRegressor, on servers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.ml import regression
from pyspark.ml.linalg import Vector
from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.regression import (
    RegressionModel,
    Regressor,
    _GBTRegressorParams,
    _LinearRegressionParams,
    _RandomForestRegressorParams,
)
from pyspark.ml.util import MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.heads import ValueHead
from ps2.algorithms.estimators.model_files import ExportingWriter
from ps2.algorithms.estimators.models import FleetRegressionModel
from ps2.algorithms.estimators.params import choice, getter, own_param, setter
from ps2.algorithms.estimators.summaries import RegressionSummary, RegressionTrainingSummary
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.linear.ml.estimator import LinearEstimator
from ps2.algorithms.linear.ml.factors import FactorModel, FactorParams, FactorSetters
from ps2.algorithms.linear.ml.models import WeightsModel, as_vector
from ps2.algorithms.linear.ml.named_summaries import LinearRegressionSummary, LinearRegressionTrainingSummary
from ps2.algorithms.linear.ml.params import SOLVERS_OF_LEAST_SQUARES, LinearSetters, TrainingParams
from ps2.algorithms.linear.ml.path import PathEstimator, PathParams
from ps2.algorithms.linear.problem import LossName, Problem, SolverOptions
from ps2.algorithms.linear.solvers.averaging import refused
from ps2.algorithms.linear.solvers.normal import MAX_FEATURES
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.trees.forests.options import ImpurityName
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import CODES, Objective
from ps2.algorithms.trees.ml.estimator import TreeEstimator
from ps2.algorithms.trees.ml.forest_estimator import ForestEstimator
from ps2.algorithms.trees.ml.forest_models import ForestOfTrees, ForestRegressionTree
from ps2.algorithms.trees.ml.forest_params import ForestParams
from ps2.algorithms.trees.ml.models import ForestModel
from ps2.algorithms.trees.ml.params import TreeParams
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import LossName as LossOfTrees
from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import regression as keywords

LOSSES_OF_TREES: dict[str, LossOfTrees] = {name: name for name in CODES if name != "logistic"}
IMPURITIES: tuple[ImpurityName, ...] = ("variance",)
# Leaves are float32, and may be as large as the range of the labels.
MAX_LABEL = 1e38
LOSSES: dict[str, LossName] = {"squaredError": "squared", "huber": "huber"}


class _LinearParams(PathParams, _LinearRegressionParams):
    solver: Param[str] = choice(
        TrainingParams.solver,
        SOLVERS_OF_LEAST_SQUARES,
        f"how to train: {', '.join(SOLVERS_OF_LEAST_SQUARES)}; auto is minibatch if an optimizer is set, else "
        f"normal for the squared error of up to {MAX_FEATURES} features, else l-bfgs",
    )
    loss: Param[str] = choice(_LinearRegressionParams.loss, LOSSES)
    _SOLVERS = SOLVERS_OF_LEAST_SQUARES


class LinearRegression(PathEstimator, LinearSetters, _LinearParams, Regressor["LinearRegressionModel"]):
    """Linear regression with squared or Huber loss: ``pyspark.ml.regression.LinearRegression`` on servers.

    Example::

        model = LinearRegression(regParam=0.1, elasticNetParam=0.5).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.LinearRegression]) -> None:
        super().__init__(**params)

    _LOSSES = ("squared", "huber")

    setElasticNetParam = setter(_LinearParams.elasticNetParam)
    setLoss = setter(_LinearParams.loss)
    setEpsilon = setter(_LinearParams.epsilon)

    def _check(self) -> None:
        super()._check()
        if self.getLoss() not in LOSSES:
            raise ConfigError(f"loss: expected one of {', '.join(LOSSES)}, got {self.getLoss()!r}")
        if self.getLoss() == "huber" and self._strengths()[0] > 0:
            raise ConfigError(
                f"elasticNetParam: loss 'huber' takes L2 penalties only, got {self.getElasticNetParam():g}"
            )
        if self.getSolver() == "ma-sgd" and self.getLoss() == "huber":
            raise refused("loss 'huber'")
        if self.getSolver() == "normal":
            if self.getLoss() == "huber":
                raise ConfigError("solver: loss 'huber' has no normal equations, got 'normal'")
            if self.isSet("validationIndicatorCol"):
                raise ConfigError("validationIndicatorCol: solver 'normal' takes no steps that it could judge")

    def _decided(self, options: SolverOptions, problem: Problem) -> SolverOptions:
        is_auto = options.solver == "l-bfgs" and self.getSolver() == "auto" and self._initial is None
        if is_auto and self.getLoss() == "squaredError" and problem.dim <= MAX_FEATURES and not options.validate:
            return replace(options, solver="normal")
        if options.solver == "normal" and problem.dim > MAX_FEATURES:
            raise ConfigError(f"solver: 'normal' takes {MAX_FEATURES:,} features at most, got {problem.dim:,}")
        return options

    def _problem(self, found: Survey) -> Problem:
        l1, l2 = self._strengths()
        if self.getLoss() == "squaredError":
            l2 /= _label_scale(found)
        return Problem(
            loss=LOSSES[self.getLoss()],
            dim=found.dim,
            fit_intercept=self.getFitIntercept(),
            l1=l1,
            l2=l2,
            standardize=self.getStandardization(),
            epsilon=self.getEpsilon(),
        )

    def _model(self, weights: Weights) -> LinearRegressionModel:
        return LinearRegressionModel(weights)


def _label_scale(found: Survey) -> float:
    """Return the divisor of labels in pyspark.ml.

    It minimises 1/2 |x w' - y / s|^2 + r (a |w'|_1 + (1 - a) / 2 |w'|^2) / s with w' = w / s; times s^2 that is
    1/2 |x w - y|^2 + r a |w|_1 + (1 - a) r / (2 s) |w|^2: the L2 penalty is divided by s, the L1 penalty is not.
    """
    return found.facts.label_std or abs(found.facts.label_mean) or 1.0


class LinearRegressionModel(WeightsModel, FleetRegressionModel, _LinearParams, RegressionModel[Vector]):
    """What ``LinearRegression.fit`` returns."""

    @property
    def coefficients(self) -> Vector:
        """Weights of the features."""
        return as_vector(self._weights.array("coefficients")[:, 0])

    @property
    def intercept(self) -> float:
        """Intercept."""
        return float(self._weights.biases[0])

    @property
    def scale(self) -> float:
        """The divisor of residuals in Huber's loss; 1 with the squared loss."""
        return math.exp(self._weights.biases[1]) if self._weights.problem.loss == "huber" else 1.0

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return LinearRegressionSummary, LinearRegressionTrainingSummary

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``; with ``format("pmml")``, pyspark.ml writes its own
        model.
        """
        return ExportingWriter(self)

    def toPyspark(self) -> regression.LinearRegressionModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(regression.LinearRegressionModel, self.coefficients, self.intercept, self.scale)


class FMRegressor(LinearEstimator, FactorSetters, Regressor["FMRegressionModel"]):
    """Factorization machine for numbers: ``pyspark.ml.regression.FMRegressor`` on servers.

    Example::

        model = FMRegressor(factorSize=8, stepSize=0.05).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.FMRegressor]) -> None:
        super().__init__(**params)

    _LOSSES = ("fmSquared",)

    def _problem(self, found: Survey) -> Problem:
        return self._factor_problem("fmSquared", found.dim)

    def _model(self, weights: Weights) -> FMRegressionModel:
        return FMRegressionModel(weights)


class FMRegressionModel(FactorModel, FleetRegressionModel, FactorParams, RegressionModel[Vector]):
    """What ``FMRegressor.fit`` returns."""

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary

    def toPyspark(self) -> regression.FMRegressionModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(regression.FMRegressionModel, self.intercept, self.linear, self.factors)


class _GBTParams(TreeParams, _GBTRegressorParams):
    lossType: Param[str] = choice(
        _GBTRegressorParams.lossType,
        LOSSES_OF_TREES,
        f"the loss function to be minimized (case-insensitive): {', '.join(LOSSES_OF_TREES)}",
    )
    lossShape: Param[float] = own_param(
        "lossShape",
        "where loss huber turns linear (> 0), or which quantile loss quantile asks for, in (0, 1)",
        TypeConverters.toFloat,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(lossShape=0.5)

    getLossShape = getter(lossShape)


class GBTRegressor(TreeEstimator, _GBTParams, Regressor["GBTRegressionModel"]):
    """Gradient boosted trees: ``pyspark.ml.regression.GBTRegressor`` on servers, with more losses.

    Example::

        model = GBTRegressor(maxIter=50, maxDepth=6, maxBins=256).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.GBTRegressor]) -> None:
        super().__init__(**params)

    setLossType = setter(_GBTParams.lossType)
    setLossShape = setter(_GBTParams.lossShape)

    def _check(self) -> None:
        super()._check()
        loss, shape = self.getLossType(), self.getLossShape()
        if loss not in LOSSES_OF_TREES:
            raise ConfigError(f"lossType: expected one of {', '.join(LOSSES_OF_TREES)}, got {self.getLossType()!r}")
        if not 0 < shape < (1 if loss == "quantile" else math.inf):
            expected = "a number in (0, 1)" if loss == "quantile" else "a finite positive number"
            raise ConfigError(f"lossShape: expected {expected}, got {shape:g}")

    def _objective(self, found: Survey) -> Objective:
        loss, facts = LOSSES_OF_TREES[self.getLossType()], found.facts
        least, most = facts.label_range
        name = f"column {self.getLabelCol()!r}"
        if max(-least, most) > MAX_LABEL:
            of = least if -least > most else most
            raise InputError(f"{name}: expected labels up to {MAX_LABEL:g}, which leaves can say, got {of:g}")
        if loss == "poisson" and least < 0:
            raise InputError(f"{name}: expected counts for loss 'poisson', got labels down to {least:g}")
        if loss == "poisson" and not facts.label_mean > 0:
            raise InputError(f"{name}: expected counts for loss 'poisson' of which some are above 0, got zeros alone")
        return Objective(loss, shape=self.getLossShape())

    def _model(self, fitted: GBTModel) -> GBTRegressionModel:
        return GBTRegressionModel(fitted)


class GBTRegressionModel(ForestModel, FleetRegressionModel, _GBTParams, RegressionModel[Vector]):
    """What ``GBTRegressor.fit`` returns."""

    def _head(self) -> ValueHead:
        return ValueHead(link="exp" if self._trained.forest.loss == "poisson" else None)

    def evaluateEachIteration(self, dataset: DataFrame, loss: str | None = None) -> list[float]:
        """Return the mean loss of a DataFrame's rows after each round of trees.

        Args:
            loss: None: the loss that the model was trained for. "squared" or "absolute", unless the model's is
                "poisson".

        Raises:
            InputError: a column is missing or has another type. Faults within rows raise an error of Spark.
            ConfigError: that loss does not apply to the model's margins.
        """
        own = self._trained.forest.loss
        known = [own] if own == "poisson" else list(dict.fromkeys([own, "squared", "absolute"]))
        chosen = own if loss is None else loss.lower()
        if chosen not in known:
            raise ConfigError(f"loss: expected {' or '.join(known)}, got {loss!r}")
        return self._losses_by_round(dataset, LOSSES_OF_TREES[chosen])

    def _outputs(self) -> list[tuple[str, str]]:
        return self._with_leaves(super()._outputs())

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


class _ForestParams(ForestParams, _RandomForestRegressorParams):
    impurity: Param[str] = choice(_RandomForestRegressorParams.impurity, IMPURITIES)


class RandomForestRegressor(ForestEstimator, _ForestParams, Regressor["RandomForestRegressionModel"]):
    """A random forest: ``pyspark.ml.regression.RandomForestRegressor`` on servers.

    Example::

        model = RandomForestRegressor(numTrees=100, maxDepth=10, maxBins=256).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.RandomForestRegressor]) -> None:
        super().__init__(**params)

    _IMPURITIES = IMPURITIES

    setImpurity = setter(_ForestParams.impurity)

    def _objective(self, found: Survey) -> Objective:
        return Objective("squared")

    def _model(self, fitted: RandomForest) -> RandomForestRegressionModel:
        return RandomForestRegressionModel(fitted)


# ``getNumTrees`` is a property of models, as of pyspark.ml's.
class RandomForestRegressionModel(  # type: ignore[misc]
    ForestOfTrees, FleetRegressionModel, _ForestParams, RegressionModel[Vector]
):
    """What ``RandomForestRegressor.fit`` returns."""

    _TREE = ForestRegressionTree

    def _head(self) -> ValueHead:
        return ValueHead()

    def _outputs(self) -> list[tuple[str, str]]:
        return self._with_leaves(super()._outputs())

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary
