"""Progressive validation: each row is predicted before it is learned from, and the predictions are measured.

What workers add up is one vector, so it can lie on the servers beside the model, and counts each row once as the model
does (Blum, Kalai and Langford, 1999: progressive validation).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log1p
from typing import Any

import numpy as np

from ps2.array_types import Float32s, Float64s
from ps2.errors import InputError
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

# Sums in a tally: rows, their weights, the weights of positive ones, of weight x probability and weight x log loss.
ROWS, WEIGHT, POSITIVE, PREDICTED, LOSS = range(5)
SUMS = 5
# Then come weights by margin, of negative and of positive rows.
BINS, MIN_MARGIN, MAX_MARGIN = 2048, -16.0, 16.0
SIZE = SUMS + 2 * BINS


@dataclass(frozen=True)
class Progressive:
    """Measures of rows that were predicted before they were learned.

    Attributes:
        rows: their number.
        logLoss: mean logistic loss; NaN without rows, as all others.
        auc: area under the ROC curve, by margins in 2,048 bins; NaN without rows of both labels.
        calibration: mean probability / share of positives; NaN without positives.
        positiveRate: share of positives.
    """

    rows: int
    logLoss: float
    auc: float
    calibration: float
    positiveRate: float

    @staticmethod
    def of(tally: Float64s) -> Progressive:
        """Return the measures of a tally of ``SIZE`` numbers."""
        weight, positive = float(tally[WEIGHT]), float(tally[POSITIVE])
        return Progressive(
            int(tally[ROWS]),
            _ratio(tally[LOSS], weight),
            area(tally[SUMS : SUMS + BINS], tally[SUMS + BINS : SIZE]),
            _ratio(tally[PREDICTED], positive),
            _ratio(positive, weight),
        )


def tally_of(margins: Float64s, labels: Float32s, weights: Float32s) -> Float64s:
    """Return the tally of predictions, float64 of shape (SIZE,), of logits, labels 0 or 1, and weights (empty: all 1).

    Raise InputError for a margin that is not finite, so that it has no bin.
    """
    finite = np.isfinite(margins)
    if not finite.all():
        raise InputError(f"margins: expected finite numbers, got {margins[np.argmin(finite)]}: scale the rows' numbers")
    tally = np.zeros(SIZE)
    _add(readable(margins), readable(labels), readable(weights), tally)
    return tally


def area(negative: Float64s, positive: Float64s) -> float:
    """Return the area under the ROC curve of weights by ascending score; rows of one bin tie."""
    total = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative
    return _ratio(float(positive @ (below + negative / 2)), total)


def _ratio(value: Any, by: float) -> float:
    return float(value) / by if by > 0 else float("nan")


@kernel
def _add(margins: Float64s, labels: Float32s, weights: Float32s, tally: Float64s) -> None:
    for i in range(margins.size):
        margin, weight = margins[i], float(weights[i]) if weights.size else 1.0
        is_positive = labels[i] > 0.5
        odds = exp(-abs(margin))
        probability = 1.0 / (1.0 + odds) if margin >= 0 else odds / (1.0 + odds)
        signed = margin if is_positive else -margin
        tally[ROWS] += 1.0
        tally[WEIGHT] += weight
        tally[PREDICTED] += weight * probability
        tally[LOSS] += weight * (log1p(odds) + max(-signed, 0.0))
        bin_index = int((min(max(margin, MIN_MARGIN), MAX_MARGIN) - MIN_MARGIN) * (BINS / (MAX_MARGIN - MIN_MARGIN)))
        bin_index = min(bin_index, BINS - 1)
        if is_positive:
            tally[POSITIVE] += weight
            bin_index += BINS
        tally[SUMS + bin_index] += weight
