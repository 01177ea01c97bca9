"""Workers and servers doubled on slow links: Figure 13(a).

docs/performance/wire.md says how to read it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import psutil
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.clicks import Problem, generate, gradient
from benchmarks.fleet_sizes_daemon import HOSTS
from benchmarks.frame import Benchmark, Check, Line, Part, ask, option, take_turns
from benchmarks.local_spark import start_spark
from benchmarks.namespaces import hosts, served
from ps2 import DCV, PS2Conf, PS2Context
from ps2.data.rows import LocalRows, Rows

# Rows are drawn block by block, so that a step has the same rows on any number of workers that divides this.
BLOCKS = 8
# Share of the rows that a step takes.
FRACTION = 0.25
PROBLEM = Problem(fraction=FRACTION, lr=0.05, partitions=BLOCKS)
# The first steps of a training do not count: connections are made, and servers meet the keys.
SETTLE_STEPS, COUNTED_STEPS = 2, 6
STEPS = SETTLE_STEPS + COUNTED_STEPS
# Sums of float32 in another order.
TOLERANCE = 1e-4
# A host's network device.
DEVICE = "eth0"


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(2, "Turns that the medians are of.", least=1)
    fleets: tuple[str, ...] = option(
        ("1+1", "2+1", "2+2", "4+4", "8+8"), "Workers+servers; each is compared with the first."
    )
    rate: str = option("100mbit", "Rate of each host's link, as tc writes it.")
    features: int = option(10_000_000, "Features of the model.", least=1000)
    rows: int = option(50_000, "Rows of a step, over all workers.", least=8)
    driver: str = option("", "Address of the driver's host; hosts of their own by default.")
    workers: tuple[str, ...] = option(("",), "Names of the workers' hosts.")
    addresses: tuple[str, ...] = option(("",), "Addresses of all servers; a fleet consists of the first ones.")
    token_file: str = option("", "File of their token.")


def links(args: Args) -> Any:
    """Train on hosts of their own, each with its own link: the driver, each worker and each server."""
    workers, servers = (max(counts) for counts in zip(*map(_size, args.fleets), strict=True))
    with hosts(1 + workers + servers, args.rate) as (driver, *others), served(others[workers:]) as (addresses, token):
        names = tuple(host.name for host in others[:workers])
        remote = replace(args, driver=driver.address, workers=names, addresses=addresses, token_file=token)
        return ask(on_driver, remote, "fleet_sizes", driver.command())


def _size(fleet: str) -> tuple[int, int]:
    if not re.fullmatch(r"[1-8]\+[1-8]", fleet):
        raise click.BadParameter(f"--fleets: expected W+S of 1 to 8 each, such as 2+2, got {fleet!r}")
    workers, servers = fleet.split("+")
    return int(workers), int(servers)


class WorkerTimes(NamedTuple):
    """Medians of a worker's counted steps.

    Attributes:
        pull_s, gradient_s, push_s: seconds; ``gradient_s`` has the sampling, too.
        keys: features of the minibatch.
        received, sent: bytes of its link.
    """

    pull_s: float
    gradient_s: float
    push_s: float
    keys: float
    received: float
    sent: float


@dataclass(frozen=True, eq=False)
class Training:
    """What a training came to.

    Attributes:
        step_s, update_s: medians; an update is Adam's on the servers.
        workers: one each.
        weights: some of the model's at its end.
    """

    step_s: float
    update_s: float
    workers: Sequence[WorkerTimes]
    weights: npt.NDArray[np.float32]


def on_driver(args: Args) -> Part:
    """Train on each fleet in turns."""
    os.environ[HOSTS] = ",".join(args.workers)
    settings = {"spark.driver.memory": "2g", "spark.python.daemon.module": "benchmarks.fleet_sizes_daemon"}
    spark = start_spark(f"local[{len(args.workers)}]", "fleet_sizes", settings)
    turns = take_turns({fleet: partial(_on_fleet, spark, args, fleet) for fleet in args.fleets}, args.rounds, 0)
    spark.stop()
    first = args.fleets[0]
    step_s = {fleet: [training.step_s for training in trainings] for fleet, trainings in turns.items()}
    lines = [Line(fleet, first, "s a step", None, step_s[first], step_s[fleet]) for fleet in args.fleets[1:]]
    reference = turns[first][0].weights
    differ = max(np.abs(one.weights - reference).max() for trainings in turns.values() for one in trainings)
    check = Check("weights of all fleets, largest difference", float(differ), TOLERANCE)
    facts = {"cores": len(os.sched_getaffinity(0))}
    return Part(lines, [check], facts, [_row(fleet, trainings) for fleet, trainings in turns.items()])


def _row(fleet: str, trainings: Sequence[Training]) -> dict[str, Any]:
    def longest(name: str) -> float:
        return float(np.median([max(getattr(worker, name) for worker in one.workers) for one in trainings]))

    step_s = float(np.median([one.step_s for one in trainings]))
    return {
        "workers+servers": fleet,
        "s a step": f"{step_s:.3f}",
        "keys a worker": f"{longest('keys'):,.0f}",
        "pull": f"{longest('pull_s'):.3f}",
        "gradient": f"{longest('gradient_s'):.3f}",
        "push": f"{longest('push_s'):.3f}",
        "update": f"{np.median([one.update_s for one in trainings]):.3f}",
        "MB to, from a worker": f"{longest('received') / 1e6:.1f}, {longest('sent') / 1e6:.1f}",
    }


def _on_fleet(spark: Any, args: Args, fleet: str) -> Training:
    workers, servers = map(int, fleet.split("+"))
    conf = PS2Conf(bindAddress=args.driver)
    addresses = args.addresses[:servers]
    with PS2Context.getOrCreate(spark, fleet=addresses, tokenFile=args.token_file, conf=conf) as ps:
        weight = DCV.dense(args.features, 4)
        vectors = (weight, weight.derive(), weight.derive(), weight.derive())
        for vector in vectors:
            vector.fill(0.0)  # the memory is there from now on
        ends: list[float] = []
        updates: list[float] = []

        def update(step: int) -> None:
            began_s = time.perf_counter()
            _, velocity, square, gradients = vectors
            with ps.batch():
                gradients.mul(1.0 / args.rows)
                weight.zip(velocity, square, gradients).apply("adam", lr=PROBLEM.lr, step=step + 1)
                gradients.zero()
            ends.append(time.perf_counter())
            updates.append(ends[-1] - began_s)

        rdd = spark.sparkContext.parallelize(range(workers), workers)
        problem = replace(PROBLEM, rows=round(args.rows / FRACTION))
        result = ps.run(
            rdd, _training(problem, vectors[0], vectors[3]), workers, read=_reading(args, problem), onClock=update
        )
        sample = np.arange(0, args.features, max(1, args.features // 100_000))
        weights = weight.pull(sample)
        weight.free()
    counted = slice(SETTLE_STEPS, None)
    return Training(
        float(np.median(np.diff(ends)[SETTLE_STEPS - 1 :])),
        float(np.median(updates[counted])),
        list(result),
        weights,
    )


@dataclass(frozen=True, eq=False)
class _Held:
    """A worker's rows: ``rows`` of its ``blocks``, ``each`` a block."""

    rows: LocalRows
    blocks: range
    each: int

    def minibatch(self, step: int) -> LocalRows:
        """Draw the same number of rows of each block."""
        count = round(FRACTION * self.each)
        numbers = [
            at * self.each + np.sort(np.random.default_rng([step, block]).choice(self.each, count, replace=False))
            for at, block in enumerate(self.blocks)
        ]
        return self.rows.take(np.concatenate(numbers))


