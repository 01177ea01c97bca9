"""What compiled loops ask of the C library, and of memory by its address."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from ps2.ops.kernels import kernel

Address = types.uintp


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C library; its name is looked up when compiled code is loaded, so that may be kept."""
    return types.ExternalFunction(name, result(*arguments))


c_recv = _function("recv", types.int64, types.int32, Address, types.uint64, types.int32)
c_send = _function("send", types.int64, types.int32, Address, types.uint64, types.int32)
c_recvmsg = _function("recvmsg", types.int64, types.int32, Address, types.int32)
c_sendmsg = _function("sendmsg", types.int64, types.int32, Address, types.int32)
c_poll = _function("poll", types.int32, Address, types.uint64, types.int32)
c_errno = _function("__errno_location", Address)
c_clock = _function("clock_gettime", types.int32, types.int32, Address)
c_memcpy = _function("memcpy", Address, Address, Address, types.uint64)
c_memcmp = _function("memcmp", types.int32, Address, Address, types.uint64)
c_try = _function("pthread_mutex_trylock", types.int32, Address)
c_lock = _function("pthread_mutex_lock", types.int32, Address)
c_unlock = _function("pthread_mutex_unlock", types.int32, Address)

EINTR, EAGAIN = 4, 11
MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL, MSG_NOSIGNAL = 0x2, 0x40, 0x100, 0x4000
POLLIN = 1
CLOCK_BOOTTIME = 7


def _pointer(_: Any, address: Any) -> Any:
    """Return an address as a pointer, for ``numba.carray``."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(Address), generate


def _add_at(_: Any, address: Any, value: Any) -> Any:
    """Add to an int64 that other threads add to as well."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        to = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.atomic_rmw("add", to, arguments[1], "monotonic")
        return context.get_dummy_value()

    return types.void(Address, types.int64), generate


pointer: Any = intrinsic(_pointer)
add_at: Any = intrinsic(_add_at)


@kernel
def error_number() -> int:
    return carray(pointer(c_errno()), 1, np.int32)[0]


@kernel
def now_ns(timespec: Any) -> int:
    """Return ``fence.now_s()`` in nanoseconds; ``timespec`` are two int64 to use."""
    c_clock(CLOCK_BOOTTIME, Address(timespec.ctypes.data))
    return timespec[0] * 1_000_000_000 + timespec[1]


@kernel
def receive_all(descriptor: int, at: Any, size: int) -> bool:
    """Receive so many bytes; False if the connection ends before."""
    while size > 0:
        got = c_recv(descriptor, at, size, MSG_WAITALL)
        if got > 0:
            at += Address(got)
            size -= got
        elif got == 0 or error_number() != EINTR:
            return False
    return True


@kernel
def send_all(descriptor: int, at: Any, size: Any) -> bool:
    """Send so many bytes; False if the connection ends before."""
    while size > 0:
        sent = c_send(descriptor, at, size, MSG_NOSIGNAL)
        if sent >= 0:
            at += Address(sent)
            size -= sent
        elif error_number() != EINTR:
            return False
    return True


@kernel
def address_of(array: Any) -> Any:
    return Address(array.ctypes.data)
