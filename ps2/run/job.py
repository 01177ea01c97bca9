"""The Spark job of a run: one stage whose tasks are the workers."""

from __future__ import annotations

import inspect
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ps2.coordinator.connect import refuse_connect
from ps2.errors import ConfigError, UsageError
from ps2.run.compiled import importable_name
from ps2.run.work import Function, work
from ps2.run.worker import RunRef

RESULT = "rank int"
# The program, for the children of multiprocessing.
MAIN_ALIAS = "__mp_main__"


def pickled(worker_fn: Callable[..., Any], read: Callable[..., Any] | None = None) -> Function:
    """Pickle the users' function, and the one that makes what it works on of the rows.

    Raises:
        UsageError: one is no function, or cannot be pickled.
    """
    from pyspark import Broadcast, cloudpickle

    untyped: Any = cloudpickle
    by_value = untyped.list_registry_pickle_by_value()
    broadcasts = []

    class Pickler(untyped.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, Broadcast):
                broadcasts.append(obj)
            # A string names what is to be imported, as other functions are.
            if (name := importable_name(obj, by_value)) is not None:
                return name
            return super().reducer_override(obj)

    code = io.BytesIO()
    check_call("run", worker_fn, "worker", "rows")
    if read is not None:
        check_call("run: read", read, "worker", "rows")
    # Where pyspark has made one (for pandas), NumPy's functions are found in it first, and no worker has it.
    alias = sys.modules.pop(MAIN_ALIAS, None)
    try:
        Pickler(code).dump((read, worker_fn))
    except Exception as error:  # a closure may hold anything, and each thing fails in its own way
        what = worker_fn if read is None else (read, worker_fn)
        raise UsageError(f"run: {what!r} cannot be pickled: {error}") from error
    finally:
        if alias is not None:
            sys.modules[MAIN_ALIAS] = alias
    return Function(code.getvalue(), tuple(broadcasts))


def check_call(name: str, function: Any, *arguments: str) -> None:
    """Raise UsageError unless something can be called with so many arguments."""
    wanted = f"{name}: expected a function of ({', '.join(arguments)})"
    if not callable(function):
        raise UsageError(f"{wanted}, got {function!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a built-in function, which does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(f"{wanted}, got {function!r}: {error}") from error


def takes_reports(on_clock: Any) -> bool:
    """Tell whether ``onClock`` is a function of (clock, reports): it has two arguments without defaults."""
    try:
        parameters = inspect.signature(on_clock).parameters.values()
    except (TypeError, ValueError):  # it is no function, or a built-in one, which does not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is inspect.Parameter.empty for one in parameters) == 2


class Job:
    """Rows in as many partitions as there are workers, and the thread that runs them through Spark."""

    def __init__(self, spark_context: Any, data: Any, workers: int | None, slots: int) -> None:
        """Args:
        data: a DataFrame or an RDD. The shuffles that it needs may run here.
        workers: how many; None: one for each of its partitions, as far as there are slots.

        Raises:
            ConfigError: it is neither.
        """
        self._spark = spark_context
        source = _source(data)
        wanted = workers if workers is not None else max(1, min(source.partitions, slots))
        self._source = source if source.partitions == wanted else source.spread(wanted)
        if self._source.partitions != wanted:
            raise UsageError(f"run: Spark made {self._source.partitions} rdd_partitions of the data, not {wanted}")
        self.workers = wanted
        self._error: Exception | None = None

    def start(self, ref: RunRef, function: Function, tag: str, ended: Callable[[], None]) -> None:
        """Run the tasks; call ``ended`` when they have."""
        rdd = self._source.stage(ref, function)
        # In this thread Spark pickles it: the broadcasts that this meets are noted by thread.
        tasks = rdd._jrdd.getNumPartitions()
        if tasks != self.workers:
            raise UsageError(f"run: Spark made {tasks} tasks of {self.workers} rdd_partitions")
        scala_context = self._spark._jsc.sc()
        properties = scala_context.getLocalProperties().clone()

        def run() -> None:
            # As in the caller's own jobs: pool, group, description.
            scala_context.setLocalProperties(properties)
            self._spark.addJobTag(tag)
            try:
                rdd.collect()
            except Exception as error:  # whatever Spark says is told by who waits for the job
                self._error = error
            finally:
                ended()

        self._tag = tag
        self._thread = threading.Thread(target=run, name="ps2-run", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._spark.cancelJobsWithTag(self._tag)

    def join(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for the tasks' end; return what Spark says of them if they failed."""
        self._thread.join(timeout_s)
        return self._error


class _Rdd:
    """An RDD."""

    def __init__(self, rdd: Any) -> None:
        self._rdd = rdd
        self.partitions: int = rdd.getNumPartitions()

    def spread(self, partitions: int) -> _Rdd:
        """Deal the records out, one by one.

        ``RDD.repartition`` deals batches of ten: few records, such as one block of rows each, would all go to one. The
        shuffle is the same, so Spark knows that it depends on the records' order, and what to do when that may differ.
        """
        from pyspark import RDD, serializers

        untyped: Any = serializers
        singly = self._rdd._reserialize(untyped.BatchedSerializer(untyped.CPickleSerializer(), 1))
        dealt = singly._jrdd.coalesce(partitions, True)
        return _Rdd(RDD(dealt, singly.ctx, singly._jrdd_deserializer))

    def stage(self, ref: RunRef, function: Function) -> Any:
        return self._rdd.mapPartitions(lambda rows: [work(ref, function, rows)])


def fixed(frame: Any) -> tuple[Any, int]:
    """Return a DataFrame of the same rows whose plan is fixed, and how many rdd_partitions it has.

    How many partitions a plan has is known when its shuffles have run (adaptive execution); another plan of the same
    data, such as ``mapInArrow``, would run them once more. So this builds on the first one's rows.
    """
    from pyspark.sql import DataFrame

    rows = frame._jdf.queryExecution().toRdd()
    session = frame.sparkSession
    # What ``DataFrame.localCheckpoint`` does, without storing the rows.
    same = session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False)
    return DataFrame(same, session), rows.getNumPartitions()


class _Frame:
    """A DataFrame whose plan is fixed."""

    def __init__(self, frame: Any) -> None:
        self._frame, self.partitions = fixed(frame)

    def spread(self, partitions: int) -> _Frame:
        return _Frame(self._frame.repartition(partitions))

    def stage(self, ref: RunRef, function: Function) -> Any:
        def serve(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            rank = work(ref, function, batches)
            yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32())})

        return self._frame.mapInArrow(serve, RESULT).rdd


def _source(data: Any) -> _Rdd | _Frame:
    kind = type(data)
    refuse_connect("run: a DataFrame", data)
    if hasattr(data, "mapInArrow"):
        if data.isStreaming:
            raise ConfigError(
                "run: a streaming DataFrame has no end; call run in foreachBatch, or read the same source with "
                "spark.read"
            )
        return _Frame(data)
    if hasattr(data, "mapPartitionsWithIndex"):
        return _Rdd(data)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."  # there are other DataFrames
    raise ConfigError(f"run: expected a DataFrame or an RDD of Spark, got {home}{kind.__qualname__}")
