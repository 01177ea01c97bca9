"""What a run tells of the reason that Spark gives for a failed job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from ps2.errors import ConfigError, InputError, SpillError, WorkerError
from ps2.run.spark.classic import ClassicSpark
from ps2.run.spark.errors import (
    MAX_CHARS,
    failed_task,
    failure_message,
    memory_advice,
    plain_job_errors,
    unreachable_driver,
    worker_error,
)

WITHOUT_NUMPY = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/usr/lib/ps2/client/worker.py", line 11, in <module>
    import numpy as np
ModuleNotFoundError: No module named 'numpy'
 SQLSTATE: 38000
"""


def test_words_when_worker_cannot_start_then_have_python_error():
    rank, words = failed_task(RuntimeError(WITHOUT_NUMPY))
    assert rank is None
    assert words.endswith("ModuleNotFoundError: No module named 'numpy'")
    assert len(words) <= MAX_CHARS


def test_words_when_a_task_failed_too_often_then_name_its_rank():
    messages = "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: it ended"
    assert failed_task(RuntimeError(f"An error occurred\n: {messages}\nDriver stacktrace:")) == (1, messages)


CHAINED = """An error occurred\n: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: Traceback (most recent call last):
  File "talk.py", line 81, in _connect
    connect()
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "talk.py", line 60, in ask
    raise
ps2.errors.UnavailableError: 127.0.0.1:4000: refused
in two lines

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "run_control.py", line 240, in _ask
    raise
ps2.errors.UnreachableError: the driver's run at 127.0.0.1:4000 was never reached

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Driver stacktrace:
Caused by: Traceback (most recent call last):
  File "other.py", line 1, in <module>
    other()
ValueError: other
"""  # noqa: E501


def test_words_when_exceptions_are_chained_then_have_outermost():
    _, words = failed_task(RuntimeError(CHAINED))
    assert words.endswith(" ps2.errors.UnreachableError: the driver's run at 127.0.0.1:4000 was never reached")


def test_reach_when_worker_reported_it_then_config_error():
    error = unreachable_driver(CHAINED)
    assert isinstance(error, ConfigError)
    assert str(error) == "run: the driver's run at 127.0.0.1:4000 was never reached"
    assert unreachable_driver(WITHOUT_NUMPY) is None


FAULT = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "columns.py", line 141, in check
    raise InputError(
ps2.errors.InputError: column 'x', row 3: expected numbers, got null

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""
DISK = """An error occurred while calling o67.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times
Caused by: java.io.IOException: No space left on device
	at java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        (FAULT, InputError, "column 'x', row 3: expected numbers, got null"),
        (
            DISK,
            SpillError,
            "Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times: a local disk of Spark is full: use "
            "larger disks (spark.local.dir)",
        ),
    ],
)
def test_job_when_error_is_of_ps2_or_disk_then_raises_a_sentence(text, error, sentence):
    with pytest.raises(error) as raised, plain_job_errors():
        raise PySparkException(text)
    assert str(raised.value) == sentence


def test_job_when_a_user_function_fails_then_raises_spark_error():
    with pytest.raises(PySparkException, match="ModuleNotFoundError"), plain_job_errors():
        raise PySparkException(WITHOUT_NUMPY)


@pytest.mark.parametrize(
    ("raised", "lines"),
    [
        ("ps2.errors.SpillError: 12 bytes do not fit", 1),
        ("ps2.errors.LostError: server 1 is lost", 1),
        ("ps2.errors.ShapeError: values: expected 3", 4),
        ("ValueError: mine", 4),
    ],
)
def test_run_when_worker_fails_then_traceback_only_of_its_own(raised, lines):
    """No change of the worker's function helps against a full disk, or a lost server."""
    traceback = f'Traceback (most recent call last):\n  File "f.py", line 1, in work\n{raised}\n'
    error = worker_error(failure_message(2, 3, traceback))
    assert isinstance(error, WorkerError)
    first, *rest = str(error).splitlines()
    assert (len(rest) + 1, first.startswith("run: rank 2 failed in clock 3: ")) == (lines, True)
    assert first.endswith(raised.partition(": ")[2])


@pytest.mark.parametrize(("failing", "stopped"), [(0, False), (1, False), (2, True)])
def test_stopped_when_a_cut_connection_answers_then_asks_again(failing, stopped):
    answers = [Py4JNetworkError("Answer from Java side is empty")] * failing

    def ask():
        if answers:
            raise answers.pop()
        return False

    spark = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=ask)))
    assert ClassicSpark(spark).is_stopped() == stopped


@pytest.mark.parametrize("words", ["can't start new thread", "Python worker exited unexpectedly (crashed)"])
def test_memory_advice_when_a_limited_worker_died_then_names_it(words):
    assert "spark.executor.pyspark.memory=2g" in memory_advice("2g", words)
    assert "at least 1g" in memory_advice("2g", words)


@pytest.mark.parametrize(("limit", "words"), [(None, "can't start new thread"), ("2g", "ZeroDivisionError")])
def test_memory_advice_when_memory_was_not_limited_then_none(limit, words):
    assert memory_advice(limit, words) == ""


OF_A_ROW = """An error occurred while calling o2254.accuracy.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 19.0 failed 1 times: {}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2744)
Driver stacktrace:
"""
LABEL = "column 'label': expected a finite number, got NaN"


@pytest.mark.parametrize(
    "raised",
    [
        f"org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] {LABEL} SQLSTATE: P0001",
        f"java.lang.RuntimeException: {LABEL}",  # Spark 3.5
    ],
)
def test_plain_errors_when_a_row_is_faulty_then_its_sentence(raised):
    with pytest.raises(InputError) as caught, plain_job_errors():
        raise PySparkException(OF_A_ROW.format(raised))
    assert str(caught.value) == LABEL
