"""The driver of ``benchmarks.fleet_sizes``, in its own process: the same training on fleets of several sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import scipy.sparse as sp

from benchmarks.clicks import Problem, generate, gradient
from benchmarks.fleet_sizes_daemon import HOSTS
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from ps2 import DCV, PS2Conf, PS2Context
from ps2.data.rows import LocalRows, Rows
from ps2.rpc.control import ServerControl
from ps2.rpc.network import FleetNetwork

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
DEVICE = "eth0"


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        fleets: workers and servers, "W+S".
        driver: this host's address.
        workers: names of the workers' hosts.
        addresses: of all servers; a fleet consists of the first ones.
        token_file: of the fleet.
        rate: of links.
        features: of the model.
        rows: of a step.
        rounds: turns that the medians are of.
    """

    fleets: tuple[str, ...]
    driver: str
    workers: tuple[str, ...]
    addresses: tuple[str, ...]
    token_file: str
    rate: str
    features: int
    rows: int
    rounds: int


class OfWorker(NamedTuple):
    """Medians of a worker's counted steps.

    Attributes:
        pull_s, gradient_s, push_s: seconds; ``gradient_s`` has the sampling, too.
        cpu_s: seconds of CPU.
        keys: features of the minibatch.
        received, sent: bytes of its link.
    """

    pull_s: float
    gradient_s: float
    push_s: float
    cpu_s: float
    keys: float
    received: float
    sent: float


@dataclass(frozen=True, eq=False)
class Training:
    """What a training came to.

    Attributes:
        step_s, update_s: medians; an update is Adam's on the servers.
        workers: one each.
        servers_cpu_s: seconds of CPU a step, over all servers.
        weights: some of the model's at its end.
    """

    step_s: float
    update_s: float
    workers: Sequence[OfWorker]
    servers_cpu_s: float
    weights: npt.NDArray[np.float32]

    @property
    def cpu_s(self) -> float:
        return self.servers_cpu_s + sum(worker.cpu_s for worker in self.workers)


def measure(asked: Asked) -> Part:
    """Train on each fleet in turns."""
    os.environ[HOSTS] = ",".join(asked.workers)
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.python.daemon.module": "benchmarks.fleet_sizes_daemon",
    }
    spark = start_spark(f"local[{len(asked.workers)}]", "benchmarks.fleet_sizes", settings)
    found: dict[str, list[Training]] = {fleet: [] for fleet in asked.fleets}
    try:
        for round_ in range(asked.rounds):
            for fleet, trainings in found.items():
                trainings.append(_on_fleet(spark, asked, fleet))
                tell(f"turn {round_ + 1}, {fleet}: {trainings[-1].step_s:.3f} s a step")
    finally:
        spark.stop()
    first = asked.fleets[0]
    step_s = {fleet: [training.step_s for training in trainings] for fleet, trainings in found.items()}
    lines = [Line(fleet, first, "s a step", None, step_s[first], step_s[fleet]) for fleet in asked.fleets[1:]]
    reference = found[first][0].weights
    differ = max(np.abs(one.weights - reference).max() for trainings in found.values() for one in trainings)
    facts = {
        "features": f"{asked.features:,}",
        "rows a step": f"{asked.rows:,}",
        "links": asked.rate,
        "cores": len(os.sched_getaffinity(0)),
    }
    check = Check("weights of all fleets, largest difference", float(differ), TOLERANCE)
    return Part(lines, [check], facts, [_sizes(fleet, trainings) for fleet, trainings in found.items()])


