"""What a run tells of the reason that Spark gives for a failed job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from ps2.errors import ConfigError
from ps2.run.spark.classic import ClassicSpark
from ps2.run.spark.errors import MAX_CHARS, failed_task, unreachable_driver

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
    told = "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: it ended"
    assert failed_task(RuntimeError(f"An error occurred\n: {told}\nDriver stacktrace:")) == (1, told)


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


@pytest.mark.parametrize(("failing", "stopped"), [(0, False), (1, False), (2, True)])
def test_stopped_when_a_cut_connection_answers_then_asks_again(failing, stopped):
    answers = [Py4JNetworkError("Answer from Java side is empty")] * failing

    def ask():
        if answers:
            raise answers.pop()
        return False

    spark = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=ask)))
    assert ClassicSpark(spark).is_stopped() == stopped
