"""What a task raised comes out of Spark as the error that it was."""

from __future__ import annotations

import inspect
import socket

import pytest

from ps2 import errors
from ps2.errors import ConfigError, OpError, PS2Error
from ps2.run.spark import session as spark_session
from ps2.run.spark.session import _from_task, plain_errors
from tests.ports import free_port

# As Spark reports a task that has failed: Java, the Python traceback, and Java again.
REPORT = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 3.0 (TID 5) (localhost executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 1830, in main
    process()
  File "session.py", line 60, in run
    raise error
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1830, in main
    process()
  File "session.py", line 60, in run
    raise error
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\t... 1 more
"""


def report(error):
    return REPORT.replace("{error}", error)


def subclasses():
    return [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PS2Error)]


@pytest.mark.parametrize("cls", subclasses(), ids=lambda cls: cls.__name__)
def test_from_task_when_task_raised_our_error_then_keeps_class(cls):
    assert type(_from_task(report(f"ps2.errors.{cls.__name__}: what happened"))) is cls


def test_from_task_when_task_raised_our_error_then_keeps_text():
    assert str(_from_task(report("ps2.errors.LimitError: 5 rows do not fit"))) == "5 rows do not fit"


def test_from_task_when_text_has_several_lines_then_keeps_all():
    text = "server 1 is lost: its log ends:\n  one line\n  another: line"
    assert str(_from_task(report(f"ps2.errors.UnavailableError: {text}"))) == text


def test_from_task_when_error_is_foreign_then_op_error_names_it():
    error = _from_task(report("ZeroDivisionError: division by zero"))
    assert (type(error), str(error)) == (OpError, "a Spark task failed with ZeroDivisionError: division by zero")


def test_from_task_when_errors_are_chained_then_takes_last():
    chain = (
        "KeyError: 3\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\nps2.errors.StoppedError: stopped'
    )
    assert str(_from_task(report(chain))) == "stopped"


def test_from_task_when_java_failed_then_it_is_one_line():
    java = (
        "An error occurred while calling o689.getFileSystem.\n"
        ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "nosuch"\n'
        "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3586)\n"
    )
    expected = 'Spark failed: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "nosuch"'
    assert str(_from_task(java)) == expected


def test_from_task_when_a_worker_died_then_it_is_one_line():
    java = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Python worker exited unexpectedly\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
    )
    assert str(_from_task(java)).endswith("Python worker exited unexpectedly")


def test_plain_errors_when_nothing_is_raised_then_does_nothing():
    with plain_errors():
        pass


def test_plain_errors_when_one_of_ours_is_raised_then_it_passes():
    with pytest.raises(ConfigError, match="as it was"), plain_errors():
        raise ConfigError("as it was")


def test_plain_errors_when_spark_raises_then_error_keeps_cause():
    from pyspark.errors import PySparkException

    with pytest.raises(OpError) as raised, plain_errors():
        raise PySparkException(report("ValueError: from a task"))
    assert isinstance(raised.value.__cause__, PySparkException)


@pytest.fixture
def without_java(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_session_when_java_is_missing_then_says_what_to_install(without_java):
    with pytest.raises(ConfigError, match="Java 17"):
        spark_session._check_java()


def test_session_when_java_home_lacks_java_then_names_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no bin/java in {tmp_path}"):
        spark_session._check_java()


@pytest.mark.parametrize("master", ["nonsense", "", "spark:/host", "http://host:7077", "localhost", "yarn-client"])
def test_master_when_it_is_none_then_says_which_there_are(master):
    with pytest.raises(ConfigError, match=r"^Spark's master: expected local\[2\], spark://host:7077, yarn or k8s"):
        spark_session._check_master(master)


def test_master_when_it_is_of_connect_then_says_what_to_do():
    with pytest.raises(ConfigError, match=r"sc://host:15002 is a Spark Connect server, .*: use the estimators"):
        spark_session._check_master("sc://host:15002")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]", "k8s://https://host"])
def test_master_when_spark_knows_it_then_it_is_taken(master):
    spark_session._check_master(master)


@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_master_when_yarn_without_settings_then_names_them(variable, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"yarn: HADOOP_CONF_DIR or YARN_CONF_DIR has to name"):
        spark_session._check_master("yarn")
    monkeypatch.setenv(variable, "/etc/hadoop")
    spark_session._check_master("yarn")


def test_master_when_nothing_listens_then_names_each_address():
    gone, other = free_port(), free_port()
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{gone}: Connection refused; 127.0.0.1:{other}: Conn"):
        spark_session._check_master(f"spark://127.0.0.1:{gone},127.0.0.1:{other}")


def test_master_when_one_of_two_listens_then_it_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as master:
        spark_session._check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{master.getsockname()[1]}")


def test_master_when_address_is_none_then_says_what_is_expected():
    with pytest.raises(ConfigError, match=r"^Spark's master: expected HOST:PORT, got 'host'$"):
        spark_session._check_master("spark://host")
