"""Spark with a SparkContext in this process, through PySpark's public API and, where it lacks a call, the JVM."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ps2.client.fleet import Loan
from ps2.client.task import ACCESS_VARIABLE, EPOCH_PROPERTY, FLEET_PROPERTY, STOPPED_PROPERTY
from ps2.errors import ConfigError, PS2Error, StoppedError
from ps2.run.spark import interpreter
from ps2.run.spark.backend import Broadcast
from ps2.run.spark.files import HadoopFiles
from ps2.run.spark.frames import RANK_SCHEMA, map_in_arrow, rank_of_batches

T = TypeVar("T")

MAX_TASKS = 2**31 - 1
# The interval in which Spark's progress bar is hidden. Spark shows it again half a second after it was hidden.
BAR_INTERVAL_S = 0.3
# The maximum number of ids of stopped fleets. Spark sends the ids with every task.
MAX_STOPPED_IDS = 50


def active_context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _unless_stopping(default: Any) -> Callable[[Callable[[Any, str], T]], Callable[[Any, str], T]]:
    """Decorate a query of Spark: it returns ``default`` if the SparkContext is stopped or stopping."""

    def decorate(query: Callable[[Any, str], T]) -> Callable[[Any, str], T]:
        @functools.wraps(query)
        def call(spark: ClassicSpark, tag: str) -> T:
            from py4j.protocol import Py4JError

            try:
                return default if spark.is_stopped() else query(spark, tag)
            except (Py4JError, OSError):
                if spark.is_stopped():
                    return default
                raise

        return call

    return decorate


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
        return bool(self._scala.isLocal())

    @property
    def addresses(self) -> dict[str, str]:
        return dict(self.context.getConf().getAll())

    @property
    def shares_host(self) -> bool:
        return self.master.startswith("local")

    def setting(self, name: str) -> str | None:
        """Return a setting of the application. ``SparkContext.getConf`` would copy all settings, which takes 10 ms."""
        value: str | None = self.context._conf.get(name, None)
        return value

    def is_stopped(self) -> bool:
        """Return whether the SparkContext was stopped, or its Java process has ended.

        The first call can fail, because Ctrl-C within a call to Java closes the connection. py4j then opens another.
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
        except Exception as error:  # if Java has ended, py4j and the operating system raise different errors
            if self.is_stopped():
                raise StoppedError(self.end_reason()) from None
            if (python_error := self.python_error(str(error))) is not None:
                raise python_error from None
            raise

    def check_alive(self) -> None:
        """Do nothing: if Java has ended, py4j raises an error at once."""

    def configure_python(self) -> None:
        interpreter.save_address_space(self.context)
        if not interpreter.is_checked(self.context):
            interpreter.choose_python(self.context, import_folders(self.context))

    def start_python(self, access: str) -> threading.Thread | None:
        is_first = ACCESS_VARIABLE not in self.context.environment  # the application has had no PS2Context yet
        if not self.is_local or not is_first or not interpreter.fork_from_daemon(self.context):
            return None
        self.set_access(access)
        return interpreter.start_workers(self.context)

    def python_error(self, message: str) -> ConfigError | None:
        return interpreter.python_error(self.context, message)

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

    def total_slots(self) -> int:
        scala = self._scala
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def retries_tasks(self) -> bool:
        return int(self._scala.taskScheduler().maxTaskFailures()) > 1

    def running_tasks(self) -> list[int]:
        """Return the number of running tasks of each executor, from the scheduler. The status tracker may be late."""
        running = self._scala.taskScheduler().runningTasksByExecutors().values().mkString(" ")
        return list(map(int, running.split()))

    def has_active_jobs(self) -> bool:
        return bool(self.context.statusTracker().getActiveJobsIds())

    def row_source(self, data: Any) -> RddRows | DataFrameRows:
        if hasattr(data, "mapInArrow"):
            return DataFrameRows(self, *with_fixed_plan(data))
        return RddRows(self, data, data.getNumPartitions())

    def numbered_rows(self, partitions: int) -> RddRows:
        return RddRows(self, self.context.parallelize(range(partitions), partitions), partitions)

    def cancel_jobs(self, tag: str) -> None:
        self.context.cancelJobsWithTag(tag)

    @_unless_stopping((0, 0))
    def running_jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        scala, tracker = self._scala, self.context.statusTracker()
        infos = [tracker.getJobInfo(job) for job in scala.statusTracker().getJobIdsForTag(tag)]
        jobs = [job for job in infos if job is not None and job.status == "RUNNING"]
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        # From the scheduler, because the tracker's count is as old as the stage's last event.
        scheduler = scala.taskScheduler()
        sets = [scheduler.taskSetManagerForAttempt(s.stageId, s.currentAttemptId) for s in stages if s is not None]
        return len(jobs), sum(tasks.get().runningTasks() for tasks in sets if tasks.isDefined())

    @_unless_stopping([])
    def failure_messages(self, tag: str) -> list[str]:
        jobs = list(self._scala.statusTracker().getJobIdsForTag(tag))
        return [message for _, message in failed_tasks(self.context, jobs)]

    @_unless_stopping({})
    def log_urls(self, tag: str) -> dict[int, str]:
        jobs = list(self._scala.statusTracker().getJobIdsForTag(tag))
        running = [
            (task.index(), task.executorLogs())
            for task in _tasks(self.context, jobs, lambda stage: stage.numActiveTasks)
            if task.status() == "RUNNING"
        ]
        return {index: logs.apply("stderr") for index, logs in running if logs.contains("stderr")}

    @contextmanager
    def job_tag(self, tag: str) -> Iterator[None]:
        """Give the jobs that this thread starts a tag.

        Threads of pyspark.ml's validators share an object of local properties, so this thread replaces it by a copy.
        """
        scala = self._scala
        scala.setLocalProperties(scala.getLocalProperties().clone())
        self.context.addJobTag(tag)
        try:
            yield
        finally:
            if not self.is_stopped():
                self.context.removeJobTag(tag)

    def start_query(self, writer: Any, handle: Callable[[Any, int], None]) -> Any:
        return writer.foreachBatch(handle).start()

    def checkpoint_files(self) -> HadoopFiles:
        return HadoopFiles(self.context)

    def with_fixed_plan(self, frame: Any) -> tuple[Any, int]:
        return with_fixed_plan(frame)

    def set_partitions(self, frame: Any, partitions: int) -> None:
        """Do nothing: Spark's Java process has the number."""

    def estimated_bytes(self, frame: Any) -> int:
        """Return the size that Spark's optimizer estimates, which is exact for a cached DataFrame."""
        return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))

    def broadcast(self, value: Any) -> Broadcast:
        return cast(Broadcast, self.context.broadcast(value))

    def loan(self) -> Loan | None:
        """Return a loan whose token is a broadcast variable: each plan whose functions contain it refers to it."""
        token = self.context.broadcast(None)
        reference = self.context._jvm.java.lang.ref.WeakReference(token._jbroadcast)
        return Loan(token, functools.partial(_is_collected, self, reference))

    def progress_bar_hider(self) -> Callable[[], None]:
        option = self._scala.progressBar()
        if not option.isDefined():
            return lambda: None
        bar, hidden_s = option.get(), 0.0

        def hide() -> None:
            nonlocal hidden_s
            if time.monotonic() - hidden_s > BAR_INTERVAL_S:
                bar.finishAll()
                hidden_s = time.monotonic()

        return hide

    @property
    def _scala(self) -> Any:
        return self.context._jsc.sc()


