"""Classification: the estimators of pyspark.ml, linear ones and trees, trained on servers; online and deep models."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.ml import classification
from pyspark.ml.classification import (
    ClassificationModel,
    Classifier,
    ProbabilisticClassificationModel,
    ProbabilisticClassifier,
    _LinearSVCParams,
)
from pyspark.ml.linalg import DenseVector, Matrix, SparseMatrix, SparseVector, Vector
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasLoss

from ps2.algorithms.estimators.heads import ClassHead
from ps2.algorithms.estimators.models import ClassifyingModel, ProbabilityModel, check_thresholds
from ps2.algorithms.estimators.params import choice, setter
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.linear.ml.bounds import are_bounded, bounds_of, check_bounded
from ps2.algorithms.linear.ml.estimator import LinearEstimator
from ps2.algorithms.linear.ml.factors import FactorModel, FactorParams, FactorSetters
from ps2.algorithms.linear.ml.logistic_params import FAMILIES, LogisticParams
from ps2.algorithms.linear.ml.models import WeightsModel, as_matrix, as_vector
from ps2.algorithms.linear.ml.named_summaries import (
    BinaryLogisticRegressionSummary,
    BinaryLogisticRegressionTrainingSummary,
    FMClassificationSummary,
    FMClassificationTrainingSummary,
    LinearSVCSummary,
    LinearSVCTrainingSummary,
    LogisticRegressionSummary,
    LogisticRegressionTrainingSummary,
)
from ps2.algorithms.linear.ml.params import LinearSetters, TrainingParams, options_of
from ps2.algorithms.linear.ml.path import PathEstimator
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.solvers.averaging import refused
from ps2.algorithms.linear.weights import Weights
from ps2.errors import ConfigError, InputError, UsageError
from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.deep.estimator import DeepFM, DeepFMModel, WideAndDeep, WideAndDeepModel
    from ps2.algorithms.estimators.keywords import classification as keywords
    from ps2.algorithms.online.estimator import (
        OnlineFM,
        OnlineFMModel,
        OnlineLogisticRegression,
        OnlineLogisticRegressionModel,
    )
    from ps2.algorithms.trees.estimator import GBTClassifier
    from ps2.algorithms.trees.forests.estimator import RandomForestClassifier
    from ps2.algorithms.trees.forests.models import RandomForestClassificationModel
    from ps2.algorithms.trees.models import GBTClassificationModel

log = logging.getLogger(__name__)

__all__ = [
    "DeepFM",
    "DeepFMModel",
    "FMClassificationModel",
    "FMClassifier",
    "GBTClassificationModel",
    "GBTClassifier",
    "LinearSVC",
    "LinearSVCModel",
    "LogisticRegression",
    "LogisticRegressionModel",
    "OnlineFM",
    "OnlineFMModel",
    "OnlineLogisticRegression",
    "OnlineLogisticRegressionModel",
    "RandomForestClassificationModel",
    "RandomForestClassifier",
    "WideAndDeep",
    "WideAndDeepModel",
]

# Families that load on first use: a program pays for the modules of those that it trains.
_HOME = {
    "DeepFM": "ps2.algorithms.deep.estimator",
    "DeepFMModel": "ps2.algorithms.deep.estimator",
    "GBTClassificationModel": "ps2.algorithms.trees.models",
    "GBTClassifier": "ps2.algorithms.trees.estimator",
    "OnlineFM": "ps2.algorithms.online.estimator",
    "OnlineFMModel": "ps2.algorithms.online.estimator",
    "OnlineLogisticRegression": "ps2.algorithms.online.estimator",
    "OnlineLogisticRegressionModel": "ps2.algorithms.online.estimator",
    "RandomForestClassificationModel": "ps2.algorithms.trees.forests.models",
    "RandomForestClassifier": "ps2.algorithms.trees.forests.estimator",
    "WideAndDeep": "ps2.algorithms.deep.estimator",
    "WideAndDeepModel": "ps2.algorithms.deep.estimator",
}
LOSSES_OF_SVC = ("hinge", "squaredHinge")


class LogisticRegression(PathEstimator, LinearSetters, LogisticParams, ProbabilisticClassifier):
    """Logistic regression, binomial or multinomial: ``pyspark.ml.classification.LogisticRegression`` on servers.

    Example::

        model = LogisticRegression(regParam=0.01).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    def __init__(self, **params: Unpack[keywords.LogisticRegression]) -> None:
        super().__init__(**params)

    _CLASSES = 0
    _LOSSES = ("logistic", "softmax")

    def setParams(self, **params: Any) -> LogisticRegression:
        super().setParams(**params)
        self._checkThresholdConsistency()
        return self

    setFamily = setter(LogisticParams.family)
    setFactors = setter(LogisticParams.factors)
    setElasticNetParam = setter(LogisticParams.elasticNetParam)
    setLowerBoundsOnCoefficients = setter(LogisticParams.lowerBoundsOnCoefficients)
    setUpperBoundsOnCoefficients = setter(LogisticParams.upperBoundsOnCoefficients)
    setLowerBoundsOnIntercepts = setter(LogisticParams.lowerBoundsOnIntercepts)
    setUpperBoundsOnIntercepts = setter(LogisticParams.upperBoundsOnIntercepts)

    def _check(self) -> None:
        super()._check()
        self._checkThresholdConsistency()
        if self.getFamily() not in FAMILIES:
            raise ConfigError(f"family: expected one of {', '.join(FAMILIES)}, got {self.getFamily()!r}")
        solver = options_of(self, 0.0).solver
        check_bounded(self, solver)
        if solver == "ma-sgd" and self.getFamily() == "multinomial":
            raise refused("family 'multinomial'")
        if not 0 <= self.getOrDefault(self.threshold) <= 1:
            raise ConfigError(f"threshold: expected a number in [0, 1], got {self.getOrDefault(self.threshold)}")

    def _problem(self, found: Survey) -> Problem:
        classes = len(found.facts.class_weights)
        family = self.getFamily()
        if family == "multinomial" and found.has_class_0_alone:
            classes = 1
        if family == "binomial" and classes > 2:
            raise InputError(f"column {self.getLabelCol()!r}: expected 2 classes (family 'binomial'), got {classes}")
        if self.isSet(self.thresholds):
            check_thresholds(tuple(self.getThresholds()), classes)
        multinomial = family == "multinomial" or classes > 2
        if self.getFactors() == "always" and not multinomial:
            raise ConfigError(
                "factors: 'always' is for the multinomial model: the gradient of a binomial one has fewer numbers than "
                "its factors"
            )
        l1, l2 = self._strengths()
        return Problem(
            loss="softmax" if multinomial else "logistic",
            dim=found.dim,
            width=classes if multinomial else 1,
            fit_intercept=self.getFitIntercept(),
            l1=l1,
            l2=l2,
            standardize=self.getStandardization(),
        )

    def _decided(self, options: SolverOptions, problem: Problem) -> SolverOptions:
        return replace(options, bounds=bounds_of(self, problem)) if are_bounded(self) else options

    def _known(self, problem: Problem, found: Survey) -> Weights | None:
        """Return infinite intercepts for rows of a single class, as pyspark.ml does; 0 if there is only one class."""
        there = np.flatnonzero(found.facts.class_weights)
        is_sole = problem.loss == "softmax" and problem.width == 1
        if not is_sole and (len(there) > 1 or not problem.fit_intercept or are_bounded(self)):
            return None
        log.warning(
            "column %r: all rows are of class %d, so the coefficients are 0%s",
            self.getLabelCol(),
            there[0],
            ", and its intercept is infinite" if problem.fit_intercept else "",
        )
        biases = np.zeros(problem.biases)
        if not problem.fit_intercept:
            return Weights(problem, np.zeros((problem.dim, problem.width)), biases)
        if problem.loss == "softmax":
            biases[there[0]] = np.inf
        else:
            biases[0] = np.inf if there[0] == 1 else -np.inf
        return Weights(problem, np.zeros((problem.dim, problem.width)), biases)

    def _model(self, weights: Weights) -> LogisticRegressionModel:
        is_free = weights.problem.loss == "softmax" and not are_bounded(self)
        return LogisticRegressionModel(weights.centred() if is_free else weights)


