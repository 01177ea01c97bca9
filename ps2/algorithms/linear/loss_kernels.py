"""Compiled loops: the loss of one row by its margins, and losses and gradients over the rows of a sparse matrix.

``code`` selects the loss of a margin, so a loop is compiled once for all losses. ``y`` are the rows' labels, and
``weights`` their weights, called c below; an empty array means that every row has weight 1. Loops skip rows of weight
0, even if their values are not finite. ``sums`` holds the summed loss and the summed weight. Each block of rows
continues the sums of the blocks before, so the result is the same for all sizes of blocks, bit for bit.

The weights ``w`` of a feature are adjacent: one for each class, or a linear weight followed by factors.
"""

from __future__ import annotations

import math

import numpy as np

from ps2.array_types import Float64s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, TURN, scrambled
from ps2.ops.kernels import inline, inline_reduction, kernel
from ps2.ops.table import Array

# The codes of losses of one margin. HALF_SQUARED is 1/2 (margin - y)^2, SQUARED is (margin - y)^2.
LOGISTIC, HINGE, SQUARED_HINGE, HALF_SQUARED, SQUARED, HUBER = range(6)
# The rows' arrays: indptr, columns and values of the CSR matrix, then the labels and the rows' weights.
RowArrays = tuple[Array, Array, Array, Float64s, Float64s]


@inline
def log_loss(margin: float, y: float) -> float:
    """Compute log(1 + exp(margin)) - y margin for y of 0 or 1, without overflow and without cancellation."""
    signed = margin if y > 0.0 else -margin
    if signed > 0.0:
        return np.log1p(np.exp(-signed))
    return np.log1p(np.exp(signed)) - signed


@inline
def sigmoid(margin: float) -> float:
    if margin > 0.0:
        return 1.0 / (1.0 + np.exp(-margin))
    odds = np.exp(margin)
    return odds / (1.0 + odds)


@inline
def margin_slope(code: int, margin: float, y: float) -> float:
    """Compute the derivative of a row's loss, except Huber's, with respect to its margin."""
    if code == LOGISTIC:
        # sigmoid(margin) - 1 would lose all digits where it is close to 0.
        return -sigmoid(-margin) if y > 0.0 else sigmoid(margin)
    if code == HALF_SQUARED:
        return margin - y
    if code == SQUARED:
        return 2.0 * (margin - y)
    sign = 1.0 if y > 0.0 else -1.0
    shortfall = 1.0 - sign * margin
    if shortfall <= 0.0:
        return 0.0
    return -sign if code == HINGE else -2.0 * sign * shortfall


@inline
def margin_loss(code: int, margin: float, y: float) -> float:
    """Compute a row's loss, except Huber's."""
    if code == LOGISTIC:
        return log_loss(margin, y)
    if code == HALF_SQUARED:
        return 0.5 * (margin - y) * (margin - y)
    if code == SQUARED:
        return (margin - y) * (margin - y)
    shortfall = 1.0 - (margin if y > 0.0 else -margin)
    if shortfall <= 0.0:
        return 0.0
    return shortfall if code == HINGE else shortfall * shortfall


@inline
def huber_loss(margin: float, y: float, sigma: float, epsilon: float) -> tuple[float, float, float]:
    """Compute the loss 1/2 (sigma + H((y - margin) / sigma) sigma), and its derivatives by margin and log sigma.

    H(z) is z^2 if |z| <= epsilon, else 2 epsilon |z| - epsilon^2 (Owen 2007, equations 6, 7). 1/2: as in pyspark.ml.
    """
    z = (y - margin) / sigma
    if abs(z) <= epsilon:
        return 0.5 * sigma * (1.0 + z * z), -z, 0.5 * sigma * (1.0 - z * z)
    loss = 0.5 * sigma * (1.0 - epsilon * epsilon) + epsilon * abs(y - margin)
    return loss, -epsilon if z > 0.0 else epsilon, 0.5 * sigma * (1.0 - epsilon * epsilon)


@inline_reduction
def row_margin(columns: Array, values: Array, begin: int, end: int, w: Array) -> float:
    """Compute the inner product of one row and the weights, as float64 for arrays of any dtype."""
    total = 0.0
    for position in range(begin, end):
        total += np.float64(values[position]) * np.float64(w[columns[position]])
    return total


