"""Check whether a training fits the memory of its servers, workers and driver. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ps2.errors import LimitError, PS2Error

MORE_SERVERS = "start more servers, or with a larger memory limit"


def left_on(servers: Sequence[tuple[int, int]]) -> int:
    """Return the bytes that are left on servers, from the memory limit and the bytes in use of each."""
    return sum(max(limit - used, 0) for limit, used in servers)


def check_servers(what: str, needed_bytes: int, servers: Sequence[tuple[int, int]], advice: str = MORE_SERVERS) -> None:
    """Raise LimitError if a model and its training state do not fit the servers.

    ``what`` is the beginning of the message: "k=9 and 8 features make sums that take". ``servers`` are the memory limit
    and the bytes in use of each server.
    """
    left = left_on(servers)
    if needed_bytes > left:
        limit = sum(limit for limit, _ in servers)
        raise LimitError(
            f"{what} {needed_bytes:,} bytes, and {left:,} are left on the {len(servers)} servers, whose "
            f"limits are {limit:,} together; {advice}"
        )


@contextmanager
def fitting_servers(what: str, vectors: Sequence[Any] = (), advice: str = MORE_SERVERS) -> Iterator[None]:
    """Explain a LimitError of servers that allocate vectors, and free the vectors that were allocated before.

    ``what`` is the beginning of the message: "sums of 800 bytes".
    """
    try:
        yield
    except LimitError as error:
        for vector in vectors:
            vector.free()
        raise LimitError(f"{what} do not fit the servers: {error}; {advice}") from error


def check_worker(what: str, needed_bytes: int, left_bytes: int, advice: str = "use machines with more memory") -> None:
    """Raise LimitError if a worker has too little memory; see ``check_servers``."""
    if needed_bytes > left_bytes:
        raise LimitError(f"{what} {needed_bytes:,} bytes, and {left_bytes:,} are left on its machine; {advice}")


def check_driver(what: str, needed_bytes: int, left_bytes: int) -> None:
    """Raise LimitError if the driver cannot hold the model; see ``check_servers``."""
    if needed_bytes > left_bytes:
        raise LimitError(
            f"{what} {needed_bytes:,} bytes, and the driver, which reads them in the end, can use {left_bytes:,}"
        )


@contextmanager
def freed_on_failure(model: Any) -> Iterator[None]:
    """Free a named model if the block raises: it would stay on the fleet, and nobody else can free it."""
    try:
        yield
    except BaseException:
        with suppress(PS2Error):  # the fleet may be gone
            model.free()
        raise
