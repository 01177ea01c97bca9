"""One slow worker: the others use their waiting for further minibatches (slow-worker agnosticism), or run ahead (SSP).

    python -m benchmarks.slow_waiting --slowness 10

docs/performance/run.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.clicks import Clicks, Problem, gradient
from benchmarks.compared import print_report
from benchmarks.frame import Part, command, exit_code, machine, publish, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from benchmarks.slow_part import Curve
from ps2 import DCV, STOP, PS2Context
from ps2.data.rows import LocalRows

SERVERS, WORKERS = 2, 4
FEATURES = 3_000
# Rows of a worker's minibatch.
BATCH = 100
# Seconds of a minibatch; workers sleep, so that two cores do for four of them.
STEP_S = 0.01
# The driver computes losses no more often than after so many seconds.
LOSS_EVERY_S = 0.1
CLOCKS = 100_000
GOAL = 1.2
# Every way takes the best of these for itself, with the first seed.
RATES = (1.0, 2.0, 4.0, 8.0)
MAX_S = 6.0


@dataclass(frozen=True)
class Way:
    """A way of training.

    Attributes:
        name: for people.
        staleness: of the run.
        extra: minibatches that a worker may add to a clock while others are not through with theirs.
        goal: how many times less time using the waiting is to take.
    """

    name: str
    staleness: int | None
    extra: int = 0
    goal: float | None = None


OURS = Way("waiting used", 0, 30)
WAYS = (
    Way("BSP", 0),
    Way("SSP, s=1", 1, goal=GOAL),
    Way("SSP, s=2", 2, goal=GOAL),
    Way("SSP, s=3", 3, goal=GOAL),
    OURS,
    Way("waiting used, SSP, s=1", 1, 30),
    Way("ASP", None),
)


@command(
    click.option(
        "--slowness", type=click.FloatRange(1), multiple=True, default=(3.0, 10.0), help="Of the slow worker."
    ),
    click.option("--seeds", type=click.IntRange(1), default=3, help="Of data and minibatches."),
    click.option("--loss", type=float, default=0.535, help="To train to."),
)
def main(slowness: tuple[float, ...], seeds: int, loss: float, form: str, output: Path | None) -> None:
    """Compare seconds to a loss with one slow worker of four."""
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.slow_waiting", {})
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            found = {f"{slower:g} times": _measured(ps, slower, seeds, loss) for slower in slowness}
    finally:
        spark.stop()
    report: dict[str, Any] = {
        "machine": machine(pyspark=pyspark.__version__),
        "rounds": seeds,
        "parts": {name: part.as_json() for name, part in found.items()},
    }
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict=False))


def _measured(ps: PS2Context, slower: float, seeds: int, loss: float) -> Part:
    taken: dict[Way, list[float]] = {way: [] for way in WAYS}
    done: dict[Way, list[float]] = {way: [] for way in WAYS}
    best: dict[Way, float] = {}
    for seed in range(seeds):
        clicks = Clicks.make(ps.sparkContext, Problem(rows=20_000, partitions=WORKERS, seed=seed), FEATURES)
        for way, seconds in taken.items():
            found = {
                rate: _train(ps, clicks, way, rate, slower, loss) for rate in ([best[way]] if way in best else RATES)
            }
            rate = best.setdefault(way, min(found, key=lambda one: found[one][0]))
            seconds.append(found[rate][0])
            done[way].append(found[rate][1])
            tell(f"{slower:g}, seed {seed}, {way.name}: {[f'{one:g}: {told[0]:.2f}' for one, told in found.items()]}")
        clicks.rdd.unpersist()
    reached = [way for way in WAYS if way is not OURS and np.isfinite(np.median(taken[way]))]
    lines = [Line(OURS.name, way.name, "s", way.goal, taken[way], taken[OURS]) for way in reached]
    sizes = [
        {
            "way": way.name,
            "rate": f"{best[way]:g}",
            f"s to loss {loss:g}": ", ".join(f"{one:.2f}" for one in taken[way]),
            "minibatches a second": f"{np.median(done[way]):.0f}",
        }
        for way in WAYS
    ]
    facts = {"workers": WORKERS, "slow": f"one, {slower:g} times", "features": FEATURES, "rows a minibatch": BATCH}
    return Part(lines, facts=facts, sizes=sizes)


def _train(ps: PS2Context, clicks: Clicks, way: Way, rate: float, slower: float, loss: float) -> tuple[float, float]:
    """Train until the loss is reached, or time is up; return the seconds it took, and minibatches a second."""
    weight = DCV.dense(FEATURES, rows=1).fill(0.0)
    through = DCV.dense(CLOCKS, rows=1).fill(0.0)  # by clock: workers that are through with it
    ends: list[tuple[float, float]] = []
    began_s = time.monotonic()

    def end(clock: int) -> Any:
        now_s = time.monotonic() - began_s
        if ends and now_s < ends[-1][0] + LOSS_EVERY_S:
            return None
        ends.append((now_s, clicks.loss(weight.pull())))
        return STOP if ends[-1][1] <= loss or now_s > MAX_S else None

    counts = ps.run(
        clicks.rdd, _training(weight, through, way, rate, slower), WORKERS, staleness=way.staleness, onClock=end
    )
    for vector in (weight, through):
        vector.free()
    seconds, losses = np.array(ends).T
    return Curve(seconds - seconds[0], losses).seconds_to(loss), sum(counts) / (seconds[-1] - seconds[0] + LOSS_EVERY_S)


def _training(weight: DCV, through: DCV, way: Way, rate: float, slower: float) -> Callable[..., int]:
    """Return a worker's function: steps of gradient descent on its rows; the last worker is the slow one."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> int:
        (block,) = blocks
        step_s = STEP_S * (slower if worker.rank == worker.workers - 1 else 1.0)
        everything = np.arange(FEATURES)
        count = 0
        for clock in worker.clocks(CLOCKS):
            rng = worker.rng()
            w = weight.pull()
            changed = np.zeros_like(w)
            for number in range(1 + way.extra):
                if number == 1:
                    through.add(np.ones(1), np.array([clock]))
                if number and through.pull(np.array([clock]))[0] >= worker.workers:
                    break
                rows = block.take(rng.choice(len(block), BATCH, replace=False))
                g, _ = gradient(rows, (w + changed)[rows.keys])
                time.sleep(step_s)
                changed[rows.keys] -= rate / BATCH / worker.workers * g
                count += 1
            weight.add(changed, everything)
        return count

    return train


if __name__ == "__main__":
    main()
