"""Keywords of the estimators of ``ps2.algorithms.graph``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from typing import TypedDict


class DeepWalk(TypedDict, total=False):
    """Params of ``DeepWalk``."""

    directed: bool  # False
    dstCol: str  # 'dst'
    graphOn: str  # 'auto'
    maxIter: int  # 1
    negative: int  # 5
    nsExponent: float  # 0.75
    numServers: int
    numWalks: int  # 10
    numWorkers: int
    seed: int  # 0
    srcCol: str  # 'src'
    stepSize: float  # 0.025
    vectorSize: int  # 128
    via: str  # 'auto'
    walkLength: int  # 80
    weightCol: str
    windowSize: int  # 10


class LINE(TypedDict, total=False):
    """Params of ``LINE``."""

    directed: bool  # False
    dstCol: str  # 'dst'
    hashed: bool  # False
    maxIter: int  # 20
    negative: int  # 5
    nsExponent: float  # 0.75
    numServers: int
    numWorkers: int
    order: str  # 'both'
    seed: int  # 0
    srcCol: str  # 'src'
    stepSize: float  # 0.025
    vectorSize: int  # 128
    via: str  # 'auto'
    weightCol: str


class Node2Vec(TypedDict, total=False):
    """Params of ``Node2Vec``."""

    directed: bool  # False
    dstCol: str  # 'dst'
    graphOn: str  # 'auto'
    maxIter: int  # 1
    negative: int  # 5
    nsExponent: float  # 0.75
    numServers: int
    numWalks: int  # 10
    numWorkers: int
    p: float  # 1.0
    q: float  # 1.0
    seed: int  # 0
    srcCol: str  # 'src'
    stepSize: float  # 0.025
    vectorSize: int  # 128
    via: str  # 'auto'
    walkLength: int  # 80
    weightCol: str
    windowSize: int  # 10


class RandomWalks(TypedDict, total=False):
    """Params of ``RandomWalks``."""

    directed: bool  # False
    dstCol: str  # 'dst'
    graphOn: str  # 'auto'
    numServers: int
    numWalks: int  # 10
    numWorkers: int
    p: float  # 1.0
    q: float  # 1.0
    seed: int  # 0
    srcCol: str  # 'src'
    walkLength: int  # 80
    weightCol: str
