"""Keywords of the estimators of ``ps2.algorithms.clustering``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class KMeans(TypedDict, total=False):
    """Params of ``KMeans``."""

    distanceMeasure: str  # 'euclidean'
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    initMode: str  # 'k-means||'
    initSteps: int  # 2
    intermediateStorageLevel: str  # 'MEMORY_AND_DISK'
    k: int  # 2
    maxBlockSizeInMB: float  # 0.0
    maxIter: int  # 20
    numServers: int
    numWorkers: int
    predictionCol: str  # 'prediction'
    seed: int  # 0
    solver: str  # 'auto'
    tol: float  # 0.0001
    via: str  # 'auto'
    weightCol: str


class LDA(TypedDict, total=False):
    """Params of ``LDA``."""

    budgetS: float | str
    checkpointInterval: int  # 10
    docConcentration: float | Floats
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    inference: str  # 'auto'
    k: int  # 10
    keepLastCheckpoint: bool  # True
    learningDecay: float  # 0.51
    learningOffset: float  # 1024.0
    localBatches: int  # 10
    maxIter: int  # 100
    numServers: int
    numWorkers: int
    optimizeDocConcentration: bool  # False
    optimizer: str  # 'cgs'
    sampler: str  # 'auto'
    seed: int  # 0
    staleness: int  # 1
    subsamplingRate: float  # 0.05
    sync: str  # 'ssp'
    topicConcentration: float
    topicDistributionCol: str  # 'topicDistribution'
    via: str  # 'auto'
