"""The public models of linear models and factorization machines, which ``fit`` returns."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from pyspark.ml import classification, regression
from pyspark.ml.classification import ClassificationModel, ProbabilisticClassificationModel
from pyspark.ml.linalg import DenseMatrix, DenseVector, Matrix, SparseMatrix, SparseVector, Vector, Vectors
from pyspark.ml.regression import RegressionModel
from pyspark.ml.util import MLWriter

from ps2.algorithms.frame.heads import ClassHead, ValueHead
from ps2.algorithms.frame.model_files import ExportingWriter
from ps2.algorithms.frame.models import ClassifyingModel, FleetModel, FleetRegressionModel, ProbabilityModel
from ps2.algorithms.frame.summaries import RegressionSummary, RegressionTrainingSummary
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem, Start
from ps2.algorithms.linear.settings import (
    FMClassifierSettings,
    FMRegressorSettings,
    LinearRegressionSettings,
    LinearSVCSettings,
    LogisticRegressionSettings,
    LossName,
)
from ps2.algorithms.linear.summaries import (
    BinaryLogisticRegressionSummary,
    BinaryLogisticRegressionTrainingSummary,
    FMClassificationSummary,
    FMClassificationTrainingSummary,
    LinearRegressionSummary,
    LinearRegressionTrainingSummary,
    LinearSVCSummary,
    LinearSVCTrainingSummary,
    LogisticRegressionSummary,
    LogisticRegressionTrainingSummary,
)
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.errors import ConfigError, UsageError


class WeightsModel(FleetModel):
    """A trained model of weights and biases."""

    _ARRAYS = Weights
    # The classes of the summary that ``evaluate`` returns, and of the training's summary.
    _SUMMARIES: ClassVar[tuple[Any, Any]]
    _LOADER = "ps2.algorithms.linear.model:LinearModel"

    @property
    def _weights(self) -> Weights:
        weights: Weights = self._fitted
        return weights

    @property
    def weightVector(self) -> DCV:
        """The weights of a model too large for the driver, on the servers, feature by feature.

        Raises:
            UsageError: the model is small, so its weights are an array in the driver.
        """
        weight = self._weights.weight
        if not isinstance(weight, DCV):
            raise UsageError(f"weightVector: the {self._weights.problem.size:,} weights are held in the driver")
        return weight

    @property
    def intercept(self) -> float:
        """Intercept."""
        return float(self._weights.biases[0])

    def _summaries(self) -> tuple[Any, Any]:
        return self._SUMMARIES


class LogisticRegressionModel(
    LogisticRegressionSettings, WeightsModel, ProbabilityModel, ProbabilisticClassificationModel
):
    """A trained ``LogisticRegression``."""

    __module__ = "ps2.algorithms.classification"

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
        row = self.coefficientMatrix  # the vector is sparse if the matrix is
        if isinstance(row, SparseMatrix):
            return SparseVector(row.numCols, row.rowIndices, row.values)
        return DenseVector(row.toArray().reshape(-1))

    @property
    def intercept(self) -> float:
        """Intercept of a binomial model."""
        self._check_binomial("intercept")
        return super().intercept

    @property
    def coefficientMatrix(self) -> Matrix:
        """Weights: one row for a binomial model, else a row for each class."""
        return as_matrix(self._weights.array("coefficientMatrix").T, is_row=not self._is_multinomial)

    @property
    def interceptVector(self) -> Vector:
        """Intercepts: one for a binomial model, else one for each class."""
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


class _SingleOutputModel(WeightsModel):
    """A linear model with one weight for each feature."""

    @property
    def coefficients(self) -> Vector:
        """Weights of the features."""
        return as_vector(self._weights.array("coefficients")[:, 0])


class LinearSVCModel(LinearSVCSettings, _SingleOutputModel, ClassifyingModel, ClassificationModel):
    """A trained ``LinearSVC``."""

    __module__ = "ps2.algorithms.classification"
    _SUMMARIES = LinearSVCSummary, LinearSVCTrainingSummary

    def _head(self) -> ClassHead:
        return ClassHead(2, None, threshold=self.getThreshold())

    def toPyspark(self) -> classification.LinearSVCModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(classification.LinearSVCModel, self.coefficients, self.intercept)


class LinearRegressionModel(
    LinearRegressionSettings, _SingleOutputModel, FleetRegressionModel, RegressionModel[Vector]
):
    """A trained ``LinearRegression``."""

    __module__ = "ps2.algorithms.regression"
    _SUMMARIES = LinearRegressionSummary, LinearRegressionTrainingSummary

    @property
    def scale(self) -> float:
        """The scale by which Huber's loss divides residuals; 1 with the squared loss."""
        return math.exp(self._weights.biases[1]) if self._weights.problem.loss == "huber" else 1.0

    def _head(self) -> ValueHead:
        return ValueHead()

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``; ``format("pmml")`` saves pyspark.ml's model."""
        return ExportingWriter(self)

    def toPyspark(self) -> regression.LinearRegressionModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(regression.LinearRegressionModel, self.coefficients, self.intercept, self.scale)


class FMModel(WeightsModel):
    """A trained factorization machine."""

    _LOADER = "ps2.algorithms.linear.model:FactorizationMachine"

    @property
    def linear(self) -> Vector:
        """Linear weights of the features."""
        return Vectors.dense(self._weights.array("linear")[:, 0])

    @property
    def factors(self) -> Matrix:
        """Factors, a row for each feature."""
        factors = self._weights.array("factors")[:, 1:]
        return DenseMatrix(factors.shape[0], factors.shape[1], factors.reshape(-1), isTransposed=True)

    def __repr__(self) -> str:
        params = {name: self.getOrDefault(name) for name in ("factorSize", "fitLinear", "fitIntercept")}
        return ", ".join([super().__repr__(), *(f"{name}={str(value).lower()}" for name, value in params.items())])


