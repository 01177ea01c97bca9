"""Keywords of the estimators of ``ps2.algorithms.deep.ml.towers``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class TwoTower(TypedDict, total=False):
    """Params of ``TwoTower``."""

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
    hiddenLayers: Sequence[int]  # [64, 32]
    initStd: float  # 0.01
    keysCol: str
    keysPerRow: int
    labelCol: str  # 'label'
    lateAfterS: float
    loss: str  # 'softmax'
    maxIter: int  # 5
    maxKeys: int
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    optimizer: str  # 'adagrad'
    predictionCol: str  # 'prediction'
    regParam: float  # 0.0
    seed: int  # 0
    staleness: int  # 0
    stepSize: float  # 0.001
    temperature: float  # 0.1
    timeCol: str
    userCols: Sequence[str]
    valuesCol: str
    weightCol: str
    weightDecay: float  # 0.0
