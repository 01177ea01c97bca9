"""Keywords of the estimators of ``ps2.torch.params``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class TorchEstimator(TypedDict, total=False):
    """Params of ``TorchEstimator``."""

    batchSize: int  # 1024
    epochs: int  # 1
    inputCols: Sequence[str]
    labelCol: str  # 'label'
    lr: float  # 0.001
    numServers: int
    numWorkers: int
    optimizer: str  # 'adam'
    predictionCol: str  # 'prediction'
    raggedCols: Sequence[str]  # []
    seed: int  # 0
    staleness: int  # 0
