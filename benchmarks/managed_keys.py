"""A day of ids without bound, scaled down: memory, the longest request, and throughput of managed keys.

Each push holds as many keys of a active set, which slowly drifts, as ids that come once and never again. Keys get slots
at their third touch, and go after a twelfth of the day. Compared with a table of the active set alone: its memory, and
the throughput of pushes of as many keys, all of which have slots.

Memory and throughput are those of one server and a client on one host. Requests are timed on an engine in this process:
the longest one is the longest that another one waits for the shard. Where other programs take the cores, its CPU time
says more: page faults count, and waiting for a core does not. Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2 import DCV, PS2Context
from ps2.client.matrix import DCVMatrix
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.ops.warm import warm

DAY_S = 86_400.0
PARTS_OF_DAY = 12
SWEEPS = 240
LIMIT_BYTES = 1 << 40
WIDTH = 32
BATCH = 32_768
# The part of a day after which all keys of the active set have been replaced.
DRIFT_DAYS = 4
HUGE = 2**62


@dataclass
class Found:
    """What a run measured.

    Attributes:
        rss_bytes: resident memory that the table added to the server.
        counted_bytes: what the server counts.
        engine_keys_s: keys that the engine took a second.
        keys_s: keys that a client pushed a second to a server, without the time for making them.
        longest_s: the longest request, and which it was.
        longest_cpu_s: the request with the most CPU time of its thread, system calls and page faults included.
    """

    rss_bytes: int
    counted_bytes: int
    engine_keys_s: float
    keys_s: float
    longest_s: tuple[float, str]
    longest_cpu_s: tuple[float, str]
    status: str


class Timer:
    """Times the requests of an engine."""

    def __init__(self, servers: InProcessServers) -> None:
        (self._engine,) = servers.engines.values()
        self._execute = self._engine.execute
        self._engine.execute = self._timed  # type: ignore[method-assign]
        self.reset()

    def reset(self) -> None:
        self.longest_s, self.longest_cpu_s, self.total_s = (0.0, ""), (0.0, ""), 0.0

    def _timed(self, request: Any) -> Any:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return self._execute(request)
        finally:
            took_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
            self.total_s += took_s
            name = request.operations[0].name
            self.longest_s = max(self.longest_s, (took_s, name))
            self.longest_cpu_s = max(self.longest_cpu_s, (cpu_s, name))


Make = Callable[[], DCVMatrix]
Fill = Callable[[DCVMatrix, Callable[[], None]], "tuple[int, float]"]


def measured(make: Make, fill: Fill) -> Found:
    """Run ``fill`` on new tables, in this process and on a server."""
    warm()
    with PS2Context.getOrCreate(servers=1) as ps:
        small = make()
        for _ in range(4):  # so that the server has loaded all kernels
            small.add(columns=np.arange(BATCH), values=np.ones((BATCH, WIDTH), np.float32))
        if small._first._spec.key_policy is not None:
            small.remove(np.arange(BATCH))
        small.free()
        before = ps._coordinator.fleet.control.status(ps.servers[0]).rss_bytes
        m = make()
        pushed, took_s = fill(m, lambda: None)
        status = ps._coordinator.fleet.control.status(ps.servers[0])
    servers = InProcessServers(1, LIMIT_BYTES)
    with in_process_session(servers):
        timer, m = Timer(servers), make()
        engine_pushed, _ = fill(m, timer.reset)
        keys = m.keyStatus() if m._first._spec.key_policy is not None else ""
        speeds = engine_pushed / timer.total_s, pushed / took_s
        longest = timer.longest_s, timer.longest_cpu_s
        return Found(status.rss_bytes - before, status.memory_bytes, *speeds, *longest, str(keys))


def active_at(ids: np.ndarray[Any, Any], active_keys: int, day: float) -> np.ndarray[Any, Any]:
    """Return keys of the active set: ``ids`` below ``active_keys`` as of a time in days, as the set drifts."""
    generation = np.floor(day / DRIFT_DAYS + ids / active_keys).astype(np.int64)
    return (ids + generation * active_keys) * 7919


def the_day(active_keys: int, distinct: int, policy: dict[str, Any]) -> Fill:
    def fill(m: DCVMatrix, begin: Callable[[], None]) -> tuple[int, float]:
        rng = np.random.default_rng(0)
        pushes, pushed, took_s = 2 * distinct // BATCH, 0, 0.0
        values = np.ones((BATCH, WIDTH), np.float32)
        for number in range(pushes):
            day = number / pushes
            repeated = active_at(rng.integers(0, active_keys, BATCH // 2), active_keys, day)
            once = rng.integers(HUGE // 2, HUGE, BATCH // 2)
            some = np.unique(np.concatenate((repeated, once)))
            began_s = time.perf_counter()
            m.add(columns=some, values=values[: some.size])
            if number % max(1, pushes // SWEEPS) == 0:
                m.advance(day * DAY_S)
                m.expire()
            took_s += time.perf_counter() - began_s
            pushed += some.size
        return pushed, took_s

    return fill


def the_active(active_keys: int, pushes: int) -> Fill:
    """Fill a table with the active set, and time pushes to it."""

    def fill(m: DCVMatrix, begin: Callable[[], None]) -> tuple[int, float]:
        rng, values = np.random.default_rng(0), np.ones((BATCH, WIDTH), np.float32)
        every = active_at(np.arange(active_keys), active_keys, 0.0)
        for at in range(0, active_keys, BATCH):
            some = np.sort(every[at : at + BATCH])
            m.add(columns=some, values=values[: some.size])
        begin()
        pushed, took_s = 0, 0.0
        for _ in range(pushes):
            some = np.unique(active_at(rng.integers(0, active_keys, BATCH), active_keys, 0.0))
            began_s = time.perf_counter()
            m.add(columns=some, values=values[: some.size])
            took_s += time.perf_counter() - began_s
            pushed += some.size
        return pushed, took_s

    return fill


def _part(name: str, active_keys: int, distinct: int, results: Any) -> None:
    policy: dict[str, Any] = {"admitAfter": 3, "expireAfterS": DAY_S / PARTS_OF_DAY, "clock": "event", "init": "normal"}
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "active": {"init": "normal"}, "day": policy}

    def make() -> DCVMatrix:
        return DCV.sparse(2**63, WIDTH, layout="column", **kinds[name]).matrix()

    fill = the_day(active_keys, distinct, policy) if name == "day" else the_active(active_keys, 200)
    results.put(measured(make, fill))


def run(name: str, active_keys: int, distinct: int) -> Found:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_part, args=(name, active_keys, distinct, results))
    process.start()
    found: Found = results.get()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--active", type=int, default=400_000, help="keys of the active set")
    parser.add_argument("--distinct", type=int, default=20_000_000, help="ids that come once")
    asked = parser.parse_args()
    found: dict[str, Found] = {}
    for name in ("plain", "active", "day"):
        one = found[name] = run(name, asked.active, asked.distinct)
        longest_s, operation = one.longest_s
        cpu_s, cpu_operation = one.longest_cpu_s
        print(
            f"{name:7} {one.rss_bytes >> 20:6,} MB resident, {one.counted_bytes >> 20:6,} MB counted, "
            f"{one.keys_s / 1e6:6.2f} M keys/s ({one.engine_keys_s / 1e6:.2f} in the engine), longest request "
            f"{longest_s * 1e3:5.1f} ms ({operation}), {cpu_s * 1e3:5.1f} ms of CPU ({cpu_operation}) {one.status}",
            flush=True,
        )
    day, active, plain = found["day"], found["active"], found["plain"]
    print(f"memory of the day / of its active keys alone: {day.rss_bytes / active.rss_bytes:.2f} (goal: at most 1.3)")
    print(f"throughput of the day / of a table that fits: {day.keys_s / plain.keys_s:.2f} (goal: at least 0.8)")
    wall_s, cpu_s = day.longest_s[0], day.longest_cpu_s[0]
    print(f"longest request: {wall_s * 1e3:.1f} ms, {cpu_s * 1e3:.1f} ms of CPU time (goal: at most 50)")


if __name__ == "__main__":
    main()