@kernel
def linear_margins(indptr: Array, columns: Array, values: Array, w: Array, b: float, out: Float64s) -> None:
    for row in range(len(out)):
        out[row] = row_margin(columns, values, indptr[row], indptr[row + 1], w) + b


@kernel
def summed_loss(
    margins: Float64s, y: Float64s, weights: Float64s, code: int, sigma: float, epsilon: float, sums: Float64s
) -> None:
    """Add losses and weights of rows, from their margins, to ``sums``; see ``huber_loss`` for sigma and epsilon."""
    loss, weight = sums[0], sums[1]
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        if code == HUBER:
            loss += c * huber_loss(margins[row], y[row], sigma, epsilon)[0]
        else:
            loss += c * margin_loss(code, margins[row], y[row])
        weight += c
    sums[0], sums[1] = loss, weight


@kernel
def linear_gradient(
    rows: RowArrays, w: Array, b: Float64s, code: int, epsilon: float, dw: Float64s, db: Float64s, sums: Float64s
) -> None:
    """Add losses and weights to ``sums``, and the gradient to ``dw`` and ``db``; a row's second read is from cache."""
    indptr, columns, values, y, weights = rows
    loss, weight = sums[0], sums[1]
    sigma = np.exp(b[1]) if code == HUBER else 1.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        margin = row_margin(columns, values, begin, end, w) + b[0]
        if code == HUBER:
            row_loss, slope, scale_slope = huber_loss(margin, y[row], sigma, epsilon)
            db[1] += c * scale_slope
        else:
            row_loss, slope = margin_loss(code, margin, y[row]), margin_slope(code, margin, y[row])
        loss += c * row_loss
        weight += c
        slope *= c
        if slope == 0.0:
            continue
        db[0] += slope
        for position in range(begin, end):
            dw[columns[position]] += slope * values[position]
    sums[0], sums[1] = loss, weight


@inline
def class_margins(columns: Array, values: Array, begin: int, end: int, w: Array, b: Float64s, out: Float64s) -> None:
    """Set ``out[c]`` to one row's margin of class c."""
    classes = len(b)
    for c in range(classes):
        out[c] = b[c]
    for position in range(begin, end):
        x = np.float64(values[position])
        feature = w[columns[position] * classes : (columns[position] + 1) * classes]
        for c in range(classes):
            out[c] += x * np.float64(feature[c])


@inline
def cross_entropy(margins: Float64s, label: int) -> float:
    """Compute log sum exp(margins) - margins[label], and turn margins into probabilities in place."""
    largest = margins[0]
    for c in range(1, len(margins)):
        largest = max(largest, margins[c])
    label_margin = margins[label] - largest
    total = 0.0
    for c in range(len(margins)):
        margins[c] = np.exp(margins[c] - largest)
        total += margins[c]
    for c in range(len(margins)):
        margins[c] /= total
    return np.log(total) - label_margin


@inline
def softmax_row(
    columns: Array, values: Array, begin: int, end: int, w: Array, b: Float64s, label: int, c: float, slope: Float64s
) -> float:
    """Return the loss of one row of weight c; set ``slope`` to its derivatives with respect to the row's margins."""
    class_margins(columns, values, begin, end, w, b, slope)
    loss = c * cross_entropy(slope, label)
    slope[label] -= 1.0
    for k in range(len(b)):
        slope[k] *= c
    return loss


@kernel
def all_margins(indptr: Array, columns: Array, values: Array, w: Array, b: Float64s, out: Float64s) -> None:
    for row in range(len(out)):
        class_margins(columns, values, indptr[row], indptr[row + 1], w, b, out[row])


@kernel
def softmax_slopes(rows: RowArrays, w: Array, b: Float64s, slopes: Float64s) -> tuple[float, float]:
    """Return the sums of losses and weights; set ``slopes``, which is 0, to derivatives by the margins."""
    indptr, columns, values, y, weights = rows
    loss, weight = 0.0, 0.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c > 0.0:
            loss += softmax_row(columns, values, indptr[row], indptr[row + 1], w, b, int(y[row]), c, slopes[row])
            weight += c
    return loss, weight


