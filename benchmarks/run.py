"""Long-lived workers (``ps.run``): cost of a clock, and stragglers.

docs/performance/run.md says how to read it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.clicks import Clicks, Problem, gradient, minibatch
from benchmarks.frame import Benchmark, Check, Line, Part, in_unit, option, take_turns
from benchmarks.local_spark import WORKERS, spark_and_servers
from benchmarks.raw import raw_grpc
from ps2 import DCV
from ps2.data.rows import LocalRows

# -- of the part overhead: calls, clocks and stages of a turn; the first clocks and stages of a run do not count.
TRIPS, SETTLE_CLOCKS, CLOCKS, SETTLE_STAGES, STAGES = 500, 50, 500, 2, 8
# Size of a vector so small that operations cost only their transport.
SHORT = 1000
# -- of the part stragglers: seconds of a step, of which workers sleep, so that they need no core; in each clock one
# random worker is ten times slower.
MANY, STEP_S, SLOW_STEP_S = 4, 0.005, 0.05
STRAGGLING = Problem(rows=20_000, fraction=0.02, lr=1.0, partitions=MANY)
STRAGGLING_FEATURES, STRAGGLING_CLOCKS, LOSS_TOLERANCE = 3_000, 100, 0.01
STALENESS: dict[str, int | None] = {"BSP": 0, "SSP, s=3": 3, "ASP": None}


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(7, "Turns that the medians are of.", least=2)


# -- overhead ----------------------------------------------------------------------------------------------------------


def overhead(args: Args) -> Part:
    """Compare a clock with a bare gRPC round trip, and with an empty Spark stage."""
    with spark_and_servers("run_overhead", "4g") as (spark, ps), raw_grpc() as plain:
        rows = spark.sparkContext.parallelize(range(WORKERS), WORKERS)
        nothing, short = _loop(lambda: None), _loop(_short_step())
        turns = take_turns(
            {
                "bare gRPC round trip": lambda: _trip_s(plain.round_trip),
                "empty clock": lambda: fmean(ps.run(rows, nothing, workers=WORKERS)),
                "empty clock, onClock": lambda: fmean(ps.run(rows, nothing, workers=WORKERS, onClock=_ignore)),
                "clock with a pull and an add": lambda: fmean(ps.run(rows, short, workers=WORKERS)),
                "empty Spark stage": lambda: _stage_s(rows),
            },
            args.rounds,
            warm_ups=2,
        )
    trips, stages = turns.pop("bare gRPC round trip"), turns.pop("empty Spark stage")
    lines = []
    for what, seconds in turns.items():
        goal = 1 / 8 if what.startswith("empty") else None
        sides = ([in_unit("us", 1, one) for one in taken] for taken in (trips, seconds))
        lines.append(Line(what, "bare gRPC round trip", "us", goal, *sides))
        if goal:
            rates = ([1 / one for one in taken] for taken in (stages, seconds))
            lines.append(Line(what, f"empty Spark stage, {WORKERS} tasks", "steps/s", 20.0, *rates))
    return Part(lines, facts={"clocks a turn": CLOCKS})


def _trip_s(round_trip: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(TRIPS):
        round_trip()
    return (time.perf_counter() - began_s) / TRIPS


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
    vector = DCV.dense(SHORT, rows=1)
    ones = np.ones(SHORT, np.float32)

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


# -- stragglers --------------------------------------------------------------------------------------------------------


def stragglers(args: Args) -> Part:
    """Let BSP, SSP and ASP alternate, each from zero weights, with the same slow workers."""
    losses: dict[str, list[float]] = {name: [] for name in STALENESS}
    rounds = itertools.count()
    with spark_and_servers("run_stragglers", "4g", MANY) as (spark, ps):
        clicks = Clicks.make(spark.sparkContext, STRAGGLING, STRAGGLING_FEATURES)
        weight = DCV.dense(STRAGGLING_FEATURES, rows=1)

        def rate(name: str) -> float:
            weight.zero()
            number = next(rounds) // len(STALENESS)
            training = _straggling(weight, number)
            spans = ps.run(clicks.rdd, training, workers=MANY, staleness=STALENESS[name])
            losses[name].append(clicks.loss(weight.pull()))
            return STRAGGLING_CLOCKS / (max(end_s for _, end_s in spans) - min(begin_s for begin_s, _ in spans))

        rates = take_turns({name: partial(rate, name) for name in STALENESS}, args.rounds)
    apart = max(abs(mine / bsp - 1) for mine, bsp in zip(losses["SSP, s=3"], losses["BSP"], strict=True))
    what = "one slow worker in each clock"
    return Part(
        [
            Line(f"SSP, s=3, {what}", "BSP", "steps/s", 1.5, rates["BSP"], rates["SSP, s=3"]),
            Line(f"ASP, {what}", "BSP", "steps/s", None, rates["BSP"], rates["ASP"]),
        ],
        [Check("final loss of SSP, from BSP's, relative", apart, LOSS_TOLERANCE)],
        {"workers": MANY, **{f"loss {name}": median(values) for name, values in losses.items()}},
    )


def _straggling(weight: DCV, round_: int) -> Callable[..., tuple[float, float]]:
    """Return a worker's function: gradient descent on its rows; returns the begin and end of its clocks."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> tuple[float, float]:
        block = next(blocks)
        began_s = time.monotonic()
        for clock in worker.clocks(STRAGGLING_CLOCKS):
            rows = minibatch(STRAGGLING, block, clock, worker.rank)
            w = weight.pull(rows.keys)
            g, _ = gradient(rows, w)
            slow = np.random.default_rng([STRAGGLING.seed, round_ + 1, clock]).integers(MANY)
            time.sleep(SLOW_STEP_S if slow == worker.rank else STEP_S)
            weight.add(-STRAGGLING.lr / (STRAGGLING.fraction * STRAGGLING.rows) * g, rows.keys)
        return began_s, time.monotonic()

    return train


BENCHMARK = Benchmark(
    "run",
    Args,
    {"overhead": overhead, "stragglers": stragglers},
    packages=("grpcio",),
)

if __name__ == "__main__":
    BENCHMARK.main()
