"""Keywords of the estimators of ``ps2.algorithms.recommendation``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from typing import Any, TypedDict


class MatrixFactorization(TypedDict, total=False):
    """Params of ``MatrixFactorization``."""

    alpha: float  # 1.0
    biases: bool  # False
    blockSize: int  # 4096
    budgetS: float | str
    checkpointInterval: int  # 10
    coldStartStrategy: str  # 'nan'
    finalStorageLevel: str  # 'MEMORY_AND_DISK'
    implicitPrefs: bool  # False
    intermediateStorageLevel: str  # 'MEMORY_AND_DISK'
    itemCol: str  # 'item'
    maxIter: int  # 10
    nonnegative: bool  # False
    numItemBlocks: int  # 10
    numServers: int
    numUserBlocks: int  # 10
    numWorkers: int
    patience: int  # 3
    predictionCol: str  # 'prediction'
    rank: int  # 10
    ratingCol: str  # 'rating'
    regParam: float  # 0.1
    seed: int  # 0
    solver: str  # 'auto'
    stepSize: float
    userCol: str  # 'user'
    validationIndicatorCol: str
    validationTol: float  # 0.0
    weightCol: str
    initialModel: Any
