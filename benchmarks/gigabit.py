"""Training vectors on the servers or on pulled rows, over links of 1 Gbit/s: Figure 9(c, d), and the choice of
``auto``.

docs/performance/embeddings.md says how to read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, ask, option, tell
from benchmarks.local_spark import spark_and_servers
from benchmarks.namespaces import hosts, served
from ps2.algorithms.embeddings.cost_probes import predict_seconds
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.program import EmbeddingLoop, EmbeddingProgram
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS, Batch
from ps2.algorithms.embeddings.settings import Word2VecSettings
from ps2.algorithms.embeddings.tables import ServerTables, SlicedTable, put_aliases
from ps2.algorithms.embeddings.work import STRATEGIES
from ps2.algorithms.embeddings.worker import EpochSchedule, WorkerSetup, batch_tokens
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.algorithms.training.record import Via

WAYS: tuple[Via, ...] = ("servers", "rows")
SENTENCE = 40
# Words are as popular as vertices of a graph by degree: rank to this power, with the first ones about equal.
POWER, ALIKE = -0.75, 10
# Batches of a run, one a clock. The first batch does not count, nor does the last, which waits for all transfers.
BATCHES = 6
CLOSE = 1.2
# Of the worker.
THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Args(frame.Args):
    servers: tuple[int, ...] = option((1, 2, 4, 8), "Sizes of the fleet, one after another.", least=1)
    columns: tuple[int, ...] = option((32, 128, 512, 1024), "Numbers of a vector.", least=1)
    words: int = option(100_000, "Vectors of each of the two tables.", least=2)
    rate: str = option("1gbit", "Rate of each host's link, as tc writes it.")
    addresses: tuple[str, ...] = option(("",), "Addresses of all servers; hosts of their own by default.")
    token_file: str = option("", "File of their token.")


def links(args: Args) -> Any:
    """Compare the ways on separate hosts, each with its own link."""
    with hosts(1 + max(args.servers), args.rate) as (worker, *others), served(others) as (addresses, token_file):
        remote = replace(args, addresses=addresses, token_file=token_file)
        return ask(on_worker, remote, "gigabit", worker.command())


def on_worker(args: Args) -> Part:
    """Train in each way, with servers on other hosts: microseconds a token, and what ``auto`` expects of them."""
    lines, rows = [], []
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for servers in args.servers:
        fleet: dict[str, Any] = {"fleet": args.addresses[:servers], "tokenFile": args.token_file}
        with spark_and_servers("gigabit", "1g", 1, **fleet) as (_, ps):
            for way in WAYS:  # the first time, connections are made and kernels loaded
                _trained(ps, _plan(args, min(args.columns)).with_via(way))
            for columns in args.columns:
                plan = _plan(args, columns)
                costs = predict_seconds(plan, _frequencies(plan), servers, 1, THREADS)
                expected = {way: 1e6 * float(cost) for way, cost in zip(STRATEGIES, costs, strict=True) if way in WAYS}
                measured = {way: _trained(ps, plan.with_via(way)) for way in WAYS}
                chosen = min(WAYS, key=lambda way: expected[way])
                fastest = min(WAYS, key=lambda way: measured[way])
                what = f"auto ({chosen}), {servers} servers, d={columns}"
                sides = [measured[fastest]], [measured[chosen]]
                lines.append(Line(what, f"the faster way ({fastest})", "us a token", 1 / CLOSE, *sides))
                ratio = measured["rows"] / measured["servers"]
                rows.append(
                    {
                        "servers": servers,
                        "d": columns,
                        **{f"{way} us": f"{us:.1f}" for way, us in measured.items()},
                        **{f"expected: {way}": f"{us:.1f}" for way, us in expected.items()},
                        "rows/servers": f"{ratio:.2f}",
                    }
                )
                tell(str(rows[-1]))
                x, y = curves.setdefault(f"{servers} servers", ([], []))
                x.append(columns)
                y.append(ratio)
    return Part(lines, facts={"workers": 1}, table=rows, curves={"rows/servers by d": curves})


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Batches of one size with random words.

    Attributes:
        each: tokens of a batch.
        shares: relative frequency of each word.
    """

    each: int
    shares: Any

    @property
    def tokens(self) -> int:
        return BATCHES * self.each

    def batches(self, epoch: int) -> Iterator[Batch]:
        rng = np.random.default_rng(epoch)
        offsets = np.append(np.arange(0, self.each, SENTENCE), self.each)
        for _ in range(BATCHES):
            yield rng.choice(len(self.shares), self.each, p=self.shares).astype(np.int32), offsets


def _plan(args: Args, columns: int) -> EmbeddingPlan:
    settings = Word2VecSettings(vectorSize=columns, windowSize=5, negative=5, stepSize=1e-3)
    return EmbeddingPlan(settings=settings, vocabulary=args.words, total=BATCHES * BATCH_TOKENS)


def _frequencies(plan: EmbeddingPlan) -> Any:
    return (1e9 * _shares(plan.vocabulary)).astype(np.int64) + 1


def _shares(words: int) -> Any:
    popular = (np.arange(words) + float(ALIKE)) ** POWER
    return popular / popular.sum()


def _trained(ps: Any, plan: EmbeddingPlan) -> float:
    """Train one worker on some batches; return microseconds a token."""
    frequencies = _frequencies(plan)
    # Longer vectors are pulled for fewer tokens at a time.
    sample = _Drawn(batch_tokens(plan) if plan.settings.via == "rows" else BATCH_TOKENS, _shares(plan.vocabulary))
    fleet = ServerTables.make(plan, len(ps.servers), UNNAMED)
    try:
        fleet.initialize(plan)
        if isinstance(fleet.vectors, SlicedTable) and isinstance(fleet.contexts, SlicedTable):
            draws = Sampler.from_frequencies(plan, frequencies)
            put_aliases(fleet.vectors, fleet.contexts, draws.thresholds, draws.aliases)
        shared = ps.sparkContext.broadcast(frequencies)
        loop = EmbeddingLoop(WorkerSetup(plan, EpochSchedule(1, BATCHES), fleet, THREADS), lambda: shared.value)
        ends: list[float] = []

        def clocked(clock: int) -> None:
            ends.append(time.perf_counter())

        rdd = ps.sparkContext.parallelize([0], 1)
        ps.run(rdd, loop, 1, EmbeddingProgram.staleness, read=lambda worker, rows: sample, onClock=clocked)
        return 1e6 * float(np.median(np.diff(ends[:-1]))) / sample.each
    finally:
        fleet.free()


BENCHMARK = Benchmark("gigabit", Args, {"links": links})

if __name__ == "__main__":
    BENCHMARK.main()
