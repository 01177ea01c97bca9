"""Copies vectors that are not co-located to other servers, in windows and through this process, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ps2.client import plans
from ps2.client.batch import in_batch
from ps2.client.declared import declared
from ps2.client.handle import H, Handle, create
from ps2.client.plans import Plan, Target
from ps2.client.session import Session
from ps2.errors import DTypeError, NotColocatedError, NotColocatedWarning, PrecisionWarning, ShapeError, UsageError
from ps2.ops.table import Array

# The bytes of a dense vector, and the keys of a sparse vector, that this process has in memory at the same time.
WINDOW_BYTES = 64 << 20
WINDOW_KEYS = 8 << 20
# float64 represents all integers of smaller magnitude exactly.
EXACT_LIMIT = 2.0**53


def colocated_copy(base: H, other: H, dtype: str | None = None) -> H:
    """Return a vector with the data of ``other``, co-located with ``base``: ``other`` itself, or a copy.

    The paper's Figure 4 calls such copies inefficient. ``dtype``: dtype of the result; None: that of ``base``.
    """
    _check_usable(base, other)
    dtype = dtype or base._spec.dtype
    if base.isColocated(other) and other._spec.dtype == dtype:
        return other
    return _realigned_copy(base, other, dtype, base._colocation_fault(other) or f"this operation takes {dtype}")


def same_matrix_copy(base: H, other: H) -> H:
    """Return a vector with the data of ``other`` in the matrix of ``base``: ``other`` itself, or a copy."""
    _check_usable(base, other)
    if base._is_sibling(other):
        return other
    return _realigned_copy(
        base, other, base._spec.dtype, base._colocation_fault(other) or "this operation takes rows of one matrix"
    )


def _check_usable(base: Handle, other: Handle) -> None:
    if not isinstance(other, Handle):
        raise DTypeError(f"expected a DCV, got {type(other).__name__}")
    base._check_usable()
    other._check_usable()


def _realigned_copy(base: H, other: H, dtype: str, fault: str) -> H:
    """Copy ``other`` into a new row of base's matrix (of a new, co-located matrix if ``dtype`` differs), and warn."""
    if base._fleet.id != other._fleet.id:
        raise UsageError(f"{other!r} belongs to another PS2Context than {base!r}")
    if in_batch():
        raise UsageError(f"{other!r} is not co-located with {base!r}: such vectors cannot be part of a batch")
    if base.dim != other.dim:
        raise ShapeError(f"vectors of one operation must have the same dim, got {base!r} and {other!r}")
    if not np.can_cast(other.dtype, np.dtype(dtype), "same_kind"):
        raise DTypeError(f"{other!r} does not fit {dtype}, the dtype that this operation needs with {base!r}")
    if base._spec.key_policy is not None:
        # Each pushed key would count as touched, so it might not be admitted, or might evict other keys.
        raise NotColocatedError(
            f"{base!r} and {other!r} are not co-located ({fault}), and the keys of the first vector are managed: pull "
            "the second vector and push its values"
        )
    needs_new_matrix = dtype != base._spec.dtype
    if base._fleet.strict or (needs_new_matrix and base.isSparse):
        raise NotColocatedError(f"{base!r} and {other!r} are not co-located ({fault}); create one of them with derive")
    spec = replace(base._spec, rows=1, dtype=dtype, wire=None)
    copy = create(type(base), spec) if needs_new_matrix else base.derive()
    num_bytes = transfer(other._session, other._stored(), base._session, copy._stored())
    warnings.warn(
        f"{base!r} and {other!r} are not co-located ({fault}): {num_bytes:,} bytes were copied through this process; "
        "create one of them with derive",
        NotColocatedWarning,
        stacklevel=caller_depth(),
    )
    return copy


def move_to_own_matrix(vector: H) -> H:
    """Move a vector into a new matrix with the same partitioning, free the original, and return the new vector.

    If the servers lack memory for both, LimitError is raised and the vector stays as it is.
    """
    copy = create(type(vector), replace(vector._spec, rows=1))
    try:
        transfer(vector._session, vector._stored(), copy._session, copy._stored())
    except BaseException:
        copy.free()
        raise
    vector.free()
    return copy


def transfer(source_session: Session, source: Target, session: Session, into: Target) -> int:
    """Overwrite row ``into`` with row ``source``; return the number of bytes that this process received and sent."""
    if "sparse" in (source.spec.kind, into.spec.kind):
        return _transfer_keys(source_session, source, session, into)
    dim, itemsize = source.spec.dim, source.spec.np_dtype.itemsize
    step = WINDOW_BYTES // itemsize
    for start in range(0, dim, step):
        stop = min(start + step, dim)
        window = source_session.dispatch.run([plans.pull(source, start, stop)])[0]
        session.dispatch.run([plans.push(into, "push", window, start, stop)])
    return 2 * dim * itemsize


def _transfer_keys(source_session: Session, source: Target, session: Session, into: Target) -> int:
    session.dispatch.run([declared(into, "fill", {"value": 0})])
    num_bytes = 0
    for keys, values in _windows(source_session, source):
        for start in range(0, keys.size, WINDOW_KEYS):
            window = slice(start, start + WINDOW_KEYS)
            session.dispatch.run([plans.push_columns(into, "scatter", values[window], keys[window])])
        num_bytes += 2 * (keys.nbytes + values.nbytes)
    return int(num_bytes)


def _windows(session: Session, source: Target) -> Iterator[tuple[Array, Array]]:
    """Yield keys and values, one window at a time."""
    if source.spec.kind != "sparse":
        dense = session.dispatch.run([plans.pull(source, 0, source.spec.dim)])[0]
        keys = np.flatnonzero(dense)
        yield keys, dense[keys]
        return
    if source.spec.key_policy is not None:  # keys may be evicted between two windows
        yield session.dispatch.run([plans.pull_active(source)])[0]
        return
    counts = session.dispatch.run([plans.count_active(source)])[0]
    step = max(1, WINDOW_KEYS // len(counts))
    for begin in range(0, max(counts, default=0), step):
        # Keys have positions in the order in which they became active, so new keys do not move the existing keys.
        ends = [min(count, begin + step) for count in counts]
        yield session.dispatch.run([plans.pull_active(source, ends, [begin] * len(counts))])[0]


def caller_depth() -> int:
    """Return the ``stacklevel`` with which a warning of the calling function names the first caller outside PS2."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ps2."):
        depth, frame = depth + 1, frame.f_back
    return depth


def warn_if_rounded(name: str, plan: Plan[float], target: Target) -> Plan[float]:
    """Return the plan; for an integer vector, it warns if float64 does not represent the scalar exactly."""
    if target.spec.np_dtype.kind != "i":
        return plan

    def check(value: float) -> float:
        if abs(value) >= EXACT_LIMIT:
            warnings.warn(
                f"{name} of a vector of {target.spec.dtype}: {value:.17g} is rounded, because float64 represents only "
                "integers below 2**53 exactly; pull the vector for more digits",
                PrecisionWarning,
                stacklevel=caller_depth(),
            )
        return value

    return plan.then(check)
