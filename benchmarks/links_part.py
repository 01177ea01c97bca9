"""What the parts of ``benchmarks.links`` share; each runs in a process of its own on the workers' host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.frame import Part, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from benchmarks.slow_part import Curve
from ps2 import PS2Context

WORKERS = 2
ROTATION, BSP = "rotation", "bsp"
# A rate: servers on the workers' host.
LOOPBACK = "loopback"
DEVICE = "eth0"


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        addresses: of the servers.
        token_file: of the fleet.
        rate: of links, or ``LOOPBACK``.
        rounds: turns that the medians are of.
    """

    addresses: tuple[str, ...]
    token_file: str
    rate: str
    rounds: int


@contextmanager
def spark_and_fleet(asked: Asked, part: str) -> Iterator[tuple[Any, PS2Context]]:
    """Start Spark with two workers on this host, and attach to the fleet."""
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(WORKERS),
    }
    spark = start_spark(f"local[{WORKERS}]", f"benchmarks.links_{part}", settings)
    try:
        with PS2Context.getOrCreate(spark, fleet=asked.addresses, tokenFile=asked.token_file) as ps:
            yield spark, ps
    finally:
        spark.stop()


def moved() -> tuple[int, int]:
    """Return the bytes that this host has sent and received over its link."""
    counters = psutil.net_io_counters(pernic=True)[DEVICE]
    return counters.bytes_sent, counters.bytes_recv


def compared(curves: Mapping[str, Sequence[Curve]], unit: str, goal: float, facts: Mapping[str, Any]) -> Part:
    """Compare all ways with rotation: seconds to the worst of the losses that they come to."""
    taken: dict[str, list[float]] = {way: [] for way in curves}
    targets = []
    for turns in zip(*curves.values(), strict=True):
        targets.append(max(float(curve.losses.min()) for curve in turns))
        for way, curve in zip(curves, turns, strict=True):
            taken[way].append(curve.seconds_to(targets[-1]))
            tell(f"{way}: {taken[way][-1]:.1f} s to {targets[-1]:.4f}")
    what = f"rotation: {unit} {np.median(targets):.4f}"
    lines = [
        Line(what, way, "s", goal if way == BSP else None, seconds, taken[ROTATION])
        for way, seconds in taken.items()
        if way != ROTATION
    ]
    sizes = [
        {
            "way": way,
            "s an iteration": f"{np.median(np.concatenate([np.diff(curve.seconds) for curve in turns])):.2f}",
            f"{unit} at the end": f"{turns[0].losses[-1]:.4f}",
        }
        for way, turns in curves.items()
    ]
    drawn = {way: [turns[0].seconds.tolist(), turns[0].losses.tolist()] for way, turns in curves.items()}
    return Part(lines, facts=dict(facts), sizes=sizes, curves={unit: drawn})
