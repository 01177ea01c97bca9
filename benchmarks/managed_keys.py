"""A day of ids without bound, scaled down: memory, the longest request, and throughput of managed keys.

Each push holds as many keys of an active set, which slowly drifts, as ids that come once and never again. Keys get
slots at their third touch, and go after a twelfth of the day. Compared with a table of the active set alone: its
memory, and the throughput of pushes of as many keys, all of which have slots.

Memory and throughput are those of one server and a client on one host. Requests are timed on an engine in this process.
Where other programs take the cores, their CPU time says more. docs/performance/online.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Part, ask, option, within
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


@dataclass(frozen=True)
class Args(frame.Args):
    active: int = option(400_000, "Keys of the active set.", least=1)
    distinct: int = option(20_000_000, "Ids that come once.", least=1)


def managed_keys(args: Args) -> Part:
    """Compare the day with tables of its active keys; each in a process of its own."""
    tables = {part.__name__: ask(part, args, "managed_keys")["facts"] for part in (plain, active, day)}
    memory = tables["day"]["MB resident"] / tables["active"]["MB resident"]
    slower = tables["plain"]["M keys/s pushed"] / tables["day"]["M keys/s pushed"]
    lines = [
        within("memory of the day / of its active keys alone", "of it", 1.3, [memory]),
        within("throughput of a table that fits / of the day", "of it", 1.25, [slower]),
        within("the longest request", "ms", 50.0, [tables["day"]["longest request, ms"]]),
    ]
    return Part(lines, table=[{"table": name, **measured} for name, measured in tables.items()])


def plain(args: Args) -> Part:
    """Measure a table of the active set without managed keys."""
    return _measured({}, the_active(args.active, 200))


def active(args: Args) -> Part:
    """Measure a table of the active set with initial values."""
    return _measured({"init": "normal"}, the_active(args.active, 200))


def day(args: Args) -> Part:
    """Measure a day of managed keys."""
    policy = {"admitAfter": 3, "expireAfterS": DAY_S / PARTS_OF_DAY, "clock": "event", "init": "normal"}
    return _measured(policy, the_day(args.active, args.distinct))


class Timer:
    """Times the requests of an engine."""

    def __init__(self, servers: InProcessServers) -> None:
        (self._engine,) = servers.engines.values()
        self._execute = self._engine.execute
        self._engine.execute = self._timed  # type: ignore[method-assign]
        self.reset()

    def reset(self) -> None:
        self.longest_s, self.longest_cpu_s, self.total_s = 0.0, 0.0, 0.0

    def _timed(self, request: Any) -> Any:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return self._execute(request)
        finally:
            took_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
            self.total_s += took_s
            self.longest_s = max(self.longest_s, took_s)
            self.longest_cpu_s = max(self.longest_cpu_s, cpu_s)


Fill = Callable[[DCVMatrix, Callable[[], None]], "tuple[int, float]"]


def _measured(params: dict[str, Any], fill: Fill) -> Part:
    """Run ``fill`` on new tables, in this process and on a server."""

    def make() -> DCVMatrix:
        return DCV.sparse(2**63, WIDTH, layout="column", **params).matrix()

    warm()
    with PS2Context.getOrCreate(servers=1) as ps:
        small = make()
        for _ in range(4):  # so that the server has loaded all kernels
            small.add(columns=np.arange(BATCH), values=np.ones((BATCH, WIDTH), np.float32))
        if "admitAfter" in params:
            small.remove(np.arange(BATCH))
        small.free()
        before = ps._coordinator.fleet.control.status(ps.servers[0]).rss_bytes
        pushed, took_s = fill(make(), lambda: None)
        status = ps._coordinator.fleet.control.status(ps.servers[0])
    servers = InProcessServers(1, LIMIT_BYTES)
    with in_process_session(servers):
        timer, m = Timer(servers), make()
        engine_pushed, _ = fill(m, timer.reset)
        facts = {
            "MB resident": (status.rss_bytes - before) / 1e6,
            "MB counted": status.memory_bytes / 1e6,
            "M keys/s pushed": pushed / took_s / 1e6,
            "in the engine": engine_pushed / timer.total_s / 1e6,
            "longest request, ms": 1e3 * timer.longest_s,
            "of CPU time": 1e3 * timer.longest_cpu_s,
            "status": str(m.keyStatus()) if "admitAfter" in params else "",
        }
    return Part(facts=facts)


def active_at(ids: np.ndarray[Any, Any], active_keys: int, day: float) -> np.ndarray[Any, Any]:
    """Return keys of the active set: ``ids`` below ``active_keys`` as of a time in days, as the set drifts."""
    generation = np.floor(day / DRIFT_DAYS + ids / active_keys).astype(np.int64)
    return (ids + generation * active_keys) * 7919


def the_day(active_keys: int, distinct: int) -> Fill:
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


BENCHMARK = Benchmark("managed_keys", Args, {"managed_keys": managed_keys})

if __name__ == "__main__":
    BENCHMARK.main()
