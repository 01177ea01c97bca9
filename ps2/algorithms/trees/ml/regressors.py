"""Boosted trees and forests for numbers: estimators and models of ``ps2.algorithms.regression``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyspark.ml.linalg import Vector
from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.regression import RegressionModel, Regressor, _GBTRegressorParams, _RandomForestRegressorParams
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.heads import ValueHead
from ps2.algorithms.estimators.models import FleetRegressionModel
from ps2.algorithms.estimators.params import choice, getter, own_param, setter
from ps2.algorithms.estimators.summaries import RegressionSummary, RegressionTrainingSummary
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.trees.forests.options import ImpurityName
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import CODES, Objective
from ps2.algorithms.trees.ml.estimator import TreeEstimator
from ps2.algorithms.trees.ml.forest_estimator import ForestEstimator
from ps2.algorithms.trees.ml.forest_models import ForestOfTrees, ForestRegressionTree
from ps2.algorithms.trees.ml.forest_params import ForestParams
from ps2.algorithms.trees.ml.models import ForestModel
from ps2.algorithms.trees.ml.params import TreeParams
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import LossName
from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import regression as keywords

# Where users import the classes from, and files of saved models say they are.
MODULE = "ps2.algorithms.regression"
LOSSES: dict[str, LossName] = {name: name for name in CODES if name != "logistic"}
IMPURITIES: tuple[ImpurityName, ...] = ("variance",)
# Leaves are float32, and may be as large as the range of the labels.
MAX_LABEL = 1e38


class _GBTParams(TreeParams, _GBTRegressorParams):
    lossType: Param[str] = choice(
        _GBTRegressorParams.lossType,
        LOSSES,
        f"the loss function to be minimized (case-insensitive): {', '.join(LOSSES)}",
    )
    lossShape: Param[float] = own_param(
        "lossShape",
        "where loss huber turns linear (> 0), or which quantile loss quantile asks for, in (0, 1)",
        TypeConverters.toFloat,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(lossShape=0.5)

    getLossShape = getter(lossShape)


class GBTRegressor(TreeEstimator, _GBTParams, Regressor["GBTRegressionModel"]):
    """Gradient boosted trees: ``pyspark.ml.regression.GBTRegressor`` on servers, with more losses.

    Example::

        model = GBTRegressor(maxIter=50, maxDepth=6, maxBins=256).fit(df)
    """

    __module__ = MODULE

    def __init__(self, **params: Unpack[keywords.GBTRegressor]) -> None:
        super().__init__(**params)

    setLossType = setter(_GBTParams.lossType)
    setLossShape = setter(_GBTParams.lossShape)

    def _check(self) -> None:
        super()._check()
        loss, shape = self.getLossType(), self.getLossShape()
        if loss not in LOSSES:
            raise ConfigError(f"lossType: expected one of {', '.join(LOSSES)}, got {self.getLossType()!r}")
        if not 0 < shape < (1 if loss == "quantile" else math.inf):
            expected = "a number in (0, 1)" if loss == "quantile" else "a finite positive number"
            raise ConfigError(f"lossShape: expected {expected}, got {shape:g}")

    def _objective(self, found: Survey) -> Objective:
        loss, facts = LOSSES[self.getLossType()], found.facts
        least, most = facts.label_range
        name = f"column {self.getLabelCol()!r}"
        if max(-least, most) > MAX_LABEL:
            of = least if -least > most else most
            raise InputError(f"{name}: expected labels up to {MAX_LABEL:g}, which leaves can say, got {of:g}")
        if loss == "poisson" and least < 0:
            raise InputError(f"{name}: expected counts for loss 'poisson', got labels down to {least:g}")
        if loss == "poisson" and not facts.label_mean > 0:
            raise InputError(f"{name}: expected counts for loss 'poisson' of which some are above 0, got zeros alone")
        return Objective(loss, shape=self.getLossShape())

    def _model(self, fitted: GBTModel) -> GBTRegressionModel:
        return GBTRegressionModel(fitted)


class GBTRegressionModel(ForestModel, FleetRegressionModel, _GBTParams, RegressionModel[Vector]):
    """What ``GBTRegressor.fit`` returns."""

    __module__ = MODULE

    def _head(self) -> ValueHead:
        return ValueHead(link="exp" if self._trained.forest.loss == "poisson" else None)

    def evaluateEachIteration(self, dataset: DataFrame, loss: str | None = None) -> list[float]:
        """Return the mean loss of a DataFrame's rows after each round of trees.

        Args:
            loss: None: the loss that the model was trained for. "squared" or "absolute", unless the model's is
                "poisson".

        Raises:
            InputError: a column is missing or has another type. Faults within rows raise an error of Spark.
            ConfigError: that loss does not apply to the model's margins.
        """
        own = self._trained.forest.loss
        known = [own] if own == "poisson" else list(dict.fromkeys([own, "squared", "absolute"]))
        chosen = own if loss is None else loss.lower()
        if chosen not in known:
            raise ConfigError(f"loss: expected {' or '.join(known)}, got {loss!r}")
        return self._losses_by_round(dataset, LOSSES[chosen])

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


class _ForestParams(ForestParams, _RandomForestRegressorParams):
    impurity: Param[str] = choice(_RandomForestRegressorParams.impurity, IMPURITIES)


class RandomForestRegressor(ForestEstimator, _ForestParams, Regressor["RandomForestRegressionModel"]):
    """A random forest: ``pyspark.ml.regression.RandomForestRegressor`` on servers.

    Example::

        model = RandomForestRegressor(numTrees=100, maxDepth=10, maxBins=256).fit(df)
    """

    __module__ = MODULE

    def __init__(self, **params: Unpack[keywords.RandomForestRegressor]) -> None:
        super().__init__(**params)

    _IMPURITIES = IMPURITIES

    setImpurity = setter(_ForestParams.impurity)

    def _objective(self, found: Survey) -> Objective:
        return Objective("squared")

    def _model(self, fitted: RandomForest) -> RandomForestRegressionModel:
        return RandomForestRegressionModel(fitted)


# ``getNumTrees`` is a property of models, as of pyspark.ml's.
class RandomForestRegressionModel(  # type: ignore[misc]
    ForestOfTrees, FleetRegressionModel, _ForestParams, RegressionModel[Vector]
):
    """What ``RandomForestRegressor.fit`` returns."""

    __module__ = MODULE

    _TREE = ForestRegressionTree

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary
