"""Server operations of linear models: centred features for L-BFGS, averages of models, and schedules of coordinates.

A feature has ``width`` adjacent columns, one for each output. In a vector of means, all of these hold its mean.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import ShapeError
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import check_same_width, readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Floats, Partition, Range, Row, op

Width = Annotated[int, Range(at_least=1)]
ByOutput = Annotated[Float64s, along("")]


@op(reduce="sum", dtypes=FLOATS)
def shifts(weight: Row, center: Row, *, width: Width) -> ByOutput:
    """Return, for each output, the sum over features of mean times weight, shape (width,)."""
    check_same_width(weight, center)
    return (_by_feature(readable(weight), width) * _by_feature(readable(center), width)).sum(axis=0, dtype=np.float64)


@op(writes=("gradient",), dtypes=FLOATS)
def center_gradient(gradient: Row, center: Row, slopes: Floats, *, width: Width) -> None:
    """Subtract from a gradient means times ``slopes``, the derivatives by the intercepts, shape (width,)."""
    check_same_width(gradient, center)
    if slopes.shape != (width,):
        raise ShapeError(f"slopes: expected shape ({width},), got {slopes.shape}")
    _by_feature(gradient, width)[:] -= _by_feature(readable(center), width) * slopes


@op(writes=("weight",), dtypes=FLOATS)
def average(weight: Row, change: Row, factors: Floats, thresholds: Floats) -> None:
    """Set weights to the average of the models of groups of workers.

    The penalties of a group turn each weight w into factor * sign(w) max(abs(w) - threshold, 0). ``factors`` and
    ``thresholds`` have a value for each group; a factor is already multiplied by the group's fraction of the rows'
    weight. ``change`` is the sum of the workers' changes that are not due to penalties.
    """
    check_same_width(weight, change)
    if factors.ndim != 1 or factors.shape != thresholds.shape:
        raise ShapeError(f"factors: expected shape {thresholds.shape}, as thresholds have, got {factors.shape}")
    magnitude, sign, average = np.abs(weight), np.sign(weight), np.zeros(weight.shape)
    for factor, threshold in zip(factors, thresholds, strict=True):
        average += factor * np.maximum(magnitude - threshold, 0.0)
    weight[:] = sign * average + readable(change)


def _by_feature(row: Array, width: int) -> Array:
    if row.size % width:
        raise ShapeError(f"width: expected a divisor of the {row.size} columns, got {width}")
    return row.reshape(-1, width)


# Schedules: draw in proportion to squared changes; take the largest changes; draw uniformly; cycle through all columns.
BY_CHANGE, LARGEST, UNIFORM, CYCLIC = range(4)
# The costs of a column, in element additions, by which ``over_blocks`` chooses blocks and threads.
PREDICT_COST = 8
DRAW_COST = 64
ColumnsAndValues = tuple[Annotated[Int64s, along("")], Annotated[Float64s, along("")]]
# Means are rounded to 24 bits: the last bits depend on the order in which workers add.
MEAN_UNITS = 2.0**24
# Variances below this fraction of the mean square are rounding errors.
MIN_VARIANCE = 2.0**-40
Schedule = Annotated[int, Range(at_least=BY_CHANGE, below=CYCLIC + 1)]
Count = Annotated[int, Range(at_least=1)]


@op(reduce="concat", dtypes=FLOATS)
def dense_columns(share: Row, mean: Row, part: Partition, *, least: float) -> ColumnsAndValues:
    """Return the columns whose nonzero rows have at least the fraction ``least`` of the weight, and their means.

    ``share`` is this fraction. The means are rounded (``MEAN_UNITS``), so the order in which workers add is irrelevant.
    """
    check_same_width(share, mean)
    dense = np.flatnonzero(readable(share) >= least)
    significand, exponent = np.frexp(readable(mean)[dense].astype(np.float64))
    return dense + part.begin, np.ldexp(np.round(significand * MEAN_UNITS) / MEAN_UNITS, exponent)


@op(writes=("square",), dtypes=FLOATS)
def curvature(square: Row, mean: Row, *, factor: float, centred: bool) -> None:
    """Turn columns' mean squares into second derivatives of the loss: ``factor`` times mean square, or variance.

    ``centred`` selects the variance. It is at least a small fraction of the mean square: 0 only for zeros.
    """
    check_same_width(square, mean)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for NaN
        if centred:
            np.maximum(square - readable(mean) ** 2, MIN_VARIANCE * square, out=square)
        square *= factor


@op(writes=("change",), reduce="max", dtypes=FLOATS)
def predict_changes(
    change: Row, weight: Row, gradient: Row, curvature: Row, *, l1: float, l2: float, screen: float
) -> float:
    """Set ``change`` to each coordinate's next step times the square root of the objective's second derivative.

    ``gradient`` holds the negative derivatives of the loss. ``screen`` is the minimum absolute gradient at which a
    weight of 0 changes: l1, or less by the strong rule (Tibshirani et al., 2012). Return max |gradient - l2 weight|,
    which is at most l1 if the weights that are 0 are optimal.
    """
    check_same_width(change, weight, gradient, curvature)
    if not change.size:
        return 0.0
    rows = (change, readable(weight), readable(gradient), readable(curvature))
    return float(max(over_blocks(predict_block, rows, l1, l2, screen, cost=PREDICT_COST)))


@op(reduce="concat", dtypes=FLOATS)
def draw_coordinates(
    change: Row, part: Partition, *, count: Count, seed: int, round: int, dim: Count, schedule: Schedule
) -> ColumnsAndValues:
    """Return a shard's candidates for a set of ``count`` coordinates, and their keys; the largest keys form the set.

    ``BY_CHANGE`` draws without replacement, with a probability in proportion to change^2 (Xing et al., 2016,
    section 3.1; keys as in Efraimidis and Spirakis, 2006). Random numbers depend on seed, round and column, so the set
    does not depend on the number of servers.
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


