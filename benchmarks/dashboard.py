"""What an open live page costs a training: one run with and without a viewer, in turns; processor time of a clock.

    python -m benchmarks.dashboard --turns 8 --seconds 5

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import pyspark

from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish, tell
from benchmarks.local_spark import local_spark
from ps2 import DCV, STOP, PS2Context

FEATURES, KEYS, ROWS = 1_000_000, 20_000, 400
GOAL = 0.02
# After a switch: servers start and stop to report with their next heartbeats.
SETTLE_S = 1.5
# The viewer is a process of its own, as a browser is. It reads all that comes.
VIEWER = """
import sys, urllib.request
url, cookie = sys.argv[1:]
stream = urllib.request.urlopen(urllib.request.Request(url, headers={"Cookie": cookie}))
while stream.read1(1 << 16):
    pass
"""


@dataclass(frozen=True)
class Turn:
    """A stretch of the run: its begin and end, and the processor time of all processes in it, the viewer's left out."""

    begin_s: float
    end_s: float
    processor_s: float


@command(
    click.option("--turns", type=click.IntRange(2), default=8, help="Turns with a viewer, and as many without."),
    click.option("--seconds", type=click.FloatRange(2), default=5.0, help="Of one turn."),
    click.option("--workers", type=click.IntRange(1), default=2, help="Workers of the run."),
    click.option("--strict", is_flag=True, help="Exit with 1 if the goal is missed, too."),
)
def main(turns: int, seconds: float, workers: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare clocks with and without a viewer."""
    with local_spark("dashboard", workers, "1g") as spark, PS2Context.getOrCreate(spark, servers=2) as ps:
        checks, facts = _measured(ps, spark, turns, seconds, workers)
    part = Part(checks=checks, facts={"workers": workers, "turns": 2 * turns, **facts}).as_json()
    versions = machine(numpy=np.__version__, pyspark=pyspark.__version__)
    report = {"machine": versions, "rounds": turns, "parts": {"dashboard": part}}
    publish(report, form, output, lambda: print_parts(report, lambda _: None))
    sys.exit(exit_code(report, strict))


def _measured(ps: Any, spark: Any, turns: int, seconds: float, workers: int) -> tuple[list[Check], dict[str, Any]]:
    clocks_s: list[float] = []
    switches: list[Turn] = []
    over = threading.Event()
    switching = threading.Thread(target=_switch, args=(ps.dashboardUrl, turns, seconds, switches, over))
    weight = DCV.dense(FEATURES, 2)
    gradient = weight.derive()

    def work(worker: Any, rows: Any) -> None:
        keys = np.sort(worker.rng().choice(FEATURES, KEYS, replace=False))
        x = worker.rng(1).normal(size=(ROWS, 256))
        for _ in worker.clocks(1 << 30):
            w = weight.pull(keys)
            for _ in range(4):
                x @ x.T
            gradient.add(0.01 * w + 0.001, keys)
            worker.log(loss=float(w[0]))

    def update(clock: int) -> object:
        if not clock:
            switching.start()
        weight.zip(gradient).apply("sgd", lr=0.1)
        gradient.zero()
        clocks_s.append(time.monotonic())
        return STOP if over.is_set() else None

    ps.run(spark.sparkContext.parallelize(range(workers), workers), work, workers=workers, onClock=update)
    switching.join()
    turns_found = [_turn_of(turn, np.array(clocks_s)) for turn in switches]
    without, with_viewer = turns_found[::2], turns_found[1::2]
    ratios = [watched[0] / alone[0] for watched, alone in zip(with_viewer, without, strict=True)]
    walls = [watched[1] / alone[1] for watched, alone in zip(with_viewer, without, strict=True)]
    tell(f"processor time of a clock, by turn: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
    tell(f"seconds of a clock, by turn: {', '.join(f'{ratio:.3f}' for ratio in walls)}")
    check = Check("processor time of a clock with the page open / without, minus 1", float(np.median(ratios)) - 1, GOAL)
    facts = {
        "clocks": len(clocks_s),
        "processor ms of a clock without": round(1e3 * float(np.median([alone[0] for alone in without])), 2),
        "with": round(1e3 * float(np.median([watched[0] for watched in with_viewer])), 2),
        "seconds of a clock with / without": round(float(np.median(walls)), 3),
    }
    return [check], facts


def _turn_of(turn: Turn, clocks_s: Any) -> tuple[float, float]:
    """Return processor time and seconds of one clock in a turn."""
    inside = clocks_s[(clocks_s >= turn.begin_s) & (clocks_s < turn.end_s)]
    return turn.processor_s / len(inside), (turn.end_s - turn.begin_s) / len(inside)


def _processor_s(without: int) -> float:
    """Return the processor time of this process and all that it started, Spark and the servers, save one."""
    found = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            if process.pid != without:
                times = process.cpu_times()
                found += times.user + times.system
    return found


def _switch(link: str, turns: int, seconds: float, switches: list[Turn], over: threading.Event) -> None:
    cookies = CookieJar()
    urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies)).open(link).close()
    cookie = "; ".join(f"{one.name}={one.value}" for one in cookies)
    arguments = [sys.executable, "-c", VIEWER, link.partition("?")[0] + "events", cookie]
    for turn in range(2 * turns):
        viewer = subprocess.Popen(arguments) if turn % 2 else None
        pid = 0 if viewer is None else viewer.pid
        time.sleep(SETTLE_S)
        begin_s, before_s = time.monotonic(), _processor_s(pid)
        time.sleep(seconds)
        switches.append(Turn(begin_s, time.monotonic(), _processor_s(pid) - before_s))
        if viewer is not None:
            viewer.kill()
            viewer.wait()
    over.set()


if __name__ == "__main__":
    main()
