"""Progressive validation (Blum, Kalai and Langford, 1999): each row is predicted before the model learns from it.

Workers add up a tally (sums and histograms of the predictions) in one vector. The vector is on the servers like the
model, so a rollback restores both, and each row counts once.
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

# The sums in a tally: rows, weights, weights of positive rows, weight x probability, and weight x log loss.
ROWS, WEIGHT, POSITIVE, PREDICTED, LOSS = range(5)
SUMS = 5
# Two histograms of margins follow, each with BINS bins between MIN_MARGIN and MAX_MARGIN: the weights of negative rows,
# and the weights of positive rows.
BINS, MIN_MARGIN, MAX_MARGIN = 2048, -16.0, 16.0
SIZE = SUMS + 2 * BINS


@dataclass(frozen=True)
class Progressive:
    """Measures of rows that were predicted before they were learned.

    Attributes:
        rows: the number of rows; without rows, all other measures are NaN.
        logLoss: the mean logistic loss.
        auc: the area under the ROC curve, by margins in 2,048 bins; NaN unless there are rows of both labels.
        calibration: the mean probability, divided by the fraction of positive rows; NaN without positive rows.
        positiveRate: the fraction of positive rows, by weight.
    """

    rows: int
    logLoss: float
    auc: float
    calibration: float
    positiveRate: float

    @staticmethod
    def of(tally: Float64s) -> Progressive:
        """Return the measures of a tally, float64, shape (SIZE,)."""
        weight, positive = float(tally[WEIGHT]), float(tally[POSITIVE])
        return Progressive(
            int(tally[ROWS]),
            _ratio(tally[LOSS], weight),
            auc_of_bins(tally[SUMS : SUMS + BINS], tally[SUMS + BINS : SIZE]),
            _ratio(tally[PREDICTED], positive),
            _ratio(positive, weight),
        )


def tally_of(margins: Float64s, labels: Float32s, weights: Float32s) -> Float64s:
    """Return the tally of predictions, float64, shape (SIZE,). Margins are logits, labels 0 or 1; empty weights: all 1.

    Raise InputError for a margin that is not finite, because no bin contains it.
    """
    is_finite = np.isfinite(margins)
    if not is_finite.all():
        got = margins[np.argmin(is_finite)]
        raise InputError(f"margins: expected finite numbers, got {got}: scale the rows' values")
    tally = np.zeros(SIZE)
    _add(readable(margins), readable(labels), readable(weights), tally)
    return tally


def auc_of_bins(negative: Float64s, positive: Float64s) -> float:
    """Return the area under the ROC curve from histograms in bins of ascending margin; rows of one bin tie."""
    num_pairs = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative
    return _ratio(float(positive @ (below + negative / 2)), num_pairs)


def _ratio(value: Any, divisor: float) -> float:
    return float(value) / divisor if divisor > 0 else float("nan")


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
