"""Many workers: cost of a clock, and resources of coordinator and servers, with bare clients on this machine.

    python -m benchmarks.scale --workers 500,2000
    python -m benchmarks.scale --workers 500 --keys 1000

docs/scale.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import psutil

from benchmarks.frame import command, facts, machine, publish, read_numbers, tell
from benchmarks.scale_clients import Asked
from ps2 import DCV, PS2Context
from ps2.cli.output import print_table
from ps2.config import Binding, WireConfig, new_token
from ps2.errors import StoppedError
from ps2.run.clocks import Clocks
from ps2.run.run_server import RunServer
from ps2.run.state import RunState
from ps2.text_tables import Column

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


@dataclass(frozen=True)
class Line:
    """One number of workers.

    Attributes:
        keys: columns that each worker reads and adds to in a clock.
        clock_ms, slow_ms: median and ninth decile of BSP clocks.
        heartbeat_s, late_heartbeat_s: median and longest time between two heartbeats of a server during the clocks.
        coordinator: resources of the coordinator.
        server: resources of the server that needs most memory.
    """

    workers: int
    keys: int
    clock_ms: float
    slow_ms: float
    connect_s: float
    heartbeat_s: float
    late_heartbeat_s: float
    coordinator: Needs
    server: Needs

    @property
    def met(self) -> bool:
        in_time = self.workers > 500 or self.keys > 0 or self.clock_ms <= GOAL_MS
        return in_time and self.coordinator.kb <= 1e3 * GOAL_MB


class Heartbeats:
    """The times between heartbeats of each server, from what the coordinator knows each time that it is looked at."""

    def __init__(self, ps: PS2Context) -> None:
        self._members = ps._coordinator.fleet.master.registry._membership.members
        self._heard_s = {index: member.heard_s for index, member in self._members.items()}
        self.gaps_s: list[float] = []

    def look(self) -> None:
        for index, member in self._members.items():
            if member.heard_s != self._heard_s[index]:
                self.gaps_s.append(member.heard_s - self._heard_s[index])
                self._heard_s[index] = member.heard_s

    def end(self) -> None:
        """Count the time since each server's last heartbeat too, if it is longer than all others."""
        self.look()
        silent_s = time.monotonic() - min(self._heard_s.values())
        if silent_s > max(self.gaps_s, default=0.0):
            self.gaps_s.append(silent_s)


class _Nobody:
    """A listener of a run without a driver."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: object) -> None: ...
    def failed(self) -> None: ...


@command(
    click.option("--workers", default="500,2000", metavar="N,...", help="Simulated, one number after another."),
    click.option("--keys", type=click.IntRange(0), default=0, help="Columns that each pulls and adds to in a clock."),
    click.option("--clocks", type=click.IntRange(2 * WARM), default=60, help="Of each number."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(workers: str, keys: int, clocks: int, strict: bool, form: str, output: Path | None) -> None:
    """Let bare clients go through the clocks of a run, each with a connection to every server."""
    lines = [_measured(count, keys, clocks) for count in read_numbers(workers)]
    report: dict[str, Any] = {
        "machine": machine(),
        "facts": {"servers": SERVERS, "client processes": PROCESSES, "clocks": clocks, "keys": keys},
        "lines": [{**asdict(line), "met": line.met} for line in lines],
    }
    publish(report, form, output, lambda: _print(report, lines))
    sys.exit(1 if strict and not all(line.met for line in lines) else 0)


def _measured(workers: int, keys: int, clocks: int) -> Line:
    tell(f"{workers:,} workers, {keys:,} keys")
    with ExitStack() as ending:
        ps = ending.enter_context(PS2Context.getOrCreate(None, servers=SERVERS))
        vector = DCV.dense(DIM, dtype="float64")
        token = new_token()
        run = RunState(workers, Clocks(workers, 0), _Nobody())
        run_server = RunServer(run, Binding(), token, WireConfig())
        ending.callback(run_server.stop)
        ending.callback(run.fail, StoppedError("it is over"))
        here = psutil.Process()
        servers = [process for process in here.children(recursive=True) if _is_server(process)]
        before = [_used(process) for process in (here, *servers)]
        handle = b64encode(pickle.dumps(vector)).decode() if keys else ""
        asked = Asked(
            run_server.address, token, tuple(ps.servers), str(ps._coordinator.token), (), clocks, keys, handle
        )
        began_s = time.monotonic()
        ending.enter_context(_clients(asked, workers))
        _wait(lambda: not run.absent(), "workers have come")
        connect_s = time.monotonic() - began_s
        begin = [_used(process) for process in (here, *servers)]
        heartbeats = Heartbeats(ps)
        ends: list[float] = []
        while len(ends) < clocks:
            _wait(lambda: run.clocks.finished > len(ends), "clocks end", heartbeats.look)
            ends.append(time.monotonic())
        heartbeats.end()
        after = [_used(process) for process in (here, *servers)]
        if keys and (found := vector.sum()) != workers * clocks * keys:
            raise click.ClickException(f"{workers * clocks * keys:,} additions of 1 come to {found:,.0f}")
        laps = [1e3 * (end - begin) for begin, end in zip(ends[WARM:-1], ends[WARM + 1 :], strict=True)]
        needs = [
            Needs(now.threads, now.files - was.files, (now.memory - was.memory) / workers / 1e3,
                  1e3 * (now.cpu_s - then.cpu_s) / clocks)
            for was, then, now in zip(before, begin, after, strict=True)
        ]  # fmt: skip
        return Line(
            *(workers, keys, median(laps), quantiles(laps, n=10)[-1], connect_s),
            *(median(heartbeats.gaps_s), max(heartbeats.gaps_s), needs[0], max(needs[1:], key=lambda n: n.kb)),
        )


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
def _clients(asked: Asked, workers: int) -> Iterator[None]:
    """Run the workers in their processes; ``asked`` lacks the ranks."""
    started = []
    for part in range(PROCESSES):
        mine = replace(asked, ranks=tuple(range(part, workers, PROCESSES)))
        # Through the environment, as the list of processes shows arguments.
        env = {**os.environ, "PS2_SCALE": json.dumps(asdict(mine))}
        started.append(subprocess.Popen([sys.executable, "-m", "benchmarks.scale_clients"], env=env))
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


def _wait(until: Callable[[], bool], what: str, look: Callable[[], None] = lambda: None) -> None:
    deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
    while not until():
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"after {BEGIN_TIMEOUT_S:.0f} s not true yet: {what}")
        look()
        time.sleep(LOOK_S)


def _print(report: dict[str, Any], lines: Sequence[Line]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(facts(report["facts"]))
    heads = [
        *("workers", "clock ms", "slow ms", "to come s", "heartbeats s", "longest s"),
        *("of", "threads", "files", "KB a worker", "CPU ms a clock"),
    ]
    rows = []
    for line in lines:
        for name, needs in (("coordinator", line.coordinator), ("server", line.server)):
            mine = [
                *(f"{line.workers:,}", f"{line.clock_ms:.1f}", f"{line.slow_ms:.1f}", f"{line.connect_s:.1f}"),
                *(f"{line.heartbeat_s:.2f}", f"{line.late_heartbeat_s:.2f}"),
            ]
            first = mine if name == "coordinator" else [""] * len(mine)
            rows.append(
                [*first, name, str(needs.threads), f"{needs.files:,}", f"{needs.kb:.0f}", f"{needs.cpu_ms:.1f}"]
            )
    print_table([Column(head, right=head != "of") for head in heads], rows)


if __name__ == "__main__":
    main()
