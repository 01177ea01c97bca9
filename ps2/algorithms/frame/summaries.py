"""``model.summary`` and ``model.evaluate(df)``: the history of a training, pyspark's metrics, and both as HTML."""

from __future__ import annotations

import math
import reprlib
from base64 import b64encode
from collections.abc import Callable
from functools import cached_property
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import IllegalArgumentException
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.param import Params
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from ps2.algorithms.frame.tables import column, field
from ps2.algorithms.training.record import Gradients, Placement, TrainingHistory, cells, thin, titles
from ps2.data.columns import IMPUTE
from ps2.data.row_spill import Spilled
from ps2.errors import InputError
from ps2.formats import short_time
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.errors import plain_job_errors
from ps2.run.spark.jvm import evaluator_metrics
from ps2.text_tables import Column as TextColumn
from ps2.text_tables import Table, named_values, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

S = TypeVar("S", bound="HistorySummary")

# A part of Spark's error for a DataFrame without rows.
NO_ROWS = "Nothing has been added to this summarizer"


class Summary:
    """Predictions for a DataFrame, and their metrics, each of which is computed on first use."""

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
        """The name of the column of features, or the tuple of names."""
        return self._model._features

    @property
    def labelCol(self) -> str:
        """The name of the column of labels."""
        return self._model.getLabelCol()

    @property
    def predictionCol(self) -> str:
        """The name of the column of predictions."""
        return self._model.getPredictionCol()

    @property
    def weightCol(self) -> str:
        """The name of the column of weights. As in pyspark.ml, it is "weightCol" if all weights are 1."""
        return self._model._weight_column or "weightCol"

    @cached_property
    def numInstances(self) -> int:
        """The number of rows."""
        with plain_job_errors():
            return self.predictions.count()

    def _jvm_metrics(self, evaluator: Any) -> Any:
        """Return the JVM's metrics object of an evaluator, which computes the metrics once."""
        columns = {"labelCol": self.labelCol}
        if self._model._weight_column is not None:
            columns["weightCol"] = self._model._weight_column
        for role in ("predictionCol", "rawPredictionCol"):
            if evaluator.hasParam(role):
                columns[role] = evaluator.getOrDefault(role)
        # The columns are renamed, because Spark's evaluators do not find columns whose names contain dots.
        evaluator._set(**{role: role for role in columns})
        predictions = self.predictions
        values = {
            role: finite_number(predictions, name) if role in ("labelCol", "weightCol") else column(name)
            for role, name in columns.items()
        }
        renamed = predictions.select(*(value.alias(role) for role, value in values.items()))
        with plain_job_errors():
            return _PlainMetrics(evaluator_metrics(evaluator, renamed))


def finite_number(frame: DataFrame, name: str) -> Column:
    """Return numbers or booleans as doubles; for a null, NaN or infinite value, Spark raises an error.

    Without this, Spark's metrics would take NaN for a class, and their error for null does not name the column.
    """
    value = column(name)
    if not isinstance(field(frame, name).dataType, (NumericType, BooleanType)):
        return value
    value = value.cast("double")
    got = F.coalesce(value.cast("string"), F.lit("null"))
    fault = F.concat(F.lit(f"column {name!r}: expected a finite number, got "), got, F.lit(f": {IMPUTE}"))
    return F.when(F.abs(value) < math.inf, value).otherwise(F.raise_error(fault))


class _PlainMetrics:
    """The JVM's metrics, with short errors of PS2 in place of those of the JVM."""

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


def _metric(name: str, doc: str, source: str = "_metrics") -> Any:
    """Return a property for a metric of the JVM's object in the attribute ``source``."""
    return property(lambda self: float(getattr(getattr(self, source), name)()), doc=doc)


def _metric_by_label(name: str, doc: str) -> Any:
    """Return a property for the list of a metric's values for each label."""
    return property(lambda self: [float(getattr(self._metrics, name)(label)) for label in self._labels], doc=doc)


def _curve(name: str, doc: str, *columns: str) -> Any:
    """Return a property for a curve of the JVM's metrics: a DataFrame of points with two columns."""

    def curve(self: Any) -> DataFrame:
        points = getattr(self._curves, name)()
        with plain_job_errors():
            pairs = [(float(point._1()), float(point._2())) for point in points.collect()]
        schema = ", ".join(f"`{column}` double" for column in columns)
        return with_python(self.predictions.sparkSession).createDataFrame(pairs, schema)

    return property(curve, doc=doc)