def _reading(args: Args, problem: Problem) -> Callable[..., _Held]:
    features = args.features

    def read(worker: Any, numbers: Iterator[int]) -> _Held:
        for _ in numbers:
            pass  # the rank says which blocks are a worker's
        share = BLOCKS // worker.workers
        blocks = range(worker.rank * share, (worker.rank + 1) * share)
        parts = [generate(problem, features, block) for block in blocks]
        columns = np.concatenate([part.keys[part.x.indices] for part in parts])
        count = sum(map(len, parts))
        indptr = np.arange(0, columns.size + 1, problem.fields)
        x = sp.csr_array((np.ones(columns.size, np.float32), columns, indptr), shape=(count, features))
        rows = Rows(x, np.concatenate([part.y for part in parts if part.y is not None])).localize()
        return _Held(rows, blocks, problem.rows // BLOCKS)

    return read


def _training(problem: Problem, weight: DCV, gradients: DCV) -> Callable[[Any, _Held], WorkerTimes]:
    def train(worker: Any, held: _Held) -> WorkerTimes:
        laps = []
        for step in worker.clocks(STEPS):
            began_s, moved = time.perf_counter(), _moved()
            rows = held.minibatch(step)
            sampled_s = time.perf_counter()
            w = weight.pull(rows.keys)
            pulled_s = time.perf_counter()
            g, _ = gradient(rows, w)
            computed_s = time.perf_counter()
            gradients.add(g, rows.keys)
            pushed_s = time.perf_counter()
            computing_s = computed_s - pulled_s + sampled_s - began_s
            times = (pulled_s - sampled_s, computing_s, pushed_s - computed_s)
            laps.append((*times, len(rows.keys), *np.subtract(_moved(), moved)))
        return WorkerTimes(*np.median(np.array(laps[SETTLE_STEPS:], float), axis=0).tolist())

    return train


def _moved() -> tuple[int, int]:
    """Return the bytes that this host has received and sent."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_recv, counters.bytes_sent


BENCHMARK = Benchmark("fleet_sizes", Args, {"links": links})

if __name__ == "__main__":
    BENCHMARK.main()
