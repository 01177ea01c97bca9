"""Updates of pairs of rows, as DeepWalk makes them (paper, section 5.2.2), on the servers or on pulled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ps2.client.arguments import as_rows, as_values
from ps2.client.batch import in_batch
from ps2.client.calibration import measure
from ps2.client.placement import MOST_BYTES, Way, Workload, choose
from ps2.client.plans import PAIR_BYTES, Plan, Target
from ps2.config import WireConfig
from ps2.errors import DTypeError, LimitError, ShapeError, UsageError
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.matrix import number_pairs, pair_changes, rows_dot
from ps2.ops.table import lookup
from ps2.wire.messages import Operation

if TYPE_CHECKING:
    from ps2.client.matrix import DCVMatrix

Coefficients = Callable[[Float64s], Any]

# Every change is made of what the rows were before all of them, so servers get all pairs in one request.
MOST_ON_SERVERS = WireConfig.request_limit_bytes // PAIR_BYTES


@dataclass(frozen=True)
class Pairs:
    """Checked pairs of rows.

    Attributes:
        a, b: the rows of each pair.
        distinct: every row that they name, once.
        at_a, at_b: where in ``distinct`` the rows of each pair are.
    """

    a: Int64s
    b: Int64s
    distinct: Int64s
    at_a: Int64s
    at_b: Int64s

    @classmethod
    def of(cls, rows_a: Any, rows_b: Any, count: int) -> Pairs:
        """Check pairs of rows in ``[0, count)``."""
        a, b = as_rows("rows_a", rows_a, count), as_rows("rows_b", rows_b, count)
        if a.size != b.size:
            raise ShapeError(f"rows_b: expected {a.size} rows, as many as rows_a, got {b.size}")
        return cls(a, b, *number_pairs(a, b))

    def workload(self, target: Target) -> Workload:
        spec = target.spec
        return Workload(self.a.size, self.distinct.size, spec.dim, len(target.route.partitions), spec.np_dtype.itemsize)


def update(matrix: DCVMatrix, rows_a: Any, rows_b: Any, coefficients: Coefficients, via: str) -> Float64s:
    """Do what ``DCVMatrix.pairUpdate`` says."""
    if in_batch():
        raise UsageError("pairUpdate needs its dots before it can go on: call it before or after the batch")
    if via not in ("auto", *get_args(Way)):
        raise UsageError(f"via: expected 'auto', 'servers' or 'rows', got {via!r}")
    if not callable(coefficients):
        raise UsageError(f"coefficients: expected a function, got {coefficients!r}")
    target = matrix._target()
    lookup("rows_pair_update").check(0, target.spec.dtype, {})
    if via == "rows" and target.spec.kind == "sparse":
        raise UsageError("via='rows' needs a dense matrix: the rows of a sparse one cannot be pulled whole")
    pairs = Pairs.of(rows_a, rows_b, target.spec.rows)
    if not pairs.a.size:
        return np.empty(0)
    way = planned(matrix, pairs) if via == "auto" else via
    if way == "servers" and pairs.a.size > MOST_ON_SERVERS:
        raise LimitError(
            f"pairUpdate: the servers take at most {MOST_ON_SERVERS:,} pairs at once, got {pairs.a.size:,}: use "
            "via='rows', which pulls the rows that they name, or make several updates of them"
        )
    return _on_servers(matrix, pairs, coefficients) if way == "servers" else _on_rows(matrix, pairs, coefficients)


def planned(matrix: DCVMatrix, pairs: Pairs) -> Way:
    """Return the way that should take less time, by costs that are measured at the first use."""
    target = matrix._target()
    work = pairs.workload(target)
    # A row that is longer than a sample may be is not even pulled to find out what that costs.
    if target.spec.kind == "sparse" or work.columns * work.itemsize > MOST_BYTES:
        return "servers"
    if work.pairs > MOST_ON_SERVERS:
        return "rows"
    return choose(measure(matrix, pairs), work)


def rows_pair_update(target: Target, pairs: Pairs, coefficients: Float64s) -> Plan[None]:
    """Plan the change of all pairs at once, from the values that the servers then have."""
    operations = tuple(
        Operation("rows_pair_update", target.matrix, p.index, arrays=(pairs.a, pairs.b, coefficients))
        for p in target.route.partitions
    )
    return Plan(target.matrix, target.route, operations, lambda results: None, mutates=True)


def _on_servers(matrix: DCVMatrix, pairs: Pairs, coefficients: Coefficients) -> Float64s:
    dots: Float64s = matrix.dot(pairs.a, pairs.b)
    matrix._submit(rows_pair_update(matrix._target(), pairs, _ask(coefficients, dots)))
    return dots


def _on_rows(matrix: DCVMatrix, pairs: Pairs, coefficients: Coefficients) -> Float64s:
    old = matrix.pull(pairs.distinct)
    dots: Float64s = rows_dot(old, pairs.at_a, pairs.at_b)
    # Differences, not new values: what others add meanwhile is kept.
    matrix.add(pairs.distinct, pair_changes(old, pairs.at_a, pairs.at_b, _ask(coefficients, dots)))
    return dots


def _ask(coefficients: Coefficients, dots: Float64s) -> Float64s:
    """Return the coefficients of the dots, checked."""
    # A copy: the function may compute in place.
    found = as_values(coefficients(dots.copy()), np.dtype(np.float64), dots.shape, "coefficients")
    finite = np.isfinite(found)
    if not finite.all():
        at = int(np.argmin(finite))
        raise DTypeError(f"coefficients: expected finite numbers, got {found[at]} for the dot {dots[at]} (pair {at})")
    return found
