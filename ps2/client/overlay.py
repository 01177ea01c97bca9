"""Reads that are sent while additions of this process wait: what they lack is laid over them. Pure.

A read holds what was applied before it. Additions that had not been sent by then are added here to what it brought, as
the servers will add them: read-my-writes without waiting (Xing et al., "Strategies and Principles of Distributed
Machine Learning on Big Data", section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ps2.client.plans import Plan
from ps2.ops.packing import narrow, widen
from ps2.ops.table import Array
from ps2.wire.messages import Keys, Operation

# What a read may lack; beyond that it is done anew.
MISSING_BYTES = 64 << 20

_ADDITIONS = ("push_add", "scatter_add")
_SUBTRACTIONS = ("push_sub", "scatter_sub")


def is_plain(plans: Iterable[Plan[Any]]) -> bool:
    """Tell whether plans only read rows at keys or by interval, into arrays that are there."""
    return all(_is_plain(operation) for plan in plans for operation in plan.operations)


class Reading:
    """Collects what plain reads lack.

    Attributes:
        is_void: they lack what cannot be laid over them.
    """

    def __init__(self, plans: Sequence[Plan[Any]]) -> None:
        self._bounds = {plan.matrix: plan.route.bounds for plan in plans}
        self._reads: dict[tuple[int, int], list[Operation]] = {}
        for plan in plans:
            for read in plan.operations:
                self._reads.setdefault((read.matrix, read.partition), []).append(read)
        self._missing: list[Operation] = []
        self._bytes = 0
        self.is_void = not is_plain(plans)

    def lacks(self, plan: Plan[Any]) -> None:
        """Note a plan whose changes are not, or not for sure, in what was read."""
        for write in plan.operations:
            if self.is_void or not any(_touches(write, read) for read in self._meant(write)):
                continue
            self._bytes += write.nbytes
            if _is_sum(write) and self._bytes <= MISSING_BYTES:
                self._missing.append(write)
            else:
                self.void()

    def may_lack(self, plan: Plan[Any]) -> None:
        """Note a plan whose changes may be in what was read, or not."""
        if self.is_void:
            return
        if any(_touches(write, read) for write in plan.operations for read in self._meant(write)):
            self.void()

    def void(self) -> None:
        self.is_void = True
        self._missing.clear()

    def lay(self) -> None:
        """Add what is missing to the arrays that were read into."""
        for write in self._missing:
            begin = self._bounds[write.matrix][write.partition]
            for read in self._meant(write):
                if _touches(write, read):
                    lay(write, read, begin)
        self._missing.clear()

    def _meant(self, write: Operation) -> list[Operation]:
        return self._reads.get((write.matrix, write.partition), [])


def lay(write: Operation, read: Operation, begin: int) -> None:
    """Add an addition to what was read of the same row and partition.

    Args:
        begin: the partition's first column: intervals count from there, keys do not.
    """
    out, values = read.into, _as_applied(write)
    assert out is not None
    here: Any
    there: Any
    if read.name == "gather":
        assert read.keys is not None
        if write.keys is not None:
            here, there = _common(read.keys, write.keys)
        else:
            columns, first = _columns(read.keys), begin + int(write.params["start"])
            there, here = _within(columns, first, values.size)
    elif write.keys is not None:
        here, there = _within(_columns(write.keys), begin + int(read.params["start"]), out.size)
    else:
        start, first = int(read.params["start"]), int(write.params["start"])
        lo, hi = max(start, first), max(start, first, min(start + out.size, first + values.size))
        here, there = slice(lo - start, hi - start), slice(lo - first, hi - first)
    with np.errstate(over="ignore", invalid="ignore"):
        out[here] = out[here] + values[there] if write.name in _ADDITIONS else out[here] - values[there]


def _within(columns: Array, first: int, count: int) -> tuple[Array, slice]:
    """Return where in columns ``[first, first + count)`` those of an ascending array are, and where in it they are."""
    lo, hi = np.searchsorted(columns, (first, first + count))
    return columns[lo:hi] - first, slice(int(lo), int(hi))


def _common(a: Keys, b: Keys) -> tuple[Any, Any]:
    """Return where in each of two sets their common keys are."""
    if a.digest is not None and a.digest == b.digest:
        return slice(None), slice(None)
    few, many = sorted((_columns(a), _columns(b)), key=len)
    if not few.size:
        return slice(0), slice(0)
    at = np.minimum(np.searchsorted(many, few), many.size - 1)
    hit = many[at] == few
    return (np.flatnonzero(hit), at[hit]) if few is a.columns else (at[hit], np.flatnonzero(hit))


def _columns(keys: Keys) -> Array:
    assert keys.columns is not None
    return keys.columns


def _as_applied(write: Operation) -> Array:
    """Return the values as they arrive."""
    values = write.arrays[0]
    if write.wire is None or values.dtype.kind != "f":
        return values
    return widen(narrow(values, write.wire), values.dtype)


def _touches(write: Operation, read: Operation) -> bool:
    """Tell whether an operation on the same partition may change the row that is read."""
    # Operations on many rows name them among their arrays.
    return not write.rows or read.rows[0] in write.rows


def _is_plain(operation: Operation) -> bool:
    if operation.into is None or len(operation.rows) != 1:
        return False
    if operation.name == "gather":
        return operation.keys is not None and operation.keys.columns is not None
    return operation.name == "pull" and "start" in operation.params


def _is_sum(operation: Operation) -> bool:
    if operation.name not in _ADDITIONS + _SUBTRACTIONS or len(operation.rows) != 1:
        return False
    return "start" in operation.params or (operation.keys is not None and operation.keys.columns is not None)
