"""Check whether a training fits into the memory of its servers, workers and driver. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ps2.errors import LimitError, PS2Error

MORE_SERVERS = "start more servers, or with a larger memory limit"


def free_server_bytes(servers: Sequence[tuple[int, int]]) -> int:
    """Return the free bytes of all servers. Each server is given by its memory limit and its bytes in use."""
    return sum(max(limit - used, 0) for limit, used in servers)


def check_servers(text: str, needed_bytes: int, servers: Sequence[tuple[int, int]], advice: str = MORE_SERVERS) -> None:
    """Raise LimitError if a model and its training state do not fit into the servers' memory.

    ``text`` begins the message: "k=9 and 8 features make sums that take". For ``servers`` see ``free_server_bytes``.
    """
    free_bytes = free_server_bytes(servers)
    if needed_bytes > free_bytes:
        limit = sum(limit for limit, _ in servers)
        raise LimitError(
            f"{text} {needed_bytes:,} bytes, and {free_bytes:,} are left on the {len(servers)} servers, whose "
            f"limits are {limit:,} together; {advice}"
        )


@contextmanager
def fitting_servers(text: str, vectors: Sequence[Any] = (), advice: str = MORE_SERVERS) -> Iterator[None]:
    """Explain a LimitError that allocations on servers raise in the block; then also free ``vectors``.

    ``text`` begins the message: "sums of 800 bytes". ``vectors`` are allocated; the block may append to the list.
    """
    try:
        yield
    except LimitError as error:
        for vector in vectors:
            vector.free()
        raise LimitError(f"{text} do not fit the servers: {error}; {advice}") from error


def check_worker(text: str, needed_bytes: int, free_bytes: int, advice: str = "use machines with more memory") -> None:
    """Raise LimitError if a worker has too little memory; see ``check_servers``."""
    if needed_bytes > free_bytes:
        raise LimitError(f"{text} {needed_bytes:,} bytes, and {free_bytes:,} are left on its machine; {advice}")


def check_driver(text: str, needed_bytes: int, free_bytes: int) -> None:
    """Raise LimitError if the model does not fit into the driver's memory; see ``check_servers``."""
    if needed_bytes > free_bytes:
        raise LimitError(
            f"{text} {needed_bytes:,} bytes, and the driver, which reads them in the end, can use {free_bytes:,}"
        )


@contextmanager
def freed_on_failure(model: Any) -> Iterator[None]:
    """Free a named model if the block raises. The caller never gets the model, and servers keep named vectors."""
    try:
        yield
    except BaseException:
        with suppress(PS2Error):  # the fleet may be gone
            model.free()
        raise
