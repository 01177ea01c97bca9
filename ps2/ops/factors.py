"""Adds gradients that are sent as two factors instead of their product (sufficient factors).

The gradient of a linear model with ``width`` outputs is x^T b, where x contains the features of a batch of samples, and
b the derivatives of the loss with respect to each sample's outputs. With many outputs, x and b are smaller than their
product (Xie et al., "Distributed Machine Learning via Sufficient Factor Broadcasting", 2016).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import check_length, check_targets, readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Range, Row, Slots, Tiny, Unsigned, Values, op

Width = Annotated[int, Range(at_least=1)]
SampleRows = Annotated[Values, along("samples", "width")]


@kernel
def _add_sparse(slots: Int64s, starts: Int64s, ends: Int64s, u: Array, samples: Int64s, x: Array, b: Array) -> None:
    sums = np.empty(b.shape[1])
    for i in range(slots.size):
        sums[:] = 0
        for entry in range(starts[i] - starts[0], ends[i] - starts[0]):
            value, row = np.float64(x[entry]), b[samples[entry]]
            for k in range(sums.size):
                sums[k] += value * np.float64(row[k])
        if slots[i] >= 0:
            for k in range(sums.size):
                u[slots[i] + k] += sums[k]


@kernel
def _add_dense(slots: Int64s, x: Array, u: Array, b: Array) -> None:
    sums = np.empty(b.shape[1])
    for i in range(slots.size):
        sums[:] = 0
        for sample in range(b.shape[0]):
            value, row = np.float64(x[i, sample]), b[sample]
            for k in range(sums.size):
                sums[k] += value * np.float64(row[k])
        if slots[i] >= 0:
            for k in range(sums.size):
                u[slots[i] + k] += sums[k]


@op(writes=("u",), dtypes=FLOATS, span="width")
def add_factors(
    u: Row,
    slots: Slots,
    counts: Annotated[Unsigned, along("slots")],
    samples: Annotated[Unsigned, along("slots", by="counts"), Tiny(lambda dtype: np.zeros(1, np.uint8))],
    x: Annotated[Values, along("slots", by="counts")],
    b: SampleRows,
    *,
    width: Width,
) -> None:
    """Add ``sum over s of x[s, f] * b[s]`` to the ``width`` columns that begin at feature f's slot; x is sparse.

    Sums accumulate in float64 and are rounded to the row's dtype when they are added.

    Args:
        u: the row of the gradient; changed.
        slots: the first column of each feature.
        counts: the number of entries of each feature.
        samples: the sample s of each entry, ordered by feature.
        x: the value of each entry.
        b: shape (samples, width).
        width: the number of columns of a feature.

    Raises:
        ShapeError: the arrays' lengths do not match.
        OutOfRangeError: a feature's columns are not inside the row, or a sample is not in ``b``.
    """
    rows = _sample_rows(b, width)
    check_length("counts", counts, slots.size)
    # Without this check, the sum of large counts could overflow, and look valid.
    if counts.size and int(counts.max()) > samples.size:
        raise ShapeError(f"counts: expected at most {samples.size}, the number of entries, got {counts.max()}")
    ends = np.cumsum(counts, dtype=np.int64)
    num_entries = int(ends[-1]) if ends.size else 0
    check_length("samples", samples, num_entries)
    check_length("x", x, num_entries)
    if num_entries and int(samples.max()) >= len(rows):
        position = int(np.argmax(samples))
        raise OutOfRangeError(f"sample {samples[position]} (at position {position}) is outside [0, {len(rows)})")
    starts = readable(ends - counts.astype(np.int64))

    def add(slots: Int64s, starts: Int64s, ends: Int64s) -> None:
        if slots.size:
            block = slice(int(starts[0]), int(ends[-1]))
            _add_sparse(slots, starts, ends, u, readable(samples[block].astype(np.int64)), readable(x[block]), rows)

    _over_features(add, u, slots, (starts, readable(ends)), width, num_entries)


@op(writes=("u",), dtypes=FLOATS, span="width")
def add_dense_factors(
    u: Row, slots: Slots, x: Annotated[Values, along("slots", "samples")], b: SampleRows, *, width: Width
) -> None:
    """Add ``sum over s of x[s, f] * b[s]`` to the ``width`` columns that begin at feature f's slot; x is dense.

    Args:
        u: the row of the gradient; changed.
        slots: the first column of each feature.
        x: shape (features, samples).
        b: shape (samples, width).
        width: the number of columns of a feature.

    Raises:
        ShapeError: the arrays' lengths do not match.
        OutOfRangeError: a feature's columns are not inside the row.
    """
    rows = _sample_rows(b, width)
    if x.shape != (slots.size, len(rows)):
        raise ShapeError(f"x: expected shape ({slots.size}, {len(rows)}), got {x.shape}")
    values = readable(x)
    _over_features(lambda slots, x: _add_dense(slots, x, u, rows), u, slots, (values,), width, x.size)


def _sample_rows(b: Array, width: int) -> Array:
    if b.ndim != 2 or b.shape[1] != width:
        raise ShapeError(f"b: expected shape (samples, {width}), got {b.shape}")
    return readable(b)


def _over_features(
    add: Callable[..., None], u: Array, slots: Int64s, feature_arrays: tuple[Array, ...], width: int, num_entries: int
) -> None:
    """Call ``add(slots, *feature_arrays)``, in parallel for blocks of features if no two features share a column."""
    slots, ascending = check_targets(slots, u.size)
    if slots.size and int(slots.max()) > u.size - width:
        raise OutOfRangeError(f"slot {slots.max()}: the {width} columns from this slot on are not inside [0, {u.size})")
    if ascending and (slots.size < 2 or int(np.diff(slots).min()) >= width):
        over_blocks(add, (slots, *feature_arrays), cost=max(1, num_entries // max(slots.size, 1)) * width)
    else:
        add(slots, *feature_arrays)
