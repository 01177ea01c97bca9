"""Slow links: rotation of topics against BSP and SSP, and pulls by keys against whole pulls.

Two workers are on one host, and each of two servers on another. docs/performance/run.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks import frame, topics_data
from benchmarks.clicks import Problem as ClickProblem
from benchmarks.clicks import generate, gradient
from benchmarks.frame import Benchmark, Check, Line, Part, ask, option, take_turns, tell
from benchmarks.local_spark import SERVERS, WORKERS, spark_and_servers
from benchmarks.namespaces import hosts, served
from benchmarks.topics import SAMPLING
from ps2 import DCV
from ps2.algorithms.clustering import LDA
from ps2.data.rows import LocalRows

# A host's network device.
DEVICE = "eth0"
# -- of the part topics
TOKENS, WORDS, LENGTH, TOPICS, ITERATIONS = 2_000_000, 20_000, 100, 100, 10
GOAL = 3.0
WAYS: dict[str, dict[str, Any]] = {
    "rotation": {"sync": "rotation"},
    "bsp": {"sync": "average"},
    "ssp": {"sync": "ssp", "staleness": 1},
}
# -- of the part pulls
PULLS = ClickProblem(rows=100_000, fields=30, fraction=0.01, lr=0.5, partitions=WORKERS)
FEATURES = (40_000, 300_000, 3_000_000, 30_000_000, 60_000_000)
KEYS, WHOLE = "by keys", "whole"
# The first steps of a training do not count.
SETTLE_STEPS, COUNTED_STEPS = 2, 8
# A worker may see what the other one has already added in this clock, or not yet.
TOLERANCE = 1e-3
SAMPLE = 100_000


@dataclass(frozen=True)
class Args(frame.Args):
    rate: str = option("1gbit", "Rate of each link, as tc writes it.")
    addresses: tuple[str, ...] = option(("",), "Addresses of the servers; hosts of their own by default.")
    token_file: str = option("", "File of their token.")


def topics(args: Args) -> Any:
    """Compare seconds to equally likely topics: rotation of blocks of words, averaging (BSP) and SSP."""
    return _on_hosts(topics_there, args)


def pulls(args: Args) -> Any:
    """Compare pulls by keys with whole pulls: Figure 10's gain of PS2 over Petuum, which pulls all of the model."""
    return _on_hosts(pulls_there, args)


def _on_hosts(part: Callable[[Args], Part], args: Args) -> Any:
    with hosts(1 + SERVERS, args.rate) as (workers, *others), served(others) as (addresses, token_file):
        return ask(part, replace(args, addresses=addresses, token_file=token_file), "links", workers.command())


def _started(args: Args) -> Any:
    return spark_and_servers("links", fleet=args.addresses, tokenFile=args.token_file)


