"""Finds the Spark application of this process, and counts Spark's task slots.

A Spark job without a free slot waits forever; only the driver's log reports that.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TypeVar

from ps2.errors import SlotsError
from ps2.interrupts import sleep
from ps2.run.spark.backend import SparkBackend

T = TypeVar("T")


def is_connect(value: Any) -> bool:
    """Return whether an object of pyspark belongs to Spark Connect."""
    return type(value).__module__.startswith("pyspark.sql.connect")


def backend_of(source: Any) -> SparkBackend:
    """Return the application of a SparkSession, SparkContext, DataFrame or RDD."""
    if is_connect(source):
        from ps2.run.spark.connect import connect_backend

        return connect_backend(getattr(source, "sparkSession", source))
    from ps2.run.spark.classic import ClassicSpark

    session = getattr(source, "sparkSession", source)
    return ClassicSpark(getattr(session, "sparkContext", getattr(session, "context", session)))


def active_backend() -> SparkBackend | None:
    """Return the application that this process uses now, or None. Does not import pyspark."""
    if "pyspark" not in sys.modules:
        return None
    from ps2.run.spark.classic import active_context

    if (context := active_context()) is not None:
        return backend_of(context)
    if "pyspark.sql.connect.session" not in sys.modules:
        return None
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.getActiveSession() or SparkSession._get_default_session()
    return None if session is None else backend_of(session)


def active_session() -> Any:
    """Return this process's SparkSession; if there is none, start one with a SparkContext."""
    from pyspark.sql import SparkSession

    if "pyspark.sql.connect.session" in sys.modules and (backend := active_backend()) is not None:
        return backend.session
    return SparkSession.builder.getOrCreate()


def with_python(source: T) -> T:
    """Let later Python functions of a SparkSession or a DataFrame run with this process's Python; return the argument.

    PS2 calls this for all Python functions in tasks outside of ``ps.run``, because there may be no PS2Context: for each
    DataFrame that they read, and each SparkSession that makes a DataFrame of Python objects.
    """
    backend_of(source).configure_python()
    return source


def in_one_wave(frame: Any) -> Any:
    """Coalesce a DataFrame for Python tasks to at most one partition for each task slot, if their number is known.

    A Python task takes some hundredths of a second even for few rows, so thousands of small tasks take minutes.
    """
    spark = backend_of(frame)
    slots = max_slots(spark) or (None if is_dynamic(spark) else spark.total_slots())
    return frame if slots is None else frame.coalesce(slots)


# The interval in which ``wait_for_slots`` counts free slots.
POLL_S = 0.2


def wait_for_slots(spark: SparkBackend, count: int, timeout_s: float) -> None:
    """Wait until Spark has ``count`` free task slots, or raise SlotsError with both numbers.

    Raise at once if Spark can never have so many. Does not wait with dynamic allocation, because Spark then starts
    executors when a job needs them.
    """
    check_slots_limit(spark, count)
    if is_dynamic(spark):
        return
    began_s = time.monotonic()
    while (free := free_slots(spark)) < count:
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s:
            raise slots_missing(spark, free, waited_s, count)
        sleep(POLL_S)


def check_slots_limit(spark: SparkBackend, count: int) -> None:
    """Raise SlotsError if Spark can never have ``count`` task slots."""
    limit = max_slots(spark)
    if limit is None or limit >= count:
        return
    if is_dynamic(spark):
        raise SlotsError(
            f"Spark at {spark.master} has at most {limit} task slots (spark.dynamicAllocation.maxExecutors), "
            f"and {count} are needed"
        )
    raise slots_missing(spark, free_slots(spark), 0.0, count)


def slots_missing(spark: SparkBackend, free: int, waited_s: float, count: int) -> SlotsError:
    """Return an error: Spark has ``free`` of ``count`` task slots after ``waited_s`` seconds."""
    return SlotsError(
        f"Spark at {spark.master} has {max(free, 0)} free task slots after {waited_s:.0f} s, and "
        f"{count} are needed; give the application more cores, or end its other jobs"
    )


def free_slots(spark: SparkBackend) -> int:
    """Return the number of further tasks that Spark can start now."""
    return spark.total_slots() - sum(spark.running_tasks())


def count_executors(spark: SparkBackend) -> int:
    """Return the number of processes that run Spark's tasks now: 1 in local mode."""
    return max(1, len(spark.running_tasks()))


def cores_each(spark: SparkBackend, tasks: int) -> int:
    """Return the number of cores for each of ``tasks`` concurrent tasks that share the cluster."""
    return max(1, spark.total_slots() // tasks) * int(spark.setting("spark.task.cpus") or "1")


def cores_of_one(spark: SparkBackend) -> int:
    """Return the number of cores that a task may use if it is the only task of its executor."""
    if spark.is_local:
        return spark.total_slots() * int(spark.setting("spark.task.cpus") or "1")
    return int(spark.setting("spark.executor.cores") or "1")


def max_slots(spark: SparkBackend) -> int | None:
    """Return the maximum number of slots that Spark can have; None: unknown."""
    if spark.is_local:
        return spark.total_slots()
    executors = spark.setting("spark.dynamicAllocation.maxExecutors")
    cores = spark.setting("spark.executor.cores")
    if not is_dynamic(spark) or executors is None or cores is None:
        return None
    return int(executors) * (int(cores) // int(spark.setting("spark.task.cpus") or "1"))


def is_dynamic(spark: SparkBackend) -> bool:
    """Return whether Spark allocates executors dynamically."""
    if spark.is_local:
        return False
    return (spark.setting("spark.dynamicAllocation.enabled") or "false") == "true"
