"""Chooses where an update of pairs of rows runs, on the servers or in this process, by a cost model. Pure.

If the servers compute, a few scalars per pair are sent to and from every server. If this process computes, the rows are
sent to it and their changes are sent back. Which is faster depends on the machine, the network and the batch (paper,
section 6.2.2, leaves the choice open); docs/decisions/0007-where-embedding-updates-run.md derives the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ps2.client.arguments import as_rows
from ps2.client.plans import Target
from ps2.errors import ShapeError
from ps2.ops.kernels import Int64s
from ps2.ops.matrix import index_pairs

PairStrategy = Literal["servers", "rows"]

# Passes over the vectors of a pair: one for the dot, and one for the change of each row.
PASSES = 3

# Limits of a sample: pairs (and rows), multiply-adds, and bytes of rows.
MAX_PAIRS = 1 << 14
MAX_MADDS = 1 << 22
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Workload:
    """The size of a batch of pairs."""

    pairs: int
    distinct_rows: int
    columns: int  # elements of a row (the paper's K)
    servers: int  # column partitions of the matrix
    itemsize: int  # bytes of an element


@dataclass(frozen=True)
class Pairs:
    """Pairs of row ids in the range of the matrix."""

    a: Int64s
    b: Int64s
    distinct: Int64s  # the row ids without duplicates
    index_a: Int64s  # the index of each ``a`` in ``distinct``
    index_b: Int64s

    @classmethod
    def of(cls, rows_a: Any, rows_b: Any, num_rows: int) -> Pairs:
        """Return pairs of row ids; raise an error if an id is not in ``[0, num_rows)``."""
        a, b = as_rows("rows_a", rows_a, num_rows), as_rows("rows_b", rows_b, num_rows)
        if a.size != b.size:
            raise ShapeError(f"rows_b: expected {a.size} rows, as many as rows_a, got {b.size}")
        return cls(a, b, *index_pairs(a, b))

    def workload(self, target: Target) -> Workload:
        spec = target.spec
        return Workload(self.a.size, self.distinct.size, spec.dim, len(target.route.partitions), spec.np_dtype.itemsize)


@dataclass(frozen=True)
class Costs:
    """Costs between this process and a fleet of a certain size, in seconds.

    Attributes:
        latency_s: time of one minimal request to all servers in parallel.
        scalar_s: time to send one row id, coefficient or partial dot between this process and one server.
        byte_s: time to send one byte of row values between this process and the servers.
        server_madd_s: time of one multiply-add, with all servers working in parallel.
        local_madd_s: time of one multiply-add in this process.
    """

    latency_s: float
    scalar_s: float
    byte_s: float
    server_madd_s: float
    local_madd_s: float


@dataclass(frozen=True)
class Times:
    """The duration of each probe of ``calibration``: four reads, and the update of the same pairs in this process.

    Attributes:
        one_pair_s: time to read the dot of one pair.
        scalars_s: time to read one column of each server, for as many rows as the workload has pairs.
        rows_s: time to read the workload's distinct rows.
        dots_s: time to read the dots of the workload's pairs.
        local_s: time to compute the dots and changes of these pairs in this process.
    """

    one_pair_s: float
    scalars_s: float
    rows_s: float
    dots_s: float
    local_s: float


def server_seconds(costs: Costs, work: Workload) -> float:
    """Return the time of the update if the servers compute: one request for the dots, one that changes the rows.

    Per pair and server, the first request sends two row ids and receives a partial dot; the second sends two row ids
    and a coefficient.
    """
    transfer_s = 6 * work.pairs * work.servers * costs.scalar_s
    return 2 * costs.latency_s + transfer_s + PASSES * work.pairs * work.columns * costs.server_madd_s


def row_seconds(costs: Costs, work: Workload) -> float:
    """Return the time of the update if this process computes: one request pulls the rows, one adds to them."""
    ids_s = 2 * work.distinct_rows * work.servers * costs.scalar_s
    values_s = 2 * work.distinct_rows * work.columns * work.itemsize * costs.byte_s
    return 2 * costs.latency_s + ids_s + values_s + PASSES * work.pairs * work.columns * costs.local_madd_s


def choose(costs: Costs, work: Workload) -> PairStrategy:
    """Return the faster strategy; if both take equally long, "servers", which needs no memory in this process."""
    return "servers" if server_seconds(costs, work) <= row_seconds(costs, work) else "rows"


def sample(work: Workload) -> Workload:
    """Return the size of the part of a workload that is measured; it takes at most a few milliseconds."""
    pairs = min(work.pairs, MAX_PAIRS, max(MAX_MADDS // work.columns, 1))
    rows = min(work.distinct_rows, MAX_PAIRS, max(MAX_BYTES // (work.columns * work.itemsize), 1))
    return replace(work, pairs=pairs, distinct_rows=rows)


def solve(times: Times, work: Workload) -> Costs:
    """Return the costs that explain the times of a sample.

    With these costs, the model always reproduces the measured times of the dots and of the rows. If another time is
    wrong, one cost becomes too high and another cost too low.
    """
    scalars = work.pairs * work.servers
    ids = work.distinct_rows * work.servers
    elements = work.distinct_rows * work.columns
    dots_s, rows_s = max(times.dots_s - times.one_pair_s, 0.0), max(times.rows_s - times.one_pair_s, 0.0)
    scalars_s = max(times.scalars_s - times.one_pair_s, 0.0)
    scalar_s = min(scalars_s / (2 * scalars), dots_s / (3 * scalars), rows_s / ids)
    return Costs(
        latency_s=times.one_pair_s,
        scalar_s=scalar_s,
        byte_s=max(rows_s - ids * scalar_s, 0.0) / (elements * work.itemsize),
        server_madd_s=max(dots_s - 3 * scalars * scalar_s, 0.0) / (work.pairs * work.columns),
        local_madd_s=times.local_s / (PASSES * work.pairs * work.columns),
    )