def moved() -> tuple[int, int]:
    """Return the bytes that this host has sent and received over its link."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_sent, counters.bytes_recv


# -- topics ------------------------------------------------------------------------------------------------------------


def topics_there(args: Args) -> Part:
    params: dict[str, Any] = {"k": TOPICS, "numWorkers": WORKERS, **SAMPLING}
    with _started(args) as (spark, _):
        rows = topics_data.generated(spark, TOKENS, WORDS, LENGTH, WORKERS)
        LDA(**params, maxIter=1).fit(rows)
        variants = {
            variant: partial(LDA(**params, **own, maxIter=ITERATIONS).fit, rows) for variant, own in WAYS.items()
        }
        turns = take_turns(variants, args.rounds, warm_ups=0)
    histories = {variant: [model.summary.history for model in models] for variant, models in turns.items()}
    ends = {variant: [_losses(one)[-1] for one in result] for variant, result in histories.items()}
    seconds = {
        variant: [
            _seconds_to(one, max(by_way)) for one, by_way in zip(result, zip(*ends.values(), strict=True), strict=True)
        ]
        for variant, result in histories.items()
    }
    ours = seconds.pop("rotation")
    lines = [
        Line("rotation: s to equal likelihood", variant, "s", GOAL if variant == "bsp" else None, theirs, ours)
        for variant, theirs in seconds.items()
    ]
    table = [
        {
            "way": variant,
            "s an iteration": f"{np.median([one.seconds for one in result]):.2f}",
            "-log p a token": f"{np.median(ends[variant]):.4f}",
            "MB read": f"{result[0].bytes / 1e6:.0f}",
        }
        for variant, result in histories.items()
    ]
    curves = {
        variant: [np.cumsum(result[0].seconds).tolist(), _losses(result[0]).tolist()]
        for variant, result in histories.items()
    }
    return Part(lines, table=table, curves={"-log p a token by s": curves})


def _losses(history: Any) -> Any:
    return -np.array(history.metrics["log_likelihood"]) / TOKENS


def _seconds_to(history: Any, loss: float) -> float:
    """Return when a loss was reached, interpolated."""
    return float(np.interp(-loss, -np.minimum.accumulate(_losses(history)), np.cumsum(history.seconds)))


# -- pulls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Training:
    """What a training came to.

    Attributes:
        step_s: median.
        received_mb, sent_mb: of the workers' host in a step; 0 without a link.
        keys: of a minibatch, over all workers.
        weights: some of the model's at its end.
    """

    step_s: float
    received_mb: float
    sent_mb: float
    keys: float
    weights: npt.NDArray[np.float32]


def pulls_there(args: Args) -> Part:
    lines: list[Line] = []
    checks: list[Check] = []
    table: list[dict[str, Any]] = []
    with _started(args) as (spark, ps):
        for features in FEATURES:
            rdd = spark.sparkContext.parallelize(range(WORKERS), WORKERS)
            rdd = rdd.map(lambda number, features=features: generate(PULLS, features, number)).cache()
            rdd.count()
            turns: dict[str, list[Training]] = {KEYS: [], WHOLE: []}
            for turn in range(args.rounds):
                for variant, trainings in turns.items():
                    trainings.append(_pulling(ps, rdd, features, variant, turn))
                    tell(f"{features:,} features, {variant}: {trainings[-1].step_s:.4f} s a step")
            rdd.unpersist()
            what = f"{features:,} features: pulls by keys"
            for unit, figure in (("s a step", "step_s"), ("MB a step", "received_mb")):
                sides = ([getattr(one, figure) for one in turns[variant]] for variant in (WHOLE, KEYS))
                lines.append(Line(what, WHOLE, unit, None, *sides))
            differ = max(
                float(np.abs(one.weights - other.weights).max()) for one, other in zip(*turns.values(), strict=True)
            )
            checks.append(Check(f"{features:,} features: weights of both, largest difference", differ, TOLERANCE))
            table += [_row(features, variant, trainings) for variant, trainings in turns.items()]
    return Part(lines, checks, {"rows": PULLS.rows, "fraction": PULLS.fraction}, table)


def _row(features: int, way: str, trainings: list[Training]) -> dict[str, Any]:
    def figure(name: str) -> float:
        return float(np.median([getattr(one, name) for one in trainings]))

    return {
        "pulls": way,
        "features": features,
        "keys": f"{figure('keys'):,.0f}",
        "ms a step": f"{1e3 * figure('step_s'):.1f}",
        "MB received": f"{figure('received_mb'):.2f}",
        "MB sent": f"{figure('sent_mb'):.2f}",
    }


def _pulling(ps: Any, rdd: Any, features: int, way: str, round_: int) -> Training:
    weight = DCV.dense(features, 1).fill(0.0)
    ends: list[tuple[float, int, int]] = []

    def end(step: int) -> None:
        ends.append((time.perf_counter(), *moved()))

    counts = ps.run(rdd, _pulls(weight, way, round_), workers=WORKERS, onClock=end)
    step_s, sent, received = np.median(np.diff(np.array(ends), axis=0)[SETTLE_STEPS - 1 :], axis=0)
    weights = weight.pull(np.arange(0, features, max(1, features // SAMPLE)))
    weight.free()
    return Training(float(step_s), received / 1e6, sent / 1e6, float(sum(counts)), weights)


def _pulls(weight: DCV, way: str, round_: int) -> Callable[..., float]:
    """Return a worker's function: gradient descent whose changes by keys count from the next step on."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> float:
        (block,) = blocks
        counts = []
        for _ in worker.clocks(SETTLE_STEPS + COUNTED_STEPS):
            rows = block.sample(PULLS.fraction, worker.rng(round_))
            w = weight.pull(rows.keys) if way == KEYS else weight.pull()[rows.keys]
            g, _ = gradient(rows, w)
            weight.sub(PULLS.lr / (PULLS.fraction * PULLS.rows) * g, rows.keys, wait=False)
            counts.append(len(rows.keys))
        return float(np.median(counts))

    return train


BENCHMARK = Benchmark("links", Args, {"topics": topics, "pulls": pulls})

if __name__ == "__main__":
    BENCHMARK.main()
