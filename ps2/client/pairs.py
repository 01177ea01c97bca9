"""Updates of pairs of rows, as in DeepWalk (paper, section 5.2.2), on the servers or on pulled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from ps2.client.arguments import as_values
from ps2.client.batch import in_batch
from ps2.client.calibration import measure
from ps2.client.declared import declared
from ps2.client.placement import MAX_BYTES, Pairs, PairStrategy, choose
from ps2.client.plans import Plan, Target, rows_fill, rows_pull, rows_push
from ps2.client.session import Session
from ps2.config import WireConfig
from ps2.errors import DTypeError, UsageError
from ps2.ops.all import lookup
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.matrix import pair_changes
from ps2.ops.matrix import rows_dot as dots_of

Coefficients = Callable[[Float64s], Any]

PAIR_BYTES = 24  # two int64 row ids and a float64 coefficient
# All changes are computed from the rows' values before the update, so a server must get all pairs in one request.
# Larger updates are first summed in spare rows.
MAX_ON_SERVERS = WireConfig.request_limit_bytes // PAIR_BYTES


@dataclass(frozen=True)
class Embeddings:
    """The matrix with the rows of the pairs. ``spare(count)`` returns ids of ``count`` rows that are not in use."""

    session: Session
    target: Target
    spare: Callable[[int], Int64s]


def update(rows: Embeddings, rows_a: Any, rows_b: Any, coefficients: Coefficients, via: str) -> Float64s:
    """Implement ``DCVMatrix.pairUpdate``."""
    session, target = rows.session, rows.target
    if in_batch():
        raise UsageError("pairUpdate cannot be part of a batch: call it before or after")
    if via not in ("auto", *get_args(PairStrategy)):
        raise UsageError(f"via: expected 'auto', 'servers' or 'rows', got {via!r}")
    if not callable(coefficients):
        raise UsageError(f"coefficients: expected a function, got {coefficients!r}")
    lookup("rows_pair_update").check(0, target.spec.dtype, {})
    if via == "rows" and target.spec.kind == "sparse":
        raise UsageError("via='rows' needs a dense matrix: the rows of a sparse matrix are too long to pull")
    pairs = Pairs.of(rows_a, rows_b, target.spec.rows)
    if not pairs.a.size:
        return np.empty(0)
    strategy = choose_strategy(session, target, pairs) if via == "auto" else via
    if strategy == "servers":
        return _update_on_servers(rows, pairs, coefficients)
    return _update_locally(session, target, pairs, coefficients)


def choose_strategy(session: Session, target: Target, pairs: Pairs) -> PairStrategy:
    """Return the faster strategy, by costs that are measured at the first use."""
    work = pairs.workload(target)
    # A row that is larger than the largest sample cannot be measured.
    if target.spec.kind == "sparse" or work.columns * work.itemsize > MAX_BYTES:
        return "servers"
    if work.pairs > MAX_ON_SERVERS:
        return "rows"
    return choose(measure(session, target, pairs), work)


def _update_on_servers(rows: Embeddings, pairs: Pairs, coefficients: Coefficients) -> Float64s:
    session, target = rows.session, rows.target
    row_arguments = {"rows_a": pairs.a, "rows_b": pairs.b}
    dots: Float64s = session.dispatch.run([declared(target, "rows_dot", row_arguments)])[0]
    weights = _checked_coefficients(coefficients, dots)
    if pairs.a.size <= MAX_ON_SERVERS:
        session.dispatch.run([declared(target, "rows_pair_update", {**row_arguments, "coefficients": weights})])
    else:
        session.dispatch.run(_plan_with_spare_rows(rows.spare(pairs.distinct.size), target, pairs, weights))
    return dots


def _plan_with_spare_rows(spare: Int64s, target: Target, pairs: Pairs, coefficients: Float64s) -> list[Plan[None]]:
    """Plan to sum all changes of the unchanged rows in spare rows, and then to add these sums to the rows."""
    extended = replace(target, spec=replace(target.spec, rows=max(target.spec.rows, int(spare.max()) + 1)))
    return [
        rows_fill(extended, spare, 0),
        _axpy(extended, spare[pairs.index_a], pairs.b, coefficients),
        _axpy(extended, spare[pairs.index_b], pairs.a, coefficients),
        _axpy(extended, pairs.distinct, spare, np.ones(spare.size)),
    ]


def _axpy(target: Target, y: Int64s, x: Int64s, alphas: Float64s) -> Plan[None]:
    return declared(target, "rows_axpy", {"rows_y": y, "rows_x": x, "alphas": alphas})


def _update_locally(session: Session, target: Target, pairs: Pairs, coefficients: Coefficients) -> Float64s:
    values = session.dispatch.run([rows_pull(target, pairs.distinct, None)])[0]
    dots: Float64s = dots_of(values, pairs.index_a, pairs.index_b)
    # Add differences instead of pushing new values, to keep concurrent additions of other workers.
    changes = pair_changes(values, pairs.index_a, pairs.index_b, _checked_coefficients(coefficients, dots))
    session.dispatch.run([rows_push(target, "rows_add", pairs.distinct, changes)])
    return dots


def _checked_coefficients(coefficients: Coefficients, dots: Float64s) -> Float64s:
    """Call the user's function on the dots; return its coefficients, or raise an error if they are invalid."""
    # A copy, because the function may compute in place.
    values = as_values(coefficients(dots.copy()), np.dtype(np.float64), dots.shape, "coefficients")
    is_finite = np.isfinite(values)
    if not is_finite.all():
        pair = int(np.argmin(is_finite))
        raise DTypeError(
            f"coefficients: expected finite numbers, got {values[pair]} for the dot {dots[pair]} (pair {pair})"
        )
    return values
