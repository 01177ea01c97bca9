"""Keywords of the estimators of ``ps2.algorithms.clustering``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


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