class FMClassificationModel(FMClassifierSettings, FMModel, ProbabilityModel, ProbabilisticClassificationModel):
    """A trained ``FMClassifier``."""

    __module__ = "ps2.algorithms.classification"
    _SUMMARIES = FMClassificationSummary, FMClassificationTrainingSummary

    def _head(self) -> ClassHead:
        return ClassHead(2, "logistic", thresholds=self._thresholds())

    def toPyspark(self) -> classification.FMClassificationModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(classification.FMClassificationModel, self.intercept, self.linear, self.factors)


class FMRegressionModel(FMRegressorSettings, FMModel, FleetRegressionModel, RegressionModel[Vector]):
    """A trained ``FMRegressor``."""

    __module__ = "ps2.algorithms.regression"
    _SUMMARIES = RegressionSummary, RegressionTrainingSummary

    def _head(self) -> ValueHead:
        return ValueHead()

    def toPyspark(self) -> regression.FMRegressionModel:
        """Return the same model as pyspark.ml's; UsageError if its weights are too many for the driver."""
        return self._as_pyspark(regression.FMRegressionModel, self.intercept, self.linear, self.factors)


def as_vector(values: Float64s) -> Vector:
    """Return weights as a dense or a sparse vector, whichever is smaller, as pyspark.ml does."""
    nonzero = np.flatnonzero(values)
    if 1.5 * (len(nonzero) + 1) < len(values):
        return Vectors.sparse(len(values), nonzero, values[nonzero])
    return DenseVector(values)


def as_matrix(rows: Float64s, is_row: bool = False) -> Matrix:
    """Return a matrix in the form that takes the fewest bytes, as pyspark.ml does: dense, CSR or CSC.

    ``is_row``: the matrix has a single row, so its sparse form is CSR.
    """
    num_rows, num_columns = rows.shape
    entries = np.count_nonzero(rows)
    num_pointers = (num_rows if is_row else min(num_rows, num_columns)) + 1
    # Bytes as Spark counts them: 8 for a double, 4 for an integer, 24 more for a sparse matrix than for a dense one.
    if 8 * rows.size <= 12 * entries + 4 * num_pointers + 24:
        return DenseMatrix(num_rows, num_columns, rows.reshape(-1), isTransposed=True)
    by_rows = is_row or num_rows < num_columns
    stored = rows if by_rows else rows.T
    major, minor = np.nonzero(stored)
    pointers = np.searchsorted(major, np.arange((num_rows if by_rows else num_columns) + 1))
    return SparseMatrix(num_rows, num_columns, pointers, minor, stored[major, minor], isTransposed=by_rows)


def weights_of(model: Any) -> Weights | None:
    """Return the weights of a PS2 or pyspark.ml model, for unscaled features; None: ``model`` is no such model."""
    if isinstance(model, WeightsModel):
        return model._weights
    if isinstance(model, classification.LogisticRegressionModel):
        rows = model.coefficientMatrix.toArray()
        loss: LossName = "logistic" if len(rows) == 1 else "softmax"
        return _weights(loss, rows.T, model.interceptVector.toArray())
    if isinstance(model, classification.LinearSVCModel):
        return _weights("hinge", model.coefficients.toArray()[:, None], [model.intercept])
    if isinstance(model, regression.LinearRegressionModel):
        weight, scale = model.coefficients.toArray()[:, None], model.scale
        if model.getLoss() == "huber":
            return _weights("huber", weight, [model.intercept, math.log(scale)])
        return _weights("squared", weight, [model.intercept])
    if isinstance(model, (classification.FMClassificationModel, regression.FMRegressionModel)):
        weight = np.column_stack([model.linear.toArray(), model.factors.toArray()])
        is_class = isinstance(model, classification.FMClassificationModel)
        return _weights("fmLogistic" if is_class else "fmSquared", weight, [model.intercept])
    return None


def start_of(initial: Weights, problem: Problem, default_biases: Any) -> Start:
    """Return the initial parameters of a training; raise ConfigError if the initial model does not fit the problem.

    ``default_biases`` are the initial biases without an initial model; they supply Huber's scale if the model has none.
    """
    model_problem = initial.problem
    for name, expected, got in (
        ("classes", _classes(problem), _classes(model_problem)),
        ("features", problem.dim, model_problem.dim),
        ("factorSize", problem.width - 1, model_problem.width - 1),
    ):
        if expected != got:
            raise ConfigError(f"initialModel: expected a model of {name} {expected}, as in this training, got {got}")
    intercepts = np.asarray(initial.biases[: model_problem.outputs], np.float64)
    if not problem.fit_intercept and intercepts.any():
        raise ConfigError("initialModel: expected no intercept, as fitIntercept is False, got a model with one")
    weight: Any = initial.weight
    is_finite = np.isfinite(initial.biases).all()
    if not is_finite or not (isinstance(weight, DCV) or np.isfinite(weight).all()):
        raise ConfigError("initialModel: expected finite weights and intercepts")
    biases = np.array(default_biases, np.float64)
    biases[: len(intercepts)] = intercepts
    if problem.loss == model_problem.loss == "huber":
        biases[-1] = initial.biases[-1]
    return Start(weight, biases)


def _classes(problem: Problem) -> int | str:
    """Return the number of classes, by which a problem and an initial model are compared; 0 for regression."""
    return problem.width if problem.loss == "softmax" else "2 (binomial)" if problem.loss == "logistic" else 0


def _weights(loss: LossName, weight: Any, biases: Any) -> Weights:
    weight = np.ascontiguousarray(weight, np.float64)
    problem = Problem(loss, len(weight), weight.shape[1])
    return Weights(problem, weight, np.asarray(biases, np.float64))
