"""Compiled functions that check whether a request is plain, plan its place in the buffer, and unpack its keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops.kernels import Int64s, inline
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.server import fast_path_line as fp
from ps2.server.libc import Address, c_memcmp, pointer

# Upper bound of the keys of a sparse shard.
ALL_KEYS = 2**63 - 1


@inline
def changes(kind: int) -> bool:
    """Return True if a plain operation changes data."""
    return kind != fp.PULL and kind != fp.GATHER and kind != fp.COLUMNS_PULL


@inline
def count_arrays(kind: int) -> int:
    """Return the number of arrays in the request of a plain operation, without its keys."""
    return fp.MAX_ARRAYS if kind == fp.COLUMNS_ADD_SOME else int(changes(kind))


@inline
def _dimensions(kind: int) -> int:
    """Return the number of dimensions that a values array has in the header: 2, or 0 for one dimension."""
    return 2 if fp.COLUMNS_PULL <= kind <= fp.COLUMNS_ADD else 0


@inline
def has_shape(line: Int64s, header: Any) -> bool:
    """Return True if the header at an address has the shape of the line.

    The fields that vary within a shape are not compared: route version, the id's ``number`` and ``settled``, keys,
    scalars, and the arrays' records. ``plan_request`` checks keys, scalars and arrays.
    """
    names_offset = 8 * (line[fp.SCALARS_OFFSET] + line[fp.SCALARS])
    if changes(line[fp.KIND]):
        names_offset += count_arrays(line[fp.KIND]) * fp.ARRAY_BYTES + 8 * _dimensions(line[fp.KIND])
    return (
        _equals(line, header, 0, fp.VERSION_BYTE)
        and _equals(line, header, fp.STAGE_BYTE, fp.STEPS_BYTE - fp.STAGE_BYTE)
        and _equals(line, header, fp.STEPS_BYTE + 1, 1)
        and _equals(line, header, fp.MIN_HEADER, 8 * line[fp.SCALARS_OFFSET] - fp.MIN_HEADER)
        and _equals(line, header, names_offset, line[fp.SAMPLE_BYTES] - names_offset)
    )


@inline
def _equals(line: Int64s, header: Any, begin: Any, size: Any) -> bool:
    return c_memcmp(header + Address(begin), Address(line[fp.SAMPLE] + begin), size) == 0


@inline
def plan_request(line: Int64s, header: Any, words: Int64s, size: Any, buffer_bytes: int, plan: Int64s) -> bool:
    """Write the plan of a request of a known shape; return False if it is not plain or does not fit into the buffer.

    ``words``: the header as int64. ``size``: the total size of the arrays, as the message's head declares it.
    """
    kind, dtype = line[fp.KIND], line[fp.DTYPE]
    plan[:] = 0
    if kind >= fp.GATHER and not _plan_keys(line, header, words, buffer_bytes, plan):
        return False
    if changes(kind) and not _plan_arrays(line, words, buffer_bytes, plan):
        return False
    if kind < fp.GATHER and (line[fp.CELLS] != 0 or not _plan_interval(line, words, plan)):
        return False
    for number in range(count_arrays(kind)):
        array = plan[fp.ARRAYS + fp.ARRAY_WORDS * number :]
        plan[fp.RECEIVED_BYTES] += array[fp.COUNT] * fp.ITEMS[array[fp.RECEIVED_DTYPE]]
    plan[fp.ANSWER_BYTES] = 0 if changes(kind) else plan[fp.VALUE_COUNT] * fp.ITEMS[dtype]
    return size == plan[fp.STEP_BYTES] + plan[fp.RECEIVED_BYTES] and _plan_offsets(line, plan) <= buffer_bytes


@inline
def _plan_keys(line: Int64s, header: Any, words: Int64s, buffer_bytes: int, plan: Int64s) -> bool:
    keys: Any = words[fp.KEYS_WORD]
    steps, becomes = np.int64(header[fp.STEPS_BYTE]), np.int64(header[fp.BECOMES_BYTE])
    plan[fp.KEY_COUNT], plan[fp.STEPS], plan[fp.VALUE_COUNT] = keys, steps, keys * line[fp.WIDTH]
    plan[fp.STEP_BYTES] = (keys - 1) * fp.ITEMS[steps]
    # Each key takes at least one byte of the buffer, and a larger count could make the sizes overflow.
    if not 1 <= keys <= buffer_bytes:
        return False
    if fp.UNSIGNED[steps]:
        return becomes == 0
    return fp.SIGNED[steps] and (becomes == 0 or (becomes == fp.INT64 and fp.ITEMS[steps] < 8))


@inline
def _plan_arrays(line: Int64s, words: Int64s, buffer_bytes: int, plan: Int64s) -> bool:
    """Plan the arrays of a request, except its keys; return False if an array is not plain."""
    kind, dtype, keys = line[fp.KIND], line[fp.DTYPE], plan[fp.KEY_COUNT]
    word = line[fp.SCALARS_OFFSET] + line[fp.SCALARS]
    for number in range(count_arrays(kind)):
        # The record of an array: the dtype as sent, the dtype to convert to (0: the same), the number of dimensions (0:
        # one), the element count.
        dtype_sent, becomes, count = words[word] & 255, words[word] >> 8 & 255, words[word + 1]
        array = plan[fp.ARRAYS + fp.ARRAY_WORDS * number :]
        array[fp.RECEIVED_DTYPE], array[fp.COUNT] = dtype_sent, count
        if kind == fp.COLUMNS_ADD_SOME:
            is_plain = dtype_sent in (fp.UINT8, fp.UINT16, fp.UINT32) and becomes == 0 and 0 <= count <= buffer_bytes
        elif becomes == 0:
            is_plain = dtype_sent == dtype
        else:
            is_plain = (
                becomes == dtype
                and fp.SIGNED[dtype_sent]
                and fp.SIGNED[dtype]
                and fp.ITEMS[dtype_sent] < fp.ITEMS[dtype]
            )
        if not is_plain or words[word] >> 16 != _dimensions(kind):
            return False
        word += fp.ARRAY_BYTES // 8
    if kind == fp.COLUMNS_ADD_SOME:
        return plan[fp.SIZES + fp.COUNT] == keys and plan[fp.POSITIONS + fp.COUNT] == plan[fp.CHANGES + fp.COUNT]
    if kind > fp.COLUMNS_PULL and (words[word] != keys or words[word + 1] != line[fp.WIDTH]):
        return False
    return kind < fp.GATHER or plan[fp.ARRAYS + fp.COUNT] == plan[fp.VALUE_COUNT]


@inline
def _plan_interval(line: Int64s, words: Int64s, plan: Int64s) -> bool:
    """Plan a request on a range of columns of a row; return False if the range exceeds the row."""
    word, live = line[fp.SCALARS_OFFSET], line[fp.LIVE]
    start = words[word] if line[fp.SCALARS] > 0 else np.int64(0)
    count = plan[fp.ARRAYS + fp.COUNT]
    if line[fp.KIND] == fp.PULL:
        stop = words[word + 1] if line[fp.SCALARS] > 1 else np.int64(-1)
        if stop == -1:
            stop = live
        if not 0 <= start <= stop <= live:
            return False
        count = stop - start
    plan[fp.START], plan[fp.VALUE_COUNT] = start, count
    return 0 <= start <= live and 0 <= count <= live - start


@inline
def _plan_offsets(line: Int64s, plan: Int64s) -> int:
    """Plan the offsets of the arrays in the buffer; return the end of the last array."""
    offset: Any = fp.ARRAYS_OFFSET + _round_up(plan[fp.STEP_BYTES])
    for number in range(count_arrays(line[fp.KIND])):
        array = plan[fp.ARRAYS + fp.ARRAY_WORDS * number :]
        array[fp.VALUES_OFFSET], array[fp.WIDE_OFFSET] = offset, offset
        offset += _round_up(array[fp.COUNT] * fp.ITEMS[array[fp.RECEIVED_DTYPE]])
        if array[fp.RECEIVED_DTYPE] != line[fp.DTYPE]:
            array[fp.WIDE_OFFSET] = offset
            offset += _round_up(array[fp.COUNT] * fp.ITEMS[line[fp.DTYPE]])
    if plan[fp.ANSWER_BYTES] > 0:
        plan[fp.ARRAYS + fp.WIDE_OFFSET] = offset
        offset += _round_up(plan[fp.ANSWER_BYTES])
    plan[fp.SLOTS_OFFSET] = offset
    plan[fp.NARROW_OFFSET] = offset + 8 * plan[fp.KEY_COUNT]
    return plan[fp.NARROW_OFFSET] + (plan[fp.ANSWER_BYTES] // 2 if may_narrow(line, plan) else np.int64(0))


@inline
def _round_up(size: int) -> int:
    """Round a size in bytes up to a multiple of 8."""
    return (size + 7) & ~7


@inline
def may_narrow(line: Int64s, plan: Int64s) -> bool:
    """Return True if the answer consists of integers that may be narrowed (``packing.narrow_integers``)."""
    return fp.SIGNED[line[fp.DTYPE]] and plan[fp.ANSWER_BYTES] >= MIN_NARROWED_BYTES


@inline
def unpack_slots(line: Int64s, base: Any, words: Int64s, plan: Int64s, slots: Int64s) -> bool:
    """Compute keys, relative to the partition, from their differences, into ``slots``; return False if one is invalid.

    A key is invalid if it is outside of the shard, or if its unsigned difference from the key before it is 0.
    """
    live = np.uint64(line[fp.LIVE] if line[fp.CELLS] == 0 else ALL_KEYS)
    first = words[fp.FIRST_WORD] - line[fp.BEGIN]
    if first < 0 or np.uint64(first) >= live:
        return False
    slots[0] = first
    deltas, count, steps = pointer(base + Address(fp.ARRAYS_OFFSET)), slots.size - 1, plan[fp.STEPS]
    if steps == fp.UINT8:
        return _add_unsigned(carray(deltas, count, np.uint8), live, slots)
    if steps == fp.UINT16:
        return _add_unsigned(carray(deltas, count, np.uint16), live, slots)
    if steps == fp.UINT32:
        return _add_unsigned(carray(deltas, count, np.uint32), live, slots)
    if fp.UNSIGNED[steps]:
        return _add_unsigned(carray(deltas, count, np.uint64), live, slots)
    if steps == fp.INT8:
        return _add_signed(carray(deltas, count, np.int8), live, slots)
    if steps == fp.INT16:
        return _add_signed(carray(deltas, count, np.int16), live, slots)
    if steps == fp.INT32:
        return _add_signed(carray(deltas, count, np.int32), live, slots)
    return _add_signed(carray(deltas, count, np.int64), live, slots)


@inline
def _add_unsigned(deltas: Any, live: Any, slots: Int64s) -> bool:
    slot, last, one = np.uint64(slots[0]), live - np.uint64(1), np.uint64(1)
    for i in range(deltas.size):
        delta = np.uint64(deltas[i])
        # For a delta of 0, delta - 1 wraps to the largest uint64, so one comparison detects both errors.
        if delta - one >= last - slot:
            return False
        slot += delta
        slots[i + 1] = np.int64(slot)
    return True


@inline
def _add_signed(deltas: Any, live: Any, slots: Int64s) -> bool:
    """Add signed differences. A slot below 0 wraps to a large unsigned number, so it also exceeds ``live``."""
    slot = np.uint64(slots[0])
    for i in range(deltas.size):
        slot += np.uint64(np.int64(deltas[i]))
        if slot >= live:
            return False
        slots[i + 1] = np.int64(slot)
    return True
