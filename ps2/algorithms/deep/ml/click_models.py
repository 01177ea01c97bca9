"""``DeepFM`` and ``WideAndDeep``: deep models of clicks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame

from ps2.algorithms.deep.architecture import Architecture, KindName
from ps2.algorithms.deep.ml.estimator import DeepEstimator, DeepFittedModel
from ps2.algorithms.deep.ml.params import ClickParams
from ps2.algorithms.estimators.key_predictions import with_class_predictions
from ps2.algorithms.estimators.scoring import KeyScoring
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import deep_ml_click_models as keywords


class _ClickModel(DeepFittedModel, ClickParams, Model):
    @property
    def numClasses(self) -> int:
        """2: labels are 0 and 1."""
        return 2

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return with_class_predictions(dataset, self.fitted.hasher, self._predictor().margins, self)

    def scoring(self) -> KeyScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers of an export without Spark and servers."""
        names = self.getPredictionCol(), self.getProbabilityCol()
        return KeyScoring(tuple(self.fitted.hasher.columns), *names, self.getThreshold())


class _ClickEstimator(DeepEstimator, ClickParams):
    _KIND: KindName

    def _architecture(self, hasher: FieldHasher) -> Architecture:
        sizes = self.getFactorSize(), hasher.field_count, self._deep(hasher), tuple(self.getHiddenLayers())
        return Architecture(self._KIND, *sizes, self.getDropoutRate())

    def _deep(self, hasher: FieldHasher) -> int:
        """Return how many fields, the first ones, are inputs of the layers."""
        return hasher.field_count


class DeepFM(_ClickEstimator, Estimator["DeepFMModel"]):
    """A factorization machine and layers over the same embeddings (Guo et al., 2017), which lie on servers.

    The margin is a linear weight of each key, the inner products of all pairs of a row's vectors, and the output of
    layers over the vectors of its fields. Keys are hashed, so that there is no vocabulary.

    Example::

        model = DeepFM(categoricalCols=["user", "ad"], factorSize=16, hiddenLayers=[128, 64]).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    def __init__(self, **params: Unpack[keywords.DeepFM]) -> None:
        super().__init__(**params)

    _KIND = "deepfm"


class DeepFMModel(_ClickModel):
    """What ``DeepFM.fit`` returns."""


class WideAndDeep(_ClickEstimator, Estimator["WideAndDeepModel"]):
    """A linear model beside layers over embeddings (Cheng et al., 2016), which lie on servers.

    All fields are wide: each key has a linear weight. Crosses are wide only; the other fields are inputs of the layers,
    too.

    Example::

        model = WideAndDeep(categoricalCols=["user", "ad"], crosses=["user:ad"]).fit(df)
    """

    def __init__(self, **params: Unpack[keywords.WideAndDeep]) -> None:
        super().__init__(**params)

    _KIND = "wide-deep"

    def _arranged(self, hasher: FieldHasher) -> FieldHasher:
        crosses = [field for field in hasher.fields if field.kind == "cross"]
        return replace(hasher, fields=(*(field for field in hasher.fields if field.kind != "cross"), *crosses))

    def _deep(self, hasher: FieldHasher) -> int:
        deep = hasher.field_count - sum(field.kind == "cross" for field in hasher.fields)
        if not deep:
            raise ConfigError("crosses: expected other fields, too, as crosses are no inputs of the layers")
        return deep


class WideAndDeepModel(_ClickModel):
    """What ``WideAndDeep.fit`` returns."""


DeepFM._MODEL, WideAndDeep._MODEL = DeepFMModel, WideAndDeepModel
