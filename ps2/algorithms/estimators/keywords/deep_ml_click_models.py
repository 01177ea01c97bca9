"""Keywords of the estimators of ``ps2.algorithms.deep.ml.click_models``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class DeepFM(TypedDict, total=False):
    """Params of ``DeepFM``."""

    admitAfter: int  # 1
    batchSize: int  # 1024
    bucketBase: float  # 2.0
    bucketCols: Sequence[str] | Mapping[str, Floats | None]  # {}
    categoricalCols: Sequence[str]  # []
    crosses: Sequence[str | Sequence[str]]  # []
    dropoutRate: float  # 0.0
    embeddingStepSize: float  # 0.05
    expireAfterS: float
    factorSize: int  # 16
    hashSeed: int  # 0
    hiddenLayers: Sequence[int]  # [128, 64]
    initStd: float  # 0.01
    keysCol: str
    keysPerRow: int
    labelCol: str  # 'label'
    lateAfterS: float
    maxIter: int  # 5
    maxKeys: int
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    optimizer: str  # 'ftrl+adagrad'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    regParam: float  # 0.0
    seed: int  # 0
    staleness: int  # 0
    stepSize: float  # 0.001
    threshold: float  # 0.5
    timeCol: str
    valuesCol: str
    weightCol: str
    weightDecay: float  # 0.0


class WideAndDeep(TypedDict, total=False):
    """Params of ``WideAndDeep``."""

    admitAfter: int  # 1
    batchSize: int  # 1024
    bucketBase: float  # 2.0
    bucketCols: Sequence[str] | Mapping[str, Floats | None]  # {}
    categoricalCols: Sequence[str]  # []
    crosses: Sequence[str | Sequence[str]]  # []
    dropoutRate: float  # 0.0
    embeddingStepSize: float  # 0.05
    expireAfterS: float
    factorSize: int  # 16
    hashSeed: int  # 0
    hiddenLayers: Sequence[int]  # [128, 64]
    initStd: float  # 0.01
    keysCol: str
    keysPerRow: int
    labelCol: str  # 'label'
    lateAfterS: float
    maxIter: int  # 5
    maxKeys: int
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    optimizer: str  # 'ftrl+adagrad'
    predictionCol: str  # 'prediction'
    probabilityCol: str  # 'probability'
    rawPredictionCol: str  # 'rawPrediction'
    regParam: float  # 0.0
    seed: int  # 0
    staleness: int  # 0
    stepSize: float  # 0.001
    threshold: float  # 0.5
    timeCol: str
    valuesCol: str
    weightCol: str
    weightDecay: float  # 0.0
