"""Vectors that are not co-located: their data are brought together through this process, window by window."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ps2.client import plans
from ps2.client.batch import in_batch
from ps2.errors import DTypeError, NotColocatedError, NotColocatedWarning, ShapeError, UsageError
from ps2.ops.table import Array

if TYPE_CHECKING:
    from ps2.client.dcv import DCV

# Of one vector, held by this process at a time.
WINDOW_BYTES = 64 << 20
WINDOW_KEYS = 8 << 20


def beside(base: DCV, other: DCV) -> DCV:
    """Return a new vector with the data of ``other``, co-located with ``base`` (paper, Figure 4: the inefficient way).

    Raises:
        UsageError: they are of two fleets, or a batch is open.
        ShapeError, DTypeError: one cannot hold the other.
        NotColocatedError: the context is strict.
    """
    if base._fleet.id != other._fleet.id:
        raise UsageError(f"{other!r} is of another context than {base!r}")
    if in_batch():
        raise UsageError(f"{other!r} is not co-located with {base!r}: such vectors cannot be part of a batch")
    if base.dim != other.dim:
        raise ShapeError(f"vectors of one operation must be equally long, got {base!r} and {other!r}")
    if not np.can_cast(other.dtype, base.dtype, "same_kind"):
        raise DTypeError(f"{other!r} does not fit {base.dtype} of {base!r}")
    if base._fleet.strict:
        raise NotColocatedError(f"{base!r} and {other!r} are not co-located; make one of them with derive")
    copy = base.derive()
    moved = transfer(other, copy)
    warnings.warn(
        f"{base!r} and {other!r} are not co-located: {moved:,} bytes went through this process; "
        "make one of them with derive",
        NotColocatedWarning,
        stacklevel=_caller_depth(),
    )
    return copy


def transfer(source: DCV, target: DCV) -> int:
    """Overwrite ``target`` with ``source`` and return the bytes that went through this process."""
    source, target = source._as_stored(), target._as_stored()
    if source.isSparse or target.isSparse:
        return _transfer_keys(source, target)
    step = WINDOW_BYTES // source.dtype.itemsize
    for start in range(0, source.dim, step):
        stop = min(start + step, source.dim)
        window = source._session.run([plans.pull(source._target(), start, stop)])[0]
        target._session.run([plans.push(target._target(), "push", window, start, stop)])
    return 2 * source.dim * source.dtype.itemsize


def moved_alone(vector: DCV) -> DCV:
    """Return a vector as the only row of a matrix of its own, cut as its matrix is; it is freed itself.

    Raises:
        LimitError: the servers have no room for both; the vector stays as it is.
    """
    from ps2.client.dcv import create

    alone = create(replace(vector._spec, rows=1))
    try:
        transfer(vector, alone)
    except BaseException:
        alone.free()
        raise
    vector.free()
    return alone


def _transfer_keys(source: DCV, target: DCV) -> int:
    target.zero()
    moved = 0
    for keys, values in _windows(source):
        for start in range(0, keys.size, WINDOW_KEYS):
            target.push(values[start : start + WINDOW_KEYS], keys[start : start + WINDOW_KEYS])
        moved += 2 * (keys.nbytes + values.nbytes)
    return int(moved)


def _windows(source: DCV) -> Iterator[tuple[Array, Array]]:
    """Yield keys and values, some at a time."""
    session, of = source._session, source._target()
    if not source.isSparse:
        dense = source.pull()
        keys = np.flatnonzero(dense)
        yield keys, dense[keys]
        return
    counts = session.run([plans.count_active(of)])[0]
    step = max(1, WINDOW_KEYS // len(counts))
    for begin in range(0, max(counts, default=0), step):
        # New keys come after those that there are.
        ends = [min(count, begin + step) for count in counts]
        yield session.run([plans.pull_active(of, ends, [begin] * len(counts))])[0]


def _caller_depth() -> int:
    """Return the ``stacklevel`` of the first caller outside this package, seen from the function that warns."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ps2."):
        depth, frame = depth + 1, frame.f_back
    return depth
