"""Keywords of the estimators of ``ps2.algorithms.feature``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from typing import TypedDict


class Word2Vec(TypedDict, total=False):
    """Params of ``Word2Vec``."""

    architecture: str  # 'skipgram'
    inputCol: str
    maxIter: int  # 1
    maxSentenceLength: int  # 1000
    minCount: int  # 5
    negative: int  # 5
    nsExponent: float  # 0.75
    numPartitions: int  # 1
    numServers: int
    numWorkers: int
    outputCol: str
    sample: float  # 0.0
    seed: int  # 0
    stepSize: float  # 0.025
    vectorSize: int  # 100
    via: str  # 'auto'
    windowSize: int  # 5
