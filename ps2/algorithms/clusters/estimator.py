"""The public estimator and model of k-means."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.ml import Estimator, Model, clustering
from pyspark.sql import DataFrame

from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.clusters.plan import FittedClusters, KMeansPlan
from ps2.algorithms.clusters.program import train
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.frame.estimator import FleetEstimator, Job
from ps2.algorithms.frame.heads import ClusterHead
from ps2.algorithms.frame.models import FeatureModel
from ps2.algorithms.frame.predict import as_row
from ps2.algorithms.frame.summaries import HistorySummary
from ps2.algorithms.frame.tables import TableSurvey, column
from ps2.algorithms.training.record import TrainingHistory
from ps2.ops.kernels import Int64s
from ps2.run.spark.jvm import jvm_context, kmeans_model

log = logging.getLogger(__name__)


class KMeansSummary(HistorySummary):
    """The summary of a training: the members of ``pyspark.ml.clustering.KMeansSummary``, and the history."""

    def __init__(self, model: Any, dataset: DataFrame, history: TrainingHistory, sizes: Int64s) -> None:
        super().__init__(history)
        self._model, self._dataset, self._sizes = model, dataset, sizes

    @property
    def trainingCost(self) -> float:
        """Sum of the weighted squared (or cosine) distances of all rows to the centres of the model."""
        return self._history.objective[-1]

    @property
    def numIter(self) -> int:
        """Number of iterations, each of which moves the centres."""
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
        """The training data with the column of predicted clusters."""
        return self._model.transform(self._dataset)

    @property
    def cluster(self) -> DataFrame:
        """The column of predicted clusters of the training data, as a DataFrame."""
        return self.predictions.select(self.predictionCol)


class KMeans(KMeansSettings, FleetEstimator, Estimator["KMeansModel"]):
    """K-means: ``pyspark.ml.clustering.KMeans`` on servers.

    Example::

        model = KMeans(k=1000, seed=1).fit(df)  # featuresCol: dense or sparse vectors
        model.summary.trainingCost
    """

    __module__ = "ps2.algorithms.clustering"
    _TRAIN = staticmethod(train)

    def _resolve(self, plan: KMeansSettings, survey: TableSurvey) -> KMeansPlan:
        return KMeansPlan(settings=plan, name=self._name, dim=survey.dim, clusters=min(plan.k, survey.rows))

    def _trained_model(self, trained: FittedClusters, job: Job) -> KMeansModel:
        settings: KMeansSettings = job.plan.settings
        if len(trained.centres) < settings.k:
            log.warning("k is %d, but there are %d different rows with weights", settings.k, len(trained.centres))
        model = KMeansModel._of(KMeansClusters(trained.centres, settings.distanceMeasure))
        model._cluster_sizes = trained.sizes
        return model


class KMeansModel(KMeansSettings, FeatureModel, Model):
    """A trained ``KMeans``."""

    __module__ = "ps2.algorithms.clustering"
    _ARRAYS = KMeansClusters
    # The number of training rows in each cluster; empty for a loaded model.
    _cluster_sizes = np.zeros(0, np.int64)

    def _shown_values(self) -> dict[str, Any]:
        return {"k": self.clusters.k, "distanceMeasure": self.clusters.distance}

    @property
    def clusters(self) -> KMeansClusters:
        """The centres as arrays, usable without Spark."""
        clusters: KMeansClusters = self._fitted
        return clusters

    def clusterCenters(self) -> list[npt.NDArray[np.float64]]:
        """Return the centre of each cluster."""
        return list(self.clusters.centres.astype(np.float64))

    def predict(self, value: Any) -> int:
        """Return the cluster of one row.

        Args:
            value: a vector of pyspark, an array or a list of ``numFeatures`` values.
        """
        return int(self.clusters.predict(as_row(value, self.numFeatures, missing=False))[0])

    def _head(self) -> ClusterHead:
        return ClusterHead(self.clusters.k)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getPredictionCol(), "prediction")]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        rows, name = super()._transform(dataset), self.getPredictionCol()
        if not name:
            return rows
        # pyspark.ml's column of clusters has the type int, not double.
        metadata = rows.schema[name].metadata
        return rows.withColumn(name, column(name).cast("int").alias(name, metadata=metadata))

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = KMeansSummary(self, dataset, history, self._cluster_sizes)

    def toPyspark(self) -> clustering.KMeansModel:
        """Return the model as pyspark.ml's, with the same centres."""
        spark_context = jvm_context("toPyspark")
        cost, steps = (self.summary.trainingCost, self.summary.numIter) if self.hasSummary else (0.0, 0)
        parent = kmeans_model(spark_context, self.clusterCenters(), self.clusters.distance, cost, steps)
        return self._as_pyspark(clustering.KMeansModel, parent)


# isinstance() accepts the model as pyspark's; a real subclass would have to wrap a Java object.
clustering.KMeansModel.register(KMeansModel)
