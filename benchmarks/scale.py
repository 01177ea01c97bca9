"""Many workers: cost of a clock, and resources of coordinator and servers, with bare clients on this machine.

    python -m benchmarks.scale --workers 500,2000

docs/scale.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import psutil

from benchmarks.frame import command, facts, machine, publish, read_numbers, tell
from benchmarks.scale_clients import Asked
from ps2 import PS2Context
from ps2.cli.output import Column, print_table
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
        clock_ms: median and ninth decile of BSP clocks.
        coordinator: resources of the coordinator.
        server: resources of the server that needs most memory.
    """

    workers: int
    clock_ms: float
    slow_ms: float
    connect_s: float
    coordinator: Needs
    server: Needs

    @property
    def met(self) -> bool:
        return (self.workers > 500 or self.clock_ms <= GOAL_MS) and self.coordinator.kb <= 1e3 * GOAL_MB


class _Nobody:
    """A listener of a run without a driver."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: object) -> None: ...
    def failed(self) -> None: ...


@command(
    click.option("--workers", default="500,2000", metavar="N,...", help="Simulated, one number after another."),
    click.option("--clocks", type=click.IntRange(2 * WARM), default=60, help="Of each number."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(workers: str, clocks: int, strict: bool, form: str, output: Path | None) -> None:
    """Let bare clients go through the clocks of a run, each with a connection to every server."""
    lines = [_measured(count, clocks) for count in read_numbers(workers)]
    report: dict[str, Any] = {
        "machine": machine(),
        "facts": {"servers": SERVERS, "client processes": PROCESSES, "clocks": clocks},
        "lines": [{**asdict(line), "met": line.met} for line in lines],
    }
    publish(report, form, output, lambda: _print(report, lines))
    sys.exit(1 if strict and not all(line.met for line in lines) else 0)


def _measured(workers: int, clocks: int) -> Line:
    tell(f"{workers:,} workers")
    with ExitStack() as ending:
        ps = ending.enter_context(PS2Context.getOrCreate(None, servers=SERVERS))
        token = new_token()
        run = RunState(workers, Clocks(workers, 0), _Nobody())
        face = RunServer(run, Binding(), token, WireConfig())
        ending.callback(face.stop)
        ending.callback(run.fail, StoppedError("it is over"))
        here = psutil.Process()
        servers = [process for process in here.children(recursive=True) if _is_server(process)]
        before = [_used(process) for process in (here, *servers)]
        addresses = tuple(ps.servers)
        own = str(ps._token)
        began_s = time.monotonic()
        ending.enter_context(_clients(face.address, token, addresses, own, workers, clocks))
        _wait(lambda: not run.absent(), "workers have come")
        connect_s = time.monotonic() - began_s
        begin = [_used(process) for process in (here, *servers)]
        ends = []
        for clock in range(1, clocks + 1):
            _wait(lambda clock=clock: run.clocks.finished >= clock, "clocks end")
            ends.append(time.monotonic())
        after = [_used(process) for process in (here, *servers)]
        laps = [1e3 * (end - begin) for begin, end in zip(ends[WARM:-1], ends[WARM + 1 :], strict=True)]
        needs = [
            Needs(now.threads, now.files - was.files, (now.memory - was.memory) / workers / 1e3,
                  1e3 * (now.cpu_s - then.cpu_s) / clocks)
            for was, then, now in zip(before, begin, after, strict=True)
        ]  # fmt: skip
        return Line(
            workers, median(laps), quantiles(laps, n=10)[-1], connect_s, needs[0], max(needs[1:], key=lambda n: n.kb)
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
def _clients(
    coordinator: str, token: str, servers: tuple[str, ...], own: str, workers: int, clocks: int
) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    started = []
    for part in range(PROCESSES):
        ranks = tuple(range(part, workers, PROCESSES))
        asked = Asked(coordinator, token, servers, own, ranks, clocks)
        # Through the environment, as the list of processes shows arguments.
        env = {**os.environ, "PS2_SCALE": json.dumps(asdict(asked))}
        started.append(subprocess.Popen([sys.executable, "-m", "benchmarks.scale_clients"], env=env))
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
            process.wait()


def _wait(until: Any, what: str) -> None:
    deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
    while not until():
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"after {BEGIN_TIMEOUT_S:.0f} s not true yet: {what}")
        time.sleep(LOOK_S)


def _print(report: dict[str, Any], lines: Sequence[Line]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(facts(report["facts"]))
    heads = ["workers", "clock ms", "slow ms", "to come s", "of", "threads", "files", "KB a worker", "CPU ms a clock"]
    rows = []
    for line in lines:
        for name, needs in (("coordinator", line.coordinator), ("server", line.server)):
            mine = [f"{line.workers:,}", f"{line.clock_ms:.1f}", f"{line.slow_ms:.1f}", f"{line.connect_s:.1f}"]
            first = mine if name == "coordinator" else [""] * len(mine)
            rows.append(
                [*first, name, str(needs.threads), f"{needs.files:,}", f"{needs.kb:.0f}", f"{needs.cpu_ms:.1f}"]
            )
    print_table([Column(head, right=head != "of") for head in heads], rows)


if __name__ == "__main__":
    main()
