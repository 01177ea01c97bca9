"""Spark with a SparkContext in this process: PySpark's public API, and what it does not have, from Spark's JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from ps2.client.task import ACCESS_VARIABLE, EPOCH_PROPERTY, FLEET_PROPERTY, STOPPED_PROPERTY
from ps2.errors import ConfigError, PS2Error, StoppedError
from ps2.run.spark import interpreter
from ps2.run.spark.backend import Broadcast
from ps2.run.spark.files import HadoopFiles
from ps2.run.spark.frames import RANK_SCHEMA, map_in_arrow, rank_of_batches

MAX_TASKS = 2**31 - 1
# Spark's progress bar comes back half a second after it was hidden.
BAR_INTERVAL_S = 0.3
# Limit of the ids of stopped fleets, which Spark sends with every task.
MAX_STOPPED_IDS = 50


def active_context() -> Any:
    """Return the process's SparkContext, or None."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


@dataclass(frozen=True)
class ClassicSpark:
    """The application of a SparkContext in this process; see ``SparkBackend``."""

    context: Any

    @property
    def session(self) -> Any:
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession() or SparkSession(self.context)

    @property
    def master(self) -> str:
        return str(self.context.master)

    @property
    def application_id(self) -> str:
        return str(self.context.applicationId)

    @property
    def is_local(self) -> bool:
        """Whether tasks are threads of the driver's Java process."""
        return bool(self._scala.isLocal())

    @property
    def addresses(self) -> dict[str, str]:
        return dict(self.context.getConf().getAll())

    @property
    def shares_host(self) -> bool:
        return self.master.startswith("local")

    def setting(self, name: str) -> str | None:
        """Return a setting of the application. ``SparkContext.getConf`` would copy all of them: 10 ms."""
        value: str | None = self.context._conf.get(name, None)
        return value

    def is_stopped(self) -> bool:
        """Return whether the SparkContext was stopped, or its Java process has ended.

        A Ctrl-C inside a call to Java cuts that connection, so the first question may fail. py4j opens another
        connection for the second one.
        """
        from py4j.protocol import Py4JError

        with suppress(Py4JError, OSError):
            return is_context_stopped(self.context)
        try:
            return is_context_stopped(self.context)
        except (Py4JError, OSError):
            return True

    def end_reason(self) -> str:
        return "the SparkContext was stopped"

    @contextmanager
    def calling(self) -> Iterator[None]:
        try:
            yield
        except PS2Error:
            raise
        except Exception as error:  # of py4j or the operating system, if Java has ended
            if self.is_stopped():
                raise StoppedError(self.end_reason()) from None
            if (python_error := self.python_error(str(error))) is not None:
                raise python_error from None
            raise

    def check_alive(self) -> None:
        """Nothing: py4j raises at once if Java has ended."""

    def configure_python(self) -> None:
        interpreter.save_address_space(self.context)
        if not interpreter.is_checked(self.context):
            interpreter.choose_python(self.context, import_folders(self.context))

    def start_python(self, access: str) -> threading.Thread | None:
        is_first = ACCESS_VARIABLE not in self.context.environment  # no context of this application was there before
        if not self.is_local or not is_first or not interpreter.fork_from_daemon(self.context):
            return None
        self.set_access(access)
        return interpreter.start_workers(self.context)

    def python_error(self, message: str) -> ConfigError | None:
        return interpreter.python_error(self.context, message)

    # -- the fleet in tasks --------------------------------------------------------------------------------------------

    def set_access(self, access: str) -> None:
        self.context.environment[ACCESS_VARIABLE] = access

    def set_fleet(self, fleet: str | None) -> None:
        self.context.setLocalProperty(FLEET_PROPERTY, fleet)

    def set_epoch(self, epoch: int) -> None:
        self.context.setLocalProperty(EPOCH_PROPERTY, str(epoch))

    def mark_stopped(self, fleet_id: str) -> None:
        stopped = [*(self.context.getLocalProperty(STOPPED_PROPERTY) or "").split(), fleet_id]
        self.context.setLocalProperty(STOPPED_PROPERTY, " ".join(stopped[-MAX_STOPPED_IDS:]))

    def status_tracker(self) -> Any:
        return self.context.statusTracker()

    # -- task slots ----------------------------------------------------------------------------------------------------

    def total_slots(self) -> int:
        scala = self._scala
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def retries_tasks(self) -> bool:
        return int(self._scala.taskScheduler().maxTaskFailures()) > 1

    def running_tasks(self) -> list[int]:
        """Return how many tasks each executor runs now: the scheduler's count, as the status tracker may be late."""
        running = self._scala.taskScheduler().runningTasksByExecutors().values().mkString(" ")
        return list(map(int, running.split()))

    def has_active_jobs(self) -> bool:
        return bool(self.context.statusTracker().getActiveJobsIds())

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def row_source(self, data: Any) -> RddRows | DataFrameRows:
        if hasattr(data, "mapInArrow"):
            return DataFrameRows(self, *with_fixed_plan(data))
        return RddRows(self, data, data.getNumPartitions())

    def numbered(self, partitions: int) -> RddRows:
        return RddRows(self, self.context.parallelize(range(partitions), partitions), partitions)

    def cancel_jobs(self, tag: str) -> None:
        self.context.cancelJobsWithTag(tag)

    def running_jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        def query() -> tuple[int, int]:
            scala, tracker = self._scala, self.context.statusTracker()
            infos = [tracker.getJobInfo(job) for job in scala.statusTracker().getJobIdsForTag(tag)]
            jobs = [job for job in infos if job is not None and job.status == "RUNNING"]
            stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
            # Here, too, the tracker's count is as old as the stage's last event.
            scheduler = scala.taskScheduler()
            sets = [scheduler.taskSetManagerForAttempt(s.stageId, s.currentAttemptId) for s in stages if s is not None]
            return len(jobs), sum(tasks.get().runningTasks() for tasks in sets if tasks.isDefined())

        counts: tuple[int, int] = self._unless_stopping(query, (0, 0))
        return counts

    def failure_messages(self, tag: str) -> list[str]:
        def query() -> list[str]:
            jobs = list(self._scala.statusTracker().getJobIdsForTag(tag))
            return [message for _, message in failed_tasks(self.context, jobs)]

        messages: list[str] = self._unless_stopping(query, [])
        return messages

    def log_urls(self, tag: str) -> dict[int, str]:
        def query() -> dict[int, str]:
            jobs = list(self._scala.statusTracker().getJobIdsForTag(tag))
            running = [
                (task.index(), task.executorLogs())
                for task in _tasks(self.context, jobs, lambda stage: stage.numActiveTasks)
                if task.status() == "RUNNING"
            ]
            return {index: logs.apply("stderr") for index, logs in running if logs.contains("stderr")}

        urls: dict[int, str] = self._unless_stopping(query, {})
        return urls

    @contextmanager
    def job_tag(self, tag: str) -> Iterator[None]:
        """Give the jobs that this thread starts a tag.

        Threads of pyspark.ml's validators share one object of local properties, so this thread gets its own copy.
        """
        scala = self._scala
        scala.setLocalProperties(scala.getLocalProperties().clone())
        self.context.addJobTag(tag)
        try:
            yield
        finally:
            if not self.is_stopped():
                self.context.removeJobTag(tag)

    # -- streams -------------------------------------------------------------------------------------------------------

    def start_query(self, writer: Any, handle: Callable[[Any, int], None]) -> Any:
        return writer.foreachBatch(handle).start()

    def checkpoint_files(self) -> HadoopFiles:
        return HadoopFiles(self.context)

    # -- data ----------------------------------------------------------------------------------------------------------

    def with_fixed_plan(self, frame: Any) -> tuple[Any, int]:
        return with_fixed_plan(frame)

    def set_partitions(self, frame: Any, partitions: int) -> None:
        """Nothing: Java knows."""

    def estimated_bytes(self, frame: Any) -> int:
        """Return how many bytes Spark's optimizer expects of a DataFrame: exact for a cached one."""
        return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))

    def broadcast(self, value: Any) -> Broadcast:
        return cast(Broadcast, self.context.broadcast(value))

    def progress_bar_hider(self) -> Callable[[], None]:
        shown = self._scala.progressBar()
        if not shown.isDefined():
            return lambda: None
        bar, hidden_s = shown.get(), 0.0

        def hide() -> None:
            nonlocal hidden_s
            if time.monotonic() - hidden_s > BAR_INTERVAL_S:
                bar.finishAll()
                hidden_s = time.monotonic()

        return hide

    @property
    def _scala(self) -> Any:
        return self.context._jsc.sc()

    def _unless_stopping(self, query: Callable[[], Any], default: Any) -> Any:
        """Return the result of a call to Spark, or ``default`` if the SparkContext is stopped or stopping."""
        from py4j.protocol import Py4JError

        try:
            return default if self.is_stopped() else query()
        except (Py4JError, OSError):
            if self.is_stopped():
                return default
            raise


