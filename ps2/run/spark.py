"""Spark's driver beyond PySpark's public API. All that ``run`` and ``coordinator`` use of it is in this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, overload

from ps2.errors import ConfigError

MAX_TASKS = 2**31 - 1
# Spark's progress bar comes back half a second after it was hidden.
BAR_INTERVAL_S = 0.3


def active_context() -> Any:
    """Return the process's SparkContext, or None."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def refuse_connect(what: str, given: Any) -> None:
    """Raise ConfigError if an object belongs to Spark Connect; ``what`` begins the sentence."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            f"{what} of Spark Connect cannot be used: the driver's program has no SparkContext there; make the "
            "SparkSession without remote()"
        )


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Any:
    """Return ``frame.mapInArrow(function, schema)``, for columns of any names.

    PySpark looks the columns of the frame up by their names there, which fails for names with dots, and for names that
    come twice. Of two new columns with one name, Spark's Java process reads one alone, and may end.

    Args:
        schema: of the result; a StructType may have any names, a text has each name once.
    """
    from pyspark.sql.types import StructField, StructType

    names = frame.columns
    of_places = frame.toDF(*_places(len(names)))
    if not isinstance(schema, StructType):
        return of_places.mapInArrow(lambda batches: function(_renamed(batches, names)), schema)
    places = _places(len(schema.fields))
    fields = zip(places, schema.fields, strict=True)
    typed = StructType([StructField(place, one.dataType, one.nullable, one.metadata) for place, one in fields])
    found = of_places.mapInArrow(lambda batches: _renamed(function(_renamed(batches, names)), places), typed)
    return found.toDF(*schema.names)


def _places(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _renamed(batches: Iterator[Any], names: list[str]) -> Iterator[Any]:
    return (batch.rename_columns(names) for batch in batches)


def is_stopped(spark_context: Any) -> bool:
    """Return whether a SparkContext was stopped, or its Java process has ended.

    A Ctrl-C inside a call to Java cuts that connection, so the first question may fail. py4j opens another connection
    for the second one.
    """
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        return ask_stopped(spark_context)
    try:
        return ask_stopped(spark_context)
    except (Py4JError, OSError):
        return True


def ask_stopped(spark_context: Any) -> bool:
    """Return whether a SparkContext was stopped; raise py4j's errors if its Java process does not answer."""
    return spark_context._jsc is None or bool(_scala(spark_context).isStopped())


def unless_stopping(spark_context: Any, ask: Callable[[], Any], otherwise: Any) -> Any:
    """Return the answer of a call to Spark; if the SparkContext is stopped or stopping, return ``otherwise``."""
    from py4j.protocol import Py4JError

    try:
        return otherwise if is_stopped(spark_context) else ask()
    except (Py4JError, OSError):
        if is_stopped(spark_context):
            return otherwise
        raise


def planned_bytes(frame: Any) -> int:
    """Return how many bytes Spark's optimizer expects of a DataFrame: exact for a cached one, else often too many."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


@overload
def setting(spark_context: Any, name: str) -> str | None: ...


@overload
def setting(spark_context: Any, name: str, otherwise: str) -> str: ...


def setting(spark_context: Any, name: str, otherwise: str | None = None) -> str | None:
    """Return a setting of the application. ``SparkContext.getConf`` would copy all of them: 10 ms."""
    found: str | None = spark_context._conf.get(name, otherwise)
    return found


# -- executors and slots ---------------------------------------------------------------------------------------------


def is_local(spark_context: Any) -> bool:
    """Return whether tasks are threads of the driver's Java process."""
    return bool(_scala(spark_context).isLocal())


def total_slots(spark_context: Any) -> int:
    """Return how many tasks Spark can run at once."""
    scala = _scala(spark_context)
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def retries_tasks(spark_context: Any) -> bool:
    """Return whether Spark starts a failed task again; with a master ``local[n]`` it does not."""
    return int(_scala(spark_context).taskScheduler().maxTaskFailures()) > 1


def running_tasks(spark_context: Any) -> list[int]:
    """Return how many tasks each executor runs now.

    The scheduler knows. The public status tracker may be many seconds late.
    """
    running = _scala(spark_context).taskScheduler().runningTasksByExecutors().values().mkString(" ")
    return list(map(int, running.split()))


# -- jobs ------------------------------------------------------------------------------------------------------------


def jobs_and_tasks(spark_context: Any, tag: str) -> tuple[int, int]:
    """Return how many jobs with a tag run now, and how many tasks of theirs."""

    def ask() -> tuple[int, int]:
        scala, tracker = _scala(spark_context), spark_context.statusTracker()
        infos = [tracker.getJobInfo(job) for job in scala.statusTracker().getJobIdsForTag(tag)]
        jobs = [job for job in infos if job is not None and job.status == "RUNNING"]
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        # Here, too, the tracker's count is as old as the stage's last event.
        scheduler = scala.taskScheduler()
        sets = [scheduler.taskSetManagerForAttempt(s.stageId, s.currentAttemptId) for s in stages if s is not None]
        return len(jobs), sum(tasks.get().runningTasks() for tasks in sets if tasks.isDefined())

    counts: tuple[int, int] = unless_stopping(spark_context, ask, (0, 0))
    return counts


