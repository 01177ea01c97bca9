"""One way of ``benchmarks.walks``, in its own process with its own Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from ps2 import PS2Context
from ps2.algorithms.embeddings.ml.edges import EdgeTable
from ps2.algorithms.embeddings.ml.walking import walks_frame
from ps2.algorithms.embeddings.walks import Graph, WalkSettings
from ps2.data.ids import Ids

SERVERS = WORKERS = 2
GOAL = 5e6


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        way: "workers" or "servers".
        edges, vertices: size of the graph; edges are random and directed.
        length: vertices of a walk; each vertex starts one walk.
        rounds: number of rounds behind the medians.
        weighted: True if edges have weights.
    """

    way: str
    edges: int
    vertices: int
    length: int
    rounds: int
    weighted: bool


@dataclass(frozen=True)
class Rate:
    """Steps a second of walks, over all tasks.

    Attributes:
        what: which walks.
        turns: steps/s of each round.
        goal: None, as there is no goal.
    """

    what: str
    turns: tuple[float, ...]
    goal: float | None

    def as_json(self) -> dict[str, Any]:
        median = float(np.median(self.turns))
        return {**asdict(self), "median": median, "met": None if self.goal is None else median >= self.goal}


def measure(asked: Asked) -> Part:
    """Load a graph to where it is walked, and walk."""
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.walks", {"spark.driver.memory": "2g"})
    try:
        table = _table(spark, asked)
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            began_s = time.perf_counter()
            share = _share(spark, table, asked, len(ps.servers))
            loaded_s = time.perf_counter() - began_s
            tell(f"{asked.edges:,} edges on {asked.way} after {loaded_s:.0f} s")
            lines = []
            all_settings = {
                "first order": WalkSettings(1, asked.length),
                "p = 4, q = 0.25": WalkSettings(1, asked.length, p=4, q=0.25),
            }
            for what, settings in all_settings.items():
                goal = GOAL if asked.way == "servers" and what == "first order" else None
                lines.append(
                    Rate(
                        f"graph on {asked.way}, {what}",
                        tuple(_turn(table, share, settings) for _ in range(asked.rounds + 1))[1:],
                        goal,
                    )
                )
                tell(f"{what}: {', '.join(f'{turn / 1e6:.2f}M' for turn in lines[-1].turns)} steps/s")
    finally:
        spark.stop()
    facts = {"edges": f"{asked.edges:,}", "vertices": f"{asked.vertices:,}", "s to load": round(loaded_s, 1)}
    return Part(lines, [], facts)


def _table(spark: Any, asked: Asked) -> EdgeTable:
    """Return edges that Spark generates anew on each read."""
    ends = [F.pmod(F.xxhash64("id", F.lit(end)), F.lit(asked.vertices)).alias(end) for end in ("source", "target")]
    weight = [(F.rand(1) + 0.1).alias("weight")] if asked.weighted else []
    frame = spark.range(0, asked.edges, 1, 4 * WORKERS).select(*ends, *weight)
    vertices = Ids(pa.array(np.arange(asked.vertices)))
    return EdgeTable(frame, LongType(), asked.edges, asked.weighted, True, vertices)


def _share(spark: Any, table: EdgeTable, asked: Asked, servers: int) -> Callable[[], Graph]:
    if asked.way == "servers":
        graph = table.on_fleet(servers)
        return lambda: graph
    shared = spark.sparkContext.broadcast(table.local())
    return lambda: shared.value


def _turn(table: EdgeTable, share: Callable[[], Graph], settings: WalkSettings) -> float:
    """Walk; return steps a second, including everything until the walks are rows."""
    frame = walks_frame(table, share, settings, WORKERS)
    began_s = time.perf_counter()
    row = frame.agg(F.sum(F.size("walk") - 1).alias("steps")).first()
    assert row is not None
    return float(row["steps"]) / (time.perf_counter() - began_s)


if __name__ == "__main__":
    answer(Asked, measure)
