"""The public estimator and model of k-means."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.ml import Estimator, Model, clustering
from pyspark.sql import DataFrame

from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.clusters.placing import placed
from ps2.algorithms.clusters.plan import FittedClusters, KMeansPlan
from ps2.algorithms.clusters.program import train
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.estimator import FleetEstimator
from ps2.algorithms.estimators.heads import ClusterHead
from ps2.algorithms.estimators.models import FeatureModel
from ps2.algorithms.estimators.predict import rows_of
from ps2.algorithms.estimators.summaries import HistorySummary
from ps2.algorithms.estimators.tables import TableSurvey, column
from ps2.algorithms.estimators.unlabelled import survey_rows
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import train_in_only_worker
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.coordinator.context import PS2Context
from ps2.ops.kernels import Int64s
from ps2.run.spark.jvm import jvm_context, kmeans_model

log = logging.getLogger(__name__)


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


class KMeans(KMeansSettings, FleetEstimator, Estimator["KMeansModel"]):
    """K-means: ``pyspark.ml.clustering.KMeans`` on servers.

    Example::

        model = KMeans(k=1000, seed=1).fit(df)  # featuresCol: dense or sparse vectors
        model.summary.trainingCost
    """

    __module__ = "ps2.algorithms.clustering"

    def _plan(self) -> KMeansSettings:
        return self._values(KMeansSettings)

    def _columns(self) -> ColumnNames:
        return ColumnNames(self._features, label=None, weight=self._weight_column)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> TableSurvey:
        return survey_rows(dataset, columns)

    def _train_model(
        self, settings: KMeansSettings, found: TableSurvey, dealt: Dealer
    ) -> tuple[KMeansModel, TrainingHistory]:
        clusters = min(settings.k, found.rows)
        plan = KMeansPlan(settings=settings, name=self._name, dim=found.dim, clusters=clusters)
        placement = placed(plan, found, dealt)
        table = dealt(placement.workers)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> FittedClusters:
            if placement.via == "local":
                fitted: FittedClusters = train_in_only_worker(ps, table, plan.form, train, plan, on_step)
                return fitted
            return train(ps, table, plan, on_step)

        fitted = self._train_in_context(table, settings.maxIter, run)
        if len(fitted.centres) < settings.k:
            log.warning("k is %d, but there are %d different rows with weights", settings.k, len(fitted.centres))
        model = KMeansModel._of(KMeansClusters(fitted.centres, settings.distanceMeasure))
        model._cluster_sizes = fitted.sizes
        return model, replace(fitted.history, placement=placement)


class KMeansModel(KMeansSettings, FeatureModel, Model):
    """A trained ``KMeans``."""

    __module__ = "ps2.algorithms.clustering"
    _ARRAYS = KMeansClusters
    # The number of training rows in each cluster; of a model that was loaded, none.
    _cluster_sizes = np.zeros(0, np.int64)

    def _sizes(self) -> dict[str, Any]:
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
            value: a vector of pyspark, an array or a list of ``numFeatures`` numbers.
        """
        return int(self.clusters.predict(rows_of(value, self.numFeatures, missing=False))[0])

    def _head(self) -> ClusterHead:
        return ClusterHead(self.clusters.k)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getPredictionCol(), "prediction")]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        rows, name = super()._transform(dataset), self.getPredictionCol()
        if not name:
            return rows
        # pyspark.ml's clusters are integers.
        metadata = rows.schema[name].metadata
        return rows.withColumn(name, column(name).cast("int").alias(name, metadata=metadata))

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = KMeansSummary(self, dataset, history, self._cluster_sizes)

    def toPyspark(self) -> clustering.KMeansModel:
        """Return the same clusters as pyspark.ml's model."""
        spark_context = jvm_context("toPyspark")
        cost, steps = (self.summary.trainingCost, self.summary.numIter) if self.hasSummary else (0.0, 0)
        parent = kmeans_model(spark_context, self.clusterCenters(), self.clusters.distance, cost, steps)
        return self._as_pyspark(clustering.KMeansModel, parent)


# isinstance() says yes; a real subclass would have to wrap a Java object.
clustering.KMeansModel.register(KMeansModel)
