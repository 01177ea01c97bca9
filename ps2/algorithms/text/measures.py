"""Hold out rows of a table, and compute a model's metrics on rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from ps2.algorithms.training.progress import log_activity

if TYPE_CHECKING:
    from ps2.algorithms.text.clicks import ClickRows
    from ps2.algorithms.text.tables import TextTable

# The columns whose hash decides whether a row is held out, by kind of rows: the first kind whose columns rows have.
HASHED = (("user", "item"), ("query",), ("label", "features"))
# The number of hash values: a row is held out if its hash is below a fraction of this number.
HASHES = 1 << 30
# The lower bound of a probability in the log loss, because log(0) is infinite.
MIN_PROBABILITY = 1e-15


def held_out(frame: Any, fraction: float, seed: int, name: str, columns: Sequence[str] = ()) -> Any:
    """Return rows with a new boolean column that is true for a fraction of the rows, to hold out. A hash of ``columns``
    decides, so equal rows have equal values. By default, these are the user and the item of ratings, the query of rows
    of queries, and the label and the features of others."""
    columns = columns or next(names for names in HASHED if names[0] in frame.columns)
    value = F.pmod(F.xxhash64(F.lit(seed), *(F.col(f"`{column}`") for column in columns)), F.lit(HASHES))
    return frame.withColumn(name, value < round(fraction * HASHES))


def measure(model: Any, frame: Any) -> dict[str, float]:
    """Return a model's metrics: "rows" and "loss", the mean of the loss that was minimized; for classes "accuracy" and,
    of two classes, "auc", the area under the ROC curve; for numbers "rmse" and "mae"; for rankings "queries", their
    number, and the means over queries "ndcg@10" and "map"."""
    log_activity("measuring the model")
    summary = model.evaluate(frame)
    predictions = summary.predictions.persist()
    try:
        loss = _loss(model, frame, predictions)
        metrics = {"rows": summary.numInstances, "loss": summary.meanSquaredError if loss is None else loss}
        if hasattr(model, "getGroupCol"):
            queries = frame.select(model.getGroupCol()).distinct().count()
            return metrics | {
                "queries": queries,
                "ndcg@10": summary.ndcgAt(10),
                "map": summary.meanAveragePrecision,
            }
        if not hasattr(model, "numClasses"):
            return metrics | {"rmse": summary.rootMeanSquaredError, "mae": summary.meanAbsoluteError}
        metrics["accuracy"] = summary.accuracy
        return metrics | ({"auc": summary.areaUnderROC} if model.numClasses == 2 else {})
    finally:
        predictions.unpersist()


def _loss(model: Any, frame: Any, predictions: Any) -> float | None:
    """Return the mean loss that was minimized; None: the squared error."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    if hasattr(model, "evaluateEachIteration"):
        return float(model.evaluateEachIteration(frame)[-1])
    if not hasattr(model, "numClasses"):
        return None
    # The type hints of pyspark lack some of its metrics.
    evaluator: Any = MulticlassClassificationEvaluator
    weight = {"weightCol": model.getWeightCol()} if model.isSet("weightCol") else {}
    return float(evaluator(metricName="logLoss", labelCol=model.getLabelCol(), **weight).evaluate(predictions))


def measure_ratings(model: Any, ratings: TextTable, implicit: bool) -> dict[str, Any]:
    """Return "ratings", their number; "known", the number whose users and items the model has; their "rmse" and "mae".
    An implicit model predicts a preference, which is 1 for positive ratings, and 0 for others."""
    log_activity("measuring the model")
    rated = model.copy({model.coldStartStrategy: "drop"}).transform(ratings.frame)
    rating = F.col("rating") if "rating" in ratings.columns else F.lit(1.0)
    expected = F.when(rating > 0, 1.0).otherwise(0.0) if implicit else rating
    error = F.col(model.getPredictionCol()) - expected
    known, mse, mae = rated.agg(F.count(F.lit(1)), F.avg(error * error), F.avg(F.abs(error))).first()
    metrics = {"ratings": ratings.rows, "known": known}
    return metrics if mse is None else {**metrics, "rmse": mse**0.5, "mae": mae}


def measure_clicks(model: Any, test: ClickRows) -> dict[str, Any]:
    """Return a model's metrics on rows: "rows", "auc", "log_loss" and "calibration" (None without clicks)."""
    from pyspark.ml.evaluation import BinaryClassificationEvaluator
    from pyspark.ml.functions import vector_to_array

    log_activity(f"measuring the model on {test.path}")
    label = F.col(f"`{test.columns.label}`").alias("label")
    scored = model.transform(test.frame).select(label, "rawPrediction", "probability").persist()
    try:
        click_probability = vector_to_array(F.col("probability"))[1]
        label_probability = F.when(F.col("label") == 1, click_probability).otherwise(1 - click_probability)
        loss = F.avg(-F.log(F.greatest(label_probability, F.lit(MIN_PROBABILITY))))
        log_loss, predicted, actual = scored.agg(loss, F.avg(click_probability), F.avg("label")).first()
        auc = BinaryClassificationEvaluator(rawPredictionCol="rawPrediction").evaluate(scored)
    finally:
        scored.unpersist()
    return {"rows": test.rows, "auc": auc, "log_loss": log_loss, "calibration": predicted / actual if actual else None}
