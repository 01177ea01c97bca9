"""The public estimators and models of deep learning: ``DeepFM`` and its relatives, ``TwoTower``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from ps2.algorithms.deep.architecture import Architecture, KindName
from ps2.algorithms.deep.estimator_frame import DeepEstimator, DeepFittedModel
from ps2.algorithms.deep.interactions import (
    CompressedInteraction,
    CrossNetwork,
    HistoryAttention,
    Interaction,
    SelfAttention,
)
from ps2.algorithms.deep.settings import (
    AttentionSettings,
    ClickSettings,
    CompressedSettings,
    CrossSettings,
    HistorySettings,
    TowerSettings,
)
from ps2.algorithms.frame.arrow_batches import collect_vectors
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.keyed_models import KeyedClassModel, with_key_predictions
from ps2.algorithms.frame.name_files import named_vectors
from ps2.algorithms.frame.scoring import KeyScoring
from ps2.client.fleet import lending
from ps2.data.columns import join_names
from ps2.data.hashing import Field, FieldHasher
from ps2.data.ids import Names
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of, with_python
from ps2.run.spark.frames import map_in_arrow

# The temporary column of items' vectors.
VECTOR = "ps2 vector"


class _ClickModel(ClickSettings, DeepFittedModel, KeyedClassModel, Model):
    @property
    def numClasses(self) -> int:
        """2: labels are 0 and 1."""
        return 2


class _ClickEstimator(ClickSettings, DeepEstimator):
    _SETTINGS = ClickSettings
    _KIND: ClassVar[KindName]

    def _architecture(self, hasher: FieldHasher) -> Architecture:
        sizes = self.getFactorSize(), hasher.field_count, self._deep(hasher), tuple(self.getHiddenLayers())
        return Architecture(self._KIND, *sizes, self.getDropoutRate(), interaction=self._interaction(hasher))

    def _interaction(self, hasher: FieldHasher) -> Interaction | None:
        """Return the interaction, of a kind that has one."""
        return None

    def _deep(self, hasher: FieldHasher) -> int:
        """Return the number of leading fields that are inputs of the layers."""
        return hasher.field_count


class DeepFM(_ClickEstimator, Estimator["DeepFMModel"]):
    """A factorization machine plus layers over the same embeddings, which are on servers (Guo et al., 2017).

    The margin is the sum of the linear weights of a row's keys, the inner products of all pairs of their vectors, and
    the output of layers whose inputs are the vectors of its fields. Keys are hashed, so there is no vocabulary.

    Example::

        model = DeepFM(categoricalCols=["user", "ad"], factorSize=16, hiddenLayers=[128, 64]).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = "ps2.algorithms.classification"
    _KIND = "deepfm"


class DeepFMModel(_ClickModel):
    """A trained ``DeepFM``."""

    __module__ = "ps2.algorithms.classification"


class WideAndDeep(_ClickEstimator, Estimator["WideAndDeepModel"]):
    """A linear model plus layers over embeddings, which are on servers (Cheng et al., 2016).

    The linear model has a weight for each key of each field. All fields except crosses are also inputs of the layers.

    Example::

        model = WideAndDeep(categoricalCols=["user", "ad"], crosses=["user:ad"]).fit(df)
    """

    __module__ = "ps2.algorithms.classification"
    _KIND = "wide-deep"

    def _order_fields(self, hasher: FieldHasher) -> FieldHasher:
        crosses = [field for field in hasher.fields if field.kind == "cross"]
        return replace(hasher, fields=(*(field for field in hasher.fields if field.kind != "cross"), *crosses))

    def _deep(self, hasher: FieldHasher) -> int:
        deep = hasher.field_count - sum(field.kind == "cross" for field in hasher.fields)
        if not deep:
            raise ConfigError("crosses: expected other fields, too, because crosses are not inputs of the layers")
        return deep


class WideAndDeepModel(_ClickModel):
    """A trained ``WideAndDeep``."""

    __module__ = "ps2.algorithms.classification"


class DCNv2(CrossSettings, _ClickEstimator, Estimator["DCNv2Model"]):
    """Layers, and beside them a cross network, over embeddings, which are on servers (DCN V2, Wang et al., 2021).

    The margin is the sum of the linear weights of a row's keys, the output of the layers, and that of the cross
    network, whose layer l multiplies its inputs element by element with a linear map of layer l - 1 (Equation 1).

    Example::

        model = DCNv2(categoricalCols=["user", "ad"], crossLayers=3).fit(df)
    """

    __module__ = "ps2.algorithms.classification"
    _SETTINGS = CrossSettings
    _KIND = "dcn"

    def _interaction(self, hasher: FieldHasher) -> Interaction:
        return CrossNetwork(self.getCrossLayers())


