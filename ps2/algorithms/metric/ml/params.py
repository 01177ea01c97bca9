"""Params of metric learning, and how they become ``MetricOptions``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasMaxIter, HasOutputCol, HasSeed, HasStepSize

from ps2.algorithms.estimators.params import (
    COUNT,
    POSITIVE,
    RANGES,
    Check,
    FleetParams,
    FleetSetters,
    any_case,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia
from ps2.algorithms.metric.options import OPTIMIZERS, MetricOptions, OptimizerName
from ps2.algorithms.training.sent_gradients import FACTORS, FactorsName
from ps2.errors import ConfigError


class MetricParams(HasVia, FleetParams, HasFeaturesCol, HasLabelCol, HasOutputCol, HasMaxIter, HasStepSize, HasSeed):
    """Params of ``MetricLearning`` and its model."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        **VIA,
        "maxIter": COUNT,
        "stepSize": POSITIVE,
        "rank": COUNT,
        "dissimilarWeight": POSITIVE,
        "pairsPerRow": COUNT,
        "miniBatchFraction": (lambda value: 0 < value <= 1, "a number in (0, 1]"),
        "optimizer": one_of(OPTIMIZERS),
        "factors": one_of(FACTORS),
    }

    rank: Param[int] = own_param(
        "rank", "rows of L: the size of the vectors that transform makes", TypeConverters.toInt
    )
    otherCol: Param[str] = own_param(
        "otherCol",
        "column of the second vector of each pair, whose label is 1 (similar) or 0; not set: labels are classes, and "
        "pairs are drawn",
        TypeConverters.toString,
    )
    dissimilarWeight: Param[float] = own_param(
        "dissimilarWeight", "lambda: how much a dissimilar pair counts", TypeConverters.toFloat
    )
    pairsPerRow: Param[int] = own_param(
        "pairsPerRow",
        "partners that are drawn for each row: so many of its class, and as many of other classes (without otherCol)",
        TypeConverters.toInt,
    )
    miniBatchFraction: Param[float] = own_param(
        "miniBatchFraction", "share of the pairs that each step samples", TypeConverters.toFloat
    )
    optimizer: Param[OptimizerName] = own_param(
        "optimizer", f"update rule of the servers: {', '.join(OPTIMIZERS)}", any_case(OPTIMIZERS)
    )
    factors: Param[FactorsName] = own_param(
        "factors",
        "whether gradients travel as sufficient factors: 'auto' (where these take fewer bytes than the values), "
        "'always' or 'never'",
        any_case(FACTORS),
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(
            rank=10,
            dissimilarWeight=1.0,
            pairsPerRow=5,
            miniBatchFraction=1.0,
            optimizer="adagrad",
            factors="auto",
            maxIter=100,
            stepSize=0.1,
            seed=0,
            outputCol="metric",
        )

    getRank = getter(rank)
    getOtherCol = getter(otherCol)
    getDissimilarWeight = getter(dissimilarWeight)
    getPairsPerRow = getter(pairsPerRow)
    getMiniBatchFraction = getter(miniBatchFraction)
    getOptimizer = getter(optimizer)
    getFactors = getter(factors)


class MetricSetters(MetricParams, FleetSetters):
    """Setters of the training's params."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setLabelCol = setter(HasLabelCol.labelCol)
    setOutputCol = setter(HasOutputCol.outputCol)
    setStepSize = setter(HasStepSize.stepSize)
    setRank = setter(MetricParams.rank)
    setOtherCol = setter(MetricParams.otherCol)
    setDissimilarWeight = setter(MetricParams.dissimilarWeight)
    setPairsPerRow = setter(MetricParams.pairsPerRow)
    setMiniBatchFraction = setter(MetricParams.miniBatchFraction)
    setOptimizer = setter(MetricParams.optimizer)
    setFactors = setter(MetricParams.factors)


def options_of(params: MetricParams, name: str) -> MetricOptions:
    """Return the options that params describe.

    Args:
        name: of the training, under which another driver continues it.

    Raises:
        ConfigError: params contradict each other.
    """
    if params.isSet("otherCol"):
        if params.isSet("pairsPerRow"):
            raise ConfigError("pairsPerRow: with otherCol, rows are pairs, and none are drawn")
        if not isinstance(params._features, str):
            raise ConfigError("featuresCol: with otherCol, expected one column of vectors")
    return MetricOptions(
        rank=params.getRank(),
        dissimilar_weight=params.getDissimilarWeight(),
        pairs=None if params.isSet("otherCol") else params.getPairsPerRow(),
        steps=params.getMaxIter(),
        step_size=params.getStepSize(),
        optimizer=params.getOptimizer(),
        fraction=params.getMiniBatchFraction(),
        factors=params.getFactors(),
        seed=params._seed,
        name=name,
    )
