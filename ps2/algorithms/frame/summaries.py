"""``model.summary`` and ``model.evaluate(df)``: the history of a training, and pyspark's own metrics."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import IllegalArgumentException
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from ps2.algorithms.frame.notebook import history_html
from ps2.algorithms.frame.tables import column, field
from ps2.algorithms.training.record import Gradients, Placement, TrainingHistory
from ps2.data.columns import IMPUTE
from ps2.data.row_spill import Spilled
from ps2.errors import InputError
from ps2.plot_extra import PlotPath, needs_matplotlib, saved
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.errors import plain_job_errors
from ps2.run.spark.jvm import metrics_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

S = TypeVar("S", bound="HistorySummary")

# In Spark's error.
NO_ROWS = "Nothing has been added to this summarizer"


class Summary:
    """Predictions for a DataFrame and their metrics, which are computed on request."""

    def __init__(self, model: Any, dataset: DataFrame) -> None:
        super().__init__()
        self._model = model._with_all_columns()
        self._dataset = dataset

    @cached_property
    def predictions(self) -> DataFrame:
        """The DataFrame that ``transform`` returns."""
        return self._model.transform(self._dataset)

    @property
    def featuresCol(self) -> Any:
        """Name of the column of features, or the tuple of names."""
        return self._model._features

    @property
    def labelCol(self) -> str:
        """Name of the column of labels."""
        return self._model.getLabelCol()

    @property
    def predictionCol(self) -> str:
        """Name of the column of predictions."""
        return self._model.getPredictionCol()

    @property
    def weightCol(self) -> str:
        """Name of the column of weights; "weightCol", as in pyspark.ml, if all rows weigh 1."""
        return self._model._weight_column or "weightCol"

    @cached_property
    def numInstances(self) -> int:
        """Number of rows."""
        with plain_job_errors():
            return self.predictions.count()

    def _measured_by(self, evaluator: Any) -> Any:
        """Return the JVM's metrics, which are computed from the predictions once."""
        columns = {"labelCol": self.labelCol}
        if self._model._weight_column is not None:
            columns["weightCol"] = self._model._weight_column
        for role in ("predictionCol", "rawPredictionCol"):
            if evaluator.hasParam(role):
                columns[role] = evaluator.getOrDefault(role)
        # Under names of their own: Spark's evaluators do not find columns whose names have dots.
        evaluator._set(**{role: role for role in columns})
        predictions = self.predictions
        values = {
            role: finite_number(predictions, name) if role in ("labelCol", "weightCol") else column(name)
            for role, name in columns.items()
        }
        chosen = predictions.select(*(value.alias(role) for role, value in values.items()))
        with plain_job_errors():
            return _PlainMetrics(metrics_of(evaluator, chosen))


def finite_number(frame: DataFrame, name: str) -> Column:
    """Return a column of numbers or booleans as doubles; Spark raises an error where one is null, NaN or infinite.

    Spark's own metrics take NaN for one more label, and fail of null without words.
    """
    value = column(name)
    if not isinstance(field(frame, name).dataType, (NumericType, BooleanType)):
        return value
    value = value.cast("double")
    got = F.coalesce(value.cast("string"), F.lit("null"))
    fault = F.concat(F.lit(f"column {name!r}: expected a finite number, got "), got, F.lit(f": {IMPUTE}"))
    return F.when(F.abs(value) < math.inf, value).otherwise(F.raise_error(fault))


class _PlainMetrics:
    """The JVM's metrics, whose jobs raise plain errors."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            try:
                with plain_job_errors():
                    return getattr(self._metrics, name)(*arguments)
            except IllegalArgumentException as error:
                if NO_ROWS not in str(error):
                    raise
                raise InputError("expected rows to evaluate, got none") from error

        return call


class RegressionSummary(Summary):
    """Metrics of a regression."""

    @cached_property
    def _metrics(self) -> Any:
        through_origin = self._model.hasParam("fitIntercept") and not self._model.getFitIntercept()
        return self._measured_by(RegressionEvaluator(predictionCol=self.predictionCol, throughOrigin=through_origin))

    @property
    def rootMeanSquaredError(self) -> float:
        """Square root of the mean squared error."""
        return float(self._metrics.rootMeanSquaredError())

    @property
    def meanSquaredError(self) -> float:
        """Mean squared error."""
        return float(self._metrics.meanSquaredError())

    @property
    def meanAbsoluteError(self) -> float:
        """Mean absolute error."""
        return float(self._metrics.meanAbsoluteError())

    @property
    def r2(self) -> float:
        """Coefficient of determination."""
        return float(self._metrics.r2())

    @property
    def explainedVariance(self) -> float:
        """Variance of the predictions around the labels' mean."""
        return float(self._metrics.explainedVariance())

    @property
    def residuals(self) -> DataFrame:
        """Labels minus predictions, in a column ``residuals``."""
        return self.predictions.select((column(self.labelCol) - column(self.predictionCol)).alias("residuals"))


