"""``TwoTower``: retrieval with two towers of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.ml.estimator import DeepEstimator, DeepFittedModel
from ps2.algorithms.deep.ml.params import TowerParams
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.key_predictions import with_key_predictions
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.scoring import KeyScoring
from ps2.array_types import Float32s
from ps2.data.columns import listed
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import deep_ml_towers as keywords


class TwoTower(DeepEstimator, TowerParams, Estimator["TwoTowerModel"]):
    """Two towers, users' and items', whose vectors' cosine is a pair's score (Yi et al., 2019).

    Each row is a pair of a user and an item. With loss "softmax", rows are positive pairs, and a row's negatives
    are the other items of its batch, corrected by how often these come; with "logistic", labels are 0 and 1.

    Example::

        model = TwoTower(categoricalCols=["user", "age", "item", "genre"], userCols=["user", "age"]).fit(df)
        model.userVectors(users)   # adds a column of vectors; the nearest items by inner product are the best ones
    """

    def __init__(self, **params: Unpack[keywords.TwoTower]) -> None:
        super().__init__(**params)

    def _label(self) -> str | None:
        return None if self.getLoss() == "softmax" else self.getLabelCol()

    def _arranged(self, hasher: FieldHasher) -> FieldHasher:
        left, right = self._sides(hasher)
        return replace(hasher, fields=(*left, *right))

    def _sides(self, hasher: FieldHasher) -> tuple[list[Field], list[Field]]:
        """Return the users' and the items' fields."""
        users = set(self.getUserCols()) if self.isSet(self.userCols) else set()
        if unknown := sorted(users - set(hasher.columns)):
            raise ConfigError(f"userCols: expected key columns ({listed(hasher.columns)}), got {unknown[0]!r}")
        left = [field for field in hasher.fields if users.issuperset(field.columns)]
        right = [field for field in hasher.fields if users.isdisjoint(field.columns)]
        if len(left) + len(right) < len(hasher.fields):
            both = next(field for field in hasher.fields if field not in left and field not in right)
            raise ConfigError(f"userCols: field {both.name!r} has columns of both towers")
        if not left or not right:
            raise ConfigError(
                f"userCols: expected some of the key columns ({listed(hasher.columns)}), not all, got "
                f"{', '.join(sorted(users)) or 'none'}"
            )
        return left, right

    def _architecture(self, hasher: FieldHasher) -> Architecture:
        left, _ = self._sides(hasher)
        return Architecture(
            "two-tower",
            self.getFactorSize(),
            hasher.field_count,
            sum(field.width or 1 for field in left),
            tuple(self.getHiddenLayers()),
            self.getDropoutRate(),
            self.getTemperature(),
        )

    setLoss = setter(TowerParams.loss)
    setTemperature = setter(TowerParams.temperature)
    setUserCols = setter(TowerParams.userCols)


class TwoTowerModel(DeepFittedModel, TowerParams, Model):
    """What ``TwoTower.fit`` returns."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        names = [(self.getPredictionCol(), "prediction")]
        return with_key_predictions(dataset, self.fitted.hasher, self._predictor().margins, None, names)

    def scoring(self) -> KeyScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers of an export without Spark and servers."""
        return KeyScoring(tuple(self.fitted.hasher.columns), self.getPredictionCol())

    def userVectors(self, dataset: DataFrame, outputCol: str = "vector") -> DataFrame:
        """Add the users' vectors, of length 1, as arrays of floats; only the users' columns need to be there."""
        return self._with_vectors(dataset, outputCol, right=False)

    def itemVectors(self, dataset: DataFrame, outputCol: str = "vector") -> DataFrame:
        """Add the items' vectors; see ``userVectors``."""
        return self._with_vectors(dataset, outputCol, right=True)

    def _with_vectors(self, dataset: DataFrame, name: str, right: bool) -> DataFrame:
        check_frame(dataset)
        if name in dataset.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for the vectors")
        predictor = self._predictor()
        added = StructField(name, ArrayType(FloatType(), False), False)
        schema = StructType([*dataset.schema.fields, added])
        whole: DataFrame = map_in_arrow(
            with_python(dataset), _adding(lambda batch: predictor.tower(batch, right), name), schema
        )
        return whole


def _adding(vectors_of: Callable[[pa.RecordBatch], Float32s], name: str) -> Any:
    def added(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            vectors = vectors_of(batch)
            ends = pa.array(np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1])
            lists = pa.ListArray.from_arrays(ends, pa.array(vectors.reshape(-1)))
            yield pa.RecordBatch.from_arrays([*batch.columns, lists], names=[*batch.schema.names, name])

    return added


TwoTower._MODEL = TwoTowerModel
