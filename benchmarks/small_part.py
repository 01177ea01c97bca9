"""Warm fits of small data, ours and pyspark.ml's in turns: what the parts of ``benchmarks.small`` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyspark

from benchmarks import libsvm
from benchmarks.frame import Part, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from ps2 import PS2Context

# Turns before the ones that count: Java compiles its code, Spark's Python workers import and compile theirs.
WARM_UPS = 3
MAX_S = 2.0
PYSPARK_DATA = Path(pyspark.__file__).parent / "data" / "mllib"


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of a9a and agaricus.
        memory: of Spark's JVM, as Spark writes it.
        only: text in the names of the fits to measure; "": all.
    """

    rounds: int
    data_dir: str
    memory: str = "4g"
    only: str = ""


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit, and its counterpart.

    Attributes:
        what: name and data.
        frame: cached rows.
        ours, theirs: estimators.
    """

    what: str
    frame: Any
    ours: Any
    theirs: Any


@dataclass
class _Seconds:
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)


@contextmanager
def small_spark(part: str, memory: str) -> Iterator[Any]:
    """Start Spark with two task slots, and a fleet of two servers; yield the SparkSession."""
    settings = {"spark.python.daemon.module": "ps2.run.daemon", "spark.sql.shuffle.partitions": "2"}
    settings["spark.driver.memory"] = memory
    spark = start_spark("local[2]", f"benchmarks.small_{part}", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=2):
            yield spark
    finally:
        spark.stop()


def rows_of(spark: Any, asked: Asked, name: str) -> Any:
    """Return a data set in Spark's cache: "a9a", "agaricus" (0 and 1) or "iris" (three classes, from pyspark)."""
    if name == "iris":
        path = PYSPARK_DATA / "sample_multiclass_classification_data.txt"
        frame = spark.read.format("libsvm").load(path.as_uri())
    else:
        file, features = {"a9a": ("a9a.libsvm.gz", 123), "agaricus": ("agaricus.train.libsvm.gz", 127)}[name]
        frame = libsvm.read(spark, Path(asked.data_dir) / file, features)
    return kept(frame)


def kept(frame: Any) -> Any:
    """Return the rows of a DataFrame, in two partitions of Spark's cache."""
    frame = frame.repartition(2).persist()
    frame.count()
    return frame


def compared(spark: Any, asked: Asked, fits: Sequence[Fit]) -> Part:
    """Fit in turns."""
    lines, sizes = [], []
    for fit in fits:
        if asked.only not in fit.what:
            continue
        found = _Seconds()
        for round_ in range(WARM_UPS + asked.rounds):
            their_s, their_jobs = _timed(spark, lambda fit=fit: fit.theirs.fit(fit.frame))  # type: ignore[misc]
            our_s, our_jobs = _timed(spark, lambda fit=fit: fit.ours.fit(fit.frame))  # type: ignore[misc]
            if round_ >= WARM_UPS:
                found.theirs.append(their_s)
                found.ours.append(our_s)
        tell(f"{fit.what}: pyspark.ml {median(found.theirs):.2f} s, ours {median(found.ours):.2f} s, {our_jobs} jobs")
        lines.append(Line(fit.what, "pyspark.ml", "s", 1.0, found.theirs, found.ours))
        sizes.append({"fit": fit.what, "Spark jobs": our_jobs, "pyspark.ml's": their_jobs})
    slowest = max(median(line.ours) for line in lines)
    lines.append(Line("the slowest of these fits", f"{MAX_S:g} s", "s", 1.0, [MAX_S], [slowest]))
    return Part(lines, (), {"fits": len(fits)}, sizes)


def _timed(spark: Any, call: Callable[[], Any]) -> tuple[float, int]:
    """Return the seconds of a call, and the Spark jobs that it started."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before, began_s = scheduler.numTotalJobs(), time.monotonic()
    call()
    return time.monotonic() - began_s, scheduler.numTotalJobs() - before
