"""What Spark says of a task that failed, as the launcher passes it on."""

from __future__ import annotations

from ps2.coordinator.launchers.containers.spark_app import one_line

RAISED = """org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    func()
ModuleNotFoundError: No module named 'ps2'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
NO_PYTHON = """java.io.IOException: Cannot run program "/no/such/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""


def test_in_a_line_when_python_raised_then_has_what_it_raised():
    assert one_line(RAISED).endswith("ModuleNotFoundError: No module named 'ps2'")


def test_in_a_line_when_python_did_not_start_then_omits_stack():
    assert one_line(NO_PYTHON).startswith('java.io.IOException: Cannot run program "/no/such/python": error=2')
    assert "ProcessBuilder" not in one_line(NO_PYTHON)
