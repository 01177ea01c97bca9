"""Runs users' functions (``mapPartitions``) on the rows of one shard, and undoes the writes of a failed function."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from ps2.errors import BusyError, LimitError, OpError
from ps2.ops.table import Array
from ps2.server.memory import MemoryAccount

NOT_UNDONE = "the function's writes before it failed were NOT undone: there was no memory left for copies of its rows"


def unpickle(code: Array) -> Callable[..., Any]:
    """Return the function that an authenticated peer sent."""
    try:
        fn = pickle.loads(code.tobytes())
    except BaseException as error:  # unpickling runs the sender's code, which may raise anything, even SystemExit
        raise OpError(f"the function cannot be loaded on the server:\n{_trace(error)}") from error
    if not callable(fn):
        raise OpError(f"expected a pickled function, got {type(fn).__name__}")
    return fn


def run(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array], memory: MemoryAccount) -> Array:
    """Call ``fn(*leading, *rows)`` and return its pickled result as uint8.

    Raises:
        OpError: the function raised, or its result cannot be pickled. Its writes are undone, or the error says that
            they are not.
    """
    size = sum(row.nbytes for row in rows)
    try:
        memory.take_transient(size, "undoing a failed function")
    except (LimitError, BusyError):
        try:
            return _run(fn, leading, rows)
        except OpError as error:
            raise OpError(f"{error}\n{NOT_UNDONE}") from error.__cause__
    try:
        before = [row.copy() for row in rows]
        try:
            return _run(fn, leading, rows)
        except OpError:
            for row, saved in zip(rows, before, strict=True):
                row[:] = saved
            raise
    finally:
        memory.give_transient(size)


def look(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array]) -> Array:
    """Call a function like ``run``, but with read-only rows, so that nothing needs to be undone."""
    views = [row.view() for row in rows]
    for view in views:
        view.flags.writeable = False
    return _run(fn, leading, views)


def _run(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array]) -> Array:
    try:
        return np.frombuffer(cloudpickle.dumps(fn(*leading, *rows)), np.uint8)
    except BaseException as error:  # SystemExit of a user's function must not end the server
        raise OpError(f"a function failed on the server:\n{_trace(error)}") from error


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