class LogisticRegressionModel(WeightsModel, ProbabilityModel, LogisticParams, ProbabilisticClassificationModel):
    """What ``LogisticRegression.fit`` returns."""

    @property
    def _is_multinomial(self) -> bool:
        return self._weights.problem.loss == "softmax"

    def _check_binomial(self, name: str) -> None:
        if self._is_multinomial:
            raise UsageError(f"{name}: a multinomial model has coefficientMatrix and interceptVector")

    @property
    def coefficients(self) -> Vector:
        """Weights of the features of a binomial model."""
        self._check_binomial("coefficients")
        row = self.coefficientMatrix  # the vector is sparse if that is
        if isinstance(row, SparseMatrix):
            return SparseVector(row.numCols, row.rowIndices, row.values)
        return DenseVector(row.toArray().reshape(-1))

    @property
    def intercept(self) -> float:
        """Intercept of a binomial model."""
        self._check_binomial("intercept")
        return float(self._weights.biases[0])

    @property
    def coefficientMatrix(self) -> Matrix:
        """Weights: a row of a binomial model, else one for each class."""
        return as_matrix(self._weights.array("coefficientMatrix").T, is_row=not self._is_multinomial)

    @property
    def interceptVector(self) -> Vector:
        """Intercepts: one of a binomial model, else one for each class."""
        return as_vector(self._weights.biases)

    def _head(self) -> ClassHead:
        if self._is_multinomial:
            return ClassHead(self.numClasses, "softmax", thresholds=self._thresholds())
        return ClassHead(2, "logistic", threshold=self.getThreshold())

    def _summaries(self) -> tuple[Any, Any]:
        if self.numClasses == 2:
            return BinaryLogisticRegressionSummary, BinaryLogisticRegressionTrainingSummary
        return LogisticRegressionSummary, LogisticRegressionTrainingSummary

    def toPyspark(self) -> classification.LogisticRegressionModel:
        """Return the same model as pyspark.ml's.

        Raises:
            UsageError: its weights are too many for the driver.
        """
        return self._as_pyspark(
            classification.LogisticRegressionModel,
            self.coefficientMatrix,
            self.interceptVector,
            self.numClasses,
            self._is_multinomial,
        )


