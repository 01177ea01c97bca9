"""Keywords of the estimators of ``ps2.algorithms.feature``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class DictionaryLearning(TypedDict, total=False):
    """Params of ``DictionaryLearning``."""

    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    k: int  # 100
    maxIter: int  # 100
    nonnegative: bool  # False
    numServers: int
    numWorkers: int
    outputCol: str  # 'codes'
    regParam: float  # 1.0
    seed: int  # 0
    tol: float  # 0.0001
    via: str  # 'auto'


class MetricLearning(TypedDict, total=False):
    """Params of ``MetricLearning``."""

    dissimilarWeight: float  # 1.0
    factors: str  # 'auto'
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    labelCol: str  # 'label'
    maxIter: int  # 100
    miniBatchFraction: float  # 1.0
    numServers: int
    numWorkers: int
    optimizer: str  # 'adagrad'
    otherCol: str
    outputCol: str  # 'metric'
    pairsPerRow: int  # 5
    rank: int  # 10
    seed: int  # 0
    stepSize: float  # 0.1
    via: str  # 'auto'


class Word2Vec(TypedDict, total=False):
    """Params of ``Word2Vec``."""

    architecture: str  # 'skipgram'
    inputCol: str
    maxIter: int  # 1
    maxSentenceLength: int  # 1000
    minCount: int  # 5
    negative: int  # 5
    nsExponent: float  # 0.75
    numPartitions: int  # 1
    numServers: int
    numWorkers: int
    outputCol: str
    sample: float  # 0.0
    seed: int  # 0
    stepSize: float  # 0.025
    vectorSize: int  # 100
    via: str  # 'auto'
    windowSize: int  # 5
