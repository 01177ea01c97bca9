"""The overhead of a clock of ``ps.run``, compared with a bare gRPC round trip and with an empty Spark stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer
from benchmarks.local_spark import start_spark
from benchmarks.ratio import Found, in_unit
from benchmarks.raw import raw_grpc
from benchmarks.run_part import Asked
from ps2 import DCV, PS2Context

SERVERS = 2
WORKERS = 2
FIRST_ROUNDS = 2
TRIPS = 500
# The first clocks of a run do not count.
SETTLE_CLOCKS = 50
CLOCKS = 500
# The same for stages.
SETTLE_STAGES = 2
STAGES = 8
# Size of a vector so small that operations cost only their transport.
COLUMNS = 1000


def measure(asked: Asked) -> Part:
    """Let all alternate, so that other load on the machine affects all alike."""
    spark = start_spark("local[2]", "benchmarks.run_overhead", {})
    try:
        rows = spark.sparkContext.parallelize(range(WORKERS), WORKERS)
        turns: list[tuple[float, ...]] = []
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps, raw_grpc(1) as plain:
            nothing, short = _loop(lambda: None), _loop(_short_step())
            for _ in range(FIRST_ROUNDS + asked.rounds):
                trip_s = _trip_s(plain.round_trip)
                clock_s = _clock_s(ps, rows, nothing, None)
                called_s = _clock_s(ps, rows, nothing, _ignore)
                turns.append((trip_s, clock_s, called_s, _clock_s(ps, rows, short, None), _stage_s(rows)))
    finally:
        spark.stop()
    trips_s, clocks_s, with_calls_s, short_s, stages_s = zip(*turns[FIRST_ROUNDS:], strict=True)

    def against_trips(what: str, taken_s: tuple[float, ...], target: float | None = 8.0) -> Found:
        in_us = [[in_unit("us", 1, one_s) for one_s in many_s] for many_s in (trips_s, taken_s)]
        return Found(what, "bare gRPC round trip", "us", target, *in_us)

    def against_stages(what: str, taken_s: tuple[float, ...]) -> Found:
        rates = [[in_unit("steps/s", 1, one_s) for one_s in many_s] for many_s in (stages_s, taken_s)]
        return Found(what, f"empty Spark stage, {WORKERS} tasks", "steps/s", 20.0, *rates)

    empty, called = "empty clock, BSP", "empty clock, BSP, onClock"
    return Part(
        [
            against_trips(empty, clocks_s),
            against_trips(called, with_calls_s),
            against_trips(f"clock with a pull and an add of {COLUMNS} columns, BSP", short_s, None),
            against_stages(empty, clocks_s),
            against_stages(called, with_calls_s),
        ],
        facts={"workers": WORKERS, "servers": SERVERS, "clocks a turn": CLOCKS},
    )


def _trip_s(round_trip: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(TRIPS):
        round_trip()
    return (time.perf_counter() - began_s) / TRIPS


def _clock_s(ps: PS2Context, rows: Any, loop: Callable[..., float], on_clock: Callable[[int], object] | None) -> float:
    """Return the seconds a clock of a run, measured by its workers."""
    return fmean(ps.run(rows, loop, workers=WORKERS, onClock=on_clock))


def _loop(step: Callable[[], object]) -> Callable[..., float]:
    """Return a worker's function that calls ``step`` in each clock and returns seconds a clock."""

    def loop(worker: Any, rows: Iterator[Any]) -> float:
        began_s = 0.0
        for clock in worker.clocks(SETTLE_CLOCKS + CLOCKS):
            if clock == SETTLE_CLOCKS:
                began_s = time.perf_counter()
            step()
        return (time.perf_counter() - began_s) / CLOCKS

    return loop


def _short_step() -> Callable[[], object]:
    vector = DCV.dense(COLUMNS, rows=1)
    ones = np.ones(COLUMNS, np.float32)

    def step() -> None:
        vector.pull()
        vector.add(ones)

    return step


def _stage_s(rows: Any) -> float:
    taken_s = []
    for _ in range(SETTLE_STAGES + STAGES):
        began_s = time.perf_counter()
        rows.foreachPartition(_ignore)
        taken_s.append(time.perf_counter() - began_s)
    return median(taken_s[SETTLE_STAGES:])


def _ignore(_: object) -> None:
    return None


if __name__ == "__main__":
    answer(Asked, measure)
