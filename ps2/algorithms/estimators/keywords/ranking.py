"""Keywords of the estimators of ``ps2.algorithms.ranking``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class GBTRanker(TypedDict, total=False):
    """Params of ``GBTRanker``."""

    absentAsMissing: bool  # False
    baseMarginCol: str
    baseScore: float
    cacheNodeIds: bool  # False
    checkpointInterval: int  # 10
    contribCol: str
    defaults: str  # 'xgboost'
    earlyStoppingRounds: int
    evalMetric: str
    featureSubsetStrategy: str  # 'all'
    featureWeights: Floats
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    groupCol: str
    growth: str  # 'level'
    impurity: str  # 'variance'
    interactionConstraints: Sequence[Sequence[int]]
    labelCol: str  # 'label'
    lambdarankNumPairPerSample: int  # 32
    leafCol: str  # ''
    maxBins: int  # 256
    maxDepth: int  # 6
    maxIter: int  # 100
    maxLeaves: int
    maxMemoryInMB: int  # 256
    minChildWeight: float  # 1.0
    minInfoGain: float  # 0.0
    minInstancesPerNode: int  # 1
    minSplitLoss: float  # 0.0
    minWeightFractionPerNode: float  # 0.0
    monotoneConstraints: Sequence[int]
    numServers: int
    numTrees: int
    numWorkers: int
    predictionCol: str  # 'prediction'
    regAlpha: float  # 0.0
    regLambda: float  # 1.0
    seed: int  # 0
    stepSize: float  # 0.3
    subsamplingRate: float  # 1.0
    validationIndicatorCol: str
    validationTol: float  # 0.01
    via: str  # 'auto'
    weightCol: str
    initialModel: Any
