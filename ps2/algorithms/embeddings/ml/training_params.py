"""Params of the estimators of embeddings: of words and of vertices."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyspark.ml.feature import _Word2VecParams
from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasMaxIter, HasOutputCol, HasSeed, HasStepSize

from ps2.algorithms.embeddings.ml.params import BiasedWalkParams, GraphParams, WalkParams
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RANGES,
    ByName,
    Check,
    SaysParams,
    any_case,
    described,
    getter,
    one_of,
    own_param,
    setter,
)

STRATEGIES = ("auto", "servers", "rows", "local")
ARCHITECTURES = ("skipgram", "cbow")
ORDERS = ("both", "first", "second")


class EmbeddingParams(SaysParams, ByName, HasStepSize, HasMaxIter, HasSeed):
    """Params that all estimators of embeddings have."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        "vectorSize": COUNT,
        "windowSize": COUNT,
        "negative": COUNT,
        "nsExponent": (math.isfinite, "a finite number"),
        "sample": NOT_NEGATIVE,
        "maxIter": COUNT,
        "stepSize": POSITIVE,
        "via": one_of(STRATEGIES),
    }

    vectorSize: Param[int] = own_param("vectorSize", "dimension of the vectors", TypeConverters.toInt)
    negative: Param[int] = own_param("negative", "negative samples per positive pair", TypeConverters.toInt)
    nsExponent: Param[float] = own_param(
        "nsExponent", "exponent of the frequencies from which negative samples are drawn", TypeConverters.toFloat
    )
    via: Param[str] = own_param(
        "via",
        "where vectors are updated: 'servers' (they compute dot products, only scalars travel), 'rows' "
        "(the vectors of some sentences are pulled, updated and pushed), 'local' (each worker has all "
        "vectors, and differences travel now and then), or 'auto' (the fastest by measurement)",
        any_case(STRATEGIES),
    )
    numWorkers: Param[int] = described(
        ByName.numWorkers, "tasks that train; if it is not set, one for each executor, with a thread for each core"
    )
    maxIter: Param[int] = described(HasMaxIter.maxIter, "passes over the data (>= 1)")
    stepSize: Param[float] = described(HasStepSize.stepSize, "to begin with; it falls to a ten thousandth of it")

    getVectorSize, setVectorSize = getter(vectorSize), setter(vectorSize)
    getNegative, setNegative = getter(negative), setter(negative)
    getNsExponent, setNsExponent = getter(nsExponent), setter(nsExponent)
    getVia, setVia = getter(via), setter(via)
    setMaxIter = setter(HasMaxIter.maxIter)
    setStepSize = setter(HasStepSize.stepSize)
    setSeed = setter(HasSeed.seed)
    setNumWorkers = setter(numWorkers)
    setNumServers = setter(ByName.numServers)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(vectorSize=128, negative=5, nsExponent=0.75, via="auto", maxIter=1, stepSize=0.025, seed=0)


class Word2VecParams(EmbeddingParams, _Word2VecParams):
    """Params of Word2Vec: those of pyspark.ml, and those of skip-gram and CBOW."""

    _RANGES: Mapping[str, Check] = {
        **EmbeddingParams._RANGES,
        "minCount": NOT_NEGATIVE,
        "numPartitions": COUNT,
        "maxSentenceLength": COUNT,
        "architecture": one_of(ARCHITECTURES),
    }

    numPartitions: Param[int] = described(
        _Word2VecParams.numPartitions, "workers, if it is set and numWorkers is not: sentences go to as many"
    )
    sample: Param[float] = own_param(
        "sample",
        "frequency (share of all words) above which occurrences of a word are dropped at random, the "
        "more so the more frequent it is; 0: none are",
        TypeConverters.toFloat,
    )
    architecture: Param[str] = own_param(
        "architecture",
        "'skipgram': predict the context from a word; 'cbow': predict a word from its context",
        any_case(ARCHITECTURES),
    )

    getSample, setSample = getter(sample), setter(sample)
    getArchitecture, setArchitecture = getter(architecture), setter(architecture)
    setInputCol = setter(HasInputCol.inputCol)
    setOutputCol = setter(HasOutputCol.outputCol)
    setMinCount = setter(_Word2VecParams.minCount)
    setNumPartitions = setter(_Word2VecParams.numPartitions)
    setWindowSize = setter(_Word2VecParams.windowSize)
    setMaxSentenceLength = setter(_Word2VecParams.maxSentenceLength)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(vectorSize=100, minCount=5, windowSize=5, sample=0.0, architecture="skipgram")


class WalkTrainingParams(EmbeddingParams, WalkParams):
    """Params of training on walks (DeepWalk)."""

    _RANGES: Mapping[str, Check] = {
        **WalkParams._RANGES,
        **EmbeddingParams._RANGES,
        "walkLength": (lambda value: value >= 2, "at least 2: a single vertex has no context"),
    }

    windowSize: Param[int] = own_param(
        "windowSize",
        "context size: up to this many vertices of the walk before and after each vertex",
        TypeConverters.toInt,
    )
    numWalks: Param[int] = described(WalkParams.numWalks, "number of walks from each vertex in each of maxIter passes")

    getWindowSize, setWindowSize = getter(windowSize), setter(windowSize)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(windowSize=10)


class BiasedWalkTrainingParams(WalkTrainingParams, BiasedWalkParams):
    """Params of training on node2vec's walks."""

    _RANGES: Mapping[str, Check] = {**BiasedWalkParams._RANGES, **WalkTrainingParams._RANGES}


class EdgeTrainingParams(EmbeddingParams, GraphParams):
    """Params of training on edges (LINE)."""

    _RANGES: Mapping[str, Check] = {**EmbeddingParams._RANGES, "order": one_of(ORDERS)}

    order: Param[str] = own_param(
        "order",
        "'first': vertices with an edge are similar; 'second': vertices with common neighbours are; "
        "'both': half of the vector each",
        any_case(ORDERS),
    )

    hashed: Param[bool] = own_param(
        "hashed",
        "whether ids (non-negative integers) are keys of sparse tables, without being numbered first: "
        "servers and workers use memory for touched ids only. Only with via='rows'",
        TypeConverters.toBoolean,
    )

    getOrder, setOrder = getter(order), setter(order)
    getHashed, setHashed = getter(hashed), setter(hashed)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(order="both", maxIter=20, hashed=False)
