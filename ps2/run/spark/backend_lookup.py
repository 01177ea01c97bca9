"""Which way this process reaches Spark, by the objects of pyspark that it holds."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from ps2.run.slots import is_dynamic, most_slots
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
    """Return the application that this process uses now, or None. Does not import pyspark unless it is loaded."""
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
    """Return this process's SparkSession; without one, start one that has a SparkContext."""
    from pyspark.sql import SparkSession

    if "pyspark.sql.connect.session" in sys.modules and (backend := active_backend()) is not None:
        return backend.session
    return SparkSession.builder.getOrCreate()


def with_python(source: T) -> T:
    """Return a SparkSession or a DataFrame whose later Python functions run with this process's Python.

    Everything here that runs Python in tasks outside ``ps.run`` begins with this, as there may be no PS2Context: it
    surrounds each DataFrame that Python functions read, and each SparkSession that makes one of Python's objects.

    Raises:
        ConfigError: tasks on this host cannot run with it.
    """
    backend_of(source).configure_python()
    return source


def in_one_wave(frame: Any) -> Any:
    """Return rows for Python tasks in no more partitions than Spark can run tasks at once, where it knows that number.

    A Python task takes some hundredths of a second however few rows it has: thousands of small ones take minutes.
    """
    spark = backend_of(frame)
    slots = most_slots(spark) or (None if is_dynamic(spark) else spark.total_slots())
    return frame if slots is None else frame.coalesce(slots)