class DCNv2Model(CrossSettings, _ClickModel):
    """A trained ``DCNv2``."""

    __module__ = "ps2.algorithms.classification"


class XDeepFM(CompressedSettings, _ClickEstimator, Estimator["XDeepFMModel"]):
    """Layers, and beside them a compressed interaction network (CIN), over embeddings (xDeepFM, Lian et al., 2018).

    The margin is the sum of the linear weights of a row's keys, the output of the layers, and that of the compressed
    interaction network, whose feature maps are products of whole vectors (Equations 6, 7 and 15).

    Example::

        model = XDeepFM(categoricalCols=["user", "ad"], cinLayers=[64, 64]).fit(df)
    """

    __module__ = "ps2.algorithms.classification"
    _SETTINGS = CompressedSettings
    _KIND = "xdeepfm"

    def _interaction(self, hasher: FieldHasher) -> Interaction:
        return CompressedInteraction(tuple(self.getCinLayers()))


class XDeepFMModel(CompressedSettings, _ClickModel):
    """A trained ``XDeepFM``."""

    __module__ = "ps2.algorithms.classification"


class AutoInt(AttentionSettings, _ClickEstimator, Estimator["AutoIntModel"]):
    """Layers, and beside them self-attention of the fields, over embeddings on servers (AutoInt, Song et al., 2019).

    The margin is the sum of the linear weights of a row's keys, the output of the layers, and a linear map of the last
    interacting layer (Equations 5 to 8 and 10). With layers this is AutoInt+ of Section 5.5; ``hiddenLayers=[]``
    leaves a linear map of the embeddings.

    Example::

        model = AutoInt(categoricalCols=["user", "ad"], interactingLayers=3, numHeads=2).fit(df)
    """

    __module__ = "ps2.algorithms.classification"
    _SETTINGS = AttentionSettings
    _KIND = "autoint"

    def _interaction(self, hasher: FieldHasher) -> Interaction:
        return SelfAttention(self.getInteractingLayers(), self.getNumHeads(), self.getHeadSize())


class AutoIntModel(AttentionSettings, _ClickModel):
    """A trained ``AutoInt``."""

    __module__ = "ps2.algorithms.classification"


class DIN(HistorySettings, _ClickEstimator, Estimator["DINModel"]):
    """Layers over embeddings, with attention of a candidate to a user's history (DIN, Zhou et al., 2018).

    A history is a column of arrays, such as the items that a user has clicked, and its candidate a categorical column,
    such as the item of the row. Both have the same embeddings. The vector of a history is the sum of its items'
    vectors, each multiplied by an activation unit's output for item and candidate (Equation 3). There are no linear
    weights. The order of a history does not matter.

    Example::

        model = DIN(categoricalCols=["user", "item"], historyCols={"clicked": "item"}).fit(df)
    """

    __module__ = "ps2.algorithms.classification"
    _SETTINGS = HistorySettings
    _KIND = "din"

    def _hashed_fields(self) -> list[Field]:
        fields, histories = super()._hashed_fields(), self.getHistoryCols()
        categories = [field.columns[0] for field in fields if field.kind == "categorical"]
        if not histories:
            raise ConfigError('historyCols: expected a column of arrays and its candidate, as {"clicked": "item"}')
        for candidate in histories.values():
            if candidate not in categories:
                names = join_names(categories)
                raise ConfigError(f"historyCols: expected a candidate of categoricalCols ({names}), got {candidate!r}")
        return fields + [Field.categorical(name, shared=candidate) for name, candidate in histories.items()]

    def _interaction(self, hasher: FieldHasher) -> Interaction:
        fields = zip(hasher.fields, hasher.first_numbers, strict=True)
        numbers = {field.columns[0]: number for field, number in fields if field.kind == "categorical"}
        histories = tuple((numbers[name], numbers[candidate]) for name, candidate in self.getHistoryCols().items())
        return HistoryAttention(histories, tuple(self.getAttentionLayers()))


class DINModel(HistorySettings, _ClickModel):
    """A trained ``DIN``."""

    __module__ = "ps2.algorithms.classification"


