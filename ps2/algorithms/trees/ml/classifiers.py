"""Boosted trees and forests for classes: estimators and models of ``ps2.algorithms.classification``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pyspark.ml.classification import (
    ProbabilisticClassificationModel,
    ProbabilisticClassifier,
    _GBTClassifierParams,
    _RandomForestClassifierParams,
)
from pyspark.ml.param import Param

from ps2.algorithms.estimators.heads import ClassHead, VotesHead
from ps2.algorithms.estimators.models import ProbabilityModel, check_thresholds
from ps2.algorithms.estimators.params import choice, setter
from ps2.algorithms.estimators.summaries import (
    BinaryClassificationSummary,
    BinaryClassificationTrainingSummary,
    ClassificationSummary,
    ClassificationTrainingSummary,
)
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.trees.forests.options import ImpurityName
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.ml.estimator import TreeEstimator
from ps2.algorithms.trees.ml.forest_estimator import ForestEstimator
from ps2.algorithms.trees.ml.forest_models import ForestClassificationTree, ForestOfTrees
from ps2.algorithms.trees.ml.forest_params import ForestParams
from ps2.algorithms.trees.ml.models import ForestModel
from ps2.algorithms.trees.ml.params import TreeParams
from ps2.algorithms.trees.model import GBTModel
from ps2.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import classification as keywords

# Where users import the classes from, and files of saved models say they are.
MODULE = "ps2.algorithms.classification"
LOSSES = ("logistic",)
IMPURITIES: tuple[ImpurityName, ...] = ("gini", "entropy")


def _objective_of(estimator: Any, found: Survey) -> Objective:
    """Return the objective for the classes of the rows; UsageError if the thresholds are not theirs."""
    classes = len(found.facts.class_weights)
    if estimator.isSet(estimator.thresholds):
        check_thresholds(tuple(estimator.getThresholds()), classes)
    return Objective("softmax", classes) if classes > 2 else Objective("logistic")


def _summaries_of(classes: int) -> tuple[Any, Any]:
    """Return the classes of the summaries of any rows, and of the training's."""
    if classes == 2:
        return BinaryClassificationSummary, BinaryClassificationTrainingSummary
    return ClassificationSummary, ClassificationTrainingSummary


class _GBTParams(TreeParams, _GBTClassifierParams):
    lossType: Param[str] = choice(_GBTClassifierParams.lossType, LOSSES)


class GBTClassifier(TreeEstimator, _GBTParams, ProbabilisticClassifier):
    """Gradient boosted trees: ``pyspark.ml.classification.GBTClassifier`` on servers, for any number of classes.

    Example::

        model = GBTClassifier(maxIter=50, maxDepth=6, maxBins=256).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = MODULE

    def __init__(self, **params: Unpack[keywords.GBTClassifier]) -> None:
        super().__init__(**params)

    _CLASSES = 0

    def setLossType(self, value: str) -> GBTClassifier:
        """Set the loss: "logistic" is the only one."""
        return self._set(lossType=value)

    def _check(self) -> None:
        super()._check()
        if self.getLossType() not in LOSSES:
            raise ConfigError(f"lossType: expected logistic, got {self.getLossType()!r}")

    def _objective(self, found: Survey) -> Objective:
        return _objective_of(self, found)

    def _model(self, fitted: GBTModel) -> GBTClassificationModel:
        return GBTClassificationModel(fitted)


class GBTClassificationModel(ForestModel, ProbabilityModel, _GBTParams, ProbabilisticClassificationModel):
    """What ``GBTClassifier.fit`` returns."""

    __module__ = MODULE

    def _head(self) -> ClassHead:
        link: Literal["softmax", "logistic"] = "softmax" if self.numClasses > 2 else "logistic"
        return ClassHead(self.numClasses, link, thresholds=self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return _summaries_of(self.numClasses)


class _ForestParams(ForestParams, _RandomForestClassifierParams):
    impurity: Param[str] = choice(_RandomForestClassifierParams.impurity, IMPURITIES)


class RandomForestClassifier(ForestEstimator, _ForestParams, ProbabilisticClassifier):
    """A random forest: ``pyspark.ml.classification.RandomForestClassifier`` on servers, for any number of classes.

    Example::

        model = RandomForestClassifier(numTrees=100, maxDepth=10, maxBins=256).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = MODULE

    def __init__(self, **params: Unpack[keywords.RandomForestClassifier]) -> None:
        super().__init__(**params)

    _CLASSES = 0
    _IMPURITIES = IMPURITIES

    setImpurity = setter(_ForestParams.impurity)

    def _objective(self, found: Survey) -> Objective:
        return _objective_of(self, found)

    def _model(self, fitted: RandomForest) -> RandomForestClassificationModel:
        return RandomForestClassificationModel(fitted)


# ``getNumTrees`` is a property of models, as of pyspark.ml's.
class RandomForestClassificationModel(  # type: ignore[misc]
    ForestOfTrees, ProbabilityModel, _ForestParams, ProbabilisticClassificationModel
):
    """What ``RandomForestClassifier.fit`` returns."""

    __module__ = MODULE

    _TREE = ForestClassificationTree

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return _summaries_of(self.numClasses)
