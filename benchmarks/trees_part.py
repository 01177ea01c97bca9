"""The settings of the parts of ``benchmarks.trees``; each part runs in its own process with its own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.local_spark import local_spark
from ps2 import PS2Context

WORKERS = 2
SERVERS = 2


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: number of rounds behind the medians.
        data_dir: folder of the data sets; empty if no part needs it.
        peers: names of ``trees_peers.PEERS`` to compare with.
        rows: of the parts dense and precision.
        features: sizes of the part features.
        seeds: of the part precision.
        memory: of Spark's JVM, in Spark's notation.
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
    """The score of a PS2 model beside a baseline; larger is better.

    Attributes:
        what: what is scored.
        against: the baseline.
        unit: of the score.
        goal: minimum of PS2's score; None: for information.
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


def spark_alone(asked: Asked, part: str, slots: int = WORKERS) -> AbstractContextManager[Any]:
    """Start Spark with some task slots; yield the SparkSession."""
    return local_spark(f"trees_{part}", slots, asked.memory)


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[Any]:
    """Start Spark with two task slots, and two servers; yield the SparkSession."""
    with spark_alone(asked, part) as spark, PS2Context.getOrCreate(spark, servers=SERVERS):
        yield spark