class TwoTower(TowerSettings, DeepEstimator, Estimator["TwoTowerModel"]):
    """Two towers, for users and for items; the score of a pair is the cosine of their vectors (Yi et al., 2019).

    Each row is a pair of a user and an item. With loss "softmax", rows are positive pairs, and a row's negatives are
    the other items of its batch, corrected by the items' frequencies; with "logistic", labels are 0 and 1.

    Example::

        model = TwoTower(categoricalCols=["user", "age", "item", "genre"], userCols=["user", "age"]).fit(df)
        model.userVectors(users)   # adds a column of vectors; inner products with items' vectors are the scores
    """

    __module__ = "ps2.algorithms.recommendation"
    _SETTINGS = TowerSettings

    def _label(self) -> str | None:
        return None if self.getLoss() == "softmax" else self.getLabelCol()

    def _order_fields(self, hasher: FieldHasher) -> FieldHasher:
        left, right = self._sides(hasher)
        return replace(hasher, fields=(*left, *right))

    def _sides(self, hasher: FieldHasher) -> tuple[list[Field], list[Field]]:
        """Return the fields of the users' tower, and those of the items' tower."""
        users = set(self.getUserCols() or ()) if self.isSet(self.userCols) else set()
        names = list(dict.fromkeys(column for field in hasher.fields for column in field.columns))
        if unknown := sorted(users.difference(names)):
            raise ConfigError(f"userCols: expected key columns ({join_names(names)}), got {unknown[0]!r}")
        left = [field for field in hasher.fields if users.issuperset(field.columns)]
        right = [field for field in hasher.fields if users.isdisjoint(field.columns)]
        if len(left) + len(right) < len(hasher.fields):
            mixed_field = next(field for field in hasher.fields if field not in left and field not in right)
            raise ConfigError(f"userCols: field {mixed_field.name!r} has columns of both towers")
        if not left or not right:
            raise ConfigError(
                f"userCols: expected some of the key columns ({join_names(hasher.columns)}), not all, got "
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


class TwoTowerModel(TowerSettings, DeepFittedModel, Model):
    """A trained ``TwoTower``."""

    __module__ = "ps2.algorithms.recommendation"

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check_fleet()
        names = [(self.getPredictionCol(), "prediction")]
        return with_key_predictions(dataset, self.fitted.hasher, self.fitted.predictor().margins, None, names)

    def scoring(self) -> KeyScoring:
        """Describe how ``transform`` scores rows, for scorers of an export without Spark and servers."""
        return KeyScoring(tuple(self.fitted.hasher.columns), self.getPredictionCol())

    def userVectors(self, dataset: DataFrame, outputCol: str = "vector") -> DataFrame:
        """Add the users' vectors, of norm 1, as arrays of floats. The DataFrame needs only the ``userCols``."""
        return self._with_vectors(dataset, outputCol, right=False)

    def itemVectors(self, dataset: DataFrame, outputCol: str = "vector") -> DataFrame:
        """Add the items' vectors, as ``userVectors`` does. The DataFrame needs only the columns of the items' tower."""
        return self._with_vectors(dataset, outputCol, right=True)

    def export(self, path: str, since: Any = None, items: DataFrame | None = None, itemCol: str = "item") -> Any:
        """Write an export that scores pairs and, with ``items``, recommends them to users (``ps2 serve``).

        Args:
            path: a folder, or any fsspec URL.
            since: an earlier export, its number, or "last": write only the keys that have changed since that export.
            items: the columns of the items' tower, a row for each item that may be recommended; the export has their
                vectors, which pass through the driver. None: the export scores pairs only.
            itemCol: a column of ``items`` with their ids, distinct integers or strings.

        Raises:
            InputError: an id is null or repeated, or has another type; or there are no rows.
            RecoveryError: the files cannot be written. The previous export remains usable.
        """
        if items is None:
            return self.fitted.export(path, since)
        ids, vectors = collect_vectors(self.itemVectors(items, VECTOR), itemCol, VECTOR)
        names = Names.from_values(ids, "item")
        order = names.order()
        ascending = Names(names.values.take(pa.array(order)), "item")
        return self.fitted.export(path, since, named_vectors("item", ascending, vectors[order]))

    def _with_vectors(self, dataset: DataFrame, name: str, right: bool) -> DataFrame:
        check_frame(dataset)
        if name in dataset.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for the vectors")
        self._check_fleet()
        predictor = self.fitted.predictor()

        def add_vectors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                vectors = predictor.tower(batch, right)
                offsets = pa.array(np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1])
                lists = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1)))
                yield pa.RecordBatch.from_arrays([*batch.columns, lists], names=[*batch.schema.names, name])

        column = StructField(name, ArrayType(FloatType(), False), False)
        schema = StructType([*dataset.schema.fields, column])
        with lending(backend_of(dataset).loan):
            with_vectors: DataFrame = map_in_arrow(with_python(dataset), add_vectors, schema)
        return with_vectors


DeepFM._MODEL, WideAndDeep._MODEL, TwoTower._MODEL = DeepFMModel, WideAndDeepModel, TwoTowerModel
DCNv2._MODEL, XDeepFM._MODEL, AutoInt._MODEL, DIN._MODEL = DCNv2Model, XDeepFMModel, AutoIntModel, DINModel
