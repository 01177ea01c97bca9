"""What moving and computing cost here and now, for batches of one size: measured by a few reads of their rows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ps2.client import plans
from ps2.client.declared import declared
from ps2.client.placement import Costs, Pairs, Times, Workload, sample, solve
from ps2.client.plans import Plan, Target
from ps2.client.session import Session
from ps2.ops.matrix import number_pairs, pair_changes, rows_dot
from ps2.ops.table import Array

BUDGET_S = 0.04
LEAST_ROUNDS = 3
MOST_ROUNDS = 9
# The machine or the network may have been busy with something else, so nothing is believed for ever.
KEPT_S = 60.0

_lock = threading.Lock()
_known: dict[tuple[int | str, ...], tuple[float, Costs]] = {}


def measure(session: Session, target: Target, pairs: Pairs) -> Costs:
    """Return what things cost between this process and the servers of a matrix, measured at most a minute ago.

    Measuring takes about 50 ms. It only reads: a write would need an id, and a retried task must count its mutations as
    the first attempt did, which may have measured or not.

    Costs are kept for one fleet, cut, size of rows and, within a factor of 4, size of batch, because a transport has
    steps: what is true of small messages need not be true of large ones.
    """
    work = sample(pairs.workload(target))
    sizes = (
        work.columns,
        work.servers,
        work.itemsize,
        work.pairs.bit_length() // 2,
        work.distinct_rows.bit_length() // 2,
    )
    key = (os.getpid(), session.fleet.id, *sizes)
    # One at a time: two threads would measure each other.
    with _lock:
        measured_s, costs = _known.get(key, (0.0, None))
        if costs is None or time.monotonic() - measured_s > KEPT_S:
            costs = solve(_take_times(session, target, pairs, work), work)
            for old in [old for old, (then_s, _) in _known.items() if time.monotonic() - then_s > KEPT_S]:
                del _known[old]
            _known[key] = time.monotonic(), costs
        return costs


def _take_times(session: Session, target: Target, pairs: Pairs, work: Workload) -> Times:
    a, b, rows = pairs.a[: work.pairs], pairs.b[: work.pairs], pairs.distinct[: work.distinct_rows]
    at_a, at_b = pairs.at_a[: work.pairs] % rows.size, pairs.at_b[: work.pairs] % rows.size
    one_each = np.array(target.route.bounds[:-1], dtype=np.int64)

    def run(plan: Plan[Array]) -> Array:
        return session.dispatch.run([plan])[0]

    values = run(plans.rows_pull(target, rows, None))

    def here() -> None:
        _, left, right = number_pairs(at_a, at_b)
        pair_changes(values, left, right, rows_dot(values, left, right))

    probes: tuple[Callable[[], object], ...] = (
        lambda: run(declared(target, "rows_dot", {"rows_a": a[:1], "rows_b": b[:1]})),
        lambda: run(plans.rows_pull(target, a, one_each)),
        lambda: run(plans.rows_pull(target, rows, None)),
        lambda: run(declared(target, "rows_dot", {"rows_a": a, "rows_b": b})),
        here,
    )
    return Times(*fastest(probes, BUDGET_S))


def fastest(probes: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """Return the least time of each of several rounds, in seconds; no round begins after so many seconds."""
    for probe in probes:  # the first time, connections are made and kernels loaded
        probe()
    rounds: list[list[float]] = []
    end_s = time.perf_counter() + budget_s
    while len(rounds) < LEAST_ROUNDS or (len(rounds) < MOST_ROUNDS and time.perf_counter() < end_s):
        rounds.append([_seconds(probe) for probe in probes])
    return [min(times) for times in zip(*rounds, strict=True)]


def _seconds(fn: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    fn()
    return time.perf_counter() - began_s
