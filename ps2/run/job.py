"""The Spark job of a run, whose tasks are the workers. The rows are in Spark or in the driver's memory."""

from __future__ import annotations

import inspect
import io
import reprlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle

from ps2.errors import ConfigError, InputError, UsageError
from ps2.run.clock_loop import RunRef
from ps2.run.compiled import importable_name
from ps2.run.spark.backend import RowSource, SparkBackend, SparkJob
from ps2.run.spark.backend_lookup import backend_of
from ps2.run.spark.driver_rows import DriverRows, LocalData
from ps2.run.task import Function, run_task

# The name by which child processes of multiprocessing import the main module.
MAIN_ALIAS = "__mp_main__"


def pickled(worker_fn: Callable[..., Any], read: Callable[..., Any] | None = None) -> Function:
    """Check and pickle the user's functions; raise UsageError."""
    from pyspark import Broadcast, cloudpickle

    untyped: Any = cloudpickle
    by_value = untyped.list_registry_pickle_by_value()
    broadcasts = []

    class Pickler(untyped.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, Broadcast):
                broadcasts.append(obj)
            # pickle imports an object for which this method returns a name from the object's module.
            if (name := importable_name(obj, by_value)) is not None:
                return name
            return super().reducer_override(obj)

    code = io.BytesIO()
    check_call("run", worker_fn, "worker", "rows")
    if read is not None:
        check_call("run: read", read, "worker", "rows")
    # pyspark may have made this alias (for pandas). pickle would look functions up in it, but workers do not have it.
    alias = sys.modules.pop(MAIN_ALIAS, None)
    try:
        Pickler(code).dump((read, worker_fn))
    except Exception as error:  # a closure can hold any object, which can raise anything
        functions = worker_fn if read is None else (read, worker_fn)
        raise UsageError(f"run: {functions!r} cannot be pickled: {error}") from error
    finally:
        if alias is not None:
            sys.modules[MAIN_ALIAS] = alias
    return Function(code.getvalue(), tuple(broadcasts))


def check_call(name: str, function: Any, *arguments: str) -> None:
    """Raise UsageError unless a function can be called with these arguments."""
    expected = f"{name}: expected a function of ({', '.join(arguments)})"
    if not callable(function):
        raise UsageError(f"{expected}, got {function!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in function has no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(f"{expected}, got {function!r}: {error}") from error


def takes_reports(on_clock: Any) -> bool:
    """Return whether ``onClock`` is a function of (clock, reports): two parameters without defaults."""
    try:
        parameters = inspect.signature(on_clock).parameters.values()
    except (TypeError, ValueError):  # not a function, or a built-in one
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    return len(required) == 2


class WorkerJob:
    """The Spark job whose tasks are the workers, and the thread that waits for it."""

    def __init__(self, spark: SparkBackend, data: Any, function: Function, workers: int | None, slots: int) -> None:
        """Shuffles may run. ``workers`` None: a worker for each partition (or row in memory), at most ``slots``."""
        self._spark = spark
        self._function = function
        source = _source(spark, data)
        limit = slots if source.partitions is None else min(source.partitions, slots)
        requested = workers if workers is not None else max(1, limit)
        self._source = source if source.partitions == requested else source.repartition(requested)
        if self._source.partitions not in (requested, None):
            raise UsageError(f"run: expected {requested} partitions of the data, Spark made {self._source.partitions}")
        self.workers = requested
        self._error: Exception | None = None
        self._tag: str | None = None
        self._thread: threading.Thread | None = None

    def start(self, ref: RunRef, tag: str, on_end: Callable[[], None]) -> None:
        """Start the tasks; call ``on_end`` when they have ended."""
        function = self._function
        job: SparkJob = self._source.job(lambda rows: run_task(ref, function, rows))
        if job.tasks not in (self.workers, None):
            raise UsageError(f"run: expected a task for each of {self.workers} partitions, Spark made {job.tasks}")

        def run() -> None:
            try:
                job.run(tag)
            except Exception as error:  # ``join`` returns the error
                self._error = error
            finally:
                on_end()

        self._tag = tag
        self._thread = threading.Thread(target=run, name="ps2-run", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the tasks, if they have been started."""
        if self._tag is not None:
            self._spark.cancel_jobs(self._tag)

    def join(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for the end of the tasks; return Spark's error if they failed."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._error


def _source(spark: SparkBackend, data: Any) -> RowSource:
    if (local := local_data(data)) is not None:
        return DriverRows(spark, local, len(local))
    kind = type(data)
    if hasattr(data, "mapInArrow"):
        if data.isStreaming:
            raise ConfigError(
                "run: a streaming DataFrame has no end; call run in foreachBatch, or read the same source with "
                "spark.read"
            )
    elif not hasattr(data, "mapPartitionsWithIndex"):
        module = (
            "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        )  # other packages also have classes named DataFrame
        advice = "; make a list of its elements" if hasattr(data, "__iter__") else ""
        raise ConfigError(f"run: expected {ACCEPTED}; got {module}{kind.__qualname__}{advice}")
    if backend_of(data) != spark:
        raise ConfigError(
            "run: the data belong to another SparkSession than this PS2Context: call PS2Context.getOrCreate(spark) "
            "with their SparkSession first"
        )
    return spark.row_source(data)


ACCEPTED = "a DataFrame or an RDD of Spark, a list, a tuple, a range, or a pandas DataFrame"


def local_data(data: Any) -> LocalData | None:
    """Return the rows of a list, tuple, range or pandas DataFrame; None if ``data`` is something else."""
    pandas = sys.modules.get("pandas")
    if isinstance(data, (list, tuple, range)):
        row_class: type[LocalData] = _Elements
    elif pandas is not None and isinstance(data, pandas.DataFrame):
        from ps2.run.pandas_rows import PandasRows

        row_class = PandasRows
    else:
        return None
    if not len(data):
        raise InputError(f"run: the data, a {type(data).__name__}, are empty: each worker needs a row")
    return row_class(data)


class _Elements(LocalData):
    """The elements of a sequence, pickled."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    def serialized(self, begin: int, end: int) -> bytes:
        try:
            pickled: bytes = cloudpickle.dumps(self._elements[begin:end])
            return pickled
        except Exception as error:  # an element can be any object, which can raise anything
            raise self._pickle_error(begin, end) or UsageError(f"run: the data cannot be pickled: {error}") from error

    @staticmethod
    def read(part: bytes) -> Iterable[Any]:
        elements: Sequence[Any] = cloudpickle.loads(part)
        return elements

    def _pickle_error(self, begin: int, end: int) -> UsageError | None:
        """Return an error that names the first element that cannot be pickled."""
        for index in range(begin, end):
            element = self._elements[index]
            try:
                cloudpickle.dumps(element)
            except Exception as error:
                return UsageError(
                    f"run: element {index} of the data, {reprlib.repr(element)}, cannot be pickled: {error}"
                )
        return None
