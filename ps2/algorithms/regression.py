"""Regression: pyspark.ml's LinearRegression, FMRegressor, GBTRegressor and RandomForestRegressor, on servers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.ml import regression
from pyspark.ml.linalg import Vector
from pyspark.ml.param import Param
from pyspark.ml.regression import RegressionModel, Regressor, _LinearRegressionParams
from pyspark.ml.util import MLWriter

from ps2.algorithms.estimators.heads import ValueHead
from ps2.algorithms.estimators.model_files import ExportingWriter
from ps2.algorithms.estimators.models import FleetRegressionModel
from ps2.algorithms.estimators.params import choice, setter
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
from ps2.errors import ConfigError
from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import regression as keywords
    from ps2.algorithms.trees.estimator import GBTRegressor
    from ps2.algorithms.trees.forests.estimator import RandomForestRegressor
    from ps2.algorithms.trees.forests.models import RandomForestRegressionModel
    from ps2.algorithms.trees.models import GBTRegressionModel

__all__ = [
    "FMRegressionModel",
    "FMRegressor",
    "GBTRegressionModel",
    "GBTRegressor",
    "LinearRegression",
    "LinearRegressionModel",
    "RandomForestRegressionModel",
    "RandomForestRegressor",
]

# Families that load on first use: a program pays for the modules of those that it trains.
_HOME = {
    "GBTRegressionModel": "ps2.algorithms.trees.models",
    "GBTRegressor": "ps2.algorithms.trees.estimator",
    "RandomForestRegressionModel": "ps2.algorithms.trees.forests.models",
    "RandomForestRegressor": "ps2.algorithms.trees.forests.estimator",
}
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


if not TYPE_CHECKING:  # type checkers look for unknown names themselves
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
