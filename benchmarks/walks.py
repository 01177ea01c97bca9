"""Random walks through a generated graph: steps a second, with the graph on workers and on servers.

docs/performance/embeddings.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, option, take_turns, timed
from benchmarks.local_spark import WORKERS, spark_and_servers
from ps2.algorithms.embeddings.graph_frame import EdgeTable, walks_frame
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import Graph
from ps2.data.ids import Ids

# M steps/s of walks of first order with the graph on servers.
GOAL = 5.0


@dataclass(frozen=True)
class Args(frame.Args):
    edges: int = option(5_000_000, "Edges of the graph, each of one direction.", least=1)
    vertices: int = option(500_000, "Vertices of the graph; one walk starts from each.", least=1)
    length: int = option(40, "Vertices of a walk.", least=2)
    weighted: bool = option(False, "Let edges have weights.")


def workers(args: Args) -> Part:
    """Walk through a graph that each worker holds."""
    return _walked(args, "workers")


def servers(args: Args) -> Part:
    """Walk through a graph that only the servers hold."""
    return _walked(args, "servers")


def _walked(args: Args, where: str) -> Part:
    settings = {
        "first order": BiasedWalkSettings(numWalks=1, walkLength=args.length),
        "p = 4, q = 0.25": BiasedWalkSettings(numWalks=1, walkLength=args.length, p=4, q=0.25),
    }
    with spark_and_servers("walks", args.memory) as (spark, ps):
        table = _table(spark, args)
        share, loaded_s = timed(lambda: _share(spark, table, where, len(ps.servers)))
        turns = take_turns({what: partial(_turn, table, share, one) for what, one in settings.items()}, args.rounds)
    lines = []
    for what, rates in turns.items():
        goal = 1.0 if (where, what) == ("servers", "first order") else None
        lines.append(Line(f"graph on {where}, {what}", "the goal", "M steps/s", goal, [GOAL], rates))
    return Part(lines, facts={"s to load": loaded_s})


def _table(spark: Any, args: Args) -> EdgeTable:
    """Return edges that Spark generates anew on each read."""
    ends = [F.pmod(F.xxhash64("id", F.lit(end)), F.lit(args.vertices)).alias(end) for end in ("source", "target")]
    weight = [(F.rand(1) + 0.1).alias("weight")] if args.weighted else []
    frame = spark.range(0, args.edges, 1, 4 * WORKERS).select(*ends, *weight)
    vertices = Ids(pa.array(np.arange(args.vertices)))
    return EdgeTable(frame, LongType(), args.edges, args.weighted, True, vertices)


def _share(spark: Any, table: EdgeTable, where: str, servers: int) -> Callable[[], Graph]:
    if where == "servers":
        graph = table.on_fleet(servers)
        return lambda: graph
    shared = spark.sparkContext.broadcast(table.local())
    return lambda: shared.value


def _turn(table: EdgeTable, share: Callable[[], Graph], settings: BiasedWalkSettings) -> float:
    """Walk; return million steps a second, including everything until the walks are rows."""
    frame = walks_frame(table, share, settings, WORKERS)
    began_s = time.perf_counter()
    row = frame.agg(F.sum(F.size("walk") - 1).alias("steps")).first()
    assert row is not None
    return float(row["steps"]) / 1e6 / (time.perf_counter() - began_s)


BENCHMARK = Benchmark("walks", Args, {"workers": workers, "servers": servers}, packages=("numba",))

if __name__ == "__main__":
    BENCHMARK.main()
