"""Gradients that are sent as two factors, which the servers multiply: the plan, and its size in bytes."""

from __future__ import annotations

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
    b = _checked_b(b, spec)
    width = b.shape[1]
    split = _split(spec, target.route, keys, width)
    row_plans = []
    step = max(1, plans.BLOCK_BYTES // (2 * (width + 1) * b.itemsize))  # samples with values of about half a block
    for begin in range(0, len(b), step):
        samples = slice(begin, min(begin + step, len(b)))
        name, factor = _factor_operation(x, b, split, samples)
        arguments = {"slots": split.columns, "b": b[samples], "width": width, **factor}
        row_plans.append(declared(target, name, arguments))
    operations = tuple(operation for plan in row_plans for operation in plan.operations)
    return Plan(target.matrix, target.route, operations, lambda results: None, mutates=True)


def factor_bytes(b: Any, x: Any, keys: Any, spec: MatrixSpec, route: Route) -> int:
    """Return the approximate bytes that ``add_factors`` sends; it sends fewer if the servers have cached the keys."""
    samples, width = np.shape(b)
    item = _wire_itemsize(spec)
    split = _split(spec, route, keys, width)
    servers = len({group.partition for group in split.groups})
    size = sum(packed_bytes(split.columns[window]) for _, window, _ in split.key_sets())
    size += servers * samples * width * item
    if not _is_sparse(x):
        return size + samples * len(split.columns) * item
    max_count = int(np.diff(x.tocsc().indptr).max(initial=0))
    size += int(x.nnz) * (item + _unsigned(samples).itemsize)
    return size + len(split.columns) * _unsigned(max_count + 1).itemsize


def sizes(vector: Handle, width: int, x: Any, keys: Any) -> tuple[int, int]:
    """Return the approximate bytes that ``addFactors`` would send, and those of ``add`` with the same sum.

    Args:
        vector: a dense vector.
        width: columns per key.
        x, keys: the arguments of ``addFactors``.
    """
    b = np.broadcast_to(np.float64(0.0), (x.shape[0], width))
    spec, route = vector._spec, vector._route
    return factor_bytes(b, x, keys, spec, route), add_bytes(width, keys, spec, route)


def add_bytes(width: int, keys: Any, spec: MatrixSpec, route: Route) -> int:
    """Return the approximate bytes that ``add`` sends for all ``width`` columns of each key."""
    split = _split(spec, route, keys, width)
    size = width * len(split.columns) * _wire_itemsize(spec)
    for _, _, group in split.key_sets():
        assert group.columns is not None
        # The gap is 1 between a key's columns, and larger from its last column to the next key's first.
        gap = 1 if group.count < 2 else max(int(np.diff(group.columns).max()) - width + 1, 1)
        size += 8 + (packed_bytes(np.array([0, gap])) - 8) * (width * group.count - 1)
    return size


def _checked_b(b: Any, spec: MatrixSpec) -> Array:
    shape = np.shape(b)
    if len(shape) != 2 or not shape[1]:
        raise ShapeError(f"addFactors: b: expected shape (samples, width), width at least 1, got {shape}")
    return as_wire_values(b, spec, shape)


def _split(spec: MatrixSpec, route: Route, keys: Any, width: int) -> SplitKeys:
    """Return the first column of each key, grouped by partition."""
    if spec.kind == "sparse":
        raise UsageError(
            "addFactors needs a dense vector: on a sparse one, a key's columns are on different servers; use add"
        )
    if spec.align % width:
        raise UsageError(
            f"addFactors: align of the vector must be a multiple of width {width}, so that a key's columns are on one "
            f"server, got align={spec.align}; create it with DCV.dense(..., align={width})"
        )
    ids, count = as_indices(keys), spec.dim // width
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise OutOfRangeError(
            f"addFactors: key {bad} (at position {int(np.argmax(ids == bad))}) is outside [0, {count}): "
            f"the vector has {spec.dim} columns, {width} per key"
        )
    return SPLITS.split(spec, route, ids * width)


def _is_sparse(x: Any) -> bool:
    """Return True if x is a scipy sparse matrix. Does not import scipy, which takes 0.2 s."""
    return hasattr(x, "tocsc")


def _factor_operation(x: Any, b: Array, split: SplitKeys, samples: slice) -> tuple[str, dict[str, Array]]:
    """Return the name and arrays of the operation that adds samples of x, for distinct keys in the split's order."""
    count = split.columns.size if split.order is None else split.order.size
    if np.shape(x) != (len(b), count):
        raise ShapeError(f"addFactors: x: expected shape {(len(b), count)}, got {np.shape(x)}")
    dtype = b.dtype
    if not _is_sparse(x):
        values = as_array("addFactors: x", x)[samples]
        _check_numeric(values)
        values = values if split.order is None else split.sum_duplicates(values.astype(dtype, copy=False))
        return "add_dense_factors", {"x": np.ascontiguousarray(values.T, dtype=dtype)}
    _check_numeric(x.data)
    # If x had row or column indices beyond its shape, scipy would write outside its arrays.
    if samples.start == 0 and x.format in ("csr", "csc"):
        try:
            x.check_format(full_check=True)
        except ValueError as error:
            raise ShapeError(f"addFactors: x: got a malformed sparse matrix: {error}") from error
    by_feature = (x if (samples.start, samples.stop) == (0, len(b)) else x.tocsr()[samples]).tocsc()
    if split.order is not None:
        by_feature = by_feature[:, split.order]
    indptr = by_feature.indptr.astype(np.int64)
    if split.starts is not None:
        indptr = indptr[np.append(split.starts, count)]
    counts = np.diff(indptr)
    return "add_factors", {
        "counts": counts.astype(_unsigned(int(counts.max(initial=0)) + 1)),
        "samples": by_feature.indices.astype(_unsigned(samples.stop - samples.start)),
        "x": by_feature.data.astype(dtype, copy=False),
    }


def _check_numeric(values: Array) -> None:
    if values.dtype.kind not in "biuf":
        raise DTypeError(f"addFactors: x: expected numbers, got {values.dtype}")


def _unsigned(count: int) -> np.dtype[Any]:
    """Return the narrowest dtype that holds the integers below ``count``."""
    return np.min_scalar_type(max(count - 1, 0))


def _wire_itemsize(spec: MatrixSpec) -> int:
    return 2 if spec.wire is not None else spec.np_dtype.itemsize


def packed_bytes(columns: Array) -> int:
    """Return the bytes of ascending keys: the first key, and the differences in the narrowest width."""
    if columns.size < 2:
        return 8 * columns.size
    largest = int(np.diff(columns).max())
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    return 8 + width * (columns.size - 1)
