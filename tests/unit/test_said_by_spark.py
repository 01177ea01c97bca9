"""What a run tells of the reason that Spark gives for a failed job."""

from __future__ import annotations

from ps2.run.spark_job import MAX_CHARS, said_by_spark

WITHOUT_NUMPY = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/usr/lib/ps2/client/worker.py", line 11, in <module>
    import numpy as np
ModuleNotFoundError: No module named 'numpy'
 SQLSTATE: 38000
"""


def test_words_when_a_worker_cannot_start_then_hold_what_its_python_raised():
    rank, words = said_by_spark(RuntimeError(WITHOUT_NUMPY))
    assert rank is None
    assert words.endswith("ModuleNotFoundError: No module named 'numpy'")
    assert len(words) <= MAX_CHARS


def test_words_when_a_task_failed_too_often_then_name_its_rank():
    told = "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: it ended"
    assert said_by_spark(RuntimeError(f"An error occurred\n: {told}\nDriver stacktrace:")) == (1, told)
