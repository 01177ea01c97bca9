"""Keywords of the estimators of ``ps2.algorithms.classification``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from pyspark.ml.linalg import Matrix, Vector

from ps2.algorithms.estimators.keywords.types import Floats


class FMClassifier(TypedDict, total=False):
    """Params of ``FMClassifier``."""

    adaptiveMomentum: bool  # True
    factorSize: int  # 8
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    fitIntercept: bool  # True
    fitLinear: bool  # True
    initStd: float  # 0.01
    labelCol: str  # 'label'
    lazy: bool  # False
    localBatchSize: int  # 1
    localPasses: int  # 1
    localSearch: str  # 'auto'
    localSteps: int  # 5
    maxIter: int  # 100
    miniBatchFraction: float  # 1.0
    momentum: float  # 0.45
    numServers: int
    numWorkers: int
    optimizer: str  # 'adam'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    regParam: float  # 0.0
    seed: int  # 1360173510
    solver: str  # 'adamW'
    spill: str  # 'auto'
    staleness: int  # 0
    stepSize: float  # 1.0
    thresholds: Floats
    tol: float  # 1e-06
    validationIndicatorCol: str
    via: str  # 'auto'
    weightCol: str
    initialModel: Any


class GBTClassifier(TypedDict, total=False):
    """Params of ``GBTClassifier``."""

    absentAsMissing: bool  # False
    baseMarginCol: str
    baseScore: float
    cacheNodeIds: bool  # False
    checkpointInterval: int  # 10
    contribCol: str
    defaults: str  # 'pyspark'
    earlyStoppingRounds: int
    evalMetric: str
    featureSubsetStrategy: str  # 'all'
    featureWeights: Floats
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    growth: str  # 'level'
    impurity: str  # 'variance'
    interactionConstraints: Sequence[Sequence[int]]
    labelCol: str  # 'label'
    leafCol: str  # ''
    lossType: str  # 'logistic'
    maxBins: int  # 32
    maxDepth: int  # 5
    maxIter: int  # 20
    maxLeaves: int
    maxMemoryInMB: int  # 256
    minChildWeight: float  # 0.0
    minInfoGain: float  # 0.0
    minInstancesPerNode: int  # 1
    minSplitLoss: float  # 0.0
    minWeightFractionPerNode: float  # 0.0
    monotoneConstraints: Sequence[int]
    numServers: int
    numTrees: int
    numWorkers: int
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    regAlpha: float  # 0.0
    regLambda: float  # 0.0
    seed: int  # 0
    stepSize: float  # 0.1
    subsamplingRate: float  # 1.0
    thresholds: Floats
    validationIndicatorCol: str
    validationTol: float  # 0.01
    via: str  # 'auto'
    weightCol: str
    initialModel: Any


class LinearSVC(TypedDict, total=False):
    """Params of ``LinearSVC``."""

    adaptiveMomentum: bool  # True
    aggregationDepth: int  # 2
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    fitIntercept: bool  # True
    labelCol: str  # 'label'
    lazy: bool  # False
    localBatchSize: int  # 1
    localPasses: int  # 1
    localSearch: str  # 'auto'
    localSteps: int  # 5
    loss: str  # 'hinge'
    maxBlockSizeInMB: float  # 0.0
    maxIter: int  # 100
    miniBatchFraction: float  # 1.0
    momentum: float  # 0.45
    numServers: int
    numWorkers: int
    optimizer: str  # 'adam'
    predictionCol: str  # 'prediction'
    rawPredictionCol: str  # 'rawPrediction'
    regParam: float  # 0.0
    seed: int  # 0
    solver: str  # 'auto'
    spill: str  # 'auto'
    staleness: int  # 0
    standardization: bool  # True
    stepSize: float  # 0.1
    threshold: float  # 0.0
    tol: float  # 1e-06
    validationIndicatorCol: str
    via: str  # 'auto'
    weightCol: str
    initialModel: Any


class LogisticRegression(TypedDict, total=False):
    """Params of ``LogisticRegression``."""

    adaptiveMomentum: bool  # True
    aggregationDepth: int  # 2
    elasticNetParam: float  # 0.0
    factors: str  # 'auto'
    family: str  # 'auto'
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    fitIntercept: bool  # True
    labelCol: str  # 'label'
    lambdaCount: int  # 100
    lambdaPath: Floats
    lambdaRatio: float  # 0.01
    lazy: bool  # False
    localBatchSize: int  # 1
    localPasses: int  # 1
    localSearch: str  # 'auto'
    localSteps: int  # 5
    lowerBoundsOnCoefficients: Matrix
    lowerBoundsOnIntercepts: Vector
    maxBlockSizeInMB: float  # 0.0
    maxIter: int  # 100
    miniBatchFraction: float  # 1.0
    momentum: float  # 0.45
    numServers: int
    numWorkers: int
    optimizer: str  # 'adam'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    regParam: float  # 0.0
    seed: int  # 0
    solver: str  # 'auto'
    spill: str  # 'auto'
    staleness: int  # 0
    standardization: bool  # True
    stepSize: float  # 0.1
    threshold: float  # 0.5
    thresholds: Floats
    tol: float  # 1e-06
    upperBoundsOnCoefficients: Matrix
    upperBoundsOnIntercepts: Vector
    validationIndicatorCol: str
    via: str  # 'auto'
    weightCol: str
    initialModel: Any


class RandomForestClassifier(TypedDict, total=False):
    """Params of ``RandomForestClassifier``."""

    absentAsMissing: bool  # False
    bootstrap: bool  # True
    cacheNodeIds: bool  # False
    checkpointInterval: int  # 10
    featureSubsetStrategy: str  # 'auto'
    featuresCol: str | Sequence[str]  # 'features'
    featuresCols: Sequence[str]
    impurity: str  # 'gini'
    labelCol: str  # 'label'
    leafCol: str  # ''
    maxBins: int  # 32
    maxDepth: int  # 5
    maxMemoryInMB: int  # 256
    minInfoGain: float  # 0.0
    minInstancesPerNode: int  # 1
    minWeightFractionPerNode: float  # 0.0
    numServers: int
    numTrees: int  # 20
    numWorkers: int
    oobScore: bool  # False
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    pruneTree: bool  # True
    rawPredictionCol: str  # 'rawPrediction'
    seed: int  # 0
    subsamplingRate: float  # 1.0
    thresholds: Floats
    via: str  # 'auto'
    weightCol: str
