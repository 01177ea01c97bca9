"""The compiled loop that answers the plain requests of one data connection, without the Python interpreter.

A plain request has a handle, which stands for a shape of requests on one row or on blocks of columns. Its header equals
the sample header of that shape (``ps2.protocol.binary``), except in the fields that vary within a shape. The loop
answers a request only if the route version is current, the lease has not expired, and the shard's layout is the same as
when the handle was assigned. It passes every other request to Python before the request has any effect, and if the
header is enough to decide, before the message is received. It makes the checks of ``Engine.execute`` in the same order;
see docs/decisions/0027.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import find
from ps2.server import fast_path_line as fp
from ps2.server.applied import BASE, BELOW, BITS, END, IRREGULAR, WINDOW
from ps2.server.fast_path_arrays import narrow, prepare, run
from ps2.server.fast_path_request import changes, has_shape, may_narrow, plan_request, unpack_slots
from ps2.server.fence import ANY_VERSION, COPIED, OPEN, UNTIL_NS, VERSION
from ps2.server.libc import (
    EINTR,
    MESSAGE_WORDS,
    MSG_DONTWAIT,
    MSG_PEEK,
    POLLIN,
    Address,
    array_address,
    atomic_add,
    c_lock,
    c_memcpy,
    c_poll,
    c_recv,
    c_trylock,
    c_unlock,
    error_number,
    now_ns,
    pointer,
    receive_parts,
    send_parts,
    send_rest,
    set_part,
)
from ps2.server.metrics import (
    BUCKETS,
    BUCKETS_NS,
    BYTES_IN,
    BYTES_OUT,
    KEYS,
    LOCK_WAIT_NS,
    LOCK_WAITS,
    MUTATIONS,
    NANOSECONDS,
    OPERATION_COUNTERS,
    REQUESTS,
    SUMS,
    WAITING,
)

# Results of ``serve``. CLOSED: the connection has ended. IDLE: no request arrived within ``linger_ms``. OTHER: the next
# message is for Python, and not received yet. RECEIVED: it is received (``CompiledFastPath.received``).
CLOSED, IDLE, OTHER, RECEIVED = range(4)


@kernel
def serve(
    descriptor: int,
    linger_ms: int,
    generation: Int64s,
    expected: int,
    fence: Int64s,
    table: Any,
    buffer: Any,
    counts: Int64s,
) -> int:
    """Answer plain requests until another request arrives, or no request arrives within ``linger_ms``.

    The loop returns if ``generation[0]`` differs from ``expected``, because Python must authenticate the peer again or
    has freed the buffer. ``buffer``: uint8, at least ARRAYS_OFFSET bytes, aligned to 8. ``table``: int64 of shape
    (SLOTS, FIELDS).
    """
    base = array_address(buffer)
    header = buffer[fp.HEADER_OFFSET :]
    header32, words = header.view(np.int32), header.view(np.int64)
    head32, head64 = buffer.view(np.int32), buffer[8:].view(np.int64)
    message = buffer[fp.SCRATCH_OFFSET :].view(np.int64)[:MESSAGE_WORDS]
    poll32, timespec = buffer[fp.SCRATCH_OFFSET :].view(np.int32), message[:2]
    plan = buffer[fp.PLAN_OFFSET :].view(np.int64)[: fp.PLAN_WORDS]
    while True:
        poll32[0], poll32[1] = descriptor, POLLIN
        ready = c_poll(base + Address(fp.SCRATCH_OFFSET), 1, linger_ms)
        if ready == 0:
            return IDLE
        if ready < 0:
            if error_number() == EINTR:
                continue
            return CLOSED
        peeked = c_recv(
            descriptor, base + Address(fp.HEAD_OFFSET), fp.HEAD_BYTES + fp.MAX_HEADER, MSG_PEEK | MSG_DONTWAIT
        )
        # -- is the request plain? The header is enough to decide.
        if peeked < fp.HEAD_BYTES + fp.MIN_HEADER or generation[0] != expected:
            return OTHER
        length, size, handle = head32[1], head64[0], header32[fp.HANDLE_WORD]
        line = table[handle & (fp.SLOTS - 1)]
        if handle <= 0 or line[fp.HANDLE] != handle or length != line[fp.SAMPLE_BYTES]:
            return OTHER
        if peeked < fp.HEAD_BYTES + length:
            return OTHER
        if not has_shape(line, base + Address(fp.HEADER_OFFSET)):
            return OTHER
        if not plan_request(line, header, words, size, buffer.size, plan):
            return OTHER
        writes = changes(line[fp.KIND])
        if not _is_allowed(fence, words[fp.VERSION_WORD], writes, timespec):
            return OTHER
        # -- receive the message, with aligned arrays
        set_part(message, 0, base + Address(fp.HEAD_OFFSET), fp.HEAD_BYTES + length)
        set_part(message, 1, base + Address(fp.ARRAYS_OFFSET), plan[fp.STEP_BYTES])
        for number in range(fp.MAX_ARRAYS):
            array = plan[fp.ARRAYS + fp.ARRAY_WORDS * number :]
            set_part(
                message,
                2 + number,
                base + Address(array[fp.VALUES_OFFSET]),
                array[fp.COUNT] * fp.ITEMS[array[fp.RECEIVED_DTYPE]],
            )
        if not receive_parts(descriptor, message, 2 + fp.MAX_ARRAYS):
            return CLOSED
        began_ns = now_ns(timespec)
        slots = carray(pointer(base + Address(plan[fp.SLOTS_OFFSET])), plan[fp.KEY_COUNT], np.int64)
        if line[fp.KIND] >= fp.GATHER and not unpack_slots(line, base, words, plan, slots):
            return RECEIVED
        if not prepare(line, base, plan):
            return RECEIVED
        # -- run the operation
        mutex = Address(line[fp.MUTEX])
        began_ns += _lock(mutex, counts, timespec)
        repeated = 0
        scope = carray(pointer(Address(line[fp.SCOPE])), WINDOW + BITS // 64, np.int64)
        is_valid = (
            generation[0] == expected
            and carray(pointer(Address(line[fp.LAYOUT])), 1, np.int64)[0] == line[fp.BOUND_LAYOUT]
            and _is_allowed(fence, words[fp.VERSION_WORD], writes, timespec)
        )
        if is_valid and writes:
            repeated = is_applied(scope, words[fp.NUMBER_WORD], words[fp.SETTLED_WORD])
            is_valid = repeated >= 0 and words[fp.SETTLED_WORD] >= 0
        if is_valid and line[fp.CELLS] != 0 and repeated == 0:
            # A read returns 0 for absent keys; for a mutation, Python must insert them.
            cells = carray(pointer(Address(line[fp.CELLS])), (line[fp.CELL_COUNT], 2), np.int64)
            is_valid = find(cells, slots) or not writes
        if not is_valid:
            c_unlock(mutex)
            return RECEIVED
        answer, sent = plan[fp.ANSWER_BYTES], 0
        sends_row = line[fp.KIND] == fp.PULL and not may_narrow(line, plan)
        answer_offset = plan[fp.ARRAYS + fp.WIDE_OFFSET]
        if sends_row:
            # Send as much as the system accepts directly from the row, and copy the remaining values: the lock must be
            # released before a slow client has read them.
            _count_request(counts, 0, answer, False)
            row_address = Address(line[fp.DATA] + plan[fp.START] * fp.ITEMS[line[fp.DTYPE]])
            reply_bytes = _write_reply(line, buffer, plan, line[fp.DTYPE], 0)
            set_part(message, 1, row_address, answer)
            sent = send_parts(descriptor, message, 2, MSG_DONTWAIT)
            sent_value_bytes = max(0, sent - reply_bytes)
            if sent_value_bytes < answer and sent >= 0:
                c_memcpy(
                    base + Address(answer_offset + sent_value_bytes),
                    row_address + Address(sent_value_bytes),
                    answer - sent_value_bytes,
                )
        elif not repeated:
            run(line, base, plan, slots)
            if writes:
                add_applied(scope, words[fp.NUMBER_WORD])
        if writes:
            settle(scope, words[fp.SETTLED_WORD])
        c_unlock(mutex)
        ended_ns = now_ns(timespec)
        _count_operation(counts, line[fp.KIND], plan[fp.KEY_COUNT], ended_ns - began_ns)
        # While this process was suspended, another server may have replaced it. Then Python refuses the request, whose
        # effect is lost with this server. Without a replacement, Python finds its id among the applied ids.
        if not sends_row and ended_ns > fence[UNTIL_NS]:
            return RECEIVED
        # -- send the reply
        if not sends_row:
            _count_request(counts, _stored_bytes(line, plan), answer, writes and not repeated)
            dtype = line[fp.DTYPE]
            if may_narrow(line, plan):
                dtype = narrow(line, base, plan)
                if dtype != line[fp.DTYPE]:
                    answer, answer_offset = plan[fp.VALUE_COUNT] * fp.ITEMS[dtype], plan[fp.NARROW_OFFSET]
            _write_reply(line, buffer, plan, dtype, repeated)
            set_part(message, 1, base + Address(answer_offset), answer)
            sent = send_parts(descriptor, message, 2, 0)
        set_part(message, 1, base + Address(answer_offset), answer)
        if sent < 0 or not send_rest(descriptor, message, 2, sent):
            return CLOSED


@inline
def _lock(mutex: Any, counts: Int64s, timespec: Int64s) -> int:
    """Acquire a mutex; return the nanoseconds waited, 0 if the mutex was free."""
    if c_trylock(mutex) == 0:
        return 0
    since_ns = now_ns(timespec)
    _count(counts, WAITING, 1)
    c_lock(mutex)
    _count(counts, WAITING, -1)
    waited_ns: int = now_ns(timespec) - since_ns
    _count(counts, LOCK_WAITS, 1)
    _count(counts, LOCK_WAIT_NS, waited_ns)
    return waited_ns


@inline
def _write_reply(line: Int64s, buffer: Any, plan: Int64s, dtype: int, repeated: int) -> int:
    """Write head and header of a reply as part 0 of a message; return their size.

    The reply has one result without a scalar. The result of a read has one array, of dtype number ``dtype``.
    """
    head, words = buffer[fp.REPLY_OFFSET - 4 :].view(np.int32), buffer[fp.REPLY_OFFSET + 4 :].view(np.int64)
    message = buffer[fp.SCRATCH_OFFSET :].view(np.int64)
    is_read, dimensions = not changes(line[fp.KIND]), 2 * (line[fp.KIND] == fp.COLUMNS_PULL)
    header = fp.REPLY_HEADER + (fp.ARRAY_BYTES + 8 * dimensions if is_read else 0)
    head[1], words[0] = header, plan[fp.VALUE_COUNT] * fp.ITEMS[dtype] if is_read else 0
    words[1], words[2], words[3], words[4] = fp.REPLY_KIND | repeated << 8, 1, 1 << 16 if is_read else 0, 0
    becomes = np.int64(0) if dtype == line[fp.DTYPE] else line[fp.DTYPE]
    words[5], words[6] = dtype | becomes << 8 | np.int64(dimensions) << 16, plan[fp.VALUE_COUNT]
    words[7], words[8] = plan[fp.KEY_COUNT], line[fp.WIDTH]
    set_part(message, 0, array_address(buffer) + Address(fp.REPLY_OFFSET), fp.HEAD_BYTES + header)
    return fp.HEAD_BYTES + header


@inline
def _stored_bytes(line: Int64s, plan: Int64s) -> int:
    """Return the decoded size of a request's arrays: keys as int64, values in the shard's dtype."""
    is_stored = line[fp.KIND] != fp.COLUMNS_ADD_SOME and changes(line[fp.KIND])
    return 8 * plan[fp.KEY_COUNT] + (
        plan[fp.VALUE_COUNT] * fp.ITEMS[line[fp.DTYPE]] if is_stored else plan[fp.RECEIVED_BYTES]
    )


@inline
def _is_allowed(fence: Int64s, version: int, writes: bool, timespec: Int64s) -> bool:
    """Return True if this server may run a request of this route version now."""
    return (
        fence[OPEN] != 0
        and (fence[VERSION] == ANY_VERSION or fence[VERSION] == version)
        and (not writes or fence[COPIED] == 0)
        and now_ns(timespec) <= fence[UNTIL_NS]
    )


@inline
def _count(counts: Int64s, index: int, value: Any) -> None:
    atomic_add(array_address(counts) + Address(8 * index), value)


@inline
def _count_request(counts: Int64s, received: Any, sent: Any, changed: bool) -> None:
    _count(counts, REQUESTS, 1)
    _count(counts, BYTES_IN, received)
    _count(counts, BYTES_OUT, sent)
    if changed:
        _count(counts, MUTATIONS, 1)


@inline
def _count_operation(counts: Int64s, kind: int, keys: Any, duration_ns: Any) -> None:
    first = SUMS + kind * OPERATION_COUNTERS
    bucket = 0
    while bucket < BUCKETS_NS.size and duration_ns > BUCKETS_NS[bucket]:
        bucket += 1
    _count(counts, first + KEYS, keys)
    _count(counts, first + NANOSECONDS, duration_ns)
    _count(counts, first + BUCKETS + bucket, 1)


@inline
def is_applied(scope: Int64s, number: int, settled: int) -> int:
    """Return 1 if a number has been applied, 0 if it has not; -1 if only Python can decide."""
    if scope[IRREGULAR] != 0 or number < 0 or scope[BELOW] < 0 or scope[BASE] < 0 or scope[END] < 0:
        return -1
    if number < scope[BELOW]:
        return 1
    bit = number - scope[BASE]
    if bit < 0:
        return -1
    if bit >= BITS:
        # For example, the first number of a clock, much larger than the numbers before it, which are all settled.
        return 0 if scope[BASE] + BITS <= settled <= number and number >= scope[END] else -1
    if scope[END] > scope[BASE] + BITS:
        return -1  # numbers beyond the window are applied, which only Python stores
    return (scope[WINDOW + (bit >> 6)] >> (bit & 63)) & 1


@inline
def add_applied(scope: Int64s, number: int) -> None:
    """Record a number in the window. A number beyond the window becomes the window's first number (``is_applied``)."""
    bit = number - scope[BASE]
    if bit >= BITS:
        scope[WINDOW:] = 0
        scope[BASE] = number
        bit = 0
    scope[WINDOW + (bit >> 6)] |= np.int64(1) << (bit & 63)


@inline
def settle(scope: Int64s, settled: int) -> None:
    """Advance BELOW to ``settled``, and over applied numbers that follow without a gap, like ``AppliedIds.add``."""
    below = max(scope[BELOW], settled)
    bit = below - scope[BASE]
    while 0 <= bit < BITS and (scope[WINDOW + (bit >> 6)] >> (bit & 63)) & 1:
        bit += 1
    below = scope[BASE] + bit
    scope[BELOW] = below
    if bit < BITS // 2:
        return
    # Drop whole words of the window that are no longer needed.
    words = min(bit >> 6, BITS // 64)
    for i in range(BITS // 64):
        scope[WINDOW + i] = scope[WINDOW + i + words] if i + words < BITS // 64 else 0
    scope[BASE] += 64 * words
    if scope[BASE] < below and words == BITS // 64:
        scope[BASE] = below
