"""Logistic regression on the rows of one task: minibatches, gradients and losses, without Spark or servers.

A block's features are numbered from 0 once (``compact_block``); a step then picks its rows and renumbers only what they
use (``compact``), so that no step sorts anything and its gradient is as short as its set of keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.libsvm import Block
from ps2.algorithms.losses.margin_kernels import log_loss, sigmoid
from ps2.errors import ConfigError, InputError, OutOfRangeError, ShapeError
from ps2.ops.kernels import kernel
from ps2.rows import number_columns, renumber, take_rows

Array = npt.NDArray[Any]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

SHOWN_LABELS = 10


@dataclass(frozen=True, eq=False)
class LocalBlock:
    """A block whose features are numbered by their place among its own sorted keys.

    Attributes:
        keys: int64, shape (k,): its global features, sorted, unique; the intercept's column is one of them.
        indptr: int64, shape (n + 1,).
        columns: int32, shape (nnz,): places in ``keys``.
        values: float32 or float64, shape (nnz,).
        y: float64, shape (n,): 0 or 1.
    """

    keys: Int64Array
    indptr: Int64Array
    columns: Int32Array
    values: Array
    y: Float64Array


@dataclass(frozen=True, eq=False)
class CompactRows:
    """A minibatch in a feature space of its own.

    Attributes:
        keys: int64, shape (k,): the global features that it uses, sorted, unique.
        x: scipy csr_array of float32 or float64, shape (n, k); columns are places in ``keys``.
        y: float64, shape (n,): 0 or 1.
    """

    keys: Int64Array
    x: sp.csr_array
    y: Float64Array


def sample_rows(n: int, fraction: float, seed: int, step: int, rdd_partition: int) -> Int64Array:
    """Choose each of ``n`` rows with probability ``fraction``, the same ones whenever the arguments are the same.

    Args:
        n: rows to choose from.
        fraction: in (0, 1]; 1.0 chooses all.
        seed: any integer; modulo 2**64.
        step: at least 0.
        rdd_partition: at least 0.

    Returns:
        Row numbers, int64, sorted; possibly none.

    Raises:
        ConfigError: ``fraction`` is outside (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"fraction: expected a number in (0, 1], got {fraction}")
    if fraction == 1.0:
        return np.arange(n, dtype=np.int64)
    sequence = np.random.SeedSequence(seed % 2**64, spawn_key=(step, rdd_partition))
    drawn = np.random.Generator(np.random.Philox(sequence)).random(n)
    return np.flatnonzero(drawn < fraction).astype(np.int64, copy=False)


def two_classes(labels: Iterable[float]) -> tuple[float, float]:
    """Find the two label values.

    Args:
        labels: all labels, or the distinct ones, in any order.

    Returns:
        The smaller value (class 0) and the larger one (class 1).

    Raises:
        InputError: there are not exactly two.
    """
    all_labels = labels if isinstance(labels, np.ndarray) else np.fromiter(labels, np.float64)
    found = np.unique(all_labels).tolist()
    if len(found) != 2:
        shown = ", ".join(f"{label:g}" for label in found[:SHOWN_LABELS]) or "none"
        more = f" and {len(found) - SHOWN_LABELS} more" if len(found) > SHOWN_LABELS else ""
        raise InputError(f"labels: expected two different values, got {len(found)}: {shown}{more}")
    return float(found[0]), float(found[1])


def compact_block(block: Block, classes: tuple[float, float], *, intercept: int | None) -> LocalBlock:
    """Number a block's features from 0, once for all steps.

    Args:
        block: labelled rows.
        classes: the label of class 0 and that of class 1.
        intercept: column of a feature that is 1 in every row, or None.

    Returns:
        The block in its own feature space, with the intercept as the last entry of each row.

    Raises:
        InputError: a label is in neither class, or a row already uses the intercept's column.
    """
    y = (block.labels == classes[1]).astype(np.float64)
    strange = block.labels[(y == 0) & (block.labels != classes[0])]
    if len(strange):
        raise InputError(f"labels: expected {classes[0]:g} or {classes[1]:g}, got {strange[0]:g}")
    indptr, indices, values = block.indptr, block.indices, block.values
    if intercept is not None:
        if np.any(indices == intercept):
            raise InputError(f"feature {intercept}: expected no row to use the intercept's column, but one does")
        indices, values = np.insert(indices, indptr[1:], intercept), np.insert(values, indptr[1:], 1)
        indptr = indptr + np.arange(len(indptr))
    keys, columns = number_columns(indices)
    return LocalBlock(keys, indptr, columns, values, y)


