"""The settings of the parts of ``benchmarks.embeddings``; each part runs in its own process with its own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
        data_dir: folder of the data sets.
        walks: from each vertex.
        via: ways to train.
        memory: of Spark's JVM, in Spark's notation.
        vertices: vectors of a table, in the memory parts.
    """

    rounds: int
    data_dir: str
    walks: int
    via: tuple[str, ...]
    memory: str
    vertices: int


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[Any]:
    """Start Spark with one task slot a worker, and two servers; yield the SparkSession."""
    with (
        local_spark(f"embeddings_{part}", WORKERS, asked.memory) as spark,
        PS2Context.getOrCreate(spark, servers=SERVERS),
    ):
        yield spark
