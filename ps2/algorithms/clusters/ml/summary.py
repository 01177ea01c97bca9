"""The summary of a k-means training."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.estimators.summaries import HistorySummary
from ps2.algorithms.training.record import TrainingHistory
from ps2.ops.kernels import Int64s


class KMeansSummary(HistorySummary):
    """What ``KMeansModel.summary`` is: ``pyspark.ml.clustering.KMeansSummary``, and the history of the training."""

    def __init__(self, model: Any, dataset: DataFrame, history: TrainingHistory, sizes: Int64s) -> None:
        super().__init__(history)
        self._model, self._dataset, self._sizes = model, dataset, sizes

    @property
    def trainingCost(self) -> float:
        """Sum of the weighted squared (or cosine) distances of all rows to the centres of the model."""
        return self._history.objective[-1]

    @property
    def numIter(self) -> int:
        """Number of times that the centres have moved."""
        return self._history.steps

    @property
    def clusterSizes(self) -> list[int]:
        """Number of rows of each cluster."""
        return [int(size) for size in self._sizes]

    @property
    def k(self) -> int:
        """Number of clusters."""
        return len(self._sizes)

    @property
    def featuresCol(self) -> str:
        """Name of the column of features."""
        return str(self._model.getFeaturesCol())

    @property
    def predictionCol(self) -> str:
        """Name of the column of predicted clusters."""
        return str(self._model.getPredictionCol())

    @property
    def predictions(self) -> DataFrame:
        """The training data with a column of predicted clusters."""
        return self._model.transform(self._dataset)

    @property
    def cluster(self) -> DataFrame:
        """The predicted cluster of each row, as the only column."""
        return self.predictions.select(self.predictionCol)