class ClassificationSummary(Summary):
    """Metrics of a classification."""

    @cached_property
    def _metrics(self) -> Any:
        return self._measured_by(MulticlassClassificationEvaluator(predictionCol=self.predictionCol))

    @cached_property
    def _labels(self) -> list[float]:
        return [float(label) for label in self._metrics.labels()]

    @property
    def labels(self) -> list[Any]:  # floats; pyspark.ml says strings
        """The classes that occur among the rows, in order; metrics by label are in this order."""
        return list(self._labels)

    @property
    def accuracy(self) -> float:
        """Share of the rows whose prediction is their label."""
        return float(self._metrics.accuracy())

    @property
    def weightedPrecision(self) -> float:
        """Precision, averaged over the labels."""
        return float(self._metrics.weightedPrecision())

    @property
    def weightedRecall(self) -> float:
        """Recall, averaged over the labels."""
        return float(self._metrics.weightedRecall())

    @property
    def weightedTruePositiveRate(self) -> float:
        """True positive rate, averaged over the labels."""
        return float(self._metrics.weightedTruePositiveRate())

    @property
    def weightedFalsePositiveRate(self) -> float:
        """False positive rate, averaged over the labels."""
        return float(self._metrics.weightedFalsePositiveRate())

    def weightedFMeasure(self, beta: float = 1.0) -> float:
        """F-measure, averaged over the labels."""
        return float(self._metrics.weightedFMeasure(float(beta)))

    @property
    def precisionByLabel(self) -> list[float]:
        """Precision of each label."""
        return [float(self._metrics.precision(label)) for label in self._labels]

    @property
    def recallByLabel(self) -> list[float]:
        """Recall of each label."""
        return [float(self._metrics.recall(label)) for label in self._labels]

    @property
    def truePositiveRateByLabel(self) -> list[float]:
        """True positive rate of each label."""
        return [float(self._metrics.truePositiveRate(label)) for label in self._labels]

    @property
    def falsePositiveRateByLabel(self) -> list[float]:
        """False positive rate of each label."""
        return [float(self._metrics.falsePositiveRate(label)) for label in self._labels]

    def fMeasureByLabel(self, beta: float = 1.0) -> list[float]:
        """F-measure of each label."""
        return [float(self._metrics.fMeasure(label, float(beta))) for label in self._labels]


class BinaryClassificationSummary(ClassificationSummary):
    """Metrics of a binary classification."""

    @property
    def scoreCol(self) -> str:
        """Name of the column of probabilities, or of raw predictions if the model has none."""
        return self._model._score_column

    @cached_property
    def _curves(self) -> Any:
        return self._measured_by(BinaryClassificationEvaluator(rawPredictionCol=self.scoreCol))

    @property
    def areaUnderROC(self) -> float:
        """Area under the receiver operating characteristic."""
        return float(self._curves.areaUnderROC())

    @property
    def areaUnderPR(self) -> float:
        """Area under the curve of precision over recall."""
        return float(self._curves.areaUnderPR())

    @property
    def roc(self) -> DataFrame:
        """The receiver operating characteristic: columns FPR and TPR, from (0, 0) to (1, 1)."""
        return self._curve(self._curves.roc(), "FPR", "TPR")

    @property
    def pr(self) -> DataFrame:
        """Columns recall and precision, starting at (0, p) where p is the precision at the lowest recall."""
        return self._curve(self._curves.pr(), "recall", "precision")

    @property
    def precisionByThreshold(self) -> DataFrame:
        """Columns threshold and precision."""
        return self._curve(self._curves.precisionByThreshold(), "threshold", "precision")

    @property
    def recallByThreshold(self) -> DataFrame:
        """Columns threshold and recall."""
        return self._curve(self._curves.recallByThreshold(), "threshold", "recall")

    @property
    def fMeasureByThreshold(self) -> DataFrame:
        """Columns threshold and F-Measure (beta = 1)."""
        return self._curve(self._curves.fMeasureByThreshold(), "threshold", "F-Measure")

    def _curve(self, points: Any, *names: str) -> DataFrame:
        with plain_job_errors():
            pairs = [(float(point._1()), float(point._2())) for point in points.collect()]
        return with_python(self.predictions.sparkSession).createDataFrame(
            pairs, ", ".join(f"`{name}` double" for name in names)
        )


