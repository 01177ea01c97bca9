"""Measures the costs by which ``placement`` chooses where pairs of rows are updated, with a few timed reads."""

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
from ps2.ops.matrix import index_pairs, pair_changes, rows_dot
from ps2.ops.table import Array

# A measurement repeats its probes in rounds; no round starts after BUDGET_S, except the first MIN_ROUNDS.
BUDGET_S = 0.04
MIN_ROUNDS = 3
MAX_ROUNDS = 9
# Costs expire, because the machine or the network may have been busy while they were measured.
CACHE_S = 60.0

_lock = threading.Lock()
_cache: dict[tuple[int | str, ...], tuple[float, Costs]] = {}


def measure(session: Session, target: Target, pairs: Pairs) -> Costs:
    """Return the costs between this process and the servers of a matrix, measured at most a minute ago.

    A measurement takes about 50 ms. It only reads. A write would take a mutation id, but all attempts of a task must
    give their mutations the same ids, whether or not they measure. Costs are cached per fleet, number of partitions,
    row size and batch size (within a factor of 4), because transports differ between small and large messages.
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
    # One thread at a time: concurrent measurements would disturb each other.
    with _lock:
        measured_s, costs = _cache.get(key, (0.0, None))
        if costs is None or time.monotonic() - measured_s > CACHE_S:
            costs = solve(_measure_times(session, target, pairs, work), work)
            expired = [key for key, (cached_s, _) in _cache.items() if time.monotonic() - cached_s > CACHE_S]
            for expired_key in expired:
                del _cache[expired_key]
            _cache[key] = time.monotonic(), costs
        return costs


def _measure_times(session: Session, target: Target, pairs: Pairs, work: Workload) -> Times:
    a, b, rows = pairs.a[: work.pairs], pairs.b[: work.pairs], pairs.distinct[: work.distinct_rows]
    index_a, index_b = pairs.index_a[: work.pairs] % rows.size, pairs.index_b[: work.pairs] % rows.size
    first_columns = np.array(target.route.bounds[:-1], dtype=np.int64)  # one column of each partition

    def run(plan: Plan[Array]) -> Array:
        return session.dispatch.run([plan])[0]

    values = run(plans.rows_pull(target, rows, None))

    def compute_locally() -> None:
        _, left, right = index_pairs(index_a, index_b)
        pair_changes(values, left, right, rows_dot(values, left, right))

    probes: tuple[Callable[[], object], ...] = (  # in the order of ``Times``
        lambda: run(declared(target, "rows_dot", {"rows_a": a[:1], "rows_b": b[:1]})),
        lambda: run(plans.rows_pull(target, a, first_columns)),
        lambda: run(plans.rows_pull(target, rows, None)),
        lambda: run(declared(target, "rows_dot", {"rows_a": a, "rows_b": b})),
        compute_locally,
    )
    return Times(*fastest(probes, BUDGET_S))


def fastest(probes: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """Return the shortest time of each probe, in seconds, over the rounds that start within ``budget_s``.

    There are at least ``MIN_ROUNDS`` and at most ``MAX_ROUNDS`` rounds.
    """
    for probe in probes:  # warm-up: the first call opens connections and loads kernels
        probe()
    rounds: list[list[float]] = []
    deadline_s = time.perf_counter() + budget_s
    while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and time.perf_counter() < deadline_s):
        times_s = []
        for probe in probes:
            start_s = time.perf_counter()
            probe()
            times_s.append(time.perf_counter() - start_s)
        rounds.append(times_s)
    return [min(times) for times in zip(*rounds, strict=True)]
