"""Summaries of linear models, which have the names and all members of their base classes in pyspark.ml.

A summary of pyspark.ml wraps a Java object that needs a model in Java. These summaries compute only metrics in Java.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy  # its modules load on first use
from pyspark.errors import UnsupportedOperationException
from pyspark.ml import classification, regression
from pyspark.sql import Column
from pyspark.sql import functions as F

from ps2.algorithms.frame.summaries import (
    BinaryClassificationSummary,
    ClassificationSummary,
    RegressionSummary,
    TrainingSummary,
)
from ps2.algorithms.frame.tables import column


class LogisticRegressionSummary(ClassificationSummary, classification.LogisticRegressionSummary):
    """The summary of a logistic regression."""

    @property
    def probabilityCol(self) -> str:
        """Name of the column of probabilities."""
        return self._model.getProbabilityCol()


class LogisticRegressionTrainingSummary(
    TrainingSummary, LogisticRegressionSummary, classification.LogisticRegressionTrainingSummary
):
    """The training summary of a logistic regression."""


class BinaryLogisticRegressionSummary(
    BinaryClassificationSummary, LogisticRegressionSummary, classification.BinaryLogisticRegressionSummary
):
    """The summary of a logistic regression of two classes."""


class BinaryLogisticRegressionTrainingSummary(
    LogisticRegressionTrainingSummary,
    BinaryLogisticRegressionSummary,
    classification.BinaryLogisticRegressionTrainingSummary,
):
    """The training summary of a logistic regression of two classes."""


class LinearSVCSummary(BinaryClassificationSummary, classification.LinearSVCSummary):
    """The summary of a support vector machine."""


class LinearSVCTrainingSummary(TrainingSummary, LinearSVCSummary, classification.LinearSVCTrainingSummary):
    """The training summary of a support vector machine."""


class FMClassificationSummary(BinaryClassificationSummary, classification.FMClassificationSummary):
    """The summary of a factorization machine for two classes."""


class FMClassificationTrainingSummary(
    TrainingSummary, FMClassificationSummary, classification.FMClassificationTrainingSummary
):
    """The training summary of a factorization machine for two classes."""


class LinearRegressionSummary(RegressionSummary, regression.LinearRegressionSummary):
    """The summary of a linear regression."""

    @property
    def degreesOfFreedom(self) -> int:
        """The number of rows minus the number of weights and intercepts."""
        return self.numInstances - self._model.numFeatures - int(self._model.getFitIntercept())

    @property
    def r2adj(self) -> float:
        """Coefficient of determination, adjusted for the number of features."""
        num_rows = self.numInstances - int(self._model.getFitIntercept())
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(1.0 - np.divide((1.0 - self.r2) * num_rows, self.degreesOfFreedom))

    @property
    def devianceResiduals(self) -> list[float]:
        """Smallest and largest residual; each residual is multiplied by the square root of its row's weight."""
        weighted = self._residual * F.sqrt(self._weight)
        return list(self.predictions.select(F.min(weighted), F.max(weighted)).first() or ())

    @property
    def coefficientStandardErrors(self) -> list[float]:
        """Standard errors of the weights, then of the intercept if there is one; only after solver "normal".

        Raises:
            pyspark.errors.UnsupportedOperationException: another solver has trained the model, or it is singular.
        """
        return self._standard_errors("Std. Error of coefficients").tolist()

    @property
    def tValues(self) -> list[float]:
        """t statistics of the weights, then of the intercept; see ``coefficientStandardErrors``."""
        return self._statistics("t-statistic").tolist()

    @property
    def pValues(self) -> list[float]:
        """Two-sided p values of the weights, then of the intercept; see ``coefficientStandardErrors``."""
        negative_t = -np.abs(self._statistics("p-value"))
        return (2.0 * scipy.special.stdtr(self.degreesOfFreedom, negative_t)).tolist()

    @property
    def _inverse_diagonal(self) -> tuple[float, ...]:
        """The diagonal of the normal equations' inverse matrix; empty if it is unknown."""
        return ()

    @cached_property
    def _squared_residuals(self) -> float:
        """The weighted sum of squared residuals."""
        row = self.predictions.select(F.sum(self._weight * self._residual * self._residual)).first()
        return float(row[0]) if row else 0.0

    @property
    def _residual(self) -> Column:
        return column(self.labelCol).cast("double") - column(self.predictionCol)

    @property
    def _weight(self) -> Column:
        name = self._model._weight_column
        return F.lit(1.0) if name is None else column(name).cast("double")

    def _standard_errors(self, quantity: str) -> Any:
        if not self._inverse_diagonal:
            raise UnsupportedOperationException(f"No {quantity} available for this LinearRegressionModel")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(np.divide(self._squared_residuals, self.degreesOfFreedom) * np.array(self._inverse_diagonal))

    def _statistics(self, quantity: str) -> Any:
        errors = self._standard_errors(quantity)
        estimates = self._model.coefficients.toArray()
        if self._model.getFitIntercept():
            estimates = np.append(estimates, self._model.intercept)
        with np.errstate(divide="ignore", invalid="ignore"):
            return estimates / errors


class LinearRegressionTrainingSummary(
    TrainingSummary, LinearRegressionSummary, regression.LinearRegressionTrainingSummary
):
    """The training summary of a linear regression."""

    @property
    def _inverse_diagonal(self) -> tuple[float, ...]:
        return self._history.metrics.get("inverse_diagonal", ())
