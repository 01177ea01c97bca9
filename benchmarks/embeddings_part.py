"""What the parts of ``benchmarks.embeddings`` are asked for; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
        data_dir: folder of the data sets.
        walks: from each vertex.
        via: ways to train.
        memory: of Spark's JVM, as Spark writes it.
        vertices: vectors of a table, of memory.
    """

    rounds: int
    data_dir: str
    walks: int
    via: tuple[str, ...]
    memory: str
    vertices: int


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[Any]:
    """Start Spark with a task slot a worker, and two servers; yield the SparkSession."""
    settings = {"spark.driver.memory": asked.memory, "spark.driver.maxResultSize": "0"}
    spark = start_spark(f"local[{WORKERS}]", f"benchmarks.embeddings_{part}", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS):
            yield spark
    finally:
        spark.stop()
