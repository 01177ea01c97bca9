"""Scores of exported online models, without Spark and servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ps2.algorithms.online import kernels
from ps2.array_types import Float32s, Float64s
from ps2.ops.guards import readable

# The name of the array in an export that contains the intercept.
BIAS = "bias"


def score(config: Mapping[str, Any], rows: Any, embeddings: Float32s, dense: Mapping[str, Any]) -> Float64s:
    """Return the probability of label 1 for each of the ``KeyRows``: float64 of shape (n,).

    Args:
        embeddings: the weights of each pair's key, linear weight first: float32 of shape (pairs, k).
        dense: the export's dense arrays by name; "bias" is the intercept, shape (1,).
    """
    margins = np.empty(len(rows))
    keys, inverse = rows.numbered()
    table = np.empty((len(keys), embeddings.shape[1]), np.float32)
    table[inverse] = embeddings
    entries = readable(rows.indptr), readable(inverse), readable(rows.values)
    indptr, indices, values = kernels.merge_pairs(*entries, len(keys), False)
    kernels.predict_rows(readable(indptr), readable(indices), readable(values), readable(table), 0, margins)
    return probabilities(margins + float(dense[BIAS][0]))


def probabilities(margins: Float64s) -> Float64s:
    """Return 1 / (1 + exp(-margin)) without overflow."""
    odds = np.exp(-np.abs(margins))
    return np.where(margins >= 0, 1.0, odds) / (1.0 + odds)
