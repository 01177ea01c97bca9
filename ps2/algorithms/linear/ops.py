"""Operations of linear models: the search of L-BFGS in the space of centred features, and schedules of coordinates.

In the former, a feature has ``width`` columns side by side, one for each output, and its mean stands in all of them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.algorithms.linear.schedule_kernels import (
    BY_CHANGE,
    DRAW_COST,
    IN_TURN,
    PREDICT_COST,
    draw_keys,
    predict_some,
)
from ps2.errors import ShapeError
from ps2.ops.guards import check_same_width, readable
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Floats, Partition, Range, Row, op

Width = Annotated[int, Range(at_least=1)]
ByOutput = Annotated[Float64s, along("")]


@op(reduce="sum", dtypes=FLOATS)
def shifts(weight: Row, center: Row, *, width: Width) -> ByOutput:
    """Return of each output the sum over features of mean times weight, shape (width,)."""
    check_same_width(weight, center)
    return (_by_feature(readable(weight), width) * _by_feature(readable(center), width)).sum(axis=0, dtype=np.float64)


@op(writes=("gradient",), dtypes=FLOATS)
def center_gradient(gradient: Row, center: Row, slopes: Floats, *, width: Width) -> None:
    """Subtract from a gradient each feature's mean times the derivatives by the intercepts.

    Args:
        gradient: changed.
        center: means.
        slopes: float64, shape (width,): of each output.
    """
    check_same_width(gradient, center)
    if slopes.shape != (width,):
        raise ShapeError(f"slopes: expected shape ({width},), got {slopes.shape}")
    _by_feature(gradient, width)[:] -= _by_feature(readable(center), width) * slopes


@op(writes=("weight",), dtypes=FLOATS)
def average(weight: Row, change: Row, factors: Floats, thresholds: Floats) -> None:
    """Set weights to the average of models that differ from them by L1 and L2 penalties, and by changes.

    A worker's penalties make factor * sign(w) max(abs(w) - threshold, 0) of every weight w; its share of the average
    is in the factor.

    Args:
        change: the workers' sum of what is more, at the columns of their rows.
        factors, thresholds: float64, shape (n,): of groups of workers.
    """
    check_same_width(weight, change)
    if factors.ndim != 1 or factors.shape != thresholds.shape:
        raise ShapeError(f"factors: expected shape {thresholds.shape}, as thresholds have, got {factors.shape}")
    size, sign, found = np.abs(weight), np.sign(weight), np.zeros(weight.shape)
    for factor, threshold in zip(factors, thresholds, strict=True):
        found += factor * np.maximum(size - threshold, 0.0)
    weight[:] = sign * found + readable(change)


# -- coordinate descent by schedule ------------------------------------------------------------------------------------

Found = tuple[Annotated[Int64s, along("")], Annotated[Float64s, along("")]]
MEAN_UNITS = 2.0**24
# Of a mean square: smaller variances are rounding.
LOST = 2.0**-40
Schedule = Annotated[int, Range(at_least=BY_CHANGE, below=IN_TURN + 1)]
Count = Annotated[int, Range(at_least=1)]


@op(reduce="concat", dtypes=FLOATS)
def dense_columns(share: Row, mean: Row, part: Partition, *, least: float) -> Found:
    """Return the columns whose share of the rows' weight is at least ``least``, and their means to 24 bits.

    The last bits of a mean depend on the order in which workers add to it; rounded means do not.
    """
    check_same_width(share, mean)
    found = np.flatnonzero(readable(share) >= least)
    significand, exponent = np.frexp(readable(mean)[found].astype(np.float64))
    return found + part.begin, np.ldexp(np.round(significand * MEAN_UNITS) / MEAN_UNITS, exponent)


@op(writes=("square",), dtypes=FLOATS)
def curvature(square: Row, mean: Row, *, factor: float, centred: bool) -> None:
    """Make of columns' mean squares the second derivative of the loss: ``factor`` times them, or times variances.

    A variance that rounding would lose is a small part of the square: only a column of zeros has none.
    """
    check_same_width(square, mean)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks for what is no number
        if centred:
            np.maximum(square - readable(mean) ** 2, LOST * square, out=square)
        square *= factor


@op(writes=("change",), reduce="max", dtypes=FLOATS)
def predict_changes(
    change: Row, weight: Row, gradient: Row, curvature: Row, *, l1: float, l2: float, screen: float
) -> float:
    """Set of each coordinate the change that a step along it would make, in the metric of its second derivative.

    Args:
        change: overwritten.
        gradient: of the loss, downhill.
        screen: coordinates that are 0 change if their gradient is larger: l1, or less by the strong rule (Tibshirani
            et al., 2012).

    Returns:
        max |gradient - l2 weight|, which is at most l1 at the minimum.
    """
    check_same_width(change, weight, gradient, curvature)
    if not change.size:
        return 0.0
    rows = (change, readable(weight), readable(gradient), readable(curvature))
    return float(max(over_blocks(predict_some, rows, l1, l2, screen, cost=PREDICT_COST)))


@op(reduce="concat", dtypes=FLOATS)
def draw_coordinates(
    change: Row, part: Partition, *, count: Count, seed: int, round: int, dim: Count, schedule: Schedule
) -> Found:
    """Return the shard's candidates for a set of ``count`` coordinates, and their keys: the largest keys are drawn.

    ``BY_CHANGE`` draws without replacement, with a probability in proportion to change^2 (Xing et al., 2016,
    section 3.1; keys as in Efraimidis and Spirakis, 2006). A random number follows from seed, round and column, so the
    set does not depend on the number of servers.
    """
    keys = np.empty(change.size)
    over_blocks(
        draw_keys,
        (readable(change), np.arange(part.begin, part.begin + change.size), keys),
        np.uint64(seed % 2**64),
        round,
        (dim, count),
        schedule,
        cost=DRAW_COST,
    )
    candidates = np.flatnonzero(keys > -np.inf)
    if len(candidates) > count:
        candidates = np.sort(candidates[np.argpartition(-keys[candidates], count - 1)[:count]])
    return candidates + part.begin, keys[candidates]


def _by_feature(row: Array, width: int) -> Array:
    if row.size % width:
        raise ShapeError(f"width: expected a divisor of the {row.size} columns, got {width}")
    return row.reshape(-1, width)
