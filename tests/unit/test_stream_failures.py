"""What a stream makes of a failed job: the first cause in one line, and whether the batch is repeated."""

from __future__ import annotations

import pytest

from ps2.algorithms.training.streams.failures import is_repeatable, is_stopped, job_failure, query_failure
from ps2.algorithms.training.streams.location import check_same
from ps2.errors import (
    InputError,
    OpError,
    OutOfRangeError,
    RecoveryError,
    RolledBack,
    StoppedError,
    UnavailableError,
    UsageError,
    WorkerError,
)

ABORTED = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.1 executor 1): """
JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:572)\nDriver stack"


def raised(said):
    trace = f'Traceback (most recent call last):\n  File "rows.py", line 3, in learn\n    learn()\n{said}\n'
    return RuntimeError(f"{ABORTED}org.apache.spark.api.python.PythonException: {trace}{JAVA}")


def lost(said):
    return RuntimeError(f"{ABORTED}{said}{JAVA}")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            raised("ZeroDivisionError: division by zero"),
            WorkerError,
            "a task raised ZeroDivisionError: division by zero",
        ),
        (raised("AttributeError: no 'x'"), WorkerError, "a task raised AttributeError: no 'x'"),
        (raised("ps2.errors.UnavailableError: 10.0.0.2:7: gone"), UnavailableError, "10.0.0.2:7: gone"),
        (raised("ps2.errors.RolledBack: it rolled back"), RolledBack, "it rolled back"),
        (raised("ps2.errors.OutOfRangeError: gradients"), OutOfRangeError, "gradients"),
        (raised("ConnectionResetError: [Errno 104] reset"), UnavailableError, "a task raised ConnectionResetError"),
        (lost("ExecutorLostFailure (executor 1 exited)"), UnavailableError, "Spark's job failed: Job aborted"),
        (lost("Python worker exited unexpectedly (crashed)"), UnavailableError, "Spark's job failed"),
        (lost("java.net.SocketException: Broken pipe"), UnavailableError, "Spark's job failed"),
        (lost("java.lang.IllegalArgumentException: no"), WorkerError, "Spark's job failed"),
    ],
)
def test_job_failure_when_it_says_so_then_is_named(error, kind, words):
    result = job_failure(error, 7)
    assert type(result) is kind
    assert str(result).startswith(f"batch 7: {words}")
    assert "\n" not in str(result)


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("java.io.IOException: No space left on device", WorkerError, "java.io.IOException: No space left on device"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/in. SQLSTATE: 42K03",
            WorkerError,
            "Path does not exist: file:/in.",
        ),
        ("java.net.ConnectException: refused", UnavailableError, "java.net.ConnectException: refused"),
    ],
)
def test_query_failure_when_source_fails_then_one_line(said, kind, words):
    text = f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {said}\n=== Query ===\n{JAVA}"
    result = query_failure(RuntimeError(text), 4)
    assert (type(result), str(result)) == (kind, f"after batch 4: Spark's query failed: {words}")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (UnavailableError("gone"), True),
        (RolledBack("rolled back"), True),
        (TimeoutError("late"), True),
        (TypeError("no"), False),
        (AttributeError("no"), False),
        (WorkerError("a user's function"), False),
        (InputError("a label"), False),
        (OpError("a kernel"), False),
        (StoppedError("stopped"), False),
        (RecoveryError("no snapshot"), False),
    ],
)
def test_failure_when_something_was_lost_then_is_repeated(failure, expected):
    assert is_repeatable(failure) is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("An error occurred while calling o12.collectToPython.\n: java.lang.InterruptedException\n\tat x", True),
        ("An error occurred while calling o12.x.\n: java.nio.channels.ClosedByInterruptException\n\tat x", True),
        (": org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 7 cancelled part of x SQLSTATE: XXKDA", True),
        (": org.apache.spark.SparkException: Job aborted\nCaused by: java.lang.InterruptedException: sleep", False),
    ],
)
def test_job_when_user_stops_query_then_is_known(said, expected):
    assert is_stopped(RuntimeError(said)) is expected


def test_check_same_when_one_field_differs_then_names_it_alone():
    began = {"seed": 0, "fields": [{"columns": [name]} for name in "abc"]}
    now = {"seed": 0, "fields": [{"columns": [name]} for name in "abd"]}
    with pytest.raises(UsageError, match=r"^folder: fields 2: columns 0: expected 'c', as when .* began, got 'd'$"):
        check_same("folder", began, now)
