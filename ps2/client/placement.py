"""Chooses where an update of pairs of rows runs, on the servers or in this process, by a cost model. Pure.

Dots on the servers move a few scalars per pair to and from every server. Pulled rows move whole, but only to one
process. Which is cheaper depends on the machine, the network and the batch (paper, section 6.2.2, leaves the choice
open); docs/decisions/0007-where-embedding-updates-run.md derives the formulas.
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

# The largest sample: pairs, multiply-adds, and bytes of rows.
MAX_PAIRS = 1 << 14
MAX_MADDS = 1 << 22
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Workload:
    """A batch of pairs; ``columns`` are the elements of a row (the paper's K), ``servers`` the column partitions."""

    pairs: int
    distinct_rows: int
    columns: int
    servers: int
    itemsize: int


@dataclass(frozen=True)
class Pairs:
    """Checked pairs of rows, and the position of each row in ``distinct``, which has every row once."""

    a: Int64s
    b: Int64s
    distinct: Int64s
    index_a: Int64s
    index_b: Int64s

    @classmethod
    def of(cls, rows_a: Any, rows_b: Any, count: int) -> Pairs:
        """Check pairs of rows in ``[0, count)``."""
        a, b = as_rows("rows_a", rows_a, count), as_rows("rows_b", rows_b, count)
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
        scalar_s: time to send one row number, coefficient or partial dot between this process and one server.
        byte_s: time to send one byte of rows between this process and all servers together.
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
        one_s: to read the dot of one pair.
        scalars_s: to read one column of each server, for as many rows as the workload has pairs.
        rows_s: to read the workload's distinct rows.
        dots_s: to read the dots of the workload's pairs.
        local_s: to compute the dots and changes of these pairs in this process.
    """

    one_s: float
    scalars_s: float
    rows_s: float
    dots_s: float
    local_s: float


def server_seconds(costs: Costs, work: Workload) -> float:
    """Return the time of the update if the servers compute: one request for the dots, one that changes the rows.

    The first request moves two row numbers and a partial dot per pair and server; the second moves two row numbers and
    a coefficient.
    """
    moved_s = 6 * work.pairs * work.servers * costs.scalar_s
    return 2 * costs.latency_s + moved_s + PASSES * work.pairs * work.columns * costs.server_madd_s


def row_seconds(costs: Costs, work: Workload) -> float:
    """Return the time of the update if this process computes: one request pulls the rows, one adds to them."""
    numbers_s = 2 * work.distinct_rows * work.servers * costs.scalar_s
    moved_s = 2 * work.distinct_rows * work.columns * work.itemsize * costs.byte_s
    return 2 * costs.latency_s + numbers_s + moved_s + PASSES * work.pairs * work.columns * costs.local_madd_s


def choose(costs: Costs, work: Workload) -> PairStrategy:
    """Return the faster strategy; if both take equally long, "servers", which needs no memory in this process."""
    return "servers" if server_seconds(costs, work) <= row_seconds(costs, work) else "rows"


def sample(work: Workload) -> Workload:
    """Return the part of a workload that is measured: at most as much as takes a few milliseconds."""
    pairs = min(work.pairs, MAX_PAIRS, max(MAX_MADDS // work.columns, 1))
    rows = min(work.distinct_rows, MAX_PAIRS, max(MAX_BYTES // (work.columns * work.itemsize), 1))
    return replace(work, pairs=pairs, distinct_rows=rows)


def solve(times: Times, work: Workload) -> Costs:
    """Return the costs that explain the times of a sample.

    The costs always reproduce the times of the dots and of the rows. An error in another time only makes one cost too
    high and another one too low.
    """
    scalars = work.pairs * work.servers
    numbers = work.distinct_rows * work.servers
    elements = work.distinct_rows * work.columns
    dots_s, rows_s = max(times.dots_s - times.one_s, 0.0), max(times.rows_s - times.one_s, 0.0)
    scalars_s = max(times.scalars_s - times.one_s, 0.0)
    scalar_s = min(scalars_s / (2 * scalars), dots_s / (3 * scalars), rows_s / numbers)
    return Costs(
        latency_s=times.one_s,
        scalar_s=scalar_s,
        byte_s=max(rows_s - numbers * scalar_s, 0.0) / (elements * work.itemsize),
        server_madd_s=max(dots_s - 3 * scalars * scalar_s, 0.0) / (work.pairs * work.columns),
        local_madd_s=times.local_s / (PASSES * work.pairs * work.columns),
    )
