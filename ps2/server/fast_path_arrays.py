"""Compiled operations on a row or on blocks, and conversion of narrowed integers, which are sent in fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops import blocks, kernels
from ps2.ops.kernels import Int64s, inline
from ps2.server import fast_path_line as fp
from ps2.server.libc import Address, pointer


@inline
def run(line: Int64s, base: Any, plan: Int64s, slots: Int64s) -> None:
    """Run an operation on a shard and the values in the buffer at ``base``; line, plan: see ``fast_path_line``."""
    kind, dtype, live, width = line[fp.KIND], line[fp.DTYPE], line[fp.LIVE], line[fp.WIDTH]
    data, values = pointer(Address(line[fp.DATA])), pointer(base + Address(plan[fp.ARRAYS + fp.WIDE_OFFSET]))
    size, count = live * width, plan[fp.VALUE_COUNT]
    if kind == fp.COLUMNS_ADD_SOME:
        blocks.add_some(carray(data, (live, width), np.int32), slots, *_sparse_changes(base, plan))
    elif kind in (fp.PUSH_ADD, fp.PUSH_SUB, fp.SCATTER_ADD, fp.SCATTER_SUB, fp.COLUMNS_ADD):
        if dtype == fp.FLOAT32:
            _add(line, plan, slots, carray(data, size, np.float32), carray(values, count, np.float32))
        elif dtype == fp.FLOAT64:
            _add(line, plan, slots, carray(data, size, np.float64), carray(values, count, np.float64))
        elif dtype == fp.INT32:
            _add(line, plan, slots, carray(data, size, np.int32), carray(values, count, np.int32))
        else:
            _add(line, plan, slots, carray(data, size, np.int64), carray(values, count, np.int64))
    elif fp.ITEMS[dtype] == 4:  # values that are only copied can be treated as integers of the same size
        _move(line, plan, slots, carray(data, size, np.int32), carray(values, count, np.int32))
    else:
        _move(line, plan, slots, carray(data, size, np.int64), carray(values, count, np.int64))


@inline
def _move(line: Int64s, plan: Int64s, slots: Int64s, data: Any, values: Any) -> None:
    kind, width = line[fp.KIND], line[fp.WIDTH]
    if kind == fp.GATHER:
        kernels.gather(data, slots, values)
    elif kind == fp.SCATTER:
        kernels.scatter_set(data, slots, values)
    elif kind == fp.COLUMNS_PULL:
        blocks.take(data.reshape((-1, width)), slots, values.reshape((-1, width)))
    elif kind == fp.COLUMNS_PUSH:
        blocks.put(data.reshape((-1, width)), slots, values.reshape((-1, width)))
    else:
        row = data[plan[fp.START] : plan[fp.START] + values.size]
        if kind == fp.PUSH:
            _copy(values, row)
        else:
            _copy(row, values)


@inline
def _add(line: Int64s, plan: Int64s, slots: Int64s, data: Any, values: Any) -> None:
    kind, width = line[fp.KIND], line[fp.WIDTH]
    if kind == fp.SCATTER_ADD:
        kernels.scatter_add(data, slots, values)
    elif kind == fp.SCATTER_SUB:
        kernels.scatter_sub(data, slots, values)
    elif kind == fp.COLUMNS_ADD:
        blocks.add(data.reshape((-1, width)), slots, values.reshape((-1, width)))
    else:
        # The compiler vectorizes a loop over a slice, but not with an index ``start + i``.
        target = data[plan[fp.START] : plan[fp.START] + values.size]
        if kind == fp.PUSH_ADD:
            for i in range(values.size):
                target[i] += values[i]
        else:
            for i in range(values.size):
                target[i] -= values[i]


@inline
def prepare(line: Int64s, base: Any, plan: Int64s) -> bool:
    """Widen narrowed integers to the shard's dtype; return False if the request's arrays are invalid."""
    if line[fp.KIND] != fp.COLUMNS_ADD_SOME:
        if (
            line[fp.KIND] not in (fp.PULL, fp.GATHER, fp.COLUMNS_PULL)
            and plan[fp.ARRAYS + fp.RECEIVED_DTYPE] != line[fp.DTYPE]
        ):
            _widen(plan[fp.ARRAYS :], base, line[fp.DTYPE])
        return True
    for array in (plan[fp.SIZES :], plan[fp.POSITIONS :], plan[fp.CHANGES :]):
        _widen_unsigned(array, base)
    sizes, positions, changes = _sparse_changes(base, plan)
    blocks.unfold(changes, changes)
    return blocks.fit(sizes, positions, line[fp.WIDTH])


@inline
def _sparse_changes(base: Any, plan: Int64s) -> Any:
    """Return the arrays of ``columns_add_some``, widened to int32."""
    return (_int32s(plan[fp.SIZES :], base), _int32s(plan[fp.POSITIONS :], base), _int32s(plan[fp.CHANGES :], base))


@inline
def _int32s(array: Int64s, base: Any) -> Any:
    return carray(pointer(base + Address(array[fp.WIDE_OFFSET])), array[fp.COUNT], np.int32)


@inline
def _widen_unsigned(array: Int64s, base: Any) -> None:
    count, values, wide = array[fp.COUNT], pointer(base + Address(array[fp.VALUES_OFFSET])), _int32s(array, base)
    if array[fp.RECEIVED_DTYPE] == fp.UINT8:
        _copy(carray(values, count, np.uint8), wide)
    elif array[fp.RECEIVED_DTYPE] == fp.UINT16:
        _copy(carray(values, count, np.uint16), wide)
    else:
        _copy(carray(values, count, np.int32), wide)


@inline
def _widen(array: Int64s, base: Any, dtype: int) -> None:
    received, count = array[fp.RECEIVED_DTYPE], array[fp.COUNT]
    values, wide = pointer(base + Address(array[fp.VALUES_OFFSET])), pointer(base + Address(array[fp.WIDE_OFFSET]))
    if dtype == fp.INT32:
        if received == fp.INT8:
            _copy(carray(values, count, np.int8), carray(wide, count, np.int32))
        else:
            _copy(carray(values, count, np.int16), carray(wide, count, np.int32))
    elif received == fp.INT8:
        _copy(carray(values, count, np.int8), carray(wide, count, np.int64))
    elif received == fp.INT16:
        _copy(carray(values, count, np.int16), carray(wide, count, np.int64))
    else:
        _copy(carray(values, count, np.int32), carray(wide, count, np.int64))


@inline
def narrow(line: Int64s, base: Any, plan: Int64s) -> int:
    """Copy an answer to the narrowest integers that can hold all its values; return their dtype number."""
    count, values = plan[fp.VALUE_COUNT], pointer(base + Address(plan[fp.ARRAYS + fp.WIDE_OFFSET]))
    if line[fp.DTYPE] == fp.INT32:
        return _narrow(carray(values, count, np.int32), base, plan, line[fp.DTYPE])
    return _narrow(carray(values, count, np.int64), base, plan, line[fp.DTYPE])


@inline
def _narrow(values: Any, base: Any, plan: Int64s, dtype: int) -> int:
    smallest = largest = values[0]
    for i in range(values.size):
        smallest, largest = min(smallest, values[i]), max(largest, values[i])
    target = pointer(base + Address(plan[fp.NARROW_OFFSET]))
    if smallest >= -(1 << 7) and largest < 1 << 7:
        _copy(values, carray(target, values.size, np.int8))
        return fp.INT8
    if smallest >= -(1 << 15) and largest < 1 << 15:
        _copy(values, carray(target, values.size, np.int16))
        return fp.INT16
    if dtype != fp.INT32 and smallest >= -(1 << 31) and largest < 1 << 31:
        _copy(values, carray(target, values.size, np.int32))
        return fp.INT32
    return dtype


@inline
def _copy(source: Any, target: Any) -> None:
    for i in range(source.size):
        target[i] = source[i]
