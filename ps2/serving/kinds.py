"""The function that scores rows of each kind of model. Scoring modules import neither pyspark nor ``ps2.client``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ps2.errors import UsageError

# (config, rows: KeyRows, embeddings: float32 of shape (pairs, width), dense: arrays by name) -> float64 of shape (n,)
Score = Callable[[Any, Any, Any, Any], Any]

# Kind of an export without a model: a table of vectors, which has no scores.
TABLE = "table"
_HOME = {
    "logistic": "ps2.algorithms.online.scoring",
    "fm": "ps2.algorithms.online.scoring",
    "deepfm": "ps2.algorithms.deep.scoring",
    "wide-deep": "ps2.algorithms.deep.scoring",
    "two-tower": "ps2.algorithms.deep.scoring",
}


def score_of(kind: str) -> Score | None:
    """Return the function that scores rows of a kind of model; None for a table.

    Raises:
        UsageError: this version has no such kind.
    """
    if kind == TABLE:
        return None
    if kind not in _HOME:
        raise UsageError(f"expected an export of kind {', '.join([TABLE, *_HOME])}, got {kind!r}")
    scoring: Any = import_module(_HOME[kind])
    score: Score = scoring.score
    return score