def jobs_with_tag(spark_context: Any, tag: str) -> list[int]:
    """Return the numbers of the jobs with a tag."""
    return list(_scala(spark_context).statusTracker().getJobIdsForTag(tag))


def failed_tasks(spark_context: Any, jobs: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield index and error message of each failed task attempt of some jobs."""
    tracker = spark_context.statusTracker()
    infos = [tracker.getJobInfo(job) for job in jobs]
    for stage in (stage for info in infos if info is not None for stage in info.stageIds):
        info = tracker.getStageInfo(stage)
        if info is None or not info.numFailedTasks:
            continue
        tasks = _scala(spark_context).statusStore().taskList(stage, info.currentAttemptId, MAX_TASKS)
        for at in range(tasks.size()):
            task = tasks.apply(at)
            if task.errorMessage().isDefined():
                yield task.index(), task.errorMessage().get()


@contextmanager
def job_tag(spark_context: Any, tag: str) -> Iterator[None]:
    """Give the jobs that this thread starts a tag.

    Threads of pyspark.ml's validators share one object of local properties, so this thread gets its own copy.
    """
    scala = _scala(spark_context)
    scala.setLocalProperties(scala.getLocalProperties().clone())
    spark_context.addJobTag(tag)
    try:
        yield
    finally:
        if not is_stopped(spark_context):
            spark_context.removeJobTag(tag)


def with_properties_of_caller(spark_context: Any, run: Callable[[], None]) -> Callable[[], None]:
    """Return ``run`` for another thread, with this thread's local properties: pool, job group, description."""
    scala = _scala(spark_context)
    properties = scala.getLocalProperties().clone()

    def with_properties() -> None:
        scala.setLocalProperties(properties)
        run()

    return with_properties


# -- data ------------------------------------------------------------------------------------------------------------


def prepare_tasks(rdd: Any) -> int:
    """Make an RDD's closure ready in this thread, and return how many tasks it takes.

    PySpark pickles the closure here. It notes the broadcast variables in it by thread.
    """
    return int(rdd._jrdd.getNumPartitions())


def repartition_singly(rdd: Any, partitions: int) -> Any:
    """Return an RDD whose records are dealt out one by one.

    ``RDD.repartition`` deals batches of ten: few records, such as one block of rows each, would all go to one.
    The shuffle is the same, so Spark knows that its result depends on the records' order.
    """
    from pyspark import RDD, serializers

    untyped: Any = serializers
    singly = rdd._reserialize(untyped.BatchedSerializer(untyped.CPickleSerializer(), 1))
    dealt = singly._jrdd.coalesce(partitions, True)
    return RDD(dealt, singly.ctx, singly._jrdd_deserializer)


def fixed_frame(frame: Any) -> tuple[Any, int]:
    """Return a DataFrame of the same rows whose plan is fixed, and how many rdd_partitions it has.

    Under adaptive execution the number of partitions is known when the plan's shuffles have run. Another plan over the
    same data, such as ``mapInArrow``, would run them again. So the result builds on the rows of the executed plan, as
    ``DataFrame.localCheckpoint`` does, and stores nothing.
    """
    from pyspark.sql import DataFrame

    rows = frame._jdf.queryExecution().toRdd()
    session = frame.sparkSession
    same = session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False)
    return DataFrame(same, session), rows.getNumPartitions()


# -- the driver's process --------------------------------------------------------------------------------------------


def progress_bar_hider(spark_context: Any) -> Callable[[], None]:
    """Return a function that hides Spark's own progress bar, which would overwrite a line in the terminal."""
    shown = _scala(spark_context).progressBar()
    if not shown.isDefined():
        return lambda: None
    bar, hidden_s = shown.get(), 0.0

    def hide() -> None:
        nonlocal hidden_s
        if time.monotonic() - hidden_s > BAR_INTERVAL_S:
            bar.finishAll()
            hidden_s = time.monotonic()

    return hide


def import_folders(spark_context: Any) -> list[str]:
    """Return where Spark's Python workers find files that the application ships."""
    root = spark_context._jvm.org.apache.spark.SparkFiles.getRootDirectory()
    return [root, *(f"{root}/{name}" for name in spark_context._python_includes)]


def java() -> Any:
    """Return py4j's view of Java's packages."""
    from pyspark import SparkContext

    return SparkContext._jvm


def java_conf(conf: Any) -> Any:
    """Return the Java object of a SparkConf."""
    return conf._jconf


def end_java() -> None:
    """End the Java process that this process has started, if any."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.proc.terminate()


def _scala(spark_context: Any) -> Any:
    return spark_context._jsc.sc()