def _history_value(name: str, doc: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a property for an attribute of the training's history."""
    return property(lambda self: convert(getattr(self._history, name)), doc=doc)


class RegressionSummary(Summary):
    """Metrics of a regression."""

    @cached_property
    def _metrics(self) -> Any:
        through_origin = self._model.hasParam("fitIntercept") and not self._model.getFitIntercept()
        return self._jvm_metrics(RegressionEvaluator(predictionCol=self.predictionCol, throughOrigin=through_origin))

    rootMeanSquaredError: float = _metric("rootMeanSquaredError", "The square root of the mean squared error.")
    meanSquaredError: float = _metric("meanSquaredError", "The mean squared error.")
    meanAbsoluteError: float = _metric("meanAbsoluteError", "The mean absolute error.")
    r2: float = _metric("r2", "The coefficient of determination.")
    explainedVariance: float = _metric("explainedVariance", "The variance of the predictions around the labels' mean.")

    @property
    def residuals(self) -> DataFrame:
        """Labels minus predictions, in a column ``residuals``."""
        return self.predictions.select((column(self.labelCol) - column(self.predictionCol)).alias("residuals"))


class ClassificationSummary(Summary):
    """Metrics of a classification."""

    @cached_property
    def _metrics(self) -> Any:
        return self._jvm_metrics(MulticlassClassificationEvaluator(predictionCol=self.predictionCol))

    @cached_property
    def _labels(self) -> list[float]:
        return [float(label) for label in self._metrics.labels()]

    @property
    def labels(self) -> list[Any]:  # floats; pyspark.ml says strings
        """The classes that occur among the rows, in order; metrics by label are in this order."""
        return list(self._labels)

    accuracy: float = _metric("accuracy", "The fraction of the rows whose prediction is their label.")
    weightedPrecision: float = _metric("weightedPrecision", "The precision, averaged over the labels.")
    weightedRecall: float = _metric("weightedRecall", "The recall, averaged over the labels.")
    weightedTruePositiveRate: float = _metric(
        "weightedTruePositiveRate", "The true positive rate, averaged over the labels."
    )
    weightedFalsePositiveRate: float = _metric(
        "weightedFalsePositiveRate", "The false positive rate, averaged over the labels."
    )
    precisionByLabel: list[float] = _metric_by_label("precision", "The precision of each label.")
    recallByLabel: list[float] = _metric_by_label("recall", "The recall of each label.")
    truePositiveRateByLabel: list[float] = _metric_by_label("truePositiveRate", "The true positive rate of each label.")
    falsePositiveRateByLabel: list[float] = _metric_by_label(
        "falsePositiveRate", "The false positive rate of each label."
    )

    def weightedFMeasure(self, beta: float = 1.0) -> float:
        """The F-measure, averaged over the labels."""
        return float(self._metrics.weightedFMeasure(float(beta)))

    def fMeasureByLabel(self, beta: float = 1.0) -> list[float]:
        """The F-measure of each label."""
        return [float(self._metrics.fMeasure(label, float(beta))) for label in self._labels]


class BinaryClassificationSummary(ClassificationSummary):
    """Metrics of a binary classification."""

    @property
    def scoreCol(self) -> str:
        """The name of the column of probabilities, or of raw predictions if the model has no probabilities."""
        has_probabilities = self._model.hasParam("probabilityCol")
        return self._model.getOrDefault("probabilityCol" if has_probabilities else "rawPredictionCol")

    @cached_property
    def _curves(self) -> Any:
        return self._jvm_metrics(BinaryClassificationEvaluator(rawPredictionCol=self.scoreCol))

    areaUnderROC: float = _metric("areaUnderROC", "The area under the receiver operating characteristic.", "_curves")
    areaUnderPR: float = _metric("areaUnderPR", "The area under the curve of precision over recall.", "_curves")
    roc: DataFrame = _curve(
        "roc", "The receiver operating characteristic: columns FPR and TPR, from (0, 0) to (1, 1).", "FPR", "TPR"
    )
    pr: DataFrame = _curve(
        "pr",
        "Columns recall and precision, starting at (0, p) where p is the precision at the lowest recall.",
        *("recall", "precision"),
    )
    precisionByThreshold: DataFrame = _curve(
        "precisionByThreshold", "Columns threshold and precision.", "threshold", "precision"
    )
    recallByThreshold: DataFrame = _curve("recallByThreshold", "Columns threshold and recall.", "threshold", "recall")
    fMeasureByThreshold: DataFrame = _curve(
        "fMeasureByThreshold", "Columns threshold and F-Measure (beta = 1).", "threshold", "F-Measure"
    )


class HistorySummary:
    """The history of a training."""

    def __init__(self, history: TrainingHistory) -> None:
        self._history = history

    objectiveHistory: list[float] = _history_value(
        "objective",
        'The objective before the first step, and after each step. For solvers other than "l-bfgs": the mean loss of '
        "each step's rows at the start of the step, without penalties.",
        list,
    )
    totalIterations: int = _history_value("steps", "The number of steps taken.")
    stepSeconds: list[float] = _history_value("seconds", "The seconds of each step.", list)
    validationHistory: list[float] = _history_value(
        "validation", "The mean validation loss after each step, if rows were held out.", list
    )
    rows: int = _history_value("rows", "The number of rows whose loss was computed, summed over all steps.")
    bytes: int = _history_value("bytes", "The bytes that workers sent to servers and received from them.")
    reason: str = _history_value("reason", "The reason why the training ended, in words.")
    placement: Placement | None = _history_value(
        "placement",
        "The workers and threads of the training, whether it used servers or only one worker, and the reason. None: "
        "the family has no choice.",
    )
    gradients: Gradients | None = _history_value(
        "gradients",
        "The number of gradients of a multinomial model that were sent as sufficient factors, and the bytes of both "
        "forms. None: there was no choice.",
    )
    spilled: tuple[Spilled, ...] = _history_value(
        "spilled", "The bytes and the folder of the rows that each worker wrote to a file; empty: no worker did."
    )
    oobScore: float | None = _history_value(
        "oob_score",
        "The out-of-bag score of a random forest: the accuracy of classes or the R2 of numbers, where each row is "
        "predicted by the trees that were not trained on it. None: ``oobScore`` was not set.",
    )

    @property
    def history(self) -> TrainingHistory:
        """The complete history as one object, which needs neither Spark nor the model."""
        return self._history

    def plot(self, path: PlotPath = None, *, ax: Axes | None = None) -> Axes:
        """Plot the objective and the validation loss by step.

        Args:
            path: the file to which the plot is also written: PNG, or the format of its suffix (.svg, .pdf).
            ax: the Axes to draw in; None: a new figure without pyplot. It opens no window; a notebook shows it.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or no step was taken.
        """
        with needs_matplotlib("plot"):
            from ps2.algorithms.frame.plotting import draw_losses
        return save_plot(draw_losses(self._history, ax), path)

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


def model_html(model: Params, history: TrainingHistory | None) -> str:
    """Return a model as HTML: its repr, the params that are set, and its training. This starts no Spark job."""
    set_params = {param.name: reprlib.repr(model.getOrDefault(param)) for param in model.params if model.isSet(param)}
    training = "" if history is None else history_html(history)
    return f"{to_html(repr(model), named_values(**set_params))}{training}"


def history_html(history: TrainingHistory) -> str:
    """Return the history of a training as HTML: a sentence, a table, and a plot if matplotlib is installed."""
    total_s = sum(history.seconds)
    pace = f", {short_time(total_s / history.steps)} {history.words.a_step}" if history.steps else ""
    sentence = f"{history.steps:,} {history.words.steps} in {total_s:.1f} s{pace}: {history.reason}"
    rows = thin(cells(history))
    table = Table([TextColumn(title, right=True) for title in titles(history)], rows).html() if rows else ""
    plot = ""
    if history.steps and find_spec("matplotlib") is not None:
        from ps2.algorithms.frame.plotting import draw_losses
        from ps2.plot_style import png_of

        plot = f'<img src="data:image/png;base64,{b64encode(png_of(draw_losses(history))).decode()}">'
    return f"<div><p>{escape(sentence)}</p>{table}{plot}</div>"
