"""The public models of random forests, and of their trees."""

from __future__ import annotations

from typing import Any, ClassVar

from pyspark.ml.classification import DecisionTreeClassificationModel, ProbabilisticClassificationModel
from pyspark.ml.linalg import Vector
from pyspark.ml.regression import DecisionTreeRegressionModel, RegressionModel

from ps2.algorithms.frame.heads import ValueHead, VotesHead
from ps2.algorithms.frame.models import FleetRegressionModel, ProbabilityModel
from ps2.algorithms.frame.summaries import (
    ClassificationSummary,
    ClassificationTrainingSummary,
    RegressionSummary,
    RegressionTrainingSummary,
)
from ps2.algorithms.trees.forests.random_forest import RandomForest, read_random_forest, write_random_forest
from ps2.algorithms.trees.models import class_summaries
from ps2.algorithms.trees.settings import (
    ClassTreeSettings,
    NumberTreeSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.algorithms.trees.tree_models import AnyTrees, Ensemble, OneTree
from ps2.array_types import Float64s


class _ForestTrees(AnyTrees):
    """One tree of a random forest or several."""

    def _importances(self) -> Float64s:
        importances: Float64s = self._fitted.importances()
        return importances

    def _write_content(self, url: str) -> dict[str, Any]:
        return write_random_forest(url, self._fitted)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> RandomForest:
        return read_random_forest(path, url, content)


class RandomForestModel(Ensemble, _ForestTrees):
    """A trained random forest."""

    _LOADER = f"{RandomForest.__module__}:{RandomForest.__name__}"

    _TREE: ClassVar[type[OneTree]]

    def _tree_models(self) -> list[OneTree]:
        return [self._TREE._of(self._fitted.part(number)) for number in range(self.getNumTrees)]


class ForestRegressionTree(NumberTreeSettings, OneTree, _ForestTrees, FleetRegressionModel, RegressionModel[Vector]):
    """A tree that predicts numbers."""

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


class ForestClassificationTree(
    ClassTreeSettings, OneTree, _ForestTrees, ProbabilityModel, ProbabilisticClassificationModel
):
    """A tree that predicts classes."""

    _NAME = "DecisionTreeClassificationModel"

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return ClassificationSummary, ClassificationTrainingSummary


# ``getNumTrees`` is a property of models, as in pyspark.ml, so their base class comes before the settings.
class RandomForestClassificationModel(  # type: ignore[misc]
    RandomForestModel, RandomForestClassifierSettings, ProbabilityModel, ProbabilisticClassificationModel
):
    """A trained ``RandomForestClassifier``."""

    __module__ = "ps2.algorithms.classification"

    _TREE = ForestClassificationTree

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return class_summaries(self.numClasses)


class RandomForestRegressionModel(  # type: ignore[misc]
    RandomForestModel, RandomForestRegressorSettings, FleetRegressionModel, RegressionModel[Vector]
):
    """A trained ``RandomForestRegressor``."""

    __module__ = "ps2.algorithms.regression"

    _TREE = ForestRegressionTree

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


# isinstance() says yes; a real subclass would have to wrap a Java object.
DecisionTreeRegressionModel.register(ForestRegressionTree)
DecisionTreeClassificationModel.register(ForestClassificationTree)
