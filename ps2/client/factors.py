"""Gradients sent as two factors whose product the servers compute: the plan, and its size in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ps2.client import plans
from ps2.client.arguments import as_indices, as_wire_values
from ps2.client.declared import declared
from ps2.client.handle import Handle
from ps2.client.keysets import SPLITS, SplitKeys
from ps2.client.plans import Plan, Target
from ps2.data.plain_arrays import as_array
from ps2.errors import DTypeError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.ops.all import lookup
from ps2.ops.table import Array


def add_factors(target: Target, b: Any, x: Any, keys: Any) -> Plan[None]:
    """Plan to add ``sum over s of x[s, f] * b[s, k]`` to column ``keys[f] * width + k`` of a dense row."""
    spec = target.spec
    lookup("add_factors").check(1, spec.dtype, {"width": 1})
    rows = _rows(b, spec)
    width = rows.shape[1]
    parts = _split(spec, target.route, keys, width)
    row_plans = [
        declared(target, name, {"slots": parts.columns, "b": rows[some], "width": width, **factor})
        for some in _samples(rows, spec)
        for name, factor in [_factor(x, rows, parts, some)]
    ]
    operations = tuple(operation for plan in row_plans for operation in plan.operations)
    return Plan(target.matrix, target.route, operations, lambda results: None, mutates=True)


def factor_bytes(b: Any, x: Any, keys: Any, spec: MatrixSpec, route: Route) -> int:
    """Return the approximate bytes that ``add_factors`` sends; less if the servers have cached the key set."""
    samples, width = np.shape(b)
    item = _wire_itemsize(spec)
    parts = _split(spec, route, keys, width)
    servers = len({group.partition for group in parts.groups})
    keys_size = sum(packed_bytes(parts.columns[where]) for _, where, _ in parts.key_sets())
    size = keys_size + servers * samples * width * item
    if not _is_sparse(x):
        return size + samples * len(parts.columns) * item
    max_count = int(np.diff(x.tocsc().indptr).max(initial=0))
    return (
        size
        + int(x.nnz) * (item + _unsigned(samples).itemsize)
        + len(parts.columns) * _unsigned(max_count + 1).itemsize
    )


def sizes(vector: Handle, width: int, x: Any, keys: Any) -> tuple[int, int]:
    """Return the approximate bytes that ``addFactors`` would send, and those of ``add`` with the same sum.

    Args:
        vector: a dense vector.
        width: columns per key.
        x, keys: the arguments of ``addFactors``.
    """
    shape = np.broadcast_to(np.float64(0.0), (x.shape[0], width))
    spec, route = vector._spec, vector._route
    return factor_bytes(shape, x, keys, spec, route), add_bytes(width, keys, spec, route)


def add_bytes(width: int, keys: Any, spec: MatrixSpec, route: Route) -> int:
    """Return the approximate bytes that ``add`` sends for all ``width`` columns of each key."""
    parts = _split(spec, route, keys, width)
    size = width * len(parts.columns) * _wire_itemsize(spec)
    for _, _, group in parts.key_sets():
        assert group.columns is not None
        # The gap is 1 between a key's columns, and larger from its last column to the next key's first.
        gap = 1 if group.count < 2 else max(int(np.diff(group.columns).max()) - width + 1, 1)
        size += 8 + (packed_bytes(np.array([0, gap])) - 8) * (width * group.count - 1)
    return size


def _rows(b: Any, spec: MatrixSpec) -> Array:
    shape = np.shape(b)
    if len(shape) != 2 or not shape[1]:
        raise ShapeError(f"addFactors: b: expected shape (samples, width), width at least 1, got {shape}")
    return as_wire_values(b, spec, shape)


def _split(spec: MatrixSpec, route: Route, keys: Any, width: int) -> SplitKeys:
    """Return the first column of each key, grouped by partition."""
    if spec.kind == "sparse":
        raise UsageError(
            "addFactors needs a dense vector: on a sparse one, the columns of a key lie on different servers; use add"
        )
    if spec.align % width:
        raise UsageError(
            f"addFactors: align of the vector must be a multiple of width {width}, so that a key's columns lie on one "
            f"server, got align={spec.align}; make it with DCV.dense(..., align={width})"
        )
    numbers, count = as_indices(keys), spec.dim // width
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        bad = numbers.min() if numbers.min() < 0 else numbers.max()
        raise OutOfRangeError(
            f"addFactors: key {bad} (at position {int(np.argmax(numbers == bad))}) is outside [0, {count}): "
            f"the vector has {spec.dim} columns, {width} per key"
        )
    return SPLITS.split(spec, route, numbers * width)


def _samples(rows: Array, spec: MatrixSpec) -> Iterator[slice]:
    """Cut samples into runs whose values take about half a block."""
    step = max(1, plans.BLOCK_BYTES // (2 * (rows.shape[1] + 1) * rows.itemsize))
    for start in range(0, len(rows), step):
        yield slice(start, min(start + step, len(rows)))


def _is_sparse(x: Any) -> bool:
    """Return True if x is a scipy sparse matrix. Does not import scipy, which takes 0.2 s."""
    return hasattr(x, "tocsc")


def _factor(x: Any, rows: Array, parts: SplitKeys, some: slice) -> tuple[str, dict[str, Array]]:
    """Return the operation that adds some samples of x, and its arrays in the order of the parts, duplicates merged."""
    count = parts.columns.size if parts.order is None else parts.order.size
    if np.shape(x) != (len(rows), count):
        raise ShapeError(f"addFactors: x: expected shape {(len(rows), count)}, got {np.shape(x)}")
    dtype = rows.dtype
    if not _is_sparse(x):
        values = as_array("addFactors: x", x)[some]
        _check_numbers(values)
        values = values if parts.order is None else parts.summed(values.astype(dtype, copy=False))
        return "add_dense_factors", {"x": np.ascontiguousarray(values.T, dtype=dtype)}
    _check_numbers(x.data)
    # scipy would write outside its arrays if x named rows or columns that it does not have.
    if some.start == 0 and x.format in ("csr", "csc"):
        try:
            x.check_format(full_check=True)
        except ValueError as error:
            raise ShapeError(f"addFactors: x: got a malformed sparse matrix: {error}") from error
    by_feature = (x if (some.start, some.stop) == (0, len(rows)) else x.tocsr()[some]).tocsc()
    if parts.order is not None:
        by_feature = by_feature[:, parts.order]
    indptr = by_feature.indptr.astype(np.int64)
    if parts.firsts is not None:
        indptr = indptr[np.append(parts.firsts, count)]
    counts = np.diff(indptr)
    return "add_factors", {
        "counts": counts.astype(_unsigned(int(counts.max(initial=0)) + 1)),
        "samples": by_feature.indices.astype(_unsigned(some.stop - some.start)),
        "x": by_feature.data.astype(dtype, copy=False),
    }


def _check_numbers(values: Array) -> None:
    if values.dtype.kind not in "biuf":
        raise DTypeError(f"addFactors: x: expected numbers, got {values.dtype}")


def _unsigned(count: int) -> np.dtype[Any]:
    """Return the narrowest dtype that holds the integers below ``count``."""
    return np.min_scalar_type(max(count - 1, 0))


def _wire_itemsize(spec: MatrixSpec) -> int:
    return 2 if spec.wire is not None else spec.np_dtype.itemsize


def packed_bytes(columns: Array) -> int:
    """Return the bytes of ascending keys: the first key, and the steps to the others in the narrowest width."""
    if columns.size < 2:
        return 8 * columns.size
    largest = int(np.diff(columns).max())
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    return 8 + width * (columns.size - 1)