def _sizes(fleet: str, trainings: Sequence[Training]) -> dict[str, Any]:
    def longest(name: str) -> float:
        return float(np.median([max(getattr(worker, name) for worker in one.workers) for one in trainings]))

    step_s = float(np.median([one.step_s for one in trainings]))
    cpu_s = float(np.median([one.cpu_s for one in trainings]))
    return {
        "workers+servers": fleet,
        "s a step": f"{step_s:.3f}",
        "keys a worker": f"{longest('keys'):,.0f}",
        "pull": f"{longest('pull_s'):.3f}",
        "gradient": f"{longest('gradient_s'):.3f}",
        "push": f"{longest('push_s'):.3f}",
        "update": f"{np.median([one.update_s for one in trainings]):.3f}",
        "MB to, from a worker": f"{longest('received') / 1e6:.1f}, {longest('sent') / 1e6:.1f}",
        "CPU s a step": f"{cpu_s:.3f}",
        "cores busy": f"{cpu_s / step_s:.2f}",
    }


def _on_fleet(spark: Any, asked: Asked, fleet: str) -> Training:
    workers, servers = map(int, fleet.split("+"))
    conf = PS2Conf(bindAddress=asked.driver)
    addresses = asked.addresses[:servers]
    with PS2Context.getOrCreate(spark, fleet=addresses, tokenFile=asked.token_file, conf=conf) as ps:
        weight = DCV.dense(asked.features, 4)
        vectors = (weight, weight.derive(), weight.derive(), weight.derive())
        for vector in vectors:
            vector.fill(0.0)  # the memory is there from now on
        pids = [ServerControl(FleetNetwork(ps._coordinator.token)).status(address).pid for address in ps.servers]
        ends: list[float] = []
        updates: list[float] = []
        servers_cpu: list[float] = []

        def update(step: int) -> None:
            began_s = time.perf_counter()
            _, velocity, square, gradients = vectors
            with ps.batch():
                gradients.mul(1.0 / asked.rows)
                weight.zip(velocity, square, gradients).apply("adam", lr=PROBLEM.lr, step=step + 1)
                gradients.zero()
            ends.append(time.perf_counter())
            updates.append(ends[-1] - began_s)
            servers_cpu.append(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids))

        rdd = spark.sparkContext.parallelize(range(workers), workers)
        problem = replace(PROBLEM, rows=round(asked.rows / FRACTION))
        found = ps.run(
            rdd, _training(problem, vectors[0], vectors[3]), workers, read=_reading(asked, problem), onClock=update
        )
        sample = np.arange(0, asked.features, max(1, asked.features // 100_000))
        weights = weight.pull(sample)
        weight.free()
    counted = slice(SETTLE_STEPS, None)
    return Training(
        float(np.median(np.diff(ends)[SETTLE_STEPS - 1 :])),
        float(np.median(updates[counted])),
        list(found),
        (servers_cpu[-1] - servers_cpu[SETTLE_STEPS - 1]) / COUNTED_STEPS,
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


def _reading(asked: Asked, problem: Problem) -> Callable[..., _Held]:
    features = asked.features

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


def _training(problem: Problem, weight: DCV, gradients: DCV) -> Callable[[Any, _Held], OfWorker]:
    def train(worker: Any, held: _Held) -> OfWorker:
        laps = []
        for step in worker.clocks(STEPS):
            began_s, cpu_s, moved = time.perf_counter(), time.process_time(), _moved()
            rows = held.minibatch(step)
            sampled_s = time.perf_counter()
            w = weight.pull(rows.keys)
            pulled_s = time.perf_counter()
            g, _ = gradient(rows, w)
            computed_s = time.perf_counter()
            gradients.add(g, rows.keys)
            pushed_s = time.perf_counter()
            computing_s = computed_s - pulled_s + sampled_s - began_s
            times = (pulled_s - sampled_s, computing_s, pushed_s - computed_s, time.process_time() - cpu_s)
            laps.append((*times, len(rows.keys), *np.subtract(_moved(), moved)))
        return OfWorker(*np.median(np.array(laps[SETTLE_STEPS:], float), axis=0).tolist())

    return train


def _moved() -> tuple[int, int]:
    """Return the bytes that this host has received and sent."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_recv, counters.bytes_sent


if __name__ == "__main__":
    answer(Asked, measure)
