"""The public estimator and model of metric learning."""

from __future__ import annotations

import math
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseMatrix, DenseVector, Vector
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.dealing import Dealer
from ps2.algorithms.frame.estimator import FleetEstimator, Job
from ps2.algorithms.frame.heads import VectorHead
from ps2.algorithms.frame.models import FeatureModel
from ps2.algorithms.frame.predict import rows_of
from ps2.algorithms.frame.tables import NO_ROWS, Survey, check_features, column, field, survey
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.program import TrainedMetric, train
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import ConfigError, InputError

# The temporary columns of the two vectors of a pair.
PARTS = ["first vector", "second vector"]


class MetricLearning(MetricSettings, FleetEstimator, Estimator["MetricLearningModel"]):
    """Distance metric learning: a matrix L on servers, so that ``|L x - L y|`` is small for similar rows only.

    L minimises the mean over pairs of ``|L (x - y)|^2`` for similar ones, and
    ``dissimilarWeight * max(0, 1 - |L (x - y)|^2)`` for dissimilar ones (Xing et al., 2002, in the form of Petuum's).

    Example::

        model = MetricLearning(rank=2).fit(df)  # labels are classes: pairs are drawn
        model = MetricLearning(rank=2, featuresCol="a", otherCol="b").fit(pairs)  # label 1: a and b are similar
        model.transform(df).select("metric").show()
    """

    __module__ = "ps2.algorithms.feature"
    _TRAIN = staticmethod(train)

    def _plan(self) -> MetricSettings:
        if self.isSet(self.otherCol):
            if self.isSet(self.pairsPerRow):
                raise ConfigError("pairsPerRow: with otherCol, rows are pairs, and none are drawn")
            if not isinstance(self._features, str):
                raise ConfigError("featuresCol: with otherCol, expected one column of vectors")
        return self._values(MetricSettings)

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Dealer]:
        if not self.isSet(self.otherCol):
            return super()._survey_and_deal(dataset)
        rows, features = joined(dataset, (self.getFeaturesCol(), str(self.getOtherCol())), self.getLabelCol())
        return self.copy({self.featuresCol: features})._survey_and_deal_rows(rows)

    def _survey_and_deal_rows(self, rows: DataFrame) -> tuple[Any, Dealer]:
        return super()._survey_and_deal(rows)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Survey:
        classes = 2 if self.isSet(self.otherCol) else 0
        table_survey = survey(dataset, columns, classes)
        labels = [number for number, weight in enumerate(table_survey.facts.class_weights) if weight > 0]
        if len(labels) < 2:
            kind = "both similar (1) and dissimilar (0) pairs" if classes else "rows of two classes at least"
            raise InputError(f"column {columns.label!r}: expected {kind}, and all labels are {labels[0]}")
        return table_survey

    def _resolve(self, plan: MetricSettings, survey: Survey) -> MetricPlan:
        dim = survey.dim if plan.otherCol is None else survey.dim // 2
        classes = max(2, len(survey.facts.class_weights))
        resolved = MetricPlan(settings=plan, name=self._name, dim=dim, classes=classes)
        resolved.check()
        return resolved

    def _trained_model(self, trained: TrainedMetric, job: Job) -> MetricLearningModel:
        return MetricLearningModel._of(trained.metric)


class MetricLearningModel(MetricSettings, FeatureModel, Model):
    """A trained ``MetricLearning``."""

    __module__ = "ps2.algorithms.feature"
    _ARRAYS = Metric

    def _sizes(self) -> dict[str, Any]:
        return {"rank": self.metric.rank}

    @property
    def metric(self) -> Metric:
        """The trained metric as arrays, usable without Spark."""
        metric: Metric = self._fitted
        return metric

    @property
    def components(self) -> DenseMatrix:
        """L, a matrix of shape (rank, features)."""
        components, rank = self.metric.components, self.metric.rank
        return DenseMatrix(rank, self.numFeatures, components.reshape(-1), isTransposed=True)

    def matrix(self) -> DenseMatrix:
        """Return M = L'L, shape (features, features), whose metric it is.

        Raises:
            LimitError: there are more than 16,384 features.
        """
        matrix, dim = self.metric.matrix(), self.numFeatures
        return DenseMatrix(dim, dim, matrix.reshape(-1))

    def mapped(self, value: Any) -> Vector:
        """Return L x of one row: a vector of pyspark, an array or a list of ``numFeatures`` numbers."""
        return DenseVector(self.metric.transform(rows_of(value, self.numFeatures, missing=False))[0])

    def _head(self) -> VectorHead:
        return VectorHead(self.metric.rank)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOutputCol(), "raw")]


# -- a DataFrame of pairs as one of rows: both vectors in one column ---------------------------------------------------


def joined(frame: DataFrame, names: tuple[str, str], label: str) -> tuple[DataFrame, str]:
    """Return labels and joined vectors, and the name of the vectors' column; one Spark job.

    Raises:
        InputError: a column is missing or of another type, holds null, or vectors differ in size.
    """
    for name in names:
        check_features(frame, name)
    field(frame, label)
    size = _size(frame, names)
    both = " and ".join(names)
    described = {"ml_attr": {"num_attrs": size}}
    parts = [_vectors(frame, name).alias(part, metadata=described) for name, part in zip(names, PARTS, strict=True)]
    rows = frame.select(*parts, column(label).alias(label, metadata=field(frame, label).metadata))
    assembler = VectorAssembler(inputCols=PARTS, outputCol=both, handleInvalid="keep")
    # The workers report the rows with NaN.
    return assembler.transform(rows).select(column(both), column(label)), both


def _vectors(frame: DataFrame, name: str) -> Column:
    value = column(name)
    if not isinstance(field(frame, name).dataType, ArrayType):
        return value
    return array_to_vector(F.transform(value, lambda number: F.coalesce(number.cast("double"), F.lit(math.nan))))


def _size(frame: DataFrame, names: tuple[str, str]) -> int:
    """Return the size of all vectors."""
    aggregates = [F.count(F.lit(1)).alias("rows")]
    for number, name in enumerate(names):
        value = column(name)
        if isinstance(field(frame, name).dataType, ArrayType):
            size = F.when(value.isNotNull(), F.size(value))
        else:
            parts = F.unwrap_udt(value)
            size = F.when(parts.isNotNull(), F.coalesce(parts["size"], F.size(parts["values"])))
        aggregates += [F.min(size).alias(f"min{number}"), F.max(size).alias(f"max{number}")]
        aggregates.append(F.sum(F.when(size.isNull(), 1).otherwise(0)).alias(f"nulls{number}"))
    stats = frame.agg(*aggregates).collect()[0]
    if not stats["rows"]:
        raise InputError(NO_ROWS)
    for number, name in enumerate(names):
        if stats[f"nulls{number}"]:
            raise InputError(f"column {name!r}: expected vectors, got null in {stats[f'nulls{number}']} rows")
        sizes = stats[f"min{number}"], stats[f"max{number}"]
        if sizes[0] != sizes[1] or sizes[0] != stats["min0"]:
            raise InputError(
                f"column {name!r}: expected vectors of one size, that of {names[0]!r}, {stats['min0']}, got sizes "
                f"{sizes[0]} to {sizes[1]}"
            )
    if not stats["min0"]:
        raise InputError(f"column {names[0]!r}: expected features, got vectors of size 0")
    return int(stats["min0"])
