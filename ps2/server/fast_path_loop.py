"""The compiled loop that answers the plain requests of one data connection, without the Python interpreter.

A plain request has a handle, which stands for a shape of requests on one row or on blocks of columns. Its header equals
a header of that shape (``ps2.protocol.binary``), except in the fields that vary within a shape. The loop answers it
only if the route version is right, the lease holds, the id is new or applied, and the shard's layout has not changed
since the handle was given. The loop leaves every other request to Python before it has any effect, and if the header
suffices to decide, before it receives the message. It makes the checks of ``Engine.execute`` in the same order; see
docs/decisions/0027.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import find
from ps2.server.applied import BITS, WINDOW
from ps2.server.fast_path_arrays import narrow, prepare, run
from ps2.server.fast_path_ids import is_applied, note, settle
from ps2.server.fast_path_line import (
    A_REPLY,
    ANSWER_BYTES,
    ARRAY_BYTES,
    ARRAYS,
    ARRAYS_AT,
    CAME,
    CAME_BYTES,
    CELL_COUNT,
    CELLS,
    COLUMNS_ADD_SOME,
    COLUMNS_PULL,
    COUNT,
    COUNT_OF_KEYS,
    DATA,
    DTYPE,
    FORM_BYTES,
    FOUND,
    GATHER,
    HANDLE,
    HANDLE_WORD,
    HEAD_AT,
    HEAD_BYTES,
    HEADER_AT,
    ITEMS,
    KIND,
    LAID_OUT,
    LAYOUT,
    MAX_ARRAYS,
    MAX_HEADER,
    MIN_HEADER,
    MUTEX,
    NARROW_AT,
    NUMBER_WORD,
    OF_ARRAY,
    PLAN_AT,
    PLAN_WORDS,
    PULL,
    REPLY_AT,
    REPLY_HEADER,
    SCOPE,
    SCRATCH_AT,
    SETTLED_WORD,
    SLOTS,
    SLOTS_AT,
    START,
    STEP_BYTES,
    VALUES_AT,
    VERSION_WORD,
    WIDE_AT,
    WIDTH,
)
from ps2.server.fast_path_request import changes, is_of_form, may_narrow, plan_request, unpack_slots
from ps2.server.fence import ANY_VERSION, COPIED, OPEN, UNTIL_NS, VERSION
from ps2.server.libc import (
    EINTR,
    MESSAGE_WORDS,
    MSG_DONTWAIT,
    MSG_PEEK,
    POLLIN,
    Address,
    add_at,
    address_of,
    c_lock,
    c_memcpy,
    c_poll,
    c_recv,
    c_try,
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
    OF_OPERATION,
    REQUESTS,
    SUMS,
    WAITING,
)

# Why ``serve`` returned. CLOSED: the connection has ended. IDLE: no request arrived within ``linger_ms``. OTHER: a
# message for Python waits to be received. TAKEN: such a message was received; ``CompiledFastPath.taken`` yields it.
CLOSED, IDLE, OTHER, TAKEN = range(4)


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
    """Answer requests until a request is not plain, or none arrives within ``linger_ms``.

    Args:
        generation: int64 of shape (1,). Another value than ``expected`` makes the loop return: Python may have to
            authenticate the peer again, or has dropped the buffer.
        fence: ``Fence.words``, by the clock of ``now_ns``.
        table: int64 of shape (SLOTS, FIELDS).
        buffer: uint8, at least ARRAYS_AT bytes, aligned to 8.
        counts: ``Meter.fast_path``.
    """
    at = address_of(buffer)
    header = buffer[HEADER_AT:]
    header32, words = header.view(np.int32), header.view(np.int64)
    head32, head64 = buffer.view(np.int32), buffer[8:].view(np.int64)
    message = buffer[SCRATCH_AT:].view(np.int64)[:MESSAGE_WORDS]
    poll32, timespec = buffer[SCRATCH_AT:].view(np.int32), message[:2]
    plan = buffer[PLAN_AT:].view(np.int64)[:PLAN_WORDS]
    while True:
        poll32[0], poll32[1] = descriptor, POLLIN
        ready = c_poll(at + Address(SCRATCH_AT), 1, linger_ms)
        if ready == 0:
            return IDLE
        if ready < 0:
            if error_number() == EINTR:
                continue
            return CLOSED
        peeked = c_recv(descriptor, at + Address(HEAD_AT), HEAD_BYTES + MAX_HEADER, MSG_PEEK | MSG_DONTWAIT)
        # -- is the request plain? The header suffices to decide.
        if peeked < HEAD_BYTES + MIN_HEADER or generation[0] != expected:
            return OTHER
        length, size, handle = head32[1], head64[0], header32[HANDLE_WORD]
        line = table[handle & (SLOTS - 1)]
        if handle <= 0 or line[HANDLE] != handle or length != line[FORM_BYTES] or peeked < HEAD_BYTES + length:
            return OTHER
        if not is_of_form(line, at + Address(HEADER_AT)):
            return OTHER
        if not plan_request(line, header, words, size, buffer.size, plan):
            return OTHER
        writes = changes(line[KIND])
        if not _may(fence, words[VERSION_WORD], writes, timespec):
            return OTHER
        # -- receive it, with aligned arrays
        set_part(message, 0, at + Address(HEAD_AT), HEAD_BYTES + length)
        set_part(message, 1, at + Address(ARRAYS_AT), plan[STEP_BYTES])
        for number in range(MAX_ARRAYS):
            array = plan[ARRAYS + OF_ARRAY * number :]
            set_part(message, 2 + number, at + Address(array[VALUES_AT]), array[COUNT] * ITEMS[array[CAME]])
        if not receive_parts(descriptor, message, 2 + MAX_ARRAYS):
            return CLOSED
        began_ns = now_ns(timespec)
        slots = carray(pointer(at + Address(plan[SLOTS_AT])), plan[COUNT_OF_KEYS], np.int64)
        if line[KIND] >= GATHER and not unpack_slots(line, at, words, plan, slots):
            return TAKEN
        if not prepare(line, at, plan):
            return TAKEN
        # -- do it
        mutex = Address(line[MUTEX])
        began_ns += _lock(mutex, counts, timespec)
        again = 0
        scope = carray(pointer(Address(line[SCOPE])), WINDOW + BITS // 64, np.int64)
        fine = (
            generation[0] == expected
            and carray(pointer(Address(line[LAYOUT])), 1, np.int64)[0] == line[LAID_OUT]
            and _may(fence, words[VERSION_WORD], writes, timespec)
        )
        if fine and writes:
            again = is_applied(scope, words[NUMBER_WORD], words[SETTLED_WORD])
            fine = again >= 0 and words[SETTLED_WORD] >= 0
        if fine and line[CELLS] != 0 and again == 0:
            # A read takes absent keys as 0; for a mutation, Python has to insert them.
            cells = carray(pointer(Address(line[CELLS])), (line[CELL_COUNT], 2), np.int64)
            fine = find(cells, slots) or not writes
        if not fine:
            c_unlock(mutex)
            return TAKEN
        answer, sent = plan[ANSWER_BYTES], 0
        is_straight = line[KIND] == PULL and not may_narrow(line, plan)
        answer_at = plan[ARRAYS + WIDE_AT]
        if is_straight:
            # Send directly from the row as much as the system accepts, and copy the rest: the lock must not wait for a
            # slow reader.
            _count_request(counts, 0, answer, False)
            row_at = Address(line[DATA] + plan[START] * ITEMS[line[DTYPE]])
            reply_bytes = _write_reply(line, buffer, plan, line[DTYPE], 0)
            set_part(message, 1, row_at, answer)
            sent = send_parts(descriptor, message, 2, MSG_DONTWAIT)
            past = max(0, sent - reply_bytes)
            if past < answer and sent >= 0:
                c_memcpy(at + Address(answer_at + past), row_at + Address(past), answer - past)
        elif not again:
            run(line, at, plan, slots)
            if writes:
                note(scope, words[NUMBER_WORD])
        if writes:
            settle(scope, words[SETTLED_WORD])
        c_unlock(mutex)
        ended_ns = now_ns(timespec)
        _count_operation(counts, line[KIND], plan[COUNT_OF_KEYS], ended_ns - began_ns)
        # This process may have been suspended for so long that another server has replaced it. Python then refuses the
        # request; its effect is lost with this server, or its id is recorded as applied.
        if not is_straight and ended_ns > fence[UNTIL_NS]:
            return TAKEN
        # -- answer it
        if not is_straight:
            _count_request(counts, _stored_bytes(line, plan), answer, writes and not again)
            dtype = line[DTYPE]
            if may_narrow(line, plan):
                dtype = narrow(line, at, plan)
                if dtype != line[DTYPE]:
                    answer, answer_at = plan[FOUND] * ITEMS[dtype], plan[NARROW_AT]
            _write_reply(line, buffer, plan, dtype, again)
            set_part(message, 1, at + Address(answer_at), answer)
            sent = send_parts(descriptor, message, 2, 0)
        set_part(message, 1, at + Address(answer_at), answer)
        if sent < 0 or not send_rest(descriptor, message, 2, sent):
            return CLOSED


@inline
def _lock(mutex: Any, counts: Int64s, timespec: Int64s) -> int:
    """Take a mutex; return the nanoseconds waited, 0 if it was free."""
    if c_try(mutex) == 0:
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
def _write_reply(line: Int64s, buffer: Any, plan: Int64s, dtype: int, again: int) -> int:
    """Write head and header of a reply as the first part of a message; return their size.

    The reply has one result without a scalar; the result of a read has one array.

    Args:
        dtype: dtype number of the answer as it is sent.
    """
    head, words = buffer[REPLY_AT - 4 :].view(np.int32), buffer[REPLY_AT + 4 :].view(np.int64)
    message = buffer[SCRATCH_AT:].view(np.int64)
    is_read, dimensions = not changes(line[KIND]), 2 * (line[KIND] == COLUMNS_PULL)
    header = REPLY_HEADER + (ARRAY_BYTES + 8 * dimensions if is_read else 0)
    head[1], words[0] = header, plan[FOUND] * ITEMS[dtype] if is_read else 0
    words[1], words[2], words[3], words[4] = A_REPLY | again << 8, 1, 1 << 16 if is_read else 0, 0
    becomes = np.int64(0) if dtype == line[DTYPE] else line[DTYPE]
    words[5], words[6] = dtype | becomes << 8 | np.int64(dimensions) << 16, plan[FOUND]
    words[7], words[8] = plan[COUNT_OF_KEYS], line[WIDTH]
    set_part(message, 0, address_of(buffer) + Address(REPLY_AT), HEAD_BYTES + header)
    return HEAD_BYTES + header


@inline
def _stored_bytes(line: Int64s, plan: Int64s) -> int:
    """Return the decoded size of a request's arrays: keys as int64, values in the shard's dtype."""
    is_stored = line[KIND] != COLUMNS_ADD_SOME and changes(line[KIND])
    return 8 * plan[COUNT_OF_KEYS] + (plan[FOUND] * ITEMS[line[DTYPE]] if is_stored else plan[CAME_BYTES])


@inline
def _may(fence: Int64s, version: int, writes: bool, timespec: Int64s) -> bool:
    """Return True if this server may run a request now."""
    return (
        fence[OPEN] != 0
        and (fence[VERSION] == ANY_VERSION or fence[VERSION] == version)
        and (not writes or fence[COPIED] == 0)
        and now_ns(timespec) <= fence[UNTIL_NS]
    )


@inline
def _count(counts: Int64s, number: int, value: Any) -> None:
    add_at(address_of(counts) + Address(8 * number), value)


@inline
def _count_request(counts: Int64s, came: Any, sent: Any, changed: bool) -> None:
    _count(counts, REQUESTS, 1)
    _count(counts, BYTES_IN, came)
    _count(counts, BYTES_OUT, sent)
    if changed:
        _count(counts, MUTATIONS, 1)


@inline
def _count_operation(counts: Int64s, kind: int, keys: Any, took_ns: Any) -> None:
    mine = SUMS + kind * OF_OPERATION
    bucket = 0
    while bucket < BUCKETS_NS.size and took_ns > BUCKETS_NS[bucket]:
        bucket += 1
    _count(counts, mine + KEYS, keys)
    _count(counts, mine + NANOSECONDS, took_ns)
    _count(counts, mine + BUCKETS + bucket, 1)