@kernel
def softmax_gradient(rows: RowArrays, w: Array, b: Float64s, dw: Float64s, db: Float64s, sums: Float64s) -> None:
    """Add losses and weights to ``sums``, and the gradient to ``dw`` and ``db``; a row's second read is from cache."""
    indptr, columns, values, y, weights = rows
    loss, weight = sums[0], sums[1]
    classes = len(b)
    slope = np.empty(classes)
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        loss += softmax_row(columns, values, begin, end, w, b, int(y[row]), c, slope)
        weight += c
        for k in range(classes):
            db[k] += slope[k]
        for position in range(begin, end):
            x = np.float64(values[position])
            feature = dw[columns[position] * classes : (columns[position] + 1) * classes]
            for k in range(classes):
                feature[k] += x * slope[k]
    sums[0], sums[1] = loss, weight


@kernel
def softmax_loss(rows: RowArrays, w: Array, b: Float64s, sums: Float64s) -> None:
    """Add losses and weights of rows to ``sums``."""
    indptr, columns, values, y, weights = rows
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


@inline
def fm_margin(columns: Array, values: Array, begin: int, end: int, w: Array, width: int, sums: Float64s) -> float:
    """Compute sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j (Rendle 2010, lemma 3.1); set ``sums`` to sum_i v_i x_i."""
    linear, squares = 0.0, 0.0
    sums[:] = 0.0
    for position in range(begin, end):
        x = np.float64(values[position])
        feature = w[columns[position] * width : (columns[position] + 1) * width]
        linear += x * np.float64(feature[0])
        for f in range(width - 1):
            term = x * np.float64(feature[f + 1])
            sums[f] += term
            squares += term * term
    pairs = -squares
    for f in range(width - 1):
        pairs += sums[f] * sums[f]
    return linear + 0.5 * pairs


@kernel
def fm_margins(indptr: Array, columns: Array, values: Array, w: Array, b: float, width: int, out: Float64s) -> None:
    sums = np.empty(width - 1)
    for row in range(len(out)):
        out[row] = b + fm_margin(columns, values, indptr[row], indptr[row + 1], w, width, sums)


@kernel
def fm_gradient(
    rows: RowArrays, w: Array, b: float, width: int, code: int, linear: bool, dw: Float64s, db: Float64s, sums: Float64s
) -> None:
    """Add losses and weights to ``sums``, and the gradient to ``dw`` and ``db``; a row's second read is from cache."""
    indptr, columns, values, y, weights = rows
    loss, weight, intercept_slope = sums[0], sums[1], db[0]
    factor_sums = np.empty(width - 1)
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        margin = b + fm_margin(columns, values, begin, end, w, width, factor_sums)
        loss += c * margin_loss(code, margin, y[row])
        weight += c
        slope = c * margin_slope(code, margin, y[row])
        intercept_slope += slope
        for position in range(begin, end):
            x = np.float64(values[position])
            feature = w[columns[position] * width : (columns[position] + 1) * width]
            gradient = dw[columns[position] * width : (columns[position] + 1) * width]
            step = slope * x
            if linear:
                gradient[0] += step
            for f in range(width - 1):
                gradient[f + 1] += step * (factor_sums[f] - x * np.float64(feature[f + 1]))
    sums[0], sums[1], db[0] = loss, weight, intercept_slope


@kernel
def fill_normal(keys: Int64s, seed: np.uint64, width: int, out: Float64s) -> None:
    """Set each key's factors to standard normal values (Box and Muller); seed, key and factor determine each value."""
    start = scrambled(seed + GOLDEN)
    for i in range(len(keys)):
        state = scrambled(start + np.uint64(keys[i]) * GOLDEN)
        for f in range(1, width):
            radius_bits = scrambled(state + np.uint64(2 * f) * GOLDEN)
            angle_bits = scrambled(state + np.uint64(2 * f + 1) * GOLDEN)
            # The argument of the logarithm is in (0, 1], so the logarithm is finite.
            radius = math.sqrt(-2.0 * math.log((np.float64(radius_bits >> np.uint64(11)) + 1.0) * TO_UNIT))
            out[i * width + f] = radius * math.cos(TURN * np.float64(angle_bits >> np.uint64(11)) * TO_UNIT)
