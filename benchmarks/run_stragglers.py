"""A worker that is slow in some steps: BSP always waits for it, SSP (staleness 3) and ASP do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.clicks import Clicks, Problem, gradient, minibatch
from benchmarks.frame import Check, Part, answer
from benchmarks.local_spark import start_spark
from benchmarks.ratio import Found
from benchmarks.run_part import Asked
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows

SERVERS = 2
WORKERS = 4
PROBLEM = Problem(rows=20_000, fraction=0.02, lr=1.0, partitions=WORKERS)
FEATURES = 3_000
CLOCKS = 100
# Seconds of work of a step; workers only sleep, so they need no core. In each clock one random worker is ten times
# slower.
STEP_S = 0.005
SLOW_STEP_S = 10 * STEP_S
STALENESS: dict[str, int | None] = {"BSP": 0, "SSP, s=3": 3, "ASP": None}
LOSS_TOLERANCE = 0.01


def measure(asked: Asked) -> Part:
    """Let the three alternate, each from zero weights, with the same slow workers."""
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.run_stragglers", {})
    rates: dict[str, list[float]] = {name: [] for name in STALENESS}
    losses: dict[str, list[float]] = {name: [] for name in STALENESS}
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            clicks = Clicks.make(spark.sparkContext, PROBLEM, FEATURES)
            weight = DCV.dense(FEATURES, rows=1)
            before = clicks.loss(weight.pull())
            ps.run(clicks.rdd, _training(weight, -1), workers=WORKERS)  # every process has compiled its kernels now
            for round_ in range(asked.rounds):
                for name, staleness in STALENESS.items():
                    weight.zero()
                    spans = ps.run(clicks.rdd, _training(weight, round_), workers=WORKERS, staleness=staleness)
                    taken_s = max(ended_s for _, ended_s in spans) - min(began_s for began_s, _ in spans)
                    rates[name].append(CLOCKS / taken_s)
                    losses[name].append(clicks.loss(weight.pull()))
    finally:
        spark.stop()

    def line(name: str, target: float | None) -> Found:
        return Found(f"{name}, one slow worker in each clock", "BSP", "steps/s", target, rates["BSP"], rates[name])

    def check(name: str) -> float:
        return max(abs(mine / bsp - 1) for mine, bsp in zip(losses[name], losses["BSP"], strict=True))

    return Part(
        [line("SSP, s=3", 1.5), line("ASP", None)],
        [Check("final loss of SSP, from BSP's, relative", check("SSP, s=3"), LOSS_TOLERANCE)],
        {
            "workers": WORKERS,
            "clocks": CLOCKS,
            "step ms": 1e3 * STEP_S,
            "slow step ms": 1e3 * SLOW_STEP_S,
            "loss before": round(before, 4),
            **{f"loss {name}": round(float(np.median(found)), 4) for name, found in losses.items()},
        },
    )


def _training(weight: DCV, round_: int) -> Callable[..., tuple[float, float]]:
    """Return a worker's function: gradient descent on its rows; returns the begin and end of its clocks."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> tuple[float, float]:
        block = next(blocks)
        began_s = time.monotonic()
        for clock in worker.clocks(CLOCKS):
            rows = minibatch(PROBLEM, block, clock, worker.rank)
            w = weight.pull(rows.keys)
            g, _ = gradient(rows, w)
            slow = np.random.default_rng([PROBLEM.seed, round_ + 1, clock]).integers(WORKERS)
            time.sleep(SLOW_STEP_S if slow == worker.rank else STEP_S)
            weight.add(-PROBLEM.lr / (PROBLEM.fraction * PROBLEM.rows) * g, rows.keys)
        return began_s, time.monotonic()

    return train


if __name__ == "__main__":
    answer(Asked, measure)
