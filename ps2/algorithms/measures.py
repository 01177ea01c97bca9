"""Metrics of a model on the rows of a DataFrame."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ps2.algorithms.training.progress import say


@dataclass(frozen=True)
class Measure:
    """Metrics of a model on ``rows`` rows; None where a metric does not apply.

    Attributes:
        loss: mean of the loss that was minimized.
        accuracy: share of correct predictions.
        auc: area under the ROC curve, for two classes.
        rmse: root mean squared error, for numbers.
        mae: mean absolute error, for numbers.
    """

    rows: int
    loss: float
    accuracy: float | None = None
    auc: float | None = None
    rmse: float | None = None
    mae: float | None = None

    def known(self) -> dict[str, float]:
        """Return the metrics that apply, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def measure(model: Any, frame: Any) -> Measure:
    """Measure a classification or a regression of ``ps2.algorithms``.

    Args:
        model: LogisticRegressionModel, or one of trees.
        frame: DataFrame with labels.
    """
    say("measuring the model")
    summary = model.evaluate(frame)
    predictions = summary.predictions.persist()
    try:
        loss = _loss(model, frame, predictions)
        if not hasattr(model, "numClasses"):
            return Measure(summary.numInstances, loss, rmse=summary.rootMeanSquaredError, mae=summary.meanAbsoluteError)
        auc = summary.areaUnderROC if model.numClasses == 2 else None
        return Measure(summary.numInstances, loss, accuracy=summary.accuracy, auc=auc)
    finally:
        predictions.unpersist()


def _loss(model: Any, frame: Any, predictions: Any) -> float:
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    if hasattr(model, "evaluateEachIteration"):
        return float(model.evaluateEachIteration(frame)[-1])
    # The type hints of pyspark lack some of its metrics.
    evaluator: Any = MulticlassClassificationEvaluator
    return float(evaluator(metricName="logLoss").evaluate(predictions))
