"""Keywords of the estimators of ``ps2.algorithms.estimators.key_hasher``; written by scripts/keywords, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ps2.algorithms.estimators.keywords.types import Floats


class KeyHasher(TypedDict, total=False):
    """Params of ``KeyHasher``."""

    bucketBase: float  # 2.0
    bucketCols: Sequence[str] | Mapping[str, Floats | None]  # {}
    categoricalCols: Sequence[str]  # []
    crosses: Sequence[str | Sequence[str]]  # []
    hashSeed: int  # 0
    keysCol: str  # 'keys'
    numServers: int
    numWorkers: int
    numericCols: Sequence[str]  # []
    valuesCol: str  # 'values'