class HistorySummary:
    """The history of a training."""

    def __init__(self, history: TrainingHistory) -> None:
        self._history = history

    @property
    def objectiveHistory(self) -> list[float]:
        """The objective before the first step and after each. For solvers other than "l-bfgs": the mean loss of each
        step's rows at the start of the step, without penalties.
        """
        return list(self._history.objective)

    @property
    def totalIterations(self) -> int:
        """Number of steps taken."""
        return self._history.steps

    @property
    def stepSeconds(self) -> list[float]:
        """Seconds of each step."""
        return list(self._history.seconds)

    @property
    def validationHistory(self) -> list[float]:
        """Mean validation loss by step, if rows were held out."""
        return list(self._history.validation)

    @property
    def rows(self) -> int:
        """Number of rows whose loss was computed, summed over all steps."""
        return self._history.rows

    @property
    def bytes(self) -> int:
        """Bytes that workers sent to servers and received from them."""
        return self._history.bytes

    @property
    def reason(self) -> str:
        """Why the training ended, in words."""
        return self._history.reason

    @property
    def placement(self) -> Placement | None:
        """Workers and threads of the training, what worked on the model between clocks, and why; None: not chosen."""
        return self._history.placement

    @property
    def gradients(self) -> Gradients | None:
        """How many gradients of a multinomial model travelled as sufficient factors, and the bytes of both forms; None:
        there was no choice.
        """
        return self._history.gradients

    @property
    def spilled(self) -> tuple[Spilled, ...]:
        """Bytes and folder of each worker's rows that did not stay in memory; none: all did."""
        return self._history.spilled

    @property
    def oobScore(self) -> float | None:
        """Accuracy of classes, or R2 of numbers, of rows by the trees of a random forest that have not drawn them.

        None: ``oobScore`` was not asked for.
        """
        return self._history.oob_score

    @property
    def history(self) -> TrainingHistory:
        """The whole history as one object, which needs neither Spark nor the model."""
        return self._history

    def plot(self, path: PlotPath = None, *, ax: Axes | None = None) -> Axes:
        """Plot the objective and the validation loss by step.

        Args:
            path: file to write as well: PNG, or the format of its suffix (.svg, .pdf).
            ax: the Axes to draw in; None: a new figure without pyplot, which opens no window; a notebook shows it.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or no step was taken.
        """
        with needs_matplotlib("plot"):
            from ps2.algorithms.frame.plotting import draw_losses
        return saved(draw_losses(self._history, ax), path)

    def _repr_html_(self) -> str:
        return history_html(self._history)

    def __call__(self: S) -> S:
        """Return this summary: for some models of pyspark.ml, ``summary`` is a method."""
        return self


class TrainingSummary(HistorySummary, Summary):
    """The history of a training, together with the metrics of the training data."""

    def __init__(self, model: Any, dataset: DataFrame, history: TrainingHistory) -> None:
        Summary.__init__(self, model, dataset)
        self._history = history


class RegressionTrainingSummary(TrainingSummary, RegressionSummary):
    """Training summary of a regression."""


class ClassificationTrainingSummary(TrainingSummary, ClassificationSummary):
    """Training summary of a classification."""


class BinaryClassificationTrainingSummary(TrainingSummary, BinaryClassificationSummary):
    """Training summary of a binary classification."""
