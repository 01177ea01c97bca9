"""Keywords of the estimators of ``ps2.algorithms.online.ml.click_models``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class OnlineFM(TypedDict, total=False):
    """Params of ``OnlineFM``."""

    admitAfter: int  # 1
    alpha: float  # 0.1
    batchSize: int  # 8192
    beta: float  # 1.0
    bucketBase: float  # 2.0
    bucketCols: Sequence[str] | Mapping[str, Floats | None]  # {}
    categoricalCols: Sequence[str]  # []
    crosses: Sequence[str | Sequence[str]]  # []
    expireAfterS: float
    factorL2: float  # 0.0
    factorSize: int  # 8
    fitIntercept: bool  # True
    hashSeed: int  # 0
    initStd: float  # 0.01
    keysCol: str
    keysPerRow: int
    l1: float  # 0.0
    l2: float  # 0.0
    labelCol: str  # 'label'
    lateAfterS: float
    localSteps: bool
    lr: float  # 0.05
    maxIter: int  # 1
    maxKeys: int
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    optimizer: str  # 'ftrl'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    seed: int  # 0
    threshold: float  # 0.5
    timeCol: str
    valuesCol: str
    weightCol: str


class OnlineLogisticRegression(TypedDict, total=False):
    """Params of ``OnlineLogisticRegression``."""

    admitAfter: int  # 1
    alpha: float  # 0.1
    batchSize: int  # 8192
    beta: float  # 1.0
    bucketBase: float  # 2.0
    bucketCols: Sequence[str] | Mapping[str, Floats | None]  # {}
    categoricalCols: Sequence[str]  # []
    crosses: Sequence[str | Sequence[str]]  # []
    expireAfterS: float
    fitIntercept: bool  # True
    hashSeed: int  # 0
    keysCol: str
    keysPerRow: int
    l1: float  # 0.0
    l2: float  # 0.0
    labelCol: str  # 'label'
    lateAfterS: float
    localSteps: bool
    lr: float  # 0.05
    maxIter: int  # 1
    maxKeys: int
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    optimizer: str  # 'ftrl'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    seed: int  # 0
    threshold: float  # 0.5
    timeCol: str
    valuesCol: str
    weightCol: str