@kernel
def predict_block(
    change: Array, weight: Array, gradient: Array, curvature: Array, l1: float, l2: float, screen: float
) -> float:
    """Set ``change`` and return the maximum of ``predict_changes`` for a block of columns."""
    largest = 0.0
    for j in range(change.size):
        w, g, a = np.float64(weight[j]), np.float64(gradient[j]), np.float64(curvature[j])
        largest = max(largest, abs(g - l2 * w))
        bound = screen if w == 0.0 else l1
        unpenalised = g + a * w  # (a + l2) times the new weight, before the soft threshold
        target = 0.0
        if unpenalised > bound:
            target = unpenalised - bound
        elif unpenalised < -bound:
            target = unpenalised + bound
        change[j] = (target / (a + l2) - w) * np.sqrt(a + l2) if a + l2 > 0.0 else 0.0
    return largest


@kernel
def draw_keys(
    change: Array,
    columns: Int64s,
    keys: Float64s,
    seed: np.uint64,
    round: int,
    sizes: tuple[int, int],
    schedule: int,
) -> None:
    """Set the keys of ``draw_coordinates`` (-inf: never drawn); ``sizes`` are its ``dim`` and ``count``."""
    dim, count = sizes
    state = scrambled(scrambled(seed) + np.uint64(round + 1) * GOLDEN)
    for j in range(change.size):
        square = np.float64(change[j]) * np.float64(change[j])
        if schedule == CYCLIC:
            keys[j] = -np.float64((columns[j] - round * count) % dim)
        elif schedule in (UNIFORM, BY_CHANGE):
            bits = scrambled(state + np.uint64(columns[j] + 1) * GOLDEN)
            unit = (np.float64(bits >> np.uint64(11)) + 0.5) * TO_UNIT
            if schedule == UNIFORM:
                keys[j] = unit
            else:
                keys[j] = np.log(square) - np.log(-np.log(unit)) if square > 0.0 else -np.inf
        else:
            keys[j] = square if square > 0.0 else -np.inf