def is_context_stopped(spark_context: Any) -> bool:
    """Return whether a SparkContext was stopped; raise py4j's errors if its Java process does not answer."""
    return spark_context._jsc is None or bool(spark_context._jsc.sc().isStopped())


def failed_tasks(spark_context: Any, jobs: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield index and error message of each failed task attempt of some jobs."""
    for task in _tasks(spark_context, jobs, lambda stage: stage.numFailedTasks):
        if task.errorMessage().isDefined():
            yield task.index(), task.errorMessage().get()


def _tasks(spark_context: Any, jobs: Iterable[int], num_tasks: Callable[[Any], int]) -> Iterator[Any]:
    """Yield Java's records of the tasks of some jobs, for the stages whose ``num_tasks`` is not 0."""
    tracker = spark_context.statusTracker()
    infos = [tracker.getJobInfo(job) for job in jobs]
    for stage in (stage for info in infos if info is not None for stage in info.stageIds):
        info = tracker.getStageInfo(stage)
        if info is None or not num_tasks(info):
            continue
        tasks = spark_context._jsc.sc().statusStore().taskList(stage, info.currentAttemptId, MAX_TASKS)
        yield from (tasks.apply(index) for index in range(tasks.size()))


# -- jobs of workers -------------------------------------------------------------------------------------------------


class RddJob:
    """A job over an RDD whose closure is ready. PySpark notes the broadcast variables in it by thread."""

    def __init__(self, spark: ClassicSpark, rdd: Any) -> None:
        self._spark, self._rdd = spark, rdd
        self.tasks = int(rdd._jrdd.getNumPartitions())  # PySpark pickles the closure here
        scala = spark._scala
        self._properties = scala.getLocalProperties().clone()  # pool, job group, description

    def run(self, tag: str) -> None:
        self._spark._scala.setLocalProperties(self._properties)
        self._spark.context.addJobTag(tag)
        self._rdd.collect()


@dataclass(frozen=True)
class RddRows:
    """An RDD."""

    spark: ClassicSpark
    rdd: Any
    partitions: int

    def repartition(self, partitions: int) -> RddRows:
        shuffled = repartition_by_record(self.rdd, partitions)
        return RddRows(self.spark, shuffled, shuffled.getNumPartitions())

    def job(self, work: Callable[[Any], int]) -> RddJob:
        return RddJob(self.spark, self.rdd.mapPartitions(lambda rows: [work(rows)]))


@dataclass(frozen=True)
class DataFrameRows:
    """A DataFrame whose plan is fixed."""

    spark: ClassicSpark
    frame: Any
    partitions: int

    def repartition(self, partitions: int) -> DataFrameRows:
        return DataFrameRows(self.spark, *with_fixed_plan(self.frame.repartition(partitions)))

    def job(self, work: Callable[[Any], int]) -> RddJob:
        return RddJob(self.spark, map_in_arrow(self.frame, rank_of_batches(work), RANK_SCHEMA).rdd)


def repartition_by_record(rdd: Any, partitions: int) -> Any:
    """Return an RDD whose records are distributed one by one.

    ``RDD.repartition`` distributes batches of ten: few records, such as blocks of rows, would all go to one partition.
    The shuffle is the same, so Spark knows that its result depends on the records' order.
    """
    from pyspark import RDD, serializers

    untyped: Any = serializers
    singly = rdd._reserialize(untyped.BatchedSerializer(untyped.CPickleSerializer(), 1))
    shuffled = singly._jrdd.coalesce(partitions, True)
    return RDD(shuffled, singly.ctx, singly._jrdd_deserializer)


def with_fixed_plan(frame: Any) -> tuple[Any, int]:
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


def import_folders(spark_context: Any) -> list[str]:
    """Return where Spark's Python workers find files that the application ships."""
    root = spark_context._jvm.org.apache.spark.SparkFiles.getRootDirectory()
    return [root, *(f"{root}/{name}" for name in spark_context._python_includes)]


def java() -> Any:
    """Return py4j's view of Java's packages."""
    from pyspark import SparkContext

    return SparkContext._jvm


def jvm_conf(conf: Any) -> Any:
    """Return the Java object of a SparkConf."""
    return conf._jconf


def terminate_jvm() -> None:
    """End the Java process that this process has started, if any."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.proc.terminate()
