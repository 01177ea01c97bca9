"""Ranking: boosted trees that order the rows of a group, such as the results of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.ml.base import PredictionModel, Predictor
from pyspark.ml.linalg import Vector
from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.tree import _TreeRegressorParams
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.heads import ValueHead
from ps2.algorithms.estimators.models import FleetRegressionModel
from ps2.algorithms.estimators.params import COUNT, Check, getter, own_param, setter
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.ml.estimator import TreeEstimator
from ps2.algorithms.trees.ml.models import ForestModel
from ps2.algorithms.trees.ml.params import DEFAULTS, TreeParams
from ps2.algorithms.trees.ml.ranking_summaries import RankingSummary, RankingTrainingSummary, check_relevance
from ps2.algorithms.trees.model import GBTModel
from ps2.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import ranking as keywords

# xgboost's; LightGBM's is 30.
PAIRS = 32


class _GBTRankerParams(TreeParams, _TreeRegressorParams):
    _RANGES: Mapping[str, Check] = {**TreeParams._RANGES, "lambdarankNumPairPerSample": COUNT}

    groupCol: Param[str] = own_param(
        "groupCol", "column of groups, integers or strings: rows are ranked within their group", TypeConverters.toString
    )
    lambdarankNumPairPerSample: Param[int] = own_param(
        "lambdarankNumPairPerSample",
        "pairs are made of each of the first so many rows of a ranking and all below it (LightGBM's truncation level)",
        TypeConverters.toInt,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(**DEFAULTS["xgboost"], defaults="xgboost", lambdarankNumPairPerSample=PAIRS)
        # What pyspark.ml gives its own estimators of trees; it has no ranker.
        self._setDefault(minInstancesPerNode=1, minInfoGain=0.0, minWeightFractionPerNode=0.0, validationTol=0.01)
        self._setDefault(subsamplingRate=1.0, featureSubsetStrategy="all", impurity="variance", leafCol="")
        self._setDefault(maxMemoryInMB=256, cacheNodeIds=False, checkpointInterval=10)

    getGroupCol = getter(groupCol)
    getLambdarankNumPairPerSample = getter(lambdarankNumPairPerSample)


class GBTRanker(TreeEstimator, _GBTRankerParams, Predictor["GBTRankerModel"]):
    """LambdaMART on servers: gradient boosted trees whose predictions order the rows of each group by relevance.

    Labels are relevances, whole numbers from 0 to 31; a label's gain is 2^label - 1. The rows of a group are brought to
    one worker. A group of one row, or without two different labels, changes no tree.

    Example::

        model = GBTRanker(groupCol="query", maxIter=100, maxDepth=6).fit(df)
        model.evaluate(df).ndcgAt(10)
    """

    def __init__(self, **params: Unpack[keywords.GBTRanker]) -> None:
        super().__init__(**params)

    setGroupCol = setter(_GBTRankerParams.groupCol)
    setLambdarankNumPairPerSample = setter(_GBTRankerParams.lambdarankNumPairPerSample)

    def _check(self) -> None:
        super()._check()
        if not self.isSet("groupCol"):
            raise ConfigError("groupCol: expected the name of the column whose rows are ranked together, got none")

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Survey:
        check_relevance(dataset, columns)
        found: Survey = super()._survey(dataset, columns)
        return found

    def _objective(self, found: Survey) -> Objective:
        return Objective("lambdarank", shape=float(self.getLambdarankNumPairPerSample()))

    def _model(self, fitted: GBTModel) -> GBTRankerModel:
        return GBTRankerModel(fitted)


class GBTRankerModel(ForestModel, FleetRegressionModel, _GBTRankerParams, PredictionModel[Vector]):
    """What ``GBTRanker.fit`` returns; the larger a prediction, the higher the row in its group."""

    setGroupCol = setter(_GBTRankerParams.groupCol)

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RankingSummary, RankingTrainingSummary
