"""The public models of boosted trees and of random forests, and of single trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pyspark.ml.base import PredictionModel
from pyspark.ml.classification import DecisionTreeClassificationModel, ProbabilisticClassificationModel
from pyspark.ml.linalg import Vector
from pyspark.ml.regression import DecisionTreeRegressionModel, RegressionModel
from pyspark.sql import DataFrame

from ps2.algorithms.frame.heads import ClassHead, ValueHead, VotesHead
from ps2.algorithms.frame.models import FleetRegressionModel, ProbabilityModel
from ps2.algorithms.frame.settings import setter
from ps2.algorithms.frame.summaries import (
    ClassificationSummary,
    ClassificationTrainingSummary,
    RegressionSummary,
    RegressionTrainingSummary,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.forests.random_forest import RandomForest, RandomForestFiles
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.settings import (
    BoostingSettings,
    ClassTreeSettings,
    GBTClassifierSettings,
    GBTRankerSettings,
    GBTRegressorSettings,
    NumberTreeSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.algorithms.trees.summaries import RankingSummary, RankingTrainingSummary, check_relevance, losses_by_round
from ps2.algorithms.trees.tree import Forest, LossName
from ps2.algorithms.trees.tree_models import AnyTrees, Ensemble, OneTree
from ps2.array_types import Float64s
from ps2.errors import ConfigError, LimitError

# The maximum number of a row's contributions: a task has those of ten thousand rows in memory at a time.
MAX_CONTRIBUTIONS = 20_000


class NumberModel(FleetRegressionModel):
    """A model of regression: its predictions are its margins."""

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


class _BoostedTrees(AnyTrees):
    """A model of one boosted tree, or of several: its files."""

    def _write_content(self, url: str) -> dict[str, Any]:
        return self._forest.write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> GBTModel:
        return GBTModel(Forest.read(path, url, content))


class BoostedModel(BoostingSettings, Ensemble, _BoostedTrees):
    """A trained model of boosted trees."""

    _LOADER = f"{GBTModel.__module__}:{GBTModel.__name__}"

    # A number of trees of each output, and a model of only these trees; None: it has not been needed.
    _first_trees: tuple[int, GBTModel] | None = None

    setNumTrees = setter(BoostingSettings.numTrees)

    @property
    def _trained(self) -> GBTModel:
        trained: GBTModel = self._fitted
        return trained

    @property
    def _predictor(self) -> GBTModel:
        """A model of the first ``numTrees`` trees of each output."""
        count = self._rounds
        if count is None:
            return self._trained
        if self._first_trees is None or self._first_trees[0] != count:
            self._first_trees = count, self._trained.first(count)
        return self._first_trees[1]

    @property
    def _rounds(self) -> int | None:
        return self.getOrDefault("numTrees") if self.isSet("numTrees") else None

    @property
    def _rate(self) -> float:
        return float(self.getStepSize())

    def _tree_models(self) -> list[BoostedTreeModel]:
        return [BoostedTreeModel._of(GBTModel(forest)) for forest in self._forest.parts(self._rate)]

    def _outputs(self) -> list[tuple[str, str]]:
        contributions = self.getOrDefault("contribCol") if self.isSet("contribCol") else ""
        num_values = (self.numFeatures + 1) * self._forest.width
        if contributions and num_values > MAX_CONTRIBUTIONS:
            raise LimitError(
                f"contribCol: expected at most {MAX_CONTRIBUTIONS:,} values a row, got {num_values:,}; the method "
                "contributions of GBTModel computes them for a few rows"
            )
        return [*super()._outputs(), (contributions, "contrib")]

    @property
    def _margin_column(self) -> str | None:
        return self.getOrDefault("baseMarginCol") if self.isSet("baseMarginCol") else None

    def evaluateEachIteration(self, dataset: DataFrame) -> list[float]:
        """Return the mean loss of a DataFrame's rows after each round of trees.

        Raises:
            InputError: a column is missing or has another type. Faults within rows raise an error of Spark.
        """
        return self._losses_by_round(dataset, self._forest.loss)

    def _losses_by_round(self, dataset: DataFrame, loss: LossName) -> list[float]:
        columns = ColumnNames(self._features, self.getLabelCol(), self._weight_column, margin=self._margin_column)
        if self.hasParam("groupCol"):
            columns = replace(columns, group=self.getOrDefault("groupCol"))
            check_relevance(dataset, columns)
        return losses_by_round(dataset, columns, self._trained, loss)

    def saveXGBoost(self, path: str) -> None:
        """Write xgboost's JSON model: ``xgboost.Booster(model_file=path)`` predicts the same, up to float32's rounding.

        The file has the first ``numTrees`` trees if that is set. xgboost treats entries that a sparse matrix does not
        store as missing. This model does the same if ``absentAsMissing`` was set.

        Raises:
            UsageError: in xgboost's float32, training rows would go to other leaves, or leaf values would be lost.
            RecoveryError: the file system refuses.
        """
        self._predictor.saveXGBoost(path)


class GBTClassificationModel(GBTClassifierSettings, BoostedModel, ProbabilityModel, ProbabilisticClassificationModel):
    """A trained ``GBTClassifier``."""

    __module__ = "ps2.algorithms.classification"

    _EQUALS = " = "

    def _head(self) -> ClassHead:
        link: Literal["softmax", "logistic"] = "softmax" if self.numClasses > 2 else "logistic"
        return ClassHead(self.numClasses, link, thresholds=self._thresholds())


class GBTRegressionModel(GBTRegressorSettings, BoostedModel, NumberModel, RegressionModel[Vector]):
    """A trained ``GBTRegressor``."""

    __module__ = "ps2.algorithms.regression"

    def _head(self) -> ValueHead:
        return ValueHead(link="exp" if self._forest.loss == "poisson" else None)

    def evaluateEachIteration(self, dataset: DataFrame, loss: str | None = None) -> list[float]:
        """Return the mean loss of a DataFrame's rows after each round of trees.

        Args:
            loss: None: the loss of the training; or, unless that is "poisson", "squared" or "absolute".

        Raises:
            InputError: a column is missing or has another type. Faults within rows raise an error of Spark.
            ConfigError: the loss does not apply to the model's margins.
        """
        trained_loss = self._forest.loss
        losses: dict[str, LossName] = {trained_loss: trained_loss}
        if trained_loss != "poisson":
            losses |= {"squared": "squared", "absolute": "absolute"}
        name = trained_loss if loss is None else loss.lower()
        if name not in losses:
            raise ConfigError(f"loss: expected {' or '.join(losses)}, got {loss!r}")
        return self._losses_by_round(dataset, losses[name])


class GBTRankerModel(GBTRankerSettings, BoostedModel, NumberModel, PredictionModel[Vector]):
    """A trained ``GBTRanker``; the larger a prediction, the higher the row in its group."""

    __module__ = "ps2.algorithms.ranking"

    def _summaries(self) -> tuple[Any, Any]:
        return RankingSummary, RankingTrainingSummary


class BoostedTreeModel(NumberTreeSettings, OneTree, _BoostedTrees, NumberModel, RegressionModel[Vector]):
    """A tree of a model of boosted trees. The ensemble's margin is the weighted sum of its trees' predictions."""


# isinstance() works as for pyspark.ml's models. A real subclass would have to wrap a Java object.
DecisionTreeRegressionModel.register(BoostedTreeModel)


class _ForestTrees(AnyTrees):
    """A model of one tree of a random forest, or of several: its importances and files."""

    def _importances(self) -> Float64s:
        importances: Float64s = self._fitted.importances()
        return importances

    def _write_content(self, url: str) -> dict[str, Any]:
        return RandomForestFiles(self._fitted).write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> RandomForest:
        return RandomForestFiles.read(path, url, content).model


class RandomForestModel(Ensemble, _ForestTrees):
    """A trained random forest."""

    _LOADER = f"{RandomForest.__module__}:{RandomForest.__name__}"

    _TREE: ClassVar[type[OneTree]]

    def _tree_models(self) -> list[OneTree]:
        return [self._TREE._of(self._fitted.part(number)) for number in range(self.getNumTrees)]


class ForestRegressionTree(NumberTreeSettings, OneTree, _ForestTrees, NumberModel, RegressionModel[Vector]):
    """A tree of a random forest for regression."""


class ForestClassificationTree(
    ClassTreeSettings, OneTree, _ForestTrees, ProbabilityModel, ProbabilisticClassificationModel
):
    """A tree of a random forest for classification."""

    _NAME = "DecisionTreeClassificationModel"

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return ClassificationSummary, ClassificationTrainingSummary


# In pyspark.ml, ``getNumTrees`` of a model is a property, so its base class comes before the settings.
class RandomForestClassificationModel(  # type: ignore[misc]
    RandomForestModel, RandomForestClassifierSettings, ProbabilityModel, ProbabilisticClassificationModel
):
    """A trained ``RandomForestClassifier``."""

    __module__ = "ps2.algorithms.classification"

    _TREE = ForestClassificationTree

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())


class RandomForestRegressionModel(  # type: ignore[misc]
    RandomForestModel, RandomForestRegressorSettings, NumberModel, RegressionModel[Vector]
):
    """A trained ``RandomForestRegressor``."""

    __module__ = "ps2.algorithms.regression"

    _TREE = ForestRegressionTree


# For isinstance(), as above.
DecisionTreeRegressionModel.register(ForestRegressionTree)
DecisionTreeClassificationModel.register(ForestClassificationTree)
