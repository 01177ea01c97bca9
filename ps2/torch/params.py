"""Params of ``TorchEstimator``, without PyTorch: the checks, which read them, run where it is missing."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasInputCols, HasLabelCol, HasPredictionCol, HasSeed

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RANGES,
    ByName,
    Check,
    SaysParams,
    getter,
    one_of,
    own_param,
)
from ps2.torch.steps import STEPS


class TorchParams(SaysParams, ByName, HasInputCols, HasLabelCol, HasPredictionCol, HasSeed):
    """Params of ``TorchEstimator`` and its model."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        "batchSize": COUNT,
        "epochs": COUNT,
        "staleness": NOT_NEGATIVE,
        "lr": POSITIVE,
        "optimizer": one_of(tuple(STEPS)),
    }

    raggedCols: Param[list[str]] = own_param(
        "raggedCols",
        "columns of inputCols whose arrays have any lengths: the module gets Bags, which RemoteEmbedding takes",
        TypeConverters.toListString,
    )
    batchSize: Param[int] = own_param("batchSize", "rows of a worker's minibatch, at most", TypeConverters.toInt)
    epochs: Param[int] = own_param("epochs", "how often each row is used", TypeConverters.toInt)
    staleness: Param[int] = own_param(
        "staleness", "minibatches that a worker may be ahead of the slowest one", TypeConverters.toInt
    )
    optimizer: Param[str] = own_param(
        "optimizer", f"update rule of the dense parameters: {', '.join(STEPS)}", TypeConverters.toString
    )
    lr: Param[float] = own_param("lr", "learning rate of the dense parameters", TypeConverters.toFloat)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(raggedCols=[], batchSize=1024, epochs=1, staleness=0, optimizer="adam", lr=1e-3, seed=0)

    getRaggedCols = getter(raggedCols)
    getBatchSize = getter(batchSize)
    getEpochs = getter(epochs)
    getStaleness = getter(staleness)
    getOptimizer = getter(optimizer)
    getLr = getter(lr)
