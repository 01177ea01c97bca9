"""What the parts of ``benchmarks.topics`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.local_spark import local_spark
from ps2 import PS2Context

WORKERS = 2
SERVERS = 2
ALPHA, BETA = 0.1, 0.01


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of the data sets; empty: no part needs it.
        tokens: of the part large.
        documents: of the part averaging.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    data_dir: str
    tokens: int
    documents: int
    memory: str


@contextmanager
def spark_and_servers(asked: Asked, part: str, workers: int = WORKERS) -> Iterator[Any]:
    """Start Spark with a task slot a worker, and two servers; yield the SparkSession."""
    with (
        local_spark(f"topics_{part}", workers, asked.memory) as spark,
        PS2Context.getOrCreate(spark, servers=SERVERS),
    ):
        yield spark
