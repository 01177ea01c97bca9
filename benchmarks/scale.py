"""Many workers: cost of a clock, and resources of coordinator and servers, with bare clients on this machine.

docs/scale.md says how to read it.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles
from typing import Any

import click
import psutil

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, option, tell, within
from benchmarks.scale_clients import Load
from ps2 import DCV, PS2Context
from ps2.config import Binding, WireConfig, new_token
from ps2.errors import StoppedError
from ps2.run.clocks import Clocks
from ps2.run.run_server import RunServer
from ps2.run.state import RunState

SERVERS = 4
PROCESSES = 2
# The first clocks, right after all workers have joined, do not count.
WARM = 5
GOAL_MS, GOAL_MB = 50.0, 1.0
# Of the vector that workers under load read and change.
DIM = 1_000_000
LOOK_S = 0.0005
BEGIN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Args(frame.Args):
    workers: tuple[int, ...] = option((500, 2000), "Simulated workers, one number after another.", least=1)
    keys: int = option(0, "Columns that each pulls and adds to in a clock.", least=0)
    clocks: int = option(60, "Clocks of each number.", least=2 * WARM)


@dataclass(frozen=True)
class Needs:
    """The resources that a process needs for its clients.

    Attributes:
        kb: memory for each worker.
        cpu_ms: CPU time for each clock.
    """

    threads: int
    files: int
    kb: float
    cpu_ms: float


class _Nobody:
    """A listener of a run without a driver."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: object) -> None: ...
    def failed(self) -> None: ...


def clocks(args: Args) -> Part:
    """Let bare clients go through the clocks of a run, each with a connection to every server."""
    lines, rows = [], []
    for workers in args.workers:
        tell(f"{workers:,} workers, {args.keys:,} keys")
        clocks_ms, row, needs = _measured(workers, args.keys, args.clocks)
        goal = 1.0 if workers <= 500 and not args.keys else None
        lines.append(Line(f"{workers:,} workers: a clock", "the goal", "ms", goal, [GOAL_MS], clocks_ms))
        memory = [needs["coordinator"].kb]
        lines.append(within(f"{workers:,} workers: memory a worker", "KB", 1e3 * GOAL_MB, memory))
        rows += [{**row, "process": name, **asdict(one)} for name, one in needs.items()]
    return Part(lines, facts={"servers": SERVERS, "client processes": PROCESSES}, table=rows)


def _measured(workers: int, keys: int, clocks: int) -> tuple[list[float], dict[str, Any], dict[str, Needs]]:
    """Return the milliseconds of clocks, the facts of a row, and what coordinator and the largest server need."""
    with ExitStack() as ending:
        ps = ending.enter_context(PS2Context.getOrCreate(None, servers=SERVERS))
        vector = DCV.dense(DIM, dtype="float64")
        token = new_token()
        run = RunState(workers, Clocks(workers, 0), _Nobody())
        run_server = RunServer(run, Binding(), token, WireConfig())
        ending.callback(run_server.stop)
        ending.callback(run.fail, StoppedError("it is over"))
        coordinator = psutil.Process()
        servers = [process for process in coordinator.children(recursive=True) if _is_server(process)]
        processes = (coordinator, *servers)
        before = [_used(process) for process in processes]
        handle = b64encode(pickle.dumps(vector)).decode() if keys else ""
        load = Load(run_server.address, token, tuple(ps.servers), str(ps._coordinator.token), (), clocks, keys, handle)
        began_s = time.monotonic()
        ending.enter_context(_clients(load, workers))
        _wait(lambda: not run.absent(), "workers have come")
        connect_s = time.monotonic() - began_s
        begin = [_used(process) for process in processes]
        ends: list[float] = []
        while len(ends) < clocks:
            _wait(lambda: run.clocks.finished > len(ends), "clocks end")
            ends.append(time.monotonic())
        after = [_used(process) for process in processes]
        if keys and (total := vector.sum()) != workers * clocks * keys:
            raise click.ClickException(f"{workers * clocks * keys:,} additions of 1 come to {total:,.0f}")
    clocks_ms = [1e3 * (end - begin_s) for begin_s, end in zip(ends[WARM:-1], ends[WARM + 1 :], strict=True)]
    row = {
        "workers": workers,
        "clock ms": f"{median(clocks_ms):.1f}",
        "slow ms": f"{quantiles(clocks_ms, n=10)[-1]:.1f}",
        "to come s": f"{connect_s:.1f}",
    }
    needs = [
        Needs(now.threads, now.files - was.files, (now.memory - was.memory) / workers / 1e3,
              1e3 * (now.cpu_s - then.cpu_s) / clocks)
        for was, then, now in zip(before, begin, after, strict=True)
    ]  # fmt: skip
    return clocks_ms, row, {"coordinator": needs[0], "server": max(needs[1:], key=lambda one: one.kb)}


@dataclass(frozen=True)
class _Used:
    threads: int
    files: int
    memory: int
    cpu_s: float


def _used(process: psutil.Process) -> _Used:
    times = process.cpu_times()
    return _Used(process.num_threads(), process.num_fds(), process.memory_full_info().uss, times.user + times.system)


def _is_server(process: psutil.Process) -> bool:
    return any("ps2" in part for part in process.cmdline())


@contextmanager
def _clients(load: Load, workers: int) -> Iterator[None]:
    """Run the workers in their processes; ``load`` lacks the ranks."""
    started = []
    for part in range(PROCESSES):
        mine = replace(load, ranks=tuple(range(part, workers, PROCESSES)))
        # Through the environment, as the list of processes shows arguments.
        env = {**os.environ, "PS2_SCALE": json.dumps(asdict(mine))}
        started.append(subprocess.Popen([sys.executable, "-m", "benchmarks.scale_clients"], env=env))
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


def _wait(until: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
    while not until():
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"after {BEGIN_TIMEOUT_S:.0f} s not true yet: {what}")
        time.sleep(LOOK_S)


BENCHMARK = Benchmark("scale", Args, {"clocks": clocks})

if __name__ == "__main__":
    BENCHMARK.main()