def compact(block: LocalBlock, rows: Int64Array) -> CompactRows:
    """Take rows of a block and number the features that they use from 0.

    Args:
        block: from ``compact_block``.
        rows: int64, shape (n,): row numbers, as from ``sample_rows``.

    Returns:
        The rows, in the order given.

    Raises:
        OutOfRangeError: a row number is outside the block.
    """
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(block.y):
        raise OutOfRangeError(f"rows: expected numbers in [0, {len(block.y)}), got {rows.min()} to {rows.max()}")
    indptr, columns, values = take_rows(block.indptr, block.columns, block.values, rows)
    used = renumber(columns, columns, len(block.keys))
    x = sp.csr_array((values, columns, indptr), shape=(len(rows), len(used)))
    return CompactRows(block.keys[used], x, block.y[rows])


def gradient(rows: CompactRows, w: Array) -> tuple[Float64Array, float, int]:
    """Compute the gradient of the summed log-loss.

    Args:
        rows: a minibatch.
        w: float32 or float64, shape (k,): the weights of ``rows.keys``.

    Returns:
        The gradient X^T (sigmoid(X w) - y), float64, shape (k,); the summed log-loss; the number of rows whose class
        is predicted at threshold 0.5.

    Raises:
        ShapeError: ``w`` has another length.
    """
    _check_shapes(rows.x, rows.y, w)
    g = np.zeros(len(w))
    loss_sum, correct = _gradient(rows.x.indptr, rows.x.indices, rows.x.data, rows.y, w, g)
    return g, float(loss_sum), int(correct)


def evaluate(x: sp.csr_array, y: Float64Array, w: Array) -> tuple[float, int]:
    """Compute the summed log-loss and the number of rows whose class is predicted at threshold 0.5.

    Args:
        x: float32 or float64, shape (n, k).
        y: float64, shape (n,): 0 or 1.
        w: float32 or float64, shape (k,).

    Raises:
        ShapeError: the shapes do not fit together.
    """
    _check_shapes(x, y, w)
    loss_sum, correct = _evaluate(x.indptr, x.indices, x.data, y, w)
    return float(loss_sum), int(correct)


def _check_shapes(x: sp.csr_array, y: Float64Array, w: Array) -> None:
    # The compiled loops check no bounds.
    if w.shape != (x.shape[1],):
        raise ShapeError(f"w: expected shape ({x.shape[1]},), got {w.shape}")
    if y.shape != (x.shape[0],):
        raise ShapeError(f"y: expected shape ({x.shape[0]},), got {y.shape}")


@kernel
def _margin(columns: Array, values: Array, w: Array) -> float:
    """Compute one row's x w, summed in float64 whatever the arrays hold."""
    total = 0.0
    for position in range(len(columns)):
        total += np.float64(values[position]) * np.float64(w[columns[position]])
    return total


@kernel
def _gradient(
    indptr: Array, columns: Array, values: Array, y: Float64Array, w: Array, g: Float64Array
) -> tuple[float, int]:
    """Add the gradient to ``g``; each row is read once for its margin and, still in cache, once for its gradient."""
    loss_sum, correct = 0.0, 0
    for row in range(len(y)):
        begin, end = indptr[row], indptr[row + 1]
        margin = _margin(columns[begin:end], values[begin:end], w)
        loss_sum += log_loss(margin, y[row])
        correct += (margin > 0.0) == (y[row] > 0.0)
        error = sigmoid(margin) - y[row]
        for position in range(begin, end):
            g[columns[position]] += error * values[position]
    return loss_sum, correct


@kernel
def _evaluate(indptr: Array, columns: Array, values: Array, y: Float64Array, w: Array) -> tuple[float, int]:
    loss_sum, correct = 0.0, 0
    for row in range(len(y)):
        begin, end = indptr[row], indptr[row + 1]
        margin = _margin(columns[begin:end], values[begin:end], w)
        loss_sum += log_loss(margin, y[row])
        correct += (margin > 0.0) == (y[row] > 0.0)
    return loss_sum, correct
