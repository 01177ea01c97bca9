"""Compiled loops of the multinomial model over the rows of a sparse matrix; ``weights`` and ``sums`` as in
``margin_kernels``.

The weights of a feature lie side by side, one for each class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]


@inline
def class_margins(columns: Array, values: Array, begin: int, end: int, w: Array, b: Float64s, out: Float64s) -> None:
    """Set ``out[c]`` to one row's margin of class c."""
    classes = len(b)
    for c in range(classes):
        out[c] = b[c]
    for position in range(begin, end):
        x = np.float64(values[position])
        of_feature = w[columns[position] * classes : (columns[position] + 1) * classes]
        for c in range(classes):
            out[c] += x * np.float64(of_feature[c])


@inline
def cross_entropy(margins: Float64s, label: int) -> float:
    """Compute log sum exp(margins) - margins[label], and turn margins into probabilities in place."""
    largest = margins[0]
    for c in range(1, len(margins)):
        largest = max(largest, margins[c])
    of_label = margins[label] - largest
    total = 0.0
    for c in range(len(margins)):
        margins[c] = np.exp(margins[c] - largest)
        total += margins[c]
    for c in range(len(margins)):
        margins[c] /= total
    return np.log(total) - of_label


@kernel
def all_margins(indptr: Array, columns: Array, values: Array, w: Array, b: Float64s, out: Float64s) -> None:
    for row in range(len(out)):
        class_margins(columns, values, indptr[row], indptr[row + 1], w, b, out[row])


@kernel
def softmax_slopes(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    w: Array,
    b: Float64s,
    slopes: Float64s,
) -> tuple[float, float]:
    """Sum losses and weights, and set ``slopes[row]``, 0 so far, to the derivatives by the row's margins."""
    loss, weight = 0.0, 0.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        slope = slopes[row]
        if c > 0.0:
            class_margins(columns, values, indptr[row], indptr[row + 1], w, b, slope)
            label = int(y[row])
            loss += c * cross_entropy(slope, label)
            weight += c
            slope[label] -= 1.0
            for k in range(len(b)):
                slope[k] *= c
    return loss, weight


@kernel
def softmax_gradient(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    w: Array,
    b: Float64s,
    dw: Float64s,
    db: Float64s,
    sums: Float64s,
) -> None:
    """Add losses and weights to ``sums``, and the gradient to ``dw`` and ``db``; each row is read twice, in cache."""
    loss, weight = sums[0], sums[1]
    classes = len(b)
    slope = np.empty(classes)
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        class_margins(columns, values, begin, end, w, b, slope)
        label = int(y[row])
        loss += c * cross_entropy(slope, label)
        weight += c
        slope[label] -= 1.0
        for k in range(classes):
            slope[k] *= c
            db[k] += slope[k]
        for position in range(begin, end):
            x = np.float64(values[position])
            of_feature = dw[columns[position] * classes : (columns[position] + 1) * classes]
            for k in range(classes):
                of_feature[k] += x * slope[k]
    sums[0], sums[1] = loss, weight


@kernel
def softmax_loss(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    w: Array,
    b: Float64s,
    sums: Float64s,
) -> None:
    """Add losses and weights to ``sums``."""
    loss, weight = sums[0], sums[1]
    margins = np.empty(len(b))
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        class_margins(columns, values, indptr[row], indptr[row + 1], w, b, margins)
        loss += c * cross_entropy(margins, int(y[row]))
        weight += c
    sums[0], sums[1] = loss, weight
