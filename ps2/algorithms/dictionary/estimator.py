"""The public estimator and model of dictionary learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.ml import Estimator, Model
from pyspark.ml.linalg import SparseVector
from pyspark.sql import DataFrame

from ps2.algorithms.dictionary.model import SparseCoder
from ps2.algorithms.dictionary.placing import placed
from ps2.algorithms.dictionary.plan import DictionaryPlan, FittedDictionary
from ps2.algorithms.dictionary.program import train
from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.estimator import FleetEstimator
from ps2.algorithms.estimators.heads import VectorHead
from ps2.algorithms.estimators.models import FeatureModel
from ps2.algorithms.estimators.predict import compressed, rows_of
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.unlabelled import survey_rows
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import train_in_only_worker
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.coordinator.context import PS2Context


class DictionaryLearning(DictionarySettings, FleetEstimator, Estimator["DictionaryLearningModel"]):
    """Sparse coding: k atoms on servers, of which each row is a combination of few.

    Atoms D and codes A minimise ``1/2 |X - A D|^2 + regParam |A|_1``, and no atom is longer than 1: scikit-learn's
    DictionaryLearning with alpha = regParam (Mairal et al., 2010).

    Example::

        model = DictionaryLearning(k=100, regParam=0.5).fit(df)  # featuresCol: dense or sparse vectors
        model.transform(df).select("codes").show()
    """

    __module__ = "ps2.algorithms.feature"

    def _plan(self) -> DictionarySettings:
        return self._values(DictionarySettings)

    def _columns(self) -> ColumnNames:
        return ColumnNames(self._features, label=None)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> TableSurvey:
        return survey_rows(dataset, columns)

    def _train_model(
        self, settings: DictionarySettings, found: TableSurvey, dealt: Dealer
    ) -> tuple[Any, TrainingHistory]:
        plan = DictionaryPlan(settings=settings, name=self._name, dim=found.dim)
        plan.check(found.rows)
        placement = placed(plan, found, dealt)
        table = dealt(placement.workers)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> FittedDictionary:
            if placement.via == "servers":
                return train(ps, table, plan, on_step)
            fitted: FittedDictionary = train_in_only_worker(ps, table, plan.form, train, plan, on_step)
            return fitted

        fitted = self._train_in_context(table, settings.maxIter, run)
        coder = SparseCoder(fitted.dictionary, settings.regParam, settings.nonnegative)
        return DictionaryLearningModel._of(coder), replace(fitted.history, placement=placement)


class DictionaryLearningModel(DictionarySettings, FeatureModel, Model):
    """A trained ``DictionaryLearning``."""

    __module__ = "ps2.algorithms.feature"
    _ARRAYS = SparseCoder

    def _sizes(self) -> dict[str, Any]:
        return {"k": self.coder.k}

    @property
    def coder(self) -> SparseCoder:
        """The dictionary and its codes as arrays, usable without Spark."""
        coder: SparseCoder = self._fitted
        return coder

    @property
    def dictionary(self) -> npt.NDArray[np.float64]:
        """The atoms, float64, shape (k, features)."""
        return self.coder.dictionary

    def code(self, value: Any) -> SparseVector:
        """Return the code of one row: a vector of pyspark, an array or a list of ``numFeatures`` numbers."""
        code = self.coder.transform(rows_of(value, self.numFeatures, missing=False))
        return SparseVector(self.coder.k, code.indices.tolist(), code.data.tolist())

    def _head(self) -> VectorHead:
        return VectorHead(self.coder.k)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOutputCol(), "raw")]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return compressed(super()._transform(dataset), self.getOutputCol())
