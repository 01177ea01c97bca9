"""What an open live page costs a training: one run whose clocks are timed with and without a viewer, in turns.

    python -m benchmarks.dashboard --turns 10 --seconds 5

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import click
import numpy as np
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


@command(
    click.option("--turns", type=click.IntRange(2), default=10, help="Turns with a viewer, and as many without."),
    click.option("--seconds", type=click.FloatRange(2), default=5.0, help="Of one turn."),
    click.option("--workers", type=click.IntRange(1), default=2, help="Workers of the run."),
    click.option("--strict", is_flag=True, help="Exit with 1 if the goal is missed, too."),
)
def main(turns: int, seconds: float, workers: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare clocks with and without a viewer."""
    with local_spark("dashboard", workers, "1g") as spark, PS2Context.getOrCreate(spark, servers=2) as ps:
        checks, facts = _measured(ps, spark, turns, seconds, workers)
    part = Part(checks=checks, facts={"workers": workers, "turns": 2 * turns, **facts}).as_json()
    report = {"machine": machine(numpy=np.__version__, pyspark=pyspark.__version__), "parts": {"dashboard": part}}
    publish(report | {"rounds": 1}, form, output, lambda: print_parts(report, lambda _: None))
    sys.exit(exit_code(report, strict))


def _measured(ps: Any, spark: Any, turns: int, seconds: float, workers: int) -> tuple[list[Check], dict[str, Any]]:
    clocks_s: list[float] = []
    switches: list[tuple[float, float, bool]] = []  # begin and end of each turn, and whether somebody looked
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
    durations = np.diff(clocks_s)
    found = [
        (
            looked,
            float(durations[(begin_s + SETTLE_S <= np.array(clocks_s[:-1])) & (np.array(clocks_s[1:]) < end_s)].mean()),
        )
        for begin_s, end_s, looked in switches
    ]
    without = [clock_s for looked, clock_s in found if not looked]
    with_viewer = [clock_s for looked, clock_s in found if looked]
    ratios = [open_s / closed_s for open_s, closed_s in zip(with_viewer, without, strict=True)]
    tell(f"ratios by turn: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
    check = Check(
        "clock with the page open / without, minus 1 (median of the turns)", float(np.median(ratios)) - 1, GOAL
    )
    facts = {
        "clocks": len(clocks_s),
        "clock ms without": round(1e3 * float(np.median(without)), 2),
        "with": round(1e3 * float(np.median(with_viewer)), 2),
    }
    return [check], facts


def _switch(
    link: str, turns: int, seconds: float, switches: list[tuple[float, float, bool]], over: threading.Event
) -> None:
    cookies = CookieJar()
    urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies)).open(link).close()
    cookie = "; ".join(f"{one.name}={one.value}" for one in cookies)
    arguments = [sys.executable, "-c", VIEWER, link.partition("?")[0] + "events", cookie]
    for turn in range(2 * turns):
        looked = turn % 2 == 1
        viewer = subprocess.Popen(arguments) if looked else None
        begin_s = time.monotonic()
        time.sleep(seconds)
        switches.append((begin_s, time.monotonic(), looked))
        if viewer is not None:
            viewer.kill()
            viewer.wait()
    over.set()


if __name__ == "__main__":
    main()
