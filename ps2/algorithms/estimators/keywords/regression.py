"""Keywords of the estimators of ``ps2.algorithms.regression``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class FMRegressor(TypedDict, total=False):
    """Params of ``FMRegressor``."""

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
    regParam: float  # 0.0
    seed: int  # 3505107424
    solver: str  # 'adamW'
    spill: str  # 'auto'
    staleness: int  # 0
    stepSize: float  # 1.0
    tol: float  # 1e-06
    validationIndicatorCol: str
    via: str  # 'auto'
    weightCol: str
    initialModel: Any


class LinearRegression(TypedDict, total=False):
    """Params of ``LinearRegression``."""

    adaptiveMomentum: bool  # True
    aggregationDepth: int  # 2
    elasticNetParam: float  # 0.0
    epsilon: float  # 1.35
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
    loss: str  # 'squaredError'
    maxBlockSizeInMB: float  # 0.0
    maxIter: int  # 100
    miniBatchFraction: float  # 1.0
    momentum: float  # 0.45
    numServers: int
    numWorkers: int
    optimizer: str  # 'adam'
    predictionCol: str  # 'prediction'
    regParam: float  # 0.0
    seed: int  # 0
    solver: str  # 'auto'
    spill: str  # 'auto'
    staleness: int  # 0
    standardization: bool  # True
    stepSize: float  # 0.1
    tol: float  # 1e-06
    validationIndicatorCol: str
    via: str  # 'auto'
    weightCol: str
    initialModel: Any
