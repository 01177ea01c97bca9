"""Params that online and deep models share: columns, training, admission and expiry of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import (
    HasLabelCol,
    HasMaxIter,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasThreshold,
    HasWeightCol,
)

from ps2.algorithms.estimators.key_params import KeyParams
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RANGES,
    SHARE,
    ByName,
    Check,
    SaysParams,
    getter,
    own_param,
    setter,
)

UINT8: Check = (lambda value: 1 <= value <= 255, "a number from 1 to 255")
OF_CLASSES: Mapping[str, Check] = {"threshold": SHARE}
OF_KEYS = ("admitAfter", "expireAfterS", "maxKeys")


class PredictedParams(KeyParams, HasLabelCol, HasPredictionCol):
    """Params of a trained model: names of its columns."""

    setPredictionCol = setter(HasPredictionCol.predictionCol)


class ClassParams(PredictedParams, HasProbabilityCol, HasRawPredictionCol, HasThreshold):
    """Params of a trained classifier of labels 0 and 1: names of its columns, and the threshold."""

    _RANGES: Mapping[str, Check] = {**RANGES, **OF_CLASSES}

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(threshold=0.5)

    setProbabilityCol = setter(HasProbabilityCol.probabilityCol)
    setRawPredictionCol = setter(HasRawPredictionCol.rawPredictionCol)
    setThreshold = setter(HasThreshold.threshold)


class LearningParams(PredictedParams, HasWeightCol, HasMaxIter, HasSeed):
    """Params of a training, and of admission, expiry and limit of keys (docs/keys.md)."""

    batchSize: Param[int] = own_param("batchSize", "rows of a step", TypeConverters.toInt)
    optimizer: Param[Any] = own_param("optimizer", "optimizer of the keys' weights", TypeConverters.toString)
    admitAfter: Param[int] = own_param(
        "admitAfter", "the touch at which a key gets memory; see EmbeddingTable", TypeConverters.toInt
    )
    expireAfterS: Param[float] = own_param(
        "expireAfterS",
        "seconds after its last touch at which a key goes: by the times of rows if timeCol names them, else by the "
        "driver's clock; not set: none goes",
        TypeConverters.toFloat,
    )
    maxKeys: Param[int] = own_param(
        "maxKeys",
        "the most keys; the least recently touched ones go first; not set: no limit",
        TypeConverters.toInt,
    )
    timeCol: Param[str] = own_param(
        "timeCol",
        "column of the rows' times: timestamps, or seconds; for lag, late rows and expiry",
        TypeConverters.toString,
    )
    lateAfterS: Param[float] = own_param(
        "lateAfterS",
        "a row older than the newest one of earlier batches by more than this is left out, and counted as late",
        TypeConverters.toFloat,
    )

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        "maxIter": COUNT,
        "batchSize": COUNT,
        "admitAfter": UINT8,
        "expireAfterS": POSITIVE,
        "maxKeys": COUNT,
        "lateAfterS": NOT_NEGATIVE,
    }

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(admitAfter=1, seed=0)

    getBatchSize = getter(batchSize)
    getOptimizer = getter(optimizer)
    getAdmitAfter = getter(admitAfter)
    getExpireAfterS = getter(expireAfterS)
    getMaxKeys = getter(maxKeys)
    getTimeCol = getter(timeCol)
    getLateAfterS = getter(lateAfterS)

    def _time(self) -> str | None:
        """Return the name of the column of times, or None."""
        return self.getTimeCol() or None if self.isSet(self.timeCol) else None

    def _key_arguments(self) -> dict[str, Any]:
        """Return those of OF_KEYS that are set, as arguments of ``EmbeddingTable``; with times, the clock, too."""
        found = {name: self.getOrDefault(name) for name in OF_KEYS if self.isSet(name)}
        return {**found, "clock": "event"} if found and self._time() is not None else found


class VectorParams(ByName):
    """Params of the vectors of keys."""

    factorSize: Param[int] = own_param("factorSize", "numbers of a key's vector", TypeConverters.toInt)
    initStd: Param[float] = own_param(
        "initStd", "standard deviation of the vectors' initial numbers", TypeConverters.toFloat
    )

    getFactorSize = getter(factorSize)
    getInitStd = getter(initStd)


class LearningSetters(SaysParams, LearningParams):
    """Setters of the params of a training, for estimators; models have only setters of columns."""

    setLabelCol = setter(HasLabelCol.labelCol)
    setWeightCol = setter(HasWeightCol.weightCol)
    setMaxIter = setter(HasMaxIter.maxIter)
    setSeed = setter(HasSeed.seed)
    setNumWorkers = setter(ByName.numWorkers)
    setNumServers = setter(ByName.numServers)
    setBatchSize = setter(LearningParams.batchSize)
    setOptimizer = setter(LearningParams.optimizer)
    setAdmitAfter = setter(LearningParams.admitAfter)
    setExpireAfterS = setter(LearningParams.expireAfterS)
    setMaxKeys = setter(LearningParams.maxKeys)
    setTimeCol = setter(LearningParams.timeCol)
    setLateAfterS = setter(LearningParams.lateAfterS)


class VectorSetters(VectorParams):
    """Setters of the params of the vectors."""

    setFactorSize = setter(VectorParams.factorSize)
    setInitStd = setter(VectorParams.initStd)