class _SVCParams(TrainingParams, _LinearSVCParams, HasLoss):
    loss: Param[str] = choice(
        HasLoss.loss, LOSSES_OF_SVC, f"the loss function to be optimized: {', '.join(LOSSES_OF_SVC)}"
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(loss="hinge")


class LinearSVC(LinearEstimator, LinearSetters, _SVCParams, Classifier["LinearSVCModel"]):
    """Linear support vector machine: ``pyspark.ml.classification.LinearSVC`` on servers, with a squared hinge too.

    Example::

        model = LinearSVC(regParam=0.01, loss="squaredHinge").fit(df)
    """

    def __init__(self, **params: Unpack[keywords.LinearSVC]) -> None:
        super().__init__(**params)

    _CLASSES = 2
    _LOSSES = ("hinge", "squaredHinge")

    setThreshold = setter(_SVCParams.threshold)
    setLoss = setter(_SVCParams.loss)

    def _check(self) -> None:
        super()._check()
        if self.getLoss() not in LOSSES_OF_SVC:
            raise ConfigError(f"loss: expected one of {', '.join(LOSSES_OF_SVC)}, got {self.getLoss()!r}")

    def _problem(self, found: Survey) -> Problem:
        return Problem(
            loss=self.getLoss(),  # type: ignore[arg-type]
            dim=found.dim,
            fit_intercept=self.getFitIntercept(),
            l2=self.getRegParam(),
            standardize=self.getStandardization(),
        )

    def _model(self, weights: Weights) -> LinearSVCModel:
        return LinearSVCModel(weights)


class LinearSVCModel(WeightsModel, ClassifyingModel, _SVCParams, ClassificationModel):
    """What ``LinearSVC.fit`` returns."""

    setThreshold = setter(_SVCParams.threshold)

    @property
    def coefficients(self) -> Vector:
        """Weights of the features."""
        return as_vector(self._weights.array("coefficients")[:, 0])

    @property
    def intercept(self) -> float:
        """Intercept."""
        return float(self._weights.biases[0])

    def _head(self) -> ClassHead:
        return ClassHead(2, None, threshold=self.getThreshold())

    def _summaries(self) -> tuple[Any, Any]:
        return LinearSVCSummary, LinearSVCTrainingSummary

    def toPyspark(self) -> classification.LinearSVCModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(classification.LinearSVCModel, self.coefficients, self.intercept)


class FMClassifier(LinearEstimator, FactorSetters, ProbabilisticClassifier):
    """Factorization machine for two classes: ``pyspark.ml.classification.FMClassifier`` on servers.

    Example::

        model = FMClassifier(factorSize=8, stepSize=0.05).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.FMClassifier]) -> None:
        super().__init__(**params)

    _CLASSES = 2
    _LOSSES = ("fmLogistic",)

    def _problem(self, found: Survey) -> Problem:
        if self.isSet(self.thresholds):
            check_thresholds(tuple(self.getThresholds()), 2)
        return self._factor_problem("fmLogistic", found.dim)

    def _model(self, weights: Weights) -> FMClassificationModel:
        return FMClassificationModel(weights)


class FMClassificationModel(FactorModel, ProbabilityModel, FactorParams, ProbabilisticClassificationModel):
    """What ``FMClassifier.fit`` returns."""

    def _head(self) -> ClassHead:
        return ClassHead(2, "logistic", thresholds=self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return FMClassificationSummary, FMClassificationTrainingSummary

    def toPyspark(self) -> classification.FMClassificationModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(classification.FMClassificationModel, self.intercept, self.linear, self.factors)


if not TYPE_CHECKING:  # type checkers look for unknown names themselves
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