def _is_collected(spark: ClassicSpark, reference: Any) -> bool:
    """Return whether Java has collected the referent, or the SparkContext was stopped: no plan can be run then."""
    from py4j.protocol import Py4JError

    try:
        return spark.context._jsc is None or reference.get() is None
    except (Py4JError, OSError):
        return spark.is_stopped()


def is_context_stopped(spark_context: Any) -> bool:
    """Return whether a SparkContext was stopped; raise py4j's errors if its Java process does not answer."""
    return spark_context._jsc is None or bool(spark_context._jsc.sc().isStopped())


def failed_tasks(spark_context: Any, jobs: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield the index and the error message of each failed task attempt of these jobs."""
    for task in _tasks(spark_context, jobs, lambda stage: stage.numFailedTasks):
        if task.errorMessage().isDefined():
            yield task.index(), task.errorMessage().get()


def _tasks(spark_context: Any, jobs: Iterable[int], num_tasks: Callable[[Any], int]) -> Iterator[Any]:
    """Yield Java's records of the tasks in those stages of the jobs for which ``num_tasks`` is not 0."""
    tracker = spark_context.statusTracker()
    infos = [tracker.getJobInfo(job) for job in jobs]
    for stage in (stage for info in infos if info is not None for stage in info.stageIds):
        info = tracker.getStageInfo(stage)
        if info is None or not num_tasks(info):
            continue
        tasks = spark_context._jsc.sc().statusStore().taskList(stage, info.currentAttemptId, MAX_TASKS)
        yield from (tasks.apply(index) for index in range(tasks.size()))


class RddJob:
    """A job over an RDD. Its closure is pickled now: PySpark records the broadcast variables for this thread."""

    def __init__(self, spark: ClassicSpark, rdd: Any) -> None:
        self._spark, self._rdd = spark, rdd
        self.tasks = int(rdd._jrdd.getNumPartitions())  # ``_jrdd`` pickles the closure
        scala = spark._scala
        self._properties = scala.getLocalProperties().clone()  # scheduler pool, job group, description

    def run(self, tag: str) -> None:
        self._spark._scala.setLocalProperties(self._properties)
        self._spark.context.addJobTag(tag)
        self._rdd.collect()


@dataclass(frozen=True)
class RddRows:
    """The rows of an RDD."""

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
    """The rows of a DataFrame whose plan is fixed (``with_fixed_plan``)."""

    spark: ClassicSpark
    frame: Any
    partitions: int

    def repartition(self, partitions: int) -> DataFrameRows:
        return DataFrameRows(self.spark, *with_fixed_plan(self.frame.repartition(partitions)))

    def job(self, work: Callable[[Any], int]) -> RddJob:
        return RddJob(self.spark, map_in_arrow(self.frame, rank_of_batches(work), RANK_SCHEMA).rdd)


def repartition_by_record(rdd: Any, partitions: int) -> Any:
    """Shuffle an RDD into another number of partitions, and distribute its records one by one.

    ``RDD.repartition`` distributes batches of ten records, so a few records would all be in one partition. The shuffle
    is that of ``RDD.repartition``, so Spark knows that its result depends on the records' order.
    """
    from pyspark import RDD, serializers

    untyped: Any = serializers
    single_records = rdd._reserialize(untyped.BatchedSerializer(untyped.CPickleSerializer(), 1))
    shuffled = single_records._jrdd.coalesce(partitions, True)
    return RDD(shuffled, single_records.ctx, single_records._jrdd_deserializer)


def with_fixed_plan(frame: Any) -> tuple[Any, int]:
    """Return a DataFrame of the same rows with a fixed plan, and its number of Spark partitions.

    With adaptive execution, the number of partitions is known only after the plan's shuffles have run. Another plan
    over the same data, such as ``mapInArrow``, would run them again. So the returned DataFrame reads the rows of the
    executed plan, as after ``DataFrame.localCheckpoint``, but nothing is stored.
    """
    from pyspark.sql import DataFrame

    rows = frame._jdf.queryExecution().toRdd()
    session = frame.sparkSession
    java_frame = session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False)
    return DataFrame(java_frame, session), rows.getNumPartitions()


def import_folders(spark_context: Any) -> list[str]:
    """Return the folders in which Spark's Python workers find files that the application ships."""
    root = spark_context._jvm.org.apache.spark.SparkFiles.getRootDirectory()
    return [root, *(f"{root}/{name}" for name in spark_context._python_includes)]


def java() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm


def jvm_conf(conf: Any) -> Any:
    return conf._jconf


def terminate_jvm() -> None:
    """Terminate the Java process that this process has started, if any."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.proc.terminate()
