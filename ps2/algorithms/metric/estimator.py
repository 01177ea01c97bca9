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
from ps2.algorithms.frame.estimator import FleetEstimator
from ps2.algorithms.frame.heads import VectorHead
from ps2.algorithms.frame.models import FeatureModel
from ps2.algorithms.frame.predict import as_row
from ps2.algorithms.frame.tables import NO_ROWS, Survey, check_features, column, field, survey
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.program import MetricProgram
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import ConfigError, InputError

# The temporary columns of the two vectors of a pair.
VECTOR_COLUMNS = ["first vector", "second vector"]


class MetricLearning(MetricSettings, FleetEstimator, Estimator["MetricLearningModel"]):
    """Distance metric learning: a matrix L on servers, with a small ``|L x - L y|`` for similar rows only.

    L minimises the mean over pairs of ``|L (x - y)|^2`` for a similar pair, and of
    ``dissimilarWeight * max(0, 1 - |L (x - y)|^2)`` for a dissimilar pair (Xing et al., 2002, as in Petuum).

    Example::

        model = MetricLearning(rank=2).fit(df)  # labels are classes: pairs are drawn
        model = MetricLearning(rank=2, featuresCol="a", otherCol="b").fit(pairs)  # label 1: a and b are similar
        model.transform(df).select("metric").show()
    """

    __module__ = "ps2.algorithms.feature"
    _TRAIN = MetricProgram.train

    def _plan(self) -> MetricSettings:
        if self.isSet(self.otherCol):
            if self.isSet(self.pairsPerRow):
                raise ConfigError("pairsPerRow: with otherCol, each row is a pair, and no pairs are drawn")
            if not isinstance(self._features, str):
                raise ConfigError("featuresCol: with otherCol, expected one column of vectors")
        return self._values(MetricSettings)

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Dealer]:
        """Like the base method; the two vectors of a pair are joined to one first."""
        if not self.isSet(self.otherCol):
            return super()._survey_and_deal(dataset)
        rows, features = join_vectors(dataset, (self.getFeaturesCol(), str(self.getOtherCol())), self.getLabelCol())
        return super(MetricLearning, self.copy({self.featuresCol: features}))._survey_and_deal(rows)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Survey:
        classes = 2 if self.isSet(self.otherCol) else 0
        table_survey = survey(dataset, columns, classes)
        labels = [label for label, weight in enumerate(table_survey.facts.class_weights) if weight > 0]
        if len(labels) < 2:
            expected = "both similar (1) and dissimilar (0) pairs" if classes else "rows of at least two classes"
            raise InputError(f"column {columns.label!r}: expected {expected}, got only the label {labels[0]}")
        return table_survey

    def _resolve(self, plan: MetricSettings, survey: Survey) -> MetricPlan:
        dim = survey.dim if plan.otherCol is None else survey.dim // 2
        classes = max(2, len(survey.facts.class_weights))
        return MetricPlan(settings=plan, name=self._name, dim=dim, classes=classes)


class MetricLearningModel(MetricSettings, FeatureModel, Model):
    """A trained ``MetricLearning``."""

    __module__ = "ps2.algorithms.feature"
    _ARRAYS = Metric

    def _shown_values(self) -> dict[str, Any]:
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
        """Return M = L'L, shape (features, features), the matrix of the metric: distances are sqrt((x - y)' M (x - y)).

        Raises:
            LimitError: there are more than 16,384 features.
        """
        matrix, dim = self.metric.matrix(), self.numFeatures
        return DenseMatrix(dim, dim, matrix.reshape(-1))

    def mapped(self, value: Any) -> Vector:
        """Return L x for one row: a vector of pyspark, an array or a list of ``numFeatures`` values."""
        return DenseVector(self.metric.transform(as_row(value, self.numFeatures, missing=False))[0])

    def _head(self) -> VectorHead:
        return VectorHead(self.metric.rank)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOutputCol(), "raw")]


MetricLearning._MODEL = MetricLearningModel


def join_vectors(frame: DataFrame, names: tuple[str, str], label: str) -> tuple[DataFrame, str]:
    """Return rows with the labels and the concatenation of each row's two vectors, and the name of its column."""
    for name in names:
        check_features(frame, name)
    field(frame, label)
    metadata = {"ml_attr": {"num_attrs": _vector_size(frame, names)}}
    vectors = [
        _as_vectors(frame, name).alias(alias, metadata=metadata)
        for name, alias in zip(names, VECTOR_COLUMNS, strict=True)
    ]
    rows = frame.select(*vectors, column(label).alias(label, metadata=field(frame, label).metadata))
    joined_name = " and ".join(names)
    # Keep NaN: the workers report rows with NaN, as for other estimators.
    assembler = VectorAssembler(inputCols=VECTOR_COLUMNS, outputCol=joined_name, handleInvalid="keep")
    return assembler.transform(rows).select(column(joined_name), column(label)), joined_name


def _as_vectors(frame: DataFrame, name: str) -> Column:
    """Return a column of vectors or arrays as vectors; a null element of an array becomes NaN."""
    value = column(name)
    if not isinstance(field(frame, name).dataType, ArrayType):
        return value
    return array_to_vector(F.transform(value, lambda element: F.coalesce(element.cast("double"), F.lit(math.nan))))


def _vector_size(frame: DataFrame, names: tuple[str, str]) -> int:
    """Return all vectors' length, by one Spark job; InputError: a vector is null or empty, or the lengths differ."""
    aggregates = [F.count(F.lit(1)).alias("rows")]
    for index, name in enumerate(names):
        value = column(name)
        if isinstance(field(frame, name).dataType, ArrayType):
            size = F.when(value.isNotNull(), F.size(value))
        else:
            vector = F.unwrap_udt(value)
            size = F.when(vector.isNotNull(), F.coalesce(vector["size"], F.size(vector["values"])))
        aggregates += [F.min(size).alias(f"min{index}"), F.max(size).alias(f"max{index}")]
        aggregates.append(F.sum(F.when(size.isNull(), 1).otherwise(0)).alias(f"nulls{index}"))
    stats = frame.agg(*aggregates).collect()[0]
    if not stats["rows"]:
        raise InputError(NO_ROWS)
    for index, name in enumerate(names):
        if stats[f"nulls{index}"]:
            raise InputError(f"column {name!r}: expected vectors, got null in {stats[f'nulls{index}']} rows")
        sizes = stats[f"min{index}"], stats[f"max{index}"]
        if sizes[0] != sizes[1] or sizes[0] != stats["min0"]:
            expected = f"size {stats['min0']}, as in column {names[0]!r}" if index else "one size"
            raise InputError(f"column {name!r}: expected vectors of {expected}, got sizes {sizes[0]} to {sizes[1]}")
    if not stats["min0"]:
        raise InputError(f"column {names[0]!r}: expected features, got vectors of size 0")
    return int(stats["min0"])
