"""What an open live page costs a training: one run with and without a viewer, in turns; processor time of a clock.

docs/dashboard.md says how to read it.
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
from typing import Any

import numpy as np
import psutil

from benchmarks import frame
from benchmarks.frame import Benchmark, Part, option, within
from benchmarks.local_spark import spark_and_servers
from ps2 import DCV, STOP

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
class Args(frame.Args):
    rounds: int = option(8, "Turns with a viewer, and as many without.", least=2)
    seconds: float = option(5.0, "Seconds of one turn.", least=2)
    workers: int = option(2, "Workers of the run.", least=1)


@dataclass(frozen=True)
class Turn:
    """A stretch of the run: its begin and end, and the processor time of all processes in it, the viewer's left out."""

    begin_s: float
    end_s: float
    processor_s: float


def dashboard(args: Args) -> Part:
    """Compare clocks with and without a viewer."""
    clocks_s: list[float] = []
    switches: list[Turn] = []
    over = threading.Event()

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

    with spark_and_servers("dashboard", "1g", args.workers) as (spark, ps):
        switching = threading.Thread(target=_switch, args=(ps.dashboardUrl, args, switches, over))
        weight = DCV.dense(FEATURES, 2)
        gradient = weight.derive()
        rdd = spark.sparkContext.parallelize(range(args.workers), args.workers)
        ps.run(rdd, work, workers=args.workers, onClock=update)
        switching.join()
    turns = np.array([_turn_of(turn, np.array(clocks_s)) for turn in switches])
    without, watched = turns[::2], turns[1::2]
    ratio, seconds_ratio = np.median(watched / without, axis=0).tolist()
    processor_ms = 1e3 * np.median([without[:, 0], watched[:, 0]], axis=1)
    line = within("processor time of a clock with the page open / without", "of it", 1 + GOAL, [ratio])
    facts = {"clocks": len(clocks_s), "seconds of a clock with / without": seconds_ratio}
    facts |= {f"processor ms of a clock {name}": ms for name, ms in zip(("without", "with"), processor_ms, strict=True)}
    return Part([line], facts=facts)


def _turn_of(turn: Turn, clocks_s: Any) -> tuple[float, float]:
    """Return processor time and seconds of one clock in a turn."""
    inside = clocks_s[(clocks_s >= turn.begin_s) & (clocks_s < turn.end_s)]
    return turn.processor_s / len(inside), (turn.end_s - turn.begin_s) / len(inside)


def _processor_s(without: int) -> float:
    """Return the processor time of this process and all that it started, Spark and the servers, save one."""
    result = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            if process.pid != without:
                times = process.cpu_times()
                result += times.user + times.system
    return result


def _switch(link: str, args: Args, switches: list[Turn], over: threading.Event) -> None:
    cookies = CookieJar()
    urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies)).open(link).close()
    cookie = "; ".join(f"{one.name}={one.value}" for one in cookies)
    arguments = [sys.executable, "-c", VIEWER, link.partition("?")[0] + "events", cookie]
    for turn in range(2 * args.rounds):
        viewer = subprocess.Popen(arguments) if turn % 2 else None
        pid = 0 if viewer is None else viewer.pid
        time.sleep(SETTLE_S)
        begin_s, before_s = time.monotonic(), _processor_s(pid)
        time.sleep(args.seconds)
        switches.append(Turn(begin_s, time.monotonic(), _processor_s(pid) - before_s))
        if viewer is not None:
            viewer.kill()
            viewer.wait()
    over.set()


BENCHMARK = Benchmark("dashboard", Args, {"dashboard": dashboard})

if __name__ == "__main__":
    BENCHMARK.main()
