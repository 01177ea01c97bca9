"""The public estimator and model of dictionary learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.ml import Estimator, Model
from pyspark.ml.linalg import SparseVector
from pyspark.sql import DataFrame

from ps2.algorithms.dictionary.model import SparseCoder
from ps2.algorithms.dictionary.plan import DictionaryPlan
from ps2.algorithms.dictionary.program import train
from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.frame.estimator import FleetEstimator
from ps2.algorithms.frame.heads import VectorHead
from ps2.algorithms.frame.models import FeatureModel
from ps2.algorithms.frame.predict import as_row, compressed
from ps2.algorithms.frame.tables import TableSurvey


class DictionaryLearningModel(DictionarySettings, FeatureModel, Model):
    """A trained ``DictionaryLearning``."""

    __module__ = "ps2.algorithms.feature"
    _ARRAYS = SparseCoder

    def _shown_values(self) -> dict[str, Any]:
        return {"k": self.coder.k}

    @property
    def coder(self) -> SparseCoder:
        """The dictionary as arrays, which encodes rows without Spark."""
        coder: SparseCoder = self._fitted
        return coder

    @property
    def dictionary(self) -> npt.NDArray[np.float64]:
        """The atoms, float64, shape (k, features)."""
        return self.coder.dictionary

    def code(self, value: Any) -> SparseVector:
        """Return the code of one row: a vector of pyspark, an array or a list of ``numFeatures`` values."""
        code = self.coder.transform(as_row(value, self.numFeatures, missing=False))
        return SparseVector(self.coder.k, code.indices.tolist(), code.data.tolist())

    def _head(self) -> VectorHead:
        return VectorHead(self.coder.k)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOutputCol(), "raw")]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return compressed(super()._transform(dataset), self.getOutputCol())


class DictionaryLearning(DictionarySettings, FleetEstimator, Estimator["DictionaryLearningModel"]):
    """Sparse coding on servers: each row is approximated by a linear combination of a few of k atoms.

    Atoms D and codes A minimise ``1/2 |X - A D|^2 + regParam |A|_1`` subject to atoms with norms of at most 1, as in
    scikit-learn's DictionaryLearning with alpha = regParam (Mairal et al., 2010).

    Example::

        model = DictionaryLearning(k=100, regParam=0.5).fit(df)  # featuresCol: dense or sparse vectors
        model.transform(df).select("codes").show()
    """

    __module__ = "ps2.algorithms.feature"
    _PLAN, _MODEL, _TRAIN = DictionaryPlan, DictionaryLearningModel, staticmethod(train)

    def _resolve(self, plan: DictionarySettings, survey: TableSurvey) -> DictionaryPlan:
        resolved: DictionaryPlan = super()._resolve(plan, survey)
        resolved.check(survey.rows)
        return resolved
