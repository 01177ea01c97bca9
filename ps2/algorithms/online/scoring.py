"""Scores of exported online models, with NumPy and numba only: no Spark, no servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.online import kernels
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

Float32s = npt.NDArray[np.float32]
# Array of an export: the intercept.
BIAS = "bias"


def score(config: Mapping[str, Any], rows: Any, embeddings: Float32s, dense: Mapping[str, Any]) -> Float64s:
    """Return the probability of label 1 for each row: float64 of shape (n,).

    Args:
        config: of the export; nothing of it is needed.
        rows: ``KeyRows``.
        embeddings: of each pair of all rows, in order: the linear weight, then the vector; shape (pairs, k).
        dense: "bias", the intercept.
    """
    margins = np.empty(len(rows))
    places = np.arange(len(embeddings), dtype=np.int32)
    kernels.predict_rows(readable(rows.indptr), places, readable(rows.values), readable(embeddings), 0, margins)
    return probabilities(margins + float(dense[BIAS][0]))


def probabilities(margins: Float64s) -> Float64s:
    """Return 1 / (1 + exp(-margin)) without overflow."""
    odds = np.exp(-np.abs(margins))
    return np.where(margins >= 0, 1.0, odds) / (1.0 + odds)
