"""What the parts of ``benchmarks.trees`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.local_spark import start_spark
from ps2 import PS2Context

WORKERS = 2
SERVERS = 2


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of the data sets; empty: no part needs it.
        peers: of ``trees_peers.PEERS``, those that train beside ours.
        rows: of the parts dense and precision.
        features: sizes of the part features.
        seeds: of the part precision.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    data_dir: str
    peers: tuple[str, ...]
    rows: int
    features: tuple[int, ...]
    seeds: int
    memory: str


@dataclass(frozen=True)
class Score:
    """How good a model of ours is, beside a peer's; more is better.

    Attributes:
        what: is scored.
        against: whose score the baseline is.
        unit: of the score.
        goal: what ours is to be, at least; None: for information.
    """

    what: str
    against: str
    unit: str
    goal: float | None
    baseline: float
    ours: float

    def as_json(self) -> dict[str, Any]:
        met = None if self.goal is None else bool(self.ours >= self.goal)
        return {**asdict(self), "times": None, "spread": None, "met": met}


@contextmanager
def spark_alone(asked: Asked, part: str, slots: int = WORKERS) -> Iterator[Any]:
    """Start Spark with some task slots; yield the SparkSession."""
    settings = {"spark.driver.memory": asked.memory, "spark.driver.maxResultSize": "0"}
    spark = start_spark(f"local[{slots}]", f"benchmarks.trees_{part}", settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[Any]:
    """Start Spark with two task slots, and two servers; yield the SparkSession."""
    with spark_alone(asked, part) as spark, PS2Context.getOrCreate(spark, servers=SERVERS):
        yield spark
